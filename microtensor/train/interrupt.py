"""Ctrl-C that waits for the end of a step."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["Interrupt"]


class Interrupt:
    """Inside the block the first Ctrl-C only sets `requested`; the second one raises KeyboardInterrupt.

    So a step is never cut in half, and a run that hangs can still be stopped. Signals belong to the main
    thread: elsewhere, and where Ctrl-C is ignored, the block does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        ours = threading.current_thread() is threading.main_thread()
        if ours and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
