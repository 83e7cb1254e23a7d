"""Ops that work element by element. Each is one object: forward, gradient, samples.

`g` is the gradient of the output; a `lambda` is a gradient that is computed only if that input needs one.
Broadcasting is not undone here: the walk does that, once, for every op.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor import kernels
from microtensor.engine import op
from microtensor.ops.samples import away_from_kinks, one, pairs, positive, positive_pairs
from microtensor.ops.select import (
    equal,
    greater_equal,
    less_equal,
    logical_and,
    ones_like,
    power,
    sign,
    where,
    zeros_like,
)

# --- arithmetic ---------------------------------------------------------------------------------------------
# these are called most: a Python function around NumPy's would cost them a twentieth


@op("add", label="+", broadcasts=True, samples=pairs, ufunc=np.add)
def add(a, b):
    """y = a + b          gradient: g, g"""


@add.vjp
def add_vjp(g):
    return g, g


@op("sub", label="−", broadcasts=True, samples=pairs, ufunc=np.subtract)
def sub(a, b):
    """y = a − b          gradient: g, −g"""


@sub.vjp
def sub_vjp(g):
    return g, lambda: -g


@op("mul", label="∘", broadcasts=True, samples=pairs, ufunc=np.multiply)
def mul(a, b):
    """y = a · b          gradient: g · b, g · a"""


@mul.vjp
def mul_vjp(g, a, b):
    return lambda: g * b, lambda: g * a


@op("div", label="/", broadcasts=True, floats=True, samples=positive_pairs, ufunc=np.true_divide)
def div(a, b):
    """y = a / b          gradient: g / b, −g · a / b²"""


@div.vjp
def div_vjp(g, a, b):
    return lambda: g / b, lambda: -g * (a / b) / b


@op("neg", label="−", samples=one)
def neg(x):
    """y = −x          gradient: −g"""
    return np.negative(x)


@neg.vjp
def neg_vjp(g):
    return (-g,)


@op("pow", broadcasts=True, samples=positive_pairs)
def pow(x, p):
    """y = x ** p          gradient: g · p · x ** (p − 1), g · x ** p · log(x); 0 at p = 0, at x = 0 ≤ p"""
    return power(x, p)


@pow.vjp
def pow_vjp(g, x, p):  # y is computed again: x ** 2 need not keep it for an exponent without a gradient
    return lambda: g * _pow_slope(x, p), lambda: g * pow(x, p) * _log_of_base(x, p)


def _pow_slope(x: Any, p: Any) -> Any:
    """p · xᵖ⁻¹, where p = 0 must not meet x⁻¹ = ∞ at x = 0."""
    if isinstance(p, int | float):
        return p * (rsqrt(x) if p == 0.5 else x ** (p - 1)) if p != 0 else zeros_like(x)
    return p * x ** where(equal(p, 0), p, p - 1)


def _log_of_base(x: Any, p: Any) -> Any:
    """ln x, but 0 at x = 0 where p ≥ 0, since there xᵖ does not change with p."""
    if isinstance(x, int | float):
        if x != 0:
            return math.log(x) if x > 0 else math.nan
        return where(greater_equal(p, 0), zeros_like(p), -math.inf)
    flat = logical_and(equal(x, 0), greater_equal(p, 0))
    return where(flat, 0.0, log(where(flat, ones_like(x), x)))


# --- exponentials and roots ---------------------------------------------------------------------------------


@op("exp", floats=True, samples=one)
def exp(x):
    """y = exp(x)          gradient: g · y"""
    return np.exp(x)


@exp.vjp
def exp_vjp(g, y):
    return (g * y,)


@op("log", floats=True, samples=positive)
def log(x):
    """y = log(x)          gradient: g / x"""
    return np.log(x)


@log.vjp
def log_vjp(g, x):
    return (g / x,)


@op("log1p", floats=True, samples=positive)
def log1p(x):
    """y = log(1 + x)          gradient: g / (1 + x)"""
    return np.log1p(x)


@log1p.vjp
def log1p_vjp(g, x):
    return (g / (1.0 + x),)


@op("expm1", floats=True, samples=one)
def expm1(x):
    """y = exp(x) − 1          gradient: g · (y + 1)"""
    return np.expm1(x)


@expm1.vjp
def expm1_vjp(g, y):
    return (g * (y + 1.0),)


@op("sqrt", floats=True, samples=positive)
def sqrt(x):
    """y = √x          gradient: g / (2 · y)"""
    return np.sqrt(x)


@sqrt.vjp
def sqrt_vjp(g, y):
    return (g / (2.0 * y),)


@op("rsqrt", floats=True, samples=positive)
def rsqrt(x):
    """y = 1 / √x          gradient: −g · y³ / 2"""
    return 1.0 / np.sqrt(x)


@rsqrt.vjp
def rsqrt_vjp(g, y):
    return (g * (-0.5) * y * y * y,)


@op("square", label="x²", samples=one)
def square(x):
    """y = x²          gradient: 2 · g · x"""
    return np.square(x) if x.dtype != np.bool_ else x.astype(np.int64)


@square.vjp
def square_vjp(g, x):
    return (g * (2.0 * x),)


@op("reciprocal", label="1/x", floats=True, samples=positive)
def reciprocal(x):
    """y = 1 / x          gradient: −g · y²"""
    return 1.0 / x


@reciprocal.vjp
def reciprocal_vjp(g, y):
    return (-g * y * y,)


# --- shapes of activation -----------------------------------------------------------------------------------


@op("sin", floats=True, samples=one)
def sin(x):
    """y = sin(x)          gradient: g · cos(x)"""
    return np.sin(x)


@sin.vjp
def sin_vjp(g, x):
    return (g * cos(x),)


@op("cos", floats=True, samples=one)
def cos(x):
    """y = cos(x)          gradient: −g · sin(x)"""
    return np.cos(x)


@cos.vjp
def cos_vjp(g, x):
    return (-g * sin(x),)


@op("tanh", floats=True, samples=one)
def tanh(x):
    """y = tanh(x)          gradient: g · (1 − y²)"""
    return np.tanh(x)


@tanh.vjp
def tanh_vjp(g, y):
    return (g * (1.0 - y * y),)


@op("sigmoid", floats=True, samples=one)
def sigmoid(x):
    """y = sigmoid(x); 1/(1 + e⁻ˣ), 0 where that is no normal number          gradient: g · y · (1 − y)"""
    return 1.0 / (1.0 + np.exp(-x))  # (1 + tanh(x/2))/2 is 0 from −18 in float32; where e⁻ˣ overflows, y is 0


@sigmoid.vjp
def sigmoid_vjp(g, y):
    return (g * y * (1.0 - y),)


@op("erf", floats=True, samples=one)
def erf(x):
    """y = erf(x); 2/√π ∫₀ˣ exp(−t²) dt          gradient: g · 2 / √π · exp(−x²)"""
    return kernels.erf_forward(x)


@erf.vjp
def erf_vjp(g, x):
    return (g * (2.0 / math.sqrt(math.pi)) * exp(-(x * x)),)


@op("relu", samples=away_from_kinks)
def relu(x):
    """y = relu(x); max(0, x)          gradient: where(y > 0, g, 0); 0 at the kink, as in PyTorch"""
    return kernels.relu_forward(x) if x.dtype.kind == "f" else np.maximum(x, 0)


@relu.vjp
def relu_vjp(g, y):
    return (relu_backward(g, y),)


@op("relu_backward")
def relu_backward(g, y):
    """gx = g unless y ≤ 0, else 0; where y is NaN, g stays: differentiated through its composite."""
    return kernels.relu_backward(g, y)


@relu_backward.composite
def relu_backward_composite(g, y):
    return where(less_equal(y, 0), 0.0, g)


@relu_backward.samples
def relu_backward_samples(rng):
    for (x,), params in one(rng):
        yield (x, rng.integers(-1, 2, x.shape)), params  # integers: no gradient goes to y


@op("abs", label="|x|", samples=away_from_kinks)
def abs(x):
    """y = |x|          gradient: g · sign(x); 0 at 0"""
    return np.abs(x)


@abs.vjp
def abs_vjp(g, x):
    return (g * sign(x),)
