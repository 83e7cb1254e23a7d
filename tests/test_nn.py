"""Modules, layers and initial values: what is registered, saved, moved and printed."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.layers = nn.ModuleList([nn.LayerNorm(4), nn.Dropout(0.5)])
        self.scale = nn.Parameter(mt.ones(1))
        self.register_buffer("offset", mt.zeros(4))
        self.register_buffer("cache", mt.zeros(2), persistent=False)
        self.note = "no tensor"

    def forward(self, x):
        for layer in (self.first, *self.layers):
            x = layer(x)
        return x * self.scale + self.offset


NAMES = ["scale", "first.weight", "first.bias", "layers.0.weight", "layers.0.bias"]


# --- the tree -----------------------------------------------------------------------------------------------


def test_attributes_are_registered_under_their_paths():
    net = Net()
    assert [n for n, _ in net.named_parameters()] == NAMES
    assert [n for n, _ in net.named_buffers()] == ["offset", "cache"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "layers", "layers.0", "layers.1"]
    assert [n for n, _ in net.named_children()] == ["first", "layers"]
    assert set(net.state_dict()) == {*NAMES, "offset"}


def test_a_module_under_two_names_is_one_child_and_two_lines_of_the_repr():
    net = nn.Module()
    net.first, net.between = nn.Linear(2, 2), nn.ReLU()
    net.again = net.first
    assert list(net.named_children()) == [("first", net.first), ("between", net.between)]
    assert list(net.children()) == [net.first, net.between]
    assert "(again): Linear" in repr(net)


def test_a_module_dict_takes_pairs():
    assert list(nn.ModuleDict([("a", nn.ReLU()), ("b", nn.GELU())])) == ["a", "b"]
    with pytest.raises(
        TypeError, match=r"^ModuleDict: \[1\] holds no modules .*; give a dictionary, or pairs"
    ):
        nn.ModuleDict([1])


def test_setting_before_init_says_what_is_missing():
    class Hasty(nn.Module):
        def __init__(self):
            self.linear = nn.Linear(2, 2)

    with pytest.raises(AttributeError, match=r"super\(\)\.__init__\(\)"):
        Hasty()


def test_a_parameter_cannot_become_something_else_by_accident():
    net = Net()
    with pytest.raises(TypeError, match="parameter 'scale' cannot be"):
        net.scale = mt.ones(1)
    net.scale = None
    assert "scale" not in dict(net.named_parameters())
    assert net.scale is None


def test_replacing_and_deleting_keeps_the_tables_clean():
    net = Net()
    net.first = nn.Linear(3, 4, bias=False)
    assert "first.bias" not in dict(net.named_parameters())
    net.offset = mt.ones(4)
    assert net.state_dict()["offset"].tolist() == [1.0] * 4
    del net.scale
    with pytest.raises(AttributeError, match="has no attribute 'scale'"):
        net.scale  # noqa: B018


def test_unknown_attributes_and_missing_forwards_are_named():
    with pytest.raises(AttributeError, match="Net: has no attribute 'nothing'"):
        Net().nothing  # noqa: B018
    with pytest.raises(NotImplementedError, match=r"Module: has no forward"):
        nn.Module()(1)


def test_printing_shows_the_tree():
    text = repr(Net())
    assert "(first): Linear(in_features=3, out_features=4, bias=True)" in text
    assert "  (0): LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=True)" in text


# --- modes, gradients, dtypes -------------------------------------------------------------------------------


def test_train_and_eval_reach_everything_below():
    net = Net().eval()
    assert not any(m.training for m in net.modules())
    x = mt.ones(5, 3)
    assert net(x).tolist() == net(x).tolist()
    assert all(m.training for m in net.train().modules())


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_divides_what_it_keeps_by_the_chance_to_be_kept(p):
    mt.manual_seed(0)
    y = nn.functional.dropout(mt.ones(10_000), p)
    np.testing.assert_allclose(np.unique(y.numpy()), [0.0, 1 / (1 - p)], rtol=1e-6)
    # five standard deviations of a mean of 10,000 that have variance p/(1 − p)
    assert y.mean().item() == pytest.approx(1.0, abs=5 * math.sqrt(p / (1 - p) / 10_000))


def test_a_training_step_gives_every_parameter_a_gradient_and_zero_grad_takes_it():
    net = Net()
    (net(mt.tensor(np.eye(3, dtype=np.float32))) * mt.arange(4.0)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    net.zero_grad(set_to_none=False)
    assert all(not p.grad.array.any() for p in net.parameters())
    net.zero_grad()
    assert all(p.grad is None for p in net.parameters())


def test_freezing_stops_gradients():
    net = Net().requires_grad_(False)
    assert not net(mt.ones(2, 3)).requires_grad


def test_to_moves_floats_only_and_keeps_the_parameters():
    net = Net()
    net.register_buffer("ids", mt.arange(3))
    before = list(net.parameters())
    net.double()
    assert [id(p) for p in net.parameters()] == [id(p) for p in before]
    assert {p.dtype for p in net.parameters()} == {np.dtype(np.float64)}
    assert net.ids.dtype == mt.int64
    assert net(mt.ones(2, 3, dtype=mt.float64)).dtype == mt.float64
    assert net.float().first.weight.dtype == mt.float32


def test_mixed_dtypes_are_an_error_that_says_so():
    linear, norm = nn.Linear(3, 4), nn.LayerNorm(3)
    for layer in (linear, norm):
        with pytest.raises((TypeError, ValueError), match=r"float64.*float32|float32.*float64"):
            layer(mt.ones(2, 3, dtype=mt.float64))


def test_apply_visits_children_first():
    seen = []
    Net().apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "LayerNorm", "Dropout", "ModuleList", "Net"]


# --- state --------------------------------------------------------------------------------------------------


def test_state_dict_shares_memory_and_load_copies():
    a, b = Net(), Net()
    state = a.state_dict()
    assert np.shares_memory(state["first.weight"].array, a.first.weight.array)
    assert not state["first.weight"].requires_grad
    b.load_state_dict(state)
    assert b.first.weight.tolist() == a.first.weight.tolist()
    assert not np.shares_memory(b.first.weight.array, a.first.weight.array)


def test_loading_moves_versions_so_that_an_old_graph_notices():
    net = Net()
    loss = net(mt.ones(2, 3)).square().sum()
    net.load_state_dict(net.state_dict())
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


# --- hooks --------------------------------------------------------------------------------------------------


def test_hooks_see_and_may_replace_what_goes_in_and_out():
    linear = nn.Linear(2, 2)
    seen = []
    pre = linear.register_forward_pre_hook(lambda m, args: (args[0] * 0.0,))
    post = linear.register_forward_hook(lambda m, args, y: seen.append(args[0].tolist()))
    assert linear(mt.ones(1, 2)).tolist() == [linear.bias.tolist()]
    assert seen == [[[0.0, 0.0]]]
    pre.remove()
    post.remove()
    post.remove()  # twice does nothing
    linear(mt.ones(1, 2))
    assert len(seen) == 1
    double = linear.register_forward_hook(lambda m, args, y: y * 2.0)
    assert linear(mt.zeros(1, 2)).tolist() == [(linear.bias * 2.0).tolist()]
    double.remove()


# --- containers ---------------------------------------------------------------------------------------------


def test_lists_and_sequences_index_slice_and_iterate():
    layers = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert len(layers) == 3
    assert layers[-1] is layers[2]
    assert type(layers[:2]) is nn.Sequential
    assert [n for n, _ in layers.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    x = mt.ones(4, 2)
    assert layers(x).tolist() == layers[2](layers[1](layers[0](x))).tolist()
    layers[1] = nn.GELU()
    assert isinstance(layers[1], nn.GELU)
    assert type(nn.ModuleList(layers)[1:]) is nn.ModuleList


# --- layers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "who"), [
    (lambda x: nn.ModuleList([x]), "ModuleList"),
    (lambda x: nn.ModuleList().append(x), "ModuleList"),
    (lambda x: nn.Sequential(x), "Sequential"),
    (lambda x: nn.ModuleDict({"0": x}), "ModuleDict"),
])  # fmt: skip
@pytest.mark.parametrize("item", [1, [nn.ReLU()], F.relu])
def test_a_container_refuses_what_is_no_module_by_its_own_name(make, who, item):
    with pytest.raises(TypeError, match=rf"^{who}: 0 is {type(item).__name__}; make it a Module"):
        make(item)


@pytest.mark.parametrize("padding_idx", [-5, -1, 0, 4])
def test_the_padding_row_is_named_as_ids_name_it(padding_idx):
    layer = nn.Embedding(5, 2, padding_idx=padding_idx)
    assert layer.padding_idx == padding_idx % 5
    assert not layer(mt.tensor([layer.padding_idx])).any()


def test_a_copied_model_has_its_gradients_yet_to_come():
    layer, leaf = nn.Linear(2, 2), mt.ones(2, requires_grad=True)
    (layer(leaf) ** 2).sum().backward()
    assert [p.grad for p in copy.deepcopy(layer).parameters()] == [None, None]
    assert copy.deepcopy(leaf).grad.tolist() == leaf.grad.tolist()


@pytest.mark.parametrize("given", ["model.pt", None, nn.Linear(2, 2), [1]])
def test_what_is_no_dictionary_is_no_state(given):
    with pytest.raises(TypeError, match=rf"^load_state_dict: {type(given).__name__} is no state_dict\(\); "):
        nn.Linear(2, 2).load_state_dict(given)


def test_linear_and_embedding_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match=r"linear: input \(2, 4\)"):
        nn.Linear(3, 2)(mt.ones(2, 4))
    with pytest.raises(IndexError, match="id 5 is outside 0 … 4"):
        nn.Embedding(5, 2)(mt.tensor([1, 5]))
    with pytest.raises(TypeError, match="ids are float32"):
        nn.Embedding(5, 2)(mt.tensor([1.0]))
    with pytest.raises(ValueError, match="padding_idx 5"):
        nn.Embedding(5, 2, padding_idx=5)
    with pytest.raises(ValueError, match=r"does not end in \(3,\)"):
        nn.LayerNorm(3)(mt.ones(2, 4))
    with pytest.raises(ValueError, match=r"p is 1\.5"):
        nn.Dropout(1.5)


def test_the_padding_row_is_zero_and_stays_so():
    embedding = nn.Embedding(4, 2, padding_idx=-1)
    embedding(mt.tensor([[3, 1], [3, 3]])).sum().backward()
    assert embedding.weight[3].tolist() == [0.0, 0.0]
    assert embedding.weight.grad.tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]


def test_is_causal_beside_a_mask_is_refused():
    x = mt.ones(2, 4)
    with pytest.raises(ValueError, match="is_causal"):
        F.scaled_dot_product_attention(x, x, x, mt.ones(2, 2).bool(), is_causal=True)


# --- initial values -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fill", "std"),
    [
        (lambda w: nn.init.normal_(w, 0.0, 0.3), 0.3),
        (lambda w: nn.init.uniform_(w, -0.6, 0.6), 0.6 / math.sqrt(3)),
        (lambda w: nn.init.xavier_uniform_(w), math.sqrt(2 / 500)),
        (lambda w: nn.init.xavier_normal_(w, gain=2.0), 2 * math.sqrt(2 / 500)),
        (lambda w: nn.init.kaiming_uniform_(w, a=math.sqrt(5)), math.sqrt(1 / 900)),
        (lambda w: nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"), math.sqrt(2 / 200)),
        (lambda w: nn.init.trunc_normal_(w, std=0.02), 0.02),
    ],
)
def test_initial_values_have_the_spread_that_is_said(fill, std):
    mt.manual_seed(0)
    w = nn.Parameter(mt.zeros(200, 300))
    assert fill(w) is w
    assert w.requires_grad
    # five standard errors of 60 000 draws, none more than √2 broader than a normal's
    assert w.detach().std().item() == pytest.approx(std, rel=5 / math.sqrt(60_000))
    assert w.detach().mean().item() == pytest.approx(0.0, abs=5 * std / math.sqrt(60_000))


def test_linear_starts_as_in_pytorch_and_a_seed_repeats_it():
    mt.manual_seed(1)
    a = nn.Linear(16, 400)
    mt.manual_seed(1)
    b = nn.Linear(16, 400)
    assert a.weight.tolist() == b.weight.tolist()
    for p in a.parameters():
        assert abs(p.detach()).max().item() <= 0.25
        assert abs(p.detach()).max().item() > 0.24


def test_constants_and_refusals_of_init():
    assert nn.init.zeros_(mt.ones(2)).tolist() == [0.0, 0.0]
    assert nn.init.ones_(mt.zeros(2)).tolist() == [1.0, 1.0]
    assert nn.init.constant_(mt.zeros(2), 0.5).tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="no fan in"):
        nn.init.xavier_uniform_(mt.zeros(3))
    with pytest.raises(ValueError, match="nonlinearity is 'swish'"):
        nn.init.kaiming_normal_(mt.zeros(3, 3), nonlinearity="swish")
    with pytest.raises(ValueError, match="mode is 'fan'"):
        nn.init.kaiming_normal_(mt.zeros(3, 3), mode="fan")


@pytest.mark.parametrize(
    ("a", "b", "mean"),
    [
        (3.0, 50.0, 3.2830986),  # φ(3) / (1 − Φ(3))
        (-1e9, -10.0, -10.0980931),
        (0.0, 1e-6, 5e-7),
        (-2.0, 2.0, 0.0),
    ],
)
def test_a_truncated_normal_is_right_also_where_hardly_any_draw_would_fall(a, b, mean):
    w = mt.zeros(100, 100, dtype=mt.float64)
    nn.init.trunc_normal_(w, a=a, b=b, generator=mt.Generator().manual_seed(0))
    assert w.min().item() >= a
    assert w.max().item() <= b
    # five standard errors of 10 000 draws
    assert w.mean().item() == pytest.approx(mean, abs=5 * w.std().item() / 100)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda x: F.pad(x, (1,)),
            r"pad: \(1,\) for .*; give two numbers for each of its last axes, those of the last one first",
        ),
        (
            lambda x: F.one_hot(x, 3),
            r"one_hot: classes -1 … 5 do not fit into 0 … 2; enlarge num_classes, or fix",
        ),
        (lambda x: nn.Embedding.from_pretrained(x), r"embeddings \(2,\); give a matrix \(V, C\)"),
    ],
)
def test_a_shape_that_does_not_fit_is_told_the_one_that_does(call, said):
    with pytest.raises(ValueError, match=said):
        call(mt.tensor([-1, 5]))


@pytest.mark.parametrize(("std", "a", "b"), [(0.0, -1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 2.0, -2.0)])
def test_an_empty_truncation_is_refused(std, a, b):
    with pytest.raises(
        ValueError, match=r"trunc_normal_: std is .*; make std more than 0 and a less than b$"
    ):
        nn.init.trunc_normal_(mt.zeros(3), std=std, a=a, b=b)


# --- clipping -----------------------------------------------------------------------------------------------


def test_clipping_returns_the_norm_before_and_leaves_small_gradients_alone():
    p = nn.Parameter(mt.zeros(2))
    p.grad = mt.tensor([3.0, 4.0])
    assert nn.utils.clip_grad_norm_([p], 10.0).item() == 5.0
    assert p.grad.tolist() == [3.0, 4.0]
    assert nn.utils.clip_grad_norm_([p, p], 1.0).item() == 5.0  # a parameter listed twice counts once
    np.testing.assert_allclose(p.grad.array, [0.6, 0.8], rtol=1e-5)
    p.grad = mt.tensor([math.nan, 1.0])
    assert math.isnan(nn.utils.clip_grad_norm_(p, 1.0).item())
    assert p.grad.array[1] == 1.0
    with pytest.raises(RuntimeError, match="norm is nan"):
        nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    assert nn.utils.clip_grad_norm_([nn.Parameter(mt.ones(1))], 1.0).item() == 0.0


def test_clipping_takes_strided_shared_and_mixed_gradients(rng):
    a, b, c, d = (nn.Parameter(mt.tensor(rng.normal(size=(3, 4)))) for _ in range(4))
    d.data = d.data.float()
    a.grad, d.grad = mt.tensor(rng.normal(size=(4, 3))).T, mt.ones(3, 4)
    b.grad = c.grad = mt.tensor(rng.normal(size=(3, 4)))
    gradients = [p.grad.numpy().copy() for p in (a, b, c, d)]
    norm = nn.utils.clip_grad_norm_([a, b, c, d], 1.0).item()
    assert norm == pytest.approx(math.sqrt(sum((g.astype(float) ** 2).sum() for g in gradients)), rel=1e-12)
    for p, g, times in zip((a, b, c, d), gradients, (1, 2, 2, 1), strict=True):  # as in PyTorch
        np.testing.assert_allclose(p.grad.numpy(), g / (norm + 1e-6) ** times, rtol=1e-6)


def test_masks_that_cannot_be_combined_or_made_are_refused():
    from models import combine_masks, padding_mask

    with pytest.raises(TypeError, match=r"combine_masks: a mask is float32; make it boolean"):
        combine_masks(mt.ones(2, 2).bool(), mt.ones(2, 2))
    with pytest.raises(ValueError, match=r"padding_mask: ids has shape \(3,\); make it \(B, T\)"):
        padding_mask(mt.tensor([1, 0, 0]), 0)


def test_a_prepended_hook_runs_before_the_others():
    said, layer = [], nn.Identity()
    for name, prepend in (("b", False), ("a", True), ("c", False)):
        layer.register_forward_hook(lambda m, x, y, name=name: said.append(name), prepend=prepend)
        layer.register_forward_pre_hook(lambda m, x, name=name: said.append(name.upper()), prepend=prepend)
    layer(mt.ones(1))
    assert said == list("ABCabc")


def test_assigned_tensors_take_the_places_of_the_parameters():
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    given = {"weight": mt.ones(2, 2, dtype=mt.float64), "bias": nn.Parameter(mt.zeros(2, dtype=mt.float64))}
    layer.load_state_dict(given, assign=True)
    assert layer.weight.dtype == mt.float64
    assert np.shares_memory(layer.weight.array, given["weight"].array)
    assert layer.weight.requires_grad
    assert isinstance(layer.weight, nn.Parameter)
    assert layer.bias is given["bias"]
    assert not layer.bias.requires_grad  # as before
    with pytest.raises(RuntimeError, match="weight has shape"):
        layer.load_state_dict({"weight": mt.ones(3, 2)}, strict=False, assign=True)


def test_a_parameter_in_the_place_of_a_buffer_that_no_checkpoint_holds_is_saved():
    module = nn.Module()
    module.register_buffer("scale", mt.ones(2), persistent=False)
    assert list(module.state_dict()) == []
    module.scale = nn.Parameter(mt.ones(2))
    assert list(module.state_dict()) == ["scale"]


def test_what_cannot_be_assigned_is_refused_before_anything_is_changed():
    layer = nn.Linear(2, 2)
    weight = layer.weight
    with pytest.raises(RuntimeError, match="int64"):
        layer.load_state_dict({"weight": mt.ones(2, 2), "bias": mt.arange(2)}, assign=True)
    assert layer.weight is weight


TAKEN = {
    "a buffer over a parameter": lambda net: net.register_buffer("scale", mt.ones(1)),
    "a parameter over a child": lambda net: net.register_parameter("first", nn.Parameter(mt.ones(1))),
    "a parameter over a method": lambda net: net.register_parameter("forward", nn.Parameter(mt.ones(1))),
    "a module over a parameter": lambda net: net.add_module("scale", nn.ReLU()),
    "a module over an attribute": lambda net: net.add_module("training", nn.ReLU()),
    "a key that is a method": lambda net: nn.ModuleDict({"keys": nn.ReLU()}),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_that_is_taken_is_not_registered_again(name):
    net = Net()
    before = [n for n, _ in net.named_parameters()], [n for n, _ in net.named_modules()]
    with pytest.raises(KeyError, match=r"\w+: \w+ has \\?'\w+\\?' already; choose"):
        TAKEN[name](net)
    assert ([n for n, _ in net.named_parameters()], [n for n, _ in net.named_modules()]) == before


@pytest.mark.parametrize("name", ["", "a.b", 3])
def test_a_name_without_a_path_of_its_own_is_refused(name):
    for register in (Net().register_buffer, Net().register_parameter, Net().add_module):
        with pytest.raises((KeyError, TypeError), match=r"name is .*; give (a string without a dot|str$)"):
            register(name, None)


def test_a_child_cannot_become_a_number_by_accident():
    net = Net()
    with pytest.raises(TypeError, match="Net: module 'first' cannot be int; set a module, None"):
        net.first = 3
    net.first = None
    assert net.first is None
    assert "first.weight" not in dict(net.named_parameters())


def test_extra_repr_has_lines_of_its_own_above_the_children():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Sequential(nn.ReLU())

        def extra_repr(self):
            return "hello=1"

    assert repr(Named()) == "Named(\n  hello=1\n  (act): Sequential(\n    (0): ReLU()\n  )\n)"
