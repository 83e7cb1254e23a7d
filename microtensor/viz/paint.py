"""Folded graph → `Picture`: a box for each group with its texts, parameters in boxes, arrows, clusters.

Levels differ in how the graph was folded and in what a box says: an equation, or the word for an op.
"""

from __future__ import annotations

import re
from collections import Counter

from microtensor import cost
from microtensor.viz import symbols
from microtensor.viz.axes import Shapes
from microtensor.viz.fold import Edge, Folded, Group
from microtensor.viz.names import Names
from microtensor.viz.picture import LONGEST_LINE, Arrow, Box, Cell, Cluster, Picture, length
from microtensor.viz.record import Span
from microtensor.viz.trace import Graph, Node

__all__ = ["paint"]


def paint(graph: Graph, folded: Folded, names: Names, shapes: Shapes, *, level: str, what: str) -> Picture:
    """Box every group, join parameters of one user in one box (level equations), and draw the arrows."""
    painter = _Painter(graph, folded, names, shapes, level)
    painter.draw_groups()
    painter.draw_arrows()
    painter.draw_output()
    said = [box.tooltip.split("\n")[0] for box in painter.order if box.classes.startswith("op ")]
    return Picture(
        what,
        level,
        painter.boxes,
        painter.arrows,
        painter.clusters,
        painter.caption(),
        said[:50],
        names.code,
        painter.order,
    )


