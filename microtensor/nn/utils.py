"""Gradient clipping, between backward() and step(); and all parameters as one vector."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from microtensor import cat, engine, kernels
from microtensor.place import mark_all_changed
from microtensor.tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grad_value_", "parameters_to_vector", "vector_to_parameters"]


def _gradients(parameters: Any) -> list[Tensor]:
    several: Iterable[Tensor] = [parameters] if isinstance(parameters, Tensor) else parameters
    unique = {id(p): p.grad for p in several}
    return [g for g in unique.values() if g is not None]


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients by min(1, max_norm / norm), norm = √(Σ g²) over all; returns the norm (a scalar).

    norm_type p: (Σ |g|ᵖ)^(1/p), or max |g| for p = ∞. foreach means nothing here.

    Shapes: gradients (...) of any shapes → norm ()
    Raises: RuntimeError if the norm is NaN or infinite and error_if_nonfinite.
    Source: Pascanu et al. 2013, §3.2. Differs from PyTorch: the sum runs in float64, and gradients whose norm
    is not finite stay as they are (there they become 0 and NaN).
    """
    gradients, p = _gradients(parameters), float(norm_type)
    if p == 2.0:
        norm = math.sqrt(sum(kernels.sq_sums([g.array for g in gradients])))
    else:
        each = [np.linalg.norm(g.array.ravel().astype(np.float64), p) for g in gradients]
        norm = float(np.linalg.norm(each, p)) if each else 0.0
    if not math.isfinite(norm):
        if error_if_nonfinite:
            raise RuntimeError(f"clip_grad_norm_: the norm is {norm}; look for the first NaN or inf")
    elif norm > max_norm:
        kernels.scale([g.array for g in gradients], float(max_norm) / (norm + 1e-6))
        mark_all_changed(g.version for g in gradients)
    dtype = gradients[0].dtype if gradients else np.float32
    return engine.make(np.asarray(norm, dtype), None, None)  # type: ignore[no-any-return]


def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Cut every element of every gradient to −clip_value … clip_value.

    Shapes: gradients (...) of any shapes, changed in place
    Source: PyTorch's clip_grad_value_.
    """
    gradients = _gradients(parameters)
    for g in gradients:
        np.clip(g.array, -float(clip_value), float(clip_value), out=g.array)
    mark_all_changed(g.version for g in gradients)


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters in a row; the gradient flows through it.

    Shapes: (...), (...), … → (how many elements they have,)
    Raises: ValueError for no parameters.
    Source: PyTorch's parameters_to_vector.
    """
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """The reverse: each parameter becomes its piece of vec, whose memory it shares from then on.

    Shapes: vec (how many elements they have,)
    Raises: ValueError if vec has not as many elements as the parameters.
    Source: PyTorch's vector_to_parameters.
    """
    several = list(parameters)
    total = sum(p.numel() for p in several)
    if vec.shape != (total,):
        raise ValueError(f"vector_to_parameters: vec has shape {vec.shape}; make it ({total},)")
    for p, piece in zip(several, vec.detach().split([p.numel() for p in several]), strict=True):
        p.data = piece.view_as(p)
