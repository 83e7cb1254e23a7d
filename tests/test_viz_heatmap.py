"""Attention maps: rows are queries, columns are keys, whatever the tokens are called; and what is refused."""

from __future__ import annotations

import itertools
import re
import sys
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
from microtensor import viz
from microtensor.viz.heatmap import FAINTEST
from models import BeamNode, Transformer, TransformerConfig

SVG = "{http://www.w3.org/2000/svg}"
QUERIES, KEYS = ["Ich", "bin", "da"], ["<s>", "I", "am", "here", "."]


def weights(*shape: int) -> mt.Tensor:
    return mt.randn(*shape).softmax(-1)


def cells(root: ET.Element) -> list[list[tuple[str, float, float, float]]]:
    """Of each map, in order: (what the cell says, x, y, opacity)."""
    return [
        [
            (rect[0].text or "", *(float(rect.get(k, "")) for k in ("x", "y", "fill-opacity")))
            for rect in group
        ]
        for group in root.iter(f"{SVG}g")
    ]  # type: ignore[misc]


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_rows_are_queries_and_columns_are_keys() -> None:
    A = mt.zeros(1, 2, 3, 5)
    A[0, 0, 2, 1] = 1.0  # da → I
    A[0, 1, 0, 4] = 0.25  # Ich → .
    root = ET.fromstring(viz.attention(A, QUERIES, KEYS).svg())
    (first,), (second,) = cells(root)
    assert (first[0], first[3]) == ("da → I: 1.00", 1.0)
    assert (second[0], second[3]) == ("Ich → .: 0.25", 0.25)
    assert first[2] > second[2], "query 2 stands below query 0"
    frames = [r for r in root.iter(f"{SVG}rect") if r.get("fill") == "none"]
    left = [first[1] - float(frames[0].get("x", "")), second[1] - float(frames[1].get("x", ""))]
    assert left[1] == pytest.approx(4 * left[0])  # columns 4 and 1
    width, height = float(frames[0].get("width", "")), float(frames[0].get("height", ""))
    assert width / height == pytest.approx(5 / 3)


def test_every_layer_and_head_has_a_map_of_all_that_can_be_seen() -> None:
    layers = [weights(1, 2, 3, 5), weights(1, 4, 3, 5)]
    root = ET.fromstring(viz.attention(layers, QUERIES, KEYS).svg())
    drawn = cells(root)
    arrays = [head for A in layers for head in A.numpy()[0]]
    assert len(drawn) == 6
    for group, array in zip(drawn, arrays, strict=True):
        want = {f"{q} → {k}: {array[t, s]:.2f}" for t, q in enumerate(QUERIES) for s, k in enumerate(KEYS)
                if array[t, s] >= FAINTEST}  # fmt: skip
        assert {cell[0] for cell in group} == want
    names = [text for text in texts(root) if text.startswith("layer")]
    assert names == [f"layer {i}, head {j}" for i, n in ((1, 2), (2, 4)) for j in range(1, n + 1)]
    for token in KEYS:
        assert texts(root).count(token) == 6
    for token in QUERIES:
        assert texts(root).count(token) == 2


@pytest.mark.parametrize("shape", [(1, 1, 1), (12, 2, 2), (2, 5, 5), (1, 40, 40)])
def test_no_text_leaves_the_picture_or_meets_the_name_of_the_next_map(shape: tuple[int, int, int]) -> None:
    root = ET.fromstring(viz.attention(weights(*shape), title="what each of them looks at").svg())
    names = []
    for text in root.iter(f"{SVG}text"):
        if text.get("transform") is None:  # from left to right
            x, y, size = (float(text.get(k, "")) for k in ("x", "y", "font-size"))
            width = 0.6 * size * len(text.text or "") * (1.1 if text.get("font-weight") == "bold" else 1.0)
            x -= {"start": 0.0, "middle": width / 2, "end": width}[text.get("text-anchor", "start")]
            assert x >= 0, text.text
            assert x + width <= float(root.get("width", "")), text.text
            names += [(y, x, x + width)] * (text.text or "").startswith("layer")
    assert all((y, end) < (below, start) for (y, _, end), (below, start, _) in itertools.pairwise(names))


