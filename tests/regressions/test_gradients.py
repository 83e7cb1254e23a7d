"""Wrong gradients that other frameworks had to repair, each with the report: here they stay right."""

from __future__ import annotations

import math

import numpy as np
import pytest

import microtensor as mt
import microtensor.nn.functional as F


def leaf(values, dtype=mt.float64):
    return mt.tensor(values, dtype=dtype, requires_grad=True)


def gradients(y, *leaves):
    y.backward()
    return [x.grad.tolist() for x in leaves]


def test_a_broadcast_operand_gets_a_gradient_of_its_own_shape():
    """https://github.com/pytorch/pytorch/issues/1787"""
    a, b = leaf([2.0]), leaf(np.arange(20.0).reshape(5, 4))
    assert gradients((a * b).sum(), a) == [[190.0]]
    scale, middle = leaf(3.0), leaf(np.ones((2, 1, 3)))
    ((mt.ones(4, 2, 5, 3) - middle) / scale).sum().backward()
    assert scale.grad.shape == ()
    assert scale.grad.item() == 0.0
    np.testing.assert_allclose(middle.grad.array, np.full((2, 1, 3), -20.0 / 3.0))


def test_an_inner_result_that_is_used_twice_passes_both_gradients_on():
    """https://github.com/TrenTorch/TrenTorch/pull/182 (6 instead of 21)"""
    x = leaf([2.0])
    y = x * 3.0
    assert gradients((y * 2.0 + y * 5.0).sum(), x) == [[21.0]]
    a, b = leaf(2.0), leaf(3.0)
    c, d = a + b, a * b
    assert gradients((c + d) + c * d, a, b) == [25.0, 19.0]


def test_concatenating_a_maximum_twice_counts_each_way_once():
    """https://github.com/HIPS/autograd/issues/138 (4 instead of 3)"""
    x = first = leaf([[1.0]])
    for _ in range(2):
        x = mt.cat([x.amax(0).reshape(1, 1), x], 0)
    assert gradients(x.sum(), first) == [[[3.0]]]


def test_a_read_only_gradient_can_be_added_to():
    """https://github.com/HIPS/autograd/issues/138: what sum's backward gives is a view of one number"""
    x = leaf(np.ones((2, 3)))
    assert gradients(x.sum() + (x * 2.0).sum() + x.sum(), x) == [[[4.0] * 3] * 2]


def test_a_second_backward_starts_inner_gradients_from_zero():
    """https://github.com/karpathy/micrograd/pull/102 (45 instead of 27)"""
    x = leaf(3.0)
    y = x * x * x
    y.backward(retain_graph=True)
    assert x.grad.item() == 27.0
    x.grad = None
    y.backward()
    assert x.grad.item() == 27.0


def test_assigning_a_slice_cuts_its_gradient():
    """https://github.com/pytorch/pytorch/issues/9391"""
    x = leaf(np.ones((2, 3)))
    y = x * 2.0
    y[:, :2] = 0.0
    assert gradients(y.sum(), x) == [[[0.0, 0.0, 2.0]] * 2]


@pytest.mark.parametrize(
    "pick",
    [
        lambda x: x[mt.tensor([0, 0, 2])],
        lambda x: x[np.array([0, -3, 2])],
        lambda x: x.gather(0, mt.tensor([[0], [0], [2]])),
        lambda x: F.embedding(mt.tensor([0, 0, 2]), x),
    ],
)
def test_repeated_indices_add_up(pick):
    """https://github.com/HIPS/autograd/issues/39, https://github.com/pytorch/pytorch/issues/1631"""
    x = leaf([[1.0], [2.0], [3.0]])
    assert gradients((pick(x) * mt.tensor([[1.0], [10.0], [100.0]])).sum(), x) == [[[11.0], [0.0], [100.0]]]


@pytest.mark.parametrize("dim", [None, 0, -1])
def test_ties_share_one_gradient(dim):
    """https://github.com/Theano/Theano/issues/4568, https://github.com/microsoft/onnxruntime/issues/7217"""
    values = np.array([[1.0, 3.0, 3.0], [3.0, 3.0, 0.0]])
    x = leaf(values)
    x.amax(dim).sum().backward()
    np.testing.assert_allclose(x.grad.array.sum(dim), 1.0)
    assert not x.grad.array[values != values.max(dim, keepdims=True)].any()
    a = leaf([2.0])
    assert gradients(mt.maximum(a, a).sum(), a) == [[1.0]]


def test_a_branch_that_was_not_taken_passes_no_gradient_not_even_nan():
    """https://github.com/pytorch/pytorch/issues/68425: infinity times a mask of zeros is NaN"""
    a, b = leaf([0.0, 2.0]), leaf([5.0, 1.0])
    mt.where(mt.tensor([True, False]), a, b).sqrt().sum().backward()
    assert a.grad.tolist() == [math.inf, 0.0]
    assert b.grad.tolist() == [0.0, 0.5]
    x = leaf([3.0, 5.0])
    assert gradients(x.masked_fill(mt.tensor([True, False]), 0.0).log().sum(), x) == [[0.0, 0.2]]


