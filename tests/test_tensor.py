"""Tensors as objects: how they print, copy, convert, compare and share memory; random numbers and dtypes."""

from __future__ import annotations

import copy
import math
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import microtensor as mt

# --- printing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: mt.tensor([1.0, 2.5]), "tensor([1.0000, 2.5000])"),
        (lambda: mt.tensor([1, 2]), "tensor([1, 2])"),
        (lambda: mt.tensor([True]), "tensor([True])"),
        (lambda: mt.tensor(1.5, dtype=mt.float64), "tensor(1.5000, dtype=float64)"),
        (lambda: mt.ones(1, requires_grad=True), "tensor([1.], requires_grad=True)"),
        (lambda: mt.ones(1, requires_grad=True).exp(), "tensor([2.7183], grad_fn=<exp>)"),
        (lambda: mt.tensor([1], dtype=mt.uint8), "tensor([1], dtype=uint8)"),
    ],
)
def test_a_tensor_prints_values_dtype_and_where_it_comes_from(make, text):
    assert repr(make()) == text


def test_a_number_formats_as_a_number():
    assert f"{mt.tensor(1.23456):.2f}" == "1.23"
    assert f"{mt.tensor(3):d}" == "3"


def test_long_tensors_print_short():
    assert len(repr(mt.zeros(100_000))) < 200


# --- in and out ---------------------------------------------------------------------------------------------


def test_tensor_copies_and_from_numpy_shares():
    a = np.zeros(3)
    copied, shared = mt.tensor(a), mt.from_numpy(a)
    a[0] = 7.0
    assert copied.tolist() == [0.0, 0.0, 0.0]
    assert shared.tolist() == [7.0, 0.0, 0.0]
    shared.add_(1.0)
    assert a.tolist() == [8.0, 1.0, 1.0]
    assert mt.as_tensor(a).array is a
    assert mt.as_tensor(copied) is copied


def test_numpy_shares_and_is_refused_where_a_gradient_would_be_lost():
    x = mt.tensor([1.0, 2.0])
    assert x.numpy() is x.array
    assert np.asarray(x) is x.array
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    x.requires_grad_()
    for ask in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.sin(x.exp().numpy())):
        with pytest.raises(RuntimeError, match=r"detach\(\)\.numpy\(\)"):
            ask()
    assert x.detach().numpy() is x.array


@pytest.mark.parametrize("read_only", [True, False])
def test_read_only_memory_is_never_written(read_only):
    a = np.ones(3)
    a.flags.writeable = not read_only
    x = mt.from_numpy(a)
    if read_only:
        with pytest.raises(RuntimeError, match="read-only"):
            x.add_(1.0)
    else:
        assert x.add_(1.0).tolist() == [2.0] * 3
    expanded = mt.ones(1).expand(3)
    with pytest.raises(RuntimeError, match="read-only"):
        expanded.add_(1.0)


def test_item_and_conversions_want_one_element():
    assert mt.tensor([[2.5]]).item() == float(mt.tensor([2.5])) == 2.5
    assert int(mt.tensor(2.9)) == 2
    assert [10, 20, 30][mt.tensor(1)] == 20
    for ask in (lambda x: x.item(), float, int):
        with pytest.raises(RuntimeError, match="2 elements, not one"):
            ask(mt.tensor([1.0, 2.0]))
    with pytest.raises(TypeError, match="float32 tensor is no integer"):
        [10, 20][mt.tensor(1.0)]


def test_membership_compares_values():
    assert 2.0 in mt.tensor([1.0, 2.0])
    assert 3.0 not in mt.tensor([1.0, 2.0])


def test_data_that_is_no_rectangle_of_numbers_is_refused():
    for data in ([[1, 2], [3]], "abc", [None], object()):
        with pytest.raises(TypeError, match="tensor"):
            mt.tensor(data)


