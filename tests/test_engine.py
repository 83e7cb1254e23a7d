"""The laws of the tape and the walk: order, memory, aliasing, versions, modes, errors that name the place."""

from __future__ import annotations

import gc
import inspect
import math
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
from microtensor import engine, ops
from microtensor.mode import mode
from microtensor.pieces import Pieces


def leaf(*values, dtype=mt.float64):
    return mt.tensor(values[0] if len(values) == 1 else list(values), dtype=dtype, requires_grad=True)


@pytest.fixture
def counting(declare):
    """An op y = x whose VJP counts its calls."""
    calls = []

    @declare("counted")
    def counted(x):
        """y = x          gradient: g"""
        return np.array(x)

    @counted.vjp
    def counted_vjp(g):
        calls.append(g)
        return (g,)

    counted.calls = calls
    return counted


# --- order and depth ----------------------------------------------------------------------------------------


def test_a_diamond_adds_up_both_ways():
    x = leaf(3.0)
    a, b = x * x, x + 1.0
    (a * b).backward()
    assert x.grad.item() == 2 * 3.0 * 4.0 + 9.0


def test_a_long_and_a_short_way_meet_before_they_go_on(counting):
    x = leaf(1.0)
    h = counting(x)
    long = h
    for _ in range(20):
        long = long * 1.5
    (long + h).backward()
    assert len(counting.calls) == 1
    assert x.grad.item() == 1.5**20 + 1.0


def test_sixty_doublings_are_two_to_the_sixty_in_sixty_steps(counting):
    x = leaf(1.0)
    h = x
    for _ in range(60):
        h = counting(h)
        h = h + h
    h.backward()
    assert x.grad.item() == 2.0**60
    assert len(counting.calls) == 60


def test_a_chain_of_100_000_ops_needs_no_recursion():
    x = leaf(1.0)
    h = x
    for _ in range(100_000):
        h = h + 1.0
    h.backward()
    assert x.grad.item() == 1.0
    del h  # nor does freeing it


def test_10_000_diamonds_in_a_row_visit_each_entry_once(counting):
    x = leaf(1.0)
    h = x
    for _ in range(10_000):
        h = counting(h)
        h = h * 0.5 + h * 0.5
    h.backward()
    assert x.grad.item() == 1.0
    assert len(counting.calls) == 10_000


def test_a_deep_graph_asked_for_one_inner_node_needs_no_recursion():
    x = leaf(1.0)
    h = middle = x * 2.0
    for _ in range(30_000):
        h = h * 1.0
    (g,) = mt.autograd.grad(h, middle)
    assert g.item() == 1.0


def test_an_input_used_twice_by_one_op_gets_both_gradients():
    x = leaf(3.0)
    (x * x).backward()
    assert x.grad.item() == 6.0
    y = leaf(np.ones((2, 2)))
    mt.cat([y, y, y * 1.0]).sum().backward()
    assert y.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]


# --- memory -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


GRAPHS = {
    "arithmetic": lambda x: (x * x + x / 2.0).sum(),
    "output kept": lambda x: x.exp().tanh().softmax(-1).sum(),
    "residuals": lambda x: mt.nn.functional.layer_norm(x, (3,)).sum(),
    "views": lambda x: x.t()[0].reshape(1, -1).expand(2, 2).sum(),
    "in place": lambda x: x.clone().mul_(2.0).add_(x).sum(),
    "in place through a view": lambda x: _write_row(x * 1.0).sum(),
    "matrices": lambda x: (x @ x.t()).logsumexp(-1).sum(),
    "loss": lambda x: mt.nn.functional.cross_entropy(x, mt.tensor([0, 2])),
}


def _write_row(y):
    y[0].mul_(3.0)
    return y


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("then", ["nothing", "backward", "retain", "create"])
def test_dropping_the_result_frees_the_graph_without_the_collector(name, then, no_collector):
    x = mt.ones(2, 3, dtype=mt.float64, requires_grad=True)
    y = GRAPHS[name](x)
    if then == "create":
        (g,) = mt.autograd.grad(y, x, create_graph=True)
        if g.requires_grad:
            g.sum().backward()
        del g
    elif then != "nothing":
        y.backward(retain_graph=then == "retain")
    entries, stack = [], [y.grad_fn]
    while stack:
        entry = stack.pop()
        entries.append(weakref.ref(entry))
        stack += [n for n in entry.inputs if isinstance(n, engine.Entry)]
    entry = None
    tensor, array = weakref.ref(y), weakref.ref(y.array)
    del y
    assert tensor() is None
    assert array() is None
    assert [e for e in entries if e() is not None] == []


