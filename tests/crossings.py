"""Where arrows and their labels meet what they should keep clear of, told from Graphviz's JSON layout.

Stricter than `check_layout`, and so held by some levels only: a frame that arrows must cross is none of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from check_layout import Rect, texts

T = np.linspace(0, 1, 40)[:, None]
SUPER, SUB = 8, 16  # of Graphviz's fontchar
LONGEST = 14.0  # points that an arrow may run along a border which it crosses


def on_frames(graph: Any) -> list[str]:
    """Labels across the border of a frame; arrows along it, out of it and back, through its corner."""
    return [fault for edge in _arrows(graph) for frame in _frames(graph) for fault in _meets(edge, frame)]


def at_corners(graph: Any) -> list[str]:
    """Arrows that touch the corner of a frame: where one passes it, it has been bent around it."""
    found = []
    for edge, frame in itertools.product(_arrows(graph), _frames(graph)):
        left, bottom, right, top = map(float, frame["bb"].split(","))
        corners = itertools.product((left, right), (bottom, top))
        if min(float(np.hypot(*(_points(edge) - corner).T).min()) for corner in corners) < 3.0:
            found.append(f"{edge['id']} touches a corner of {frame['name']}")
    return found


def struck_labels(graph: Any, inside: float = 1.0) -> list[str]:
    """Labels of arrows that another arrow runs through: so far inside them, or with −2 beside them."""
    labels = [(e, rect) for e in _arrows(graph) for text, rect in texts(e) if text.strip()]
    return [
        f"{edge['id']} strikes the label of {other['id']}"
        for edge in _arrows(graph)
        for other, rect in labels
        if edge is not other and any(rect.holds(x, y, inside) for x, y in _points(edge))
    ]


def through_own_tail(graph: Any) -> list[str]:
    """Arrows that have left the box in which they begin, and run through it again."""
    found = []
    for edge in _arrows(graph):
        x, y, wide, high = box_of(graph["objects"][edge["tail"]])
        inside = (np.abs(_points(edge) - (x, y)) < (wide + 0.5, high + 0.5)).all(1)
        inside = inside[:: 1 if inside[0] or not inside[-1] else -1]
        if inside[np.argmin(inside) :].any():
            found.append(f"{edge['id']} runs back through its tail")
    return found


def together(graph: Any) -> list[tuple[Any, Any]]:
    """Pairs of arrows that run along each other, so that nobody can tell one from the other."""
    return [
        (edge, other)
        for edge, other in itertools.combinations(_arrows(graph), 2)
        if _along(_points(edge), _points(other)) > LONGEST
    ]


def starts(graph: Any, tail: str) -> list[tuple[float, ...]]:
    """Where the arrows of a box begin, in the order of their places from left to right."""
    return sorted(
        tuple(_points(edge)[0]) for edge in _arrows(graph) if graph["objects"][edge["tail"]]["id"] == tail
    )


def ends(graph: Any, head: str) -> list[tuple[float, ...]]:
    """Where the tips of what a box is computed from end."""
    into = (e for e in _arrows(graph) if "fwd" in e["class"] and graph["objects"][e["head"]]["id"] == head)
    return [tuple(_tip(edge)[1]) for edge in into]


def _along(points: Any, others: Any) -> float:
    """How far the points run beside the others, whose strokes would touch them."""
    beside = np.hypot(*(points[1:, None] - others).T).min(0) < 2.0
    return float(np.hypot(*np.diff(points, axis=0).T)[beside].sum())


def shafts(graph: Any) -> list[float]:
    """How long each arrow is without its heads."""
    return [float(np.hypot(*np.diff(_points(edge), axis=0).T).sum()) for edge in _arrows(graph)]


def touching_scripts(graph: Any) -> list[str]:
    """Superscripts in the legend that reach into a subscript of the line above them."""
    found, size, char, scripts = [], 0.0, 0, []
    for step in graph["_ldraw_"]:
        size, char = step.get("size", size), step.get("fontchar", char)
        if step["op"] == "T" and char & (SUPER | SUB):
            (x, y), wide = step["pt"], step["width"]
            low, high = (0.4, 1.0) if char & SUPER else (-0.5, 0.3)  # in the line's own size
            scripts.append((char & SUPER, step["text"], Rect(x, y + low * size, x + wide, y + high * size)))
    for (above, text, a), (below, other, b) in itertools.product(scripts, repeat=2):
        found += [f"{other} touches {text}"] * (not above and below > 0 and a.overlaps(b, 0.0))
    return found


def in_corners(graph: Any) -> list[str]:
    """Texts that touch the rounded corner of their box: of 12 points in Graphviz, or a third of a side."""
    found = []
    for node in (o for o in graph["objects"] if "pos" in o and "rounded" in o.get("style", "")):
        x, y, wide, high = box_of(node)
        radius = min(12.0, 2 * min(wide, high) / 3)
        for text, rect in texts(node):
            sides = max(x - rect.left, rect.right - x), max(y - rect.bottom, rect.top - y)
            beyond = np.maximum(np.subtract(sides, (wide - radius, high - radius)), 0)
            if np.hypot(*beyond) > radius - float(node.get("penwidth", 1)):
                found.append(f"{node['name']}: {text}")
    return found


def tips_at_corners(graph: Any, lane: str) -> list[str]:
    """Arrows out of boxes of that class whose tips end at a rounded corner of another box."""
    found = []
    for edge in _arrows(graph):
        tail, head = (graph["objects"][edge[end]] for end in ("tail", "head"))
        (x, y), (middle_x, middle_y, wide, high) = _points(edge)[-1], box_of(head)
        radius = min(12.0, 2 * min(wide, high) / 3)
        if (
            lane in tail["class"].split()
            and abs(x - middle_x) > wide - radius
            and abs(y - middle_y) > high - radius
        ):
            found.append(f"{edge['id']} ends at a corner of {head['name']}")
    return found


def hanging(graph: Any, most: float = 1.5) -> list[str]:
    """Arrows whose tips end further than so many points from the border of a box, which may be rounded."""
    found = []
    for edge in _arrows(graph):
        for end, place in re.findall(r"([se]),([-+.\de]+,[-+.\de]+)", edge["pos"]):
            node = graph["objects"][edge["head" if end == "e" else "tail"]]
            x, y, wide, high = box_of(node)
            radius = min(12.0, 2 * min(wide, high) / 3) if "rounded" in node.get("style", "") else 0.0
            beyond = np.abs(np.array(place.split(","), float) - (x, y)) - (wide - radius, high - radius)
            gap = float(np.hypot(*np.maximum(beyond, 0))) - radius
            if gap > most:
                found.append(f"{edge['id']} ends {gap:.1f} points off {node['name']}")
    return found


def through_tips(graph: Any, clear: float = 4.0) -> list[str]:
    """Arrows that run through the tip of another one, or pass it by less than so many points."""
    return [
        f"{edge['id']} runs through the tip of {other['id']}"
        for edge, other in itertools.permutations(_arrows(graph), 2)
        if (tip := _tip(other)) is not None and _gap(_points(edge), *tip) < clear
    ]


def _tip(edge: Any) -> Any:
    """Where the tip of an arrow begins and ends; None where it has none."""
    end = re.search(r"e,(\S+)", edge["pos"])
    return end and (_points(edge)[-1], np.array(end[1].split(","), float))


def _gap(points: Any, start: Any, end: Any) -> float:
    """How close points come to a straight line."""
    share = np.clip((points - start) @ (end - start) / np.sum((end - start) ** 2), 0, 1)[:, None]
    return float(np.hypot(*(points - start - share * (end - start)).T).min())


def _arrows(graph: Any) -> Iterator[Any]:
    return (edge for edge in graph["edges"] if edge.get("style") != "invis")


def _frames(graph: Any) -> Iterator[Any]:
    return (o for o in graph["objects"] if o["name"].startswith("cluster_"))


def box_of(node: Any) -> tuple[float, ...]:
    """Its middle, and half its sides."""
    return *map(float, node["pos"].split(",")), 36 * float(node["width"]), 36 * float(node["height"])


def _points(edge: Any) -> Any:
    """Points along an arrow's Bézier curves."""
    found = []
    for part in edge["pos"].split(";"):
        control = np.array([p.split(",") for p in part.split() if p[0] not in "es"], float)
        for a, b, c, d in (control[i : i + 4] for i in range(0, len(control) - 3, 3)):
            found.append((1 - T) ** 3 * a + 3 * (1 - T) ** 2 * T * b + 3 * (1 - T) * T**2 * c + T**3 * d)
    return np.concatenate(found)


