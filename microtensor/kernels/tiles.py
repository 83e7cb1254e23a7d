"""The micro-kernels of the matrix product: a tile of C stays in registers while k runs.

All the time goes here, everything else only feeds it. Tiles differ in height and width, so that little of
one reaches over the edge of C; what does is computed and not stored. D is added where the sum is stored.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.core.cgutils import for_range

from microtensor.kernels.vectors import (
    COLUMNS,
    I64,
    LOW,
    MR,
    NV,
    ROW,
    VECTOR_BYTES,
    WIDE,
    _array_at,
    _instructions_of,
    _Vectors,
    summed,
)

_alloca: Any = cgutils.alloca_once  # numba has no types for it


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
    vectors: _Vectors, sums: list[list[Any]], c: Any, ldc: Any, height: Any, width: Any, d: Any, ldd: Any,
    relu: Any,
) -> None:  # fmt: skip
    """C = sums + D, where D's address is not 0; then C = max(C, 0) if relu. A NaN stays what it is."""
    builder, n = vectors.builder, len(sums[0])
    last = builder.sub(height, I64(1))
    add, cut = builder.icmp_signed("!=", d, I64(0)), builder.icmp_signed("!=", relu, I64(0))
    whole = builder.icmp_signed(">=", width, I64(n * vectors.lanes))

    def at(i: int, base: Any, ld: Any) -> Any:
        index = builder.select(builder.icmp_signed("<", I64(i), last), I64(i), last)
        return vectors.row(vectors.pointer(base), index, ld)

    def after(condition: Any, change: Any) -> None:
        nonlocal sums
        before = builder.block
        with builder.if_then(condition):
            changed, inner = change(), None
            inner = builder.block
        merged: list[list[Any]] = []
        for old_row, new_row in zip(sums, changed, strict=True):
            merged.append([])
            for old, new in zip(old_row, new_row, strict=True):
                phi = builder.phi(vectors.type)
                phi.add_incoming(old, before)
                phi.add_incoming(new, inner)
                merged[-1].append(phi)
        sums = merged

    def added(masks: list[Any]) -> list[list[Any]]:
        rows = [at(i, d, ldd) for i in range(len(sums))]
        return [
            [builder.fadd(vectors.load(row, v, masks[v]), s) for v, s in enumerate(x)]
            for row, x in zip(rows, sums, strict=True)
        ]

    def positive() -> list[list[Any]]:
        def kept(s: Any) -> Any:
            return builder.select(builder.fcmp_ordered("<=", s, vectors.zero), vectors.zero, s)

        return [[kept(s) for s in x] for x in sums]

    after(builder.and_(add, whole), lambda: added([None] * n))
    after(builder.and_(add, builder.not_(whole)), lambda: added([vectors.mask(v, width) for v in range(n)]))
    after(cut, positive)
    with builder.if_else(whole) as (then, otherwise):
        with then:
            for i, row_sums in reversed(list(enumerate(sums))):  # a row below the edge is stored over later
                for v, value in enumerate(row_sums):
                    vectors.store(value, at(i, c, ldc), v)
        with otherwise:
            _store_edge(vectors, sums, c, ldc, height, width)


def _store_edge(vectors: _Vectors, sums: Any, c: Any, ldc: Any, height: Any, width: Any) -> None:
    """Row by row through memory of our own: an edge is rare, and its code must stay short."""
    builder, n = vectors.builder, len(sums[0])
    room = _alloca(builder, ir.ArrayType(vectors.type, len(sums) * n))
    room = builder.bitcast(room, ir.IntType(8).as_pointer())
    for i, value in enumerate(chain(*sums)):
        vectors.store(value, room, i)
    with for_range(builder, height) as loop:
        source = vectors.row(room, loop.index, I64(n * VECTOR_BYTES))
        target = vectors.row(vectors.pointer(c), loop.index, ldc)
        for v in range(n):
            left = builder.sub(width, I64(v * vectors.lanes))
            value = vectors.load(source, v)
            with builder.if_else(builder.icmp_signed(">=", left, I64(vectors.lanes))) as (then, otherwise):
                with then:
                    vectors.store(value, target, v)
                with otherwise, builder.if_then(builder.icmp_signed(">", left, I64(0))):
                    vectors.store_first(value, builder.gep(target, [I64(v * VECTOR_BYTES)]), left)


