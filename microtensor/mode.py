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

__all__ = ["Block", "Switch", "composites", "enable_grad", "inference_mode", "is_grad_enabled", "mode"]
__all__ += ["no_grad", "set_grad_enabled"]


_before, _quiet = contextvars.copy_context(), contextvars.copy_context()
_quiet.run(np.seterr, all="ignore")
# NumPy's variable for what it does about inf and NaN, and the value for nothing: to set it and to put it back
# takes a tenth of the time of np.errstate
numpy_errors, ignore = next((var, now) for var, now in _quiet.items() if now is not _before.get(var))


class _Mode(threading.local):
    """What this thread is doing: does it record, and does it run fused ops as their definitions?

    `run(forward, *arrays)` runs an op's forward in a context in which NumPy computes inf and NaN without a
    warning, as PyTorch does: that costs a tenth of `np.errstate`, and the user's own NumPy code keeps its
    warnings. `watch(entry, g, gradients)`, if any, sees what each VJP gave. Anomaly detection replaces both.
    `vjp(entry, g, create_graph)`, if any, stands in for how VJPs run; the profiler replaces it, and `quiet`.
    `complete(leaf, g)`, if any, sees a leaf's gradient as soon as nothing more can come to it: past the entry
    whose index stands beside the leaf in the list `complete.due(entries)`, the next at its end.
    """

    def __init__(self) -> None:
        self.grad, self.composites = True, False
        self.quiet: Callable[..., Any] = contextvars.copy_context().run
        self.quiet(np.seterr, all="ignore")
        self.run: Callable[..., Any] = self.quiet
        self.watch: Callable[..., Any] | None = None
        self.vjp: Callable[..., Any] | None = None
        self.complete: Any = None


mode = _Mode()


class Block:
    """`with` block and decorator that sets fields of `mode` and puts them back whatever happens.

    The values to put back lie on a stack per thread, so one object may be entered again while it is active.

    Raises: TypeError for a grad that is neither True nor False, and for what is no function to decorate.
    Source: ours.
    """

    def __new__(cls, *given: Any, **fields: Any) -> Any:
        # as a decorator it may stand without brackets
        return cls()(*given) if len(given) == 1 and callable(*given) else super().__new__(cls)

    def __init__(self, function: Any = None, **fields: Any) -> None:
        if function is not None:
            raise TypeError(f"{type(self).__name__}: {function!r:.60} is no function; give one, or nothing")
        if not isinstance(on := fields.get("grad", True), bool):
            raise TypeError(f"{type(self).__name__}: mode is {on!r:.60}; give True or False")
        self.fields, self._local = fields, threading.local()

    def __enter__(self) -> None:
        now = mode.__dict__
        self._local.__dict__.setdefault("before", []).append({field: now[field] for field in self.fields})
        now.update(self.fields)

    def __exit__(self, *exception: object) -> None:
        mode.__dict__.update(self._local.before.pop())

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
            while True:
                with self:  # only while the generator runs: its caller keeps the caller's own mode
                    try:
                        value = resume()
                    except StopIteration as end:
                        return end.value
                try:
                    resume = functools.partial(generator.send, (yield value))
                except BaseException as error:  # close() throws GeneratorExit, which ends it, too
                    resume = functools.partial(generator.throw, error)

        return wrapped


class no_grad(Block):
    """Inside the block (or the decorated function) this thread records nothing.

    Raises: TypeError for what is no function.
    Source: PyTorch's no_grad. Differs: one object may be entered again while it is active.

    >>> import microtensor as mt
    >>> x = mt.ones(2, requires_grad=True)
    >>> with mt.no_grad():
    ...     print((2 * x).requires_grad)
    False
    """

    def __init__(self, function: Any = None) -> None:
        super().__init__(function, grad=False)


class inference_mode(Block):
    """The same as `no_grad`, or with mode=False as `enable_grad`; the results may be recorded later.

    Source: PyTorch's inference_mode. Differs: its stricter promise (never recorded) is not made.
    """

    def __init__(self, mode: Any = True) -> None:
        super().__init__(grad=not mode if isinstance(mode, bool) else mode)


class enable_grad(Block):
    """Inside the block (or the decorated function) this thread records again.

    Raises: TypeError for what is no function.
    Source: PyTorch's enable_grad.
    """

    def __init__(self, function: Any = None) -> None:
        super().__init__(function, grad=True)


class Switch(Block):
    """Sets fields of `mode` from now on; used as a block, until its end.

    Source: ours.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self._before = {field: mode.__dict__[field] for field in fields}
        mode.__dict__.update(fields)

    def __enter__(self) -> None:
        mode.__dict__.update(self._before)  # the call has changed the mode already: the block puts this back
        super().__enter__()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        mode.__dict__.update(self._before)  # a decorator is for the function alone
        return super().__call__(function)


class set_grad_enabled(Switch):
    """Recording on or off from now on; used as a block, until its end.

    Source: PyTorch's set_grad_enabled.
    """

    def __init__(self, mode: bool) -> None:
        super().__init__(grad=mode)


class composites(Block):
    """Inside the block, fused ops run as their definitions in primitive ops: slower, the same numbers.

    Raises: TypeError for what is no function.
    Source: ours.
    """

    def __init__(self, function: Any = None) -> None:
        super().__init__(function, composites=True)


def is_grad_enabled() -> bool:
    """Does this thread record?

    Source: PyTorch's is_grad_enabled.
    """
    return mode.grad
