"""What a run tells while it trains: a progress bar, and one line of JSON per logged step."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tqdm import tqdm

from microtensor.train.files import explaining, replace_file

__all__ = ["Meter", "Report", "prepare_log"]

RECORD = b'{"step": '  # how each line of a log begins
REFRESH = 0.1  # seconds between updates of the bar's numbers
SECONDS = 10.0  # between lines where there is no bar


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


class _Lines:
    """Standard error that is no terminal: a file would keep each look of a bar, mpirun wait for its end."""

    def write(self, text: str) -> None:
        if text.strip():
            sys.stderr.write(text.strip() + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


class Report:
    """The bar and the log of one `fit`; as a `with` block it closes the bar, whatever happens.

    Where standard error is no terminal, it has a line every ten seconds instead of a bar.
    """

    def __init__(self, total: int, start: int, *, log: str | None, progress: bool) -> None:
        lines = {"file": _Lines(), "mininterval": SECONDS}
        how: dict[str, Any] = {"dynamic_ncols": True} if sys.stderr.isatty() else lines
        self._bar = tqdm(total=total, initial=start, unit="step", disable=not progress, **how)
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
        with _explaining(self._log):
            os.makedirs(os.path.dirname(self._log) or ".", exist_ok=True)
            with open(self._log, "ab") as file:
                file.write(json.dumps(strict).encode() + b"\n")  # JSON has no NaN


def prepare_log(path: str, step: int | None) -> None:
    """Make the folder of the log; a last line that was cut off before its end stays a line of its own.

    step: of the checkpoint that a run goes on from. What it wrote after that is taken out, and what a kill
    cut off; other damage after its last record is set aside in PATH.damaged. The log stays readable as JSON,
    line by line. One whose steps do not ascend has other runs' records, too, and is left whole.
    Raises: ValueError for a file of other lines than records, which a run must not mingle with.
    """
    with _explaining(path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        content = b""
        if os.path.isfile(path):
            with open(path, "rb") as file:  # bytes: damage need not be text
                content = file.read()
    lines = content.split(b"\n")
    steps = [_step_of(line) for line in lines]
    records = [i for i in range(len(lines)) if steps[i] < math.inf]
    end = len(lines) if step is None or not records else records[-1]  # what follows it is damage
    for i, line in enumerate(lines[:end], 1):
        if _is_foreign(line):
            raise ValueError(
                f"Trainer: line {i} of the log {path!r} is {line!r:.80}, no record of a run; give log= a "
                f"file of its own, or move this one away"
            )
    ascend = all(steps[i] < steps[j] for i, j in itertools.pairwise(records))
    kept = content + b"\n" if content[-1:] not in (b"", b"\n") else content
    with _explaining(path):
        if step is not None and ascend:
            kept = b"".join(lines[i] + b"\n" for i in records if steps[i] <= step)
            if aside := [line + b"\n" for line in lines[end:] if _is_foreign(line)]:
                with open(f"{path}.damaged", "ab") as file:
                    file.writelines(aside)
        if kept != content:
            replace_file(path, [kept])


def _explaining(path: str) -> contextlib.AbstractContextManager[None]:
    what = f"Trainer: the log {path!r} could not be written"
    return explaining(what, "make room for it; the last checkpoint stays")


def _step_of(line: bytes) -> float:
    try:
        step = json.loads(line.decode())["step"]
        return float(step) if math.isfinite(step) else math.inf
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return math.inf


def _is_foreign(line: bytes) -> bool:
    """Whether it is neither a record nor what is left of one that a kill or a power cut broke off."""
    text = line.strip(b"\0 \t\r")
    return _step_of(line) == math.inf and not (text.startswith(RECORD) or RECORD.startswith(text))
