"""What goes wrong is said, and harms nothing else: hooks, anomalies, errors, interrupts, threads, memory."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import math
import pickle
import re
import threading
import traceback
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import engine, nn, optim
from microtensor.mode import mode
from models import scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _anomaly_detection_is_off_again():
    yield
    left = mode.watch
    mode.run, mode.watch = mode.quiet, None
    assert left is None, "the test left anomaly detection on"


def leaf(*values, dtype=mt.float64):
    return mt.tensor(values[0] if len(values) == 1 else list(values), dtype=dtype, requires_grad=True)


def here() -> str:
    """This file and the caller's line, as an error names it."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


# --- hooks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [False, True])
def test_a_hook_sees_the_complete_gradient_once_and_may_replace_it(inner):
    x = leaf(1.0, 2.0)
    h = x * 1.0 if inner else x
    seen = []
    h.register_hook(lambda g: seen.append(g.tolist()))
    h.register_hook(lambda g: g * 10.0)
    (h.sum() + (h * h).sum()).backward()
    assert seen == [[3.0, 5.0]]
    assert x.grad.tolist() == [30.0, 50.0]


def test_hooks_run_in_the_order_of_their_registration_and_each_sees_what_the_one_before_returned():
    h = leaf(1.0) * 1.0
    seen = []
    h.register_hook(lambda g: g * 2.0)
    h.register_hook(lambda g: seen.append(g.item()))
    h.register_hook(lambda g: g + 1.0)
    h.register_hook(lambda g: seen.append(g.item()))
    h.backward()
    assert seen == [2.0, 3.0]


def test_a_hook_is_taken_off_by_its_handle_or_the_end_of_a_block():
    x = leaf(1.0)
    calls = []
    handle = x.register_hook(lambda g: calls.append("handle"))
    with x.register_hook(lambda g: calls.append("block")):
        (x * 1.0).backward()
    (x * 1.0).backward()
    handle.remove()
    handle.remove()
    (x * 1.0).backward()
    assert calls == ["handle", "block", "handle"]


def test_a_hook_that_takes_itself_off_while_it_runs_disturbs_no_other():
    x = leaf(1.0)
    calls = []
    handle = x.register_hook(lambda g: (calls.append("first"), handle.remove())[0])
    x.register_hook(lambda g: calls.append("second"))
    for _ in range(2):
        (x * 1.0).backward()
    assert calls == ["first", "second", "second"]


def test_hooks_run_for_grad_too_but_only_where_it_walks():
    x, z = leaf(1.0), leaf(1.0)
    calls = []
    h = x * 2.0
    h.register_hook(lambda g: g * 10.0)
    x.register_hook(lambda g: calls.append("x"))
    z.register_hook(lambda g: calls.append("z"))
    gh, gx = mt.autograd.grad(h * 3.0 + z, (h, x))
    assert (gh.item(), gx.item()) == (30.0, 60.0)
    assert calls == ["x"]


def test_a_hook_stays_with_the_value_it_was_registered_on():
    x = leaf(1.0)
    h = x * 2.0
    seen = []
    h.register_hook(lambda g: seen.append(("before", g.item())))
    h.mul_(3.0)
    h.register_hook(lambda g: seen.append(("after", g.item())))
    h.backward()
    assert seen == [("after", 1.0), ("before", 3.0)]


@pytest.mark.parametrize("inner", [False, True])
def test_what_a_hook_sees_cannot_be_written_into_and_may_be_kept(inner):
    x = leaf(1.0, 2.0)
    h = x * 1.0 if inner else x
    kept = []
    with h.register_hook(lambda g: g.mul_(2.0)), pytest.raises(RuntimeError, match=r"read-only.*clone\(\)"):
        h.sum().backward()
    h.register_hook(kept.append)
    for _ in range(3):
        (h.sum() * 1.0).backward(retain_graph=True)
    assert [g.tolist() for g in kept] == [[1.0, 1.0]] * 3
    assert x.grad.tolist() == [3.0, 3.0]


def test_a_tensor_that_a_hook_returns_is_never_written_into():
    x = leaf(1.0)
    mine = mt.tensor(5.0, dtype=mt.float64)
    x.register_hook(lambda g: mine)
    for _ in range(3):
        (x * 1.0).backward()
    assert mine.item() == 5.0
    assert x.grad.item() == 15.0


def test_hooks_are_differentiated_with_create_graph():
    x = leaf(3.0)
    h = x * x
    with h.register_hook(lambda g: g * h):
        (first,) = mt.autograd.grad(h * 1.0, x, create_graph=True)  # x² · 2x
    first.backward()
    assert x.grad.item() == 6.0 * 9.0
    assert mt.is_grad_enabled()


def test_hooks_of_inputs_run_once_at_second_order_through_a_fused_op():
    x = leaf(np.ones((2, 3)))
    h = x * 1.0
    calls = []
    h.register_hook(lambda g: calls.append(1))
    mt.autograd.grad(F.layer_norm(h, (3,)).sum(), x, create_graph=True)
    assert calls == [1]


def test_a_hook_has_the_walks_grad_mode_and_leaves_the_callers():
    seen = []
    for create_graph in [False, True]:
        x = leaf(1.0)
        x.register_hook(lambda g: seen.append(mt.is_grad_enabled()))
        (x * x).backward(create_graph=create_graph)
    assert seen == [False, True]
    assert mt.is_grad_enabled()


@pytest.mark.parametrize(
    ("hook", "kind", "said"),
    [
        (
            lambda g: mt.ones(3),
            RuntimeError,
            r"made a float64\(2,\) gradient float32\(3,\); keep shape and dtype",
        ),
        (lambda g: g.float(), RuntimeError, r"made a float64\(2,\) gradient float32\(2,\)"),
        (lambda g: 1.0, TypeError, r"returned float; return a tensor, or None"),
    ],
)
@pytest.mark.parametrize("inner", [False, True])
def test_a_hook_that_returns_what_is_no_gradient_is_named(hook, kind, said, inner):
    x = leaf(1.0, 2.0)
    h, line = x * 1.0, here()
    (h if inner else x).register_hook(hook)
    with pytest.raises(kind, match=said) as caught:
        h.sum().backward()
    assert (line if inner else "a leaf of shape (2,)") in str(caught.value)
    assert x.grad is None


@pytest.mark.parametrize("inner", [False, True])
def test_an_exception_in_a_hook_leaves_every_grad_as_it_was(inner):
    x, y = leaf(1.0), leaf(1.0)
    h = x * y
    h.retain_grad()
    (h if inner else x).register_hook(lambda g: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            (h * 2.0).backward(retain_graph=True)
    assert (x.grad, y.grad, h.grad) == (None, None, None)
    assert mt.is_grad_enabled()


def test_hooks_are_refused_where_no_gradient_will_come():
    for call in [lambda: mt.ones(2).register_hook(print), lambda: mt.ones(2).retain_grad()]:
        with pytest.raises(RuntimeError, match=r"shape \(2,\) requires no gradient.*requires_grad=True"):
            call()
    with pytest.raises(TypeError, match="1 cannot be called"):
        leaf(1.0).register_hook(1)


# --- retain_grad, backward(inputs=) -------------------------------------------------------------------------


def test_retain_grad_fills_the_grad_of_an_inner_tensor_after_its_hooks_and_adds_up():
    x = leaf(1.0, 2.0)
    h = x * 3.0
    h.retain_grad()
    h.register_hook(lambda g: g * 10.0)
    assert (h.retains_grad, x.retains_grad) == (True, False)
    for n in [1, 2]:
        h.sum().backward(retain_graph=True)
        assert h.grad.tolist() == [10.0 * n] * 2
    x.retain_grad()  # a leaf has its gradient anyway


def test_retain_grad_follows_an_in_place_change_also_through_a_view():
    for change in [lambda h: h.mul_(3.0), lambda h: h[:].mul_(3.0), lambda h: h.__setitem__(0, 0.0)]:
        h = leaf(1.0, 2.0) * 2.0
        h.retain_grad()
        change(h)
        (h * 5.0).sum().backward()
        assert h.grad.tolist() == [5.0, 5.0]


def test_a_retained_gradient_is_a_copy_that_nobody_else_holds():
    x = leaf(1.0, 2.0)
    h = x + 0.0
    h.retain_grad()
    h.sum().backward()
    h.grad.add_(1.0)
    assert x.grad.tolist() == [1.0, 1.0]


def test_backward_with_inputs_fills_these_alone_leaves_or_not():
    x, z, unused = leaf(2.0), leaf(3.0), leaf(1.0)
    h = x * z
    (h * h).backward(inputs=[h, z, unused])
    assert (h.grad.item(), z.grad.item()) == (12.0, 24.0)
    assert x.grad is None
    assert unused.grad is None
    (x * 2.0).backward(inputs=x)
    assert x.grad.item() == 2.0


def test_backward_with_inputs_that_cannot_be_says_so():
    x = leaf(1.0)
    with pytest.raises(ValueError, match="inputs is empty; name at least one"):
        (x * 1.0).backward(inputs=[])
    with pytest.raises(RuntimeError, match=r"backward: input 1 of shape \(2,\) requires no gradient"):
        (x * 1.0).backward(inputs=[x, mt.ones(2)])


# --- errors say op, shapes, line and cure -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda y: y.backward(), r"shape \(2,\) needs a gradient of that shape.*made by <mul .*\.sum\(\)"),
        (lambda y: mt.autograd.grad(y, y), r"^grad: a tensor .*made by <mul .* pass grad_outputs=$"),
        (
            lambda y: y.backward(mt.ones(3)),
            r"shape \(3,\), the tensor \(2,\) \(made by <mul .*make them equal",
        ),
        (lambda y: y.backward(1.0), r"start from is float; give a tensor of shape \(2,\) \(made by <mul"),
        (lambda y: mt.autograd.grad(y, y, [[1.0, 1.0]]), r"grad: the gradient to start from is list"),
    ],
)
def test_a_wrong_start_names_the_line_that_made_the_tensor(call, said):
    y, line = leaf(1.0, 2.0) * 2.0, here()
    with pytest.raises((RuntimeError, TypeError), match=said) as caught:
        call(y)
    assert line in str(caught.value)