def test_none_is_no_input_that_a_vjp_could_keep():
    @engine.op("test_no_variadic")
    def plain(x):
        return x

    try:
        with pytest.raises(TypeError, match=r"cannot keep 'None_shapes'; name y, an input \['x'\]"):

            @plain.vjp
            def plain_vjp(g, None_shapes):
                return (g,)

    finally:
        del engine.registry["test_no_variadic"]


def test_an_op_keeps_only_what_its_vjp_names():
    a, b = leaf(np.ones((2, 3))), leaf(np.ones((2, 3)))
    assert (a + b).grad_fn.saved == ()
    assert [s.shape for s in (a * b).grad_fn.saved] == [(2, 3), (2, 3)]
    assert a.sum().grad_fn.saved == ((2, 3),)
    y = a.exp()
    assert [s is y.array for s in y.grad_fn.saved] == [True]


def test_an_inner_array_that_no_gradient_needs_is_freed_while_the_graph_lives():
    x = leaf(np.ones((2, 3)))
    inner = x + 1.0
    array = weakref.ref(inner.array)
    y = (inner + 2.0).sum()
    del inner
    assert array() is None
    y.backward()
    assert x.grad.tolist() == [[1.0] * 3] * 2


def test_backward_frees_what_was_kept_as_it_goes():
    x = leaf(np.ones((2, 3)))
    y = x.exp()
    loss = y.sum()
    kept = weakref.ref(y.array)
    entry = y.grad_fn
    del y
    assert kept() is not None
    loss.backward()
    assert kept() is None
    assert entry.saved is None


# --- aliasing -----------------------------------------------------------------------------------------------


def test_no_two_leaves_share_a_gradient():
    a, b = leaf(np.ones(3)), leaf(np.ones(3))
    u = mt.ones(3, dtype=mt.float64)
    (a + b).backward(u)
    assert not np.shares_memory(a.grad.array, b.grad.array)
    assert not np.shares_memory(a.grad.array, u.array)
    a.grad.add_(1.0)
    assert b.grad.tolist() == [1.0] * 3
    assert u.tolist() == [1.0] * 3


def test_a_gradient_that_two_branches_share_is_not_changed_by_either():
    a, b, c = (leaf(np.ones(3)) for _ in range(3))
    s = a + b
    (s + (s + c) * 2.0 + a).sum().backward()
    assert [t.grad.tolist() for t in (a, b, c)] == [[4.0] * 3, [3.0] * 3, [2.0] * 3]


def test_the_cotangent_that_was_passed_in_is_never_written_into():
    x = leaf(np.ones(3))
    u = np.ones(3)
    u.flags.writeable = False
    y = x + 0.0
    (y + y + y + x).backward(u)
    assert x.grad.tolist() == [4.0] * 3


@pytest.mark.parametrize(
    ("held", "stolen"),
    [("nothing", True), ("nothing but a view of it", True), ("the array", False), ("a view", False),
     ("its memory", False), ("half of it", False)],
)  # fmt: skip
def test_a_gradient_is_copied_exactly_if_somebody_else_holds_its_memory(declare, held, stolen):
    """The leaf's .grad may be changed by its owner, and a copy costs a pass over memory."""
    kept, addresses = [], []

    @declare("double")
    def double(x):
        return 2 * x

    @double.vjp
    def double_vjp(g):
        owner = np.full(4, 2.0)
        if held == "half of it":
            owner = np.full(8, 2.0)
        gradient = owner if held in ("nothing", "the array", "a view") else owner[:4].reshape(4)
        kept.extend({"the array": [gradient], "a view": [gradient[:2]], "its memory": [owner]}.get(held, []))
        addresses.append(gradient.ctypes.data)
        return (gradient,)

    for ask in (lambda x: double(x).backward(mt.ones(4)), lambda x: mt.autograd.grad(double(x).sum(), x)):
        x = mt.ones(4, dtype=mt.float64, requires_grad=True)
        gradient = (ask(x) or (x.grad,))[0]
        assert gradient.tolist() == [2.0] * 4
        assert (gradient.array.ctypes.data == addresses[-1]) == stolen
        gradient.array[:] = 7.0
        assert all((array == 2.0).all() for array in kept)


def test_a_gradient_taken_earlier_keeps_its_value_when_grad_is_reset():
    x = leaf(np.ones(3))
    x.sum().backward()
    first, x.grad = x.grad, None
    (x * 5.0).sum().backward()
    assert first.tolist() == [1.0] * 3


def test_gradients_add_up_over_backwards_until_they_are_reset():
    x = leaf(np.ones(3))
    for _ in range(3):
        (x * 2.0).sum().backward()
    assert x.grad.tolist() == [6.0] * 3


def test_gradients_of_grad_do_not_share_memory_with_each_other():
    a, b = leaf(np.ones(3)), leaf(np.ones(3))
    ga, gb = mt.autograd.grad((a + b).sum(), (a, b))
    ga.add_(1.0)
    assert gb.tolist() == [1.0] * 3


