"""Row kernels against float64 NumPy formulas, in corners, in odd layouts, and serial against parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from microtensor import kernels
from microtensor.kernels import line, norm, rows, threads
from microtensor.kernels.columns import start_of
from microtensor.kernels.exponential import exp

Array = np.ndarray[Any, Any]
INF, NAN = math.inf, math.nan
DTYPES = [np.float32, np.float64]
# float32: exp is off by 1 ulp, a sum of a few hundred terms by a few more, 1 ulp being 1.2e-7 of the value.
TOLERANCE = {"float32": 2e-6, "float64": 4e-15}
SHAPES = [
    (1, 1),
    (3, 30),
    (7, 65),
    (5, 257),
    (2, 3, 4),
    (6,),
    pytest.param((2, 9000), marks=pytest.mark.compiled),
]


def draw(shape: tuple[int, ...], dtype: Any, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(dtype)


def assert_near(got: Array, want: Array, like: Array) -> None:
    """got has the dtype of like, and errors of rounding only, measured by the largest value of want."""
    assert got.dtype == like.dtype
    assert got.shape == want.shape
    tolerance = TOLERANCE[str(like.dtype)]
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max(initial=1.0))


def softmax(x: Array) -> Array:
    e = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def logsumexp(x: Array) -> Array:
    top = x.astype(np.float64).max(axis=-1)
    return np.asarray(top + np.log(np.exp(x - top[..., None]).sum(axis=-1)))


@pytest.fixture(params=["serial", pytest.param("parallel", marks=pytest.mark.compiled)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test twice: every kernel serial, then every kernel parallel, whatever the size."""
    choose = {"serial": lambda work, s, p, *args: s(*args), "parallel": lambda work, s, p, *args: p(*args)}
    for module in ("rows", "norm"):
        monkeypatch.setattr(f"microtensor.kernels.{module}.run", choose[request.param])
    return str(request.param)


# ---- the parts ----


@threads.jit(cache=False)
def _tops(x: Array, top: Array) -> None:
    rows._tops(x, top)


@threads.jit(cache=False)
def _exp_each(x: Array, y: Array) -> None:
    for i in range(x.size):
        y[i] = exp(x[i])


@threads.jit(cache=False)
def _exp_row(x: Array, sums: Array, y: Array) -> None:
    line.exp_row(x, start_of(x), x.size, start_of(sums), start_of(y))


def _exp_of(x: Array) -> Array:
    y = np.empty_like(x)
    _exp_each(x, y)
    return y


def _exp_of_vectors(x: Array) -> Array:
    y = np.empty_like(x)
    _exp_row(x, np.zeros(2, x.dtype), y)
    return y