def test_mixing_a_freed_graph_into_a_new_one_names_what_was_freed_and_its_line():
    x = leaf(2.0)
    h, line = x * x, here()
    h.backward()
    with pytest.raises(
        RuntimeError, match=r"mul .*shape \(\).*freed by an earlier backward.*retain_graph"
    ) as e:
        (h * 3.0 + x).backward()
    assert line in str(e.value)


def test_a_gradient_that_was_not_recorded_is_told_how_it_would_have_been():
    x = leaf(2.0)
    (x**3).backward()
    with pytest.raises(RuntimeError, match=r"was not recorded.*; .*gradients by create_graph=True$"):
        (x.grad**2).backward()


def test_a_leaf_changed_in_place_while_recording_is_refused_with_its_shape_and_the_cure():
    for change in [lambda x: x.add_(1.0), lambda x: x[0].zero_(), lambda x: x.__setitem__(0, 1.0)]:
        with pytest.raises(
            RuntimeError, match=r"shape \(2,\) that requires a gradient.*no_grad\(\).*clone\(\)"
        ):
            change(leaf(1.0, 2.0))


@pytest.mark.parametrize(
    ("function", "changed", "said"),
    [
        (lambda a, b: a * b, "a", "mul .*needs its input a of shape .*, which was changed in place"),
        (lambda a, b: a * b, "b", "mul .*needs its input b of shape .*, which was changed in place"),
        (lambda a, b: 2.0 * b, "b", "mul .*needs its input b of shape .*, which was changed in place"),
        (lambda a, b: a.exp(), "y", "exp .*needs its result,"),
    ],
)
def test_a_change_in_place_names_the_tensor_that_is_needed(function, changed, said):
    a, b = leaf(1.0, 2.0) * 1.0, leaf(3.0, 4.0) * 1.0
    y = function(a, b)
    loss = y.sum()
    {"a": a, "b": b, "y": y}[changed].detach().add_(1.0)
    with pytest.raises(RuntimeError, match=said):
        loss.backward()


def test_second_order_of_an_op_without_a_definition_names_the_op_and_its_line(declare):
    @declare("doubled square", residuals=("slope",))
    def doubled(x):
        """y = x²"""
        return x * x, (2.0 * x,)

    @doubled.vjp
    def doubled_vjp(g, slope):
        return (g * slope,)

    x = leaf(3.0)
    y, line = doubled(x), here()
    with pytest.raises(RuntimeError, match=r"<doubled square .*@doubled\.composite") as caught:
        mt.autograd.grad(y, x, create_graph=True)
    assert line in str(caught.value)


def test_an_error_inside_a_vjp_says_in_the_backward_of_what(declare):
    @declare("broken")
    def broken(x):
        """y = x"""
        return x + 0.0

    @broken.vjp
    def broken_vjp(g):
        raise KeyError("inner")

    y, line = broken(leaf(1.0)), here()
    with pytest.raises(KeyError, match="inner") as caught:
        y.backward()
    assert line in caught.value.__notes__[0]


# --- anomalies ----------------------------------------------------------------------------------------------


NAN = np.array([1.0, math.nan, 1.0])
ANOMALIES = {  # what is computed from x = (4, 0, −1), and what is said of it
    "NaN": (
        lambda x: x.log(),
        r"log made NaN at \(2,\) of its result float64\(3,\).*finite before: its input x",
    ),
    "infinity": (lambda x: 1.0 / x, r"div made inf at \(1,\) .*its input b float64\(3,\)"),
    "overflow": (lambda x: (x * 1e200) * (x * 1e200), r"mul made inf at \(0,\)"),
    "already": (lambda x: x * mt.as_tensor(NAN), r"input b .* holds NaN at \(1,\) already"),
    "before a list": (lambda x: mt.cat([x, x / 0.0]), "div made"),
    "backward": (
        lambda x: x.relu().sqrt().sum().backward(),
        r"the backward of <sqrt .* made inf at \(1,\) of the gradient of its input x float64\(3,\).*finite "
        r"before: the gradient that came to it, float64\(3,\), the y it kept",
    ),
}


@pytest.mark.parametrize("name", ANOMALIES)
def test_the_first_op_that_makes_a_nan_or_inf_is_named(name):
    call, said = ANOMALIES[name]
    x = leaf(4.0, 0.0, -1.0)
    with mt.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match=said) as caught:
        call(x)
    assert __file__ in str(caught.value)
    assert mt.is_grad_enabled()


def test_a_nan_made_before_detection_is_named_as_already_there():
    x = leaf(0.0, 1.0)
    loss = ((x / x) * x).sum()
    with mt.autograd.detect_anomaly():
        with pytest.raises(RuntimeError, match=r"<mul .*it kept, .* holds NaN at \(0,\) already"):
            loss.backward()
        seed = mt.as_tensor(np.array(math.nan))
        with pytest.raises(RuntimeError, match=r"came to it, .* holds NaN at \(\) already"):
            (x * 1.0).sum().backward(seed)


def test_masks_of_minus_infinity_are_no_anomaly():
    x = leaf(np.ones((2, 3)))
    mask = mt.tensor([[True, False, True], [False, False, False]])
    with mt.autograd.detect_anomaly():
        y = x.masked_fill(~mask, -math.inf).softmax(-1)
        z = (x + mt.where(mask, 0.0, -math.inf)).log_softmax(-1)
        (y.sum() + z[0, 0]).backward()
        F.cross_entropy(leaf(np.ones((2, 3))), mt.tensor([0, -100])).backward()
    assert np.isfinite(x.grad.array).all()


def test_anomaly_detection_is_a_call_a_block_and_a_decorator_of_this_thread_alone():
    def made():
        return mode.watch is not None

    assert not made()
    mt.autograd.set_detect_anomaly(True)
    assert made()
    with mt.autograd.set_detect_anomaly(False):
        assert not made()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(made()))
    thread.start()
    thread.join()
    mt.autograd.set_detect_anomaly(False)
    assert mt.autograd.detect_anomaly()(made)()
    assert (made(), seen) == (False, [False])


def test_a_training_step_is_the_same_under_anomaly_detection():
    mt.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.LayerNorm(4)), mt.randn(2, 3)
    gradients = []
    for watched in [False, True]:
        model.zero_grad()
        with mt.autograd.set_detect_anomaly(watched):
            (model(x) ** 2).sum().backward()
        gradients.append([p.grad.array.copy() for p in model.parameters()])
    assert all(np.array_equal(a, b) for a, b in zip(*gradients, strict=True))


# --- interrupts, re-entry, threads --------------------------------------------------------------------------


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError, MemoryError])
def test_an_exception_inside_a_vjp_leaves_a_usable_state(declare, kind, create_graph):
    armed = [True]

    @declare("fragile")
    def fragile(x):
        """y = x"""
        return x + 0.0

    @fragile.vjp
    def fragile_vjp(g):
        if armed[0]:
            raise kind
        return (g,)

    x, z = leaf(1.0), leaf(2.0)
    x.grad = before = mt.tensor(5.0, dtype=mt.float64)
    y = fragile(x) * z
    errors = np.geterr()
    with pytest.raises(kind):
        y.backward(create_graph=create_graph)
    assert x.grad is before
    assert before.item() == 5.0
    assert z.grad is None
    assert (mt.is_grad_enabled(), np.geterr()) == (True, errors)
    armed[0] = False
    (fragile(x) * z).backward()
    assert (x.grad.item(), z.grad.item()) == (7.0, 1.0)


def test_backward_inside_a_hook_and_inside_a_vjp(declare):
    x, inner = leaf(2.0), leaf(3.0)

    def hook(g):
        with mt.enable_grad():
            (inner * inner).backward()
        return g * inner.grad

    @declare("walks inside")
    def walks(x):
        """y = x"""
        return x + 0.0

    @walks.vjp
    def walks_vjp(g):
        with mt.enable_grad():
            z = leaf(5.0)
            (z * z).backward()
        return (g * z.grad.array,)

    h = x * x
    h.register_hook(hook)
    walks(h).backward()
    assert x.grad.item() == 4.0 * 6.0 * 10.0


def test_backward_of_the_same_leaf_inside_its_own_hook():
    x = leaf(2.0)
    depth = []

    def hook(g):
        if len(depth) < 3:
            depth.append(1)
            with mt.enable_grad():
                (x * 1.0).backward()

    x.register_hook(hook)
    (x * 10.0).backward()
    assert x.grad.item() == 10.0 + 3.0


