"""What happens while a profile runs: a span of time for each op, VJP, module call and optimiser step.

A recorder listens in one thread. It stands in for how that thread's mode runs forwards and VJPs; `patches`, a
table of methods that every thread shares, is in force while any recorder listens, and passes others by.
"""

from __future__ import annotations

import bisect
import functools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from microtensor import cost, engine, walk
from microtensor.engine import Entry, Op
from microtensor.listing import kept_bytes, reachable
from microtensor.memory import shares
from microtensor.mode import mode
from microtensor.nn.module import Module
from microtensor.optim.optimizer import Optimizer

__all__ = ["Call", "Recorder", "Span", "enter", "leave"]

now = time.perf_counter_ns
PRODUCTS = (*cost.PRODUCTS, "attention")  # it is two of them


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module, and the call it was made in."""

    path: str
    outer: Call | None

    def chain(self) -> list[Call]:
        """The calls around this one and itself, outermost first."""
        return [*(self.outer.chain() if self.outer else ()), self]


@dataclass(slots=True, eq=False)
class Span:
    """From start to end (ns), of which `inside` went to spans in it and to our own work for them.

    kind: "op", "module" or "step". A backward span is an entry's VJP; a `late` one a gradient that the VJP
    had put off until it was needed. Shapes are the forward's; bytes are `made` by it or `kept` for backward.
    """

    kind: str
    name: str
    call: Call | None  # the innermost module that it belongs to; of a module's own span, its call
    above: Span | None  # the span that it lies in
    began: int  # when we were called: `start` comes after our own work
    start: int = 0
    end: int = 0
    inside: int = 0
    op: Op | None = None
    shape: Any = None
    shapes: tuple[Any, ...] = ()
    made: int = 0
    kept: int = 0
    backward: bool = False
    late: bool = False
    index: int = -1  # of the entry, if backward
    wanted: int = 0  # how many of the first two inputs take a gradient, if backward

    @property
    def own(self) -> int:
        """Nanoseconds without what lies inside."""
        return self.end - self.start - self.inside

    @property
    def flop(self) -> int:
        """Operations of the forward; a VJP takes as many, but a product has one product per gradient."""
        if self.op is None or self.late:
            return 0
        count = cost.flop(self.op, self.shape, self.shapes)
        return count * self.wanted if self.backward and self.op.name in PRODUCTS else count


class Recorder:
    """The spans of one thread, as long as some profile listens there."""

    def __init__(self) -> None:
        self.profiles: list[Any] = []
        self.thread = threading.get_ident()
        self.spans: list[Span] = []  # in the order of their ends
        self.open: list[Span] = []
        self.call: Call | None = None
        self.own = 0  # ns of our own work
        self._running = 0  # forwards that are running: some run ops
        self._modules: dict[int, tuple[Module, str]] = {}  # id → (it, kept alive; its path)
        self._ticks: list[int] = []  # of the clock that numbers entries, at the end of each forward,
        self._forwards: list[Span] = []  # and its span: the entry that it leaves is the next of this thread
        self._weighed: set[int] = set()  # entries whose kept bytes are known, by index,
        self._kept: dict[int, int] = {}  # and those bytes, until their VJP runs
        self._ops: dict[Any, Op] = {}
        self._run, self._vjp = self.run, self.vjp  # bound once: known again by identity

    # --- the mode of this thread ----------------------------------------------------------------------------

    def listen(self) -> None:
        """Stand in for how forwards and VJPs run; anomaly detection, before or after, runs through us."""
        self._quiet, self._vjp_before = mode.quiet, mode.vjp
        self._gradients_of: Callable[..., Sequence[Any]] = mode.vjp or walk._gradients_of
        if mode.run is mode.quiet:
            mode.run = self._run
        mode.quiet, mode.vjp = self._run, self._vjp

    def retire(self) -> None:
        """Put back what we stand in for, wherever it still is us."""
        if mode.quiet is self._run:
            mode.quiet = self._quiet
        if mode.run is self._run:
            mode.run = self._quiet
        if mode.vjp is self._vjp:
            mode.vjp = self._vjp_before

    def run(self, forward: Callable[..., Any], *arrays: Any, **params: Any) -> Any:
        """How an op's forward runs in this thread."""
        began = now()
        if not self.profiles:  # the last one ended in another thread, or inside a block that put us back
            self.retire()
            return self._quiet(forward, *arrays, **params)
        op = self._op_of(forward)
        span = self._begin(began, "op", op.name if op else forward.__name__, op=op)
        self._running += 1
        try:
            if self._running > 1:  # inside another forward it is quiet already
                result = forward(*arrays, **params)
            else:
                result = self._quiet(forward, *arrays, **params)
            span.end = now()
            self._describe(span, arrays, result)
            return result
        finally:
            self._running -= 1
            self._end(span)

    def vjp(self, entry: Entry, g: Any, create_graph: bool) -> Sequence[Any]:
        """How an entry's VJP runs in this thread: for the module that made the entry."""
        began = now()
        if not self.profiles:
            self.retire()
            return self._gradients_of(entry, g, create_graph)
        if entry.index not in self._weighed:
            self._weigh(entry)
        made = self._maker(entry)
        before, self.call = self.call, made.call if made else None
        span = self._begin(began, "op", entry.op.name, op=entry.op, backward=True, index=entry.index)
        span.shape, span.shapes = entry.shape, made.shapes if made else tuple(map(_shape, entry.inputs))
        span.wanted = sum(isinstance(node, (Entry, engine.Tensor)) for node in entry.inputs[:2])
        span.kept = self._kept.pop(entry.index, 0)
        span.start = now()
        try:
            gradients = self._gradients_of(entry, g, create_graph)
            span.end = now()
            return [functools.partial(self._later, span, x) if callable(x) else x for x in gradients]
        finally:
            self._end(span)
            self.call = before

    def _later(self, of: Span, gradient: Callable[[], Any]) -> Any:
        began = now()
        before, self.call = self.call, of.call
        span = self._begin(began, "op", of.name, op=of.op, backward=True, index=of.index, late=True)
        span.shape, span.shapes = of.shape, of.shapes
        try:
            return gradient()
        finally:
            self._end(span)
            self.call = before

    # --- methods of every thread ----------------------------------------------------------------------------

    def module(self, call: Callable[..., Any], module: Module, *args: Any, **kwargs: Any) -> Any:
        """How a module is called in this thread."""
        began = now()
        before, self.call = self.call, Call(self.path_of(module), self.call)
        span = self._begin(began, "module", self.call.path)
        try:
            return call(module, *args, **kwargs)
        finally:
            self._end(span)
            self.call = before

    def step(self, step: Callable[..., Any], optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """How an optimiser steps in this thread."""
        span = self._begin(now(), "step", f"{type(optimizer).__name__}.step")
        try:
            return step(optimizer, *args, **kwargs)
        finally:
            self._end(span)

    def path_of(self, module: Module) -> str:
        """The path of a module below the first outermost one, which itself is called by its class.

        Of another outermost one the class, with a number if that is taken, stands before the paths below it.
        """
        if id(module) not in self._modules:
            taken = {path for _, path in self._modules.values()}
            stem = type(module).__name__ if self.call is None else f"{self.call.path}.{type(module).__name__}"
            names = (stem if n == 1 else f"{stem} {n}" for n in range(1, len(taken) + 2))
            name = next(name for name in names if name not in taken)
            for path, part in module.named_modules(None, name if taken else ""):
                self._modules.setdefault(id(part), (part, path or name))
        return self._modules[id(module)][1]

    # --- spans ----------------------------------------------------------------------------------------------

    def _begin(self, began: int, kind: str, name: str, **details: Any) -> Span:
        span = Span(kind, name, self.call, self.open[-1] if self.open else None, began, **details)
        self.open.append(span)
        span.start = now()
        return span

    def _end(self, span: Span) -> None:
        span.end = span.end or now()
        self.open.pop()
        self.spans.append(span)
        over = now() - span.began
        self.own += over - (span.end - span.start)
        if span.above is not None:
            span.above.inside += over

    def _op_of(self, forward: Callable[..., Any]) -> Op | None:
        if forward not in self._ops:
            self._ops = {op.forward: op for op in engine.registry.values()}
        return self._ops.get(forward)

    def _describe(self, span: Span, arrays: tuple[Any, ...], result: Any) -> None:
        results = (result[0], *result[1]) if type(result) is tuple else (result,)
        span.shape, span.shapes = np.shape(results[0]), tuple(getattr(a, "shape", ()) for a in arrays)
        given = [a for a in arrays if isinstance(a, np.ndarray)]
        span.made = sum(getattr(y, "nbytes", 0) for y in results
                        if not (isinstance(y, np.ndarray) and any(shares(y, a) for a in given)))  # fmt: skip
        self._ticks.append(next(engine.clock))
        self._forwards.append(span)

    def _maker(self, entry: Entry) -> Span | None:
        """The span of the forward that left this entry; None if that was before us."""
        i = bisect.bisect(self._ticks, entry.index) - 1
        span = self._forwards[i] if i >= 0 else None
        return span if span and span.op is entry.op and span.shape == entry.shape else None

    def _weigh(self, root: Entry) -> None:
        entries = reachable(root)
        for entry, kept in zip(entries, kept_bytes(entries), strict=True):
            if entry.index not in self._weighed:
                self._weighed.add(entry.index)
                self._kept[entry.index] = kept


def _shape(node: Any) -> Any:
    """The shape of an entry's input: None for a tensor that is gone."""
    node = node() if isinstance(node, weakref.ref) else node
    return None if node is None else getattr(node, "shape", ())


# --- who listens --------------------------------------------------------------------------------------------


class _State(threading.local):
    recorder: Recorder | None = None


class _Patch:
    """A method replaced, while some recorder listens, by one that runs through the recorder of its thread."""

    def __init__(self, owner: type, name: str, through: Callable[..., Any]) -> None:
        self.owner, self.name, self.original = owner, name, getattr(owner, name)
        self.active, original = True, self.original

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            recorder = _state.recorder
            if not self.active or recorder is None or not recorder.profiles:
                return original(*args, **kwargs)
            return through(recorder, original, *args, **kwargs)

        self.method = method
        setattr(owner, name, method)

    def undo(self) -> None:
        """Put the original back, unless somebody has replaced ours since: then ours only passes on."""
        self.active = False
        if self.owner.__dict__[self.name] is self.method:
            setattr(self.owner, self.name, self.original)


_state = _State()
_lock = threading.Lock()
_listening = 0  # recorders with profiles, in all threads
_patches: list[_Patch] = []


def enter(profile: Any) -> Recorder:
    """One more profile listens in this thread. Several share its recorder."""
    global _listening
    recorder = _state.recorder
    if recorder is None or not recorder.profiles:
        if recorder is not None:
            recorder.retire()
        with _lock:
            _listening += 1
            if _listening == 1:
                _patches.append(_Patch(Module, "__call__", Recorder.module))
                _patches.append(_Patch(Optimizer, "step", Recorder.step))
        recorder = _state.recorder = Recorder()
        recorder.listen()
    recorder.profiles.append(profile)
    return recorder


def leave(profile: Any, recorder: Recorder) -> None:
    """This profile listens no more. In whatever order they end, the last one puts everything back."""
    global _listening
    recorder.profiles.remove(profile)
    if recorder.profiles:
        return
    if recorder is _state.recorder:  # else it is another thread's, where it retires when it is next called
        recorder.retire()
        _state.recorder = None
    with _lock:
        _listening -= 1
        while not _listening and _patches:
            _patches.pop().undo()
