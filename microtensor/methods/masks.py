"""What may be a mask: booleans. Numbers are refused, and it is said which of their readings means what."""

from __future__ import annotations

from typing import Any

import numpy as np

from microtensor import engine
from microtensor.misfit import made
from microtensor.place import warn

__all__ = ["as_mask", "how_boolean", "look_for_mask"]


def as_mask(who: str, mask: Any) -> Any:
    """A boolean mask; numbers are refused, since 0/1 and 0/−∞ masks mean different things."""
    if getattr(mask, "dtype", None) == np.bool_:
        return mask
    if not isinstance(mask, engine.Tensor):
        raise TypeError(f"{who}: the mask is a {type(mask).__name__}; give a boolean tensor: ~mask is "
                        f"one, `not mask` is none")  # fmt: skip
    told = {"where": "takes the first", "masked_select": "is selected"}.get(who, "is filled")
    cure = how_boolean(mask, f"what is True {told}, so mask != 0 if its ones mark that, mask == 0 if its "
                             f"zeros do (of booleans ~a, a & b, a | b, not 1 - a, a * b, a + b)")  # fmt: skip
    if mask.dtype.kind == "f" and np.isneginf(mask.array).any():
        cure = "add a mask of 0 and −inf to the scores: scores + mask"
    raise TypeError(f"{who}: the mask is {mask.dtype}, and must say True where something happens; {cure}")


def look_for_mask(shape: tuple[int, ...], index: Any) -> None:
    """Warns of zeros and ones laid over the axes that they index: rows 0 and 1, again and again."""
    ints = isinstance(index, np.ndarray) and index.dtype.kind in "iu" and index.ndim > 1 and index.size
    if ints and index.shape == shape[: index.ndim] and shape[0] > 2 and (index.min(), index.max()) == (0, 1):
        warn(f"index: {index.dtype} zeros and ones {index.shape} on a tensor {shape} pick its rows 0 and 1; "
             f"use mask.bool() for what lies under the ones")  # fmt: skip


def how_boolean(mask: Any, cure: str) -> str:
    """How to make numbers a mask, which is another way where they are ~ of zeros and ones: no 0 is left."""
    turned = mask.dtype.kind != "f" and not np.isin(mask.array, (0, 1)).any()
    cure = "turn it when it is boolean: ~mask.bool()" if turned else f"make it boolean: {cure}"
    return cure + made([mask])
