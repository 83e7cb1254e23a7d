"""Whole models: boxes around modules, modules as single nodes, layers that are alike drawn once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_layout import problems
from crossings import at_corners, on_frames, together
from test_viz_render import ROOT, load_tool

import microtensor as mt
from microtensor import cost, nn, viz
from microtensor.viz import symbols
from microtensor.viz.depth import prefixes
from microtensor.viz.formula import two_digits
from models import (
    GPT,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    GPTConfig,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
)


def leaf(*shape: int) -> mt.Tensor:
    return mt.randn(shape, requires_grad=True)


def transformer(norm: str = "post") -> tuple[Any, ...]:
    sizes = {"d_model": 16, "n_heads": 2, "d_ff": 32, "n_encoder_layers": 3, "n_decoder_layers": 2}
    model = Transformer(TransformerConfig(30, 30, max_len=20, norm=norm, **sizes))
    return model, mt.randint(3, 30, (2, 7)), mt.randint(3, 30, (2, 5))


def gpt() -> tuple[Any, ...]:
    model = GPT(GPTConfig(block_size=8, vocab_size=30, n_layer=4, n_head=2, n_embd=16))
    return model, mt.randint(0, 30, (2, 8))


def clusters(dot: str) -> dict[str, str]:
    """Name → title of every cluster."""
    return dict(
        re.findall(r'graph \[id="(\w+)", class=module, label=<([^<>]*)(?:>|<BR ALIGN="LEFT"/>each)', dot)
    )


def ops(dot: str) -> list[str]:
    return re.findall(r'class="op [^"]*"', dot)


# --- boxes --------------------------------------------------------------------------------------------------


def test_modules_are_boxes_around_the_lines_that_they_compute() -> None:
    dot = viz.draw(EncoderLayer(16, 2, 32), leaf(2, 5, 16)).dot
    assert clusters(dot) == {
        "cluster_self_attention": "self_attention: MultiHeadAttention",
        "cluster_sublayer1": "sublayer1: SubLayer",
        "cluster_feed_forward": "feed_forward: FeedForward",
        "cluster_sublayer2": "sublayer2: SubLayer",
    }


def test_a_module_that_calls_another_between_its_own_lines_has_a_box_around_each_part() -> None:
    """Around both, arrows would leave the box and return: those of a sublayer with its norm before."""
    dot = viz.draw(EncoderLayer(16, 2, 32, norm="pre"), leaf(2, 5, 16)).dot
    inside = re.findall(r"class=module, label=<sublayer\d: SubLayer>.*?\n((?:.|\n)*?)\n  }", dot)
    assert [len(re.findall(r'class="op ', text)) for text in inside] == [2, 2]  # dropout and sum, no norm
    assert [m for m in clusters(viz.draw(*transformer(), depth=2).dot).values() if "Positional" in m] == [
        "positions: PositionalEncoding"
    ] * 2


def test_a_module_of_one_line_has_no_box() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    drawing = viz.draw(net, leaf(5, 3))
    assert clusters(drawing.dot) == {}
    assert drawing.about == [
        "z_1 = input weight_0ᵀ + bias_0", "z_2 = relu(z_1)", "y = z_2 weight_2ᵀ + bias_2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: (EncoderLayer(16, 2, 32), leaf(2, 5, 16)), {}),
        (lambda: (EncoderLayer(16, 2, 32, norm="pre"), leaf(2, 5, 16)), {"direction": "BT"}),
        (lambda: (EncoderLayer(16, 2, 32), leaf(2, 5, 16)), {"depth": 1, "direction": "LR"}),
        (lambda: (EncoderLayer(16, 2, 32), leaf(2, 5, 16)), {"direction": "LR"}),
        (lambda: (DecoderLayer(16, 2, 32, norm="pre"), leaf(2, 5, 16), leaf(2, 7, 16)), {"direction": "LR"}),
        (lambda: (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), leaf(5, 3)), {"depth": 1}),
        (lambda: (EncoderLayer(16, 2, 32), leaf(2, 5, 16)), {"depth": 2}),
        (lambda: (DecoderLayer(16, 2, 32, norm="pre"), leaf(2, 5, 16), leaf(2, 7, 16)), {}),
        (lambda: (DecoderLayer(16, 2, 32, norm="pre"), leaf(2, 5, 16), leaf(2, 7, 16)), {"depth": 2}),
        (lambda: (DecoderLayer(16, 2, 32), leaf(2, 5, 16), mt.randn(2, 7, 16)), {}),
        (lambda: (DecoderLayer(16, 2, 32), leaf(2, 5, 16), mt.randn(2, 7, 16)), {"depth": 1}),
        (lambda: (Encoder(3, 16, 2, 32), leaf(2, 5, 16)), {}),
        (lambda: transformer("pre"), {}),
        (lambda: transformer("pre"), {"direction": "BT"}),
        (lambda: transformer("pre"), {"direction": "LR"}),
        (lambda: (Encoder(3, 16, 2, 32), leaf(2, 5, 16)), {"level": "tape"}),
        (transformer, {"depth": 1}),
        (transformer, {"depth": 2}),
        (transformer, {"depth": 3}),
        (gpt, {}),
        (gpt, {"depth": 3, "direction": "LR"}),
    ],
)  # fmt: skip
def test_layout_holds_for_whole_models(make: Any, options: dict[str, Any]) -> None:
    mt.manual_seed(0)
    assert problems(viz.draw(*make(), **options).json) == []


def test_no_line_reads_a_tensor_without_a_name() -> None:
    for level in ("equations", "tape"):
        about = viz.draw(*gpt(), level=level).about
        assert (
            next(line for line in about if "c_proj.weight" in line)
            .split("= ")[1]
            .startswith(("C c_proj", "C^(1) c_proj"))
        )

    x = leaf(2, 3)
    with viz.recording():
        with viz.fold("double", "Z = X + X", X=x):
            _z = x + x
        assert viz.draw(_z.exp()).about == ["z_1 = x + x", "y = exp(z_1)"]


def test_the_causal_mask_of_the_fused_attention_is_said() -> None:
    drawing = viz.draw(*gpt(), level="tape")
    assert any("softmax(causal(Q^(1) (K^(1))ᵀ / √d_k" in line for line in drawing.about)
    without = viz.draw(nn.functional.scaled_dot_product_attention(leaf(2, 3), leaf(2, 3), leaf(2, 3)))
    assert "softmax(x_1 x_2ᵀ / √d_k" in without.about[0]
    assert "causal" not in without.dot


@pytest.mark.parametrize("make", [gpt, transformer])
def test_bytes_that_are_kept_are_those_of_the_shape_beside_them(make: Any) -> None:
    dot = viz.draw(*make(), level="tape", shapes="numeric").dot
    rows = re.findall(r'>(scalar|\([\d, ]*\))</FONT></TD><TD WIDTH="\d+" ALIGN="RIGHT"><[^>]*>([^<]*)<', dot)
    assert len(rows) > 10
    for shape, size in rows:
        if size == "shared":  # with an op before, which says how many
            continue
        count = int(np.prod([int(n) for n in re.findall(r"\d+", shape)]))
        assert size in {cost.readable(count * width, "B") for width in (1, 4, 8)}, (shape, size)


def test_a_fill_says_that_it_takes_the_negated_mask() -> None:
    x, mask = leaf(3, 3), mt.ones(3, 3, dtype=mt.bool).tril()
    drawing = viz.draw(MultiHeadAttention(4, 2), leaf(1, 3, 4), mask=mask, level="ops")
    assert any("masked_fill −∞ if M is False" in line for line in drawing.about)
    assert "is False" not in viz.draw(x.masked_fill(mask, 0.0), level="ops").dot


@pytest.mark.parametrize("options", [{}, {"depth": 1}, {"depth": 2}, {"depth": 3}, {"level": "ops"}])
@pytest.mark.parametrize("make", [gpt, transformer])
def test_layers_that_are_drawn_once_count_as_often_as_they_are_run(
    make: Any, options: dict[str, Any]
) -> None:
    model, *inputs = make()
    with viz.recording():  # line by line, as it is drawn
        y = model(*inputs)
        total = mt.tape(y[0] if isinstance(y, tuple) else y).flop
    dot = viz.draw(model, *inputs, cost=True, **options).dot
    assert f"in all {cost.readable(total)}" in dot
    costs = [set(re.findall(r">[^<]*(?:FLOP|B)( each)?<", box)) for box in re.findall(r'.*class="op .*', dot)]
    assert len(costs) > 3
    assert all(
        len(said) == 1 for said in costs
    )  # all that a box says of its cost is of one layer, or none is
    assert ({" each"} in costs) is ("×" in " ".join(clusters(dot).values()))


@pytest.mark.parametrize("options", [{}, {"depth": 1}, {"depth": 2}, {"level": "ops"}, {"level": "tape"}])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_one_name_means_one_tensor(norm: str, options: dict[str, Any]) -> None:
    mask = mt.ones(5, 5, dtype=mt.bool).tril()
    drawing = viz.draw(
        DecoderLayer(16, 2, 32, norm=norm), leaf(2, 5, 16), mt.randn(2, 7, 16), mask, mask[:, :1], **options
    )
    made = [line.split(" = ")[0] for line in drawing.about if " = " in line]
    leaves = re.findall(r'tooltip="([^ "]+): (?:input|constant) ', drawing.dot)
    assert len({*made, *leaves}) == len(made) + len(leaves)
    if options == {"depth": 1} and norm == "post":
        assert drawing.about[:3] == [
            "Y^(1) = self_attention(X^(1), M^(1))", "X^(2) = sublayer1(X^(1), Y^(1))",
            "Y^(2) = cross_attention(X^(2), Z, M^(2))",
        ]  # fmt: skip


@pytest.mark.parametrize("make", [transformer, gpt])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_arrow_cuts_the_corner_of_a_module_that_it_passes(make: Any, depth: int) -> None:
    assert on_frames(viz.draw(*make(), depth=depth).json) == []


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (gpt, {"depth": 1}),
        (gpt, {"depth": 2}),
        (gpt, {"depth": 2, "direction": "BT"}),
        (gpt, {"depth": 2, "direction": "LR"}),
        (gpt, {"depth": 2, "grads": "random"}),
        (lambda: transformer("pre"), {"depth": 2, "direction": "LR"}),
        (lambda: transformer("post"), {"depth": 2, "direction": "LR"}),
    ],
)  # fmt: skip
def test_no_arrow_bends_around_the_corner_of_a_frame(make: Any, options: dict[str, Any]) -> None:
    mt.manual_seed(0)
    assert at_corners(viz.draw(*make(), **options).json) == []


def test_arrows_that_bring_two_tensors_into_a_layer_are_told_apart() -> None:
    """Decoder layer: the queries come from the sublayer before, keys and values from the memory."""
    made = DecoderLayer(16, 2, 32, dropout=0.0), mt.randn(2, 5, 16), mt.randn(2, 7, 16)
    pairs = together(viz.draw(*made).json)
    assert [(a["id"], b["id"]) for a, b in pairs if a["tail"] != b["tail"]] == []


@pytest.mark.parametrize("level", ["equations", "ops", "tape"])
def test_an_index_below_a_letter_is_a_heads(level: str) -> None:
    decoder = DecoderLayer(16, 2, 32), leaf(2, 5, 16), mt.randn(2, 5, 16)
    for made in (decoder, gpt()):
        dot = viz.draw(*made, level=level).dot
        assert not re.search(r"<I>d?[QKVSAHCYXMW]</I><SUB>(<I>[QKVO]</I>,)?\d", dot)
        assert ("(2)</SUP>" in dot) == ("(1)</SUP>: the first of that name" in dot)
        assert ("not of head 1" in dot) == ("(2)</SUP>" in dot and "head<SUB>" in dot)
    dot = viz.draw(*decoder, level=level).dot
    assert "<I>W</I><SUP><I>Q</I>(2)</SUP>" in dot
    assert "<I>b</I><SUB><I>Q</I></SUB><SUP>(2)</SUP>" in dot
    heads = viz.draw(MultiHeadAttention(4, 2), leaf(1, 3, 4), level="heads")
    assert "<I>W</I><SUB>2</SUB><SUP><I>Q</I></SUP>" in heads.dot
    assert "not of head 1" not in heads.dot


def test_numbers_that_come_from_a_width_are_drawn_as_its_root() -> None:
    assert any("· √d" in line for line in viz.draw(*transformer(), depth=2).about)
    q = leaf(1, 2, 3, 16)
    attend = nn.functional.scaled_dot_product_attention
    lines = [line for s in (None, 0.3) for line in viz.draw(attend(q, q, q, scale=s), level="tape").about]
    assert lines == ["y = softmax(q qᵀ / √d_k) q", "y = softmax(q qᵀ · 0.3) q"]


SIZES = {"d_model": 12, "n_heads": 3, "d_ff": 20, "dropout": 0.1}  # of every axis another


def unequal() -> dict[str, tuple[Any, ...]]:
    """Models in which no two axes have one size, but for a GPT's 3d and 4d."""
    config = TransformerConfig(30, 30, max_len=40, n_encoder_layers=2, n_decoder_layers=2, **SIZES)
    gpt = GPT(GPTConfig(block_size=9, vocab_size=30, n_layer=2, n_head=3, n_embd=12))
    ids = mt.randint(3, 30, (2, 7)), mt.randint(3, 30, (2, 5))
    layer = {"d_model": 12, "n_heads": 3, "d_ff": 20}
    causal = mt.ones(5, 5, dtype=mt.bool).tril()
    return {
        "encoder layer": (EncoderLayer(**layer), leaf(2, 5, 12)),
        "decoder layer": (DecoderLayer(**layer), leaf(2, 5, 12), mt.randn(2, 7, 12), causal),
        "transformer": (Transformer(config), *ids),
        "gpt": (gpt, ids[0]),
    }


