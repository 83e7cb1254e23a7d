"""Every tensor function on random programs: values, dtypes, shapes, two orders of derivatives, and errors.

A program is one call, drawn from a seed: shapes with axes of length 0 and 1, dtypes, layouts, arguments. It
runs here and in PyTorch, and one in five is spoiled first, so that both must refuse it. `DIFFERENT` is what
we do otherwise on purpose; tools/docs/differences.md says why.
"""

from __future__ import annotations

import inspect
import math
import re
import zlib
from typing import Any

import numpy as np
import pytest
from draws import CASES, DTYPES, FLOATS, Draw, Name, case, spoil
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Input, Program, compare, is_meant, not_told, torch

import microtensor as mt

# --- elementwise --------------------------------------------------------------------------------------------


@case(
    "abs neg exp expm1 tan atan sinh cosh exp2 log2 log10 floor ceil trunc frac"
    " sin cos tanh sigmoid erf relu square reciprocal sqrt rsqrt log log1p sign"
)
def _(d: Draw) -> Any:
    return (d.x(),), {}


@case(
    "isnan isinf isfinite logical_not bitwise_not is_floating_point numel nelement t detach clone contiguous"
)
def _(d: Draw) -> Any:
    return (d.x(),), {}


def _maybe_number_first(d: Draw, x: Any, other: Any) -> tuple[Any, Any]:
    """PyTorch's functions take a number on either side, its methods do not."""
    return (d.number(), x) if d.chance(0.1) else (x, other)


@case("mul maximum minimum remainder floor_divide eq ne lt le gt ge logical_and logical_or")
def _(d: Draw) -> Any:
    x = d.x()
    return _maybe_number_first(d, x, d.operand(x)), {}


@case("asin acos")
def _(d: Draw) -> Any:
    return (d.x(low=-1.2, high=1.2),), {}


@case("round")
def _(d: Draw) -> Any:
    return (d.x(low=-20, high=20),), d.some(decimals=d.int(-1, 3))


@case("logical_xor fmod")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, d.operand(x)), {}


@case("atan2 logaddexp")
def _(d: Draw) -> Any:
    x = d.floating()  # PyTorch's derivative of atan2 by b is wrong where a is uint8: it takes −a in uint8
    return (x, d.floating(d.broadcasting(x.shape))), {}


@case("lerp")
def _(d: Draw) -> Any:
    x = d.floating()
    end = d.x(d.broadcasting(x.shape), x.base.dtype.name)
    return (x, end, d.pick([0.25, 2, d.x(d.broadcasting(x.shape), x.base.dtype.name)])), {}


@case("addcmul addcdiv")
def _(d: Draw) -> Any:
    x = d.x()
    first, second = (d.pick([x.base.dtype.name, d.dtype()]) for _ in "ab")
    operands = (d.x(d.broadcasting(x.shape), first), d.x(d.broadcasting(x.shape), second, low=0.5))
    return (x, *operands), d.some(value=d.pick([2, 0.5]))


@case("nan_to_num")
def _(d: Draw) -> Any:
    x = d.x()
    if x.base.dtype.kind == "f" and x.base.size:
        x.base.flat[: d.int(0, 3)] = d.pick([math.nan, math.inf, -math.inf])
    return (x,), d.some(nan=1.5, posinf=7.0, neginf=-7.0)


@case("bitwise_and bitwise_or bitwise_xor")
def _(d: Draw) -> Any:
    x = d.x(dtype=d.pick(DTYPES[2:]))
    return _maybe_number_first(d, x, d.operand(x)), {}


@case("pow")
def _(d: Draw) -> Any:
    x = d.x(low=0.5)
    if d.chance(0.2):
        return (d.pick([2, 0.5, 3.0, 1]), x), {}
    p = d.operand(x)
    if isinstance(p, Input) and p.grad:
        p.base[p.base == 0] = 1  # there PyTorch forgets the derivative by both
    return (x, p), {}


@case("add sub")
def _(d: Draw) -> Any:
    x = d.x()
    return _maybe_number_first(d, x, d.operand(x)), d.some(alpha=d.pick([2, -1, 0.5, 1]))


@case("div")
def _(d: Draw) -> Any:
    x = d.x()
    return _maybe_number_first(d, x, d.operand(x)), d.some(
        rounding_mode=d.pick([None, "floor", "trunc", "up"])
    )


@case("clamp clip")
def _(d: Draw) -> Any:
    x = d.x()
    bounds = [d.pick([None, -1, 0, 0.5, 2]), d.pick([None, 1, 1.5, -2])]
    if d.chance(0.4):
        # no ties: where min equals max PyTorch gives neither of them a gradient
        bounds = [None if b is None else d.x(d.broadcasting(x.shape), ties=False) for b in bounds]
    return ((x, *bounds), {}) if d.chance(0.5) else ((x,), dict(zip(("min", "max"), bounds, strict=True)))


