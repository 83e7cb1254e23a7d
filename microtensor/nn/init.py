"""Initial values, written into a tensor in place and never recorded. Each returns the tensor.

fan_in and fan_out are the weight's second and first axis: a Linear weight is (out, in), as in PyTorch.
"""

from __future__ import annotations

import math

import numpy as np

from microtensor import dtypes
from microtensor.engine import Array
from microtensor.methods.arguments import as_rng
from microtensor.place import mark_changed
from microtensor.random import Generator
from microtensor.tensor import Tensor

__all__ = [
    "constant_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]


def _write(tensor: Tensor, values: Array) -> Tensor:
    if not tensor.array.flags.writeable:
        raise RuntimeError(
            f"init: this tensor of shape {tensor.shape} shares read-only memory; give a clone()"
        )
    tensor.array[...] = dtypes.cast(values, tensor.dtype)
    mark_changed(tensor.version)
    return tensor


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """x ~ U(a, b)"""
    return _write(tensor, as_rng(generator).uniform(a, b, tensor.shape))


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """x ~ N(mean, std²)"""
    return _write(tensor, as_rng(generator).normal(mean, std, tensor.shape))


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """x ~ N(mean, std²), drawn again where it falls outside [a, b]"""
    rng = as_rng(generator)
    values = rng.normal(mean, std, tensor.shape)
    while (outside := (values < a) | (values > b)).any():
        values[outside] = rng.normal(mean, std, int(outside.sum()))
    return _write(tensor, values)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """x = val"""
    return _write(tensor, np.asarray(val))


def zeros_(tensor: Tensor) -> Tensor:
    """x = 0"""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """x = 1"""
    return constant_(tensor, 1.0)


def _fans(who: str, tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ValueError(
            f"{who}: a tensor of shape {tensor.shape} has no fan in and out; give at least 2 axes"
        )
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """x ~ U(−a, a), a = gain · √(6 / (fan_in + fan_out)). Source: Glorot & Bengio 2010, eq. 16."""
    bound = gain * math.sqrt(6.0 / sum(_fans("xavier_uniform_", tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """x ~ N(0, σ²), σ = gain · √(2 / (fan_in + fan_out)). Source: Glorot & Bengio 2010, eq. 12."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans("xavier_normal_", tensor))), generator)


def _kaiming_std(who: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    gains = {"leaky_relu": math.sqrt(2.0 / (1.0 + a * a)), "relu": math.sqrt(2.0), "linear": 1.0}
    if nonlinearity not in gains or mode not in ("fan_in", "fan_out"):
        raise ValueError(f"{who}: nonlinearity {nonlinearity!r}, mode {mode!r}; choose among {sorted(gains)} "
                         f"and fan_in, fan_out")  # fmt: skip
    fan_in, fan_out = _fans(who, tensor)
    return gains[nonlinearity] / math.sqrt(fan_in if mode == "fan_in" else fan_out)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """x ~ U(−b, b), b = gain · √(3 / fan), gain² = 2/(1 + a²). Source: He et al. 2015, §2.2."""
    bound = math.sqrt(3.0) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """x ~ N(0, σ²), σ = gain / √fan, gain² = 2/(1 + a²). Source: He et al. 2015, §2.2."""
    return normal_(tensor, 0.0, _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity), generator)
