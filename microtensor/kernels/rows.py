"""Kernels that treat every row (the last axis) by itself: softmax, log-sum-exp, cross entropy.

They walk over blocks of rows that fit the first-level cache, in several short loops: what one wrote, the
next finds there. exp runs over a whole block at once, so that rows of 30 use vector registers as well as rows
of 512. Only sums may be reordered (fastmath); NaN, inf and all other operations are as the source says.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from microtensor.kernels.driver import Task, jit_tasks, share
from microtensor.kernels.exponential import exp
from microtensor.kernels.layout import Array, as_rows, contiguous
from microtensor.kernels.threads import get_num_threads, jit, run, typeof

BLOCK = 4096
"""Elements in a block: 16 KiB of float32 are read and 16 KiB written, about one first-level cache."""


def _rows_per_block(x: Array) -> int:
    return max(1, BLOCK // max(1, int(x.shape[1])))


# ---- parts ----


def _largest(row: Array) -> Any:
    """max of a row, −inf if it is empty. By its sign bit a NaN counts as above +inf or as below −inf.

    Compares bits: as integers they sort like the floats once those of negative numbers are flipped, and a
    loop over integers vectorises where one over floats does not (a NaN makes the order of tests matter).
    """
    return _compiled_largest(typeof(row))(row)


@overload(_largest, jit_options={"error_model": "numpy"})
def _compiled_largest(row: Any) -> Any:
    F, I, SIGN = (np.float32, np.int32, 31) if row.dtype == types.float32 else (np.float64, np.int64, 63)
    FLIP = (1 << SIGN) - 1

    def largest(row: Any) -> Any:
        top = I(I(F(-np.inf).view(I)) ^ FLIP)
        for j in range(row.size):
            bits = I(F(row[j]).view(I))
            top = max(top, I(bits ^ ((bits >> SIGN) & FLIP)))
        return I(top ^ ((top >> SIGN) & FLIP)).view(F)

    return largest


@jit(fastmath=True, entry=False)
def _sum(a: Array) -> Any:
    s = a.dtype.type(0)
    for j in range(a.size):
        s += a[j]
    return s


@jit(fastmath=True, entry=False)
def _two_sums(a: Array, b: Array) -> Any:
    s = q = a.dtype.type(0)
    for j in range(a.size):
        s += a[j]
        q += b[j]
    return s, q


@jit(fastmath=True, entry=False)
def _dot(a: Array, b: Array) -> Any:
    s = a.dtype.type(0)
    for j in range(a.size):
        s += a[j] * b[j]
    return s


@jit(fastmath=True, entry=False)
def _sum_exp(a: Array, shift: float) -> Any:
    s = a.dtype.type(0)
    for j in range(a.size):
        s += exp(a[j] - shift)
    return s


@jit(inline=True)
def _exp_all(e: Array) -> None:
    flat = e.reshape(-1)
    for k in range(flat.size):
        flat[k] = exp(flat[k])


@jit(inline=True)
def _exp_shifted(x: Array, e: Array, top: Array) -> None:
    """top = max of each row, 0 where that is −inf (−inf − −inf would be NaN); e = exp(x − top)."""
    for i in range(x.shape[0]):
        m = _largest(x[i])
        top[i] = x.dtype.type(0) if m == -np.inf else m
        for j in range(x.shape[1]):
            e[i, j] = x[i, j] - top[i]
    _exp_all(e)


# ---- softmax, log softmax, log-sum-exp ----


@jit_tasks
def _softmax(task: Task, x: Array, y: Array, top: Array, log: bool, rows: int) -> None:
    first, last = share(task, x.shape[0])
    zero, one = x.dtype.type(0), x.dtype.type(1)
    for start in range(first, last, rows):
        k = min(start + rows, last)
        X, Y, tops = x[start:k], y[start:k], top[start:k]
        _exp_shifted(X, Y, tops)
        for i in range(X.shape[0]):
            s, m = _sum(Y[i]), tops[i]
            if log:
                log_s = math.log(s) if s != 0 else zero  # s = 0: a row of −inf, which stays −inf
                for j in range(X.shape[1]):
                    Y[i, j] = (X[i, j] - m) - log_s  # x − (m + log s) would round log s to the digits of m
            else:
                scale = one / s if s != 0 else zero  # … or becomes zeros
                for j in range(X.shape[1]):
                    Y[i, j] *= scale


def _softmax_forward(x: Array, log: bool) -> Array:
    rows = as_rows(x)
    y, top = np.empty_like(rows), np.empty(len(rows), rows.dtype)
    run(0.6 * rows.size, *_softmax, rows, y, top, log, _rows_per_block(rows))
    return y.reshape(x.shape)


def softmax_forward(x: Array) -> Array:
    """y = exp(x − max x) / Σ exp(x − max x) over the last axis. A row of −inf gives zeros, a NaN gives NaN.

    Shapes: x (..., C) → (..., C)
    Source: Bridle 1990, §2. Differs: the shift by max x, and zeros for a row of −inf (PyTorch: NaN).
    """
    return _softmax_forward(x, False)


def log_softmax_forward(x: Array) -> Array:
    """y = (x − max x) − log Σ exp(x − max x) over the last axis. A row of −inf stays −inf, a NaN gives NaN.

    Shapes: x (..., C) → (..., C)
    """
    return _softmax_forward(x, True)


@jit_tasks
def _softmax_back(task: Task, g: Array, y: Array, gx: Array) -> None:
    first, last = share(task, g.shape[0])
    g, y, gx = g[first:last], y[first:last], gx[first:last]
    for i in range(g.shape[0]):
        s = _dot(g[i], y[i])
        for j in range(g.shape[1]):
            gx[i, j] = y[i, j] * (g[i, j] - s)


def softmax_backward(g: Array, y: Array) -> Array:
    """gx = y · (g − Σ g · y) over the last axis; a row of zeros (all −inf in x) gives zeros.

    Shapes: g, y (..., C) → (..., C)
    """
    y_rows = as_rows(y)
    gx = np.empty_like(y_rows)
    run(0.2 * gx.size, *_softmax_back, as_rows(g), y_rows, gx)
    return gx.reshape(y.shape)


@jit_tasks
def _log_softmax_back(task: Task, g: Array, y: Array, gx: Array, rows: int) -> None:
    first, last = share(task, g.shape[0])
    for start in range(first, last, rows):
        k = min(start + rows, last)
        G, P = g[start:k], gx[start:k]
        flat_y, flat_p = y[start:k].reshape(-1), P.reshape(-1)
        for j in range(flat_y.size):
            flat_p[j] = exp(flat_y[j])
        for i in range(G.shape[0]):
            s, p = _two_sums(G[i], P[i])
            for j in range(G.shape[1]):
                P[i, j] = G[i, j] - P[i, j] * s
            if p == 0:  # probabilities sum to 1, but for a row of −inf
                P[i] = 0


def log_softmax_backward(g: Array, y: Array) -> Array:
    """gx = g − eʸ · Σ g over the last axis; a row of −inf gives zeros.

    Shapes: g, y (..., C) → (..., C)
    """
    g_rows, y_rows = as_rows(g), as_rows(y)
    gx = np.empty_like(y_rows)
    run(0.4 * gx.size, *_log_softmax_back, g_rows, y_rows, gx, _rows_per_block(gx))
    return gx.reshape(y.shape)


@jit_tasks
def _logsumexp(task: Task, x: Array, y: Array) -> None:
    zero = x.dtype.type(0)
    for i in range(*share(task, x.shape[0])):
        m = _largest(x[i])
        if m == np.inf:  # exp(inf − inf) would be NaN, which is right only if the row has a NaN
            for j in range(x.shape[1]):
                m += zero if x[i, j] < np.inf else x[i, j]
            y[i] = m
        else:
            m = zero if m == -np.inf else m
            y[i] = m + np.log(_sum_exp(x[i], m))


def logsumexp_forward(x: Array) -> Array:
    """y = max x + log Σ exp(x − max x) over the last axis; −inf if the row is empty or all −inf.

    Shapes: x (..., C) → (...)
    """
    rows = as_rows(x)
    y = np.empty(len(rows), rows.dtype)
    run(0.6 * rows.size, *_logsumexp, rows, y)
    return y.reshape(x.shape[:-1])


# ---- cross entropy ----


@jit_tasks
def _loss(
    task: Task, z: Array, target: Array, ignore: int, smoothing: float, loss: Array, lse: Array, room: Array
) -> None:
    (first, last), rows = share(task, z.shape[0]), room.shape[1]
    for start in range(first, last, rows):
        stop = min(start + rows, last)
        e = room[task[0], : stop - start]
        _exp_shifted(z[start:stop], e, lse[start:stop, 0])
        for k in range(stop - start):
            i = start + k
            t, m = target[i], lse[i, 0]
            if t == ignore:
                loss[i] = lse[i, 0] = lse[i, 1] = 0
                continue
            if z[i, t] == m:  # e is 1 there, and a good model's others are so small that 1 + others = 1
                e[k, t] = 0
                log_s = math.log1p(_sum(e[k]))
            else:
                log_s = np.log(_sum(e[k]))  # not math.log, which refuses 0 in plain Python
            loss[i] = log_s - (z[i, t] - m)
            lse[i, 1] = log_s
            if smoothing > 0:
                for j in range(z.shape[1]):
                    e[k, j] = m - z[i, j]
                loss[i] = (1 - smoothing) * loss[i] + smoothing * (log_s + _sum(e[k]) / z.shape[1])


def cross_entropy_forward(
    logits: Array, target: Array, ignore_index: int, label_smoothing: float
) -> tuple[Array, Array]:
    """lossᵢ = (1 − ε) · (lseᵢ − zᵢₜ) + ε / C · Σ_c (lseᵢ − zᵢ_c), lseᵢ = log Σ_c exp zᵢ_c; both 0 if ignored.

    lse comes in two parts, max z and the logarithm of Σ exp(z − max z), which their sum would round to the
    digits of max z. Tiny losses keep their relative accuracy: logits [20, 0] with target 0 give 2.06e-9.

    Shapes: logits (N, C), target (N,) int64 in 0 … C − 1 or ignore_index → losses (N,), lse (N, 2)
    Source: Szegedy et al. 2016, §7 (smoothing).
    """
    z, t = as_rows(logits), contiguous(target)
    loss, lse = np.empty(len(z), z.dtype), np.empty((len(z), 2), z.dtype)
    rows = _rows_per_block(z)
    room = np.empty((get_num_threads(), rows, z.shape[1]), z.dtype)
    options = int(ignore_index), float(label_smoothing)
    run(0.7 * z.size, *_loss, z, t, *options, loss, lse, room)
    return loss, lse


@jit_tasks
def _loss_back(
    task: Task,
    g: Array,
    z: Array,
    target: Array,
    lse: Array,
    ignore: int,
    smoothing: float,
    gz: Array,
    n: int,
) -> None:
    first, last = share(task, z.shape[0])
    uniform, rest = z.dtype.type(smoothing / z.shape[1]), z.dtype.type(1 - smoothing)
    for start in range(first, last, n):
        stop = min(start + n, last)
        for i in range(start, stop):
            for j in range(z.shape[1]):
                gz[i, j] = (z[i, j] - lse[i, 0]) - lse[i, 1]
        _exp_all(gz[start:stop])
        for i in range(start, stop):
            if target[i] == ignore:
                gz[i] = 0
            else:
                gz[i, target[i]] -= rest
                for j in range(z.shape[1]):
                    gz[i, j] = (gz[i, j] - uniform) * g[i]


def cross_entropy_backward(
    g: Array, logits: Array, target: Array, lse: Array, ignore_index: int, label_smoothing: float
) -> Array:
    """gzᵢ_c = gᵢ · (exp(zᵢ_c − lseᵢ) − (1 − ε) · [c = t] − ε / C); 0 in ignored rows, whatever they hold.

    Shapes: g, target (N,), lse (N, 2), logits (N, C) → (N, C)
    """
    z = as_rows(logits)
    gz, options = np.empty_like(z), (int(ignore_index), float(label_smoothing))
    g, t, lse = contiguous(g), contiguous(target), contiguous(lse)
    run(0.7 * z.size, *_loss_back, g, z, t, lse, *options, gz, _rows_per_block(z))
    return gz
