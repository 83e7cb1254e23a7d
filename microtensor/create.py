"""Functions that make tensors, and the random ones, with PyTorch's names, argument order and defaults."""

from __future__ import annotations

from typing import Any

import numpy as np

from microtensor import dtypes, engine
from microtensor.methods.arguments import as_sizes
from microtensor.random import Generator, default_generator
from microtensor.tensor import Tensor, as_tensor, check_device

__all__ = [
    "arange",
    "bernoulli",
    "empty",
    "eye",
    "from_numpy",
    "full",
    "full_like",
    "get_rng_state",
    "linspace",
    "manual_seed",
    "multinomial",
    "normal",
    "ones",
    "ones_like",
    "rand",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "set_rng_state",
    "tensor",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]


def _leaf(who: str, array: Any, dtype: Any, requires_grad: bool, device: Any) -> Tensor:
    check_device(who, device)
    array = np.asarray(array)
    dtype = dtypes.checked(who, array.dtype if dtype is None else dtype)
    t: Tensor = engine.make(array.astype(dtype, copy=False), None, None)
    return t.requires_grad_() if requires_grad else t


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of data: a number, nested lists, an array or a tensor.

    Python floats become the default dtype (float32), integers int64, booleans bool; arrays keep their dtype.
    Raises: TypeError for data that is no rectangle of numbers; RuntimeError for a gradient of integers.
    """
    if isinstance(data, Tensor):
        data = data.array
    try:
        array = dtypes.as_array(data)
    except ValueError as error:
        raise TypeError(
            f"tensor: the data is no rectangle of numbers ({error}); make all rows equally long"
        ) from error
    return _leaf("tensor", np.array(array, order="C"), dtype, requires_grad, device)


def from_numpy(array: Any) -> Tensor:
    """A tensor that shares the array's memory: a change of one is a change of the other."""
    if not isinstance(array, np.ndarray):
        raise TypeError(
            f"from_numpy: takes an array, not {type(array).__name__}; use mt.tensor to copy other data"
        )
    return as_tensor(array)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of a shape."""
    return _leaf("zeros", np.zeros(as_sizes(size), dtype or dtypes.default), None, requires_grad, device)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of a shape."""
    return _leaf("ones", np.ones(as_sizes(size), dtype or dtypes.default), None, requires_grad, device)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of a shape whose values are whatever was in memory."""
    return _leaf("empty", np.empty(as_sizes(size), dtype or dtypes.default), None, requires_grad, device)


def full(
    size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """One value everywhere; its kind decides the dtype if none is given."""
    array = np.full(as_sizes((size,)), fill_value, dtype or dtypes.of_scalar(fill_value))
    return _leaf("full", array, None, requires_grad, device)


def zeros_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of another tensor's shape and dtype."""
    return zeros(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def ones_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of another tensor's shape and dtype."""
    return ones(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """One value everywhere, in another tensor's shape and dtype."""
    return full(input.shape, fill_value, dtype=dtype or input.dtype, requires_grad=requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal of an n × m matrix (n × n without m)."""
    return _leaf("eye", np.eye(n, m, dtype=dtype or dtypes.default), None, requires_grad, None)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, … below end (0 … below start if end is not given); int64 for integers."""
    start, end = (0, start) if end is None else (start, end)
    if step == 0:
        raise ValueError("arange: step is 0; give a step that leads from start to end")
    whole = all(isinstance(v, int | np.integer) for v in (start, end, step))
    array = np.arange(start, end, step, dtype=dtype or (dtypes.int64 if whole else dtypes.default))
    return _leaf("arange", array, None, requires_grad, device)


def linspace(
    start: float, end: float, steps: int, *, dtype: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` numbers from start to end, both included."""
    return _leaf("linspace", np.linspace(start, end, steps), dtype or dtypes.default, requires_grad, None)


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two axes, zeros above the diagonal."""
    return _triangle(input, diagonal, upper=False)


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two axes, zeros below the diagonal."""
    return _triangle(input, diagonal, upper=True)


def _triangle(input: Tensor, diagonal: int, upper: bool) -> Tensor:
    rows, columns = input.shape[-2:]
    keep = np.tri(rows, columns, diagonal - upper, dtype=bool) != upper
    if input.dtype == dtypes.boolean:
        return engine.make(input.array & keep, None, None)  # type: ignore[no-any-return]
    return input.where(engine.make(keep, None, None), 0)


# --- random -------------------------------------------------------------------------------------------------


def _rng(generator: Generator | None) -> np.random.Generator:
    return (generator or default_generator).numpy


def manual_seed(seed: int) -> Generator:
    """Seed the generator that everything random uses unless it is given another."""
    return default_generator.manual_seed(seed)


def get_rng_state() -> Tensor:
    """The default generator's state: a uint8 tensor of 48 bytes."""
    return engine.make(default_generator.get_state(), None, None)  # type: ignore[no-any-return]


def set_rng_state(state: Tensor) -> None:
    """Put the default generator into a state that get_rng_state() gave."""
    default_generator.set_state(state.array)


def rand(
    *size: Any, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uniform on [0, 1)."""
    array = _rng(generator).random(as_sizes(size), dtype or dtypes.default)
    return _leaf("rand", array, None, requires_grad, device)


def randn(
    *size: Any, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Normal with mean 0 and variance 1."""
    array = _rng(generator).standard_normal(as_sizes(size), dtype or dtypes.default)
    return _leaf("randn", array, None, requires_grad, device)


def randn_like(input: Tensor, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Normal with mean 0 and variance 1, in another tensor's shape and dtype."""
    return randn(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)


def normal(mean: float, std: float, size: Any, *, generator: Any = None) -> Tensor:
    """Normal with a mean and a standard deviation."""
    return randn(size, generator=generator) * std + mean


def randint(
    low: int, high: Any = None, size: Any = None, *, generator: Any = None, dtype: Any = None
) -> Tensor:
    """Integers from low (0 if left out) to high − 1: randint(high, size) or randint(low, high, size)."""
    if size is None:
        low, high, size = 0, low, high
    if high <= low:
        raise ValueError(f"randint: no integer is at least {low} and below {high}; make high larger than low")
    return _leaf("randint", _rng(generator).integers(low, high, as_sizes((size,))), dtype, False, None)


def randperm(n: int, *, generator: Any = None) -> Tensor:
    """0 … n − 1 in random order."""
    return _leaf("randperm", _rng(generator).permutation(n), None, False, None)


def bernoulli(input: Tensor, *, generator: Any = None) -> Tensor:
    """1 with the probability that stands in input, else 0; input's dtype."""
    draws = _rng(generator).random(input.shape)
    return _leaf("bernoulli", draws < input.array, input.dtype, False, None)


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Tensor:
    """Indices drawn by the weights in each row of input ((C,) or (N, C)): (num_samples,) or (N, num_samples).

    Raises: ValueError for weights that are negative, not finite or all zero, and where a row has fewer
    weights above zero than are drawn without replacement.
    """
    weights = np.atleast_2d(input.array).astype(np.float64)
    if not np.isfinite(weights).all() or (weights < 0).any() or (weights.sum(-1) == 0).any():
        raise ValueError(
            "multinomial: weights must be finite, at least 0 and not all 0 in a row; check the softmax"
        )
    if not replacement and ((weights > 0).sum(-1) < num_samples).any():
        raise ValueError(
            f"multinomial: a row has fewer than {num_samples} weights above 0; draw with replacement=True"
        )
    rng = _rng(generator)
    if replacement:
        ends = np.cumsum(weights, -1)
        draws = rng.random((len(weights), num_samples)) * ends[:, -1:]
        ids = np.stack([np.searchsorted(e, d, side="right") for e, d in zip(ends, draws, strict=True)])
    else:  # the exponential race: the first num_samples of Exp(weight) clocks to ring
        with np.errstate(divide="ignore"):
            rings = rng.standard_exponential(weights.shape) / weights
        ids = np.argsort(rings, axis=-1, kind="stable")[:, :num_samples]
    return _leaf("multinomial", ids.reshape(*input.shape[:-1], num_samples), dtypes.int64, False, None)