def test_unknown_dtypes_come_in_as_the_nearest_or_are_refused():
    assert mt.tensor(np.ones(2, np.float16)).dtype == mt.float32
    assert mt.tensor(np.ones(2, np.int16)).dtype == mt.int64
    for array in (np.ones(2, complex), np.array(["a"]), np.array([None])):
        with pytest.raises(TypeError, match=r"is of type (complex|str_?|NoneType); give real numbers"):
            mt.tensor(array)
    with pytest.raises(TypeError, match="cannot hold uint64; convert it first"):
        mt.tensor(np.ones(2, np.uint64))


def test_a_list_of_tensors_is_a_tensor():
    rows = [mt.tensor([1.0, 2.0]), mt.tensor([3.0, 4.0])]
    assert mt.tensor(rows).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_the_default_dtype_decides_for_python_floats_only():
    mt.set_default_dtype(mt.float64)
    try:
        assert (
            mt.tensor(1.0).dtype
            == mt.zeros(1).dtype
            == mt.rand(1).dtype
            == (mt.tensor([1, 2]) / 2).dtype
            == mt.float64
        )
        assert mt.tensor(np.ones(1, np.float32)).dtype == mt.float32
        assert mt.tensor(1).dtype == mt.int64
    finally:
        mt.set_default_dtype(mt.float32)
    with pytest.raises(TypeError, match="not a floating dtype"):
        mt.set_default_dtype(mt.int64)


def test_other_devices_are_refused_by_name():
    assert mt.zeros(1, device="cpu").to("cpu").device == "cpu"
    for ask in (
        lambda: mt.zeros(1, device="cuda"),
        lambda: mt.ones(1).to("cuda:0"),
        lambda: mt.tensor(1, device="mps"),
    ):
        with pytest.raises(RuntimeError, match="there is no device"):
            ask()


@pytest.mark.parametrize(("index", "place"), [
    (slice(0, 2), r"\(2, 4\)"), (0, r"\(4,\)"), ([0, 2], r"\(2, 4\)"), ((slice(None), 1), r"\(3,\)"),
])  # fmt: skip
def test_an_assignment_that_does_not_fit_tells_the_shape_of_its_place(index, place):
    said = rf"^setitem: value \(5,\) does not fit into {place}, x\[.+\] of shape \(3, 4\); give one number"
    with pytest.raises(ValueError, match=said):
        mt.zeros(3, 4)[index] = mt.ones(5)


@pytest.mark.parametrize(("index", "written"), [
    ("a", "'a'"), (1.5, "1.5"), ((0, 1.5), "1.5"), ({}, "{}"), (1j, "1j"), ([0.5], "float32(1,)"),
    ([[0], [1, 2]], "[[0], [1, 2]]"), (["a"], "['a']"), ([2**70], "[1180591"), (2**70, "x[1180591"),
    (mt.ones(3), "float32(3,)"), (5, "x[5]"), ((0, 5), "x[(0, 5)]"), ([0, 7], "x[array([0, 7])]"),
    ((0, 0, 0), "x[(0, 0, 0)]"), ((..., ...), "x[(..., ...)]"), (slice(1.5, None), "x[slice(1.5"),
    (slice(None, None, 0), "x[slice(None, None, 0)]"), (([0, 1], [0, 1, 2]), "x[(array([0, 1]), array"),
    (mt.ones(3, 3) > 0, "x[array([[ True, True"), ((None, 0, 0, 0), "x[(None, 0, 0, 0)]"),
])  # fmt: skip
@pytest.mark.parametrize("recorded", [False, True])
def test_an_index_that_cannot_be_is_told_with_the_shape_and_what_indices_are(index, written, recorded):
    x = mt.zeros(3, 4, requires_grad=recorded) * 1
    for use in (lambda: x[index], lambda: x.__setitem__(index, 1.0)):
        with pytest.raises((IndexError, TypeError, ValueError)) as caught:
            use()
        text = str(caught.value)
        assert re.fullmatch(
            r"(index|[gs]etitem): .*shape \(3, 4\).*; (use booleans|give each axis one) .*", text
        )
        assert written in text