def test_threads_walk_their_own_graphs_at_once():
    shared = leaf(np.ones(16))  # read by all, written by none: grad() touches no .grad
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            a = leaf(rng.normal(size=16))
            with mt.no_grad() if seed % 2 else mt.enable_grad():
                constant = a * 2.0
            if constant.requires_grad == bool(seed % 2):
                wrong.append("mode")
            (g,) = mt.autograd.grad(((shared * a).exp() * a).sum(), a)
            e = np.exp(a.array)
            if not np.allclose(g.array, e + e * a.array, rtol=1e-12):
                wrong.append("value")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
    assert shared.grad is None


# --- memory -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _hooked():
    x = leaf(np.ones(8))
    h = x * 2.0
    h.retain_grad()
    h.register_hook(lambda g: g * 2.0)
    x.register_hook(lambda g: g + 1.0)
    return x, h


CYCLES = {
    "hooks": lambda: _hooked(),
    "hooks, backward": lambda: [(x, h, h.sum().backward()) for x, h in [_hooked()]],
    "retained, in place": lambda: [(h.mul_(2.0), h.sum().backward()) for _, h in [_hooked()]],
    "anomaly": lambda: _watched(),
    "tape": lambda: mt.tape(_hooked()[1].sum(), grads=True),
    "module": lambda: mt.tape(nn.Linear(3, 4), mt.ones(2, 3)),
    "higher order": lambda: [mt.autograd.grad((x * x).sum(), x, create_graph=True) for x in [leaf(1.0, 2.0)]],
}


def _watched():
    with mt.autograd.detect_anomaly():
        _hooked()[1].exp().sum().backward()


@pytest.mark.parametrize("name", CYCLES)
def test_nothing_is_left_for_the_cycle_collector(name, no_collector):
    CYCLES[name]()  # caches fill
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        CYCLES[name]()
        gc.collect()
        left = [o for o in gc.garbage if isinstance(o, (mt.Tensor, engine.Entry, np.ndarray))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert left == []


def test_a_hook_on_a_result_does_not_keep_it_alive(no_collector):
    _, h = _hooked()
    tensor, entry = weakref.ref(h), weakref.ref(h.grad_fn)
    del h
    assert (tensor(), entry()) == (None, None)


def test_a_failed_backward_keeps_nothing_once_its_error_is_gone(no_collector):
    x = leaf(np.ones(8))
    h = x.exp()
    array = weakref.ref(h.array)
    with h.register_hook(lambda g: 1 / 0), contextlib.suppress(ZeroDivisionError):
        (h * h).sum().backward()
    del h
    assert array() is None


def test_memory_is_flat_over_10_000_steps():
    w = leaf(np.ones(4))
    w.register_hook(lambda g: g * 0.5)

    def step():
        h = w * 2.0
        h.retain_grad()
        ((h.exp() + h) * 0.01).sum().backward()
        with mt.no_grad():
            w.sub_(w.grad * 1e-3)
        w.grad = None

    tracemalloc.start()
    try:
        for _ in range(500):
            step()
        gc.collect()  # it also empties Python's lists of tuples to use again
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1_000):
            step()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counted = len(gc.get_objects())
    for _ in range(8_500):  # without the tracer, which is slow: the number of objects is as telling
        step()
    assert grown < 20_000, f"{grown} bytes more after 1,000 steps"
    assert len(gc.get_objects()) - counted < 100


def test_hooks_and_retained_gradients_10_000_deep_are_linear():
    x = leaf(1.0)
    h, calls = x, []
    for _ in range(10_000):
        h = h * 0.5 + h * 0.5
        h.register_hook(calls.append)
    h.backward()
    assert x.grad.item() == 1.0
    assert len(calls) == 10_000


CHANGES = {
    "mul_": lambda x: x.mul_(2.0),
    "setitem": lambda x: x.__setitem__(0, 1.0),
    "zero_": lambda x: x[0].zero_(),  # through a view
    "SGD.step": lambda x: mt.optim.SGD([x], lr=0.1).step(),
    "Adam.step": lambda x: mt.optim.Adam([x], lr=0.1).step(),
    "SignDescent.step": lambda x: SignDescent([x], {"lr": 0.1}).step(),
    "nn.init": lambda x: mt.nn.init.zeros_(x),
    "x.data = …": lambda x: setattr(x, "data", mt.zeros(2)),
}


class SignDescent(mt.optim.Optimizer):
    """An optimiser of one's own."""

    def _update(self, p, g, state, group):
        p -= group["lr"] * np.sign(g)


@pytest.mark.parametrize("change", CHANGES)
def test_an_overwritten_value_is_named_with_what_changed_it_and_the_line(change):
    x = mt.ones(2, requires_grad=True)

    def step(y):
        y.backward()

    step(x.sum())  # where a step's gradients came from another line, it is its own loss that comes late
    y = (x * x).sum()
    with mt.no_grad():
        CHANGES[change](x)
    line = CHANGES[change].__code__.co_firstlineno
    where = rf"changed in place by {re.escape(change)} at .*_safety.py:{line} \(version"
    again = f"run the forward again after each {change}, or "
    with pytest.raises(
        RuntimeError, match=rf"{where}.*; make the change after backward\(\), or {again}detach\(\)"
    ):
        step(y)


@pytest.mark.parametrize("used", [lambda x, w: F.linear(x, w), lambda x, w: x @ w.t(), lambda x, w: x * w[0]])
def test_a_parameter_changed_in_place_is_to_change_later_not_to_be_another(used):
    w, x = leaf(np.ones((3, 2))), leaf(np.ones((4, 2)))
    y = used(x, w)
    with mt.no_grad():
        w.div_(2.0)
    said = r"by div_ at .*; make the change after backward\(\), or run the forward again after each div_, or"
    with pytest.raises(RuntimeError, match=said):
        y.backward(mt.ones_like(y))


@pytest.mark.parametrize("layer", [lambda x, w: F.linear(x, w), lambda x, w: x @ w.t()])
def test_a_forward_outside_the_loop_is_named_with_the_step_that_needs_it_again(layer):
    w, x = leaf(np.ones((3, 2))), leaf(np.ones((4, 2)))
    optimizer, loss = mt.optim.SGD([w], lr=0.1), layer(x, w).square().sum()
    said = r"by SGD.step at .*; run the forward again after each SGD.step, or detach\(\) what .*, or make"

    def step():
        loss.backward(retain_graph=True)
        optimizer.step()

    step()
    with pytest.raises(RuntimeError, match=said):
        step()


def test_rows_written_into_what_backward_needs_are_to_be_stacked():
    cell, rows = nn.Linear(2, 2), mt.zeros(3, 2)
    for t in (1, 2):
        rows[t] = cell(rows[t - 1])
    said = (
        r"by setitem \(rows\[t\]\) at .*, as in stack\(rows, dim\) for x\[i\].*, or let linear read a clone"
    )
    with pytest.raises(RuntimeError, match=said):
        rows.sum().backward()

    rows = mt.zeros(3, 2)
    for t in (1, 2):
        rows[t] = cell(rows[t - 1].clone())
    rows.sum().backward()
    (grad,) = mt.autograd.grad(cell(mt.zeros(2)).sum() + cell(cell(mt.zeros(2))).sum(), cell.bias)
    assert cell.bias.grad.tolist() == pytest.approx(grad.tolist())


def test_a_change_of_a_view_is_told_that_a_new_tensor_alone_would_leave_the_whole_as_it_was():
    def doubled(clone):
        x = mt.ones(2, 4, requires_grad=True)
        h = x.relu()
        h = h.clone() if clone else h
        b = h[:, 2:]
        b.mul_(2.0)
        h.sum().backward()
        return x.grad

    said = (
        r"by mul_ of a view of shape \(2, 2\) at .*; put a clone in the place of what it is a view of, "
        r"before it is: h = h\.clone\(\), then b = h\[…\], or compute new tensors there, .* cat\(\[a, b"
    )
    with pytest.raises(RuntimeError, match=said):
        doubled(False)
    assert doubled(True).tolist() == [[1.0, 1.0, 2.0, 2.0]] * 2


@pytest.mark.parametrize("by", ["SGD.step", "sub_", "x.data = …"])
def test_gradients_added_up_are_told_the_change_before_which_they_are_to_be_zero(by):
    w = mt.ones(2, requires_grad=True)
    optimizer = mt.optim.SGD([w], lr=0.1)

    def step():
        (w * w).sum().backward()
        with mt.no_grad():
            if by == "SGD.step":
                optimizer.step()
            elif by == "sub_":
                w.sub_(0.1)
            else:
                w.data = w.data - 0.1

    step(), step()
    line = step.__code__.co_firstlineno + {"SGD.step": 4, "sub_": 6, "x.data = …": 8}[by]
    cure = r"by that SGD's own zero_grad" if by == "SGD.step" else r"by p\.grad = None for each, or by an opt"
    said = rf"set it to zero once a step, after every {by} at .*_safety\.py:{line}: {cure}"
    with pytest.warns(UserWarning, match=said):
        step()


