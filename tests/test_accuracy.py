"""Numbers that must stay right where float32 runs out of digits: long sums, far tails, large offsets."""

from __future__ import annotations

import math

import numpy as np
import pytest

import microtensor as mt
from microtensor import kernels, ops
from microtensor.nn import functional as F

# --- sums ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 1), (0, 2), (1, 2), None])
@pytest.mark.parametrize("layout", ["C", "F", "part", "backwards", "repeated"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_a_float32_sum_over_any_axis_of_any_layout_is_right_to_its_digits(axis, layout, keepdims, rng):
    for shape in [(5000, 3, 2), (3, 5000, 2), (70, 3, 65), (0, 300, 2), (300, 0, 2), (1, 4099, 1)]:
        x = rng.random(shape).astype(np.float32)
        x = {
            "C": x,
            "F": np.asfortranarray(x),
            "part": np.repeat(x, 2, -1)[..., ::2],
            "backwards": x[::-1, ::-1],
            "repeated": np.broadcast_to(x[:1, :1], x.shape),
        }[layout]
        axes = axis if isinstance(axis, tuple) or axis is None else (axis,)
        got = np.asarray(ops.sum(x, axis=axes, keepdims=keepdims))
        want = np.sum(x, axis=axes, keepdims=keepdims, dtype=np.float64)
        assert got.dtype == np.float32
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=3e-6)  # 64 roundings of 6e-8 at most in a row; NumPy: 1e-4


def test_sums_of_many_rows_do_not_stand_still():
    tenths = mt.full((10**6, 3), 0.1)
    np.testing.assert_allclose(tenths.sum(0).array, 1e5, rtol=1e-6)
    np.testing.assert_allclose(tenths.mean(0).array, 0.1, rtol=1e-6)
    assert tenths.var(0).array.max() < 1e-12
    assert (mt.ones(2**24 + 2**22, 2).mean(0).array == 1).all()
    np.testing.assert_allclose(tenths.cumsum(0)[-1].array, 1e5, rtol=1e-6)


def test_gradients_that_are_summed_over_many_rows_are_right():
    x, w = mt.ones(10**6, 2), mt.ones(3, 2, requires_grad=True)
    b, shift = mt.zeros(3, requires_grad=True), mt.zeros(1, 3, requires_grad=True)
    y = F.linear(x, w, b) + shift
    y.backward(mt.full(y.shape, 0.1))
    for g in (b.grad, shift.grad):
        np.testing.assert_allclose(g.array, np.full(g.shape, 1e5), rtol=1e-6)


def test_gradients_that_meet_at_one_place_in_great_numbers_add_up_to_their_digits():
    ids, g = mt.zeros(10**6, dtype=mt.int64), mt.full((10**6,), 0.1)
    w, x = mt.zeros(3, 2, requires_grad=True), mt.zeros(3, requires_grad=True)
    F.embedding(ids, w).backward(g.unsqueeze(1).expand(-1, 2))
    x[ids].backward(g)
    for sums in (w.grad[0], x.grad[0], mt.zeros(3).scatter_add(0, ids, g)[0]):
        np.testing.assert_allclose(sums.array, 1e5, rtol=1e-6)
        assert sums.dtype == mt.float32


def test_the_mean_of_equal_numbers_is_that_number():
    for n in (3, 7, 49, 107):
        assert mt.ones(n).mean().item() == 1
        assert mt.ones(n, 2).mean(0).tolist() == [1, 1]


# --- tails and offsets --------------------------------------------------------------------------------------


def test_the_tails_of_sigmoid_keep_their_digits():
    x = np.array([-1000, -100, -87, -40, -20, -5, -1e-3, 0, 1e-3, 5, 20, 100, 1000], np.float32)
    t = mt.tensor(x, requires_grad=True)
    y = t.sigmoid()
    with np.errstate(over="ignore"):
        want = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(y.detach().array, want, rtol=3e-7, atol=np.finfo(np.float32).tiny)
    y[4].log().backward()
    np.testing.assert_allclose(t.grad.array[4], 1, rtol=1e-6)
    assert mt.tensor([-math.inf, math.inf]).sigmoid().tolist() == [0, 1]
    assert np.isnan(mt.tensor([math.nan]).sigmoid().array).all()


@pytest.mark.parametrize("offset", [0.0, 1e5, -1e5, 1e8, -1e8, 1e30])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_a_common_offset_of_the_logits_cancels_out_of_every_gradient(offset, smoothing):
    step = max(np.spacing(np.float32(abs(offset))) / 64, 0.125) if abs(offset) < 1e6 else 0.0
    z = np.array([[0.0, 4 * step, 16 * step], [8 * step, 0.0, 0.0]], np.float32)
    far = (z + np.float32(offset)).astype(np.float32)
    exact = mt.tensor(far.astype(np.float64) - np.float64(np.float32(offset)), requires_grad=True)
    t = mt.tensor(far, requires_grad=True)
    target = mt.tensor([0, 2])
    u = mt.tensor([[0.3, -0.2, 1.0], [0.5, 2.0, -1.0]])

    def losses(x):
        yield F.cross_entropy(x, target, reduction="sum", label_smoothing=smoothing)
        yield (x.log_softmax(-1) * u.to(x.dtype)).sum()
        yield (x.softmax(-1) * u.to(x.dtype)).sum()
        yield x.logsumexp(-1).sum()
        yield (x.logsumexp(0) * u[0].to(x.dtype)).sum()

    for i, (ours, right) in enumerate(zip(losses(t), losses(exact), strict=True)):
        (g,), (want,) = mt.autograd.grad(ours, t), mt.autograd.grad(right, exact)
        np.testing.assert_allclose(g.array, want.array, rtol=2e-6, atol=2e-7, err_msg=f"loss {i}")


def test_layer_norm_of_numbers_far_from_zero_has_the_right_gradient():
    x = np.array([[0, 8, 16, 32], [8, 8, 0, 8]], np.float32) + np.float32(1e8)  # 8 is the spacing there
    u = np.array([[1, -2, 0.5, 3], [1, 2, 3, 5]], np.float32)
    grads = []
    for dtype, shift in ((np.float32, 0), (np.float64, 1e8)):
        t = mt.tensor(x.astype(dtype) - dtype(shift), requires_grad=True)
        w, b = mt.ones(4, dtype=dtype, requires_grad=True), mt.zeros(4, dtype=dtype, requires_grad=True)
        F.layer_norm(t, (4,), w, b).backward(mt.tensor(u.astype(dtype)))
        grads.append((t.grad.array, w.grad.array, b.grad.array))
    for ours, right in zip(*grads, strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-5, atol=1e-6)


def test_the_kernel_of_cross_entropy_keeps_maximum_and_logarithm_apart():
    z = np.full((1, 3), 1e8, np.float32)
    t = np.zeros(1, np.int64)
    losses, lse = kernels.cross_entropy_forward(z, t, -100, 0.0)
    np.testing.assert_allclose([losses[0], *lse[0]], [math.log(3), 1e8, math.log(3)], rtol=1e-6)
    g = kernels.cross_entropy_backward(np.ones(1, np.float32), z, t, lse, -100, 0.0)
    np.testing.assert_allclose(g, [[-2 / 3, 1 / 3, 1 / 3]], rtol=1e-6)