@pytest.mark.parametrize("order", ["pieces first", "whole first", "whole between"])
@pytest.mark.parametrize("inner", [False, True])
def test_gradients_of_pieces_add_up_beside_that_of_the_whole(order, inner, rng):
    c, d, w = (rng.normal(size=(4, 6)) for _ in range(3))
    x = leaf(rng.normal(size=(4, 6)))
    other = leaf(np.zeros((4, 6)))
    y = x * 2.0 if inner else x
    whole = lambda: ((y + other) * mt.tensor(w)).sum()  # noqa: E731 — its gradient is one array for y and other
    left = lambda: (y[:, ::-2] * mt.tensor(c[:, :3])).sum() + (y[1, ..., 2] * 3.0)  # noqa: E731
    right = lambda: (y[1:, 2:] * mt.tensor(d[1:, 2:])).sum() + (y[None, :, 0] * 5.0).sum()  # noqa: E731
    terms = {"pieces first": [left, right, whole], "whole first": [whole, left, right]}
    for term in terms.get(order, [left, whole, right]):
        term().backward(retain_graph=True)  # each alone …
    alone, x.grad, other.grad = x.grad.array.copy(), None, None
    sum(term() for term in terms.get(order, [left, whole, right])).backward()  # … and all in one walk
    want = w.copy()
    want[:, ::-2] += c[:, :3]
    want[1, 2] += 3.0
    want[1:, 2:] += d[1:, 2:]
    want[:, 0] += 5.0
    np.testing.assert_allclose(x.grad.array, want * (2.0 if inner else 1.0), rtol=1e-12)
    np.testing.assert_allclose(alone, x.grad.array, rtol=1e-12)
    np.testing.assert_array_equal(other.grad.array, w)


