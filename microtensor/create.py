"""Functions that make tensors, and the random ones, with PyTorch's names, argument order and defaults."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from microtensor import dtypes, engine
from microtensor.methods.arguments import (
    as_integer,
    as_lengths,
    as_number,
    as_rng,
    as_spread,
    as_tensors,
    check_device,
    check_truth,
    is_int,
)
from microtensor.methods.calling import by_its_name
from microtensor.misfit import broadcast
from microtensor.place import noted
from microtensor.random import Generator, default_generator
from microtensor.tensor import Tensor, as_tensor

__all__ = ["arange", "empty", "empty_like", "eye", "from_numpy", "full", "full_like", "get_rng_state"]
__all__ += ["linspace", "manual_seed", "normal", "ones", "ones_like", "rand", "rand_like", "randint"]
__all__ += ["randn", "randn_like", "randperm", "set_rng_state", "tensor", "zeros", "zeros_like"]


def _dtype(who: str, dtype: Any) -> dtypes.DType:
    return dtypes.default if dtype is None else dtypes.checked(who, dtype)


def _leaf(who: str, array: Any, dtype: Any, requires_grad: bool, device: Any) -> Tensor:
    check_device(who, device)
    check_truth(who, "requires_grad", requires_grad)
    array = np.asarray(array)
    dtype = dtypes.checked(who, array.dtype if dtype is None else dtype)
    if dtype.kind in "iu" and dtype != array.dtype and array.size:
        dtypes.refuse_cut(who, [array.min().item(), array.max().item()], dtype)
    t: Tensor = noted(engine.make(dtypes.cast(array, dtype), None, None), who)
    if requires_grad and not dtypes.floating(dtype):
        raise RuntimeError(f"{who}: {dtype} cannot have a gradient; choose a floating dtype")
    return t.requires_grad_() if requires_grad else t


def tensor(data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of data: a number, nested lists, an array or a tensor.

    Python floats become the default dtype (float32), integers int64, booleans bool; arrays keep their dtype.

    Shapes: that of data
    Raises: TypeError for data that is no rectangle of numbers, and a dtype that is not here; ValueError for a
    number that its integer dtype cannot hold; RuntimeError for a gradient of integers, and another device.
    Source: torch.tensor.
    """
    data = data.array if isinstance(data, Tensor) else data
    array = dtypes.as_array(data, None if dtype is None else dtypes.checked("tensor", dtype))
    return _leaf("tensor", np.array(array, order="C"), dtype, requires_grad, device)


def from_numpy(array: Any) -> Tensor:
    """A tensor that shares the array's memory: a change of one is a change of the other.

    What NumPy changes there is not counted: a backward() that needs the numbers of before is silently wrong.
    For a buffer that is filled again, as in a loader, use `tensor`, which copies.

    Shapes: that of the array
    Raises: TypeError for what is no array, and memory of a dtype that is not here.
    Source: torch.from_numpy.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: {type(array).__name__} is no array; use mt.tensor to copy other data")
    if array.dtype not in dtypes.KNOWN:
        raise TypeError(f"from_numpy: memory of {array.dtype.str} is not shared; use mt.tensor, which copies")
    return as_tensor(array)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros of a shape.

    Shapes: size, as integers or one tuple
    Raises: ValueError for a negative length; TypeError for lengths that are no integers, none at all, and a
    dtype that is not here; RuntimeError for a gradient of integers, and another device.
    Source: torch.zeros.
    """
    array = np.zeros(as_lengths("zeros", size), _dtype("zeros", dtype))
    return _leaf("zeros", array, None, requires_grad, device)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones of a shape.

    Shapes: size, as integers or one tuple
    Raises: as `zeros`.
    Source: torch.ones.
    """
    return _full("ones", size, 1, _dtype("ones", dtype), device, requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of a shape whose values are whatever was in memory.

    Shapes: size, as integers or one tuple
    Raises: as `zeros`.
    Source: torch.empty.
    """
    array = np.empty(as_lengths("empty", size), _dtype("empty", dtype))
    return _leaf("empty", array, None, requires_grad, device)


