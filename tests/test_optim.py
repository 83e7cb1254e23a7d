"""Optimisers and schedules: the hand-made cases, then step by step against PyTorch in float64."""

import copy
import inspect
import math
import re

import numpy as np
import pytest

import microtensor as mt
from microtensor import nn, optim
from microtensor.optim import lr_scheduler as lrs

SHAPES = ((3, 2), (4,), ())


def leaf(values, dtype=np.float64):
    return mt.tensor(np.array(values, dtype), requires_grad=True)


def give(p, g):
    p.grad = mt.tensor(np.asarray(g, p.dtype))


# --- by hand ------------------------------------------------------------------------------------------------


def test_adamw_with_a_zero_gradient_only_decays():
    p = leaf([2.0])
    optimizer = optim.AdamW([p], lr=0.1, weight_decay=0.5)
    for _ in range(3):
        give(p, [0.0])
        optimizer.step()
    np.testing.assert_allclose(p.array, [2.0 * 0.95**3], rtol=1e-14)
    assert not optimizer.state[p]["exp_avg"].any()


def test_adam_is_the_algorithm_of_its_paper(rng):
    """Kingma & Ba 2015, Algorithm 1, a number at a time: the means start at 0 and are corrected for it."""
    p, lr, beta1, beta2, eps = leaf(rng.normal(size=3)), 0.1, 0.8, 0.95, 1e-3
    w, m, v = p.tolist(), [0.0] * 3, [0.0] * 3
    optimizer = optim.Adam([p], lr, (beta1, beta2), eps)
    for t in range(1, 6):
        gradient = rng.normal(size=3)
        give(p, gradient)
        optimizer.step()
        for i, g in enumerate(gradient):
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g * g
            w[i] -= lr * m[i] / (1 - beta1**t) / (math.sqrt(v[i] / (1 - beta2**t)) + eps)
        np.testing.assert_allclose(p.tolist(), w, rtol=1e-12)


def test_adam_weight_decay_is_part_of_the_gradient():
    p = leaf([10.0])
    optimizer = optim.Adam([p], lr=0.1, weight_decay=0.5)
    give(p, [-5.0])  # g + weight_decay · p = 0
    optimizer.step()
    assert p.array[0] == 10.0


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_a_parameter_without_gradient_neither_moves_nor_decays(kind):
    p, q = leaf([2.0]), leaf([2.0])
    give(p, [1.0])
    kind([p, q], lr=0.1, weight_decay=0.5).step()
    assert q.array[0] == 2.0
    assert p.array[0] != 2.0


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_where_no_parameter_has_a_gradient_nothing_moves(kind, options):
    known = inspect.signature(kind).parameters
    p = leaf([2.0])
    optimizer = kind([p], lr=0.1, **{name: value for name, value in options.items() if name in known})
    optimizer.step()
    nn.utils.clip_grad_norm_([p], 1.0)
    nn.utils.clip_grad_value_([p], 1.0)
    assert p.tolist() == [2.0]
    assert not optimizer.state


def test_a_parameter_listed_twice_is_stepped_once():
    p = leaf([0.0])
    optimizer = optim.SGD([p, p], lr=0.1)
    give(p, [1.0])
    optimizer.step()
    np.testing.assert_allclose(p.array, [-0.1])
    assert optimizer.param_groups[0]["params"] == [p]


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_a_numpy_lr_keeps_float32(kind):
    p = leaf([1.0, 2.0], np.float32)
    optimizer = kind([p], lr=np.float64(0.1), weight_decay=np.float64(0.1))
    optimizer.param_groups[0]["lr"] = np.float64(0.05)
    for _ in range(2):
        give(p, [1.0, -1.0])
        optimizer.step()
    assert p.dtype == np.float32
    assert all(v.dtype == np.float32 for v in optimizer.state[p].values() if isinstance(v, np.ndarray))


@pytest.mark.parametrize("kind", [optim.SGD, optim.AdamW])
def test_a_step_after_the_forward_is_noticed_by_backward(kind):
    p = leaf([1.0, 2.0])
    loss = (p * p).sum()
    give(p, [1.0, 1.0])
    kind([p], lr=0.1).step()
    with pytest.raises(RuntimeError):
        loss.backward()


def test_a_step_leaves_the_gradient_and_records_nothing():
    for kind, options in ((optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}), (optim.AdamW, {})):
        p, g = leaf([1.0, 2.0]), np.array([3.0, 4.0])
        give(p, g)
        optimizer = kind([p], lr=0.1, maximize=True, **options)
        optimizer.step()
        optimizer.step()
        assert np.array_equal(p.grad.array, g)
        assert p.is_leaf
        assert p.requires_grad


