"""A picture as plain data for its page: what every node says, what leads to what, the steps of the backward.

Numbers are the engine's, or absent where no gradient is drawn. Symbols and formulas are written with the tags
<I>, <B>, <SUB> and <SUP> alone, and everything else in them is escaped; other texts are plain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor.viz import formula, symbols
from microtensor.viz.cells import masked
from microtensor.viz.findings import results, told
from microtensor.viz.fold import Edge, Group, path_of
from microtensor.viz.names import word_of
from microtensor.viz.page.calls import Call
from microtensor.viz.picture import Arrow, Box, Cluster
from microtensor.viz.trace import Graph, Node, grouped

if TYPE_CHECKING:
    from microtensor.viz.page.folding import State
    from microtensor.viz.paint import Painter

__all__ = ["describe", "summaries"]

KINDS = {"op": "operation", "input": "input", "param": "parameter", "const": "constant", "output": "output",
         "vjp": "gradient formula", "saved": "kept for backward", "grad": "gradient"}  # fmt: skip
MOST_CELLS, MOST_MAPS = 12, 4  # of a side, and of one tensor

Data = dict[str, Any]


def describe(painter: Painter, rows: list[list[Box]], state: State) -> Data:
    """Nodes, arrows, frames and steps of one picture. rows: level tape's, each ends with a gradient."""
    return _Describer(painter, rows, state).data()


def summaries(graph: Graph, alone: dict[Node, Any], code: bool) -> dict[Node, Data]:
    """Least, mean and greatest value and the norm of each tensor, and its first values as maps."""
    return {n: _summary(_meant(n, x, code), masked(x, alone[n])) for n, x in results(graph) if x is not None}


def _meant(node: Node, array: Any, code: bool) -> Any:
    """What a leaf's name means: M is who may attend, where the op takes ~M; W^Q is weightᵀ, save by code."""
    array = array if node.op is not None or node.array is None else node.array
    return np.swapaxes(array, -2, -1) if node.transposed and not code else array


def _summary(array: Any, hidden: Any) -> Data:
    """Of the finite values; how many are none is said. hidden: which are masked."""
    array = np.asarray(array, np.float64)
    finite = array[np.isfinite(array)]
    said: Data = {"hidden": array.size - finite.size}
    if finite.size:
        norm = np.sqrt(np.sum(np.square(finite)))
        found = {"least": finite.min(), "mean": finite.mean(), "greatest": finite.max(), "norm": norm}
        said |= {name: _number(value) for name, value in found.items()}
    if array.size and array.ndim >= 2 and max(array.shape[-2:]) <= MOST_CELLS:
        said["maps"] = [[list(map(_number, row)) for row in each] for each in _maps(array)]
        said |= {"masked": _maps(hidden).astype(int).tolist()} if hidden.any() else {}
    return said


def _maps(array: Any) -> Any:
    """The first of the batch, and of it the first few."""
    while array.ndim > 3:
        array = array[0]
    return (array if array.ndim == 3 else array[None])[:MOST_MAPS]


def _number(x: float) -> float | str:
    """Six digits; what JSON cannot say as text."""
    return float(f"{x:.6g}") if math.isfinite(x) else formula.number(float(x))


def _within(box: Box, cluster: Cluster) -> bool:
    around = box.cluster
    while around is not None and around is not cluster:
        around = around.parent
    return around is cluster


