"""Anomaly detection: names the op whose forward or backward first makes a NaN or an infinity.

It stands in for how forwards run and looks at what VJPs gave; while it is off it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from microtensor import engine
from microtensor.engine import Entry
from microtensor.mode import Block, Switch
from microtensor.mode import mode as modes
from microtensor.place import caller, line_of

__all__ = ["detect_anomaly", "set_detect_anomaly"]


class set_detect_anomaly(Switch):
    """Anomaly detection on or off from now on in this thread; used as a block, until its end.

    It looks for the first op that makes a NaN, or an infinity out of finite numbers (so that masks of −∞
    pass), forward or backward.

    Raises: RuntimeError with that op, its line, its shapes, and which input was not finite before; TypeError
    for what is neither True nor False.
    Source: PyTorch's autograd.set_detect_anomaly. Differs: infinities are found, too, and forward.

    >>> import microtensor as mt
    >>> x = mt.tensor([4.0, 0.0], requires_grad=True)
    >>> with mt.autograd.set_detect_anomaly(True):
    ...     x.sqrt().sum().backward()       # doctest: +ELLIPSIS
    Traceback (most recent call last):
    RuntimeError: detect_anomaly: the backward of <sqrt ...> made inf at (1,) of the gradient of its ...
    """

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise TypeError(f"set_detect_anomaly: mode is {mode!r:.60}; give True or False")
        super().__init__(run=_forward if mode else modes.quiet, watch=_backward if mode else None)


class detect_anomaly(Block):
    """Inside the block (or the decorated function) anomalies are errors: see `set_detect_anomaly`.

    Raises: RuntimeError, as there; TypeError for what is no function.
    Source: PyTorch's autograd.detect_anomaly, with the differences of `set_detect_anomaly`.
    """

    def __init__(self, function: Any = None) -> None:
        super().__init__(function, run=_forward, watch=_backward)


def _forward(forward: Any, *arrays: Any, **params: Any) -> Any:
    """How a forward runs while anomalies are looked for."""
    result = modes.quiet(forward, *arrays, **params)
    y = result[0] if type(result) is tuple else result
    fault = _fault(y)
    given = (*arrays, *params.values())
    if fault is None or (fault.startswith("inf") and any((_fault(a) or "").startswith("inf") for a in given)):
        return result
    op = next((op for op in engine.registry.values() if op.forward is forward), None)
    name = op.name if op else forward.__name__
    names = _names(op, len(arrays)) if op else map(str, range(len(arrays)))
    line = line_of(caller())
    raise RuntimeError(f"detect_anomaly: {name} made {fault} of its result {_what(y)}, at {line}; "
                       f"{_states(zip(names, arrays, strict=True), 'its input ')}")  # fmt: skip


def _backward(entry: Entry, g: Any, gradients: Sequence[Any]) -> list[Any]:
    """What a VJP gave, computed and checked."""
    checked: list[Any] = []
    names = _names(entry.op, len(entry.inputs))
    for name, node, gradient in zip(names, entry.inputs, gradients, strict=True):
        wanted = isinstance(node, (Entry, engine.Tensor))
        checked.append(gradient() if wanted and callable(gradient) else gradient if wanted else None)
        if (fault := _fault(checked[-1])) is not None:
            kept = [(f"the {n} it kept,", a) for n, a in zip(entry.op.kept, entry.saved or (), strict=True)]
            raise RuntimeError(f"detect_anomaly: the backward of {entry!r} made {fault} of the gradient of "
                               f"its input {name} {_what(checked[-1])}; "
                               f"{_states([('the gradient that came to it,', g), *kept])}")  # fmt: skip
    return checked


def _names(op: engine.Op, count: int) -> list[str]:
    return op.inputs if op.variadic is None else [f"{op.variadic}[{i}]" for i in range(count)]


def _fault(value: Any) -> str | None:
    """NaN at (0, 1), say, if there is one, else inf at …; None if all is finite, or not floating at all."""
    array = getattr(value, "array", value)
    if isinstance(array, tuple) or np.asarray(array).dtype.kind != "f" or np.isfinite(array).all():
        return None
    where = np.isnan(array) if np.isnan(array).any() else np.isinf(array)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape))
    return f"{'NaN' if np.isnan(array).any() else 'inf'} at {at}"


def _what(value: Any) -> str:
    return f"{value.dtype}{value.shape}" if hasattr(value, "dtype") else repr(value)


def _states(values: Iterable[tuple[str, Any]], prefix: str = "") -> str:
    """What was not finite already, or all that was."""
    values = [(f"{prefix}{name} {_what(a)}", _fault(a)) for name, a in values if a is not None]
    before = [f"{text} holds {fault} already: look where that comes from" for text, fault in values if fault]
    if before:
        return "; ".join(before)
    return f"finite before: {', '.join(text for text, _ in values)}; keep it inside the domain of the op"
