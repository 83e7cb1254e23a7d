"""What a page can fold, and into which states: every state is a picture of its own, laid out by Graphviz.

The frames of a drawing fold: modules, heads, and what a layer frames itself. Where few ways to fold them
exist, each is a state; else there is one state a depth, and a click on a frame folds all frames of its depth.
Heads fold together: one that is folded has no place beside one that is not.
Graphviz lays each of them out, so no picture has holes, and no arrow ends where nothing is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from microtensor.viz.axes import Shapes
from microtensor.viz.depth import collapse, hide, module_span, prefixes
from microtensor.viz.findings import of_masks
from microtensor.viz.fold import Folded, fold
from microtensor.viz.frames import Frames
from microtensor.viz.page.calls import Calls
from microtensor.viz.page.describe import summaries
from microtensor.viz.picture import Cluster
from microtensor.viz.record import Span
from microtensor.viz.repeat import repeat
from microtensor.viz.trace import Graph, Node

if TYPE_CHECKING:
    from microtensor.viz.paint import Options

__all__ = ["Folds", "State"]

MOST = 16  # states that are made


class Folds:
    """The frames of a drawing, the states of its page, and the graph folded into each of them.

    The first state is the drawing itself; above max_nodes it is the only one that is folded.
    """

    def __init__(self, graph: Graph, shapes: Shapes, options: Options) -> None:
        self.graph, self.level, self.calls = graph, options.level, Calls(graph)
        self.alone = of_masks(graph) if options.values else {}
        self.values = summaries(graph, self.alone, shapes.code) if options.values else {}
        self.hidden = collapse(graph, options.depth)  # anyway
        folded = self._fold(self.hidden)
        frames = Frames(folded, shapes, options.level, str)
        ops = [n for n in graph.nodes if n.op is not None]
        self.around = {n: _chain(frames.of(folded.of[n])) for n in ops}
        roots = frames.clusters
        heads = any(c.index is not None for c in roots)
        self.together = heads or _count(roots) > MOST  # does a click fold all frames of that depth?
        sets = [frozenset[str](), *_levels(roots)] if self.together else _cuts(roots)
        self.states = [State(self, keys) for keys in sets]
        self.clusters = {c.key: c for c in _all(roots)}
        self.numbers = {state.folded: i for i, state in enumerate(self.states)}
        self.closed = self.numbers[frozenset(c.key for c in roots)]
        others = self.states[1:] if len(folded.groups) < options.max_nodes else []
        self.ways = [folded, *(self._fold(state.hidden()) for state in others)]

    def _fold(self, hidden: Mapping[Node, Span]) -> Folded:
        folded = fold(self.graph, by_line=self.level != "ops", hidden=hidden)
        return repeat(folded) if self.level == "equations" else folded

    def goes(self, state: State, key: str) -> int | None:
        """The number of the state that a click leads to, on a frame or on what it is folded into.

        None for a frame that the drawing itself has not: layers that are alike when they are folded.
        """
        cluster, opens = self.clusters.get(key), key in state.folded
        if cluster is None:
            return None
        if self.together:
            return (1 + _depth(cluster) + opens) % len(self.states)  # below the last all is open
        inner = {c.key for c in _all(cluster.inner)}
        return self.numbers.get(state.folded - {key} if opens else state.folded - inner | {key})


class State(NamedTuple):
    """Which frames are folded, by their keys."""

    folds: Folds
    folded: frozenset[str]

    def unit(self, node: Node) -> Cluster | None:
        """The outermost folded frame around a node."""
        return next((c for c in self.folds.around.get(node, ()) if c.key in self.folded), None)

    def hidden(self) -> dict[Node, Span]:
        """Each node that a folded frame hides → a span for all of the frame."""

        def span_of(node: Node) -> Span | None:
            cluster = self.unit(node)
            return self.folds.hidden.get(node) if cluster is None else _span(node, cluster)

        return hide(self.folds.graph, span_of)


def _span(node: Node, cluster: Cluster) -> Span | None:
    """A span for the frame around a node; of layers that are alike, that of the node's own layer."""
    path, _, frame = cluster.key.partition("#")
    if not frame:
        return module_span(node, len(prefixes(path)))
    own = next(s for s in node.spans if s.kind == "frame" and f"{s.key}{s.index or ''}" == frame)
    return Span("frame", own.key, own.path, 0, lane="O", title=own.key, within=own.index)


def _chain(cluster: Cluster | None) -> tuple[Cluster, ...]:
    """A cluster and those around it, outermost first."""
    return () if cluster is None else (*_chain(cluster.parent), cluster)


def _depth(cluster: Cluster) -> int:
    return len(_chain(cluster)) - 1


def _all(clusters: Sequence[Cluster]) -> Iterator[Cluster]:
    for cluster in clusters:
        yield cluster
        yield from _all(cluster.inner)


def _count(clusters: Sequence[Cluster]) -> int:
    """How many ways there are to fold some of them."""
    return math.prod(1 + _count(c.inner) for c in clusters)


def _cuts(clusters: Sequence[Cluster]) -> list[frozenset[str]]:
    """Every way to fold some of them, nothing folded first; what is inside a folded one does not count.

    The frames of one module, one for each go, fold together.
    """
    each = [[*_cuts(c.inner), frozenset({c.key})] for c in clusters]
    return list(dict.fromkeys(frozenset().union(*ways) for ways in itertools.product(*each)))


def _levels(clusters: Sequence[Cluster]) -> list[frozenset[str]]:
    """All frames of a depth folded, for each depth, outermost first."""
    depths: dict[int, set[str]] = {}
    for cluster in _all(clusters):
        depths.setdefault(_depth(cluster), set()).add(cluster.key)
    return [frozenset(depths[depth]) for depth in sorted(depths)]
