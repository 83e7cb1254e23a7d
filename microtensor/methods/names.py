"""Python's own errors about arguments name the class that a user knows, and none of those it is made of."""

from __future__ import annotations

import inspect
from typing import Any


class Named:
    """What the classes of this package make, a Tensor, has their methods under its own name."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        rooms = [vars(kind) for kind in cls.__mro__ if kind.__module__.startswith(__package__)]
        for name, method in [pair for room in rooms for pair in room.items()]:
            inner: Any = inspect.unwrap(method)
            if inspect.isfunction(inner) and "Tensor." not in inner.__qualname__:
                inner.__qualname__ = f"Tensor.{name}"
