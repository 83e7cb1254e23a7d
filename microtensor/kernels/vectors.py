"""Vector code for the matrix product, as LLVM instructions, because numba's vectoriser does not find it.

The micro-kernel here is where all the time goes, everything else only feeds it. It exists for every CPU: the
tile is chosen by the CPU's features, and LLVM splits vectors where the hardware has none so wide.
Addresses and strides are in bytes, so that any NumPy array can be read in place.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core.cgutils import for_range, get_or_insert_function
from numba.extending import intrinsic

from microtensor.kernels.threads import cpu_features

I32, I64 = ir.IntType(32), ir.IntType(64)
_declare: Any = get_or_insert_function  # numba has types for some of its names only


def _emitted(function: Callable[..., Any]) -> Any:
    """A function for kernels whose LLVM code is written by hand; its first argument only tells the dtype."""
    return intrinsic(function)


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

    @_emitted
    def tile(typing, like, a, rs, cs, b, bs, c, ldc, k_len, height, width, add):
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


tile_full = _make_tile(MR, NV, masked=False)
tile_edge = _make_tile(MR, NV, masked=True)
tile_narrow = _make_tile(MR, 1, masked=True)
tile_thin = _make_tile(THIN, 4, masked=True)


@_emitted
def copy_rows(typing, like, source, stride, rows, width, out, ld):
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
def transpose_square(typing, like, source, stride, rows, width, out, ld):
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
