"""Arguments that cannot be meant, given to every function of tensors: our error, or a tensor.

Nothing of NumPy's or Python's own comes through, and no result is of a dtype that is not ours.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import math
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import microtensor as mt
import models
from microtensor import Tensor, dtypes, functions, missing, nn
from microtensor.nn import functional as F
from microtensor.nn.utils import clip_grad_norm_

X, BYTES = mt.tensor([1.0, 2.0, 3.0]), mt.tensor([1, 2, 3], dtype=mt.uint8)
MASK, IDS, POINT = mt.tensor([True, False, True]), mt.tensor([1, 2, 3]), mt.tensor(1.0)

# what is called → its error begins so
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "full": (lambda: mt.full((2,), 300, dtype=mt.uint8), ValueError, "full: uint8 cannot hold 300"),
    "full nan": (lambda: mt.full((2,), float("nan"), dtype=mt.int64), ValueError, "full: int64 cannot hold"),
    "full, wide": (lambda: mt.full((2,), 2**80), TypeError, f"full: {2**80} is beyond int64"),
    "full_like": (lambda: mt.full_like(BYTES, -1), ValueError, "full_like: uint8 cannot hold -1"),
    "new_full": (lambda: BYTES.new_full((2,), 300), ValueError, "new_full: uint8 cannot hold 300"),
    "fill_": (lambda: BYTES.clone().fill_(300), ValueError, "fill_: uint8 cannot hold 300"),
    "fill_, axis": (lambda: X.clone().fill_(X[:1]), ValueError, r"fill_: value has shape \(1,\)"),
    "fill_, list": (lambda: X.clone().fill_([5.0]), TypeError, r"fill_: \[5.0\] is no number"),
    "fill_, gradient": (
        lambda: BYTES.clone().fill_(mt.tensor(5.0, requires_grad=True)),
        RuntimeError,
        "fill_: uint8 carries no gradient to value",
    ),
    "masked_fill, inf": (
        lambda: IDS.masked_fill(MASK, -math.inf),
        ValueError,
        "masked_fill: int64 cannot hold -inf",
    ),
    "index_fill": (
        lambda: BYTES.index_fill(0, IDS[:1], 300),
        ValueError,
        "index_fill: uint8 cannot hold 300",
    ),
    "int64": (lambda: IDS + 2**70, ValueError, "add: int64 cannot hold"),
    "linspace, bytes": (
        lambda: mt.linspace(300, 302, 2, dtype=mt.uint8),
        ValueError,
        "linspace: uint8 cannot hold 300",
    ),
    "linspace, nan": (
        lambda: mt.linspace(math.nan, 1, 2, dtype=mt.int64),
        ValueError,
        "linspace: int64 cannot hold nan",
    ),
    "linspace, end": (
        lambda: mt.linspace(2**63 - 1, 2**63 - 1, 2, dtype=mt.int64),
        ValueError,
        "linspace: int64 cannot",
    ),
    "arange, bytes": (
        lambda: mt.arange(298, 302, dtype=mt.uint8),
        ValueError,
        "arange: uint8 cannot hold 298",
    ),
    **{
        f"arange, {where}": (lambda a=a: mt.arange(*a), ValueError, "arange: int64 cannot hold")
        for where, a in {
            "start": (2**70, 2**70 + 3),
            "end": (0, 2**64, 2**62),
            "step": (0, -3, -(2**70)),
            "empty": (2**70, 2**70),
        }.items()
    },
    **{
        f"arange of {dtype}": (
            lambda dtype=dtype: mt.arange(1e30 - 2, 1e30, dtype=dtype),
            ValueError,
            "arange: int64 cannot hold 1000000000000000019884624838656",
        )
        for dtype in (mt.int64, mt.int32, mt.uint8)
    },
    "randperm, bytes": (
        lambda: mt.randperm(300, dtype=mt.uint8),
        ValueError,
        "randperm: uint8 cannot hold 299",
    ),
    "zeros, too many": (
        lambda: mt.zeros(2**40, 2**40),
        ValueError,
        r"zeros: the shape \(\d+, \d+\) fits into no",
    ),
    "uniform_": (
        lambda: X.clone().uniform_(-math.inf, math.inf),
        ValueError,
        "uniform_: low -inf lies above",
    ),
    "Parameter": (lambda: nn.Parameter(3), RuntimeError, r"Parameter: a tensor of shape \(\) is int64"),
    "ParameterList": (lambda: nn.ParameterList([3]), RuntimeError, r"\w+: a tensor of shape \(\) is int64"),
    "lerp, cut": (lambda: IDS.lerp(IDS, 0.5), RuntimeError, "lerp: a lerp of int64 would be cut"),
    "where": (lambda: X.where(MASK, "a"), TypeError, "where: 'a' is no number"),
    "where, None": (lambda: X.where(MASK, None), TypeError, "where: None is no number"),
    "where, list": (lambda: X.where(MASK, [1, 2, 3]), TypeError, r"where: \[1, 2, 3\] is no number"),
    "nan_to_num": (lambda: X.nan_to_num("a"), TypeError, "nan_to_num: 'a' is no number"),
    "posinf": (lambda: X.nan_to_num(posinf="a"), TypeError, "nan_to_num: 'a' is no number"),
    "lerp": (lambda: X.lerp(X, "a"), TypeError, "lerp: 'a' is of type str"),
    "lerp, weight": (
        lambda: X.lerp(X, mt.ones(3, dtype=mt.float64)),
        TypeError,
        "lerp: dtypes float32, float32 and float64 differ",
    ),
    "add_": (lambda: X.clone().add_(mt.zeros(4)), ValueError, r"add_: shapes \(3,\) and \(4,\)"),
    "+=": (lambda: X.clone().__iadd__(mt.zeros(4)), ValueError, r"add_: shapes \(3,\) and \(4,\)"),
    "clip_": (lambda: X.clone().clip_(), ValueError, "clip_: neither min nor max is given"),
    "addmm": (
        lambda: mt.addmm(X, mt.ones(2, 3), mt.ones(2, 3)),
        ValueError,
        r"addmm: shapes \(2, 3\) and \(2, 3\) do not fit",
    ),
    "baddbmm": (lambda: mt.baddbmm(X, MASK, X), TypeError, "baddbmm: dtypes bool and float32 differ"),
    "copy_": (lambda: mt.zeros(3).copy_(mt.ones(1, 3)), ValueError, r"copy_: shape \(1, 3\) does not fit"),
    "scatter_add": (lambda: X.scatter_add(0, IDS - 1, 1.5), TypeError, "scatter_add: src is a float"),
    "neg": (lambda: -MASK, TypeError, r"neg: .*(?=; use ~ for not .*, or \.long\(\) to)"),
    "sub": (lambda: MASK - MASK, TypeError, r"sub: .*(?=; use ~ .*, or \.long\(\) to)"),
    "all": (lambda: X.all((), 1.5), TypeError, "all: keepdim is 1.5"),
    "replacement": (lambda: X.multinomial(2, "a"), TypeError, "multinomial: replacement is 'a'"),
    "clamp": (lambda: X.clamp(X, 1j), TypeError, "clamp: 1j is no number"),
    "randperm": (lambda: mt.randperm(-1), ValueError, r"randperm: the shape \(-1,\)"),
    "randperm, fraction": (lambda: mt.randperm(2.5), TypeError, "randperm: a shape is made of integers"),
    "normal": (lambda: mt.normal(0, -1, (2,)), ValueError, "normal: std is -1"),
    "normal, deviations": (
        lambda: mt.normal(X, mt.tensor([1.0, -2.0, math.nan])),
        ValueError,
        "normal: std is -2.0",
    ),
    "normal, no size": (lambda: mt.normal(0, 1), TypeError, "normal: no size is given"),
    "bernoulli": (lambda: X.bernoulli(), ValueError, "bernoulli: 2.0 is no probability"),
    "bernoulli, p": (lambda: X.bernoulli("a"), TypeError, "bernoulli: 'a' is no number"),
    "bincount, negative": (lambda: (IDS - 3).bincount(), ValueError, r"bincount: int64\(3,\) from -2 on"),
    "multinomial": (lambda: (X - 3).multinomial(1), ValueError, "multinomial: weights from -2.0 to 0.0"),
    "normal, integers": (lambda: mt.normal(0, 1, (2,), dtype=mt.int64), TypeError, "normal: draws fractions"),
    "normal_": (lambda: mt.zeros(2).normal_("a"), TypeError, "normal_: 'a' is no number"),
    "randint": (lambda: mt.randint(1.5, 3, (2,)), TypeError, "randint: low is 1.5"),
    "randint, high": (lambda: mt.randint(1, 3.5, (2,)), TypeError, "randint: high is 3.5"),
    "randint, alone": (lambda: mt.randint(1.5, (2,)), TypeError, "randint: high is 1.5"),
    "randint, bytes": (lambda: mt.randint(0, 300, (2,), dtype=mt.uint8), ValueError, "randint: uint8 cannot"),
    "randint, truth": (lambda: mt.randint(3, (2,), dtype=mt.bool), ValueError, "randint: bool cannot hold"),
    "rand": (lambda: mt.rand(2, dtype="float16"), TypeError, "rand: there is no float16 here"),
    "generator": (lambda: mt.rand(2, generator=3), TypeError, "rand: generator is 3"),
    "arange": (lambda: mt.arange(0, float("inf")), ValueError, "arange: from 0 to inf by 1 does not end"),
    "linspace": (lambda: mt.linspace(0, 1, 2.5), TypeError, "linspace: steps is 2.5"),
    "set_rng_state": (lambda: mt.set_rng_state(3), TypeError, "set_rng_state: new_state is a int"),
    "zeros_like": (lambda: mt.zeros_like(3), TypeError, "zeros_like: input is a int"),
    "reshape": (lambda: X.reshape(-2), ValueError, r"reshape: the shape \(-2,\)"),
    "reshape, two": (lambda: X.reshape(-1, -1), ValueError, r"reshape: the shape \(-1, -1\)"),
    "reshape, none": (lambda: X[:0].reshape(-1, 0), ValueError, r"reshape: shape \(0,\) has 0 elements"),
    "view": (lambda: X.view(2, 2), ValueError, r"view: shape \(3,\) has 3 elements"),
    "view_as": (lambda: X.view_as(mt.ones(4)), ValueError, "view_as: shape"),
    "reshape_as": (lambda: X.reshape_as(mt.ones(4)), ValueError, "reshape_as: shape"),
    "expand_as": (lambda: X.expand_as(mt.ones(4)), ValueError, r"expand_as: shape \(3,\)"),
    "broadcast_to": (lambda: X.broadcast_to((4,)), ValueError, "broadcast_to: shape"),
    "stack": (lambda: mt.stack([X, X], 5), IndexError, "stack: dim 5 is out of range"),
    "cat": (lambda: mt.cat([X, mt.ones(2, 2)]), ValueError, r"cat: shapes \[\(3,\), \(2, 2\)\] differ"),
    "vstack": (lambda: mt.vstack([X, mt.ones(2)]), ValueError, "vstack: shapes"),
    "hstack": (lambda: mt.hstack([X, mt.ones(2, 2)]), ValueError, "hstack: shapes"),
    "einsum": (lambda: mt.einsum(3, X), TypeError, "einsum: the equation is 3"),
    "diff": (lambda: X.diff(prepend=3), TypeError, "diff: piece 0 .* is a int"),
    "bincount": (lambda: IDS.bincount(weights=3), TypeError, "bincount: weights is a int"),
    "isclose": (lambda: X.isclose(mt.ones(2)), ValueError, r"isclose: shapes \(3,\) and \(2,\) do not"),
    "isclose, rtol": (lambda: X.isclose(X, rtol=-1), ValueError, "isclose: rtol is -1"),
    "take_along_dim": (
        lambda: mt.ones(2, 3).take_along_dim(mt.zeros(3, 3, dtype=mt.int64), 1),
        ValueError,
        "take_along_dim: shapes",
    ),
    "index_add": (lambda: POINT.index_add(0, mt.tensor([0]), 3), TypeError, "index_add: source is a int"),
    "index_copy": (lambda: POINT.index_copy(0, mt.tensor([0]), 3), TypeError, "index_copy: source is a int"),
    "any": (lambda: X.any(None, "a"), TypeError, "any: keepdim is 'a'"),
    "var": (lambda: X.var(correction="a"), TypeError, "var: 'a' is no number"),
    "alpha": (lambda: X.add(0, alpha=np.ones(3)), ValueError, r"add: value has shape \(3,\)"),
    "concat": (lambda: mt.concat([X, X], 5), IndexError, "concat: dim 5 is out of range"),
    "copy_, shape": (
        lambda: X.clone().copy_(mt.ones(4)),
        ValueError,
        r"copy_: value \(4,\) does not fit into \(3,\), x\[\.\.\.\] of",
    ),
    "normalize": (lambda: F.normalize(X, dim=4), IndexError, "normalize: dim 4 is out of range"),
    "cosine, eps": (lambda: F.cosine_similarity(X, X, 0, -5), ValueError, "cosine_similarity: eps is -5"),
    "kl_div": (lambda: F.kl_div(X, mt.ones(4)), ValueError, r"kl_div: shapes \(4,\) and \(3,\)"),
    "linear": (lambda: F.linear(X, mt.ones(4)), ValueError, r"linear: shapes \(3,\) and \(4,\) do not fit"),
    "one_hot": (lambda: F.one_hot(IDS, 2**70), ValueError, "one_hot: .* classes fit into no memory"),
    "Linear": (lambda: nn.Linear(-1, 2), ValueError, r"Linear: the shape \(2, -1\) has a negative length"),
    "Embedding": (lambda: nn.Embedding(3, 2.5), TypeError, "Embedding: a shape is made of integers"),
    "LayerNorm": (lambda: nn.LayerNorm(-2), ValueError, r"LayerNorm: the shape \(-2,\)"),
    "Linear, device": (
        lambda: nn.Linear(2, 2, device="cuda"),
        RuntimeError,
        "Linear: there is no device 'cuda'",
    ),
    "Sequential": (lambda: nn.Sequential()[3], IndexError, "Sequential: there is no 3 among its 0"),
    "pop": (lambda: nn.ModuleList([nn.Tanh()]).pop(5), IndexError, "ModuleList: there is no 5 among its 1"),
    "lr": (lambda: mt.optim.SGD([X], lr="a"), TypeError, "SGD.lr: 'a' is no number"),
    "clip": (lambda: clip_grad_norm_([X], "a"), TypeError, "clip_grad_norm_: max_norm is 'a'"),
    "clip, parameters": (lambda: clip_grad_norm_([3], 1.0), TypeError, "clip_grad_norm_: parameter 0 is int"),
    "init": (lambda: nn.init.normal_(3), TypeError, "normal_: tensor is 3"),
    "init, number": (lambda: nn.init.constant_(X, [1.0]), TypeError, r"constant_: val is \[1.0\]"),
    "init, order": (lambda: nn.init.uniform_(X, 3, 1), ValueError, "uniform_: from 3 to 1"),
    "max of two": (lambda: X.max(X, True), TypeError, "max: keepdim is True beside a tensor"),
    "nan_to_num, 1": (lambda: mt.tensor([1]).nan_to_num("a"), TypeError, "nan_to_num: 'a' is no"),
    "vectors": (lambda: X @ mt.ones(4), ValueError, r"matmul: shapes \(3,\) and \(4,\) do not fit"),
    "type": (lambda: X.type("foo"), TypeError, "type: there is no foo here"),
    "tensor": (
        lambda: mt.tensor(1, requires_grad=True),
        RuntimeError,
        "tensor: int64 cannot have a gradient",
    ),
    "randperm, two": (lambda: mt.randperm((2, 3)), TypeError, "randperm: a shape is made of integers"),
    "std": (lambda: X.std(dim=3), IndexError, "std: dim 3 is out of range"),
    "allclose": (lambda: X.allclose(mt.ones(2)), ValueError, "allclose: shapes"),
    "as_tensor": (lambda: mt.as_tensor("a"), TypeError, "as_tensor: 'a' is of type str"),
    "isin": (lambda: mt.isin(X, "a"), TypeError, "isin: 'a' is of type str"),
    "pos": (lambda: +MASK, TypeError, r"pos: booleans have no plus"),
    "mT": (lambda: X.mT, IndexError, r"mT: a tensor of shape \(3,\) is no matrix"),
    "type, none": (lambda: X.type(), TypeError, "type: no dtype is given"),
    "max, keepdim": (lambda: X.max(keepdim=1), TypeError, "max: keepdim is 1"),
    "set_default_dtype": (lambda: mt.set_default_dtype(None), TypeError, "set_default_dtype: None is not"),
    "tril": (lambda: mt.ones(2, 2).tril(2**70), ValueError, "tril: diagonal is"),
}
FULL = ("zeros", "ones", "empty", "eye", "rand", "randn")
PLACES: dict[str, Callable[..., Any]] = {name: getattr(mt, name) for name in FULL}
PLACES |= {
    f"{name}_like": getattr(mt, f"{name}_like") for name in ("zeros", "ones", "empty", "rand", "randn")
}
PLACES |= {f"new_{name}": getattr(X, f"new_{name}") for name in ("zeros", "ones", "empty")}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused_by_the_name_that_was_called(name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=f"^{words}.*; "):
        call()


@pytest.mark.parametrize("name", PLACES)
def test_another_device_or_dtype_is_refused_by_the_name_that_was_called(name):
    size = X if name.endswith("_like") else 2
    with pytest.raises(RuntimeError, match=f"^{name}: there is no device 'cuda'"):
        PLACES[name](size, device="cuda")
    with pytest.raises(TypeError, match=f"^{name}: there is no complex64 here"):
        PLACES[name](size, dtype=np.complex64)


INTS = mt.tensor([1, 2, 3], dtype=mt.int32)
WITH_NUMBER: dict[
    str, Callable[[Tensor, int], Any]
] = {  # what reads a number in the dtype of integers beside it
    "where": lambda x, n: x.where(x > 1, n),
    "where ": lambda x, n: mt.where(x > 1, n, x),
    "pow": lambda x, n: x**n,
    "pow ": lambda x, n: n**x,
    "pow_": lambda x, n: x.clone().pow_(n),
    "clamp": lambda x, n: x.clamp(x, n),
    "remainder": lambda x, n: x % n,
    "remainder ": lambda x, n: mt.remainder(n, x),
    "fmod": lambda x, n: x.fmod(n),
    "floor_divide": lambda x, n: x // n,
    "bitwise_and": lambda x, n: x & n,
    "bitwise_or": lambda x, n: n | x,
    "bitwise_xor": lambda x, n: x ^ n,
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "scatter": lambda x, n: x.scatter(0, mt.tensor([0]), n),
    "setitem": lambda x, n: x.clone().__setitem__(0, n),
    "copy_": lambda x, n: x.clone().copy_(n),
    "add": lambda x, n: x.add(x, alpha=n),
    "sub": lambda x, n: x.sub(1, alpha=n),
    "add_": lambda x, n: x.clone().add_(x, alpha=n),
    "index_add": lambda x, n: x.index_add(0, mt.tensor([0]), x[:1], alpha=n),
    "addcmul": lambda x, n: x.addcmul(x, x, value=n),
    "addmm": lambda x, n: x[:1].addmm(x[:1, None], x[None, :1], beta=n),
    "addmm ": lambda x, n: x[:1].addmm(x[:1, None], x[None, :1], alpha=n),
    "baddbmm": lambda x, n: x[:1].baddbmm(x[:1, None, None], x[:1, None, None], alpha=n),
}


@pytest.mark.parametrize("name", WITH_NUMBER)
@pytest.mark.parametrize(("x", "number"), [(BYTES, 300), (BYTES, 256), (INTS, 2**40), (INTS, 2**31)])
def test_a_number_that_integers_cannot_hold_is_no_other_number(name, x, number):
    for n in (number, -number - 1):
        words = rf"{x.dtype} (cannot hold {n}; choose a wider|to the power -\d+ is no integer)"
        with pytest.raises(ValueError, match=f"^{name.strip()}: {words}"):
            WITH_NUMBER[name](x, n)


def test_sums_and_products_of_integers_are_right_modulo_their_length_and_comparisons_exact():
    for number in (300, -300, 2**40 + 1):
        assert (BYTES + number).tolist() == [(n + number) % 256 for n in (1, 2, 3)]
        assert (number - BYTES).tolist() == [(number - n) % 256 for n in (1, 2, 3)]
        assert (BYTES * number).tolist() == [n * number % 256 for n in (1, 2, 3)]
    for x, numbers in (
        (BYTES, (256, 257, 300, -1, -255)),
        (INTS, (2**32 + 1, -(2**40))),
        (IDS, (2**70, -(2**70))),
    ):
        for n in numbers:
            below = [n > 0] * 3
            assert (x < n).tolist() == (x <= n).tolist() == (n > x).tolist() == below
            assert (x > n).tolist() == (x >= n).tolist() == (n < x).tolist() == [not b for b in below]
            assert (x != n).all() and not (x == n).any() and n not in x  # noqa: PT018
            assert (x / n).dtype == mt.float32


ASKED: dict[str, Callable[[Any], Any]] = {  # what is told by True or False whether it requires a gradient
    name: lambda value, name=name: PLACES[name](X if "_like" in name else 2, requires_grad=value)
    for name in PLACES
    if not name.startswith("new_")
}
ASKED |= {
    "tensor": lambda value: mt.tensor(1.0, requires_grad=value),
    "full": lambda value: mt.full((2,), 1.0, requires_grad=value),
    "full_like": lambda value: mt.full_like(X, 1.0, requires_grad=value),
    "arange": lambda value: mt.arange(3.0, requires_grad=value),
    "linspace": lambda value: mt.linspace(0, 1, 3, requires_grad=value),
    "normal": lambda value: mt.normal(0, 1, (2,), requires_grad=value),
    "requires_grad_": lambda value: X.clone().requires_grad_(value),
    "requires_grad_ ": lambda value: setattr(X.clone(), "requires_grad", value),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_gradient_is_asked_for_by_true_and_by_nothing_else(name):
    for wrong in ("yes", "no", 1, 0, None, X):
        words = re.escape(f"{name.strip()}: requires_grad is {wrong!r}; choose True or False")
        with pytest.raises(TypeError, match=f"^{words}"):
            ASKED[name](wrong)
    assert getattr(ASKED[name](True), "requires_grad", True)


def test_pythons_own_errors_say_tensor_and_no_class_that_is_private():
    surplus = [None] * 20
    for name in PUBLIC:
        with pytest.raises(TypeError) as told:
            getattr(X, name)(*surplus, **{"no such name": None})
        assert re.match(rf"Tensor\.\w+\(\) |{name}: ", str(told.value)), f"{name}: {told.value}"
    for name in functions.METHODS:
        with pytest.raises(TypeError, match=rf"^{name}\(\) missing 1 required positional argument: 'input'"):
            getattr(mt, name)()


def test_bounds_that_no_element_can_reach_are_none_and_others_that_do_not_fit_are_refused():
    assert BYTES.clamp(min=-2).tolist() == BYTES.clamp(max=300).tolist() == [1, 2, 3]
    for options in ({"max": -2}, {"min": 300}):
        with pytest.raises(ValueError, match=r"clamp: .* out of bounds for uint8"):
            BYTES.clamp(**options)


MISSING: dict[str, Callable[[], Any]] = {
    "microtensor: there is no cross_entropy here; did you mean nn.functional.cross_entropy?": (
        lambda: mt.cross_entropy
    ),
    "autograd: there is no Function here; did you mean engine.op?": lambda: mt.autograd.Function,
    "microtensor: there is no vmap here; its documentation lists what there is": lambda: mt.vmap,
    (
        "'Tensor' object has no attribute 'unsqueze'"
        if sys.version_info < (3, 12)
        else "Tensor: there is no unsqueze here; did you mean unsqueeze or squeeze or unique?"
    ): lambda: X.unsqueze,
    "nn: there is no Linaer here; did you mean Linear?": lambda: mt.nn.Linaer,
    "nn.functional: there is no ReLU here; did you mean relu or gelu or microtensor.relu or ": (
        lambda: mt.nn.functional.ReLU
    ),
    "nn: there is no MultiheadAttention here; did you mean models.MultiHeadAttention?": (
        lambda: mt.nn.MultiheadAttention
    ),
    "nn: there is no Transformer here; did you mean models.Transformer?": lambda: mt.nn.Transformer,
    "nn: there is no TransformerEncoderLayer here; did you mean models.EncoderLayer?": (
        lambda: mt.nn.TransformerEncoderLayer
    ),
    "optim: there is no adamw here; did you mean AdamW or Adam?": lambda: mt.optim.adamw,
    "data: there is no DataLoder here; did you mean DataLoader?": lambda: mt.data.DataLoder,
    "autograd: there is no grads here; did you mean grad?": lambda: mt.autograd.grads,
    "optim.lr_scheduler: there is no OneCycleLR here; its documentation lists what there is": (
        lambda: mt.optim.lr_scheduler.OneCycleLR
    ),
    "optim: there is no StepLR here; did you mean optim.lr_scheduler.StepLR?": lambda: mt.optim.StepLR,
}


@pytest.mark.parametrize("words", MISSING)
def test_a_name_that_is_missing_is_told_with_what_may_be_meant(words):
    with pytest.raises(AttributeError, match=f"^{re.escape(words)}"):
        MISSING[words]()


ASK_EACH_ROOM = """
from types import ModuleType
import microtensor as mt

