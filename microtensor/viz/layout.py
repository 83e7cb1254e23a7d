"""Where things stand: ranks and columns that make dot draw lanes Q | K | V and below them a straight spine.

It works on lanes, not on attention: any layer whose folds name lanes is laid out so; what has none, dot
places. Clusters around the lanes would break their order, and flat invisible edges hold only outside sibling
clusters.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from microtensor.viz.picture import Arrow, Box, Picture
from microtensor.viz.trace import grouped

__all__ = ["Layout", "Variant", "in_order", "plan", "struck", "turned", "variants"]

CORNERS = {"tr": "tl", "tl": "bl", "bl": "br", "br": "tr"}  # of a title, and the next to be tried
T = np.linspace(0, 1, 13)[:, None]  # how far along a curve it is looked at


@dataclass
class Layout:
    """DOT statements for the ranks, columns (`group`) of boxes, weights of arrows."""

    statements: list[str] = field(default_factory=list)
    inside: dict[Box, list[str]] = field(default_factory=dict)  # statements beside a box, in its cluster
    columns: dict[Box, str] = field(default_factory=dict)
    heavy: set[Arrow] = field(default_factory=set)
    extra: dict[Arrow, list[str]] = field(default_factory=dict)  # other attributes of arrows
    # arrows that leave or enter a box by a port each; where None stands, none does
    fans: dict[Box, list[Arrow | None]] = field(default_factory=dict)
    beside: set[Arrow] = field(default_factory=set)  # arrows that enter a box in the middle of its right side

    def row(self, names: list[str], beside: Box | None = None) -> None:
        """Boxes side by side in that order, said in the cluster of the box that they stand beside."""
        where = self.statements if beside is None else self.inside.setdefault(beside, [])
        if len(names) > 1:
            where.append(f"{{rank=same; {' -> '.join(names)} [style=invis];}}")


class Variant(NamedTuple):
    """A way to write level heads: dot takes flat edges between clusters for advice, and may mirror heads."""

    far: bool = False  # parameters two ranks above the lanes
    reverse: bool = False  # heads in reverse
    sideways: bool = False  # in rows above each other, which dot turns upside down inside a cluster


def variants(level: str, direction: str) -> list[Variant]:
    """The prettiest first; `in_order` tells whether one came out as it was meant."""
    if level != "heads":
        return [Variant(reverse=level == "tape" and direction == "LR", sideways=direction == "LR")]
    return [Variant(far, back, direction == "LR") for back in (False, True) for far in (True, False)]


def in_order(layout: dict[str, Any]) -> bool:
    """Do heads, and in each of them the lanes Q, K, V, follow each other in reading order in dot's JSON?"""
    placed = {o["name"]: map(float, o["pos"].split(",")) for o in layout.get("objects", []) if "pos" in o}
    places = {name: -y if layout.get("rankdir") == "LR" else x for name, (x, y) in placed.items()}
    heads = itertools.takewhile(lambda i: {f"head{i}", f"scores{i}"} & places.keys(), itertools.count(1))
    names = [[f"head{i}", *(f"lin{lane}{i}" for lane in "QKV")] for i in heads]  # a page folds heads
    row = [[places[name] for name in head if name in places] for head in names]
    return all(lanes == sorted(lanes) for lanes in row) and row == sorted(row)


def struck(layout: dict[str, Any]) -> list[str]:
    """The clusters whose titles arrows run through in dot's JSON."""
    edges = (edge["pos"] for edge in layout.get("edges", []) if edge.get("style") != "invis")
    points = np.array([*itertools.chain.from_iterable(map(_curve, edges))])
    return [c["name"] for c in layout.get("objects", []) if "lp" in c and _runs_through_title(points, c)]


def _runs_through_title(points: Any, cluster: dict[str, Any]) -> bool:
    middle = np.array(cluster["lp"].split(","), float)
    half = 36 * np.array([cluster["lwidth"], cluster["lheight"]], float)  # 72 points are an inch
    return bool((np.abs(points - middle) < half).all(1).any())


def _curve(pos: str) -> Iterator[Any]:
    """Points along an edge, which is drawn as one or several Bézier curves."""
    for part in pos.split(";"):
        control = np.array([p.split(",") for p in part.split() if p[0] not in "es"], float)
        for i in range(0, len(control) - 3, 3):
            a, b, c, d = control[i : i + 4]
            yield from (1 - T) ** 3 * a + 3 * (1 - T) ** 2 * T * b + 3 * (1 - T) * T**2 * c + T**3 * d


def turned(text: str, clusters: list[str], *, in_two: bool) -> str:
    """The DOT text with the titles of these clusters in the next corner, and there in two lines."""
    for name in clusters:
        place = re.compile(rf'(graph \[id="{name}".*?label=<)([^<>]*)(.*?>, labelloc=)(\w), labeljust=(\w)')
        before, title, between, *corner = place.search(text).groups()  # type: ignore[union-attr]
        if in_two and between.startswith(">"):
            title = '<BR ALIGN="LEFT"/>'.join([*title.split(" ", 1), ""])
        corner = CORNERS["".join(corner)]
        text = place.sub(f"{before}{title}{between}{corner[0]}, labeljust={corner[1]}", text)
    return text


