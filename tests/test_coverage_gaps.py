"""Lines that no other test reaches, most of them refusals, each in the words that lead the user on."""

from __future__ import annotations

import numpy as np
import pytest

import microtensor as mt
from microtensor import nn, ops, optim
from microtensor.create import from_numpy
from microtensor.data import CharTokenizer, Dataset, default_collate
from microtensor.engine import op, registry
from microtensor.nn import functional as F
from microtensor.optim import lr_scheduler
from microtensor.place import line_of
from microtensor.testing import assert_close, gradcheck
from microtensor.train import process
from microtensor.train.folder import mark_of
from microtensor.train.stream import BatchStream
from microtensor.viz import trace
from microtensor.viz.record import Recorder
from models import MultiHeadAttention, combine_masks, padding_mask
from models.positional import sinusoidal_encoding


def attention(q, k, v, **options):
    return MultiHeadAttention(4, 2)(mt.ones(*q), mt.ones(*k), mt.ones(*v), **options)


def sgd(*parameters):
    return optim.SGD(parameters or [nn.Parameter(mt.ones(2))], lr=0.1)


def empty_module():
    return nn.Module()


REFUSALS = {
    "a list is no array": (lambda: from_numpy([1.0]), TypeError, "from_numpy: "),
    "numbers of a whole dtype": (lambda: mt.randn(2, dtype=mt.int64), TypeError, "randn: "),
    "a dtype too narrow": (lambda: mt.tensor([300], dtype=mt.uint8), ValueError, "uint8 cannot hold 300"),
    "a dtype of no name": (lambda: mt.tensor([1.0], dtype="nonsense"), TypeError, "nonsense"),
    "half precision": (lambda: nn.Linear(2, 2).half(), TypeError, "float16"),
    "another device": (lambda: nn.Linear(2, 2).cuda(), RuntimeError, "cuda"),
    "a generator elsewhere": (lambda: mt.Generator("cuda"), RuntimeError, "no device 'cuda'"),
    "a seed of half": (
        lambda: mt.Generator().manual_seed(0.5),
        TypeError,
        "the seed is 0.5; give an integer",
    ),
    "a dataset without samples": (lambda: Dataset()[0], NotImplementedError, "define __getitem__"),
    "a batch of nothing": (lambda: default_collate([]), ValueError, "there are no samples"),
    "a scheduler of nothing": (
        lambda: lr_scheduler.StepLR(None, 1),
        TypeError,
        "StepLR: optimizer is None; give Opt",
    ),
    "a schedule's middle": (
        lambda: lr_scheduler.StepLR(sgd(), 1, last_epoch=3),
        ValueError,
        "group 0 has no initial_lr; start at −1",
    ),
    "a schedule without a formula": (lambda: lr_scheduler.LRScheduler(sgd()), NotImplementedError, "get_lr"),
    "a factor above 1": (lambda: lr_scheduler.ConstantLR(sgd(), 1.5), ValueError, "factor is 1.5"),
    "another's scheduler": (
        lambda: lr_scheduler.SequentialLR(sgd(), [lr_scheduler.StepLR(sgd(), 1)], []),
        ValueError,
        "scheduler 0 is for another optimiser",
    ),
    "a group that is none": (lambda: sgd().add_param_group([1]), TypeError, r"a group is \[1\]; give"),
    "a group of nothing": (lambda: sgd().add_param_group({"params": []}), ValueError, "no parameters"),
    "a list that is longer": (lambda: assert_close([1.0], [1.0, 2.0]), AssertionError, "no sequence of 2"),
    "ids in a row": (lambda: padding_mask(mt.ones(3).long(), 0), ValueError, r"ids has shape \(3,\)"),
    "a mask of numbers": (lambda: combine_masks(mt.ones(2, 2)), TypeError, "a mask is float32"),
    "a negative length": (lambda: sinusoidal_encoding(-1, 4), ValueError, "-1"),
    "another batch": (lambda: attention((2, 3, 4), (1, 3, 4), (1, 3, 4)), ValueError, "differ in batch size"),
    "keys without values": (
        lambda: attention((2, 3, 4), (2, 3, 4), (2, 5, 4)),
        ValueError,
        "differ in length",
    ),
    "a causal mask added": (
        lambda: attention((2, 3, 4), (2, 3, 4), (2, 3, 4), mask=mt.zeros(3, 3), is_causal=True),
        TypeError,
        "is_causal beside a float32 mask",
    ),
    "the truth of many": (lambda: bool(mt.ones(2)), RuntimeError, "2"),
    "an activation of a list": (lambda: F.silu([1.0]), TypeError, "give a tensor"),
    "an activation of integers": (lambda: F.silu(mt.ones(2).long()), TypeError, "int64"),
    "a parameter of no name": (lambda: empty_module().get_parameter("w"), AttributeError, "no parameter 'w'"),
    "an attribute of no name": (lambda: empty_module().__delattr__("w"), AttributeError, "w"),
    "an embedding of a vector": (
        lambda: nn.Embedding.from_pretrained(mt.ones(3)),
        ValueError,
        "from_pretrained",
    ),
}


