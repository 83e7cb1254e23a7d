"""The walk: gradients travel from a result back to the leaves, through each entry once, newest first.

An input is always older than the result made from it, so a heap that gives the newest entry first hands out
each entry only after all of its gradients have arrived. That is the whole topological sort.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from types import FunctionType
from typing import Any

import numpy as np
from numpy import ndarray

from microtensor import engine
from microtensor.dtypes import NARROW
from microtensor.engine import Entry, above, below
from microtensor.mode import ignore, mode, numpy_errors
from microtensor.pieces import Pieces
from microtensor.place import caller, clock, last_change, last_walk
from microtensor.refusals import check

__all__ = ["unbroadcast", "walk"]


class _Arrivals(dict[Any, Any]):
    """node → gradient: what has arrived at an entry or leaf and waits there; `ours`: where we may write.

    With `wanted` nodes it comes only to `near` ones: to these `goals`, and to `useful` entries above them.
    """

    __slots__ = ("found", "goals", "heap", "near", "ours", "useful")

    def __init__(self, roots: Sequence[tuple[Any, Any]], wanted: Iterable[Any] | None) -> None:
        self.heap: list[tuple[int, Entry]] = []
        self.ours: set[Any] = set()
        self.found: dict[Any, Any] = {}  # what nothing more comes to
        self.goals, self.useful, self.near = set(wanted or ()), None, None
        if wanted is not None:
            oldest = min((n.index if isinstance(n, Entry) else -1 for n in self.goals), default=0)
            self.useful = above(below(dict(roots), oldest), self.goals)
            self.near = self.useful | self.goals
        for node, g in roots:
            if self.near is None or node in self.near:
                self.add(node, g, False)

    def add(self, node: Any, g: Any, ours: bool) -> None:
        if node not in self:
            self[node] = g
            if type(node) is Entry:
                heappush(self.heap, (-node.index, node))
        elif node in self.ours:
            self[node] += g
        else:  # law 4: the first arrival may be shared with someone else, so the sum is a new array
            self[node] = g = self[node] + g
            ours = type(g) is ndarray  # with create_graph it is a tensor: never in place
        if ours:
            self.ours.add(node)

    def merge(self, node: Any, later: partial[Any]) -> Any:
        """later(), but None where it places a piece's gradient and that waits at the node now."""
        if later.func is not engine.registry["put_add"]:
            return later()
        if node not in self:
            self.add(node, Pieces(), True)
        elif type(self[node]) is not Pieces:
            self[node] = Pieces([(Ellipsis, self[node])])
            self.ours.add(node)
        self[node].append((later.keywords["index"], later.args[0]))
        return None

    def settle(self, leaves: Iterable[Any], retained: Any) -> None:
        """Leaves that nothing more comes to: pieces are joined, and hooks run."""
        for leaf in leaves:
            if type(self[leaf]) is Pieces:
                self[leaf], ours = self[leaf].joined(leaf.array)
                (self.ours.add if ours else self.ours.discard)(leaf)
            if retained is not None and leaf.hooks is not None:
                self[leaf] = leaf.hooks(self[leaf], leaf, engine.make, retained)
                self.ours.discard(leaf)
            self.found[leaf] = self[leaf]

    def telling_pop(self, retained: Any) -> Callable[[Any], tuple[int, Entry]]:
        """A heappop that tells mode.complete of the leaves which no entry from the one it gives on uses."""
        due = mode.complete.due(entry for _, entry in self.heap)

        def pop(heap: Any) -> tuple[int, Entry]:
            newest = heappop(heap)
            while due and due[-1][0] > newest[1].index:
                if (leaf := due.pop()[1]) in self:
                    self.settle([leaf], retained)
                    mode.complete(leaf, self.pop(leaf))
            return newest  # type: ignore[no-any-return]

        return pop