# --- copies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize(
    "kind", [mt.tensor, lambda a, requires_grad: mt.nn.Parameter(mt.tensor(a), requires_grad)]
)
def test_copies_are_equal_and_apart(through, kind):
    x = kind(np.arange(3.0), requires_grad=True)
    y = through(x)
    assert type(y) is type(x)
    assert y.requires_grad
    assert y.tolist() == x.tolist()
    assert not np.shares_memory(x.array, y.array)


def test_a_recorded_tensor_is_neither_copied_nor_pickled():
    y = mt.ones(2, requires_grad=True) * 2.0
    for ask in (copy.deepcopy, pickle.dumps):
        with pytest.raises(RuntimeError, match=r"detach\(\)"):
            ask(y)


def test_clone_passes_the_gradient_and_detach_does_not():
    x = mt.ones(2, requires_grad=True)
    (x.clone() * 3.0 + x.detach() * 5.0).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0]


# --- views --------------------------------------------------------------------------------------------------

VIEWS = {
    "transpose": lambda x: x.t(),
    "slice": lambda x: x[1:, ::2],
    "row": lambda x: x[1],
    "element": lambda x: x[1, 2],
    "reshape": lambda x: x.reshape(-1),
    "view": lambda x: x.view(3, 2),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "flatten": lambda x: x.flatten(),
    "expand": lambda x: x.unsqueeze(0).expand(2, -1, -1),
    "split": lambda x: x.split(1)[1],
    "unbind": lambda x: x.unbind(1)[0],
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "permute": lambda x: x.permute(1, 0),
    "chunk": lambda x: x.chunk(2, 1)[0],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_memory_and_versions(name):
    x = mt.arange(6.0).reshape(2, 3).clone()
    y = VIEWS[name](x)
    assert np.shares_memory(x.array, y.array)
    before = y.tolist()
    x.add_(100.0)
    assert y.tolist() == (mt.tensor(before) + 100.0).tolist()
    assert y.version is x.version


@pytest.mark.parametrize("name", [n for n in VIEWS if n != "expand"])
def test_a_change_of_a_view_shows_in_what_it_views(name):
    x = mt.zeros(2, 3)
    VIEWS[name](x).add_(1.0)
    assert x.sum().item() == VIEWS[name](x).numel()


def test_reshape_copies_where_memory_does_not_allow_a_view_and_view_refuses():
    x = mt.arange(6.0).reshape(2, 3).t()
    assert not np.shares_memory(x.reshape(-1).array, x.array)
    with pytest.raises(RuntimeError, match=r"contiguous\(\)\.view\(\)"):
        x.view(-1)
    assert x.contiguous().view(-1).tolist() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]


# what PyTorch computes into row-major memory, wherever its input lies
ROW_MAJOR = {
    "x[:, i]": lambda x, i: x[:, i],
    "x[..., i]": lambda x, i: x[..., i],
    "x[0, :, i]": lambda x, i: x[0, :, i],
    "x[:, i, i]": lambda x, i: x[:, i, i],
    "x[:, mask]": lambda x, i: x[:, mt.tensor([True, False, True, True])],
    "x[mask]": lambda x, i: x[x > 3.0],
    "index_select": lambda x, i: x.index_select(1, i),
    "index_copy": lambda x, i: x.index_copy(1, i, mt.ones(3, 3, 3)),
    "repeat_interleave": lambda x, i: x.repeat_interleave(2, 1),
    "gather": lambda x, i: x.gather(1, mt.zeros(3, 3, 3, dtype=mt.int64).permute(2, 0, 1)),
    "take_along_dim": lambda x, i: x.take_along_dim(i.reshape(1, 3, 1), 1),
    "scatter": lambda x, i: x.scatter(1, i.reshape(1, 3, 1).expand(3, 3, 3), 1.0),
    "masked_select": lambda x, i: x.masked_select(x > 3.0),
    "masked_fill": lambda x, i: x.masked_fill(x > 3.0, 0.0),
    "topk": lambda x, i: x.topk(2, 1).values,
    "topk's indices": lambda x, i: x.topk(2, 1).indices,
    "sort": lambda x, i: x.sort(1, descending=True).values,
    "sort's indices": lambda x, i: x.sort(1, descending=True).indices,
    "roll": lambda x, i: x.roll(1, 0),
    "cat": lambda x, i: mt.cat([x, x], 1),
    "stack": lambda x, i: mt.stack([x, x], 1),
    "tril": lambda x, i: x.tril(),
    "ravel": lambda x, i: x[0, :, 0].ravel(),
    "nonzero": lambda x, i: x.nonzero(as_tuple=True)[0],
    "multinomial": lambda x, i: (x[0] + 1.0).multinomial(2),
}


