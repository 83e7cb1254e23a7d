"""Where arrays lie in memory: whether one is a view of another, and which of its elements it shows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["overlaps", "places", "shares"]

Array = NDArray[Any]


def shares(y: Array, x: Array) -> bool:
    """Is y a view of x's memory? NumPy collapses chains of bases, so one look is enough."""
    return y is x or (y.base is not None and (y.base is x or y.base is x.base))


def overlaps(array: Array) -> bool:
    """Do several of its elements lie at one place, as in an expanded array?"""
    return any(stride == 0 and n > 1 for stride, n in zip(array.strides, array.shape, strict=True))


def places(view: Array, root: Array) -> Array:
    """Which elements of root, counted in row-major order, a view of its memory shows: in the view's shape.

    >>> root = np.zeros((2, 3))
    >>> places(root.T[1:], root).tolist()
    [[1, 4], [2, 5]]
    """
    low, high = np.lib.array_utils.byte_bounds(root)
    memory = np.empty((high - low) // root.itemsize, np.int64)  # a number for every place

    def seen(array: Array) -> Array:
        first = (array.__array_interface__["data"][0] - low) // array.itemsize
        steps = [stride // array.itemsize * 8 for stride in array.strides]
        return np.lib.stride_tricks.as_strided(memory[first:], array.shape, steps)

    seen(root)[...] = np.arange(root.size).reshape(root.shape)
    return seen(view).copy()