def test_a_gradient_that_is_a_leaf_itself_is_told_too():
    x = mt.ones(2, requires_grad=True)
    (x * x).sum().backward()
    w = x.grad.requires_grad_()

    def step():
        (w * w).sum().backward()
        with mt.no_grad():
            w.sub_(0.1)

    step(), step()
    with pytest.warns(UserWarning, match=r"adds up the gradients of three steps, in 1 of 1 leaves"):
        step()


def _generator_and_discriminator():
    G, D = nn.Linear(2, 3), nn.Linear(3, 1)
    opt_g, opt_d = (mt.optim.SGD(m.parameters(), lr=0.1) for m in (G, D))
    return G, D, opt_g, opt_d


def test_a_step_says_that_its_gradients_hold_those_which_a_step_of_other_leaves_has_used():
    G, D, opt_g, opt_d = _generator_and_discriminator()
    D(G(mt.ones(4, 2))).mean().backward()
    opt_g.step()
    D(mt.ones(4, 3)).mean().backward()
    code = test_a_step_says_that_its_gradients_hold_those_which_a_step_of_other_leaves_has_used.__code__
    at = code.co_firstlineno + 2
    said = (
        rf"^SGD\.step: a \.grad still holds gradients of the backward\(\) at .*_safety\.py:{at}, which "
        rf"SGD\.step at .*_safety\.py:{at + 1} has used for other parameters; call this optimizer's "
        rf"zero_grad\(\) before the backward\(\) at .*_safety\.py:{at + 2}$"
    )
    with pytest.warns(UserWarning, match=said):
        opt_d.step()


def test_a_step_whose_own_gradients_came_from_another_backward_has_used_no_others():
    a, b = nn.Linear(2, 1), nn.Linear(2, 1)
    opt_a, opt_b = (mt.optim.SGD(m.parameters(), lr=0.1) for m in (a, b))
    for _ in range(3):
        for _ in range(2):  # of a, which is stepped once: micro-batches
            b(mt.ones(4, 2)).mean().backward()
            a(mt.ones(4, 2)).mean().backward()
            opt_b.step()
            opt_b.zero_grad()
        opt_a.step()
        opt_a.zero_grad()


@pytest.mark.parametrize("between", ["a step", "a backward", "both"])
def test_gradients_that_another_step_has_used_are_told_whatever_other_models_do_in_between(between):
    G, D, opt_g, opt_d = _generator_and_discriminator()
    other = nn.Linear(2, 1)
    optimizer = mt.optim.SGD(other.parameters(), lr=0.1)
    other(mt.ones(4, 2)).mean().backward()
    D(G(mt.ones(4, 2))).mean().backward()
    if between != "a step":
        other(mt.ones(4, 2)).mean().backward()
    opt_g.step()
    if between != "a backward":
        optimizer.step()
    D(mt.ones(4, 3)).mean().backward()
    with pytest.warns(UserWarning, match=r"^SGD\.step: a \.grad still holds gradients of the backward\(\)"):
        opt_d.step()


def test_gradients_of_a_leaf_itself_and_ones_of_the_users_are_of_no_other_step():
    w = mt.tensor(1.0, requires_grad=True)
    optimizer = mt.optim.SGD([w], lr=0.1)
    w.backward()  # a walk without an entry, as before the first step of all
    w.backward()
    optimizer.step()
    w.grad = mt.tensor(1.0)
    w.backward()
    optimizer.step()


@pytest.mark.parametrize("kind", ["zero before", "zero in place", "zero by hand", "shared", "garbage"])
def test_gradients_that_are_meant_to_be_added_up_or_were_set_to_zero_raise_no_warning(kind):
    G, D, opt_g, opt_d = _generator_and_discriminator()
    for _ in range(4):
        for _ in range(3):
            D(G(mt.ones(4, 2))).mean().backward()
            if kind != "shared":  # one loss, two optimizers; otherwise D's gradients are of no use
                opt_g.step()
                opt_g.zero_grad()
        if kind == "zero by hand":
            for p in D.parameters():
                p.grad.zero_()
        elif kind != "shared":
            opt_d.zero_grad(set_to_none=kind != "zero in place")
        if kind != "garbage":
            D(mt.ones(4, 3)).mean().backward()
            opt_g.step()
            opt_d.step()
            opt_g.zero_grad()
            opt_d.zero_grad()


@pytest.mark.parametrize("by", ["SGD.step", "sub_"])
def test_a_state_whose_tape_is_kept_over_a_step_is_to_be_detached_first(by):
    cell, h = nn.Linear(2, 2), mt.ones(1, 2)
    optimizer = mt.optim.SGD(cell.parameters(), lr=0.1)

    def step(h):
        h = cell(h).tanh()
        h.square().sum().backward(retain_graph=True)
        with mt.no_grad():
            optimizer.step() if by == "SGD.step" else cell.weight.sub_(0.1)
        return h

    h = step(h)
    with pytest.raises(
        RuntimeError, match=rf"by {by} at .*; detach\(\) what one step hands to the next, or run"
    ):
        step(h)


def test_a_loss_added_to_older_ones_is_told_from_a_second_backward_and_from_a_part_in_common():
    w = mt.ones(2, requires_grad=True)
    older, both, part = (w * w).sum(), (w * w).sum() + (w * w * w).sum(), w.tanh()
    trunk = w.sin()
    shared = (trunk**3).sum()
    for loss in (older, both, (part * part).sum(), shared):
        loss.backward()
    added = r"at .*; call it on the new loss alone, not on the sum at .*\.py:\d+; add up loss\.item\(\)$"
    again = r"backward, at .*:\d+; call it once, on the sum of losses; or detach"
    for loss, said in [
        (lambda: older + (w**3).mean(), added),
        (lambda: ((w**3).mean() + older) / 2, added),
        (
            lambda: both,
            r"give that create_graph=True if .*; or call it once: leave out one of the two; or run",
        ),
        (lambda: shared + (trunk**4).sum(), again),  # on the new loss alone it would fail
        (lambda: (part**3).sum() + w.exp().sum(), again),
    ]:
        with pytest.raises(RuntimeError, match=said):
            loss().backward()


def _hidden(net, losses):
    h = mt.zeros(2, 3)
    while True:
        h = net(h).tanh()
        yield h.square().mean()


def _mean(net, losses):
    mean = mt.zeros(3)
    while True:
        y = net(mt.ones(2, 3))
        mean = 0.9 * mean + 0.1 * y.mean(0)
        yield (y - mean).square().mean()


def _all(net, losses):
    while True:
        losses.append(net(mt.ones(2, 3)).square().mean())
        yield mt.stack(losses).mean()


def _part_in_common(net, losses):
    part, heads = net(mt.ones(2, 3)).tanh(), [nn.Linear(3, 1), nn.Linear(3, 1)]
    for head in heads:
        yield head(part).square().mean()


def _two_of_one_line(net, losses):
    """Made by one line before the first backward: detach() would lose a part of the gradient."""
    a, b = (net(x).tanh() for x in (mt.ones(2, 3), mt.zeros(2, 3)))
    yield from [a.square().mean(), (a * b).mean()]


def _prototypes(net, losses):
    """One forward for all steps, by the line that is each step's own: detach() would lose its gradient."""

    def encoded(x):
        return net(x).tanh()

    prototypes = encoded(mt.ones(5, 2, 3)).mean(1)
    while True:
        yield (encoded(mt.ones(5, 3)) - prototypes).square().mean()


def _scale(net, losses):
    """A running mean of the losses, which no backward saw before the next step uses it."""
    mean = None
    while True:
        loss = net(mt.ones(2, 3)).square().mean()
        scaled = loss / (loss.item() if mean is None else mean)
        mean = 0.5 * loss + 0.5 * loss.item()
        yield scaled


def _outside(net, losses):
    loss = net(mt.ones(2, 3)).square().mean()
    yield from [loss, loss]


HANDED, ONCE = (
    r"between the steps, detach\(\) what one step hands to the next: the result of \w+(?: \(.+\))? at "
    r".*:\d+, where \w+(?: \(.+\))? at .*:\d+ takes it",
    "call it once, on the sum of losses",
)
ANEW = r"compute the result of \w+(?: \(.+\))? at .*:\d+ again for each call, not once for several"
APART = r"detach\(\) what that one is not to reach, as a discriminator's fakes"
PENALTY = "give that create_graph=True if a gradient of it enters this loss, as a penalty does"
FORWARD = "run the forward again before each call"


@pytest.mark.parametrize(
    ("losses", "one_line", "step", "first"),
    [
        *(
            (losses, one_line, True, HANDED)
            for losses in (_hidden, _mean, _all, _scale)
            for one_line in (0, 1)
        ),
        *((losses, False, False, ONCE) for losses in (_part_in_common, _two_of_one_line)),
        *((losses, True, True, ANEW) for losses in (_part_in_common, _two_of_one_line, _prototypes)),
        (_part_in_common, False, True, APART),
        (_outside, False, False, PENALTY),
        (_outside, False, True, FORWARD),
        (_outside, True, True, FORWARD),
    ],
)
def test_the_first_cure_of_what_was_freed_is_that_of_the_program(losses, one_line, step, first):
    net = nn.Linear(3, 3)
    made = losses(net, [])
    if not one_line:
        next(made).backward()
    said = rf"earlier backward, at .*test_safety\.py:\d+; {first}; or .*"
    if step:
        mt.zeros(1).zero_()  # a change, in between if there was a backward
    # over a change retain_graph would keep what was there before it
    said += r"[a-z]$" if step and not one_line else "; or, where nothing .* retain_graph"
    with pytest.raises(RuntimeError, match=said):
        [loss.backward() for loss in made]


