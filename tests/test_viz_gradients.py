"""What is drawn of gradients, values and costs is what the engine computes; findings come by themselves."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from check_layout import problems
from test_viz_models import transformer

import microtensor as mt
from microtensor import engine, nn, viz
from microtensor.viz import style, symbols
from microtensor.viz.formula import two_digits
from microtensor.viz.texts import WORDS, texts_of
from models import GPT, Encoder, EncoderLayer, GPTConfig, MultiHeadAttention, causal_mask

PURPLE = style.LIGHT.gradient


@pytest.fixture
def layer() -> MultiHeadAttention:
    mt.manual_seed(3)
    return MultiHeadAttention(16, 2, dropout=0.1)


@pytest.fixture
def x() -> mt.Tensor:
    return mt.randn(2, 5, 16, requires_grad=True)


@pytest.fixture
def g() -> mt.Tensor:
    return mt.randn(2, 5, 16)


def norm(t: Any) -> str:
    return two_digits(float(np.linalg.norm(t.array.astype(np.float64))))


def node(dot: str, id: str) -> str:
    return next(line for line in dot.split("\n") if f'id="{id}"' in line)


def edges(dot: str, kind: str) -> list[str]:
    return [line for line in dot.split("\n") if re.search(rf'class="?{kind}"?,', line)]


# --- norms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["equations", "ops", "tape"])
def test_norms_are_the_engines(layer: MultiHeadAttention, x: mt.Tensor, g: mt.Tensor, level: str) -> None:
    with viz.recording(opens=level != "tape"):
        y = layer(x, mask=causal_mask(5))
        drawing = viz.draw(y, level=level, grads=g)
    wanted = {"X": x, "W_Q": layer.q_proj.weight, "W_O": layer.out_proj.weight, "b_V": layer.v_proj.bias}
    gradients = mt.autograd.grad(y, list(wanted.values()), g)
    for symbol, gradient in zip(wanted, gradients, strict=True):
        line = next(s for s in drawing.dot.split("\n") if re.search(rf'id="node-{symbol}[+"]|\+{symbol}"', s))
        assert f"‖∂‖ {norm(gradient)}" in line, symbol
    assert f"‖∂‖ {norm(g)}" in node(drawing.dot, "node-Y")


def test_an_edge_says_what_it_contributes(layer: MultiHeadAttention, x: mt.Tensor, g: mt.Tensor) -> None:
    layer.eval()
    inputs = [mt.tensor(x.array, requires_grad=True) for _ in range(3)]
    shares = mt.autograd.grad(layer(*inputs), inputs, g)
    dot = viz.draw(layer, x, grads=g).dot
    for lane, share in zip("QKV", shares, strict=True):
        (edge,) = (line for line in edges(dot, "fwd bwd") if re.search(rf"t\d+:[wse] -> lin{lane} ", line))
        assert f"> {norm(share)}<" in edge


def test_a_double_line_stands_exactly_where_a_gradient_flows(
    layer: MultiHeadAttention, x: mt.Tensor, g: mt.Tensor
) -> None:
    dot = viz.draw(layer, x, mask=causal_mask(5), grads=g).dot
    plain = viz.draw(layer, x, mask=causal_mask(5)).dot
    assert len(edges(dot, "fwd bwd")) + len(edges(dot, "fwd")) == len(edges(plain, "fwd"))
    assert [line.split(" [")[0].strip() for line in edges(dot, "fwd")] == [f"{mask_of(dot)} -> mask"]
    assert f":{PURPLE}" not in plain


def mask_of(dot: str) -> str:
    return node(dot, "node-M").split()[0]


def test_uses_inside_a_fold_add_up_before_they_are_measured() -> None:
    x = mt.tensor([3.0, -1.0], requires_grad=True)
    with viz.recording():
        with viz.fold("twice", "y = x - x", x=x):
            y = x - x
        dot = viz.draw(y.sum(), grads=True).dot
    assert edges(dot, "fwd bwd")[0].count("> ≡ 0<") == 1


def test_x_times_x_contributes_twice() -> None:
    x = mt.tensor([3.0, 4.0], requires_grad=True)
    dot = viz.draw((x * x).sum(), grads=True).dot
    assert sum("> 5.0<" in line for line in edges(dot, "fwd bwd")) == 2
    assert "‖∂‖ 10" in node(dot, "node-x")


def test_what_was_broadcast_contributes_its_sum() -> None:
    x, b = mt.ones(4, 2, requires_grad=True), mt.ones(2, requires_grad=True)
    dot = viz.draw((x + b).sum(), grads=True, names={"x": x, "b": b}).dot
    labels = {re.search(r"\w+", line).group(): line for line in edges(dot, "fwd bwd")}  # type: ignore[union-attr]
    assert "> 5.7<" in labels[node(dot, "node-b").split()[0]]  # (4, 4): each element has four copies
    assert "> 2.8<" in labels[node(dot, "node-x").split()[0]]


# --- drawing changes nothing --------------------------------------------------------------------------------


def test_gradients_are_drawn_without_a_trace(layer: MultiHeadAttention, x: mt.Tensor, g: mt.Tensor) -> None:
    y, fired = layer(x), list[int]()
    x.register_hook(lambda g: fired.append(1))
    y.register_hook(lambda g: fired.append(1))
    before = viz.draw(y, grads=g, level="tape").dot
    assert x.grad is None
    assert layer.q_proj.weight.grad is None
    assert fired == []
    assert viz.draw(y, grads=g, level="tape").dot == before
    y.backward(g)
    assert len(fired) == 2


def test_the_layer_runs_once_however_much_is_drawn(x: mt.Tensor, g: mt.Tensor) -> None:
    layer, runs = MultiHeadAttention(16, 2), list[int]()
    layer.q_proj.register_forward_hook(lambda m, args, y: runs.append(1))
    viz.draw(layer, x, grads=g, values=True, cost=True).svg()
    assert runs == [1]


def test_a_freed_tape_is_refused_with_the_cure(x: mt.Tensor) -> None:
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"no gradients can be drawn; draw before it, or .*retain_graph"):
        viz.draw(y, grads=True)
    with pytest.raises(RuntimeError, match="no level='tape' can be drawn"):
        viz.draw(y, level="tape")
    assert viz.draw(y).dot


def test_a_gradient_that_does_not_fit_is_refused(x: mt.Tensor) -> None:
    with pytest.raises(ValueError, match=r"grads=True needs a scalar to start from, not \(2, 5, 16\)"):
        viz.draw(x * x, grads=True)
    with pytest.raises(ValueError, match=r"grads has shape \(3,\), and y \(2, 5, 16\)"):
        viz.draw(x * x, grads=mt.ones(3))
    with pytest.raises(TypeError, match="grads is float; choose True, False"):
        viz.draw(x * x, grads=1.0)


# --- findings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["equations", "ops", "heads", "tape"])
@pytest.mark.parametrize("dtype", [mt.float32, mt.float64])
def test_a_zero_gradient_is_found_and_explained(x: mt.Tensor, g: mt.Tensor, level: str, dtype: Any) -> None:
    layer = MultiHeadAttention(16, 2).to(dtype)
    x = mt.tensor(x.array, dtype=dtype, requires_grad=True)
    for bias in (p.bias for p in layer.children()):
        bias.data = mt.randn(16, dtype=dtype)
    drawing = viz.draw(layer, x, mask=causal_mask(5), grads=g, level=level)
    assert drawing.findings == [
        "∂L/∂b_K = 0: softmax ignores a number that is added to a whole row of scores"
    ]
    assert drawing.dot.count("‖∂‖ ≡ 0") == 1
    assert "softmax ignores" in drawing.dot.split("\n")[1]
    assert (" ≡ 0</B>" in node(drawing.dot, "vjp-linK")) if level == "tape" else True


SHIFT = "softmax ignores a number that is added to a whole row of scores"


@pytest.mark.parametrize("need_weights", [False, True])
def test_why_a_gradient_is_zero_is_found_where_no_layer_listens(
    layer: MultiHeadAttention, x: mt.Tensor, need_weights: bool
) -> None:
    """Of a tensor that a layer made before, and of an attention that somebody wrote himself."""
    made = layer(x, need_weights=need_weights)
    y = made[0] if need_weights else made
    for level in ("equations", "ops", "tape"):
        assert viz.draw(y.sum(), level=level, grads=True).findings == [f"∂L/∂k_proj.bias = 0: {SHIFT}"]
    q, k, v = (nn.Linear(16, 16) for _ in range(3))
    A = (q(x) @ k(x).mT * 0.25).softmax(-1) if need_weights else None
    y = nn.functional.scaled_dot_product_attention(q(x), k(x), v(x)) if A is None else A @ v(x)
    assert viz.draw(y, grads=mt.randn(2, 5, 16)).findings == [f"∂L/∂k.bias = 0: {SHIFT}"]


@pytest.mark.parametrize("level", ["equations", "ops", "heads", "tape"])
def test_a_sequence_of_one_has_gradients_that_are_zero_for_a_reason(
    layer: MultiHeadAttention, level: str
) -> None:
    line_by_line = {"need_weights": True} if level == "tape" else {}
    drawing = viz.draw(layer, mt.randn(2, 1, 16), level=level, grads=mt.randn(2, 1, 16), **line_by_line)
    why = "softmax of one number does not depend on it"
    assert drawing.findings == [f"∂L/∂{p} = 0: {why}" for p in ("W^Q", "b_Q", "W^K", "b_K")]


def test_where_a_gradient_ends_is_said() -> None:
    x, g = mt.randn(2, 4), mt.randn(2, 3)
    first, last = nn.Linear(4, 5), nn.Linear(5, 3)
    last.weight.data = mt.zeros(3, 5)
    upper = [f"∂L/∂first.{name} = 0" for name in ("weight", "bias")]
    lower = [f"∂L/∂last.{name} = 0" for name in ("weight", "bias")]
    y = last(first(x).tanh())
    assert viz.draw(y, grads=g).findings == [f"{each}: linear multiplies it by 0" for each in upper]
    why = "the gradient of the result is 0"
    assert viz.draw(y, grads=g * 0.0).findings == [f"{each}: {why}" for each in (*upper, *lower)]
    last, first.bias.data = nn.Linear(5, 3), mt.full((5,), -100.0)
    dead = [f"{each}: relu passes no gradient on" for each in upper]
    assert viz.draw(last(first(x).relu() + 1.0), grads=g).findings == dead


def test_no_reason_is_made_up_where_none_is_known() -> None:
    x, p = mt.randn(2, 4), nn.Parameter(mt.randn(4))
    assert viz.draw((p - p).sum(), grads=True).findings == ["∂L/∂p = 0"]
    head = nn.Linear(4, 2)
    head.weight.data, head.bias.data = mt.zeros(2, 4), mt.zeros(2)
    loss = -(head(x).log_softmax(-1) * mt.eye(2)).sum()  # as often the one as the other, and so it is guessed
    assert viz.draw(loss, grads=True).findings == ["∂L/∂head.bias = 0"]


def test_rows_that_attend_to_nothing_are_found(layer: MultiHeadAttention, x: mt.Tensor) -> None:
    mask = causal_mask(5).array.copy()
    mask[1] = False
    for level, who in (("equations", "A"), ("tape", "H")):
        drawing = viz.draw(layer, x, mask=mt.tensor(mask), level=level)
        assert drawing.findings == [f"{who}: 4 of 20 rows may attend to nothing"]
        assert "<B>4 of 20 rows may attend to nothing</B>" in drawing.dot
    assert viz.draw(layer, x, mask=causal_mask(5)).findings == []


@pytest.fixture
def infinite() -> MultiHeadAttention:
    """A layer whose head 1 has scores of −∞: q₀ < 0, k₀ = ∞."""
    layer = MultiHeadAttention(16, 2)
    layer.q_proj.weight.array[0], layer.q_proj.bias.array[0] = 0, -1
    layer.k_proj.bias.array[0] = math.inf
    return layer


LEVELS = [(level, {}) for level in ("equations", "ops", "heads", "tape")] + [("tape", {"need_weights": True})]


@pytest.mark.parametrize(("level", "options"), LEVELS)
@pytest.mark.parametrize("added", [False, True])
def test_rows_of_infinite_scores_are_not_blamed_on_a_mask(
    infinite: MultiHeadAttention, x: mt.Tensor, level: str, options: dict[str, Any], added: bool
) -> None:
    mask = causal_mask(5) & mt.tensor([[True], [False], [True], [True], [True]])
    given = mt.zeros(5, 5).masked_fill(~mask, -math.inf) if added else mask

    def found(mask: mt.Tensor | None) -> list[tuple[int, str]]:
        holds, *rows = viz.draw(infinite, x, mask=mask, level=level, **options).findings
        assert holds == "b_K holds ∞"
        return [(int(row.split()[1]), row.split(" ", 5)[5]) for row in rows]

    nothing, infinity = "may attend to nothing", "have scores of −∞ only"
    assert found(None) == found(causal_mask(5)) == [(10, infinity)]
    rows = found(given)
    assert sum(n for n, why in rows if why == nothing) == 4
    assert sum(n for n, why in rows if why == infinity) == 8
    assert {why for _, why in rows} == {nothing, infinity}


def test_cells_of_infinite_scores_are_not_called_masked(infinite: MultiHeadAttention, x: mt.Tensor) -> None:
    drawing = viz.draw(infinite, x, mask=causal_mask(5), values=True)
    cells = looks(drawing.dot, "node-softmax")
    assert [cells[:25].count("#E4E7EB"), cells[25:].count("#E4E7EB")] == [10, 10]
    (found,) = (each for each in drawing.data["nodes"] if each["id"] == "node-softmax")
    assert np.sum(found["tensors"][0]["values"]["masked"]) == 20


def test_scores_that_are_masked_and_then_scaled_are_masked() -> None:
    S = mt.randn(3, 3, requires_grad=True)
    masked = S.masked_fill(mt.tensor([[False] * 3, [True] * 3, [False] * 3]), -math.inf)
    for scores in (masked * 0.5, (masked.reshape(1, 3, 3) + 1.0)):
        (found,) = viz.draw(scores.softmax(-1).sum()).findings
        assert found.endswith(": 1 of 3 rows may attend to nothing")


def test_what_layers_alike_have_in_common_is_said_once() -> None:
    encoder, x = Encoder(3, 16, 2, 32, dropout=0.0), mt.randn(1, 4, 16)
    mask = causal_mask(4) & mt.tensor([False, True, True, True])
    drawing = viz.draw(encoder, x, mask=mask, grads=mt.randn(1, 4, 16))
    reason = "softmax ignores a number that is added to a whole row of scores"
    dead = "A: 2 of 8 rows may attend to nothing"
    assert drawing.findings == [f"∂L/∂b_K = 0: {reason} (3 layers)", f"{dead} (3 layers)"]


def test_rows_whose_scores_are_zero_are_not_dead() -> None:
    layer, zeros = MultiHeadAttention(16, 2), mt.zeros(2, 5, 16, requires_grad=True)
    assert viz.draw(layer, zeros, level="tape").findings == []
    assert viz.draw(layer, zeros).findings == []


def test_the_first_nan_of_a_forward_is_drawn_in_red() -> None:
    x = mt.tensor([1.0, -1.0], requires_grad=True)
    drawing = viz.draw((x.log() * 2.0 + 1.0).sum())
    assert drawing.findings == ["z_1 is the first with NaN"]
    (red,) = (
        s for s in drawing.dot.split("\n") if f'color="{style.LIGHT.kinds["fault"].stroke}", label=<' in s
    )
    assert "first NaN: log" in red
    assert viz.draw((x.exp() * 2.0).sum()).findings == []


def red(dot: str) -> list[str]:
    """The lines of boxes whose stroke is the fault's, and of cells in boxes of parameters."""
    stroke, fill = style.LIGHT.kinds["fault"]
    looks = f'color="{stroke}", label=<', f'COLOR="{stroke}" BGCOLOR="{fill}"'
    return [line for line in dot.split("\n") if any(look in line for look in looks)]


