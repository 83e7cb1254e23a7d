"""Products of matrices, and what a linear layer and an embedding are made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor import kernels
from microtensor.engine import op
from microtensor.misfit import no_product
from microtensor.ops.reduce import sum
from microtensor.ops.shape import put_add


def rows(x: Any) -> Any:
    """(..., C) → (N, C): all leading axes as one."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _product(a: Any, b: Any, add: Any = None) -> Any:
    kind = a.dtype
    if kind is not (other := b.dtype) and kind != other:
        raise TypeError(f"matmul: dtypes {a.dtype} and {b.dtype} differ; convert one with .to(dtype)")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError("the axes that are added up over differ")
    if kind.kind == "f":
        return kernels.matmul(a, b, add)
    return np.matmul(a, b) if add is None else np.matmul(a, b) + add


@op("matmul", broadcasts=True, promotes=None)
def matmul(a, b):
    """y = a @ b; on the last two axes, the leading ones broadcast          gradient: g @ bᵀ, aᵀ @ g

    A product with one matrix for all leading axes is one large product: (..., M, K) (K, N) = (…·M, K) (K, N).
    """
    try:
        return _product(a, b)
    except ValueError:
        raise no_product(a, b) from None


@matmul.vjp
def matmul_vjp(g, a, b):
    return lambda: matmul(g, b.mT), lambda: matmul(rows(a).mT, rows(g)) if b.ndim == 2 else matmul(a.mT, g)


@matmul.samples
def matmul_samples(rng):
    shapes = [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4))]
    for a, b in [*shapes, ((2, 0), (0, 3))]:
        yield (rng.normal(size=a), rng.normal(size=b)), {}


@op("linear")
def linear(x, w, b):
    """y = x @ wᵀ + b; over the last axis; b may be None          gradient: g @ w, Σ_B(gᵀ @ x), Σ(g)

    W is (out, in), as in PyTorch. Source: the lecture's Q = X W^Q, with W^Q = Wᵀ.
    """
    if x.shape[-1:] != w.shape[1:]:
        # (B, H, T, d_k) into d_model → d_model; where H = T or T = d_k it may be another order, or an image
        heads = x.ndim == 4 and w.shape == (x.shape[1] * x.shape[3],) * 2 and x.shape[2] not in x.shape[1::2]
        joined = ": .transpose(1, 2).flatten(2) joins heads" if heads else ""
        joined += f", or in_features {x.shape[-1]}, by nn.Linear({x.shape[-1]}, {len(w)})" if x.ndim else ""
        raise ValueError(f"linear: input {x.shape} ends in {x.shape[-1:]}, weight {w.shape} takes "
                         f"{w.shape[1:]}; make the last axis of the input in_features{joined}")  # fmt: skip
    if b is not None and b.dtype != x.dtype:
        raise TypeError(f"linear: input {x.dtype} and bias {b.dtype} differ; convert one with .to(dtype)")
    return _product(x, w.T, b)  # (..., in) (in, out) → (..., out)


@linear.vjp
def linear_vjp(g, x, w):
    return (
        lambda: matmul(rows(g), w).reshape(x.shape),
        lambda: matmul(rows(g).mT, rows(x)),
        lambda: sum(rows(g), axis=0, keepdims=False),
    )


@linear.composite
def linear_composite(x, w, b):
    y = matmul(x, w.mT) if x.ndim > 1 else matmul(x.reshape(1, -1), w.mT).reshape(-1)
    return y if b is None else y + b


@linear.samples
def linear_samples(rng):
    for lead in [(2,), (2, 5), (0,), ()]:
        yield (rng.normal(size=(*lead, 3)), rng.normal(size=(4, 3)), rng.normal(size=4)), {}
    yield (rng.normal(size=(2, 3)), rng.normal(size=(4, 3)), None), {}


@op("embedding")
def embedding(weight, ids, *, padding_idx):
    """y = weight[ids]; one row for each id          gradient: add_rows(g, ids), None; 0 for padding_idx"""
    return weight[ids]


@embedding.vjp
def embedding_vjp(g, ids, weight_shape, *, padding_idx):
    return lambda: embedding_backward(g, ids, padding_idx=padding_idx, shape=weight_shape), None


@embedding.samples
def embedding_samples(rng):
    for padding_idx in [None, 2]:  # a row that is looked up gets none of its true gradient as padding
        yield (rng.normal(size=(4, 3)), np.array([[1, 1, 3], [0, 1, 3]])), {"padding_idx": padding_idx}


@op("embedding_backward")
def embedding_backward(g, ids, *, padding_idx, shape):
    """y[i] = Σ g over the places whose id is i, without a race and in a fixed order."""
    y = kernels.embedding_backward(g, ids, shape[0])
    if padding_idx is not None:
        y[padding_idx] = 0
    return y


@embedding_backward.composite
def embedding_backward_composite(g, ids, *, padding_idx, shape):
    ids = np.asarray(getattr(ids, "array", ids))
    if padding_idx is not None:
        g = g * (ids != padding_idx)[..., None]
    return put_add(g, index=ids, shape=shape)


@embedding_backward.samples
def embedding_backward_samples(rng):
    for padding_idx in [None, 1]:
        ids = np.array([[1, 1, 3], [0, 1, 3]])
        yield (rng.normal(size=(2, 3, 2)), ids), {"padding_idx": padding_idx, "shape": (4, 2)}