def attend(*shapes, **options):
    return F.scaled_dot_product_attention(*map(mt.ones, shapes), **options)


def sequence(schedules):
    optimiser = sgd()
    steps = [lr_scheduler.StepLR(optimiser, 1) for _ in range(schedules)]
    return lr_scheduler.SequentialLR(optimiser, steps, [*range(1, schedules)])


BY_NAME = {  # call → error, what it says
    "exp([1.0])": (TypeError, "exp: takes a tensor, not list"),
    "meshgrid(ones(2), indexing='yx')": (ValueError, "indexing is 'yx'"),
    "meshgrid(ones(2, 2))": (ValueError, "give vectors of one dtype"),
    "searchsorted(tensor(1.0), ones(2))": (ValueError, "sorted_sequence is a 0-d tensor"),
    "searchsorted(ones(2, 3), ones(3, 3))": (ValueError, "make all axes but the last equal"),
    "addmm(ones(3, 3), ones(2, 2), ones(2, 2))": (ValueError, "does not broadcast to the product's"),
    "einsum('ii->i', ones(1, 3))": (ValueError, "has several lengths in one operand"),
    "zeros(2**70)": (ValueError, "fits into no memory"),
    "ones(2).uniform_(1.0, 0.0)": (ValueError, "low 1.0 lies above to 0.0"),
    "ones(2).exponential_(0.0)": (ValueError, "lambd is 0.0; make it larger than 0"),
    "ones(2, 2).diagonal(0, 1, -1)": (ValueError, "dim1 1 and dim2 -1 are one axis"),
    "ones(2).trace()": (ValueError, r"shape \(2,\) is no matrix"),
    "ones(2).add([1], alpha=2)": (TypeError, "add: list is no operand"),
    "'a' - ones(2)": (TypeError, "unsupported operand"),
    "'a' @ ones(2, 2)": (TypeError, "unsupported operand"),
    "zeros(2).long().masked_fill(ones(2).bool(), ones((), requires_grad=True))": (
        RuntimeError,
        "int64 carries no gradient to value",
    ),
    "zeros(2).long().index_fill(0, zeros(1).long(), ones((), requires_grad=True))": (
        RuntimeError,
        "index_fill: int64 carries no gradient to value",
    ),
    "F.layer_norm(ones(2, 3), 3)": (TypeError, "normalized_shape is 3; give the lengths in a tuple"),
    "F.layer_norm(ones(2, 3), (3,), ones(3).double())": (TypeError, "weight float64 differ; convert one"),
    "F.cosine_similarity(ones(2, 3), ones(2, 4))": (ValueError, "do not broadcast"),
    "F.one_hot(ones(0).long())": (ValueError, "holds no class to count from"),
    "F.softplus(ones(2), beta='1')": (TypeError, "beta is '1'; give a number"),
    "F.cross_entropy(ones(2, 3), ones(2))": (ValueError, "a floating target has the input's shape"),
    "F.nll_loss(ones(2, 3), ones(2))": (TypeError, "the target is float32"),
    "F.nll_loss(ones(2, 3), ones(2).long(), ones(2))": (ValueError, r"weight \(2,\) for 3 classes"),
    "F.nll_loss(ones(2, 3), ones(2).long(), ones(3).double())": (TypeError, "weight float64 differ"),
    "attend((2, 2), (2, 2), (2, 2), dropout_p=1.5)": (ValueError, "dropout_p is 1.5"),
    "attend((2,), (2, 2), (2, 2))": (ValueError, "each needs two axes at least"),
    "attend((2, 3), (2, 2), (2, 2))": (ValueError, "query and key differ in width"),
    "attend((2, 2), (2, 2), (3, 2))": (ValueError, "key and value differ in length"),
    "ones(()).flatten(-3, -3)": (IndexError, r"flatten: dim -3 is out of range for shape \(\)"),
    "attend((2, 3, 5, 4), (2, 5, 3, 4), (2, 3, 5, 4))": (
        ValueError,
        r"the key's heads and .*key.transpose\(-3",
    ),
    "attend((2, 6, 3, 4), (2, 3, 5, 4), (2, 3, 5, 4))": (
        ValueError,
        "the query's heads and length are swapp",
    ),
    "attend((2, 2, 2), (3, 2, 2), (3, 2, 2))": (ValueError, "axes before the last two equal or 1"),
    "sequence(2).load_state_dict(sequence(3).state_dict())": (ValueError, "3 schedulers, not 2"),
}


