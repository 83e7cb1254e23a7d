"""Functions of tensors that are no methods, and `as_functions`, which makes functions of those that are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from microtensor import engine, ops
from microtensor.dtypes import cast, common, result_dtype
from microtensor.methods.arguments import as_axis, as_choice, as_tensors
from microtensor.methods.calling import by_its_name
from microtensor.methods.masks import as_mask
from microtensor.misfit import broadcast
from microtensor.tensor import Tensor, as_tensor

Size: type[tuple[Any, ...]] = tuple  # what a shape is
# functions that take a number in the place of the first tensor, and the methods that do so
REFLECTED = {f"bitwise_{name}": f"__r{name}__" for name in ("and", "or", "xor")}
REFLECTED |= {name: f"__r{name}__" for name in ("add", "sub", "mul", "pow")}
REFLECTED |= {"div": "__rtruediv__", "remainder": "__rmod__", "floor_divide": "__rfloordiv__"}
METHODS: list[str] = []  # the names that `as_functions` was given

__all__ = ["METHODS", "Size", "as_functions", "broadcast_tensors", "cat", "concat", "cuda", "hstack"]
__all__ += ["is_tensor", "isin", "meshgrid", "searchsorted", "stack", "vstack", "where"]


def as_functions(names: str) -> Iterator[Callable[..., Any]]:
    """The named methods as functions of a tensor: `mt.exp(x)` is `x.exp()`."""

    def function(name: str) -> Callable[..., Any]:
        method = getattr(Tensor, name)

        @functools.wraps(method)
        def call(input: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(input, Tensor):
                return _number_first(name, input, *args, **kwargs)
            return method(input, *args, **kwargs)

        call.__qualname__ = name
        return call

    METHODS.extend(names.split())
    return map(function, names.split())


def _number_first(name: str, value: Any, /, *others: Any, **options: Any) -> Tensor:
    """The function of a number and a tensor: `mt.sub(1, x)` is 1 − x."""
    others += (options.pop("other"),) if "other" in options else ()
    if [*map(is_tensor, others)] != [True] or name not in REFLECTED or not isinstance(value, int | float):
        raise TypeError(f"{name}: takes a tensor, not {type(value).__name__}; make one with mt.tensor(…)")
    if not options or (name == "div" and options == {"rounding_mode": None}):  # not rounded
        return getattr(others[0], REFLECTED[name])(value)  # type: ignore[no-any-return]
    number = cast(np.asarray(value), common(name, (value, *others)))
    return getattr(engine.make(number, None, None), name)(*others, **options)  # type: ignore[no-any-return]


def _list(who: str, tensors: Any) -> list[Tensor]:
    xs = list(tensors) if isinstance(tensors, Iterable) else [tensors]
    if [x for x in xs if not isinstance(x, Tensor)]:
        as_tensors(who, **{f"number {i} of its list": x for i, x in enumerate(xs)})
    if not xs:
        raise ValueError(f"{who}: an empty list of tensors; give at least one")
    return xs


@by_its_name
def cat(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after the other along dim; all other axes equal, also those of empty tensors.

    Shapes: (..., N, ...), (..., M, ...), … → (..., N + M + …, ...)
    Raises: ValueError for an empty list, 0-d tensors, or shapes that differ elsewhere; IndexError for no such
    dim; TypeError for what is no tensor.
    Source: torch.cat.
    """
    return _cat("cat", _list("cat", tensors), dim)


def _cat(who: str, xs: list[Tensor], dim: int) -> Tensor:
    shapes = [x.array.shape for x in xs]
    if () in shapes:
        raise ValueError(f"{who}: 0-d tensors cannot be joined; use stack")
    if (0,) in shapes:  # it stands for nothing of any shape, but has a dtype
        dtype = result_dtype(xs)
        xs = [x.to(dtype) for x in xs if x.shape != (0,)] or [xs[0].to(dtype)]
        shapes = [x.array.shape for x in xs]
    axis = as_axis(who, xs[0], dim)
    if len({*shapes}) > 1 and len({(*s[:axis], *s[axis + 1 :], len(s)) for s in shapes}) > 1:
        raise ValueError(f"{who}: shapes {shapes} differ off axis {axis}; make all other axes equal")
    return ops.cat(*xs, axis=axis)  # type: ignore[no-any-return]


concat = by_its_name(cat, "concat")


