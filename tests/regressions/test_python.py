"""Tensors as Python and NumPy objects: hashing, truth, iteration, ndarray on the left; with the reports."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import re
import warnings
import weakref

import numpy as np
import pytest

import microtensor as mt

N = np.array([[3.0, 4.0], [5.0, 6.0]])
OPERATORS = "add sub mul truediv floordiv mod pow matmul gt ge lt le eq ne".split()


@pytest.mark.parametrize("name", OPERATORS)
def test_an_array_on_the_left_gives_a_tensor(name):
    """https://github.com/pytorch/pytorch/pull/9651: NumPy makes an object array of tensors"""
    x = mt.full((2, 2), 2.0, dtype=mt.float64).requires_grad_()
    y = getattr(operator, name)(N, x)
    assert type(y) is mt.Tensor
    np.testing.assert_array_equal(y.detach().array, getattr(operator, name)(N, x.detach().array))
    if y.dtype == mt.float64 and name != "floordiv":  # which records nothing
        y.sum().backward()
        assert x.grad.shape == (2, 2)


@pytest.mark.parametrize("name", ["and_", "or_", "xor"])
def test_an_array_of_truths_on_the_left_gives_a_tensor(name):
    y = getattr(operator, name)(N > 4, mt.tensor([True, False]))
    assert type(y) is mt.Tensor
    np.testing.assert_array_equal(y.array, getattr(operator, name)(N > 4, np.array([True, False])))


@pytest.mark.parametrize("scalar", [np.float64(2.0), np.float32(2.0), np.int64(2)])
def test_a_numpy_scalar_on_the_left_is_a_number(scalar):
    """https://github.com/pytorch/pytorch/issues/9468"""
    x = mt.tensor([1.0, 4.0], requires_grad=True)
    y = scalar * x + (scalar - x) + scalar / x
    assert y.dtype == mt.float32
    y.sum().backward()
    np.testing.assert_allclose(x.grad.array, [-1.0, 0.875])


def test_an_array_of_a_list_of_tensors_holds_numbers():
    """https://github.com/pytorch/pytorch/issues/46829"""
    a = np.asarray([mt.tensor([1.0, 2.0]), mt.tensor([3.0, 4.0])])
    assert a.shape == (2, 2)
    assert a.dtype == np.float32


def test_a_tensor_is_itself_in_sets_and_dicts_whatever_it_holds():
    """https://github.com/tinygrad/tinygrad/issues/627"""
    a, b = mt.tensor([1.0, 2.0]), mt.tensor([1.0, 2.0])
    names = {a: "a", b: "b"}
    before = hash(a)
    a.add_(1.0)
    assert (names[a], names[b], hash(a)) == ("a", "b", before)
    assert len({a, b, a}) == 2
    assert weakref.ref(a)() is a
    assert (mt.tensor(1.0) == None) is False  # noqa: E711
    assert (a == b).tolist() == [False, False]


def test_parameters_of_equal_values_are_all_kept():
    """https://github.com/pytorch/pytorch/issues/111546"""

    class Three(mt.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (mt.nn.Parameter(mt.zeros(3)) for _ in range(3))

    assert len(list(Three().parameters())) == 3


def test_the_truth_of_many_elements_is_refused():
    """https://github.com/pytorch/pytorch/issues/1952"""
    assert mt.tensor(1.0)
    assert not mt.tensor([0.0])
    for values in ([1.0, 2.0], []):
        with pytest.raises(RuntimeError, match=r"any\(\) or all\(\)"):
            bool(mt.tensor(values))


def test_iteration_gives_rows_of_the_graph_and_stops():
    """https://github.com/QUVA-Lab/escnn/pull/91 (an endless loop)"""
    x = mt.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    rows = list(itertools.islice(x, 10))
    assert len(rows) == len(x) == 3
    (rows[0] * 2.0 + rows[2]).sum().backward()
    assert x.grad.tolist() == [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]]


def test_zero_dimensional_tensors_have_no_length_and_no_elements():
    """https://github.com/rsokl/MyGrad/issues/272"""
    for ask in [len, iter, list]:
        with pytest.raises(TypeError, match=r"item\(\)"):
            ask(mt.tensor(1.0))


