"""How gradients flow: one walk along the tape that notes what arrives at each node, and along each edge.

The walk is the engine's own, with `mode.watch` looking on: it runs no hook, writes no `.grad` and frees
nothing. A leaf whose gradient is zero up to rounding is found by the size of the terms that it sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from microtensor import engine
from microtensor.cost import PRODUCTS
from microtensor.engine import Entry
from microtensor.mode import Block
from microtensor.viz.fold import Edge, Folded
from microtensor.viz.names import word_of
from microtensor.viz.trace import Graph, Node, grouped, kept, slots_of
from microtensor.walk import unbroadcast, walk

__all__ = ["Flow", "flow", "inputs", "norm", "refuse_freed", "seed"]

# A sum of n float32 terms is 0 if it is below this many units in the last place of their absolute sum: the
# gradient of b_K stays below 1, that of b_Q above 1e5.
ROUNDING = 32

# Through these ops what is added to all keys is a number in each row of scores, and softmax ignores that.
LINEAR = {"add", "cast", "div", "linear", "masked_fill", "matmul", "mul", "neg", "sub", "where"}
NO_SLOPE = "softmax ignores a number that is added to a whole row of scores"
SCORES = "of a row"  # what arrives there adds up to 0 along it: alone no reason for a 0


@dataclass
class Flow:
    """Norms of gradients by node, and of each edge's contribution; whose gradient is zero, or NaN first."""

    start: str  # what the gradient of the result is, in words
    norms: dict[Node, float] = field(default_factory=dict)
    along: dict[Edge, float] = field(default_factory=dict)
    zero: dict[Node, str] = field(default_factory=dict)  # and why, as far as that is known
    broken: Node | None = None  # whose backward was the first to make a NaN


def seed(y: Any, grads: Any) -> tuple[Any, str] | None:
    """The gradient of y that `grads` asks for, as an array, and in words what it is; None for none.

    Raises: ValueError, TypeError for one that does not fit.
    """
    if grads is False or grads is None:
        return None
    if isinstance(grads, str) and grads == "random":  # from a generator of its own: the user's stays as it is
        return np.random.default_rng(0).standard_normal(y.shape).astype(y.dtype), "random"
    if grads is True:
        if math.prod(y.shape) != 1:
            raise ValueError(
                f"draw: grads=True needs a scalar to start from, not {y.shape}; pass the gradient of it as "
                f"grads=, a tensor of that shape, or draw a loss"
            )
        return np.ones(y.shape, y.dtype), "1"
    if not isinstance(grads, engine.Tensor):
        raise TypeError(
            f"draw: grads is {type(grads).__name__}; choose True, False, 'random' or the gradient of y"
        )
    if grads.shape != y.shape:
        raise ValueError(f"draw: grads has shape {grads.shape}, and y {y.shape}; make them equal")
    return grads.array.astype(y.dtype, copy=False), "as given"


def flow(
    graph: Graph, ways: Iterable[Folded], y: Any, start: tuple[Any, str], note: Callable[..., Any]
) -> Flow:
    """Walk from y with its gradient, once for all ways to fold the graph; `note` is told of each VJP.

    Raises: RuntimeError if an earlier backward has freed the tape.
    """
    refuse_freed(graph, "gradients")
    watcher = _Watcher(graph, ways, Flow(start[1]))
    with Block(watch=lambda entry, g, given: note(entry, watcher(entry, g, given))):
        found = walk([(y.grad_fn, start[0])], retain_graph=True)
    for node, gradient, _ in found:
        watcher.arrived(graph.by_id[id(node)], gradient)
    watcher.flow.along |= {edge: norm(total) for edge, total in watcher.sums.items()}
    return watcher.flow


def refuse_freed(graph: Graph, what: str) -> None:
    """Raises: RuntimeError if an earlier backward has freed the tape."""
    freed = next((n for n in graph.nodes if n.op is not None and n.value.saved is None), None)
    if freed is not None:
        raise RuntimeError(
            f"draw: a backward has freed what {freed.value!r} kept, so that no {what} can be drawn; draw "
            f"before it, or let it keep the graph with retain_graph=True"
        )