def test_a_transposed_parameter_is_stepped_in_its_own_memory():
    memory = np.arange(6.0).reshape(2, 3)
    p = nn.Parameter(memory.T)
    give(p, np.ones((3, 2)))
    optim.AdamW([p], lr=0.1, weight_decay=0.0).step()
    np.testing.assert_allclose(memory, np.arange(6.0).reshape(2, 3) - 0.1, atol=1e-7)


KINDS = [(optim.SGD, {}), (optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}), (optim.AdamW, {})]


def one_by_one(kind):
    """The same optimiser, which knows no compiled call for all parameters."""
    return type(kind.__name__, (kind,), {"_update_together": lambda self, pending: False})


def unusual_parameters(dtype=np.float64):
    memory = np.linspace(-1, 1, 40).astype(dtype)
    return [
        leaf([1.0, 2.0], dtype),
        nn.Parameter(memory[:12].reshape(3, 4).T),
        nn.Parameter(memory[12::2]),
        leaf([[0.5], [0.25]], np.float32),
        leaf(3.0, dtype),
        leaf(np.ones((2, 0)), dtype),
        nn.Parameter(memory[12:30]),  # also part of the third
    ]


def go_on(optimizer, params, steps=4):
    for step in range(steps):
        for i, p in enumerate(params):
            give(p, np.cos(p.array + step))
            if i == 0:
                p.grad = mt.tensor(np.repeat(p.grad.array, 2))[::2]
            if (step + i) % 3 == 0 and i > 2:
                p.grad = None
        optimizer.step()


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_what_no_kernel_takes_goes_one_by_one_to_the_same_bits(kind, options):
    ends = []
    for make in (kind, one_by_one(kind)):
        params = unusual_parameters()
        go_on(make([{"params": params[:3]}, {"params": params[3:], "lr": 0.2}], lr=0.1, **options), params)
        ends.append(params)
    for p, q in zip(*ends, strict=True):
        np.testing.assert_array_equal(p.array, q.array)
        assert not np.array_equal(p.array, np.zeros(p.shape)) or p.numel() == 0


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_at_once_is_one_by_one_to_the_same_bits(kind, options, dtype, rng):
    values = [rng.normal(size=shape) for shape in (*SHAPES, (100, 90))]
    ends, states = [], []
    for make in (kind, one_by_one(kind)):
        params = [leaf(v, dtype) for v in values]
        groups = [{"params": params[:2], "maximize": True}, {"params": params[2:], "lr": 0.2}]
        optimizer = make(groups, lr=0.1, **options)
        for step in range(4):
            for i, p in enumerate(params):
                p.grad = None if i == step else mt.tensor(np.asarray(np.cos(p.array + step)))
            optimizer.step()
        ends.append(params)
        states.append(optimizer.state_dict()["state"])
    for p, q in zip(*ends, strict=True):
        np.testing.assert_array_equal(p.array, q.array)
    for a, b in zip(*(s.values() for s in states), strict=True):
        assert all(
            np.array_equal(x, y) if isinstance(x, int) else x.equal(y)
            for x, y in zip(a.values(), b.values(), strict=True)
        )


def test_groups_with_and_without_momentum_share_an_optimizer():
    p, q = leaf([1.0]), leaf([1.0])
    optimizer = optim.SGD([{"params": [p]}, {"params": [q], "momentum": 0.5}], lr=0.1)
    for _ in range(2):
        give(p, [1.0])
        give(q, [1.0])
        optimizer.step()
    np.testing.assert_allclose([p.array[0], q.array[0]], [0.8, 1 - 0.1 - 0.15], rtol=1e-14)
    assert "momentum_buffer" not in optimizer.state[p]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_gradient_of_two_parameters_moves_both_and_stays(kind, options):
    p, q = leaf([1.0, 2.0]), leaf([1.0, 2.0])
    p.grad = q.grad = mt.tensor([0.5, -0.5], dtype=mt.float64)
    kind([p, q], lr=0.1, **options).step()
    assert p.tolist() == q.tolist() != [1.0, 2.0]
    assert p.grad.tolist() == [0.5, -0.5]


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam])
def test_a_subclass_of_ours_may_override_the_rule_of_one_parameter(kind):
    class Halved(kind):
        def _update(self, p, g, state, group):
            super()._update(p, g, state, group)
            p *= 0.5

    class Plain(kind):
        pass

    ends = []
    for make in (kind, Plain, Halved):
        p, q = leaf([1.0, 2.0]), leaf([3.0])
        give(p, [1.0, -1.0])
        give(q, [1.0])
        make([p, q], lr=0.1).step()
        ends.append(np.array([*p.tolist(), *q.tolist()]))
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[0] / 2, ends[2])


