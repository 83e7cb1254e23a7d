"""Every drawing of an attention layer passes the layout checks, whatever the options."""

from __future__ import annotations

import copy
import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from check_layout import problems
from crossings import (
    beside_labels,
    box_of,
    ends,
    hanging,
    on_frames,
    shafts,
    starts,
    struck_labels,
    through_own_tail,
    through_tips,
    tips_at_corners,
    together,
    touching_scripts,
)
from drawings import VIEWS, cases, drawing, faults, rare

import microtensor as mt
from microtensor import viz
from models import GPT, GPTConfig, MultiHeadAttention


@pytest.mark.parametrize("direction", ["TB", "BT", "LR"])
def test_on_a_tape_without_lanes_lines_to_what_is_kept_are_straight(direction: str) -> None:
    """Else they would run behind what is computed beside it."""
    x, mean, width = (mt.tensor(value, requires_grad=True) for value in (0.5, 0.0, 2.0))
    y = (-((x - mean) ** 2) / (2 * width**2)).exp() / width
    layout, across = viz.draw(y, level="tape", direction=direction).json, int(direction != "LR")
    for edge in layout["edges"]:
        if edge.get("class") == "saved":
            points = [part.rsplit(",", 2)[-2:] for part in edge["pos"].split()]
            places = [float(point[across]) for point in points]
            assert max(places) - min(places) < 2.0, edge["id"]


@pytest.mark.parametrize(("level", "direction"), VIEWS)
def test_layout_holds_and_is_read_on_its_page(level: str, direction: str) -> None:
    """A seventeenth of all drawings; `python tests/drawings.py` makes the others, too."""
    for case in (*cases(level, direction, step=17), *rare(level, direction, step=301)):
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


@pytest.mark.parametrize(("level", "direction"), [v for v in VIEWS if v[1] != "LR" and v[0] != "ops"])
def test_the_last_lines_parameters_end_at_no_corner_and_apart(level: str, direction: str) -> None:
    for case in cases(level, direction, step=29):
        layout = drawing(**case).json
        assert [found for found in tips_at_corners(layout, "param") if "linO" in found] == [], case
        places = ends(layout, "node-linO")
        assert min(itertools.starmap(math.dist, itertools.combinations(places, 2))) > 9, case


@pytest.mark.parametrize("direction", ["TB", "BT"])
def test_of_ops_what_meets_parameters_ends_at_the_border_and_apart(direction: str) -> None:
    """A box's corners are round: beside one a tip ended in the air, 5.7 points off."""
    for case in cases("ops", direction, step=29):
        layout = drawing(**case).json
        linear = {o["name"]: o["id"] for o in layout["objects"] if "linear" in o.get("class", "").split()}
        assert len(linear) == 4
        assert [tip for tip in hanging(layout) if tip.split()[-1] in linear] == [], case
        for box in linear.values():
            assert min(itertools.starmap(math.dist, itertools.combinations(ends(layout, box), 2))) > 9, case


@pytest.mark.parametrize("level", ["equations", "heads", "tape"])
def test_boxes_with_ports_are_as_high_as_others(level: str) -> None:
    for shapes, bias in itertools.product(("symbolic", None), (False, True)):
        layout = drawing(level=level, shapes=shapes, bias=bias).json
        heights = [72 * float(o["height"]) for o in layout["objects"] if re.match("softmax|linO", o["name"])]
        assert np.ptp(heights) < 1, (shapes, bias)


@pytest.mark.parametrize("size", [6.4, 6.46, 6.4996])
def test_a_text_that_is_too_small_is_told_by_a_number_that_is(size: float) -> None:
    """6.46 pt were called 6.5, which is what is asked for."""
    wide = 72 * 10.2 * 9 / size  # A4, turned: what fits the page shrinks 9 pt to that size
    drawn = [{"op": "F", "size": 9}, {"op": "T", "text": "x", "pt": [0, 0], "width": 5, "align": "l"}]
    (fault,) = problems({"bb": f"0,0,{wide},72", "objects": [], "_subgraph_cnt": 0, "_ldraw_": drawn}, "a4")
    told, least = (float(number) for number in re.findall(r"\d+\.\d+", fault))
    assert told < least
    assert size - 0.01 < told <= size


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_fullest_legend_leaves_heads_readable_on_their_page(heads: int) -> None:
    """Its lines are as long as the heads are wide: one line more made the page too high."""
    full = {"mask": True, "dropout": 0.1, "grads": True, "values": True, "cost": True, "names": "code"}
    for bias in (False, True):
        assert faults({**full, "level": "heads", "direction": "TB", "heads": heads, "bias": bias}) == []