def rooms(package):
    for name in sorted({*package.__all__, *getattr(package, "LAZY", ())} - {"kernels", "ops"}):
        if isinstance(room := getattr(package, name), ModuleType):
            yield from (f"{package.__name__}.{name}", *rooms(room))

for place in rooms(mt):
    try:
        eval(f"{place}.Colour", {"microtensor": mt})
    except AttributeError as error:
        print(place.partition(".")[2], error, sep=": ")
"""


def test_every_room_that_is_named_from_the_package_explains_what_it_lacks():
    """In a program of its own: what imports a room by itself before gets Python's own words."""
    said = subprocess.run([sys.executable, "-c", ASK_EACH_ROOM], capture_output=True, text=True, check=True)
    lines = said.stdout.splitlines()
    assert len(lines) > 10
    for line in lines:
        room = line.split(": ")[0]
        room = {"utils.data": "data"}.get(room, room)
        assert line.endswith(f": {room}: there is no Colour here; its documentation lists what there is")


def test_the_models_that_are_meant_are_there():
    assert set(missing.MODELS) <= set(models.__all__)


def test_a_slot_that_is_not_set_and_a_name_that_is_asked_for_are_missing_without_a_search(monkeypatch):
    monkeypatch.delitem(sys.modules, "difflib", raising=False)
    assert not hasattr(X, "colour")
    assert getattr(X, "summed", None) is None
    assert not hasattr(mt.nn, "Colour")
    assert "difflib" not in sys.modules


