"""Kernels that treat every element by itself, GELU and erf, and a sum that must be the same on every run.

A fused pass reads and writes each array once, where a chain of NumPy calls does so at every step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from microtensor.kernels.driver import Task, jit_tasks, share, vectors
from microtensor.kernels.exponential import exp
from microtensor.kernels.layout import Array, as_rows, contiguous
from microtensor.kernels.threads import get_num_threads, run, typeof

# ---- GELU ----


def _upper_tail(z: Any, bell: Any) -> Any:
    """1 − Φ(z) = ½ erfc(z / √2) for z ≥ 0, given bell = e^(−z²/2), as bell · t · p: both versions vectorise.

    Source: in float32, with an error below 1e-7, Abramowitz & Stegun 1964, eq. 7.1.26. In float64 the method
    of Shepherd & Laframboise 1981: t = 6 / (6 + z) takes all z into 0 … 1, and p, in powers of u = 2t − 1, is
    the Chebyshev fit of degree 22 to ½ e^(z²/2) erfc(z / √2) / t, off by 2 ulp; its numbers are ours.
    """
    return _compiled_upper_tail(typeof(z), typeof(bell))(z, bell)


@overload(_upper_tail, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _compiled_upper_tail(z: Any, bell: Any) -> Any:
    F = np.float32
    FIRST, *OTHERS = (a / 2 for a in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))
    A = tuple(OTHERS)
    SLOPE = 0.3275911 * math.sqrt(0.5)
    EVEN = (
        -6.008833850154758e-11, 4.712799542891889e-10, 1.1412550904375977e-09, -7.158654745676313e-08,
        1.1327845732418468e-06, -1.079204240781337e-05, 5.478351479515144e-06, 0.0016716367704793422,
        0.012528652611812885, 0.04466237430692495, 0.09482814863579765, 0.1295586286488937,
    )  # fmt: skip
    ODD = (
        -4.5158994245830786e-10, 6.024289369512992e-09, -5.000869150575249e-08, 2.984594807111863e-07,
        -1.784408949527648e-07, -3.0227034482736562e-05, 0.0003552676045526204, 0.0051642192412858666,
        0.02544670534488486, 0.06898393096256838, 0.1168348382651446,
    )  # fmt: skip

    def tail32(z: Any, bell: Any) -> Any:
        t = F(1) / (F(1) + F(SLOPE) * z)
        p = F(FIRST)
        for c in A:
            p = p * t + F(c)
        return p * t * bell

    def tail64(z: Any, bell: Any) -> Any:
        t = 6.0 / (6.0 + z)
        u = 2.0 * t - 1.0
        even = odd = 0.0
        for c in EVEN:  # 23 powers in a row would not be unrolled, and not vectorise
            even = even * (u * u) + c
        for c in ODD:
            odd = odd * (u * u) + c
        return bell * t * (even + u * odd)

    return tail32 if z == types.float32 else tail64


@jit_tasks
def _gelu(task: Task, x: Array, y: Array) -> None:
    first, last = share(task, x.size)
    x, y = x[first:last], y[first:last]
    F = x.dtype.type
    one, half = F(1), F(0.5)
    for i in range(x.size):
        tail = _upper_tail(abs(x[i]), exp(-half * x[i] * x[i]))
        y[i] = x[i] * (tail if x[i] < 0 else one - tail)


@jit_tasks
def _gelu_back(task: Task, g: Array, x: Array, gx: Array) -> None:
    first, last = share(task, x.size)
    g, x, gx = g[first:last], x[first:last], gx[first:last]
    F = x.dtype.type
    one, half, peak = F(1), F(0.5), F(1 / math.sqrt(2 * math.pi))
    for i in range(x.size):
        bell = exp(-half * x[i] * x[i])
        tail = _upper_tail(abs(x[i]), bell)
        gx[i] = g[i] * ((tail if x[i] < 0 else one - tail) + x[i] * peak * bell)


@jit_tasks
def _gelu_tanh(task: Task, x: Array, y: Array) -> None:
    first, last = share(task, x.size)
    x, y = x[first:last], y[first:last]
    F = x.dtype.type
    zero, one, a, b = F(0), F(1), F(math.sqrt(8 / math.pi)), F(0.044715)
    for i in range(x.size):
        u = a * (x[i] + b * x[i] * x[i] * x[i])
        e = exp(-abs(u))
        y[i] = x[i] * ((e if u < zero else one) / (one + e))


@jit_tasks
def _gelu_tanh_back(task: Task, g: Array, x: Array, gx: Array) -> None:
    first, last = share(task, x.size)
    g, x, gx = g[first:last], x[first:last], gx[first:last]
    F = x.dtype.type
    zero, one, three, a, b = F(0), F(1), F(3), F(math.sqrt(8 / math.pi)), F(0.044715)
    for i in range(x.size):
        u = a * (x[i] + b * x[i] * x[i] * x[i])
        e = exp(-abs(u))
        r = one / (one + e)
        s = (e if u < zero else one) * r
        slope = e * r * r * a * (one + three * b * x[i] * x[i])  # ds/dx
        gx[i] = g[i] * (s + x[i] * slope)


def gelu_forward(x: Array, approximate: bool = False) -> Array:
    """y = x Φ(x), Φ(x) = ½ (1 + erf(x / √2)).

    approximate: Φ(x) ≈ ½ (1 + tanh u) = σ(2u) with u = √(2/π) (x + 0.044715 x³).
    Shapes: x (...) → (...)
    Source: Hendrycks & Gimpel 2016, §2. σ(2u) from e^(−2|u|) keeps the digits that 1 + tanh u cancels.
    """
    flat = contiguous(x).reshape(-1)
    y = np.empty_like(flat)
    run(8 * vectors(x), *(_gelu_tanh if approximate else _gelu), flat, y)
    return y.reshape(x.shape)


def gelu_backward(g: Array, x: Array, approximate: bool = False) -> Array:
    """gx = g · (Φ(x) + x Φ′(x)), Φ′(x) = e^(−x²/2) / √(2π), or the derivative of σ(2u).

    Shapes: g, x (...) → (...)
    """
    flat = contiguous(x).reshape(-1)
    gx = np.empty_like(flat)
    kernels = _gelu_tanh_back if approximate else _gelu_back
    run(10 * vectors(x), *kernels, contiguous(g).reshape(-1), flat, gx)
    return gx.reshape(x.shape)


@jit_tasks
def _erf(task: Task, x: Array, y: Array) -> None:
    first, last = share(task, x.size)
    x, y = x[first:last], y[first:last]
    for i in range(x.size):
        y[i] = math.erf(x[i])


def erf_forward(x: Array) -> Array:
    """y = 2/√π ∫₀ˣ e^(−t²) dt, the C library's.

    Shapes: x (...) → (...)
    """
    flat = contiguous(x).reshape(-1)
    y = np.empty_like(flat)
    run(10 * x.size, *_erf, flat, y)
    return y.reshape(x.shape)


# ---- sums ----


MANY = 8192
"""Rows from which they are added up in float64: one of 10⁶ equal rows in float32 would be 1 % off."""


@jit_tasks
def _embedding_back(task: Task, g: Array, index: Array, gw: Array, parts: int) -> None:
    for part in range(*share(task, parts)):
        for i in range(index.size):
            row = index[i]
            if row & (parts - 1) == part:
                for j in range(gw.shape[1]):
                    gw[row, j] += g[i, j]


def embedding_backward(g: Array, idx: Array, n_rows: int) -> Array:
    """gw[r] = Σ g[i] over all i with idx[i] = r, added in the order of i: the same bits on every run.

    Every thread looks at all positions i and takes those whose row is its own (by the last bits of the row
    number). Were the positions shared out instead, two threads could add to one row and lose updates.

    Shapes: g (..., C), idx (...) int64 in 0 … n_rows − 1 → (n_rows, C)
    """
    rows, index = as_rows(g), contiguous(idx).reshape(-1)
    dtype = np.float64 if index.size > MANY else rows.dtype
    gw = np.zeros((n_rows, rows.shape[1]), dtype)
    parts = 1 << (get_num_threads() - 1).bit_length()  # a power of two
    run(0.1 * rows.size, *_embedding_back, rows, index, gw, parts)
    return gw.astype(rows.dtype, copy=False)
