"""nn and its functions beside PyTorch's: losses, padding, containers, parameters as a vector, printing."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from test_torch_parity import agree, layouts

import microtensor as mt
from microtensor import nn

torch = pytest.importorskip("torch")

F = {mt: mt.nn.functional, torch: torch.nn.functional}
REDUCTIONS = ["none", "sum", "mean", "batchmean", "average"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("log_target", [False, True])
def test_kl_div(reduction, log_target, rng):
    for shape, other in [((4, 5), (4, 5)), ((5,), (5,)), ((2, 3, 4), (2, 3, 4)), ((4, 5), (5,)), ((), ())]:
        for x in layouts(rng, shape):
            target = np.asarray(rng.normal(size=other) if log_target else rng.random(other))

            def case(t, x, target):
                return F[t].kl_div(x, target, reduction=reduction, log_target=log_target)

            agree(case, x, target, rng=rng)
            agree(
                lambda t, *xs: t.nn.KLDivLoss(reduction=reduction, log_target=log_target)(*xs),
                x,
                target,
                rng=rng,
            )
    agree(case, np.ones((2, 3), np.float32), np.full((2, 3), 0.5, np.float32))
    agree(lambda t, x, y: F[t].kl_div(x, y, reduction=reduction), np.ones((2, 3)), np.ones((3, 2)))


def test_kl_div_at_targets_of_zero(rng):
    target = np.array([[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
    agree(lambda t, x: F[t].kl_div(x, t.tensor(target), reduction="sum"), rng.normal(size=(2, 3)))
    agree(lambda t, x: F[t].kl_div(x.log_softmax(1), t.tensor(target)), rng.normal(size=(2, 3)))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_as_modules(reduction, rng):
    x, y = rng.normal(size=(4, 5)), rng.integers(0, 5, 4)
    for smoothing, ignore in itertools.product([0.0, 0.1], [-100, 2]):

        def loss(t, x, y):
            options = {"ignore_index": ignore, "reduction": reduction, "label_smoothing": smoothing}
            return t.nn.CrossEntropyLoss(**options)(x, y)

        agree(loss, x, y, rng=rng)
    agree(lambda t, x, y: t.nn.NLLLoss(ignore_index=2, reduction=reduction)(x, y), x, y, rng=rng)
    agree(lambda t, x, y: t.nn.MSELoss(reduction=reduction)(x, y), x, rng.normal(size=(4, 5)), rng=rng)


@pytest.mark.parametrize("name", ["ReLU", "Tanh", "Sigmoid", "GELU", "Identity"])
def test_activations_as_modules(name, rng):
    for shape in [(2, 3), (), (0, 3)]:
        agree(lambda t, x: getattr(t.nn, name)()(x), rng.normal(size=shape), rng=rng)


def test_activations_with_options(rng):
    x = rng.normal(size=(2, 3))
    agree(lambda t, x: (t.nn.Softmax(1)(x), t.nn.Softmax(dim=-1)(x), t.nn.LogSoftmax(dim=0)(x)), x)
    agree(lambda t, x: t.nn.GELU(approximate="tanh")(x), x)
    agree(lambda t, x: t.nn.GELU("other")(x), x)
    agree(lambda t, x: t.nn.ReLU(inplace=True)(x * 1.0), x)
    agree(lambda t, x: t.nn.ReLU(inplace=True)(x), x)  # a leaf that requires a gradient
    agree(lambda t, x: F[t].relu(x * 1.0, inplace=True), x)
    agree(lambda t, x: t.nn.Softmax(2)(x), x)


PADS = [(1, 2), (0, 0), (1, 0, 0, 2), (-1, 0), (1, -2), (-1, -1, 2, 0), (0, 1, 0, 1, 1, 1), (-4, 0), (3, -4)]


@pytest.mark.parametrize("pad", [*PADS, (1,), (1, 2, 3), (1,) * 8, (-3, -3), ()])
def test_pad(pad, rng):
    for x in layouts(rng, (2, 3, 4)):
        agree(lambda t, x: F[t].pad(x, pad), x, rng=rng)
        agree(lambda t, x: F[t].pad(x, pad, "constant", 1.5), x, rng=rng)
    agree(lambda t, x: F[t].pad(x, pad, value=float("-inf")), x.astype(np.float32), rng=rng)
    agree(lambda t, x: F[t].pad(x, pad, value=7), np.arange(24).reshape(2, 3, 4), grad=False)
    agree(lambda t, x: F[t].pad(x, pad, value=True), np.ones((2, 3, 4), bool), grad=False)


def test_pad_does_not_alias_and_knows_one_mode(rng):
    x = mt.ones(2, 3)
    F[mt].pad(x, (0, 0)).zero_()
    assert x.tolist() == [[1.0] * 3] * 2
    agree(lambda t, x: F[t].pad(x, (1, 1), mode="mirror"), rng.normal(size=(2, 3)))


@pytest.mark.parametrize("p", [1, 2, 3.0, math.inf])
def test_normalize(p, rng):
    for shape, dim in [((2, 3), 1), ((2, 3), 0), ((2, 3, 4), -1), ((3,), 0)]:
        agree(lambda t, x: F[t].normalize(x, p=p, dim=dim), rng.normal(size=shape), rng=rng)
    agree(lambda t, x: F[t].normalize(x), np.zeros((2, 3)), grad=False)
    agree(lambda t, x: F[t].normalize(x, eps=10.0), rng.normal(size=(2, 3)))


# --- containers ---------------------------------------------------------------------------------------------


def lists(t: Any) -> list[Any]:
    """What a program does with a list of modules, as names and numbers."""
    n = t.nn
    a = n.ModuleList([n.Linear(1, 1), n.ReLU()])
    a.insert(0, n.Tanh())
    a.insert(2, n.Sigmoid())
    a.append(n.Identity()).extend([n.Dropout(0.5)])
    a += [n.GELU()]
    a[1] = n.ReLU()
    a[-1] = n.Tanh()
    del a[0]
    names = [name for name, _ in a.named_children()]
    cut = a[1:3]
    return [names, [type(m).__name__ for m in a], type(cut).__name__, len(cut), cut[0] is a[1], a[0] in a]


def sequences(t: Any) -> list[Any]:
    n = t.nn
    a = n.Sequential(OrderedDict([("first", n.Linear(2, 3)), ("second", n.ReLU())]))
    b = n.Sequential(n.Linear(2, 3), n.ReLU(), n.Linear(3, 1)).append(n.Tanh())
    del b[1]
    b.insert(1, n.Sigmoid())
    x = t.ones(4, 2)
    return [
        [name for name, _ in a.named_parameters()],
        [name for name, _ in a[:1].named_parameters()],
        [name for name, _ in b[2:].named_parameters()],
        type(b[:2]).__name__,
        a.first is a[0],
        list(b(x).shape),
        len(n.Sequential()),
        n.Sequential()(x) is x,
    ]


def dictionaries(t: Any) -> list[Any]:
    n = t.nn
    a = n.ModuleDict({"one": n.Linear(1, 2), "two": n.ReLU()})
    a["three"] = n.Tanh()
    a.update([("four", n.Linear(2, 1)), ("two", n.Sigmoid())])
    gone = a.pop("three")
    return [
        list(a),
        list(a.keys()),
        [type(m).__name__ for m in a.values()],
        [key for key, _ in a.items()],
        type(gone).__name__,
        "one" in a,
        "three" in a,
        len(a),
        a.one is a["one"],
        list(a.state_dict()),
        len(n.ModuleDict()),
    ]


def parameters(t: Any) -> list[Any]:
    n = t.nn
    a = n.ParameterList([n.Parameter(t.ones(2)), t.zeros(3)])
    a.append(n.Parameter(t.ones(1))).extend([t.ones(4)])
    return [
        list(a.state_dict()),
        len(a),
        [p.numel() for p in a],
        a[-1].requires_grad,
        len(a[1:3]),
        list(a[0].shape),
    ]


def modules(t: Any) -> list[Any]:
    n = t.nn
    a = n.Sequential(n.Linear(2, 2), n.Sequential(n.Linear(2, 1)))
    a.register_module("extra", n.Linear(1, 1))
    a.extra.weight = a[1][0].bias if False else a.extra.weight
    found = a.load_state_dict({"0.weight": t.ones(2, 2), "unknown": t.ones(1)}, strict=False)
    tied = n.Sequential(n.Linear(2, 2), n.Linear(2, 2))
    tied[1].weight = tied[0].weight
    b = copy.deepcopy(tied)
    return [
        a.get_submodule("1.0") is a[1][0],
        a.get_submodule("") is a,
        list(a.state_dict(prefix="net.")),
        a.state_dict(keep_vars=True)["0.weight"] is a[0].weight,
        list(found.missing_keys),
        list(found.unexpected_keys),
        [name for name, _ in tied.named_parameters()],
        [name for name, _ in tied.named_parameters(remove_duplicate=False)],
        [name for name, _ in tied.named_parameters("x")],
        list(tied.state_dict()),
        b[0].weight is b[1].weight,
        b[0].weight is tied[0].weight,
        a.to("cpu") is a.cpu(),
        str(a.double()[0].weight.dtype).removeprefix("torch."),
        str(a.float()[0].weight.dtype).removeprefix("torch."),
        [name for name, _ in n.ModuleList([a[0], a[0]]).named_modules()],
        [name for name, _ in n.ModuleList([a[0], a[0]]).named_modules(remove_duplicate=False)],
    ]


def hooks(t: Any) -> list[Any]:
    seen = []
    layer = t.nn.Linear(2, 2)
    t.nn.init.zeros_(layer.bias)

    def pre(m: Any, args: Any, kwargs: Any) -> Any:
        seen.append((len(args), sorted(kwargs)))
        return (), {"input": kwargs["input"] * 0}

    def post(m: Any, args: Any, kwargs: Any, out: Any) -> Any:
        seen.append((len(args), sorted(kwargs), list(out.shape)))
        return out + 1

    handles = [
        layer.register_forward_pre_hook(pre, with_kwargs=True),
        layer.register_forward_hook(post, with_kwargs=True),
    ]
    first = layer(input=t.ones(3, 2)) - layer.bias
    with handles[0]:
        pass
    handles[1].remove()
    second = layer(t.ones(3, 2)).shape
    return [seen, first.tolist(), list(second)]


def buffers(t: Any) -> list[Any]:
    class Net(t.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", t.ones(2))
            self.register_buffer("lost", t.zeros(3), persistent=False)
            self.register_buffer("none", None)
            self.layer = t.nn.Linear(2, 1)
            self.register_parameter("gone", None)

    a = Net()
    found = a.load_state_dict({"kept": t.zeros(2), "x": t.ones(1)}, strict=False)
    a.kept = t.full((2,), 7.0)
    b = copy.deepcopy(a).double()
    return [
        list(a.state_dict()),
        [n for n, _ in a.named_buffers()],
        [n for n, _ in a.named_buffers("p")],
        [n for n, _ in a.named_parameters("p.q")],
        [n for n, _ in a.named_parameters(recurse=False)],
        [n for n, _ in a.named_modules(prefix="m")],
        [n for n, _ in a.named_children()],
        found.missing_keys,
        found.unexpected_keys,
        a.kept.tolist(),
        str(b.kept.dtype).split(".")[-1],
        a.get_parameter("layer.weight") is a.layer.weight,
        a.get_buffer("kept") is a.kept,
        a.none is None,
        a.gone is None,
        a.train() is a,
        a.eval() is a,
        a.layer.training,
        a.requires_grad_(False) is a,
        a.layer.weight.requires_grad,
        a.apply(lambda m: None) is a,
        a.zero_grad() is None,
        repr(a),
        len(list(a.parameters())),
        hasattr(a, "nothing"),
        "kept" in dir(a),
    ]


def printed(t: Any) -> list[Any]:
    n = t.nn
    return [
        repr(m)
        for m in [
            n.ModuleList([n.Linear(1, 2), n.ReLU()]),
            n.ModuleList([n.Linear(1, 2)] * 3),
            n.ModuleDict({"a": n.Tanh()}),
            n.Sequential(),
            n.ModuleList(),
            n.Dropout(0.1),
            n.Dropout(0.1, True),
            n.SiLU(),
            n.SiLU(True),
            n.LeakyReLU(0.2),
            n.LeakyReLU(0.1, True),
            n.Softplus(),
            n.LogSigmoid(),
            n.RMSNorm(3),
            n.RMSNorm((2, 3), 1e-3, False),
            n.Flatten(),
            n.L1Loss(),
            n.SmoothL1Loss(),
            n.HuberLoss(),
            n.BCEWithLogitsLoss(),
            n.NLLLoss(),
            n.MSELoss(),
            n.GELU("tanh"),
            n.Sigmoid(),
            n.CrossEntropyLoss(weight=t.ones(2)),
        ]
    ]


def pickles(t: Any) -> list[Any]:
    a = t.nn.Sequential(t.nn.Linear(2, 2), t.nn.LayerNorm(2))
    b = pickle.loads(pickle.dumps(a))
    c = t.nn.CrossEntropyLoss(weight=t.ones(2))
    return [
        a[0].weight.tolist() == b[0].weight.tolist(),
        list(c.state_dict()),
        list(t.nn.MSELoss().state_dict()),
        isinstance(b[0].weight, t.nn.Parameter),
    ]


def sums_of_lists(t: Any) -> list[Any]:
    n = t.nn
    a = n.ModuleList([n.ReLU(), n.Tanh()])
    b = a + n.ModuleList([n.Sigmoid()])
    s = n.Sequential(n.ReLU())
    s2 = s + n.Sequential(n.Tanh())
    s.extend([n.Sigmoid()])
    c = a.pop(0)
    return [
        len(b),
        type(b).__name__,
        type(s2).__name__,
        len(s2),
        len(s),
        type(c).__name__,
        len(a),
        list(dict(s.named_children())),
    ]


@pytest.mark.parametrize(
    "habits",
    [lists, sequences, dictionaries, parameters, modules, hooks, buffers, printed, pickles, sums_of_lists],
)
def test_containers_as_programs_use_them(habits):
    assert habits(mt) == habits(torch)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t: t.nn.ModuleList([1]),
        lambda t: t.nn.ModuleDict({"a.b": t.nn.ReLU()}),
        lambda t: t.nn.ModuleDict({"": t.nn.ReLU()}),
        lambda t: t.nn.ModuleDict({"a": 1}),
        lambda t: t.nn.ModuleDict({})["a"],
        lambda t: t.nn.ModuleList([])[0],
        lambda t: t.nn.Sequential(1),
        lambda t: t.nn.Linear(2, 2).get_submodule("no.such"),
        lambda t: t.nn.Linear(2, 2).load_state_dict({"weight": t.ones(2, 3)}, strict=False),
        lambda t: t.nn.Linear(2, 2).load_state_dict({"weight": t.ones(2, 2)}),
        lambda t: t.nn.Linear(2, 2, colour="red"),
        lambda t: t.nn.ReLU(2, 3),
    ],
)
def test_what_does_not_fit_is_refused(wrong):
    for t in (mt, torch):
        with pytest.raises((TypeError, KeyError, IndexError, AttributeError, RuntimeError)):
            wrong(t)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n.Linear(2, 3),
        lambda n: n.Linear(2, 3, bias=False),
        lambda n: n.Embedding(2, 3, padding_idx=0),
        lambda n: n.ReLU(),
        lambda n: n.ReLU(inplace=True),
        lambda n: n.GELU(),
        lambda n: n.Tanh(),
        lambda n: n.Softmax(dim=-1),
        lambda n: n.LogSoftmax(dim=1),
        lambda n: n.CrossEntropyLoss(label_smoothing=0.1),
        lambda n: n.KLDivLoss(reduction="sum"),
        lambda n: n.LayerNorm(3),
        lambda n: n.LayerNorm((2, 3), elementwise_affine=False, eps=1e-6),
        lambda n: n.Identity(),
        lambda n: n.Sequential(n.Linear(2, 3), n.ModuleDict({"a": n.ReLU()}), n.Sequential(n.Tanh())),
    ],
)
def test_modules_print_as_in_pytorch(make):
    assert repr(make(nn)) == repr(make(torch.nn))


def test_layers_take_device_and_dtype_where_pytorch_does():
    for t in (mt, torch):
        assert t.nn.Linear(2, 3, True, "cpu", t.float64).weight.dtype == t.float64
        assert t.nn.Embedding(2, 3, device="cpu", dtype=t.float64).weight.dtype == t.float64
        assert t.nn.LayerNorm(3, 1e-5, True, True, t.device("cpu"), t.float64).bias.dtype == t.float64
    for name in ["Linear", "LayerNorm"]:
        theirs = inspect.signature(getattr(torch.nn, name)).parameters
        assert list(inspect.signature(getattr(nn, name)).parameters) == list(theirs)


def test_an_embedding_from_given_rows(rng):
    rows = rng.normal(size=(4, 3))

    def case(t, ids):
        made = t.nn.Embedding.from_pretrained(t.tensor(rows), freeze=False, padding_idx=1)
        frozen = t.nn.Embedding.from_pretrained(t.tensor(rows))
        made(ids).sum().backward()
        return made(ids), made.weight.grad, frozen.weight.requires_grad, frozen(ids)

    agree(case, np.array([0, 1, 3, 3]), grad=False)


def test_parameters_as_one_vector(rng):
    def case(t, a, b):
        vector = t.nn.utils.parameters_to_vector([a, b])
        fresh = [t.nn.Parameter(t.zeros(2, 3, dtype=t.float64)), t.nn.Parameter(t.zeros(4, dtype=t.float64))]
        t.nn.utils.vector_to_parameters(vector.detach() * 2, fresh)
        return vector, *fresh

    agree(case, rng.normal(size=(2, 3)), rng.normal(size=4))
    with pytest.raises(ValueError, match="vector_to_parameters: vec"):
        mt.nn.utils.vector_to_parameters(mt.ones(5), [nn.Parameter(mt.ones(4))])


@pytest.mark.parametrize("norm_type", [1, 2, 3.0, math.inf])
def test_clipping_by_other_norms(norm_type, rng):
    arrays = [rng.normal(size=s) for s in [(2, 3), (4,), ()]]

    def case(t):
        leaves = [t.tensor(a, requires_grad=True) for a in arrays]
        sum((x * x).sum() for x in leaves).backward()
        norm = t.nn.utils.clip_grad_norm_(leaves, 0.5, norm_type)
        return norm, *(x.grad for x in leaves)

    agree(case, grad=False)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_optimisers_take_what_pytorch_takes(name):
    ours, theirs = (inspect.signature(getattr(t.optim, name)).parameters for t in (mt, torch))
    assert [(p.name, p.default, p.kind) for p in ours.values()] == [
        (p.name, p.default, p.kind) for p in theirs.values()
    ]


@pytest.mark.parametrize("name", ["linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"])
def test_gains_are_pytorchs(name):
    for param in (None, 0, 0.3):
        assert nn.init.calculate_gain(name, param) == pytest.approx(torch.nn.init.calculate_gain(name, param))


def test_tensors_of_a_loss_are_buffers():
    loss = nn.BCEWithLogitsLoss(weight=mt.ones(2), pos_weight=mt.ones(2)).double()
    assert list(loss.state_dict()) == ["weight", "pos_weight"]
    assert loss.pos_weight.dtype == mt.float64


@pytest.mark.parametrize("name", ["relu", "silu", "leaky_relu", "dropout"])
def test_a_function_in_place_writes_over_its_input_and_keeps_its_gradient(name):
    for t in (mt, torch):
        x = t.tensor([-1.0, 2.0], requires_grad=True)
        y = x * 1.0
        options = {"p": 1.0} if name == "dropout" else {}
        found = getattr(F[t], name)(y, inplace=True, **options)
        assert found is y
        found.sum().backward()
        if t is mt:
            ours = y.tolist(), x.grad.tolist()
    np.testing.assert_allclose(ours[0], y.tolist(), rtol=1e-6)
    np.testing.assert_allclose(ours[1], x.grad.tolist(), rtol=1e-6)


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (lambda: mt.ones(2, 3).tril(), r"zeros and ones, or a sum of such, .*mask != 0 if its zeros forbid"),
        (lambda: mt.ones(2, 3).long(), r"the mask is int64; make it boolean"),
        (lambda: mt.ones(3, 2).bool(), r"attn_mask \(3, 2\) does not broadcast to .* \(2, 3\)"),
        (lambda: mt.ones(4, 2, 3).bool(), r"attn_mask \(4, 2, 3\) does not broadcast to .* \(2, 3\)"),
    ],
)
def test_a_mask_that_cannot_be_meant_names_fault_and_cure(mask, text):
    q, k, v = mt.randn(2, 4), mt.randn(3, 4), mt.randn(3, 4)
    with pytest.raises((ValueError, TypeError), match=text):
        F[mt].scaled_dot_product_attention(q, k, v, mask())
    F[mt].scaled_dot_product_attention(q, k, v, mt.zeros(2, 3))  # adds nothing, and says so


X64, X32 = np.array([[0.5, -1.5, 2.0], [1.0, 0.25, -3.0]]), np.array([[1.0, 0.5, 3.0]], np.float32)
WHOLE = np.array([[1, 0, 2], [3, 1, 0]])


@pytest.mark.parametrize(
    ("call", "inputs"),
    {
        "huber_loss(x, y)": [(X64, X32.repeat(2, 0)), (X32.repeat(2, 0), X64), (X64, WHOLE), (WHOLE, X64)],
        "rms_norm(x, (3,), y)": [(X64, X32[0]), (X32, X64[0]), (X64, WHOLE[0]), (WHOLE, X64[0])],
        "linear(x, y)": [(X64, X64[0]), (X64[0], X64[0]), (X64, X64[:, 0]), (X64, X32[0])],
        "cosine_similarity(x, y)": [
            (X64, WHOLE),
            (WHOLE, X32),
            (X32, X64),
            (WHOLE > 1, X64),
            (WHOLE, WHOLE),
            (X32, np.array(0.5)),
        ],
        "pad(x, (1, 0), value=y)": [(WHOLE.astype(np.uint8), n) for n in (-2, -2.0, 2.0, 300, 1e30, "a")],
        "layer_norm(x, (3,), y)": [(X64, X32[0]), (X32, X64[0]), (X64, WHOLE[0])],
        "layer_norm(x, (3,), y, y)": [(X64, X32[0]), (X32, X64[0])],
        "layer_norm(x, (3,), None, y)": [(X64, X32[0]), (X32, X64[0])],
        "cross_entropy(x, x.detach().softmax(-1), y)": [(X64, X64[1]), (X32, X64[1]), (X64, WHOLE[0])],
        "cross_entropy(x, t.tensor([0, 2]), y)": [(X64, X64[0]), (X64, X32[0])],
        "nll_loss(x.detach(), t.tensor([0, 2]), y)": [(X64, X64[0])],
        "binary_cross_entropy(x.sigmoid(), x.detach().sigmoid(), y)": [(X64, X64), (X64, WHOLE)],
        "binary_cross_entropy_with_logits(x, x.detach().sigmoid(), y)": [(X64, X64), (X64, WHOLE)],
        "binary_cross_entropy_with_logits(x, x.detach(), pos_weight=y)": [(X64, X64), (X64, WHOLE)],
        "binary_cross_entropy(x.sigmoid(), x.detach().sigmoid(), y.detach())": [(X32, X64)],
        "binary_cross_entropy_with_logits(x, x.detach(), y.detach())": [(X32, X64[:1]), (X64, X32)],
        "binary_cross_entropy_with_logits(x, x.detach(), pos_weight=y.detach())": [(X32, X64[:1])],
        "scaled_dot_product_attention(x, y, y)": [(X64, X64[:, :2]), (X64[None].repeat(2, 0), X64[None])],
    }.items(),
)
def test_dtypes_and_shapes_that_stand_together_in_pytorch_do_here(call, inputs):
    for x, y in inputs:
        # PyTorch has no derivative of Huber's loss of two dtypes, nor by scores (3,) beside a target (1,)
        agree(lambda t, x, y: eval(call, vars(t.nn.functional) | {"t": t, "x": x, "y": y}), x, y,
              grad="huber" not in call, tolerance=1e-5)  # fmt: skip


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("weight", [[1.0, -1.0], [-1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
@pytest.mark.parametrize("target", [[0, 1], [1, 0], [0, -100], [-100, -100]])
def test_an_average_by_weights_that_sum_to_0_divides_by_0(name, weight, target):
    def case(t, x):
        return getattr(F[t], name)(x, t.tensor(target), weight=t.tensor(weight, dtype=t.float64))

    agree(case, np.array([[1.0, 2.0], [3.0, 1.0]]))


def test_a_weight_that_wants_a_gradient_is_taken_where_none_is_recorded():
    x, w = mt.tensor([[1.0, 2.0]]), mt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"nll_loss: no gradient goes to weight, .*; give weight\.detach"):
        F[mt].nll_loss(x, mt.tensor([1]), w)
    with mt.no_grad():
        assert F[mt].nll_loss(x, mt.tensor([1]), w).item() == -2.0
