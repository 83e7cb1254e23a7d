"""The tape as readable text: `tape(y)` gives one line per entry, oldest first. It only reads.

Parameters are named by their paths if a module is given; run through `tape(module, x)`, each entry also says
in which module it was made.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from microtensor import cost, engine
from microtensor.engine import Entry
from microtensor.walk import walk

__all__ = ["Line", "Tape", "kept_arrays", "kept_bytes", "paths_noted", "reachable", "tape"]


@dataclass(frozen=True)
class Line:
    """One entry of the tape. Inputs are names, `%3` for the result of entry 3; `kept` is in bytes."""

    number: int
    op: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    flop: int
    kept: int  # what backward needs of it and no older entry keeps; parameters and other leaves do not count
    freed: bool  # by a backward: it cannot be walked again
    line: str  # file:line that made it
    path: str | None  # of the module that made it
    grad_norm: float | None = None  # Euclidean norm of the gradient of y (of its sum) by this result


class Tape:
    """What `tape` returns: `entries`, totals, the norms `leaf_grads` by name; `str` makes it a table."""

    def __init__(self, entries: list[Line], leaf_grads: dict[str, float]) -> None:
        self.entries, self.leaf_grads = entries, leaf_grads
        self.bytes_kept = sum(e.kept for e in entries)
        self.flop = sum(e.flop for e in entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        rows = [["", "op", "inputs", "shape", "dtype", "cost", "kept", "line", "module", "‖g‖"]]
        for e in self.entries:
            kept = "freed" if e.freed else cost.readable(e.kept, "B")
            place, norm = os.path.basename(e.line), "" if e.grad_norm is None else f"{e.grad_norm:.3g}"
            rows.append([f"%{e.number}", e.op, ", ".join(e.inputs), str(e.shape), e.dtype,
                         cost.readable(e.flop), kept, place, e.path or "", norm])  # fmt: skip
        columns = [c for c in zip(*rows, strict=True) if any(c[1:])]
        widths = [max(map(len, c)) for c in columns]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*columns, strict=True)]
        lines += [f"‖g‖ of {name}: {norm:.3g}" for name, norm in self.leaf_grads.items()]
        total = f"{cost.readable(self.flop)}, {cost.readable(self.bytes_kept, 'B')} kept for backward"
        return "\n".join([*lines, f"total: {len(self)} ops, {total}"])


def tape(y: Any, *inputs: Any, grads: bool = False) -> Tape:
    """The tape behind a tensor as a table: op, inputs, shape, dtype, cost, bytes kept for backward, line.

    tape(y, module) names y's parameters by their paths; tape(module, *inputs) runs the module once and also
    says in which module each entry was made. grads: norms of gradients too, by a walk of its own that touches
    no `.grad`, runs no hook and frees nothing.

    Shapes: any → a line for each op
    Raises: TypeError or RuntimeError if there is no tensor, or none that was recorded.
    Source: ours.

    >>> import microtensor as mt
    >>> x = mt.ones(2, 3, requires_grad=True)
    >>> print(mt.tape((x * 2.0).exp().sum()))           # doctest: +ELLIPSIS
        op   inputs   shape   dtype    cost    kept  line
    %0  mul  x1, 2.0  (2, 3)  float32  6 FLOP  0 B   <doctest ...
    %1  exp  %0       (2, 3)  float32  6 FLOP  24 B  <doctest ...
    %2  sum  %1       ()      float32  6 FLOP  0 B   <doctest ...
    total: 3 ops, 18 FLOP, 24 B kept for backward
    """
    if not isinstance(grads, bool):
        raise TypeError(f"tape: grads is {grads!r:.60}; choose True or False")
    module, paths = (inputs[0] if inputs else None), _Paths()
    if hasattr(y, "named_modules"):
        module = y
        with paths_noted(module) as paths:
            y = module(*inputs)
        y = y[0] if isinstance(y, tuple | list) else y
    if not isinstance(y, engine.Tensor):
        raise TypeError(f"tape: takes a tensor or a module, not {type(y).__name__}; pass what you computed")
    if not y.requires_grad or y.grad_fn is None:  # a view learns here what happened to its base
        why = "nothing requires a gradient, or no_grad was on; set requires_grad=True before the forward"
        why = "it is a leaf, which no op has made; give what is computed from it" if y.requires_grad else why
        raise RuntimeError(f"tape: this tensor of shape {y.shape} was not recorded: {why}")
    if module is not None and not hasattr(module, "named_parameters"):
        raise TypeError(f"tape: {type(module).__name__} is no module; give the model that made the tensor")
    entries = reachable(y.grad_fn)
    names = _Names(entries, module)
    norms = _norms(y, entries, names) if grads else {}
    lines = []
    for number, (e, kept) in enumerate(zip(entries, kept_bytes(entries), strict=True)):
        shapes = [names.shape(e, i) for i in range(len(e.inputs))]
        lines.append(
            Line(number, e.op.name, tuple(map(names.of, e.inputs)), e.shape, str(e.dtype),
                 cost.flop(e.op, e.shape, shapes), kept, e.saved is None, e.line,
                 paths.at(e.index), norms.get(id(e)))
        )  # fmt: skip
    return Tape(lines, {names.of(leaf): norms[id(leaf)] for leaf in names.leaves if id(leaf) in norms})


def kept_bytes(entries: list[Entry]) -> list[int]:
    """What backward needs of each entry and no older one keeps; leaves that are alive do not count."""
    return [sum(buffer.nbytes for _, buffer, first in kept if first) for kept in kept_arrays(entries)]


def kept_arrays(entries: list[Entry], *, watched: Collection[int] = ()) -> list[list[tuple[str, Any, bool]]]:
    """What each entry keeps: (name in the VJP, buffer that owns its memory, does no older entry keep it?).

    watched: ids of tensors that are alive only because somebody looks on.
    """
    tensors = [x for e in entries for x in map(_alive, e.inputs) if isinstance(x, engine.Tensor)]
    leaves = {id(_buffer(x.array)) for x in tensors if id(x) not in watched}
    seen, found = set[int](), []
    for e in entries:
        kept = []
        for name, array in _saved(e):
            if id(buffer := _buffer(array)) not in leaves:
                kept.append((name, buffer, id(buffer) not in seen))
                seen.add(id(buffer))
        found.append(kept)
    return found


def _saved(entry: Entry) -> Iterator[tuple[str, Any]]:
    """The arrays that an entry keeps; those of a variadic op as xs0, xs1 …"""
    for name, saved in zip(entry.op.kept, entry.saved or (), strict=False):
        several = saved if type(saved) is tuple else (saved,)
        for i, array in enumerate(several):
            if isinstance(array, np.ndarray):
                yield (f"{name}{i}" if type(saved) is tuple else name), array


def reachable(root: Entry) -> list[Entry]:
    """Every entry below root, oldest first."""
    return sorted(engine.below([root], 0), key=lambda entry: entry.index)


class _Paths:
    """Which module was running, by the clock that numbers entries."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.ticks: list[int] = []
        self.paths: list[str | None] = [None]

    def note(self) -> None:
        self.ticks.append(next(engine.clock))
        self.paths.append(self.running[-1] if self.running else None)

    def at(self, index: int) -> str | None:
        """The path of the innermost module that ran when entry `index` was made."""
        return self.paths[bisect.bisect(self.ticks, index)]