def test_what_is_handed_to_the_next_step_is_told_with_the_line_that_takes_it():
    net = nn.Linear(3, 3)

    def two_steps(value=None):
        for _ in range(2):
            loss = net(mt.ones(2, 3)).square().mean()
            value = loss if value is None else 0.9 * value + 0.1 * loss
            (loss / value).backward()
            mt.zeros(1).zero_()

    line = two_steps.__code__.co_firstlineno + 2
    said = rf"the result of mean at .*:{line}, where mul \(0\.9 \* value\) at .*:{line + 1} takes it"
    with pytest.raises(RuntimeError, match=said):
        two_steps()


@pytest.mark.parametrize("by", ["grad", "backward"])
def test_a_penalty_whose_gradient_was_not_recorded_is_told_create_graph(by):
    net, x = nn.Linear(3, 1), mt.randn(4, 3, requires_grad=True)
    y = net(x).tanh()
    if by == "grad":
        (g,) = mt.autograd.grad(y.sum(), x)
    else:
        y.sum().backward()
        g = x.grad
    line = test_a_penalty_whose_gradient_was_not_recorded_is_told_create_graph.__code__.co_firstlineno
    said = rf"by an earlier {by}, at .*_safety\.py:{line + (5 if by == 'grad' else 7)}; {PENALTY}; or"
    with pytest.raises(RuntimeError, match=said):
        (y.mean() + (g.norm(dim=1) - 1.0).square().mean()).backward()


def test_steps_of_two_losses_come_after_both_and_another_loss_comes_after_a_step():
    net = nn.Linear(3, 2)
    optimizer = mt.optim.SGD(net.parameters(), lr=0.1)
    x = mt.ones(4, 3, requires_grad=True)
    y = net(x)
    a, b = y.sum(), y.square().sum()
    a.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(
        RuntimeError, match=r"by SGD.step .*; make the change after both backward\(\), .*, or run"
    ):
        b.backward()
    one, other = (
        net(x).sum(),
        net(x).square().sum(),
    )  # of a forward of its own: a critic's loss, and an actor's
    one.backward()
    optimizer.step()
    with pytest.raises(
        RuntimeError, match=r"by SGD.step .*; run the forward again .* or make .*, if it is .* of both losses"
    ):
        other.backward()
    net.zero_grad()
    net(x).sum().backward()
    other = net(x).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"by SGD.step .*; run the forward again after each SGD.step, or"):
        other.backward()


def test_a_backward_of_a_leaf_alone_is_no_loss_that_a_forward_is_shared_with():
    w, other = leaf(1.0), leaf(1.0)
    y = w * w
    other.backward()
    with mt.no_grad():
        w.mul_(2.0)
    with pytest.raises(RuntimeError, match=r"by mul_ .*; run the forward again after each mul_, or"):
        y.backward()


def test_what_one_step_hands_to_the_next_is_named_as_a_cure():
    w = mt.ones(1, requires_grad=True)
    hidden = w.tanh()
    hidden.sum().backward()
    with pytest.raises(RuntimeError, match=r"tanh .* was freed by an earlier backward, at .*detach\(\)"):
        (hidden + w).tanh().sum().backward()


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (mt.ones(1, 2), ValueError, r"^grad: float32\(1, 2\) for a float32\(2,\) tensor; "),
        (mt.ones(2).double(), ValueError, r"^grad: float64\(2,\) for a float32\(2,\) tensor; "),
        (np.ones(2), TypeError, r"^grad: ndarray is no tensor; "),
    ],
)
def test_a_gradient_that_does_not_fit_is_refused(bad, error, text):
    x = mt.ones(2, requires_grad=True)
    with pytest.raises(error, match=text):
        x.grad = bad
    assert x.grad is None


def test_reading_the_gradient_of_an_inner_tensor_says_why_it_is_none():
    x = mt.ones(2, requires_grad=True)
    h = x * 2.0
    h.sum().backward()
    with pytest.warns(
        UserWarning,
        match=r"^grad: a tensor of shape \(2,\) that <mul .*; a parameter .* leaf: .*detach\(\)\."
        r"requires_grad_.* under no_grad\(\), w -= … for w = w - …; of another tensor call retain_grad\(\)",
    ) as said:
        assert h.grad is None
    assert said[0].filename == __file__
    assert x.detach().grad is None  # nothing is said where nobody could expect one
    kept = x * 2.0
    kept.retain_grad()
    assert kept.grad is None


def test_a_view_taken_under_no_grad_of_what_was_changed_since_is_ambiguous():
    h = mt.ones(3, requires_grad=True) * 2.0
    with mt.no_grad():
        view = h[:2]
    detached = h.detach()[:2]
    h.mul_(3.0)
    with pytest.raises(RuntimeError, match=r"^view: one of shape \(2,\), taken under no_grad .*_safety.py:"):
        view.sum()
    assert detached.sum().item() == 12.0  # the memory is shared, the tape is not
    assert not detached.requires_grad


TO_A_VIEW = {
    "mul_": lambda v: v.mul_(2.0),
    "zero_": lambda v: v.zero_(),
    "copy_": lambda v: v.copy_(mt.ones(2)),
    "setitem": lambda v: v.__setitem__(0, 5.0),
    "add_ of what needs a gradient": lambda v: v.add_(mt.ones(2, requires_grad=True)),
}


@pytest.mark.parametrize("change", TO_A_VIEW.values(), ids=TO_A_VIEW)
def test_a_view_taken_under_no_grad_is_not_changed_while_recording(change):
    """The gradient through what was there before was silently 0."""
    x = mt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 1.0
    with mt.no_grad():
        view = y[:2]
    with pytest.raises(
        RuntimeError, match=r"this view of shape \(2,\) was taken under no_grad, .* a clone\(\)"
    ):
        change(view)
    assert y.tolist() == [1.0, 2.0, 3.0]  # nothing was changed before
    with mt.no_grad():
        change(view)
    change(y.detach()[:2])  # shares memory and no tape
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


ones, minus = mt.ones(3, 3).tril(), float("-inf")
MASKS = {
    "zeros and ones": (ones, ValueError, "hides nothing; make it boolean"),
    "sums of them": (ones + ones, ValueError, "hides nothing; make it boolean"),
    "ones that forbid": (1 - ones, ValueError, ".* mask == 0 if they allow"),
    "an infinite product": ((1 - ones) * minus, ValueError, "holds NaN, which .* makes of 0"),
    "integers": (ones.long(), TypeError, "the mask is int64; make it boolean"),
    "integers turned": (~ones.long(), TypeError, r"the mask is int64; turn it when .*: ~mask\.bool\(\)"),
    "a list": (ones.bool().tolist(), TypeError, "mask is list; give a tensor"),
}


@pytest.mark.parametrize("attend", [F.scaled_dot_product_attention, scaled_dot_product_attention])
@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_that_was_meant_otherwise_is_refused(mask, attend):
    given, error, text = MASKS[mask]
    x = mt.ones(1, 1, 3, 4)
    with pytest.raises(error, match=f"^scaled_dot_product_attention: .*{text}"):
        attend(x, x, x, given)


@pytest.mark.parametrize(
    "mask",
    [
        mt.zeros(3, 3),
        mt.zeros(3, 3).masked_fill(ones == 0, minus),
        ones * 0.5 + 1,
        ones * 3,
    ],  # the last: a bias
)
def test_a_mask_to_be_added_is_taken(mask):
    x = mt.ones(1, 1, 3, 4)
    assert F.scaled_dot_product_attention(x, x, x, mask).isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            lambda: ones.masked_fill(ones, 0.0),
            r"^masked_fill: .* is float32, .* what is True is filled, so mask != 0 if its ones mark that, "
            r"mask == 0 if its zeros do \(of booleans ~a, a & b, a \| b, not 1 - a,",
        ),
        (
            lambda: mt.where(ones, ones, 0.0),
            r"^where: .* is float32, .* what is True takes the first, so mask != 0 if its ones mark that",
        ),
        (
            lambda: ones.masked_fill(mt.full((3, 3), float("-inf")).triu(1), 0.0),
            r"^masked_fill: the mask is float32, .*; add a mask of 0 and −inf to the scores: scores \+ mask$",
        ),
        (
            lambda: ones.masked_fill(~ones.long(), 0.0),
            r"^masked_fill: .* int64, .*; turn it .*: ~mask\.bool\(\)$",
        ),
        (
            lambda: ones.masked_fill(False, 0.0),
            r"^masked_fill: the mask is a bool; give a boolean tensor: ~mask",
        ),
        (lambda: ~ones, r"^bitwise_not: float32 has no bits; use \.bool\(\) first: ~x\.bool\(\)$"),
        (lambda: (ones > 0) & ones, r"^bitwise_and: float32 has no bits; .* x\.bool\(\) & y\.bool\(\)$"),
        (lambda: ones.bool() | 1.5, r"^bitwise_or: float32 has no bits; .* x\.bool\(\) \| y\.bool\(\)$"),
        (
            lambda: -ones.bool(),
            r"^neg: booleans have no minus \(given bool\(3, 3\)\); use ~ for not .*, or \.long\(\)",
        ),
        (
            lambda: ones.bool() - ones.bool(),
            r"^sub: booleans have no minus .*; use ~ .*\^ for -\), or \.long\(\)",
        ),
    ],
)
def test_numbers_where_truth_is_meant_are_refused_with_the_one_cure(wrong, text):
    with pytest.raises(TypeError, match=text):
        wrong()