@pytest.mark.parametrize(
    ("heads", "n", "rows"), [(4, 12, [2, 2]), (8, 5, [4, 4]), (3, 12, [2, 1]), (2, 40, [1, 1]), (4, 5, [4])]
)
def test_maps_stand_in_rows_whose_letters_can_be_read_on_a_page(heads: int, n: int, rows: list[int]) -> None:
    root = ET.fromstring(viz.attention([weights(heads, n, n)] * 2).svg())
    names = [t for t in root.iter(f"{SVG}text") if (t.text or "").startswith("layer")]
    assert [t.text for t in names] == [f"layer {i}, head {j + 1}" for i in (1, 2) for j in range(heads)]
    assert [len(list(row)) for _, row in itertools.groupby(names, lambda t: t.get("y"))] == 2 * rows
    points = 170 / 25.4 * 72 / float(root.get("width", ""))
    assert min(float(t.get("font-size", "")) for t in root.iter(f"{SVG}text")) * points >= 6.5
    assert texts(root).count("queries") == 2 * len(rows)


@given(st.lists(st.text(max_size=30), min_size=3, max_size=3))
def test_whatever_tokens_are_called_the_svg_is_well_formed(tokens: list[str]) -> None:
    for theme in ("auto", "light", "dark"):
        root = ET.fromstring(viz.attention(mt.eye(3), tokens, theme=theme, title=tokens[0]).svg())
        assert len(root.findall(f"{SVG}script")) == 0
        assert len(cells(root)) == 1


def test_hostile_tokens_stay_text() -> None:
    evil = ["</text><script>alert(1)</script>", "a&b<c>'\"", "\x00\ud800"]
    text = viz.attention(mt.eye(3), evil, title="<svg onload=x>").svg()
    assert "<script" not in text
    assert "<svg onload" not in text
    text.encode()
    ET.fromstring(text)


def test_what_would_turn_the_text_around_is_shown_and_not_obeyed() -> None:
    for i in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C, 0xFEFF):
        text = viz.attention(mt.eye(3), [f"a{chr(i)}b"] * 3, title=f"c{chr(i)}d").svg()
        assert chr(i) not in text
        assert {f"a\\u{i:04x}b", f"c\\u{i:04x}d"} <= set(texts(ET.fromstring(text)))
        found = BeamNode(0, -1, 0, -1.0, -1.0, -1.0, True, 1)
        assert f"a∖u{i:04x}b" in viz.beam_tree([found], [f"a{chr(i)}b"]).dot


def test_spaces_and_line_breaks_are_shown() -> None:
    shown = texts(ET.fromstring(viz.attention(mt.eye(4), [" the", "\n", "\t", "\r\n"]).svg()))
    assert {"·the", "¶", "→", "\\r¶"} <= set(shown)
    assert {" the", "\n", "\t"}.isdisjoint(shown)


def test_without_names_tokens_are_numbered_and_without_keys_they_are_the_queries() -> None:
    assert viz.attention(weights(3, 5)).keys == ["0", "1", "2", "3", "4"]
    own = viz.attention(weights(2, 3, 3), QUERIES)
    assert own.keys == own.queries == QUERIES


def test_all_weights_of_a_model_can_be_drawn() -> None:
    model = Transformer(TransformerConfig(20, 20, 16, 2, 2, 3, 32))
    model.eval()
    _, kept = model(mt.randint(3, 20, (1, 7)), mt.randint(3, 20, (1, 4)), return_attention=True)
    for found, shape in ((kept.encoder, (7, 7)), (kept.decoder, (4, 4)), (kept.cross, (4, 7))):
        maps = viz.attention(found)
        assert (len(maps.queries), len(maps.keys)) == shape
        assert (
            repr(maps) == f"<AttentionMaps of {2 * len(found)} heads, {shape[0]} queries × {shape[1]} keys>"
        )


