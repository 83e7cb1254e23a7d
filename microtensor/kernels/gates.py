"""Kernels that let an element through or stop it: ReLU's, and dropout's, whose chance can be repeated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor.kernels.driver import Task, jit_tasks, share
from microtensor.kernels.layout import Array, contiguous
from microtensor.kernels.threads import jit, run

# ---- ReLU ----


@jit_tasks
def _gate(task: Task, g: Array, y: Array, out: Array) -> None:
    first, last = share(task, g.size)
    g, y, out, zero = g[first:last], y[first:last], out[first:last], g.dtype.type(0)
    for i in range(g.size):
        out[i] = zero if y[i] <= zero else g[i]


def relu_backward(g: Array, y: Array) -> Array:
    """gx = 0 where y ≤ 0, else g: where y is NaN, g stays.

    Shapes: g, y (...) → (...)
    """
    flat = contiguous(g).reshape(-1)
    out = np.empty_like(flat)
    run(0.2 * g.size, *_gate, flat, contiguous(y).reshape(-1), out)
    return out.reshape(g.shape)


def relu_forward(x: Array) -> Array:
    """y = 0 where x ≤ 0, else x: a NaN stays.

    Shapes: x (...) → (...)
    """
    return relu_backward(x, x)


# ---- dropout ----

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


_mix = jit(entry=False)(mix)


@jit(inline=True)
def _drop_piece(x: Array, y: Array, place: Any, key: Any, bound: Any, scale: Any) -> None:
    U, zero, number = np.uint32, x.dtype.type(0), np.uint32(place * np.uint32(STEP))
    for j in range(x.size):
        y[j] = zero if (_mix(U(number ^ key)) >> U(1)) < bound else x[j] * scale
        number = U(number + U(STEP))


@jit_tasks
def _drop(task: Task, x: Array, y: Array, first: int, low: Any, high: Any, bound: Any, p: float) -> None:
    U, ahead, factor = np.uint32, first % PIECE, x.dtype.type(1.0 / (1.0 - p) if p < 1.0 else 0.0)
    for piece in range(*share(task, (ahead + x.size + PIECE - 1) // PIECE)):
        i, end = max(0, piece * PIECE - ahead), (piece + 1) * PIECE - ahead
        key = _mix(U(_mix(U(U(first // PIECE + piece) ^ low)) + high))
        _drop_piece(x[i:end], y[i:end], U((ahead + i) % PIECE), key, bound, factor)


def _halves(seed: int) -> tuple[np.uint32, np.uint32]:
    return np.uint32(seed & WORD), np.uint32(seed >> 32 & WORD)


def _bound(p: float) -> np.uint32:
    """The number of 31 bits from which on an element is kept: 2³¹ drops them all, and fits uint32."""
    return np.uint32(math.ceil(p * 2.0**31))


def dropout(x: Array, p: float, seed: int) -> Array:
    """y = x / (1 − p) where `dropout_keeps`, else 0: the same for the same seed, whoever computes it.

    Above its 64 bits, a seed says how many elements of a larger array stand before x.
    Shapes: x (...) → (...)
    Source: Srivastava et al. 2014, §4. Differs: divided in training, not multiplied later.
    """
    flat = contiguous(x).reshape(-1)
    y = np.empty_like(flat)
    run(0.3 * x.size, *_drop, flat, y, seed >> 64, *_halves(seed), _bound(p), p)
    return y.reshape(x.shape)


def dropout_keeps(shape: tuple[int, ...], p: float, seed: int) -> Array:
    """Which elements of such an array are kept: where a hash of seed and place is at least p · 2³¹."""
    U, (low, high), first = np.uint32, _halves(seed), seed >> 64
    pieces, places = np.divmod(np.arange(first, first + math.prod(shape)), PIECE)
    keys = mix(mix(pieces.astype(U) ^ low) + high) ^ places.astype(U) * U(STEP)
    return np.asarray((mix(keys) >> U(1)) >= _bound(p)).reshape(shape)
