"""Arguments held to their annotations: what is no integer, no function, no optimiser is refused by name."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from numpy import bool_, ndarray

from microtensor.tensor import Tensor

__all__ = ["hold"]

LIKE: dict[Any, Any] = {int: Integral, bool: (int, bool_), float: Real, Sequence: (Sequence, Tensor, ndarray)}
PLAIN = {int, float, bool, str, Callable, NoneType}


def hold(room: str, *own: str, early: bool = True) -> None:
    """From now on the functions and classes of a module, given by its name, look at what they are given.

    own: names of those whose own words say more, such as "forward" where it only calls functions.
    early=False: functions look where they fail only, which costs no time before.

    At numbers, texts and functions they look before anything happens. Of constructors, and of all else, many
    know themselves what to say: the annotation speaks where they fail in Python's or NumPy's words, and where
    an object has been made of something else.
    """
    names = vars(sys.modules[room])
    values = {name: names.get(name) for name in names["__all__"] if name not in own}
    names |= {name: _held(value, name, early) for name, value in values.items() if inspect.isfunction(value)}
    for kind in {k for v in values.values() if isinstance(v, type) for k in v.mro() if room in k.__module__}:
        makes = not hasattr(kind, "__dataclass_fields__") and "__init__"  # more is to be said of a file's
        for name, method in [*vars(kind).items()]:
            if inspect.isfunction(method) and (name == makes or name[0] != "_") and name not in own:
                setattr(kind, name, _held(method, name))


def _held(function: Callable[..., Any], who: str, early: bool = True) -> Callable[..., Any]:
    """The function, which refuses an argument that is not what its annotation says."""
    names = (code := inspect.unwrap(function).__code__).co_varnames[: code.co_argcount]

    def look(plain: bool, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        for name, value in (*zip(names, args, strict=False), *given.items()):
            kinds = _kinds(function, name)
            odd = type(value) not in kinds and not any(_fits(value, kind) for kind in kinds)
            if odd and (not plain or PLAIN.issuperset(kinds)):
                called = type(args[0]).__name__ if who in ("__init__", "forward") else who
                raise TypeError(f"{called}: {name} is {value!r:.60}; give {function.__annotations__[name]}")

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        if early and who != "__init__":
            look(True, args, given)
        try:
            made = function(*args, **given)
        except (TypeError, ValueError, AttributeError, LookupError, AssertionError) as error:
            # a name that is lacking says nothing of what was to be given, nor does what has no truth value
            if isinstance(error, AttributeError) or not re.match(r"(?s)\S+: (?!The truth).+; ", str(error)):
                look(False, args, given)
            raise
        if who == "__init__":
            look(False, args, given)
        return made

    return call


@functools.cache
def _kinds(function: Callable[..., Any], name: str) -> list[Any]:
    """The classes among which an annotation lets choose."""
    hint = get_type_hints(function).get(name, Any)
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [get_origin(part) or part for part in parts]


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(value, Tensor | str | int) and kind in (float, Iterable, Sequence):  # a text is no list
        held = isinstance(value, int) and kind is float and not abs(value) >> 1023  # by a float
        return held or (isinstance(value, Tensor) and (kind is not float or value.ndim == 0))
    return kind is Any or not isinstance(kind, type) or isinstance(value, LIKE.get(kind, kind))