def test_a_nan_that_came_from_outside_is_blamed_on_where_it_stands() -> None:
    x, c = mt.ones(2, requires_grad=True), mt.tensor([1.0, float("nan")])
    assert viz.draw((x.exp() * c).sum()).findings == ["c holds NaN"]
    drawing = viz.draw((x.exp() * mt.tensor([1.0, float("nan")])).sum())
    assert drawing.findings == ["c holds NaN"]
    assert ["holds NaN" in line for line in red(drawing.dot)] == [True]


@pytest.mark.parametrize("level", ["equations", "ops", "heads", "tape"])
@pytest.mark.parametrize(("value", "said"), [(math.nan, "holds NaN"), (math.inf, "holds ∞")])
def test_a_parameter_that_is_not_finite_is_red(
    layer: MultiHeadAttention, x: mt.Tensor, level: str, value: float, said: str
) -> None:
    layer.k_proj.weight.array[0, 0] = value
    drawing = viz.draw(layer, x, level=level, grads=mt.randn(2, 5, 16))
    assert f"W^K {said}" in drawing.findings
    (line,) = (line for line in red(drawing.dot) if 'class="leaf' in line)
    cells = line.split("<TD PORT=")[1:] or [line]
    assert [("</I><SUP>" in cell, "<I>b" in cell) for cell in cells if said in cell] == [(True, False)]
    assert drawing.dot.count(style.LEGEND["fault"]) == 1


