"""Tape → plain graph: entries and leaves as nodes in topological order, each argument slot named.

It only reads, follows the tape without recursion, and costs time linear in its length. What the layers said
while they ran (symbols, axes, folds) is attached to the nodes; nothing is drawn here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from microtensor import engine
from microtensor.engine import Entry
from microtensor.listing import reachable
from microtensor.nn.module import Parameter
from microtensor.viz import formula
from microtensor.viz.record import Axis, Recorder, Span

__all__ = ["Graph", "Node", "entries_of", "grouped", "kept", "slots_of", "trace"]

Named = Sequence[tuple[str, Any]]  # names and tensors
K = TypeVar("K")
V = TypeVar("V")


@dataclass(eq=False)
class Node:
    """One tape entry (kind "op") or leaf ("input", "param", "const")."""

    number: int  # its place in Graph.nodes
    kind: str
    shape: tuple[int, ...] | None  # None where an input that needs no gradient is gone
    dtype: str
    differentiable: bool  # does a gradient flow through it?
    op: Any = None  # the entry's; None for a leaf
    params: dict[str, Any] = field(default_factory=dict)
    # formal name and value of each argument slot; a value is a node, a number, or None
    arguments: list[tuple[str, Any]] = field(default_factory=list)
    spans: tuple[Span, ...] = ()  # the blocks it was made in, outermost first
    symbol: str | None = None  # from a tag, or the tensor's own name
    given: str | None = None  # the name in draw's `names`
    code: str | None = None  # path of a parameter, name of an argument of forward
    tagged: tuple[Axis, ...] = ()  # what its layer calls its axes, in the order of shape
    axes: tuple[str, ...] | None = None  # what the drawing calls them
    transposed: bool = False  # the symbol means the transpose of the stored tensor
    array: Any = None  # its values, where a layer has tagged it
    memory: int = 0  # of a leaf: the array that owns its elements
    value: Any = None  # the entry itself, or the leaf: a tensor, or an array where that is gone

    @property
    def parents(self) -> list[Node]:
        """The node of each argument slot, in order; one node may fill several."""
        return [value for _, value in self.arguments if isinstance(value, Node)]

    @property
    def fused(self) -> bool:
        """Is it one kernel with a definition in simpler ops?"""
        return self.op is not None and self.op.composite_function is not None

    @property
    def formula(self) -> str:
        """What the op computes, in its formal names."""
        return formula.of_op(self.op, len(self.arguments))

    @property
    def axis(self) -> Any:
        """The axes an op goes along, as short as can be said: one as a number; None for all, or for rows."""
        axis, rank = self.params.get("axis"), len(self.parents[0].shape or ())
        axes = axis if isinstance(axis, tuple) else (axis,)
        rows = self.op is not None and self.op.name.endswith("softmax") and axis in (-1, rank - 1)
        if axis is None or len(axes) == rank or rows:
            return None
        return axes[0] if len(axes) == 1 else axes


@dataclass(eq=False)
class Graph:
    """Nodes, oldest first: arguments before users."""

    nodes: list[Node]
    output: Node
    by_id: dict[int, Node]  # id of an entry, leaf tensor or constant → node
    watched: set[int] = field(default_factory=set)  # ids of constants that only their tags keep alive

    def node_of(self, tensor: Any) -> Node | None:
        """The node of a tensor, if it is drawn."""
        made = getattr(tensor, "grad_fn", None)
        return self.by_id.get(id(tensor if made is None else made))

    def drawn_as(self, tensor: Any) -> list[Node]:
        """The node of a tensor, or else the leaves that are made of its memory, as a mask's is."""
        node, memory = self.node_of(tensor), _memory(tensor)
        return [node] if node is not None else [n for n in self.nodes if n.memory == memory]


def entries_of(y: Any) -> list[Entry]:
    """The tape behind the tensor y, oldest first.

    Raises: TypeError if y is no tensor, RuntimeError if it was not recorded.
    """
    if not isinstance(y, engine.Tensor):
        raise TypeError(f"draw: takes a tensor or a module, not {type(y).__name__}; pass what you computed")
    if y.grad_fn is None:
        why = "no input requires a gradient, or no_grad was on; set requires_grad=True before the forward"
        why = "it is a leaf, which no op has made; draw what is computed from it" if y.requires_grad else why
        raise RuntimeError(
            f"draw: this tensor of shape {y.shape} was not recorded, so there is nothing to draw: {why}"
        )
    return reachable(y.grad_fn)


def trace(y: Any, recorder: Recorder, names: Named, variables: Mapping[int, str] | None = None) -> Graph:
    """The graph behind the tensor y. variables: id of a tensor or entry → what its user calls it.

    Raises: as `entries_of`; ValueError if a tensor that is named is no part of it.
    """
    entries, tracer = entries_of(y), _Tracer(recorder, names, variables or {})
    for entry, spans in zip(entries, _enclosing(entries, recorder.spans), strict=True):
        tracer.add_entry(entry, spans)
    watched = {id(tag.tensor) for tag in recorder.tags.values() if tag.of is not None}
    graph = Graph(tracer.nodes, tracer.by_id[id(y.grad_fn)], tracer.by_id, watched)
    graph.output.symbol = graph.output.symbol or y.name or None
    for name, tensor in names:
        if not graph.drawn_as(tensor):
            raise ValueError(
                f"draw: names calls a tensor of shape {tensor.shape} {name!r}, and it is no part of this "
                f"graph; leave it out, or give the very tensor that was computed with"
            )
    return graph