@pytest.mark.parametrize("level", ["equations", "ops", "tape"])
@pytest.mark.parametrize("model", ["encoder layer", "decoder layer", "transformer", "gpt"])
def test_one_axis_has_one_name_and_no_shape_is_left_in_numbers(model: str, level: str) -> None:
    dot = viz.draw(*unequal()[model], level=level, shapes="both").dot
    plain = re.sub("<SUB>(.*?)</SUB>", r"_\1", dot)
    written = re.findall(r"[> ]([\w×]+) \((\d+,[\d, ]*)\)</", plain)
    assert len(written) > 15
    found: dict[str, set[str]] = {}
    for names, sizes in written:
        for name, size in zip(names.split("×"), sizes.strip(",").split(", "), strict=True):
            found.setdefault(size, set()).update({name} - {size})
    assert [names for names in found.values() if len(names) > 1] == []
    assert len(set().union(*found.values())) == len({size for size, names in found.items() if names})
    if level == "equations":
        symbolic = viz.draw(*unequal()[model]).dot
        assert re.findall(r">\(\d+,[\d, ]*\)<", symbolic) == []


def test_sequences_of_two_lengths_without_a_layer_that_joins_them_are_numbered() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = MultiHeadAttention(4, 1), MultiHeadAttention(4, 1)

        def forward(self, x: mt.Tensor, z: mt.Tensor) -> mt.Tensor:
            return self.left(x).sum() * self.right(z).sum()

    legend = viz.draw(Two(), leaf(2, 3, 4), leaf(2, 5, 4)).dot
    assert "n<SUB>1</SUB> = 3" in legend
    assert "n<SUB>2</SUB> = 5" in legend
    assert "n = 3" in viz.draw(Two(), leaf(2, 3, 4), leaf(2, 3, 4)).dot