def test_not_of_a_mask_and_numbers_as_an_index_are_told_their_boolean():
    with pytest.raises(
        RuntimeError,
        match=r"^bool: .*; use ~, & and \| for not, and, or .*: a & \(b > 1\); `x is not None` .*any\(\)",
    ):
        ones.masked_fill(not ones, 0.0)
    said = r"^index: float32\(.*\) cannot index a tensor of shape \(.*; .*mask\.bool\(\) of zeros and ones"
    said += r".*x\.long\(\) of positions"
    for x in (
        lambda: ones[:, ones[0]],
        lambda: ones[ones.numpy()],
        lambda: mt.zeros(3, 3).__setitem__(ones, 1.0),
    ):
        with pytest.raises(IndexError, match=said):
            x()


@pytest.mark.parametrize("pick", [lambda x, m: x[m], lambda x, m: x.__setitem__(m, 0.0)])
def test_an_index_of_zeros_and_ones_laid_over_the_tensor_is_told_from_a_mask(pick):
    mask = mt.tensor([[0, 1], [1, 1], [1, 0]])
    said = (
        r"^index: int64 zeros and ones \(3, 2\) on a tensor \(3, 2, 4\) pick its rows .*; use mask\.bool\(\)"
    )
    with pytest.warns(UserWarning, match=said):
        pick(mt.zeros(3, 2, 4), mask)
    pick(mt.zeros(3, 2, 4), mask.bool())
    pick(mt.zeros(2, 2, 4), mask[:2])  # two rows there are
    pick(mt.zeros(3, 5), mask)  # a table, and its indices
    pick(mt.zeros(3), mask[:, 0])  # as a beam that is sorted
    pick(mt.zeros(3, 2), mask + 1)
    pick(mt.zeros(0, 2), mask[:0])


@pytest.mark.parametrize(
    ("product", "said"),
    [
        (lambda q: q @ q, r"\(10\), as \(2, 4, 16, 10\) of the second's \.mT would"),
        (lambda q: q[0] @ q, r"\(10\), as \(2, 4, 16, 10\) of the second's \.mT would"),
        (lambda q: q @ q.T, r"\(4\), as \(2, 4, 16, 10\) of the second's \.mT instead of \.T would"),
        (lambda q: q[0] @ q[0].T, r"\(10\), as \(4, 16, 10\) of the second's \.mT instead of \.T would"),
        (  # what is added up over is equal by chance
            lambda q: q[..., :4] @ q[..., :4].T,
            r"axes \(2, 4\) and \(4, 10\) before the last two must be equal or 1, from the right, "
            r"as \(2, 4, 4, 10\) of the second's \.mT instead of \.T would",
        ),
        (
            lambda q: (q @ q.mT) @ q.transpose(1, 2),
            r"\(4\), as \(2, 4, 10, 16\) of the second's \.transpose\(-3, -2\) would",
        ),
        (
            lambda q: q @ q.mT[:, :3],
            r"axes \(2, 4\) and \(2, 3\) before the last two must be .*; look where these were split, .*",
        ),
        (
            lambda q: q.long() @ q.long().mT[:, :3],
            r"axes \(2, 4\) and \(2, 3\) before the last two must be .*; look where these were split, .*",
        ),
        (lambda q: q @ q.transpose(1, 2), r"second last of the second \(4\)"),  # nothing turned would fit
        (lambda q: mt.bmm(q[0], q[0]), r"^bmm: .* as \(4, 16, 10\) of the second's \.mT would"),
        (lambda q: mt.mm(q[0, 0], q[0, 0]), r"^mm: .* as \(16, 10\) of the second's \.mT would"),
        (lambda q: mt.mm(q, q.mT), r"^mm: takes \(M, K\) and \(K, N\), not .*; use matmul"),
        (lambda q: mt.bmm(q[0], q[0, :1].mT), r"^bmm: takes .*, not .*; use matmul"),
    ],
)
def test_a_product_that_a_transposition_would_mend_says_so(product, said):
    with pytest.raises(ValueError, match=rf"{said}( \(\(.* is of ones at .*py:\d+\)|(?<=; use matmul))$"):
        product(mt.ones(2, 4, 10, 16))


def test_a_projection_of_heads_that_are_not_joined_says_how_to_join_them():
    with pytest.raises(ValueError, match=r"in_features: \.transpose\(1, 2\)\.flatten\(2\) joins heads, or"):
        nn.Linear(64, 64)(mt.ones(2, 4, 10, 16))
    other = (
        (10, (2, 10, 16)),
        (10, (2, 16, 4, 4)),
        (64, (2, 16, 4, 4)),
        (64, (2, 8, 8, 8)),
        (64, (2, 10, 4, 16)),
    )
    for n, shape in other:  # no heads, an image, one, and what may be transposed already
        with pytest.raises(
            ValueError,
            match=rf"input in_features, or in_features {shape[-1]}, by nn\.Linear\({shape[-1]}, {n}\)$",
        ):
            nn.Linear(64, n)(mt.ones(shape))


@pytest.mark.parametrize("shape", [(32, 12), (12, 28)])
def test_a_loss_of_more_or_fewer_rows_than_targets_says_what_each_of_both_takes(shape):
    said = rf"this target takes an input of 28 rows, .* this input takes a target \({shape[0]},\)$"
    with pytest.raises(ValueError, match=said):
        F.cross_entropy(mt.zeros(shape), mt.zeros(28).long())


FITS = {  # what stands at the end of the rule
    "keepdim": ((8, 6, 16), (8, 6), "as (8, 6, 1) of the second's [:, :, None]"),
    "a mask of keys": ((8, 4, 6, 6), (8, 6), "as (8, 1, 1, 6) of the second's [:, None, None] or "
                       "(8, 1, 6, 1) of the second's [:, None, :, None]"),
    "one axis short": ((8, 4, 6, 6), (8, 1, 6), "as (8, 1, 1, 6) of the second's [:, None] or "
                     "(8, 1, 6, 1) of the second's [:, :, :, None]"),
    "a causal mask": ((4, 2, 7, 7), (16, 16), "as (7, 7) of the second's [:7, :7]"),
    "positions": ((4, 7, 16), (16, 16), "as (7, 16) of the second's [:7]"),
    "the first": ((8,), (8, 5), "as (8, 1) of the first's [:, None]"),
}  # fmt: skip


@pytest.mark.parametrize("case", FITS)
def test_shapes_that_do_not_broadcast_are_told_what_would(case):
    a, b, cure = FITS[case]
    with pytest.raises(ValueError, match=f"equal or 1, {re.escape(cure)} would be$"):
        mt.zeros(*a) + mt.zeros(*b)
    which, how = re.search(r"the (first|second)'s (\S[^()]*?)(?: or |$)", cure).groups()
    x, y = mt.zeros(*a), mt.zeros(*b)
    changed = eval(("x" if which == "first" else "y") + how)
    assert (changed + (y if which == "first" else x)).shape == max(a, b, key=len)


def test_of_swapped_axes_is_told_what_a_transpose_would_turn():
    """Memory slots joined as rows of a mask, (M + T, T), where columns are due, (T, M + T): its .mT fits, and
    lets each token see the later ones."""
    causal, scores = mt.ones(4, 4, dtype=mt.bool).tril(), mt.zeros(2, 4, 6)
    mask = mt.cat([mt.ones(2, 4, dtype=mt.bool), causal], dim=0)
    with pytest.raises(
        ValueError, match=r"as \(4, 6\) would be; make the second so, by \.mT only if it is not causal"
    ):
        scores.masked_fill(~mask, -math.inf)


@pytest.mark.parametrize(("a", "b"), [((3,), (4,)), ((8, 6, 16), (6, 8)), ((0, 3), (2, 3)), ((2, 3), (4, 5))])
def test_shapes_that_no_small_change_mends_are_told_the_rule(a, b):
    with pytest.raises(ValueError, match=r"from the right, axes must be equal or 1$"):
        mt.zeros(*a) + mt.zeros(*b)


def test_operands_that_do_not_fit_are_told_with_the_lines_that_made_them():
    x = mt.ones(2, 3, requires_grad=True)
    y = x.exp()
    line = inspect.currentframe().f_lineno - 1
    made = rf"\(\(2, 3\) is of exp at .*test_safety\.py:{line}\)$"
    misfits = {
        "add": lambda: y + mt.ones(4),
        "matmul": lambda: mt.ones(4, 4) @ y,
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(y, y, mt.ones(4, 3)),
    }
    for who, misfit in misfits.items():
        with pytest.raises(ValueError, match=f"{who}: .* {made}"):
            misfit()


