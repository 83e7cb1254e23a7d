"""Vector code for one row of numbers that are neighbours: its maximum, exp, their sum.

The last vector of a row is masked: rows of 30 fill vector registers as well as rows of 512. Addresses and the
width are integers, as in vectors.py; numbers that a function needs, or finds, stand in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from microtensor.kernels.columns import _alloca, _constant, _exp, _for_vectors, _size
from microtensor.kernels.layout import Array
from microtensor.kernels.vectors import I32, I64, VECTOR_BYTES, _array_at, _instructions_of, _Vectors


def _row(like: Array, address: int, width: int = 1) -> Array:
    row: Array = _array_at(like, address, (1, width), (0, like.itemsize))[0]
    return row


def _across(vectors: _Vectors, x: Any, combine: Callable[[Any, Any], Any], out: Any) -> None:
    """out = all lanes of x in one number: one half is combined with the other, again and again."""
    b, n = vectors.builder, vectors.lanes
    while n > 1:
        n //= 2
        x = combine(vectors.take(x, range(n)), vectors.take(x, range(n, 2 * n)))
    b.store(b.extract_element(x, I32(0)), b.inttoptr(out, vectors.scalar.as_pointer()))


def _load(vectors: _Vectors, row: Any, at: Any, mask: Any) -> Any:
    """A vector of a row; to the right of its end stands −∞."""
    x = vectors.load(vectors.builder.gep(row, [at]), 0, mask)
    return x if mask is None else vectors.builder.select(mask, x, _constant(vectors, -math.inf))


def _largest(like, x, width, top):
    """top = max x, −∞ if the row is empty; NaNs are left out: exp and the sum find them."""
    row = _row(like, x, width)
    _row(like, top)[...] = np.max(row[row == row], initial=-np.inf)


@_instructions_of(_largest)
def largest(vectors, x, width, top):
    b, row = vectors.builder, vectors.pointer(x)
    best = _alloca(b, _constant(vectors, -math.inf))

    def larger(p: Any, q: Any) -> Any:
        return b.select(b.fcmp_ordered(">", p, q), p, q)

    _for_vectors(vectors, width, lambda *at: b.store(larger(_load(vectors, row, *at), b.load(best)), best))
    _across(vectors, b.load(best), larger, top)


def _exps(vectors: _Vectors, x: Any, width: Any, shifts: Any, use: Callable[..., None]) -> None:
    """Calls use(exp((x − shift) − …), where it lies, its mask) for every vector of a row."""
    b, row = vectors.builder, vectors.pointer(x)

    def body(at: Any, mask: Any) -> None:
        value = _load(vectors, row, at, mask)
        for shift in shifts:
            value = b.fsub(value, shift)
        use(_exp(vectors, value), at, mask)

    _for_vectors(vectors, width, body)


def _numbers(vectors: _Vectors, address: Any, n: int) -> list[Any]:
    """n numbers that lie at an address, each in all lanes of a vector."""
    first, size = vectors.pointer(address), VECTOR_BYTES // vectors.lanes
    return [vectors.load_and_splat(vectors.builder.gep(first, [I64(i * size)])) for i in range(n)]


def _keep(vectors: _Vectors, value: Any, row: Any, at: Any, mask: Any, width: Any) -> None:
    b, place = vectors.builder, vectors.builder.gep(vectors.pointer(row), [at])
    if mask is None:
        vectors.store(value, place)
    else:
        vectors.store_first(value, place, b.srem(width, I64(vectors.lanes)))


def _exp_row(like, x, width, sums, e):
    """e = exp(x − sums[0]), kept unless its address is 0; sums[1] = Σ e"""
    top_and_sum = _row(like, sums, 2)
    values = np.exp(_row(like, x, width) - top_and_sum[0])
    top_and_sum[1] = values.sum()
    if e:
        _row(like, e, width)[...] = values


@_instructions_of(_exp_row)
def exp_row(vectors, x, width, sums, e):
    b, total = vectors.builder, _alloca(vectors.builder, vectors.zero)

    def use(value: Any, at: Any, mask: Any) -> None:
        b.store(b.fadd(b.load(total), value), total)
        with b.if_then(b.icmp_signed("!=", e, I64(0))):  # LLVM makes two loops of this
            _keep(vectors, value, e, at, mask, width)

    _exps(vectors, x, width, _numbers(vectors, sums, 1), use)
    _across(vectors, b.load(total), b.fadd, b.add(sums, _size(vectors)))


def _scale_row(like, e, width, factor):
    """e *= factor"""
    values = _row(like, e, width)
    values *= _row(like, factor)


@_instructions_of(_scale_row)
def scale_row(vectors, e, width, factor):
    b, (by,) = vectors.builder, _numbers(vectors, factor, 1)

    def body(at: Any, mask: Any) -> None:
        value = vectors.load(b.gep(vectors.pointer(e), [at]), 0, mask)
        _keep(vectors, b.fmul(value, by), e, at, mask, width)

    _for_vectors(vectors, width, body)


def _loss_row(like, x, width, lse, share, g, out):
    """out = (exp((x − lse[0]) − lse[1]) − share) · g"""
    (top, log_s), less, by = _row(like, lse, 2), _row(like, share), _row(like, g)
    _row(like, out, width)[...] = (np.exp((_row(like, x, width) - top) - log_s) - less) * by


@_instructions_of(_loss_row)
def loss_row(vectors, x, width, lse, share, g, out):
    b, (less,), (by,) = vectors.builder, _numbers(vectors, share, 1), _numbers(vectors, g, 1)

    def use(e: Any, at: Any, mask: Any) -> None:
        _keep(vectors, b.fmul(b.fsub(e, less), by), out, at, mask, width)

    _exps(vectors, x, width, _numbers(vectors, lse, 2), use)
