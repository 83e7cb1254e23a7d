"""Matrix product as fast as BLAS, in Python: register tiles, packed panels, one block of C per thread.

A core can do 64 float32 operations per cycle but fetch only a few numbers from memory in that time, so a fast
product is about reuse (Goto & van de Geijn 2008, "Anatomy of High-Performance Matrix Multiplication"):
  registers  a tile of C, MR rows x NV vectors, stays in registers while k runs: one fetch feeds many FMAs;
  L1         a panel of B, as wide as the tile and KC long, is packed and meets all rows of the block;
  L2         MC rows of A, KC long, are read again for each panel; packed only if they are not neighbours.
Every element of C is summed over k in the same order whatever the strides, the neighbours or the threads.
Only where few rows meet columns of B that lie in memory as rows do, as in a step of generation, nothing is
packed: there each lane of a vector adds up its own share of k.
"""

from __future__ import annotations

import math
import threading
from functools import partial
from typing import Any

import numpy as np
from numba import types

from microtensor.kernels.driver import again, in_tasks
from microtensor.kernels.layout import Array
from microtensor.kernels.operands import address, call, entry, handle, length, operand, rank, stride, table_of
from microtensor.kernels.panels import LINE, dots, lanes_of, one_row, pack, pack_panels, panel
from microtensor.kernels.threads import PARALLEL_FROM, compiled, get_num_threads, jit, run
from microtensor.kernels.vectors import FEW_ROWS, MR, NV, VECTOR_BYTES

KC = 384  # terms summed in registers before C is touched
A_BYTES = 400 << 10  # of A that are read again for every panel of B: more than half of a small L2
ADD, RELU = 1, 2  # flags
THIN = 4  # fetching B costs as much as the arithmetic of so many rows of A
SPARE = 16  # elements between packed rows of A: rows a page apart would share few places in L1
PAGE = 4096  # bytes
L1_BYTES = 32 << 10  # a transposed A that fits the first cache is read in place
PANELS = 4  # of B that are packed at a time
PACKED_BYTES = KC * PANELS * NV * VECTOR_BYTES
WORKSPACE_BYTES = PACKED_BYTES + A_BYTES + 4 * NV * VECTOR_BYTES + LINE
SIZE, PANEL, PACK, PACK_PANELS, ONE_ROW, DOTS = range(6)  # places in the table of a dtype, see `_Kernels`


@jit(cache=False)
def _rows(
    table: Any, size: int, a: int, a_rs: int, a_cs: int, b: int, b_rs: int, b_cs: int, c: int, ldc: int,
    M: int, K: int, N: int, d: int, ldd: int, relu: int, packed: int,
) -> None:  # fmt: skip
    """C = A B + D, panel by panel of B."""
    lanes = lanes_of(size)
    NR, whole = NV * lanes, N * size // (NV * VECTOR_BYTES)
    if 0 < N - whole * NR <= lanes and whole > 0:
        whole -= 1  # what is left makes a wider panel
    # few rows would not pay for the packing; nor would a B that stays in the first cache as it is
    in_place = b_cs == size and (M <= 4 * MR or 0 <= K * b_rs <= L1_BYTES)
    for p in range(whole + int(whole * NR < N)):
        j = p * NR
        at, bj, bs, width = j * size, b + j * b_cs, b_rs, NR
        dj = d + at if d != 0 else 0
        if p == whole:
            width, bj, bs = N - j, packed, (NR if N - j <= NR else NR + lanes) * size
            call(entry(table, PACK), (size, b + j * b_cs, b_rs, b_cs, K, width, bj, bs))
        elif not in_place:
            if p % PANELS == 0:
                call(entry(table, PACK_PANELS), (size, bj, b_rs, b_cs, K, min(PANELS, whole - p), packed))
            bj, bs = packed + p % PANELS * K * NR * size, NR * size
        call(entry(table, PANEL), (size, a, a_rs, a_cs, bj, bs, c + at, ldc, M, K, width, dj, ldd, relu))


