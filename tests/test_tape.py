"""`mt.tape`: names, counts, bytes, lines, modules, gradient norms, and that reading changes nothing."""

from __future__ import annotations

import decimal
import inspect
import weakref

import numpy as np
import pytest

import microtensor as mt
from microtensor import cost, nn


def leaf(values, **options):
    return mt.tensor(values, dtype=mt.float64, requires_grad=True, **options)


class Gated(nn.Module):
    """y = W₂ (tanh(W₁ x) · x), with W₁ and W₂ in a module of their own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.out = nn.Linear(3, 2, bias=False)

    def forward(self, x):
        return self.out(self.inner(x) * x)


def test_entries_come_oldest_first_with_op_inputs_shape_dtype_and_line():
    x = leaf([[1.0, 2.0, 3.0]])
    y = (x * 2.0).exp() + x
    line = inspect.currentframe().f_lineno - 1
    entries = mt.tape(y).entries
    assert [(e.number, e.op, e.inputs, e.shape, e.dtype) for e in entries] == [
        (0, "mul", ("x1", "2.0"), (1, 3), "float64"),
        (1, "exp", ("%0",), (1, 3), "float64"),
        (2, "add", ("%1", "x1"), (1, 3), "float64"),
    ]
    assert {e.line for e in entries} == {f"{__file__}:{line}"}


def test_inputs_are_called_by_their_name_by_path_or_by_number():
    model = Gated()
    x, w = mt.ones(1, 3), leaf([1.0])
    w.name = "scale"
    y = model(x).double() * w + leaf([1.0])
    y = y * mt.ones(1).double()
    names = [name for e in mt.tape(y, model).entries for name in e.inputs if not name.startswith("%")]
    assert names == [
        *("c1", "inner.0.weight", "inner.0.bias"),  # x needs no gradient, but is still there
        *("c1", "out.weight", "None", "scale", "x1", "gone"),
    ]


def test_a_module_that_is_run_says_where_each_entry_was_made_and_keeps_no_hook():
    model = Gated()
    table = mt.tape(model, mt.ones(1, 3))
    assert [(e.op, e.path) for e in table.entries] == [
        ("linear", "inner.0"),
        ("tanh", "inner.1"),
        ("mul", ""),
        ("linear", "out"),
    ]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert "inner.0.weight" in str(table)


def test_a_module_that_fails_keeps_no_hook_either():
    model = Gated()
    with pytest.raises(ValueError, match="linear: input"):
        mt.tape(model, mt.ones(1, 4))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_each_kept_buffer_counts_once_and_leaves_do_not():
    x = leaf(np.ones((4, 8)))
    a = x.exp()  # keeps its result: 256 bytes
    y = (a * a).sum() + a.t()[2:].exp().sum()  # a again, and a view of it; one more exp of (6, 4): 192 bytes
    z = y + (x * x).sum()  # keeps the leaf alone
    table = mt.tape(z)
    assert table.bytes_kept == 256 + 192
    assert sum(e.kept for e in table.entries) == table.bytes_kept
    assert [e.kept for e in table.entries if e.op == "exp"] == [256, 192]


def test_a_view_that_is_kept_counts_the_buffer_that_it_keeps_alive():
    x = leaf(np.ones((4, 8)))
    y = (x + 0.0)[0].square()
    assert mt.tape(y).bytes_kept == 256


def test_a_constant_that_only_the_tape_holds_counts():
    x = leaf(np.ones(8))
    held = mt.ones(8, dtype=mt.float64)
    y, z = (x + 0.0) * held, (x + 0.0) * mt.ones(8, dtype=mt.float64)
    assert mt.tape(y).bytes_kept == 64  # x + 0
    assert mt.tape(z).bytes_kept == 128


def test_operations_are_counted_by_shapes():
    a, b = leaf(np.ones((2, 3))), leaf(np.ones((3, 4)))
    table = mt.tape((a @ b).reshape(8).softmax(0).sum())
    assert [(e.op, e.flop) for e in table.entries] == [
        ("matmul", 2 * 2 * 3 * 4),
        ("reshape", 0),
        ("softmax", 5 * 8),
        ("sum", 8),
    ]
    assert table.flop == 48 + 40 + 8


def test_bytes_and_operations_are_written_with_three_digits_of_the_decimal_number_a_half_upwards():
    """3385 B were 3.38 kB, 2745 B 2.75 kB, as their binary fractions lie; 999,999 B were 1e+03 kB."""
    rounding = decimal.Context(prec=3, rounding=decimal.ROUND_HALF_UP)
    powers = [10**k + d for k in range(19) for d in (-1, 0, 4, 5, 6)]
    for count in [*range(10_000), *range(1_005, 1_000_000, 1_010), *range(10_500, 999_999, 1_000), *powers]:
        number, unit = cost.readable(count, "B").split(" ")
        scale = 1000 ** ["B", "kB", "MB", "GB", "TB", "PB"].index(unit)
        exact = int(rounding.create_decimal(count))
        assert int(decimal.Decimal(number) * scale) == exact, (count, number, unit)
        assert "e" not in number
        assert float(number) < 1000 or unit == "PB"


def test_norms_of_gradients_come_from_a_walk_that_touches_nothing():
    x, w = leaf([3.0, 4.0]), leaf([1.0, 1.0])
    h = x * w
    calls = []
    h.register_hook(calls.append)
    h.retain_grad()
    y = (h * h).sum()
    before = mt.tape(y)
    table = mt.tape(y, grads=True)
    assert [e.grad_norm for e in table.entries] == [10.0, pytest.approx(2**0.5), 1.0]
    assert table.leaf_grads == {"x1": 10.0, "x2": pytest.approx((18.0**2 + 32.0**2) ** 0.5)}
    assert (x.grad, w.grad, h.grad, calls) == (None, None, None, [])
    assert [e.grad_norm for e in before.entries] == [None] * 3
    y.backward()  # and the graph is whole


def test_norms_of_a_result_with_several_elements_are_those_of_its_sum():
    x = leaf([3.0, 4.0])
    assert mt.tape(x * x, grads=True).leaf_grads == {"x1": 10.0}


def test_freed_entries_say_so():
    x = leaf([1.0, 2.0])
    y = (x.exp() + 1.0).sum()
    y.backward(retain_graph=True)
    assert not any(e.freed for e in mt.tape(y).entries)
    y.backward()
    table = mt.tape(y)
    assert [(e.op, e.freed) for e in table.entries] == [("exp", True), ("add", False), ("sum", False)]
    assert table.bytes_kept == 0
    assert "freed" in str(table).splitlines()[1]
    with pytest.raises(RuntimeError, match=r"exp .*freed by an earlier backward"):
        mt.tape(y, grads=True)


def test_the_text_has_one_line_per_entry_a_head_and_totals():
    y = (leaf([1.0, 2.0]) * 2.0).exp().sum()
    lines = str(mt.tape(y)).splitlines()
    assert len(lines) == 1 + 3 + 1
    assert lines[0].split() == ["op", "inputs", "shape", "dtype", "cost", "kept", "line"]
    assert lines[2].split()[:4] == ["%1", "exp", "%0", "(2,)"]
    assert lines[-1] == "total: 3 ops, 6 FLOP, 16 B kept for backward"
    assert repr(mt.tape(y)) == str(mt.tape(y))
    assert len(mt.tape(y)) == 3


def test_what_has_no_tape_is_refused():
    with pytest.raises(RuntimeError, match=r"shape \(2,\) was not recorded: it is a leaf, .*; give what is"):
        mt.tape(mt.ones(2, requires_grad=True))
    with pytest.raises(RuntimeError, match=r"shape \(2,\) was not recorded.*requires_grad=True"):
        mt.tape(mt.ones(2))
    with pytest.raises(TypeError, match="takes a tensor or a module, not int"):
        mt.tape(3)


def test_a_tape_keeps_no_tensor_alive():
    y = leaf([1.0, 2.0]).exp()
    array, table = weakref.ref(y.array), mt.tape(y, grads=True)
    del y
    assert array() is None
    assert len(table) == 1


def test_100_000_entries_are_listed_without_recursion():
    x = leaf(1.0)
    h = x
    for _ in range(100_000):
        h = h + 1.0
    table = mt.tape(h, grads=True)
    assert len(table.entries) == 100_000
    assert table.leaf_grads == {"x1": 1.0}
    assert table.entries[-1].inputs == ("%99998", "1.0")
