"""Vector code for attention: what happens to a tile of scores between its two matrix products.

A tile holds scores transposed, keys down and queries across, so that softmax runs down the columns: maxima
and sums need no neighbours, and each vector register works for its own queries. A panel is NV vectors wide.
Addresses, strides and counts are integers, as in vectors.py; numbers that a function needs stand in memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once_value, for_range, unpack_tuple
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from microtensor.kernels.layout import Array
from microtensor.kernels.threads import COMPILED
from microtensor.kernels.vectors import (
    I32,
    I64,
    NV,
    VECTOR_BYTES,
    _array_at,
    _instructions_of,
    _Vectors,
)

_alloca: Any = alloca_once_value  # numba has no types for these
_array: Any = make_array
_unpacked: Any = unpack_tuple


def _panel(like: Array, address: int, ld: int, n: int) -> Array:
    return _array_at(like, address, (n, NV * VECTOR_BYTES // like.itemsize), (ld, like.itemsize))


def _row(like: Array, address: int) -> Array:
    row: Array = _panel(like, address, 0, 1)[0]
    return row


def _number(like: Array, address: int) -> Any:
    return _array_at(like, address, (1, 1), (0, 0))[0, 0]


def _constant(vectors: _Vectors, x: float) -> Any:
    return ir.Constant(vectors.type, [x] * vectors.lanes)


# --- addresses ---------------------------------------------------------------------------------------------


def _start_of(x: Array) -> int:
    """The address of x."""
    address: int = x.ctypes.data
    return address


def _address_of(x: Array, i: int, j: int, k: int) -> int:
    """The address of x[i, j, k]."""
    return _start_of(x) + i * x.strides[0] + j * x.strides[1] + k * x.strides[2]


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    x = _array(signature.args[0])(context, builder, arguments[0])
    address = builder.ptrtoint(x.data, I64)
    for index, stride in zip(arguments[1:], _unpacked(builder, x.strides), strict=False):
        address = builder.add(address, builder.mul(index, stride))
    return address


def _typed_start(typing: Any, x: Any) -> Any:
    return types.int64(x), _address


def _typed_address(typing: Any, x: Any, i: Any, j: Any, k: Any) -> Any:
    return types.int64(x, *[types.int64] * 3), _address


# functions of their own would be compiled anew for each kind of array
start_of: Any = intrinsic(_typed_start) if COMPILED else _start_of
address_of: Any = intrinsic(_typed_address) if COMPILED else _address_of


# --- eˣ -----------------------------------------------------------------------------------------------------


def _exp(vectors: _Vectors, x: Any) -> Any:
    """eˣ for x ≤ 0: the method and the constants of `exp` in exponential.py, where they are explained."""
    b = vectors.builder
    if vectors.suffix.endswith("f32"):
        bits, bias, magic, low, parts = 23, 127, 12582912.0, -87.33654, (0.693359375, -2.12194440e-4)
        p: tuple[float, ...] = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2,
                                1.6666665459e-1, 5.0000001201e-1)  # fmt: skip
    else:
        bits, bias, magic, low = 52, 1023, 6755399441055744.0, -708.3964
        parts, p = (
            (0.693147180369123816490, 1.90821492927058770002e-10),
            tuple(1 / math.factorial(k) for k in range(13, 1, -1)),
        )
    integers = ir.VectorType(ir.IntType(32 if bits == 23 else 64), vectors.lanes)
    shifted = vectors.multiply_add(x, _constant(vectors, math.log2(math.e)), _constant(vectors, magic))
    n, r = b.fsub(shifted, _constant(vectors, magic)), x
    for part in parts:
        r = vectors.multiply_add(n, _constant(vectors, -part), r)
    y = _constant(vectors, p[0])
    for c in p[1:]:
        y = vectors.multiply_add(y, r, _constant(vectors, c))
    y = b.fadd(vectors.multiply_add(y, b.fmul(r, r), r), _constant(vectors, 1.0))
    exponent = b.add(b.bitcast(shifted, integers), ir.Constant(integers, [bias] * vectors.lanes))
    two_to_n = b.bitcast(b.shl(exponent, ir.Constant(integers, [bits] * vectors.lanes)), vectors.type)
    below = b.fcmp_ordered("<", x, _constant(vectors, low))
    return b.select(below, vectors.zero, b.fmul(y, two_to_n))


# --- scores → weights ---------------------------------------------------------------------------------------


def _masked(vectors: _Vectors, s: Any, scale: Any, key: Any, tile: Any) -> Any:
    """s · scale + key + tile; −∞ where those are, whatever s holds."""
    b = vectors.builder
    bias = key if tile is None else b.fadd(key, tile)
    hidden = b.fcmp_ordered("==", bias, _constant(vectors, -math.inf))
    return b.select(hidden, bias, vectors.multiply_add(s, scale, bias))


def _for_rows(vectors: _Vectors, n: Any, keys: Any, tile: Any, ldt: Any, body: Any) -> None:
    """Calls body(j, the keys' bias, the row of the bias tile) to emit two loops: with a tile and without."""
    b = vectors.builder
    with b.if_else(b.icmp_signed("!=", tile, I64(0))) as branches:
        for branch, tiled in zip(branches, (True, False), strict=True):
            with branch, for_range(b, n) as loop:
                key = vectors.load_and_splat(vectors.row(vectors.pointer(keys), loop.index, _size(vectors)))
                row = vectors.row(vectors.pointer(tile), loop.index, ldt) if tiled else None
                body(loop.index, key, row)


def _size(vectors: _Vectors) -> Any:
    return I64(VECTOR_BYTES // vectors.lanes)


def _scores(like, s, ld, n, scale, keys, tile, ldt, top):
    """S = S · scale + keys (one a row) + tile (if not 0); top = max(top, the maximum of each column)."""
    S, biases, maxima = (
        _panel(like, s, ld, n),
        _array_at(like, keys, (n, 1), (like.itemsize, 0)),
        _row(like, top),
    )
    bias = biases + (_panel(like, tile, ldt, n) if tile else 0)
    S[...] = np.where(bias == -np.inf, -np.inf, S * _number(like, scale) + bias)
    for row in S:
        maxima[...] = np.where(row > maxima, row, maxima)


@_instructions_of(_scores)
def scores(vectors, s, ld, n, scale, keys, tile, ldt, top):
    b = vectors.builder
    s, top, factor = vectors.pointer(s), vectors.pointer(top), vectors.load_and_splat(vectors.pointer(scale))
    maxima = [_alloca(b, vectors.load(top, v)) for v in range(NV)]

    def body(j: Any, key: Any, tile_row: Any) -> None:
        row = vectors.row(s, j, ld)
        for v in range(NV):
            bias = None if tile_row is None else vectors.load(tile_row, v)
            x = _masked(vectors, vectors.load(row, v), factor, key, bias)
            vectors.store(x, row, v)
            before = b.load(maxima[v])
            b.store(b.select(b.fcmp_ordered(">", x, before), x, before), maxima[v])  # a NaN is left out

    _for_rows(vectors, n, keys, tile, ldt, body)
    for v in range(NV):
        vectors.store(b.load(maxima[v]), top, v)


def _shift(vectors: _Vectors, top: Any) -> Any:
    """What a column is shifted by: its maximum, 0 where that is −∞ (−∞ − −∞ would be NaN)."""
    nothing = vectors.builder.fcmp_ordered("==", top, _constant(vectors, -math.inf))
    return vectors.builder.select(nothing, vectors.zero, top)


def _weights(like, s, ld, n, before, top, total):
    """S = exp(S − top); total = total · exp(before − top) + Σ S, and before becomes that factor."""
    S = _panel(like, s, ld, n)
    old, new, sums = (_row(like, a) for a in (before, top, total))
    shift = np.where(new == -np.inf, 0, new)
    S[...] = np.exp(S - shift)
    old[...] = np.exp(old - shift)
    sums[...] = sums * old + S.sum(0)


@_instructions_of(_weights)
def weights(vectors, s, ld, n, before, top, total):
    b = vectors.builder
    s, before, top, total = (vectors.pointer(x) for x in (s, before, top, total))
    shifts = [_shift(vectors, vectors.load(top, v)) for v in range(NV)]
    factors = [_exp(vectors, b.fsub(vectors.load(before, v), shift)) for v, shift in enumerate(shifts)]
    sums = [_alloca(b, b.fmul(vectors.load(total, v), f)) for v, f in enumerate(factors)]
    with for_range(b, n) as loop:
        row = vectors.row(s, loop.index, ld)
        for v in range(NV):
            e = _exp(vectors, b.fsub(vectors.load(row, v), shifts[v]))
            vectors.store(e, row, v)
            b.store(b.fadd(b.load(sums[v]), e), sums[v])
    for v in range(NV):
        vectors.store(factors[v], before, v)
        vectors.store(b.load(sums[v]), total, v)


def _weights_again(like, s, ld, n, scale, keys, tile, ldt, top):
    """S = exp(S · scale + keys + tile − top): the weights that the forward had, before their division."""
    S, biases = _panel(like, s, ld, n), _array_at(like, keys, (n, 1), (like.itemsize, 0))
    bias = biases + (_panel(like, tile, ldt, n) if tile else 0)
    S[...] = np.where(bias == -np.inf, 0, np.exp(S * _number(like, scale) + bias - _row(like, top)))


@_instructions_of(_weights_again)
def weights_again(vectors, s, ld, n, scale, keys, tile, ldt, top):
    b = vectors.builder
    s, top, factor = vectors.pointer(s), vectors.pointer(top), vectors.load_and_splat(vectors.pointer(scale))
    shifts = [vectors.load(top, v) for v in range(NV)]

    def body(j: Any, key: Any, tile_row: Any) -> None:
        row = vectors.row(s, j, ld)
        for v in range(NV):
            bias = None if tile_row is None else vectors.load(tile_row, v)
            x = _masked(vectors, vectors.load(row, v), factor, key, bias)
            vectors.store(_exp(vectors, b.fsub(x, shifts[v])), row, v)

    _for_rows(vectors, n, keys, tile, ldt, body)


def _scores_back(like, e, d, ld, n, delta, scale):
    """D = E · (D − delta) · scale: the gradient of the scores from that of the weights."""
    D = _panel(like, d, ld, n)
    D[...] = _panel(like, e, ld, n) * (D - _row(like, delta)) * _number(like, scale)


@_instructions_of(_scores_back)
def scores_back(vectors, e, d, ld, n, delta, scale):
    b = vectors.builder
    e, d, delta = vectors.pointer(e), vectors.pointer(d), vectors.pointer(delta)
    factor = vectors.load_and_splat(vectors.pointer(scale))
    deltas = [vectors.load(delta, v) for v in range(NV)]
    with for_range(b, n) as loop:
        weights, row = vectors.row(e, loop.index, ld), vectors.row(d, loop.index, ld)
        for v in range(NV):
            difference = b.fsub(vectors.load(row, v), deltas[v])
            vectors.store(b.fmul(b.fmul(vectors.load(weights, v), difference), factor), row, v)


def _stay_apart(like):
    """Says that the function that calls it must not be copied into its callers: that compiles faster."""


@_instructions_of(_stay_apart)
def stay_apart(vectors):
    vectors.builder.function.attributes.add("noinline")


# --- dropout ------------------------------------------------------------------------------------------------

STEP, FIRST, SECOND, WORD = 0x9E3779B1, 0x7FEB352D, 0x846CA68B, 0xFFFFFFFF


def mix(x: Any) -> Any:
    """A number of 32 bits, all of them stirred: numbers that are near each other give unrelated ones.

    Source: Wellons 2018, "Prospecting for Hash Functions" (lowbias32).
    """
    x = ((x ^ (x >> 16)) * FIRST) & WORD
    x = ((x ^ (x >> 15)) * SECOND) & WORD
    return x ^ (x >> 16)


def _drop(like, s, ld, n, row_keys, first, threshold):
    """S[j, i] = 0 unless mix(row_keys[i] ^ (first + j) · STEP) ≥ threshold: chance that can be repeated."""
    S = _panel(like, s, ld, n)
    rows = _array_at(np.empty(0, np.uint32), row_keys, (1, S.shape[1]), (0, 4)).astype(np.int64)
    columns = ((first + np.arange(n)) * STEP & WORD)[:, None]
    S[...] = np.where(mix(rows ^ columns) >= threshold, S, 0)


@_instructions_of(_drop)
def drop(vectors, s, ld, n, row_keys, first, threshold):
    b = vectors.builder
    words = ir.VectorType(I32, vectors.lanes)

    def constant(x: int) -> Any:
        return ir.Constant(words, [x] * vectors.lanes)

    s, bound = vectors.pointer(s), vectors.splat(b.trunc(threshold, I32))
    keys = b.bitcast(vectors.pointer(row_keys), words.as_pointer())
    with for_range(b, n) as loop:
        row, column = vectors.row(s, loop.index, ld), b.mul(b.add(first, loop.index), I64(STEP))
        column = vectors.splat(b.trunc(column, I32))
        for v in range(NV):
            key = b.load(b.gep(keys, [I32(v)]))
            key.align = 4
            x = b.xor(key, column)
            for shift, factor in ((16, FIRST), (15, SECOND)):
                x = b.mul(b.xor(x, b.lshr(x, constant(shift))), constant(factor))
            x = b.xor(x, b.lshr(x, constant(16)))
            keep = b.icmp_unsigned(">=", x, bound)
            vectors.store(b.select(keep, vectors.load(row, v), vectors.zero), row, v)


# --- rows of the operands -----------------------------------------------------------------------------------


def _for_vectors(vectors: _Vectors, width: Any, body: Any) -> None:
    """Calls body(offset in bytes, mask) for every vector of a row, the last one masked."""
    b = vectors.builder
    full = b.sdiv(width, I64(vectors.lanes))
    with for_range(b, full) as loop:
        body(b.mul(loop.index, I64(VECTOR_BYTES)), None)
    rest = b.srem(width, I64(vectors.lanes))
    with b.if_then(b.icmp_signed("!=", rest, I64(0))):
        body(b.mul(full, I64(VECTOR_BYTES)), vectors.mask(0, rest))


def _clear(like, s, ld, rows, width):
    """S = 0; a row's elements are neighbours."""
    _array_at(like, s, (rows, width), (ld, like.itemsize))[...] = 0


@_instructions_of(_clear)
def clear(vectors, s, ld, rows, width):
    b = vectors.builder
    with for_range(b, rows) as loop:
        row = vectors.row(vectors.pointer(s), loop.index, ld)
        _for_vectors(vectors, width, lambda x, mask: vectors.store(vectors.zero, b.gep(row, [x]), 0, mask))


def _scale_rows(like, source, stride, rows, width, factors, out, ld):
    """out[r, c] = source[r, c] · factors[r] for r < rows, c < width; a row's elements are neighbours."""
    size, shape = like.itemsize, (rows, width)
    factor = _array_at(like, factors, (rows, 1), (size, 0))
    _array_at(like, out, shape, (ld, size))[...] = _array_at(like, source, shape, (stride, size)) * factor


@_instructions_of(_scale_rows)
def scale_rows(vectors, source, stride, rows, width, factors, out, ld):
    b = vectors.builder
    source, factors, out = vectors.pointer(source), vectors.pointer(factors), vectors.pointer(out)
    with for_range(b, rows) as loop:
        factor = vectors.load_and_splat(vectors.row(factors, loop.index, _size(vectors)))
        row, result = vectors.row(source, loop.index, stride), vectors.row(out, loop.index, ld)

        def body(offset: Any, mask: Any, row: Any = row, result: Any = result, factor: Any = factor) -> None:
            x = vectors.load(b.gep(row, [offset]), 0, mask)
            vectors.store(b.fmul(x, factor), b.gep(result, [offset]), 0, mask)

        _for_vectors(vectors, width, body)


def _dot_rows(like, a, a_stride, c, c_stride, rows, width, out):
    """out[r] = Σ_c A[r, c] C[r, c]; a row's elements are neighbours."""
    size, shape = like.itemsize, (rows, width)
    A, C = _array_at(like, a, shape, (a_stride, size)), _array_at(like, c, shape, (c_stride, size))
    _array_at(like, out, (rows, 1), (size, 0))[...] = (A * C).sum(1, keepdims=True)


@_instructions_of(_dot_rows)
def dot_rows(vectors, a, a_stride, c, c_stride, rows, width, out):
    b = vectors.builder
    a, c, out = vectors.pointer(a), vectors.pointer(c), vectors.pointer(out)
    partial = _alloca(b, vectors.zero)
    with for_range(b, rows) as loop:
        left, right = vectors.row(a, loop.index, a_stride), vectors.row(c, loop.index, c_stride)
        b.store(vectors.zero, partial)

        def body(offset: Any, mask: Any, left: Any = left, right: Any = right) -> None:
            x, y = (vectors.load(b.gep(row, [offset]), 0, mask) for row in (left, right))
            b.store(vectors.multiply_add(x, y, b.load(partial)), partial)

        _for_vectors(vectors, width, body)
        sums, lanes = b.load(partial), vectors.lanes
        while lanes > 1:  # the upper half onto the lower, again and again
            lanes //= 2
            upper = ir.Constant(
                ir.VectorType(I32, vectors.lanes), [i % lanes + lanes for i in range(vectors.lanes)]
            )
            sums = b.fadd(sums, b.shuffle_vector(sums, sums, upper))
        place = vectors.row(out, loop.index, _size(vectors))
        b.store(b.extract_element(sums, I32(0)), b.bitcast(place, vectors.scalar.as_pointer()))
