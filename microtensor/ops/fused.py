"""Fused ops: one kernel each, and beside it the definition in simpler ops.

The composite is the oracle, what a drawing opens, and what derivatives of second order go through. A backward
that is a kernel too is an op of its own, without a VJP: it is differentiated through its composite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor import kernels
from microtensor.engine import op
from microtensor.ops.elementwise import erf, exp, rsqrt, tanh
from microtensor.ops.reduce import amax, logsumexp, mean, sum
from microtensor.ops.samples import Rng, Samples
from microtensor.ops.select import detach, equal, isfinite, where
from microtensor.ops.shape import getitem


def _along(kernel: Any, axis: int, *arrays: Any) -> Any:
    """Run a kernel that works on the last axis along another one."""
    if axis in (-1, arrays[0].ndim - 1):
        return kernel(*arrays)
    return np.array(np.moveaxis(kernel(*(np.moveaxis(a, axis, -1) for a in arrays)), -1, axis), order="C")


def _rows_of_scores(rng: Rng) -> Samples:
    for shape, axis in [((2, 3), -1), ((2, 3, 4), 1), ((3, 2), 0), ((5,), 0), ((0, 3), -1)]:
        yield (rng.normal(size=shape),), {"axis": axis}


def _gradient_and_scores(rng: Rng) -> Samples:
    for (x,), params in _rows_of_scores(rng):
        yield (rng.normal(size=x.shape), np.exp(x)), params


# --- softmax ------------------------------------------------------------------------------------------------


@op("softmax", floats=True, samples=_rows_of_scores)
def softmax(x, *, axis):
    """y = softmax(x, axis); a row of −∞ gives zeros          gradient: y · (g − rowsum(g · y, axis))

    Source: "Attention Is All You Need", §3.2.1; the lecture, scaled dot-product attention.
    """
    return _along(kernels.softmax_forward, axis, x)


@softmax.vjp
def softmax_vjp(g, y, *, axis):
    return (softmax_backward(g, y, axis=axis),)


@softmax.composite
def softmax_composite(x, *, axis):
    top = detach(amax(x, axis=(axis,), keepdims=True))  # any shift cancels, so it needs no gradient
    e = exp(x - where(isfinite(top), top, 0.0))
    total = sum(e, axis=(axis,), keepdims=True)
    return e / where(equal(total, 0.0), 1.0, total)


@op("softmax_backward", samples=_gradient_and_scores)
def softmax_backward(g, y, *, axis):
    """gx = y · (g − Σ g·y) along the axis: differentiated through its composite."""
    return _along(kernels.softmax_backward, axis, g, y)


@softmax_backward.composite
def softmax_backward_composite(g, y, *, axis):
    return y * (g - sum(g * y, axis=(axis,), keepdims=True))


@op("log_softmax", floats=True, samples=_rows_of_scores)
def log_softmax(x, *, axis):
    """y = x − log(rowsum(exp(x), axis))          gradient: g − exp(y) · rowsum(g, axis)"""
    return _along(kernels.log_softmax_forward, axis, x)


@log_softmax.vjp
def log_softmax_vjp(g, y, *, axis):
    return (log_softmax_backward(g, y, axis=axis),)


@log_softmax.composite
def log_softmax_composite(x, *, axis):
    top = detach(amax(x, axis=(axis,), keepdims=True))
    z = x - where(isfinite(top), top, 0.0)  # x − logsumexp(x) would round the logarithm to the digits of x
    total = logsumexp(z, axis=(axis,), keepdims=True)
    return z - where(equal(total, -math.inf), 0.0, total)


@op("log_softmax_backward", samples=_gradient_and_scores)
def log_softmax_backward(g, y, *, axis):
    """gx = g − eʸ · Σ g along the axis: differentiated through its composite."""
    return _along(kernels.log_softmax_backward, axis, g, y)


@log_softmax_backward.composite
def log_softmax_backward_composite(g, y, *, axis):
    return g - exp(y) * sum(g, axis=(axis,), keepdims=True)


# --- layer norm ---------------------------------------------------------------------------------------------


@op("layer_norm", label="layer norm", residuals=("means", "rstd"))
def layer_norm(x, w, b, *, eps):
    """y = layer_norm(x, w, b); w · x̂ + b, x̂ = (x − μ)/√(σ² + eps) over the last axis, σ² divides by C.

    gradient: rstd · (u − rowmean(u) − x̂ · rowmean(u · x̂)), Σ(g · x̂), Σ(g);
    with x̂ = (x − means) · rstd, u = g · w

    Source: Ba, Kiros & Hinton 2016, §3. Differs: eps inside the root (the paper has none), as in PyTorch.
    """
    y, means, rstd = kernels.layer_norm_forward(x, w, b, eps)
    return y, (means, rstd)


@layer_norm.vjp
def layer_norm_vjp(g, x, w, means, rstd):
    return kernels.layer_norm_backward(g, x, w, means, rstd)


@layer_norm.composite
def layer_norm_composite(x, w, b, *, eps):
    d = x - mean(x, axis=(-1,), keepdims=True)
    return w * d * rsqrt(mean(d * d, axis=(-1,), keepdims=True) + eps) + b


@layer_norm.samples
def layer_norm_samples(rng):
    for shape in [(2, 4), (2, 3, 5), (4,), (0, 3)]:
        yield tuple(rng.normal(size=s) for s in (shape, shape[-1:], shape[-1:])), {"eps": 1e-5}


@op("add_layer_norm", label="add & norm", residuals=("means", "rstd"))
def add_layer_norm(x, f, w, b, *, eps):
    """y = layer_norm(x + f, w, b); the end of a sublayer f(x), whose sum with x nobody keeps

    gradient: δ, δ, Σ(g · x̂), Σ(g);
    with x̂ = (x + f − means) · rstd, u = g · w,
    δ = rstd · (u − rowmean(u) − x̂ · rowmean(u · x̂))

    Source: "Attention Is All You Need", §3.1: LayerNorm(x + Sublayer(x)).
    """
    y, means, rstd = kernels.layer_norm_forward(x, w, b, eps, f)
    return y, (means, rstd)


@add_layer_norm.vjp
def add_layer_norm_vjp(g, x, f, w, means, rstd):
    gx, gw, gb = kernels.layer_norm_backward(g, x, w, means, rstd, f)
    return gx, gx, gw, gb


@add_layer_norm.composite
def add_layer_norm_composite(x, f, w, b, *, eps):
    return layer_norm_composite(x + f, w, b, eps=eps)


@add_layer_norm.samples
def add_layer_norm_samples(rng):
    for (x, w, b), params in layer_norm_samples(rng):
        yield (x, rng.normal(size=x.shape), w, b), params


# --- cross entropy ------------------------------------------------------------------------------------------


@op("cross_entropy", label="cross entropy", residuals=("lse", "share"))
def cross_entropy(logits, target, *, ignore_index, label_smoothing, average):
    """y = cross_entropy(logits, target); yᵢ = −Σ_c q_c ln softmax(logitsᵢ)_c, q = 1 − ε at target, plus ε/C.

    gradient: g · (exp(logits − lse) − q(target)) · share(target), None; a row's share of the average is 1/n

    Rows whose target is ignore_index give 0, whatever their logits hold, and a zero gradient. average: one
    number, the mean over all other rows, NaN if there are none.
    Source: Szegedy et al. 2016, §7 (label smoothing); "Attention Is All You Need", §5.4.
    """
    losses, lse = kernels.cross_entropy_forward(logits, target, ignore_index, label_smoothing)
    if not average:
        return losses, (lse, 1.0)
    mean, share = kernels.mean_of_kept(losses, target, ignore_index)
    return np.array(mean, losses.dtype), (lse, share)


@cross_entropy.vjp
def cross_entropy_vjp(g, logits, target, lse, share, *, ignore_index, label_smoothing, average):
    g = np.array([float(g) * share], g.dtype) if average else g  # one number for all rows
    backward = kernels.cross_entropy_backward
    return lambda: backward(g, logits, target, lse, ignore_index, label_smoothing), None


@cross_entropy.composite
def cross_entropy_composite(logits, target, *, ignore_index, label_smoothing, average):
    ids = np.asarray(getattr(target, "array", target))
    kept = ids != ignore_index
    log_p = log_softmax(where(kept[:, None], logits, 0.0), axis=-1)
    loss = -getitem(log_p, index=(np.arange(len(ids)), np.where(kept, ids, 0)))
    if label_smoothing:
        loss = (1.0 - label_smoothing) * loss - label_smoothing * mean(log_p, axis=(-1,), keepdims=False)
    losses = where(kept, loss, 0.0)
    share = 1.0 / n if (n := np.count_nonzero(kept)) else math.nan
    return sum(losses, axis=(0,), keepdims=False) * share if average else losses


@cross_entropy.samples
def cross_entropy_samples(rng):
    for smoothing, average in [(0.0, True), (0.1, True), (0.0, False), (0.1, False)]:
        params = {"ignore_index": -100, "label_smoothing": smoothing, "average": average}
        yield (rng.normal(size=(4, 3)), np.array([2, 0, -100, 1])), params
    yield (rng.normal(size=(0, 3)), np.zeros(0, np.int64)), params


# --- GELU ---------------------------------------------------------------------------------------------------


@op("gelu", label="GELU", floats=True)
def gelu(x, *, approximate=False):
    """y = x · Φ(x); Φ(x) = (1 + erf(x/√2))/2          gradient: g · (Φ(x) + x · φ(x)); φ = Φ′

    approximate: Φ(x) ≈ (1 + tanh u)/2 with u = √(2/π) (x + 0.044715 x³). Source: Hendrycks & Gimpel 2016, §2.
    """
    return kernels.gelu_forward(x, approximate)


@gelu.vjp
def gelu_vjp(g, x, *, approximate):
    return (gelu_backward(g, x, approximate=approximate),)


@gelu.composite
def gelu_composite(x, *, approximate=False):
    return 0.5 * x * (1.0 + _twice_phi(x, approximate))


def _twice_phi(x: Any, approximate: bool) -> Any:
    """2 Φ(x) − 1"""
    if approximate:
        return tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x)))
    return erf(x * math.sqrt(0.5))


@op("gelu_backward")
def gelu_backward(g, x, *, approximate=False):
    """y = g · (Φ(x) + x · φ(x)), φ(x) = exp(-x²/2)/√(2π): differentiated through its composite."""
    return kernels.gelu_backward(g, x, approximate)


@gelu_backward.composite
def gelu_backward_composite(g, x, *, approximate=False):
    t = _twice_phi(x, approximate)
    if approximate:
        density = 0.5 * (1.0 - t * t) * math.sqrt(2.0 / math.pi) * (1.0 + 3.0 * 0.044715 * (x * x))
    else:
        density = exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return g * (0.5 * (1.0 + t) + x * density)


@gelu.samples
def gelu_samples(rng):
    for approximate in [False, True]:
        yield (rng.normal(size=(2, 3)),), {"approximate": approximate}


@gelu_backward.samples
def gelu_backward_samples(rng):
    for approximate in [False, True]:
        yield (rng.normal(size=(2, 3)), rng.normal(size=(2, 3))), {"approximate": approximate}