@contextlib.contextmanager
def paths_noted(module: Any) -> Iterator[_Paths]:
    """Inside the block, the forwards of a module and of all below it note when they begin and end."""
    paths, handles = _Paths(), []

    def begin(path: str) -> None:
        paths.running.append(path)
        paths.note()

    def end() -> None:
        paths.running.pop()
        paths.note()

    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(lambda m, args, path=path: begin(path)))
        handles.append(part.register_forward_hook(lambda m, args, result: end()))
    try:
        yield paths
    finally:
        for handle in handles:
            handle.remove()


class _Names:
    """What inputs are called: %3 (entry 3), a parameter's path, a tensor's own name, x1, c1 (a constant)."""

    def __init__(self, entries: list[Entry], module: Any) -> None:
        self.known = {id(e): f"%{i}" for i, e in enumerate(entries)}
        self.known |= {id(p): path for path, p in module.named_parameters()} if module is not None else {}
        tensors = {id(t): t for e in entries for t in map(_alive, e.inputs) if isinstance(t, engine.Tensor)}
        self.leaves = [t for t in tensors.values() if t.requires_grad]
        count = {"x": 0, "c": 0}
        for t in tensors.values():
            if id(t) not in self.known:
                letter = "x" if t.requires_grad else "c"
                count[letter] += t.name is None
                self.known[id(t)] = t.name or f"{letter}{count[letter]}"

    def of(self, node: Any) -> str:
        """The name of one input; numbers are their own."""
        node = _alive(node)
        return self.known.get(id(node)) or ("gone" if isinstance(node, weakref.ref) else repr(node))

    def shape(self, entry: Entry, i: int) -> tuple[int, ...] | None:
        """The shape of an input; None if it is gone and was not kept."""
        node = _alive(entry.inputs[i])
        if isinstance(node, weakref.ref):
            plan = zip(entry.op.plan, entry.saved or (), strict=False)
            node = next((s for kept, s in plan if kept == (engine.INPUT, i)), None)
        return None if node is None else getattr(node, "shape", ())


def _alive(node: Any) -> Any:
    found = node() if isinstance(node, weakref.ref) else node
    return node if found is None else found


def _buffer(array: Any) -> Any:
    """The array that owns the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _norms(y: Any, entries: list[Entry], names: _Names) -> dict[int, float]:
    """Id of node → norm of its gradient."""
    wanted = [*entries, *names.leaves]
    found = walk([(y.grad_fn, np.ones(y.shape, y.dtype))], retain_graph=True, wanted=wanted)
    return {id(node): float(np.sqrt(np.sum(np.square(g, dtype=np.float64)))) for node, g, _ in found}
