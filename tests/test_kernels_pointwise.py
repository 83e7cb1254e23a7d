"""Pointwise kernels against formulas, torch and np.add.at; steps in place; sums with the same bits."""

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


# ---- Adam ----

OPTIONS = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8}


def adam_by_hand(
    p: Array, g: Array, m: Array, v: Array, *, lr: float, beta1: float, beta2: float, eps: float,
    weight_decay: float, decoupled: bool, step: int,
) -> tuple[Array, Array, Array]:  # fmt: skip
    p, g, m, v = (a.astype(np.float64) for a in (p, g, m, v))
    p, g = (p - lr * weight_decay * p, g) if decoupled else (p, g + weight_decay * p)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
    return p - lr * m_hat / (np.sqrt(v_hat) + eps), m, v


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam_follows_its_formula_in_place(decoupled: bool, shape: Any, dtype: Any, way: str) -> None:
    p, m, v = draw(shape, dtype), np.zeros(shape, dtype), np.zeros(shape, dtype)
    for step in range(1, 6):
        g = draw(shape, dtype, step)
        options = {**OPTIONS, "weight_decay": 0.1, "decoupled": decoupled, "step": step}
        want = adam_by_hand(p, g, m, v, **options)
        assert kernels.adam_step(p, g, m, v, **options) is None
        # one step from the same state: a dozen roundings
        for got, expected in zip((p, m, v), want, strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(got, expected, rtol=2e-6 if dtype is np.float32 else 4e-15, atol=1e-7)


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("decoupled", [False, True])
def test_twenty_steps_end_where_pytorch_ends(decoupled: bool, weight_decay: float, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    p, m, v = draw((40, 3), dtype), np.zeros((40, 3), dtype), np.zeros((40, 3), dtype)
    q = torch.nn.Parameter(torch.tensor(p.copy()))
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([q], lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=weight_decay, foreach=False)
    for step in range(1, 21):
        g = draw((40, 3), dtype, step)
        q.grad = torch.tensor(g)
        optimizer.step()
        kernels.adam_step(p, g, m, v, **OPTIONS, weight_decay=weight_decay, decoupled=decoupled, step=step)
    state = optimizer.state[q]
    for ours, theirs in ((p, q.detach()), (m, state["exp_avg"]), (v, state["exp_avg_sq"])):
        # float32: 20 steps, a few roundings each
        np.testing.assert_allclose(
            ours, theirs.numpy(), rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-7
        )


def test_adamw_shrinks_a_parameter_without_gradient_and_leaves_the_moments_zero() -> None:
    p, g, m, v = np.array([2.0]), np.zeros(1), np.zeros(1), np.zeros(1)
    for step in (1, 2, 3):
        kernels.adam_step(p, g, m, v, **{**OPTIONS, "lr": 0.1}, weight_decay=0.5, decoupled=True, step=step)
    np.testing.assert_allclose(p, [2.0 * 0.95**3], rtol=1e-14)
    assert m[0] == v[0] == 0


def test_adam_without_decoupling_puts_the_decay_into_the_gradient() -> None:
    p, g, m, v = np.array([10.0]), np.array([-5.0]), np.zeros(1), np.zeros(1)
    kernels.adam_step(p, g, m, v, **OPTIONS, weight_decay=0.5, decoupled=False, step=1)
    assert p[0] == 10  # g + weight_decay · p = 0: no move at all


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_gradient_shows_in_its_element_and_no_other(dtype: Any, way: str) -> None:
    p, m, v = np.ones(40, dtype), np.zeros(40, dtype), np.zeros(40, dtype)
    g = np.ones(40, dtype)
    g[3] = math.nan
    kernels.adam_step(p, g, m, v, **OPTIONS, weight_decay=0.1, decoupled=True, step=1)
    np.testing.assert_array_equal(np.isnan(p), np.isnan(g))


def test_adam_refuses_arrays_that_it_would_have_to_copy() -> None:
    p, m, v = np.ones((4, 3)), np.zeros((4, 3)), np.zeros((4, 3))
    options = {**OPTIONS, "weight_decay": 0.1, "decoupled": True, "step": 1}
    with pytest.raises(ValueError, match="adam_step: p has strides"):
        kernels.adam_step(np.ones((3, 4)).T, p, m, v, **options)
    v.flags.writeable = False
    with pytest.raises(ValueError, match="adam_step: v has strides"):
        kernels.adam_step(p, p, m, v, **options)
    np.testing.assert_array_equal(p, 1)


def test_adam_takes_a_gradient_of_any_layout() -> None:
    g = draw((3, 4), np.float64)
    ends = []
    for layout in (g, np.asfortranarray(g), np.repeat(g, 2, axis=1)[:, ::2]):
        p, m, v = np.ones((3, 4)), np.zeros((3, 4)), np.zeros((3, 4))
        kernels.adam_step(p, layout, m, v, **OPTIONS, weight_decay=0.1, decoupled=True, step=1)
        ends.append(p)
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[0], ends[2])


# ---- sums ----

SUM_TOLERANCE = 1e-12  # 8192 terms of a block, half an eps of 2.2e-16 each, if no vector shares the work


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SIZES, (30, 1000), (8192,), (8193,)])
def test_sq_sum_is_the_sum_of_squares_in_float64(shape: Any, dtype: Any, way: str) -> None:
    g = draw(shape, dtype)
    got = kernels.sq_sum(g)
    assert type(got) is float
    assert got == pytest.approx(float((g.astype(np.float64) ** 2).sum()), rel=SUM_TOLERANCE)


@pytest.mark.compiled
def test_sq_sum_of_float32_neither_drifts_nor_overflows() -> None:
    assert kernels.sq_sum(np.full(1 << 20, 0.1, np.float32)) == pytest.approx(
        (1 << 20) * float(np.float32(0.1)) ** 2, rel=SUM_TOLERANCE
    )
    assert kernels.sq_sum(np.full(4, 1e30, np.float32)) == pytest.approx(4e60, rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sq_sum_shows_nan_and_inf_and_reads_strided_arrays(dtype: Any) -> None:
    g = draw((30, 20), dtype)
    assert kernels.sq_sum(g.T[::2]) == pytest.approx(
        float((g.T[::2].astype(np.float64) ** 2).sum()), rel=SUM_TOLERANCE
    )
    g[7, 7] = -math.inf
    assert kernels.sq_sum(g) == math.inf
    g[8, 8] = math.nan
    assert math.isnan(kernels.sq_sum(g))


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
        yield kernels.sq_sum(g)
        yield kernels.embedding_backward(g, idx, 50)
        p, m, v = x.copy(), np.zeros_like(x), np.zeros_like(x)
        kernels.adam_step(p, g, m, v, **OPTIONS, weight_decay=0.1, decoupled=True, step=1)
        yield from (p, m, v)

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
