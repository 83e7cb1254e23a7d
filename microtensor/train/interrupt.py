"""Ctrl-C and SIGTERM that wait for the end of a step."""

from __future__ import annotations

import signal
import threading
from time import monotonic
from types import FrameType
from typing import Any

__all__ = ["Interrupt", "Stopped"]

BOUNCE = 1.0  # seconds: a key that bounces, or a wrapper that passes a signal on as well, is quicker


class Stopped(KeyboardInterrupt):
    """A run was stopped by a signal; the text says what is saved and how to go on.

    `code` is the exit status by convention, 128 and the signal's number: 130 after Ctrl-C, 143 after SIGTERM.

    Source: POSIX shells, which give such a status.
    """

    def __init__(self, text: str, number: int = signal.SIGINT) -> None:
        super().__init__(text)
        self.code = 128 + number


class Interrupt:
    """Inside the block a signal only sets `requested`; one that comes 1 s later raises KeyboardInterrupt.

    So a step is never cut in half, and a run that hangs can still be stopped. What comes sooner is the same
    wish, heard twice. Signals belong to the main thread: elsewhere the block does nothing, and neither for a
    signal that is ignored.
    """

    def __init__(self) -> None:
        self.requested = False
        self.number: int = signal.SIGINT  # of the last signal that counted
        self._patient = 0.0  # until this time nothing else counts
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:  # else it was changed inside, to last
                signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.requested:  # which is set last: another signal may come in between
            self.number, self._patient, self.requested = number, monotonic() + BOUNCE, True
        elif monotonic() >= self._patient:
            self.number = number
            raise KeyboardInterrupt