@case("clamp_min clamp_max")
def _(d: Draw) -> Any:
    x = d.x()
    bound = d.x(d.broadcasting(x.shape), ties=False) if d.chance(0.3) else d.pick([0, 0.5, 1, 2])
    return (x, bound), {}


@case("where")
def _(d: Draw) -> Any:
    x = d.x()
    if d.chance(0.1):
        return (d.mask(d.shape()),), {}
    first = d.pick([x, d.number()])
    return (d.mask(d.broadcasting(x.shape)), first, d.operand(x)), {}


@case("masked_fill")
def _(d: Draw) -> Any:
    x = d.x()
    value = d.pick([0, 1, -math.inf, 2.5, True, d.x((), "float64"), d.x((), "int64")])
    return (x, d.mask(d.broadcasting(x.shape)), value), {}


@case("equal isclose allclose")
def _(d: Draw) -> Any:
    x = d.x()
    other = d.pick([x, d.x(x.shape), d.x(d.broadcasting(x.shape), x.base.dtype.name)])
    return (x, other), {}


# --- reductions ---------------------------------------------------------------------------------------------


def _over(d: Draw, x: Any) -> Any:
    """dim and keepdim, by place or by name, one axis or several."""
    dim = d.pick([d.dim(x), d.dims(x), list(d.dims(x))])
    if d.chance(0.5):
        return ((dim, d.chance(0.5)), {}) if d.chance(0.5) else ((dim,), {})
    return (), d.some(keepdim=d.chance(0.5)) | {"dim": dim}


@case("count_nonzero")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, *d.pick([(), (d.dim(x),), (d.dims(x),)])), {}


@case("sum mean amax amin logsumexp all any")
def _(d: Draw) -> Any:
    x = d.x()
    if d.chance(0.2):
        return (x,), {}
    args, options = _over(d, x)
    return (x, *args), options


@case("var std")
def _(d: Draw) -> Any:
    x = d.x()
    dim = d.pick([d.dim(x), d.dims(x)])
    how = d.pick(
        [{}, {"dim": dim}, {"dim": dim, "correction": d.int(0, 1)}, {"dim": dim, "unbiased": d.chance(0.5)}]
    )
    return (x,), how | (d.some(keepdim=True) if "dim" in how else {})


@case("prod max min argmax argmin")
def _(d: Draw) -> Any:
    x = d.x()
    if d.chance(0.2):
        return (x,), {}
    return (
        ((x, d.dim(x), d.chance(0.5)), {})
        if d.chance(0.5)
        else ((x,), {"dim": d.dim(x)} | d.some(keepdim=True))
    )


@case("norm")
def _(d: Draw) -> Any:
    x = d.floating()
    dim = d.pick([None, d.dim(x), d.dims(x)])
    return (x, d.pick([2, 1, 3.0, "fro", math.inf, -math.inf, 0, 0.5, -1]), dim), d.some(keepdim=True)


@case("diff")
def _(d: Draw) -> Any:
    x = d.x(d.shape(low=1))
    return (x,), d.some(n=d.int(0, 3), dim=d.dim(x), prepend=x, append=x)


@case("unique")
def _(d: Draw) -> Any:
    return (d.x(),), d.some(return_inverse=d.chance(0.5), return_counts=d.chance(0.5))


@case("bincount")
def _(d: Draw) -> Any:
    n = d.int(0, 5)
    weights = {"weights": d.x((n,), d.pick(FLOATS))} if n and d.chance(0.5) else {}
    return (d.ids((n,), 6),), weights | d.some(minlength=d.int(0, 8))


@case("softmax log_softmax cumsum cumprod")
def _(d: Draw) -> Any:
    x = d.x()
    return ((x, d.dim(x)), {}) if d.chance(0.7) else ((x,), {"dim": d.dim(x)} | d.some(dtype=Name("float64")))


@case("sort argsort")
def _(d: Draw) -> Any:
    x = d.x(distinct=d.chance(0.7))
    return (x,), d.some(dim=d.dim(x), descending=d.chance(0.5)) | {"stable": True}


@case("topk")
def _(d: Draw) -> Any:
    x = d.x(dtype=d.pick([*FLOATS, "int64"]), distinct=True)
    return (x, d.int(0, 3)), d.some(dim=d.dim(x), largest=d.chance(0.5))


# --- shapes -------------------------------------------------------------------------------------------------


@case("reshape view")
def _(d: Draw) -> Any:
    x = d.x()
    sizes = [int(n) for n in d.rng.permutation(x.shape)] + [1] * d.int(0, 1)
    if sizes and d.chance(0.4):
        sizes[d.int(0, len(sizes) - 1)] = -1
    return (x, tuple(sizes)), {}


