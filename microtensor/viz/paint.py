"""Folded graph → `Picture`: a box for each group with its texts, parameters in boxes, arrows, clusters.

Levels differ in how the graph was folded and in what a box says: an equation, or the word for an op.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from microtensor import cost
from microtensor.viz import formula, symbols
from microtensor.viz.axes import Shapes
from microtensor.viz.cells import CAPTION, GREY, MOST_GRIDS, NO_CELLS, WRONG, grids
from microtensor.viz.columns import add_columns
from microtensor.viz.findings import Finding, at_hand, told
from microtensor.viz.flow import Flow
from microtensor.viz.fold import Edge, Folded, Group, block_of, crosses_frame, numbered, path_of
from microtensor.viz.frames import Frames
from microtensor.viz.names import Names, word_of
from microtensor.viz.page.describe import describe
from microtensor.viz.page.folding import State
from microtensor.viz.picture import LONGEST_LINE, Arrow, Box, Cell, Cluster, Picture, in_lines, side_by_side
from microtensor.viz.trace import Graph, Node, grouped

__all__ = ["Options", "Painter"]

# What norms may hold beside numbers, and what it means.
NORMS = {"≡ 0": "exactly 0, but for rounding", "…": "from least to greatest of layers drawn as one"}


@dataclass(frozen=True)
class Options:
    """What is drawn, and how: the options of `draw` that its rooms ask for."""

    level: str
    values: bool
    cost: bool
    depth: int | None
    shapes: str | None
    names: str | Mapping[Any, Any]
    direction: str
    max_nodes: int

    def longest(self, lane: str | None) -> int:
        """Characters that a line may have: few in a long row, and where lanes stand side by side.

        Level heads: many below the lanes, where the arrows of all heads end in one line.
        """
        heads = self.level == "heads"
        if self.direction == "LR":
            return 22 if heads else 20
        return LONGEST_LINE * (1 + heads) if lane not in ("Q", "K", "V") else 13 if heads else 24


class Painter:
    """Boxes every group, joins parameters of one user in one box (level equations), and draws the arrows."""

    def __init__(
        self,
        graph: Graph,
        folded: Folded,
        shapes: Shapes,
        options: Options,
        flow: Flow | None,
        found: list[Finding],
    ) -> None:
        self.graph, self.folded, self.shapes, self.flow = graph, folded, shapes, flow
        self.options, self.found = options, found
        self.level, self.by_line = options.level, options.level != "ops"
        self.narrow = options.direction == "LR"  # one long row, which is to be kept short
        self.names = Names(graph, folded, shapes, by_line=self.by_line)
        self.boxes: list[Box] = []
        self.arrows: list[Arrow] = []
        self.of: dict[Group, tuple[Box, str]] = {}  # group → its box, and the port there
        self.taken: dict[str, int] = {}
        self.order: list[Box] = []
        self.drawn: dict[Edge, Arrow] = {}  # by which arrow its gradient is drawn
        self.ports: dict[Edge, str] = {}  # where in its head an edge ends
        self.frames = Frames(folded, shapes, self.level, self.bare)
        users = grouped((edge.tail, edge.head) for edge in folded.edges)
        self.users = {group: dict.fromkeys(heads) for group, heads in users.items()}  # in order, once each
        self.into = grouped((edge.head, edge) for edge in folded.edges)
        self.keys = Counter(numbered(g.span) for g in folded.groups if g.span is not None)
        # folds first, so that a leaf called mask does not take the id that tests and styles know a fold by
        self.fold_ids = {
            g: self.unique(f"node-{symbols.safe(self.key(g))}") for g in folded.groups if g.span is not None
        }

    def picture(self, what: str, state: State) -> Picture:
        """All of it, under the title `what`; state: of its page."""
        self.alone = state.folds.alone
        self.draw_groups()
        self.draw_arrows()
        self.draw_output()
        rows = add_columns(self) if self.level == "tape" else []
        said = [box.tooltip.split("\n")[0] for box in self.order if box.classes.startswith("op ")]
        look = what, self.level, self.boxes, self.arrows, self.frames.clusters, self.captions(state)
        found = [symbols.untagged(text) for text in told(self.found)]
        # above it nobody can ask for a page
        data = describe(self, rows, state) if len(self.order) <= self.options.max_nodes else {}
        return Picture(*look, found, said[:50], self.names.code, self.order, rows, data)

    def unique(self, name: str) -> str:
        """An id: the name itself, or with -2, -3 … if it is taken."""
        count = self.taken[name] = self.taken.get(name, 0) + 1
        return name if count == 1 else self.unique(f"{name}-{count}")

    def bare(self, name: str) -> str:
        """A name that DOT takes without quotes: the first letter of a list's part would be a digit."""
        return self.unique(re.sub(r"\W|^(?=\d)", "_", symbols.safe(name))).replace("-", "_")

    # --- boxes ----------------------------------------------------------------------------------------------

    def draw_groups(self) -> None:
        together = self._parameters_by_user() if self.by_line else {}
        for group in (g for g in self.folded.groups if g not in self.of):  # where one box is of several
            if group in together:
                self._parameter_box(together[group])
            elif group.last.op is None:
                self._leaf_box(group)
            else:
                self._op_box(group)

    def _parameters_by_user(self) -> dict[Group, tuple[Group, list[Group]]]:
        """Each parameter → the first group that uses it, and all the parameters that the same groups use."""
        together = grouped((tuple(heads), p) for p, heads in self.users.items() if p.last.kind == "param")
        return {p: (heads[0], group) for heads, group in together.items() for p in group}

    def _parameter_box(self, found: tuple[Group, list[Group]]) -> None:
        user, parameters = found
        name = self.bare(f"p_{user.span.key if user.span is not None else self.key(user)}")
        cells, said = [], []
        for i, parameter in enumerate(parameters):
            node = parameter.last
            symbol = self.names.of(node) or "w"
            text = f"{symbols.clean(symbol)} {self.shapes.plain(node)}"
            stored = f"{node.code}{'ᵀ' * node.transposed} = " if node.code not in (None, symbol) else ""
            said.append(stored + text)
            zero = self.flow is not None and node in self.flow.zero
            shape, count = self.shapes.html(node), 1 + len(self.folded.twins.get(node, ()))
            shape = f"{count} × {shape}" if count > 1 and shape else shape
            cells.append(Cell(f"p{i}", symbols.html(symbol), shape, text, self.norm(node), zero))
            self._mark(cells[-1], parameter)
        id = self.unique("node-" + "+".join(symbols.safe(self.names.stable(p.last)) for p in parameters))
        box = Box(name, id, "param", "cells", "leaf param", [], [], "\n".join(said), cells=cells)
        box.fault = any(cell.fault for cell in cells)
        box.lane, box.block = user.lane, block_of(user)
        self.add(box, self.frames.of_module(user))
        for parameter, cell in zip(parameters, cells, strict=True):
            self.of[parameter] = box, cell.port

    def _leaf_box(self, group: Group) -> None:
        node, kind, x = group.last, group.last.kind, at_hand(group.last)
        named = "input" if node.code or not node.differentiable else "leaf that learns"
        word = {"const": "constant", "input": named}.get(kind, kind)  # a module's has an argument's name
        box = self._tensor_box(f"t{node.number}", node, word, f"leaf {kind}")
        box.kind = box.shape = kind
        if kind == "const" and x is not None and x.size == 1:  # else it would be a letter that says nothing
            box.lines[0] += f" = {symbols.escape(formula.number(x.item()))}"
        if node.code and node.code != self.names.of(node):
            box.tooltip += f"\n{node.code}{'ᵀ' * node.transposed}"
        self._mark(box, group)
        self.add(box, self.frames.of_constant(group, self.users))
        self.of[group] = box, ""

    def _tensor_box(self, name: str, node: Node, word: str, classes: str) -> Box:
        """The box of an input, a constant, the output: its symbol and shape."""
        symbol = self.names.of(node) or ("x" if node.op is None else "y")
        tooltip = f"{symbols.clean(symbol)}: {word} {self.shapes.plain(node)} {node.dtype}".strip()
        id = self.unique(f"node-{symbols.safe(self.names.stable(node))}")
        looks = name, id, "input", "input", classes, [symbols.html(symbol)], [self.shapes.html(node)]
        return Box(*looks, tooltip, gradient=self.norm(node))

    def _parts(self, group: Group, line: str) -> list[Cell]:
        """Cells of an equation, where arrows between frames end at what they bring: X, W_1^Q, head_1."""
        brought: dict[str, Edge] = {}
        for edge in filter(crosses_frame, self.into.get(group, ())):
            symbol = self.names.of(edge.source) or "x"
            if edge.source.kind == "param" and group.span is not None:  # its columns for this head
                symbol = symbols.indexed(edge.source.symbol or symbol, str(group.span.within))
            brought[symbols.html(symbol)] = edge
        parts = sorted(filter(line.__contains__, brought), key=line.find)
        self.ports |= {brought[part]: f"h{i}" for i, part in enumerate(parts, 1)}
        return [Cell(self.ports[brought[part]], part, "", symbols.untagged(part)) for part in parts]

    def _op_box(self, group: Group) -> None:
        """A fold or an op: by its equation, or at level ops by its word."""
        node, span = group.last, group.span
        key, name, id = node.op.name, f"t{node.number}", f"node-t{node.number}"
        if span is not None:
            key, name, id = span.key, self.bare(self.key(group)), self.fold_ids[group]
        key = symbols.safe(key)
        box = Box(name, id, group.lane or "O", "op", f"op {key}", [], [], "", f"ops.html#{key}")
        if self.by_line:
            count = sum(math.prod(n.shape or ()) for n in group.inside)
            box.lines = in_lines(self.names.line(group, html=True), self.options.longest(group.lane))
            box.small = [self.shapes.html(node)]
            box.small += [f"{count:,} parameters{self._each(group)}"] if count else []
            box.cells = [] if self.narrow or span is None else self._parts(group, box.lines[0])
            made_by = f"op: {word_of(node.op)}{' (fused)' * node.fused}"
            if span is not None:
                made_by = f"{span.title or 'ops'}: {' → '.join(word_of(n.op) for n in group.members)}"
            said = [self.names.line(group, html=False), made_by]
        else:
            symbol, (word, box.aside) = self.names.result(node), self.names.op(node)
            box.lines = [f"{symbol} = {symbols.escape(word)}" if symbol else symbols.escape(word)]
            box.small, box.result = ["fused"] * node.fused, self.shapes.html(node)
            box.shape = "view" if node.op.view else "op"
            said = [f"{word} {symbols.untagged(box.aside)}".strip() + " (fused)" * node.fused]
        box.tooltip = "\n".join([*said, *self._facts(group)])
        self._add_op(box, group)

    def _add_op(self, box: Box, group: Group) -> None:
        """Its place, what the options ask for (cost, values), and what was found."""
        box.lane, box.block = group.lane, block_of(group)
        box.longest = 0 if self.narrow and self.level != "heads" else self.options.longest(group.lane)
        box.gradient = self.norm(group.last) if self.level == "heads" else ""
        if self.options.cost:
            size = np.dtype(group.last.dtype).itemsize * math.prod(group.last.shape or ())
            found = cost.readable(self._flop(group.members)), cost.readable(size, "B")
            box.small += [f"{text}{self._each(group)}" for text in found]
        if self.options.values:
            in_row = 2 - (self.level == "ops") if self.narrow else MOST_GRIDS
            box.grids, said = grids(group, self.alone[group.last], in_row)
            box.small.append(said)
        self._mark(box, group)
        self.add(box, self.frames.of(group))
        self.of[group] = box, ""

    def found_in(self, group: Group) -> list[Finding]:
        """What was found in a group, what it hides, and the layers that it stands for."""
        nodes = {*group.members, *group.inside}
        return [f for f in self.found if self.folded.stands.get(f.node, f.node) in nodes]

    def _mark(self, where: Box | Cell, group: Group) -> None:
        for finding in self.found_in(group):
            where.found, where.fault = finding.mark or where.found, where.fault or finding.fault

    def _each(self, group: Group) -> str:
        """Behind a number: of one layer, where a box stands for several."""
        return " each" if group.members[0] in self.folded.twins else ""

    def _flop(self, nodes: list[Node]) -> int:
        return sum(cost.flop(n.op, n.shape, [p.shape for p in n.parents]) for n in nodes if n.op)

    def _facts(self, group: Group) -> list[str]:
        """Lines of a tooltip: module, shapes, FLOP, gradient."""
        inside = set(group.members)
        sources = dict.fromkeys(e for m in group.members for e in m.parents if e not in inside)
        flops = f"{cost.readable(self._flop(group.members))}{self._each(group)}"
        node = group.last
        return [
            *([f"module: {path}"] if (path := path_of(group)) else []),
            f"in {', '.join(self.shapes.plain(s) for s in sources) or 'nothing'}",
            f"out {self.shapes.plain(node)} {node.dtype} · {flops}",
            *([f"gradient: {'; '.join(found)}"] if (found := self.names.gradients(group)) else []),
        ]

    def draw_output(self) -> None:
        """The result, as a box of its own behind what computes it."""
        box = self._tensor_box("out", self.graph.output, "output", "output")
        tail, _ = self.of[self.folded.output]
        box.lane, box.block = ("out", tail.block) if tail.lane in ("S", "O") else (None, "")
        self.add(box, None)
        self.output = box
        said = f"{self.names.of(self.graph.output) or 'y'}, the output"
        arrow = Arrow(tail, box, "", "" if self.by_line else box.small[0], said, True)
        arrow.flows = self.flow is not None and self.level != "tape"
        self.arrow(arrow)

    # --- arrows ---------------------------------------------------------------------------------------------

    def draw_arrows(self) -> None:
        for edge in self.folded.edges:
            tail, port = self.of[edge.tail]
            head = self.of[edge.head][0]
            label = "" if edge.source.op is None or self.by_line else self.shapes.html(edge.source)
            arrow = Arrow(tail, head, port, label, self._edge_tooltip(edge), edge.source.differentiable)
            arrow.head_port = self.ports.get(edge, "")
            if self.flow is not None and self.level != "tape":
                arrow.flows = edge in self.flow.along
                once = edge.source.kind == "param" and self.folded.uses[edge.source] == 1  # it says so itself
                arrow.gradient = "" if tail.shape == "cells" or once else self.contribution(edge)
                if self.level == "heads":  # labels on arrows make Graphviz mix up heads: nodes say it
                    arrow.tooltip += f"\ncontributes {arrow.gradient}" if arrow.gradient else ""
                    arrow.gradient = ""
            twin = self._twin(arrow) if self.level == "heads" and tail.shape == "cells" else None
            self.drawn[edge] = twin or self.arrow(arrow)

    def _twin(self, arrow: Arrow) -> Arrow | None:
        """Level heads: one arrow from a box of parameters to each user. The one that it joins, if any."""
        arrow.port = ""
        for other in self.arrows:
            if other.tail is arrow.tail and other.head is arrow.head:
                other.tooltip += "\n" + arrow.tooltip
                other.differentiable |= arrow.differentiable
                other.flows |= arrow.flows
                return other
        return None

    def norm(self, node: Node) -> str:
        """The norm of a node's gradient, in two digits; empty where none is drawn."""
        if self.flow is None or node not in self.flow.norms:
            return ""
        alike = [node, *self.folded.twins.get(node, ())]
        return f"‖∂‖ {_range([0.0 if n in self.flow.zero else self.flow.norms[n] for n in alike])}"

    def contribution(self, edge: Edge) -> str:
        """The norm of what an edge contributes to the gradient of its tail."""
        if self.flow is None or edge not in self.flow.along:
            return ""
        return _range([self.flow.along[e] for e in (edge, *self.folded.like.get(edge, ()))])

    def _edge_tooltip(self, edge: Edge) -> str:
        source = symbols.clean(self.names.of(edge.source) or self.names.op(edge.source)[0])
        times = f" ×{edge.times}" if edge.times > 1 else ""
        line = self.of[edge.head][0].tooltip.partition("\n")[0]
        no = "" if edge.source.differentiable else ", no gradient"
        slots = ", ".join(f"{slot} of {word_of(node.op)}" for node, slot in edge.slots)
        return f"{source} → {line}\n{self.shapes.plain(edge.source)}, {slots}{times}{no}"

    def arrow(self, arrow: Arrow) -> Arrow:
        """Add an arrow; its id names its ends in the direction of what flows."""
        ends = (arrow.tail.name, arrow.head.name)[:: -1 if arrow.kind == "bwd" else 1]
        arrow.id = self.unique("-".join((arrow.kind, *ends)))
        self.arrows.append(arrow)
        return arrow

    # --- clusters -------------------------------------------------------------------------------------------

    def add(self, box: Box, cluster: Cluster | None) -> Box:
        self.order.append(box)
        box.cluster = cluster
        (self.boxes if cluster is None else cluster.boxes).append(box)
        return box

    def key(self, group: Group) -> str:
        """A fold's key; with its module's path where another fold has the same key."""
        if group.span is None:
            return f"t{group.last.number}"
        path, key = group.span.path, numbered(group.span)
        return f"{path}.{key}" if self.keys[key] > 1 and path else key

    def captions(self, state: State) -> list[str]:
        """Sizes and how much was folded; what was found; what cells and costs mean."""
        total = self._flop(self.graph.nodes)  # of all layers, also of those that another stands for
        cells = "".join(box.grids for box in self.order)
        labels = [text for box in self.order for text in (*box.lines, *box.small, box.aside, box.result)]
        labels += [text for box in self.order for row in box.rows for text in row]
        labels += [f"{cell.symbol} {cell.shape}" for box in self.order for cell in box.cells]
        leaves = {group.last for group in self.of}
        found = told([f for f in self.found if f.mark or self.folded.stands.get(f.node, f.node) in leaves])
        drawn = symbols.words([*labels, *(arrow.label for arrow in self.arrows), *found])
        unseen = [NO_CELLS] * (self.options.values and not state.folded and "no cells" not in "".join(labels))
        meant = ((GREY, ", grey = masked"), (WRONG, ", framed in red = not finite"))
        # as the boxes
        longest = {"tape": 9, "heads": 4 + self.shapes.sizes.get("h", 2), "ops": 5}.get(self.level, 3.6)
        in_node = f"in a node: operations · bytes of the result; in all {cost.readable(total)}"
        words = [*self.names.words(drawn), *[in_node] * self.options.cost]
        if self.flow is not None:
            start = f"backward begins with the gradient of {self.output.lines[0]}: {self.flow.start}"
            words = [start, *self._norms(), *words]
        return [
            self._caption(drawn),
            *found,
            *side_by_side(words, longest * LONGEST_LINE, "  ·  "),
            *([CAPTION + "".join(word for look, word in meant if look in cells)] if cells else unseen),
        ]

    def _norms(self) -> list[str]:
        """What norms have beside numbers."""
        each: list[Any] = [*self.order, *self.arrows, *(cell for box in self.order for cell in box.cells)]
        written = " ".join([x.gradient for x in each] + ["≡ 0" for box in self.order if box.marked])
        return [f"{mark}: {said}" for mark, said in NORMS.items() if mark in written]

    def _caption(self, drawn: set[str]) -> str:
        ops = sum(n.op is not None for n in self.graph.nodes)
        count = f"{ops} tape op{'' if ops == 1 else 's'}"
        if not self.by_line:
            leaves = sum(n.op is None for n in self.graph.nodes)
            count += f", {leaves} lea{'f' if leaves == 1 else 'ves'}"
        elif any(g.span is not None for g in self.folded.groups):
            count += " folded into equations"
        return "  ·  ".join(filter(None, [", ".join(self.shapes.caption(drawn)), count]))


def _range(values: list[float]) -> str:
    """A norm in two digits, or those of several layers: 0.8 … 1.3."""
    ends = [formula.two_digits(end) if end else "0" for end in (min(values), max(values))]
    return (ends[0] if max(values) else "≡ 0") if ends[0] == ends[1] else " … ".join(ends)