def slots_of(entry: Entry) -> list[tuple[str, Any]]:
    """The formal name of each argument slot, and what fills it."""
    names = entry.op.inputs or [f"{entry.op.variadic}{i}" for i in range(len(entry.inputs))]
    return list(zip(names, entry.inputs, strict=True))


def _enclosing(entries: list[Entry], spans: list[Span]) -> list[tuple[Span, ...]]:
    """The spans around each entry, outermost first. Spans nest and both lists are in time order: one pass."""
    found, stack, waiting = [], list[Span](), iter(spans)
    following = next(waiting, None)
    for entry in entries:
        while following is not None and following.start <= entry.index:
            while stack and 0 <= stack[-1].end <= following.start:
                stack.pop()
            stack.append(following)
            following = next(waiting, None)
        while stack and 0 <= stack[-1].end <= entry.index:
            stack.pop()
        found.append(tuple(stack))
    return found


class _Tracer:
    def __init__(self, recorder: Recorder, names: Named, variables: Mapping[int, str]) -> None:
        self.recorder, self.variables = recorder, variables
        self.nodes: list[Node] = []
        self.by_id: dict[int, Node] = {}
        self.views: dict[str, Node] = {}  # by place in memory, shape and strides
        self.given = {id(t if t.grad_fn is None else t.grad_fn): name for name, t in names}
        # A mask is reshaped and negated on its way to the tape: it is told by the memory it came from.
        self.given_memory = {_memory(t): name for name, t in names if t.grad_fn is None}
        self.input_memory = {_memory(t): name for name, t in recorder.inputs.values()}

    def add_entry(self, entry: Entry, spans: tuple[Span, ...]) -> None:
        arguments = [(name, self._argument(entry, i, x)) for i, (name, x) in enumerate(slots_of(entry))]
        read = formula.operands(formula.of_op(entry.op, len(arguments)))
        arguments = [(name, self._node(*found)) for name, found in arguments if name in read]
        made = entry.op, entry.params, arguments, spans
        self._add(entry, Node(len(self.nodes), "op", entry.shape, str(entry.dtype), True, *made))

    def _argument(self, entry: Entry, i: int, value: Any) -> tuple[Any, Any]:
        """(value, array): what fills a slot, with the array that the entry kept of it where it is gone."""
        if not isinstance(value, weakref.ref):
            return value, value if isinstance(value, np.ndarray) else None
        alive = value()
        return (value, kept(entry, i)) if alive is None else (alive, None)

    def _node(self, value: Any, kept: Any) -> Any:
        """The node of an argument; numbers and None stay what they are."""
        if value is None or isinstance(value, int | float | bool):
            return value
        node = self.by_id.get(id(value))
        if node is None:
            tag = self.recorder.tags.get(id(value))
            of = value if tag is None or tag.of is None else tag.of
            node = None if of is value else self.views.get(str(of.array.__array_interface__))
            # two constants made of one tensor, or of equal views of it, are one
            self.by_id[id(of)] = node = node or self._add(value, self._leaf(value, kept))
        return node

    def _leaf(self, value: Any, kept: Any) -> Node:
        tensor = value if isinstance(value, engine.Tensor) else None
        tag = self.recorder.tags.get(id(value))
        shown = tag.of if tag is not None and tag.of is not None else tensor if tensor is not None else kept
        shape = None if shown is None else tuple(shown.shape)
        while tag is not None and tag.of is not None and shape and shape[2:] and shape[0] == 1:
            shape = shape[1:]  # axes that only broadcast; a mask of one position is (1, 1)
        dtype = "" if shown is None else str(shown.dtype)
        needs = tensor is not None and tensor.requires_grad
        kind = "const" if tensor is None else self._kind(tensor, shown)
        return Node(len(self.nodes), kind, shape, dtype, needs, array=kept)

    def _kind(self, tensor: Any, shown: Any) -> str:
        if id(tensor) in self.recorder.parameters or isinstance(tensor, Parameter):
            return "param"
        given = _memory(shown) in self.input_memory or id(tensor) in self.given
        tag = self.recorder.tags.get(id(tensor))
        named = given or (tag is not None and tag.of is None)
        return "input" if tensor.requires_grad or (named and shown.dtype.kind != "b") else "const"

    def _add(self, value: Any, node: Node) -> Node:
        """Attach what is known of the tensor by name, and number the node."""
        tag = self.recorder.tags.get(id(value))
        shown = value if tag is None or tag.of is None else tag.of
        node.given, node.code = self.given.get(id(value)), self.recorder.parameters.get(id(value))
        if isinstance(shown, engine.Tensor) and node.op is None:
            node.memory = _memory(shown)
            node.given = node.given or self.given_memory.get(node.memory)
            node.code = node.code or self.input_memory.get(node.memory)
            self.by_id[id(shown)] = self.views[str(shown.array.__array_interface__)] = node
        node.symbol = getattr(value, "name", None)
        if tag is not None:
            node.array = (tag.tensor if tag.of is None else tag.of).array
            node.symbol = tag.symbol or node.symbol
            node.transposed = tag.transposed
            node.tagged = tag.axes
        if node.symbol is None and node.code is None and (name := self.variables.get(id(value))):
            node.symbol, node.code = (None, name) if "." in name else (name, None)
        self.by_id[id(value)] = node
        self.nodes.append(node)
        node.value = value
        return node


def _memory(tensor: Any) -> int:
    """The array that owns a tensor's elements."""
    array = tensor.array
    return id(array if array.base is None else array.base)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, keys and values in order."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def kept(entry: Entry, i: int) -> Any:
    """The array that an entry saved of its input i, if it did."""
    for (kind, j), saved in zip(entry.op.plan, entry.saved or (), strict=False):
        if kind == engine.INPUT and i == j:
            return saved
    return None