EXPS = [_exp_of, _exp_of_vectors] if threads.COMPILED else [_exp_of]  # in Python, vectors take NumPy's exp


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_is_off_by_at_most_one_and_a_tenth_ulp(dtype: Any) -> None:
    low = -87.33 if dtype is np.float32 else -708.39
    dense = 1 if threads.COMPILED else 100
    x = np.concatenate([np.linspace(low, 0, 200_000 // dense), -np.logspace(-12, 0, 50_000 // dense)]).astype(
        dtype
    )
    want = np.exp(x.astype(np.longdouble))
    for got in (f(x) for f in EXPS):
        ulps = np.abs(got - want) / np.spacing(want.astype(dtype))
        assert ulps.max() <= 1.1


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp_of_minus_infinity_and_of_the_very_small_is_exactly_zero_and_nan_stays(dtype: Any) -> None:
    payload = np.array([0x7FC0_0001], np.uint32).view(np.float32).astype(dtype)[0]
    x = np.array([-INF, -1e30, -800.0, 0.0, NAN, -NAN, payload], dtype)
    for got in (f(x) for f in EXPS):
        np.testing.assert_array_equal(got, [0, 0, 0, 1, NAN, NAN, NAN])


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_largest_of_a_row_is_numpys_maximum(dtype: Any, data: st.DataObject) -> None:
    elements = hnp.from_dtype(np.dtype(dtype), allow_nan=False)
    x = data.draw(hnp.arrays(dtype, st.integers(0, 70), elements=elements))
    top = np.empty((1, 2), dtype)
    _tops(x[None], top)
    want = x.max(initial=-INF)
    assert top[0, 0] == (0 if want == -INF else want)


# ---- values and gradients ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_log_softmax_and_logsumexp_match_their_formulas(shape: Any, dtype: Any, way: str) -> None:
    x = draw(shape, dtype, scale=3.0)
    assert_near(kernels.softmax_forward(x), softmax(x), x)
    assert_near(kernels.log_softmax_forward(x), x - logsumexp(x)[..., None], x)
    assert_near(kernels.logsumexp_forward(x), logsumexp(x), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradients_of_softmax_and_log_softmax_match_their_formulas(
    shape: Any, dtype: Any, way: str
) -> None:
    x, g = draw(shape, dtype), draw(shape, dtype, 1)
    p, g64 = softmax(x), g.astype(np.float64)
    want = p * (g64 - (g64 * p).sum(-1, keepdims=True))
    assert_near(kernels.softmax_backward(g, p.astype(dtype)), want, x)
    want = g64 - p * g64.sum(-1, keepdims=True)
    assert_near(kernels.log_softmax_backward(g, kernels.log_softmax_forward(x)), want, g)


def layer_norm(x: Array, w: Array, b: Array, eps: float) -> tuple[Array, Array, Array]:
    x = x.astype(np.float64)
    mean, rstd = x.mean(-1), 1 / np.sqrt(x.var(-1) + eps)
    return w * (x - mean[..., None]) * rstd[..., None] + b, mean, rstd


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 30), (300, 8), (2, 3, 4), (6,), (130, 65)])
def test_layer_norm_and_its_gradients_match_their_formulas(shape: Any, dtype: Any, way: str) -> None:
    C = shape[-1]
    x, g = draw(shape, dtype), draw(shape, dtype, 1)
    w, b = draw((C,), dtype, 2), draw((C,), dtype, 3)
    y, mean, rstd = kernels.layer_norm_forward(x, w, b, 1e-5)
    y64, mean64, rstd64 = layer_norm(x, w, b, 1e-5)
    for got, want in ((y, y64), (mean.sum(-1), mean64), (rstd, rstd64)):
        assert_near(got, want, x)

    h = (x.astype(np.float64) - mean64[..., None]) * rstd64[..., None]
    gw = g.astype(np.float64) * w
    want = (gw - gw.mean(-1, keepdims=True) - h * (gw * h).mean(-1, keepdims=True)) * rstd64[..., None]
    every_row = tuple(range(len(shape) - 1))
    wants = want, (g * h).sum(every_row), g.astype(np.float64).sum(every_row)
    for got, want in zip(kernels.layer_norm_backward(g, x, w, mean, rstd), wants, strict=True):
        assert_near(got, want, x)