def test_a_gradient_that_numpy_made_a_number_is_one():
    p = leaf(2.0, np.float32)
    (p * p).backward()
    p.grad = p.grad + mt.tensor(0.0)
    p.grad.array = np.float32(4.0)
    for optimizer in (optim.SGD([p], lr=0.25), optim.Adam([p], lr=0.25)):
        optimizer.step()
    np.testing.assert_allclose(p.array, 0.75, rtol=1e-6)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_deep_copy_of_model_and_optimizer_steps_its_own_memory(kind, options):
    p = leaf([1.0, 2.0])
    give(p, [1.0, -1.0])
    optimizer = kind([p], lr=0.1, **options)
    optimizer.step()
    q, other = copy.deepcopy((p, optimizer))
    before = p.tolist()
    other.step()
    assert p.tolist() == before
    optimizer.step()
    assert p.tolist() == q.tolist() != before


def test_zero_grad_forgets_or_zeroes():
    p = leaf([1.0])
    optimizer = optim.SGD([p])
    give(p, [2.0])
    shared = p.grad.array
    optimizer.zero_grad(set_to_none=False)
    assert p.grad.array[0] == 0.0
    assert shared[0] == 2.0  # who else holds the gradient keeps it
    optimizer.zero_grad()
    assert p.grad is None


def _descend(w, update, forget):
    for _ in range(5):
        (w * w).sum().backward()
        update(w)
        forget(w)


def _by_hand(w):
    with mt.no_grad():
        w -= 0.1 * w.grad


def _stepping(kind, clip=False):
    made = []

    def update(w):
        made[:] = made or [kind([w], lr=0.1)]
        if clip:
            nn.utils.clip_grad_norm_([w], 0.5)
        made[0].step()

    return update


UPDATES = {"SGD": lambda: _stepping(optim.SGD), "AdamW": lambda: _stepping(optim.AdamW),
           "clipped": lambda: _stepping(optim.SGD, clip=True), "by hand": lambda: _by_hand}  # fmt: skip


@pytest.mark.parametrize("update", UPDATES)
def test_a_forgotten_zero_grad_is_said_once_at_the_line_of_the_backward(update):
    w = leaf([1.0, 2.0])
    with pytest.warns(
        UserWarning, match=r"^backward: .grad adds up .* in 1 of 1 leaves, .*zero_grad"
    ) as said:
        _descend(w, UPDATES[update](), lambda w: None)
    assert len(said) == 1
    assert said[0].filename == __file__


def test_gradients_that_are_cleared_once_an_epoch_are_said_once():
    x, layers = mt.randn(4, 3), nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    optimizer = optim.SGD(layers.parameters(), lr=0.1)

    def train():
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(5):
                layers(x).square().mean().backward()
                optimizer.step()

    with pytest.warns(UserWarning, match=r"^backward: .grad adds up .* in 4 of 4 leaves") as said:
        train()
    assert len(said) == 1


FORGET = {
    "zero_grad": lambda w: optim.SGD([w]).zero_grad(),
    "zeros": lambda w: optim.SGD([w]).zero_grad(set_to_none=False),
    "none": lambda w: setattr(w, "grad", None),
    "in place": lambda w: w.grad.zero_(),
    "times zero": lambda w: w.grad.mul_(0.0),
    "through NumPy": lambda w: w.grad.array.fill(0.0),
    "assigned": lambda w: w.grad.data.copy_(mt.zeros(2)),
}


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("forget", FORGET)
def test_every_way_to_forget_a_gradient_is_known(update, forget):
    _descend(leaf([1.0, 2.0]), UPDATES[update](), FORGET[forget])  # warnings are errors here