@case("ravel")
def _(d: Draw) -> Any:
    return (d.x(),), {}


@case("flatten")
def _(d: Draw) -> Any:
    x = d.x()
    return (x,), d.some(start_dim=d.dim(x), end_dim=d.dim(x))


@case("unflatten")
def _(d: Draw) -> Any:
    x = d.x(d.shape(low=1))
    dim = d.dim(x)
    return (x, dim, d.pick([(x.shape[dim], 1), (1, -1), (-1, 2), (2, 2), [x.shape[dim]]])), {}


@case("squeeze")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, *([] if d.chance(0.3) else [d.pick([d.dim(x), d.dims(x)])])), {}


@case("unsqueeze")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, d.dim(len(x.shape) + 1)), {}


@case("transpose swapaxes")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, d.dim(x), d.dim(x)), {}


@case("permute")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, d.dims(x, 4)), {}


@case("movedim")
def _(d: Draw) -> Any:
    x = d.x()
    if d.chance(0.5):
        return (x, d.dim(x), d.dim(x)), {}
    source = d.dims(x)
    return (x, source, d.dims(x, 4)[: len(source)]), {}


@case("expand broadcast_to")
def _(d: Draw) -> Any:
    whole = d.shape()
    x = d.x(d.broadcasting(whole))
    return (x, whole), {}


@case("repeat tile")
def _(d: Draw) -> Any:
    x = d.x(d.shape(high=3))
    return (x, tuple(d.int(0, 2) for _ in range(d.int(0, 4)))), {}


@case("repeat_interleave")
def _(d: Draw) -> Any:
    x = d.x(d.shape(high=3))
    if d.chance(0.3):
        return (x, d.int(0, 2)), {}
    dim = d.dim(x)
    return (x, d.pick([d.int(0, 2), d.ids((x.shape[dim] if x.shape else 1,), 3)]), dim), {}


@case("roll")
def _(d: Draw) -> Any:
    x = d.x()
    if d.chance(0.3):
        return (x, d.int(-3, 3)), {}
    dims = d.dims(x)
    return (x, tuple(d.int(-3, 3) for _ in dims), dims), {}


@case("flip")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, d.pick([d.dims(x), list(d.dims(x))])), {}


@case("tril triu")
def _(d: Draw) -> Any:
    return (d.x(d.shape(low=1)), *([d.int(-3, 3)] if d.chance(0.6) else [])), {}


@case("cat concat")
def _(d: Draw) -> Any:
    shape = d.shape(low=1)
    dim = d.dim(len(shape))
    lengths = [d.int(0, 2) for _ in range(d.int(1, 3))]
    dtype = d.dtype()
    pieces = [tuple(n if i == dim % len(shape) else m for i, m in enumerate(shape)) for n in lengths]
    return ([d.x(p, d.pick([dtype, d.dtype()])) for p in pieces], dim), {}


@case("stack")
def _(d: Draw) -> Any:
    shape, dtype = d.shape(high=3), d.dtype()
    return ([d.x(shape, dtype) for _ in range(d.int(1, 3))], d.dim(len(shape) + 1)), {}


@case("hstack vstack")
def _(d: Draw) -> Any:
    shape, dtype = d.shape(high=3), d.dtype()
    return ([d.x(shape, dtype) for _ in range(d.int(1, 3))],), {}


@case("broadcast_tensors")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, *(d.x(d.broadcasting(x.shape)) for _ in range(d.int(0, 2)))), {}


@case("meshgrid")
def _(d: Draw) -> Any:
    dtype = d.dtype()
    return tuple(d.x(d.shape(high=1), dtype) for _ in range(d.int(1, 3))), {"indexing": d.pick(["ij", "xy"])}


@case("isin searchsorted")
def _(d: Draw) -> Any:
    rows = d.x((d.int(0, 5),))
    rows.base.sort()
    rows.layout, rows.base = "plain", np.sort(np.resize(rows.base, rows.shape))
    return (rows, d.x(dtype=rows.base.dtype.name)), {}


@case("split")
def _(d: Draw) -> Any:
    x = d.x(d.shape(low=1))
    dim = d.dim(x)
    cut = d.int(0, x.shape[dim])
    return (x, d.pick([d.int(1, 4), [cut, x.shape[dim] - cut], (cut, x.shape[dim] - cut)]), dim), {}


@case("chunk")
def _(d: Draw) -> Any:
    x = d.x(d.shape(low=1))
    return (x, d.int(0, 4), d.dim(x)), {}


@case("unbind")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, *([d.dim(x)] if d.chance(0.7) else [])), {}


