"""Sorting, picking, copying, products and what else PyTorch has beside the ops: the same on both."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import operator
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import agree, layouts, not_told

import microtensor as mt

torch = pytest.importorskip("torch")

SHAPES = [(2, 3), (2, 3, 4), (5,), (), (0, 3), (3, 0)]
DTYPES = [np.float32, np.float64, np.int64, np.int32, np.uint8]
Case = Callable[..., Any]


def distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.permutation(math.prod(shape)).reshape(shape) / 7.0 - 1.0)


# --- extremes and order -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_along_an_axis_are_values_and_indices(name, rng):
    for shape, dim, keepdim in itertools.product(SHAPES, [0, 1, -1, 2, -3], [False, True]):
        for x in layouts(rng, shape):
            agree(lambda t, x: tuple(getattr(t, name)(x, dim, keepdim)), x, rng=rng)
            agree(lambda t, x: getattr(x, name)(dim=dim, keepdim=keepdim).values, x, rng=rng)
    for dtype in [*DTYPES, np.bool_]:
        agree(
            lambda t, x: tuple(getattr(x, name)(1)),
            np.array([[1, 0, 3], [2, 2, 0]]).astype(dtype),
            grad=False,
        )
        agree(lambda t, x: getattr(x, name)(), np.array([[1, 0, 3], [2, 2, 0]]).astype(dtype), grad=False)


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_tie_gives_the_first_index_and_its_gradient(name):
    x = np.array([[2.0, 2.0, 1.0, 1.0], [math.nan, 1.0, math.nan, 0.0], [math.inf, math.inf, 1.0, 1.0]])
    for dim in [0, 1]:
        agree(lambda t, x: tuple(getattr(x, name)(dim)), x)


def test_the_extreme_of_two_tensors(rng):
    for a, b in [((2, 3), (3,)), ((), (2,)), ((4, 1), (4, 3)), ((2,), (3,))]:
        agree(lambda t, a, b: (t.max(a, b), t.min(a, b), a.max(b)), rng.normal(size=a), rng.normal(size=b))
        agree(lambda t, a, b: t.max(a, other=b), rng.normal(size=a), rng.normal(size=b))


@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_argsort(descending, rng):
    for shape, dim in itertools.product(SHAPES, [0, 1, -1, -2]):
        agree(lambda t, x: tuple(t.sort(x, dim, descending)), distinct(rng, shape), rng=rng)
        agree(lambda t, x: x.sort(dim=dim, descending=descending)[0], distinct(rng, shape), rng=rng)
        agree(lambda t, x: t.argsort(x, dim, descending), distinct(rng, shape), rng=rng)
    ties = rng.integers(0, 3, (4, 30)).astype(np.float64)
    agree(lambda t, x: tuple(t.sort(x, stable=True, dim=1, descending=descending)), ties, rng=rng)
    ties[0, :5] = math.nan
    ties[1, :5] = math.inf
    agree(lambda t, x: tuple(t.sort(x, stable=True, dim=1, descending=descending)), ties, grad=False)
    for dtype in [*DTYPES, np.bool_]:
        agree(
            lambda t, x: x.sort(descending=descending).values, np.array([3, 1, 2]).astype(dtype), grad=False
        )
    agree(lambda t, x: tuple(x.sort()), distinct(rng, (3, 4)))


@pytest.mark.parametrize("largest", [True, False])
def test_topk(largest, rng):
    for shape, dim, k in itertools.product(SHAPES, [0, -1, 1], [0, 1, 2, 4]):
        if not shape and not k:
            continue  # PyTorch gives one element
        agree(lambda t, x: tuple(t.topk(x, k, dim, largest)), distinct(rng, shape), rng=rng)
        agree(lambda t, x: x.topk(k, dim=dim, largest=largest, sorted=True).values, distinct(rng, shape))
    agree(lambda t, x: tuple(x.topk(2)), distinct(rng, (3, 4)))
    agree(lambda t, x: x.topk(-1), distinct(rng, (3, 4)))
    agree(lambda t, x: x.topk(2).values, np.array([1, 5, 3]), grad=False)


def test_named_results_can_be_unpacked_indexed_and_read_by_name():
    for found in [
        mt.ones(2, 3).max(1),
        mt.ones(2, 3).sort(),
        mt.ones(2, 3).topk(2),
        mt.min(mt.ones(2, 3), dim=0),
    ]:
        values, indices = found
        assert values is found.values is found[0]
        assert indices is found.indices is found[1]
        assert indices.dtype == mt.int64


# --- comparing ----------------------------------------------------------------------------------------------

NEAR = np.array([1.0, 1.0 + 1e-6, 1.0 + 1e-4, math.nan, math.inf, -math.inf, 0.0, 1e-9])


@pytest.mark.parametrize("equal_nan", [False, True])
def test_isclose_and_allclose(equal_nan):
    for a, b in [(NEAR, NEAR), (NEAR, NEAR[::-1].copy()), (NEAR, np.ones(8)), (NEAR[:1], NEAR)]:
        agree(lambda t, a, b: t.isclose(a, b, equal_nan=equal_nan), a, b, grad=False)
        agree(lambda t, a, b: t.allclose(a, b, 1e-3, 1e-3, equal_nan), a, b, grad=False)
        agree(lambda t, a, b: a.allclose(b, equal_nan=equal_nan), a[:2], b[:2], grad=False)
    agree(lambda t, a, b: t.allclose(a, b), NEAR, NEAR.astype(np.float32), grad=False)
    agree(lambda t, a, b: t.isclose(a, b), np.array([1, 2]), np.array([1, 3]), grad=False)


def test_equal_compares_shapes_and_elements():
    for a, b in [((2, 3), (2, 3)), ((3,), (1, 3)), ((), ()), ((0,), (0,)), ((0, 2), (2, 0))]:
        agree(lambda t, a, b: t.equal(a, b), np.ones(a), np.ones(b), grad=False)
    agree(lambda t, a, b: a.equal(b), np.array([1.0, math.nan]), np.array([1.0, math.nan]), grad=False)
    agree(lambda t, a, b: a.equal(b), np.array([1.0, 2.0]), np.array([1.0, 3.0]), grad=False)


def test_count_nonzero_and_nonzero():
    for x in [
        np.array([[1.0, 0.0], [0.0, 2.0]]),
        np.array(3),
        np.array(0),
        np.zeros((0, 2)),
        np.array([True, False]),
    ]:
        agree(lambda t, x: (t.nonzero(x), x.nonzero()), x, grad=False)
        agree(lambda t, x: x.nonzero(as_tuple=True), x, grad=False)
        agree(lambda t, x: t.where(x != 0), x, grad=False)
        agree(lambda t, x: t.where(x != 0, 1.0), x, grad=False)
        agree(lambda t, x: t.count_nonzero(x), x, grad=False)
    agree(lambda t, x: (x.count_nonzero(0), x.count_nonzero(dim=(0, 1))), np.eye(3), grad=False)
    agree(lambda t, x: x[x.nonzero(as_tuple=True)], np.array([[1.0, 0.0], [0.0, 2.0]]))


# --- sums and spreads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["var", "std"])
def test_variance_in_the_older_spelling(name, rng):
    x = rng.normal(size=(3, 4))
    for args, kwargs in [
        ((False,), {}),
        ((True,), {}),
        ((1, False), {}),
        ((1, True, True), {}),
        ((), {"unbiased": False}),
        ((0,), {"unbiased": False, "keepdim": True}),
        (((0, 1), False), {}),
        ((-1,), {"keepdim": True}),
        ((), {"correction": 0}),
        ((1,), {"correction": 0, "keepdim": True}),
        ((1,), {"correction": 0, "unbiased": True}),
        ((2,), {}),
    ]:
        agree(lambda t, x, args=args, kwargs=kwargs: getattr(x, name)(*args, **kwargs), x, rng=rng)
        agree(lambda t, x, args=args, kwargs=kwargs: getattr(t, name)(x, *args, **kwargs), x, rng=rng)


def test_dtypes_of_sums_products_and_softmax(rng):
    x = np.array([[1.6, 2.4], [3.5, -1.5]])
    for dtype in ["float32", "float64", "int64"]:
        agree(lambda t, x: x.cumsum(1, dtype=getattr(t, dtype)), x, grad=dtype != "int64", tolerance=1e-6)
        agree(lambda t, x: x.prod(1, dtype=getattr(t, dtype)), x, grad=dtype != "int64", tolerance=1e-6)
        agree(lambda t, x: x.sum(1, dtype=getattr(t, dtype)), x, grad=dtype != "int64", tolerance=1e-6)
    agree(lambda t, x: x.softmax(-1, t.float32), x, tolerance=1e-6)
    agree(lambda t, x: x.softmax(dim=-1, dtype=t.float64), np.array([[1, 2]]), grad=False)
    agree(lambda t, x: t.log_softmax(x, 0, t.float64), x.astype(np.float32), tolerance=1e-6)
    agree(lambda t, x: x.norm(p="fro", dim=1), x)


# --- shapes -------------------------------------------------------------------------------------------------

SHAPE_CASES: dict[str, Case] = {
    "unflatten": lambda t, x: (x.unflatten(2, (2, 2)), t.unflatten(x, -1, (-1, 2)), x.unflatten(0, [2, 1])),
    "unflatten_bad": lambda t, x: x.unflatten(1, (2, 2)),
    "unflatten_two_unknowns": lambda t, x: x.unflatten(2, (-1, -1)),
    "unflatten_ragged": lambda t, x: x.unflatten(1, (-1, 2)),
    "unflatten_nothing": lambda t, x: x.unflatten(1, ()),
    "repeat": lambda t, x: (x.repeat(1, 2, 3), x.repeat(2, 1, 1, 1), x[0, 0].repeat(3), x.repeat((1, 1, 2))),
    "repeat_never": lambda t, x: (x.repeat(0, 1, 1), x.repeat(1, 1, 0)),
    "repeat_short": lambda t, x: x.repeat(2, 2),
    "repeat_negative": lambda t, x: x.repeat(2, 2, -1),
    "repeat_0d": lambda t, x: (x[0, 0, 0].repeat(3), x[0, 0, 0].repeat(())),
    "tile": lambda t, x: (x.tile(2), x.tile((2, 1)), t.tile(x, (1, 2, 1, 2))),
    "interleave": lambda t, x: (
        x.repeat_interleave(2),
        x.repeat_interleave(3, 1),
        x.repeat_interleave(2, dim=-1),
    ),
    "interleave_each": lambda t, x: (
        x.repeat_interleave(t.tensor([1, 0, 2]), dim=1),
        t.repeat_interleave(x, t.tensor([2, 1]), 0),
    ),
    "interleave_bad": lambda t, x: x.repeat_interleave(t.tensor([1, 2]), 1),
    "interleave_negative": lambda t, x: x.repeat_interleave(-1, 1),
    "roll": lambda t, x: (x.roll(1), x.roll(2, 1), x.roll(-1, -1), x.roll(7, 0), t.roll(x, (1, 2), (0, 2))),
    "roll_none": lambda t, x: (x.roll(0, 0), x[:0].roll(1, 0)),
    "roll_bad": lambda t, x: x.roll((1, 2), 0),
    "roll_axis": lambda t, x: x.roll(1, 3),
    "movedim": lambda t, x: (
        x.movedim(0, 2),
        x.movedim(-1, 0),
        t.movedim(x, (0, 1), (1, 2)),
        x.movedim((2, 0), (0, 1)),
        x.movedim(1, 1),
    ),
    "movedim_bad": lambda t, x: x.movedim((0, 1), (0,)),
    "movedim_twice": lambda t, x: x.movedim((0, 0), (0, 1)),
    "movedim_axis": lambda t, x: x.movedim(0, 3),
    "as": lambda t, x: (
        x.contiguous().view_as(t.ones(2, 12)),
        x.reshape_as(t.ones(4, 6)),
        x[:1].expand_as(x),
    ),
    "as_bad": lambda t, x: x.view_as(t.ones(5)),
    "squeeze_several": lambda t, x: (
        x[:, :1, :1].squeeze((1, 2)),
        x[:1].squeeze((0, 1)),
        x[:1, :1].squeeze((-2, 0)),
    ),
    "squeeze_nothing": lambda t, x: x[:1].squeeze(()),
    "squeeze_twice": lambda t, x: x.squeeze((0, 0)),
    "squeeze_axis": lambda t, x: x.squeeze(3),
    "tril": lambda t, x: (
        x.tril(),
        t.tril(x, -1),
        x.tril(diagonal=1),
        x[0].triu(),
        t.triu(x, 1),
        x.triu(-5),
        x.triu(9),
    ),
    "tril_vector": lambda t, x: x[0, 0].tril(),
    "triu_empty": lambda t, x: (x[:0].triu(), x[:, :0].tril()),
    "chunk_axis": lambda t, x: x.chunk(2, 3),
    "unbind_axis": lambda t, x: x.unbind(3),
    "split_axis": lambda t, x: x.split(1, -4),
    "stride": lambda t, x: (x.stride(), x.t_ if False else x.stride(0), x.stride(-1)),
    "sizes": lambda t, x: (
        x.nbytes,
        x.itemsize,
        x.element_size(),
        x.numel(),
        t.numel(x),
        x.is_floating_point(),
    ),
    "mm": lambda t, x: (t.mm(x[0], x[1].t()), t.bmm(x, x.mT), t.mv(x[0], x[0, 0]), x[0].mv(x[1, 1])),
    "outer": lambda t, x: (
        t.outer(x[0, 0], x[0, 1, :2]),
        x[0, 0].outer(x[1, 1]),
        t.outer(x[0, 0, :0], x[0, 0]),
    ),
    "outer_bad": lambda t, x: t.outer(x[0], x[0, 0]),
    "mv_bad": lambda t, x: x[0].mv(x[0, :, 0]),
    "mm_bad": lambda t, x: x.mm(x),
    "bmm_bad": lambda t, x: x.bmm(x),
    "add_alpha": lambda t, x: (t.add(x, x, alpha=2), x.sub(x[0], alpha=0.5), x.add(1.0)),
    "div_floor": lambda t, x: (t.div(x, 0.3, rounding_mode="floor"), t.div(x, 2), x.floor_divide(0.3)),
    "div_odd": lambda t, x: t.div(x, 2, rounding_mode="up"),
    "named_operand": lambda t, x: x.mul("a"),
}


@pytest.mark.parametrize("name", SHAPE_CASES)
def test_shapes_and_products(name, rng):
    for x in layouts(rng, (2, 3, 4))[:2]:
        if name not in ("stride",) or x.flags.c_contiguous:
            agree(SHAPE_CASES[name], x, rng=rng)
    agree(SHAPE_CASES[name], rng.normal(size=(2, 3, 4)).astype(np.float32), rng=rng)


ZERO_D: dict[str, Case] = {
    "sort": lambda t, x: (*x.sort(), *x.sort(0), *x.topk(1), x.argsort()),
    "topk_bad": lambda t, x: x.topk(2),
    "max": lambda t, x: (*x.max(0), *x.min(-1), x.max()),
    "max_bad": lambda t, x: x.max(1),
    "gather": lambda t, x: (
        x.gather(0, t.tensor(0)),
        x.gather(0, t.tensor([0, 0])),
        x.gather(-1, t.tensor([0])),
    ),
    "gather_bad": lambda t, x: x.gather(0, t.tensor(1)),
    "scatter": lambda t, x: (
        x.scatter(0, t.tensor(0), t.tensor(2.0, dtype=x.dtype)),
        x.scatter(0, t.tensor(0), 2.0),
    ),
    "scatter_add": lambda t, x: x.scatter_add(0, t.tensor(0), t.tensor(2.0, dtype=x.dtype)),
    "index_select": lambda t, x: x.index_select(0, t.tensor(0)),
    "index_fill": lambda t, x: x.index_fill(0, t.tensor(0), 3.0),
    "masked_select": lambda t, x: (x.masked_select(t.tensor(True)), x.masked_select(t.tensor([True, False]))),
    "repeat": lambda t, x: (x.repeat(2, 2), x.repeat_interleave(3), x.tile(2), x.tile(())),
    "roll": lambda t, x: x.roll(1),
    "movedim": lambda t, x: x.movedim(0, 0),
    "tril": lambda t, x: x.tril(),
    "squeeze": lambda t, x: (x.squeeze(()), x.squeeze((0,))),
    "unbind": lambda t, x: x.unbind(),
    "chunk": lambda t, x: x.chunk(2),
    "unflatten": lambda t, x: x.unflatten(0, (1, 1)),
    "take_along": lambda t, x: x.take_along_dim(t.tensor([0])),
    "count": lambda t, x: (x.count_nonzero(), x.var(correction=0), x.std(unbiased=False)),
}


@pytest.mark.parametrize("name", ZERO_D)
def test_zero_dimensional_tensors(name):
    agree(ZERO_D[name], np.array(1.75))


# --- picking and putting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gather", "scatter", "scatter_add"])
def test_gather_and_scatter(name, rng):
    def case(t, x, ids, src, dim):
        return getattr(t, name)(x, dim, ids) if name == "gather" else getattr(x, name)(dim, ids, src)

    for dim, shape in itertools.product(
        [0, 1, 2, -1, 3], [(2, 3, 4), (1, 2, 3), (2, 3, 1), (3, 3, 4), (0, 3, 4)]
    ):
        x, src = rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 3, 5))
        high = x.shape[dim] if dim < 3 else 1
        ids = rng.integers(0, high, shape)
        if (
            name == "scatter" and ids.size
        ):  # which of several sources stays is open in PyTorch: name each once
            ids = np.sort(np.argsort(rng.random((*shape, high)), -1)[..., 0], 0)
            along = np.arange(shape[dim] if dim < 3 else 1) % high
            ids = np.broadcast_to(np.expand_dims(along, [a for a in range(3) if a != dim % 3]), shape).copy()
            if dim < 3 and shape[dim] > high:
                continue
        agree(lambda t, x, ids, src: case(t, x, ids, src, dim), x, ids, src[:, :, :4], grad=False)
        agree(lambda t, x, ids, src: case(t, x, ids, src, dim), x, ids, rng.normal(size=shape), rng=rng)
    x, src = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    for wrong in [np.array([[0, 3]]), np.array([[-1]]), np.array([0, 1]), np.array([[0.0]])]:
        agree(lambda t, x, ids, src: case(t, x, ids, src, 1), x, wrong, src)
    if name != "gather":
        one = np.array([[0]])
        agree(lambda t, x, ids, src: case(t, x, ids, src, 1), x, one, src.astype(np.float32))
        agree(lambda t, x, ids, src: case(t, x, ids, src, 1), x, one, src[:0])


def test_scatter_of_one_number(rng):
    x, ids = rng.normal(size=(2, 3)), np.array([[0, 2], [1, 1]])
    agree(
        lambda t, x, ids: (x.scatter(1, ids, 5.0), x.scatter(1, ids, value=5), t.scatter(x, 1, ids, -1)),
        x,
        ids,
    )
    agree(lambda t, x, ids: x.clone().scatter_(1, ids, 5.0), x, ids)
    agree(lambda t, x, ids: x.scatter(1, ids, 1), np.arange(6).reshape(2, 3), ids, grad=False)
    agree(lambda t, x, ids: t.zeros_like(x).scatter_(1, ids, float("-inf")), x, ids, grad=False)


@pytest.mark.parametrize("dim", [0, 1, -1, 2])
def test_index_select_and_index_fill(dim, rng):
    for ids in [[0, 1, 1], [0], [], [2], [-1]]:
        ids = np.array(ids, np.int64)
        for x in layouts(rng, (2, 3)):
            agree(lambda t, x, ids: (t.index_select(x, dim, ids), x.index_select(dim, ids)), x, ids, rng=rng)
            if ids.size == 0 or ids[0] >= 0:  # PyTorch's index_fill takes negative ones
                agree(lambda t, x, ids: x.index_fill(dim, ids, 2.5), x, ids, rng=rng)
    agree(lambda t, x, ids: x.index_select(dim, ids), x, np.array([[0]]))
    agree(lambda t, x, ids: x.index_select(dim, ids), x, np.array([0.0]))


def test_take_along_dim(rng):
    x = rng.normal(size=(2, 3, 4))
    for dim, shape in [
        (2, (2, 3, 2)),
        (2, (1, 1, 2)),
        (0, (5, 3, 4)),
        (0, (1, 3, 1)),
        (-2, (2, 2, 4)),
        (1, (2, 2)),
    ]:
        ids = rng.integers(0, min(x.shape), shape)
        agree(
            lambda t, x, ids: (t.take_along_dim(x, ids, dim), x.take_along_dim(ids, dim=dim)), x, ids, rng=rng
        )
    agree(lambda t, x, ids: t.take_along_dim(x, ids), x, np.array([3, 23, 0]))
    agree(lambda t, x: t.take_along_dim(x, t.argsort(x, 1), 1), x)
    agree(lambda t, x, ids: t.take_along_dim(x[:1], ids, 2), x, rng.integers(0, 4, (5, 3, 2)))


def test_masked_select(rng):
    for x, mask in [
        ((2, 3), (2, 3)),
        ((2, 3), (3,)),
        ((3,), (2, 1)),
        ((2, 3), (1, 1)),
        ((0, 3), (3,)),
        ((2,), (3,)),
    ]:
        agree(
            lambda t, x, m: (t.masked_select(x, m), x.masked_select(m)),
            rng.normal(size=x),
            rng.random(mask) < 0.5,
        )
    agree(lambda t, x, m: x.masked_select(m), rng.normal(size=3), np.ones(3))


# --- remainder ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_remainder_has_the_sign_of_the_divisor(dtype):
    a, b = np.array([7, 3, 5, 0, 250, 1]), np.array([3, 7, 5, 2, 7, 1])
    signs = [(1, 1)] if dtype == np.uint8 else itertools.product([1, -1], repeat=2)
    for s, u in signs:
        pair = (a * s).astype(dtype), (b * u).astype(dtype)
        agree(lambda t, a, b: (a % b, t.remainder(a, b), a.remainder(b)), *pair)
        agree(lambda t, a: (a % 3, a % 2.5, 7 % t.abs(a * 0 + 3)), pair[0], grad=False)
    agree(lambda t, a, b: a % b, np.array([5.5, -5.5, 5.5, -5.5]), np.array([2.0, 2.0, -2.0, -2.0]))
    agree(lambda t, a: a % 2.0, np.array([math.inf, math.nan, 1.0, -1.0]), grad=False)
    agree(lambda t, a, b: a % b, np.array([1.0, -1.0, 0.0]), np.array([0.0, math.inf, 0.0]), grad=False)


@pytest.mark.parametrize("first", DTYPES)
def test_promotion_of_a_remainder(first):
    for second in DTYPES:
        for a, b in itertools.product([np.array([5, 7]), np.array(5)], [np.array([3, 2]), np.array(3)]):
            agree(lambda t, a, b: a % b, a.astype(first), b.astype(second), grad=False)
    for op in (operator.mod, operator.floordiv):
        agree(lambda t, a, op=op: op(a, 0), np.array([1, 2]).astype(first), grad=False)


# --- einsum -------------------------------------------------------------------------------------------------

SIZES = {**dict(zip("ijkbhtsda", (2, 3, 4, 2, 2, 3, 4, 5, 3), strict=True)), "A": 2, "z": 3}
EQUATIONS = [
    "i->i i-> i,i-> i,i->i i,j->ij i,j->ji ij->ji ij-> ij->j ij,jk->ik ij,jk ij,kj ij,jk->ki ij,ij->ij",
    "ii ii->i iij->ij iij->j ii,ij->j iii->i iijj->ij iijj ij,ij ba zA Az->A i,i,i->i ij,jk,kd->id ij,jk,kd",
    "bij,bjk->bik bhtd,bhsd->bhts bhts,bhsd->bhtd bthd,bshd->bhts bij,jk->bik bij,bj->bi ijk,ikb->jb",
    "...ij,...jk->...ik ...i,...i->... i...->...i ...ij->...ji ...->... ...i-> b...,b...->b...",
    "i...j,j...->i...",
    "ij,...j->...i ...ii->...i ...ii ...,...->... b...i,i->b... , ,-> ...d,...d i,jk,k->ij",
    "ijk,i,j,k-> ijk,ji->k",
]


@pytest.mark.parametrize("equation", " ".join(EQUATIONS).split())
def test_einsum(equation, rng):
    for dots, dtype in itertools.product([(), (2,), (3, 2)], [np.float64, np.float32]):
        if "..." not in equation and dots:
            continue
        operands = []
        for term in equation.split("->")[0].split(","):
            head, more, tail = term.partition("...")
            shape = [SIZES[c] for c in head] + list(dots if more else ()) + [SIZES[c] for c in tail]
            operands.append(np.asarray(rng.normal(size=shape)).astype(dtype))
        agree(
            lambda t, *xs: t.einsum(equation, *xs),
            *operands,
            rng=rng,
            tolerance=1e-4 if dtype == np.float32 else None,
        )
        agree(lambda t, *xs: t.einsum(equation, list(xs)), *operands, rng=rng, tolerance=1e-4)


def test_einsum_broadcasts_axes_of_length_one_and_takes_empty_ones(rng):
    for equation, shapes in [
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("ij,jk->ik", [(2, 0), (0, 4)]),
        ("ij,ij->ij", [(1, 3), (2, 1)]),
        ("...i,...i->...", [(2, 1, 3), (4, 3)]),
        ("...ij,...jk", [(2, 2, 3), (3, 4)]),
        ("i,i->", [(0,), (0,)]),
        ("ij->i", [(0, 3)]),
        ("...i->...", [(3,)]),
        (" i j , j k -> i k ", [(2, 3), (3, 4)]),
    ]:
        agree(lambda t, *xs: t.einsum(equation, *xs), *[rng.normal(size=s) for s in shapes], rng=rng)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (4, 5)]),
        ("ij->ik", [(2, 3)]),
        ("ij->ii", [(2, 2)]),
        ("ij", [(2, 3, 4)]),
        ("ijk", [(2, 3)]),
        ("ij,jk", [(2, 3)]),
        ("ij", [(2, 3), (3, 4)]),
        ("ii->i", [(2, 3)]),
        ("i1", [(2, 3)]),
        ("i.j", [(2, 3)]),
        ("ij->...i->j", [(2, 3)]),
        ("...i...", [(2, 3)]),
        ("i->i...j", [(2,)]),
        ("...i,...i", [(2, 3), (3, 3)]),
        ("i", []),
    ],
)
def test_einsum_refuses_what_does_not_fit(equation, shapes, rng):
    agree(lambda t, *xs: t.einsum(equation, *xs), *[rng.normal(size=s) for s in shapes])


@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_einsum_of_any_axes(data, seed):
    """Random terms over four axes of lengths 1, 2 and 3; a letter may be missing from the output."""
    letters = st.lists(st.sampled_from("abcd"), max_size=4)
    terms = data.draw(st.lists(letters, min_size=1, max_size=3))
    lengths = dict(
        zip("abcd", data.draw(st.lists(st.sampled_from([1, 2, 3]), min_size=4, max_size=4)), strict=True)
    )
    named = sorted({c for term in terms for c in term})
    output = data.draw(
        st.permutations(data.draw(st.lists(st.sampled_from(named), unique=True)) if named else [])
    )
    equation = ",".join(map("".join, terms)) + "->" + "".join(output)
    rng = np.random.default_rng(seed)
    operands = [np.asarray(rng.normal(size=[lengths[c] for c in term])) for term in terms]
    agree(lambda t, *xs: t.einsum(equation, *xs), *operands, rng=rng)


# --- higher order -------------------------------------------------------------------------------------------

SMOOTH: dict[str, Callable[..., Any]] = {
    "einsum": lambda x, y: mt.einsum("ij,kj,j->ik", x, y.tanh(), x[0]),
    "einsum_diagonal": lambda x, y: mt.einsum("ii,ij->j", x[:, :2] * x[:, :2], y),
    "sort": lambda x, y: (x * y).sort(1, descending=True).values ** 2,
    "topk": lambda x, y: (x * y).topk(2).values.exp(),
    "max": lambda x, y: (x * y).max(1).values ** 3,
    "scatter": lambda x, y: (x * x).scatter(1, mt.tensor([[0, 2], [1, 0]]), y * y) ** 2,
    "scatter_add": lambda x, y: (x * y).scatter_add(1, mt.tensor([[0, 0], [1, 0]]), y * y) ** 2,
    "scatter_in_place": lambda x, y: (x * x).scatter_add_(1, mt.tensor([[0, 0], [1, 0]]), y).exp_(),
    "take_along_dim": lambda x, y: (x * y).take_along_dim(mt.tensor([[0, 0, 1]]), 1).exp(),
    "repeat": lambda x, y: (x.repeat(2, 1, 2) * y.tile(1, 2)).square(),
    "roll": lambda x, y: (x * y.roll(1, 1)).roll((1, -1), (0, 1)) ** 2,
    "interleave": lambda x, y: (x.repeat_interleave(2, 1)[:, ::2] * y).exp(),
    "remainder": lambda x, y: ((x * y) % 5.0) ** 2,
    "masked_select": lambda x, y: (x * y).masked_select(mt.tensor([True, False, True])) ** 3,
    "index_fill": lambda x, y: (x * y).index_fill(1, mt.tensor([0]), 2.0) ** 2,
    "outer": lambda x, y: mt.outer(x[0], y[1]).square(),
    "var": lambda x, y: (x * y).var(1, unbiased=False),
    "tril": lambda x, y: (x.tril() * y).exp(),
    "clamp": lambda x, y: (x * y).clamp(0.5, 20.0) ** 2,
    "kl_div": lambda x, y: mt.nn.functional.kl_div(x.log_softmax(1), y.softmax(1), reduction="none"),
    "pad": lambda x, y: mt.nn.functional.pad(x * y, (1, -1, 0, 2), value=2.0) ** 2,
    "normalize": lambda x, y: mt.nn.functional.normalize(x * y, dim=-1),
    "gelu_tanh": lambda x, y: mt.nn.functional.gelu(x * y, approximate="tanh"),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_of_first_and_second_order(name, rng):
    x, y = (mt.tensor(rng.uniform(0.5, 1.5, (2, 3)), requires_grad=True) for _ in range(2))
    assert mt.autograd.gradcheck(SMOOTH[name], (x, y))
    assert mt.autograd.gradgradcheck(SMOOTH[name], (x, y))


# --- in place -----------------------------------------------------------------------------------------------

IN_PLACE: dict[str, Case] = {
    **{
        name: (lambda t, x, name=name: getattr(x, name)())
        for name in "abs_ neg_ exp_ log_ sqrt_ rsqrt_ sin_ cos_ tanh_ sigmoid_ relu_".split()
    },
    "clamp_": lambda t, x: x.clamp_(0.7, 1.2),
    "clamp_low": lambda t, x: x.clamp_(min=1),
    "tril_": lambda t, x: x.tril_(-1),
    "triu_": lambda t, x: x.triu_(),
    "add_": lambda t, x: x.add_(t.ones_like(x), alpha=3).sub_(1).mul_(t.ones_like(x) * 3).div_(2.0).pow_(2),
    "floor": lambda t, x: x.remainder_(0.3),
    "masked_fill_": lambda t, x: x.masked_fill_(x > 1, float("-inf")),
    "masked_fill_row": lambda t, x: x.masked_fill_(t.tensor([True, False, True]), 0.0),
    "masked_fill_grows": lambda t, x: x.masked_fill_(t.ones(2, 2, 3, dtype=t.bool), 0.0),
    "index_fill_": lambda t, x: x.index_fill_(1, t.tensor([0, 2]), 4.0),
    "scatter_": lambda t, x: x.scatter_(1, t.tensor([[2, 0]]), x[:1, :2] + 3),
    "scatter_add_": lambda t, x: x.scatter_add_(1, t.tensor([[1, 1]]), x[:1, :2] + 3),
    "too_large": lambda t, x: x.add_(t.ones(4, 2, 3)),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_methods_in_place(name, rng):
    def changed(t, x):
        y = x.clone()
        z = IN_PLACE[name](t, y)
        assert z is y
        return y, x * 1.0

    agree(changed, rng.uniform(0.5, 1.5, (2, 3)), rng=rng)
    agree(lambda t, x: IN_PLACE[name](t, x.clone()[:, :3]), rng.uniform(0.5, 1.5, (2, 4)), rng=rng)
    agree(lambda t, x: IN_PLACE[name](t, x), rng.uniform(0.5, 1.5, (2, 3)))  # a leaf that requires a gradient


def test_augmented_assignment_is_in_place():
    def case(t, a, b):
        first, second = a, b
        a += 3
        a *= 2
        a -= 1
        a %= 7
        a //= 2
        a **= 2
        b &= t.tensor([True, True, False])
        b |= t.tensor([False, True, False])
        b ^= t.tensor([True, True, True])
        assert a is first
        assert b is second
        return a, b

    agree(case, np.array([1, 2, 3]), np.array([True, False, True]), grad=False)
    agree(lambda t, a: a.add_(1.5), np.array([1, 2]), grad=False)
    agree(lambda t, a: a.add_("b"), np.array([1, 2]), grad=False)


def test_random_numbers_in_place():
    x = mt.zeros(100, 100, dtype=mt.float64)
    assert x.normal_(3.0, 2.0, generator=mt.Generator().manual_seed(0)) is x
    assert abs(x.mean().item() - 3.0) < 0.1  # 5 standard errors are 0.1
    assert abs(x.std().item() - 2.0) < 0.1
    first = x.tolist()
    x.normal_(3.0, 2.0, generator=mt.Generator().manual_seed(0))
    assert x.tolist() == first
    x.uniform_(-2.0, -1.0)
    assert -2.0 <= x.min() < -1.9 < -1.1 < x.max() < -1.0
    for name in ["normal_", "uniform_"]:
        agree(lambda t, x: getattr(x, name)(), np.array([1, 2]), grad=False)
        agree(lambda t, x: getattr(x, name)(), np.ones(2))  # a leaf that requires a gradient


# --- making -------------------------------------------------------------------------------------------------

MADE: dict[str, Case] = {
    "arange": lambda t: (
        t.arange(5),
        t.arange(1, 5),
        t.arange(0, 1, 0.1),
        t.arange(5, 0, -2),
        t.arange(5.0),
        t.arange(0),
    ),
    "arange_dtype": lambda t: (
        t.arange(5, dtype=t.float32),
        t.arange(0, 5, 2, dtype=t.float64),
        t.arange(2.5, dtype=t.int64),
    ),
    "arange_long": lambda t: (t.arange(0, 100, 0.1), t.arange(-1, 1, 1e-3), t.arange(start=1, end=7, step=2)),
    "arange_device": lambda t: t.arange(0, 3, dtype=t.long, device=t.device("cpu")),
    "arange_wrong_way": lambda t: t.arange(5, 1),
    "arange_wrong_step": lambda t: t.arange(1, 5, -1),
    "arange_no_step": lambda t: t.arange(1, 5, 0),
    "arange_equal": lambda t: (t.arange(3, 3), t.arange(3, 3, -1)),
    "arange_tensor": lambda t: t.arange(t.tensor(3)),
    "linspace": lambda t: (
        t.linspace(0, 1, 5),
        t.linspace(3, -2, steps=4),
        t.linspace(0.0, 1.0, 1),
        t.linspace(0, 1, 0),
    ),
    "linspace_dtype": lambda t: (
        t.linspace(0, 10, 3, dtype=t.int64),
        t.linspace(0, 1, 7, dtype=t.float64, device="cpu"),
    ),
    "linspace_negative": lambda t: t.linspace(0, 1, -1),
    "like": lambda t: tuple(
        getattr(t, f"{name}_like")(t.ones(2, 3, dtype=t.float64), device="cpu") * 0
        for name in ("zeros", "ones", "rand", "randn")
    ),
    "like_dtype": lambda t: (
        t.zeros_like(t.ones(2), dtype=t.int64),
        t.full_like(t.ones(2), 7),
        t.full_like(t.arange(2), 3),
    ),
    "empty_like": lambda t: (
        t.empty_like(t.ones(2, 3)).fill_(1),
        t.empty(2, 3).zero_(),
        t.empty((2,), dtype=t.int32).zero_(),
    ),
    "full": lambda t: (
        t.full((2, 3), 7),
        t.full((2,), 1.5),
        t.full((), True),
        t.full((1,), t.tensor(2.0)),
        t.full([2], 1, dtype=t.float32),
    ),
    "eye": lambda t: (t.eye(3), t.eye(2, 3), t.eye(3, 2, dtype=t.int64, device="cpu")),
    "new": lambda t: (
        t.ones(2, dtype=t.float64).new_zeros(2, 3),
        t.ones(2).new_ones((2, 2)),
        t.ones(2).new_full((2,), 3),
        t.arange(2).new_tensor([1, 2]),
        t.ones(2).new_tensor([1, 2]),
        t.ones(2).new_zeros(3, dtype=t.int64),
    ),
    "randperm": lambda t: t.randperm(5).sort().values,
    "randint": lambda t: (
        t.randint(3, (2, 3)) * 0,
        t.randint(2, 5, (4,), device="cpu") * 0,
        t.randint(high=3, size=(2,), low=0) * 0,
    ),
    "randint_bad": lambda t: t.randint(3, 3, (2,)),
    "normal": lambda t: (t.normal(0.0, 1.0, (2, 3)) * 0, t.normal(2, 3, size=(2,)) * 0),
    "no_such_device": lambda t: t.zeros(2, device="nowhere"),
    "unknown_argument": lambda t: t.zeros(2, colour="red"),
    "exact": lambda t: (
        t.tensor([0.1], dtype=t.float64),
        t.tensor(0.1, dtype=t.float64),
        t.as_tensor([[0.1]], dtype=t.float64),
        t.zeros(2, dtype=t.float64).fill_(0.1),
        t.ones(1, dtype=t.float64).new_tensor([0.1]),
        t.full((1,), 0.1, dtype=t.float64),
        t.zeros(2, dtype=t.float64).scatter(0, t.tensor([0]), 0.1),
        t.zeros(2, dtype=t.float64).index_fill(0, t.tensor([0]), 0.1),
        t.zeros(2, dtype=t.float64).masked_fill(t.tensor([True, False]), 0.1),
        t.tensor([2**53 + 1], dtype=t.int64),
        t.tensor([16777217], dtype=t.float64),
        t.tensor([1.9, -1.9], dtype=t.int64),
        t.tensor([0.0, 2.0], dtype=t.bool),
    ),
    "numbers": lambda t: (t.tensor([t.pi, t.e, t.inf, -t.inf, t.nan]),),
    "axis_for_dim": lambda t: (
        t.cat([t.ones(1, 2), t.zeros(1, 2)], axis=1),
        t.stack([t.ones(2), t.zeros(2)], axis=1),
        t.softmax(t.tensor([[1.0, 2.0]]), axis=1),
        t.tensor([[3.0, 1.0], [2.0, 4.0]]).sort(axis=0).values,
        t.ones(2, 3).cumsum(axis=1),
        t.ones(2, 3).unsqueeze(axis=0),
        t.ones(2, 1).squeeze(axis=1),
        t.ones(2, 3).count_nonzero(axis=0),
        t.unbind(t.ones(2, 3), axis=1)[0],
        t.chunk(t.ones(2, 4), 2, axis=1)[0],
        t.gather(t.ones(2, 3), axis=1, index=t.zeros(2, 1, dtype=t.int64)),
        t.index_select(t.ones(2, 3), axis=1, index=t.tensor([0])),
        t.ones(2, 3).mean(axis=1, keepdims=True),
    ),
    "numbers_of_many_kinds": lambda t: (
        t.tensor([np.float32(1), 2.0]),
        t.tensor([1, np.float32(2)]),
        t.tensor([np.float16(1), 2.0]),
        t.tensor([2.0, np.float64(1)]),
        t.tensor([np.float64(1)]),
        t.tensor([[True, 2], [3, 4.5]]),
    ),
    "tensors_in_a_list_are_numbers": lambda t: (
        t.tensor([t.tensor(1.0), 2.0]),
        t.tensor([2.0, t.tensor(1.0)]),
        t.tensor([t.tensor(1.0), t.tensor(2)]),
        t.tensor([[t.tensor(1)], [2.5]]),
        t.tensor([t.tensor(True), 2]),
        t.tensor([t.tensor(1, dtype=t.uint8), 2]),
        t.tensor([t.tensor(1.0, dtype=t.float64), 2]),
        t.as_tensor([t.tensor(1.0), 2]),
    ),
    "normal_of_tensors": lambda t: (
        t.normal(t.tensor([1.0, 2.0]), t.zeros(2)),
        t.normal(t.tensor([1.0, 2.0]), 0.0),
        t.normal(3, t.zeros(2, dtype=t.float64)),
        t.normal(t.zeros(2, dtype=t.float64), t.zeros(3, 1)),
        t.normal(t.zeros(2)) * 0,
        t.normal(t.tensor(1.0), t.tensor(0.0), (2,)),
    ),
    "normal_of_numbers_alone": lambda t: t.normal(0.0, 1.0),
    "normal_of_a_negative_deviation": lambda t: t.normal(0.0, t.tensor([1.0, -1.0])),
    "normal_of_integers": lambda t: t.normal(t.tensor([1, 2]), 1.0),
    "bernoulli_of_one_probability": lambda t: (
        t.bernoulli(t.tensor([7.0, 0.0]), 1.0),
        t.bernoulli(t.ones(2), p=0),
        t.tensor([0, 1]).bernoulli(1.0),
    ),
    "bernoulli_of_two": lambda t: t.ones(2).bernoulli(2.0),
    "finfo": lambda t: [
        t.tensor(float(v)) for v in (t.finfo(t.float32).min, t.finfo(t.float64).max, t.finfo(t.float32).eps)
    ],
    "iinfo": lambda t: [t.tensor(v) for v in (int(t.iinfo(t.int64).max), int(t.iinfo(t.uint8).min))],
    "casts": lambda t: (
        t.ones(2).type_as(t.arange(2)),
        t.arange(3).type(t.float64),
        t.ones(2).cpu(),
        t.ones(2).to("cpu", t.float64),
        t.ones(2).to(t.device("cpu"), non_blocking=True),
        t.ones(2).to(t.arange(2)),
        t.is_floating_point(t.ones(2)),
        t.is_tensor(t.ones(2)),
        t.is_tensor([1.0]),
    ),
    "device": lambda t: (
        t.ones(2).device.type == "cpu",
        t.ones(2).device == t.device("cpu"),
        "cuda" in str(t.device("cpu")),
    ),
    "masked_minimum": lambda t: t.zeros(2).masked_fill(t.tensor([True, False]), t.finfo(t.float32).min),
    "numpy": lambda t: t.tensor(t.ones(2, requires_grad=True).numpy(force=True)),
    "numpy_of_a_leaf": lambda t: t.ones(2, requires_grad=True).numpy(),
}


def test_limits_of_dtypes_are_python_numbers():
    for dtype in ("float32", "float64"):
        ours, theirs = mt.finfo(getattr(mt, dtype)), torch.finfo(getattr(torch, dtype))
        for name in ("min", "max", "eps", "tiny", "smallest_normal", "resolution", "bits", "dtype"):
            assert type(getattr(ours, name)) is type(getattr(theirs, name))
            assert getattr(ours, name) == getattr(theirs, name), (dtype, name)
    for dtype in ("uint8", "int32", "int64"):
        assert vars(mt.iinfo(getattr(mt, dtype))) == {
            name: getattr(torch.iinfo(getattr(torch, dtype)), name)
            for name in ("min", "max", "bits", "dtype")
        }
    assert mt.finfo() == mt.finfo(mt.get_default_dtype())
    for call, words in (
        (lambda: mt.finfo(mt.int64), "finfo: int64 is"),
        (lambda: mt.iinfo(mt.bool), "iinfo: b"),
    ):
        with pytest.raises(TypeError, match=f"^{words}"):
            call()


def test_a_list_of_tensors_with_gradients_is_copied_without_them_and_this_is_said():
    for t in (mt, torch):
        loss = (t.ones(2, requires_grad=True) * 2).sum()
        with warnings.catch_warnings(record=True) as said:  # PyTorch says it once a process
            warnings.simplefilter("always")
            made = t.tensor([loss, loss])
        assert t is torch or "use stack" in str(said[0].message)
        assert made.tolist() == [4.0, 4.0]
        assert not made.requires_grad


@pytest.mark.parametrize("name", MADE)
def test_making(name):
    agree(MADE[name], grad=False, tolerance=1e-12 if name == "exact" else None)


@pytest.mark.parametrize("where", ["cuda", "cuda:0", "mps", "meta"])
def test_other_devices_are_refused_by_name(where):
    for make in [
        lambda: mt.zeros(2, device=where),
        lambda: mt.ones(2).to(where),
        lambda: mt.device(where),
        lambda: mt.ones_like(mt.ones(2), device=where),
        lambda: mt.nn.Linear(2, 2, device=where),
        lambda: mt.nn.Linear(2, 2).to(where),
    ]:
        with pytest.raises(RuntimeError, match=where):
            make()
    with pytest.raises(RuntimeError, match="cuda"):
        mt.ones(2).cuda()
    with pytest.raises(TypeError, match="float16"):
        mt.ones(2).half()


def test_every_public_function_is_documented_and_every_name_exists():
    for name in mt.__all__:
        found = getattr(mt, name)
        if callable(found) and getattr(found, "__module__", "").startswith("microtensor"):
            assert found.__doc__, name
    assert len(set(mt.__all__)) == len(mt.__all__)


def test_functions_are_their_methods_where_pytorch_has_both():
    missing = [
        n for n in mt.__all__ if hasattr(torch, n) and hasattr(torch.Tensor, n) and not hasattr(mt.Tensor, n)
    ]
    assert not [n for n in missing if n not in ("dtype",)]


@pytest.mark.parametrize("name", ["grad", "backward"])
def test_autograd_s_functions_have_pytorch_s_arguments_in_its_order(name):
    ours, theirs = (inspect.signature(getattr(t.autograd, name)).parameters for t in (mt, torch))
    assert list(ours) == [n for n in theirs if n != "grad_variables"][: len(ours)]


ROOMS = "nn nn.functional nn.init nn.utils optim optim.lr_scheduler nn.Module nn.Embedding autograd"
POSITIONAL = {"self", "input", "tensor", "split_size_or_sections", "d", "orig_func"}  # that nobody names


def _parameters(function):
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # PyTorch's own kernels have none
        return {}


@pytest.mark.parametrize("room", ["", *ROOMS.split()])
def test_every_argument_of_pytorch_s_is_here_or_said_not_to_be(room):
    page = Path(__file__).parent.parent / "tools" / "docs" / "differences.md"
    (said,) = re.findall(r"(?m)^- Not here: ((?:.+\n  )*.+)", page.read_text(encoding="utf-8"))
    places = [operator.attrgetter(room)(t) if room else t for t in (torch, mt)]
    names = [n for n in dir(places[1]) if n[0] != "_" and callable(getattr(places[0], n, None))]
    assert len(names) > 1
    for name in names:
        theirs, ours = (_parameters(getattr(place, name)) for place in places)
        if any(p.kind is p.VAR_KEYWORD for p in ours.values()) or not ours:
            continue
        for lacking in theirs.keys() - ours.keys() - POSITIONAL:
            if lacking[0] != "_" and theirs[lacking].kind not in (
                inspect.Parameter.VAR_POSITIONAL,
                inspect.Parameter.VAR_KEYWORD,
            ):
                assert re.search(rf"\b{lacking}\b", said), f"{name}({lacking}=…)"


def test_every_name_that_is_said_not_to_be_here_is_pytorch_s_and_not_here():
    page = Path(__file__).parent.parent / "tools" / "docs" / "differences.md"
    (listed,) = re.findall(
        r"(?m)^- Names that are not here[^:]*: ((?:.+\n  )*.+)", page.read_text(encoding="utf-8")
    )
    names = re.findall(r"`([\w.]+)`", re.sub(r"\(.+?\)", "", listed))
    assert {"median", "linalg", "autograd.Function", "OneCycleLR"} < {*names}
    for name in names:
        assert (_has(torch, name), _has(mt, name)) == (True, False), name


def _has(t: Any, name: str) -> bool:
    for place in (t, t.Tensor, t.optim.lr_scheduler):
        with contextlib.suppress(AttributeError):
            operator.attrgetter(name)(place)
            return True
    return False


SAID: dict[str, Case] = {  # words of differences.md, and what is not the same
    "`no_grad(5)` and": lambda t: t.no_grad(5) and None,
    "`register_hook(5)` are refused at once": lambda t: (
        t.ones(1, requires_grad=True).register_hook(5) and None
    ),
    '`f"{t:.1f}"` formats a tensor of one element with axes': lambda t: f"{t.ones(1, 1):.1f}",
    "`cumsum` and `cumprod` take `dtype=bool`": lambda t: t.ones(2).cumsum(0, dtype=t.bool).tolist(),
    "So `@` refuses one of another dtype": lambda t: (t.ones(2) @ np.ones(2)).tolist(),
    "there it is refused on the left": lambda t: (np.ones(2) * t.ones(2)).tolist(),
    "beside a gradient, and": lambda t: (t.ones(2, requires_grad=True) * np.ones(2)).tolist(),
    "in `x.add(array)`": lambda t: t.ones(2).add(np.ones(2)).tolist(),
    "`cumprod` records nothing": lambda t: t.ones(2, requires_grad=True).cumprod(0, dtype=t.int64).tolist(),
    "`sum(foo=1)`": lambda t: t.ones(2).sum(foo=1),
}


@pytest.mark.parametrize("words", SAID)
def test_what_is_said_to_differ_does(words):
    def outcome(t: Any) -> str:
        try:
            return repr(SAID[words](t))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    assert outcome(mt) != outcome(torch)
    assert not_told([words]) == []
