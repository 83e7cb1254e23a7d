"""The checks check: wrong gradients, leaks and hostile ops are caught, and the message leads to the fault."""

from __future__ import annotations

import contextlib
import inspect

import numpy as np
import pytest

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import nn, ops
from microtensor.testing import check_causal, check_op, check_padding, gradcheck, gradgradcheck
from models import Transformer, TransformerConfig


@pytest.fixture
def wrong_cube(declare):
    """x³ whose VJP says 2x²."""

    @declare("cube", samples=lambda rng: iter([((rng.uniform(0.5, 1.5, (2, 3)),), {})]))
    def cube(x):
        """y = x³          gradient: g · 3x²"""
        return x**3

    @cube.vjp
    def cube_vjp(g, x):
        return (g * 2.0 * x * x,)

    return cube


def double(*shape):
    return mt.randn(*shape).double().requires_grad_()


# --- gradcheck ----------------------------------------------------------------------------------------------


def test_full_mode_names_the_worst_entry_with_both_numbers(declare):
    @declare("nearly")
    def nearly(x):
        """y = x²"""
        return x * x

    @nearly.vjp
    def nearly_vjp(g, x):
        off = np.zeros(x.shape)
        off[1, 2] = 0.5
        return (g * (2.0 * x + off),)

    with pytest.raises(
        AssertionError, match=r"input 0 of shape \(2, 3\): 1 of 6 entries differ; the worst, at \(1, 2\)"
    ):
        gradcheck(nearly, double(2, 3), full=True)


class Cubed(nn.Module):
    def __init__(self, cube):
        super().__init__()
        self.first, self.cube, self.last = nn.Linear(3, 4), Apply(cube), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.cube(self.first(x).tanh()))


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        object.__setattr__(self, "function", function)
        self.line = None

    def forward(self, x):
        self.line = f"{__file__}:{inspect.currentframe().f_lineno + 1}"
        return self.function(x)


@pytest.mark.parametrize("full", [False, True])
def test_gradcheck_of_a_model_names_the_first_wrong_op_its_line_and_its_module(wrong_cube, full):
    model = Cubed(wrong_cube).double()
    with pytest.raises(
        AssertionError, match=r"gradcheck: Cubed, .*the first wrong op is <cube .*, in cube,"
    ) as e:
        gradcheck(model, double(2, 3), full=full)
    assert model.cube.line in str(e.value)
    assert str(e.value).endswith("correct its VJP")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_gradcheck_of_a_model_checks_its_parameters_also_when_no_input_requires_a_gradient():
    layer = nn.Linear(3, 2).double()
    assert gradcheck(layer, double(2, 3).detach(), full=True)
    before = {name: (p, p.array) for name, p in layer.named_parameters()}

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x) * self.layer.weight.detach().sum()

    with pytest.raises(
        AssertionError, match=r"parameter layer\.weight of shape \(2, 3\).*leaves the tape.*detach"
    ):
        gradcheck(Scaled(), double(2, 3))
    assert all(p.array is array and p.grad is None for p, array in before.values())


def test_gradgradcheck_of_a_model_checks_its_parameters(declare):
    @declare("flat_square")
    def flat_square(x):
        """y = x²          gradient: g · 2x, which forgets that it depends on x"""
        return x * x

    @flat_square.vjp
    def flat_square_vjp(g, x):
        return (g * 2.0 * ops.detach(x),)

    class Squared(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(double(3).detach())

        def forward(self, x):
            return flat_square(self.weight) * x

    for x in (double(3), double(3).detach()):
        assert gradcheck(Squared(), x, full=True)
        with pytest.raises(AssertionError, match="the gradient of Squared, parameter weight"):
            gradgradcheck(Squared(), x, full=True)
        assert gradgradcheck(nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.LayerNorm(2, eps=0.1)).double(), x)


def test_float32_is_refused_by_name():
    with pytest.raises(ValueError, match=r"parameter weight is float32, too coarse.*\.double\(\)"):
        gradcheck(nn.Linear(3, 2), double(2, 3))
    with pytest.raises(ValueError, match=r"input 1 is float32, too coarse"):
        gradcheck(mt.mul, [double(2), mt.ones(2, requires_grad=True)])


