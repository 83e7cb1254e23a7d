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
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core.cgutils import for_range, get_or_insert_function
from numba.extending import intrinsic
from numpy.typing import NDArray

from microtensor.kernels.threads import cpu_features, get_num_threads, jit, jit_both, run

Array = NDArray[Any]
I32, I64 = ir.IntType(32), ir.IntType(64)
_declare: Any = get_or_insert_function  # numba has types for some of its names only


def _emitted(function: Callable[..., Any]) -> Any:
    """A function for kernels whose LLVM code is written by hand."""
    return intrinsic(function)


class _Tile(NamedTuple):
    vector_bytes: int
    rows: int
    fused: bool  # one instruction multiplies and adds
    columns: int  # of B packed at a time: with KC rows of float32 they should fill half of L2


def _tile_for(features: frozenset[str]) -> _Tile:
    """The tile that the vector registers can hold: rows x NV sums, NV vectors of B and one number of A."""
    if "avx512f" in features:
        return _Tile(64, 8, fused=True, columns=256)  # 19 of 32 registers; 12 and 14 rows are no faster
    if "avx2" in features and "fma" in features:
        return _Tile(32, 6, fused=True, columns=128)  # 15 of 16 registers
    return _Tile(16, 4, fused="neon" in features, columns=128)


VECTOR_BYTES, MR, FUSED, NC = _tile_for(cpu_features())
NV = 2  # vectors in a row of the tile
THIN = 2  # rows of a tile for the vector-like products of text generation
KC = 512  # terms summed in registers before C is touched: MR rows of A (16 KiB) leave room in L1
PAGE = 4096  # bytes
LINE = 64  # bytes; a vector that crosses a cache line costs two fetches
WORKSPACE_BYTES = (KC * NC + MR * KC) * 8 + LINE