# --- every method, whatever it is given ---------------------------------------------------------------------

GOOD: list[Callable[[], Tensor]] = [
    lambda: mt.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]]),
    lambda: mt.tensor(0.5),
    lambda: mt.tensor([0, 1, 1]),
    lambda: mt.tensor([[True, False, True], [False, True, True]]),
    lambda: mt.zeros(0, 3),
]
BAD: list[Any] = [3, 2.5, -5, "row", None, True, [1, 2, 3], np.array([1, 2, 3]), {}, 2**70, 1j, object]
BAD += [mt.tensor([1.0, 2.0]), mt.tensor([[1, 2, 3]]), MASK[:2], float("nan"), mt.float32, slice(0, 2)]
FORM = re.compile(r"[\w.]+: .+; .+", re.DOTALL)
SIGNATURE = re.compile(r".*(positional argument|keyword argument|multiple values)")


def _calls(function: Callable[..., Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    parameters = list(inspect.signature(inspect.unwrap(function)).parameters.values())[1:]
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    ids = mt.tensor([0, 1])
    for bad in BAD:
        yield (bad,), {}
        yield from (((first, bad), {}) for first in (0, None, mt.tensor([True, False]), bad))
        yield from (((0, second, bad), {}) for second in (0, ids))
        for name in named:
            yield from ((first, {name: bad}) for first in ((), (0,), (ids,)))


PUBLIC = [n for n in dir(Tensor) if not n.startswith("_") and callable(inspect.getattr_static(Tensor, n))]
FUNCTIONS = [n for n in mt.__all__ if inspect.isfunction(getattr(mt, n)) and n not in functions.METHODS]
NO_NUMBERS = {"set_default_dtype", "tape", "backward", "register_hook"}  # of other things than tensors


GIVEN: dict[str, tuple[Any, ...]] = {  # what stands before the flags of these
    "allclose": (X,),
    "isclose": (X,),
    "isin": (X,),
    "searchsorted": (X,),
    "multinomial": (2,),
    "topk": (1,),
    "logsumexp": (0,),
    "full": (1.0,),
    "full_like": (1.0,),
    "arange": (),
    "normal": (1.0, (2,)),
    "linspace": (1, 3),
}
NUMBERS_FIRST = {"arange", "eye", "linspace", "normal", "full"} | {n for n in PLACES if "_" not in n}


def flags() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Every argument of a method or function of tensors that is True or False, with a call that sets it."""
    owners = {"Tensor.": Tensor, "": mt}
    for before, owner in owners.items():
        for name in sorted(mt.__all__ if owner is mt else PUBLIC):
            function = getattr(owner, name)
            for p in inspect.signature(function).parameters.values() if inspect.isfunction(function) else ():
                if re.fullmatch(r"(builtins\.)?bool( \| None)?", str(p.annotation)) and name != "load":
                    first = 2 if owner is mt and name in NUMBERS_FIRST else X
                    first = mt.ones((), requires_grad=True) if name == "backward" else first
                    call = functools.partial(function, first, *GIVEN.get(name, ()))
                    yield f"{before}{name}", p.name, call


@pytest.mark.parametrize(("name", "flag", "call"), [*flags()])
def test_a_flag_is_true_or_false_and_nothing_that_would_count_as_one(name, flag, call):
    for wrong in ("no", [True], X.numpy()):
        own = name.rpartition(".")[2]
        with pytest.raises(TypeError, match=rf"^(Tensor\.)?{own}: {flag} is .*; (choose|give) True or False"):
            call(**{flag: wrong})


def _says_its_name(name: str, error: Exception) -> bool:
    """Begins the error so? Python's own about a signature, or a tensor where a truth is meant, need not."""
    text = str(error)
    return bool(text.startswith(f"{name}: ") or SIGNATURE.match(text) or re.match("bool: ", text))


ROOMS = (mt.nn.functional, mt.nn.init, mt.nn.utils)
CALLED = [("", name) for name in sorted({*PUBLIC, *FUNCTIONS} - NO_NUMBERS)]
CALLED += [(room.__name__, name) for room in ROOMS for name in room.__all__]


@pytest.mark.parametrize(("room", "name"), CALLED)
def test_an_error_begins_with_the_name_that_was_called(room, name):
    method = room or name in PUBLIC  # the first argument is good, the others are not
    call = getattr(sys.modules[room], name) if room else getattr(mt, name, None) if not method else None
    call = call or inspect.getattr_static(Tensor, name)
    others = []
    for args, options in [*_calls(call), ((), {})]:
        given = (GOOD[0](), *args) if method else args
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(*given, **options)
        except (ValueError, TypeError, IndexError, RuntimeError, AttributeError) as error:
            others += [] if _says_its_name(name, error) else [(args, options, error)]
    assert others == []


@pytest.mark.parametrize("name", sorted(functions.METHODS))
def test_a_method_gives_a_tensor_of_ours_or_an_error_of_ours_whatever_it_is_given(name):
    method = getattr(Tensor, name)
    for args, options in _calls(method):
        for good in GOOD:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    made = method(good(), *args, **options)
            except (ValueError, TypeError, IndexError, RuntimeError) as error:
                made = error
            if isinstance(made, Exception):
                fine = FORM.fullmatch(str(made)) or SIGNATURE.match(str(made))
                assert fine, f"{name}{args}{options}: {made!r}"
            for part in made if isinstance(made, tuple) else (made,):
                assert not isinstance(part, Tensor) or part.dtype in dtypes.KNOWN, f"{name}{args}{options}"


IDS2, GRID = mt.tensor([0, 2]), mt.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
NEEDED: dict[str, Any] = {"linear": [GRID, GRID], "embedding": [IDS2, GRID.T], "one_hot": [IDS2]}
NEEDED |= {"cross_entropy": [GRID, IDS2], "nll_loss": [GRID, IDS2], "pad": [GRID, (1, 1)]}
NEEDED |= {"layer_norm": [GRID, (3,)], "rms_norm": [GRID, (3,)]}
ANNOTATED = {"int": int, "float": (int, float), "str": str, "None": type(None), "Sequence[int]": list}
# None and several axes; and inplace takes what is true
AS_IN_PYTORCH = {("normalize", "p"), ("normalize", "dim")}
FLAWED = ["a", "no", None, -5, 2.5, 1, 0, [1], object(), {}, np.ones((2, 3))]


@pytest.mark.parametrize("name", F.__all__)
def test_no_argument_of_a_function_of_nn_is_what_its_annotation_does_not_say(name):
    call = getattr(F, name)
    parameters = inspect.signature(call).parameters
    needed = [p.name for p in parameters.values() if p.default is p.empty]
    good = dict(zip(needed, NEEDED.get(name, [GRID] * len(needed)), strict=True))
    assert isinstance(call(**good, **{"dim": 1} if "dim" in parameters else {}), Tensor)
    taken = []
    for p in parameters.values():
        kinds = [ANNOTATED.get(kind, ()) for kind in p.annotation.split(" | ")]
        for flawed in FLAWED:
            try:
                call(**{**good, p.name: flawed})
            except (TypeError, ValueError, IndexError, RuntimeError) as error:
                if not FORM.fullmatch(text := str(error)) or not text.startswith(f"{name}: "):
                    taken.append((p.name, error))
            else:
                told = (name, p.name) in AS_IN_PYTORCH or p.name == "inplace" or p.annotation == "Any"
                taken += [] if told or any(isinstance(flawed, kind) for kind in kinds) else [(p.name, flawed)]
    assert taken == []


DRAWN = [n for n in nn.init.__all__ if "generator" in inspect.signature(getattr(nn.init, n)).parameters]


@pytest.mark.parametrize("dtype", [mt.int64, mt.uint8, mt.bool])
@pytest.mark.parametrize("name", DRAWN)
def test_no_draw_goes_into_integers_and_none_is_made(name, dtype):
    x, generator = mt.ones(2, 3).to(dtype), mt.Generator().manual_seed(0)
    before = generator.get_state().tolist()
    with pytest.raises(TypeError, match=rf"^{name}: a {x.dtype} tensor cannot hold the draws; make it"):
        getattr(nn.init, name)(x, generator=generator)
    assert x.tolist() == mt.ones(2, 3).to(dtype).tolist()
    assert generator.get_state().tolist() == before


def test_constants_go_into_integers_as_in_pytorch():
    x = mt.zeros(3, dtype=mt.int64)
    assert nn.init.constant_(x, 2.5).tolist() == [2, 2, 2]
    assert nn.init.ones_(x).tolist() == [1, 1, 1]
    assert nn.init.zeros_(x).tolist() == [0, 0, 0]


def test_dim_and_axis_together_are_refused():
    for call in (lambda: X.sum(dim=0, axis=0), lambda: mt.cat([X, X], dim=0, axis=0)):
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'axis'"):
            call()


# --- every constructor and method of the other rooms, given what its annotation does not say ----------------

NET = nn.Linear(3, 3)
GIVEN: dict[str, Callable[[], Any]] = {
    "optimizer": lambda: mt.optim.SGD([nn.Parameter(mt.ones(2))], lr=0.1),
    "params": lambda: [nn.Parameter(mt.ones(2))],
    "lr_lambda": lambda: math.sqrt,
    "milestones": lambda: [2],
    "schedulers": lambda: [],
    "defaults": lambda: {"lr": 0.1},
    "text": lambda: "abc",
    "fn": lambda: NET,
    "op": lambda: None,
    "inputs": lambda: [mt.ones(3, dtype=mt.float64, requires_grad=True)],
    "model": lambda: NET,
    "train_loader": lambda: [X],
    "loss_fn": lambda: math.sqrt,
    "state_dict": lambda: NET.state_dict(),
    "function": lambda: repr,
    "hook": lambda: repr,
    "path": lambda: "nothing.safetensors",
    "name": lambda: "a",
    "normalized_shape": lambda: 3,
    "embeddings": lambda: mt.ones(2, 3),
    "rng": lambda: np.random.default_rng(0),
    "ids": lambda: [1, 2],
    "day": lambda: datetime.date(1998, 3, 4),
    "days": lambda: [datetime.date(1998, 3, 4)],
    "locale": lambda: "en_US",
    "format": lambda: "full",
    "texts": lambda: ["a"],
}
WRONG: list[Any] = ["row", 2.5, -5, None, [1, 2, 3], ["a"], [0.5], nn.Tanh(), mt.tensor([1.0, 2.0])]
WRONG += [np.ones(2)]
OWN = {"Stopped", "World", "Checkpoint", "TaskPair", "DatePair", "DateCorpus"}  # ours alone, and Babel's
HELD = [(room, name) for room in (nn, mt.optim, mt.optim.lr_scheduler, mt.data, mt.testing, mt.train)
        for name in room.__all__ if callable(getattr(room, name)) and name not in OWN]  # fmt: skip
OBJECTS: dict[str, Callable[[], Any]] = {
    "Module": lambda: nn.Linear(3, 3),
    "ModuleList": lambda: nn.ModuleList([nn.Tanh()]),
    "SGD": lambda: mt.optim.SGD([nn.Parameter(mt.ones(2))], lr=0.1),
    "StepLR": lambda: mt.optim.lr_scheduler.StepLR(GIVEN["optimizer"](), 2),
    "DataLoader": lambda: mt.data.DataLoader([1.0, 2.0, 3.0]),
    "CharTokenizer": lambda: mt.data.CharTokenizer("abc"),
    "Embedding": lambda: nn.Embedding(3, 2),
    "StringTask": lambda: mt.data.StringTask("copy", n_test=2),
    "PairBatches": lambda: mt.data.PairBatches(mt.data.StringTask("copy", n_test=2), 3),
    "DateCorpus": lambda: mt.data.DateCorpus(locales=("en_US",), n_test=2),
}


def _refusals(
    call: Callable[..., Any],
    make: Callable[[], Callable[..., Any]],
    room: dict[str, Callable[[], Any]] = GIVEN,
) -> Iterator[tuple[Any, ...]]:
    """Each wrong value in the place of each argument: the error's words, or what is given back."""
    parameters = [p for p in inspect.signature(call).parameters.values() if p.name != "self"]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for p in named:
        for wrong in WRONG if p.annotation not in ("Any", p.empty) else ():
            good = {q.name: room.get(q.name, lambda: 2)() for q in named if q.default is q.empty}
            try:
                with warnings.catch_warnings(action="ignore"):
                    yield p.name, wrong, make()(**{**good, p.name: wrong})
            except (OSError, AssertionError):
                continue  # there is no such file, and two tensors are not close
            except Exception as error:
                text = str(error.args[0] if isinstance(error, KeyError) else error)
                if not (FORM.fullmatch(text) or SIGNATURE.match(text)):
                    yield p.name, wrong, error


@pytest.mark.parametrize(("room", "name"), HELD, ids=lambda v: v if isinstance(v, str) else v.__name__[12:])
def test_what_an_annotation_does_not_say_is_refused_in_the_form_of_the_house(
    room, name, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    call = getattr(room, name)
    assert [found for found in _refusals(call, lambda: call) if isinstance(found[2], Exception)] == []


@pytest.mark.parametrize("name", OBJECTS)
def test_methods_refuse_what_their_annotations_do_not_say(name):
    for method in [m for m in dir(type(OBJECTS[name]())) if not m.startswith("_")]:
        call = inspect.getattr_static(type(OBJECTS[name]()), method)
        if isinstance(call, classmethod):
            call = getattr(OBJECTS[name](), method)
        if inspect.isroutine(call) and method != "forward":
            found = _refusals(call, lambda method=method: getattr(OBJECTS[name](), method))
            assert [f for f in found if isinstance(f[2], Exception)] == [], method


def _read(cache: models.KeyValueCache) -> models.KeyValueCache:
    """A cache of two rows, which have read three positions."""
    cache.extend("layer", mt.ones(2, 1, 3, 4), mt.ones(2, 1, 3, 4))
    cache.advance(3)
    return cache


GPT_SIZES = models.GPTConfig(block_size=8, vocab_size=7, n_layer=1, n_head=2, n_embd=4)
SIZES = models.TransformerConfig(7, 7, 4, 2, 1, 1, d_ff=4, max_len=8)
TEXT_SIZES = models.TextEncoderConfig(7, 4, 1, 2, 4, 8)
MODELS: dict[str, Callable[[], Any]] = {
    "MultiHeadAttention": lambda: models.MultiHeadAttention(4, 2),
    "FeedForward": lambda: models.FeedForward(4, 4),
    "EncoderLayer": lambda: models.EncoderLayer(4, 2, 4),
    "DecoderLayer": lambda: models.DecoderLayer(4, 2, 4),
    "Encoder": lambda: models.Encoder(1, 4, 2, 4),
    "Decoder": lambda: models.Decoder(1, 4, 2, 4),
    "PositionalEncoding": lambda: models.PositionalEncoding(4, 8),
    "Transformer": lambda: models.Transformer(SIZES),
    "GPT": lambda: models.GPT(GPT_SIZES),
    "TextEncoder": lambda: models.TextEncoder(TEXT_SIZES),
    "KeyValueCache": lambda: _read(models.KeyValueCache()),
}
GIVEN_MODELS: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("idx", "src", "tgt", "ids"), lambda: mt.tensor([[3, 4, 5]])),
    **dict.fromkeys(("x", "z", "query", "memory", "Q", "K", "V"), lambda: mt.ones(1, 3, 4)),
    **{
        "model": MODELS["GPT"],
        "corpus": lambda: mt.data.StringTask("copy"),
        "tokens": lambda: ["a", "b", "c"],
    },
    **{"sources": lambda: ["abc"], "pairs": lambda: mt.data.StringTask("copy").test_pairs()[:1]},
    **{
        "mask": lambda: models.causal_mask(3),
        "source": lambda: "abc",
        "d_model": lambda: 4,
        "make": lambda: tuple,
    },
    **{"rows": lambda: mt.tensor([0]), "betas": lambda: (0.9, 0.99), "texts": lambda: ["a"]},
}
CONFIGS: dict[str, Any] = {"GPT": GPT_SIZES, "Transformer": SIZES, "TextEncoder": TEXT_SIZES}


@pytest.mark.parametrize(
    "name", [n for n in models.__all__ if inspect.isfunction(getattr(models, n)) or n in MODELS]
)
def test_models_refuse_what_their_annotations_do_not_say(name, monkeypatch):
    monkeypatch.setattr(
        sys.modules[__name__], "WRONG", [3, "a", None, [1], 2.5, object(), POINT, X, nn.Tanh()]
    )
    given = {**GIVEN_MODELS, "config": lambda: CONFIGS[name]}
    call = getattr(models, name)
    found = [(name, *f) for f in _refusals(call, lambda: call, given)]
    own = [m for m in dir(call) if m in vars(call) and m[0] != "_"] if name in MODELS else []
    for method in own:
        call = inspect.getattr_static(getattr(models, name), method)
        with mt.no_grad():
            if inspect.isfunction(call):
                found += [
                    (method, *f) for f in _refusals(call, lambda m=method: getattr(MODELS[name](), m), given)
                ]
            elif isinstance(call, classmethod):
                made = getattr(getattr(models, name), method)
                found += [(method, *f) for f in _refusals(made, lambda made=made: made, given)]
    # a norm is told by two names at once, and a cache is given no tensors here to keep
    found = [f for f in found if "norm" not in f[:2] and f[:2] != ("extend", "layer")]
    assert [f for f in found if isinstance(f[3], Exception)] == []


FIT: dict[str, Any] = {"loss_fn": repr, "max_steps": 1}
LEAF = mt.tensor(2.0, requires_grad=True)
CHECKPOINT = mt.train.Checkpoint("a.safetensors", 0, NET.state_dict(), None, None, None, {}, None, None)


def _saved(**objects: Any) -> None:
    mt.train.save_checkpoint("never/written.safetensors", NET, **objects)


SILENT: dict[str, Callable[[], Any]] = {  # what was taken without a word, or refused in Python's
    "train: mode is 'no'; give bool": lambda: NET.train("no"),
    "train: mode is 2.5; give bool": lambda: NET.train(2.5),
    "train: mode is 5; give True or False": lambda: NET.train(5),
    "train: mode is 0; give True or False": lambda: NET.train(0),
    "Embedding: padding_idx is True; make it an integer": lambda: nn.Embedding(3, 2, True),
    "register_forward_hook: hook is 3; give Callable": lambda: NET.register_forward_hook(3),
    "register_forward_pre_hook: hook is None; give Callable": lambda: NET.register_forward_pre_hook(None),
    "LayerNorm: eps is 'a'; give float": lambda: nn.LayerNorm(3, "a"),
    "ReLU: inplace is 'no'; give bool": lambda: nn.ReLU("no"),
    "ExponentialLR: gamma is 'a'; give float": lambda: mt.optim.lr_scheduler.ExponentialLR(
        GIVEN["optimizer"](), "a"
    ),
    "ModuleList: items is Tanh(); give Iterable": lambda: nn.ModuleList(nn.Tanh()),
    "ModuleList: items is 3; give Iterable": lambda: nn.ModuleList(3),
    "extend: items is 3; give Iterable": lambda: nn.ParameterList([X]).__iadd__(3),
    "ModuleList: [Tanh()] for a slice; set one": lambda: OBJECTS["ModuleList"]().__setitem__(
        slice(1), [nn.Tanh()]
    ),
    "ModuleDict: 3 holds no modules by their names; give": lambda: nn.ModuleDict().update(3),
    "ModuleDict: 'ab' holds no modules by": lambda: nn.ModuleDict().update("ab"),
    "ModuleDict: [Tanh()] holds no modules by": lambda: nn.ModuleDict().update([nn.Tanh()]),
    "ModuleDict: Tanh() holds no modules by": lambda: nn.ModuleDict().update(nn.Tanh()),
    "grad: outputs holds int; give a tensor, or ": lambda: mt.autograd.grad(3, LEAF),
    "grad: outputs holds NoneType; give": lambda: mt.autograd.grad([LEAF, None], LEAF),
    "grad: outputs holds str; give": lambda: mt.autograd.grad("ab", LEAF),
    "grad: outputs holds float64; give": lambda: mt.autograd.grad(np.ones(2), LEAF),
    "grad: inputs holds Linear; give": lambda: mt.autograd.grad(LEAF, NET),
    "grad: inputs holds str; give": lambda: mt.autograd.grad(LEAF, {"x": LEAF}),
    "backward: tensors holds int; give": lambda: mt.autograd.backward(3),
    "backward: inputs holds method; give": lambda: LEAF.sum().backward(inputs=NET.parameters),
    "save_checkpoint: optimizer is 'adam'; give an object with": lambda: _saved(optimizer="adam"),
    "save_checkpoint: optimizer is <class ": lambda: _saved(optimizer=mt.optim.SGD),
    "save_checkpoint: scheduler is 3; give an object with": lambda: _saved(scheduler=3),
    "save_checkpoint: loader is [1]; give an object with": lambda: _saved(loader=[1]),
    "constant_: tensor is Tanh(); give Tensor": lambda: nn.init.constant_(nn.Tanh(), 0.0),
    "StepLR: optimizer is Tanh(); give Optimizer": lambda: mt.optim.lr_scheduler.StepLR(nn.Tanh(), 3),
    "SGD: parameter 0 of group 0 is Linear; give": lambda: mt.optim.SGD([{"params": NET}], lr=0.1),
    "load_state_dict: 'model' is a dict in a dict; ": lambda: NET.load_state_dict(
        {"model": NET.state_dict()}
    ),
    "Trainer: optimizer is str 'adam'; give an": lambda: mt.train.Trainer(NET, "adam", [X], **FIT),
    "Trainer: optimizer is type <class": lambda: mt.train.Trainer(NET, mt.optim.SGD, [X], **FIT),
    "Trainer: scheduler is int 3; give an": lambda: mt.train.Trainer(
        NET, GIVEN["optimizer"](), [X], scheduler=3, **FIT
    ),
    "restore: model is 3; give Module": lambda: CHECKPOINT.restore(3),
    "restore: model is <class ": lambda: CHECKPOINT.restore(nn.Linear),
    "restore: generators is 'a'; give": lambda: CHECKPOINT.restore(generators="a"),
    "ModuleDict: [Tanh()] holds no modules by their": lambda: nn.ModuleDict([nn.Tanh()]),
    "LayerNorm: a shape is made of integers, not (4.0,); ": lambda: nn.LayerNorm(4.0),
    "StepLR.load_state_dict: state_dict is None; give": lambda: OBJECTS["StepLR"]().load_state_dict(None),
    "StepLR.load_state_dict: state_dict is 3; give": lambda: OBJECTS["StepLR"]().check_state_dict(3),
    "DataLoader.load_state_dict: state_dict is 3; give": lambda: OBJECTS["DataLoader"]().load_state_dict(3),
    "DataLoader.load_state_dict: state_dict is [1]; give": lambda: OBJECTS["DataLoader"]().load_state_dict(
        [1]
    ),
    "SGD.load_state_dict: state_dict is 3; give": lambda: OBJECTS["SGD"]().load_state_dict(3),
    "load_state_dict: NoneType is no state_dict(); ": lambda: NET.load_state_dict(None),
    "generate: max_new_tokens is 2.5; give int": lambda: models.generate(MODELS["GPT"](), IDS, 2.5),
    "generate: temperature is 'a'; give float": lambda: MODELS["GPT"]().generate(IDS, 2, "a"),
    "generate: eos_id is 'a'; give int | None": lambda: MODELS["GPT"]().generate(IDS, 2, eos_id="a"),
    "generate: use_cache is 'no'; give bool": lambda: models.generate(
        MODELS["GPT"](), IDS, 2, use_cache="no"
    ),
    "generate: model is Linear; give a GPT or a Transformer": lambda: models.generate(NET, IDS, 2),
    "greedy_decode: model is 3; give nn.Module": lambda: models.greedy_decode(3, IDS),
    "beam_search: length_penalty is 'a'; give float": lambda: models.beam_search(
        MODELS["GPT"](), IDS, length_penalty="a"
    ),
    "GPT: config is 8; give GPTConfig": lambda: models.GPT(8),
    "MultiHeadAttention: d_model is '8'; give int": lambda: models.MultiHeadAttention("8", 2),
    "MultiHeadAttention: query is 3; give Tensor": lambda: MODELS["MultiHeadAttention"]()(3),
    "MultiHeadAttention: is_causal is 'no'; give bool": lambda: MODELS["MultiHeadAttention"]()(
        mt.ones(1, 3, 4), is_causal="no"
    ),
    "GPT.from_pretrained: folder is 3; give the path of a folder": lambda: models.GPT.from_pretrained(3),
    "explain_mask: tokens are [1]; give texts": lambda: models.explain_mask(MASK, [1]),
    "set_grad_enabled: mode is 'no'; give True or False": lambda: mt.set_grad_enabled("no"),
    "set_grad_enabled: mode is 0; give": lambda: mt.set_grad_enabled(0),
    "inference_mode: mode is 'no'; give": lambda: mt.inference_mode("no"),
    "Trainer: grad_clip is bool True; give a number": lambda: mt.train.Trainer(
        NET, mt.optim.SGD(NET.parameters()), [X], grad_clip=True, **FIT
    ),
    "tape: list is no module; give": lambda: mt.tape(mt.ones(2, requires_grad=True) * 2.0, [X]),
}


@pytest.mark.parametrize("words", SILENT)
def test_what_cannot_be_meant_is_refused_before_it_is_used(words):
    before = NET.training, len(NET._forward_hooks), mt.is_grad_enabled()
    with pytest.raises(TypeError, match=f"^{re.escape(words)}"):
        SILENT[words]()
    assert before == (NET.training, len(NET._forward_hooks), mt.is_grad_enabled())


@pytest.mark.parametrize(
    "block", [mt.no_grad, mt.enable_grad, mt.composites, mt.autograd.detect_anomaly], ids=lambda b: b.__name__
)
def test_a_block_takes_a_function_to_decorate_or_nothing(block):
    for wrong in (5, "a", False, [repr]):
        with pytest.raises(TypeError, match=rf"^{block.__name__}: .* is no function; give one, or nothing"):
            block(wrong)
    assert block(lambda: 3)() == 3
    with block():
        pass


def test_ids_and_counts_that_were_taken_without_a_word_are_refused():
    with pytest.raises(ValueError, match=r"^CharTokenizer: id 0\.5 is not in 0 … 2; give ids from encode"):
        OBJECTS["CharTokenizer"]().decode([0.5])
    with pytest.raises(ValueError, match=r"^StringTask: id 3\.5 is no character; ids are 0 to 12"):
        OBJECTS["StringTask"]().decode([3.5])
    with pytest.raises(ValueError, match=r"^StringTask: -1 pairs cannot be drawn; give 0 or more"):
        OBJECTS["StringTask"]().train_pairs(-1, np.random.default_rng(0))


def test_a_trainer_refuses_an_optimiser_of_another_models_parameters():
    other = nn.Linear(3, 3)
    words = r"^Trainer: optimizer steps nothing of the model; give it model\.parameters\(\)"
    with pytest.raises(ValueError, match=words):
        mt.train.Trainer(NET, mt.optim.SGD(other.parameters()), [X], **FIT)
    for params in ([NET.bias], [*NET.parameters(), *other.parameters()]):  # a part, and a loss's own, beside
        mt.train.Trainer(NET, mt.optim.SGD(params), [X], **FIT)


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_gradients_are_clipped_to_no_negative_limit(wrong):
    p = nn.Parameter(mt.ones(2))
    for clip, name in ((clip_grad_norm_, "max_norm"), (nn.utils.clip_grad_value_, "clip_value")):
        p.grad = mt.tensor([3.0, 4.0])
        with pytest.raises(ValueError, match=f"^{clip.__name__}: {name} is {wrong}; make it 0 or more"):
            clip([p], wrong)
        assert p.grad.tolist() == [3.0, 4.0]
        clip([p], 0.0)
        assert p.grad.tolist() == [0.0, 0.0]


def test_numbers_of_any_kind_are_numbers_and_what_has_its_own_words_keeps_them():
    assert nn.Linear(np.int64(3), 2, bias=np.bool_(False)).bias is None
    assert nn.Dropout(np.float32(0.5)).p == nn.Dropout(1).p / 2
    assert mt.optim.SGD([nn.Parameter(mt.ones(2))], lr=mt.tensor(0.5)).param_groups[0]["lr"] == 0.5
    with pytest.raises(TypeError, match=r"^SGD: params is one Linear; give model.parameters\(\), or a list"):
        mt.optim.SGD(NET, lr=0.1)


def _checked_causal(seed: int) -> None:
    mt.testing.check_causal(lambda x: x * 1.0, mt.ones(1, 2, 3), seed=seed)


SEEDED: dict[str, Callable[[Any], Any]] = {  # what takes a seed → what it makes of it, for comparison
    "manual_seed": lambda seed: mt.Generator().manual_seed(seed).initial_seed(),
    "StringTask": lambda seed: mt.data.StringTask("copy", seed=seed).test_pairs(),
    "DateCorpus": lambda seed: mt.data.DateCorpus(seed=seed).test_pairs(),
    "check_op": lambda seed: mt.testing.check_op(mt.ops.exp, seed=seed),
    "gradcheck": lambda seed: mt.testing.gradcheck(mt.exp, GIVEN["inputs"](), seed=seed),
    "gradgradcheck": lambda seed: mt.testing.gradgradcheck(mt.exp, GIVEN["inputs"](), seed=seed),
    "check_causal": lambda seed: _checked_causal(seed),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_is_an_integer_of_64_bits_and_a_negative_one_counts_down_as_in_pytorch(name):
    for wrong in (2.5, True, "3", None):
        with pytest.raises(TypeError, match=f"^{name}: (the )?seed is {wrong!r}; give (an )?int"):
            SEEDED[name](wrong)
    for large in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match=f"^{name}: the seed is {large}; give an integer of 64 bits"):
            SEEDED[name](large)
    assert SEEDED[name](-1) == SEEDED[name](2**64 - 1)
    assert SEEDED[name](-1) != SEEDED[name](1) or SEEDED[name](1) in (None, True)


@pytest.mark.parametrize("call", [lambda d: d["b"], lambda d: d.pop("b"), lambda d: d.__delitem__("b")])
def test_a_key_that_a_dictionary_of_modules_lacks_is_told_with_those_that_it_has(call):
    with pytest.raises(KeyError, match=r"ModuleDict: there is no 'b'; choose among \['a'\]"):
        call(nn.ModuleDict({"a": nn.Tanh()}))
    assert nn.ModuleDict().get("b") is None


# --- what is no number, and what no number of 64 bits -------------------------------------------------------

NUMBERS: dict[str, Callable[[Any], Any]] = {
    "tensor": mt.tensor,
    "as_tensor": lambda v: mt.as_tensor([[1], [v]]),
    "full": lambda v: mt.full((2,), v),
    "full_like": lambda v: mt.full_like(IDS, v),
    "fill_": lambda v: IDS.clone().fill_(v),
    "masked_fill": lambda v: IDS.masked_fill(IDS > 0, v),
    "index_fill": lambda v: IDS.index_fill(0, IDS[:1], v),
    "new_full": lambda v: IDS.new_full((2,), v),
    "setitem": lambda v: IDS.clone().__setitem__(0, v),
    "constant_": lambda v: nn.init.constant_(IDS.clone(), v),
}
MEASURES: dict[str, Callable[[Any], Any]] = {  # what is a float, however large
    "isclose": lambda v: X.isclose(X, v),
    "allclose": lambda v: X.allclose(X, 1e-5, v),
    "linspace": lambda v: mt.linspace(0, v, 3),
    "clamp": lambda v: X.clamp(0, v),
    "norm": lambda v: X.norm(v),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "wrong", [2**63, 2**70, -(2**70), 2**2000, None, {}, "a", 2j, datetime.date(2000, 1, 2)]
)
def test_what_no_tensor_holds_is_told_as_what_it_is(name, wrong):
    with pytest.raises((TypeError, ValueError)) as caught:
        NUMBERS[name](wrong)
    assert re.fullmatch(rf"{name}: .*; .*", text := str(caught.value))
    assert repr(wrong)[:12] in text
    assert len(text) < 200


def test_integers_in_a_list_are_never_rounded_to_floats():
    for numbers in ([2**63, -1], [[1], [2**64]], [True, 2**63]):
        with pytest.raises(TypeError, match=r"tensor: \d+ is beyond int64; write it as a float"):
            mt.tensor(numbers)
    assert mt.tensor([2.0**63, -1]).dtype == mt.float32
    assert mt.tensor([]).dtype == mt.float32


@pytest.mark.parametrize("name", MEASURES)
def test_an_integer_beyond_int64_is_a_float_and_one_beyond_every_float_is_refused(name):
    MEASURES[name](2**70)
    with pytest.raises(ValueError, match=rf"^{name}: \d{{60}} is beyond every float; give a smaller number"):
        MEASURES[name](2**2000)


# --- the name that was called, and nothing cut --------------------------------------------------------------

MANY = [1] * 30
CALLABLE = [n for n in PUBLIC if n not in ("backward", "register_hook")]
VARIADIC = inspect.Parameter.VAR_POSITIONAL


@pytest.mark.parametrize("name", CALLABLE)
def test_a_wrong_number_of_arguments_is_told_by_the_name_that_was_called(name):
    method = inspect.getattr_static(Tensor, name)
    if not inspect.isfunction(method):
        method = getattr(Tensor, name)
    given = [p.kind for p in inspect.signature(inspect.unwrap(method)).parameters.values()]
    for args in [MANY] if VARIADIC not in given or name.endswith("_") else []:
        with pytest.raises(TypeError, match=rf"^(Tensor\.)?{name}(\(\) takes .* positional argument|: )"):
            method(X.clone(), *args)
        if name in functions.METHODS:
            with pytest.raises(TypeError, match=rf"^(Tensor\.)?{name}(\(\) takes .* positional argument|: )"):
                getattr(mt, name)(X.clone(), *args)
    with pytest.raises((TypeError, ValueError, RuntimeError), match=rf"^(Tensor\.)?{name}(\(\)|: )"):
        method(X.clone(), no_such_thing=1)


@pytest.mark.parametrize("block", ["no_grad", "enable_grad", "inference_mode", "set_grad_enabled"])
def test_a_block_with_too_many_arguments_is_told_by_its_own_name(block):
    for args in [(5, 6), (True, False), (print, 5)]:
        with pytest.raises(
            TypeError, match=rf"^{block}\.__init__\(\) takes .* positional arguments? but 3 were"
        ):
            getattr(mt, block)(*args)


def test_an_axis_named_twice_is_told():
    for dims in [(0, 0), (0, -2), ((0, 0),)]:
        with pytest.raises(ValueError, match=r"^flip: dim \(0, (0|-2)\) names an axis twice; name each once"):
            mt.ones(2, 3).flip(*dims)
    assert mt.tensor(5.0).flip(()).item() == 5.0


def test_functions_are_named_in_full_where_they_are_too_few_or_none():
    def rate_whose_name_is_longer_than_what_a_message_shows_of_any_value(step):
        return 1.0

    long = rate_whose_name_is_longer_than_what_a_message_shows_of_any_value
    for given, said in [([abs, long], f"abs, {long.__name__}"), (5, "5"), ([], "none")]:
        with pytest.raises(ValueError, match=rf"^LambdaLR: {said} for 1 groups; give one function for each"):
            mt.optim.lr_scheduler.LambdaLR(GIVEN["optimizer"](), given)


HINTS = {name: getattr(nn.init, name).__annotations__ for name in nn.init.__all__}
FLOATS = [(name, a) for name in HINTS for a, kind in HINTS[name].items() if "float" in kind and a != "return"]


@pytest.mark.parametrize(("name", "argument"), FLOATS)
@pytest.mark.parametrize("huge", [2**2000, -(2**1024)])
def test_an_integer_that_no_float_holds_is_refused_by_the_name_of_its_argument(name, argument, huge):
    first = {"nonlinearity": "leaky_relu"} if name == "calculate_gain" else {"tensor": mt.ones(3, 3)}
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: .*{str(huge)[:50]}") as caught:
        getattr(nn.init, name)(**first, **{argument: huge})
    assert FORM.fullmatch(str(caught.value))
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize("wrong", ["a", None, [1, [2]], {}])
def test_a_parameter_of_no_numbers_is_told_by_its_name(wrong):
    with pytest.raises(TypeError, match=r"^Parameter: .*; "):
        nn.Parameter(wrong)
