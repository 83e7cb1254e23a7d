"""The names of `microtensor.data`, where programs written for PyTorch look for them."""

from typing import Any

from microtensor import data

__all__ = data.__all__


def __getattr__(name: str) -> Any:
    return getattr(data, name)