def test_those_who_listen_hear_what_it_is() -> None:
    A = mt.eye(3)
    A[1] = 0
    root = ET.fromstring(viz.attention(A, QUERIES, title="toy").svg())
    assert root.get("role") == "img"
    assert [root[0].tag, root[0].text, root[1].tag] == [f"{SVG}title", "toy", f"{SVG}desc"]
    assert "; Ich → Ich: 1.00, bin → nothing, it is fully masked" in (root[1].text or "")
    root = ET.fromstring(viz.attention([A, A], QUERIES).svg())
    assert "layer 1, head 1: Ich → Ich: 1.00, bin → nothing, it is fully masked" in (root[1].text or "")


def test_a_single_map_has_its_title_alone_and_it_fits() -> None:
    title = "attention to the source: last decoder layer, mean of 8 heads"
    root = ET.fromstring(viz.attention(mt.eye(3), title=title).svg())
    assert not [text for text in texts(root) if "head 1" in text]
    assert "layer 1, head 2" in texts(ET.fromstring(viz.attention(mt.eye(3).expand(2, 3, 3)).svg()))
    assert float(root.get("width") or 0) >= 12 + 7.35 * len(title)  # of bold letters 13 pixels high


def test_titles_stand_in_the_middle_of_what_they_name() -> None:
    """The title of the picture, and the name of each map, which may be wider than the map."""
    for n in (1, 3, 60):
        root = ET.fromstring(viz.attention(mt.ones(2, 60, n) / n, [""] * 60, [""] * n, title="toy").svg())
        of_all, *names = (e for e in root.iter(f"{SVG}text") if e.text == "toy" or "head" in (e.text or ""))
        frames = [e for e in root.iter(f"{SVG}rect") if e.get("height") == f"{7 * 60}" and e.get("stroke")]
        middles = [float(f.get("x") or 0) + float(f.get("width") or 0) / 2 for f in frames]
        assert [float(e.get("x") or 0) for e in names] == middles
        assert float(of_all.get("x") or 0) == float(root.get("width") or 0) / 2
        assert {e.get("text-anchor") for e in (of_all, *names)} == {"middle"}
        assert min(middles) >= 45  # half the width of a name


def test_themes() -> None:
    auto, light, dark = (viz.attention(mt.eye(3), theme=t).svg() for t in ("auto", "light", "dark"))
    assert "prefers-color-scheme: dark" in auto
    assert "prefers-color-scheme" not in light + dark
    paper = [re.search(r'<rect width="100%" height="100%" fill="(#\w+)"', text) for text in (light, dark)]
    assert [p and p[1] for p in paper] == ["#FFFFFF", "#14181D"]
    assert viz.attention(mt.eye(3)).svg() == auto, "the same picture is the same text"


def test_saved_and_shown(tmp_path: Path) -> None:
    maps = viz.attention(mt.eye(3), QUERIES)
    path = maps.save(tmp_path / "x.svg")
    assert path.read_text(encoding="utf-8") == maps.svg(standalone=True)
    assert maps._repr_svg_() == maps.svg()
    with pytest.raises(ValueError, match=r"cannot write 'x.bmp'; end the name in .svg or .png"):
        maps.save(tmp_path / "x.bmp")
    assert [p.name for p in tmp_path.iterdir()] == ["x.svg"]


