"""What users may write for an axis, a shape, an index or a mask, checked and turned into what ops take."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any

import numpy as np

from microtensor import dtypes, engine
from microtensor.random import Generator, default_generator

__all__ = ["CPU", "Dim", "as_axes", "as_axis", "as_axis_of", "as_choice", "as_fill", "as_index"]
__all__ += ["as_integer", "as_lengths", "as_number", "as_operand", "as_rng", "as_shape"]
__all__ += ["as_sizes", "as_spread", "as_tensors", "check_device", "check_truth", "device"]
__all__ += ["for_arrays", "is_int", "refuse_empty", "refuse_integers", "refuse_two_dtypes"]

Dim = int | Sequence[int] | None
_MOST = 2**63 - 1
_TRUTHS = {"bool": bool, "builtins.bool": bool, "bool | None": (bool, NoneType)}  # annotations of flags
# what NumPy calls otherwise than we do
_NUMPYS = {"subtract": "sub", "multiply": "mul", "divide": "div", "power": "pow", "absolute": "abs"}
_NUMPYS |= {"equal": "eq", "negative": "neg", "invert": "bitwise_not", "rint": "round"}


def as_axis(who: str, tensor: Any, dim: Any, new: int = 0) -> int:
    """One axis, negative ones counted from the end; a 0-d tensor takes 0 and −1, as in PyTorch.

    new: how many axes the result has more, among which dim is counted.
    """
    if type(dim) is not int and not is_int(dim):
        raise TypeError(f"{who}: dim is {dim!r}; give an axis of {tensor.shape} as an integer, such as -1")
    n = tensor.array.ndim + new or 1
    if not -n <= dim < n:
        raise IndexError(f"{who}: dim {dim} is out of range for shape {tensor.shape}; use {-n} … {n - 1}")
    return int(dim) % n


def check_truth(who: str, name: str, value: Any, kinds: Any = bool) -> None:
    """True or False, and nothing that would only count as one of them, such as "no"."""
    if not isinstance(value, kinds):
        raise TypeError(f"{who}: {name} is {value!r}; choose True or False")


def flags_of(function: Any) -> tuple[int, list[tuple[int, str, Any]], tuple[str, ...]]:
    """Which arguments are True or False, by place and name, and of what kinds they are; the first place.

    And the name of what is given one by one, if any is.
    """
    # what is returned is annotated last, in a place of no argument
    flags = [(i, n, _TRUTHS[k]) for i, (n, k) in enumerate(function.__annotations__.items()) if k in _TRUTHS]
    code = function.__code__
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount :][: code.co_flags >> 2 & 1]
    return (flags[0][0] if flags else _MOST), flags, rest


def check_given(who: str, flags: Any, args: Sequence[Any], given: Mapping[str, Any]) -> None:
    """The flags are what they are said to be; there is no `out`, which np.sum(x) gives."""
    if "out" in given:
        no_out = TypeError(f"{who}: there is no out; take what is returned, or write it by x.copy_(…)")
        numpys = given["out"] is None and hasattr(np, who) and isinstance([*args, None][0], engine.Tensor)
        raise for_arrays(who, args[0]) if numpys else no_out
    for i, flag, kinds in flags:
        check_truth(who, flag, args[i] if i < len(args) else given.get(flag, True), kinds)


def as_axis_of(who: str, x: Any, dim: int) -> int:
    """as_axis of what must have one: a 0-d tensor is refused."""
    if not x.ndim:
        raise IndexError(f"{who}: a 0-d tensor has no axis {dim}; make it one with reshape(1)")
    return as_axis(who, x, dim)


def as_axes(who: str, tensor: Any, dim: Dim) -> tuple[int, ...] | None:
    """Several axes as a tuple; None (all of them) stays None."""
    dims = dim if isinstance(dim, (tuple, list)) else (dim,)
    axes = None if dim is None else tuple([as_axis(who, tensor, d) for d in dims])
    if axes and len(set(axes)) != len(axes):
        raise ValueError(f"{who}: dim {dim} names an axis twice; name each once")
    return axes if axes and tensor.array.ndim else None


def as_shape(who: str, x: Any, sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """as_sizes of the elements of x in another arrangement, where one length may be −1: the rest."""
    shape, size = as_sizes(who, sizes), x.array.size
    if math.prod(shape) == size and min(shape, default=0) >= 0:
        return shape
    known = math.prod([n for n in shape if n != -1])
    if shape.count(-1) > 1 or min(shape, default=0) < -1:
        raise ValueError(f"{who}: the shape {shape}; give lengths of 0 or more, -1 for one of them at most")
    if (known == 0 or size % known) if -1 in shape else known != size:
        raise ValueError(f"{who}: shape {x.shape} has {size} elements, which do not fill {shape}; "
                         f"make the product of its lengths that number")  # fmt: skip
    return shape


def as_sizes(who: str, sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """reshape(2, 3) and reshape((2, 3)) mean the same."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    elif not sizes:
        raise TypeError(f"{who}: no shape is given; give integers, or () for a 0-d tensor")
    if {*map(type, sizes)} <= {int}:
        return sizes
    if not all(map(is_int, sizes)):
        raise TypeError(f"{who}: a shape is made of integers, not {sizes}; divide with //")
    return tuple([int(n) for n in sizes])