@pytest.mark.parametrize("direction", ["TB", "BT"])
def test_the_parts_of_a_sum_arrive_side_by_side(direction: str) -> None:
    """The outer ones hung beside the round corners of dX."""
    for bias, grads, need_weights in itertools.product((False, True), repeat=3):
        case = {"bias": bias, "grads": grads, "need_weights": need_weights}
        layout = drawing(level="tape", direction=direction, **case).json
        (total,) = (o for o in layout["objects"] if o.get("id") == "grad-X")
        tips = [[float(x) for x in re.search(r"s,([\d.]+),([\d.]+)", e["pos"]).groups()]
                for e in layout["edges"] if layout["objects"][e["tail"]] is total]  # fmt: skip
        x, y, wide, high = box_of(total)
        assert len(tips) == 3
        assert max(abs(abs(tip[1] - y) - high) for tip in tips) < 2, case
        assert max(abs(tip[0] - x) for tip in tips) < wide - 12, case
        assert min(np.diff(sorted(tip[0] for tip in tips))) > 20, case


@pytest.mark.parametrize("heads", [1, 2])
def test_the_masks_arrows_end_at_no_corner_of_a_head(heads: int) -> None:
    for bias, grads, names in itertools.product((False, True), (False, True), ("math", "code")):
        looks = {"bias": bias, "grads": grads, "names": names, "mask": True}
        layout = drawing(level="heads", heads=heads, **looks).json
        assert tips_at_corners(layout, "const") == [], looks


@pytest.mark.parametrize("direction", ["TB", "BT"])
def test_the_three_frames_of_the_tape_begin_and_end_alike(direction: str) -> None:
    for case in (*cases("tape", direction, step=29), *rare("tape", direction, step=301)):
        found = [o["bb"] for o in drawing(**case).json["objects"] if o["name"].startswith("cluster_")]
        frames = np.array([frame.split(",") for frame in found], float)
        assert len(frames) == 3
        assert np.ptp(frames[:, [1, 3]], axis=0).max() < 2.0, case  # in points: their lower and upper sides


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


@pytest.mark.parametrize("direction", ["TB", "LR"])
def test_of_four_heads_no_arrow_runs_along_a_frame(direction: str) -> None:
    """But where one of a parameter crosses its border at a slant."""
    for names, grads in itertools.product(("math", "code"), (False, True)):
        drawn = drawing(level="heads", heads=4, names=names, grads=grads, direction=direction)
        along = [fault for fault in on_frames(drawn.json) if "along" in fault]
        assert [fault for fault in along if "-p_" not in fault or int(fault.split()[3]) > 24] == []


@pytest.mark.parametrize("direction", ["TB", "LR"])
def test_of_two_heads_no_arrows_of_parameters_run_along_each_other(direction: str) -> None:
    for names, grads in itertools.product(("math", "code"), (False, True)):
        pairs = together(drawing(level="heads", names=names, grads=grads, direction=direction).json)
        assert [(a["id"], b["id"]) for a, b in pairs if "-p_" in a["id"] and "-p_" in b["id"]] == []


@pytest.mark.parametrize("heads", [2, 4])
def test_the_arrows_of_an_input_to_all_heads_leave_side_by_side(heads: int) -> None:
    """They left as one line, or crossed: up to 24 pairs of arrows ran along each other."""
    for names, grads, bias, cross in itertools.product(("math", "code"), *[(False, True)] * 3):
        looks = {"names": names, "grads": grads, "bias": bias}
        layout = drawing(level="heads", heads=heads, mask=not cross, cross=cross, **looks).json
        for box, lanes in (("node-X", 1 if cross else 3), *[("node-Z", 2)] * cross):
            places = [x for x, _ in starts(layout, box)]
            assert len(places) == lanes * heads
            assert min(b - a for a, b in itertools.pairwise(places)) > 25
        assert len(together(layout)) <= heads
    assert together(drawing(level="heads", dropout=0.0, bias=False).json) == []


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_of_heads_no_arrow_runs_through_the_tip_of_another(heads: int) -> None:
    """Right of the middle those of parameters crossed those of X at the tips; of a mask those of scores."""
    for mask, cross in ((True, False), (False, False), (False, True)):
        for names, grads, bias in itertools.product(("math", "code"), *[(False, True)] * 2):
            looks = {"names": names, "grads": grads, "bias": bias, "mask": mask, "cross": cross}
            clear = 7.0 if heads == 1 else 4.0  # several share the room
            assert through_tips(drawing(level="heads", heads=heads, **looks).json, clear) == [], looks


@pytest.mark.parametrize("direction", ["TB", "BT"])
def test_at_level_equations_no_parameter_s_arrow_begins_at_a_corner(direction: str) -> None:
    """Those of W^O did: of two parameters side by side each arrow leaves below its own."""
    for grads, mask in itertools.product((False, True), repeat=2):
        layout = drawing(grads=grads, mask=mask, direction=direction).json
        for box in [o for o in layout["objects"] if "param" in o.get("class", "")]:
            x, _, wide, _ = box_of(box)
            assert all(abs(begin - x) < wide - 6 for begin, _ in starts(layout, box["id"])), box["id"]


