"""Plain graph → what a level draws: the entries of one fold become one group, each other entry a group of its
own.

A group may be drawn as one node only if no path leaves it and returns; the error names such a path.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from microtensor.viz.record import Span
from microtensor.viz.trace import Graph, Node, grouped

__all__ = ["Edge", "Folded", "Group", "block_of", "crosses_frame", "fold", "numbered", "path_of"]


@dataclass(eq=False)
class Group:
    """One drawn node: a leaf, an op, or the ops of a fold."""

    members: list[Node]
    span: Span | None = None  # of the fold, None for a single node
    outputs: list[Node] = field(default_factory=list)  # members used outside, or drawn as the output
    inside: list[Node] = field(default_factory=list)  # parameters that a module hides

    @property
    def last(self) -> Node:
        """The node that stands for the group's result."""
        return self.outputs[-1] if self.outputs else self.members[-1]

    @property
    def home(self) -> Node:
        """Whose lane and frame it has: an op that only moves elements those of what it moves, Kᵀ of K."""
        node = self.members[0]
        while self.span is None and node.op is not None and node.op.view and node.parents[0].op is not None:
            node = node.parents[0]
        return node

    @property
    def lane(self) -> str | None:
        """Its lane: of the fold itself, or of the innermost fold that the op lies in."""
        spans = (self.span,) if self.span is not None else self.home.spans[::-1]
        return next((s.lane for s in spans if s is not None and s.lane is not None), None)


@dataclass(eq=False)
class Edge:
    """One arrow: `source`, a node of group `tail`, fills argument slots of group `head`."""

    source: Node
    tail: Group
    head: Group
    slots: list[tuple[Node, str]]  # of which op, and its argument's name

    @property
    def times(self) -> int:
        """How often the tensor is used."""
        return len(self.slots)


@dataclass(eq=False)
class Folded:
    """Groups in topological order and the arrows between them."""

    groups: list[Group]
    edges: list[Edge]
    output: Group
    of: dict[Node, Group]
    twins: dict[Node, list[Node]] = field(default_factory=dict)  # of a layer that stands for several
    like: dict[Edge, list[Edge]] = field(default_factory=dict)
    repeats: dict[str, tuple[int, str]] = field(default_factory=dict)  # its path → how many, path of the last
    ends: dict[Node, Node] = field(default_factory=dict)  # its result → that of the last of them

    def __post_init__(self) -> None:
        self.uses = Counter(edge.source for edge in self.edges)
        self.stands = {twin: node for node, twins in self.twins.items() for twin in twins}


def numbered(span: Span) -> str:
    """The key of a fold, with the number of the frame that it lies in: scores2."""
    return span.key if span.within is None else f"{span.key}{span.within}"


def crosses_frame(edge: Edge) -> bool:
    """Does an arrow lead into a numbered frame, or out of one? Not a mask's, which comes from the side."""
    tail, head = (group.span and group.span.within for group in (edge.tail, edge.head))
    return tail != head and edge.source.kind != "const"


def path_of(group: Group) -> str:
    """The innermost module that a group was computed in."""
    if group.span is not None:
        return group.span.path
    return next((s.path for s in reversed(group.members[0].spans) if s.kind == "module"), "")


def block_of(group: Group) -> str:
    """The module whose fold gives the group its lane, and which of its heads."""
    spans = (group.span,) if group.span is not None else group.home.spans[::-1]
    return next((f"{s.path}#{s.within or ''}" for s in spans if s is not None and s.lane is not None), "")


def fold(graph: Graph, *, by_line: bool, hidden: Mapping[Node, Span] | None = None) -> Folded:
    """Group the graph: by the folds of the layers (`by_line`), or not at all; and by what hides a node.

    Raises: ValueError if a fold cannot be one node, with the path that leaves it and returns.
    """
    of: dict[Node, Group] = {}
    folds: dict[int, Group] = {}
    for node in graph.nodes:
        span = next((s for s in node.spans if s.kind == "fold"), None) if by_line else None
        span = (hidden or {}).get(node, span)
        if span is None:
            of[node] = Group([node])
            continue
        of[node] = group = folds.setdefault(id(span), Group([], span))
        (group.inside if node.op is None else group.members).append(node)
    edges = _edges(graph, of)
    used = {edge.source for edge in edges} | {graph.output}
    groups = _sorted(list(dict.fromkeys(of.values())), edges)
    for group in groups:
        group.outputs = [n for n in group.members if n in used]
    return Folded(groups, edges, of[graph.output], of)


def _edges(graph: Graph, of: dict[Node, Group]) -> list[Edge]:
    """One edge per argument slot of a single op; all uses of a tensor inside one fold are one edge."""
    edges: dict[object, Edge] = {}
    for node in graph.nodes:
        head = of[node]
        for slot, source in node.arguments:
            if isinstance(source, Node) and of[source] is not head:
                use = (source, head) if head.span is not None else (node, slot)
                edges.setdefault(use, Edge(source, of[source], head, [])).slots.append((node, slot))
    return list(edges.values())


def _sorted(groups: list[Group], edges: list[Edge]) -> list[Group]:
    """Arguments before users, else in the order in which they were computed."""
    users = grouped((edge.tail, edge.head) for edge in edges)
    waiting = Counter(edge.head for edge in edges)
    ready = [(g.members[-1].number, g) for g in groups if not waiting[g]]
    heapq.heapify(ready)
    done: list[Group] = []
    while ready:
        _, group = heapq.heappop(ready)
        done.append(group)
        for user in users.get(group, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (user.members[-1].number, user))
    if len(done) < len(groups):
        raise ValueError(_no_single_node(set(groups) - set(done), users))
    return done


def _no_single_node(left: set[Group], users: dict[Group, list[Group]]) -> str:
    """Walk among the groups that wait for each other until one comes round again."""
    feeding: dict[Group, Group] = {}
    for tail in left:
        for head in users.get(tail, ()):
            feeding.setdefault(head, tail)
    path = [min((g for g in left if g.span is not None), key=lambda g: g.members[0].number)]
    while path[-1] not in path[:-1]:
        path.append(feeding[path[-1]])
    loop = path[path.index(path[-1]) :][::-1]
    start = next(i for i, g in enumerate(loop) if g.span is not None)
    loop = [*loop[start:-1], *loop[:start], loop[start]]
    steps = [g.span.key if g.span is not None else g.members[0].op.name for g in loop]
    return (
        f"fold {steps[0]!r}: cannot be drawn as one node, because a path leaves it and returns: "
        f"{' → '.join(steps)}; put that path inside the fold, or split the fold in two"
    )
