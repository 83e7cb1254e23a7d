"""Gradient clipping: called between backward() and step()."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from microtensor import engine, kernels
from microtensor.tensor import Tensor

__all__ = ["clip_grad_norm_", "clip_grad_value_"]


def _gradients(parameters: Any) -> list[Tensor]:
    several: Iterable[Tensor] = [parameters] if isinstance(parameters, Tensor) else parameters
    unique = {id(p): p.grad for p in several}
    return [g for g in unique.values() if g is not None]


def clip_grad_norm_(parameters: Any, max_norm: float, error_if_nonfinite: bool = False) -> Tensor:
    """Scale all gradients by min(1, max_norm / norm), norm = √(Σ g²) over all; returns the norm (a scalar).

    Raises: RuntimeError if the norm is NaN or infinite and error_if_nonfinite; else such gradients stay.
    Source: Pascanu et al. 2013, §3.2. The sum runs in float64, whatever the gradients' dtype.
    """
    gradients = _gradients(parameters)
    norm = math.sqrt(sum(kernels.sq_sum(g.array) for g in gradients))
    if not math.isfinite(norm):
        if error_if_nonfinite:
            raise RuntimeError(
                f"clip_grad_norm_: the gradient's norm is {norm}; look for the first NaN or inf"
            )
    elif norm > max_norm:
        for g in gradients:
            g.array *= float(max_norm) / (norm + 1e-6)
            g.version[0] += 1
    dtype = gradients[0].dtype if gradients else np.float32
    return engine.make(np.asarray(norm, dtype), None, None)  # type: ignore[no-any-return]


def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Cut every element of every gradient to −clip_value … clip_value."""
    for g in _gradients(parameters):
        np.clip(g.array, -float(clip_value), float(clip_value), out=g.array)
        g.version[0] += 1