def test_an_input_that_is_not_finite_stays_where_it_stood(layer: MultiHeadAttention, x: mt.Tensor) -> None:
    before = viz.draw(layer, x).dot
    x.array[0, 0, 0] = math.inf
    drawing = viz.draw(layer, x)
    assert "X holds ∞" in drawing.findings
    assert 'class="leaf input"' in red(drawing.dot)[0]
    ranks = ([line for line in dot.split("\n") if "invis" in line] for dot in (before, drawing.dot))
    assert next(ranks) == next(ranks)


def test_a_mask_that_forbids_by_infinity_is_no_finding(layer: MultiHeadAttention, x: mt.Tensor) -> None:
    mask = mt.zeros(5, 5).masked_fill(~causal_mask(5), -math.inf)
    assert viz.draw(x[..., :5] + mask).findings == []
    x.array[0, 0, 0] = math.nan
    assert viz.draw(layer, x, mask=mask).findings == ["X holds NaN"]


@pytest.mark.parametrize("depth", [None, 1])
def test_what_a_box_hides_or_stands_for_is_marked_on_it(depth: int | None) -> None:
    """NaN in a weight of the third of three layers that are alike."""
    encoder = Encoder(3, 16, 2, 32, dropout=0.0)
    encoder.layers[2].self_attention.k_proj.weight.array[0, 0] = math.nan
    drawing = viz.draw(encoder, mt.randn(1, 4, 16), depth=depth)
    assert drawing.findings == ["W^K holds NaN"]
    assert ["holds NaN" in line for line in red(drawing.dot)] == [True]
    assert [len(node["found"]) for node in drawing.data["nodes"] if node["found"]] == [1]


def test_the_first_nan_of_a_backward_is_found_too() -> None:
    x = mt.tensor([1.0, 0.0], requires_grad=True)
    y = (x.sqrt() * mt.tensor([1.0, 0.0])).sum()
    assert viz.draw(y, grads=True).findings == ["the backward of z_1 makes the first NaN"]
    assert viz.draw(y).findings == []


# --- values and costs ---------------------------------------------------------------------------------------


def test_cells_show_scores_as_they_are_and_weights_with_grey_what_is_masked(
    layer: MultiHeadAttention, x: mt.Tensor
) -> None:
    dot = viz.draw(layer, x, mask=causal_mask(5), values=True).dot
    for id in ("node-scores", "node-softmax"):
        cells = re.findall(r'WIDTH="9" HEIGHT="9" FIXEDSIZE="TRUE" BGCOLOR="(#\w+)"', node(dot, id))
        assert len(cells) == 2 * 5 * 5
        assert cells.count("#E4E7EB") == (0 if id == "node-scores" else 2 * 10)
        assert not set(cells) & style.to_dark().keys()
    with viz.recording() as recorder:
        layer(x, mask=causal_mask(5))
    (S,) = (tag.tensor for tag in recorder.tags.values() if tag.symbol == "S")
    assert f"cells ± {two_digits(float(np.abs(S.detach().numpy()[0]).max()))}" in node(dot, "node-scores")
    first = re.findall(r'BGCOLOR="(#\w+)"', node(dot, "node-softmax"))[0]
    assert first in ("#A54386", "#A54387")  # the first position sees itself alone: 1
    assert "grey = masked" in dot
    assert 'WIDTH="9"' not in viz.draw(layer, x, mask=causal_mask(5)).dot


