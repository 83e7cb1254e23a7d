"""finfo and iinfo: what a dtype can hold, as Python numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from microtensor import dtypes

__all__ = ["finfo", "iinfo"]


class finfo(SimpleNamespace):
    """What a floating dtype (the default one if none is given) can hold, as Python numbers.

    Raises: TypeError for another dtype.
    Source: torch.finfo.

    >>> finfo(np.float32).eps == 2**-23
    True
    """

    def __init__(self, type: Any = None) -> None:
        dtype = dtypes.default if type is None else dtypes.checked("finfo", type)
        if not dtypes.floating(dtype):
            raise TypeError(f"finfo: {dtype} is no floating dtype; use mt.iinfo")
        info, numbers = np.finfo(dtype), ("min", "max", "eps", "smallest_normal", "tiny")
        limits = {name: float(getattr(info, name)) for name in numbers}
        super().__init__(**limits, resolution=10.0**-info.precision, dtype=str(dtype), bits=info.bits)


class iinfo(SimpleNamespace):
    """What an integer dtype can hold, as Python numbers.

    Raises: TypeError for another dtype.
    Source: torch.iinfo.

    >>> iinfo(np.uint8).max
    255
    """

    def __init__(self, type: Any) -> None:
        dtype = dtypes.checked("iinfo", type)
        if dtype.kind not in "iu":
            raise TypeError(f"iinfo: {dtype} is no integer dtype; use mt.finfo")
        info: Any = np.iinfo(dtype)
        super().__init__(min=info.min, max=info.max, dtype=str(dtype), bits=info.bits)
