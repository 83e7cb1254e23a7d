"""The functions of `microtensor` that are also methods, which define them: `mt.exp(x)` is `x.exp()`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from microtensor import ops
from microtensor.methods.arguments import as_axis, as_mask
from microtensor.tensor import Tensor, as_tensor

__all__ = [
    "abs",
    "add",
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "bmm",
    "broadcast_to",
    "cat",
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
    "stack",
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
    "where",
]


def _function(name: str) -> Callable[..., Any]:
    method = getattr(Tensor, name)

    @functools.wraps(method)
    def function(input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}: takes a tensor, not {type(input).__name__}; make one with mt.tensor(…)")
        return method(input, *args, **kwargs)

    return function


abs = _function("abs")
add = _function("add")
all = _function("all")
amax = _function("amax")
amin = _function("amin")
any = _function("any")
argmax = _function("argmax")
argmin = _function("argmin")
bmm = _function("bmm")
broadcast_to = _function("broadcast_to")
chunk = _function("chunk")
clamp = _function("clamp")
clone = _function("clone")
cos = _function("cos")
cumsum = _function("cumsum")
div = _function("div")
dot = _function("dot")
eq = _function("eq")
erf = _function("erf")
exp = _function("exp")
expm1 = _function("expm1")
flatten = _function("flatten")
flip = _function("flip")
gather = _function("gather")
ge = _function("ge")
gt = _function("gt")
isfinite = _function("isfinite")
isinf = _function("isinf")
isnan = _function("isnan")
le = _function("le")
log = _function("log")
log1p = _function("log1p")
log_softmax = _function("log_softmax")
logical_and = _function("logical_and")
logical_not = _function("logical_not")
logical_or = _function("logical_or")
logsumexp = _function("logsumexp")
lt = _function("lt")
masked_fill = _function("masked_fill")
matmul = _function("matmul")
max = _function("max")
maximum = _function("maximum")
mean = _function("mean")
min = _function("min")
minimum = _function("minimum")
mm = _function("mm")
mul = _function("mul")
ne = _function("ne")
neg = _function("neg")
norm = _function("norm")
permute = _function("permute")
pow = _function("pow")
prod = _function("prod")
reciprocal = _function("reciprocal")
relu = _function("relu")
reshape = _function("reshape")
rsqrt = _function("rsqrt")
sigmoid = _function("sigmoid")
sign = _function("sign")
sin = _function("sin")
softmax = _function("softmax")
split = _function("split")
sqrt = _function("sqrt")
square = _function("square")
squeeze = _function("squeeze")
std = _function("std")
sub = _function("sub")
sum = _function("sum")
swapaxes = _function("swapaxes")
t = _function("t")
tanh = _function("tanh")
transpose = _function("transpose")
unbind = _function("unbind")
unsqueeze = _function("unsqueeze")
var = _function("var")


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


def where(condition: Any, input: Any, other: Any) -> Tensor:
    """input where condition is True, else other; all broadcast. Gradients are selected, never multiplied."""
    if not isinstance(input, Tensor) and not isinstance(other, Tensor):
        input = as_tensor(input)
    return ops.where(as_mask("where", condition), input, other)  # type: ignore[no-any-return]
