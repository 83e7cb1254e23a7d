"""Matrix product as fast as BLAS, in Python: register tiles, packed panels, one block of C per thread.

A core can do 64 float32 operations per cycle but fetch only a few numbers from memory in that time, so a fast
product is about reuse (Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication"):
  registers  a tile of C, MR rows x NV vectors, stays in registers while k runs: one fetch feeds many FMAs;
  L1         MR rows of A, KC long, meet all columns before the next rows come;
  L2         KC rows of B are packed into panels as wide as the tile, and the inner loop reads straight on.
Every element of C is summed over k in the same order whatever the strides, the neighbours or the threads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import prange, types
from numpy.typing import NDArray

from microtensor.kernels.threads import compiled, get_num_threads, jit, jit_both, run
from microtensor.kernels.vectors import (
    MR,
    NV,
    THIN,
    VECTOR_BYTES,
    copy_rows,
    tile_edge,
    tile_full,
    tile_narrow,
    tile_thin,
    transpose_square,
)

Array = NDArray[Any]

KC = 256  # terms summed in registers before C is touched; 512 is slower for a transposed A
NC = 256  # columns of B packed at a time: KC x NC float32 take 256 KiB of L2
LINE = 64  # bytes; a vector that crosses a cache line costs two fetches
WORKSPACE_BYTES = KC * NC * 8 + LINE


@jit(cache=False)
def _pack(like: Array, source: int, rs: int, cs: int, rows: int, width: int, out: int, ld: int) -> None:
    """out[r, j] = source[r, j] for a panel of `rows` rows and at most NV vectors, whatever its strides."""
    size = like.itemsize
    if cs == size:
        copy_rows(like, source, rs, rows, width, out, ld)
        return
    if rs == size:
        lanes = VECTOR_BYTES // size
        for r in range(0, rows, lanes):
            for j in range(0, width, lanes):
                corner, to = source + r * rs + j * cs, out + r * ld + j * size
                transpose_square(like, corner, cs, min(lanes, rows - r), min(lanes, width - j), to, ld)
        return
    for j in range(width):  # neither way are the elements neighbours: column by column
        copy_rows(like, source + j * cs, rs, rows, 1, out + j * size, ld)


@jit(cache=False)
def _pack_panels(c: Array, b: int, b_rs: int, b_cs: int, K: int, N: int, out: int) -> None:
    """Copies B into panels of NR columns, each K x NR, one after the other."""
    size = c.itemsize
    NR = NV * (VECTOR_BYTES // size)
    for j in range(0, N, NR):
        _pack(c, b + j * b_cs, b_rs, b_cs, K, min(NR, N - j), out + j * K * size, NR * size)


@jit(cache=False)
def _thin_row(
    c: Array, a: int, rs: int, cs: int, b: int, bs: int, C: int, ldc: int, M: int, K: int, N: int, add: int
) -> None:
    """One or two rows of A: B is read in place, four vectors at a time."""
    for j in range(0, N, 4 * VECTOR_BYTES // c.itemsize):
        at = j * c.itemsize
        tile_thin(c, a, rs, cs, b + at, bs, C + at, ldc, K, M, N - j, add)


@jit(cache=False)
def _block(
    c: Array, ldc: int, a: int, a_rs: int, a_cs: int, b: int, b_rs: int, b_cs: int, C: int,
    M: int, K: int, N: int, buffer: int,
) -> None:  # fmt: skip
    """C = A B for one thread's block, given by addresses and byte strides; `buffer` holds the panels."""
    size = c.itemsize
    NR = NV * (VECTOR_BYTES // size)
    pack_b = b_cs != size or M > 4 * MR  # few rows would not pay for the packing
    b_panels = (buffer + LINE - 1) // LINE * LINE
    for j in range(0, N, NC):
        for k in range(0, K, KC):
            k_len = min(KC, K - k)
            bk, bs, panel = b + k * b_rs + j * b_cs, b_rs, NR * size
            if pack_b:
                _pack_panels(c, bk, b_rs, b_cs, k_len, min(NC, N - j), b_panels)
                bk, bs, panel = b_panels, NR * size, k_len * NR * size
            for i in range(0, M, MR):
                height, bp, cij = min(MR, M - i), bk, C + i * ldc + j * size
                ap = a + i * a_rs + k * a_cs
                if height <= THIN and not pack_b:
                    _thin_row(c, ap, a_rs, a_cs, bp, bs, cij, ldc, height, k_len, min(NC, N - j), k)
                    continue
                for left in range(min(NC, N - j), 0, -NR):
                    if left >= NR:
                        tile_full(c, ap, a_rs, a_cs, bp, bs, cij, ldc, k_len, height, left, k)
                    elif 2 * left > NR:
                        tile_edge(c, ap, a_rs, a_cs, bp, bs, cij, ldc, k_len, height, left, k)
                    else:
                        tile_narrow(c, ap, a_rs, a_cs, bp, bs, cij, ldc, k_len, height, left, k)
                    bp, cij = bp + panel, cij + NR * size


@jit(cache=False)
def _cut(length: int, tile: int, part: int, parts: int) -> int:
    """Where a part begins if `length` is cut into parts of whole tiles."""
    return min(length, (length + tile - 1) // tile * part // parts * tile)


@jit(cache=False)
def _matrix(x: Array, i: int, j: int) -> int:
    """The address of x[i, j], where an axis of length 1 stands for any length."""
    offset = min(i, x.shape[0] - 1) * x.strides[0] + min(j, x.shape[1] - 1) * x.strides[1]
    address: int = x.ctypes.data + offset
    return address


def _product(a: Array, b: Array, c: Array, buffers: Array) -> None:
    """C = A B for (X, Y, M, K) and (X, Y, K, N), one task per buffer; batch axes of length 1 broadcast."""
    X, Y, M, N = c.shape
    tasks, NR = buffers.shape[0], NV * (VECTOR_BYTES // c.itemsize)
    rows = cols = 1
    few = X * Y % tasks != 0 and X * Y // tasks < 4
    while few and rows * cols < tasks:  # too few matrices to go round: cut each
        if M // rows >= N // cols:
            rows *= 2
        else:
            cols *= 2
    pieces = X * Y * rows * cols
    for task in prange(tasks):
        for piece in range(pieces * task // tasks, pieces * (task + 1) // tasks):
            item, r, s = piece // (rows * cols), piece // cols % rows, piece % cols
            x, y = item // Y, item % Y
            i0, i1 = _cut(M, MR, r, rows), _cut(M, MR, r + 1, rows)
            j0, j1 = _cut(N, NR, s, cols), _cut(N, NR, s + 1, cols)
            _block(
                c, c.strides[2],
                _matrix(a, x, y) + i0 * a.strides[2], a.strides[2], a.strides[3],
                _matrix(b, x, y) + j0 * b.strides[3], b.strides[2], b.strides[3],
                _matrix(c, x, y) + i0 * c.strides[2] + j0 * c.strides[3],
                i1 - i0, a.shape[3], j1 - j0, buffers.ctypes.data + task * buffers.strides[0],
            )  # fmt: skip


_product_serial, _product_parallel = jit_both(_product)


@cache
def _code(dtype: np.dtype[Any], parallel: bool) -> Callable[..., None]:
    """The machine code for one dtype, as numba's entry point, which takes arrays of any strides."""
    scalar = types.float32 if dtype.itemsize == 4 else types.float64
    operand = types.Array(scalar, 4, "A", readonly=True)
    signature = (operand, operand, types.Array(scalar, 4, "A"), types.Array(types.uint8, 2, "C"))
    return compiled(_product_parallel if parallel else _product_serial, signature)


class _Workspace(threading.local):
    """Room for packed panels, kept between calls: fresh memory costs page faults. One per Python thread."""

    def __init__(self) -> None:
        self.serial = np.empty((1, WORKSPACE_BYTES), np.uint8)
        self.parallel = self.serial

    def for_tasks(self, tasks: int) -> Array:
        if len(self.parallel) != tasks:
            self.parallel = np.empty((tasks, WORKSPACE_BYTES), np.uint8)
        return self.parallel


_workspace = _Workspace()


def _serial(a: Array, b: Array, c: Array) -> None:
    _code(c.dtype, False)(a, b, c, _workspace.serial)


def _parallel(a: Array, b: Array, c: Array) -> None:
    _code(c.dtype, True)(a, b, c, _workspace.for_tasks(get_num_threads()))


_TO_4D: dict[int, tuple[None, ...]] = {2: (None, None), 3: (None,), 4: ()}  # indexing with None adds an axis


def _flat_batch(x: Array, batch: tuple[int, ...]) -> Array:
    """(..., M, K) → (product of batch, M, K)"""
    return np.broadcast_to(x, batch + x.shape[-2:]).reshape(math.prod(batch), *x.shape[-2:])


def matmul(a: Array, b: Array) -> Array:
    """C = A B over the last two axes; the axes before them broadcast, as in NumPy.

    Shapes: a (..., M, K), b (..., K, N) → (..., M, N), C-contiguous; both float32 or both float64.
    """
    a_shape, b_shape = a.shape, b.shape  # read once: a product of 16 x 16 costs less than ten attributes
    batch, K = a_shape[:-2], a_shape[-1]
    if batch and len(b_shape) == 2:  # one tall product instead of many: B is packed once
        return matmul(a.reshape(math.prod(a_shape[:-1]), K), b).reshape(*a_shape[:-1], b_shape[1])
    if batch != b_shape[:-2]:
        batch = np.broadcast_shapes(batch, b_shape[:-2])
    shape = (*batch, a_shape[-2], b_shape[-1])
    if K == 0:
        return np.zeros(shape, a.dtype)
    if len(batch) > 2:
        return matmul(_flat_batch(a, batch), _flat_batch(b, batch)).reshape(shape)
    c = np.empty(shape, a.dtype)
    a, b, c4 = a[_TO_4D[len(a_shape)]], b[_TO_4D[len(b_shape)]], c[_TO_4D[len(shape)]]
    run(c.size * K / VECTOR_BYTES, _serial, _parallel, a, b, c4)  # about so many nanoseconds
    return c
