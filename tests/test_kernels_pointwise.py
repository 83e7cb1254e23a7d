"""Pointwise kernels against formulas and np.add.at; sums with the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microtensor import kernels
from microtensor.kernels import pointwise, threads

Array = np.ndarray[Any, Any]
DTYPES = [np.float32, np.float64]
SIZES = [(0,), (), (1,), (7,), (3, 50), (20_000,)]


def draw(shape: Any, dtype: Any, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).normal(size=shape)).astype(dtype)


@pytest.fixture(params=["serial", pytest.param("parallel", marks=pytest.mark.compiled)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test twice: every kernel serial, then every kernel parallel, whatever the size."""
    choose = {"serial": lambda work, s, p, *args: s(*args), "parallel": lambda work, s, p, *args: p(*args)}
    monkeypatch.setattr(pointwise, "run", choose[request.param])
    return str(request.param)


# ---- GELU and erf ----


def normal_cdf(x: Array) -> Array:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x.ravel()]).reshape(x.shape)


# float32: Φ is off by 1e-7 plus its own rounding, and |x| ≤ 10 multiplies that; float64: rounding only.
GELU_TOLERANCE = {np.float32: 2e-6, np.float64: 1e-14}


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_and_its_gradient_match_the_normal_distribution(dtype: Any, way: str) -> None:
    x = np.linspace(-10, 10, 4001).astype(dtype)
    g, x64 = draw(x.shape, dtype), x.astype(np.float64)
    cdf, density = normal_cdf(x64), np.exp(-x64 * x64 / 2) / math.sqrt(2 * math.pi)
    y, gx = kernels.gelu_forward(x), kernels.gelu_backward(g, x)
    assert y.dtype == gx.dtype == dtype
    np.testing.assert_allclose(y, x64 * cdf, atol=GELU_TOLERANCE[dtype])
    np.testing.assert_allclose(gx, g * (cdf + x64 * density), atol=GELU_TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_approximate_gelu_and_its_gradient_match_the_tanh_formula(dtype: Any, way: str) -> None:
    x = np.linspace(-10, 10, 4001).astype(dtype)
    g, x64 = draw(x.shape, dtype), x.astype(np.float64)
    a = math.sqrt(2 / math.pi)
    t = np.tanh(a * (x64 + 0.044715 * x64**3))
    slope = 0.5 * (1 + t) + 0.5 * x64 * (1 - t * t) * a * (1 + 3 * 0.044715 * x64 * x64)
    np.testing.assert_allclose(kernels.gelu_forward(x, True), 0.5 * x64 * (1 + t), atol=GELU_TOLERANCE[dtype])
    np.testing.assert_allclose(kernels.gelu_backward(g, x, True), g * slope, atol=GELU_TOLERANCE[dtype])


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_of_large_numbers_is_the_number_or_zero_and_nan_stays(dtype: Any, approximate: bool) -> None:
    x = np.array([-1e5, -40, -0.0, 0.0, 40, 1e5, math.inf, math.nan], dtype)
    want = [0, 0, 0, 0, 40, 1e5, math.inf, math.nan]
    np.testing.assert_array_equal(kernels.gelu_forward(x, approximate), want)
    np.testing.assert_array_equal(
        np.isnan(kernels.gelu_backward(np.ones_like(x), x, approximate))[:-2], False
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_erf_is_the_c_librarys(dtype: Any, way: str) -> None:
    x = np.concatenate([np.linspace(-6, 6, 501), [1e-30, math.inf, -math.inf, math.nan]]).astype(dtype)
    y = kernels.erf_forward(x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, [math.erf(v) for v in x], rtol=4 * np.finfo(dtype).eps)


# ---- sums ----


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_embedding_backward_equals_add_at_for_integers(data: st.DataObject) -> None:
    n_rows, width = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 70))
    shape = data.draw(st.sampled_from([(0,), (1,), (50,), (4, 9), (2, 3, 4), ()]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    idx = rng.integers(0, n_rows, shape)
    g = rng.integers(-9, 9, (*shape, width)).astype(data.draw(st.sampled_from(DTYPES)))
    want = np.zeros((n_rows, width), g.dtype)
    np.add.at(want, idx, g)
    got = kernels.embedding_backward(g, idx, n_rows)
    assert got.dtype == g.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.compiled
def test_parallel_embedding_backward_loses_no_update(way: str) -> None:
    rng = np.random.default_rng(0)
    idx, g = rng.integers(0, 3, 100_000), rng.integers(1, 9, (100_000, 4)).astype(np.float64)
    want = np.zeros((5, 4))
    np.add.at(want, idx, g)
    for _ in range(5):
        np.testing.assert_array_equal(kernels.embedding_backward(g, idx, 5), want)


@pytest.mark.parametrize(
    "layout",
    [np.asfortranarray, lambda a: a[::-1].copy()[::-1], lambda a: np.frombuffer(a.tobytes(), a.dtype)],
)
def test_layouts_do_not_change_what_pointwise_kernels_give(layout: Callable[[Array], Array]) -> None:
    g, idx = draw((40, 6), np.float64), np.random.default_rng(1).integers(0, 7, 40)
    odd_g, odd_idx = layout(g).reshape(40, 6), layout(idx)
    np.testing.assert_array_equal(
        kernels.embedding_backward(odd_g, odd_idx, 7), kernels.embedding_backward(g, idx, 7)
    )
    np.testing.assert_array_equal(kernels.gelu_forward(odd_g), kernels.gelu_forward(g))
    np.testing.assert_array_equal(kernels.gelu_backward(odd_g, odd_g), kernels.gelu_backward(g, g))
    np.testing.assert_array_equal(kernels.erf_forward(odd_g), kernels.erf_forward(g))


# ---- the same bits, whoever computes ----


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", DTYPES)
def test_serial_and_parallel_give_the_same_bits_every_time(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, g = draw((999, 31), dtype), draw((999, 31), dtype, 1)
    idx = np.random.default_rng(2).integers(0, 50, 999)

    def results() -> Iterator[Any]:
        for approximate in (False, True):
            yield kernels.gelu_forward(x, approximate)
            yield kernels.gelu_backward(g, x, approximate)
        yield kernels.embedding_backward(g, idx, 50)

    before = threads.get_num_threads()
    monkeypatch.setattr(threads, "PARALLEL_FROM", 0)
    try:
        threads.set_num_threads(1)
        want = list(results())
        threads.set_num_threads(before)
        for _ in range(3):
            for got, expected in zip(results(), want, strict=True):
                np.testing.assert_array_equal(got, expected)
    finally:
        threads.set_num_threads(before)