@pytest.mark.parametrize("call", BY_NAME)
def test_a_call_that_does_not_fit_is_refused_in_words_that_lead_on(call):
    error, words = BY_NAME[call]
    names = {"F": F, "attend": attend, "sequence": sequence}
    with pytest.raises(error, match=words):
        eval(call, {**vars(mt), **names})


@pytest.mark.parametrize("right", [False, True])
def test_a_search_in_several_rows_is_one_in_each(right, rng):
    rows, x = np.sort(rng.integers(0, 9, (2, 3, 5)), -1), rng.integers(0, 9, (2, 3, 4))
    found = mt.searchsorted(mt.tensor(rows), mt.tensor(x), right=right)
    each = [mt.searchsorted(mt.tensor(r), mt.tensor(v), right=right).tolist()
            for r, v in zip(rows.reshape(6, 5), x.reshape(6, 4), strict=True)]  # fmt: skip
    assert found.reshape(6, 4).tolist() == each
    assert each[0] == [int((rows[0, 0] <= v if right else rows[0, 0] < v).sum()) for v in x[0, 0]]


@pytest.mark.parametrize(("x", "y"), [([-5, 5], [-2, 2]), ([-5.0, 5.0], [-2.0, 2.0])])
def test_a_quotient_is_cut_towards_zero(x, y):
    assert mt.tensor(x).div(2, rounding_mode="trunc").tolist() == y


def test_lists_of_parameters_and_the_device_print_themselves():
    assert repr(nn.ParameterList([mt.ones(2), mt.ones(2)])) == (
        "ParameterList(\n  (0-1): 2 x Parameter float32(2,)\n)"
    )
    assert repr(mt.device("cpu")) == "device(type='cpu')"


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_meant_is_refused(case):
    call, error, words = REFUSALS[case]
    with pytest.raises(error, match=words):
        call()


def test_a_tensor_made_of_a_tensor_is_a_copy():
    x = mt.ones(2)
    y = mt.tensor(x)
    y.zero_()
    assert x.tolist() == [1.0, 1.0]


def test_new_empty_has_a_shape_and_the_tensors_dtype():
    made = mt.ones(2, dtype=mt.float64).new_empty(3, 2)
    assert (made.shape, made.dtype) == ((3, 2), np.float64)


def test_a_grad_that_is_read_only_or_recorded_is_replaced_and_not_changed():
    x = mt.ones(2, requires_grad=True)
    held = np.array([5.0, 6.0], np.float32)
    held.flags.writeable = False
    x.grad = mt.zeros(2)
    x.grad.array = held
    (x * 3).sum().backward()
    assert x.grad.tolist() == [8.0, 9.0]
    assert held.tolist() == [5.0, 6.0]


def test_a_recorded_grad_is_added_to_on_the_tape():
    x = mt.tensor(2.0, requires_grad=True)
    (x**3).backward(create_graph=True)
    first = x.grad
    (x**3).backward(create_graph=True)
    assert (first.item(), x.grad.item()) == (12.0, 24.0)
    assert mt.autograd.grad(x.grad, x)[0].item() == 24.0  # 2 · 6x


def test_a_tokenizer_knows_its_size_and_prints_itself():
    tokenizer = CharTokenizer("abca")
    assert tokenizer.vocab_size == len(tokenizer)
    assert repr(tokenizer).startswith("CharTokenizer(")


def test_an_op_prints_its_name_and_an_unknown_place_says_so():
    assert repr(registry["exp"]) == "<op exp>"
    assert line_of(None) == "unknown line"


def test_an_integer_power_of_negative_exponents_is_zero_but_for_ones():
    x, p = mt.tensor([1, -1, -1, 2, 3]), mt.tensor([-1, -1, -2, -1, 2])
    assert ops.pow(x, p).tolist() == [1, -1, 1, 0, 9]


def test_an_exception_thrown_into_a_decorated_generator_arrives_inside_it():
    @mt.no_grad()
    def values():
        try:
            yield mt.is_grad_enabled()
        except KeyError:
            yield "caught", mt.is_grad_enabled()

    generator = values()
    assert next(generator) is False
    assert generator.throw(KeyError("thrown")) == ("caught", False)
    assert mt.is_grad_enabled()
    generator.close()


def test_layers_compute_what_their_functions_do():
    x = mt.randn(2, 3, 4)
    norm = nn.RMSNorm(4)
    assert_close(norm(x), F.rms_norm(x, (4,), norm.weight, norm.eps))
    assert nn.Flatten()(x).shape == (2, 12)


