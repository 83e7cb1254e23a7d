"""When and where in the user's code something was made: noted in a fraction of a microsecond."""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import warnings
from types import CodeType, FrameType
from typing import Any, TypeAlias
from weakref import ref

__all__ = ["Place", "caller", "clock", "last_change", "last_walk", "last_zeroed", "line_of",
           "mark_changed", "noted", "users", "warn"]  # fmt: skip

Place: TypeAlias = tuple[CodeType, int]  # code and instruction
clock = itertools.count()  # numbers all that happens, in its order
last_change = [-1]  # when anything was last changed in place: what was made later is as it was
# where, and whose, zero_grad() was last called since the last backward
last_zeroed: list[tuple[Place | None, str] | None] = [None]
last_walk: list[Any] = [-1, None, -1]  # when the last backward ended, where called, its newest root
PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


users: set[str] = set()  # the files that are known not to be of this package


def caller(ours: int = 1) -> Place | None:
    """Code and instruction of the first frame outside this package: the line is looked up when asked for.

    ours: so many frames are known to be of this package. Each that is not looked at saves a tenth of a µs.
    """
    frame: FrameType | None = sys._getframe(ours)
    while frame is not None:
        code = frame.f_code
        if code.co_filename in users or not code.co_filename.startswith(PACKAGE):
            users.add(code.co_filename)
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def noted(result: Any, who: str, source: Any = None) -> Any:
    """The tensor with a note of who made it, where, and weakly of what: no entry of the tape tells it."""
    result.made = caller(3), who, source if type(source) is ref else None
    return result


def line_of(place: Place | None, name: str = "") -> str:
    """`file:line` of what `caller` found; with a name as in "exp at file:line", "permute (x.T) at file:line".

    Names are ours: where another is written there, in one line that can be read, that is added, and of a join
    in any case: it says of what, and along what dim.
    """
    where = "unknown line"
    if place is not None:
        code, instruction = place
        line, end, first, last = next(itertools.islice(code.co_positions(), instruction // 2, None))
        where = f"{code.co_filename}:{line}"
        if name and line and line == end and last:
            text = linecache.getline(code.co_filename, line).encode()[first:last].decode(errors="replace")
            ours = name.split()[0].rpartition(".")[2].strip("_")
            name += f" ({text})" if text and (ours not in text or ours in ("cat", "stack")) else ""
    return f"{name} at {where}" if name else where


def mark_changed(who: str, *versions: list[Any]) -> None:
    """Count one more in-place change (law 5): [count, where, by what, where the backward before it was]."""
    place, last_change[0] = caller(), next(clock)
    for version in versions:
        version[:] = version[0] + 1, place, who, last_walk[1]


def warn(text: str) -> None:
    """A UserWarning at the line of the user's code that called us, however deep in this package we are."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)
