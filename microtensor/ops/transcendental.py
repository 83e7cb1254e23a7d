"""Tangent, arcs, hyperbolic functions, and exponentials and logarithms of other bases, element by element."""

from __future__ import annotations

import math

import numpy as np

from microtensor.engine import op
from microtensor.ops.elementwise import sigmoid, sqrt
from microtensor.ops.samples import Rng, Samples, away_from_kinks, one, pairs, positive
from microtensor.ops.select import equal, greater, isfinite, logical_and, maximum, where


def _inside(rng: Rng) -> Samples:
    """Within −1 … 1, where arcsine and arccosine are."""
    return one(rng, -0.9, 0.9)


@op("tan", floats=True, samples=_inside)
def tan(x):
    """y = tan(x)          gradient: g · (1 + y²)"""
    return np.tan(x)


@tan.vjp
def tan_vjp(g, y):
    return (g * (1.0 + y * y),)


@op("asin", floats=True, samples=_inside)
def asin(x):
    """y = asin(x); NaN outside −1 … 1          gradient: g / √(1 − x²)"""
    return np.arcsin(x)


@asin.vjp
def asin_vjp(g, x):
    return (g / sqrt(1.0 - x * x),)


@op("acos", floats=True, samples=_inside)
def acos(x):
    """y = acos(x); NaN outside −1 … 1          gradient: −g / √(1 − x²)"""
    return np.arccos(x)


@acos.vjp
def acos_vjp(g, x):
    return (-g / sqrt(1.0 - x * x),)


@op("atan", floats=True, samples=one)
def atan(x):
    """y = atan(x)          gradient: g / (1 + x²)"""
    return np.arctan(x)


@atan.vjp
def atan_vjp(g, x):
    return (g / (1.0 + x * x),)


@op("atan2", broadcasts=True, floats=True)
def atan2(a, b):
    """y = atan2(a, b); the angle of (b, a)          gradient: g · b / (a² + b²), −g · a / (a² + b²)"""
    return np.arctan2(a, b)


@atan2.vjp
def atan2_vjp(g, a, b):
    unit = maximum(abs(a), abs(b))  # in its units the squares neither vanish nor overflow
    unit = where(logical_and(greater(unit, 0), isfinite(unit)), unit, 1.0)
    p, q = a / unit, b / unit
    square = p * p + q * q
    scale = g / unit / where(equal(square, 0), 1.0, square)  # at the origin the gradient is 0, as in PyTorch
    return lambda: scale * q, lambda: scale * -p


@atan2.samples
def atan2_samples(rng):
    for (a, b), params in pairs(rng):
        yield (a, b + np.where(np.asarray(b) < 0, -1.0, 1.0)), params


@op("sinh", floats=True, samples=one)
def sinh(x):
    """y = sinh(x); (eˣ − e⁻ˣ)/2          gradient: g · cosh(x)"""
    return np.sinh(x)


@sinh.vjp
def sinh_vjp(g, x):
    return (g * cosh(x),)


@op("cosh", floats=True, samples=away_from_kinks)
def cosh(x):
    """y = cosh(x); (eˣ + e⁻ˣ)/2          gradient: g · sinh(x)"""
    return np.cosh(x)


@cosh.vjp
def cosh_vjp(g, x):
    return (g * sinh(x),)


@op("exp2", label="2ˣ", floats=True, samples=one)
def exp2(x):
    """y = 2 ** x          gradient: g · y · log(2)"""
    return np.exp2(x)


@exp2.vjp
def exp2_vjp(g, y):
    return (g * (y * math.log(2.0)),)


@op("log2", floats=True, samples=positive)
def log2(x):
    """y = log2(x)          gradient: g / (x · log(2))"""
    return np.log2(x)


@log2.vjp
def log2_vjp(g, x):
    return (g / (x * math.log(2.0)),)


@op("log10", floats=True, samples=positive)
def log10(x):
    """y = log10(x)          gradient: g / (x · log(10))"""
    return np.log10(x)


@log10.vjp
def log10_vjp(g, x):
    return (g / (x * math.log(10.0)),)


@op("logaddexp", broadcasts=True, floats=True, samples=pairs)
def logaddexp(a, b):
    """y = log(exp(a) + exp(b)); without overflow          gradient: g · sigmoid(a − b), g · sigmoid(b − a)"""
    return np.logaddexp(a, b)


@logaddexp.vjp
def logaddexp_vjp(g, a, b):
    return lambda: g * sigmoid(a - b), lambda: g * sigmoid(b - a)