def test_sums_of_gradients_that_are_meant_are_no_mistake():
    w, critic = leaf([1.0, 2.0]), leaf([3.0])
    optimizer = optim.SGD([w], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(3):
            (w * w).sum().backward()  # several micro-batches
        optimizer.step()
        optimizer.step()
        for _ in range(3):
            (w * critic).sum().backward()  # the other one's loss reaches w, whose gradient is zeroed later
            optim.SGD([critic], lr=0.1).step()
            critic.grad = None


def test_a_closure_runs_with_gradients_and_returns_the_loss():
    p = leaf([3.0])
    optimizer = optim.SGD([p], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with mt.no_grad():
        assert optimizer.step(closure).item() == 9.0
    assert p.array[0] == 0.0


def test_a_users_optimizer_may_override_step():
    class Plain(optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @mt.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * p.grad)

    p = leaf([1.0])
    give(p, [2.0])
    Plain([p], 0.25).step()
    assert p.array[0] == 0.5


def test_signatures_show_what_pytorch_programs_look_for():
    assert "fused" in inspect.signature(optim.AdamW).parameters
    for value in (None, False, True):
        optim.AdamW([leaf([1.0])], fused=value, foreach=value)


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: optim.SGD([]), ValueError, "0 parameters"),
        (lambda: optim.SGD([leaf([1.0]) * 2]), ValueError, "no leaf"),
        (lambda: optim.SGD([np.ones(2)]), TypeError, "ndarray"),
        (lambda: optim.SGD(leaf([1.0])), TypeError, "list"),
        (lambda: optim.SGD([mt.tensor([1])]), TypeError, "int64"),
        (lambda: optim.SGD([leaf([1.0])], lr=-0.5), ValueError, r"-0\.5"),
        (lambda: optim.SGD([leaf([1.0])], lr=math.nan), ValueError, "nan"),
        (lambda: optim.SGD([leaf([1.0])], lr=math.inf), ValueError, "SGD: lr is inf; make it finite"),
        (lambda: optim.SGD([leaf([1.0])], momentum=math.inf), ValueError, "momentum is inf; make it finite"),
        (lambda: optim.SGD([leaf([1.0])], dampening=math.nan), ValueError, "is nan; make it finite$"),
        (lambda: optim.SGD([leaf([1.0])], dampening=math.inf), ValueError, "is inf; make it finite$"),
        (lambda: optim.Adam([leaf([1.0])], lr=math.inf), ValueError, "Adam: lr is inf; make it finite"),
        (lambda: optim.Adam([leaf([1.0])], eps=math.inf), ValueError, "Adam: eps is inf; make it finite"),
        (lambda: optim.AdamW([leaf([1.0])], weight_decay=math.inf), ValueError, "decay is inf; make it fin"),
        (lambda: optim.SGD([leaf([1.0])], momentum=-1), ValueError, "momentum"),
        (lambda: optim.SGD([leaf([1.0])], nesterov=True), ValueError, "nesterov"),
        (lambda: optim.SGD([{"params": [leaf([1.0])], "lr": -1}], lr=1), ValueError, "lr"),
        (lambda: optim.Adam([leaf([1.0])], betas=(0.9, 1.0)), ValueError, r"\(0\.9, 1\.0\)"),
        (lambda: optim.Adam([leaf([1.0])], betas=(None, 0.9)), TypeError, "Adam.betas: None is no number"),
        (lambda: optim.Adam([{"params": [leaf([1.0])], "betas": 0.9}]), ValueError, r"are 0\.9; give"),
        (lambda: optim.Adam([leaf([1.0])], eps=-1), ValueError, "eps"),
        (lambda: optim.AdamW([leaf([1.0])], weight_decay=-1), ValueError, "weight_decay"),
        (lambda: optim.AdamW([leaf([1.0])], fused="yes"), TypeError, "fused"),
    ],
)
def test_refusals_name_the_value_and_the_cure(make, error, text):
    with pytest.raises(error, match=text) as caught:
        make()
    assert ";" in str(caught.value)
    assert ": " in str(caught.value)


def test_a_parameter_in_two_groups_is_refused():
    p = leaf([1.0])
    with pytest.raises(ValueError, match="earlier group"):
        optim.SGD([{"params": [p]}, {"params": [p], "lr": 0.1}])


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
@pytest.mark.parametrize("bad", [mt.ones(1, 2), mt.ones(2, dtype=mt.float32)])
def test_a_refused_step_leaves_every_parameter_as_it_was(kind, bad):
    p, q = leaf([1.0, 2.0]), leaf([1.0, 2.0])
    optimizer = kind([{"params": [p]}, {"params": [q]}], lr=0.1)
    give(p, [1.0, 1.0])
    give(q, [1.0, 1.0])
    q.data = bad  # its gradient stays what it was
    with pytest.raises(ValueError, match=r"set p\.grad to a tensor like p"):
        optimizer.step()
    assert p.tolist() == [1.0, 2.0]
    assert not optimizer.state


@pytest.mark.parametrize(("kind", "options"), [(optim.SGD, {"momentum": 0.9}), (optim.AdamW, {})])
def test_a_model_that_changes_its_dtype_between_steps_is_refused(kind, options):
    model = nn.Linear(2, 1)
    optimizer = kind(model.parameters(), lr=0.1, **options)
    model(mt.ones(1, 2)).sum().backward()
    optimizer.step()
    model.double()
    model(mt.ones(1, 2, dtype=mt.float64)).sum().backward()
    with pytest.raises(RuntimeError, match="after changing the model"):
        optimizer.step()


# --- state --------------------------------------------------------------------------------------------------


def trained(kind, steps=3, **options):
    params = [leaf(np.full(shape, 2.0)) for shape in SHAPES]
    optimizer = kind(params, lr=0.1, **options)
    for _ in range(steps):
        one_step(optimizer)
    return params, optimizer


def one_step(optimizer):
    for p in optimizer.param_groups[0]["params"]:
        give(p, np.cos(p.array))
    optimizer.step()


