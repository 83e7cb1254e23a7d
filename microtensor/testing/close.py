"""Are two tensors close? And if not, where do they differ most: said in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from microtensor import dtypes
from microtensor.engine import Array
from microtensor.tensor import Tensor

__all__ = ["assert_close", "worst_entry"]


def assert_close(
    actual: Any,
    expected: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_dtype: bool = True,
    msg: str | None = None,
) -> None:
    """|actual − expected| ≤ atol + rtol · |expected|, with equal shapes and dtypes; or an AssertionError.

    Takes tensors, arrays, numbers, and sequences or dicts of them. The tolerances are PyTorch's: 1e-7 for
    float64, rtol 1.3e-6 and atol 1e-5 for float32, 0 for integers and booleans.

    Shapes: two of one shape (...)
    Raises: AssertionError naming the worst entry, or how shapes, dtypes or keys differ.
    Source: PyTorch's testing.assert_close. Differs: NaN is close to nothing unless equal_nan.
    """
    where = f"{msg}: " if msg else ""
    options: dict[str, Any] = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan, "check_dtype": check_dtype}
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or actual.keys() != expected.keys():
            raise AssertionError(f"{where}the keys of {actual!r} are not those of {expected!r}")
        for key in expected:
            assert_close(actual[key], expected[key], msg=f"{where}[{key!r}]", **options)
        return
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple) or len(actual) != len(expected):
            raise AssertionError(f"{where}{actual!r} is no sequence of {len(expected)} values")
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_close(a, e, msg=f"{where}[{i}]", **options)
        return
    a, e = _array(actual), _array(expected)
    if a.shape != e.shape:
        raise AssertionError(f"{where}the shape is {a.shape}, expected {e.shape}")
    if check_dtype and hasattr(actual, "dtype") and hasattr(expected, "dtype") and a.dtype != e.dtype:
        raise AssertionError(f"{where}the dtype is {a.dtype}, expected {e.dtype}")
    known = {dtypes.float32: (1.3e-6, 1e-5), dtypes.float64: (1e-7, 1e-7)}
    r, t = max((known.get(x.dtype, (0.0, 0.0)) for x in (a, e)), key=lambda pair: pair[1])
    r, t = r if rtol is None else rtol, t if atol is None else atol
    fault = worst_entry(a, e, r, t, equal_nan)
    if fault is not None:
        raise AssertionError(f"{where}{fault}")


def _array(value: Any) -> Array:
    return value.array if isinstance(value, Tensor) else np.asarray(value)


def worst_entry(a: Array, e: Array, rtol: float, atol: float, equal_nan: bool = False) -> str | None:
    """The entry that misses its tolerance by most, in words; None if all keep it."""
    with np.errstate(all="ignore"):
        a, e = a.astype(np.float64), e.astype(np.float64)
        same = (a == e) | (np.isnan(a) & np.isnan(e) if equal_nan else False)
        excess = np.where(same, -np.inf, np.abs(a - e) - (atol + rtol * np.abs(e)))
        excess = np.where(np.isnan(excess) | (~same & np.isinf(e)), np.inf, excess)
    bad = int((excess > 0).sum())
    if bad == 0:
        return None
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), a.shape))
    return (
        f"{bad} of {a.size} entries differ; the worst, at {at}: {float(a[at])!r} is not {float(e[at])!r} "
        f"(rtol {rtol:g}, atol {atol:g})"
    )
