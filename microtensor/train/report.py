"""What a run tells while it trains: a progress bar, and one line of JSON per logged step."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping

from tqdm import tqdm

from microtensor.train.files import explained, replace_file

__all__ = ["Meter", "Report", "trim_log"]

REFRESH = 0.1  # seconds between updates of the bar's numbers


class Meter:
    """Tokens per second of training alone: evaluation and checkpoints do not count."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start counting again."""
        self.tokens, self.seconds = 0, 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """One more step."""
        self.tokens += tokens
        self.seconds += seconds

    @property
    def rate(self) -> float | None:
        """Tokens per second; None if the loss function counts none."""
        return self.tokens / self.seconds if self.tokens and self.seconds else None


class Report:
    """The bar and the log of one `fit`; as a `with` block it closes the bar, whatever happens."""

    def __init__(self, total: int, start: int, *, log: str | None, progress: bool) -> None:
        if log is not None:
            _end_last_line(log)
        self._bar = tqdm(total=total, initial=start, unit="step", dynamic_ncols=True, disable=not progress)
        self._log, self._shown = log, -REFRESH
        self._numbers: dict[str, str] = {}

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.set_postfix(self._numbers, refresh=False)  # the last step's, not those of the last refresh
        self._bar.close()

    def advance(self, numbers: Callable[[], Mapping[str, str]]) -> None:
        """One step further; numbers() is called only if there is a bar."""
        if self._bar.disable:
            return
        now, self._numbers = time.monotonic(), dict(numbers())
        if now - self._shown >= REFRESH:
            self._shown = now
            self._bar.set_postfix(self._numbers, refresh=False)
        self._bar.update()

    def write(self, record: Mapping[str, float]) -> None:
        """One line of the log; it is in the file when this returns, even if its folder had been deleted."""
        if self._log is None:
            return
        strict = {name: value if math.isfinite(value) else None for name, value in record.items()}
        try:
            os.makedirs(os.path.dirname(self._log) or ".", exist_ok=True)
            with open(self._log, "ab") as file:
                file.write(json.dumps(strict).encode() + b"\n")  # JSON has no NaN
        except OSError as error:
            what = f"Trainer: the log {self._log!r} could not be written"
            raise explained(error, what, "make room for it; the last checkpoint stays") from error


def _end_last_line(path: str) -> None:
    """A last line of the log that was cut off before its end stays a line of its own."""
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")


def trim_log(path: str, step: int) -> None:
    """Take out what a run wrote after the step it now goes on from, and lines that are no records.

    Those are lines cut off by a kill and damage of any kind: the log stays readable as JSON, line by line.
    """
    if not os.path.isfile(path):
        return
    with open(path, "rb") as file:  # bytes: damage need not be text
        content = file.read()
    kept = b"".join(line + b"\n" for line in content.split(b"\n") if _step_of(line) <= step)
    if kept != content:
        replace_file(path, [kept])


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line.decode())["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.inf