@pytest.mark.parametrize(("kind", "options"), [(optim.SGD, {"momentum": 0.9}), (optim.AdamW, {})])
def test_a_state_dict_is_a_snapshot_that_resumes_exactly(kind, options):
    params, optimizer = trained(kind, **options)
    values, state = [p.array.copy() for p in params], optimizer.state_dict()
    frozen = copy.deepcopy(state)
    one_step(optimizer)
    again, other = trained(kind, steps=1, **options)
    for p, value in zip(again, values, strict=True):
        p.array[...] = value
    other.load_state_dict(state)
    one_step(other)
    for p, q in zip(params, again, strict=True):
        assert np.array_equal(p.array, q.array)
    name = optimizer.slots[0]
    assert all(
        np.array_equal(state["state"][i][name].array, frozen["state"][i][name].array) for i in range(3)
    )


def test_a_state_dict_has_pytorchs_layout():
    _, optimizer = trained(optim.AdamW)
    state = optimizer.state_dict()
    assert list(state) == ["state", "param_groups"]
    assert list(state["state"]) == [0, 1, 2]
    assert state["state"][0]["step"] == 3
    assert isinstance(state["state"][0]["exp_avg"], mt.Tensor)
    assert state["param_groups"][0]["params"] == [0, 1, 2]
    assert state["param_groups"][0]["betas"] == (0.9, 0.999)


def test_a_state_that_does_not_fit_changes_nothing():
    params, optimizer = trained(optim.AdamW)
    before = optimizer.state_dict()
    wrong = [optimizer.state_dict() for _ in range(7)]
    wrong[0]["param_groups"].append(wrong[0]["param_groups"][0])
    wrong[1]["param_groups"][0]["params"].append(3)
    wrong[2]["state"][1]["exp_avg"] = mt.zeros(5)
    wrong[3]["state"][7] = wrong[3]["state"][0]
    del wrong[4]["state"][0]["step"]
    del wrong[5]["param_groups"][0]["betas"]
    wrong[6]["state"][1]["step"] = "many"
    texts = (
        "2 parameter groups, not 1",
        "4 parameters, not 3",
        r"\(5,\), not \(4,\)",
        "parameter 7",
        "no step",
        "'betas'",
        "step of parameter 1 is 'many'",
    )
    for state, text in zip([*wrong, {}], [*texts, "param_groups"], strict=True):
        state.setdefault("param_groups", [{}])[0]["lr"] = 9.0
        if state.keys() == {"param_groups"}:
            del state["param_groups"]
        with pytest.raises(ValueError, match=text):
            optimizer.load_state_dict(state)
        assert optimizer.param_groups[0]["lr"] == 0.1
    assert np.array_equal(optimizer.state[params[0]]["exp_avg"], before["state"][0]["exp_avg"].array)


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.AdamW])
@pytest.mark.parametrize(
    ("option", "wrong", "kind", "words"),
    [
        ("lr", "a", TypeError, r"\.lr: 'a' is no number; "),
        ("lr", None, TypeError, r"\.lr: None is no number; "),
        ("lr", math.nan, ValueError, ": lr is nan; make it finite, and 0 or more"),
        ("lr", math.inf, ValueError, ": lr is inf; make it finite, and 0 or more"),
        ("weight_decay", math.inf, ValueError, ": weight_decay is inf; make it finite, and 0 or more"),
        ("lr", -0.1, ValueError, r": lr is -0\.1; make it finite, and 0 or more"),
        ("weight_decay", -1, ValueError, r": weight_decay is -1\.0; make it finite, and 0 or more"),
    ],
)
def test_an_option_that_became_impossible_is_refused_by_step_before_anything_changes(
    make, option, wrong, kind, words
):
    params = [leaf([1.0]), leaf([2.0])]
    optimizer = make([{"params": [p]} for p in params], lr=0.1)
    for p in params:
        p.grad = mt.ones(1, dtype=p.dtype)
    optimizer.param_groups[1][option] = wrong
    with pytest.raises(kind, match=f"^{make.__name__}{words}"):
        optimizer.step()
    assert [p.item() for p in params] == [1.0, 2.0]
    assert not optimizer.state
    optimizer.param_groups[1][option] = 0.1
    optimizer.step()
    assert params[1].item() < 2.0


