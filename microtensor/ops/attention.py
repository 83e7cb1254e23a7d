"""Scaled dot-product attention as one fused op; its definition in simpler ops beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor import kernels
from microtensor.engine import op
from microtensor.ops.fused import softmax
from microtensor.ops.linalg import matmul
from microtensor.ops.select import drop, where
from microtensor.walk import unbroadcast


@op("attention", residuals=("stats",))
def attention(q, k, v, mask, *, scale, causal, dropout_p, seed):
    """y = dropout(softmax(causal(masked(q @ kᵀ · scale, mask))), dropout_p) @ v; mask may be None.

    gradient: dS @ k · scale, dSᵀ @ q · scale, dropout(A, dropout_p)ᵀ @ g, dS;
    with A = softmax(causal(masked(q @ kᵀ · scale, mask)), stats),
    dS = A · (dropout(g @ vᵀ, dropout_p) − rowsum(g · y))

    A boolean mask is True where a query may attend, one of numbers is added; causal: query t sees keys 0 … t.
    A query that may attend to nothing gives zeros. Which weights are dropped follows from the seed alone.
    Source: "Attention Is All You Need", eq. 1.
    """
    _check(q, k, v, mask)
    y, stats = kernels.attention_forward(q, k, v, mask, scale, causal, dropout_p, seed)
    return y, (stats,)


@attention.vjp
def attention_vjp(g, q, k, v, mask, y, stats, *, scale, causal, dropout_p, seed):
    gradients: list[Any] = []

    def gradient(i: int) -> Any:
        if not gradients:  # one kernel for all three, run by the first who asks
            gradients.extend(
                kernels.attention_backward(g, q, k, v, mask, y, stats, scale, causal, dropout_p, seed)
            )
        return gradients[i]

    def of_mask() -> Any:
        weights, keep = _weights(q, k, mask, scale, causal), _keep(q, k, dropout_p, seed)
        back = matmul(g, v.mT) if keep is None else drop(matmul(g, v.mT), keep, dropout_p)
        return unbroadcast(weights * (back - (weights * back).sum(-1, keepdims=True)), mask.shape)

    floating = mask is not None and mask.dtype != np.bool_
    return lambda: gradient(0), lambda: gradient(1), lambda: gradient(2), of_mask if floating else None


@attention.composite
def attention_composite(q, k, v, mask, *, scale, causal, dropout_p, seed):
    weights, keep = _weights(q, k, mask, scale, causal), _keep(q, k, dropout_p, seed)
    return matmul(weights if keep is None else drop(weights, keep, dropout_p), v)


@attention.samples
def attention_samples(rng):
    options = {"scale": 0.5, "causal": False, "dropout_p": 0.0, "seed": 0}
    cases: list[Any] = [
        ((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3), None, {}),
        ((2, 4, 3), (2, 4, 3), (2, 4, 2), None, {"causal": True}),
        ((3, 2), (2, 2), (2, 3), rng.normal(size=(3, 2)), {"scale": -1.0}),
        ((2, 2, 2, 3), (2, 2, 3, 3), (2, 2, 3, 2), rng.normal(size=(2, 1, 1, 3)), {"causal": True}),
        ((2, 3, 2), (2, 4, 2), (2, 4, 2), np.array([[[True, False, True, True]], [[False] * 4]]), {}),
        ((2, 3, 2), (2, 4, 2), (2, 4, 2), rng.normal(size=(3, 4)), {"dropout_p": 0.4, "seed": 3 << 32}),
        ((0, 2), (3, 2), (3, 2), None, {}),
    ]
    for q, k, v, mask, other in cases:
        yield (rng.normal(size=q), rng.normal(size=k), rng.normal(size=v), mask), {**options, **other}


def _check(q: Any, k: Any, v: Any, mask: Any) -> None:
    lead = q.shape[:-2]
    if min(q.ndim, k.ndim, v.ndim) < 2 or k.shape[:-2] != lead or v.shape[:-2] != lead:
        raise ValueError(f"attention: query {q.shape}, key {k.shape} and value {v.shape} differ in the axes "
                         f"before the last two; expand them to the same")  # fmt: skip
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(
            f"attention: query {q.shape}, key {k.shape} and value {v.shape} do not fit; query and key need "
            f"the same last axis, key and value the same length"
        )
    if len({q.dtype, k.dtype, v.dtype}) > 1 or q.dtype.kind != "f":
        raise TypeError(
            f"attention: query {q.dtype}, key {k.dtype} and value {v.dtype}; make them floating, of one dtype"
        )
    if mask is None:
        return
    if mask.dtype not in (np.bool_, q.dtype):
        raise TypeError(f"attention: the mask is {mask.dtype}; make it boolean or {q.dtype}")
    shape = (*lead, q.shape[-2], k.shape[-2])
    if mask.ndim > len(shape) or any(
        n not in (1, m) for n, m in zip(mask.shape[::-1], shape[::-1], strict=False)
    ):
        raise ValueError(f"attention: a mask of shape {mask.shape} does not broadcast to {shape}; give axes "
                         f"of those lengths or 1")  # fmt: skip


def _weights(q: Any, k: Any, mask: Any, scale: float, causal: bool) -> Any:
    scores = matmul(q, k.mT) * scale  # (..., T, S)
    if mask is not None:
        scores = where(mask, scores, -math.inf) if mask.dtype == np.bool_ else scores + mask
    if causal:
        scores = where(np.tri(*scores.shape[-2:], dtype=bool), scores, -math.inf)
    return softmax(scores, axis=-1)


def _keep(q: Any, k: Any, p: float, seed: int) -> Any:
    return kernels.attention_keeps((*q.shape[:-1], k.shape[-2]), p, seed) if p else None
