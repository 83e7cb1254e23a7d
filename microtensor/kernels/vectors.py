"""Vector code for the matrix product, as LLVM instructions, because numba's vectoriser does not find it.

The micro-kernel here is where all the time goes, everything else only feeds it. It exists for every CPU: the
tile is chosen by the CPU's features, and LLVM splits vectors where the hardware has none so wide.
Addresses and strides are in bytes, so that any NumPy array can be read in place. Each function stands here
twice: in plain Python, which says what it computes, and below that as the instructions that do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import for_range, get_or_insert_function
from numba.extending import intrinsic

from microtensor.kernels.layout import Array
from microtensor.kernels.threads import COMPILED, cpu_features

I32, I64 = ir.IntType(32), ir.IntType(64)
_declare: Any = get_or_insert_function  # numba has types for some of its names only


def _instructions_of(plain: Callable[..., None]) -> Callable[[Callable[..., None]], Any]:
    """Decorates `write(vectors, *arguments)`: it emits in LLVM what `plain(like, *arguments)` does in Python.

    The result is for kernels: instructions where they are compiled, `plain` (also its attribute) where not.
    `like` is an array that only tells the dtype; all other arguments are integers.
    """
    parameters = list(inspect.signature(plain).parameters.values())

    def decorate(write: Callable[..., None]) -> Any:
        def typed(typing: Any, like: Any, *integers: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                write(_Vectors(builder, like), *arguments[1:])
                return context.get_dummy_value()

            return types.void(like, *[types.intp] * len(integers)), codegen

        context = parameters[0].replace(name="typing")  # numba reads the signature: it knows no *integers
        typed.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
        function: Any = intrinsic(typed) if COMPILED else plain
        function.plain = plain
        return function

    return decorate


class _At:
    """Tells NumPy (by its array interface) of numbers at an address; strides in bytes."""

    def __init__(self, address: int, dtype: np.dtype[Any], shape: Any, strides: Any) -> None:
        self.__array_interface__ = {
            "data": (int(address), False), "typestr": dtype.str, "shape": shape, "strides": strides,
            "version": 3,
        }  # fmt: skip


def _array_at(like: Array, address: int, shape: tuple[int, int], strides: tuple[int, int]) -> Array:
    return np.asarray(_At(address, like.dtype, shape, strides))


class _Tile(NamedTuple):
    vector_bytes: int
    rows: int
    fused: bool  # one instruction multiplies and adds


def _tile_for(features: frozenset[str]) -> _Tile:
    """The tile that the vector registers can hold: rows x NV sums, NV vectors of B and one number of A."""
    if "avx512f" in features:
        return _Tile(64, 8, fused=True)  # 19 of 32 registers; 12 and 14 rows are no faster
    if "avx2" in features and "fma" in features:
        return _Tile(32, 6, fused=True)  # 15 of 16 registers
    return _Tile(16, 4, fused="neon" in features)


VECTOR_BYTES, MR, FUSED = _tile_for(cpu_features())
NV = 2  # vectors in a row of the tile
THIN = 2  # rows of a tile for the vector-like products of text generation


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

    def tile(like, a, rs, cs, b, bs, c, ldc, k_len, height, width, add):
        """C[i, j] (+)= Σₖ A[i, k] B[k, j] for i < height, j < width, as far as the tile reaches."""
        size = like.itemsize
        height, width = min(height, mr), min(width, nv * VECTOR_BYTES // size)
        A, B = _array_at(like, a, (height, k_len), (rs, cs)), _array_at(like, b, (k_len, width), (bs, size))
        C = _array_at(like, c, (height, width), (ldc, size))
        products = A.T[:, :, None] * B[:, None, :]  # (K, height, width)
        total = np.add.accumulate(products)[-1]  # one k after the other, where sum() would pair them up
        C[...] = C + total if add else total

    @_instructions_of(tile)
    def write(vectors, a, rs, cs, b, bs, c, ldc, k_len, height, width, add):
        masks = [vectors.mask(v, width) if masked else None for v in range(nv)]
        a, b, c = vectors.pointer(a), vectors.pointer(b), vectors.pointer(c)
        rows = [vectors.clamped_row(a, i, height, rs) for i in range(mr)]
        sums = _sum_over_k(vectors, rows, cs, b, bs, k_len, masks)
        _store_tile(vectors, sums, c, ldc, height, masks, add)

    return write


tile_full = _make_tile(MR, NV, masked=False)
tile_edge = _make_tile(MR, NV, masked=True)
tile_narrow = _make_tile(MR, 1, masked=True)
tile_thin = _make_tile(THIN, 4, masked=True)


def _copy_rows(like, source, stride, rows, width, out, ld):
    """out[r, j] = source[r, j] for r < rows, j < width ≤ NV vectors; the elements of a row are neighbours."""
    shape, size = (rows, width), like.itemsize
    _array_at(like, out, shape, (ld, size))[...] = _array_at(like, source, shape, (stride, size))


@_instructions_of(_copy_rows)
def copy_rows(vectors, source, stride, rows, width, out, ld):
    source, out = vectors.pointer(source), vectors.pointer(out)
    masks = [vectors.mask(v, width) for v in range(NV)]
    with for_range(vectors.builder, rows) as loop:
        row, out_row = vectors.row(source, loop.index, stride), vectors.row(out, loop.index, ld)
        for v, mask in enumerate(masks):
            vectors.store(vectors.load(row, v, mask), out_row, v, mask)


def _transpose_square(like, source, stride, rows, width, out, ld):
    """out[i, j] = source[j, i] for i < rows, j < width, both at most one vector's length.

    The instructions store whole vectors: to the right of width, up to that length, stands anything.
    """
    size = like.itemsize
    _array_at(like, out, (rows, width), (ld, size))[...] = _array_at(
        like, source, (width, rows), (stride, size)
    ).T


@_instructions_of(_transpose_square)
def transpose_square(vectors, source, stride, rows, width, out, ld):
    builder = vectors.builder
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