@case("view_as reshape_as expand_as type_as")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, d.x(d.pick([x.shape, x.shape[::-1], (2, *x.shape)]))), {}


@case("size")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, *([d.dim(x)] if d.chance(0.6) else [])), {}


@case("stride")
def _(d: Draw) -> Any:
    x = d.x(tuple(d.int(2, 4) for _ in range(d.int(0, 3))))  # along axes of length 1 a stride means nothing
    return (x, *([d.dim(x)] if d.chance(0.6) else [])), {}


@case("dim element_size is_contiguous item tolist float double long int bool cpu data_ptr __len__")
def _(d: Draw) -> Any:
    return (d.x(),), {}


# --- picking and putting ------------------------------------------------------------------------------------


def _corner(d: Draw, shape: Any, dim: int, length: int | None = None) -> tuple[int, ...]:
    """The shape of an index: nowhere longer than a tensor but along dim."""
    return tuple(
        (d.int(0, 3) if length is None else length)
        if i == dim % len(shape)
        else d.int(min(n, 1), n)
        if d.chance(0.3)
        else n
        for i, n in enumerate(shape)
    )


@case("gather")
def _(d: Draw) -> Any:
    x = d.x(d.shape(empty=False))
    dim = d.dim(x)
    return (x, dim, d.ids(_corner(d, x.shape, dim), x.shape[dim] if x.shape else 1)), {}


@case("scatter scatter_add")
def _(d: Draw) -> Any:
    x = d.x(d.shape(low=1, empty=False))
    dim = d.dim(x)
    shape = _corner(d, x.shape, dim, d.int(1, x.shape[dim]))
    ids = d.ids(shape, x.shape[dim], unique_along=dim % len(x.shape))
    return (x, dim, ids, d.x(shape, x.base.dtype.name)), {}


@case("index_select")
def _(d: Draw) -> Any:
    x = d.x(d.shape(empty=False))
    dim = d.dim(x)
    return (x, dim, d.ids((d.int(0, 4),), x.shape[dim] if x.shape else 1)), {}


@case("index_fill")
def _(d: Draw) -> Any:
    x = d.x(d.shape(empty=False))
    dim = d.dim(x)
    value = d.pick([0, 2, 1.5, -1, True, d.x((), x.base.dtype.name)])
    return (x, dim, d.ids((d.int(0, 3),), x.shape[dim] if x.shape else 1), value), {}


@case("take_along_dim")
def _(d: Draw) -> Any:
    x = d.x(d.shape(low=1, empty=False))
    dim = d.dim(x)
    shape = tuple(d.int(0, 3) if i == dim % len(x.shape) else d.pick([1, n]) for i, n in enumerate(x.shape))
    return (x, d.ids(shape, x.shape[dim]), *([dim] if d.chance(0.9) else [])), {}


@case("masked_select")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, d.mask(d.broadcasting(x.shape))), {}


@case("narrow")
def _(d: Draw) -> Any:
    x = d.x(d.shape(low=1))
    dim = d.dim(x)
    start = d.int(-x.shape[dim], x.shape[dim])
    return (x, dim, start, d.int(0, x.shape[dim] - start % max(x.shape[dim], 1))), {}


@case("select")
def _(d: Draw) -> Any:
    x = d.x(d.shape(low=1))
    dim = d.dim(x)
    return (x, dim, d.int(-x.shape[dim], x.shape[dim])), {}


@case("diagonal")
def _(d: Draw) -> Any:
    x = d.x(d.shape(low=2))
    if d.chance(0.4):
        return (x,), d.some(offset=d.int(-3, 3))
    return (x, d.int(-3, 3), *[int(a) for a in d.rng.permutation(len(x.shape))[:2]]), {}


@case("diag")
def _(d: Draw) -> Any:
    return (d.x(d.shape(low=1, high=2)),), d.some(diagonal=d.int(-2, 2))


@case("trace")
def _(d: Draw) -> Any:
    return (d.x(d.shape(low=2, high=2)),), {}


@case("index_add index_copy")
def _(d: Draw) -> Any:
    x = d.x(d.shape(low=1, empty=False))
    dim = d.dim(x)
    n = d.int(0, x.shape[dim])
    source = d.x(tuple(n if i == dim % len(x.shape) else m for i, m in enumerate(x.shape)), x.base.dtype.name)
    return (x, dim, d.ids((n,), x.shape[dim], unique_along=0), source), {}


@case("argwhere")
def _(d: Draw) -> Any:
    return (d.x(),), {}


@case("nonzero")
def _(d: Draw) -> Any:
    return (d.x(),), d.some(as_tuple=d.chance(0.5))


# --- products -----------------------------------------------------------------------------------------------