@pytest.mark.parametrize("kind", [optim.SGD, optim.Adam, optim.AdamW])
def test_a_group_that_lacks_an_option_is_named_before_anything_changes(kind):
    for option in ("params", *kind([leaf([1.0])]).defaults):
        params = [leaf([1.0]), leaf([2.0])]
        optimizer = kind([{"params": [p]} for p in params], lr=0.1)
        for p in params:
            p.grad = mt.ones(1, dtype=p.dtype)
        kept = optimizer.param_groups[1].pop(option)
        words = rf"group 1 has no '{option}'; .*param_groups\[1\]"
        calls = [optimizer.step] if option != "params" else [optimizer.zero_grad, optimizer.state_dict]
        for call in [optimizer.step, *calls]:
            with pytest.raises(ValueError, match=f"^{kind.__name__}: {words}"):
                call()
        assert [p.item() for p in params] == [1.0, 2.0]
        assert params[0].grad.item() == 1.0
        assert not optimizer.state
        for schedule in KINDS if option == "lr" else ():
            given = [p.name for p in inspect.signature(schedule).parameters.values() if p.default is p.empty]
            given = {name: OPTIONS[name](two_groups()) for name in given if name in OPTIONS}
            if schedule is not lrs.SequentialLR:  # its parts cannot be made
                with pytest.raises(ValueError, match=f"^{schedule.__name__}: {words}"):
                    schedule(optimizer, **given)
                assert "initial_lr" not in optimizer.param_groups[0]
        optimizer.param_groups[1][option] = kept
        optimizer.step()
        assert params[1].item() < 2.0


# --- schedules ----------------------------------------------------------------------------------------------


def test_linear_warmup_uses_its_first_rate_at_the_first_step():
    p = leaf([0.0])
    optimizer = optim.SGD([p], lr=1.0)
    schedule = lrs.LambdaLR(optimizer, lambda t: min(1.0, (t + 1) / 4))
    used = []
    for _ in range(6):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert used == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_rate_that_is_no_number_is_refused_by_the_schedule_that_made_it():
    optimizer = optim.SGD([leaf([0.0])], lr=1.0)
    with pytest.raises(TypeError, match=r"^LambdaLR\.lr_lambda: 'a' is no number; "):
        lrs.LambdaLR(optimizer, lambda t: "a")
    with pytest.raises(TypeError, match=r"^LambdaLR\.lr_lambda: None is no number; "):
        lrs.LambdaLR(optimizer, lambda t: None)
    assert optimizer.param_groups[0]["lr"] == 1.0

    class Textual(lrs.LRScheduler):
        def get_lr(self):
            return ["0.1"]

    with pytest.raises(TypeError, match=r"^Textual\.get_lr: '0\.1' is no number; "):
        Textual(optimizer)
    schedule = lrs.LambdaLR(optimizer, lambda t: mt.tensor(0.5))
    assert schedule.get_last_lr() == [0.5]
    optimizer = optim.SGD([leaf([0.0])], lr=1.0)
    optimizer.param_groups[0]["lr"] = "a"
    with pytest.raises(TypeError, match=r"^StepLR\.lr: 'a' is no number; "):
        lrs.StepLR(optimizer, 2)


KINDS = [getattr(lrs, name) for name in lrs.__all__ if name not in ("LRScheduler", "noam")]
OPTIONS = {  # what each schedule must be given
    "lr_lambda": lambda o: lambda t: 0.5,
    "step_size": lambda o: 2,
    "milestones": lambda o: [2],
    "gamma": lambda o: 0.5,
    "T_max": lambda o: 5,
    "d_model": lambda o: 4,
    "warmup_steps": lambda o: 4,
    "schedulers": lambda o: [lrs.StepLR(o, 2), lrs.ConstantLR(o)],
}
WRONG = [
    "a",
    None,
    [1],
    ["a"],
    {2},
    -1,
    0,
    1.5,
    1j,
    math.nan,
    math.inf,
    np.array(0.5),
    np.bool_(True),
    object,
]
WRONG += [
    lambda: 1,
    lambda t: "a",
    lambda t: 1 // 0,
    [lambda t: None],
    [lambda t: 0.5, lambda t: [1]],
    leaf([1.0]),
]


def two_groups(lr=0.5):
    return optim.SGD([{"params": [leaf([1.0])]}, {"params": [leaf([2.0])], "lr": 0.25}], lr=lr)


