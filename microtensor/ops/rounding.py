"""Ops that round, and that go along an axis: fmod, running products, diagonals."""

from __future__ import annotations

from typing import Any

import numpy as np

from microtensor.engine import op
from microtensor.ops.reduce import as_rows, prod
from microtensor.ops.samples import dividends
from microtensor.ops.select import refuse_zero, where
from microtensor.ops.shape import expand, permute, put_add, reshape


def _step(name: str, ufunc: Any, says: str) -> Any:
    """A step function: its slope is 0 wherever there is one, so that it passes no gradient on."""

    def forward(x):
        return ufunc(x) if x.dtype.kind == "f" else x.copy()

    forward.__doc__ = f"y = {says}; passes no gradient on"
    forward.__name__ = name
    return op(name, differentiable=False)(forward)


floor = _step("floor", np.floor, "the largest integer ≤ x")
ceil = _step("ceil", np.ceil, "the smallest integer ≥ x")
trunc = _step("trunc", np.trunc, "x without its fraction")
rint = _step("round", np.rint, "the nearest integer, halves to the even one")


@op("fmod", broadcasts=True, samples=dividends)
def fmod(a, b):
    """y = a − b · trunc(a / b); with the sign of a          gradient: g, −g · trunc(a / b)"""
    refuse_zero("fmod", a, b)
    return np.fmod(a, b)


@fmod.vjp
def fmod_vjp(g, a, b):
    return g, lambda: -g * trunc(a / b)


@op("cumprod")
def cumprod(x, *, axis):
    """yᵢ = Π xⱼ over j ≤ i along one axis: differentiated through its composite, which is right at zeros."""
    return np.cumprod(x, axis=axis, dtype=None if x.dtype.kind == "f" else np.int64)


@cumprod.composite
def cumprod_composite(x, *, axis):
    rows, (*lead, n), back = as_rows(x, axis)
    square = expand(reshape(rows, shape=(*lead, 1, n)), shape=(*lead, n, n))  # (…, i, j)
    y = prod(where(np.tri(n, dtype=bool), square, 1.0), axis=(-1,), keepdims=False)
    return permute(y, axes=back)


@cumprod.samples
def cumprod_samples(rng):
    for axis in [0, 1, -1]:
        yield (rng.normal(size=(2, 3)),), {"axis": axis}


@op("diagonal", view=True)
def diagonal(x, *, offset):
    """y = diagonal(x); yᵢ = x[…, i, i + offset], a view          gradient: on_diagonal(g); elsewhere 0"""
    y = np.diagonal(x, offset, -2, -1)
    y.flags.writeable = x.flags.writeable  # NumPy's is a view, too, but marked as read-only
    return y


@diagonal.vjp
def diagonal_vjp(g, x_shape, *, offset):
    return (put_add(g, index=places_on_diagonal(x_shape, offset), shape=x_shape),)


def places_on_diagonal(shape: tuple[int, ...], offset: int) -> tuple[Any, ...]:
    """Where the diagonal of the last two axes lies, as an index."""
    i = np.arange(max(0, min(shape[-2] + min(offset, 0), shape[-1] - max(offset, 0))))
    return (Ellipsis, i - min(offset, 0), i + max(offset, 0))


@diagonal.samples
def diagonal_samples(rng):
    for shape, offset in [((3, 3), 0), ((2, 3, 4), 1), ((3, 2), -1)]:
        yield (rng.normal(size=shape),), {"offset": offset}
