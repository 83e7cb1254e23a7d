"""Every drawing of an attention layer passes the layout checks, whatever the options."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from check_layout import problems

import microtensor as mt
from microtensor import viz
from models import MultiHeadAttention, causal_mask


def drawing(
    *,
    mask: bool = True,
    dropout: float = 0.1,
    bias: bool = True,
    heads: int = 2,
    cross: bool = False,
    **options: Any,
) -> viz.Drawing:
    mt.manual_seed(0)
    layer = MultiHeadAttention(16, heads, bias=bias, dropout=dropout)
    x, memory = mt.randn(2, 5, 16, requires_grad=True), mt.randn(2, 7, 16) if cross else None
    return viz.draw(layer, x, memory, mask=causal_mask(5) if mask else None, **options)


@pytest.mark.parametrize("direction", ["TB", "BT", "LR"])
@pytest.mark.parametrize("level", ["equations", "ops"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_layout_holds_with_and_without_mask_dropout_and_bias(level: str, direction: str, heads: int) -> None:
    for mask, dropout, bias in [
        (True, 0.1, True),
        (False, 0.0, False),
        (True, 0.0, False),
        (False, 0.1, True),
    ]:
        drawn = drawing(mask=mask, dropout=dropout, bias=bias, heads=heads, level=level, direction=direction)
        assert problems(drawn.json) == []


@pytest.mark.parametrize("direction", ["TB", "BT", "LR"])
@pytest.mark.parametrize("level", ["equations", "ops"])
def test_layout_holds_for_every_way_to_write_shapes_and_names(level: str, direction: str) -> None:
    for shapes, names, legend in [
        ("numeric", "math", True),
        ("both", "code", True),
        (None, "math", False),
        (None, "code", True),
    ]:
        drawn = drawing(level=level, direction=direction, shapes=shapes, names=names, legend=legend)
        assert problems(drawn.json) == []


@pytest.mark.parametrize("direction", ["TB", "BT", "LR"])
@pytest.mark.parametrize("level", ["equations", "ops"])
def test_layout_holds_for_cross_attention(level: str, direction: str) -> None:
    assert problems(drawing(mask=False, cross=True, level=level, direction=direction).json) == []


@pytest.mark.parametrize("direction", ["TB", "LR"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_layout_holds_for_every_head(direction: str, heads: int) -> None:
    for mask, dropout, bias, cross in [(True, 0.1, True, False), (False, 0.0, False, True)]:
        drawn = drawing(
            mask=mask,
            dropout=dropout,
            bias=bias,
            cross=cross,
            heads=heads,
            level="heads",
            direction=direction,
        )
        assert problems(drawn.json) == []


@pytest.mark.parametrize(
    ("level", "direction"),
    [
        ("equations", "TB"),
        ("equations", "LR"),
        ("ops", "BT"),
        ("heads", "TB"),
        ("tape", "TB"),
        ("tape", "BT"),
    ],
)
def test_layout_holds_with_gradients_values_and_costs(level: str, direction: str) -> None:
    for bias, cross in [(True, False), (False, True)]:
        drawn = drawing(
            mask=not cross,
            bias=bias,
            cross=cross,
            level=level,
            direction=direction,
            grads=mt.ones(2, 5, 16),
            values=True,
            cost=True,
        )
        assert problems(drawn.json) == []


def test_layout_holds_for_lines_that_are_kept_alive_one_by_one() -> None:
    for direction in ("TB", "BT"):
        assert problems(drawing(level="tape", need_weights=True, direction=direction).json) == []


def test_ids_that_the_checks_rely_on_are_there() -> None:
    ids = {o["id"] for o in drawing().json["objects"] if "id" in o}
    folds = ("linQ", "linK", "linV", "scores", "mask", "softmax", "dropout", "av", "concat", "linO")
    assert {f"node-{key}" for key in folds} <= ids
    assert {"node-X", "node-M", "node-Y", "node-W_Q+b_Q", "node-W_O+b_O", "cluster_attention"} <= ids


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda g, n: n["linQ"].update(pos=n["linK"]["pos"]), "overlaps"),
        (lambda g, n: n["linQ"].update(pos="900,"+ n["linQ"]["pos"].split(",")[1]), "reading order"),
        (lambda g, n: n["softmax"].update(pos="90," + n["softmax"]["pos"].split(",")[1]), "bends"),
        (lambda g, n: n["softmax"].update(id="node-mask"), "occurs 2 times"),
        (lambda g, n: n["softmax"].update(tooltip=""), "no tooltip"),
        (lambda g, n: n["softmax"].update(label="other"), "shows"),
        (lambda g, n: n["scores"].update(pos=n["scores"]["pos"].split(",")[0] + ",1"), "against"),
        (lambda g, n: n["av"].update(pos="9000,9000"), "sticks out"),
    ],
)  # fmt: skip
def test_the_checks_catch_a_fault(fault: Any, said: str) -> None:
    graph = copy.deepcopy(drawing().json)
    fault(graph, {o["name"]: o for o in graph["objects"]})
    assert any(said in problem for problem in problems(graph))
