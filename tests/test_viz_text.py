"""The DOT text: the same in every process, unbroken by any name, and plain where plain is asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import microtensor as mt
import models
from microtensor import nn, viz
from microtensor.viz import style, symbols
from microtensor.viz.render import render

HOSTILE = [
    "<lambda> <map>", "<b>", "</TABLE>", "<BR/>", 'say "hi"', "it's", "back\\", "\\N", "\\G\\E\\T",
    "two\nlines", "tab\there", "a:b:c", "{x|y}", "graph", "subgraph", "a->b", "a;b]", "%s&amp;", "&#10;", "&",
    "émoji ☃", "", "\x00\x07", "\ud800", "\ufffe\uffff", "x" * 500, "-->", "]]>", "$(rm -rf /)",
    "\u2028\u2029", "nimda\u202e\u2066",
]  # fmt: skip

PROGRAM = """
import microtensor as mt
from microtensor import viz
from models import MultiHeadAttention, causal_mask
layer = MultiHeadAttention(16, 2, dropout=0.1)
x = mt.randn(2, 5, 16, requires_grad=True)
for level in ("equations", "ops"):
    print(viz.draw(layer, x, mask=causal_mask(5), level=level, names={"ξ": x}).dot)
"""


def labels(dot: str) -> list[str]:
    return re.findall(r"label=<(.*?)>, tooltip", dot)


@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_text_is_the_same_in_another_process(seed: str) -> None:
    runs = []
    for hashes in ("0", seed):
        env = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": str(Path(__file__).parent.parent)}
        runs.append(
            subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, check=True).stdout
        )
    assert runs[0] == runs[1]
    assert runs[0].count(b"digraph") == 2
    assert not re.search(rb"0x[0-9a-f]{6,}|object at", runs[0])


def test_the_text_is_the_same_on_a_second_call() -> None:
    x = mt.randn(3, requires_grad=True)
    y = (x * x).sum()
    assert viz.draw(y).dot == viz.draw(y).dot


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_a_drawing(name: str) -> None:
    x = mt.randn(3, requires_grad=True)
    drawing = viz.draw(x * x, names={name: x}, direction="LR")
    drawing.dot.encode()  # no lone surrogates
    shown = [step["text"] for o in drawing.json["objects"] for step in o["_ldraw_"] if step["op"] == "T"]
    assert symbols.clean(name) in shown
    tooltips = [e.get("{http://www.w3.org/1999/xlink}title", "") for e in ET.fromstring(drawing.svg()).iter()]
    assert any(t.startswith(f"{symbols.clean(name)}: leaf that learns (3,)") for t in tooltips)
    for text in labels(drawing.dot):
        ET.fromstring(f"<L>{text}</L>")
    for node in re.findall(r"^  (\S+) \[id=", drawing.dot, re.M):
        assert re.fullmatch(r"\w+", node, re.A)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_of_a_parameter_breaks_a_cell(name: str) -> None:
    layer = mt.nn.Linear(3, 2)
    drawing = viz.draw(layer, mt.randn(4, 3), names={name: layer.weight})
    shown = [step["text"] for o in drawing.json["objects"] for step in o["_ldraw_"] if step["op"] == "T"]
    assert any(symbols.clean(name) in text for text in shown)
    ET.fromstring(drawing.svg())


def test_every_label_of_an_attention_layer_is_xml() -> None:
    from models import MultiHeadAttention

    for level in ("equations", "ops"):
        dot = viz.draw(MultiHeadAttention(8, 2, dropout=0.1), mt.randn(1, 3, 8), level=level).dot
        assert len(labels(dot)) > 10
        for text in labels(dot):
            ET.fromstring(f"<L>{text}</L>")
        assert not re.search(r"\b(size|ratio)=", dot)


def layers() -> dict[str, tuple[Any, ...]]:
    """Every layer and model, with its inputs."""
    x, ids = mt.randn(2, 5, 8, requires_grad=True), mt.randint(3, 9, (2, 5))
    share = mt.rand(2, 5, 8).requires_grad_()
    rows = mt.randn(5, 8, requires_grad=True), mt.arange(5)
    losses = {f"{name}Loss": (x, mt.randn(2, 5, 8)) for name in ("Huber", "L1", "MSE", "SmoothL1")}
    losses |= {"BCELoss": (share, mt.rand(2, 5, 8)), "BCEWithLogitsLoss": (x, mt.rand(2, 5, 8))}
    losses |= {"KLDivLoss": (share, mt.rand(2, 5, 8)), "CrossEntropyLoss": rows, "NLLLoss": rows}
    plain = ("GELU", "Flatten", "LeakyReLU", "LogSigmoid", "ReLU", "SiLU", "Sigmoid", "Softplus", "Tanh")
    made = {name: (getattr(nn, name)(), x) for name in plain}
    made |= {name: (getattr(nn, name)(), *given) for name, given in losses.items()}
    made |= {
        "LogSoftmax": (nn.LogSoftmax(-1), x),
        "Softmax": (nn.Softmax(-1), x),
        "Dropout": (nn.Dropout(), x),
    }
    made |= {"LayerNorm": (nn.LayerNorm(8), x), "RMSNorm": (nn.RMSNorm(8), x), "Linear": (nn.Linear(8, 3), x)}
    made |= {
        "Embedding": (nn.Embedding(9, 4), ids),
        "Sequential": (nn.Sequential(nn.Linear(8, 3), nn.ReLU()), x),
    }
    made |= {"FeedForward": (models.FeedForward(8, 16), x), "Encoder": (models.Encoder(2, 8, 2, 16), x)}
    made |= {
        "Decoder": (models.Decoder(2, 8, 2, 16), x, x),
        "DecoderLayer": (models.DecoderLayer(8, 2, 16), x, x),
    }
    made |= {"EncoderLayer": (models.EncoderLayer(8, 2, 16), x, models.causal_mask(5))}
    made |= {
        "MultiHeadAttention": (models.MultiHeadAttention(8, 2, dropout=0.1), x, x, x, models.causal_mask(5))
    }
    made |= {"PositionalEncoding": (models.PositionalEncoding(8, kind="learned"), x)}
    made |= {"GPT": (models.GPT(models.GPTConfig(8, 16, 2, 2, 8)), ids)}
    small = {"n_encoder_layers": 2, "n_decoder_layers": 2, "d_ff": 16, "max_len": 9}
    made |= {"Transformer": (models.Transformer(models.TransformerConfig(9, 9, 8, 2, **small)), ids, ids)}
    return made


# What computes nothing, and what reads texts and is made of the layers above.
NO_LAYERS = {"Identity", "Module", "ModuleDict", "ModuleList", "ParameterList", "TextEncoder"}


def test_every_layer_is_drawn_above() -> None:
    found = {
        n
        for m in (nn, models)
        for n in m.__all__
        if isinstance(c := getattr(m, n), type) and issubclass(c, nn.Module)
    }
    assert found - NO_LAYERS == layers().keys()


@pytest.mark.parametrize("level", ["equations", "ops", "heads", "tape"])
@pytest.mark.parametrize("name", layers())
def test_no_label_of_a_layer_breaks_a_drawing(name: str, level: str) -> None:
    drawn = layers()[name]
    if level == "heads" and not hasattr(drawn[0], "forward_per_head"):
        return
    dot = viz.draw(*drawn, level=level).dot
    for text in labels(dot):
        ET.fromstring(f"<L>{text}</L>")
    render(dot, "svg")  # raises where Graphviz cannot read it


# --- to_dot -----------------------------------------------------------------------------------------------

TOKEN = re.compile(r'\s+|"(?:[^"\\]|\\.)*"|[A-Za-z_\x80-\U0010ffff]\w*|-?\d+(?:\.\d+)?|->|[{}\[\];,=:]', re.S)


def tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        assert match, f"not DOT at {text[at : at + 30]!r}"
        found += [match.group()] if not match.group().isspace() else []
        at = match.end()
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_to_dot_quotes_every_label(name: str) -> None:
    x = mt.tensor(2.0, requires_grad=True)
    for names in ({x: name}, {name: x}):
        text = viz.to_dot(x * x, names=names)
        found = tokens(text)
        values = [found[i + 2] for i, token in enumerate(found) if token == "label"]
        assert len(values) == 2
        assert all(value.startswith('"') for value in values)
        assert ":" not in found
        render(text, "svg")


def test_to_dot_keeps_two_tensors_with_one_name_apart() -> None:
    x, y = mt.tensor(2.0, requires_grad=True), mt.tensor(3.0, requires_grad=True)
    assert tokens(viz.to_dot(x * y, names={x: "w", y: "w"})).count('"w"') == 2


# --- symbols ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("symbol", "html"),
    [
        ("W^Q", "<I>W</I><SUP><I>Q</I></SUP>"),
        ("W_1^Q", "<I>W</I><SUB>1</SUB><SUP><I>Q</I></SUP>"),
        ("W^Q(2)", "<I>W</I><SUP><I>Q</I>(2)</SUP>"),
        ("X^(2)", "<I>X</I><SUP>(2)</SUP>"),
        ("X^", "X^"),
        ("Σ_B", "Σ<SUB><I>B</I></SUB>"),
        ("d_model", "<I>d</I><SUB>model</SUB>"),
        ("S̃", "<I>S̃</I>"),
        ("head_1", "head<SUB>1</SUB>"),
        ("layer_norm", "layer_norm"),
        ("q_proj.weight", "q_proj.weight"),
        ("a<b", "a&lt;b"),
    ],
)
def test_letters_are_italic_digits_and_words_upright(symbol: str, html: str) -> None:
    assert symbols.html(symbol) == html


def test_cleaning_says_what_it_replaced() -> None:
    assert symbols.clean("") == "∅"
    assert symbols.clean("a\\b\nc\td") == "a∖b c d"
    assert symbols.clean("\x00\ud800\ufffe") == "∖x00∖ud800∖ufffe"
    assert symbols.clean("nimda\u202e\u2066\u200f\ufeff") == "nimda∖u202e∖u2066∖u200f∖ufeff"
    assert symbols.clean("👩\u200d💻 می\u200cخواهم é") == "👩\u200d💻 می\u200cخواهم é"
    assert len(symbols.clean("x" * 100)) == 60


# --- colours ----------------------------------------------------------------------------------------------

# Machado, Oliveira & Fernandes 2009, severity 1, on linear RGB
VISION = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def lab(rgb: list[float]) -> list[float]:
    """CIE L*a*b* (D65) of linear RGB."""
    r, g, b = (min(max(c, 0.0), 1.0) for c in rgb)
    xyz = (
        (0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047,
        0.2126729 * r + 0.7151522 * g + 0.0721750 * b,
        (0.0193339 * r + 0.1191920 * g + 0.9503041 * b) / 1.08883,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)]


def contrast(a: str, b: str) -> float:
    light, dark = sorted(
        (0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(a), linear(b))), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("theme", "least"), [(style.LIGHT, 22.5), (style.DARK, 15.0)])
def test_lanes_keep_their_distance_under_colour_blindness(theme: style.Theme, least: float) -> None:
    for vision in ("protan", "deutan", "tritan"):
        seen = {}
        for lane in "QKVSO":
            rgb = linear(theme.kinds[lane].stroke)
            seen[lane] = lab([sum(m * c for m, c in zip(row, rgb, strict=True)) for row in VISION[vision]])
        for a in seen:
            for b in seen:
                if a < b:
                    distance = sum((p - q) ** 2 for p, q in zip(seen[a], seen[b], strict=True)) ** 0.5
                    assert distance >= least - 0.1, (vision, a, b, distance)


@pytest.mark.parametrize("theme", [style.LIGHT, style.DARK])
def test_text_and_strokes_stand_out(theme: style.Theme) -> None:
    grounds = {theme.paper, theme.cluster, *(colours.fill for colours in theme.kinds.values())}
    for ground in grounds:
        assert contrast(theme.text, ground) >= 11.9 - 0.05
        assert contrast(theme.second, ground) >= 5.2 - 0.05
    for colours in theme.kinds.values():
        assert contrast(colours.stroke, theme.paper) >= 4.5 - 0.05


def test_every_light_colour_has_one_dark_counterpart() -> None:
    pairs = style.to_dark()
    for kind, colours in style.LIGHT.kinds.items():
        assert (pairs[colours.stroke], pairs[colours.fill]) == style.DARK.kinds[kind]
    assert pairs[style.LIGHT.paper] == style.DARK.paper


def test_what_names_of_one_module_differ_in_is_not_cut_off() -> None:
    names = [f"{'a_long_module_path.' * 4}{end}" for end in ("weight", "bias")]
    shown = [symbols.clean(name) for name in names]
    assert [len(name) for name in shown] == [60, 60]
    assert [name.rpartition(".")[2] for name in shown] == ["weight", "bias"]