@pytest.mark.parametrize("direction", ["TB", "BT", "LR"])
def test_the_arrows_of_a_weight_that_is_used_twice_leave_apart(direction: str) -> None:
    """Tied embeddings: both began at the middle of their box."""
    gpt = GPT(GPTConfig(block_size=8, vocab_size=20, n_layer=2, n_head=2, n_embd=16))
    for grads in (False, "random"):
        layout = viz.draw(gpt, mt.randint(0, 20, (2, 8)), depth=2, grads=grads, direction=direction).json
        first, second = starts(
            layout, next(o["id"] for o in layout["objects"] if "param" in o.get("class", ""))
        )
        assert math.dist(first, second) > 8


@pytest.mark.parametrize("direction", ["TB", "LR"])
def test_the_arrow_of_the_values_goes_straight_through_the_frame(direction: str) -> None:
    for mask, dropout, grads, values in itertools.product((False, True), (0.0, 0.1), *[(False, True)] * 2):
        drawn = drawing(direction=direction, mask=mask, dropout=dropout, grads=grads, values=values)
        assert [fault for fault in on_frames(drawn.json) if "linV-av" in fault and "along" in fault] == []


@pytest.mark.parametrize("direction", ["TB", "BT"])
@pytest.mark.parametrize("level", ["equations", "tape"])
def test_arrows_of_an_input_begin_in_the_middle_of_its_sides(level: str, direction: str) -> None:
    """Each lane's at another one: its corners are round, and two arrows at one of them look like one."""
    for bias, grads in itertools.product((False, True), repeat=2):
        layout = drawing(level=level, direction=direction, bias=bias, grads=grads, mask=False).json
        x, y, wide, high = box_of(next(o for o in layout["objects"] if o.get("id") == "node-X"))
        below = (x, y - high if direction == "TB" else y + high)
        for lane, middle in {"Q": (x - wide, y), "K": below, "V": (x + wide, y)}.items():
            (edge,) = (e for e in layout["edges"] if e.get("id") == f"fwd-t0-lin{lane}")
            places = [part.rsplit(",", 2) for part in edge["pos"].split() if part[0] != "e"]
            assert math.dist(middle, [float(place) for place in places[0][-2:]]) < 2, (
                edge["id"],
                bias,
                grads,
            )
        assert together(layout) == []


def test_an_arrow_with_two_heads_has_a_shaft_between_them() -> None:
    for level, direction in VIEWS:
        assert min(shafts(drawing(level=level, direction=direction, grads=True).json)) > 2.0, (
            level,
            direction,
        )
    assert min(shafts(drawing(level="ops", direction="LR").json)) > 2.0


def test_no_number_between_two_arrows_is_struck_by_the_second() -> None:
    """A double line is wide: it strikes what stands less than two points beside its middle."""
    out = mt.tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True) * 1.5
    assert struck_labels(viz.draw((out * out).sum(), grads=True).json, inside=-2.0) == []


@pytest.mark.parametrize("direction", ["TB", "BT"])
def test_where_scores_are_tall_or_small_the_arrow_of_the_queries_ends_at_no_corner(direction: str) -> None:
    for mask, grads, values, dropout in itertools.product(*[(False, True)] * 3, (0.0, 0.1)):
        looks = {"mask": mask, "grads": grads, "dropout": dropout, "direction": direction}
        assert tips_at_corners(drawing(level="ops", values=values, **looks).json, "permute") == []
        assert tips_at_corners(drawing(values=True, **looks).json, "linQ") == []


@pytest.mark.parametrize("options", [{}, {"names": "code"}, {"direction": "BT"}, {"grads": True}])
def test_a_shape_beside_an_arrow_keeps_off_the_box_that_the_arrow_passes(options: dict[str, Any]) -> None:
    """That of Q stood close beside the box of Kᵀ."""
    gaps = beside_labels(drawing(level="ops", **options).json)
    assert gaps["fwd-t5-t17"] > 12


def test_no_script_of_a_legend_touches_one_in_the_line_above() -> None:
    assert touching_scripts(drawing(level="heads", dropout=0.0, bias=False).json) == []
    of_one = viz.draw(
        MultiHeadAttention(16, 2), mt.randn(2, 5, 16), mt.randn(2, 1, 16), grads=mt.ones(2, 5, 16)
    )
    assert sum("softmax of one number" in said for said in of_one.findings) == 4
    assert touching_scripts(of_one.json) == []


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
        (lambda g, n: n["softmax"].update(height="2"), "pierces the border"),
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
