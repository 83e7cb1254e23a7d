"""The op contract, on every op that was ever declare; and that the contract catches what it should."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest

import microtensor as mt
from microtensor import engine, ops, testing
from microtensor.engine import Op

DIFFERENTIABLE = [o for o in engine.registry.values() if o.vjp_function or o.composite_function]
FLAGS = [o for o in engine.registry.values() if not o.differentiable]


def test_every_op_is_differentiable_or_says_that_it_is_not():
    ours = [o for o in engine.registry.values() if o.__module__.startswith("microtensor.")]  # not README's
    assert {o.name for o in ours} == {o.name for o in [*DIFFERENTIABLE, *FLAGS]}


@pytest.mark.parametrize("o", DIFFERENTIABLE, ids=lambda o: o.name)
def test_every_differentiable_op_has_samples_and_states_its_formula(o):
    assert o.samples_function is not None
    assert o.__doc__
    assert "gradient: " in o.__doc__ or o.composite_function is not None  # a composite states it better


@pytest.mark.parametrize("o", DIFFERENTIABLE, ids=lambda o: o.name)
def test_the_op_keeps_the_contract(o):
    testing.check_op(o)


@pytest.mark.parametrize("o", FLAGS, ids=lambda o: o.name)
def test_a_flag_passes_no_gradient_on(o):
    kind = bool if o.name.startswith(("logical", "bitwise")) else float
    x = mt.tensor(np.array([1, 2, 0], kind))
    if kind is float:
        x.requires_grad_()
    y = o(*[x] * len(o.inputs))
    assert not y.requires_grad
    assert y.grad_fn is None


# --- the contract has teeth ---------------------------------------------------------------------------------


def _one(rng):
    yield (rng.uniform(0.5, 2.0, (2, 3)),), {}


def _cubic(declare, forward, vjp) -> Op:
    made = declare("cubic", samples=_one)(forward)
    made.vjp(vjp)
    return made


def _cube(x):
    return x * x * x


def _cube_vjp(g, x):
    return (g * 3.0 * x * x,)


def test_a_right_op_passes_the_contract(declare):
    testing.check_op(_cubic(declare, _cube, _cube_vjp))


def test_a_gradient_that_is_wrong_by_one_percent_is_caught(declare):
    def vjp(g, x):
        return (g * 3.03 * x * x,)

    with pytest.raises(AssertionError, match="gradient equals central differences"):
        testing.check_op(_cubic(declare, _cube, vjp))


def test_a_gradient_that_is_wrong_at_one_element_is_caught(declare):
    def vjp(g, x):
        return (g * 3.0 * x * x * (1.0 + 0.01 * (x == x.max())),)

    with pytest.raises(AssertionError, match="1 of 6 entries"):
        testing.check_op(_cubic(declare, _cube, vjp))


def test_a_second_derivative_that_was_cut_off_is_caught(declare):
    def vjp(g, x):
        return (g * 3.0 * ops.detach(x) * x,)

    with pytest.raises(AssertionError, match="second derivative"):
        testing.check_op(_cubic(declare, _cube, vjp))


def test_a_numpy_scalar_that_widens_float32_is_caught(declare):
    def vjp(g, x):
        return (g * (3.0 * x * x) * np.float64(1.0),)

    with pytest.raises(AssertionError, match="float32"):
        testing.check_op(_cubic(declare, _cube, vjp))


def test_a_forward_that_changes_its_input_is_caught(declare):
    def forward(x):
        y = x * x * x
        x[...] = 1.0
        return y

    with pytest.raises(AssertionError):
        testing.check_op(_cubic(declare, forward, _cube_vjp))


def test_a_vjp_that_writes_into_its_gradient_is_caught(declare):
    def vjp(g, x):
        g *= 3.0 * x * x
        return (g,)

    with pytest.raises(AssertionError, match="read-only"):
        testing.check_op(_cubic(declare, _cube, vjp))


def test_a_random_forward_is_caught(declare):
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError, match="two calls gave two results"):
        testing.check_op(_cubic(declare, lambda x: x**3 + rng.normal(), _cube_vjp))


def test_a_forward_that_reads_memory_in_its_own_order_is_caught(declare):
    def forward(x):
        return np.ravel(x, order="K").reshape(x.shape) ** 3

    with pytest.raises(AssertionError, match="strided, reversed"):
        testing.check_op(_cubic(declare, forward, _cube_vjp))


def test_a_composite_that_says_something_else_is_caught(declare):
    cubic = _cubic(declare, _cube, _cube_vjp)
    cubic.composite(lambda x: x * x * x * 1.01)
    with pytest.raises(AssertionError, match="composite"):
        testing.check_op(cubic)


def test_a_sample_without_a_gradient_is_no_sample(declare):
    def zeros(rng):
        yield (np.zeros((2, 2)),), {}

    cubic = _cubic(declare, _cube, _cube_vjp)
    cubic.samples(zeros)
    with pytest.raises(AssertionError, match="1 % passes"):
        testing.check_op(cubic)


# --- gradcheck ----------------------------------------------------------------------------------------------


def test_gradcheck_refuses_float32_and_says_what_to_do():
    with pytest.raises(ValueError, match=r"exp: input 0 is float32.*\.double\(\)"):
        testing.gradcheck(mt.exp, mt.ones(2, requires_grad=True))


def test_gradcheck_without_anything_to_differentiate_is_an_error():
    with pytest.raises(ValueError, match="no input requires a gradient"):
        testing.gradcheck(mt.exp, mt.ones(2, dtype=mt.float64))


def test_gradcheck_names_function_input_and_the_worst_entry_with_both_numbers():
    def crooked(a, b):
        return a * b.detach() * b

    a = mt.tensor([1.0, 2.0], dtype=mt.float64, requires_grad=True)
    b = mt.tensor([3.0, 0.5], dtype=mt.float64, requires_grad=True)
    with pytest.raises(
        AssertionError, match=r"crooked, input 1 of shape \(2,\).*worst, at \(\d,\): .* is not"
    ):
        testing.gradcheck(crooked, (a, b), full=True)
    with pytest.raises(AssertionError, match="in a random direction"):
        testing.gradcheck(crooked, (a, b))


def test_gradcheck_leaves_the_inputs_as_they_were():
    x = mt.tensor([1.0, 2.0], dtype=mt.float64, requires_grad=True)
    assert testing.gradcheck(lambda x: (x.exp(), x.sum()), x, full=True)
    assert x.grad is None
    assert x.tolist() == [1.0, 2.0]


def test_gradcheck_of_autograd_is_the_one_of_testing():
    assert mt.autograd.gradcheck is testing.gradcheck
    assert mt.autograd.gradgradcheck is testing.gradgradcheck


def test_gradgradcheck_finds_a_first_derivative_that_cannot_be_differentiated():
    def half_blind(x):
        return x * x.detach() * 2.0 - (x * x).detach()  # x² with half of its second derivative

    x = mt.tensor([1.0, 2.0], dtype=mt.float64, requires_grad=True)
    with pytest.raises(AssertionError, match="the gradient of half_blind"):
        testing.gradgradcheck(half_blind, x)


# --- assert_close -------------------------------------------------------------------------------------------


def test_assert_close_wants_equal_shapes_dtypes_and_values():
    x = mt.tensor([1.0, 2.0])
    testing.assert_close(x, x + 1e-6)
    for other, said in [
        (mt.ones(2, 1), "shape"),
        (x.double(), "dtype"),
        (x + 1e-3, r"worst, at \(\d,\)"),
        (mt.tensor([1.0, math.nan]), "1 of 2"),
        (mt.tensor([1.0, math.inf]), "1 of 2"),
    ]:
        with pytest.raises(AssertionError, match=said):
            testing.assert_close(x, other)


def test_assert_close_takes_nan_as_equal_only_if_asked():
    x = mt.tensor([math.nan, math.inf, -math.inf])
    testing.assert_close(x, x, equal_nan=True)
    with pytest.raises(AssertionError):
        testing.assert_close(x, x)


def test_assert_close_goes_into_sequences_and_dicts_and_names_the_place():
    testing.assert_close({"a": [1.0, mt.ones(2)]}, {"a": [1.0, mt.ones(2)]})
    with pytest.raises(AssertionError, match=r"\['a'\].*\[1\]"):
        testing.assert_close({"a": [1.0, mt.ones(2)]}, {"a": [1.0, mt.zeros(2)]})
    with pytest.raises(AssertionError, match="keys"):
        testing.assert_close({"a": 1.0}, {"b": 1.0})


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_the_definition_of_softmax_takes_an_axis_of_length_0_as_the_kernel_does(name):
    for shape, axis in [((2, 0), -1), ((0, 3), 0), ((2, 0, 3), 1)]:
        for definition in (False, True):
            x = mt.zeros(shape, requires_grad=True)
            with mt.composites() if definition else contextlib.nullcontext():
                y = getattr(x, name)(axis)
            y.sum().backward()
            assert y.shape == x.grad.shape == shape