CELLS = re.compile(r'<TD WIDTH="9" HEIGHT="9" FIXEDSIZE="TRUE" BGCOLOR="([^>]*)"></TD>')


def looks(dot: str, id: str) -> list[str]:
    """Of each cell of a node: its fill, and its frame if it has one."""
    return CELLS.findall(node(dot, id))


WRONG = '#FDE6E8" BORDER="1" COLOR="#C00018'


def test_a_cell_that_is_not_finite_looks_like_no_value(x: mt.Tensor) -> None:
    layer = MultiHeadAttention(16, 2)
    assert "not finite" not in viz.draw(layer, x, values=True).dot
    layer.k_proj.weight.array[0, 0] = np.nan  # of head 1 alone
    drawing = viz.draw(layer, x, values=True)
    for id in ("node-scores", "node-softmax"):
        assert looks(drawing.dot, id).count(WRONG) == looks(drawing.dot, id)[:25].count(WRONG) == 25
    assert "framed in red = not finite" in drawing.dot
    assert "masked" not in drawing.dot
    svg = drawing.svg().lower()
    assert svg.count("#c00018") >= 2 * 25


@pytest.mark.parametrize(("B", "T", "S"), [(0, 3, 3), (2, 0, 0), (2, 0, 3), (2, 3, 0), (0, 0, 0)])
@pytest.mark.parametrize("level", ["equations", "ops", "heads", "tape"])
def test_values_of_a_size_of_zero_are_drawn(
    B: int, T: int, S: int, level: str, capfd: pytest.CaptureFixture[str]
) -> None:
    line_by_line = {"need_weights": True} if level == "tape" else {}
    x, memory = mt.randn(B, T, 16, requires_grad=True), mt.randn(B, S, 16)
    for given, mask in ((x, causal_mask(T)), (memory, None)) if T == S else ((memory, None),):
        drawing = viz.draw(
            MultiHeadAttention(16, 2), x, given, mask=mask, level=level, values=True, cost=True,
            grads=mt.randn(B, T, 16), **line_by_line,
        )  # fmt: skip
        assert problems(drawing.json) == []
        assert drawing.svg()
        assert drawing.dot.count("no cells: it has no elements") == 2 + 2 * (level == "heads")
    assert capfd.readouterr().err == ""


def test_a_nan_is_never_called_masked(x: mt.Tensor) -> None:
    layer = MultiHeadAttention(16, 2)
    layer.k_proj.weight.array[0, 0] = np.nan
    drawing = viz.draw(layer, x, mask=causal_mask(5), values=True)
    masked = looks(drawing.dot, "node-softmax").count("#E4E7EB")
    assert masked < 20  # a weight of a row with NaN is NaN, also where a mask forbids
    (found,) = (each for each in drawing.data["nodes"] if each["id"] == "node-softmax")
    values = found["tensors"][0]["values"]
    for shares, hidden in zip(np.ravel(values["maps"]), np.ravel(values["masked"]), strict=True):
        assert not (hidden and shares == "nan")
    assert sum(np.ravel(values["masked"])) == masked


def test_minus_infinity_is_masked_only_where_a_mask_says_so() -> None:
    def attend(x: mt.Tensor, mask: mt.Tensor) -> mt.Tensor:
        with viz.fold("scores", "S = x @ x.mT", x=x):
            return (x @ x.mT).masked_fill(mask, -np.inf)

    x, mask = mt.ones(1, 3, 2, requires_grad=True), mt.tensor(np.eye(3) > 0)
    with viz.recording():
        S = attend(x, mask)
        viz.tag(S, "S", axes="B n_q n_k")
        drawn = looks(viz.draw(S, values=True).dot, "node-scores")
    assert drawn.count("#E4E7EB") == 3
    with viz.recording():
        x = mt.tensor(np.full((1, 3, 2), 1e30, np.float32), requires_grad=True)
        with viz.fold("scores", "S = x @ x.mT", x=x):
            S = x @ -x.mT
        viz.tag(S, "S", axes="B n_q n_k")
        drawn = looks(viz.draw(S, values=True).dot, "node-scores")
    assert drawn == [WRONG] * 9


def test_many_positions_or_heads_have_no_cells_but_a_reason(x: mt.Tensor) -> None:
    dot = viz.draw(MultiHeadAttention(16, 8), x, values=True).dot
    assert "no cells: more than 4 heads or 12 positions" in node(dot, "node-softmax")


def test_costs_are_those_of_the_tape(layer: MultiHeadAttention, x: mt.Tensor) -> None:
    dot = viz.draw(layer, x, cost=True).dot
    assert "5.28 kFLOP · 640 B" in re.sub("<[^>]*>", "", node(dot, "node-linQ"))
    with viz.recording():
        total = mt.tape(layer(x)).flop
    assert f"in all {total / 1000:.3g} kFLOP" in dot


# --- level tape ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("need_weights", [False, True])
def test_what_is_kept_alive_is_what_the_tape_keeps(
    layer: MultiHeadAttention, x: mt.Tensor, need_weights: bool
) -> None:
    y = layer(x, mask=causal_mask(5), need_weights=need_weights)
    kept = mt.tape(y[0] if need_weights else y).bytes_kept
    drawing = viz.draw(layer, x, mask=causal_mask(5), need_weights=need_weights, level="tape")
    said = [int(n) for n in re.findall(r"(\d+) bytes", drawing.dot)]
    assert sum(said) == kept
    assert f"Σ = {kept / 1000:.3g} kB" in node(drawing.dot, "saved-total")


def kept_rows(dot: str) -> dict[str, list[str]]:
    """What stands in the tables of what is kept: by op, `name bytes` each."""
    tables = re.findall(r'id="saved-(\w+)", class="saved", [^<]*shape=plain, label=<(.*?</TABLE>)>', dot)
    cells = {op: re.findall("<TD WIDTH[^>]*>(.*?)</TD>", table) for op, table in tables}
    return {op: [" ".join(map(symbols.untagged, row)) for row in zip(x[::3], x[2::3], strict=True)]
            for op, x in cells.items()}  # fmt: skip


