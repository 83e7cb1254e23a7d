"""The functions of `microtensor` that are also methods: `mt.exp(x)` is `x.exp()`. Methods are the definition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from microtensor import ops
from microtensor.methods.arguments import as_axis, as_mask
from microtensor.tensor import Tensor, as_tensor

METHODS = [
    "abs",
    "add",
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "broadcast_to",
    "chunk",
    "clamp",
    "clone",
    "cos",
    "cumsum",
    "div",
    "dot",
    "eq",
    "erf",
    "exp",
    "expm1",
    "flatten",
    "flip",
    "gather",
    "ge",
    "gt",
    "isfinite",
    "isinf",
    "isnan",
    "le",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logsumexp",
    "lt",
    "masked_fill",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mm",
    "bmm",
    "mul",
    "ne",
    "neg",
    "norm",
    "permute",
    "pow",
    "prod",
    "reciprocal",
    "relu",
    "reshape",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "std",
    "sub",
    "sum",
    "swapaxes",
    "t",
    "tanh",
    "transpose",
    "unbind",
    "unsqueeze",
    "var",
]

__all__ = [*METHODS, "cat", "stack", "where"]


def _function(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, name)

    @functools.wraps(method)
    def function(input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}: takes a tensor, not {type(input).__name__}; make one with mt.tensor(…)")
        return method(input, *args, **kwargs)

    return function


globals().update({name: _function(name) for name in METHODS})


def cat(tensors: Iterable[Tensor], dim: int = 0) -> Tensor:
    """The tensors one after the other along dim; all other axes equal. Legacy (0,) tensors are no exception here.

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


def where(condition: Any, input: Any, other: Any) -> Tensor:
    """input where condition is True, else other; all three broadcast. The gradient is selected, never multiplied."""
    if not any(isinstance(x, Tensor) for x in (input, other)):
        input = as_tensor(input)
    return ops.where(as_mask("where", condition), input, other)  # type: ignore[no-any-return]
