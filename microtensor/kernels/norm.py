"""Layer norm, forward and backward, over the rows of an array. Only sums may be reordered (fastmath)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor.kernels.driver import Task, jit_tasks, share, vectors
from microtensor.kernels.layout import Array, as_rows, contiguous
from microtensor.kernels.threads import jit, run

GROUP = 16
"""Rows that go through the steps of layer norm together: in one row each step waits for the one before it."""

BLOCK_ROWS = 64
"""Rows whose weight gradients are added up in one go: fixed, so that no sum depends on the threads."""


@jit(fastmath=True, entry=False)
def _add(s: Any, x: Any) -> Any:
    return s + x  # apart, with fastmath: this sum may be reordered, but not the differences that it is of


@jit(fastmath=True, entry=False)
def _add_product(s: Any, x: Any, y: Any) -> Any:
    return s + x * y


@jit_tasks
def _layer_norm(
    task: Task, x: Array, f: Array, w: Array, b: Array, eps: float, y: Array, mean: Array, rstd: Array
) -> None:
    """Two passes: a first mean, then how far it is off and the variance, both from the differences to it.

    With a mean of 10 000 a float32 sum is off by as much as the differences are worth keeping; theirs is not.
    Given f they run over x + f, which waits where y will be: sixteen rows of it stay in the nearest cache.
    """
    first, last = share(task, x.shape[0])
    C, zero, one = x.dtype.type(x.shape[1]), x.dtype.type(0), x.dtype.type(1)
    added = f.shape[0] > 0
    for start in range(first, last, GROUP):
        stop = min(start + GROUP, last)
        for i in range(start, stop):
            s = zero
            if added:  # apart from the sum: whether a loop with both takes vectors depends on the addresses
                for j in range(x.shape[1]):
                    y[i, j] = x[i, j] + f[i, j]
            for j in range(x.shape[1]):
                s = _add(s, y[i, j] if added else x[i, j])
            mean[i, 0] = s / C
        for i in range(start, stop):
            s, q, about = zero, zero, mean[i, 0]
            for j in range(x.shape[1]):
                d = (y[i, j] if added else x[i, j]) - about
                s, q = _add(s, d), _add_product(q, d, d)
            mean[i, 1] = off = s / C
            var = q / C - off * off
            var = zero if var < zero else var  # not max(): NaN must stay NaN
            rstd[i] = one / math.sqrt(var + x.dtype.type(eps))
        for i in range(start, stop):
            about, off, r = mean[i, 0], mean[i, 1], rstd[i]
            for j in range(x.shape[1]):
                y[i, j] = (((y[i, j] if added else x[i, j]) - about) - off) * r * w[j] + b[j]


def layer_norm_forward(
    x: Array, w: Array, b: Array, eps: float, f: Array | None = None
) -> tuple[Array, Array, Array]:
    """y = w · (x − μ) · rstd + b, rstd = 1 / √(σ² + eps), with μ and σ² over the last axis (σ² divides by C).

    μ comes in two parts, whose sum would round the second to the digits of the first. Given f, x + f is x.

    Shapes: x, f (..., C), w, b (C,) → y (..., C), mean (..., 2), rstd (...)
    Source: Ba, Kiros & Hinton 2016, §3. Differs: eps inside the root (the paper has none), as in PyTorch.
    """
    lead = x.shape[:-1]
    y, mean, rstd = np.empty(x.shape, x.dtype), np.empty((*lead, 2), x.dtype), np.empty(lead, x.dtype)
    out = as_rows(y), as_rows(mean), rstd.reshape(-1)
    rows = as_rows(x)
    run(5 * vectors(x), *_layer_norm, rows, _rows_of(f, rows), contiguous(w), contiguous(b), float(eps), *out)
    return y, mean, rstd


def _rows_of(f: Array | None, rows: Array) -> Array:
    return rows[:0] if f is None else as_rows(f)


@jit(fastmath=True, entry=False)
def _projections(g: Array, w: Array, h: Array) -> Any:
    """Σ g w and Σ g w h"""
    s = q = g.dtype.type(0)
    for j in range(g.size):
        s += g[j] * w[j]
        q += g[j] * w[j] * h[j]
    return s, q


@jit(inline=True)
def _layer_norm_block_back(
    g: Array, x: Array, f: Array, w: Array, mean: Array, rstd: Array, gx: Array, gw: Array, gb: Array
) -> None:
    C = x.dtype.type(x.shape[1])
    gw[:] = 0
    gb[:] = 0
    for i in range(x.shape[0]):
        about, off, r = mean[i, 0], mean[i, 1], rstd[i]
        for j in range(x.shape[1]):
            z = x[i, j] + f[i, j] if f.shape[0] > 0 else x[i, j]
            gx[i, j] = ((z - about) - off) * r  # the normalised row, for the moment
        s, q = _projections(g[i], w, gx[i])
        s, q = s / C, q / C
        for j in range(x.shape[1]):
            gw[j] += g[i, j] * gx[i, j]
            gb[j] += g[i, j]
            gx[i, j] = r * (g[i, j] * w[j] - s - gx[i, j] * q)


@jit_tasks
def _layer_norm_back(
    task: Task, g: Array, x: Array, f: Array, w: Array, mean: Array, rstd: Array, gx: Array, partial: Array
) -> None:
    for block in range(*share(task, partial.shape[0])):
        i = block * BLOCK_ROWS
        k = min(i + BLOCK_ROWS, x.shape[0])
        gw, gb = partial[block, 0], partial[block, 1]
        _layer_norm_block_back(g[i:k], x[i:k], f[i:k], w, mean[i:k], rstd[i:k], gx[i:k], gw, gb)


@jit(lean=True)
def _sum_blocks(partial: Array, gw: Array, gb: Array) -> None:
    for j in range(gw.size):
        s = t = 0.0  # float64
        for block in range(partial.shape[0]):
            s += np.float64(partial[block, 0, j])
            t += np.float64(partial[block, 1, j])
        gw[j], gb[j] = s, t


def layer_norm_backward(
    g: Array, x: Array, w: Array, mean: Array, rstd: Array, f: Array | None = None
) -> tuple[Array, Array, Array]:
    """With h = (x − μ) · rstd:  gx = rstd · (g w − mean(g w) − h · mean(g w h)), gw = Σ g h, gb = Σ g.

    The means run over the last axis, the sums over all rows: blocks of 64, then those in float64. Given f,
    x + f is x, added up anew.

    Shapes: g, x, f (..., C), w (C,), mean (..., 2), rstd (...) → gx (..., C), gw (C,), gb (C,)
    """
    rows, gx = as_rows(x), np.empty(x.shape, x.dtype)
    partial = np.empty((-(-len(rows) // BLOCK_ROWS), 2, rows.shape[1]), x.dtype)
    means, r = as_rows(mean), contiguous(rstd).reshape(-1)
    given = as_rows(g), rows, _rows_of(f, rows), contiguous(w), means, r
    run(5 * vectors(x), *_layer_norm_back, *given, as_rows(gx), partial)
    gw, gb = np.empty(w.shape, x.dtype), np.empty(w.shape, x.dtype)  # apart: each is somebody's own
    _sum_blocks(partial, gw, gb)
    return gx, gw, gb
