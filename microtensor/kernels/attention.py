"""Attention as ops call it: masks and memory made ready, results allocated, threads chosen."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numba import types

from microtensor.kernels.attention_tiles import KEYS, QUERIES, backward, forward
from microtensor.kernels.columns import STEP, WORD, mix
from microtensor.kernels.driver import in_tasks
from microtensor.kernels.layout import Array
from microtensor.kernels.threads import compiled, get_num_threads, run
from microtensor.kernels.vectors import NV, VECTOR_BYTES

CHUNKS = 8  # so many independent pieces are enough; a backward of fewer matrices is cut, by queries


@cache
def _code(dtype: np.dtype[Any], kernel: Any, gradients: bool) -> Callable[..., None]:
    """A kernel's machine code for one dtype, and for arrays of any strides."""
    scalar = types.float32 if dtype.itemsize == 4 else types.float64
    read, written = types.Array(scalar, 4, "A", readonly=True), types.Array(scalar, 4, "A")
    flat, integers = types.Array(scalar, 1, "C", readonly=True), types.Array(types.int64, 1, "C")
    stats, rooms = types.Array(scalar, 4, "C"), [types.Array(scalar, n, "C") for n in (4, 3, 3, 3)]
    arguments = [read, read, read, flat, read if gradients else written, stats, flat, integers]
    if gradients:
        arguments = [read, *arguments, written, written, written]
    return compiled(kernel, (*[types.int64] * 3, *arguments, *rooms, types.Array(types.uint32, 2, "C")))


class _Rooms(threading.local):
    """Where tasks work, kept between calls: fresh memory costs page faults. One set per Python thread."""

    key: Any = None
    arrays: tuple[Array, ...] = ()

    def __call__(self, dtype: np.dtype[Any], tasks: int, D: int, E: int) -> tuple[Array, ...]:
        """tiles, panels (Qᵀ, Gᵀ), rows, numbers, row keys: some blocks, whatever the lengths of sequences."""
        if self.key != (dtype, D, E) or len(self.arrays[0]) < tasks:  # calls on one core and on all alternate
            shapes = (3, KEYS, QUERIES), (D + E, QUERIES), (QUERIES, E), (5, QUERIES)
            self.arrays = (
                *(_aligned((tasks, *shape), dtype) for shape in shapes),
                _aligned((tasks, QUERIES), np.dtype(np.uint32)),
            )
            self.key = (dtype, D, E)
        return self.arrays


_rooms = _Rooms()


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros from a cache line's beginning on: a vector that crosses a line costs two fetches."""
    raw = np.zeros(math.prod(shape) * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : len(raw) - 64 + start].view(dtype).reshape(shape)


@cache
def _template(dtype: np.dtype[Any]) -> Array:
    """What every block needs: a panel's triangle, 0 where queries see keys, else −∞; no bias; two numbers."""
    n = NV * VECTOR_BYTES // dtype.itemsize
    triangle = np.where(np.arange(n)[:, None] > np.arange(n), -np.inf, 0)  # keys down, queries across
    return np.concatenate([triangle.ravel(), np.zeros(KEYS + 2)]).astype(dtype)


@lru_cache(16)  # a model's calls are alike
def _numbers(
    dtype: np.dtype[Any], scale: float, causal: bool, dropout_p: float, seed: int, steps: tuple[int, ...]
) -> tuple[Array, Array]:
    """(constants, options); steps are empty without a mask."""
    constants = _template(dtype).copy()
    constants[-2:] = scale, 1.0 / (1.0 - dropout_p) if dropout_p < 1.0 else 0.0
    where = [len(steps) > 0, *(steps or (0, 0, 0)), causal]
    return constants, np.array(
        [*where, _bound(dropout_p), seed & WORD, seed >> 32 & WORD, seed >> 64], np.int64
    )


