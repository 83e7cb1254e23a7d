"""Kernels that treat every row (the last axis) by itself: softmax, log-sum-exp, cross entropy.

They walk over blocks of rows that fit the first-level cache, in several short loops: what one wrote, the
next finds there. exp runs over a whole block at once, so that rows of 30 use vector registers as well as rows
of 512. Only sums may be reordered (fastmath); NaN, inf and all other operations are as the source says.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import overload

from microtensor.kernels.exponential import exp
from microtensor.kernels.layout import Array, as_rows, contiguous
from microtensor.kernels.threads import get_num_threads, jit, jit_both, run, typeof

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


@jit(fastmath=True, cache=False)
def _sum(a: Array) -> Any:
    s = a.dtype.type(0)
    for j in range(a.size):
        s += a[j]
    return s


@jit(fastmath=True, cache=False)
def _two_sums(a: Array, b: Array) -> Any:
    s = q = a.dtype.type(0)
    for j in range(a.size):
        s += a[j]
        q += b[j]
    return s, q


@jit(fastmath=True, cache=False)
def _dot(a: Array, b: Array) -> Any:
    s = a.dtype.type(0)
    for j in range(a.size):
        s += a[j] * b[j]
    return s


@jit(fastmath=True, cache=False)
def _sum_exp(a: Array, shift: float) -> Any:
    s = a.dtype.type(0)
    for j in range(a.size):
        s += exp(a[j] - shift)
    return s


@jit(cache=False)
def _exp_all(e: Array) -> None:
    flat = e.reshape(-1)
    for k in range(flat.size):
        flat[k] = exp(flat[k])


@jit(cache=False)
def _exp_shifted(x: Array, e: Array, top: Array) -> None:
    """top = max of each row, 0 where that is −inf (−inf − −inf would be NaN); e = exp(x − top)."""
    for i in range(x.shape[0]):
        m = _largest(x[i])
        top[i] = x.dtype.type(0) if m == -np.inf else m
        for j in range(x.shape[1]):
            e[i, j] = x[i, j] - top[i]
    _exp_all(e)


# ---- softmax, log softmax, log-sum-exp ----


@jit(cache=False)
def _softmax_block(x: Array, y: Array, top: Array, log: bool) -> None:
    zero, one = x.dtype.type(0), x.dtype.type(1)
    _exp_shifted(x, y, top)
    for i in range(x.shape[0]):
        s, m = _sum(y[i]), top[i]
        if log:
            log_s = math.log(s) if s != 0 else zero  # s = 0: a row of −inf, which stays −inf
            for j in range(x.shape[1]):
                y[i, j] = (x[i, j] - m) - log_s  # x − (m + log s) would round log s to the digits of m
        else:
            scale = one / s if s != 0 else zero  # … or becomes zeros
            for j in range(x.shape[1]):
                y[i, j] *= scale


def _softmax(x: Array, y: Array, top: Array, log: bool, rows: int) -> None:
    for block in numba.prange((x.shape[0] + rows - 1) // rows):
        i = block * rows
        _softmax_block(x[i : i + rows], y[i : i + rows], top[i : i + rows], log)


_softmax_kernels = jit_both(_softmax)


def _softmax_forward(x: Array, log: bool) -> Array:
    rows = as_rows(x)
    y, top = np.empty_like(rows), np.empty(len(rows), rows.dtype)
    run(0.6 * rows.size, *_softmax_kernels, rows, y, top, log, _rows_per_block(rows))
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


@jit(cache=False)
def _softmax_block_back(g: Array, y: Array, gx: Array) -> None:
    for i in range(g.shape[0]):
        s = _dot(g[i], y[i])
        for j in range(g.shape[1]):
            gx[i, j] = y[i, j] * (g[i, j] - s)


def _softmax_back(g: Array, y: Array, gx: Array, rows: int) -> None:
    for block in numba.prange((g.shape[0] + rows - 1) // rows):
        i = block * rows
        _softmax_block_back(g[i : i + rows], y[i : i + rows], gx[i : i + rows])


_softmax_back_kernels = jit_both(_softmax_back)


def softmax_backward(g: Array, y: Array) -> Array:
    """gx = y · (g − Σ g · y) over the last axis; a row of zeros (all −inf in x) gives zeros.

    Shapes: g, y (..., C) → (..., C)
    """
    y_rows = as_rows(y)
    gx = np.empty_like(y_rows)
    run(0.2 * gx.size, *_softmax_back_kernels, as_rows(g), y_rows, gx, _rows_per_block(gx))
    return gx.reshape(y.shape)


@jit(cache=False)
def _log_softmax_block_back(g: Array, y: Array, gx: Array) -> None:
    flat_y, flat_p = y.reshape(-1), gx.reshape(-1)
    for k in range(flat_y.size):
        flat_p[k] = exp(flat_y[k])
    for i in range(g.shape[0]):
        s, p = _two_sums(g[i], gx[i])
        for j in range(g.shape[1]):
            gx[i, j] = g[i, j] - gx[i, j] * s
        if p == 0:  # probabilities sum to 1, but for a row of −inf
            gx[i] = 0


def _log_softmax_back(g: Array, y: Array, gx: Array, rows: int) -> None:
    for block in numba.prange((g.shape[0] + rows - 1) // rows):
        i = block * rows
        _log_softmax_block_back(g[i : i + rows], y[i : i + rows], gx[i : i + rows])


_log_softmax_back_kernels = jit_both(_log_softmax_back)


def log_softmax_backward(g: Array, y: Array) -> Array:
    """gx = g − eʸ · Σ g over the last axis; a row of −inf gives zeros.

    Shapes: g, y (..., C) → (..., C)
    """
    g_rows, y_rows = as_rows(g), as_rows(y)
    gx = np.empty_like(y_rows)
    run(0.4 * gx.size, *_log_softmax_back_kernels, g_rows, y_rows, gx, _rows_per_block(gx))
    return gx.reshape(y.shape)


@jit(cache=False)
def _logsumexp_row(x: Array) -> Any:
    m, zero = _largest(x), x.dtype.type(0)
    if m == np.inf:  # exp(inf − inf) would be NaN, which is right only if the row has a NaN
        for j in range(x.size):
            m += zero if x[j] < np.inf else x[j]
        return m
    m = zero if m == -np.inf else m
    return m + np.log(_sum_exp(x, m))


def _logsumexp(x: Array, y: Array) -> None:
    for i in numba.prange(x.shape[0]):
        y[i] = _logsumexp_row(x[i])


_logsumexp_kernels = jit_both(_logsumexp)


def logsumexp_forward(x: Array) -> Array:
    """y = max x + log Σ exp(x − max x) over the last axis; −inf if the row is empty or all −inf.

    Shapes: x (..., C) → (...)
    """
    rows = as_rows(x)
    y = np.empty(len(rows), rows.dtype)
    run(0.6 * rows.size, *_logsumexp_kernels, rows, y)
    return y.reshape(x.shape[:-1])


# ---- cross entropy ----


@jit(cache=False)
def _loss_block(
    z: Array, target: Array, ignore: int, smoothing: float, loss: Array, lse: Array, e: Array
) -> None:
    _exp_shifted(z, e, lse[:, 0])
    for i in range(z.shape[0]):
        t, m = target[i], lse[i, 0]
        if t == ignore:
            loss[i] = lse[i, 0] = lse[i, 1] = 0
            continue
        if z[i, t] == m:  # e is 1 there, and a good model's others are so small that 1 + others = 1
            e[i, t] = 0
            log_s = math.log1p(_sum(e[i]))
        else:
            log_s = np.log(_sum(e[i]))  # not math.log, which refuses 0 in plain Python
        loss[i] = log_s - (z[i, t] - m)
        lse[i, 1] = log_s
        if smoothing > 0:
            for j in range(z.shape[1]):
                e[i, j] = m - z[i, j]
            loss[i] = (1 - smoothing) * loss[i] + smoothing * (log_s + _sum(e[i]) / z.shape[1])


def _loss(
    z: Array, target: Array, ignore: int, smoothing: float, loss: Array, lse: Array, scratch: Array
) -> None:
    parts, rows = scratch.shape[:2]
    for part in numba.prange(parts):
        first, last = part * len(z) // parts, (part + 1) * len(z) // parts
        for i in range(first, last, rows):
            k = min(i + rows, last)
            e = scratch[part, : k - i]
            _loss_block(z[i:k], target[i:k], ignore, smoothing, loss[i:k], lse[i:k], e)


_loss_kernels = jit_both(_loss)


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
    scratch = np.empty((min(get_num_threads(), len(z) // rows + 1), rows, z.shape[1]), z.dtype)
    options = int(ignore_index), float(label_smoothing)
    run(0.5 * z.size, *_loss_kernels, z, t, *options, loss, lse, scratch)
    return loss, lse


@jit(cache=False)
def _loss_block_back(
    g: Array, z: Array, target: Array, lse: Array, ignore: int, smoothing: float, gz: Array
) -> None:
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            gz[i, j] = (z[i, j] - lse[i, 0]) - lse[i, 1]
    _exp_all(gz)
    uniform = z.dtype.type(smoothing / z.shape[1])
    for i in range(z.shape[0]):
        if target[i] == ignore:
            gz[i] = 0
        else:
            gz[i, target[i]] -= z.dtype.type(1 - smoothing)
            for j in range(z.shape[1]):
                gz[i, j] = (gz[i, j] - uniform) * g[i]


def _loss_back(
    g: Array, z: Array, target: Array, lse: Array, ignore: int, smoothing: float, gz: Array, rows: int
) -> None:
    for block in numba.prange((z.shape[0] + rows - 1) // rows):
        i = block * rows
        k = min(i + rows, z.shape[0])
        _loss_block_back(g[i:k], z[i:k], target[i:k], lse[i:k], ignore, smoothing, gz[i:k])


_loss_back_kernels = jit_both(_loss_back)


def cross_entropy_backward(
    g: Array, logits: Array, target: Array, lse: Array, ignore_index: int, label_smoothing: float
) -> Array:
    """gzᵢ_c = gᵢ · (exp(zᵢ_c − lseᵢ) − (1 − ε) · [c = t] − ε / C); 0 in ignored rows, whatever they hold.

    Shapes: g, target (N,), lse (N, 2), logits (N, C) → (N, C)
    """
    z = as_rows(logits)
    gz = np.empty_like(z)
    g, t, lse = contiguous(g), contiguous(target), contiguous(lse)
    options = int(ignore_index), float(label_smoothing)
    run(0.4 * z.size, *_loss_back_kernels, g, z, t, lse, *options, gz, _rows_per_block(z))
    return gz
