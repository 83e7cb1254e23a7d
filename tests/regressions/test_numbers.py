"""Numbers that came out wrong elsewhere: overflow, dtypes, NaN; each with its report."""

from __future__ import annotations

import math

import numpy as np
import pytest

import microtensor as mt
import microtensor.nn.functional as F

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.3, -0.7]], np.float32)


@pytest.mark.parametrize("dtype", [mt.float32, mt.float64])
def test_softmax_of_large_scores_does_not_overflow(dtype):
    """https://github.com/NVIDIA/FasterTransformer/issues/43"""
    x = mt.tensor([[1000.0, 0.0], [-1000.0, -1001.0], [1e30, -1e30]], dtype=dtype, requires_grad=True)
    y = x.softmax(-1)
    (y * y).sum().backward()
    half = 1.0 / (1.0 + math.exp(-1.0))
    np.testing.assert_allclose(y.detach().array, [[1, 0], [half, 1 - half], [1, 0]], atol=1e-6)
    assert np.isfinite(x.grad.array).all()


def test_a_tiny_loss_keeps_its_digits():
    """https://github.com/NVIDIA/FasterTransformer/issues/43: ln(1 + e⁻²⁰), checked with mpmath"""
    loss = F.cross_entropy(mt.tensor([[20.0, 0.0]], dtype=mt.float64), mt.tensor([0]))
    assert loss.item() == pytest.approx(2.061153620314381e-09, rel=1e-12)


def test_the_loss_of_an_impossible_class_is_its_distance():
    """https://github.com/harvardnlp/annotated-transformer/issues/115: ln of a probability of 0"""
    x = mt.tensor([[1000.0, 0.0]], requires_grad=True)
    loss = F.cross_entropy(x, mt.tensor([1]))
    loss.backward()
    assert loss.item() == 1000.0
    assert x.grad.tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("ignore", [-100, -1, 2])
def test_the_mean_loss_divides_by_the_targets_that_count(ignore):
    """https://github.com/pytorch/pytorch/issues/12670; what ignored rows hold does not matter"""
    scores = np.array([[2.0, 0.0, 1.0], [np.inf, 3.0, np.nan], [1.0, 1.0, 1.0]])
    x = mt.tensor(scores, requires_grad=True)
    loss = F.cross_entropy(x, mt.tensor([0, ignore, 1]), ignore_index=ignore)
    loss.backward()
    first = math.log(sum(math.exp(v - 2.0) for v in (2.0, 0.0, 1.0)))
    assert loss.item() == pytest.approx((first + math.log(3.0)) / 2, rel=1e-12)
    assert x.grad.tolist()[1] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("target", [-1, -4, 3])
def test_a_class_that_does_not_exist_is_an_error(target):
    """https://github.com/pytorch/pytorch/issues/12670 (−4 was accepted)"""
    with pytest.raises(IndexError, match=f"target {target} is outside 0 … 2"):
        F.cross_entropy(mt.zeros(2, 3), mt.tensor([0, target]))


def test_a_loss_over_nothing_is_nan():
    """https://github.com/pytorch/pytorch/issues/75181: 0/0, as in PyTorch; documented in cross_entropy"""
    assert math.isnan(F.cross_entropy(mt.zeros(2, 3), mt.tensor([-100, -100])).item())


def test_integers_follow_the_rules_of_promotion():
    """https://github.com/tinygrad/tinygrad/issues/3133"""
    i = mt.tensor([7, 6])
    assert (i / 2).tolist() == [3.5, 3.0]
    assert (i * 2.5).tolist() == [17.5, 15.0]
    assert (i * 2.5).dtype == mt.float32
    assert mt.tensor([True, True]).sum().item() == 2
    assert mt.tensor(np.array([200, 100], np.uint8)).sum().item() == 300
    with pytest.raises(RuntimeError, match="int64"):
        mt.tensor([1, 2], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"\.float\(\)\.mean\(\)"):
        i.mean()