def cross_entropy(z: Array, t: Array, ignore: int, smoothing: float) -> tuple[Array, Array]:
    """Losses, and the gradient of their sum."""
    z = z.astype(np.float64)
    C = z.shape[1]
    kept = t != ignore
    goal = (1 - smoothing) * np.eye(C)[np.where(kept, t, 0)] + smoothing / C
    losses = (goal * (logsumexp(z)[:, None] - z)).sum(1)
    return np.where(kept, losses, 0), np.where(kept[:, None], softmax(z) - goal, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(
    "shape", [(1, 1), (9, 30), *(pytest.param(s, marks=pytest.mark.compiled) for s in [(200, 65), (3, 5000)])]
)
def test_cross_entropy_and_its_gradient_match_their_formulas(
    shape: Any, smoothing: float, dtype: Any, way: str
) -> None:
    z, g = draw(shape, dtype, scale=2.0), draw(shape[:1], dtype, 1)
    t = np.random.default_rng(2).integers(0, shape[1], shape[0])
    t[::4] = -100
    losses, lse = kernels.cross_entropy_forward(z, t, -100, smoothing)
    want, gradient = cross_entropy(z, t, -100, smoothing)
    assert_near(losses, want, z)
    assert_near(lse.sum(-1), np.where(t == -100, 0, logsumexp(z)), z)
    got = kernels.cross_entropy_backward(g, z, t, lse, -100, smoothing)
    assert_near(got, gradient * g[:, None].astype(np.float64), z)


# ---- corners ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_large_logits_does_not_overflow(dtype: Any) -> None:
    x = np.array([[1000.0, 0.0], [-1000.0, -1001.0], [1e30, -1e30]], dtype)
    e = 1 / (1 + math.exp(-1))
    np.testing.assert_allclose(kernels.softmax_forward(x), [[1, 0], [e, 1 - e], [1, 0]], atol=1e-7)
    y = kernels.log_softmax_forward(x)
    np.testing.assert_allclose(y[:2], [[0, -1000], [math.log(e), math.log(1 - e)]], rtol=1e-6)


def test_log_softmax_keeps_the_digits_of_small_values_beside_large_logits() -> None:
    x = np.array([[1e8, 1e8 - 16]], np.float32)  # x − (m + log Σ) would give 0 here
    assert kernels.log_softmax_forward(x)[0, 0] == pytest.approx(-math.log1p(math.exp(-16)), rel=1e-1)
    x = np.array([[1e4, 1e4 - 1]], np.float32)
    np.testing.assert_allclose(kernels.log_softmax_forward(x)[0, 0], -math.log1p(math.exp(-1)), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fully_masked_row_gives_zeros_and_a_zero_gradient(dtype: Any) -> None:
    x, g = np.full((3, 5), -INF, dtype), draw((3, 5), dtype)
    x[1] = [0, -INF, 0, -INF, -INF]
    y = kernels.softmax_forward(x)
    np.testing.assert_array_equal(y, [[0] * 5, [0.5, 0, 0.5, 0, 0], [0] * 5])
    gx = kernels.softmax_backward(g, y)
    np.testing.assert_array_equal(gx[[0, 2]], 0)
    np.testing.assert_array_equal(gx[1, [1, 3, 4]], 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_softmax_of_a_row_of_minus_infinity_is_minus_infinity_with_a_zero_gradient(dtype: Any) -> None:
    x, g = np.full((2, 33), -INF, dtype), draw((2, 33), dtype)
    x[1, 0] = 0
    y = kernels.log_softmax_forward(x)
    np.testing.assert_array_equal(y, x)
    gx = kernels.log_softmax_backward(g, y)
    np.testing.assert_array_equal(gx[0], 0)
    np.testing.assert_array_equal(gx[1, 1:], g[1, 1:])
    np.testing.assert_array_equal(kernels.logsumexp_forward(x), [-INF, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("width", [3, 40, 130])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_nan_spoils_its_row_and_no_other(place: int, width: int, sign: float, dtype: Any, way: str) -> None:
    x = draw((3, width), dtype)
    x[1, place] = np.copysign(NAN, sign)
    w = np.ones(width, dtype)
    target = np.array([0, 0, 1])
    results = (
        kernels.softmax_forward(x),
        kernels.log_softmax_forward(x),
        kernels.logsumexp_forward(x)[:, None],
        kernels.layer_norm_forward(x, w, w, 1e-5)[0],
        kernels.cross_entropy_forward(x, target, -100, 0.0)[0][:, None],
        kernels.cross_entropy_forward(x, target, -100, 0.1)[0][:, None],
    )
    for y in results:
        assert np.isnan(y[1]).all()
        assert np.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_beside_masked_entries_is_not_taken_for_a_masked_row(dtype: Any) -> None:
    x = np.full((2, 4), -INF, dtype)
    x[0, 2], x[1, 2] = NAN, -NAN
    for y in (kernels.softmax_forward(x), kernels.log_softmax_forward(x), kernels.logsumexp_forward(x)):
        assert np.isnan(y).all()
    assert np.isnan(kernels.log_softmax_backward(np.ones_like(x), np.full_like(x, NAN))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_plus_infinity_follows_ieee(dtype: Any) -> None:
    x = np.array([[INF, 1, -INF], [0, 1, 2]], dtype)
    assert np.isnan(kernels.softmax_forward(x)[0]).all()
    assert np.isnan(kernels.log_softmax_forward(x)[0]).all()
    x = np.array([[INF, 1, -INF], [INF, INF, 0], [INF, NAN, 0], [INF, -NAN, 0]], dtype)
    np.testing.assert_array_equal(kernels.logsumexp_forward(x), [INF, INF, NAN, NAN])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (0, 0), (2, 0, 3), (0,)])
def test_rows_without_columns_and_no_rows_at_all_are_fine(shape: Any, dtype: Any, way: str) -> None:
    x, w = np.zeros(shape, dtype), np.zeros(shape[-1], dtype)
    for forward in (kernels.softmax_forward, kernels.log_softmax_forward):
        assert forward(x).shape == shape
    for backward in (kernels.softmax_backward, kernels.log_softmax_backward):
        assert backward(x, x).shape == shape
    np.testing.assert_array_equal(kernels.logsumexp_forward(x), np.full(shape[:-1], -INF))
    y, mean, rstd = kernels.layer_norm_forward(x, w, w, 1e-5)
    gx, gw, gb = kernels.layer_norm_backward(x, x, w, mean, rstd)
    assert (y.shape, mean.shape, rstd.shape) == (shape, (*shape[:-1], 2), shape[:-1])
    assert gx.shape == shape
    np.testing.assert_array_equal([gw, gb], np.zeros((2, *w.shape)))


def test_layer_norm_of_a_known_row() -> None:
    r = 1 / math.sqrt(0.1875 + 1e-5)  # the biased variance, eps inside the root
    y, _, _ = kernels.layer_norm_forward(np.array([[1.0, 0, 0, 0]]), np.ones(4), np.zeros(4), 1e-5)
    np.testing.assert_allclose(y, [[0.75 * r, -0.25 * r, -0.25 * r, -0.25 * r]], rtol=1e-14)


@pytest.mark.parametrize("C", [3, 128, 1000])
def test_float32_layer_norm_survives_a_mean_of_ten_thousand(C: int) -> None:
    x = (10_000 + np.random.default_rng(0).normal(size=(5, C))).astype(np.float32)
    one, nil = np.ones(C, np.float32), np.zeros(C, np.float32)
    y, mean, rstd = kernels.layer_norm_forward(x, one, nil, 1e-5)
    y64, mean64, rstd64 = layer_norm(x, one, nil, 1e-5)
    np.testing.assert_allclose(y, y64, atol=1e-5)  # as good as with mean 0: nothing was lost in the sums
    np.testing.assert_allclose(rstd, rstd64, rtol=1e-5)
    np.testing.assert_allclose(mean.sum(-1), mean64, rtol=1e-7)


def test_layer_norm_of_a_constant_row_is_the_bias() -> None:
    x = np.full((2, 77), 1234.567, np.float32)
    w, b = draw((77,), np.float32), draw((77,), np.float32, 1)
    y, _, rstd = kernels.layer_norm_forward(x, w, b, 1e-5)
    np.testing.assert_array_equal(y, np.stack([b, b]))
    np.testing.assert_allclose(rstd, 1 / math.sqrt(1e-5), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("logit", "want"),
    [(20, 2.061153620314381e-09), (30, 9.357622968839298e-14), (80, 1.8048513878454153e-35)],
)
def test_tiny_cross_entropy_losses_keep_their_relative_accuracy(logit: int, want: float, dtype: Any) -> None:
    losses, _ = kernels.cross_entropy_forward(np.array([[logit, 0]], dtype), np.array([0]), -100, 0.0)
    np.testing.assert_allclose(losses, want, rtol=1e-6)  # log(1 + e^−30) in float64 is off by a thousandth


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("C", [1, 2, 16, 35])
def test_a_tiny_loss_adds_up_all_other_classes_wherever_the_target_stands(C: int, dtype: Any) -> None:
    z, t = draw((C, C), dtype) + 30 * np.eye(C, dtype=dtype), np.arange(C)
    losses, _ = kernels.cross_entropy_forward(z, t, -100, 0.0)
    below = np.exp(z.astype(np.float64) - np.diag(z)[:, None].astype(np.float64))
    np.testing.assert_allclose(losses, np.log1p(below.sum(1, where=~np.eye(C, dtype=bool))), rtol=3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy_of_large_logits(dtype: Any) -> None:
    z, t, g = np.array([[1000.0, 0.0]], dtype), np.array([1]), np.ones(1, dtype)
    losses, lse = kernels.cross_entropy_forward(z, t, -100, 0.0)
    np.testing.assert_array_equal(losses, [1000])
    np.testing.assert_array_equal(kernels.cross_entropy_backward(g, z, t, lse, -100, 0.0), [[1, -1]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ignore", [-100, -1, 2])
def test_an_ignored_row_gives_exact_zeros_whatever_it_holds(ignore: int, dtype: Any) -> None:
    z = draw((4, 3), dtype)
    z[1], z[2] = NAN, INF
    t, g = np.array([0, ignore, ignore, 1]), np.array([1, NAN, INF, 1], dtype)
    losses, lse = kernels.cross_entropy_forward(z, t, ignore, 0.1)
    gz = kernels.cross_entropy_backward(g, z, t, lse, ignore, 0.1)
    np.testing.assert_array_equal(losses[[1, 2]], 0)
    np.testing.assert_array_equal(gz[[1, 2]], 0)
    assert np.isfinite(losses).all()
    assert np.isfinite(gz).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mean_of_losses_is_that_of_the_rows_that_are_not_ignored(dtype: Any) -> None:
    losses, target = (
        np.array([1, 0, 3e8, 2, 0], dtype),
        np.array([[0, 7], [5, 7], [1, 7], [2, 7], [5, 7]])[:, 0],
    )
    mean, share = kernels.mean_of_kept(losses, target, 5)
    assert (mean, share) == ((3e8 + 3) / 3, 1 / 3)  # in float64: in float32 3 would be lost beside 3e8
    assert type(share) is float
    assert np.isnan(kernels.mean_of_kept(losses[1:2], target[1:2], 5)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_classes_take_no_part_in_cross_entropy(dtype: Any) -> None:
    z, t, g = np.array([[1.0, -INF, 2.0]], dtype), np.array([0]), np.ones(1, dtype)
    losses, lse = kernels.cross_entropy_forward(z, t, -100, 0.0)
    np.testing.assert_allclose(losses, [math.log1p(math.e)], rtol=1e-6)
    gz = kernels.cross_entropy_backward(g, z, t, lse, -100, 0.0)
    p = 1 / (1 + math.e)
    np.testing.assert_allclose(gz, [[p - 1, 0, 1 - p]], rtol=1e-6)
    assert kernels.cross_entropy_forward(z, np.array([1]), -100, 0.0)[0][0] == INF


# ---- properties ----

tables = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=3, max_side=40 if threads.COMPILED else 5),
    elements=st.floats(-50, 50, width=32),
)


@given(x=tables)
@settings(max_examples=50, deadline=None)
def test_rows_of_softmax_are_distributions_and_logs_agree(x: Array) -> None:
    y = kernels.softmax_forward(x)
    assert (y >= 0).all()
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-13)
    np.testing.assert_allclose(np.exp(kernels.log_softmax_forward(x)), y, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(x - kernels.logsumexp_forward(x)[..., None], np.log(y), atol=1e-12)


@given(x=tables, shift=st.integers(-64, 64))
@settings(max_examples=50, deadline=None)
def test_softmax_does_not_change_when_a_row_is_shifted(x: Array, shift: int) -> None:
    x = np.round(x * 1024) / 1024  # so that the shift itself does not round
    np.testing.assert_array_equal(kernels.softmax_forward(x + shift), kernels.softmax_forward(x))
    np.testing.assert_array_equal(kernels.log_softmax_forward(x + shift), kernels.log_softmax_forward(x))


@given(x=tables, g=st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_gradients_of_softmax_and_log_softmax_sum_to_zero(x: Array, g: int) -> None:
    up = draw(x.shape, np.float64, g)
    for gx in (
        kernels.softmax_backward(up, kernels.softmax_forward(x)),
        kernels.log_softmax_backward(up, kernels.log_softmax_forward(x)),
    ):
        np.testing.assert_allclose(gx.sum(-1), 0, atol=1e-12)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "fortran": np.asfortranarray,
    "reversed": lambda a: a[:, ::-1].copy()[:, ::-1],
    "step": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "read only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "misaligned": lambda a: np.frombuffer(bytearray(b"x" + a.tobytes()), a.dtype, offset=1).reshape(a.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_gives_the_bits_of_a_contiguous_copy(dtype: Any, layout: str) -> None:
    change = LAYOUTS[layout]
    x, g, w = draw((6, 8), dtype), draw((6, 8), dtype, 1), draw((1, 8), dtype, 2)
    t = np.array([[0, 1, 2, 3, 4, 5]])

    def results(change: Callable[[Array], Array]) -> Iterator[Array]:
        cx, cg, cw, ct = change(x), change(g), change(w)[0], change(t)[0]
        for forward, backward in (
            (kernels.softmax_forward, kernels.softmax_backward),
            (kernels.log_softmax_forward, kernels.log_softmax_backward),
        ):
            y = forward(cx)
            yield y
            yield backward(cg, change(y))
        yield kernels.logsumexp_forward(cx)
        y, mean, rstd = kernels.layer_norm_forward(cx, cw, cw, 1e-5)
        yield y
        yield from kernels.layer_norm_backward(cg, cx, cw, mean, rstd)
        losses, lse = kernels.cross_entropy_forward(cx, ct, -100, 0.1)
        yield losses
        yield kernels.cross_entropy_backward(cg[:, 0], cx, ct, lse, -100, 0.1)

    for got, want in zip(results(change), results(lambda a: a), strict=True):
        np.testing.assert_array_equal(got, want)


def test_broadcast_inputs_are_read_where_they_are_not_and_inputs_are_never_written() -> None:
    x, g = np.broadcast_to(draw((8,), np.float64), (5, 8)), np.broadcast_to(2.0, (5, 8))
    y = kernels.softmax_forward(x)
    np.testing.assert_array_equal(y, kernels.softmax_forward(x.copy()))
    np.testing.assert_array_equal(kernels.softmax_backward(g, y), kernels.softmax_backward(g.copy(), y))
    x = draw((5, 8), np.float64)
    before, t = x.copy(), np.zeros(5, np.int64)
    kernels.cross_entropy_backward(x[:, 0], x, t, x[:, :2], -100, 0.1)
    kernels.layer_norm_backward(x, x, x[0], x[:, :2], x[:, 1])
    np.testing.assert_array_equal(x, before)


def test_no_rows_have_no_losses_and_no_gradient() -> None:
    z, t = np.empty((0, 3), np.float32), np.empty(0, np.int64)
    loss, lse = kernels.cross_entropy_forward(z, t, -100, 0.1)
    assert (loss.shape, lse.shape) == ((0,), (0, 2))
    assert kernels.cross_entropy_backward(loss, z, t, lse, -100, 0.1).shape == (0, 3)


# ---- the same bits, whoever computes ----


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1000, 30), (700, 65), (200, 512), (3, 9000), (500, 1)])
def test_serial_and_parallel_give_the_same_bits_every_time(
    shape: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, g, w = draw(shape, dtype), draw(shape, dtype, 1), draw(shape[1:], dtype, 2)
    t = np.random.default_rng(3).integers(0, shape[1], shape[0])

    def results() -> Iterator[Array]:
        y = kernels.softmax_forward(x)
        yield y
        yield kernels.softmax_backward(g, y)
        y = kernels.log_softmax_forward(x)
        yield y
        yield kernels.log_softmax_backward(g, y)
        yield kernels.logsumexp_forward(x)
        y, mean, rstd = kernels.layer_norm_forward(x, w, w, 1e-5)
        yield from (y, mean, rstd, *kernels.layer_norm_backward(g, x, w, mean, rstd))
        losses, lse = kernels.cross_entropy_forward(x, t, -100, 0.1)
        yield from (losses, lse, kernels.cross_entropy_backward(g[:, 0], x, t, lse, -100, 0.1))

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


# --- addresses ----------------------------------------------------------------------------------------------


class Arena:
    """Stands for NumPy in a module: what it makes lies one array behind the other, `gap` bytes apart."""

    def __init__(self, gap: int) -> None:
        self.room, self.gap, self.used = np.zeros(1 << 20, np.uint8), gap, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = np.float64) -> Array:
        start = self.used
        count = math.prod(shape) if isinstance(shape, tuple) else shape
        self.used = stop = start + count * np.dtype(dtype).itemsize
        self.used += self.gap - stop % self.gap
        return self.room[start:stop].view(dtype).reshape(shape)

    def empty_like(self, x: Array) -> Array:
        return self.empty(x.shape, x.dtype)

    def holding(self, x: Array) -> Array:
        place = self.empty_like(x)
        place[...] = x
        return place


SUMS: dict[str, Callable[[list[Array]], Any]] = {
    "softmax": lambda a: kernels.softmax_forward(a[0]),
    "softmax backward": lambda a: kernels.softmax_backward(a[0], a[1]),
    "log softmax": lambda a: kernels.log_softmax_forward(a[0]),
    "log softmax backward": lambda a: kernels.log_softmax_backward(a[0], a[1]),
    "layer norm": lambda a: kernels.layer_norm_forward(a[0], a[1][0], a[1][1], 1e-5),
    "layer norm of a sum": lambda a: kernels.layer_norm_forward(a[0], a[1][0], a[1][1], 1e-5, a[2]),
    "layer norm backward": lambda a: kernels.layer_norm_backward(a[0], a[1], a[2][0], a[3], a[4]),
    "its backward of a sum": lambda a: kernels.layer_norm_backward(a[0], a[1], a[2][0], a[3], a[4], a[2]),
}


@pytest.mark.compiled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SUMS)
def test_no_bit_depends_on_where_arrays_lie(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # LLVM's vectors need arrays that do not overlap: it asks the addresses, and arrays that only lie close
    # can be taken for such. A loop that sums and stores would then sum in another order
    for C in (4, 8, 12, 20, 33, 100):
        given_ = [draw((2, C), dtype, seed) for seed in range(3)] + [draw((2, 2), dtype), draw((2,), dtype)]
        SUMS[name](given_)  # compiles, with the true NumPy
        seen = []
        for gap in (16, 32, 64, 128, 8192):
            arena = Arena(gap)
            for module in (rows, norm):
                monkeypatch.setattr(module, "np", arena)
            held = [arena.holding(x) for x in reversed(given_)]  # the first lies next to what is made
            result = SUMS[name](held[::-1])
            seen.append([np.array(r) for r in (result if isinstance(result, tuple) else (result,))])
        for other in seen[1:]:
            for got, want in zip(other, seen[0], strict=True):
                assert np.array_equal(got, want), (C, got - want)
