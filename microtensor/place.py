"""Where in the user's code a result was made: noted in a fraction of a microsecond, looked up when asked."""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Iterable
from types import CodeType
from typing import Any, TypeAlias

__all__ = ["Place", "caller", "line_of", "mark_all_changed", "mark_changed", "warn"]

Place: TypeAlias = tuple[CodeType, int]  # code and instruction
PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class _Inside(dict[str, bool]):
    """Is a file one of this package? Asked of every frame, found out once a file."""

    def __missing__(self, filename: str) -> bool:
        self[filename] = inside = filename.startswith(PACKAGE)
        return inside


_inside = _Inside()


def caller(ours: int = 1) -> Place | None:
    """Code and instruction of the first frame outside this package: the line is looked up when asked for.

    ours: so many frames are known to be of this package. Each that is not looked at saves a tenth of a µs.
    """
    frame = sys._getframe(ours)
    while frame is not None and _inside[frame.f_code.co_filename]:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else (frame.f_code, frame.f_lasti)


def line_of(place: Place | None) -> str:
    """`file:line` of what `caller` found."""
    if place is None:
        return "unknown line"
    code, instruction = place
    line = next(itertools.islice(code.co_positions(), instruction // 2, None))[0]
    return f"{code.co_filename}:{line}"


def mark_changed(version: list[Any]) -> None:
    """Count one more in-place change (law 5), and note its place beside the number: [count, place]."""
    version[:] = version[0] + 1, caller()


def mark_all_changed(versions: Iterable[list[Any]]) -> None:
    """mark_changed of many at one place: it is looked up once."""
    place = caller()
    for version in versions:
        version[:] = version[0] + 1, place


def warn(text: str) -> None:
    """A UserWarning at the line of the user's code that called us, however deep in this package we are."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _inside[frame.f_code.co_filename]:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, UserWarning, stacklevel=level)
