"""How functions are called: NumPy's `axis` for `dim`, and errors under the name that was called."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

from microtensor.methods.arguments import check_given, flags_of

__all__ = ["by_any_spelling", "by_its_name", "rename"]

Function = TypeVar("Function", bound=Callable[..., Any])  # or a class

SPELLINGS = {"axis": "dim", "keepdims": "keepdim"}


def rename(error: Exception, who: str) -> None:
    """Let an error in the house's form, or Python's of arguments, begin with the name that was called."""
    named = r"^(?!detect_anomaly: |view: )(Tensor\.)?\w+(?=: |\(\) (got|missing|takes))"  # they are meant
    error.args = (re.sub(named, rf"\g<1>{who}", str(error)),)


def by_its_name(function: Function, name: str | None = None) -> Function:
    """The function, whose errors begin with its own name, also if another that it calls raised them."""
    first, flags, rest = flags_of(function)

    @functools.wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        try:
            if given or len(args) > first:
                # beside a dim an axis stays one, so that Python refuses it
                given = {n if SPELLINGS.get(n) in given else SPELLINGS.get(n, n): v for n, v in given.items()}
                check_given(function.__name__, flags, args, given)
                args += tuple([given.pop(n) for n in rest if n in given])  # a list, by its name
            return function(*args, **given)
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            rename(error, name or function.__name__)
            raise

    return call  # type: ignore[return-value]


def by_any_spelling(others: str = "") -> Callable[[Function], Function]:
    """A class, each method of which that has a dim or is among the others is as `by_its_name` has it."""

    def decorate(kind: Function) -> Function:
        for name, method in list(vars(kind).items()):
            if name in others.split() or (name[0] != "_" and "dim" in getattr(method, "__annotations__", ())):
                setattr(kind, name, by_its_name(method, name))
        return kind

    return decorate