FLOAT32 = {
    "NumPy scalar": lambda x: np.float64(2.0) * x - np.float64(1.0),
    "root of an integer": lambda x: x / np.sqrt(64),
    "integers": lambda x: x * 3 + 1,
    "power": lambda x: x**2 + 2.0**x,
    "mean": lambda x: x.mean(0) + x.var(0),
    "extreme": lambda x: x.amax(-1) + x.std(-1),
    "softmax": lambda x: x.softmax(-1) + x.log_softmax(-1),
    "masked": lambda x: x.masked_fill(x > 1, -1e9).logsumexp(-1),
    "where": lambda x: mt.where(x > 0, x, 0.0) + mt.maximum(x, x * 0.5),
    "pieces": lambda x: mt.cat([x, x * 2.0])[0],
    "gelu": lambda x: F.gelu(x) + F.gelu(x, "tanh") + x.sigmoid() + x.erf(),
    "dropout": lambda x: F.dropout(x, 0.5),
    "norm": lambda x: x.norm() + F.layer_norm(x, (3,)),
    "loss": lambda x: F.cross_entropy(x, mt.tensor([0, 2]), label_smoothing=0.1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
}


@pytest.mark.parametrize("name", FLOAT32)
def test_float32_stays_float32(name):
    """https://github.com/HIPS/autograd/pull/199, https://github.com/HIPS/autograd/issues/671"""
    x = mt.tensor(X, requires_grad=True)
    y = FLOAT32[name](x)
    y.sum().backward()
    assert y.dtype == mt.float32
    assert x.grad.dtype == mt.float32


def test_python_floats_become_float32():
    """https://github.com/HIPS/autograd/issues/163"""
    assert mt.tensor([1.0, 2.0]).dtype == mt.float32
    assert mt.tensor(np.ones(2)).dtype == mt.float64


@pytest.mark.parametrize("dtype", [mt.float32, mt.float64])
def test_nan_stays_in_its_row_and_shows(dtype):
    """https://github.com/numba/numba/issues/8708: under fast math NaN does not exist"""
    x = mt.tensor([[math.nan, 1.0, 2.0], [0.0, 1.0, 2.0]], dtype=dtype)
    for y in [x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1), F.layer_norm(x, (3,))]:
        assert np.isnan(y.array[0]).all()
        assert np.isfinite(y.array[1]).all()
    for y in [
        x.amax(),
        x.amin(),
        x.sum(),
        x.mean(),
        x.norm(),
        x.max(),
        F.cross_entropy(x, mt.tensor([0, 1])),
    ]:
        assert math.isnan(y.item())
    assert math.isnan(mt.maximum(x, mt.zeros(3)).array[0, 0])
    assert math.isnan(x.relu().array[0, 0])


def test_infinite_scores_are_exact():
    """https://github.com/numba/numba/issues/8708: guards against −inf vanish under fast math"""
    assert mt.tensor([[-math.inf, 0.0, -math.inf]]).softmax(-1).tolist() == [[0.0, 1.0, 0.0]]
    x = mt.tensor([[0.0, -math.inf, 0.0]], requires_grad=True)
    (x.softmax(-1) * mt.tensor([1.0, 7.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [[-0.5, 0.0, 0.5]]


def test_a_row_that_may_attend_to_nothing_gives_zeros_and_a_zero_gradient():
    """https://github.com/pytorch/pytorch/issues/103749"""
    x = mt.tensor([[-math.inf, -math.inf], [0.0, 0.0]], requires_grad=True)
    y = x.softmax(-1)
    (y * y).sum().backward()
    assert y.tolist() == [[0.0, 0.0], [0.5, 0.5]]
    assert x.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    mask = mt.tensor([[False, False], [True, False]])
    q = mt.ones(2, 4, requires_grad=True)
    z = F.scaled_dot_product_attention(q, mt.ones(2, 4), mt.ones(2, 4), mask)
    z.sum().backward()
    assert z.tolist() == [[0.0] * 4, [1.0] * 4]
    assert np.isfinite(q.grad.array).all()


def test_layer_norm_has_the_biased_variance_and_eps_inside_the_root():
    """https://github.com/harvardnlp/annotated-transformer/pull/119"""
    y = mt.nn.LayerNorm(4)(mt.tensor([[1.0, 0.0, 0.0, 0.0]]))
    r = 1.0 / math.sqrt(0.1875 + 1e-5)
    np.testing.assert_allclose(y.detach().array, [[0.75 * r, -0.25 * r, -0.25 * r, -0.25 * r]], atol=1e-6)
    x = np.array([[1e-3, -1e-3]])
    np.testing.assert_allclose(F.layer_norm(mt.tensor(x), (2,)).array, x / math.sqrt(1e-6 + 1e-5))


def test_layer_norm_of_a_row_far_from_zero_keeps_its_digits():
    """https://github.com/harvardnlp/annotated-transformer/issues/122"""
    y = mt.nn.LayerNorm(3)(mt.tensor([[10000.0, 10001.0, 10002.0]]))
    # eps shifts 1.22474 in its sixth digit
    np.testing.assert_allclose(y.detach().array, [[-1.22474, 0.0, 1.22474]], atol=2e-4)


def test_a_long_float32_sum_does_not_drift():
    """https://github.com/numba/numba/issues/3681: a plain loop is off by more than 1 %"""
    x = mt.full((1 << 22,), 0.1)
    # pairwise sums lose about log₂ n bits of 24 at worst
    assert x.sum().item() == pytest.approx((1 << 22) * float(np.float32(0.1)), rel=1e-5)
    assert x.mean().item() == pytest.approx(float(np.float32(0.1)), rel=1e-5)


def test_the_gradient_of_an_embedding_loses_no_update_and_is_repeatable(rng):
    """https://github.com/numba/numba/issues/3681: a parallel scatter is a race"""
    ids, up = rng.integers(0, 3, 100_000), rng.integers(1, 9, (100_000, 4)).astype(float)
    right = np.zeros((5, 4))
    np.add.at(right, ids, up)  # integers: every order gives the same sum
    for _ in range(3):
        w = mt.zeros(5, 4, dtype=mt.float64, requires_grad=True)
        F.embedding(mt.tensor(ids), w).backward(mt.tensor(up))
        assert np.array_equal(w.grad.array, right)
