"""Modules, optimisers and schedules: what trained wrongly elsewhere; each with its report."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import nn, optim


class Tied(nn.Module):
    """An embedding whose table is the weight of the output layer, too."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, ids):
        return self.out(self.embedding(ids))


def parameter(*values):
    return nn.Parameter(mt.tensor(values, dtype=mt.float64))


def test_clipping_scales_every_gradient_once():
    """https://github.com/pytorch/pytorch/issues/46168: x + y gave both operands one array"""
    a, b = parameter(0.0, 0.0), parameter(0.0, 0.0)
    ((a + b) * 3.0).sum().backward()
    nn.utils.clip_grad_norm_([a, b], 1.0)
    np.testing.assert_allclose([a.grad.array, b.grad.array], 0.5, rtol=1e-5)


def test_adamw_decays_apart_from_the_moments():
    """https://github.com/pytorch/pytorch/pull/4429, https://github.com/HorizonRobotics/alf/issues/1302"""
    p = parameter(2.0)
    adamw = optim.AdamW([p], lr=0.1, weight_decay=0.5)
    for _ in range(3):
        p.grad = mt.zeros(1, dtype=mt.float64)
        adamw.step()
    assert p.item() == pytest.approx(2.0 * 0.95**3, rel=1e-12)
    q = parameter(10.0)
    adam = optim.Adam([q], lr=0.1, weight_decay=0.5)
    q.grad = mt.tensor([-5.0], dtype=mt.float64)  # g + decay · q = 0
    adam.step()
    assert q.item() == pytest.approx(10.0)


def test_without_a_gradient_nothing_decays():
    """https://github.com/pytorch/pytorch/issues/3740"""
    for make in (optim.AdamW, optim.SGD):
        p, q = parameter(2.0), parameter(2.0)
        p.grad = mt.ones(1, dtype=mt.float64)
        make([p, q], lr=0.1, weight_decay=0.5).step()
        assert q.item() == 2.0


def test_a_tied_parameter_is_one_parameter():
    """https://github.com/pytorch/pytorch/issues/40967"""
    m = Tied()
    assert len(list(m.parameters())) == 1
    w = m.embedding.weight.detach().array.astype(np.float64)
    m(mt.tensor([1])).sum().backward()
    right = np.tile(w[1], (5, 1))
    right[1] += w.sum(0)
    np.testing.assert_allclose(m.out.weight.grad.array, right, atol=1e-5)  # float32
    p = parameter(0.0)
    sgd = optim.SGD([p, p], lr=0.1)
    p.grad = mt.ones(1, dtype=mt.float64)
    sgd.step()
    assert p.item() == pytest.approx(-0.1)