def as_lengths(who: str, sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """as_sizes of something new, where −1 means nothing."""
    lengths = as_sizes(who, sizes)
    if min(lengths, default=0) < 0:
        raise ValueError(f"{who}: the shape {lengths} has a negative length; make each 0 or more")
    if max(math.prod(lengths), *lengths, 0) > _MOST >> 3:  # of 8 bytes each
        raise ValueError(f"{who}: the shape {lengths} fits into no memory; make it smaller")
    return lengths


def as_integer(who: str, name: str, value: Any, least: int = -_MOST) -> int:
    """A whole number, also from a 0-d tensor, and not below the least."""
    if not is_int(value):
        raise TypeError(f"{who}: {name} is {value!r}; make it an integer")
    if not -_MOST <= int(value) <= _MOST:
        raise ValueError(f"{who}: {name} is {value!r}; int64 does not go that far")
    if value < least:
        raise ValueError(f"{who}: {name} is {int(value)}; make it {least} or more")
    return int(value)


def as_tensors(who: str, **named: Any) -> None:
    """Refuses, by name, what is no tensor."""
    for name, value in named.items():
        if not isinstance(value, engine.Tensor):
            raise TypeError(f"{who}: {name} is a {type(value).__name__}; make it a tensor with mt.tensor(…)")


def is_int(value: Any) -> bool:
    """An integer, NumPy's and 0-d integer tensors included, but no boolean."""
    if type(value) is int:
        return True
    if isinstance(value, engine.Tensor):
        return value.ndim == 0 and value.dtype.kind in "iu"
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def as_index(index: Any, shape: tuple[int, ...]) -> Any:
    """Tensors and lists inside an index of a shape become arrays: ops see NumPy's index language only."""
    return tuple([_part(p, shape) for p in index]) if isinstance(index, tuple) else _part(index, shape)


def _part(part: Any, shape: tuple[int, ...]) -> Any:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if is_int(part):
        return int(part)
    part = part.array if isinstance(part, engine.Tensor) else part
    if isinstance(part, (list, tuple, range, bool)):
        with suppress(TypeError):  # [] holds integers
            part = dtypes.as_array(part, None if part or part is False else dtypes.int64, "index")
    if not isinstance(part, np.ndarray) or part.dtype.kind not in "iub":
        kind = f"{part.dtype}{part.shape}" if isinstance(part, np.ndarray) else f"{part!r:.60}"
        raise IndexError(f"index: {kind} cannot index a tensor of shape {shape}; use booleans (mask.bool() "
                         f"of zeros and ones), integers (x.long() of positions, lists of equal length) or "
                         f"slices")  # fmt: skip
    return part


def as_rng(who: str, generator: Generator | None) -> np.random.Generator:
    """What draws: the given generator, or the one of `manual_seed`."""
    if not isinstance(generator, Generator | None):
        raise TypeError(f"{who}: generator is {generator!r}; give an mt.Generator()")
    return (generator or default_generator).numpy


def as_spread(who: str, std: Any) -> Any:
    """A standard deviation, a number or an array: from 0 on."""
    wrong = np.extract(~(np.asarray(std) >= 0), std)
    if wrong.size:
        raise ValueError(f"{who}: std is {wrong[0]}; make it 0 or more")
    return std


def as_number(who: str, value: Any) -> Any:
    """A Python number, from a number or a 0-d tensor."""
    if isinstance(value, (engine.Tensor, np.ndarray, np.generic)):
        if value.shape != ():
            raise ValueError(f"{who}: value has shape {value.shape}; give one number")
        return value.item()
    if not isinstance(value, (int, float)):
        raise TypeError(f"{who}: {value!r} is no number; give an integer, a float or a boolean")
    if isinstance(value, int) and abs(value) >> 1023:
        raise ValueError(f"{who}: {value!r:.60} is beyond every float; give a smaller number, or math.inf")
    return value


def refuse_empty(who: str, tensor: Any, dim: Any) -> None:
    """A maximum of nothing does not exist."""
    axes = as_axes(who, tensor, dim)
    lengths = tensor.shape if axes is None else [tensor.shape[a] for a in axes]
    if 0 in lengths:
        raise IndexError(f"{who}: shape {tensor.shape} has no elements along dim {dim}; give it one at least")


def refuse_integers(who: str, x: Any) -> None:
    """A mean of integers is none."""
    if not dtypes.floating(x.dtype):
        raise RuntimeError(f"{who}: a {who} of {x.dtype} would be cut to {x.dtype}; use .float().{who}()")


def refuse_two_dtypes(who: str, a: Any, b: Any) -> None:
    """Where neither is converted unasked."""
    if a.dtype != b.dtype:
        raise TypeError(f"{who}: dtypes {a.dtype} and {b.dtype} differ; convert one with .to(dtype)")


def as_operand(value: Any, dtype: dtypes.DType, who: str = "tensor") -> Any:
    """A tensor as it is, an array in its own dtype; numbers and lists in dtype, which must hold them."""
    if isinstance(value, engine.Tensor):
        return value
    given = None if isinstance(value, np.ndarray) else dtype
    return engine.make(dtypes.as_array(value, given, who), None, None)


def as_fill(who: str, value: Any, dtype: dtypes.DType) -> Any:
    """What fills places: one number, as a 0-d tensor of dtype; a gradient of it must have a way back."""
    if not isinstance(value, engine.Tensor) or value.ndim or not value.requires_grad:
        return as_operand(as_number(who, value), dtype, who)
    if not dtypes.floating(dtype):
        raise RuntimeError(f"{who}: {dtype} carries no gradient to value; use value.item()")
    return value.to(dtype)


def for_arrays(name: str, x: Any, more: str = "") -> TypeError:
    """The error of a function of NumPy's kind (np.exp) that is given the tensor x, and more."""
    theirs = f"np.{name}" if hasattr(np, name.partition(".")[0]) else name
    ours = _NUMPYS.get(name, name.replace("arc", "a"))
    own = f"x.{ours}({more[2:]}) or microtensor.{ours}(x{more})"
    do = f"use {own}" if hasattr(engine.Tensor, ours) else "compute by functions of tensors"
    return TypeError(f"{theirs}: takes arrays, no tensor x of shape {x.shape}, as NumPy records nothing; {do}"
                     f", or where no gradient is wanted {theirs}(x.detach().numpy(){more})")  # fmt: skip


def as_choice(who: str, value: Any) -> Any:
    """What `where` may choose: a tensor, or one number."""
    return value if isinstance(value, engine.Tensor) else as_number(who, value)


class device(str):
    """Where a tensor lives: "cpu", the only place there is. Equal to that string.

    Raises: RuntimeError for another place.
    Source: torch.device.

    >>> device("cpu").type
    'cpu'
    """

    __slots__ = ()
    type = "cpu"

    def __new__(cls, type: Any = "cpu", index: int | None = None) -> device:
        check_device("device", f"{type}:{index}" if index else type)
        return str.__new__(cls, "cpu")

    def __repr__(self) -> str:
        return "device(type='cpu')"


def check_device(who: str, device: Any) -> None:
    """Everything lives on the CPU; another device is refused by name."""
    if device is not None and str(device) not in ("cpu", "cpu:0"):
        raise RuntimeError(f'{who}: there is no device {str(device)!r} here; microtensor computes on "cpu"')


CPU = device("cpu")
