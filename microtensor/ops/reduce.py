"""Ops that fold axes away. `axis` is a tuple of axes or None for all; `keepdims` keeps them with length 1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor import kernels
from microtensor.engine import op
from microtensor.ops.elementwise import exp
from microtensor.ops.samples import Rng, Samples
from microtensor.ops.select import cast, detach, equal, greater, where
from microtensor.ops.shape import expand, flip, permute, reshape


def restore(g: Any, shape: tuple[int, ...], axis: Any) -> Any:
    """Put the reduced axes back with length 1, so that g broadcasts against an input of `shape`."""
    axes = range(len(shape)) if axis is None else [a % len(shape) for a in _tuple(axis)]
    return reshape(g, shape=tuple(1 if i in axes else n for i, n in enumerate(shape)))


def count(shape: tuple[int, ...], axis: Any) -> int:
    """How many elements are folded into one."""
    return math.prod(shape) if axis is None else math.prod(shape[a] for a in _tuple(axis))


def _tuple(axis: Any) -> tuple[int, ...]:
    return axis if isinstance(axis, tuple) else (axis,)


def reductions(rng: Rng) -> Samples:
    """Every kind of axis argument, with and without keepdims."""
    for axis in [None, (0,), (1,), (-1,), (0, 2), (-1, -3), (0, 1, 2)]:
        for keepdims in [False, True]:
            yield (rng.permutation(24).reshape(2, 3, 4) / 12.0 - 0.9,), {"axis": axis, "keepdims": keepdims}
    yield (rng.normal(size=()),), {"axis": None, "keepdims": False}


FEW, AT_ONCE, WIDTH = 128, 32, 4096


def _total(x: Any, axis: Any, keepdims: Any) -> Any:
    """np.sum of floats, but with pairwise sums along every axis.

    NumPy adds pairwise along the axis that is innermost in memory; along others it is a running sum, which in
    float32 loses digits from a thousand rows and stands still at 2²⁴ ones.
    """
    if x.size <= FEW or (axis is None and x.flags.c_contiguous):
        return np.add.reduce(x, axis=axis, keepdims=keepdims)  # np.sum, without what it asks first
    axes = tuple(range(x.ndim)) if axis is None else tuple(sorted([a % x.ndim for a in _tuple(axis)]))
    trailing = axes == tuple(range(x.ndim - len(axes), x.ndim))
    if count(x.shape, axes) <= FEW or (trailing and x.flags.c_contiguous):
        return np.add.reduce(x, axis=axes, keepdims=keepdims)
    for i, a in enumerate(axes):
        x = np.expand_dims(_total_along(x, a), a) if keepdims else _total_along(x, a - i)
    return x


def _total_along(x: Any, a: int) -> Any:
    """The sum along axis a, AT_ONCE slices in one go, then their sums likewise: a tree that n alone decides.

    What is added in one go are several consecutive slices, WIDTH elements, so that loops are long and their
    sums stay in the first-level cache.
    """
    shape, n = x.shape, x.shape[a]
    if n <= FEW or not x.size or _innermost(x, a):
        return np.add.reduce(x, axis=a)
    slices = min(WIDTH // math.prod(shape[a + 1 :]) or 1, n // AT_ONCE)
    done = n - n % (AT_ONCE * slices)
    head = x if done == n else x[(slice(None),) * a + (slice(0, done),)]
    head = head.reshape(*shape[:a], -1, AT_ONCE, slices, *shape[a + 1 :])  # a view, since it splits an axis
    y = np.add.reduce(head, axis=a + 1).reshape(*shape[:a], done // AT_ONCE, *shape[a + 1 :])
    y = _total_along(y, a)
    return y if done == n else y + _total_along(x[(slice(None),) * a + (slice(done, n),)], a)


def _innermost(x: Any, a: int) -> bool:
    """Do neighbours along axis a lie side by side, and along no other axis?"""
    if abs(x.strides[a]) != x.itemsize:
        return False
    return all(n == 1 or i == a or abs(x.strides[i]) > x.itemsize for i, n in enumerate(x.shape))


@op("sum", label="Σ", samples=reductions)
def sum(x, *, axis, keepdims):
    """y = sum(x, axis); booleans and integers add up in int64          gradient: expand(g)"""
    if x.dtype.kind != "f":
        return np.sum(x, axis=axis, keepdims=keepdims, dtype=np.int64)
    return _total(x, axis, keepdims)


@sum.vjp
def sum_vjp(g, x_shape, *, axis, keepdims):
    return (expand(restore(g, x_shape, axis), shape=x_shape),)


@op("mean", floats=True, samples=reductions)
def mean(x, *, axis, keepdims):
    """y = mean(x, axis); NaN of none          gradient: expand(g) / n; of n elements"""
    return np.true_divide(_total(x, axis, keepdims), count(x.shape, axis))


@mean.vjp
def mean_vjp(g, x_shape, *, axis, keepdims):
    return (expand(restore(g, x_shape, axis) / max(count(x_shape, axis), 1), shape=x_shape),)


@op("amax", label="max", samples=reductions)
def amax(x, *, axis, keepdims):
    """y = max(x, axis); −∞ of none          gradient: where(x == y, g, 0) / count(x == y, axis)"""
    if not x.size and x.dtype.kind == "f":
        return np.max(x, axis=axis, keepdims=keepdims, initial=-np.inf)
    return np.maximum.reduce(x, axis=axis, keepdims=keepdims)


@amax.vjp
def amax_vjp(g, x, y, *, axis, keepdims):
    return (_share(g, x, y, axis),)


@op("amin", label="min", samples=reductions)
def amin(x, *, axis, keepdims):
    """y = min(x, axis)          gradient: where(x == y, g, 0) / count(x == y, axis); as in PyTorch"""
    return np.minimum.reduce(x, axis=axis, keepdims=keepdims)


@amin.vjp
def amin_vjp(g, x, y, *, axis, keepdims):
    return (_share(g, x, y, axis),)


def _share(g: Any, x: Any, y: Any, axis: Any) -> Any:
    winners = equal(x, restore(y, x.shape, axis))
    n = sum(cast(winners, dtype=g.dtype), axis=axis, keepdims=True)
    return where(winners, restore(g, x.shape, axis) / n, 0.0)


@op("prod", label="Π", samples=reductions)
def prod(x, *, axis, keepdims):
    """y = prod(x, axis)          gradient: g · prod_of_others(x, axis); not y / x, NaN at 0"""
    kind = None if x.dtype.kind == "f" else np.int64
    return np.multiply.reduce(x, axis=axis, keepdims=keepdims, dtype=kind)


@prod.vjp
def prod_vjp(g, x, *, axis, keepdims):
    return (restore(g, x.shape, axis) * prod_of_others(x, axis=axis),)


def as_rows(x: Any, axis: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """x with the reduced axes joined into its last one; and, to go back, the shape before and the axes."""
    axes = range(x.ndim) if axis is None else [a % x.ndim for a in _tuple(axis)]
    order = [a for a in range(x.ndim) if a not in axes] + list(axes)
    moved = permute(x, axes=tuple(order))
    lead = moved.shape[: x.ndim - len(axes)]
    rows = reshape(moved, shape=(*lead, count(x.shape, axis)))
    return rows, moved.shape, tuple(int(a) for a in np.argsort(order))


@op("prod_of_others")
def prod_of_others(x, *, axis):
    """yᵢ = Π xⱼ over j ≠ i, from the products of what stands before i and after i."""
    rows, moved, back = as_rows(x, axis)
    ones = np.ones_like(rows[..., :1])
    before = np.cumprod(np.concatenate([ones, rows[..., :-1]], axis=-1), axis=-1)
    after = np.cumprod(np.concatenate([ones, rows[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    return (before * after).reshape(moved).transpose(back)


@prod_of_others.composite
def prod_of_others_composite(x, *, axis):
    rows, moved, back = as_rows(x, axis)
    n = rows.shape[-1]
    square = expand(reshape(rows, shape=(*rows.shape[:-1], 1, n)), shape=(*rows.shape[:-1], n, n))
    others = prod(where(np.eye(n, dtype=bool), 1.0, square), axis=(-1,), keepdims=False)
    return permute(reshape(others, shape=moved), axes=back)


@prod_of_others.samples
def prod_of_others_samples(rng):
    for axis in [None, (1,), (0, 2)]:
        yield (rng.normal(size=(2, 3, 2)),), {"axis": axis}


@op("logsumexp", floats=True, samples=reductions)
def logsumexp(x, *, axis, keepdims):
    """y = log(sum(exp(x), axis)); shifted by the maximum          gradient: g · exp(x − y)"""
    y = kernels.logsumexp_forward(as_rows(x, axis)[0])
    return restore(y, x.shape, axis) if keepdims else y


@logsumexp.vjp
def logsumexp_vjp(g, x, y, *, axis, keepdims):
    top = restore(y, x.shape, axis)
    weights = exp(x - detach(where(equal(top, -math.inf), 0.0, top)))  # a row of −∞ has weights 0, not NaN
    total = sum(weights, axis=axis, keepdims=True)  # 1, but for the digits that y lost to a large maximum
    return (restore(g, x.shape, axis) * (weights / where(greater(total, 0.0), total, 1.0)),)


@op("cumsum")
def cumsum(x, *, axis):
    """y = cumsum(x, axis); yᵢ = Σ xⱼ over j ≤ i

    gradient: flip(cumsum(flip(g, axis), axis), axis)
    """
    if x.dtype.kind != "f":
        return np.cumsum(x, axis=axis, dtype=np.int64)
    return np.cumsum(x, axis=axis, dtype=np.float64).astype(x.dtype, copy=False)  # float32 stops at 2²⁴ ones


@cumsum.vjp
def cumsum_vjp(g, *, axis):
    return (flip(cumsum(flip(g, axes=(axis,)), axis=axis), axes=(axis,)),)


@cumsum.samples
def cumsum_samples(rng):
    for axis in [0, 1, -1]:
        yield (rng.normal(size=(2, 3)),), {"axis": axis}