@case("matmul __matmul__")
def _(d: Draw) -> Any:
    m, k, n, dtype = d.int(0, 3), d.int(0, 4), d.int(0, 3), d.dtype()
    lead = d.shape(high=2)
    a = d.pick([(k,), (m, k), (*lead, m, k)])
    b = d.pick([(k,), (k, n), (*d.broadcasting(lead), k, n)])
    return (d.x(a, dtype), d.x(b, dtype)), {}


@case("mm")
def _(d: Draw) -> Any:
    m, k, n, dtype = d.int(0, 3), d.int(0, 4), d.int(0, 3), d.dtype()
    return (d.x((m, k), dtype), d.x((k, n), dtype)), {}


@case("bmm")
def _(d: Draw) -> Any:
    b, m, k, n, dtype = d.int(0, 2), d.int(0, 3), d.int(0, 4), d.int(0, 3), d.dtype()
    return (d.x((b, m, k), dtype), d.x((b, k, n), dtype)), {}


@case("mv")
def _(d: Draw) -> Any:
    m, k, dtype = d.int(0, 3), d.int(0, 4), d.dtype()
    return (d.x((m, k), dtype), d.x((k,), dtype)), {}


@case("dot")
def _(d: Draw) -> Any:
    k, dtype = d.int(0, 4), d.dtype()
    return (d.x((k,), dtype), d.x((k,), dtype)), {}


@case("outer")
def _(d: Draw) -> Any:
    return (d.x((d.int(0, 4),)), d.x((d.int(0, 4),))), {}


def _plus_product(d: Draw, lead: tuple[int, ...]) -> Any:
    m, k, n, dtype = d.int(0, 3), d.int(0, 4), d.int(0, 3), d.pick([*FLOATS, "int64"])
    whole = (*lead, m, n)
    bias = d.pick([whole, d.broadcasting(whole)])
    options = d.some(beta=d.pick([2, 0, 0.5]), alpha=d.pick([3, -1, 0.5]))
    return (d.x(bias, dtype), d.x((*lead, m, k), dtype), d.x((*lead, k, n), dtype)), options


@case("addmm")
def _(d: Draw) -> Any:
    return _plus_product(d, ())


@case("baddbmm")
def _(d: Draw) -> Any:
    return _plus_product(d, (d.int(0, 2),))


@case("einsum")
def _(d: Draw) -> Any:
    sizes = dict(zip("ijkb", (d.int(0, 3) for _ in range(4)), strict=True))
    equation = d.pick(
        ["ij,jk->ik", "bij,bjk->bik", "i,i->", "ij->ji", "ii->i", "bi,ij,bj->b", "...i,ij->...j", "ij,ij"]
    )
    dtype = d.pick(FLOATS)
    terms = equation.split("->")[0].replace("...", "b").split(",")
    return (equation, *(d.x(tuple(sizes[c] for c in term), dtype) for term in terms)), {}


# --- making tensors -----------------------------------------------------------------------------------------


@case("zeros ones empty rand randn")
def _(d: Draw) -> Any:
    shape, floats = d.shape(), d.some(dtype=Name(d.pick(FLOATS)))
    return ((shape,) if d.chance(0.5) or not shape else shape), floats | d.some(device="cpu")


@case("full")
def _(d: Draw) -> Any:
    return (d.shape(), d.number()), d.some(dtype=Name(d.pick(DTYPES[:4])))


@case("eye")
def _(d: Draw) -> Any:
    return (d.int(0, 4), *([d.int(0, 4)] if d.chance(0.5) else [])), d.some(dtype=Name(d.pick(DTYPES)))


@case("arange")
def _(d: Draw) -> Any:
    if d.chance(0.3):
        return (d.pick([0, 3, 4.0, 2.5]),), d.some(dtype=Name(d.pick(DTYPES[:4])))
    return (d.pick([0, -2, 0.5]), d.pick([3, 4.0, 1]), d.pick([1, 2, 0.3, -1, 0])), {}


@case("linspace")
def _(d: Draw) -> Any:
    return (d.pick([0, -1.5]), d.pick([1, 2.5, -3]), d.int(0, 5)), d.some(dtype=Name(d.pick(FLOATS)))


@case("randint")
def _(d: Draw) -> Any:
    low, high, size = d.int(-2, 2), d.int(0, 5), d.shape()
    return ((high, size) if d.chance(0.4) else (low, high, size)), d.some(dtype=Name(d.pick(DTYPES[:4])))


@case("randperm")
def _(d: Draw) -> Any:
    return (d.int(0, 6),), d.some(dtype=Name(d.pick(DTYPES[:4])))


@case("normal")
def _(d: Draw) -> Any:
    return (d.pick([0.0, 1.5]), d.pick([1.0, 2.0]), d.shape()), {}