def test_a_box_that_only_holds_modules_is_not_drawn() -> None:
    titles = set(clusters(viz.draw(*gpt(), depth=2).dot).values())
    assert titles == {"Block × 4"}  # transformer is a ModuleDict, whose parts GPT calls itself


def test_a_picture_of_a_layer_reads_as_its_paper() -> None:
    about = viz.draw(*unequal()["decoder layer"]).about
    assert "z_6 = z_5 W^(1) + b^(1)" in about  # FFN(z) = max(0, z W_1 + b_1) W_2 + b_2
    assert "z_10 = z_5 + z_9" in about
    assert "y = layer_norm(z_10, γ^(3), β^(3))" in about
    transformer = viz.draw(*unequal()["transformer"], depth=2).about
    assert "z_2 = z_1 · √d" in transformer  # a number: nothing is element by element
    assert "z_3 = z_2 + P^(1)" in transformer
    assert "z_6 = z_5[:, −1:]" in viz.draw(*gpt(), depth=2).about


PAGES = [("encoder layer", None, "a3"), ("decoder layer", None, "a2"), ("encoder layer", 1, "a4"),
         ("decoder layer", 1, "a4"), ("transformer", 2, "a4"), ("gpt", 2, "a4")]  # fmt: skip


@pytest.mark.parametrize(("model", "depth", "page"), PAGES)
def test_a_model_is_read_on_the_page_that_the_gallery_names(model: str, depth: int | None, page: str) -> None:
    assert problems(viz.draw(*unequal()[model], depth=depth).json, page) == []


