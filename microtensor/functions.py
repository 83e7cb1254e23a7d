"""Functions of tensors that are no methods, and `as_functions`, which makes functions of those that are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from microtensor import ops
from microtensor.methods.arguments import as_axis, as_mask
from microtensor.tensor import Tensor, as_tensor

Size: type[tuple[Any, ...]] = tuple  # what a shape is
METHODS: list[str] = []  # the names that `as_functions` was given

__all__ = ["METHODS", "Size", "as_functions", "cat", "cuda", "is_tensor", "stack", "where"]


def as_functions(names: str) -> Iterator[Callable[..., Any]]:
    """The named methods as functions of a tensor: `mt.exp(x)` is `x.exp()`."""

    def function(name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)

        @functools.wraps(method)
        def call(input: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(input, Tensor):
                raise TypeError(
                    f"{name}: takes a tensor, not {type(input).__name__}; make one with mt.tensor(…)"
                )
            return method(input, *args, **kwargs)

        return call

    METHODS.extend(names.split())
    return map(function, names.split())


def cat(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after the other along dim; all other axes equal, also those of empty tensors.

    Raises: ValueError for an empty list or shapes that differ elsewhere.
    """
    xs = [as_tensor(x) for x in tensors]
    if not xs:
        raise ValueError("cat: an empty list of tensors; give at least one")
    if xs[0].ndim == 0:
        raise ValueError("cat: 0-d tensors cannot be joined; use stack")
    return ops.cat(*xs, axis=as_axis("cat", xs[0], dim))  # type: ignore[no-any-return]


def stack(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis dim."""
    xs = [as_tensor(x).unsqueeze(dim) for x in tensors]
    if len({x.shape for x in xs}) > 1:
        raise ValueError(
            f"stack: shapes {sorted({x.squeeze(dim).shape for x in xs})} differ; make them equal"
        )
    return cat(xs, dim)


def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """input where condition is True, else other; all broadcast. Gradients are selected, never multiplied.

    With the condition alone: the places where it is True, one vector per axis, as x[…] takes them.
    """
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    if input is None or other is None:
        raise TypeError("where: takes a condition, or a condition and two values; give input and other")
    if not isinstance(input, Tensor) and not isinstance(other, Tensor):
        input = as_tensor(input)
    return ops.where(as_mask("where", condition), input, other)


class cuda:
    """No GPU is here: programs that ask, as in `torch.cuda.is_available()`, take the CPU."""

    @staticmethod
    def is_available() -> bool:
        """False"""
        return False


def is_tensor(obj: Any) -> bool:
    """Is it a tensor?"""
    return isinstance(obj, Tensor)