@case("zeros_like ones_like empty_like rand_like randn_like")
def _(d: Draw) -> Any:
    return (d.floating(),), d.some(dtype=Name(d.pick(FLOATS)))


@case("full_like")
def _(d: Draw) -> Any:
    return (d.x(), d.number()), d.some(dtype=Name(d.pick(FLOATS)))


@case("tensor as_tensor")
def _(d: Draw) -> Any:
    data = d.x().base
    data = d.pick([data, data.tolist(), d.number(), [1, [2]], [[1.5], [True]], [], "a"])
    return (data,), d.some(dtype=Name(d.pick(DTYPES)))


@case("from_numpy")
def _(d: Draw) -> Any:
    return (d.pick([d.x().base, [1, 2], 1.5]),), {}


@case("bernoulli")
def _(d: Draw) -> Any:
    return (d.floating(low=0, high=1),), {}


@case("multinomial")
def _(d: Draw) -> Any:
    return (d.floating((*d.shape(high=1, empty=False), 4), low=0.1), d.int(1, 5), d.chance(0.5)), {}


@case("is_tensor")
def _(d: Draw) -> Any:
    return (d.pick([d.x(), 1.5, [1]]),), {}


# --- methods alone ------------------------------------------------------------------------------------------


@case("to type")
def _(d: Draw) -> Any:
    return (d.x(), Name(d.pick(DTYPES))), {}


@case("new_tensor")
def _(d: Draw) -> Any:
    return (d.x(), d.pick([1.5, [1, 2], [[True]], d.x().base])), d.some(dtype=Name(d.pick(DTYPES)))


@case("new_zeros new_ones new_empty")
def _(d: Draw) -> Any:
    shape = d.shape()
    return ((d.x(), shape) if d.chance(0.5) or not shape else (d.x(), *shape)), d.some(
        dtype=Name(d.pick(DTYPES))
    )


@case("new_full")
def _(d: Draw) -> Any:
    return (d.x(), d.shape(), d.pick([2, 0, 1])), d.some(dtype=Name(d.pick(DTYPES)))


@case("copy_")
def _(d: Draw) -> Any:
    x = d.x()
    return (x, d.x(d.broadcasting(x.shape))), {}


@case("fill_")
def _(d: Draw) -> Any:
    return (d.x(), d.pick([0, 2, 1.5, True, d.x((), "float64"), d.x(d.shape())])), {}


@case("mT")
def _(d: Draw) -> Any:
    return (d.x(d.shape(low=2)),), {}  # of a vector PyTorch warns that it will be an error


@case("zero_ detach_ T shape ndim dtype is_leaf requires_grad itemsize nbytes data")
def _(d: Draw) -> Any:
    return (d.x(),), {}


@case("normal_ uniform_ exponential_")
def _(d: Draw) -> Any:
    return (d.floating(), *d.pick([(), (0.5,)])), {}


# --- the programs -------------------------------------------------------------------------------------------


# of these, shapes and dtypes alone are compared
RANDOM = {*"data_ptr empty empty_like new_empty rand randn rand_like randn_like randint randperm".split()}
RANDOM |= {*"normal bernoulli multinomial normal_ uniform_ exponential_".split()}
# what is no function of tensors, and the test that compares it
ELSEWHERE = {
    "tests/test_engine.py": "no_grad enable_grad inference_mode is_grad_enabled backward grad",
    "tests/regressions/test_python.py": "set_grad_enabled",
    "tests/test_safety.py": "register_hook retain_grad retains_grad grad_fn requires_grad_ numpy name",
    "tests/test_torch_surface.py": "Tensor Size device finfo iinfo cuda half get_default_dtype",
    "tests/test_tensor.py": "Generator manual_seed get_rng_state set_rng_state set_default_dtype",
}


def elements(made: Program, which: int = 0) -> np.ndarray:
    """Those of an input, as the function sees them."""
    given = made.args[which]
    return given.build(mt)[1].array if isinstance(given, Input) else np.array(given)


def with_equals(made: Program) -> bool:
    """Are two elements of the first input the same?"""
    x = elements(made)
    return len(np.unique(x)) < x.size


def without_spread(made: Program) -> bool:
    """Is a value of var or std 0, or what is left of it by rounding, or NaN?"""
    y = made.run(mt)[1][0].array
    return bool((np.isnan(y) | (y < 1e-6)).any())


def at_the_origin(made: Program) -> bool:
    """Are two elements, one of each input, 0?"""
    return all((elements(made, i) == 0).any() for i in (0, 1))


def over_no_axes(made: Program) -> bool:
    """Is there an empty dim?"""
    return any(isinstance(a, tuple | list) and not a for a in (*made.args[1:2], made.options.get("dim")))


