"""Lists in lists, of which tensors are made: what stands in them, numbers, arrays or tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from microtensor.place import warn

__all__ = ["odd", "opened"]


def opened(who: str, data: Sequence[Any], kinds: set[Any]) -> Sequence[Any]:
    """The list, with arrays for the tensors in it. Their dtypes, and the types of the rest, come into kinds.

    A tensor without axes counts as a number, as in PyTorch, which warns of a lost gradient, too.
    """
    types = {*map(type, data)}
    if types <= {bool, int, float}:
        kinds |= types
        return data
    recorded = [item for item in data if getattr(item, "requires_grad", False)]
    if recorded:
        warn(f"{who}: {len(recorded)} tensors are copied without their gradients; use stack, or detach()")
    found: list[Any] = []
    for item in data:
        if isinstance(item, list | tuple):
            found.append(opened(who, item, kinds))
            continue
        kinds.add(getattr(item, "dtype", type(item)))
        found.append(getattr(item, "array", item))
    return found


def odd(data: Any) -> str:
    """What is wrong with the first element that no tensor holds, and what to do; empty if there is none."""
    for value in np.asarray(data, object).flat:
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"{value!r:.60} is beyond int64; write it as a float"
        if not isinstance(value, int | float):
            return f"{value!r:.60} is of type {type(value).__name__}; give real numbers, or lists of them"
    return ""