def _make_tile(mr: int, nv: int, masked: bool = False) -> Any:
    """The micro-kernel for mr rows of nv vectors; rows of B end with the tile only if it is `masked`."""

    def tile(like, a, rs, cs, b, bs, c, ldc, k_len, height, width, d, ldd, relu):
        """C[i, j] = Σₖ A[i, k] B[k, j] + D[i, j] for i < height, j < width, as far as the tile reaches.

        No D where its address is 0; a negative C becomes 0 if relu.
        """
        size = like.itemsize
        height, width = min(height, mr), min(width, nv * VECTOR_BYTES // size)
        A, B = _array_at(like, a, (height, k_len), (rs, cs)), _array_at(like, b, (k_len, width), (bs, size))
        products = A.T[:, :, None] * B[:, None, :]  # (K, height, width)
        total = np.add.accumulate(products)[-1]  # one k after the other, where sum() would pair them up
        if d:
            total = _array_at(like, d, (height, width), (ldd, size)) + total
        _array_at(like, c, (height, width), (ldc, size))[...] = np.maximum(total, 0) if relu else total

    @_instructions_of(tile)
    def write(vectors, a, rs, cs, b, bs, c, ldc, k_len, height, width, d, ldd, relu):
        builder = vectors.builder
        height = builder.select(builder.icmp_signed("<", height, I64(mr)), height, I64(mr))
        masks = [vectors.mask(v, width) if masked else None for v in range(nv)]
        rows = [vectors.clamped_row(vectors.pointer(a), i, height, rs) for i in range(mr)]
        if mr > 1:
            for i in range(mr):
                vectors.prefetch(vectors.clamped_row(vectors.pointer(c), i, height, ldc))
        sums = _sum_over_k(vectors, rows, cs, vectors.pointer(b), bs, k_len, masks)
        _store_tile(vectors, sums, c, ldc, height, width, d, ldd, relu)

    return write


tile_block = _make_tile(MR, NV)
tile_low = _make_tile(LOW, NV)
tile_wide = _make_tile(WIDE, NV + 1)
tile_narrow = _make_tile(MR, 1)
tile_row = _make_tile(1, ROW)
tile_row_edge = _make_tile(1, ROW // 2, masked=True)


def _accumulating(tile: Any, full: bool) -> Any:
    """The tile that adds to C itself or to nothing; a `full` one is never cut on its right."""

    def tile_adding(like, a, rs, cs, b, bs, c, ldc, k_len, height, width, add):
        """C[i, j] (+)= Σₖ A[i, k] B[k, j] for i < height, j < width, as far as the tile reaches."""
        tile.plain(like, a, rs, cs, b, bs, c, ldc, k_len, height, width, c if add else 0, ldc, 0)

    @_instructions_of(tile_adding)
    def write(vectors, a, rs, cs, b, bs, c, ldc, k_len, height, width, add):
        d = vectors.builder.select(vectors.builder.icmp_signed("!=", add, I64(0)), c, I64(0))
        width = I64(NV * vectors.lanes) if full else width
        tile.write(vectors, a, rs, cs, b, bs, c, ldc, k_len, height, width, d, ldc, I64(0))

    return write


tile_full = _accumulating(tile_block, full=True)
tile_slim = _accumulating(_make_tile(MR, 1, masked=True), full=False)


# ---- few rows of A, columns of B whose elements are neighbours: nothing is packed, lanes add up last ----


def _dot_columns(like, a, b, bs, c, k_len, width, d, relu):
    """C[j] = Σₖ A[k] B[k, j] + D[j] for j < width, at most a vector of columns; bs: from column to column.

    A lane adds up every lanes-th k; then the lanes are added in pairs, in the same order for every column.
    """
    size = like.itemsize
    lanes = VECTOR_BYTES // size
    width, terms = min(width, lanes), -(-k_len // lanes)
    products = np.zeros((width, terms * lanes), like.dtype)
    A, B = _array_at(like, a, (1, k_len), (0, size)), _array_at(like, b, (width, k_len), (bs, size))
    products[:, :k_len] = A * B
    total = np.add.accumulate(products.reshape(width, terms, lanes), axis=1)[:, -1].sum(axis=1)
    if d:
        total = _array_at(like, d, (1, width), (0, size)) + total
    _array_at(like, c, (1, width), (0, size))[...] = np.maximum(total, 0) if relu else total


@_instructions_of(_dot_columns)
def dot_columns(vectors, a, b, bs, c, k_len, width, d, relu):
    a, b, sums = vectors.pointer(a), vectors.pointer(b), []
    for first in range(0, vectors.lanes, COLUMNS):  # more at a time would need more pointers than there are
        last = min(first + COLUMNS, vectors.lanes)
        columns = [vectors.clamped_row(b, j, width, bs) for j in range(first, last)]
        sums += _dot_products(vectors, a, columns, k_len)
    _store_tile(vectors, [[summed(vectors, sums)]], c, I64(0), I64(1), width, d, I64(0), relu)


def _dot_products(vectors: _Vectors, a: Any, columns: list[Any], k_len: Any) -> list[Any]:
    """Emits a loop over k: for each column a vector, whose lanes add up to its product with A."""
    builder = vectors.builder
    rooms = [_alloca(builder, vectors.type) for _ in columns]  # LLVM keeps them in registers
    for room in rooms:
        builder.store(vectors.zero, room)

    def step(offset: Any, mask: Any = None) -> None:
        a_k = vectors.load(builder.gep(a, [offset]), mask=mask)
        for column, room in zip(columns, rooms, strict=True):
            b_k = vectors.load(builder.gep(column, [offset]), mask=mask)
            builder.store(vectors.multiply_add(a_k, b_k, builder.load(room)), room)

    whole = builder.udiv(k_len, I64(vectors.lanes))
    with for_range(builder, whole) as loop:
        step(builder.mul(loop.index, I64(VECTOR_BYTES)))
    rest = builder.urem(k_len, I64(vectors.lanes))
    with builder.if_then(builder.icmp_signed(">", rest, I64(0))):
        step(builder.mul(whole, I64(VECTOR_BYTES)), vectors.mask(0, rest))
    return [builder.load(room) for room in rooms]