@by_its_name
def stack(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis dim.

    Shapes: K of (..., ...) → (..., K, ...)
    Raises: ValueError for an empty list, or shapes that differ; IndexError for no such dim; TypeError for
    what is no tensor.
    Source: torch.stack.
    """
    xs = _list("stack", tensors)
    if len({x.shape for x in xs}) > 1:
        raise ValueError(f"stack: shapes {sorted({x.shape for x in xs})} differ; make them equal")
    at = as_axis("stack", xs[0], dim, new=1)
    shape = (*xs[0].shape[:at], 1, *xs[0].shape[at:])
    return ops.cat(*[ops.reshape(x, shape=shape) for x in xs], axis=at)  # type: ignore[no-any-return]


def hstack(tensors: Iterable[Tensor]) -> Tensor:
    """The tensors one after the other along axis 1, along axis 0 where there is one only.

    Shapes: as `cat`; () counts as (1,)
    Raises: as `cat`, but for 0-d tensors.
    Source: torch.hstack.
    """
    xs = [x.reshape(1) if x.ndim == 0 else x for x in _list("hstack", tensors)]
    return _cat("hstack", xs, 0 if xs[0].ndim == 1 else 1)


def vstack(tensors: Iterable[Tensor]) -> Tensor:
    """The tensors one below the other; vectors and numbers are rows.

    Shapes: as `cat` along axis 0; (N,) counts as (1, N)
    Raises: as `cat`, but for 0-d tensors.
    Source: torch.vstack.
    """
    return _cat("vstack", [x.reshape(1, x.numel()) if x.ndim < 2 else x for x in _list("vstack", tensors)], 0)


def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """For each vector its values over the grid that all span; "xy" swaps the first two axes.

    Shapes: (A,), (B,), … → for each (A, B, …), or (B, A, …) for "xy"
    Raises: ValueError for none, what are no vectors of one dtype, and another indexing; TypeError for what is
    no tensor.
    Source: torch.meshgrid.
    """
    listed = len(tensors) == 1 and isinstance(tensors[0], list | tuple)
    xs = _list("meshgrid", tensors[0] if listed else tensors)
    if str(indexing) not in ("ij", "xy"):
        raise ValueError(f'meshgrid: indexing is {indexing!r}; choose "ij" or "xy"')
    if any(x.ndim > 1 for x in xs) or len({x.dtype for x in xs}) > 1:
        raise ValueError(f"meshgrid: {[f'{x.dtype}{x.shape}' for x in xs]}; give vectors of one dtype")
    shape = [x.numel() for x in xs]
    grid = [x.reshape([-1 if i == j else 1 for j in range(len(xs))]).expand(shape) for i, x in enumerate(xs)]
    return tuple(g.transpose(0, 1) if indexing == "xy" and len(xs) > 1 else g for g in grid)


def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Each tensor broadcast to the shape of all, without a copy.

    Shapes: what broadcasts → for each the broadcast one
    Raises: ValueError for shapes that do not broadcast; TypeError for what is no tensor.
    Source: torch.broadcast_tensors.
    """
    xs = _list("broadcast_tensors", tensors) if tensors else []
    shape = broadcast("broadcast_tensors", *(x.shape for x in xs))
    return tuple(x.expand(shape) for x in xs)


def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """input where condition is True, else other; all broadcast. Gradients are selected, never multiplied.

    With the condition alone: the places where it is True, one vector per axis, as x[…] takes them.

    Shapes: what broadcasts → the broadcast one
    Raises: TypeError for a condition that is not boolean, and what is neither tensor nor number; ValueError
    for shapes that do not broadcast.
    Source: torch.where.
    """
    as_tensors("where", condition=condition)
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    input, other = as_choice("where", input), as_choice("where", other)
    if not isinstance(input, Tensor) and not isinstance(other, Tensor):
        input = as_tensor(input)
    return ops.where(as_mask("where", condition), input, other)


@by_its_name
def isin(elements: Any, test_elements: Any, *, invert: bool = False) -> Tensor:
    """Is each element among test_elements (or is it not, with invert)?

    Shapes: any, any → the first, bool
    Raises: TypeError for what holds no numbers.
    Source: torch.isin.
    """
    return as_tensor(np.isin(as_tensor(elements).array, as_tensor(test_elements).array, invert=invert))


@by_its_name
def searchsorted(sorted_sequence: Tensor, input: Any, *, right: bool = False) -> Tensor:
    """Where each element must go to keep the rising last axis in order: before its equals, or after them.

    Shapes: (N,), any → the shape of input; or (..., N), (..., M) with equal leading axes → (..., M); int64
    Raises: ValueError for other shapes; TypeError for a sequence that is no tensor, and input without
    numbers.
    Source: torch.searchsorted.
    """
    as_tensors("searchsorted", sorted_sequence=sorted_sequence)
    x, rows = as_tensor(input), sorted_sequence
    if rows.ndim == 0:
        raise ValueError("searchsorted: sorted_sequence is a 0-d tensor; give one axis or more")
    if rows.ndim != 1 and (x.ndim == 0 or x.shape[:-1] != rows.shape[:-1]):
        raise ValueError(f"searchsorted: shapes {rows.shape} and {x.shape}; make all axes but the last equal")
    found = np.empty(x.shape, np.int64)
    for at in np.ndindex(rows.shape[:-1]):
        found[at] = np.searchsorted(rows.array[at], x.array[at], "right" if right else "left")
    return as_tensor(found)


class cuda:
    """No GPU is here: programs that ask, as in `torch.cuda.is_available()`, take the CPU.

    Source: torch.cuda.
    """

    @staticmethod
    def is_available() -> bool:
        """Whether there is a GPU to compute on: never.

        Source: torch.cuda.is_available.
        """
        return False


def is_tensor(obj: Any) -> bool:
    """Is it a tensor?

    Source: torch.is_tensor.
    """
    return isinstance(obj, Tensor)