def _meets(edge: Any, frame: Any) -> Iterator[str]:
    rect = Rect(*map(float, frame["bb"].split(",")))
    name, inside = (
        f"{edge['id']} and {frame['name']}",
        [edge[end] in frame["nodes"] for end in ("tail", "head")],
    )
    for _, label in texts(edge):
        if label.overlaps(rect, 0.0) and not label.inside(rect):
            yield f"{name}: label on the border"
    x, y = _points(edge).T
    outside = np.max([rect.left - x, x - rect.right, rect.bottom - y, y - rect.top], 0)
    if all(inside) and outside.max() > 0.6:
        yield f"{name}: out and back"
    if not any(inside) and outside.min() < -0.6:
        yield f"{name}: through"
    along = np.hypot(np.diff(x), np.diff(y))[np.abs(outside[1:]) < 1.5].sum()
    if along > LONGEST:
        yield f"{name}: {along:.0f} points along the border"


def beside_labels(graph: Any) -> dict[str, float]:
    """How far from the label of each arrow the next box stands to its left or right, in points."""
    found: dict[str, float] = {}
    boxes = [box_of(node) for node in graph["objects"] if "pos" in node]
    for edge in _arrows(graph):
        # what stands behind a text to keep it off is none of it: a space is about 3 points wide
        said = ((text, rect) for text, rect in texts(edge) if text.strip())
        rects = [rect._replace(right=rect.right - 3 * text.count(" ", 1)) for text, rect in said]
        for (x, y, wide, high), rect in itertools.product(boxes, rects):
            if min(rect.top, y + high) > max(rect.bottom, y - high):
                gap = max(x - wide - rect.right, rect.left - x - wide)
                found[edge["id"]] = min(gap, found.get(edge["id"], gap))
    return found