def plan(picture: Picture, variant: Variant) -> Layout:
    """Lay out each block (the boxes of one module that have lanes)."""
    layout, sources = Layout(), grouped((arrow.head, arrow) for arrow in picture.arrows)
    blocks = grouped((box.block, box) for box in picture.order if box.lane is not None)
    for number, block in enumerate(blocks.values()):
        suffix = str(number + 1) if number else ""
        if picture.level != "ops":
            _lines(layout, block, sources, suffix, sideways=variant.sideways)
        else:
            _columns(layout, block, sources, suffix)
    if picture.level == "heads":
        _vary(layout, picture, variant)
    if picture.level != "ops" and not variant.sideways:
        # at the border itself they would end at a round corner, or one on the other
        sums = grouped((a.tail, a) for a in picture.arrows if a.kind == "bwd" and a.head.lane in [*"QKV"])
        layout.fans |= {box: [*parts] for box, parts in sums.items() if len(parts) > 1}
        ends = grouped((a.head, a) for a in picture.arrows if a.tail.kind == "param" and a.head.lane == "O")
        # the last one enters from the side, where that of a tape has its line to what it keeps
        layout.beside = {parts.pop() for parts in ends.values() if picture.level != "tape"}
        layout.fans |= {box: [*[None] * 7, *parts, *[None] * 4][:11] for box, parts in ends.items() if parts}
    # level ops: what meets parameters enters side by side, the input from where it stands among the lanes
    for box in picture.order if picture.level == "ops" and not variant.sideways else ():
        into, at = sources.get(box, []), {"Q": 2, "K": 1, "V": 0, "O": 1}.get(str(box.lane))
        if at is not None and (params := [arrow for arrow in into if arrow.tail.kind == "param"]):
            layout.fans[box] = [None, *params[:at], *(a for a in into if a not in params), *params[at:], None]
    _side_by_side(layout, picture, variant.sideways)
    _enter_above(layout, sources)
    layout.statements = list(dict.fromkeys(layout.statements))
    return layout


def _side_by_side(layout: Layout, picture: Picture, sideways: bool) -> None:
    """Heads that a page has folded. Level tape: rows of three, and a column for what is kept."""
    layout.row([box.name for box in picture.order if box.classes == "op head"])
    layout.statements += [f"{{rank=same; {'; '.join(box.name for box in row)};}}" for row in picture.rows]
    # without lanes an op has its row for itself, or the line to what it keeps would run behind another one
    ops = [row[0].name for row in picture.rows if row[0].lane is None and row[0].classes.startswith("op ")]
    kept = [box for row in picture.rows for box in row if box.kind == "saved"]
    layout.columns |= dict.fromkeys(kept, "kept")
    # the three frames begin and end alike
    ends = [row for row in picture.rows if row[0].kind in ("input", "output")]
    height = f"height={0.7 if any(box.gradient for row in ends for box in row) else 0.5}"
    for box in () if sideways else itertools.chain(*ends[:1], *ends[-1:]):
        layout.inside.setdefault(box, []).append(f"{box.name} [{height}];")
    for chain, n in ((ops, 0), ([box.name for box in kept], 20)):
        layout.statements += [f"{a} -> {b} [style=invis, weight={n}];" for a, b in itertools.pairwise(chain)]


def _enter_above(layout: Layout, sources: dict[Box, list[Arrow]]) -> None:
    """What alone enters a module's frame around one node and its constant stands above both: beside the
    constant, its arrow would bend around the frame.
    """
    for box, arrows in sources.items():
        first, *_, last = sorted((a.tail for a in arrows), key=lambda tail: tail.kind == "const") * 2
        frame = last.cluster if last.kind == "const" and len(arrows) == 2 else None
        if frame is not None and frame.outer and {*frame.boxes} == {box, last}:
            layout.statements.append(f"{first.name} -> {last.name} [style=invis, weight=0];")


def _vary(layout: Layout, picture: Picture, variant: Variant) -> None:
    """What a variant says of arrows. Inputs stand above all parameters: their arrows have room to part."""
    down = not variant.sideways
    feeds = [a for a in picture.arrows if a.tail.kind in ("param", "input") and a.head.lane in [*"QKV"]]
    above = {a.tail: down and a.tail.kind == "input" for a in feeds}
    layout.fans = grouped((a.tail, a) for a in feeds if above[a.tail])
    layout.extra = {a: [f"minlen={1 + variant.far + 2 * above[a.tail]}"] for a in feeds}
    pairs = [(a.name, b.name) for a, b in itertools.permutations(above, 2) if above[a] > above[b]]
    layout.statements += [f"{first} -> {second} [style=invis, minlen=2];" for first, second in pairs]
    # or it runs along the lower borders of the frames between
    layout.extra |= {a: ["minlen=2"] for a in picture.arrows if down and a.head_port and a.tail.lane == "O"}


