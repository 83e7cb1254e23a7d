"""Kernels that treat every row (the last axis) by itself: softmax, log-sum-exp, cross entropy.

In a row each step (line.py) waits for the one before it: its maximum, exp, their sum. So a few rows take a
step together. Only sums may be reordered (fastmath); NaN, inf and all else are as the source says.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor.kernels.columns import start_of
from microtensor.kernels.driver import Task, jit_tasks, share, vectors
from microtensor.kernels.exponential import exp
from microtensor.kernels.layout import Array, as_rows, contiguous
from microtensor.kernels.line import exp_row, largest, loss_row, scale_row
from microtensor.kernels.threads import jit, run

GROUP = 16
"""Rows that take a step together: what one step writes, the next finds in the first-level cache."""


# ---- parts ----


@jit(fastmath=True, entry=False)
def _add(s: Any, x: Any) -> Any:
    return s + x  # apart, with fastmath: this sum may be reordered, but not the differences that it is of


@jit(fastmath=True, entry=False)
def _dot(a: Array, b: Array) -> Any:
    s = a.dtype.type(0)
    for j in range(a.size):
        s += a[j] * b[j]
    return s


@jit(inline=True)
def _tops(x: Array, top: Array) -> None:
    """top = max of each row, 0 where that is −inf: −inf − −inf would be NaN."""
    for i in range(x.shape[0]):
        largest(x, start_of(x[i]), x.shape[1], start_of(top[i]))
        top[i, 0] = x.dtype.type(0) if top[i, 0] == -np.inf else top[i, 0]


# ---- softmax, log softmax, log-sum-exp ----


@jit_tasks
def _softmax(task: Task, x: Array, y: Array, sums: Array, log: bool) -> None:
    first, last = share(task, x.shape[0])
    zero, one, C = x.dtype.type(0), x.dtype.type(1), x.shape[1]
    for start in range(first, last, GROUP):
        stop = min(start + GROUP, last)
        X, Y, S = x[start:stop], y[start:stop], sums[start:stop]
        _tops(X, S)
        if log:
            for i in range(X.shape[0]):
                exp_row(x, start_of(X[i]), C, start_of(S[i]), 0)
            for i in range(X.shape[0]):
                m, s = S[i, 0], S[i, 1]
                log_s = math.log(s) if s != 0 else zero  # s = 0: a row of −inf, which stays −inf
                for j in range(C):
                    Y[i, j] = (X[i, j] - m) - log_s  # x − (m + log s) would round log s to the digits of m
        else:
            for i in range(X.shape[0]):
                exp_row(x, start_of(X[i]), C, start_of(S[i]), start_of(Y[i]))
            for i in range(X.shape[0]):
                S[i, 0] = one / S[i, 1] if S[i, 1] != 0 else zero  # … or becomes zeros
            for i in range(X.shape[0] - 1, -1, -1):  # loads wait for a masked store before their place
                scale_row(x, start_of(Y[i]), C, start_of(S[i]))


def _softmax_forward(x: Array, log: bool) -> Array:
    rows = as_rows(x)
    y, sums = np.empty_like(rows), np.empty((len(rows), 2), rows.dtype)
    run(8 * vectors(rows), *_softmax, rows, y, sums, log)
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
    run(2 * vectors(gx), *_softmax_back, as_rows(g), y_rows, gx)
    return gx.reshape(y.shape)


@jit_tasks
def _log_softmax_back(task: Task, g: Array, y: Array, gx: Array) -> None:
    first, last = share(task, g.shape[0])
    for i in range(first, last):
        s = p = g.dtype.type(0)
        for j in range(g.shape[1]):
            gx[i, j] = exp(y[i, j])
        for j in range(g.shape[1]):  # apart: a loop that stores and sums may do so in another order elsewhere
            s, p = _add(s, g[i, j]), _add(p, gx[i, j])
        for j in range(g.shape[1]):
            gx[i, j] = g[i, j] - gx[i, j] * s
        if p == 0:  # probabilities sum to 1, but for a row of −inf
            gx[i] = 0


def log_softmax_backward(g: Array, y: Array) -> Array:
    """gx = g − eʸ · Σ g over the last axis; a row of −inf gives zeros.

    Shapes: g, y (..., C) → (..., C)
    """
    g_rows, y_rows = as_rows(g), as_rows(y)
    gx = np.empty_like(y_rows)
    run(10 * vectors(gx), *_log_softmax_back, g_rows, y_rows, gx)
    return gx.reshape(y.shape)


@jit_tasks
def _logsumexp(task: Task, x: Array, y: Array, sums: Array) -> None:
    (first, last), zero = share(task, x.shape[0]), x.dtype.type(0)
    for start in range(first, last, GROUP):
        stop = min(start + GROUP, last)
        X, Y, S = x[start:stop], y[start:stop], sums[start:stop]
        _tops(X, S)
        for i in range(X.shape[0]):
            exp_row(x, start_of(X[i]), x.shape[1], start_of(S[i]), 0)
        for i in range(X.shape[0]):
            m = S[i, 0]
            Y[i] = m + np.log(S[i, 1])  # not math.log, which refuses 0 in plain Python
            if m == np.inf:  # exp(inf − inf) is NaN, which is right only if the row has a NaN
                for j in range(x.shape[1]):
                    m += zero if X[i, j] < np.inf else X[i, j]
                Y[i] = m


def logsumexp_forward(x: Array) -> Array:
    """y = max x + log Σ exp(x − max x) over the last axis; −inf if the row is empty or all −inf.

    Shapes: x (..., C) → (...)
    """
    rows = as_rows(x)
    y, sums = np.empty(len(rows), rows.dtype), np.empty((len(rows), 2), rows.dtype)
    run(8 * vectors(rows), *_logsumexp, rows, y, sums)
    return y.reshape(x.shape[:-1])


# ---- cross entropy ----


@jit_tasks
def _loss(
    task: Task, z: Array, target: Array, ignore: int, smoothing: float, loss: Array, lse: Array
) -> None:
    (first, last), zero, C = share(task, z.shape[0]), z.dtype.type(0), z.shape[1]
    for start in range(first, last, GROUP):
        stop = min(start + GROUP, last)
        _tops(z[start:stop], lse[start:stop])
        for i in range(start, stop):
            exp_row(z, start_of(z[i]), C, start_of(lse[i]), 0)
        for i in range(start, stop):
            t, m = target[i], lse[i, 0]
            if t == ignore:
                loss[i] = lse[i, 0] = lse[i, 1] = 0
                continue
            log_s = np.log(lse[i, 1])
            if z[i, t] == m:  # e is 1 there, and a good model's others are so small that 1 + others = 1
                others = zero
                for j in (0, t + 1):  # what stands left of the target, and right of it
                    exp_row(z, start_of(z[i, j:]), t if j == 0 else C - j, start_of(lse[i]), 0)
                    others += lse[i, 1]
                log_s = math.log1p(others)
            loss[i] = log_s - (z[i, t] - m)
            lse[i, 1] = log_s
            if smoothing > 0:
                below = zero
                for j in range(C):
                    below = _add(below, m - z[i, j])
                loss[i] = (1 - smoothing) * loss[i] + smoothing * (log_s + below / C)


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
    options = int(ignore_index), float(label_smoothing)
    run(8 * vectors(z), *_loss, z, t, *options, loss, lse)
    return loss, lse


@jit(fastmath=True)
def _mean_of_kept(losses: Array, target: Array, ignore: int) -> tuple[float, float]:
    total, kept = 0.0, 0
    for i in range(losses.size):
        total += np.float64(losses[i])
        kept += int(target[i] != ignore)
    share = 1.0 / kept if kept > 0 else np.nan
    return total * share, share


def mean_of_kept(losses: Array, target: Array, ignore_index: int) -> tuple[float, float]:
    """Σ lossᵢ / n, and what a row adds of its loss to that, 1 / n: n rows are not ignored, NaN if none is.

    Shapes: losses (N,), 0 where ignored, target (N,) int64 → two numbers
    """
    return _mean_of_kept(losses, contiguous(target), int(ignore_index))


@jit_tasks
def _loss_back(
    task: Task, g: Array, z: Array, target: Array, lse: Array, ignore: int, rest: float, other: Array,
    gz: Array,
) -> None:  # fmt: skip
    (first, last), C, hit = share(task, z.shape[0]), z.shape[1], z.dtype.type(rest)
    for i in range(first, last):
        t, k = target[i], min(i, g.size - 1)
        if t == ignore:
            gz[i] = 0
        else:
            row, by = start_of(z[i]), start_of(g[k:])
            loss_row(z, row, C, start_of(lse[i]), start_of(other), by, start_of(gz[i]))
            e = exp((z[i, t] - lse[i, 0]) - lse[i, 1])
            gz[i, t] = ((e - hit) - other[0]) * g[k]


def cross_entropy_backward(
    g: Array, logits: Array, target: Array, lse: Array, ignore_index: int, label_smoothing: float
) -> Array:
    """gzᵢ_c = gᵢ · (exp(zᵢ_c − lseᵢ) − (1 − ε) · [c = t] − ε / C); 0 in ignored rows, whatever they hold.

    Shapes: g (N,), or (1,) for all rows, target (N,), lse (N, 2), logits (N, C) → (N, C)
    """
    z = as_rows(logits)
    gz, other = np.empty_like(z), np.array([label_smoothing / max(1, z.shape[1])], z.dtype)
    options = int(ignore_index), 1.0 - label_smoothing, other
    run(9 * vectors(z), *_loss_back, contiguous(g), z, contiguous(target), contiguous(lse), *options, gz)
    return gz
