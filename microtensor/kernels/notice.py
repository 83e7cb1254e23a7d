"""One line on stderr, so that nobody takes the compiling of kernels for a program that hangs.

It appears once in a process, after a second of compiling; never if the kernels are found on disk, nor with
MICROTENSOR_QUIET=1 in the environment.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from numba.core import event

AFTER = 1.0  # seconds
LINE = (
    "microtensor: compiling kernels for this CPU; each is compiled once, then kept on disk "
    "(MICROTENSOR_QUIET=1 hides this line)"
)
_events: Any = event  # numba has no types for it


class _Clock(_events.Listener):  # type: ignore[misc]
    """Adds up the time that compiling our kernels takes; a kernel's helpers are compiled within its time."""

    def __init__(self) -> None:
        self.spent, self.depth, self.since, self.told = 0.0, 0, 0.0, False

    def on_start(self, happening: Any) -> None:
        if not _is_ours(happening):
            return
        if self.depth == 0:
            self.since = time.perf_counter()
        self.depth += 1
        if not self.told and self.spent + time.perf_counter() - self.since > AFTER:
            self.told = True
            with contextlib.suppress(OSError, ValueError):  # stderr is closed: then nobody reads it
                print(LINE, file=sys.stderr, flush=True)

    def on_end(self, happening: Any) -> None:
        if not _is_ours(happening):
            return
        self.depth -= 1
        if self.depth == 0:
            self.spent += time.perf_counter() - self.since


def _is_ours(happening: Any) -> bool:
    module: str = happening.data["dispatcher"].py_func.__module__
    return module.startswith("microtensor.")


def tell_when_compiling() -> None:
    _events.register("numba:compile", _Clock())