@jit(cache=False)
def _block(
    table: Any, size: int, a: int, a_rs: int, a_cs: int, b: int, b_rs: int, b_cs: int, c: int, ldc: int,
    d: int, ldd: int, relu: int, M: int, K: int, N: int, few: int, buffer: int,
) -> None:  # fmt: skip
    """C = A B + D for one thread's block, given by addresses and byte strides."""
    panel = (buffer + LINE - 1) // LINE * LINE
    packed_a = panel + PACKED_BYTES
    k_step = K
    if K > KC and not (few and a_cs == size):
        k_step = (-(-K // -(-K // KC)) + 7) // 8 * 8  # equal parts: a short one would cost as much
    i_step, row = M, (k_step + SPARE) * size
    if M * row > A_BYTES and not few:
        i_step = -(-M // -(-M // (A_BYTES // row)))
    for k in range(0, K, k_step):
        k_len = min(k_step, K - k)
        last = relu if k + k_step >= K else 0
        if k > 0:
            d, ldd = c, ldc
        bk = b + k * b_rs
        for i in range(0, M, i_step):
            m = min(i_step, M - i)
            ai, rs, cs = a + i * a_rs + k * a_cs, a_rs, a_cs
            ci, di = c + i * ldc, d + i * ldd if d != 0 else 0
            if M == 1 and b_cs == size:
                call(entry(table, ONE_ROW), (size, ai, cs, bk, b_rs, ci, k_len, N, di, last))
                continue
            far = few or (m * k_len * size > L1_BYTES and N * size > NV * VECTOR_BYTES)  # read more than once
            if (cs != size and far) or (rs % PAGE == 0 and m > MR and N > 64):
                rs, cs = (k_len + SPARE) * size, size
                call(entry(table, PACK), (size, ai, a_rs, a_cs, m, k_len, packed_a, rs))
                ai = packed_a
            if few:
                call(entry(table, DOTS), (size, ai, rs, bk, b_cs, ci, ldc, m, k_len, N, di, ldd, last))
                continue
            _rows(table, size, ai, rs, cs, bk, b_rs, b_cs, ci, ldc, m, k_len, N, di, ldd, last, panel)


@jit(cache=False)
def _cut(size: int, tile: int, part: int, parts: int) -> int:
    """Where a part begins if an axis of this size is cut into parts of whole tiles."""
    return min(size, (size + tile - 1) // tile * part // parts * tile)


@jit(cache=False)
def _matrix(x: Any, c: Any, item: int) -> int:
    """The address of x's matrix number `item`, counted over the leading axes of c; 1 in x repeats."""
    at: int = address(x)
    missing = rank(c) - rank(x)
    for axis in range(rank(c) - 3, missing - 1, -1):
        outer = item // length(c, axis) if axis > 0 else 0  # a division costs as much as a small tile
        if length(x, axis - missing) > 1:
            at += (item - outer * length(c, axis)) * stride(x, axis - missing)
        item = outer
    return at


@jit(cache=False)
def _cuts(items: int, tasks: int, M: int, N: int) -> tuple[int, int]:
    """Into how many parts each matrix is cut, rows and columns, if there are too few of them to go round."""
    rows = cols = 1
    few = tasks > 1 and items % tasks != 0 and items // tasks < 4
    while few and rows * cols < tasks:
        if M // rows >= N // cols:
            rows *= 2
        else:
            cols *= 2
    return rows, cols


@jit(cache=False)
def _piece(
    a: Any, b: Any, c: Any, d: Any, add: int, relu: int, table: Any, item: int, i0: int, i1: int, j0: int,
    j1: int, buffer: int,
) -> None:  # fmt: skip
    """Rows i0 to i1 and columns j0 to j1 of one matrix of the batch."""
    size = entry(table, SIZE)
    a_rs, b_cs, ldc = stride(a, -2), stride(b, -1), stride(c, -2)
    few = int(length(c, -2) <= FEW_ROWS and stride(b, -2) == size)  # of the whole matrix, not of this piece
    d_at, ldd = 0, 0
    if add != 0:
        d_at = _matrix(d, c, item) + j0 * size
        if rank(d) > 1 and length(d, -2) > 1:
            ldd = stride(d, -2)
    _block(
        table, size, _matrix(a, c, item) + i0 * a_rs, a_rs, stride(a, -1),
        _matrix(b, c, item) + j0 * b_cs, stride(b, -2), b_cs,
        _matrix(c, c, item) + i0 * ldc + j0 * size, ldc, d_at + i0 * ldd, ldd, relu,
        i1 - i0, length(a, -1), j1 - j0, few, buffer,
    )  # fmt: skip


@jit
def _product(
    task: int, tasks: int, driver: int, a_array: Any, b_array: Any, c_array: Any, d_array: Any, flags: int,
    table: Any, buffers: int,
) -> None:  # fmt: skip
    """One task's share of C = A B (+ D) over the last two axes, the others broadcast; each has its buffer."""
    if task < 0:
        again(tasks, driver)
        return
    a, b, c, d = handle(a_array), handle(b_array), handle(c_array), handle(d_array)
    M, N, items = length(c, -2), length(c, -1), 1
    for axis in range(rank(c) - 2):
        items *= length(c, axis)
    NR = NV * lanes_of(entry(table, SIZE))
    rows, cols = _cuts(items, tasks, M, N)
    pieces = items * rows * cols
    for piece in range(pieces * task // tasks, pieces * (task + 1) // tasks):
        item, i0, i1, j0, j1 = piece, 0, M, 0, N
        if rows * cols > 1:
            item, r, s = piece // (rows * cols), piece // cols % rows, piece % cols
            i0, i1 = _cut(M, MR, r, rows), _cut(M, MR, r + 1, rows)
            j0, j1 = _cut(N, NR, s, cols), _cut(N, NR, s + 1, cols)
        if i1 > i0 and j1 > j0:
            buffer = buffers + task * WORKSPACE_BYTES
            _piece(a, b, c, d, flags & ADD, flags & RELU, table, item, i0, i1, j0, j1, buffer)


_types: Any = types  # numba has types for some of its names only
_SIGNATURE = (*[_types.intp] * 3, *[operand] * 4, *[_types.intp] * 3)


class _Kernels(dict[int, tuple[Any, Any]]):
    """By the size of a number in bytes: the machine code, and the table of what it calls and needs."""

    def __missing__(self, size: int) -> tuple[Any, Any]:
        table = table_of(np.dtype(f"f{size}"), panel, pack, pack_panels, one_row, dots)
        return self.setdefault(size, (compiled(_product, _SIGNATURE), table))


_kernels = _Kernels()


class _Workspace(threading.local):
    """Room for what is packed, kept between calls: fresh memory costs page faults. One per Python thread."""

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)
        self.tasks = 0
        self.address = self.for_tasks(1)

    def for_tasks(self, tasks: int) -> int:
        """The address of as many buffers."""
        if self.tasks < tasks:
            self._memory, self.tasks = np.empty(tasks * WORKSPACE_BYTES, np.uint8), tasks
            self.address = self._memory.ctypes.data
        return self.address


_workspace = _Workspace()


def _share(tasks: int, code: Any, *arguments: Any) -> None:
    """No function inside `matmul`: what it would refer to costs each call 0.3 µs, the small ones too."""
    tasks = tasks or get_num_threads()
    in_tasks(code, tasks, *arguments, _workspace.for_tasks(tasks))


def _addend(add: Array, shape: tuple[int, ...]) -> Array:
    """D as the kernel reads it: it broadcasts, but its rows are as long as C's, and of neighbours."""
    if add.shape != shape and add.shape != shape[-1:]:
        add = np.broadcast_to(add, shape)
    return add if add.strides[-1] == add.itemsize else add.copy()


def matmul(
    a: Array, b: Array, add: Array | None = None, *, relu: bool = False, out: Array | None = None
) -> Array:
    """C = A B + D over the last two axes, then max(C, 0) if relu; the axes before them broadcast as in NumPy.

    Shapes: a (..., M, K), b (..., K, N) → (..., M, N), C-contiguous; both float32 or both float64.
    add: D, of any shape that broadcasts to C's: a bias (N,), what is carried past a layer, or `out` itself.
    out: where C goes, C-contiguous and of C's shape; its memory is no other operand's but D's.
    """
    a_shape, b_shape = a.shape, b.shape  # read once: a product of 16 x 16 costs less than ten attributes
    if len(a_shape) == len(b_shape) == 2:
        M, K = a_shape
        N = b_shape[1]
        shape: tuple[int, ...] = (M, N)
        work = (M + THIN) * N * K
    elif len(b_shape) == 2 and out is None and (add is None or add.ndim == 1):  # one tall product
        tall = matmul(a.reshape(math.prod(a_shape[:-1]), a_shape[-1]), b, add, relu=relu)
        return tall.reshape(*a_shape[:-1], b_shape[1])
    else:
        M, K = a_shape[-2:]
        shape = (*np.broadcast_shapes(a_shape[:-2], b_shape[:-2]), M, b_shape[-1])
        work = math.prod(shape) // max(M, 1) * (M + THIN) * K
    if out is None:
        out = np.empty(shape, a.dtype)
    elif out.shape != shape or not out.flags.c_contiguous or out.dtype != a.dtype:
        raise ValueError(
            f"matmul: out is {out.shape} {out.dtype}, or not C-contiguous; give one {shape} {a.dtype} that is"
        )
    if K == 0:
        out[...] = 0 if add is None else add
        return np.maximum(out, 0, out=out) if relu else out
    d, flags = (out, RELU * relu) if add is None else (_addend(add, shape), ADD + RELU * relu)
    code, table = _kernels[a.itemsize]
    work //= VECTOR_BYTES  # about so many nanoseconds
    if work < PARALLEL_FROM:
        code(0, 1, 0, a, b, out, d, flags, table, _workspace.address)
    else:
        run(work, partial(_share, 1), partial(_share, 0), code, a, b, out, d, flags, table)
    return out
