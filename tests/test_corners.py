"""Corners where a tensor does as PyTorch does or says clearly why not: memory, places, arguments, dtypes."""

from __future__ import annotations

import math
import operator
import re
import tracemalloc
import warnings
from collections import OrderedDict

import numpy as np
import pytest

import microtensor as mt
from microtensor import memory, nn
from microtensor.nn import functional as F

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
    with pytest.raises(TypeError, match=r"data: value is a list; make it a tensor"):
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
    with pytest.raises(ValueError, match=r"copy_: shape \(1, 3\) does not fit into \(3,\)"):
        mt.zeros(3).copy_(value(1, 3))  # an index leaves them out, copy_ does not


def test_what_does_not_fit_is_not_assigned_and_says_the_shapes():
    for recorded in (True, False):
        q = mt.zeros(2, 3)
        with pytest.raises(ValueError, match=r"setitem: value \(4,\) does not fit into \(3,\), x\[0\] of"):
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


# --- arguments ----------------------------------------------------------------------------------------------

ERRORS = {
    "gather, one axis": (lambda: mt.ones(3, 4).gather(0, mt.tensor([0, 1])), ValueError, "gather: index"),
    "gather, none": (lambda: mt.ones(3, 4).gather(0, mt.tensor(0)), ValueError, "gather: index"),
    "gather, two axes": (lambda: mt.ones(3).gather(0, mt.tensor([[0]])), ValueError, "gather: index"),
    "scatter": (lambda: mt.ones(3, 2).scatter(0, mt.tensor([0]), 1.0), ValueError, "scatter: index"),
    "split, negative": (lambda: mt.ones(4).split([3, -1, 2]), ValueError, r"split: \[3, -1, 2\] .* 4"),
    "split, float": (lambda: mt.ones(4).split(2.0), ValueError, "split: 2.0 does not split 4"),
    "split, floats": (lambda: mt.ones(4).split([2.0, 2.0]), TypeError, "integers"),
    "split, 0-d": (lambda: mt.tensor(1.0).split(1), IndexError, r"split: a 0-d tensor .* reshape\(1\)"),
    "chunk, 0-d": (lambda: mt.tensor(1.0).chunk(1), IndexError, "chunk: a 0-d tensor"),
    "unbind, 0-d": (lambda: mt.tensor(1.0).unbind(), IndexError, "unbind: a 0-d tensor"),
    "chunk, axis": (lambda: mt.ones(4).chunk(2, dim=5), IndexError, "chunk: dim 5 is out of range"),
    "chunk, float": (lambda: mt.ones(4).chunk(2.0), ValueError, "chunk: 2.0 chunks"),
    "size": (lambda: mt.ones(4).size(3), IndexError, "size: dim 3 is out of range"),
    "expand": (
        lambda: mt.ones(2).expand(-1, 2),
        ValueError,
        r"expand: \(-1, 2\) for shape \(2,\); a new axis",
    ),
    "tril": (lambda: mt.ones(4).tril(), ValueError, r"tril: .* \(4,\) is no matrix"),
    "backward": (
        lambda: mt.ones(1, requires_grad=True).sum().backward(2.0),
        TypeError,
        "backward: .* float; give",
    ),
    "layer_norm": (lambda: F.layer_norm(mt.arange(4), (4,)), TypeError, r"layer_norm: .* int64; .*float\(\)"),
    "layer_norm(residual)": (
        lambda: F.layer_norm(mt.ones(2, 4), (4,), residual=mt.ones(4)),
        ValueError,
        r"layer_norm: input float32 \(2, 4\) and residual float32 \(4,\) differ; give two alike",
    ),
    "dropout": (lambda: F.dropout(mt.arange(4)), TypeError, r"dropout: the input is int64; .*float\(\)"),
    "cross_entropy": (
        lambda: F.cross_entropy(mt.zeros(2, 2, dtype=mt.int64), mt.tensor([0, 1])),
        TypeError,
        r"cross_entropy: the input is int64; .*float\(\)",
    ),
    "one_hot": (lambda: F.one_hot(mt.tensor([1.5, 0.0])), TypeError, r"one_hot: .* float32; .*long\(\)"),
    "pow": (lambda: mt.tensor([1, 2]) ** -1, ValueError, r"pow: int64 to the power -1 is no integer"),
    "masked_fill": (
        lambda: mt.tensor([1, 2]).masked_fill(mt.tensor([True, False]), math.nan),
        ValueError,
        "masked_fill: int64 cannot hold nan",
    ),
    "add": (lambda: mt.ones(2) + mt.ones(3), ValueError, r"add: shapes \(2,\) and \(3,\) do not broadcast"),
    "arange": (lambda: mt.arange(0, 5, 0.5, dtype=mt.int64), ValueError, "arange: step 0.5 is no int64"),
    "big-endian": (lambda: mt.from_numpy(np.arange(3, dtype=">f8")), TypeError, "from_numpy: .*>f8 .*copies"),
    "float16": (lambda: mt.from_numpy(np.zeros(3, np.float16)), TypeError, "from_numpy: .*<f2 .*copies"),
    "Sequential": (lambda: nn.Sequential([nn.ReLU()]), TypeError, "is list; make it a Module"),
    "ModuleList": (lambda: nn.ModuleList([3]), TypeError, "is int; make it a Module"),
    "register_parameter": (
        lambda: nn.Module().register_parameter("a", mt.ones(2)),
        TypeError,
        "register_parameter: a is Tensor; make it a Parameter",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_meant_is_refused_in_words(name):
    call, kind, words = ERRORS[name]
    with pytest.raises(kind, match=words):
        call()


def test_a_buffer_stays_a_tensor_or_none():
    m = nn.Module()
    m.register_buffer("mask", mt.ones(2), persistent=False)
    with pytest.raises(TypeError, match="register_buffer: mask is int; make it a Tensor or None"):
        m.mask = 3
    m.mask = mt.zeros(2)
    assert m.mask.sum().item() == 0
    assert not m.state_dict()
    m.mask = None
    assert m.mask is None


def test_containers_take_what_they_take_in_pytorch():
    net = nn.Sequential(OrderedDict(first=nn.Linear(2, 2), second=nn.ReLU()))
    assert list(net.state_dict()) == ["first.weight", "first.bias"]
    m = nn.Module()
    m.a = m.b = nn.Linear(2, 1)
    assert list(m.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert [name for name, _ in m.named_parameters()] == ["a.weight", "a.bias"]
    m.load_state_dict(m.state_dict())


def test_sizes_may_be_integers_of_any_kind():
    for two in (2, np.int64(2), mt.tensor(2)):
        assert [len(part) for part in mt.ones(5).split(two)] == [2, 2, 1]
        assert [len(part) for part in mt.ones(5).chunk(two)] == [3, 2]
        assert [len(part) for part in mt.ones(5).split([two, 3])] == [2, 3]
    assert [len(part) for part in mt.ones(5).split([0, 5])] == [0, 5]


def test_clamp_takes_bounds_that_are_tensors_with_their_gradients():
    torch = pytest.importorskip("torch")
    x, low, high = [[-2.0, 0.5, 3.0, math.nan]] * 2, [-1.0, 0.75, 0.0, 0.0], [[1.0], [2.0]]
    ours = [mt.tensor(v, dtype=mt.float64, requires_grad=True) for v in (x, low, high)]
    theirs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (x, low, high)]
    for names in (("min",), ("max",), ("min", "max")):
        a, b = (t[0].clamp(**{n: t[1 + (n == "max")] for n in names}) for t in (ours, theirs))
        np.testing.assert_array_equal(a.detach().array, b.detach().numpy())
        a.sum().backward()
        b.sum().backward()
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(p.grad.array, q.grad.numpy())
    assert mt.arange(4).clamp(mt.tensor(1), 2).tolist() == [1, 1, 2, 2]
    assert mt.arange(4).clamp(min=mt.tensor([1.5])).dtype == mt.float32


@pytest.mark.parametrize("p", [0.5, -1.0, -0.5, 1, 1.5, 2, 3])
def test_the_norm_of_a_row_with_a_zero_has_pytorchs_gradient(p):
    torch = pytest.importorskip("torch")
    rows = np.array([[3.0, 0.0, -4.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    x, y = mt.tensor(rows, requires_grad=True), torch.tensor(rows, requires_grad=True)
    a, b = x.norm(p, 1), y.norm(p, 1)
    np.testing.assert_allclose(a.detach().array, b.detach().numpy())
    a.sum().backward()
    b.sum().backward()
    np.testing.assert_allclose(x.grad.array, y.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_along_any_axis_is_contiguous(name):
    for dim in range(3):
        y = getattr(mt.randn(2, 3, 4), name)(dim)
        assert y.is_contiguous()
        assert y.view(-1).shape == (24,)


# --- dtypes -------------------------------------------------------------------------------------------------


def test_numbers_too_large_become_inf_in_silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (
            mt.tensor([1e300]),
            mt.tensor([1e300], dtype=mt.float64).float(),
            mt.tensor(np.array([1e300]), dtype=mt.float32),
            mt.full((2,), 1e300),
            mt.ones(2).fill_(1e300),
            mt.ones(2).copy_(mt.full((2,), 1e300, dtype=mt.float64)),
            mt.ones(2).new_full((2,), 1e300),
            nn.init.constant_(mt.zeros(2), 1e300),
            mt.zeros(2).add_(mt.full((2,), 1e300, dtype=mt.float64)),
            mt.ones(2) * 1e300,
        ):
            assert x.array[0] == math.inf
        w = nn.Parameter(mt.full((1,), 3e38))
        w.grad = mt.full((1,), -3e38)
        mt.optim.SGD([w], lr=10.0, momentum=0.9, weight_decay=0.1).step()
        assert w.item() == math.inf


def test_read_only_memory_is_not_initialised():
    array = np.zeros(2, np.float32)
    array.flags.writeable = False
    with pytest.raises(RuntimeError, match=r"ones_: .* read-only memory; give a clone"):
        nn.init.ones_(mt.from_numpy(array))


def test_arrays_of_other_byte_orders_are_copied_with_all_their_digits():
    for dtype, want in ((">f8", np.float64), (">f4", np.float32), (">i4", np.int32), (">i8", np.int64)):
        x = mt.tensor(np.arange(3).astype(dtype))
        assert x.dtype == want
        assert x.dtype.isnative
        assert x.tolist() == [0, 1, 2]
    third = mt.tensor(np.array([1 / 3], np.longdouble))
    assert third.item() == 1 / 3


# --- ops of one's own ---------------------------------------------------------------------------------------


def test_an_input_called_y_cannot_be_kept_by_that_name(declare):
    @declare("corner_y")
    def forward(x, y):
        return x * y

    with pytest.raises(TypeError, match=r"corner_y.vjp: y is the output, .* rename the input"):
        forward.vjp(lambda g, x, y: (g * y, g * x))
    forward.vjp(lambda g, x: (g, g * x))  # nothing is wrong until somebody asks for it


def test_a_positional_parameter_with_a_default_is_no_input(declare):
    with pytest.raises(TypeError, match=r"op 'corner_slope': slope=0.1 is .* make slope keyword-only"):

        @declare("corner_slope")
        def forward(x, slope=0.1):
            return x * slope


def test_an_unknown_option_of_an_op_names_those_that_exist(declare):
    with pytest.raises(TypeError, match=r"no such option \['broadcast'\]; choose among label, .*samples"):

        @declare("corner_option", broadcast=True)
        def forward(x):
            return x


def test_a_numpy_function_in_a_vjp_says_what_to_use_for_higher_orders(declare):
    @declare("corner_exp")
    def forward(x):
        return np.exp(x)

    @forward.vjp
    def forward_vjp(g, x):
        return (g * np.exp(x),)

    x = mt.tensor(1.0, requires_grad=True)
    with pytest.raises(TypeError) as caught:
        mt.autograd.grad(forward(x), x, create_graph=True)
    assert "functions of ops (microtensor.ops.where for np.where)" in "\n".join(caught.value.__notes__)


BESIDE_AN_ARRAY = {
    **{name: getattr(operator, name) for name in "add sub mul truediv pow matmul eq ne lt le gt ge".split()},
    "sub reflected": lambda x, a: a - x,
    "pow reflected": lambda x, a: a**x,
    "matmul reflected": lambda x, a: a @ x,
    "matmul, named": lambda x, a: x.matmul(a),
    "add, named": lambda x, a: mt.add(x, a),
    "lerp": lambda x, a: x.lerp(x, a),
    "copy_": lambda x, a: x.clone().copy_(a),
}


@pytest.mark.parametrize("name", BESIDE_AN_ARRAY)
@pytest.mark.parametrize("own", ["float32", "float64", "int64", "uint8"])
@pytest.mark.parametrize("other", ["float32", "float64", "int64", "int32"])
def test_an_array_beside_a_tensor_is_as_a_tensor_of_its_dtype(name, own, other):
    array = np.array([2.5, 3.75]).astype(other)

    def outcome(make):
        try:
            y = BESIDE_AN_ARRAY[name](mt.tensor([3, 5], dtype=own), make(array))
        except TypeError as error:
            return str(error)
        return y.dtype, y.tolist()

    assert outcome(lambda a: a) == outcome(mt.tensor)


@pytest.mark.parametrize("index", [0, slice(None, 1), ..., [0], np.array([True, False]), (slice(None), [1])])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("of", ["float32", "float64"])
def test_a_tensor_or_array_of_floats_is_not_cut_by_an_assignment(index, dtype, of):
    x = mt.ones(2, 2).to(dtype=getattr(mt, dtype))
    for value in (mt.tensor(1.9, dtype=of), np.array(1.9, of), mt.tensor(1.9, dtype=of, requires_grad=True)):
        with pytest.raises(RuntimeError, match=r"^setitem: .* convert it first"):
            x[index] = value
    assert x.sum() == 4
    x[index] = 0.9  # a number is cut, as in PyTorch
    assert x.sum() < 4 or dtype == "bool"


def test_no_gradient_is_lost_in_integers_while_recording():
    x, value = mt.tensor([3, 5]), mt.tensor([1.9, 2.9], requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^copy_: int64 has no gradient"):
        x.copy_(value)
    with mt.no_grad():
        assert x.copy_(value).tolist() == [1, 2]
    assert x.copy_(value.detach() + 1).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: mt.max([1, 2], 0, True), "max: takes a tensor, not list"),
        (lambda x: mt.narrow([1, 2], 0, 0, 1), "narrow: takes a tensor, not list"),
        (lambda x: mt.sub(1, x, 2), "sub: takes a tensor, not int"),
        (lambda x: mt.stack([x], out=x), "stack: there is no out; take what is returned"),
        (lambda x: mt.cat([x], out=None), "cat: there is no out; take what is returned"),
        (lambda x: mt.stack([x], out=None), "stack: there is no out; take what is returned"),
        (lambda x: mt.gather(x, 0, mt.tensor([0]), out=x), "gather: there is no out; take what is returned"),
        (lambda x: x.sum(0, out=np.ones(3)), "sum: there is no out; take what is returned"),
        (lambda x: np.sum(x), "np.sum: takes arrays, no tensor"),
        (lambda x: x[:0].unflatten(0, (0, -1)), r"unflatten: sizes \(0, -1\) do not multiply to 0"),
        (
            lambda x: x.__setitem__(mt.tensor([5]), mt.ones(2)),
            r"setitem: x\[array\(\[5\]\)\] of shape .*: index 5 is out of bounds",
        ),
        (
            lambda x: x.__setitem__(0, mt.ones(2)),
            r"setitem: value \(2,\) does not fit into \(3,\), x\[0\] of",
        ),
        (
            lambda x: x.long().addcmul(x.long(), x.long(), value=0.5),
            "addcmul: the factor 0.5 is cut in int64",
        ),
        (lambda x: mt.masked_fill([], value=1), "masked_fill: takes a tensor, not list"),
        (lambda x: mt.max([1], x, other=x), "max: takes a tensor, not list"),
        (lambda x: mt.sub(1, x, other=x), "sub: takes a tensor, not int"),
        (lambda x: mt.cat(tensors=[x], out=None), "cat: there is no out"),
        (lambda x: mt.gather(x, 0, mt.tensor([0]), out=None), "gather: there is no out"),
        (lambda x: [1.0] in x, "eq: list is no operand"),
        (
            lambda x: x[[[1], [2, 3]]],
            r"index: \[\[1\], \[2, 3\]\] cannot index a tensor of shape .* lists of equal",
        ),
        (
            lambda x: x.__setitem__([[1], [2, 3]], 1),
            r"index: \[\[1\], \[2, 3\]\] cannot index a tensor of shape .* lists of equal",
        ),
        (lambda x: x.repeat_interleave([[1], [2, 3]]), "repeat_interleave: no rectangle of numbers"),
        (lambda x: x.long() ** np.int64(-1), "pow: int64 to the power -1 is no integer"),
    ],
)
def test_what_is_wrong_with_a_call_is_said_in_the_words_of_its_caller(call, said):
    """No private name, no bare error of Python or NumPy, no argument of another function."""
    with pytest.raises((TypeError, ValueError, IndexError), match=f"^{said}"):
        call(mt.ones(2, 3))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_integers_to_a_tensor_below_0_are_cut_whatever_its_shape(shape):
    """As in PyTorch; a number below 0 is refused, as there."""
    p = mt.full(shape, -3)
    assert (mt.tensor([-1, 1, 2]) ** p).tolist() == [-1, 1, 0]
    assert (2**p).sum() == mt.pow(-2, p).sum() == 0
    assert (-1) ** p == -1
    assert mt.tensor([2], dtype=mt.int32).pow_(p).tolist() == [0]


@pytest.mark.parametrize("name", ["mean", "var", "std", "norm"])
def test_what_integers_have_not_is_told_under_the_name_that_was_called(name):
    """A std that is made of a var does not say so: the user has called no var."""
    with pytest.raises(RuntimeError) as told:
        getattr(mt.ones(2, dtype=mt.int64), name)()
    words = re.findall(r"\w+", str(told.value))
    assert words[0] == name
    assert not {"mean", "var", "std", "norm"} & set(words) - {name}
