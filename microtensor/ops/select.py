"""Ops that choose or cut: maximum, clamp, where, masks, dropout, %, casts, and tests without a gradient.

Gradients are selected, never multiplied by a mask: inf · 0 would be NaN on the branch not taken.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor import kernels
from microtensor.engine import op
from microtensor.ops.samples import distinct_pairs, dividends


@op("maximum", broadcasts=True, samples=distinct_pairs)
def maximum(a, b):
    """y = maximum(a, b)          gradient: where(a < b, 0, g), where(b < a, 0, g); a tie is shared"""
    return np.maximum(a, b)


@maximum.vjp
def maximum_vjp(g, a, b):
    return lambda: _unless_lost(g, less, a, b), lambda: _unless_lost(g, less, b, a)


@op("minimum", broadcasts=True, samples=distinct_pairs)
def minimum(a, b):
    """y = minimum(a, b)          gradient: where(b < a, 0, g), where(a < b, 0, g); a tie is shared"""
    return np.minimum(a, b)


@minimum.vjp
def minimum_vjp(g, a, b):
    return lambda: _unless_lost(g, greater, a, b), lambda: _unless_lost(g, greater, b, a)


def _unless_lost(g: Any, loses: Any, a: Any, b: Any) -> Any:
    """0 where a loses against b, g/2 on a tie, else g: where one is NaN, so is y, and both are to blame."""
    return where(loses(a, b), 0.0, where(equal(a, b), 0.5 * g, g))


@op("clamp")
def clamp(x, *, low, high):
    """y = clamp(x, low, high)          gradient: where(inside(x, low, high), g, 0); low ≤ x ≤ high"""
    return np.clip(x, low, high)


@clamp.vjp
def clamp_vjp(g, x, *, low, high):
    inside = greater_equal(x, -math.inf if low is None else low)
    return (where(logical_and(inside, less_equal(x, math.inf if high is None else high)), g, 0.0),)


@clamp.samples
def clamp_samples(rng):
    for low, high in [(-1, 1), (None, 0), (0, None)]:  # integers meet no float bound here: see the method
        yield (np.array([[-3.0, -0.7, 0.1], [0.4, 0.8, 3.0]]),), {"low": low, "high": high}


@op("where", broadcasts=True, promotes=slice(1, None))
def where(c, a, b):
    """y = where(c, a, b); a where c, else b          gradient: None, where(c, g, 0), where(c, 0, g)"""
    return np.where(c, a, b)


@where.vjp
def where_vjp(g, c):
    return None, lambda: where(c, g, 0.0), lambda: where(c, 0.0, g)


@where.samples
def where_samples(rng):
    for c, a, b in [((2, 3), (2, 3), (2, 3)), ((2, 3), (3,), ()), ((3,), (2, 1), (2, 3))]:
        yield (rng.random(c) < 0.5, rng.normal(size=a), rng.normal(size=b)), {}


@op("masked_fill", label="fill", broadcasts=True, promotes=slice(0, 1))
def masked_fill(x, mask, *, value):
    """y = where(mask, value, x)          gradient: where(mask, 0, g), None"""
    return np.asarray(np.where(mask, np.asarray(value, x.dtype), x), order="C")


@masked_fill.vjp
def masked_fill_vjp(g, mask):
    return lambda: where(mask, 0.0, g), None


@masked_fill.samples
def masked_fill_samples(rng):
    for x, mask in [((2, 3), (2, 3)), ((2, 2, 3), (3,)), ((3,), (2, 3))]:
        yield (rng.normal(size=x), rng.random(mask) < 0.5), {"value": 7.0}


@op("cast")
def cast(x, *, dtype):
    """y = cast(x); in another dtype          gradient: cast(g); to the dtype of x"""
    return x.astype(dtype)


@cast.vjp
def cast_vjp(g, x_dtype):
    return (cast(g, dtype=x_dtype),)


@cast.samples
def cast_samples(rng):
    yield (rng.normal(size=(2, 3)),), {"dtype": np.dtype(np.float64)}


@op("dropout", floats=True)
def dropout(x, *, p, seed):
    """y = dropout(x, p); x / (1 − p) where kept, else 0          gradient: dropout(g, p); the same are kept

    Source: Srivastava et al. 2014, §4; scaled in training (inverted), as everywhere today. p = 1 gives zeros.
    """
    return kernels.dropout(x, p, seed)


@dropout.vjp
def dropout_vjp(g, *, p, seed):
    return (dropout(g, p=p, seed=seed),)


@dropout.composite
def dropout_composite(x, *, p, seed):
    return drop(x, kernels.dropout_keeps(x.shape, p, seed), p)


def drop(x: Any, keep: Any, p: float) -> Any:
    """x / (1 - p) where keep, an array of booleans, else 0: selected, since 0 · inf would be NaN."""
    return where(keep, x * (1.0 / (1.0 - p) if p < 1.0 else 0.0), 0.0)


@dropout.samples
def dropout_samples(rng):
    for shape, p, seed in [((2, 3), 0.3, 5), ((2, 4, 3), 0.5, 3 << 40), ((), 0.1, 0), ((2, 0), 0.1, 0)]:
        yield (rng.normal(size=shape),), {"p": p, "seed": seed}


@op("remainder", label="%", broadcasts=True, samples=dividends)
def remainder(a, b):
    """y = a − b · floor(a / b); with the sign of b          gradient: g, −g · floor(a / b)"""
    refuse_zero("remainder", a, b)
    return np.remainder(a, b)


@remainder.vjp
def remainder_vjp(g, a, b):
    return g, lambda: -g * floor_divide(a, b)


# --- without a gradient -------------------------------------------------------------------------------------


def _flag(name: str, ufunc: Any, label: str) -> Any:
    """A comparison or test: its result is boolean, or a step function, and passes no gradient on."""
    two = getattr(ufunc, "nin", 1) == 2
    chosen: Any = (lambda a, b: ufunc(a, b)) if two else lambda x: ufunc(x)
    chosen.__doc__ = f"{f'a {label} b' if two else f'{label} x'}, element by element; passes no gradient on."
    return op(name, label=label, broadcasts=two, differentiable=False)(chosen)


def _bits(name: str, ufunc: Any, sign: str) -> Any:
    """A function of the bits of booleans and integers."""

    def function(*operands):
        for x in operands:
            if isinstance(x, float) or getattr(x, "dtype", np.dtype(bool)).kind == "f":
                how = "~x.bool()" if ufunc.nin == 1 else f"x.bool() {sign} y.bool()"
                raise TypeError(f"{name}: {getattr(x, 'dtype', x)} has no bits; use .bool() first: {how}")
        return ufunc(*operands)

    function.nin = ufunc.nin  # type: ignore[attr-defined]
    return function


equal = _flag("equal", np.equal, "=")
not_equal = _flag("not_equal", np.not_equal, "≠")
less = _flag("less", np.less, "<")
less_equal = _flag("less_equal", np.less_equal, "≤")
greater = _flag("greater", np.greater, ">")
greater_equal = _flag("greater_equal", np.greater_equal, "≥")
logical_and = _flag("logical_and", np.logical_and, "∧")
logical_or = _flag("logical_or", np.logical_or, "∨")
logical_xor = _flag("logical_xor", np.logical_xor, "⊻")
logical_not = _flag("logical_not", np.logical_not, "¬")
bitwise_and = _flag("bitwise_and", _bits("bitwise_and", np.bitwise_and, "&"), "&")
bitwise_or = _flag("bitwise_or", _bits("bitwise_or", np.bitwise_or, "|"), "|")
bitwise_xor = _flag("bitwise_xor", _bits("bitwise_xor", np.bitwise_xor, "^"), "^")
bitwise_not = _flag("bitwise_not", _bits("bitwise_not", np.invert, "~"), "~")
sign = _flag("sign", lambda x: np.sign(x) if x.dtype != np.bool_ else x.copy(), "sign")
isnan = _flag("isnan", np.isnan, "isnan")
isinf = _flag("isinf", np.isinf, "isinf")
isfinite = _flag("isfinite", np.isfinite, "isfinite")


@op("floor_divide", label="//", broadcasts=True, differentiable=False)
def floor_divide(a, b):
    """y = ⌊a / b⌋, rounded down also where it is negative"""
    refuse_zero("floor_divide", a, b)
    return np.floor_divide(a, b)


def refuse_zero(who: str, a: Any, b: Any) -> None:
    """No integer is anything divided by 0; floats are inf or NaN."""
    refuse_booleans(who, a, b)
    if np.result_type(a, b).kind != "f" and np.size(a) and not np.all(b):
        raise ValueError(f"{who}: an integer divided by 0; use / for inf, or where() to choose another value")


def refuse_booleans(who: str, *operands: Any) -> None:
    """NumPy would compute in int8, which is no dtype of ours; a boolean beside a number is fine."""
    if all(isinstance(a, bool) or getattr(a, "dtype", None) == np.bool_ for a in operands):
        raise TypeError(f"{who}: booleans have none; convert them with .long()")


def power(x: Any, p: Any) -> Any:
    """xᵖ; of whole numbers to a power below 0 the fraction is cut off."""
    refuse_booleans("pow", x, p)
    dtype = getattr(x, "dtype", None) or p.dtype
    if isinstance(p, float) and p == -0.5:  # as NumPy's x**0.5 is √x: NaN at −∞, −∞ at −0, where pow has 0, ∞
        return 1.0 / np.sqrt(x)
    if dtype.kind == "f" or np.min(p, initial=0) >= 0:
        return np.power(x, p)
    inverse = np.where(np.equal(np.abs(x), 1), np.where(np.equal(p % 2, 0), 1, x), 0)
    return np.where(np.less(p, 0), inverse, np.power(x, np.maximum(p, 0))).astype(dtype)


@op("zeros_like", differentiable=False)
def zeros_like(x):
    """Zeros of x's shape and dtype."""
    return np.zeros_like(x)


@op("ones_like", differentiable=False)
def ones_like(x):
    """Ones of x's shape and dtype."""
    return np.ones_like(x)


@op("detach", differentiable=False, view=True)
def detach(x):
    """The same values, without a gradient."""
    return x


@op("clone")
def clone(x):
    """y = clone(x); in row-major order          gradient: g"""
    return np.array(x, order="C")


@clone.vjp
def clone_vjp(g):
    return (g,)


@clone.samples
def clone_samples(rng):
    yield (rng.normal(size=(2, 3)),), {}