@pytest.mark.parametrize("direction", ["TB", "LR"])
def test_what_several_ops_keep_stands_at_each_of_them_and_counts_once(x: mt.Tensor, direction: str) -> None:
    drawing = viz.draw(MultiHeadAttention(16, 2), x, need_weights=True, level="tape", direction=direction)
    found = kept_rows(drawing.dot)
    assert found["softmax"] == ["A 400 B"]
    assert found["av"] == ["A shared", "V 640 B"]  # dV = Aᵀ dH
    assert "shared: its bytes stand further up" in legend_of(drawing)
    assert problems(drawing.json, "a3") == []
    a = mt.ones(3, requires_grad=True)
    z = a.exp()
    drawing = viz.draw((z * z * z.sin()).sum(), level="tape")
    assert list(kept_rows(drawing.dot).values()) == [
        ["z 12 B"],
        ["z shared"],
        ["z shared"],
        ["z_1 12 B", "z_2 12 B"],
    ]
    assert "Σ = 36 B" in drawing.dot
    drawing = viz.draw(MultiHeadAttention(16, 2, dropout=0.1), x, need_weights=True, level="tape")
    assert "shared" not in drawing.dot


def test_what_is_kept_and_read_by_no_formula_says_so(x: mt.Tensor) -> None:
    drawing = viz.draw(MultiHeadAttention(16, 2), x, need_weights=True, level="tape")
    unread = [line for line in drawing.dot.split("\n") if "unread" in line and "saved-" in line]
    assert [re.search('id="saved-([^"]*)"', line)[1] for line in unread] == ["scores"]  # type: ignore[index]
    assert unread[0].count("unread") == 1
    rows = [symbols.untagged(row.replace("</TD>", "|")) for row in unread[0].split("<TR>")]
    assert [row.split(">,")[0] for row in rows[1:]] == [
        "Q|B×h×n×d_k|640 B|",
        "K|B×h×n×d_k|640 B|",
        "Q Kᵀ|B×h×n×n unread|400 B|",
    ]
    assert "unread: its op keeps it, and no gradient here needs it" in legend_of(drawing)
    row = viz.draw(MultiHeadAttention(16, 2), x, need_weights=True, level="tape", direction="LR")
    assert "unread: its op keeps it, and no gradient here needs it" in legend_of(row)
    assert problems(row.json, "a3") == []
    assert "unread" not in viz.draw(MultiHeadAttention(16, 2), x, level="tape").dot
    z, mask = x.exp(), mt.ones(5, 16)
    drawing = viz.draw((z * mask).sum(), level="tape")  # no gradient goes to the mask
    assert drawing.dot.count(" unread") == 0  # exp reads what the product keeps
    assert viz.draw(((z + 1) * mask).sum(), level="tape").dot.count(") unread") == 1
    assert viz.draw(((z + 1) * (z + 2)).sum(), level="tape").dot.count(" unread") == 0


def test_relu_shows_the_result_that_it_keeps_where_its_gradient_reads_it(x: mt.Tensor) -> None:
    drawing = viz.draw((x * 2).relu().sum(), level="tape")
    assert [row for rows in kept_rows(drawing.dot).values() for row in rows] == ["z_2 640 B"]
    assert "dz_1 = dz_2 where z_2 > 0, else 0" in symbols.untagged(drawing.dot)


