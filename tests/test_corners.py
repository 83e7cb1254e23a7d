"""Corners where a tensor does as PyTorch does or says clearly why not: memory, places, arguments, dtypes."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

import microtensor as mt
from microtensor import engine, memory
from microtensor.engine import op


@pytest.fixture
def declare():
    """Lets a test declare ops without leaving them in the registry."""
    before = dict(engine.registry)
    yield op
    engine.registry.clear()
    engine.registry.update(before)


# --- memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [4, 50_000])
def test_views_keep_the_old_memory_when_their_base_gets_other_memory(other):
    x = mt.zeros(50_000)
    v = x[1:]
    x.data = mt.zeros(other)
    x.mul_(mt.ones(other, requires_grad=True))
    assert (v * 1).shape == (49_999,)
    assert not v.requires_grad
    v.add_(1.0)
    assert x.sum().item() == 0
    assert v.sum().item() == 49_999


def test_other_memory_of_the_same_buffer_is_no_reason_to_look_for_a_view_there():
    buffer = mt.arange(10.0)
    x = buffer[:6].detach()
    v = x[4:]
    x.data = buffer[::2]
    x.mul_(mt.ones(5, requires_grad=True))
    assert v.tolist() == [4, 5]
    assert not (v * 1).requires_grad


def test_a_change_after_other_memory_is_no_change_of_what_was_there_and_the_tape_still_knows_of_it():
    w = mt.ones(3, requires_grad=True)
    y = (w * w).sum()
    w.data = mt.full((3,), 5.0)
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()
    (w * w).sum().backward()
    assert w.grad.tolist() == [10, 10, 10]


def test_data_takes_a_tensor_whose_dtype_fits():
    w = mt.ones(3, requires_grad=True)
    with pytest.raises(TypeError, match=r"data: list is no tensor; make it one"):
        w.data = [1]
    with pytest.raises(TypeError, match=r"data: int64 for a tensor that requires a gradient"):
        w.data = mt.arange(3)
    assert w.tolist() == [1, 1, 1]


def test_places_are_counted_within_the_memory_of_the_root_or_refused():
    root = np.zeros(8, np.float32)
    for view in (np.zeros(8, np.float32), root.view(np.int64)[:2], root.view(np.uint8)[1:5].view(np.float32)):
        with pytest.raises(RuntimeError, match=r"in place: .* clone"):
            memory.places(view, root)
    with pytest.raises(RuntimeError, match="none of the tensor's"):
        memory.places(root[1:6:2], root[0:7:2])
    assert memory.places(root[0:0], root).shape == (0,)
    assert memory.places(root[::-2], root).tolist() == [7, 5, 3, 1]


def test_columns_of_records_are_changed_or_refused_but_never_at_wrong_places():
    records = np.zeros(4, dtype=np.dtype([("a", "u1"), ("x", "f4")]))
    x = mt.from_numpy(records["x"])
    x[1] = 3.0
    assert records["x"].tolist() == [0, 3, 0, 0]
    v = x[1:]
    with pytest.raises(RuntimeError, match=r"in place: .* \(5,\) bytes apart"):
        v.mul_(mt.ones(3, requires_grad=True))


# --- changes in place ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
def test_an_assignment_that_nothing_differentiates_copies_no_more_than_it_assigns(grad):
    z, row = mt.zeros(1000, 1000), mt.ones(1000)
    with mt.set_grad_enabled(grad):
        tracemalloc.start()
        try:
            z[3] = row
            z[:, 2] = 5.0
            z[mt.tensor([0, 1])] = row
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 100_000  # z has 4 000 000 bytes
    assert z[3].sum().item() == 1004


def test_an_assignment_from_its_own_memory_reads_before_it_writes():
    for index, source in ((slice(1, None), slice(None, -1)), (slice(None), slice(None, None, -1))):
        z = mt.arange(6.0)
        want = z.numpy().copy()
        want[index] = want[source].copy()
        z[index] = z[source]
        assert z.tolist() == want.tolist()
    z = mt.arange(4.0)
    z[mt.tensor([3, 2, 1, 0])] = z
    assert z.tolist() == [3, 2, 1, 0]


def test_adding_in_place_to_a_power_is_no_fault_and_needs_no_output():
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    y = x**2
    y += 1
    y.sum().backward()
    assert x.grad.tolist() == [2, 4]
    p = mt.tensor([2.0, 3.0], requires_grad=True)
    y = x**p
    y += 1
    y.sum().backward()
    np.testing.assert_allclose(p.grad.array, [0, 8 * math.log(2)], rtol=1e-6)
    (2.0**p).sum().backward()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_value_with_extra_axes_of_length_one_is_assigned_as_in_pytorch(recorded):
    def value(*shape):
        return mt.ones(*shape, requires_grad=recorded)

    for index, shape in (
        ((slice(None), 0), (1, 1)),
        (0, (1, 3)),
        ((0, 0), (1,)),
        ((0, 0), (1, 1, 1)),
        (mt.tensor([1, 0]), (1, 1, 3)),
        (mt.tensor([[True, False, True], [False, False, False]]), (1, 2)),
    ):
        q, w = mt.zeros(2, 3), value(*shape)
        q[index] = w
        assert q.sum().item() == q[index].numel()
        if recorded:
            q.sum().backward()
            assert w.grad.shape == shape
            assert w.grad.sum().item() == q[index].numel()
    q, w = mt.zeros(3), value(1, 3)
    q.copy_(w)
    assert q.tolist() == [1, 1, 1]
    if recorded:
        q.sum().backward()
        assert w.grad.tolist() == [[1, 1, 1]]


def test_what_does_not_fit_is_not_assigned_and_says_the_shapes():
    for recorded in (True, False):
        q = mt.zeros(2, 3)
        with pytest.raises(ValueError, match=r"setitem: .*\(4,\).*\(2, 3\)"):
            q[0] = mt.ones(4, requires_grad=recorded)
        with pytest.raises(IndexError, match=r"setitem: .*out of bounds"):
            q[5] = mt.ones(3, requires_grad=recorded)


def test_integers_of_any_width_are_added_in_place_and_floats_are_not():
    x = mt.tensor([1, 255], dtype=mt.uint8)
    x += mt.tensor([2, 2])
    assert x.tolist() == [3, 1]
    for wrong in (mt.tensor([0.5, 0.5]), 0.5):
        with pytest.raises(RuntimeError, match="does not fit into uint8"):
            x.add_(wrong)
    with pytest.raises(RuntimeError, match="does not fit into bool"):
        mt.tensor([True, False]).add_(mt.tensor([1, 2]))
