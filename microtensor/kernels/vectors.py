"""Vector code for the matrix product, as LLVM instructions, because numba's vectoriser does not find it.

The micro-kernel here is where all the time goes, everything else only feeds it. It exists for every CPU: the
tile is chosen by the CPU's features, and LLVM splits vectors where the hardware has none so wide.
Addresses and strides are in bytes, so that any NumPy array can be read in place. Each function stands here
twice: in plain Python, which says what it computes, and below that as the instructions that do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
    `like` is an array or a number that only tells the dtype; all other arguments are integers.
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
        function.plain, function.write = plain, write
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
    low_rows: int  # for what is left below: sums enough to hide the latency of an addition
    wide_rows: int  # of a tile that is one vector wider
    fused: bool  # one instruction multiplies and adds
    masks: bool  # a store that leaves lanes out is as fast as one that does not


def _tile_for(features: frozenset[str]) -> _Tile:
    """The tile that the vector registers can hold: rows x NV sums, NV vectors of B and one number of A."""
    if "avx512f" in features:
        return _Tile(64, 8, 4, 8, fused=True, masks=True)  # 19 of 32 registers; 12 and 14 rows are no faster
    if "avx2" in features and "fma" in features:
        return _Tile(32, 6, 4, 4, fused=True, masks=False)  # 15 of 16 registers; AMD's masked stores are slow
    return _Tile(16, 4, 2, 4, fused="neon" in features, masks=False)


VECTOR_BYTES, MR, LOW, WIDE, FUSED, MASKS = _tile_for(cpu_features())
NV = 2  # vectors in a row of the tile
ROW = 8  # vectors of C that a product with one row keeps: as many as hide the latency
FEW_ROWS = 4  # of A, that meet columns of B which lie in memory as rows do: nothing is packed for them
COLUMNS = 8  # of those that are read at a time


class _Vectors:
    """Writes the vector instructions that numba's own vectoriser does not find; strides are in bytes."""

    def __init__(self, builder: Any, like: Any) -> None:
        self.builder = builder
        bits = getattr(like, "dtype", like).bitwidth
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

    def store_first(self, value: Any, pointer: Any, count: Any) -> None:
        """Stores the first 0 < count < lanes of a vector: half of it, a quarter, … as count's bits say."""
        builder = self.builder
        if MASKS:
            self.store(value, pointer, mask=self.mask(0, count))
            return
        part, at = self.lanes // 2, pointer
        while part:
            low, high = (self.take(value, range(i * part, (i + 1) * part)) for i in (0, 1))
            with builder.if_then(builder.icmp_signed("!=", builder.and_(count, I64(part)), I64(0))):
                builder.store(low, builder.bitcast(at, low.type.as_pointer())).align = 1
            taken = builder.and_(count, I64(part))
            value = builder.select(builder.icmp_signed("!=", taken, I64(0)), high, low)
            at = builder.gep(at, [builder.mul(taken, I64(VECTOR_BYTES // self.lanes))])
            part //= 2

    def take(self, value: Any, lanes: Any, other: Any = None) -> Any:
        """The vector of these lanes, counted through `value` and then `other`."""
        other = ir.Constant(value.type, ir.Undefined) if other is None else other
        index = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        return self.builder.shuffle_vector(value, other, index)

    def prefetch(self, pointer: Any) -> None:
        arguments = (pointer, I32(1), I32(3), I32(1))  # to write, into the nearest cache, data
        self._call("prefetch.p0", ir.VoidType(), *arguments)

    def load_and_splat(self, pointer: Any) -> Any:
        value = self.builder.load(self.builder.bitcast(pointer, self.scalar.as_pointer()))
        value.align = 1
        return self.splat(value)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        if FUSED:
            return self._call(f"fma.{self.suffix}", self.type, a, b, c)
        return self.builder.fadd(self.builder.fmul(a, b), c)


def _copy_number(like, source, out):
    """out[0] = source[0]"""
    _array_at(like, out, (1, 1), (0, 0))[...] = _array_at(like, source, (1, 1), (0, 0))


@_instructions_of(_copy_number)
def copy_number(vectors, source, out):
    builder, kind = vectors.builder, vectors.scalar.as_pointer()
    value = builder.load(builder.inttoptr(source, kind))
    value.align = 1
    builder.store(value, builder.inttoptr(out, kind)).align = 1


def _copy_rows(like, source, stride, rows, width, out, ld):
    """out[r, j] = source[r, j] for r < rows, j < width ≤ NV vectors; the elements of a row are neighbours.

    Whole vectors are stored: to the right of width stand zeros.
    """
    shape, size = (rows, width), like.itemsize
    lanes = VECTOR_BYTES // size
    room = _array_at(like, out, (rows, (width + lanes - 1) // lanes * lanes), (ld, size))
    room[...] = 0
    room[:, :width] = _array_at(like, source, shape, (stride, size))


@_instructions_of(_copy_rows)
def copy_rows(vectors, source, stride, rows, width, out, ld):
    builder = vectors.builder
    source, out = vectors.pointer(source), vectors.pointer(out)

    def copy(masks: list[Any]) -> None:
        with for_range(builder, rows) as loop:
            row, out_row = vectors.row(source, loop.index, stride), vectors.row(out, loop.index, ld)
            for v, mask in enumerate(masks):
                vectors.store(vectors.load(row, v, mask), out_row, v)

    def at_least(lanes: int) -> Any:
        return builder.icmp_signed(">=", width, I64(lanes))

    with builder.if_else(at_least(NV * vectors.lanes)) as (then, otherwise):
        with then:
            copy([None] * NV)
        with otherwise, builder.if_else(at_least(vectors.lanes + 1)) as (wide, narrow):
            with wide:
                copy([vectors.mask(v, width) for v in range(NV)])
            with narrow:
                copy([vectors.mask(0, width)])


def _transpose_square(like, source, stride, rows, width, out, ld):
    """out[i, j] = source[j, i] for i < rows, j < width, both at most one vector's length.

    The instructions store whole vectors: to the right of width, up to that length, stands anything.
    """
    size = like.itemsize
    _array_at(like, out, (rows, width), (ld, size))[...] = _array_at(
        like, source, (width, rows), (stride, size)
    ).T


def _pairs(vectors: _Vectors, step: int) -> tuple[list[int], int]:
    """The lanes of two vectors that a shuffle takes, `step` neighbours at a time, and how far the rest lie.

    A shuffle is one instruction, as an x86 has them: pairs of equal place inside each 16 bytes of both
    vectors, later whole 16 bytes.
    """
    n, inner = vectors.lanes, min(16 * vectors.lanes // VECTOR_BYTES, vectors.lanes)
    half = inner // 2 if step < inner else step
    lanes = [lane for start in range(0, n, 2 * half) for s in range(start, start + half, step)
             for first in (s, n + s) for lane in range(first, first + step)]  # fmt: skip
    return lanes, half


def transposed(vectors: _Vectors, square: list[Any]) -> list[Any]:
    """The columns of a square of lanes x lanes: log2(lanes) times, rows are shuffled together in pairs.

    The columns come out in another order, which the places remember.
    """
    n = vectors.lanes
    lines = [(row, list(range(n))) for row in square]  # a vector, and the column of each lane
    step = 1
    while step < n:
        picks, half = _pairs(vectors, step)
        after = [*lines]
        for i in range(n):
            if i & step:
                continue
            (p, columns), (q, _) = lines[i], lines[i + step]
            for to, shift in ((i, 0), (i + step, half)):
                lanes = [lane + shift for lane in picks]
                after[to] = vectors.take(p, lanes, q), [columns[lane % n] for lane in lanes]
        lines, step = after, 2 * step
    return [row for row, columns in sorted(lines, key=lambda line: line[1][0])]


def summed(vectors: _Vectors, sums: list[Any]) -> Any:
    """One vector: in lane j the sum of the lanes of sums[j]. Of each pair, one half is added to the other."""
    lines = [(s, [j] * vectors.lanes) for j, s in enumerate(sums)]  # a vector, and whose sum is in each lane
    step = 1
    while len(lines) > 1:
        (picks, half), after = _pairs(vectors, step), []
        for (p, left), (q, right) in zip(lines[::2], lines[1::2], strict=True):
            some, others = (vectors.take(p, [lane + shift for lane in picks], q) for shift in (0, half))
            after.append((vectors.builder.fadd(some, others), [(left + right)[lane] for lane in picks]))
        lines, step = after, 2 * step
    total, whose = lines[0]
    return vectors.take(total, [whose.index(j) for j in range(vectors.lanes)])


@_instructions_of(_transpose_square)
def transpose_square(vectors, source, stride, rows, width, out, ld):
    builder, n = vectors.builder, vectors.lanes
    source, out = vectors.pointer(source), vectors.pointer(out)
    whole = builder.and_(builder.icmp_signed(">=", rows, I64(n)), builder.icmp_signed(">=", width, I64(n)))
    with builder.if_else(whole) as (then, otherwise):
        with then:
            columns = transposed(
                vectors, [vectors.load(vectors.row(source, I64(i), stride)) for i in range(n)]
            )
            for i, column in enumerate(columns):
                vectors.store(column, vectors.row(out, I64(i), ld))
        with otherwise:
            mask = vectors.mask(0, rows)
            pack = [vectors.load(vectors.clamped_row(source, i, width, stride), mask=mask) for i in range(n)]
            for i, column in enumerate(transposed(vectors, pack)):
                with builder.if_then(builder.icmp_signed("<", I64(i), rows)):
                    vectors.store(column, vectors.row(out, I64(i), ld))