# --- depth --------------------------------------------------------------------------------------------------


def test_depth_counts_names_but_not_the_numbers_of_a_list() -> None:
    assert prefixes("encoder.layers.0.norm") == ["encoder", "encoder.layers.0", "encoder.layers.0.norm"]
    assert prefixes("0.weight") == ["0", "0.weight"]
    assert prefixes("parts.1.0") == ["parts.1", "parts.1.0"]
    assert prefixes("") == []


def test_a_module_at_the_depth_is_one_node_with_its_parameters() -> None:
    layer = EncoderLayer(16, 2, 32)
    drawing = viz.draw(layer, leaf(2, 5, 16), depth=1)
    assert drawing.about == [
        "Y = MultiHeadAttention(X)",
        "z_1 = sublayer1(X, Y)",
        "z_2 = FeedForward(z_1)",
        "y = sublayer2(z_1, z_2)",
    ]
    assert re.findall(r"([\d,]+) parameters", drawing.dot) == ["1,088", "32", "1,072", "32"]
    assert sum(p.numel() for p in layer.parameters()) == 1088 + 32 + 1072 + 32
    assert "leaf param" not in drawing.dot


def test_parameters_of_a_layer_that_stands_for_several_are_each_ones() -> None:
    encoder = Encoder(3, 16, 2, 32)
    each = sum(p.numel() for p in encoder.layers[0].parameters())
    dot = viz.draw(nn.Sequential(encoder), leaf(2, 5, 16), depth=2).dot
    assert re.findall(r"([\d,]+) parameters each", dot) == [f"{each:,}"]
    assert " each" not in viz.draw(encoder.layers[0], leaf(2, 5, 16), depth=1).dot