def _lines(
    layout: Layout, block: list[Box], sources: dict[Box, list[Arrow]], suffix: str, *, sideways: bool
) -> None:
    """Level equations: one box per lane, then the spine."""
    ops = [b for b in block if b.lane in ("Q", "K", "V") and b.classes.split()[0] in ("op", "vjp")]
    around = ops[0].cluster if ops else None
    turn = -1 if sideways and around is not None else 1
    lanes = sorted(ops, key=lambda b: "QKV".find(str(b.lane)))
    spine = [b for b in block if b.lane in ("S", "O", "out") and b.shape != "cells"]
    layout.columns |= dict.fromkeys(spine, f"spine{suffix}")
    layout.heavy |= {a for b in spine for a in sources.get(b, []) if a.tail in spine}
    boxes = [next((a.tail for a in sources.get(b, []) if a.tail.shape == "cells"), None) for b in lanes]
    # in reverse for dot, but of heads that stand below each other it may not be so
    if not (sideways and around is not None and around.index):
        layout.row([box.name for box in boxes if box is not None][::turn])
    layout.row([b.name for b in lanes][::turn], None if around is None or around.column else lanes[-1])
    labels = any(arrow.gradient for box in lanes for arrow in sources.get(box, []))
    # inputs stand above the parameters of the lane in the middle of those that they feed; but an edge there
    # would pull at the order of heads, and in a module's frame labels need the room
    if around is None or around.column or not (around.index or labels or sideways):
        for box, i in (fed := _fed(lanes, sources)).items():
            layout.statements.append(f"{box.name} -> {(boxes[i] or lanes[i]).name} [style=invis, weight=4];")
        layout.row([box.name for box in fed])
    for before, box in itertools.pairwise(spine):
        for leaf in (arrow.tail for arrow in sources.get(box, [])):
            if leaf.kind == "param":
                layout.statements.append(f"{{rank=same; {leaf.name}; {before.name};}}")
            elif leaf.kind == "const" and (leaf.cluster is not None or box.cluster is None):
                layout.row([leaf.name, before.name][::turn], leaf)


def _fed(lanes: list[Box], sources: dict[Box, list[Arrow]]) -> dict[Box, int]:
    """Each input → the number of the lane in the middle of those that it feeds."""
    fed = grouped((arrow.tail, i) for i, lane in enumerate(lanes) for arrow in sources.get(lane, []))
    return {box: places[len(places) // 2] for box, places in fed.items() if box.kind == "input"}


def _first_row(layout: Layout, block: list[Box], sources: dict[Box, list[Arrow]]) -> None:
    """Level ops: parameters in the order of their lanes, an input between those of the lane in its middle; or
    above them, where its arrows have labels, which those of parameters would strike.
    """
    fed_first = (next((b for b in block if b.lane == lane and sources.get(b)), None) for lane in "QKV")
    heads = [box for box in fed_first if box is not None]
    rows = [[arrow.tail.name for arrow in sources[box] if arrow.tail.kind == "param"] for box in heads]
    for box, i in _fed(heads, sources).items():
        if any(arrow.gradient for arrow in sources[heads[i]]):
            layout.statements.append(f"{box.name} -> {{{'; '.join(rows[i])}}} [style=invis];")
        else:
            rows[i].insert(1, box.name)
    layout.row(list(dict.fromkeys(name for names in rows for name in names)))


def _columns(layout: Layout, block: list[Box], sources: dict[Box, list[Arrow]], suffix: str) -> None:
    """Level ops: a column per lane; the spine is one column too, but for what only prepares an argument."""
    spine: dict[Box, None] = {}
    for box in block:
        if box.lane in ("Q", "K", "V"):
            layout.columns[box] = f"lane{box.lane}{suffix}"
        elif box.shape == "op" or box.lane == "out" or any(a.tail in spine for a in sources.get(box, [])):
            spine[box] = None
            layout.columns[box] = f"spine{suffix}"
    layout.heavy |= {a for b in spine for a in sources.get(b, []) if a.tail in spine}
    for before, box in itertools.pairwise(spine):
        leaves = [a.tail.name for a in sources.get(box, []) if a.tail.kind == "param"]
        # the first left of the spine, the others right of it, or they would push it aside
        layout.row([*leaves[:1], before.name, *leaves[1:]])
    _first_row(layout, block, sources)
    free = {lane: [b for b in block if b.lane == lane and b.cluster is None] for lane in "QKV"}
    layout.row([boxes[0].name for boxes in free.values() if boxes])  # the last is Kᵀ, one rank below Q and V