def test_samples_of_float32_are_refused_by_the_name_of_their_op(declare):
    samples = [((np.ones(3, np.float32),), {})]
    forward = declare("thrice", samples=lambda rng: iter(samples))(lambda x: x * 3)
    forward.vjp(lambda g: (g * 3,))
    with pytest.raises(AssertionError, match=r"gradcheck: thrice: input 0 is float32, too coarse"):
        check_op(forward)


def test_randomness_and_nan_are_not_blamed_on_a_vjp():
    x = double(2, 8)
    with pytest.raises(ValueError, match=r"two calls gave two results.*\.eval\(\)"):
        gradcheck(nn.Dropout(0.5), x)
    assert gradcheck(nn.Dropout(0.5).eval(), x)
    with pytest.raises(ValueError, match="not finite; choose inputs inside the domain"):
        gradcheck(lambda x: (x - x - 1.0).log(), x)


def test_a_vjp_that_fails_by_itself_is_found_too(declare):
    """Its neighbour hides it: the first op that is wrong on its own is the one that is named."""

    @declare("halves")
    def halves(x):
        """y = x"""
        return x + 0.0

    @halves.vjp
    def halves_vjp(g):
        g *= 0.5  # it writes into what it was given
        return (g,)

    def function(x):
        return halves(x * 1.0) * 1.0

    with pytest.raises(
        AssertionError, match=r"first wrong op is <halves .*fails by itself: ValueError: .*read-only"
    ):
        gradcheck(function, double(2, 3))


def test_a_whole_transformer_passes_gradcheck_and_its_layers_gradgradcheck():
    mt.manual_seed(0)
    config = TransformerConfig(9, 9, d_model=4, n_heads=2, d_ff=6, n_encoder_layers=1, n_decoder_layers=1)
    model = Transformer(config).double().eval()
    src, tgt = mt.tensor([[3, 4, 5, 0]]), mt.tensor([[1, 6, 7]])
    assert gradcheck(model, (src, tgt))
    assert gradgradcheck(nn.Sequential(nn.Linear(3, 4).double(), nn.Tanh()), double(2, 3))


# --- check_causal, check_padding ----------------------------------------------------------------------------


@pytest.fixture
def model():
    mt.manual_seed(0)
    config = TransformerConfig(20, 20, d_model=8, n_heads=2, d_ff=16, n_encoder_layers=1, n_decoder_layers=1)
    return Transformer(config).eval()


SRC, TGT = mt.tensor([[3, 4, 5, 6, 0], [7, 8, 0, 0, 0]]), mt.tensor([[1, 9, 11, 10], [1, 12, 13, 10]])


def test_a_decoder_is_causal_in_its_target_and_its_encoder_is_not(model):
    check_causal(lambda tgt: model(SRC, tgt), TGT)
    with pytest.raises(
        AssertionError, match=r"check_causal: output y\[:, 0\] depends on input x\[\d, \d\].*mask what"
    ):
        check_causal(model.encode, SRC)


def test_a_mask_that_lets_the_future_in_is_caught(model):
    everything = mt.ones(1, 1, 4, 4).bool()
    with pytest.raises(AssertionError, match=r"output y\[:, 0\] depends on input"):
        check_causal(lambda tgt: model(SRC, tgt, None, everything), TGT)


@pytest.mark.parametrize("ahead", [1, 3])
def test_causality_of_a_function_of_embeddings_names_output_and_input(ahead):
    x = mt.randn(1, 5, 2)
    check_causal(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), x)

    def leaks(x):
        y = x.cumsum(1)
        return mt.cat([y[:, :1] + 0.01 * x[:, ahead : ahead + 1], y[:, 1:]], 1)

    with pytest.raises(AssertionError, match=rf"output y\[:, 0\] depends on input x\[0, {ahead}\]"):
        check_causal(leaks, x)


def test_a_row_that_sees_another_row_of_the_batch_is_caught():
    def over_batch(x):
        return x + x.mean(0, keepdim=True)

    with pytest.raises(
        AssertionError, match=r"output y\[0\] depends on input x\[1, \d\]: .*; keep rows apart"
    ):
        check_causal(over_batch, mt.randn(2, 4, 3))
    check_causal(over_batch, mt.randn(1, 4, 3))  # a single row has no other to see


