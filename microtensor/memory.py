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
    axes = zip(array.strides, array.shape, strict=True)
    return array.size > 0 and any(stride == 0 and n > 1 for stride, n in axes)


def places(view: Array, root: Array) -> Array:
    """Which elements of root, counted in row-major order, a view of its memory shows: in the view's shape.

    >>> root = np.zeros((2, 3))
    >>> places(root.T[1:], root).tolist()
    [[1, 4], [2, 5]]

    Raises: RuntimeError if some element is none of root's, or lies across several, as in a column of records.
    """
    low, high = np.lib.array_utils.byte_bounds(root)
    size = root.itemsize
    memory = np.full((high - low) // size, -1)  # a number for every place

    def seen(array: Array) -> Array:
        first, end = np.lib.array_utils.byte_bounds(array)
        start = array.__array_interface__["data"][0] - low
        across = any(n % size for n in (start, *array.strides)) or array.itemsize != size
        if array.size and (across or first < low or end > high):
            raise RuntimeError(f"in place: the elements of an array {array.shape}, neighbours being "
                               f"{array.strides} bytes apart, cannot be counted in {size} bytes within "
                               f"{high - low}; change a clone()")  # fmt: skip
        steps = [stride // size * memory.itemsize for stride in array.strides]
        begin = start // size if array.size else 0
        return np.lib.stride_tricks.as_strided(memory[begin:], array.shape, steps)

    seen(root)[...] = np.arange(root.size).reshape(root.shape)
    found = seen(view).copy()
    if (found < 0).any():
        raise RuntimeError(f"in place: a view of shape {view.shape} shows elements that are none of the "
                           f"tensor's of shape {root.shape}; change a clone()")  # fmt: skip
    return found
