"""Arrays as text in PyTorch's format: four digits, exponents where sizes differ much, abridged if long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["text"]

DIGITS, EDGE, THRESHOLD, WIDTH = 4, 3, 1000, 80
Array = NDArray[Any]


def text(array: Array, extras: Sequence[str] = ()) -> str:
    """tensor(values, extra, …), as PyTorch breaks and aligns its lines.

    >>> print(text(np.array([1.0, 2.5, 1e-3]), ["dtype=float64"]))
    tensor([1.0000e+00, 2.5000e+00, 1.0000e-03], dtype=float64)
    """
    indent = len("tensor(")
    found = "tensor(" + ("[]" if array.size == 0 else _nested(array, indent, *_format(array)))
    length = len(found) - found.rfind("\n") + 1  # as PyTorch counts
    for extra in extras:
        fits = length + len(extra) + 2 <= WIDTH
        found += (", " if fits else ",\n" + " " * indent) + extra
        length = length + len(extra) + 2 if fits else indent + len(extra)
    return found + ")"


def _format(array: Array) -> tuple[Callable[[Any], str], int]:
    """How to write one element, and how wide they are."""
    shown = _edges(array) if array.size > THRESHOLD else array
    if array.dtype.kind != "f":
        width = max(len(str(v)) for v in shown.ravel().tolist())
        return lambda v: str(v).rjust(width), width
    seen = shown[np.isfinite(shown) & (shown != 0)].astype(np.float64)
    if seen.size == 0:
        return lambda v: f"{v:.0f}" + "." * bool(np.isfinite(v)), 1
    low, high = np.abs(seen).min(), np.abs(seen).max()
    whole = bool((seen == np.ceil(seen)).all())
    wide = high / low > 1000 or high > 1e8 or low < 1e-4
    kind = f".{DIGITS}e" if wide else ".0f" if whole else f".{DIGITS}f"
    dot = kind == ".0f"
    width = max(len(format(v, kind)) for v in seen.tolist()) + dot
    return lambda v: (format(v, kind) + "." * (dot and bool(np.isfinite(v)))).rjust(width), width


def _edges(array: Array) -> Array:
    """The first and last elements along each axis: those that an abridged text shows."""
    for axis, n in enumerate(array.shape):
        if n > 2 * EDGE:
            array = np.take(array, [*range(EDGE), *range(n - EDGE, n)], axis)
    return array


def _nested(array: Array, indent: int, write: Callable[[Any], str], width: int) -> str:
    if array.ndim == 0:
        return write(array.item())
    return _brackets(array, indent, write, width, abridged=array.size > THRESHOLD)


def _brackets(array: Array, indent: int, write: Callable[[Any], str], width: int, abridged: bool) -> str:
    n, apart = len(array), " " * (indent + 1)
    indices = [*range(EDGE), None, *range(n - EDGE, n)] if abridged and n > 2 * EDGE else [*range(n)]
    if array.ndim == 1:
        row = [" ..." if i is None else write(array[i].item()) for i in indices]
        step = max(1, (WIDTH - indent) // (width + 2))
        lines = [", ".join(row[i : i + step]) for i in range(0, len(row), step)]
        return "[" + (",\n" + apart).join(lines) + "]"
    parts = ["..." if i is None else _brackets(array[i], indent + 1, write, width, abridged) for i in indices]
    return "[" + ("," + "\n" * (array.ndim - 1) + apart).join(parts) + "]"