def walk(
    roots: Sequence[tuple[Any, Any]],
    retain_graph: bool = False,
    create_graph: bool = False,
    wanted: Iterable[Any] | None = None,
    beyond: bool = True,
    retained: list[tuple[Any, Any]] | None = None,
    who: str = "backward",
) -> list[tuple[Any, Any, bool]]:
    """Carry gradients from (node, gradient) pairs back along the tape, each entry visited once, newest first.

    Nodes are entries or leaf tensors. Gradients are arrays, or tensors with `create_graph`, which records the
    walk itself. Returns (node, gradient, ours) for every leaf reached, or for the `wanted` nodes alone;
    `ours` says that nobody else holds that array. Without `beyond` the walk ends at a wanted node. Hooks run
    if a list `retained` is given: it takes (tensor, gradient) where an inner tensor retains its gradient.
    """
    now, arrivals = mode.__dict__, _Arrivals(roots, wanted)  # one look into what is the thread's own
    heap, add, take, waiting, ours = arrivals.heap, arrivals.add, arrivals.pop, arrivals.get, arrivals.ours
    by, newest, tensor, near = (who, caller(3)), -heap[0][0] if heap else -1, engine.Tensor, arrivals.near
    pop, watch = heappop if now["complete"] is None else arrivals.telling_pop(retained), now["watch"]
    gradients_of, recording, now["grad"] = now["vjp"] or _gradients_of, now["grad"], create_graph
    useful, loud = arrivals.useful, numpy_errors.set(ignore)
    try:
        while heap:
            entry = pop(heap)[1]  # whatever uses it is newer, so all its gradients have arrived
            g = take(entry)
            g = g.joined(entry)[0] if type(g) is Pieces else g
            if entry.hooks is not None and retained is not None:
                g = entry.hooks(g, entry, engine.make, retained)
            if useful is not None and entry in arrivals.goals:
                arrivals.found[entry] = g
                if entry not in useful or not beyond:
                    continue
            if entry.saved is None or (entry.index < last_change[0] and entry.checks):
                check(entry, roots)
            gradients, nodes = gradients_of(entry, g, create_graph), iter(entry.inputs)
            gradients = gradients if watch is None else watch(entry, g, gradients)
            for d in gradients:  # a zip would take twice as long as this
                node = next(nodes)
                like = node if type(node) is Entry else node.array if isinstance(node, tensor) else None
                if d is None or like is None or not (near is None or node in near):
                    continue
                if type(d) is not ndarray and (type(d) is FunctionType or callable(d)):
                    d = d() if type(d) is not partial or create_graph else arrivals.merge(node, d)
                fits = type(d) is ndarray and d.shape == like.shape and d.dtype is like.dtype
                if fits and (there := waiting(node)) is None:  # as add() does it, in no call
                    arrivals[node] = d
                    if like is node:
                        heappush(heap, (-node.index, node))
                elif fits and node in ours:
                    there += d
                elif d is not None:
                    add(node, *((d, False) if fits else _fit(entry, node, d)))
            if entry.op.keeps_arrays and not (retain_graph or create_graph):
                entry.saved, entry.checks = None, by  # whoever comes again is told by whom it was freed
        arrivals.settle(arrivals, retained)
    finally:
        numpy_errors.reset(loud)
        now["grad"], last_walk[:] = recording, (next(clock), by[1], newest)
    return [(n, g, n in ours and type(n) is not Entry) for n, g in arrivals.found.items()]


def _gradients_of(entry: Entry, g: Any, create_graph: bool) -> Sequence[Any]:
    """Ask the VJP: on arrays for a first derivative, on tensors (recorded) for higher ones.

    A gradient may be None (there is none) or a function without arguments, called only where it is needed.
    """
    op, params, saved, vjp = entry.op, entry.params, entry.saved, entry.op.vjp_function
    if create_graph:
        if op.residuals:
            return _through_composite(entry, g)
        saved = tuple(_reattach(entry, kind, i, s) for (kind, i), s in zip(op.plan, saved, strict=True))
    if params and len(params) != len(op.vjp_params):
        params = {name: params[name] for name in op.vjp_params}
    try:
        if params:
            gradients = vjp(g, *saved, **params)
        elif not saved:
            gradients = vjp(g)
        else:  # written out it is twice as fast, and on the way of nearly every gradient
            gradients = vjp(g, saved[0], saved[1]) if len(saved) == 2 else vjp(g, *saved)
    except Exception as error:
        error.add_note(f"in the backward of {entry!r}")
        if create_graph or isinstance(error, AttributeError | TypeError) or "truth value" in str(error):
            error.add_note("its VJP is called on arrays, and on tensors to be differentiated: write it in "
                           "operators and functions of ops (microtensor.ops.where for np.where), without "
                           "numpy() and detach()")  # fmt: skip
        raise
    if not isinstance(gradients, tuple) or len(gradients) != len(entry.inputs):
        raise TypeError(f"{op.name}.vjp: must return a tuple of {len(entry.inputs)} gradients, one an input")
    return gradients