def test_buffers_are_listed_once():
    module = nn.Module()
    module.register_buffer("b", mt.ones(2))
    assert [b.tolist() for b in module.buffers()] == [[1.0, 1.0]]


def test_an_optimiser_prints_its_groups():
    text = repr(sgd())
    assert text.startswith("SGD (\nParameter Group 0\n")
    assert "    lr: 0.1" in text


@pytest.mark.parametrize(
    ("make", "rates"),
    [
        (lambda o: lr_scheduler.MultiStepLR(o, [3, 1], gamma=0.5), [0.1, 0.05, 0.05, 0.025]),
        (lambda o: lr_scheduler.ConstantLR(o, 0.5, total_iters=2), [0.05, 0.05, 0.1, 0.1]),
        (lambda o: lr_scheduler.ExponentialLR(o, 0.5), [0.1, 0.05, 0.025, 0.0125]),
    ],
    ids=["MultiStepLR", "ConstantLR", "ExponentialLR"],
)
def test_schedules_follow_their_formulas(make, rates):
    optimiser = sgd()
    scheduler, seen = make(optimiser), []
    for _ in rates:
        seen.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    assert seen == pytest.approx(rates)


@pytest.fixture
def sum_of_squares():
    """Σ x² of any number of inputs, all of which its VJP names at once."""

    @op("sum of squares")
    def squares(*xs):
        """y = Σᵢ xᵢ²          gradient: 2 g · xᵢ"""
        return sum(x * x for x in xs)

    @squares.vjp
    def squares_vjp(g, xs):
        return tuple(2.0 * g * x for x in xs)

    yield squares
    registry.pop("sum of squares")


def test_a_vjp_may_name_all_inputs_at_once_to_any_order(sum_of_squares, rng):
    x, y = (mt.tensor(rng.normal(size=3), requires_grad=True) for _ in range(2))
    u = mt.tensor(rng.normal(size=3))
    first = mt.autograd.grad(sum_of_squares(x, y), (x, y), u, create_graph=True)
    np.testing.assert_allclose([g.array for g in first], [2 * (u * x).array, 2 * (u * y).array])
    (second,) = mt.autograd.grad(first[1], y, u)
    np.testing.assert_allclose(second.array, 2 * u.array**2)


def test_of_many_inputs_the_changed_one_is_named(sum_of_squares):
    x, y = mt.ones(2, requires_grad=True), mt.ones(2, requires_grad=True)
    inner = y * 1.0
    result = sum_of_squares(x, inner)
    inner.mul_(2.0)
    with pytest.raises(RuntimeError, match=r"sum of squares .* needs its input xs\[1\]"):
        result.sum().backward()


def test_two_numbers_chosen_by_a_tensor_become_the_default_dtype():
    assert mt.where(mt.tensor([True, False]), 1.5, 2.5).tolist() == [1.5, 2.5]


def test_the_package_knows_the_number_of_threads_and_a_generator_its_seed():
    assert mt.get_num_threads() >= 1
    assert mt.Generator().manual_seed(7).initial_seed() == 7


def test_a_function_without_floating_results_passes_gradcheck_with_nothing_to_check():
    x = mt.ones(3, dtype=mt.float64, requires_grad=True)
    assert gradcheck(lambda x: (x > 0).long(), (x,))


@pytest.mark.parametrize(
    ("answer", "alive"), [(None, True), (ProcessLookupError, False), (PermissionError, True)]
)
def test_a_process_is_looked_for_by_a_signal_where_the_system_does_not_say(answer, alive, monkeypatch):
    def kill(pid, signal):
        assert (pid, signal) == (123, 0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(process, "_look", lambda pid: None)
    monkeypatch.setattr(process.os, "kill", kill)
    assert process.Process("here", 123, "").alive() is alive


def test_a_file_that_is_not_there_has_no_mark(tmp_path):
    assert mark_of(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"epoch": 1}, "its loader had a state_dict and this one has none"),
        ({"taken": -1, "start": {}}, "its position -1 in the data is damaged"),
        ({"taken": 1.0, "start": {}}, "its position 1.0 in the data is damaged"),
        ({"taken": 1, "start": {"nobody": 1}}, "at the start of the epoch"),
    ],
)
def test_a_damaged_position_in_the_data_is_refused(state, words):
    with pytest.raises(ValueError, match=words):
        BatchStream([1, 2], {}).check_state_dict(state)


def test_a_drawing_shows_the_tensors_own_name():
    y = mt.ones(2, requires_grad=True) * 2.0
    y.name = "doubled"
    assert trace.trace(y, Recorder(), ()).output.symbol == "doubled"
