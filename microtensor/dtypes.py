"""The dtypes, the default one, and PyTorch's promotion rules: stated once, used by every op."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from microtensor.nested import odd, opened

__all__ = ["as_array", "default", "floating", "get_default_dtype", "result_dtype", "set_default_dtype"]

DType = np.dtype[Any]
float32, float64 = np.dtype(np.float32), np.dtype(np.float64)
int64, int32, uint8, boolean = (np.dtype(t) for t in (np.int64, np.int32, np.uint8, np.bool_))

KNOWN = (float32, float64, int64, int32, uint8, boolean)
NARROW = "keep constants Python scalars (math.sqrt, not np.sqrt), which do not widen float32"

default = float32  # what Python floats become; set_default_dtype changes it
_RANK = {"b": 0, "u": 1, "i": 1, "f": 2}  # bool < integer < float: a lower kind never widens a higher one
MODULAR = "add", "sub", "mul"  # are right modulo 2ⁿ whatever a number is cut to, as in PyTorch
EXACT = "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "div"  # take it uncut


def get_default_dtype() -> DType:
    """The dtype that Python floats become: float32 unless `set_default_dtype` changed it.

    Source: torch.get_default_dtype.
    """
    return default


def set_default_dtype(dtype: DType) -> None:
    """Make Python floats float32 or float64 from now on.

    Raises: TypeError for another dtype.
    Source: torch.set_default_dtype.
    """
    global default
    if dtype is None or dtype not in (float32, float64):
        raise TypeError(f"set_default_dtype: {dtype} is not a floating dtype; use mt.float32 or mt.float64")
    default = np.dtype(dtype)


def checked(who: str, dtype: Any) -> DType:
    """A dtype we compute in; float16, complex and the like are refused by name."""
    try:
        found: Any = np.dtype(dtype)
    except TypeError:
        found = dtype
    if not isinstance(found, np.dtype) or found not in KNOWN:
        raise TypeError(f"{who}: there is no {found} here; choose one of {', '.join(map(str, KNOWN))}")
    return found


def floating(dtype: DType) -> bool:
    """Can a tensor of this dtype have a gradient?"""
    return dtype.kind == "f"


def fits(dtype: DType, other: DType) -> bool:
    """May a result be written over a tensor of another dtype? Bits may be lost, no floats become integers."""
    return _RANK[dtype.kind] <= _RANK[other.kind]


def of_scalar(value: Any) -> DType:
    """bool, int and float scalars become bool, int64 and the default dtype."""
    return {bool: boolean, int: int64}.get(type(value), default)


def result_dtype(args: Sequence[Any]) -> np.dtype[Any]:
    """The common dtype of tensors, arrays and Python scalars by PyTorch's rules.

    Tensors with dimensions decide; 0-d tensors, then Python scalars count only if they are of a higher kind
    (bool < integer < float). So float32 + int64 is float32, and float32 * 2.0 stays float32.
    """
    kinds = [(a.dtype, 0 if a.ndim else 1) if hasattr(a, "dtype") else (of_scalar(a), 2) for a in args]
    return _promoted(frozenset(kinds))


@cache
def _promoted(kinds: frozenset[tuple[DType, int]]) -> DType:
    """The common dtype of (dtype, level): there are few, and NumPy takes a microsecond for each."""
    top = max(_RANK[dtype.kind] for dtype, _ in kinds)
    first = min(level for dtype, level in kinds if _RANK[dtype.kind] == top)
    return np.result_type(*[d for d, level in kinds if _RANK[d.kind] == top and level == first])


def common(who: str, args: Sequence[Any]) -> np.dtype[Any]:
    """result_dtype of an op's operands; what is no operand is refused, and a number that it cannot hold."""
    for a in args:
        if not (hasattr(a, "dtype") and hasattr(a, "ndim")) and not isinstance(a, int | float):
            raise TypeError(f"{who}: {type(a).__name__} is no operand; give a tensor or a number")
    dtype = result_dtype(args)
    if dtype.kind in "iu" and who not in EXACT:
        refuse_cut(who, [a for a in args if type(a) is int], int64 if who in MODULAR else dtype, wraps=True)
    return dtype


def cast(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """The array in a dtype, itself if it has that; what is too large becomes inf without a warning."""
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def as_array(data: Any, dtype: DType | None = None, who: str = "tensor") -> np.ndarray[Any, Any]:
    """Numbers, nested lists or anything array-like as an array: of the given dtype, or one we compute in."""
    if type(data) in (int, float) and dtype is not None and dtype.kind == "f" and -1e38 < data < 1e38:
        return np.asarray(data, dtype)  # often asked for; nothing can go wrong
    kinds: set[Any] = set()
    try:
        array = np.asarray(opened(who, data, kinds) if isinstance(data, list | tuple) else data)
    except (ValueError, RecursionError) as error:
        raise TypeError(f"{who}: no rectangle of numbers ({error}); make all rows equally long") from error
    if dtype is not None and array.dtype.kind in "biuf":  # at once: by way of float32 digits would be lost
        if dtype.kind in "iu" and array.size and not hasattr(data, "dtype"):
            refuse_cut(who, [array.min().item(), array.max().item()], dtype)
        return cast(array, dtype)
    if not hasattr(data, "dtype") and array.dtype.kind == "f":
        seen = [k for k in kinds if getattr(k, "kind", None) == "f"] + [default] * (float in kinds)
        # without any, but of numbers: integers for which NumPy has no dtype
        array = (
            array.astype(object) if kinds and not seen else cast(array, np.result_type(*seen or [default]))
        )
    native = array.dtype if array.dtype in KNOWN else array.dtype.newbyteorder("=")
    if native in KNOWN:
        return cast(array, native)
    if native.kind not in "fiu" or native == np.uint64:
        known = f"cannot hold {native}; convert it first to one of {', '.join(map(str, KNOWN))}"
        raise TypeError(f"{who}: {odd(data) or known}")
    return cast(array, int64 if native.kind != "f" else float64 if native.itemsize > 8 else float32)


def refuse_cut(who: str, numbers: Sequence[Any], dtype: DType, wraps: bool = False) -> None:
    """Numbers that would be others in an integer dtype are refused; where it wraps, −1 is 255 in uint8."""
    for number in numbers if dtype.kind in "iu" else ():
        ends = np.iinfo(dtype)
        if not (ends.min or -ends.max * wraps) <= number <= ends.max:
            raise ValueError(f"{who}: {dtype} cannot hold {number}; choose a wider or floating dtype")