@pytest.mark.parametrize("direction", ["TB", "BT", "LR"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_what_is_kept_has_the_shapes_that_are_asked_for(
    layer: MultiHeadAttention, x: mt.Tensor, direction: str, need_weights: bool
) -> None:
    """And none of the buffers' own, where a layer's tensors are views of them."""
    for shapes, said in (("symbolic", "B×h×n×d_k"), ("numeric", "(2, 2, 5, 8)"), (None, "")):
        options = {"level": "tape", "shapes": shapes, "direction": direction, "need_weights": need_weights}
        drawing = viz.draw(layer, x, mask=causal_mask(5), **options)
        tables = [line for line in drawing.dot.split("\n") if 'id="saved-' in line and "shape=plain," in line]
        rows = [symbols.untagged(row.replace("</TD>", "|")) for t in tables for row in t.split("<TR>")]
        wanted = f"Q|{said}|640 B|" if said else "Q|640 B|"
        assert any(row.startswith(wanted) for row in rows)
        assert said or not re.search(r"\(\d|×", " ".join(tables))
        assert problems(drawing.json, "a3") == []


def test_the_legend_of_the_tape_says_what_is_not_listed(x: mt.Tensor) -> None:
    layer = MultiHeadAttention(16, 2)
    said = "kept by the tape; inputs and parameters live anyway"
    assert said in legend_of(viz.draw(layer, x, level="tape"))
    assert "live anyway" not in legend_of(viz.draw(layer, x))


def test_a_view_keeps_all_of_the_memory_that_it_is_a_view_of() -> None:
    x, w = mt.ones(100, 3, requires_grad=True), mt.ones(3, requires_grad=True)
    y = ((x + 1.0)[0] * w).sum()
    assert mt.tape(y).bytes_kept == 1200
    assert "Σ = 1.2 kB" in viz.draw(y, level="tape").dot


def test_the_tape_has_a_formula_for_every_op_and_an_edge_for_every_gradient(
    layer: MultiHeadAttention, x: mt.Tensor
) -> None:
    dot = viz.draw(layer, x, mask=causal_mask(5), need_weights=True, level="tape").dot
    ops = re.findall(r'id="node-(\w+)", class="op ', dot)
    assert re.findall(r'id="vjp-(\w+)"', dot) == ops
    flowing = [e for e in edges(dot, "fwd") if "dashed" not in e and not e.strip().startswith("p_")]
    assert len(edges(dot, "bwd")) == len(flowing)  # the output's included, parameters have none of their own
    assert "d<I>" not in node(dot, "vjp-softmax")  # italic as a whole
    assert "rowsum(<I>dA</I> ∘ <I>A</I>)" in node(dot, "vjp-softmax")
    assert 'id="grad-X"' in dot
    assert "sum of 3 paths" in node(dot, "grad-X")


def test_a_users_tape_shows_the_formulas_of_its_ops() -> None:
    x, w = mt.randn(4, 3, requires_grad=True), mt.randn(3, 2, requires_grad=True)
    dot = viz.draw((x @ w).tanh().sum(), level="tape", names={"x": x, "w": w}).dot
    tooltips = re.findall(r'class="vjp".*tooltip="([^"]*)"', dot)
    assert tooltips == [
        "gradient of z_1 = x w&#10;dx = dz_1 wᵀ&#10;dw = xᵀ dz_1",
        "gradient of z_2 = tanh(z_1)&#10;dz_1 = dz_2 ∘ (1 − z_2^2)",
        "gradient of y = Σ z_2&#10;dz_2 = expand(dy)",
    ]


def test_what_was_broadcast_has_its_sum_in_the_formula() -> None:
    x, w, b = mt.randn(4, 5, 3, requires_grad=True), mt.randn(3, 2, requires_grad=True), mt.randn(2)
    shift = mt.randn(4, 1, 1, requires_grad=True)
    for y, said in (
        (x @ w, "dw = Σ_B xᵀ dy"),
        (x[0] @ w, "dw = z_1ᵀ dy"),
        (mt.zeros(4, 2) + b.requires_grad_(), "db = Σ dy"),
        (x + shift, "dshift = unbroadcast(dy)"),
        (x * x.sum(), "dz_1 = unbroadcast(dy ∘ x)"),
        (nn.functional.linear(x, w.mT, b), "dz_1 = Σ_B dyᵀ x"),
        (nn.functional.linear(x[0], w.mT, b), "dz_2 = dyᵀ z_1"),
    ):
        assert re.search(rf"&#10;{re.escape(said)}[\"&]", viz.draw(y, level="tape").dot), said


def test_a_tensor_with_several_users_sums_their_gradients() -> None:
    x = mt.randn(3, requires_grad=True)
    dot = viz.draw((x.exp() * x).sum(), level="tape").dot
    assert dot.count("<I>dx</I> += ") == 2


def test_a_layers_gradient_is_added_to_only_where_several_paths_arrive(
    layer: MultiHeadAttention, x: mt.Tensor
) -> None:
    """Whatever the fold's text says: it does not know how often a user reads its tensors."""

    def said(of: viz.Drawing) -> list[str]:
        lines = re.findall(r'class="vjp".*tooltip="([^"]*)"', of.dot)
        return [" ".join(e.split(" ")[:2]) for e in "&#10;".join(lines).split("&#10;") if e.startswith("d")]

    memory = mt.randn(2, 7, 16, requires_grad=True)
    cross = said(viz.draw(layer, x, memory, level="tape"))
    assert [e for e in cross if e[:2] in ("dX", "dZ")] == ["dX =", "dZ +=", "dZ +="]
    assert [e for e in said(viz.draw(layer, x, level="tape")) if e[:2] == "dX"] == ["dX +="] * 3
    layer.k_proj.weight = layer.q_proj.weight
    assert [e for e in said(viz.draw(layer, x, level="tape")) if e.startswith("dW^Q")] == ["dW^Q +="] * 2
    with viz.recording():
        with viz.fold("scores", "S = Q @ K.mT", "dQ = dS @ K", "dK = dS.mT @ Q", Q=x, K=x):
            S = x @ x.mT
        drawing = viz.draw(S.sum(), level="tape")
    assert [e for e in said(drawing) if e[:2] == "dx"] == ["dx +="] * 2


# --- constants ----------------------------------------------------------------------------------------------


def test_a_number_that_a_layer_knows_is_drawn_as_its_formula(x: mt.Tensor) -> None:
    layer = MultiHeadAttention(16, 4)
    assert (
        'mul <FONT POINT-SIZE="9" COLOR="#52606D">1 / √<I>d</I><SUB><I>k</I></SUB>'
        in viz.draw(layer, x, level="ops").dot
    )
    assert "<I>dS</I> <I>K</I> / √<I>d</I><SUB><I>k</I></SUB>" in viz.draw(layer, x, level="tape").dot


def test_a_formula_that_does_not_give_the_number_is_not_drawn() -> None:
    with viz.recording():
        x = mt.randn(4, requires_grad=True)
        viz.tag(x, "x", axes="n")
        with viz.fold("part", constants=("1 / n", "sqrt(k)")):
            dot = viz.draw((x * 0.25 + 0.3), level="ops").dot
    assert "1 / <I>n</I>" in dot
    assert ">0.3<" in dot


@pytest.mark.parametrize(
    ("value", "said"), [(0.351, "0.35"), (99.4, "99"), (1234567.0, "1,200,000"), (2.1e9, "2.1e+09")]
)
def test_large_norms_are_read_without_an_exponent(value: float, said: str) -> None:
    assert two_digits(value) == said


def test_the_legend_has_the_head_that_is_drawn(layer: MultiHeadAttention, x: mt.Tensor, g: mt.Tensor) -> None:
    for level in ("equations", "tape"):
        dot = viz.draw(layer, x, grads=g, level=level).dot
        assert "arrowtail=onormal" in dot
        assert "▷" in dot
        assert "◀" not in dot


def test_the_legend_explains_norms_and_words_where_they_are_drawn(
    layer: MultiHeadAttention, x: mt.Tensor, g: mt.Tensor
) -> None:
    for level in ("equations", "tape", "heads", "ops"):
        assert "‖∂‖: Euclidean (Frobenius) norm of the whole" in viz.draw(layer, x, grads=g, level=level).dot
        assert "norm of" not in viz.draw(layer, x, level=level).dot
        shares = "gradient, norm of its share" in viz.draw(layer, x, grads=g, level=level).dot
        assert shares == (level != "heads")  # whose arrows have none

    for grads, said in ((g, "<I>Y</I>: as given"), ("random", "<I>Y</I>: random")):
        assert f"backward begins with the gradient of {said}" in viz.draw(layer, x, grads=grads).dot
    assert "backward begins with the gradient of <I>y</I>: 1" in viz.draw((x * x).sum(), grads=True).dot
    bias = MultiHeadAttention(8, 2, bias=True)
    assert "≡ 0: exactly 0, but for rounding" in viz.draw(bias, mt.randn(2, 3, 8), grads="random").dot

    def explained(**options: Any) -> set[str]:
        legend = viz.draw(layer, x, **options).dot.split("label=<", 1)[1].split(">];")[0]
        return {w for w in WORDS if f"{symbols.html(w)}: " in legend}

    shown = {"split_h", "head_h", "dropout"}
    assert explained() == shown
    assert explained(level="heads") == {"dropout"}
    fused = explained(level="tape")
    assert fused == {"L", "Σ", "Σ_B", "split_h", "merge_h", "head_h", "dropout", "rowsum", "stats", "shared"}
    lines = explained(level="tape", need_weights=True)
    assert lines == {"L", "Σ", "Σ_B", "split_h", "merge_h", "head_h", "dropout", "rowsum", "keep", "unread"}
    assert explained(names={"split_h": x}) == shown  # which is called, too
    assert explained(names={"keep": x}) == shown  # a tensor has that name here


def legend_of(drawing: viz.Drawing) -> str:
    return symbols.untagged(drawing.dot.split("label=<", 1)[1].split(">];")[0])


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5])  # 0.25 = 1/√16
def test_a_fused_attention_says_how_much_it_drops(x: mt.Tensor, p: float) -> None:
    drawing = viz.draw(MultiHeadAttention(16, 1, dropout=p), x, level="tape")
    assert f"H = dropout(softmax(Q Kᵀ / √d_k), {p:g}) V" in drawing.about
    assert f"dV = dropout(A, {p:g})ᵀ dH" in symbols.untagged(drawing.dot)
    assert "dropout" not in viz.draw(MultiHeadAttention(16, 1), x, level="tape").dot