class _Painter:
    def __init__(self, graph: Graph, folded: Folded, names: Names, shapes: Shapes, level: str) -> None:
        self.graph, self.folded, self.names, self.shapes = graph, folded, names, shapes
        self.level, self.by_line = level, level != "ops"
        self.boxes: list[Box] = []
        self.arrows: list[Arrow] = []
        self.clusters: list[Cluster] = []
        self.of: dict[Group, tuple[Box, str]] = {}  # group → its box, and the port there
        self.taken: dict[str, int] = {}
        self.clusters_by_key: dict[object, Cluster] = {}
        self.order: list[Box] = []
        self.leaves = 0
        self.ports: dict[Edge, str] = {}  # where in its head an edge ends
        self.users: dict[Group, dict[Group, None]] = {}  # of each group, in order and once each
        self.into: dict[Group, list[Edge]] = {}
        for edge in folded.edges:
            self.users.setdefault(edge.tail, {})[edge.head] = None
            self.into.setdefault(edge.head, []).append(edge)
        self.keys = Counter(numbered(g.span) for g in folded.groups if g.span is not None)
        # folds first, so that a leaf called mask does not take the id that tests and styles know a fold by
        self.fold_ids = {
            g: self.unique(f"node-{symbols.safe(self._key(g))}") for g in folded.groups if g.span is not None
        }

    def unique(self, name: str) -> str:
        """An id: the name itself, or with -2, -3 … if it is taken."""
        count = self.taken[name] = self.taken.get(name, 0) + 1
        return name if count == 1 else self.unique(f"{name}-{count}")

    def bare(self, name: str) -> str:
        """A name that DOT takes without quotes."""
        return re.sub(r"\W", "_", self.unique(re.sub(r"\W", "_", symbols.safe(name))), flags=re.ASCII)

    # --- boxes ----------------------------------------------------------------------------------------------

    def draw_groups(self) -> None:
        together = self._parameters_by_user() if self.by_line else {}
        for group in self.folded.groups:
            if group in self.of:
                continue
            if group in together:
                self._parameter_box(together[group])
            elif group.last.op is None:
                self._leaf_box(group)
            elif group.span is not None:
                self._fold_box(group)
            else:
                self._op_box(group)

    def _parameters_by_user(self) -> dict[Group, tuple[Group, list[Group]]]:
        """Each parameter → the first group that uses it, and all the parameters that the same groups use."""
        together: dict[tuple[Group, ...], list[Group]] = {}
        for parameter, heads in self.users.items():
            if parameter.last.kind == "param":
                together.setdefault(tuple(heads), []).append(parameter)
        return {p: (heads[0], group) for heads, group in together.items() for p in group}

    def _parameter_box(self, found: tuple[Group, list[Group]]) -> None:
        user, parameters = found
        name = self.bare(f"p_{user.span.key if user.span is not None else self._key(user)}")
        cells, said = [], []
        for i, parameter in enumerate(parameters):
            node = parameter.last
            symbol = self.names.of(node) or "w"
            text = f"{symbols.plain(symbol)} {self.shapes.plain(node)}"
            said.append(f"{node.code}: {text}" if node.code and node.code != symbol else text)
            cells.append(Cell(f"p{i}", symbols.html(symbol), self.shapes.html(node), text))
        id = self.unique("node-" + "+".join(symbols.safe(self.names.stable(p.last)) for p in parameters))
        box = Box(name, id, "param", "cells", "leaf param", [], [], "\n".join(said), cells=cells)
        box.lane, box.block = user.lane, _block(user)
        self.leaves += len(parameters)
        self._add(box, None)
        for parameter, cell in zip(parameters, cells, strict=True):
            self.of[parameter] = box, cell.port

    def _leaf_box(self, group: Group) -> None:
        node = group.last
        symbol = self.names.of(node) or "x"
        kind = {"input": "input", "param": "param", "const": "constant"}[node.kind]
        parts = [f"{symbols.plain(symbol)}: {kind} {self.shapes.plain(node)} {node.dtype}".strip()]
        parts += [node.code] if node.code and node.code != symbol else []
        lines, small = [symbols.html(symbol)], [self.shapes.html(node)]
        id = self.unique(f"node-{symbols.safe(self.names.stable(node))}")
        box = Box(
            f"t{node.number}", id, node.kind, node.kind, f"leaf {node.kind}", lines, small, "\n".join(parts)
        )
        self.leaves += 1
        self._add(box, self._cluster_of_constant(group))
        self.of[group] = box, ""

    def _fold_box(self, group: Group) -> None:
        assert group.span is not None
        key = self._key(group)
        name = self.bare(key)
        parts = self._parts(group)
        lines, small = self._equation(group), [self._shape(group)]
        ops = " → ".join(self.names.op(n)[0] for n in group.members)
        tooltip = [self.names.line(group, html=False), f"ops: {ops}", *self._facts(group)]
        box = Box(name, self.fold_ids[group], group.lane or "O", "op", f"op {symbols.safe(group.span.key)}",
                  lines, small, "\n".join(tooltip), f"ops.html#{symbols.safe(group.span.key)}")  # fmt: skip
        box.lane, box.block = group.lane, _block(group)
        box.cells = parts
        self._add(box, self._cluster(group))
        self.of[group] = box, ""

    def _parts(self, group: Group) -> list[Cell]:
        """Cells of an equation, where arrows out of numbered frames end: Concat(head_1, head_2)."""
        cells = []
        for i, edge in enumerate((e for e in self.into.get(group, ()) if _leaves_frame(e)), 1):
            symbol = self.names.of(edge.source) or "x"
            cells.append(Cell(f"h{i}", symbols.html(symbol), "", symbols.plain(symbol)))
            self.ports[edge] = f"h{i}"
        return cells

    def _op_box(self, group: Group) -> None:
        node = group.last
        assert node.op is not None
        word, details = self.names.op(node)
        fused = " (fused)" if node.fused else ""
        name, key = f"t{node.number}", symbols.safe(node.op.name)
        box = Box(name, f"node-{name}", group.lane or "O", "op", f"op {key}", [], [], "", f"ops.html#{key}")
        if self.by_line:
            box.lines, box.small = self._equation(group), [self._shape(group)]
            said = [self.names.line(group, html=False), f"op: {node.op.name}{fused}"]
        else:
            symbol = self.names.result(node)
            box.lines = [f"{symbol} = {symbols.escape(word)}" if symbol else symbols.escape(word)]
            box.small = ["fused"] if node.fused else []
            box.aside, box.result = symbols.escape(details), self._shape(group)
            box.shape = "view" if node.op.view else "op"
            said = [f"{word} {details}".strip() + fused]
        box.tooltip = "\n".join([*said, *self._facts(group)])
        box.lane, box.block = group.lane, _block(group)
        self._add(box, self._cluster(group))
        self.of[group] = box, ""

    def _equation(self, group: Group) -> list[str]:
        """The equation in one line; where it is long in two of about equal length."""
        line = self.names.line(group, html=True)
        if length(line) <= LONGEST_LINE or any(edge in self.ports for edge in self.into.get(group, ())):
            return [line]
        words = line.split(" ")  # tags hold no spaces
        signs = ("+", "−", "/", "∘", "=", "+=")
        breaks = [i for i in range(1, len(words)) if words[i - 1] not in signs and words[i] != "="]
        halves = [(" ".join(words[:i]), " ".join(words[i:])) for i in breaks]
        return list(min(halves, key=lambda half: _unevenness(*half))) if halves else [line]

    def _shape(self, group: Group) -> str:
        return self.shapes.html(group.last)

    def _facts(self, group: Group) -> list[str]:
        """Lines of a tooltip: module, shapes, FLOP, gradient."""
        sources = dict.fromkeys(e for m in group.members for e in m.parents if e not in group.members)
        path = _path(group)
        counts = [cost.flop(n.op, n.shape, [p.shape for p in n.parents]) for n in group.members if n.op]
        flops = cost.readable(sum(counts))
        node = group.last
        return [
            *([f"module: {path}"] if path else []),
            f"in {', '.join(self.shapes.plain(s) for s in sources) or 'nothing'}",
            f"out {self.shapes.plain(node)} {node.dtype} · {flops}",
            *([f"gradient: {'; '.join(found)}"] if (found := self.names.gradients(group)) else []),
        ]

    def draw_output(self) -> None:
        """The result, as a box of its own behind what computes it."""
        node = self.graph.output
        symbol = self.names.of(node) or "y"
        lines, small = [symbols.html(symbol)], [self.shapes.html(node)]
        tooltip = f"{symbols.plain(symbol)}: output {self.shapes.plain(node)} {node.dtype}"
        box = Box(
            "out",
            self.unique(f"node-{symbols.safe(self.names.stable(node))}"),
            "input",
            "input",
            "output",
            lines,
            small,
            tooltip,
        )
        tail, _ = self.of[self.folded.output]
        box.lane, box.block = ("out", tail.block) if tail.lane in ("S", "O") else (None, "")
        self._add(box, None)
        self._arrow(Arrow(tail, box, "", self._edge_label(node), f"{symbol}, the output", True))

    # --- arrows ---------------------------------------------------------------------------------------------

    def draw_arrows(self) -> None:
        for edge in self.folded.edges:
            tail, port = self.of[edge.tail]
            head = self.of[edge.head][0]
            label = "" if edge.source.op is None else self._edge_label(edge.source)
            arrow = Arrow(tail, head, port, label, self._edge_tooltip(edge), edge.source.differentiable)
            arrow.head_port = self.ports.get(edge, "")
            if self.level == "heads" and tail.shape == "cells" and self._joined(arrow):
                continue
            self._arrow(arrow)

    def _joined(self, arrow: Arrow) -> bool:
        """Level heads: one arrow from a box of parameters to each user. Does it join one that is there?"""
        arrow.port = ""
        for other in self.arrows:
            if other.tail is arrow.tail and other.head is arrow.head:
                other.tooltip += "\n" + arrow.tooltip
                other.differentiable |= arrow.differentiable
                return True
        return False

    def _edge_label(self, node: Node) -> str:
        return "" if self.by_line else self.shapes.html(node)

    def _edge_tooltip(self, edge: Edge) -> str:
        source = symbols.plain(self.names.of(edge.source) or self.names.op(edge.source)[0])
        times = f" ×{edge.times}" if edge.times > 1 else ""
        line = self.names.line(edge.head, html=False) if self.by_line else self.names.op(edge.head.last)[0]
        no = "" if edge.source.differentiable else ", no gradient"
        return f"{source} → {line}\n{self.shapes.plain(edge.source)}, {', '.join(edge.slots)}{times}{no}"

    def _arrow(self, arrow: Arrow) -> None:
        arrow.id = self.unique(f"fwd-{arrow.tail.name}-{arrow.head.name}")
        self.arrows.append(arrow)

    # --- clusters -------------------------------------------------------------------------------------------

    def _add(self, box: Box, cluster: Cluster | None) -> None:
        self.order.append(box)
        box.cluster = cluster
        (self.boxes if cluster is None else cluster.boxes).append(box)

    def _key(self, group: Group) -> str:
        """A fold's key; with its module's path where another fold has the same key."""
        if group.span is None:
            return f"t{group.last.number}"
        path, key = group.span.path, numbered(group.span)
        return f"{path}.{key}" if self.keys[key] > 1 and path else key

    def _cluster(self, group: Group) -> Cluster | None:
        """The innermost cluster: frames, and at level ops also the modules below the one drawn."""
        cluster: Cluster | None = None
        for span in group.members[0].spans:
            if self.level == "heads" and span.index is None:
                continue
            if span.kind == "frame" or (span.kind == "module" and not self.by_line and span.path):
                cluster = self._open(span, cluster)
        return cluster

    def _cluster_of_constant(self, group: Group) -> Cluster | None:
        """A constant that one cluster alone uses stands inside it (level equations)."""
        if group.last.kind != "const" or not self.by_line:
            return None
        found = [self._cluster(user) for user in self.users.get(group, ())]
        return found[0] if found and all(c is found[0] for c in found) else None

    def _open(self, span: Span, parent: Cluster | None) -> Cluster:
        key: object = (span.path, parent) if span.kind == "module" else id(span)
        if key not in self.clusters_by_key:
            last = span.path.rsplit(".", 1)[-1] if span.kind == "module" else span.key
            name = self.bare(f"cluster_{last}" if span.index is None else f"cluster_{last}_{span.index}")
            lines = [last] if span.kind == "module" else self._title(span)
            tooltip = f"module {span.path}" if span.kind == "module" else " ".join(lines)
            made = Cluster(name, lines, tooltip, parent, span.kind == "module", span.index)
            self.clusters_by_key[key] = made
            (self.clusters if parent is None else parent.inner).append(made)
        return self.clusters_by_key[key]

    def _title(self, span: Span) -> list[str]:
        text = span.title or span.key
        for axis, size in self.shapes.sizes.items():
            text = text.replace(f"{{{axis}}}", str(size))
        return [line for line in text.replace("× 1 heads", "× 1 head").split("\n") if "{" not in line]

    def caption(self) -> str:
        """Sizes, and how much was folded."""
        ops = sum(n.op is not None for n in self.graph.nodes)
        count = f"{ops} tape op{'' if ops == 1 else 's'}"
        if not self.by_line:
            count += f", {self.leaves} lea{'f' if self.leaves == 1 else 'ves'}"
        elif any(g.span is not None for g in self.folded.groups):
            count += " folded into equations"
        return "  ·  ".join(([", ".join(sizes)] if (sizes := self.shapes.caption()) else []) + [count])


def numbered(span: Span) -> str:
    """The key of a fold, with the number of the frame that it lies in: scores2."""
    return span.key if span.within is None else f"{span.key}{span.within}"


def _leaves_frame(edge: Edge) -> bool:
    """Does an arrow lead out of a numbered frame?"""
    tail, head = edge.tail.span, edge.head.span
    return tail is not None and tail.within is not None and head is not None and head.within is None


def _path(group: Group) -> str:
    """The innermost module that a group was computed in."""
    if group.span is not None:
        return group.span.path
    return next((s.path for s in reversed(group.members[0].spans) if s.kind == "module"), "")


def _block(group: Group) -> str:
    """The module whose fold gives the group its lane, and which of its heads."""
    spans = (group.span,) if group.span is not None else group.members[0].spans[::-1]
    return next((f"{s.path}#{s.within or ''}" for s in spans if s is not None and s.lane is not None), "")


def _unevenness(first: str, second: str) -> int:
    """The longer half; a break before a plus is worth some characters."""
    return max(length(first), length(second)) + (0 if second[0] in "+−" else 4)