@pytest.mark.parametrize("seasoned", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_that_refuses_to_be_made_leaves_its_optimiser_as_it_was(kind, seasoned):
    refused = set()
    for name in list(inspect.signature(kind).parameters)[1:]:
        for wrong in WRONG:
            optimizer = two_groups()
            if seasoned:
                lrs.ExponentialLR(optimizer, 0.5).step()
            given = {
                p.name: OPTIONS[p.name](optimizer)
                for p in inspect.signature(kind).parameters.values()
                if p.default is p.empty and p.name != "optimizer"
            }
            before = copy.deepcopy([{**group, "params": 0} for group in optimizer.param_groups])
            try:
                kind(optimizer, **{**given, name: wrong})
            except Exception:
                refused.add(name)
                assert [{**group, "params": 0} for group in optimizer.param_groups] == before, (name, wrong)
                schedule = lrs.StepLR(optimizer, 1)
                schedule.step()
                assert schedule.get_last_lr() == [0.05, 0.025], (name, wrong)
    assert refused == {*inspect.signature(kind).parameters} - {"optimizer"}


@pytest.mark.parametrize("rates", [lambda: [0.1, "a"], lambda: [0.1], lambda: [0.1] * 3, lambda: 1 / 0])
def test_a_step_of_a_schedule_that_refuses_changes_nothing(rates):
    class Odd(lrs.LRScheduler):
        def get_lr(self):
            return rates() if self.last_epoch else self.base_lrs

    class Odder(lrs.LRScheduler):
        def get_lr(self):
            return rates()

    optimizer = two_groups()
    schedule = Odd(optimizer)
    for _ in "ab":
        with pytest.raises((ValueError, TypeError, ZeroDivisionError)) as caught:
            schedule.step()
        assert caught.type is ZeroDivisionError or re.match(r"Odd(\.get_lr)?: .*; ", str(caught.value))
        assert schedule.last_epoch == 0
        assert schedule.get_last_lr() == [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    lrs.StepLR(optimizer, 1).step()  # the other steps nothing
    fresh = two_groups()
    with pytest.raises((ValueError, TypeError, ZeroDivisionError)):
        Odder(fresh)
    assert [(group["lr"], "initial_lr" in group) for group in fresh.param_groups] == [
        (0.5, False),
        (0.25, False),
    ]


def test_a_group_that_comes_after_its_schedule_is_told():
    optimizer = two_groups()
    schedule = lrs.ExponentialLR(optimizer, 0.5)
    optimizer.add_param_group({"params": [leaf([3.0])], "lr": 1.0})
    with pytest.raises(ValueError, match=r"^ExponentialLR: 2 rates for 3 groups; .*add_param_group"):
        schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25, 1.0]


def test_noam_peaks_at_the_end_of_the_warmup():
    rate = lrs.noam(512, 4000)
    assert rate(0) == 0.0
    assert rate(2) == pytest.approx(2 * rate(1))
    assert rate(3999) < rate(4000) > rate(4001)
    assert rate(4000) == pytest.approx((512 * 4000) ** -0.5)
    assert rate(16000) == pytest.approx(rate(4000) / 2)


def test_noam_lr_starts_at_step_one_whatever_the_optimizers_lr():
    optimizer = optim.Adam([leaf([1.0])], lr=123.0)
    schedule, rate = lrs.NoamLR(optimizer, 64, 10, factor=2.0), lrs.noam(64, 10, factor=2.0)
    for step in range(1, 25):
        assert optimizer.param_groups[0]["lr"] == rate(step)
        assert schedule.get_last_lr() == [rate(step)]
        schedule.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda: lrs.noam(0, 10),
        lambda: lrs.noam(10, 0),
        lambda: lrs.noam(1, 1)(-1),
        lambda: lrs.StepLR(optim.SGD([leaf([1.0])]), 0),
        lambda: lrs.LinearLR(optim.SGD([leaf([1.0])]), 0.0),
        lambda: lrs.LambdaLR(optim.SGD([leaf([1.0])]), [abs, abs]),
        lambda: lrs.SequentialLR(optim.SGD([leaf([1.0])]), [], []),
        lambda: lrs.StepLR(optim.SGD([leaf([1.0])]), 1, last_epoch=3),
    ],
)
def test_impossible_schedules_are_refused(make):
    with pytest.raises(ValueError, match=";"):
        make()


SCHEDULES = {
    "lambda": lambda m, o: m.LambdaLR(o, [lambda t: 0.9**t, lambda t: 1.0 / (t + 1)]),
    "step": lambda m, o: m.StepLR(o, 4, gamma=0.5),
    "linear": lambda m, o: m.LinearLR(o, 0.25, 0.75, total_iters=7),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, 12, eta_min=0.001),
    "sequential": lambda m, o: m.SequentialLR(
        o, [m.LinearLR(o, 0.1, total_iters=5), m.CosineAnnealingLR(o, 10), m.StepLR(o, 2)], [5, 15]
    ),
}


def test_a_schedule_resumes_from_its_state():
    for name, make in SCHEDULES.items():
        optimizers = [
            optim.SGD([{"params": [leaf([1.0])]}, {"params": [leaf([1.0])], "lr": 0.5}], lr=0.1) for _ in "ab"
        ]
        first, second = (make(lrs, o) for o in optimizers)
        for _ in range(8):
            first.step()
        second.load_state_dict(first.state_dict())
        for _ in range(8):
            first.step()
            second.step()
            assert first.get_last_lr() == second.get_last_lr(), name


def test_a_schedules_foreign_state_is_refused():
    optimizer = optim.SGD([leaf([1.0])])
    schedule = lrs.StepLR(optimizer, 3)
    with pytest.raises(ValueError, match="step_size"):
        schedule.load_state_dict(lrs.CosineAnnealingLR(optimizer, 3).state_dict())