@pytest.mark.parametrize(
    ("p", "slopes"), [(0.0, [0.0, 0.0]), (1.0, [1.0, 1.0]), (2, [0.0, -4.0]), (3.0, [0.0, 12.0])]
)
def test_powers_have_slopes_at_zero_and_below(p, slopes):
    """https://github.com/pytorch/pytorch/issues/27134"""
    x = leaf([0.0, -2.0])
    assert gradients((x**p).sum(), x) == [slopes]
    x = leaf([0.0, -2.0])
    assert gradients((x ** mt.tensor([p, p], dtype=mt.float64)).sum(), x) == [slopes]


def test_the_exponent_of_zero_has_slope_zero():
    """https://github.com/pytorch/pytorch/issues/27134"""
    p = leaf([1.0, 1.0, 3.0])
    (mt.tensor([0.0, 2.0, 0.0], dtype=mt.float64) ** p).sum().backward()
    np.testing.assert_allclose(p.grad.array, [0.0, 2.0 * math.log(2.0), 0.0])


@pytest.mark.parametrize(("x", "g"), [([2, 0, 3, 4], [0, 24, 0, 0]), ([0, 0, 3], [0, 0, 0]), ([0], [1])])
def test_a_product_with_zeros_has_the_product_of_the_others(x, g):
    """https://github.com/tracel-ai/burn/issues/5533, https://github.com/pytorch/pytorch/issues/773"""
    x = leaf([float(v) for v in x])
    assert gradients(x.prod(), x) == [g]


@pytest.mark.parametrize("dim", [0, -1, (0, 2), (-1, -3), (0, 1, 2), None])
@pytest.mark.parametrize("keepdim", [False, True])
def test_means_over_any_axes_put_them_back_in_place(dim, keepdim, rng):
    """https://github.com/harvard-edge/cs249r_book/pull/1867, https://github.com/pytorch/pytorch/issues/1813"""
    values = rng.normal(size=(2, 3, 4))
    x = leaf(values)
    y = x.mean(dim, keepdim)
    w = rng.normal(size=y.shape)
    (y * mt.tensor(w)).sum().backward()
    spread = w.reshape(values.sum(dim, keepdims=True).shape) * np.ones(values.shape)
    np.testing.assert_allclose(x.grad.array, spread * y.numel() / values.size)


@pytest.mark.parametrize("correction", [0, 1])
def test_the_slope_of_a_variance_divides_as_the_variance_does(correction):
    """https://github.com/pytorch/pytorch/issues/94184"""
    values = np.array([1.0, 2.0, 4.0, 9.0])
    x = leaf(values)
    x.var(correction=correction).backward()
    np.testing.assert_allclose(x.grad.array, 2 * (values - 4.0) / (4 - correction))
    far = mt.tensor(1e8 + np.array([1.0, 2.0, 3.0]))
    assert far.var(correction=0).item() == pytest.approx(
        2 / 3, rel=1e-9
    )  # E[x²] − E[x]² would lose all digits


def test_batch_axes_of_a_product_are_summed_and_vectors_stay_vectors(rng):
    """https://github.com/harvard-edge/cs249r_book/pull/1781"""
    for first, second in [((3,), (3,)), ((2, 3), (3,)), ((3,), (5, 3, 4)), ((1, 2, 3), (5, 3, 4))]:
        a, b = leaf(rng.normal(size=first)), leaf(rng.normal(size=second))
        assert mt.autograd.gradcheck(mt.matmul, (a, b), full=True)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_uneven_pieces_get_their_own_slice_along_any_axis(dim, rng):
    """https://github.com/tensorflow/tfjs-core/pull/1267"""
    shapes = [[2, 3, 4], [2, 3, 4]]
    shapes[1][dim] = 5
    a, b = (leaf(np.ones(s)) for s in shapes)
    w = rng.normal(size=mt.cat([a, b], dim).shape)
    (mt.cat([a, b], dim) * mt.tensor(w)).sum().backward()
    for x, g in zip((a, b), np.split(w, [shapes[0][dim]], dim), strict=True):
        np.testing.assert_array_equal(x.grad.array, g)


def test_a_generator_of_tensors_can_be_concatenated():
    """https://github.com/dmlc/minpy/issues/154"""
    xs = [leaf([float(i)]) for i in range(3)]
    mt.cat(x * 2.0 for x in xs).sum().backward()
    assert [x.grad.tolist() for x in xs] == [[2.0]] * 3


def test_empty_tensors_have_sums_means_and_gradients():
    """https://github.com/pytorch/pytorch/issues/31515"""
    x = leaf(np.zeros((2, 0)))
    y = (x * 2.0).sum()
    y.backward()
    assert y.item() == 0.0
    assert x.grad.shape == (2, 0)
    assert math.isnan(mt.zeros(0).mean().item())
    with pytest.raises(IndexError, match="no elements"):
        mt.zeros(0).amax()
    assert list(mt.zeros(0, 3)) == []
    a, b = leaf(np.zeros((2, 0))), leaf(np.zeros((0, 3)))
    assert (a @ b).tolist() == [[0.0] * 3] * 2


def test_gradients_of_zero_dimensional_tensors_are_arrays_that_can_be_added_to():
    """https://github.com/chainer/chainer/issues/2021"""
    for dtype in [mt.float32, mt.float64]:
        x = leaf(2.0, dtype)
        (x + x + (x.broadcast_to((3,)) * 1.0).sum()).backward()
        assert isinstance(x.grad.array, np.ndarray)
        (x * 1.0).backward()
        assert x.grad.item() == 6.0