@pytest.mark.parametrize("name", ROW_MAJOR)
@pytest.mark.parametrize("axes", [(0, 1, 2), (0, 2, 1), (2, 1, 0)])
def test_the_result_of_picking_and_joining_lies_in_row_major_order(name, axes):
    x = mt.arange(60.0).reshape([(3, 4, 5)[axes.index(a)] for a in range(3)]).permute(axes)  # (3, 4, 5)
    y = ROW_MAJOR[name](x[..., :3], mt.tensor([2, 0, 1]))
    assert y.is_contiguous()
    assert y.view(-1).tolist() == y.reshape(-1).tolist()


@given(
    data=st.data(),
    shape=hnp.array_shapes(max_dims=3, max_side=4),
)
def test_any_basic_index_reads_and_writes_as_numpy_does(data, shape):
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    array = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    x = mt.tensor(array, requires_grad=True)
    y = x[index]
    np.testing.assert_array_equal(y.detach().array, array[index])
    y.sum().backward()
    right = np.zeros(shape)
    right[index] = 1.0
    np.testing.assert_array_equal(x.grad.array, right)
    z = x.detach().clone()
    z[index] = -1.0
    array[index] = -1.0
    np.testing.assert_array_equal(z.array, array)


@given(
    shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=3),
    shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_broadcasting_is_undone_for_any_shapes(shape, shapes, seed):
    rng = np.random.default_rng(seed)
    a, b = (mt.tensor(rng.normal(size=s), requires_grad=True) for s in shapes.input_shapes)
    y = a * b - a / (b * b + 1.0)
    assert y.shape == shapes.result_shape
    if y.numel():
        assert mt.autograd.gradcheck(lambda a, b: a * b - a / (b * b + 1.0), (a, b), full=True)


# --- gradients as attributes --------------------------------------------------------------------------------


def test_requires_grad_can_be_set_on_leaves_only():
    x = mt.ones(2)
    x.requires_grad = True
    assert x.requires_grad
    assert x.is_leaf
    y = x * 2.0
    assert not y.is_leaf
    with pytest.raises(RuntimeError, match="must pass gradients on"):
        y.requires_grad_(False)
    x.requires_grad_(False)
    assert not (x * 2.0).requires_grad


def test_setting_data_keeps_the_tensor_and_moves_its_version():
    x = mt.ones(2, requires_grad=True)
    y = (x * x).sum()
    x.data = mt.tensor([5.0, 5.0])
    assert x.requires_grad
    assert x.tolist() == [5.0, 5.0]
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


# --- random numbers -----------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_numbers_and_a_state_goes_on():
    def draw():
        return [
            mt.rand(3).tolist(),
            mt.randn(2).tolist(),
            mt.randint(9, (4,)).tolist(),
            mt.randperm(5).tolist(),
        ]

    mt.manual_seed(7)
    first, state, second = draw(), mt.get_rng_state(), draw()
    mt.manual_seed(7)
    assert draw() == first
    mt.set_rng_state(state)
    assert draw() == second
    assert first != second