CUTS = {
    "split": lambda x: x.split(2, dim=1),
    "of two lengths": lambda x: (x[:, :1], x[:, 1:]),
    "unbind, last first": lambda x: (x[-1], x[0], x[1]),
    "with one of nothing": lambda x: (x[:, 2:], x[:, :2], x[:, 2:1]),
    "a gap": lambda x: (x[:, :2], x[:, 3:]),
    "one overlaps": lambda x: (x[:, :3], x[:, 2:]),
    "one twice": lambda x: (x[0], x[0], x[1]),
    "one whole": lambda x: (x[:, :2], x, x[:, 2:]),
    "along two axes": lambda x: (x[0], x[:, :2], x[1:, 2:]),
    "by steps": lambda x: (x[:, ::2], x[:, 1::2]),
    "backwards": lambda x: (x[:, ::-1],),
    "deeper": lambda x: (x[0, :2], x[0, 2:], x[1:, 0]),
    "ellipsis": lambda x: (x[..., 0], x[..., 1:]),
    "a new axis": lambda x: (x[:, None], x[:, None, 1]),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("inner", [False, True])
def test_the_gradient_of_what_was_cut_is_each_piece_in_its_place(cut, inner, rng):
    x = leaf(rng.normal(size=(3, 4, 2)))
    pieces = cut(x * 1.0 if inner else x)
    weights = [rng.normal(size=piece.shape) for piece in pieces]
    sum((piece * mt.tensor(w)).sum() for piece, w in zip(pieces, weights, strict=True)).backward()
    want = np.zeros(x.shape)
    for place, w in zip(cut(mt.tensor(np.arange(24).reshape(3, 4, 2))), weights, strict=True):
        np.add.at(want.reshape(-1), place.array.reshape(-1), w.reshape(-1))
    np.testing.assert_allclose(x.grad.array, want, rtol=1e-13)


def test_gradients_that_lie_in_one_array_already_are_joined_without_a_copy(rng):
    whole = rng.normal(size=(3, 2, 4))
    index = lambda i: (slice(None), i)  # noqa: E731
    joined, ours = Pieces([(index(1), whole[:, 1]), (index(0), whole[:, 0])]).joined(np.empty((3, 2, 4)))
    assert joined.base is whole
    assert not ours
    swapped = Pieces([(index(0), whole[:, 1]), (index(1), whole[:, 0])]).joined(whole)[0]
    np.testing.assert_array_equal(swapped, whole[:, ::-1])
    bits = np.arange(24).reshape(3, 2, 4)  # not the numbers that its pieces show
    shown = Pieces([(index(i), bits[:, i].view(np.float64)) for i in range(2)]).joined(whole)[0]
    np.testing.assert_array_equal(shown, bits.view(np.float64))
    part = Pieces([(index(0), whole[:, 0]), (index(1), whole[:, 1].copy())]).joined(whole)[0]
    assert not np.shares_memory(part, whole)
    np.testing.assert_array_equal(part, whole)


def test_the_only_element_is_a_piece():
    x, g = leaf(np.ones(1)), mt.tensor(np.array([3.0]))
    x[0].backward(g[0])
    assert x.grad.tolist() == [3.0]


def test_the_gradients_of_all_pieces_share_one_array(monkeypatch):
    made = []
    forward = ops.put_add.forward
    monkeypatch.setattr(ops.put_add, "forward", lambda g, **params: made.append(1) or forward(g, **params))
    x = leaf(np.ones((8, 3)))
    pieces = [(piece * (i + 1.0)).sum() for i, piece in enumerate((x * 1.0).unbind())]
    sum(pieces).backward()
    assert made == []  # they are joined where all have arrived
    assert x.grad.tolist() == [[i + 1.0] * 3 for i in range(8)]


# --- versions -----------------------------------------------------------------------------------------------


def _line() -> str:
    """This file and the caller's line, as an error names it."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def test_overwriting_a_kept_input_is_an_error_that_names_op_line_shape_and_cure():
    x = leaf(np.ones((2, 3)))
    y = x * 1.0
    z, line = y.sin(), _line()
    y.add_(1.0)
    with pytest.raises(RuntimeError, match=r"sin .*shape \(2, 3\).*changed in place.*clone\(\)") as caught:
        z.sum().backward()
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.add_(1.0),
        lambda y: y.zero_(),
        lambda y: y[0].fill_(2.0),
        lambda y: y.t().mul_(2.0),
        lambda y: y.__setitem__((0, 1), 5.0),
        lambda y: y.detach().add_(1.0),
        lambda y: y.copy_(mt.ones(2, 3)),
        lambda y: y.data.zero_(),
    ],
)
@pytest.mark.parametrize("function", [lambda y: y.exp(), lambda y: y * y, lambda y: y.softmax(-1)])
def test_every_way_to_change_what_backward_needs_is_noticed(change, function):
    y = leaf(np.ones((2, 3))) * 1.0
    z = function(y)
    loss = z.sum()
    change(z if z.grad_fn.op.keeps_output else y)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_an_optimiser_step_before_backward_is_noticed():
    w = leaf(np.ones(3))
    loss = (w * w).sum()
    with mt.no_grad():
        w.sub_(0.1)
    with pytest.raises(RuntimeError, match=r"mul .*changed in place"):
        loss.backward()


def test_changing_what_no_gradient_needs_is_no_error():
    x = leaf(np.ones(3))
    y = x + 1.0
    z = (y + 2.0).sum()
    y.zero_()
    z.backward()
    assert x.grad.tolist() == [1.0] * 3


def test_older_uses_keep_the_entry_they_saw():
    x = leaf(np.ones(3))
    y = x * 1.0
    before = y + 0.0
    y.mul_(3.0)
    (before + y).sum().backward()
    assert x.grad.tolist() == [4.0] * 3


def test_a_view_taken_before_a_change_shows_it_and_its_gradient():
    x = leaf(np.ones(3))
    y = x * 1.0
    view = y[:2]
    before = view + 0.0
    y.mul_(3.0)
    assert view.tolist() == [3.0, 3.0]
    (before + view).sum().backward()
    assert x.grad.tolist() == [4.0, 4.0, 0.0]


def test_backward_from_a_view_knows_what_happened_to_its_base():
    x = leaf(np.ones(3))
    y = x * 1.0
    view = y[1]
    y.mul_(3.0)
    view.backward()
    assert x.grad.tolist() == [0.0, 3.0, 0.0]


def test_a_view_of_a_constant_learns_when_the_constant_gets_a_gradient():
    x = leaf(np.ones(3))
    constant = mt.zeros(3, dtype=mt.float64)
    view = constant[1:]
    constant.add_(x)
    (view * 2.0).sum().backward()
    assert x.grad.tolist() == [0.0, 2.0, 2.0]


def test_a_view_of_a_constant_that_got_a_gradient_says_so_and_brings_it_into_other_changes():
    x = leaf(np.ones(3))
    constant = mt.zeros(3, dtype=mt.float64)
    view, other = constant[1:], mt.ones(2, dtype=mt.float64)
    constant.add_(x)
    other.mul_(view)
    assert view.requires_grad
    other.sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0]


def test_what_is_copied_from_a_view_of_a_constant_that_got_a_gradient_brings_it():
    x = leaf(np.ones(3))
    constant, copied = mt.zeros(3, dtype=mt.float64), mt.zeros(2, dtype=mt.float64)
    view = constant[1:]
    constant.add_(x)
    copied.copy_(view)
    copied.sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0]


def test_a_view_of_a_view_tells_the_tensor_below_both():
    x = leaf(np.ones((2, 3)))
    y = x * 1.0
    y.t()[1:][0].mul_(3.0)
    y.sum().backward()
    assert x.grad.tolist() == [[1.0, 3.0, 1.0]] * 2


def test_two_views_of_one_tensor_see_each_others_changes():
    x = leaf(np.ones(4))
    y = x * 1.0
    left, right = y[:3], y[1:]
    left.mul_(2.0)
    right.mul_(3.0)
    assert y.tolist() == [2.0, 6.0, 6.0, 3.0]
    (left.sum() + y.sum()).backward()
    assert x.grad.tolist() == [4.0, 12.0, 12.0, 3.0]


# --- backward, again and to higher orders -------------------------------------------------------------------


def test_a_second_backward_says_what_was_freed_and_how_to_keep_it():
    x = leaf(2.0)
    y, line = x * x, _line()
    y.backward()
    with pytest.raises(
        RuntimeError, match=r"mul .*freed by an earlier backward.*retain_graph=True"
    ) as caught:
        y.backward()
    assert line in str(caught.value)


def test_retain_graph_allows_a_second_backward():
    x = leaf(2.0)
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 8.0


def test_what_keeps_no_arrays_can_be_walked_again():
    x = leaf(2.0)
    y = x + x
    y.backward()
    y.backward()
    assert x.grad.item() == 4.0


def test_derivatives_of_third_order():
    x = leaf(2.0)
    y = x**5
    for want in [5 * 16.0, 20 * 8.0, 60 * 4.0, 120 * 2.0, 120.0]:
        (y,) = mt.autograd.grad(y, x, create_graph=True)
        assert y.item() == pytest.approx(want, rel=1e-12)  # a few rounded products


def test_create_graph_makes_grad_a_tensor_that_can_be_differentiated():
    x = leaf(3.0)
    (x * x * x).backward(create_graph=True)
    assert x.grad.requires_grad
    first, x.grad = x.grad, None
    first.backward()
    assert x.grad.item() == 18.0


@pytest.mark.parametrize("composed", [False, True])
def test_the_second_order_of_a_fused_op_counts_inputs_that_lead_to_one_another_once(composed):
    """x and weight are made from the same leaf, and the bias from the weight."""
    w = mt.tensor([1.0, 2.0, 4.0], dtype=mt.float64, requires_grad=True)

    def penalty(w):
        y = mt.nn.functional.layer_norm(w * w, (3,), w, w * 2.0)
        (g,) = mt.autograd.grad((y * y).sum(), w, create_graph=True)
        return (g * g).sum()

    with mt.composites() if composed else mt.enable_grad():
        assert mt.autograd.gradcheck(
            lambda w: penalty(w if w.requires_grad else w.detach().requires_grad_()), w
        )


# --- autograd.grad ------------------------------------------------------------------------------------------


def test_grad_gives_inner_nodes_their_gradient_and_touches_no_grad():
    x = leaf(3.0)
    h = x * 2.0
    y = h * h
    gx, gh, gy = mt.autograd.grad(y, (x, h, y))
    assert (gx.item(), gh.item(), gy.item()) == (24.0, 12.0, 1.0)
    assert x.grad is None


def test_grad_walks_only_where_it_leads_somewhere(counting):
    x, z = leaf(1.0), leaf(1.0)
    y = counting(z) * 2.0 + x * 3.0
    (g,) = mt.autograd.grad(y, x)
    assert g.item() == 3.0
    assert counting.calls == []


def test_grad_of_something_unused_is_an_error_or_none():
    x, z = leaf(1.0), leaf(np.ones((2, 3)))
    with pytest.raises(RuntimeError, match=r"input 1 of shape \(2, 3\) was not used.*allow_unused"):
        mt.autograd.grad(x * 2.0, (x, z))
    gx, gz = mt.autograd.grad(x * 2.0, (x, z), allow_unused=True)
    assert gx.item() == 2.0
    assert gz is None


def test_grad_refuses_what_requires_no_gradient():
    with pytest.raises(RuntimeError, match=r"input 0 .*requires no gradient"):
        mt.autograd.grad(leaf(1.0) * 2.0, mt.ones(1))


def test_several_outputs_add_up():
    x = leaf(np.ones(2))
    mt.autograd.backward([x.sum(), x * 2.0], [None, mt.tensor([1.0, 10.0], dtype=mt.float64)])
    assert x.grad.tolist() == [3.0, 21.0]
    (g,) = mt.autograd.grad([x.sum(), (x * x).sum()], x)
    assert g.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: (x * 1.0).backward(), r"shape \(2,\) needs a gradient"),
        (lambda x: (x * 1.0).backward(mt.ones(3)), r"gradient has shape \(3,\), the tensor \(2,\)"),
        (lambda x: x.detach().sum().backward(), "not recorded"),
        (lambda x: mt.autograd.backward([x.sum()], [None, None]), "1 tensors but 2 gradients"),
    ],
)
def test_backward_says_what_is_missing(call, said):
    with pytest.raises((RuntimeError, ValueError), match=said):
        call(leaf(1.0, 2.0))


def test_a_cotangent_of_another_dtype_takes_the_dtype_of_the_result():
    for create_graph in [False, True]:
        x = leaf(1.0, 2.0)
        (g,) = mt.autograd.grad(x * 2.0, x, mt.ones(2), create_graph=create_graph)
        assert g.dtype == mt.float64


def test_integers_are_never_on_the_tape():
    x = leaf(1.5, 2.5)
    for y in [x.long(), x > 0, x.argmax(), x.bool(), mt.arange(3) * 2]:
        assert not y.requires_grad
        assert y.grad_fn is None
    with pytest.raises(RuntimeError, match=r"shape \(3,\) is int64 and cannot have a gradient.*\.float\(\)"):
        mt.arange(3).requires_grad_()


# --- modes --------------------------------------------------------------------------------------------------


def test_grad_mode_is_per_thread():
    seen = []
    started, go = threading.Event(), threading.Event()

    def work():
        seen.append(mt.is_grad_enabled())
        with mt.no_grad():
            started.set()
            go.wait(10)
            seen.append(mt.is_grad_enabled())

    thread = threading.Thread(target=work)
    with mt.no_grad():
        thread.start()
        started.wait(10)
    assert mt.is_grad_enabled()
    go.set()
    thread.join()
    assert seen == [True, False]


def test_grad_mode_survives_exceptions():
    with pytest.raises(KeyError), mt.no_grad():
        raise KeyError
    assert mt.is_grad_enabled()


def test_one_no_grad_object_may_be_entered_while_it_is_active():
    block = mt.no_grad()
    with block:
        with mt.enable_grad(), block:
            assert not mt.is_grad_enabled()
        assert not mt.is_grad_enabled()
    assert mt.is_grad_enabled()


def test_no_grad_decorates_functions_with_and_without_brackets():
    @mt.no_grad()
    def with_brackets():
        return mt.is_grad_enabled()

    @mt.no_grad
    def without():
        return mt.is_grad_enabled()

    assert not with_brackets()
    assert not without()
    assert mt.is_grad_enabled()


def test_a_decorated_generator_keeps_its_mode_to_itself():
    @mt.no_grad()
    def numbers():
        try:
            for i in range(3):
                got = yield (i, mt.is_grad_enabled())
                assert got is None or got == "sent"
                assert not mt.is_grad_enabled()
        finally:
            closed.append(mt.is_grad_enabled())
        return "done"

    closed = []
    generator = numbers()
    assert next(generator) == (0, False)
    assert mt.is_grad_enabled()  # a suspended generator does not change its caller
    assert generator.send("sent") == (1, False)
    assert mt.is_grad_enabled()
    generator.close()
    assert closed == [False]

    def outer():
        return (yield from numbers())

    running = outer()
    assert [next(running)[0] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StopIteration, match="done"):
        next(running)
    assert mt.is_grad_enabled()


def test_inference_mode_and_set_grad_enabled_take_their_mode_by_name():
    with mt.inference_mode(mode=False):
        assert mt.is_grad_enabled()
    with mt.no_grad(), mt.inference_mode(False):
        assert mt.is_grad_enabled()
    with mt.inference_mode(mode=True), mt.set_grad_enabled(mode=True):
        assert mt.is_grad_enabled()
    assert not mt.inference_mode(mt.is_grad_enabled)()


def test_set_grad_enabled_works_as_call_block_and_decorator():
    with mt.set_grad_enabled(False):
        assert not mt.is_grad_enabled()
    assert mt.is_grad_enabled()
    mt.set_grad_enabled(False)
    assert not mt.is_grad_enabled()
    mt.set_grad_enabled(True)

    @mt.set_grad_enabled(False)
    def function():
        return mt.is_grad_enabled()

    assert mt.is_grad_enabled()
    assert not function()
    assert mt.is_grad_enabled()


def test_nothing_is_recorded_under_no_grad_and_parameters_may_change():
    x = leaf(1.0, 2.0)
    with mt.no_grad():
        y = x * 2.0
        x.add_(1.0)
    assert y.grad_fn is None
    assert x.tolist() == [2.0, 3.0]
    assert x.requires_grad


def test_a_walk_in_a_thread_and_in_a_hook_of_another_do_not_disturb_each_other():
    results = {}

    def work(n):
        x = leaf(float(n))
        h = x
        for _ in range(200):
            h = h * 1.0 + 0.0
        h.backward()
        results[n] = x.grad.item()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == dict.fromkeys(range(8), 1.0)


# --- errors of numbers stay quiet, the user's own do not ----------------------------------------------------


def test_inf_and_nan_come_without_warnings_and_leave_numpy_as_it_was():
    before = np.geterr()
    x = leaf(0.0, -1.0)
    y = x.log() / x + x.sqrt()
    y.sum().backward()
    assert np.geterr() == before
    with pytest.warns(RuntimeWarning):
        np.log(np.zeros(1))


def test_a_forward_that_calls_ops_on_tensors_works(declare):
    @declare("through tensors", samples=None)
    def twice_exp(x):
        """y = 2eˣ          gradient: g · y"""
        return (mt.as_tensor(x).exp() * 2.0).array

    @twice_exp.vjp
    def twice_exp_vjp(g, y):
        return (g * y,)

    x = leaf(1.0, 2.0)
    twice_exp(x).sum().backward()
    np.testing.assert_allclose(x.grad.array, 2.0 * np.exp(x.array))


# --- ops of one's own ---------------------------------------------------------------------------------------


def test_a_users_op_is_declared_exactly_like_ours(declare, rng):
    @declare("swish", floats=True, samples=lambda rng: iter([((rng.normal(size=(2, 3)),), {"beta": 0.7})]))
    def swish(x, *, beta=1.0):
        """y = x · σ(βx)          gradient: g · (σ + βx · σ(1 − σ))"""
        return x / (1.0 + np.exp(-beta * x))

    @swish.vjp
    def swish_vjp(g, x, *, beta):
        s = ops.sigmoid(beta * x)
        return (g * (s + beta * x * s * (1.0 - s)),)

    mt.testing.check_op(swish)
    x = leaf(rng.normal(size=4))
    swish(x).sum().backward()  # the default of beta reaches the VJP too
    assert x.grad.shape == (4,)


def test_a_costly_gradient_is_computed_only_if_it_is_needed(declare):
    calls = []

    @declare("lazy")
    def lazy(a, b):
        """y = a + b          gradient: g, g"""
        return a + b

    @lazy.vjp
    def lazy_vjp(g):
        return lambda: calls.append("a") or g, lambda: calls.append("b") or g

    a, b = leaf(1.0), leaf(1.0)
    lazy(a, b.detach()).backward()
    assert calls == ["a"]
    mt.autograd.grad(lazy(a, b), b)
    assert calls == ["a", "b"]


def _square(declare, vjp, **options):
    @declare("squared", **options)
    def squared(x):
        """y = x²"""
        return x * x

    squared.vjp(vjp)
    return squared


def test_a_vjp_that_widens_float32_is_an_error_that_names_it(declare):
    def vjp(g, x):
        return (g * (x * np.float64(2.0) * np.sqrt(1.0) * np.ones(1)),)

    y = _square(declare, vjp)(leaf(1.0, dtype=mt.float32).reshape(1))
    with pytest.raises(RuntimeError, match=r"squared\.vjp: gave a float64 gradient for a float32 input"):
        y.backward()


def test_a_gradient_of_another_shape_is_an_error_that_names_op_and_shapes(declare):
    def vjp(g, x):
        return (np.concatenate([g, g]),)

    for options in [{}, {"broadcasts": True}]:
        y = _square(declare, vjp, **options)(leaf(np.ones((2, 3))))
        with pytest.raises(
            RuntimeError, match=r"squared\.vjp: .*shape \(4, 3\) for an input of shape \(2, 3\)"
        ):
            y.sum().backward()


def test_a_vjp_that_forgets_an_input_is_an_error(declare):
    @declare("forgetful", broadcasts=True)
    def forgetful(a, b):
        """y = a + b"""
        return a + b

    @forgetful.vjp
    def forgetful_vjp(g):
        return (g,)

    with pytest.raises(TypeError, match="tuple of 2 gradients"):
        forgetful(leaf(1.0), leaf(1.0)).backward()


def test_a_vjp_may_name_only_what_there_is(declare):
    with pytest.raises(TypeError, match=r"squared\.vjp: cannot keep 'z'; .*behind a \*, .*\*, z\)"):
        _square(declare, lambda g, z: (g,))
    with pytest.raises(TypeError, match="first parameter must be g"):
        _square(declare, lambda x: (x,))
    with pytest.raises(TypeError, match="no such option"):
        declare("odd", colour="red")(lambda x: x)


def test_an_op_without_a_gradient_says_so(declare):
    @declare("mute")
    def mute(x):
        """y = x"""
        return x + 0.0

    assert mute(mt.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match=r"mute: has no gradient.*@mute\.vjp"):
        mute(leaf(1.0))


def test_errors_of_a_forward_say_who_and_what_was_given():
    with pytest.raises(ValueError, match=r"add: shapes \(2, 3\) and \(4,\) do not broadcast, at axis -1; "):
        mt.ones(2, 3) + mt.ones(4)
    with pytest.raises(
        ValueError, match=r"mul: shapes \(2, 3, 1\) and \(5, 3, 2\) do not broadcast, at axis -3; "
    ):
        mt.ones(2, 3, 1) * mt.ones(5, 3, 2)
    with pytest.raises(ValueError, match=r"matmul: shapes \(2, 3\) and \(2, 3\) do not fit"):
        mt.ones(2, 3) @ mt.ones(2, 3)


@pytest.mark.parametrize("one", [math.erf, float, lambda x: x if x > 0 else -x], ids=["math", "float", "if"])
def test_python_of_one_number_where_arrays_come_says_what_to_use(declare, one):
    @declare("forward_of_one", differentiable=False)
    def forward_of_one(x):
        """y = one(x)"""
        return one(x)

    with pytest.raises(
        (TypeError, ValueError), match=r"forward_of_one: .*; compute on whole arrays, by ops or"
    ):
        forward_of_one(mt.ones(2))

    @declare("backward_of_one")
    def backward_of_one(x):
        """y = x          gradient: g · one(x)"""
        return x + 0.0

    @backward_of_one.vjp
    def backward_of_one_vjp(g, x):
        return (g * one(x),)

    with pytest.raises((TypeError, ValueError)) as caught:
        backward_of_one(leaf(1.0, 2.0)).sum().backward()
    assert "write it in operators and functions of ops" in "".join(caught.value.__notes__)


def test_two_modules_cannot_declare_one_name(declare):
    declare("taken")(lambda x: x)
    other = lambda x: x  # noqa: E731
    other.__module__ = "elsewhere"
    with pytest.raises(ValueError, match="'taken' is declared already"):
        declare("taken")(other)


# --- composites ---------------------------------------------------------------------------------------------


def test_composites_run_fused_ops_as_their_definitions():
    x = leaf(np.ones((2, 3)))
    with mt.composites():
        y = x.softmax(-1)
    assert y.grad_fn.op.name != "softmax"
    assert x.softmax(-1).grad_fn.op.name == "softmax"
    assert not mode.composites


# --- random graphs against a naive oracle -------------------------------------------------------------------

N = 3
STEPS = {  # name → value, and its differential by plain NumPy: the oracle carries directions forward
    "add": (lambda a, b: a + b, lambda a, b, da, db: da + db),
    "sub": (lambda a, b: a - b, lambda a, b, da, db: da - db),
    "mul": (lambda a, b: a * b, lambda a, b, da, db: da * b + a * db),
    "matmul": (lambda a, b: a @ b, lambda a, b, da, db: da @ b + a @ db),
    "row": (lambda a, b: a + b[:1], lambda a, b, da, db: da + db[:1]),
    "turned": (lambda a, b: a.T * 0.5 + b, lambda a, b, da, db: da.T * 0.5 + db),
    "flipped": (lambda a, b: a[[2, 0, 0]] - b, lambda a, b, da, db: da[[2, 0, 0]] - db),
    "tanh": (lambda a, b: _tanh(a), lambda a, b, da, db: da * (1 - np.tanh(a) ** 2)),
    "mean": (lambda a, b: b + _mean(a), lambda a, b, da, db: db + da.mean(0, keepdims=True)),
}


def _tanh(a):
    return a.tanh() if isinstance(a, mt.Tensor) else np.tanh(a)


def _mean(a):
    return a.mean(0, keepdim=True) if isinstance(a, mt.Tensor) else a.mean(0, keepdims=True)


@given(
    program=st.lists(
        st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 30), st.integers(0, 30)),
        min_size=1,
        max_size=25,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_graphs_with_sharing_agree_with_forward_differentiation(program, seed):
    rng = np.random.default_rng(seed)
    leaves = [rng.uniform(-1, 1, (N, N)) for _ in range(2)]
    directions = [rng.uniform(-1, 1, (N, N)) for _ in range(2)]
    tensors = [mt.tensor(a, requires_grad=True) for a in leaves]
    values, moves, nodes = list(leaves), list(directions), list(tensors)
    for name, i, j in program:
        a, b = i % len(values), j % len(values)
        forward, differential = STEPS[name]
        moves.append(differential(values[a], values[b], moves[a], moves[b]))
        values.append(forward(values[a], values[b]))
        nodes.append(forward(nodes[a], nodes[b]))
    u = rng.uniform(-1, 1, (N, N))
    np.testing.assert_allclose(nodes[-1].array, values[-1], rtol=1e-9, atol=1e-9)
    gradients = mt.autograd.grad(nodes[-1], tensors, mt.as_tensor(u), allow_unused=True)
    found = sum(
        float((g.array * d).sum()) for g, d in zip(gradients, directions, strict=True) if g is not None
    )
    wanted, scale = float((u * moves[-1]).sum()), float(np.abs(moves[-1]).sum()) + 1.0
    if np.isfinite(scale) and scale < 1e100:
        # two orders of the same sums of float64 products
        assert abs(found - wanted) <= 1e-9 * scale
