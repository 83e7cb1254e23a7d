"""What a thread is doing: whether it records, and whether fused ops run as their definitions.

Each thread has a mode of its own. A block sets one field and puts it back after exceptions, in generators and
when it is entered again. Nothing here knows what a tensor is.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

__all__ = [
    "composites",
    "enable_grad",
    "inference_mode",
    "is_grad_enabled",
    "mode",
    "no_grad",
    "set_grad_enabled",
]


class _Mode(threading.local):
    """What this thread is doing: does it record, and does it run fused ops as their definitions?

    `quiet` is a context in which NumPy computes inf and NaN without a warning, as PyTorch does; entering it
    costs a tenth of `np.errstate`, and the user's own NumPy code keeps its warnings.
    """

    def __init__(self) -> None:
        self.grad = True
        self.composites = False
        self.quiet = contextvars.copy_context()
        self.quiet.run(np.seterr, all="ignore")


mode = _Mode()


class _ModeBlock:
    """`with` block and decorator that sets one field of `mode` and puts it back whatever happens.

    The values to put back lie on a stack per thread, so one object may be entered again while it is active.
    """

    def __new__(cls, function: Any = None) -> Any:
        if callable(function):  # as a decorator it may stand without brackets
            return cls()(function)  # type: ignore[call-arg]
        return super().__new__(cls)

    def __init__(self, field: str, value: bool) -> None:
        self.field, self.value = field, value
        self._local = threading.local()

    def __enter__(self) -> None:
        self._local.__dict__.setdefault("before", []).append(getattr(mode, self.field))
        setattr(mode, self.field, self.value)

    def __exit__(self, *exception: object) -> None:
        setattr(mode, self.field, self._local.before.pop())

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function):
            return self._around_generator(function)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return wrapped

    def _around_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            generator = function(*args, **kwargs)
            resume: Callable[[], Any] = functools.partial(next, generator)
            try:
                while True:
                    with self:  # only while the generator runs: its caller keeps the caller's own mode
                        try:
                            value = resume()
                        except StopIteration as end:
                            return end.value
                    try:
                        resume = functools.partial(generator.send, (yield value))
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        resume = functools.partial(generator.throw, error)
            finally:
                with self:
                    generator.close()

        return wrapped


class no_grad(_ModeBlock):
    """Inside the block (or the decorated function) this thread records nothing.

    >>> import microtensor as mt
    >>> x = mt.ones(2, requires_grad=True)
    >>> with mt.no_grad():
    ...     print((2 * x).requires_grad)
    False
    """

    def __init__(self, function: Any = None) -> None:
        super().__init__("grad", False)


class inference_mode(no_grad):
    """The same as `no_grad`; PyTorch's stricter promise (its results can never be recorded) is not made."""


class enable_grad(_ModeBlock):
    """Inside the block (or the decorated function) this thread records again."""

    def __init__(self, function: Any = None) -> None:
        super().__init__("grad", True)


class set_grad_enabled(_ModeBlock):
    """Recording on or off from now on; used as a block, until its end."""

    def __init__(self, mode_on: bool) -> None:
        super().__init__("grad", bool(mode_on))
        self._before = mode.grad
        mode.grad = self.value

    def __enter__(self) -> None:
        mode.grad = self._before  # the call has changed the mode already: the block puts back what was before
        super().__enter__()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        mode.grad = self._before  # a decorator is for the function alone
        return super().__call__(function)


class composites(_ModeBlock):
    """Inside the block, fused ops run as their definitions in primitive ops: slower, the same numbers."""

    def __init__(self, function: Any = None) -> None:
        super().__init__("composites", True)


def is_grad_enabled() -> bool:
    """Does this thread record?"""
    return mode.grad
