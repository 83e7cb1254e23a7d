"""What a drawing must look like, told from Graphviz's JSON layout: geometry, hygiene, not the tape.

`problems(layout)` returns one line per fault. The conventions it relies on (ids, classes, cluster
names) are those of `microtensor/viz/paint.py`.
"""

from __future__ import annotations

import html
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

Item = dict[str, Any]
PAGES = {"a4": (7.5, 10.2), "a3": (10.9, 15.5), "a2": (15.7, 22.6), "slide": (7.5, 13.3)}  # inches in use
SMALLEST = 6.5  # points
SPINE = ("scores", "mask", "softmax", "dropout", "av", "concat", "linO", "Y")


class Rect(NamedTuple):
    """A box on the page, in points."""

    left: float
    bottom: float
    right: float
    top: float

    def overlaps(self, other: Rect, slack: float = 0.5) -> bool:
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.top, other.top) - max(self.bottom, other.bottom)
        return min(wide, high) > slack

    def inside(self, other: Rect) -> bool:
        return other.holds(self.left, self.bottom, -1.0) and other.holds(self.right, self.top, -1.0)

    def holds(self, x: float, y: float, margin: float) -> bool:
        return min(x - self.left, self.right - x, y - self.bottom, self.top - y) > margin


class Layout:
    """Nodes, edges and clusters of one laid-out graph, with their boxes."""

    def __init__(self, graph: Item) -> None:
        objects, first = graph["objects"], graph["_subgraph_cnt"]
        self.direction = graph.get("rankdir", "TB")
        self.nodes = {o["_gvid"]: o for o in objects[first:]}
        self.clusters = [o for o in objects[:first] if o["name"].startswith("cluster_")]
        self.edges = [e for e in graph.get("edges", []) if e.get("style") != "invis"]
        self.ids = {node["id"]: number for number, node in self.nodes.items()}
        self.rects = {number: _rect(node) for number, node in self.nodes.items()}

    def at(self, number: int) -> tuple[float, float]:
        """(across the flow, along it) of a node's centre."""
        x, y = _numbers(self.nodes[number]["pos"])[:2]
        return {"TB": (x, -y), "BT": (x, y), "LR": (-y, x)}[self.direction]

    def name(self, edge: Item) -> str:
        return f"{self.nodes[edge['tail']]['name']} -> {self.nodes[edge['head']]['name']}"


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _rect(node: Item) -> Rect:
    (x, y), w, h = _numbers(node["pos"])[:2], float(node["width"]) * 36, float(node["height"]) * 36
    return Rect(x - w, y - h, x + w, y + h)


def _runs(item: Item) -> Iterator[tuple[str, Rect, float, bool]]:
    """Each run of text that is drawn, with its box and size, and whether it is a sub- or superscript."""
    size, script = 14.0, False
    for step in item.get("_ldraw_", []):
        if step["op"] == "F":
            size, script = step["size"], False
        elif step["op"] == "t":
            script = bool(step["fontchar"] & 24)
        elif step["op"] == "T":
            (x, y), width = step["pt"], step["width"]
            left = x - {"l": 0.0, "c": 0.5, "r": 1.0}[step["align"]] * width
            yield step["text"], Rect(left, y - 0.2 * size, left + width, y + 0.75 * size), size, script


def texts(item: Item) -> Iterator[tuple[str, Rect]]:
    """Each run of text that is drawn, with its box."""
    return ((text, rect) for text, rect, _, _ in _runs(item))


def _curve(edge: Item) -> list[tuple[float, float]]:
    """Points along an edge, without those that touch its own nodes."""
    points = []
    for part in edge["pos"].split(";"):  # an edge may be drawn as several curves
        control = [_numbers(p) for p in part.split() if p[0] not in "es"]
        for k, i in itertools.product(range(0, len(control) - 3, 3), range(13)):
            t = i / 12
            weights = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t * t, t**3)
            point = [sum(w * c[axis] for w, c in zip(weights, control[k:], strict=False)) for axis in (0, 1)]
            points.append((point[0], point[1]))
    return points[2:-2]


def problems(graph: Item, page: str = "") -> list[str]:
    """Everything that is wrong with a layout, and with its size on a page of PAGES."""
    layout = Layout(graph)
    checks = (_nodes, _clusters, _edges, _tips, _labels, _flow, _lanes, _spine, _hygiene, _drawn)
    found = [fault for check in checks for fault in check(layout)]
    if page and (size := smallest_text(graph, page)) < SMALLEST:
        found.append(f"text of {math.floor(100 * size) / 100:.2f} pt on {page}, below {SMALLEST}")
    return found


def smallest_text(graph: Item, page: str) -> float:
    """Its size in points, but for super- and subscripts, when the drawing is fitted to the page."""
    wide, high = (points / 72 for points in _numbers(graph["bb"])[2:])
    a, b = PAGES[page]
    scale = min(1.0, max(min(a / wide, b / high), min(b / wide, a / high)))
    items = [graph, *graph["objects"], *graph.get("edges", [])]
    sizes = [size for item in items for _, _, size, script in _runs(item) if not script]
    return min(sizes) * scale