def test_a_png_needs_resvg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(RuntimeError, match=r'a .png needs resvg-py; pip install "microtensor\[viz\]"'):
        viz.attention(mt.eye(3)).save(tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_a_png_has_the_letters(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    plt = pytest.importorskip("matplotlib.pyplot")
    blank, named = (
        plt.imread(viz.attention(mt.eye(3), [token] * 3).save(tmp_path / f"{name}.png"))
        for name, token in (("blank", "\u2800"), ("named", "M"))
    )
    assert blank.shape == named.shape
    assert (blank != named).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "there are no weights; give those of one layer"),
        ((weights(5),), r"layer 1 has shape \(5,\); give \(T, S\), \(H, T, S\) or"),
        ((mt.zeros(0, 3),), r"layer 1 has shape \(0, 3\)"),
        ((weights(2, 1, 3, 3),), r"\(2, 1, 3, 3\), a batch of 2; choose a row, such as \[A\[:1\] for A in"),
        (([weights(2, 3, 3), weights(2, 3, 4)],), r"layers have \(T, S\) = \[\(3, 3\), \(3, 4\)\]"),
        ((weights(3, 5), QUERIES), "3 queries look at 5 keys, which are others; give the keys' tokens"),
        ((weights(3, 5), QUERIES, QUERIES), "3 keys are named, and the weights have 5; give as many"),
        ((weights(3, 5), KEYS, KEYS), "5 queries are named, and the weights have 3"),
        ((-mt.ones(2, 2),), "weights from -1 to -1; give shares from 0 to 1"),
        ((2 * mt.ones(2, 2),), "weights from 2 to 2"),
        ((mt.full((2, 2), float("nan")),), "weights from nan to nan"),
        ((np.zeros((1, 201, 200)),), "40200 cells are more than 40000; draw some layers"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"attention: .*{message}"):
        viz.attention(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.full((2, 2), "a"),), "layer 1 has weights of dtype <U1; give real numbers"),
        (("ab",), "layer 1 has weights of dtype <U2; give real numbers"),
        ((np.eye(2) + 0j,), "layer 1 has weights of dtype complex128; give real numbers"),
        ((None,), "layer 1 has weights of dtype object; give real numbers"),
        ((mt.eye(2), 5), "queries is 5; give a list of 2 tokens"),
        ((mt.eye(2), None, 5), "keys is 5; give a list of 2 tokens"),
    ],
)
def test_what_is_no_weight_and_no_label_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"attention: {message}"):
        viz.attention(*arguments)


def test_an_unknown_theme_is_refused() -> None:
    with pytest.raises(ValueError, match=r"attention: theme='blue' is not .*choose theme among 'auto'"):
        viz.attention(mt.eye(2), theme="blue")


def test_the_darkest_colour_is_the_greatest_weight_rounded_up_to_a_tenth() -> None:
    A = np.full((1, 4, 4), 0.25)
    A[0, 0] = [0.29, 0.21, 0.25, 0.25]
    text = viz.attention(A).svg()
    assert ">0.3  attention weight<" in text
    assert max(float(found) for found in re.findall(r'fill-opacity="([\d.]+)"', text)) == 0.97
    assert ">1  attention weight<" in viz.attention(np.eye(4)[None]).svg()


@pytest.mark.parametrize("token", ["w" * 40, "M" * 16, "@", "<s>", "0", "straße", "illicit", "…—%"])
def test_no_label_touches_a_name_of_an_axis_or_the_edge(token: str) -> None:
    fonts = pytest.importorskip("matplotlib.ft2font")
    font = fonts.FT2Font(str(Path(viz.__file__).with_name("fonts") / "DejaVuSans.ttf"))
    font.set_size(100, 72)
    root = ET.fromstring(viz.attention(mt.eye(2), [token, "x"]).svg())
    texts = [(t.text or "", float(t.get("x", "")), float(t.get("y", "")), t) for t in root.iter(f"{SVG}text")]
    (shown, right, _, query), (_, _, top, _) = [
        t for t in texts if t[0][:1] == token[:1] and t[3].get("text-anchor") == "end"
    ]
    (left,), (below,) = (
        [x for t, x, *_ in texts if t == "queries"],
        [y for t, _, y, _ in texts if t == "keys"],
    )
    font.set_text(shown)
    width = font.get_width_height()[0] / 64 / 100 * float(query.get("font-size", ""))
    assert right - width > left + 3  # where the tails of q are
    assert top + width < below - 10  # where k begins


def test_a_png_says_which_characters_no_font_has(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    missing, maps = "\U0010fff0", viz.attention(mt.eye(3), ["été", "b\U0010fff0", "&<"])
    said = (
        rf"AttentionMaps.save: no font here has {missing}, which .*x.png shows as blanks or boxes; save .svg"
    )
    with pytest.warns(UserWarning, match=said):
        maps.save(tmp_path / "x.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        maps.save(tmp_path / "x.svg")
        viz.attention(mt.eye(3), ["été", "b", "&<"]).save(tmp_path / "x.png")