def full(
    size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """One value everywhere; its kind decides the dtype if none is given.

    Shapes: size
    Raises: as `zeros`; TypeError for a value that is no number; ValueError for one of several elements, and
    one that the dtype cannot hold.
    Source: torch.full.
    """
    return _full("full", (size,), fill_value, dtype, device, requires_grad)


def _full(who: str, size: Any, value: Any, dtype: Any, device: Any, requires_grad: bool = False) -> Tensor:
    value = as_number(who, value)
    dtype = dtypes.of_scalar(value) if dtype is None else dtypes.checked(who, dtype)
    filling = dtypes.as_array(value, dtype, who)
    return _leaf(who, np.full(as_lengths(who, size), filling), None, requires_grad, device)


def full_like(
    input: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """One value everywhere, in another tensor's shape, and its dtype unless one is given.

    Shapes: that of input
    Raises: as `full`; TypeError for what is no tensor.
    Source: torch.full_like.
    """
    as_tensors("full_like", input=input)
    dtype = input.dtype if dtype is None else dtype
    return _full("full_like", (input.shape,), fill_value, dtype, device, requires_grad)


def _like(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(
        input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        """{0} in another tensor's shape, and its dtype unless one is given.

        Shapes: that of input
        Raises: TypeError for what is no tensor, and a dtype that is not here; RuntimeError for a gradient of
        integers, and another device.
        Source: torch.{0}_like.
        """
        as_tensors(f"{make.__name__}_like", input=input)
        dtype = input.dtype if dtype is None else dtype
        return make(input.shape, dtype=dtype, device=device, requires_grad=requires_grad)

    function.__doc__ = str(function.__doc__).format(make.__name__)
    function.__name__ = function.__qualname__ = f"{make.__name__}_like"
    return by_its_name(function)


def eye(
    n: int, m: int | None = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Ones on the diagonal of an n × m matrix (n × n without m).

    Shapes: (n, m)
    Raises: as `zeros`.
    Source: torch.eye.
    """
    rows, columns = as_lengths("eye", (n, n if m is None else m))
    return _leaf("eye", np.eye(rows, columns, dtype=_dtype("eye", dtype)), None, requires_grad, device)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, … below end (0 … below start if end is not given); int64 for integers.

    Shapes: (⌈(end − start) / step⌉,)
    Raises: ValueError if step is 0 or leads away from end, or is a fraction for an integer dtype, and for
    integers of more than 64 bits; TypeError for what is no number.
    Source: torch.arange.
    """
    start, end = (0, start) if end is None else (start, end)
    start, end, step = (as_number("arange", v) for v in (start, end, step))
    if not all(map(math.isfinite, (start, end, step))):
        raise ValueError(f"arange: from {start} to {end} by {step} does not end; give finite numbers")
    if dtype is not None and dtypes.checked("arange", dtype).kind in "iu":
        if step != int(step):
            raise ValueError(f"arange: step {step} is no {np.dtype(dtype)}; give whole ones or a float dtype")
        start, end, step = int(start), int(end), int(step)
    if step == 0 or not 0 <= (end - start) / step < 2**63:
        raise ValueError(f"arange: step {step} does not lead from {start} to {end}; choose another step")
    whole = all(isinstance(v, int) for v in (start, end, step))
    dtypes.refuse_cut("arange", (start, end, step) if whole else (), dtypes.int64)
    array = np.arange(start, end, step, dtype=None if whole else np.float64)  # float32 steps would add up
    return _leaf("arange", array, dtype or (None if whole else dtypes.default), requires_grad, device)


def linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """`steps` numbers from start to end, both included.

    Shapes: (steps,)
    Raises: ValueError for steps below 0; TypeError for what is no number.
    Source: torch.linspace.
    """
    n = as_integer("linspace", "steps", steps, 0)
    array = np.linspace(float(as_number("linspace", start)), float(as_number("linspace", end)), n)
    return _leaf("linspace", array, _dtype("linspace", dtype), requires_grad, device)


# --- random -------------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> Generator:
    """Seed the generator that everything random uses unless it is given another.

    Raises: TypeError for a seed that is no integer, ValueError for one of more than 64 bits.
    Source: torch.manual_seed. Differs: the numbers are others.
    """
    return default_generator.manual_seed(seed)


def get_rng_state() -> Tensor:
    """The default generator's state: a uint8 tensor of 48 bytes.

    Shapes: (48,)
    Source: torch.get_rng_state.
    """
    return engine.make(default_generator.get_state(), None, None)  # type: ignore[no-any-return]


@by_its_name
def set_rng_state(new_state: Tensor) -> None:
    """Put the default generator into a state that get_rng_state() gave.

    Shapes: (48,)
    Raises: TypeError for what is no tensor; ValueError for another shape or dtype.
    Source: torch.set_rng_state.
    """
    as_tensors("set_rng_state", new_state=new_state)
    default_generator.set_state(new_state.array)


def _float(who: str, dtype: Any) -> Any:
    found = _dtype(who, dtype)
    if not dtypes.floating(found):
        raise TypeError(f"{who}: draws fractions, which {found} cannot hold; use mt.float32 or float64")
    return found


def rand(
    *size: Any, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Uniform on [0, 1).

    Shapes: size, as integers or one tuple
    Raises: as `zeros`; TypeError for an integer dtype.
    Source: torch.rand.
    """
    array = as_rng("rand", generator).random(as_lengths("rand", size), _float("rand", dtype))
    return _leaf("rand", array, None, requires_grad, device)


def randn(
    *size: Any, generator: Any = None, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Normal with mean 0 and variance 1.

    Shapes: size, as integers or one tuple
    Raises: as `zeros`; TypeError for an integer dtype.
    Source: torch.randn.
    """
    array = as_rng("randn", generator).standard_normal(as_lengths("randn", size), _float("randn", dtype))
    return _leaf("randn", array, None, requires_grad, device)


zeros_like, ones_like, empty_like = _like(zeros), _like(ones), _like(empty)
rand_like, randn_like = _like(rand), _like(randn)


def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal with a mean and a standard deviation: numbers and a size, or a tensor, in whose dtype it is.

    Shapes: size; without it what mean and std broadcast to, at least one of which is a tensor
    Raises: as `rand`; ValueError for a std below 0, and shapes that do not broadcast; TypeError for what is
    no number, and without a size where there is no tensor.
    Source: torch.normal. Differs: records nothing, where PyTorch records a gradient of zeros.
    """
    if size is None:
        tensors = [v for v in (mean, std) if isinstance(v, Tensor)]
        if not tensors:
            raise TypeError("normal: no size is given; give one, or a tensor of means or deviations")
        dtype = tensors[0].dtype if dtype is None else dtype
        mean, std = (v.array if isinstance(v, Tensor) else as_number("normal", v) for v in (mean, std))
        size = broadcast("normal", np.shape(mean), np.shape(std))
    else:
        mean, std = as_number("normal", mean), as_number("normal", std)
    std, found = as_spread("normal", std), _float("normal", dtype)
    draws = as_rng("normal", generator).standard_normal(as_lengths("normal", (size,)), found)
    return _leaf("normal", draws * std + mean, found, requires_grad, device)


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """Integers from low (0 if left out) to high − 1: randint(high, size) or randint(low, high, size).

    Shapes: size
    Raises: ValueError where high is not above low, or the dtype cannot hold both; TypeError for what are no
    integers; for size as `zeros`.
    Source: torch.randint.
    """
    if not is_int(high) and (size is None or high is None):
        low, high, size = 0, low, high if size is None else size
    low, high = as_integer("randint", "low", low), as_integer("randint", "high", high)
    if high <= low:
        raise ValueError(f"randint: no integer is at least {low} and below {high}; make high larger than low")
    found = dtypes.int64 if dtype is None else dtypes.checked("randint", dtype)
    dtypes.refuse_cut("randint", [low, high - 1], found)
    if found == np.bool_ and not 0 <= low < high <= 2:
        raise ValueError(f"randint: bool cannot hold {low} … {high - 1}; choose a wider dtype")
    array = as_rng("randint", generator).integers(low, high, as_lengths("randint", (size,)))
    return _leaf("randint", array, found, False, device)


def randperm(n: int, *, generator: Any = None, dtype: Any = None, device: Any = None) -> Tensor:
    """0 … n − 1 in random order.

    Shapes: (n,), int64
    Raises: ValueError for n below 0; TypeError for one that is no integer, and a dtype that is not here;
    RuntimeError for another device.
    Source: torch.randperm.
    """
    (length,) = as_lengths("randperm", ([n],))
    return _leaf("randperm", as_rng("randperm", generator).permutation(length), dtype, False, device)
