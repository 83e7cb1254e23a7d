"""Kernels that let an element through or stop it: ReLU's, and dropout's, whose chance can be repeated."""

from __future__ import annotations

from typing import Any

import numpy as np

from microtensor.kernels.chance import PIECE, STEP, halves, mix, threshold
from microtensor.kernels.driver import Task, jit_tasks, share, vectors
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
    run(2 * vectors(g), *_gate, flat, contiguous(y).reshape(-1), out)
    return out.reshape(g.shape)


def relu_forward(x: Array) -> Array:
    """y = 0 where x ≤ 0, else x: a NaN stays.

    Shapes: x (...) → (...)
    """
    return relu_backward(x, x)


# ---- dropout ----

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


def dropout(x: Array, p: float, seed: int) -> Array:
    """y = x / (1 − p) where `dropout_keeps`, else 0: the same for the same seed, whoever computes it.

    Above its 64 bits, a seed says how many elements of a larger array stand before x.
    Shapes: x (...) → (...)
    Source: Srivastava et al. 2014, §4. Differs: divided in training, not multiplied later.
    """
    flat = contiguous(x).reshape(-1)
    y = np.empty_like(flat)
    run(0.3 * x.size, *_drop, flat, y, seed >> 64, *halves(seed), threshold(p), p)
    return y.reshape(x.shape)
