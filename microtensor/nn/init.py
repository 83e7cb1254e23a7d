"""Initial values, written into a tensor in place and never recorded. Each returns the tensor.

fan_in and fan_out are the weight's second and first axis: a Linear weight is (out, in), as in PyTorch.
"""

from __future__ import annotations

import math

import numpy as np

from microtensor import dtypes
from microtensor.engine import Array
from microtensor.methods.arguments import as_fill, as_rng, as_spread
from microtensor.methods.calling import by_its_name
from microtensor.place import mark_changed
from microtensor.random import Generator
from microtensor.tensor import Tensor

__all__ = ["calculate_gain", "constant_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_"]
__all__ += ["trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_"]


def _write(tensor: Tensor, values: Array) -> Tensor:
    if not tensor.array.flags.writeable:
        raise RuntimeError(f"init: a tensor of shape {tensor.shape} shares read-only memory; give a clone()")
    tensor.array[...] = dtypes.cast(values, tensor.dtype)
    mark_changed("nn.init", tensor.version)
    return tensor


def _rng(who: str, x: Tensor, generator: Generator | None) -> np.random.Generator:
    if x.dtype.kind != "f":
        raise TypeError(f"{who}: a {x.dtype} tensor cannot hold the draws; make it floating with .float()")
    return as_rng(who, generator)


@by_its_name
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """x ~ U(a, b)

    Shapes: (...) → (...)
    Raises: ValueError unless a ≤ b, both finite; TypeError for integers; RuntimeError for read-only memory.
    Source: PyTorch's init.uniform_.
    """
    if not (a <= b and math.isfinite(b - a)):
        raise ValueError(f"uniform_: from {a} to {b}; give two finite numbers, the lower one first")
    return _write(tensor, _rng("uniform_", tensor, generator).uniform(a, b, tensor.shape))


@by_its_name
def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """x ~ N(mean, std²)

    Shapes: (...) → (...)
    Raises: ValueError for a std below 0; TypeError for integers; RuntimeError for read-only memory.
    Source: PyTorch's init.normal_.
    """
    std = as_spread("normal_", std)
    return _write(tensor, _rng("normal_", tensor, generator).normal(mean, std, tensor.shape))


@by_its_name
def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """x ~ N(mean, std²), drawn again where it falls outside [a, b]

    Shapes: (...) → (...)
    Raises: ValueError unless std > 0 and a < b; TypeError for integers; RuntimeError for read-only memory.
    Source: PyTorch's init.trunc_normal_. Differs: the distribution is the same, the method another.
    """
    if not (0 < std < math.inf and a < b and math.isfinite(mean)):
        raise ValueError(f"trunc_normal_: std is {std}, mean {mean}, a {a}, b {b}; make std more than 0 and "
                         f"a less than b")  # fmt: skip
    rng = _rng("trunc_normal_", tensor, generator)
    if a <= mean <= b and b - a >= std:  # every third draw falls inside, at least
        values = rng.normal(mean, std, tensor.shape)
        while (outside := (values < a) | (values > b)).any():
            values[outside] = rng.normal(mean, std, int(outside.sum()))
        return _write(tensor, values)
    return _write(tensor, _in_tail(rng, mean, std, a, b, tensor.shape))


def _in_tail(
    rng: np.random.Generator, mean: float, std: float, a: float, b: float, shape: tuple[int, ...]
) -> Array:
    """Uniform draws, kept in proportion to the density: where hardly any normal draw would fall."""
    near = min(max(mean, a), b)  # the density is greatest here, and e⁻⁴⁰ of it nine std on
    low, high = max(a, near - 9 * std), min(b, near + 9 * std)
    top = ((near - mean) / std) ** 2
    values = np.full(shape, np.nan)
    while (missing := np.isnan(values)).any():
        drawn = rng.uniform(low, high, int(missing.sum()))
        kept = rng.random(len(drawn)) < np.exp((top - ((drawn - mean) / std) ** 2) / 2)
        values[missing] = np.where(kept, drawn, np.nan)
    return values


@by_its_name
def constant_(tensor: Tensor, val: float) -> Tensor:
    """x = val

    Shapes: (...) → (...)
    Raises: RuntimeError for read-only memory; ValueError for a number that an integer dtype cannot hold.
    Source: PyTorch's init.constant_.
    """
    return _write(tensor, as_fill("constant_", val, tensor.dtype).array)


@by_its_name
def zeros_(tensor: Tensor) -> Tensor:
    """x = 0

    Shapes: (...) → (...)
    Raises: RuntimeError for read-only memory.
    Source: PyTorch's init.zeros_.
    """
    return constant_(tensor, 0.0)


@by_its_name
def ones_(tensor: Tensor) -> Tensor:
    """x = 1

    Shapes: (...) → (...)
    Raises: RuntimeError for read-only memory.
    Source: PyTorch's init.ones_.
    """
    return constant_(tensor, 1.0)


def _fans(who: str, tensor: Tensor) -> tuple[int, int]:
    if tensor.ndim < 2:
        raise ValueError(f"{who}: a tensor of shape {tensor.shape} has no fan in, out; give 2 axes or more")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


@by_its_name
def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """x ~ U(−a, a), a = gain · √(6 / (fan_in + fan_out)).

    Shapes: (out, in, ...) → the same
    Raises: ValueError for fewer than two axes; TypeError for integers.
    Source: Glorot & Bengio 2010, eq. 16.
    """
    bound = gain * math.sqrt(6.0 / sum(_fans("xavier_uniform_", tensor)))
    return uniform_(tensor, -bound, bound, generator)


@by_its_name
def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """x ~ N(0, σ²), σ = gain · √(2 / (fan_in + fan_out)).

    Shapes: (out, in, ...) → the same
    Raises: ValueError for fewer than two axes; TypeError for integers.
    Source: Glorot & Bengio 2010, eq. 12.
    """
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans("xavier_normal_", tensor))), generator)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """What a weight's standard deviation is multiplied by, so that the signal keeps its size.

    1 for linear and sigmoid, 5/3 for tanh, √2 for relu, √(2/(1 + param²)) for leaky_relu (param: its slope,
    0.01 if not given), 3/4 for selu.

    Raises: ValueError for another nonlinearity.
    Source: PyTorch's init.calculate_gain.
    """
    leaky = math.sqrt(2.0 / (1.0 + (0.01 if param is None else param) ** 2))
    gains = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "leaky_relu": leaky,
             "selu": 0.75}  # fmt: skip
    if not isinstance(nonlinearity, str) or nonlinearity not in gains:
        raise ValueError(f"calculate_gain: nonlinearity is {nonlinearity!r}; choose among {sorted(gains)}")
    return gains[nonlinearity]


def _kaiming_std(who: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f'{who}: mode is {mode!r}; choose "fan_in" or "fan_out"')
    fan_in, fan_out = _fans(who, tensor)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan_in if mode == "fan_in" else fan_out)


@by_its_name
def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """x ~ U(−b, b), b = gain · √(3 / fan), gain² = 2/(1 + a²).

    Shapes: (out, in, ...) → the same
    Raises: ValueError for fewer than two axes or another mode or nonlinearity; TypeError for integers.
    Source: He et al. 2015, §2.2.
    """
    bound = math.sqrt(3.0) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


@by_its_name
def kaiming_normal_(
    tensor: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """x ~ N(0, σ²), σ = gain / √fan, gain² = 2/(1 + a²).

    Shapes: (out, in, ...) → the same
    Raises: ValueError for fewer than two axes or another mode or nonlinearity; TypeError for integers.
    Source: He et al. 2015, §2.2.
    """
    return normal_(tensor, 0.0, _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity), generator)