def test_two_schedules_that_step_one_optimizer_are_refused():
    optimizer = optim.SGD([leaf([1.0])], lr=1.0)
    first, second = lrs.LinearLR(optimizer, 0.1), lrs.StepLR(optimizer, 3)
    first.step()
    rate = optimizer.param_groups[0]["lr"]
    with pytest.raises(
        RuntimeError, match=r"StepLR: a LinearLR steps this optimiser already.*; join them with Seq"
    ):
        second.step()
    assert (second.last_epoch, optimizer.param_groups[0]["lr"]) == (0, rate)
    first.step()


def test_a_schedule_may_follow_one_that_is_gone_and_copies_are_apart():
    optimizer = optim.SGD([leaf([1.0])], lr=1.0)
    schedule = lrs.LinearLR(optimizer, 0.1)
    schedule.step()
    copied = copy.deepcopy(schedule)
    copied.step()
    assert copied.optimizer is not optimizer
    schedule = lrs.StepLR(optimizer, 3)
    schedule.step()
    other = optim.SGD([leaf([1.0])], lr=1.0)
    parts = [lrs.LinearLR(other, 0.1), lrs.StepLR(other, 3)]
    joined = lrs.SequentialLR(other, parts, [2])
    joined.step()
    with pytest.raises(RuntimeError, match="a SequentialLR steps"):
        parts[0].step()


# --- against PyTorch ----------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "sgd ascent": ("SGD", {"lr": 0.1, "momentum": 0.5, "maximize": True, "weight_decay": 0.01}),
    "adam": ("Adam", {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    "adam ascent": ("Adam", {"lr": 0.02, "maximize": True}),
    "adam decoupled": ("Adam", {"lr": 0.02, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adamw": ("AdamW", {"lr": 0.02, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_equal_pytorchs_in_float64(name, schedule, rng):
    torch = pytest.importorskip("torch")
    kind, options = OPTIMIZERS[name]
    values = [rng.normal(size=shape) for shape in SHAPES]
    ours = [leaf(v) for v in values]
    theirs = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in values]

    def build(optim_module, params):
        groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.3, "weight_decay": 0.2}]
        return getattr(optim_module, kind)(groups, **options)

    a, b = build(optim, ours), build(torch.optim, theirs)
    schedules = (
        [SCHEDULES[schedule](m, o) for m, o in ((lrs, a), (torch.optim.lr_scheduler, b))] if schedule else []
    )
    for step in range(20):
        for i, (p, q) in enumerate(zip(ours, theirs, strict=True)):
            g = None if (step + i) % 5 == 0 else rng.normal(size=SHAPES[i])  # now and then there is none
            p.grad = None if g is None else mt.tensor(np.asarray(g))
            q.grad = None if g is None else torch.tensor(g, dtype=torch.float64)
        a.step()
        b.step()
        for s in schedules:
            s.step()
        lr = [[g["lr"] for g in o.param_groups] for o in (a, b)]
        np.testing.assert_allclose(*lr, rtol=1e-12, atol=1e-17)
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.array, q.detach().numpy(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_pytorchs_state_dict_can_be_loaded(name):
    torch = pytest.importorskip("torch")
    kind, options = OPTIMIZERS[name]
    q = torch.ones(3, dtype=torch.float64, requires_grad=True)
    theirs = getattr(torch.optim, kind)([q], **options)
    q.grad = torch.arange(3, dtype=torch.float64)
    theirs.step()
    p = leaf(q.detach().numpy())
    ours = getattr(optim, kind)([p], lr=9.0)
    ours.load_state_dict(theirs.state_dict())
    give(p, np.arange(3.0))
    ours.step()
    theirs.step()
    np.testing.assert_allclose(p.array, q.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
def test_a_state_that_was_saved_before_there_was_amsgrad_fits(kind):
    def stepped():
        p = leaf([1.0, 2.0])
        optimiser = kind([p], lr=0.1)
        give(p, [1.0, 1.0])
        optimiser.step()
        return optimiser

    state = stepped().state_dict()
    assert "max_exp_avg_sq" not in state["state"][0]
    del state["param_groups"][0]["amsgrad"]
    optimiser = stepped()
    optimiser.load_state_dict(state)
    assert optimiser.param_groups[0]["amsgrad"] is False


def test_amsgrad_does_not_forget_a_large_gradient():
    """Reddi, Kale & Kumar 2018: Adam soon steps as before, amsgrad does not."""

    def last_step(amsgrad):
        p = leaf([0.0])
        optimiser = optim.Adam([p], lr=0.1, betas=(0.0, 0.5), amsgrad=amsgrad)
        for g in [100.0, *[1.0] * 30]:
            give(p, [g])
            before = p.item()
            optimiser.step()
        return abs(p.item() - before)

    assert last_step(False) > 50 * last_step(True)