class _Vectors:
    """Writes the vector instructions that numba's own vectoriser does not find; strides are in bytes."""

    def __init__(self, builder: Any, array: Any) -> None:
        self.builder = builder
        bits = array.dtype.bitwidth
        self.lanes = VECTOR_BYTES * 8 // bits
        self.scalar = ir.FloatType() if bits == 32 else ir.DoubleType()
        self.type = ir.VectorType(self.scalar, self.lanes)
        self.zero = ir.Constant(self.type, [0.0] * self.lanes)
        self.suffix = f"v{self.lanes}f{bits}"

    def pointer(self, address: Any) -> Any:
        return self.builder.inttoptr(address, ir.IntType(8).as_pointer())

    def row(self, pointer: Any, index: Any, stride: Any) -> Any:
        return self.builder.gep(pointer, [self.builder.mul(index, stride)])

    def clamped_row(self, pointer: Any, index: int, count: Any, stride: Any) -> Any:
        """A row below the edge repeats the last one: its memory exists, and nobody stores the result."""
        inside = self.builder.icmp_signed("<", I64(index), count)
        return self.row(
            pointer, self.builder.select(inside, I64(index), self.builder.sub(count, I64(1))), stride
        )

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        signature = ir.FunctionType(result, [x.type for x in arguments])
        function = _declare(self.builder.module, signature, f"llvm.{name}")
        return self.builder.call(function, arguments)

    def splat(self, scalar: Any) -> Any:
        undefined = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, I32(0))
        zeros = ir.Constant(ir.VectorType(I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def mask(self, v: int, width: Any) -> Any:
        """The lanes of a row's vector v that lie left of `width`."""
        columns = [v * self.lanes + i for i in range(self.lanes)]
        index = ir.Constant(ir.VectorType(I64, self.lanes), columns)
        return self.builder.icmp_signed("<", index, self.splat(width))

    def _vector(self, row: Any, v: int) -> Any:
        pointer = self.builder.gep(row, [I64(v * VECTOR_BYTES)])
        return self.builder.bitcast(pointer, self.type.as_pointer())

    def load(self, row: Any, v: int = 0, mask: Any = None) -> Any:
        pointer = self._vector(row, v)
        if mask is not None:
            return self._call(f"masked.load.{self.suffix}.p0", self.type, pointer, I32(1), mask, self.zero)
        value = self.builder.load(pointer)
        value.align = 1  # NumPy allows misaligned arrays, and the CPU does not mind
        return value

    def store(self, value: Any, row: Any, v: int = 0, mask: Any = None) -> None:
        pointer = self._vector(row, v)
        if mask is not None:
            self._call(f"masked.store.{self.suffix}.p0", ir.VoidType(), value, pointer, I32(1), mask)
        else:
            self.builder.store(value, pointer).align = 1

    def load_and_splat(self, pointer: Any) -> Any:
        value = self.builder.load(self.builder.bitcast(pointer, self.scalar.as_pointer()))
        value.align = 1
        return self.splat(value)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        if FUSED:
            return self._call(f"fma.{self.suffix}", self.type, a, b, c)
        return self.builder.fadd(self.builder.fmul(a, b), c)


def _sum_over_k(
    vectors: _Vectors, rows: list[Any], cs: Any, b: Any, bs: Any, k_len: Any, masks: list[Any]
) -> list[list[Any]]:
    """Emits the loop that is all the speed: per k, one row of B, a number of each row of A, and the FMAs."""
    builder = vectors.builder
    before, loop, done = builder.block, builder.append_basic_block("k"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k, a_step, b_step = (builder.phi(I64) for _ in range(3))
    sums = [[builder.phi(vectors.type) for _ in masks] for _ in rows]
    b_row = builder.gep(b, [b_step])
    b_k = [vectors.load(b_row, v, mask) for v, mask in enumerate(masks)]
    results = []
    for row, row_sums in zip(rows, sums, strict=True):
        a_ik = vectors.load_and_splat(builder.gep(row, [a_step]))
        results.append([vectors.multiply_add(a_ik, b_kj, s) for b_kj, s in zip(b_k, row_sums, strict=True)])
    for s, result in zip(chain(*sums), chain(*results), strict=True):
        s.add_incoming(vectors.zero, before)
        s.add_incoming(result, loop)
    next_k = builder.add(k, I64(1))
    for step, following in (
        (k, next_k),
        (a_step, builder.add(a_step, cs)),
        (b_step, builder.add(b_step, bs)),
    ):
        step.add_incoming(I64(0), before)
        step.add_incoming(following, loop)
    branch = builder.cbranch(builder.icmp_signed("<", next_k, k_len), loop, done)
    _forbid_unrolling(builder.module, branch)
    builder.position_at_end(done)
    return results


def _forbid_unrolling(module: Any, branch: Any) -> None:
    """Unrolled, the loop would keep two pointers for each row and run out of registers."""
    loop = module.add_metadata([module.add_metadata(["llvm.loop.unroll.disable"]), branch.parent.name])
    loop.operands = (loop, loop.operands[0])  # LLVM wants a loop's metadata to begin with itself
    branch.set_metadata("llvm.loop", loop)


def _store_tile(
    vectors: _Vectors, sums: list[list[Any]], c: Any, ldc: Any, height: Any, masks: list[Any], add: Any
) -> None:
    builder = vectors.builder

    def store(added: bool) -> None:
        for i, row_sums in enumerate(sums):
            with builder.if_then(builder.icmp_signed("<", I64(i), height)):
                row = vectors.row(c, I64(i), ldc)
                for v, (value, mask) in enumerate(zip(row_sums, masks, strict=True)):
                    total = builder.fadd(vectors.load(row, v, mask), value) if added else value
                    vectors.store(total, row, v, mask)

    with builder.if_else(builder.icmp_signed("!=", add, I64(0))) as (then, otherwise):
        with then:
            store(added=True)
        with otherwise:
            store(added=False)


def _make_tile(mr: int, nv: int, masked: bool) -> Any:
    """The micro-kernel for mr rows of nv vectors; `masked` if it may reach over the right edge of C."""

    @_emitted
    def tile(typing, like, a, rs, cs, b, bs, c, ldc, k_len, height, width, add):  # type: ignore[no-untyped-def]
        """C[i, j] (+)= Σₖ A[i, k] B[k, j] for i < height, j < width; addresses and strides in bytes."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            _, a, rs, cs, b, bs, c, ldc, k_len, height, width, add = args
            vectors = _Vectors(builder, like)
            masks = [vectors.mask(v, width) if masked else None for v in range(nv)]
            a, b, c = vectors.pointer(a), vectors.pointer(b), vectors.pointer(c)
            rows = [vectors.clamped_row(a, i, height, rs) for i in range(mr)]
            sums = _sum_over_k(vectors, rows, cs, b, bs, k_len, masks)
            _store_tile(vectors, sums, c, ldc, height, masks, add)
            return context.get_dummy_value()

        return types.void(like, *[types.intp] * 11), codegen

    return tile


_tile_full = _make_tile(MR, NV, masked=False)
_tile_edge = _make_tile(MR, NV, masked=True)
_tile_narrow = _make_tile(MR, 1, masked=True)
_tile_thin = _make_tile(THIN, 4, masked=True)


@_emitted
def _copy_rows(typing, like, source, stride, rows, width, out, ld):  # type: ignore[no-untyped-def]
    """out[r, j] = source[r, j] for r < rows, j < width ≤ NV vectors; the elements of a row are neighbours."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, source, stride, rows, width, out, ld = args
        vectors = _Vectors(builder, like)
        source, out = vectors.pointer(source), vectors.pointer(out)
        masks = [vectors.mask(v, width) for v in range(NV)]
        with for_range(builder, rows) as loop:
            row, out_row = vectors.row(source, loop.index, stride), vectors.row(out, loop.index, ld)
            for v, mask in enumerate(masks):
                vectors.store(vectors.load(row, v, mask), out_row, v, mask)
        return context.get_dummy_value()

    return types.void(like, *[types.intp] * 6), codegen


@_emitted
def _transpose_square(typing, like, source, stride, rows, width, out, ld):  # type: ignore[no-untyped-def]
    """out[i, j] = source[j, i] for i < rows, j < width, both at most one vector's length."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, source, stride, rows, width, out, ld = args
        vectors = _Vectors(builder, like)
        source, out, mask = vectors.pointer(source), vectors.pointer(out), vectors.mask(0, rows)
        n, half = vectors.lanes, vectors.lanes // 2
        pack = [vectors.load(vectors.clamped_row(source, i, width, stride), mask=mask) for i in range(n)]
        shuffles = []
        for start in (0, half):
            lanes = [lane for i in range(start, start + half) for lane in (i, n + i)]
            shuffles.append(ir.Constant(ir.VectorType(I32, n), lanes))
        for _ in range(n.bit_length() - 1):  # log2(n) times: shuffle the two halves of the pack together
            pairs = zip(pack[:half], pack[half:], strict=True)
            pack = [builder.shuffle_vector(p, q, lanes) for p, q in pairs for lanes in shuffles]
        for i, column in enumerate(pack):
            with builder.if_then(builder.icmp_signed("<", I64(i), rows)):
                vectors.store(column, vectors.row(out, I64(i), ld))
        return context.get_dummy_value()

    return types.void(like, *[types.intp] * 6), codegen


@_emitted
def _copy_element(typing, like, source, out):  # type: ignore[no-untyped-def]
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _Vectors(builder, like).scalar.as_pointer()
        value = builder.load(builder.inttoptr(args[1], pointer))
        value.align = 1
        builder.store(value, builder.inttoptr(args[2], pointer))
        return context.get_dummy_value()

    return types.void(like, types.intp, types.intp), codegen


@jit(cache=False)
def _pack(like: Array, source: int, rs: int, cs: int, rows: int, width: int, out: int, ld: int) -> None:
    """out[r, j] = source[r, j] for a panel of `rows` rows and at most NV vectors, whatever its strides."""
    size = like.itemsize
    if cs == size:
        _copy_rows(like, source, rs, rows, width, out, ld)
        return
    if rs == size:
        lanes = VECTOR_BYTES // size
        for r in range(0, rows, lanes):
            for j in range(0, width, lanes):
                corner, to = source + r * rs + j * cs, out + r * ld + j * size
                _transpose_square(like, corner, cs, min(lanes, rows - r), min(lanes, width - j), to, ld)
        return
    for r in range(rows):
        for j in range(width):
            _copy_element(like, source + r * rs + j * cs, out + r * ld + j * size)


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
        _tile_thin(c, a, rs, cs, b + at, bs, C + at, ldc, K, M, N - j, add)


@jit(cache=False)
def _block(
    c: Array, ldc: int, a: int, a_rs: int, a_cs: int, b: int, b_rs: int, b_cs: int, C: int,
    M: int, K: int, N: int, buffer: int,
) -> None:  # fmt: skip
    """C = A B for one thread's block, given by addresses and byte strides; `buffer` holds the panels."""
    size = c.itemsize
    NR = NV * (VECTOR_BYTES // size)
    pack_b = b_cs != size or M > 4 * MR  # few rows would not pay for the packing
    pack_a = abs(a_cs) >= PAGE and N > 4 * NR  # each step of k would be in another page
    b_panels = (buffer + LINE - 1) // LINE * LINE
    a_panel = b_panels + KC * NC * size
    for j in range(0, N, NC):
        for k in range(0, K, KC):
            k_len = min(KC, K - k)
            bk, bs, panel = b + k * b_rs + j * b_cs, b_rs, NR * size
            if pack_b:
                _pack_panels(c, bk, b_rs, b_cs, k_len, min(NC, N - j), b_panels)
                bk, bs, panel = b_panels, NR * size, k_len * NR * size
            for i in range(0, M, MR):
                height, bp, cij = min(MR, M - i), bk, C + i * ldc + j * size
                ap, rs, cs = a + i * a_rs + k * a_cs, a_rs, a_cs
                if height <= THIN and not pack_b:
                    _thin_row(c, ap, rs, cs, bp, bs, cij, ldc, height, k_len, min(NC, N - j), k)
                    continue
                if pack_a:
                    _pack(c, ap, a_cs, a_rs, k_len, height, a_panel, MR * size)
                    ap, rs, cs = a_panel, size, MR * size
                for left in range(min(NC, N - j), 0, -NR):
                    if left >= NR:
                        _tile_full(c, ap, rs, cs, bp, bs, cij, ldc, k_len, height, left, k)
                    elif 2 * left > NR:
                        _tile_edge(c, ap, rs, cs, bp, bs, cij, ldc, k_len, height, left, k)
                    else:
                        _tile_narrow(c, ap, rs, cs, bp, bs, cij, ldc, k_len, height, left, k)
                    bp, cij = bp + panel, cij + NR * size


def _product(a: Array, b: Array, c: Array, buffers: Array) -> None:
    """C = A B for (X, Y, M, K) and (X, Y, K, N), one task per buffer; batch axes of length 1 broadcast."""
    X, Y, M, N = c.shape
    K, size, tasks = a.shape[3], c.itemsize, buffers.shape[0]
    NR = NV * (VECTOR_BYTES // size)
    rows = cols = 1
    few = X * Y % tasks != 0 and X * Y // tasks < 4
    while few and rows * cols < tasks:  # too few matrices to go round: cut each
        if M // rows >= N // cols:
            rows *= 2
        else:
            cols *= 2
    pieces, grid = X * Y * rows * cols, rows * cols
    for task in prange(tasks):
        for piece in range(pieces * task // tasks, pieces * (task + 1) // tasks):
            item, r, s = piece // grid, piece % grid // cols, piece % cols
            x, y = item // Y, item % Y
            i0, i1 = (M + MR - 1) // MR * r // rows * MR, min(M, (M + MR - 1) // MR * (r + 1) // rows * MR)
            j0, j1 = (N + NR - 1) // NR * s // cols * NR, min(N, (N + NR - 1) // NR * (s + 1) // cols * NR)
            ai = a.ctypes.data + min(x, a.shape[0] - 1) * a.strides[0] + min(y, a.shape[1] - 1) * a.strides[1]
            bi = b.ctypes.data + min(x, b.shape[0] - 1) * b.strides[0] + min(y, b.shape[1] - 1) * b.strides[1]
            _block(
                c, c.strides[2],
                ai + i0 * a.strides[2], a.strides[2], a.strides[3],
                bi + j0 * b.strides[3], b.strides[2], b.strides[3],
                c.ctypes.data + x * c.strides[0] + y * c.strides[1] + i0 * c.strides[2] + j0 * size,
                i1 - i0, K, j1 - j0, buffers.ctypes.data + task * buffers.strides[0],
            )  # fmt: skip


_product_serial, _product_parallel = jit_both(_product)


@cache
def _code(dtype: np.dtype[Any], parallel: bool) -> Callable[..., None]:
    """The machine code for one dtype, as numba's entry point, which takes arrays of any strides."""
    scalar = types.float32 if dtype.itemsize == 4 else types.float64
    operand = types.Array(scalar, 4, "A", readonly=True)
    signature = (operand, operand, types.Array(scalar, 4, "A"), types.Array(types.uint8, 2, "C"))
    kernel: Any = _product_parallel if parallel else _product_serial
    code: Callable[..., None] = kernel.compile(signature)
    return code


class _Workspace(threading.local):
    """Room for packed panels, kept between calls: fresh memory costs page faults. One per Python thread."""

    def __init__(self) -> None:
        self.buffers: dict[int, Array] = {}

    def __getitem__(self, tasks: int) -> Array:
        if tasks not in self.buffers:
            self.buffers[tasks] = np.empty((tasks, WORKSPACE_BYTES), np.uint8)
        return self.buffers[tasks]


_workspace = _Workspace()


def _serial(a: Array, b: Array, c: Array) -> None:
    _code(c.dtype, False)(a, b, c, _workspace[1])


def _parallel(a: Array, b: Array, c: Array) -> None:
    _code(c.dtype, True)(a, b, c, _workspace[get_num_threads()])


def _as_4d(x: Array, batch: tuple[int, ...]) -> Array:
    """(..., M, K) → (X, Y, M, K), where an axis of X or Y that is to be broadcast has length 1."""
    if len(batch) <= 2:
        return x[_LEADING_AXES[x.ndim]]
    if x.shape[:-2] != batch:
        x = np.broadcast_to(x, batch + x.shape[-2:])
    return x.reshape(math.prod(batch[:-1]), batch[-1], *x.shape[-2:])


_LEADING_AXES: dict[int, tuple[None, ...]] = {2: (None, None), 3: (None,), 4: ()}


def matmul(a: Array, b: Array) -> Array:
    """C = A B over the last two axes; the axes before them broadcast, as in NumPy.

    Shapes: a (..., M, K), b (..., K, N) → (..., M, N), C-contiguous; both float32 or both float64.
    """
    a_shape, b_shape = a.shape, b.shape
    if len(a_shape) > 2 and len(b_shape) == 2:  # one tall product instead of many: B is packed once
        return matmul(a.reshape(math.prod(a_shape[:-1]), a_shape[-1]), b).reshape(*a_shape[:-1], b_shape[1])
    batch, K = a_shape[:-2], a_shape[-1]
    if batch != b_shape[:-2]:
        batch = np.broadcast_shapes(batch, b_shape[:-2])
    shape = (*batch, a_shape[-2], b_shape[-1])
    if K == 0:
        return np.zeros(shape, a.dtype)
    c = np.empty(shape, a.dtype)
    nanoseconds = c.size * K / VECTOR_BYTES
    run(nanoseconds, _serial, _parallel, _as_4d(a, batch), _as_4d(b, batch), _as_4d(c, batch))
    return c
