"""Gradient clipping, between backward() and step(); and all parameters as one vector."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from microtensor import cat, engine, kernels
from microtensor.methods.calling import by_its_name
from microtensor.nn.checks import check_number, check_tensors
from microtensor.place import mark_changed
from microtensor.tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grad_value_", "parameters_to_vector", "vector_to_parameters"]


def _several(who: str, parameters: Any) -> list[Tensor]:
    alone = isinstance(parameters, Tensor) or not isinstance(parameters, Iterable)
    found = [parameters] if alone else list(parameters)
    check_tensors(who, **{f"parameter {i}": p for i, p in enumerate(found)})
    return found


def _gradients(who: str, parameters: Any, name: str, limit: Any) -> tuple[list[Tensor], float]:
    """The gradients, and the limit that shall hold for them: less than 0 would turn them round."""
    unique = {id(p): p.grad for p in _several(who, parameters)}
    most = check_number(who, name, limit, math.inf, "make it 0 or more")
    return [g for g in unique.values() if g is not None], most


def clip_grad_norm_(
    parameters: Any,
    max_norm: float,
    norm_type: Any = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients by min(1, max_norm / norm), norm = √(Σ g²) over all; returns the norm (a scalar).

    norm_type p: (Σ |g|ᵖ)^(1/p), or max |g| for p = ∞. foreach means nothing here.

    Shapes: gradients (...) of any shapes → norm ()
    Raises: RuntimeError if the norm is NaN or infinite and error_if_nonfinite; TypeError for what are no
    tensors or numbers; ValueError for a max_norm that is negative or NaN.
    Source: Pascanu et al. 2013, §3.2. Differs from PyTorch: the sum runs in float64, gradients whose norm is
    not finite stay as they are (there they become 0 and NaN), and a negative max_norm, which turns them round
    there, is refused.
    """
    gradients, most = _gradients("clip_grad_norm_", parameters, "max_norm", max_norm)
    p = check_number("clip_grad_norm_", "norm_type", math.inf if str(norm_type) == "inf" else norm_type)
    if p == 2.0:
        norm = math.sqrt(sum(kernels.sq_sums([g.array for g in gradients])))
    else:
        each = [np.linalg.norm(g.array.ravel().astype(np.float64), p) for g in gradients]
        norm = float(np.linalg.norm(each, p)) if each else 0.0
    if not math.isfinite(norm):
        if error_if_nonfinite:
            raise RuntimeError(f"clip_grad_norm_: the norm is {norm}; look for the first NaN or inf")
    elif norm > most:
        kernels.scale([g.array for g in gradients], most / (norm + 1e-6))
        mark_changed("clip_grad_norm_", *(g.version for g in gradients))
    dtype = gradients[0].dtype if gradients else np.float32
    return engine.make(np.asarray(norm, dtype), None, None)  # type: ignore[no-any-return]


def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Cut every element of every gradient to −clip_value … clip_value.

    Shapes: gradients (...) of any shapes, changed in place
    Raises: ValueError for a clip_value that is negative or NaN.
    Source: PyTorch's clip_grad_value_, where a negative one makes all gradients equal.
    """
    gradients, most = _gradients("clip_grad_value_", parameters, "clip_value", clip_value)
    for g in gradients:
        np.clip(g.array, -most, most, out=g.array)
    mark_changed("clip_grad_value_", *(g.version for g in gradients))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters in a row; the gradient flows through it.

    Shapes: (...), (...), … → (how many elements they have,)
    Raises: ValueError for no parameters.
    Source: PyTorch's parameters_to_vector.
    """
    several = _several("parameters_to_vector", parameters)
    return by_its_name(cat, "parameters_to_vector")([p.reshape(-1) for p in several])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """The reverse: each parameter becomes its piece of vec, whose memory it shares from then on.

    Shapes: vec (how many elements they have,)
    Raises: ValueError if vec has not as many elements as the parameters.
    Source: PyTorch's vector_to_parameters.
    """
    check_tensors("vector_to_parameters", vec=vec)
    several = _several("vector_to_parameters", parameters)
    total = sum(p.numel() for p in several)
    if vec.shape != (total,):
        raise ValueError(f"vector_to_parameters: vec has shape {vec.shape}; make it ({total},)")
    pieces = vec.detach().split([p.numel() for p in several]) if several else ()
    for p, piece in zip(several, pieces, strict=True):
        p.data = piece.view_as(p)