def test_an_index_outside_is_an_index_error():
    """https://github.com/pytorch/pytorch/issues/3636: without it, iteration over __getitem__ never ends"""
    for index in (2, -3):
        with pytest.raises(IndexError):
            mt.tensor([1.0, 2.0])[index]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[::2, 1::3],
        lambda x: x[:, 2:3],
        lambda x: x[0].expand(5, 8),
        lambda x: x.flip(0, 1),
        lambda x: x.reshape(2, 3, 8).permute(1, 0, 2)[1],
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.exp(),
        lambda x: x.softmax(-1),
        lambda x: x.softmax(0),
        lambda x: mt.nn.functional.layer_norm(x, x.shape[-1:]),
        lambda x: x @ x.t(),
        lambda x: mt.nn.functional.cross_entropy(x, mt.tensor([0] * len(x))),
        lambda x: mt.nn.functional.embedding(mt.tensor([0, 1, 1]), x),
        lambda x: mt.nn.functional.gelu(x),
    ],
)
def test_kernels_see_through_strides(view, function, rng):
    """https://github.com/numba/numba/issues/1418, https://github.com/candle-org/candle/issues/95"""
    values = rng.normal(size=(6, 8))
    x, y = mt.tensor(values, requires_grad=True), mt.tensor(values, requires_grad=True)
    through, copied = function(view(x)), function(view(y).clone().contiguous())
    u = rng.normal(size=through.shape)
    through.backward(np.asarray(u, order="F"))
    copied.backward(u)
    # other strides, other order of the same sums
    np.testing.assert_allclose(through.detach().array, copied.detach().array, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(x.grad.array, y.grad.array, rtol=1e-12, atol=1e-12)


TO_NUMBERS = {
    "float": float,
    "complex": complex,
    "math.exp": math.exp,
    "%": lambda x: "%.2f" % x,  # noqa: UP031
    "an element": lambda x: operator.setitem(np.zeros(1), 0, x),
    "int": int,
    "bool": bool,
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "format": "{:.2f}".format,
    "print": str,
}
WARNED = {"float", "complex", "math.exp", "%", "an element"}


def warned(x, name, no_grad):
    with warnings.catch_warnings(record=True) as heard, no_grad():
        warnings.simplefilter("always")
        TO_NUMBERS[name](x)
    return heard


@pytest.mark.parametrize("name", TO_NUMBERS)
def test_a_number_that_leaves_a_gradient_behind_is_told(name):
    """x * math.exp(x) has the gradient exp(x), without a word; PyTorch's own warning, once a process"""
    leaf = mt.tensor(2.0, requires_grad=True)
    for x in (leaf, leaf * 3.0, mt.ones(1, requires_grad=True)[0]):
        heard = warned(x, name, contextlib.nullcontext)
        assert [w.filename for w in heard] == [__file__] * (name in WARNED)
        assert all(
            re.match(r"float: .* shape \(\) .*; use x\.exp\(\).*x\.item\(\)", str(w.message)) for w in heard
        )
        assert not warned(x, name, mt.no_grad)
        assert not warned(x.detach(), name, contextlib.nullcontext)


def test_what_has_no_number_gets_an_error_and_no_warning():
    with pytest.raises(RuntimeError, match="2 elements, not one"):  # here a warning is an error, too
        float(mt.ones(2, requires_grad=True))


@pytest.mark.parametrize("name", TO_NUMBERS)
def test_pytorch_tells_it_of_the_same(name):
    torch = pytest.importorskip("torch")
    torch.set_warn_always(True)
    try:
        x = torch.tensor(2.0, requires_grad=True) * 3.0
        assert bool(warned(x, name, contextlib.nullcontext)) == (name in WARNED)
        assert not warned(x, name, torch.no_grad)
    finally:
        torch.set_warn_always(False)


UFUNCS = sorted({f for f in vars(np).values() if isinstance(f, np.ufunc)}, key=lambda f: f.__name__)
REDUCTIONS = (np.sum, np.mean, np.max, np.amin, np.std, np.var, np.prod, np.any, np.all)


@pytest.mark.parametrize("function", [*UFUNCS, *REDUCTIONS], ids=lambda f: f.__name__)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_function_of_numpy_names_the_one_of_tensors(function, requires_grad):
    """np.exp(x) said "operand 'Tensor' does not support ufuncs", np.sum(x) that there is no argument 'out'"""
    x = mt.tensor([[0.5, 0.25], [0.125, 0.75]], requires_grad=requires_grad)
    args = [x, *[x] * (getattr(function, "nin", 1) - 1)]
    with pytest.raises(TypeError, match=r"^np\.\w+: .* tensor x.*; .*\(x\.detach\(\)\.numpy\(\)") as error:
        function(*args)
    named = re.search(r"use (x\.\w+\(y?\)) or (microtensor\.\w+\(x(, y)?\)), or", str(error.value))
    if function in {*REDUCTIONS, np.exp, np.absolute, np.arctan, np.maximum, np.power, np.equal}:
        assert named
    theirs = re.search(r"np\.\w+\(x\.detach\(\).*\)", str(error.value))[0]
    if named and function.__name__ not in ("std", "var"):  # which divide by N − 1 here
        with contextlib.suppress(TypeError):  # bits of floats
            expected = eval(theirs.replace("y)", "y.detach().numpy())"), {"np": np, "x": x, "y": x})
            for own in named.groups()[:2]:
                found = eval(own, {"x": x, "y": x, "microtensor": mt})
                np.testing.assert_allclose(found.detach().array, expected, rtol=1e-6)


def test_what_numpy_has_beside_a_call_is_refused_too():
    a, x = np.ones(2), mt.ones(2)
    for call in (lambda: np.add.reduce(x), lambda: np.add.outer(a, x), lambda: np.add(a, x, where=a > 0)):
        with pytest.raises(TypeError, match=r"^np\.add.*: .*; .* np\.add"):
            call()
    with pytest.raises(TypeError, match=r"^np\.add: .*; use x\.add\(y\)"):
        a += x


def test_what_numpy_makes_an_array_of_stays():
    x = mt.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert np.asarray(x) is x.array
    assert np.array(x) is not x.array
    assert np.asarray(x, np.float64).dtype == np.float64
    assert np.concatenate([x, x]).shape == (4, 2)
    assert np.allclose(x, x)
    with pytest.raises(RuntimeError, match=r"^numpy: .*; use detach\(\)\.numpy\(\)"):
        np.concatenate([x, x.clone().requires_grad_()])