class Swapped(nn.Module):
    """A bias of two lengths, as a module makes it whose caller takes one for the other."""

    def __init__(self, kind):
        super().__init__()
        self.table, self.kind = nn.Embedding(9, 4), kind

    def forward(self, rows, columns):
        ids = mt.zeros(rows, columns, dtype=mt.int64)
        bias = self.table(ids).permute(2, 0, 1)
        return {"recorded": bias, "view": bias, "constant": bias > 0, "pair": (bias, ids)}[self.kind]


@pytest.mark.parametrize("kind", ["recorded", "view", "constant", "pair"])
def test_what_a_module_made_is_told_with_the_line_that_called_it_too(kind):
    table, inner = Swapped(kind), inspect.getsourcelines(Swapped.forward)[1] + 2 + (kind == "constant")
    made = table(6, 5)
    line = inspect.currentframe().f_lineno - 1
    bias = made[0] if kind in ("view", "pair") else made
    bias = bias[None] if kind == "view" else bias
    said = r"of getitem .*, of" if kind == "view" else "of"
    said += rf" Swapped \(table\(6, 5\)\) at .*_safety\.py:{line}, of .* at .*_safety\.py:{inner}\)$"
    with pytest.raises(ValueError, match=said):
        mt.ones(4, 5, 6) + bias


