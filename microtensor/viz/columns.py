"""Level tape: beside the forward column, what is kept alive for backward, and the backward with its formulas.

Each op stands in one row with the arrays it keeps and with its vector-Jacobian product. Backward arrows are
written downwards, with their heads at the tail, so that both columns have equal ranks.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from microtensor import cost
from microtensor.listing import kept_arrays
from microtensor.viz import symbols
from microtensor.viz.fold import Group
from microtensor.viz.names import read
from microtensor.viz.picture import LONGEST_LINE, Arrow, Box, Cluster, in_lines
from microtensor.viz.trace import Node

if TYPE_CHECKING:
    from microtensor.viz.paint import Painter

__all__ = ["add_columns"]


def add_columns(painter: Painter) -> list[list[Box]]:
    """Put the forward into a column, add the two others, and return the rows that they make."""
    titles = {"fwd": "forward", "tape": "kept alive", "bwd": "backward"}
    columns = (Cluster(f"cluster_{key}", [t], t, None, False, column=key) for key, t in titles.items())
    forward, tape, backward = painter.frames.clusters = list(columns)
    forward.boxes, painter.boxes = painter.boxes, []
    for box in forward.boxes:
        box.cluster = forward
    return _Columns(painter, tape, backward).rows


class _Columns:
    """The boxes and arrows of the two columns."""

    def __init__(self, painter: Painter, tape: Cluster, backward: Cluster) -> None:
        self.painter, self.tape, self.backward = painter, tape, backward
        self.rows: list[list[Box]] = []
        self.vjps: dict[Group, Box] = {}
        groups = [g for g in painter.folded.groups if g.last.op is not None]
        kept = self._kept()
        for group in groups:
            self._row(group, [*kept.get(group, {}).values()])
        inputs = [g for g in painter.folded.groups if g.last.kind == "input" and g.last.differentiable]
        self.vjps |= {group: self._gradient(group) for group in inputs}
        self._ends()
        self._arrows()

    def _kept(self) -> dict[Group, dict[int, tuple[str, str, int]]]:
        """(name, shape, bytes) of each array that a group keeps; 0 bytes if an earlier one does, too.

        Behind the shape: is it read by no gradient, as an op keeps it for that of a number or a constant?
        """
        nodes = sorted((n for n in self.painter.graph.nodes if n.op is not None), key=lambda n: n.value.index)
        found: dict[Group, dict[int, tuple[str, str, int]]] = {}
        self.total = 0
        arrays = kept_arrays([n.value for n in nodes], watched=self.painter.graph.watched)
        pairs = list(zip(nodes, arrays, strict=True))
        needed = {id(buffer) for node, kept in pairs for name, buffer, _ in kept if name in read(node)}
        for node, kept in pairs:
            for name, buffer, first in kept:
                self.total += buffer.nbytes * first
                symbol, shape = self._named(node, name, buffer)
                said = filter(None, (shape, "unread" * (id(buffer) not in needed)))
                row = symbol, self.painter.shapes.between.join(said), buffer.nbytes * first
                found.setdefault(self.painter.folded.of[node], {}).setdefault(id(buffer), row)
        return found

    def _named(self, node: Node, name: str, buffer: Any) -> tuple[str, str]:
        """What is kept, and its shape: by its symbol, or that of what it is a view of, or what made it."""
        names, shapes = self.painter.names, self.painter.shapes
        source = node if name == "y" else dict(node.arguments).get(name)
        whole = str(buffer.shape) if shapes.how is not None else ""
        if not isinstance(source, Node):
            return symbols.html(name), whole
        while source.op is not None and source.op.view:  # a part keeps the whole alive
            if names.of(source) is not None and math.prod(source.shape or ()) == buffer.size:
                break
            source = source.parents[0]
        shape = shapes.html(source) if math.prod(source.shape or ()) == buffer.size else ""
        return names.short(source), shape or whole

    def _row(self, group: Group, kept: list[tuple[str, str, int]]) -> None:
        painter = self.painter
        box, _ = painter.of[group]
        key = box.id.removeprefix("node-")
        lines, said = (painter.names.gradients(group, html=html) for html in (True, False))
        longest = 20 if painter.narrow else LONGEST_LINE
        tooltip = "\n".join([f"gradient of {painter.names.line(group, html=False)}", *said])
        vjp = Box(f"g_{box.name}", f"vjp-{key}", "vjp", "vjp", "vjp", [], [], tooltip)
        zero = painter.flow.zero if painter.flow is not None else ()
        starts = [f"d{painter.names.of(n)} " for m in group.members for n in m.parents if n in zero]
        for line, plain in zip(lines, said, strict=True):
            first, *rest = in_lines(line, longest)
            vjp.lines += [first, *(f"&#160;&#160;&#160;{part}" for part in rest)]
            vjp.marked += [len(vjp.lines) - 1] if plain.startswith(tuple(starts)) else []
        vjp.lane, vjp.block = box.lane, f"{box.block}-bwd" if box.block else ""
        row = [box, vjp]
        if kept:
            row.insert(1, self._saved(f"m_{box.name}", f"saved-{key}", kept))
            for ends in itertools.pairwise(row):
                painter.arrow(Arrow(*ends, "", "", "kept for backward", False, kind="saved"))
        painter.add(vjp, self.backward)
        self.vjps[group] = vjp
        self.rows.append(row)

    def _saved(self, name: str, id: str, kept: list[tuple[str, str, int]]) -> Box:
        box = Box(name, id, "saved", "rows", "saved", [], [], "")
        box.rows = [(symbol, shape, cost.readable(n, "B") if n else "shared") for symbol, shape, n in kept]
        box.tooltip = "kept for backward: " + ", ".join(f"{n} bytes" if n else "shared" for _, _, n in kept)
        return self.painter.add(box, self.tape)

    def _gradient(self, group: Group) -> Box:
        """The gradient of an input."""
        painter, node = self.painter, group.last
        count = painter.folded.uses[node]
        box = self._end(f"g_t{node.number}", node, [f"sum of {count} paths"] if count > 1 else [])
        self.rows.insert(0, [painter.of[group][0], box])
        return box

    def _end(self, name: str, node: Node, small: list[str]) -> Box:
        painter = self.painter
        symbol = painter.names.of(node) or "y"
        id = painter.unique(f"grad-{symbols.safe(painter.names.stable(node))}")
        lines, said = [symbols.html(f"d{symbol}")], f"gradient of {symbol}"
        box = Box(name, id, "grad", "input", "grad", lines, small, said, gradient=painter.norm(node))
        return painter.add(box, self.backward)

    def _ends(self) -> None:
        """The gradient of the output, and how much is kept altogether."""
        painter = self.painter
        start = self._end("g_out", painter.graph.output, [])
        total = self._said("total", f"Σ = {cost.readable(self.total, 'B')}", "freed after backward")
        if self.rows[0][0].kind == "input" and not painter.narrow:  # where the other frames begin
            self.rows[0].insert(1, self._said("first", "written by the forward,", "read by the backward"))
        block = painter.output.block
        start.lane, start.block = ("out", f"{block}-bwd") if block else (None, "")
        self.rows.append([painter.output, total, start])
        last = self.vjps[painter.folded.output]
        self._back(last, start, f"the gradient of {painter.names.of(painter.graph.output)} comes in", "")

    def _said(self, key: str, *small: str) -> Box:
        look = f"m_{key}", f"saved-{key}", "saved", "plain", "saved-total"
        return self.painter.add(Box(*look, [], [*small], "kept by the tape for backward"), self.tape)

    def _arrows(self) -> None:
        painter = self.painter
        for edge in painter.folded.edges:
            if edge.tail in self.vjps:
                name = painter.names.of(edge.source) or "its input"
                said = f"contributes to d{name}", painter.contribution(edge)
                painter.drawn[edge] = self._back(self.vjps[edge.tail], self.vjps[edge.head], *said)

    def _back(self, upper: Box, lower: Box, tooltip: str, norm: str) -> Arrow:
        return self.painter.arrow(Arrow(upper, lower, "", "", tooltip, True, kind="bwd", gradient=norm))
