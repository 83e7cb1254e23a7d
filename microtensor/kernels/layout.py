"""The one memory layout that kernels are compiled for: C-contiguous, aligned, writable.

Every other layout would be compiled as a kernel of its own, at a second or more; a copy takes microseconds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def contiguous(x: Array) -> Array:
    """x itself where kernels can take it; a copy if it is strided, misaligned or read-only."""
    return x if x.flags.carray else np.array(x, order="C")


def as_rows(x: Array) -> Array:
    """x (..., C) → (N, C)"""
    x = contiguous(x)
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
