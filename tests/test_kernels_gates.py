"""ReLU's and dropout's kernels: what passes, what is chance, and the same bits whoever computes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from microtensor import kernels
from microtensor.kernels import columns, gates

Array = np.ndarray[Any, Any]
DTYPES = [np.float32, np.float64]
SHAPES = [(0,), (), (1,), (7,), (3, 50), pytest.param((70_000,), marks=pytest.mark.compiled)]
INF, NAN = math.inf, math.nan


def draw(shape: Any, dtype: Any, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(size=shape)).astype(dtype)


@pytest.fixture(params=["serial", pytest.param("parallel", marks=pytest.mark.compiled)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test twice: every kernel serial, then every kernel parallel, whatever the size."""
    choose = {"serial": lambda work, s, p, *args: s(*args), "parallel": lambda work, s, p, *args: p(*args)}
    monkeypatch.setattr(gates, "run", choose[request.param])
    return str(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_relu_and_its_gradient_pass_what_is_positive(shape: Any, dtype: Any, way: str) -> None:
    x, g = draw(shape, dtype), draw(shape, dtype, 1)
    y, gx = kernels.relu_forward(x), kernels.relu_backward(g, x)
    assert y.dtype == gx.dtype == dtype
    np.testing.assert_array_equal(y, np.maximum(x, 0), strict=True)
    np.testing.assert_array_equal(gx, np.where(x > 0, g, dtype(0)), strict=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_keeps_nan_and_stops_infinite_gradients_at_the_kink(dtype: Any, way: str) -> None:
    x = np.array([NAN, INF, -INF, -0.0, 0.0, 1e-40, -1e-40], dtype)
    np.testing.assert_array_equal(kernels.relu_forward(x), np.maximum(x, 0))
    g = np.full_like(x, INF)
    np.testing.assert_array_equal(kernels.relu_backward(g, x), [INF, INF, 0, 0, 0, INF if x[5] > 0 else 0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_dropout_scales_what_its_definition_keeps(shape: Any, dtype: Any, way: str) -> None:
    x = draw(shape, dtype)
    for p, seed in [(0.1, 7), (0.75, 5 << 40)]:
        y = kernels.dropout(x, p, seed)
        want = np.where(kernels.dropout_keeps(x.shape, p, seed), x * dtype(1 / (1 - p)), dtype(0))
        np.testing.assert_array_equal(y, want, strict=True)


def test_dropout_drops_all_or_nothing_at_the_ends_and_selects_instead_of_multiplying(way: str) -> None:
    x = np.array([INF, -INF, NAN, 1.0] * 50)
    np.testing.assert_array_equal(kernels.dropout(x, 1.0, 3), 0.0)
    np.testing.assert_array_equal(kernels.dropout(x, 0.0, 3), x)
    y, keep = kernels.dropout(x, 0.5, 3), kernels.dropout_keeps(x.shape, 0.5, 3)
    np.testing.assert_array_equal(y[~keep], 0.0)
    assert not np.isfinite(y[keep & ~np.isfinite(x)]).any()


def test_a_part_of_an_array_is_dropped_as_in_the_whole(way: str) -> None:
    x, seed = draw((3 * gates.PIECE,), np.float32), 7 << 40 | 3
    y, keep = kernels.dropout(x, 0.4, seed), kernels.dropout_keeps(x.shape, 0.4, seed)
    for first in (1, 700, gates.PIECE - 1, gates.PIECE, 2 * gates.PIECE + 3):
        for end in (first + 1, 3 * gates.PIECE - 5):
            part, name = x[first:end], f"{first} to {end}"
            np.testing.assert_array_equal(kernels.dropout(part, 0.4, seed | first << 64), y[first:end], name)
            keeps = kernels.dropout_keeps(part.shape, 0.4, seed | first << 64)
            np.testing.assert_array_equal(keeps, keep[first:end], name)


@pytest.mark.parametrize(
    "layout",
    [np.asfortranarray, lambda a: a[::-1].copy()[::-1], lambda a: np.frombuffer(a.tobytes(), a.dtype)],
)
def test_layouts_do_not_change_what_gates_give(layout: Any) -> None:
    x, g = draw((40, 6), np.float64), draw((40, 6), np.float64, 1)
    odd, odd_g = (layout(a).reshape(40, 6) for a in (x, g))
    np.testing.assert_array_equal(kernels.relu_forward(odd), kernels.relu_forward(x))
    np.testing.assert_array_equal(kernels.relu_backward(odd_g, odd), kernels.relu_backward(g, x))
    np.testing.assert_array_equal(kernels.dropout(odd, 0.5, 1), kernels.dropout(x, 0.5, 1))


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_dropout_keeps_each_element_with_the_same_chance_and_independently(p: float) -> None:
    keep = kernels.dropout_keeps((300, 1000), p, 42)
    n, q = keep.size, 1 - p
    five_sigma = 5 * math.sqrt(p * q / n)
    assert abs(keep.mean() - q) < five_sigma
    for axis in (0, 1):
        count = keep.shape[axis]
        assert (abs(keep.mean(axis) - q) < 6 * math.sqrt(p * q / count) + 1 / count).all()
    flat = keep.reshape(-1)
    others = [np.roll(flat, shift) for shift in (1, 2, 64, 1000, gates.PIECE)]
    others += [kernels.dropout_keeps(flat.shape, p, seed) for seed in (43, 42 + (1 << 32))]
    for other in others:
        assert abs((flat & other).mean() - q * q) < 2 * five_sigma


def test_the_hash_is_that_of_attention() -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 1000)
    np.testing.assert_array_equal(gates.mix(x.astype(np.uint32)), columns.mix(x))
