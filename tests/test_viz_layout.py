"""Every drawing of an attention layer passes the layout checks, whatever the options."""

from __future__ import annotations

import copy
import itertools
import re
from typing import Any

import pytest
from check_layout import problems
from crossings import on_frames, struck_labels, through_own_tail
from drawings import VIEWS, cases, drawing, faults


@pytest.mark.parametrize(("level", "direction"), VIEWS)
def test_layout_holds_and_is_read_on_its_page(level: str, direction: str) -> None:
    """A seventeenth of all drawings; `python tests/drawings.py` makes the others, too."""
    for case in cases(level, direction, step=17):
        assert faults(case) == [], case


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
def test_layout_holds_for_every_head_of_cross_attention(direction: str, heads: int) -> None:
    drawn = drawing(
        mask=False, dropout=0.0, bias=False, cross=True, heads=heads, level="heads", direction=direction
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
        ("tape", "LR"),
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
            grads=True,
            values=True,
            cost=True,
        )
        assert problems(drawn.json) == []


def test_layout_holds_for_lines_that_are_kept_alive_one_by_one() -> None:
    for direction in ("TB", "BT", "LR"):
        assert problems(drawing(level="tape", need_weights=True, direction=direction).json) == []


def test_tape_in_rows_has_the_forward_above_and_the_backward_below() -> None:
    objects = drawing(level="tape", direction="LR").json["objects"]
    high = {o["name"]: float(o["pos"].split(",")[1]) for o in objects if "pos" in o}
    assert high["linQ"] > high["linK"] > high["linV"] > high["g_linQ"] > high["g_linK"] > high["g_linV"]


def test_arrows_of_cells_below_each_other_leave_from_their_box() -> None:
    """From a cell above another one an arrow would run back across the border of its own box."""
    drawn = drawing(names="code", grads=True)
    assert re.findall(r"  (p_\w+(?::\w+)*) -> linQ", drawn.dot) == ["p_linQ", "p_linQ"]
    assert through_own_tail(drawn.json) == []
    alone = drawing(names="code", grads=True, bias=False).dot
    assert re.findall(r"  (p_\w+:p\d:\w) -> linQ", alone) == ["p_linQ:p0:s"]


@pytest.mark.parametrize("direction", ["TB", "BT", "LR"])
def test_no_arrow_and_no_label_lies_on_a_frame_at_level_ops(direction: str) -> None:
    for names, grads, dropout in itertools.product(("math", "code"), (False, True), (0.0, 0.1)):
        drawn = drawing(
            level="ops", direction=direction, names=names, grads=grads, dropout=dropout, shapes="both"
        )
        assert on_frames(drawn.json) == []
        assert struck_labels(drawn.json) == []


def test_of_two_heads_no_arrow_leaves_its_frame_to_come_back() -> None:
    for names, grads, dropout in itertools.product(("math", "code"), (False, True), (0.0, 0.1)):
        drawn = drawing(level="heads", names=names, grads=grads, dropout=dropout)
        assert on_frames(drawn.json) == []


def test_the_legend_shows_a_constant_with_the_border_that_it_has() -> None:
    """Three cells with gaps: Graphviz 14.1 crashes when it writes the JSON of a cell with STYLE="DASHED"."""
    legend = next(line for line in drawing().dot.split("\n") if "graph [" in line)
    assert legend.count('SIDES="TB"') == 1
    assert "STYLE=" not in legend


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