class _Watcher:
    """What `walk` shows of each VJP."""

    def __init__(self, graph: Graph, ways: Iterable[Folded], flow: Flow) -> None:
        self.graph, self.flow = graph, flow
        edges = (edge for way in ways for edge in itertools.chain(way.edges, *way.like.values()))
        self.edges = grouped((slot, edge) for edge in edges for slot in edge.slots)
        self.sums: dict[Edge, Any] = {}  # of edges that several uses add up to
        self.terms: dict[Node, float] = {}  # how large the terms are that a gradient sums, or passes on
        self.why: dict[Node, set[str]] = {}  # what would make a gradient 0, for each way that it came

    def __call__(self, entry: Entry, g: Any, gradients: Sequence[Any]) -> list[Any]:
        node = self.graph.by_id[id(entry)]
        self.arrived(node, g)
        computed: list[Any] = []
        for (slot, source), given in zip(inputs(self.graph, entry), gradients, strict=True):
            gradient = given() if source is not None and callable(given) else given
            computed.append(None if source is None else gradient)
            if source is not None and gradient is not None:
                self._along(node, slot, source, g, gradient)
        broken = (np.isnan(x).any() for x in computed if x is not None)
        if self.flow.broken is None and not np.isnan(g).any() and any(broken):
            self.flow.broken = node
        return computed

    def arrived(self, node: Node, g: Any) -> None:
        """All of a node's gradient."""
        self.flow.norms[node] = norm(g)
        largest = float(np.max(np.abs(g), initial=0.0))
        rounding = ROUNDING * float(np.finfo(g.dtype).eps) * self.terms.get(node, 0.0)
        if node.op is None and largest <= rounding:
            why = self.why.get(node, {""})
            self.flow.zero[node] = "; ".join(sorted(why)) if why.isdisjoint({"", SCORES}) else ""

    def _along(self, node: Node, slot: str, source: Node, g: Any, raw: Any) -> None:
        """One contribution: its norm, and the size of its terms."""
        shape = source.value.shape
        gradient = unbroadcast(raw, shape) if raw.shape != shape else raw
        for edge in self.edges.get((node, slot), ()):
            if edge.times > 1:
                self.sums[edge] = self.sums.get(edge, 0) + gradient
            else:
                self.flow.along[edge] = norm(gradient)
        size = self._size(node, slot, g, raw, shape)
        self.terms[source] = self.terms.get(source, 0.0) + size
        self.why.setdefault(source, set()).update(self._why(node, slot, g, ends=size == 0))

    def _size(self, node: Node, slot: str, g: Any, raw: Any, shape: tuple[int, ...]) -> float:
        """The largest Σ |terms| of an element: of a bias all rows of g, of what was broadcast all copies."""
        terms = np.abs(g.reshape(-1, g.shape[-1]) if node.op.name == "linear" and slot == "b" else raw)
        terms = unbroadcast(terms, shape)
        moved = self.terms.get(node, 0.0) if node.op.view else 0.0
        return max(float(np.max(terms, initial=0.0)), moved)

    def _why(self, node: Node, slot: str, g: Any, *, ends: bool) -> set[str]:
        """What would make a contribution 0, or does, as the gradient ends here or before; "" for nothing."""
        name, before = node.op.name, self.why.get(node, {"the gradient of the result is 0"})
        if ends:
            return {self._end(node, slot)} if g.any() else before
        if name.endswith("softmax"):
            return {SCORES}
        if (name, slot) == ("attention", "k") or (name, slot, before) == ("matmul", "b", {SCORES}):
            return {NO_SLOPE}
        return before if (node.op.view or name in LINEAR) and before <= {SCORES, NO_SLOPE} else {""}

    def _end(self, node: Node, slot: str) -> str:
        """Why an op passes no gradient on to an argument."""
        name, others = node.op.name, (i for i, other in enumerate(node.op.inputs) if other != slot)
        if name.endswith("softmax") and (node.shape or ())[node.params["axis"]] == 1:
            return f"{name} of one number does not depend on it"
        factors = [kept(node.value, i) for i in others if name in (*PRODUCTS, "mul")]
        nothing = any(x is not None and not np.any(x) for x in factors)
        return f"{word_of(node.op)} {'multiplies it by 0' if nothing else 'passes no gradient on'}"


def inputs(graph: Graph, entry: Entry) -> list[tuple[str, Node | None]]:
    """(slot, node that a gradient goes to, or None) of each input."""
    pairs = ((name, x, isinstance(x, Entry | engine.Tensor)) for name, x in slots_of(entry))
    return [(name, graph.by_id.get(id(x)) if node else None) for name, x, node in pairs]


def norm(g: Any) -> float:
    """‖g‖, added up in float64."""
    return float(np.sqrt(np.sum(np.square(g, dtype=np.float64))))