SIZES = {
    "math": {"B": 2, "n": 5, "n_max": 5, "d": 16, "h": 2, "d_k": 8, "vocab": 20, "3d": 48, "4d": 64},
    "code": {"B": 2, "T": 5, "T_max": 5, "C": 16, "H": 2, "D": 8, "vocab": 20, "3C": 48, "4C": 64},
}


@pytest.mark.parametrize("level", ["equations", "ops", "tape"])
@pytest.mark.parametrize("names", ["math", "code"])
@pytest.mark.parametrize("shapes", ["symbolic", "numeric", "both", None])
def test_a_legend_has_the_sizes_of_the_letters_that_are_drawn_and_no_others(
    x: mt.Tensor, level: str, names: str, shapes: str | None
) -> None:
    gpt = GPT(GPTConfig(block_size=5, vocab_size=20, n_layer=1, n_head=2, n_embd=16))
    ids, sizes = mt.randint(0, 20, (2, 5)), SIZES[names]
    drawings = [viz.draw(MultiHeadAttention(16, 2), x, level=level, names=names, shapes=shapes)]
    depths = (None, 1, 2) if level == "equations" else ()
    drawings += [viz.draw(gpt, ids, names=names, shapes=shapes, depth=depth) for depth in depths]
    for drawing in drawings:
        legend, *labels = (
            symbols.untagged(re.sub("<T[DR]|<BR", " <", line.split("label=<")[1].split(", tooltip")[0]))
            for line in drawing.dot.split("\n")
            if "label=<" in line
        )
        said = dict(re.findall(r"(?<!\S)(\w+) = (?:d_model = |\w/\w = )?(\d+)", legend))
        drawn = set(re.findall(r"\d+ B\b|\w+", " ".join(labels)))  # of bytes
        drawn |= {word[-1] for word in drawn if word[:-1] in ("split_", "head_")}
        drawn |= set("hH" * bool(re.search(r"\w/\w = ", legend)))  # d_k = d/h
        assert drawn & sizes.keys() == said.keys()
        assert {letter: str(sizes[letter]) for letter in said} == said


@pytest.mark.parametrize(("names", "d_k"), [("math", "d_k"), ("code", "D")])
def test_what_is_under_a_root_is_said_where_no_layer_has_named_it(x: mt.Tensor, names: str, d_k: str) -> None:
    q, k, v = (mt.randn(2, 3, 4, requires_grad=True) for _ in range(3))
    drawing = viz.draw(nn.functional.scaled_dot_product_attention(q, k, v), names=names)
    assert drawing.about[0] == f"y = softmax(q kᵀ / √{d_k}) v"
    assert f"{d_k}: last axis of query and key" in legend_of(drawing)
    named = legend_of(viz.draw(MultiHeadAttention(16, 2), x, names=names))
    assert "last axis" not in named
    assert f"{d_k} = " in named


@pytest.mark.parametrize("names", ["math", "code"])
def test_words_of_the_legend_use_the_names_that_are_drawn(x: mt.Tensor, names: str) -> None:
    drawing = viz.draw(MultiHeadAttention(16, 2), x, mask=causal_mask(5), names=names)
    made = {line.split(" = ")[0] for line in drawing.about}
    words = legend_of(drawing)
    H, h = re.search(r"head_\w: (\w+) of head number (\w), the last", words).groups()  # type: ignore[union-attr]
    assert H in made
    assert f"{h} = 2" in words
    for mask in re.findall(r"mask: −∞ where (\w+) is False", words):
        assert f'tooltip="{mask}: constant' in drawing.dot


def test_a_word_of_several_layers_is_explained_for_each_of_them() -> None:
    said = legend_of(viz.draw(*transformer("pre")))
    assert "head_h: its layer’s H of head number h, the last" in said
    assert "mask: −∞ where its layer’s M is False" in said
    of_one = legend_of(viz.draw(EncoderLayer(16, 2, 32), mt.randn(2, 5, 16)))
    assert "head_h: H of head number h, the last" in of_one


@pytest.mark.parametrize("level", ["equations", "ops", "tape"])
def test_a_zero_gradient_is_said_of_inputs_too(level: str) -> None:
    a, b = mt.randn(2, 3, requires_grad=True), mt.randn(3, 2, requires_grad=True)
    drawing = viz.draw((a * 0).sum() + b.sum(), names={"a": a}, grads=True, level=level)
    assert drawing.findings == ["∂L/∂a = 0: mul multiplies it by 0"]
    assert "≡ 0: exactly 0, but for rounding" in legend_of(drawing)
    assert "L: the loss; ∂L/∂" in legend_of(drawing)


@pytest.mark.parametrize(("depth", "drawn"), [(1, False), (None, True)])
def test_a_legend_explains_no_zero_that_is_not_drawn(depth: int | None, drawn: bool) -> None:
    drawing = viz.draw(*transformer("pre"), grads="random", depth=depth)
    assert any("∂L/∂b_K" in text for text in drawing.findings)  # found all the same
    assert ("≡ 0:" in legend_of(drawing)) is drawn
    assert ("∂L/∂b_K" in legend_of(drawing)) is drawn
    assert ("L: the loss; ∂L/∂" in legend_of(drawing)) is drawn


def test_a_legend_says_which_part_of_a_weight_a_head_has(x: mt.Tensor) -> None:
    layer = MultiHeadAttention(16, 2)
    legend = legend_of(viz.draw(layer, x, level="heads"))
    assert "W_1^Q: columns of W^Q for head 1" in legend
    assert "b_Q,1: entries of b_Q for head 1" in legend
    legend = legend_of(viz.draw(MultiHeadAttention(16, 2, bias=False), x, level="heads"))
    assert "W_1^Q: columns of W^Q for head 1" in legend
    assert "entries of" not in legend
    assert "for head 1" not in legend_of(viz.draw(layer, x))


def test_a_legend_says_rows_where_the_weight_is_called_as_it_is_stored(x: mt.Tensor) -> None:
    layer = MultiHeadAttention(16, 2)
    legend = legend_of(viz.draw(layer, x, level="heads", names="code"))
    assert "W_1^Q: rows of q_proj.weight for head 1" in legend
    assert "b_Q,1: entries of q_proj.bias for head 1" in legend
    part = next(layer.heads())[0].array
    assert np.array_equal(part.T, layer.q_proj.weight.array[:8])
    assert "W_1^Q: columns of mine" in legend_of(
        viz.draw(layer, x, level="heads", names={"mine": layer.q_proj.weight})
    )


@pytest.mark.parametrize("shapes", ["symbolic", "numeric", "both"])
@pytest.mark.parametrize("level", ["equations", "ops", "heads", "tape"])
def test_a_mask_of_one_position_has_two_axes(level: str, shapes: str) -> None:
    x, layer = mt.randn(2, 1, 16, requires_grad=True), MultiHeadAttention(16, 2)
    drawing = viz.draw(layer, x, mask=causal_mask(1), level=level, shapes=shapes)
    mask = next(line for line in drawing.dot.splitlines() if 'id="node-M"' in line)
    assert "scalar" not in drawing.dot
    assert "M: constant (1, 1) bool" in mask


