"""Which elements dropout keeps: a hash of a seed and of a place, the same whoever computes it, and where.

Here as NumPy computes it; gates.py compiles the same `mix`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor.kernels.layout import Array

PIECE = 1 << 16
"""Elements that share a key: a number of 16 bits counts them, another one the pieces."""

STEP, FIRST, SECOND, WORD = 0x9E3779B1, 0x7FEB352D, 0x846CA68B, 0xFFFFFFFF


def mix(x: Any) -> Any:
    """A number of 32 bits, all of them stirred: numbers that are near each other give unrelated ones.

    Source: Wellons 2018, "Prospecting for Hash Functions" (lowbias32). It is that of columns.py, in uint32,
    which fills vector registers with twice as many: wider integers would take seven times as long.
    """
    U = np.uint32
    x = U(U(x ^ (x >> U(16))) * U(FIRST))
    x = U(U(x ^ (x >> U(15))) * U(SECOND))
    return U(x ^ (x >> U(16)))


def halves(seed: int) -> tuple[np.uint32, np.uint32]:
    """The lower and the upper 32 bits."""
    return np.uint32(seed & WORD), np.uint32(seed >> 32 & WORD)


def threshold(p: float) -> np.uint32:
    """The number of 31 bits from which on an element is kept: 2³¹ drops them all, and fits uint32."""
    return np.uint32(math.ceil(p * 2.0**31))


def dropout_keeps(shape: tuple[int, ...], p: float, seed: int) -> Array:
    """Which elements of such an array are kept: where a hash of seed and place is at least p · 2³¹."""
    U, (low, high), first = np.uint32, halves(seed), seed >> 64
    pieces, places = np.divmod(np.arange(first, first + math.prod(shape)), PIECE)
    keys = mix(mix(pieces.astype(U) ^ low) + high) ^ places.astype(U) * U(STEP)
    return np.asarray((mix(keys) >> U(1)) >= threshold(p)).reshape(shape)