MISFITS = {
    "operator": lambda x: x + mt.ones(4),
    "function": lambda x: mt.where(x > 0, x, mt.ones(4)),
    "matmul": lambda x: x @ x,
    "linear": lambda x: F.linear(x, mt.ones(4, 4)),
    "in place": lambda x: x.detach().add_(mt.ones(4)),
    "copied": lambda x: x.detach().copy_(mt.ones(4)),
    "recorded": lambda x: x.clone().copy_(mt.ones(4)),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_shapes_that_do_not_fit_are_told_once_without_what_numpy_says_of_them(misfit):
    with pytest.raises(ValueError, match=r"^\w+: .*; ") as said:
        MISFITS[misfit](mt.ones(2, 3, requires_grad=True))
    text = "".join(traceback.format_exception(said.value))
    assert said.value.__cause__ is None
    assert not re.search("The above exception|During handling|be broadcast", text)


def test_what_fails_inside_an_op_is_told_with_where_it_did():
    def steep(x):
        return x + np.ones(4)  # NumPy's own error: no shape of the op's inputs is wrong

    own = engine.Op(steep, "steep")
    with pytest.raises(ValueError, match=r"^steep: operands could not .*; check the shapes") as said:
        own(mt.ones(3))
    assert said.value.__cause__.__traceback__.tb_next.tb_frame.f_code.co_name == "steep"


JOINED = r"if cat\(\) made it, join along another dim"


@pytest.mark.parametrize(
    ("heads", "said"),
    [
        (
            (16, 48),
            rf"; 48 is 3 · 16: {JOINED}; if of groups, repeat the 16 more or the 48 less",
        ),
        (
            (16, 8),
            rf"; 16 is 2 · 8: {JOINED}; if of groups, repeat the 8 more or the 16 less",
        ),
        ((16, 12), ""),
    ],
)
def test_heads_of_groups_that_are_repeated_by_a_wrong_factor_are_told_by_which(heads, said):
    q, k = (mt.ones(2, h, 5, 4) for h in heads)
    with pytest.raises(
        ValueError, match=rf"equal or 1, from the right; look where these were split, .* cat\(\){said} \("
    ):
        q @ k.mT
    with pytest.raises(
        ValueError, match=rf"before the last two equal or 1{said} \(\(2, 16, 5, 4\) is of ones"
    ):
        F.scaled_dot_product_attention(q, k, k)
    with pytest.raises(
        ValueError, match=rf"before the last two equal or 1{said} \(\(2, 16, 5, 4\) is of ones"
    ):
        F.scaled_dot_product_attention(q, q, k)


@pytest.mark.parametrize("join", ["mt.cat([k, k], dim=1)", "mt.stack([k[:, 0]] * 8, 1)"])
def test_a_join_is_told_as_it_is_written_with_its_dim(join, tmp_path):
    path = tmp_path / "joined.py"
    path.write_text(f"k = {join}\n")
    q = mt.ones(2, 4, 16, 8, requires_grad=True)
    names = {"mt": mt, "k": q * 2}
    exec(compile(path.read_text(), path, "exec"), names)
    said = rf"of (cat|stack) {re.escape(f'({join})')} at .*joined\.py:1\)$"
    with pytest.raises(ValueError, match=said):
        q @ names["k"].mT


def test_an_operand_that_is_a_view_is_told_back_to_what_was_split():
    x = mt.ones(2, 6, 8, requires_grad=True)
    k = x.exp().view(2, 6, 2, 4)
    heads = k.transpose(1, 2)
    line = inspect.currentframe().f_lineno
    said = (
        rf"\(2, 2, 6, 4\) is of permute \(k\.transpose\(1, 2\)\) at .*safety\.py:{line - 1}, "
        rf"of reshape \(x\.exp\(\)\.view\(2, 6, 2, 4\)\) at .*safety\.py:{line - 2}\)$"
    )
    with pytest.raises(ValueError, match=said):
        mt.ones(2, 3, 6, 6) @ heads


def test_attention_says_which_of_its_arguments_are_not_split_and_which_are_not_transposed():
    whole, heads, mask = mt.ones(2, 5, 16), mt.ones(2, 4, 5, 4), mt.ones(5, 5).bool()
    split = r"is not split into heads; give {}\.unflatten\(-1, \(4, 4\)\)\.transpose\(-3, -2\) \(\("
    with pytest.raises(ValueError, match="the query " + split.format("query")):
        F.scaled_dot_product_attention(whole, heads, heads)
    with pytest.raises(ValueError, match="the value " + split.format("value")):
        F.scaled_dot_product_attention(heads, heads, whole)
    swapped = heads.transpose(1, 2)
    with pytest.raises(
        ValueError,
        match=r"if 5 is the length, \.transpose\(-3, -2\) query, key, value, and the result back \(\(",
    ):
        F.scaled_dot_product_attention(swapped, swapped, swapped, mask)
    with pytest.raises(ValueError, match=r"if it is \(B, S\), of the keys, give attn_mask\[:, None, None\]$"):
        F.scaled_dot_product_attention(heads, heads, heads, mt.ones(2, 5).bool())
    with pytest.raises(ValueError, match=r"make them 1, as \(5, 5\) of the attn_mask's \[:5, :5\] would be$"):
        F.scaled_dot_product_attention(heads, heads, heads, mt.ones(8, 8).bool())


@pytest.mark.parametrize(
    ("query", "mask", "cure"),
    [
        ((2, 4, 1, 8), (5, 5), ""),
        ((1, 4, 5, 8), (2, 1, 5, 5), ""),
        ((2, 4, 1, 8), (4, 5), ", as (1, 4, 1, 5) of the attn_mask's [:, None] would be"),
    ],
)
def test_a_mask_that_would_enlarge_the_scores_is_told_no_way_that_still_would(query, mask, cure):
    q, key = mt.ones(*query), mt.ones(*query[:2], 5, 8)
    with pytest.raises(ValueError, match=f"make them 1{re.escape(cure)}$"):
        F.scaled_dot_product_attention(q, key, key, mt.ones(*mask).bool())


def _masks():
    """Of each kind, by what it is made, where, and what it is."""
    table, ids, low = mt.ones(4, 4), mt.tensor([[1, 2, 0, 0]]), mt.arange(4)
    yield "mul", (made := table.float() * (ids != 0)), inspect.currentframe().f_lineno
    yield "cat", (made := mt.cat([table.bool(), table.bool()])), inspect.currentframe().f_lineno
    yield "greater", (made := low[:, None] > low), inspect.currentframe().f_lineno
    yield "equal", (made := table == made), inspect.currentframe().f_lineno
    yield "getitem", (made := made[:3]), inspect.currentframe().f_lineno
    yield "cast", (made := table.bool()), inspect.currentframe().f_lineno
    yield "where", (made := mt.tril(made)), inspect.currentframe().f_lineno
    yield "bitwise_not", (made := ~made), inspect.currentframe().f_lineno
    yield "tensor", (made := mt.tensor([[True] * 4] * 3)), inspect.currentframe().f_lineno


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize("i", range(9))
def test_what_is_on_no_tape_is_told_with_the_line_that_made_it(i, recording):
    with mt.set_grad_enabled(recording):
        name, mask, line = list(_masks())[i]
    said = rf"\({re.escape(str(mask.shape))} is of {name}( \([^;]*\))? at .*test_safety\.py:{line}[,)]"
    with pytest.raises(ValueError, match=said):
        mt.zeros(7, 7) + mask


def test_what_is_on_no_tape_is_told_with_its_line_in_each_thread():
    with ThreadPoolExecutor(4) as pool:
        several = list(pool.map(lambda i: mt.zeros(i + 2, 3).bool(), range(20)))
    line = inspect.currentframe().f_lineno - 1
    for x in several:
        with pytest.raises(ValueError, match=rf"is of cast \(.*\) at .*_safety\.py:{line}"):
            x + mt.zeros(7)


def test_what_is_turned_where_it_fails_is_told_by_what_it_was_made_of():
    mask = mt.cat([mt.ones(3, 4).bool(), mt.ones(4, 4).bool()])
    line = inspect.currentframe().f_lineno - 1
    with pytest.raises(
        ValueError, match=rf"\(\(7, 4\) is of cat \(mt\.cat\(.*\)\) at .*_safety\.py:{line}\)$"
    ):
        mt.zeros(4, 7).masked_fill(~mask, 0.0)


def test_a_wrong_mask_and_wrong_ids_are_told_with_their_line():
    q, mask = mt.zeros(2, 4, 8), mt.tril(mt.ones(4, 4)) * (mt.ones(4) > 0)
    ids, line = mt.tensor([1, 7]) + 1, inspect.currentframe().f_lineno - 1
    with pytest.raises(ValueError, match=rf"hides nothing; .* \(\(4, 4\) is of mul .*_safety\.py:{line}\)$"):
        F.scaled_dot_product_attention(q, q, q, mask)
    wrong = mt.ones(3, 4) > 0
    with pytest.raises(ValueError, match=rf"does not broadcast .*is of greater .*py:{line + 4}\)$"):
        F.scaled_dot_product_attention(q, q, q, wrong)
    for who in (lambda: F.embedding(ids, mt.ones(4, 2)), lambda: F.cross_entropy(mt.ones(2, 4), ids)):
        with pytest.raises(IndexError, match=rf"8 is outside .*\(\(2,\) is of add .*_safety\.py:{line + 1}"):
            who()


def test_where_something_was_made_keeps_nothing_alive_and_is_not_copied(no_collector):
    x = mt.ones(3, requires_grad=True)
    h = x * 2.0
    with mt.no_grad():
        mask = h > 0
    seen, entry = weakref.ref(h), weakref.ref(h.grad_fn)
    del h
    assert (seen(), entry()) == (None, None)
    for copied in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert copied.equal(mask)
        assert not hasattr(copied, "made")


def test_a_view_is_told_with_the_line_that_made_what_it_shows():
    table = mt.tril(mt.ones(6, 6))
    views = lambda: table[:4, :4], lambda: table[:4][:, :4]  # what lies between is gone by then
    line = inspect.currentframe().f_lineno - 2
    for view in views:
        said = rf"\(\(4, 4\) is of getitem .*py:{line + 1}, of where .*_safety\.py:{line}\)$"
        with pytest.raises(ValueError, match=said):
            F.scaled_dot_product_attention(*[mt.zeros(2, 4, 8)] * 3, view())


def test_no_mask_that_is_right_pays_for_the_words_of_a_wrong_one(monkeypatch):
    q, mask = mt.zeros(2, 4, 8), mt.zeros(4, 4).masked_fill(mt.ones(4, 4).triu(1).bool(), -math.inf)
    for name in ("nn.checks.how_boolean", "misfit.caller"):
        monkeypatch.setattr(f"microtensor.{name}", None)
    F.scaled_dot_product_attention(q, q, q, mask)
    F.scaled_dot_product_attention(q, q, q, mask == 0)
    mt.zeros(4, 4)[mask == 0]


def test_what_is_written_is_told_where_the_op_has_another_name():
    x = mt.ones(2, 3, requires_grad=True)
    y = x.exp()
    square = y * y
    y += 1.0
    with pytest.raises(RuntimeError, match=r"in place by add_ \(y \+= 1\.0\) at .*_safety\.py:\d+ \(version"):
        square.sum().backward()
    y = x.exp()
    square = y * y
    y.mul_(2.0)
    with pytest.raises(RuntimeError, match=r"in place by mul_ at .*_safety\.py:\d+ \(version"):
        square.sum().backward()
    several = x.transpose(
        0,
        1,
    )
    é, part = "é", several[1:]  # Python counts columns in bytes
    said = r"is of getitem \(several\[1:\]\) at .*py:\d+, of permute at .*py:\d+\)$"
    with pytest.raises(ValueError, match=said):
        part + mt.ones(len(é) + 3)
    unreadable = {"x": x}
    exec(compile("y = x[0]", "nowhere.py", "exec"), unreadable)
    with pytest.raises(ValueError, match=r"is of getitem at nowhere\.py:1, of ones at .*py:\d+\)$"):
        unreadable["y"] + mt.ones(4)


def test_an_overwritten_value_is_shown_with_its_own_shape():
    w, x = mt.ones(5, 3, requires_grad=True), mt.ones(2, 3)
    y = F.linear(x, w)
    x.zero_()
    with pytest.raises(
        RuntimeError, match=r"linear \(.*, shape \(2, 5\)\) needs its input x of shape \(2, 3\), which"
    ):
        y.sum().backward()
    parts = [mt.ones(1, requires_grad=True) * 2.0, mt.ones(4, requires_grad=True) * 2.0]
    z = mt.einsum("i,j->ij", *parts)
    parts[1].mul_(2.0)
    with pytest.raises(RuntimeError, match=r"of shape \(.*4.*\), which was changed in place"):
        z.sum().backward()


def test_a_view_that_is_a_leaf_of_its_own_is_no_more_changed_in_place_than_any_leaf():
    v = mt.zeros(3).view(3).requires_grad_()
    for part in (v, v[:], v.detach().requires_grad_()):
        with pytest.raises(RuntimeError, match=r"mul_: a leaf tensor of shape \(3,\) that requires a grad"):
            part.mul_(2.0)
    with mt.no_grad():
        assert v.add_(1.0).tolist() == [1.0, 1.0, 1.0]


def test_a_leaf_that_was_frozen_after_the_forward_gets_no_gradient():
    frozen, free = leaf(2.0), leaf(3.0)
    y = frozen * free
    frozen.requires_grad_(False)
    y.backward()
    assert frozen.grad is None
    assert free.grad.item() == 2.0


def test_detach_takes_the_tensor_itself_off_the_tape():
    x = leaf(1.0)
    y = x * 2.0
    z = y * 3.0
    assert y.detach_() is y
    assert (y.grad_fn, y.requires_grad) == (None, False)
    z.backward()  # what was made of it before goes on
    assert x.grad.item() == 6.0
    with pytest.raises(RuntimeError, match=r"detach_: the tensor of shape \(\) is a view; use detach\(\)"):
        mt.zeros(3)[0].detach_()


def test_grad_takes_the_arguments_that_programs_for_pytorch_pass():
    x, unused = mt.ones(3, requires_grad=True), mt.ones(2, requires_grad=True)
    y = (x * x).sum()
    options = {"retain_graph": True, "only_inputs": True, "allow_unused": True, "materialize_grads": True}
    g, nothing = mt.autograd.grad(y, (x, unused), **options)
    assert (g.tolist(), nothing.tolist()) == ([2.0] * 3, [0.0] * 2)
    for odd in (
        {"is_grads_batched": True},
        {"only_inputs": False},
        {"materialize_grads": True, "allow_unused": False},
    ):
        with pytest.raises(ValueError, match=r"^grad: there is no is_grads_batched.*; call grad\(\) once"):
            mt.autograd.grad(y, x, retain_graph=True, **odd)


def test_a_forgotten_zero_grad_is_told_with_the_line_of_one_that_did_not_reach_it():
    layer, own = nn.Linear(2, 2), mt.ones(2, requires_grad=True)
    optimizer = optim.SGD([*layer.parameters(), own], lr=0.1)

    def three_steps():
        for _ in range(3):
            layer.zero_grad()
            (layer(mt.ones(1, 2)) * own).sum().backward()
            optimizer.step()

    line = three_steps.__code__.co_firstlineno + 2
    last = rf"Linear\.zero_grad at .*py:{line} has not reached these"
    said = rf"in 1 of 3 leaves.*, after every SGD\.step at .*: by that SGD's own zero_grad\(\) \({last}\)"
    with pytest.warns(UserWarning, match=said):
        three_steps()


def test_a_zero_grad_of_one_optimiser_of_two_is_told_as_that_ones():
    """One level too far to the left, the last of a loop's optimisers alone is reached."""
    w, b = mt.ones(2, requires_grad=True), mt.ones(2, requires_grad=True)
    optimizers = [optim.SGD([w], lr=0.1), optim.Adam([b], lr=0.1)]

    def three_steps():
        for _ in range(3):
            (w * b).sum().backward()
            for opt in optimizers:
                opt.step()
            opt.zero_grad()

    said = r"in 1 of 2 .* after every SGD\.step .* that SGD's own .*\(Adam\.zero_grad at"
    with pytest.warns(UserWarning, match=said):
        three_steps()


def test_a_zero_grad_before_the_last_backward_is_not_named_in_a_warning():
    layer, w = nn.Linear(2, 2), mt.ones(2, requires_grad=True)
    layer.zero_grad()
    layer(mt.ones(2)).sum().backward()

    def three_steps():
        for _ in range(3):
            w.sum().backward()
            with mt.no_grad():
                w.sub_(w.grad)

    with pytest.warns(UserWarning, match=r"zero_grad\(\) \(another's does not reach these\)"):
        three_steps()


def test_zero_grad_to_zero_is_so_of_a_nan_too():
    layer = nn.Linear(2, 2)
    (layer(mt.ones(1, 2)) * math.nan).sum().backward()
    layer.zero_grad(set_to_none=False)
    assert not layer.weight.grad.array.any()