class _Describer:
    def __init__(self, painter: Painter, rows: list[list[Box]], state: State) -> None:
        self.painter, self.state = painter, state
        self.names, self.flow, self.folded = painter.names, painter.flow, painter.folded
        self.gradient_of = {row[0]: row[-1] for row in rows}  # level tape: where a box's gradient is drawn
        self.back = {gradient: box for box, gradient in self.gradient_of.items()}
        self.groups = grouped((box, group) for group, (box, _) in painter.of.items())

    def data(self) -> Data:
        folds, painter = self.state.folds, self.painter
        return {
            "folded": sorted(self.state.folded),
            "nodes": [self._node(box) for box in painter.order],
            "arrows": [self._arrow(arrow) for arrow in painter.arrows],
            "frames": list(self._frames(painter.frames.clusters)),
            "steps": list(self._steps()),
            "together": folds.together,
            "closed": folds.closed,
            "gradients": self.flow is not None,
            "most": MOST_CELLS,
        }

    # --- nodes ----------------------------------------------------------------------------------------------

    def _node(self, box: Box) -> Data:
        groups = self.groups.get(box, [])
        words = box.classes.split()
        label, *facts = box.tooltip.split("\n")
        said: Data = {
            "id": box.id,
            "kind": KINDS[words[-1] if words[0] == "leaf" else words[0].partition("-")[0]],
        }
        tensors = [group.last for group in groups]
        if box is self.painter.output:
            tensors = [self.painter.graph.output]
        said["label"] = label if words != ["leaf", "param"] else ", ".join([label, *facts])
        said["tensors"] = [self._tensor(node) for node in tensors]
        said["shares"] = words == ["op", "softmax"]  # its cells have that node's colour
        facts = [label, *facts] if words == ["leaf", "param"] else facts
        said["facts"] = [fact for fact in facts if not fact.startswith("gradient: ")]
        if words[0] in ("vjp", "grad"):
            said["formulas"] = box.lines
        if words[0] == "vjp":
            said["equation"] = f"gradient of {self.names.line(self.groups[self.back[box]][0], html=True)}"
        if box in self.gradient_of:
            said["gradient"] = self.gradient_of[box].id
        if words[0] == "op":
            (group,) = groups
            said["equation"] = self.names.line(group, html=True)
            said["formulas"] = self.names.gradients(group, html=True)
            unit = self.state.unit(group.members[0])
            if unit is not None:
                said |= {"kind": "folded", "unit": unit.key}
                said["to"] = self.state.folds.goes(self.state, unit.key)
        said["found"] = told([found for group in groups for found in self.painter.found_in(group)])
        return said

    def _tensor(self, node: Node) -> Data:
        shapes = self.painter.shapes
        said: Data = {"name": symbols.html(self._name(node)), "shape": shapes.html(node)}
        said |= {"sizes": shapes.plain(node), "needs": node.differentiable}
        if self.flow is not None and node in self.flow.norms:
            alike = [node, *self.folded.twins.get(node, ())]
            said["norms"] = [_number(self.flow.norms[n]) for n in alike]
            said["zero"] = all(n in self.flow.zero for n in alike)
        if node in self.state.folds.values:
            said["values"] = self.state.folds.values[node]
        return said

    def _name(self, node: Node) -> str:
        return self.names.of(node) or ("y" if node.op is not None else "x")

    # --- arrows and frames ----------------------------------------------------------------------------------

    def _arrow(self, arrow: Arrow) -> Data:
        """In the direction of what flows: level tape writes backward arrows the other way round."""
        ends = (arrow.tail.id, arrow.head.id)
        start, end = reversed(ends) if arrow.kind == "bwd" else ends
        back = arrow.kind == "fwd" and arrow.differentiable
        return {"id": arrow.id, "from": start, "to": end, "kind": arrow.kind, "back": back}

    def _frames(self, clusters: list[Cluster]) -> Iterator[Data]:
        for cluster in clusters:
            to = self.state.folds.goes(self.state, cluster.key)
            if to is not None:
                first = next(box.id for box in self.painter.order if _within(box, cluster))
                said = {"id": cluster.name, "label": cluster.tooltip, "unit": cluster.key}
                yield {**said, "open": cluster.key not in self.state.folded, "to": to, "first": first}
            yield from self._frames(cluster.inner)

    # --- the backward, step by step -------------------------------------------------------------------------

    def _steps(self) -> Iterator[Data]:
        """The VJPs that follow each other in one node are one step; what stays inside it is not told."""
        start = self.gradient_of.get(self.painter.output, self.painter.output)
        yield {"call": 0, "node": start.id, "ops": [], "arrivals": [self._seed(start)]}
        found = list(enumerate(self.state.folds.calls.in_order, 1))
        edges, parts = self._edges(), Counter[Node]()
        total = Counter(a.source for _, call in found for a in call.arrivals)
        for group, run in groupby(found, key=lambda each: self.folded.of[each[1].node]):
            each = list(run)
            arrivals = [said for _, call in each for said in self._arrivals(call, edges, parts, total)]
            box = self.painter.of[group][0]
            yield {
                "call": each[-1][0],
                "node": self.gradient_of.get(box, box).id,
                "ops": [word_of(call.node.op) for _, call in each if call.node.op is not None],
                "module": path_of(Group([each[0][1].node])) if group.members[0] in self.folded.twins else "",
                "arrivals": arrivals,
            }

    def _seed(self, box: Box) -> Data:
        """The gradient that the walk starts with, at the one arrow of its box."""
        node = self.painter.graph.output
        (arrow,) = (each.id for each in self.painter.arrows if box in (each.tail, each.head))
        said: Data = {"to": box.id, "arrow": arrow, "part": 1, "of": 1}
        said["name"] = symbols.html(f"d{self._name(node)}")
        if self.flow is not None:
            said |= dict.fromkeys(("norm", "sum"), _number(self.flow.norms[node]))
        return said

    def _edges(self) -> dict[tuple[Node, str], Edge]:
        """Argument slot → the arrow of the picture that stands for it."""
        drawn = dict[tuple[Node, str], Edge]()
        for edge in self.folded.edges:
            for alike in (edge, *self.folded.like.get(edge, ())):
                drawn |= dict.fromkeys(alike.slots, edge)
        return drawn

    def _arrivals(
        self, call: Call, edges: dict[tuple[Node, str], Edge], parts: Counter[Node], total: Counter[Node]
    ) -> Iterator[Data]:
        for slot, source, norm, so_far in call.arrivals:
            parts[source] += 1
            edge = edges.get((call.node, slot))
            if edge is None:
                continue
            # of layers drawn once it is the last one's result
            box, _ = self.painter.of[self.folded.of[source]]
            said: Data = {"to": self.gradient_of.get(box, box).id, "arrow": self.painter.drawn[edge].id}
            said |= {"name": symbols.html(f"d{self._name(source)}")}
            said |= {"part": parts[source], "of": total[source]}
            if norm is not None and so_far is not None:
                said |= {"norm": _number(norm), "sum": _number(so_far)}
            if self.flow is not None and source in self.flow.zero and parts[source] == total[source]:
                said |= {"sum": 0.0, "zero": True}  # what is left of it is rounding
            yield said
