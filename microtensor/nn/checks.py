"""What several functions of `functional` refuse, in the same words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor.methods.masks import how_boolean
from microtensor.misfit import common, made, to_fit
from microtensor.mode import mode
from microtensor.tensor import Tensor

__all__ = ["check_broadcast", "check_fixed", "check_flag", "check_mask", "check_number", "check_tensors"]
__all__ += ["refuse_integers"]


def check_tensors(who: str, **given: Any) -> None:
    """A list or an array in the place of a tensor."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{who}: {name} is {type(value).__name__}; give a tensor, as from mt.tensor(…)")


def check_fixed(who: str, name: str, x: Any) -> None:
    """A tensor that no gradient goes to must not wait for one."""
    check_tensors(who, **{name: x})
    if x.requires_grad and mode.grad:
        raise RuntimeError(f"{who}: no gradient goes to {name}, which requires one; give {name}.detach()")


TRUE = "True = may attend, so mask != 0 if its zeros forbid, mask == 0 if they allow"


def check_mask(who: str, mask: Any) -> None:
    """An attention mask is boolean (True = may attend), or floating and added to the scores.

    Zeros and ones, and the sum of two such masks, hide nothing: a boolean mask was meant. NaN comes of
    0 · −∞, and would spread to every weight.
    Shapes: any
    Raises: TypeError for integers and what is no tensor, ValueError for such numbers and for NaN.
    Source: ours; PyTorch adds such numbers to the scores, in silence.
    """
    check_tensors(who, mask=mask)
    if mask.dtype == np.bool_:
        return
    if mask.dtype.kind != "f":
        raise TypeError(f"{who}: the mask is {mask.dtype}; {how_boolean(mask, TRUE)}")
    lowest = mask.array.min(initial=math.inf)
    if math.isnan(lowest):
        raise ValueError(f"{who}: the mask of shape {mask.shape} holds NaN, which (1 - mask) * -inf makes of "
                         f"0 · −∞; make it boolean (True = may attend), or use mt.zeros(T, S).masked_fill("
                         f"~allowed, -math.inf){made([mask])}")  # fmt: skip
    if lowest >= 0 and not mask.requires_grad and mask.array.any() and np.isin(mask.array, (0, 1, 2)).all():
        raise ValueError(f"{who}: a {mask.dtype} mask of zeros and ones, or a sum of such, is added to the "
                         f"scores and hides nothing; {how_boolean(mask, TRUE)}")  # fmt: skip


def refuse_integers(who: str, x: Tensor) -> None:
    """What is no whole number would be cut."""
    if not isinstance(x, Tensor) or x.array.dtype.kind != "f":
        check_tensors(who, input=x)
        raise TypeError(f"{who}: the input is {x.dtype}; make it floating with .float()")


DROPS = "it is the probability to drop, between 0 and 1"


def check_number(who: str, name: str, value: Any, most: float | None = None, cure: str = DROPS) -> float:
    """As a Python float: a NumPy scalar would widen float32. With most it is from 0 to that, or see cure."""
    try:
        number = float("a number" if isinstance(value, str) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"{who}: {name} is {value!r:.60}; give a number") from None
    if most is not None and not 0.0 <= number <= most:
        raise ValueError(f"{who}: {name} is {value}; {cure}")
    return number


def check_flag(who: str, name: str, value: Any) -> None:
    """Anything is true or false to Python, also the text "no"."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{who}: {name} is {value!r:.60}; give True or False")


def check_broadcast(who: str, name: str, x: Tensor, what: str, want: tuple[int, ...]) -> None:
    """A shape that would enlarge the other one is refused, too."""
    shape = x.shape
    if common(want, shape) != want:
        cure = f"from the right, cut its axes to those or make them 1{to_fit(want, shape, name)}"
        if name == "attn_mask" and shape == want[-3:-2] * 2:  # scores of (B, T, H, D)
            cure = f"if {shape[0]} is the length, .transpose(-3, -2) query, key, value, and the result back"
        if name == "attn_mask" and len(want) == 4 and shape == (want[0], want[-1]):
            cure = "if it is (B, S), of the keys, give attn_mask[:, None, None]"
        raise ValueError(f"{who}: {name} {shape} does not broadcast to {what} {want}; {cure}{made([x])}")