def _nodes(layout: Layout) -> Iterator[str]:
    for a, b in itertools.combinations(layout.rects, 2):
        if layout.rects[a].overlaps(layout.rects[b]):
            yield f"{layout.nodes[a]['name']} overlaps {layout.nodes[b]['name']}"


def _clusters(layout: Layout) -> Iterator[str]:
    for cluster in layout.clusters:
        frame, members = Rect(*_numbers(cluster["bb"])), cluster.get("nodes", [])
        for number, rect in layout.rects.items():
            if number in members and not rect.inside(frame):
                yield f"{layout.nodes[number]['name']} sticks out of {cluster['name']}"
            if number not in members and rect.overlaps(frame):
                yield f"{layout.nodes[number]['name']} is a stranger in {cluster['name']}"


def _edges(layout: Layout) -> Iterator[str]:
    titles = [(f"label of {c['name']}", rect) for c in layout.clusters for _, rect in texts(c)]
    for edge in layout.edges:
        ends = (edge["tail"], edge["head"])
        foreign = [(layout.nodes[n]["name"], r) for n, r in layout.rects.items() if n not in ends]
        points = _curve(edge)
        for what, rect in foreign + titles:
            if any(rect.holds(x, y, 1.0) for x, y in points):
                yield f"{layout.name(edge)} runs through {what}"


def _tips(layout: Layout) -> Iterator[str]:
    """An arrow begins at the border of its box, and its tip ends at that of the other."""
    for edge in layout.edges:
        tips = dict(re.findall(r"([se]),(\S+)", edge["pos"]))
        shaft = re.sub(r"[se],\S+ ", "", edge["pos"]).split()
        for end, tip, last in (("tail", "s", shaft[0]), ("head", "e", shaft[-1])):
            x, y = _numbers(tips.get(tip, last))
            if layout.rects[edge[end]].holds(x, y, 2.0):
                yield f"{layout.name(edge)} pierces the border of its {end}"


def _labels(layout: Layout) -> Iterator[str]:
    taken = [(layout.nodes[n]["name"], rect) for n, rect in layout.rects.items()]
    for edge in layout.edges:
        own = [rect for _, rect in texts(edge)]
        for what, rect in taken:
            if any(o.overlaps(rect, 1.0) for o in own):
                yield f"label of {layout.name(edge)} on {what}"
        taken += [(f"label of {layout.name(edge)}", o) for o in own]


def _flow(layout: Layout) -> Iterator[str]:
    for edge in layout.edges:
        if "fwd" in edge["class"].split() and layout.at(edge["head"])[1] <= layout.at(edge["tail"])[1]:
            yield f"{layout.name(edge)} points against {layout.direction}"


def _lanes(layout: Layout) -> Iterator[str]:
    for id in filter(re.compile(r"node-(\S+\.)?linQ\d*").fullmatch, layout.ids):  # of each layer and head
        ids = [f"lin{lane}".join(id.rsplit("linQ", 1)) for lane in "QKV"]
        places = [layout.at(layout.ids[i])[0] for i in ids if i in layout.ids]
        if places != sorted(places):
            yield f"Q, K, V are not in reading order: {id}"
    heads = [layout.at(layout.ids[f"node-scores{head}"])[0] for head in _heads(layout)[1:]]
    if heads != sorted(heads):
        yield "heads are not in reading order"


def _heads(layout: Layout) -> list[str]:
    """ "" for what belongs to no head, then 1, 2, …"""
    return [
        "",
        *sorted(id.removeprefix("node-scores") for id in layout.ids if re.fullmatch(r"node-scores\d", id)),
    ]


def _spine(layout: Layout) -> Iterator[str]:
    for head in _heads(layout):
        ids = [f"node-{key}{head}" for key in SPINE]
        places = [layout.at(layout.ids[i])[0] for i in ids if i in layout.ids]
        if places and max(places) - min(places) > 2.0:
            yield f"the spine {head} bends by {max(places) - min(places):.1f} pt"


def _hygiene(layout: Layout) -> Iterator[str]:
    named = [*layout.nodes.values(), *layout.edges, *layout.clusters]
    for id, count in Counter(item["id"] for item in named).items():
        if count > 1 or not re.fullmatch(r"[A-Za-z0-9_+.-]+", id):
            yield f"id {id!r} occurs {count} times"
    for item in named:
        if not item.get("tooltip", "").strip():
            yield f"{item['id']} has no tooltip"


def _drawn(layout: Layout) -> Iterator[str]:
    """What a label says is what is drawn: Graphviz falls back to the node's name where it cannot read one."""
    for node in layout.nodes.values():
        drawn = "".join("".join(text for text, _ in texts(node)).split())
        meant = "".join(html.unescape(re.sub(r"<[^>]*>", "", node["label"])).split())
        if not drawn or drawn != meant:
            yield f"{node['name']} shows {drawn[:30]!r}"