def test_a_leak_without_a_gradient_is_caught_by_value():
    with pytest.raises(AssertionError, match="changes with inputs that it may not see, without a gradient"):
        check_causal(lambda x: x + x.detach().roll(-1, 1), mt.randn(1, 4, 2))


def _quantized(x):
    step = x.detach().abs().amax() / 8
    return (x.detach() / step).round() * step + x - x.detach()


def _one_too_far(x):
    parts = [(x[:, t : t + 1], x[:, : t + 2]) for t in range(x.shape[1])]
    return mt.cat([F.scaled_dot_product_attention(q, k, k) for q, k in parts], 1)


WHOLE, FIRST = mt.ones(2, 4).bool(), mt.tensor([[True, True, True, False], [True, True, False, False]])
LEAKS = {  # planted: functions of (x, mask) that see too much, each in a way of its own
    "statistics of the batch": lambda x, mask: (x - x.mean((0, 1))) * mask,
    "statistics without a gradient": lambda x, mask: (x - x.detach().mean((0, 1))) * mask,
    "a norm over time": lambda x, mask: F.layer_norm(x, x.shape[1:]) * mask,
    "a scale of all": lambda x, mask: _quantized(x) * mask,
    "a branch": lambda x, mask: x * mask * (2 if x.detach()[1, -1].sum() > 0 else 3),
    "a place by what is not 0": lambda x, mask: (x + (x.detach() != 0).any(-1).sum(1)[:, None, None]) * mask,
    "the length by what is not 0": lambda x, mask: x * mask / (x.detach() != 0).sum(1, keepdim=True),
    "the rank among all": lambda x, mask: (x + x.detach().argsort(1).argsort(1)) * mask,
    "a softmax before the mask": lambda x, mask: (x @ x.mT).softmax(-1) * mask.mT @ x * mask,
    "a mask that is too weak": lambda x, mask: (x @ x.mT - 9.0 * ~mask.mT).softmax(-1) @ x * mask,
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_of_any_kind_is_caught(name):
    for seed in range(5):
        mt.manual_seed(seed)
        with pytest.raises(AssertionError, match="check_causal: "):
            check_causal(lambda x: LEAKS[name](x, WHOLE[..., None]), mt.randn(2, 4, 3), seed=seed)
        with pytest.raises(AssertionError, match="check_padding: "):
            check_padding(lambda x: LEAKS[name](x, FIRST[..., None]), mt.randn(2, 4, 3), FIRST, seed=seed)


def test_a_cache_that_is_one_step_too_long_is_caught():
    with pytest.raises(AssertionError, match=r"output y\[:, 0\] depends on input x\[\d, 1\]"):
        check_causal(_one_too_far, mt.randn(2, 4, 3))


def test_a_memory_that_is_read_without_its_mask_is_caught():
    query = mt.randn(2, 3, 4)
    for mask, caught in [(FIRST[:, None], False), (None, True), (FIRST.float()[:, None] * 1.5, True)]:
        with pytest.raises(AssertionError, match="y depends") if caught else contextlib.nullcontext():
            check_padding(
                lambda x: F.scaled_dot_product_attention(query, x, x, mask), mt.randn(2, 4, 4), FIRST
            )


def _renormalised(x):
    A = (x @ x.mT).softmax(-1) * mt.ones(4, 4).tril()
    return A / A.sum(-1, keepdim=True) @ x


HUGE, ENDLESS = (mt.tensor([[[1.0, 0.5], [0.2, 0.3], [x, 1.0], [0.1, 0.1]]]) for x in (1e3, mt.inf))
NAN = {  # what makes it, of which inputs, and what is said of it
    "of all": (lambda x: (x - 2e3).log(), HUGE, r"output y\[0, 0\] is nan"),
    "of one input": (lambda x: (0.9 - x[..., 1:]).log(), HUGE, r"output y\[0, 2\] is nan"),
    "of an input that holds infinity": (lambda x: x.cumsum(1), ENDLESS, r"input x\[0, 2\] is inf"),
    "by a later input, huge": (_renormalised, HUGE, r"output y\[0, 0\] is nan"),
    "of a later output": (
        lambda x: x + x[:, :, :1].log(),
        -HUGE * mt.tensor([[[-1.0], [1], [1], [1]]]),
        r"output y\[0, 1\] is nan",
    ),
    "in backward alone": (
        lambda x: x + (x - x).sqrt(),
        HUGE,
        r"the gradient of output y\[:, 0\] by input x\[0, 0\] is nan",
    ),
}


@pytest.mark.parametrize("name", NAN)
def test_nan_accuses_no_input_and_says_what_to_do(name):
    function, x, said = NAN[name]
    with pytest.raises(
        ValueError, match=rf"^check_causal: {said}, which proves nothing; .*finite inputs.*detect_anomaly"
    ):
        check_causal(function, x)
    with pytest.raises(ValueError, match=r"^check_padding: .* is (nan|inf), which proves nothing; .*"):
        check_padding(function, x, mt.tensor([[True, True, True, False]]))


def test_what_becomes_nan_by_its_own_input_is_causal_and_by_a_later_one_is_a_leak():
    mt.manual_seed(0)
    x = 0.1 * mt.randn(2, 4, 3)
    check_causal(lambda x: (x + 1.0).log(), x)  # a large change makes NaN, of outputs that may see it
    mask = mt.tensor([[True, True, False, False]] * 2)
    check_padding(lambda x: x.masked_fill(~mask[..., None], mt.nan), x, mask)
    with pytest.raises(
        AssertionError, match=r"output y\[0, \d\] changes with inputs that it may not see.*: to nan; mask"
    ):
        check_causal(lambda x: x + 0.0 * (10.0 * x.detach().flip(1)).exp(), mt.randn(1, 4, 3))


def test_what_proves_nothing_is_refused():
    x = mt.randn(1, 4, 2)
    with pytest.raises(ValueError, match="depends on no input at all"):
        check_causal(lambda x: x * 0.0, x)
    with pytest.raises(ValueError, match=r"x \(1, 4, 2\) gave y \(1, 3, 2\)"):
        check_causal(lambda x: x[:, 1:], x)
    with pytest.raises(ValueError, match="no embedding looked up the ids"):
        check_causal(lambda ids: nn.Linear(2, 2)(x), TGT)
    for given, said in [(x, r"\(1, 4, 2\)"), (None, "None")]:
        with pytest.raises(ValueError, match=rf"^check_causal: the model gave {said}; return .* recorded"):
            check_causal(lambda x, y=given: y, x)
    with pytest.raises(ValueError, match="two calls gave two results"):
        check_causal(lambda x: F.dropout(x, 0.5), x)


@pytest.mark.parametrize("given", [None, 3.0, (), [None]])
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_a_function_that_returns_nothing_to_check_is_refused(check, given):
    with pytest.raises(
        TypeError, match=rf"^{check.__name__}: fn gave {type(given).__name__}; return a tensor"
    ):
        check(lambda x: given, mt.ones(2).double().requires_grad_())


@pytest.mark.parametrize("given", [F.gelu, mt.exp, 3, "exp"])
def test_what_is_no_op_is_told_where_to_go(given):
    with pytest.raises(TypeError, match=r"^check_op: .* is no op; .* to gradcheck$"):
        check_op(given)


def test_a_module_is_checked_in_eval_mode_and_put_back():
    layer = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    layer[0].eval()
    check_causal(layer, mt.randn(1, 4, 2))
    assert [m.training for m in layer.modules()] == [True, False, True]


def test_padding_of_a_source_never_matters_unless_the_mask_lets_it_in(model):
    check_padding(lambda src: model(src, TGT), SRC, pad_id=0)
    check_padding(lambda src: model(src, TGT), SRC, SRC != 0)
    with pytest.raises(
        AssertionError, match=r"check_padding: output y depends on input x\[\d, \d\].*mask padded keys"
    ):
        check_padding(lambda src: model(src, TGT, mt.ones(1, 1, 1, 5).bool()), SRC, pad_id=0)


def test_padded_outputs_of_an_encoder_may_be_anything(model):
    check_padding(model.encode, SRC, pad_id=0)


def test_padding_that_matters_by_value_alone_is_caught():
    mask = mt.tensor([[True, True, False]])
    with pytest.raises(AssertionError, match="without a gradient"):
        check_padding(lambda x: (x * mask[..., None]).sum(1) + x.detach().sum(1), mt.randn(1, 3, 2), mask)


def test_a_padding_mask_that_cannot_be_is_refused():
    x = mt.randn(1, 3, 2)
    for mask, pad_id in [(None, None), (mt.ones(1, 3).bool(), 0)]:
        with pytest.raises(ValueError, match="both mask and pad_id are given, or neither"):
            check_padding(lambda x: x, x, mask, pad_id=pad_id)
    for mask in [mt.ones(1, 3).bool(), mt.zeros(1, 3), mt.zeros(1, 2).bool()]:
        with pytest.raises(
            ValueError, match=r"the mask is .*make it boolean, of shape \(1, 3\), False at one"
        ):
            check_padding(lambda x: x, x, mask)


# --- check_op on hostile ops --------------------------------------------------------------------------------


def _one(rng):
    yield (rng.normal(size=(2, 3)),), {}


def _in_place(g, a, out):
    return (np.multiply(g, a, out=out),) if isinstance(g, np.ndarray) else (g * a,)


def _through(f):
    return lambda g, x: (g * 2.0 * f(x),)


def _random(x):
    _random.calls += 1
    return x * _random.calls


_random.calls = 0

HOSTILE = {  # forward, VJP, options, what is said
    "wrong VJP": (
        lambda x: x * x * x,
        lambda g, x: (g * 2.0 * x * x,),
        {},
        r"the gradient equals central differences — not so for .*6 of 6 entries differ",
    ),
    "VJP widens float32": (
        lambda x: x * 2,
        lambda g: (g * np.float64(2.0),),
        {},
        r"float32 stays float32.*gave a float64 gradient for a float32 input; keep constants Python scalars",
    ),
    "forward widens float32": (
        lambda x: x * np.float64(2.0),
        lambda g: (g * 2.0,),
        {},
        "float32 inputs gave float64 in the forward; keep constants Python scalars",
    ),
    "integers widen": (
        np.exp,
        lambda g, y: (g * y,),
        {},
        "int64 inputs gave float64; declare the op with floats=True",
    ),
    "g is forgotten": (
        lambda x: x * x,
        lambda g, x: (2.0 * x,),
        {},
        "linear in g.*multiply the gradient of input 0 by g, once: 6 of 6 entries",
    ),
    "g is added": (
        lambda x: x * x,
        lambda g, x: (2.0 * x + g,),
        {},
        "multiply the gradient of input 0 by g, once",
    ),
    "VJP writes into g": (
        np.exp,
        lambda g, y: _in_place(g, y, g),
        {},
        "the VJP writes into an array that it was given; make a new one",
    ),
    "VJP writes into y": (np.exp, lambda g, y: _in_place(g, y, y), {}, "the VJP writes into an array"),
    "VJP writes into x": (lambda x: x * x, lambda g, x: _in_place(2.0 * g, x, x), {}, "the VJP writes into"),
    "forward writes": (
        lambda x: np.multiply(x, 2, out=x if x.flags.writeable else None),
        lambda g: (g * 2.0,),
        {},
        "the forward changed input 0",
    ),
    "forward writes, and differently each time": (
        lambda x: np.add(x, 1.0, out=x) * 1.0,
        lambda g: (g * 1.0,),
        {},
        "the forward changed input 0; make a new array",
    ),
    "residuals without composite": (
        lambda x: (x * x, (2.0 * x,)),
        lambda g, slope: (g * slope,),
        {"residuals": ("slope",)},
        r"has residuals and no definition in simpler ops.*@hostile\.composite",
    ),
    "no samples": (
        lambda x: x,
        lambda g: (g,),
        {"samples": None},
        r"has no samples; give it some with @hostile",
    ),
    "empty samples": (
        lambda x: x,
        lambda g: (g,),
        {"samples": lambda rng: iter([])},
        r"samples of .* are empty, .* at least one \(args, params\), as in: yield \(x,\), {}",
    ),
    **{
        f"samples that {name}": (
            lambda x: x * 2.0,
            lambda g: (g * 2.0,),
            {"samples": wrong},
            "not pairs of a",
        )
        for name, wrong in {
            "are returned": lambda rng: ((rng.normal(size=3),), {}),
            "are an array": lambda rng: rng.normal(size=3),
            "are nothing": lambda rng: None,
            "have no parameters": lambda rng: [(rng.normal(size=3),)],
            "have no tuple": lambda rng: [(rng.normal(size=3), {})],
        }.items()
    },
    "integer samples": (
        lambda x: x,
        lambda g: (g,),
        {"samples": lambda rng: iter([((np.arange(3),), {})])},
        "has a floating array, so that no gradient is checked; yield one",
    ),
    "integers among the samples widen": (
        lambda x: np.exp(x),
        lambda g, y: (g * y,),
        {"samples": lambda rng: [*_one(rng), ((np.arange(3),), {})]},
        "int64 inputs gave float64; declare the op with floats=True",
    ),
    "samples of numbers alone": (
        lambda x: x * 2.0,
        lambda g: (g * 2.0,),
        {"samples": lambda rng: [*_one(rng), ((3.0,), {})]},
        r"\(3\.0\) has no array to record; yield one",
    ),
    "samples of no elements": (
        lambda x: x * 2.0,
        lambda g: (g * 2.0,),
        {"samples": lambda rng: iter([((np.zeros((0, 3)),), {})]), "floats": True},
        "made wrong by 1 % passes every sample; add a sample",
    ),
    "two gradients for one input": (
        lambda x: x * 1.0,
        lambda g: (g, g),
        {},
        "must return a tuple of 1 gradients",
    ),
    "NumPy in the VJP": (
        np.exp,
        lambda g, y: (np.multiply(g, y),),
        {},
        "second derivative.*on tensors to be differentiated: write it in operators and functions of ops",
    ),
    **{
        f"{name} in the VJP": (
            np.square,
            _through(f),
            {},
            "on tensors to be differentiated: write it in operators and functions of ops",
        )
        for name, f in {
            "np.where": lambda x: np.where(x > 0, x, x),
            "np.asarray": np.asarray,
            "np.vectorize": lambda x: np.vectorize(float)(x),
            "detach().numpy()": lambda x: x.detach().numpy(),
            "astype": lambda x: x.astype(x.dtype),
        }.items()
    },
    "random": (_random, lambda g: (g,), {}, "two calls gave two results; broken too: gradient"),
    "no VJP": (lambda x: x * 2.0, None, {}, r"has no gradient; give it one with @hostile\.vjp"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_check_op_leads_to_the_fault_of_a_hostile_op(declare, name):
    forward, vjp, options, said = HOSTILE[name]

    def hostile(x):
        """A hostile op."""
        return forward(x)

    made = declare(f"hostile: {name}", **{"samples": _one, **options})(hostile)
    if vjp is not None:
        made.vjp(vjp)
    with pytest.raises((AssertionError, ValueError), match=said):
        check_op(made)


def test_check_op_passes_what_is_right(declare):
    @declare("right", samples=_one, floats=True)
    def right(x):
        """y = eˣ          gradient: g · y"""
        return np.exp(x)

    @right.vjp
    def right_vjp(g, y):
        return (ops.mul(g, y),)

    check_op(right)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.bool_])
@pytest.mark.parametrize("function", [np.exp, lambda x: np.logaddexp(0, x)])
def test_check_op_passes_samples_of_integers_that_become_floats(declare, function, dtype):
    def samples(rng):
        yield (rng.normal(size=(2, 3)),), {}
        yield (np.arange(3).astype(dtype),), {}

    slope = {np.exp: ops.exp}.get(function, ops.sigmoid)
    made = declare("widening", samples=samples, floats=True)(lambda x: function(x))
    made.vjp(lambda g, x: (g * slope(x),))
    check_op(made)


def test_residuals_that_are_no_tuple_of_their_names_are_caught(declare):
    @declare("twice", samples=_one, residuals=("ones",))
    def twice(x):
        """y = 2x          gradient: 2g"""
        return x * 2.0, np.ones_like(x)

    @twice.vjp
    def twice_vjp(g, ones):
        return (g * 2.0,)

    @twice.composite
    def twice_composite(x):
        return x * 2.0

    with pytest.raises(
        AssertionError, match=r"the forward must return y and a tuple of \['ones'\], not ndarray"
    ):
        check_op(twice)