@pytest.mark.parametrize(
    ("level", "more"),
    [("ops", {}), ("tape", {}), ("equations", {}), ("heads", {}), ("tape", {"need_weights": True})],
)
def test_values_are_cells_at_every_level_or_say_why_not(
    x: mt.Tensor, level: str, more: dict[str, bool]
) -> None:
    drawing = viz.draw(MultiHeadAttention(16, 2), x, mask=causal_mask(5), level=level, values=True, **more)
    fused = level == "tape" and not more
    assert ("no cells: no node is a layer's scores or weights" in legend_of(drawing)) == fused
    assert ("cells (first of the batch)" in legend_of(drawing)) != fused
    assert len(CELLS.findall(drawing.dot)) == (0 if fused else 2 * 2 * 25)
    assert problems(drawing.json) == []


@pytest.mark.parametrize("level", ["equations", "ops", "tape"])
def test_values_where_no_layer_says_scores_say_why_there_are_no_cells(x: mt.Tensor, level: str) -> None:
    alone = viz.draw(nn.functional.softmax(x @ x.mT, dim=-1) @ x, level=level, values=True)
    assert "no cells: no node is a layer's scores or weights" in legend_of(alone)
    assert problems(alone.json) == []


def test_cells_of_level_ops_are_those_of_the_equations(x: mt.Tensor) -> None:
    options = {"mask": causal_mask(5), "values": True}
    layer = MultiHeadAttention(16, 2)
    ops, equations = (viz.draw(layer, x, level=level, **options).dot for level in ("ops", "equations"))
    (S,) = (line for line in ops.split("\n") if "<I>S</I> = mul" in line)
    (A,) = (line for line in ops.split("\n") if "<I>A</I> = softmax" in line)
    for line, id in ((S, "node-scores"), (A, "node-softmax")):
        assert CELLS.findall(line) == looks(equations, id)
        assert len(looks(equations, id)) == 2 * 25


def test_a_gradient_of_exactly_0_has_one_form(x: mt.Tensor) -> None:
    drawing = viz.draw(MultiHeadAttention(16, 2), x, grads=mt.zeros(x.shape))
    assert "‖∂‖ ≡ 0" in node(drawing.dot, "node-X")
    assert not re.search(r">0(\.0)?<|‖∂‖ 0|contributes 0", drawing.dot)
    assert drawing.dot.count("≡ 0") > 8


def test_an_abbreviation_in_a_gradient_is_no_letter_of_an_axis() -> None:
    steps = {name: texts_of(op).steps for name, op in engine.registry.items()}
    taken = {"h", "n", "d", "d_k", "B", "T", "C", "H", "D", "V", "N"}
    used = {name: {step.split(" = ")[0] for step in found} & taken for name, found in steps.items()}
    assert {name: letters for name, letters in used.items() if letters} == {}


def test_a_legend_says_what_fused_means_and_the_sign_of_a_product(x: mt.Tensor, g: mt.Tensor) -> None:
    layer = MultiHeadAttention(16, 2)
    for level, fused, product in [("ops", True, False), ("tape", False, True), ("equations", False, False)]:
        legend = legend_of(viz.draw(layer, x, level=level, need_weights=True))
        assert ("fused: several simple ops in one" in legend) == fused
        assert ("∘: product, element by element" in legend) == product


def test_a_fill_says_where_its_mask_forbids(x: mt.Tensor) -> None:
    """Level ops fills by the negation of M; that M allows is said nowhere else."""
    layer, named = MultiHeadAttention(16, 2), {"mine": (mask := causal_mask(5))}
    assert "−∞ if <I>M</I> is False" in viz.draw(layer, x, mask=mask, level="ops").dot
    assert "−∞ if mine is False" in viz.draw(layer, x, mask=mask, level="ops", names=named).dot


def test_a_legend_says_what_is_differentiated(x: mt.Tensor, g: mt.Tensor) -> None:
    drawing = viz.draw(MultiHeadAttention(16, 2), x, grads=g)
    assert "∂L/∂b_K" in legend_of(drawing)
    assert "L: the loss; ∂L/∂" in legend_of(drawing)
    assert "L: " not in legend_of(viz.draw(MultiHeadAttention(16, 2, bias=False), x, grads=g))


@pytest.mark.parametrize("names", ["math", "code"])
def test_a_legend_says_what_the_d_of_a_gradient_is(x: mt.Tensor, names: str) -> None:
    layer = MultiHeadAttention(16, 2)
    legend = legend_of(viz.draw(layer, x, level="tape", names=names))
    X = "X" if names == "math" else "query"
    assert f"d{X}: ∂L/∂{X}, its gradient" in legend
    assert "L: the loss; ∂L/∂" in legend
    assert "its gradient" not in legend_of(viz.draw(layer, x))


def test_a_legend_says_what_split_and_merge_do_and_what_has_a_colour(x: mt.Tensor, g: mt.Tensor) -> None:
    legend = legend_of(viz.draw(MultiHeadAttention(16, 2), x, level="tape", grads=g))
    assert "split_h: columns cut into h heads" in legend
    assert "merge_h: columns of all heads side by side" in legend
    assert "∂Y" not in legend.replace("∂L/∂Y", "")  # dY is what the picture has
    assert "attention weights" not in legend_of(viz.draw(MultiHeadAttention(16, 2), x))  # scores are none


def test_a_legend_says_what_is_kept_in_two_parts() -> None:
    x = mt.randn(4, 6, requires_grad=True)
    for y in (nn.LayerNorm(6)(x), nn.functional.cross_entropy(x, mt.tensor([0, 1, 2, 3]))):
        op, saved = y.grad_fn.op, y.grad_fn.saved
        kept = zip(op.kept, saved, strict=True)
        (name,) = (name for name, array in kept if name in op.residuals and np.shape(array) == (4, 2))
        assert re.search(rf"{name}: [^·]* in two parts", legend_of(viz.draw(y, level="tape")))


@pytest.mark.parametrize("masked", [False, True])
def test_grey_is_explained_where_something_is_masked(x: mt.Tensor, masked: bool) -> None:
    mask = causal_mask(5) if masked else None
    legend = legend_of(viz.draw(MultiHeadAttention(16, 2), x, mask=mask, values=True))
    assert ("grey = masked" in legend) == masked


def test_sideways_norms_have_room_around_them(layer: MultiHeadAttention, x: mt.Tensor, g: mt.Tensor) -> None:
    dot = viz.draw(layer, x, grads=g, direction="LR").dot
    labels = [
        found[1] for line in edges(dot, "fwd bwd") if (found := re.search("label=<(.*?)>, tooltip", line))
    ]
    assert labels
    assert all('</TD></TR><TR><TD HEIGHT="8">' in label for label in labels)