def test_a_generator_of_ones_own_leaves_the_default_alone():
    state = mt.get_rng_state().tolist()
    g = mt.Generator().manual_seed(3)
    a = mt.rand(3, generator=g).tolist()
    assert mt.get_rng_state().tolist() == state
    assert mt.rand(3, generator=g.manual_seed(3)).tolist() == a
    with pytest.raises(ValueError, match="48 bytes"):
        mt.set_rng_state(mt.zeros(3))


def test_multinomial_draws_by_weight_and_never_what_weighs_nothing():
    g = mt.Generator().manual_seed(0)
    weights = mt.tensor([[0.0, 1.0, 3.0], [5.0, 0.0, 0.0]])
    many = mt.multinomial(weights, 20_000, replacement=True, generator=g)
    assert many.shape == (2, 20_000)
    # four standard deviations of the binomial
    assert (many.array[0] == 2).mean() == pytest.approx(0.75, abs=4 * math.sqrt(0.75 * 0.25 / 20_000))
    assert not many.array[1].any()
    assert sorted(mt.multinomial(weights[0], 2, generator=g).tolist()) == [1, 2]
    with pytest.raises(ValueError, match="fewer than 2 weights"):
        mt.multinomial(weights, 2, generator=g)
    with pytest.raises(ValueError, match="fewer than 4 weights"):  # whatever is drawn from, no rows, too
        mt.zeros(0, 3).multinomial(4)
    for bad in ([-1.0, 2.0], [0.0, 0.0], [math.nan, 1.0]):
        with pytest.raises(ValueError, match="make them finite, at least 0"):
            mt.multinomial(mt.tensor(bad), 1)


def test_random_functions_have_their_moments(rng):
    mt.manual_seed(int(rng.integers(2**31)))
    n = 40_000
    # five standard errors each
    assert mt.randn(n).mean().item() == pytest.approx(0.0, abs=5 / math.sqrt(n))
    assert mt.randn(n).std().item() == pytest.approx(1.0, abs=5 / math.sqrt(2 * n))
    assert mt.rand(n).mean().item() == pytest.approx(0.5, abs=5 * math.sqrt(1 / 12 / n))
    assert mt.bernoulli(mt.full((n,), 0.3)).mean().item() == pytest.approx(0.3, abs=5 * math.sqrt(0.21 / n))
    assert mt.normal(2.0, 3.0, (n,)).mean().item() == pytest.approx(2.0, abs=15 / math.sqrt(n))
    whole = mt.randint(-2, 3, (n,))
    assert set(whole.tolist()) == {-2, -1, 0, 1, 2}
    assert sorted(mt.randperm(100).tolist()) == list(range(100))


def test_variances_divide_by_one_less_than_there_are_unless_told_otherwise():
    x = mt.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])  # Σ (x − μ)² is 14 and 6
    assert x.var(1).tolist() == [7.0, 3.0]
    assert x.var(1, unbiased=False).tolist() == pytest.approx([14 / 3, 2.0])
    assert x.var(1, correction=2).tolist() == [14.0, 6.0]
    assert x.std(1).tolist() == pytest.approx([math.sqrt(7), math.sqrt(3)])
    assert mt.var(x).item() == pytest.approx(np.var(x.numpy(), ddof=1))


def test_what_joins_nothing_has_the_dtype_of_all():
    empty = mt.zeros(0, dtype=mt.uint8)
    assert mt.cat([empty, mt.zeros(0)]).dtype == mt.float32


def test_a_multiple_of_a_boolean_is_none():
    assert mt.tensor([True, False]).add(True, alpha=-1).tolist() == [True, True]
    assert mt.tensor([True, False]).add(True, alpha=0).tolist() == [True, False]


def test_a_weight_of_one_element_may_be_of_any_dtype():
    x = mt.tensor([1.0, 2.0])
    assert x.lerp(x + 1, mt.tensor(1)).tolist() == [2.0, 3.0]