def _reattach(entry: Entry, kind: int, i: int, saved: Any) -> Any:
    """A saved array becomes the tensor it was, with its entry, so that it is differentiated again."""
    if kind == engine.OUTPUT:
        return engine.make(saved, entry, None)
    if kind == engine.INPUT:
        return _input_tensor(entry.inputs[i], saved)
    if kind == engine.ALL_INPUTS:
        return tuple(_input_tensor(n, s) for n, s in zip(entry.inputs, saved, strict=True))
    return saved


def _input_tensor(node: Any, array: Any) -> Any:
    if isinstance(node, engine.Tensor) or not isinstance(array, np.ndarray):
        return node if isinstance(node, engine.Tensor) else array
    return engine.make(array, node if isinstance(node, Entry) else None, None)


def _through_composite(entry: Entry, g: Any) -> list[Any]:
    """A fused op with residuals is differentiated again through its definition, on the inputs it kept.

    An input that its VJP does not name cannot matter to the gradient, so zeros stand in for its values.
    """
    if entry.op.composite_function is None:
        raise RuntimeError(f"backward: {entry!r} has residuals and no definition in simpler ops, so that it "
                           f"can be differentiated only once; give it one with @{entry.op.__name__}"
                           f".composite")  # fmt: skip
    kept = {i: s for (kind, i), s in zip(entry.op.plan, entry.saved, strict=True) if kind == engine.INPUT}
    inputs = []
    for i, node in enumerate(entry.inputs):
        unseen = 0.0 if isinstance(node, weakref.ref) else node
        unseen = np.zeros(node.shape, node.dtype) if isinstance(node, Entry) and i not in kept else unseen
        inputs.append(_input_tensor(node, kept.get(i, unseen)))
    y = entry.op.composite_function(*inputs, **entry.params)
    nodes = [n for n in entry.inputs if isinstance(n, (Entry, engine.Tensor))]
    # one input may have been made from another: going on to it is the outer walk's business
    arrived = walk([(y.grad_fn, g)], create_graph=True, wanted=nodes, beyond=False)
    gradients = {id(node): gradient for node, gradient, _ in arrived}
    return [gradients.pop(id(n), None) for n in entry.inputs]  # of a repeated input the first has the sum


def _fit(entry: Entry, node: Any, g: Any) -> tuple[Any, bool]:
    """The one place where broadcasting is undone (law 1): sum over the axes that the input did not have."""
    if type(g) is not np.ndarray and not isinstance(g, engine.Tensor):
        g = np.asarray(g)
    ours = False
    if g.shape != node.shape:
        if not (entry.op.broadcasts and _broadcasts_to(node.shape, g.shape)):
            raise RuntimeError(f"{entry.op.name}.vjp: gave a gradient of shape {g.shape} for an input of "
                               f"shape {node.shape}; make them equal, or declare the op with broadcasts=True "
                               f"if its inputs broadcast")  # fmt: skip
        ours = isinstance(g, np.ndarray)
        g = unbroadcast(g, node.shape)
        g = np.asarray(g) if ours else g  # NumPy turns 0-d sums into scalars
    if g.dtype != node.dtype:
        who = f"{entry.op.name}.vjp"
        raise RuntimeError(f"{who}: gave a {g.dtype} gradient for a {node.dtype} input; {NARROW}")
    return g, ours


def _broadcasts_to(shape: tuple[int, ...], wider: tuple[int, ...]) -> bool:
    extra = len(wider) - len(shape)
    return extra >= 0 and all(n in (1, m) for n, m in zip(shape, wider[extra:], strict=True))


def unbroadcast(g: Any, shape: tuple[int, ...]) -> Any:
    """Sum g over the axes that broadcasting added to or stretched in `shape`: the adjoint of broadcasting."""
    extra = g.ndim - len(shape)
    axes = [*range(extra), *(extra + i for i, n in enumerate(shape) if n == 1 and g.shape[extra + i] != 1)]
    summed = engine.registry["sum"](g, axis=tuple(axes), keepdims=False)
    return engine.registry["reshape"](summed, shape=shape)