def test_a_module_that_runs_in_two_goes_is_two_nodes() -> None:
    drawing = viz.draw(EncoderLayer(16, 2, 32, norm="pre"), leaf(2, 5, 16), depth=1)
    assert drawing.about == [
        "X = sublayer1(x)", "Y = MultiHeadAttention(X)", "z_1 = sublayer1(x, Y)",
        "z_2 = sublayer2(z_1)", "z_3 = FeedForward(z_2)", "y = sublayer2(z_1, z_3)",
    ]  # fmt: skip


def test_two_modules_of_a_class_have_two_names() -> None:
    """Their own: all sublayers of a layer would be SubLayer, whose norm and sum nobody could tell apart."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    drawing = viz.draw(net, leaf(5, 3), depth=1)
    assert drawing.about == ["z_1 = Linear[0](input)", "z_2 = Tanh(z_1)", "y = Linear[2](z_2)"]

    lines = [line.split(" = ")[1] for line in viz.draw(*transformer("pre"), depth=3).about]
    for name, args in [("sublayer1", "z_4"), ("sublayer2", "z_5"), ("cross_attention", "X^(3), Z, M^(1)")]:
        assert f"{name}({args})" in lines
    assert "SubLayer" not in "".join(lines)
    assert (
        "&#10;SubLayer: layer norm&#10;module: encoder.layers.0.sublayer1&#10;"
        in viz.draw(*transformer("pre"), depth=3).dot
    )


def test_a_module_inside_a_line_of_the_paper_is_no_node_of_its_own() -> None:
    about = viz.draw(DecoderLayer(16, 2, 32), leaf(2, 5, 16), mt.randn(2, 7, 16), depth=2).about
    assert [line.split(" = ")[1] for line in about if "linear" in line] == ["linear1(z_5)", "linear2(z_7)"]


@pytest.mark.parametrize("names", ["math", "code"])
def test_a_modules_arguments_are_in_the_order_of_its_call(names: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = DecoderLayer(16, 2, 32)

        def forward(self, x: mt.Tensor, memory: mt.Tensor, mask: mt.Tensor, seen: mt.Tensor) -> mt.Tensor:
            return self.layer(x.tanh(), memory, memory_mask=seen, tgt_mask=mask)

    inputs = leaf(2, 5, 16), leaf(2, 7, 16), mt.ones(5, 5) > 0, mt.ones(2, 7) > 0
    *_, line = viz.draw(Net(), *inputs, depth=1, names=names).about
    order = ["X", "Z", "M^(2)", "M^(1)"] if names == "math" else ["X", "memory", "seen", "mask"]
    assert line.split("DecoderLayer")[1] == f"({', '.join(order)})"


def test_a_module_that_runs_twice_is_two_nodes() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: mt.Tensor) -> mt.Tensor:
            return self.linear(self.linear(x).tanh())

    drawing = viz.draw(Net(), leaf(2, 3), depth=1)
    assert [line.split("= ")[1] for line in drawing.about] == ["Linear(x)", "tanh(z_1)", "Linear(z_2)"]
    assert len(re.findall(r'"leaf param"', drawing.dot)) == 1  # both use its parameters


@pytest.mark.parametrize(("names", "width"), [("math", "d"), ("code", "C")])
def test_a_multiple_of_the_width_is_said_in_the_name_that_the_width_has(names: str, width: str) -> None:
    legend = re.findall(r">(vocab = [^·]*)·", viz.draw(*gpt(), names=names).dot)[0]
    assert re.findall(r"\b(3|4)(\w) = (\d+)", legend) == [("3", width, "48"), ("4", width, "64")]
    assert re.search(rf", {width} = ", legend)


class TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: mt.Tensor) -> tuple[mt.Tensor, mt.Tensor]:
        h = self.linear(x)
        return h.tanh(), h.relu()


def test_two_results_of_a_module_have_two_names_that_its_line_says() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.two, self.linear = TwoResults(), nn.Linear(4, 4)

        def forward(self, x: mt.Tensor) -> mt.Tensor:
            a, b = self.two(x)
            return self.linear(a) * b

    drawing = viz.draw(Net(), leaf(2, 4), depth=1)
    assert drawing.about == ["z_1, z_2 = TwoResults(x)", "z_3 = Linear(z_1)", "y = z_3 ∘ z_2"]
    arrows = re.findall(r'tooltip="(z_\d → [^&]*)&', drawing.dot)
    assert sorted(arrows) == ["z_1 → z_3 = Linear(z_1)", "z_2 → y = z_3 ∘ z_2", "z_3 → y = z_3 ∘ z_2"]


def test_two_calls_of_a_module_in_a_row_are_two_nodes() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, a: mt.Tensor, b: mt.Tensor) -> mt.Tensor:
            return self.linear(a) * self.linear(b)

    about = viz.draw(Net(), leaf(2, 4), leaf(2, 4), depth=1).about
    assert about == ["z_1 = Linear(a)", "z_2 = Linear(b)", "y = z_1 ∘ z_2"]


def undefined(about: list[str]) -> set[str]:
    """Names of results that lines use before one of them says what they are."""
    said, found = set[str](), set[str]()
    for line in about:
        left, _, right = line.partition(" = ")
        found |= set(re.findall(r"\b(?:z_\d+|x\d+|[ab])\b", right)) - said
        said |= set(left.split(", "))
    return found


@pytest.mark.parametrize("depth", [1, 2])
def test_what_holds_modules_and_is_not_called_is_no_node(depth: int) -> None:
    drawing = viz.draw(*gpt(), depth=depth)
    assert not any("transformer(" in line for line in drawing.about)
    assert any("wte(idx)" in line for line in drawing.about)
    assert undefined(drawing.about) == set()


@pytest.mark.parametrize("direction", ["TB", "LR"])
def test_symbolic_shapes_of_ops_hold_no_numbers(direction: str) -> None:
    layer, x = MultiHeadAttention(16, 2), leaf(2, 5, 16)
    for shapes, said in (("symbolic", "B×n×h×d_k"), ("numeric", "(2, 5, 2, 8)"), (None, "")):
        drawing = viz.draw(layer, x, level="ops", shapes=shapes, direction=direction, legend=False)
        nodes = [line for line in drawing.dot.split("\n") if "label=<" in line]
        shown = [symbols.untagged(line.split("label=<")[1].split(">, ")[0]) for line in nodes]
        assert sum(said in text for text in shown) >= 3 or not said
        numbers = [text for text in shown if re.search(r"\(\d+,", text) and "transpose" not in text]
        assert bool(numbers) == (shapes == "numeric")


@pytest.mark.parametrize(("depth", "level"), [(0, "equations"), (True, "equations"), (2, "ops"), (2, "tape")])
def test_a_depth_that_means_nothing_is_refused(depth: int, level: str) -> None:
    cure = "choose a whole number of at least 1" if level == "equations" else "leave it out, or choose level="
    with pytest.raises(ValueError, match=f"depth={depth} at level '{level}'; {cure}"):
        viz.draw(nn.Linear(3, 2), leaf(4, 3), depth=depth, level=level)


# --- layers that are alike ----------------------------------------------------------------------------------


def test_layers_that_are_alike_are_drawn_once() -> None:
    drawing = viz.draw(Encoder(6, 16, 2, 32), leaf(2, 5, 16))
    one = viz.draw(EncoderLayer(16, 2, 32), leaf(2, 5, 16))
    assert len(ops(drawing.dot)) == len(ops(one.dot))
    assert clusters(drawing.dot)["cluster_layers_0"] == "EncoderLayer × 6"
    assert '>each reads<BR ALIGN="LEFT"/>the one before<' in drawing.dot
    assert 'tooltip="modules layers.0 … layers.5"' in drawing.dot
    assert "6 × d×d" in drawing.dot
    assert "156 tape ops" in drawing.dot


def test_norms_of_layers_that_are_alike_are_a_range() -> None:
    mt.manual_seed(0)
    encoder, x, g = Encoder(3, 16, 2, 32, dropout=0.0), leaf(2, 5, 16), mt.randn(2, 5, 16)
    dot = viz.draw(encoder, x, grads=g).dot
    weights = [layer.self_attention.q_proj.weight for layer in encoder.layers]
    found = mt.autograd.grad(encoder(x), [*weights, x], g)
    norms = [float(np.linalg.norm(w.array)) for w in found]
    low, high = two_digits(min(norms[:3])), two_digits(max(norms[:3]))
    assert f"‖∂‖ {low} … {high}" in next(line for line in dot.split("\n") if "node-W_Q+b_Q" in line)
    assert f"‖∂‖ {two_digits(norms[3])}" in next(line for line in dot.split("\n") if 'id="node-X"' in line)
    assert "…: from least to greatest of layers drawn as one" in dot  # the legend says so, where there is one
    assert "from least to greatest" not in viz.draw(encoder.layers[0], x, grads=g).dot


def test_both_stacks_of_a_transformer_are_drawn_once_each() -> None:
    titles = set(clusters(viz.draw(*transformer(), depth=3).dot).values())
    assert {"EncoderLayer × 3", "DecoderLayer × 2"} <= titles
    drawing = viz.draw(*transformer(), depth=2)
    assert sum("EncoderLayer(" in line for line in drawing.about) == 1
    assert next(line for line in drawing.about if "DecoderLayer(" in line).endswith(
        "DecoderLayer(X^(2), Z, M^(2), M^(1))"
    )


@pytest.mark.parametrize("depth", [None, 1, 2])
def test_a_mask_is_one_constant_however_many_layers_read_it(depth: int | None) -> None:
    drawing = viz.draw(*transformer(), depth=depth)
    masks = re.findall(r'class="leaf const", [^\n]*tooltip="(M\S*):', drawing.dot)
    assert masks == ["M^(1)", "M^(2)"]
    read = {name for line in drawing.about for name in re.findall(r"\bM\b[^,)]*", line)}
    assert read <= {name[:-1] for name in masks}


def test_layers_that_differ_are_all_drawn() -> None:
    encoder = Encoder(3, 16, 2, 32)
    encoder.layers[1].sublayer1.dropout = 0.5
    titles = clusters(viz.draw(encoder, leaf(2, 5, 16)).dot)
    assert not any("×" in title for title in titles.values())
    assert {"cluster_layers_0", "cluster_layers_1", "cluster_layers_2"} <= titles.keys()


def test_source_and_target_of_two_lengths_are_drawn_and_where_they_cannot_be_the_error_says_how() -> None:
    model = Transformer(TransformerConfig(9, 9, 8, 2, 1, 1, 16, dropout=0.0, max_len=12))
    src, tgt = mt.tensor([[3, 4, 5, 6]]), mt.tensor([[1, 3, 4]])
    assert "×d" in viz.draw(model, src, tgt).dot
    with viz.recording():  # which module is at work is not known here
        y = model(src, tgt)
        with pytest.raises(
            ValueError, match=r"axis n_q has .*; draw a module by draw\(module, inputs\), which"
        ):
            viz.draw(y)


def test_a_layer_whose_result_is_used_elsewhere_too_is_drawn() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))

        def forward(self, x: mt.Tensor) -> mt.Tensor:
            first = self.parts[0](x)
            return self.parts[2](self.parts[1](first)) + first

    titles = clusters(viz.draw(Net(), leaf(2, 4)).dot)
    assert titles["cluster_parts_1"] == "Sequential × 2"
    assert titles["cluster_parts_0"] == "0: Sequential"
    assert len(titles) == 2


def test_like_layers_are_drawn_once_where_the_list_is_the_model_itself() -> None:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)), nn.Linear(4, 2))
    for depth, inside in ((None, 2), (1, 1)):
        drawing = viz.draw(net, leaf(5, 4), depth=depth)
        assert clusters(drawing.dot) == {"cluster_0": "Sequential × 4"}
        assert len(ops(drawing.dot)) == inside + 1
        assert problems(drawing.json) == []
    assert clusters(viz.draw(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), leaf(5, 4)).dot) == {
        "cluster_0": "Linear × 3"
    }


def test_at_level_ops_every_layer_is_drawn() -> None:
    dot = viz.draw(Encoder(2, 16, 2, 32), leaf(2, 5, 16), level="ops").dot
    assert len(ops(dot)) == 52


# --- the tool and notebooks ---------------------------------------------------------------------------------


def test_the_tool_draws_what_a_factory_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = load_tool("draw_model")
    (tmp_path / "mine.py").write_text(
        "import microtensor as mt\nfrom microtensor import nn\n"
        "def model(): return nn.Sequential(nn.Linear(3, 4), nn.Tanh()), mt.ones(2, 3)\n"
        "def formula(): x = mt.ones(3, requires_grad=True); return (x * x).sum()\n"
    )
    for function, depth in (("model", "1"), ("formula", "2")):
        path = tmp_path / f"{function}.dot"
        assert tool.main([f"{tmp_path / 'mine.py'}:{function}", "-o", str(path), "--depth", depth]) == 0
        assert path.read_text(encoding="utf-8").startswith("digraph")
    assert "z_1 = Linear(input)" in (tmp_path / "model.dot").read_text(encoding="utf-8")
    assert str(ROOT) not in (tmp_path / "model.dot").read_text(encoding="utf-8")
    capsys.readouterr()
    for name in ("mine", f"{tmp_path / 'mine.py'}:nothing", f"{tmp_path / 'other.py'}:model", "no_such:f"):
        assert tool.main([name]) == 1
        assert capsys.readouterr().err.startswith("draw_model: ")


def test_a_notebook_may_choose_between_picture_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = viz.draw(leaf(3) * 2)
    bundle = drawing._repr_mimebundle_()
    assert bundle["image/svg+xml"] == drawing.svg()
    assert bundle["text/plain"] == repr(drawing)
    assert set(drawing._repr_mimebundle_(include=["text/plain"])) == {"text/plain"}
    assert set(drawing._repr_mimebundle_(exclude=["text/plain"])) == {"image/svg+xml"}
    monkeypatch.setattr(viz.Drawing, "_repr_svg_", lambda self: None)
    assert set(drawing._repr_mimebundle_()) == {"text/plain"}


@pytest.mark.parametrize("level", ["equations", "ops"])
def test_a_frame_says_how_many_heads_and_multiplies_nothing(level: str) -> None:
    """× 2 heads would be a product, or, as of layers that are alike, a frame that stands for two."""
    for heads, said in ((1, "1 head"), (2, "2 heads"), (11, "11 heads")):
        drawing = viz.draw(MultiHeadAttention(22, heads), leaf(2, 5, 22), level=level)
        assert f'attention,<BR ALIGN="LEFT"/>{said}<BR ALIGN="LEFT"/>>, label' in drawing.dot