@pytest.mark.parametrize("through", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_tie_survives_copies(through):
    """https://github.com/pytorch/pytorch/issues/188346"""
    m = Tied()
    c = through(m)
    assert c.out.weight is c.embedding.weight
    assert c.out.weight is not m.out.weight
    assert isinstance(c.out.weight, nn.Parameter)
    n = Tied()
    n.load_state_dict(m.state_dict())
    assert n.out.weight is n.embedding.weight
    assert np.array_equal(n.out.weight.detach().array, m.out.weight.detach().array)


def test_warm_up_starts_at_one_step_and_noam_peaks_at_its_end():
    """https://github.com/google-research/bert/issues/1293"""
    p = parameter(0.0)
    sgd = optim.SGD([p], lr=1.0)
    schedule = optim.lr_scheduler.LambdaLR(sgd, lambda step: min(1.0, (step + 1) / 4))
    used = []
    for _ in range(6):
        used.append(sgd.param_groups[0]["lr"])
        p.grad = mt.ones(1, dtype=mt.float64)
        sgd.step()
        schedule.step()
    assert used == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    rate = optim.lr_scheduler.noam(512, 4000)
    assert max(range(1, 9000), key=rate) == 4000
    assert rate(2) == pytest.approx(2 * rate(1))
    assert rate(16000) == pytest.approx(rate(4000) / 2)
    assert rate(4000) == pytest.approx(512**-0.5 * 4000**-0.5)


def test_dropout_scales_what_it_keeps_and_its_gradient_alike():
    """https://github.com/karpathy/nanoGPT/pull/240, https://github.com/pytorch/pytorch/issues/1833"""
    mt.manual_seed(0)
    x = mt.full((20_000,), 3.0, dtype=mt.float64).requires_grad_()
    y = F.dropout(x, 0.2)
    y.sum().backward()
    assert set(np.unique(y.detach().array.round(6))) == {0.0, 3.75}
    # the binomial's standard deviation is 0.0028
    assert (y.detach().array == 0).mean() == pytest.approx(0.2, abs=0.015)
    np.testing.assert_allclose(x.grad.array, y.detach().array / 3.0)


def test_dropout_at_its_ends_and_out_of_training():
    """https://github.com/pytorch/pytorch/issues/5752"""
    x = mt.tensor([1.0, 2.0], requires_grad=True)
    assert F.dropout(x, 0.0).tolist() == F.dropout(x, 0.9, training=False).tolist() == [1.0, 2.0]
    y = F.dropout(x, 1.0)
    y.sum().backward()
    assert y.tolist() == x.grad.tolist() == [0.0, 0.0]
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            F.dropout(x, p)
    m = nn.Sequential(nn.Sequential(nn.Dropout(0.5))).eval()
    assert m(x).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (3,), (), (3, 2)])
def test_loading_never_broadcasts(shape):
    """https://github.com/pytorch/pytorch/issues/8282"""
    m = nn.Linear(3, 2)
    before = m.bias.tolist()
    state = {"bias": mt.ones(2), "weight": mt.ones(shape)}
    with pytest.raises(RuntimeError, match=r"weight has shape .* not \(2, 3\)"):
        m.load_state_dict(state)
    assert m.bias.tolist() == before  # nothing is loaded by halves


def test_loading_names_what_is_missing_and_what_is_too_much():
    """https://github.com/pytorch/pytorch/issues/8619"""
    m = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match=r"bias is missing; extra is unexpected"):
        m.load_state_dict({"weight": m.weight, "extra": mt.ones(1)})
    m.load_state_dict({"weight": m.weight, "extra": mt.ones(1)}, strict=False)


def test_loading_copies_and_keeps_the_parameters():
    """https://github.com/pytorch/pytorch/issues/11200"""
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    weight = b.weight
    b.load_state_dict(a.state_dict())
    assert b.weight is weight
    assert not np.shares_memory(a.weight.array, b.weight.array)
    assert np.array_equal(a.weight.array, b.weight.array)


def test_resuming_gives_the_bits_of_the_run_that_was_not_interrupted():
    """https://github.com/pytorch/pytorch/issues/196083"""

    def start():
        mt.manual_seed(1)
        m = nn.Linear(4, 3)
        return m, optim.Adam(m.parameters(), lr=0.01)

    def train(m, o, steps):
        x = mt.tensor(np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))
        for _ in range(steps):
            o.zero_grad()
            F.dropout(m(x), 0.5).square().sum().backward()
            o.step()

    m, o = start()
    train(m, o, 6)
    right = m.weight.tolist()
    m, o = start()
    train(m, o, 3)
    saved = pickle.dumps((m.state_dict(), o.state_dict(), mt.get_rng_state()))
    mt.manual_seed(99)
    other = nn.Linear(4, 3)
    again = optim.Adam(other.parameters(), lr=0.5)
    state, optimiser, random = pickle.loads(saved)
    other.load_state_dict(state)
    again.load_state_dict(optimiser)
    mt.set_rng_state(random)
    train(other, again, 3)
    assert other.weight.tolist() == right


def test_a_parameter_made_under_no_grad_is_trained():
    """https://github.com/pytorch/pytorch/pull/49017"""
    with mt.no_grad():
        m = nn.Linear(2, 2)
    assert all(p.requires_grad for p in m.parameters())