def _settings(keys: int, mask: Array | None, dtype: np.dtype[Any], *rest: Any) -> tuple[Array, Array, Array]:
    """(bias, constants, options) for a mask of at most four axes, and scores of so many keys."""
    if mask is None:
        constants, options = _numbers(dtype, *rest, ())
        return constants, constants, options
    mask = np.broadcast_to(mask, (*(1, 1, 1, 1, *mask.shape)[-4:-1], keys))
    if mask.dtype == np.bool_:
        mask = np.where(mask, dtype.type(0), dtype.type(-np.inf))
    mask = np.ascontiguousarray(mask)
    sizes = zip(mask.shape[:3], mask.strides, strict=False)
    steps = tuple(0 if n == 1 else stride // mask.itemsize for n, stride in sizes)
    return mask.reshape(-1), *_numbers(dtype, *rest, steps)


def _four_axes(x: Array) -> Array:
    """(..., T, D) → (X, Y, T, D), with elements of a row beside each other."""
    if x.ndim != 4:
        x = x[(None,) * (4 - x.ndim)] if x.ndim < 4 else x.reshape(-1, *x.shape[-3:])
    return x if x.strides[3] == x.itemsize else np.ascontiguousarray(x)


def _like(x: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Room for a result (X, Y, T, ·): like x, where that has its axes Y and T swapped in memory."""
    if abs(x.strides[1]) < abs(x.strides[2]):
        return np.empty((shape[0], shape[2], shape[1], shape[3]), dtype).swapaxes(1, 2)
    return np.empty(shape, dtype)


def _packed(q: Array, k: Array, v: Array) -> bool:
    """Do they lie side by side in one row (3, Y, D) for every token, as one projection makes them?

    Then so should their gradients, which need no copy to become that projection's.
    """
    Y, _, D = q.shape[1:]
    row = 3 * Y * D * q.itemsize
    first, second, third = (x.ctypes.data for x in (q, k, v))
    return (
        (q.shape == k.shape == v.shape and q.strides == k.strides == v.strides)
        and (q.strides[1:3] == (D * q.itemsize, row) and Y > 1)
        and 3 * (second - first) == 3 * (third - second) == row
    )


def _wide(x: Array) -> Array:
    """Zeros of width 1 for vectors without elements, whose products are 0 all the same."""
    return np.zeros((*x.shape[:3], 1), x.dtype)


def _mask_of(mask: Array | None, lead: tuple[int, ...]) -> Array | None:
    """The mask for scores of four axes."""
    if mask is None or len(lead) <= 2:
        return mask
    return np.broadcast_to(mask, (*lead, *mask.shape[-2:])).reshape(-1, lead[-1], *mask.shape[-2:])


def _work(shape: tuple[int, ...], widths: int, causal: bool) -> float:
    """About how many nanoseconds: the products' and one for each weight."""
    return math.prod(shape) * (widths / VECTOR_BYTES + 1) / (1 + causal)


def _run(
    kernel: Any, gradients: bool, work: float, pieces: int, widths: tuple[int, int], *arrays: Any
) -> None:
    def with_tasks(tasks: int) -> None:
        rooms = _rooms(arrays[0].dtype, tasks, *widths)
        in_tasks(_code(arrays[0].dtype, kernel, gradients), tasks, *arrays, *rooms)

    run(work if pieces > 1 else 0, lambda: with_tasks(1), lambda: with_tasks(get_num_threads()))


def attention_keeps(shape: tuple[int, ...], p: float, seed: int) -> Array:
    """Which of the weights (..., T, S) are kept: where a hash of seed, item, query and key is ≥ p · 2³²."""
    T, S = shape[-2:]
    items = (seed >> 64) + np.arange(math.prod(shape[:-2]), dtype=np.int64)[:, None]
    head = mix(mix(items & WORD ^ (seed & WORD)) + (seed >> 32 & WORD) & WORD)
    row_keys = mix(np.arange(T) & WORD ^ head)[:, :, None]
    keeps: Array = mix(row_keys ^ (np.arange(S) * STEP & WORD)) >= _bound(p)
    return keeps.reshape(shape)


def _bound(p: float) -> int:
    """The counter from which on a weight is kept."""
    return min(math.ceil(p * 2.0**32), WORD)


def attention_forward(
    q: Array, k: Array, v: Array, mask: Array | None, scale: float, causal: bool, dropout_p: float, seed: int
) -> tuple[Array, Array]:
    """y = softmax(Q Kᵀ · scale + mask) V, and of each query its largest score and 1/Σ exp(score − largest).

    A boolean mask is True where a query may attend, one of numbers is added. Of the weights those whose
    counter (seed, item, query, key) says so are dropped, the others divided by 1 − p. Above its 64 bits,
    a seed says how many items of a larger array stand before these.
    Shapes: q (..., T, D), k (..., S, D), v (..., S, E), mask broadcast to (..., T, S) → (..., T, E),
    (2, X, Y, T) with the axes before T in two
    """
    lead, (T, D), (S, E) = q.shape[:-2], q.shape[-2:], v.shape[-2:]
    q, k, v = _four_axes(q), _four_axes(k), _four_axes(v)
    shape = (*q.shape[:3], S)
    y, stats = _like(q, (*q.shape[:3], E), q.dtype), np.empty((2, *q.shape[:3]), q.dtype)
    if S == 0 or y.size == 0:
        y[...], stats[...] = 0, 0
        return y.reshape(*lead, T, E), stats
    if D == 0:
        q, k = _wide(q), _wide(k)
    bias, constants, options = _settings(S, _mask_of(mask, lead), q.dtype, scale, causal, dropout_p, seed)
    _run(forward, False, _work(shape, D + E, causal), stats[0].size // T * -(-T // QUERIES), (max(D, 1), E),
         q, k, v, bias, y, stats, constants, options)  # fmt: skip
    return y.reshape(*lead, T, E), stats


def attention_backward(
    g: Array, q: Array, k: Array, v: Array, mask: Array | None, y: Array, stats: Array, scale: float,
    causal: bool, dropout_p: float, seed: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """The gradients of q, k and v, from what `attention_forward` was given and gave."""
    shapes, lead, (S, E), D = (q.shape, k.shape, v.shape), q.shape[:-2], v.shape[-2:], q.shape[-1]
    g, q, k, v, y = (_four_axes(x) for x in (g, q, k, v, y))
    shape = (*q.shape[:3], S)
    if math.prod(shape) * E == 0:
        return np.zeros(shapes[0], q.dtype), np.zeros(shapes[1], q.dtype), np.zeros(shapes[2], q.dtype)
    if D == 0:
        q, k = _wide(q), _wide(k)
    X, Y, T = shape[:3]
    chunks = max(1, min(CHUNKS // (X * Y), T // (4 * QUERIES)))  # by shape, not by threads: the same bits
    if chunks == 1 and _packed(q, k, v):
        dq, dk, dv = np.moveaxis(np.empty((X, T, 3, Y, D), q.dtype), (2, 1), (0, 3))
    else:
        dq = _like(q, q.shape, q.dtype)
        dk, dv = (_like(x, (chunks * X, *x.shape[1:]), q.dtype) for x in (k, v))
    bias, constants, options = _settings(S, _mask_of(mask, lead), q.dtype, scale, causal, dropout_p, seed)
    _run(backward, True, _work(shape, 5 * (D + E) // 2, causal), X * Y * chunks, (max(D, 1), E),
         g, q, k, v, bias, y, stats, constants, options, dq, dk, dv)  # fmt: skip
    if chunks > 1:
        dk, dv = (x.reshape(chunks, X, *x.shape[1:]).sum(0) for x in (dk, dv))
    return dq[..., :D].reshape(shapes[0]), dk[..., :D].reshape(shapes[1]), dv.reshape(shapes[2])
