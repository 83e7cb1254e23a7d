"""Which op is to blame: each entry of a tape checked numerically by itself, oldest first."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from microtensor import engine
from microtensor.engine import Entry
from microtensor.listing import paths_noted, reachable
from microtensor.mode import Block, mode
from microtensor.tensor import Tensor

__all__ = ["culprit"]

Check = Callable[[Callable[..., Any], Sequence[Any]], str | None]


def culprit(run: Callable[[], Sequence[Tensor]], module: Any, check: Check) -> str:
    """The oldest op behind the results of run() that `check`, called on it alone, finds wrong: in words."""
    ticks: list[int] = []
    calls: list[tuple[Any, list[Any]]] = []
    plain = mode.run

    def noting(forward: Any, *arrays: Any, **params: Any) -> Any:
        ticks.append(next(engine.clock))
        calls.append((forward, [np.array(a) if isinstance(a, np.ndarray) else a for a in arrays]))
        return plain(forward, *arrays, **params)

    with ExitStack() as stack:
        paths = stack.enter_context(paths_noted(module)) if hasattr(module, "named_modules") else None
        stack.enter_context(Block(run=noting))
        results = run()
    entries = {e.index: e for y in results if y.grad_fn is not None for e in reachable(y.grad_fn)}
    if len(entries) == 1:
        return f"the op is {entries.popitem()[1]!r}; correct its VJP"
    for index, entry in sorted(entries.items()):
        at = bisect.bisect(ticks, index) - 1
        while at >= 0 and calls[at][0] is not entry.op.forward:
            at -= 1  # a forward may have called other ops
        fault = None if at < 0 else _fault(entry, calls[at][1], check)
        if fault is not None:
            path = paths and paths.at(index)
            return (
                f"the first wrong op is {entry!r}{f', in {path}' if path else ''}, {fault}; correct its VJP"
            )
    return (
        "each op on the tape is right by itself, so a value leaves the tape on its way; look for detach(), "
        ".data, .array, no_grad or a constant made from an input"
    )


def _fault(entry: Entry, arrays: list[Any], check: Check) -> str | None:
    """What is wrong with one entry, on the values that it got."""
    args = []
    for node, a in zip(entry.inputs, arrays, strict=True):
        wanted = isinstance(node, (Entry, Tensor)) and a.dtype == np.float64
        if isinstance(a, np.ndarray):
            a.flags.writeable = False
            a = engine.make(a, None, None).requires_grad_(wanted)
        args.append(a)
    if not any(isinstance(a, Tensor) and a.requires_grad for a in args):
        return None
    try:
        return check(lambda *xs: entry.op(*xs, **entry.params), args)
    except Exception as error:
        return f"whose backward fails by itself: {type(error).__name__}: {error}"
