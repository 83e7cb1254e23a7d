"""The backward as the engine walks it: every VJP in order, and what each adds to which gradient.

A listener beside `flow`: it sees the arrays that the engine adds up, adds them in the same order, and keeps
norms. Where no gradient is drawn, the order alone is known, since the walk takes the newest entry first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from microtensor.engine import Entry
from microtensor.viz.flow import inputs, norm
from microtensor.viz.trace import Graph, Node
from microtensor.walk import unbroadcast

__all__ = ["Arrival", "Call", "Calls"]


class Arrival(NamedTuple):
    """What one argument slot gives the gradient of its source: its norm, and that of the sum so far."""

    slot: str
    source: Node
    norm: float | None = None  # unknown where no gradient is drawn
    total: float | None = None


class Call(NamedTuple):
    """One call of a VJP: which op's, and what arrives where by it."""

    node: Node
    arrivals: list[Arrival]


class Calls:
    """Notes each VJP when it is called by the walk."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.noted: list[Call] = []
        self.waiting: dict[Node, Any] = {}  # the sum of what has arrived

    def note(self, entry: Entry, gradients: Sequence[Any]) -> Sequence[Any]:
        """Its gradients, which are returned as they are."""
        node = self.graph.by_id[id(entry)]
        self.waiting.pop(node, None)
        pairs = zip(inputs(self.graph, entry), gradients, strict=True)
        arrivals = [self._arrival(slot, x, g) for (slot, x), g in pairs if x is not None and g is not None]
        self.noted.append(Call(node, arrivals))
        return gradients

    def _arrival(self, slot: str, source: Node, raw: Any) -> Arrival:
        shape = source.value.shape
        gradient = unbroadcast(raw, shape) if raw.shape != shape else raw
        total = self.waiting[source] + gradient if source in self.waiting else gradient
        self.waiting[source] = total
        return Arrival(slot, source, norm(gradient), norm(total))

    @property
    def in_order(self) -> list[Call]:
        """What was noted, or the order alone, newest first, where nothing was walked."""
        newest = sorted((n for n in self.graph.nodes if n.op is not None), key=lambda n: -n.value.index)
        return self.noted or [Call(node, self._unknown(node)) for node in newest]

    def _unknown(self, node: Node) -> list[Arrival]:
        return [Arrival(slot, source) for slot, source in inputs(self.graph, node.value) if source]
