"""What several functions of `functional` refuse, in the same words."""

from __future__ import annotations

from typing import Any

from microtensor.tensor import Tensor

__all__ = ["check_broadcast", "check_number", "check_tensors", "refuse_integers"]


def check_tensors(who: str, **given: Any) -> None:
    """A list or an array in the place of a tensor."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{who}: {name} is {type(value).__name__}; give a tensor, as from mt.tensor(…)")


def refuse_integers(who: str, x: Tensor) -> None:
    """What is no whole number would be cut."""
    check_tensors(who, input=x)
    if x.dtype.kind != "f":
        raise TypeError(f"{who}: the input is {x.dtype}; make it floating with .float()")


def check_number(who: str, name: str, value: Any) -> float:
    """As a Python float: a NumPy scalar would widen float32."""
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{who}: {name} is {value!r}; give a number")
    return float(value)


def check_broadcast(who: str, name: str, shape: tuple[int, ...], what: str, want: tuple[int, ...]) -> None:
    """A shape that would enlarge the other one is refused, too."""
    aligned = zip(reversed(shape), reversed(want), strict=False)
    if len(shape) > len(want) or any(a not in (1, b) for a, b in aligned):
        raise ValueError(f"{who}: {name} {shape} does not broadcast to {what} {want}; reshape it")