def with_both_bounds(made: Program) -> bool:
    """Is one bound a tensor, the other a number?"""
    bounds = [*made.args[1:3], *(made.options.get(name) for name in ("min", "max"))]
    tensors = [isinstance(bound, Input) for bound in bounds if bound is not None]
    return sorted(tensors) == [False, True]


def of_nothing(made: Program) -> bool:
    """Is there an input without elements?"""
    return any(isinstance(given, Input) and 0 in given.shape for given in made.args)


def of_empty_vectors(made: Program) -> bool:
    """Has every piece the shape (0,)?"""
    return all(piece.shape == (0,) for piece in made.args[0])


def of_hardly_anything(made: Program) -> bool:
    """Is there an axis of length 0 or 1?"""
    return any(isinstance(given, Input) and min(given.shape, default=1) < 2 for given in made.args)


def beside_more_than_uint8_holds(made: Program) -> bool:
    x, *others = made.args
    bounds = [*others, *made.options.values()]
    outside = any(isinstance(n, int) and not 0 <= n <= 255 for n in bounds)
    return isinstance(x, Input) and x.base.dtype == "uint8" and outside


def of_two_and_a_half(made: Program) -> bool:
    """Is it arange(2.5, dtype=int32)?"""
    return made.args == (2.5,) and made.options == {"dtype": Name("int32")}


# what we do otherwise on purpose: names, what of torch's error or of the difference, words of differences.md,
# and where the error does not tell, which programs alone
DIFFERENT: list[tuple[Any, ...]] = [
    (
        ".*",
        "not implemented for|does not support bool|Boolean inputs not supp|Unsupported input",
        "no kernel",
    ),
    ("index_(copy|fill)|take_along_dim", "Expected a long|Expected dtype int64|should be Long", "no kernel"),
    (
        "gather|scatter.*|index_.*",
        r"(index|source) is (bool|uint8|float)|index \(.*\b0\b.*\) (for|is longer)|is outside 0 … -1;",
        "does not look",
        of_nothing,
    ),
    ("pow", "negative integer powers", "would be cut"),
    ("add|sub|mul|div|floor_divide", "takes a tensor, not (int|float|bool)", "no two numbers"),
    ("atan2", "derivative 2 .*torch has .*nan", "near the origin", at_the_origin),
    ("((b?add)?b)?mm|addmm|matmul|mv|dot|inner|tensordot", "dtypes .* differ", "does not look", of_nothing),
    ("bernoulli", "give probabilities", "does not look", of_nothing),
    ("pow", "derivative 2 by input", "xᵖ by both at p = 0", lambda made: (elements(made, 1) == 0).any()),
    ("copy", "has no gradient, which a value", "a gradient into integers"),
    ("pow", "derivative 2 by input 1", "by both, at x = 0", lambda made: (elements(made) == 0).any()),
    (
        "pow",
        "derivative 2 by input 0 .*torch has .*nan",
        "by both, at x = 0",
        lambda made: (elements(made) == 0).any(),
    ),
    ("take_along_dim", "index is (bool|uint8|float)", "does not look", of_nothing),
    ("diff", "dim .* is out of range", "does not look", lambda made: made.options.get("n") == 0),
    ("roll", "dim .* is out of range", "does not look", of_nothing),
    ("cat|concat", "dim .* is out of range", "does not look", of_empty_vectors),
    ("einsum", "dtypes .* differ", "does not look", of_hardly_anything),
    (
        "exponential|normal|uniform|randn?_like",
        "cannot hold",
        "does not look",
        of_nothing,
    ),
    (
        "cl(am|i)p",
        "received an invalid combination .* got .*(float|int|bool)",
        "beside a tensor",
        with_both_bounds,
    ),
    ("where", "the mask is uint8", "no `uint8` mask"),
    ("take_along_dim", "tensor has no dimensions", "an axis 0 in `take_along_dim`"),
    ("topk", "result 1|derivative", "takes equals in their order", with_equals),
    ("any|all", "result 0 has shape", "of no axes at all", over_no_axes),
    ("logsumexp", r"output with shape \[\] doesn't match", "of no axes at all", over_no_axes),
    ("var|std", "derivative", "over no axes", over_no_axes),
    ("arange", r"result 0 has shape \(2,\), torch \(3,\)", "`arange(2.5, dtype=int32)`", of_two_and_a_half),
    ("((masked|index)_)?fill", "carries no gradient to value", "would be cut"),
    ("full_like|new_full|full|tensor|as_tensor|new_tensor", "uint8 cannot hold", "would be cut"),
    ("(log_)?softmax", "is float32, torch has (int|uint|bool)", "no kernel"),
    ("isin|take_along_dim", r"view size is not compatible.*Use .reshape", "for its strides"),
    ("add|sub|addcmul|addcdiv", "the factor 0.5 is cut in", "would be cut"),
    (
        "clamp|clip|masked_fill|index_fill|fill",
        "out of bounds for uint8|uint8 cannot hold|torch has .*255",
        "would be cut",
    ),
    ("sub", r"Subtraction, the `-` operator, with (a|two) bool tensor", "booleans count as 0 and 1"),
    ("pow", "booleans have none", "booleans count as 0 and 1"),
    ("any|all", "is bool, torch has uint8", "booleans for every dtype"),
    ("var", "derivative 2 .* is .*nan", "nothing is left to divide by", without_spread),
    ("std", "derivative 2", "nothing is left to divide by", without_spread),
    ("norm", "derivative 2 .*torch has .*nan", "a zero vector"),
    ("take_along_dim", "is outside", "outside"),
    ("addmm|baddbmm", "give integers", "would be cut"),
    (
        "atan2",
        "derivative . by input 1",
        "a `uint8` numerator",
        lambda made: made.args[0].base.dtype == "uint8",
    ),
    ("le|lt|ge|gt|eq|ne", "result 0 is .*torch has", "take 300 as it is", beside_more_than_uint8_holds),
    ("type", "no dtype is given", "`x.type()`"),
    ("to", "there is no 1.5 here", "`x.to(1.5)` is an error"),
    ("repeat_interleave", "missing 1 required.*torch gives", "`repeat_interleave(repeats)`"),
]


def forms(name: str) -> list[str]:
    """How both libraries let the name be called."""
    found = []
    if callable(getattr(mt, name, None)) and inspect.isroutine(getattr(torch, name, None)):
        found.append("function")
    if hasattr(mt.Tensor, name) and hasattr(torch.Tensor, name):
        found.append("method")
    if isinstance(getattr(mt.Tensor, name, None), property):
        return ["property"]
    if name.endswith("_") and not name.startswith("_"):
        return ["in place", "in place, view"]
    if hasattr(mt.Tensor, f"{name}_") and hasattr(torch.Tensor, f"{name}_"):
        found += ["in place", "in place, view"]
    return found


def program(name: str, seed: int) -> Program:
    """The program of a seed: one call of the named function, one in five spoiled."""
    d = Draw(zlib.crc32(f"{name}{seed}".encode()))
    args, options = CASES[name](d)
    form = d.pick(forms(name))
    if form != "function" and not isinstance(args[0], Input):
        form = "function"
    if name == "where" and form == "method":  # the condition comes second
        form = form if len(args) < 3 or isinstance(args[1], Input) else "function"
        args = (args[1], args[0], *args[2:]) if len(args) == 3 and form == "method" else args
    in_place = form.startswith("in place") and not name.endswith("_")
    made = Program(f"{name}_" if in_place else name, form, args, options)
    spoiled = d.chance(0.2) and form != "property" and not name.startswith("__") and name != "stride"
    return spoil(made, d) if spoiled else made


def difference(made: Program, seed: int) -> str | None:
    """What is not the same, but for what is meant."""
    bounds = [*made.args[1:], *made.options.values()] if re.match("cl(am|i)p", made.name) else []
    if any(isinstance(bound, int) and bound < 0 for bound in bounds) and "uint8" in str(made.args[:1]):
        return None  # PyTorch's −1 is 255, which may be more than the upper bound, too
    if made.name == "searchsorted" and not np.array_equal(
        rows := np.atleast_1d(elements(made)), np.sort(rows)
    ):
        return (
            None  # rows that are not sorted, spoiled perhaps: where something belongs in them means nothing
        )
    found = compare(made, np.random.default_rng(seed), values=made.name not in RANDOM)
    return None if found and is_meant(DIFFERENT, made.name.rstrip("_"), made, found) else found


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=settings.default.max_examples // 3)  # a third of the profile: there are 190 cases
def test_a_random_call_gives_the_same_as_in_pytorch(name, seed):
    made = program(name, seed)
    found = difference(made, seed)
    assert found is None, f"{made}: {found}"


def test_every_function_that_pytorch_has_too_is_in_a_case():
    functions = [n for n in mt.__all__ if hasattr(torch, n) and callable(getattr(mt, n))]
    methods = [n for n in dir(mt.Tensor) if not n.startswith("_") and hasattr(torch.Tensor, n)]
    elsewhere = {name for names in ELSEWHERE.values() for name in names.split()}
    known = {*CASES, *(f"{name}_" for name in CASES), *elsewhere}
    assert [n for n in [*functions, *methods] if n not in known] == []
    assert [n for n in CASES if not forms(n)] == []
    assert not elsewhere & set(CASES)


def test_what_is_different_on_purpose_stands_in_the_readme():
    assert not_told(words for _, _, words, *_ in DIFFERENT) == []
