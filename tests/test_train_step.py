"""One step of the trainer: the gradient of the mean over all tokens; the op that made what is not finite."""

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_train import build, everything, loss_fn, weights_of

import microtensor as mt
from microtensor import nn, optim
from microtensor.train import Trainer, load_checkpoint
from microtensor.train.generators import get_state

F = nn.functional


def mean_over_tokens(model, batch):
    """The mean over what is no padding (−1); NaN over nothing, as PyTorch's."""
    x, y = batch
    return F.cross_entropy(model(x), y, ignore_index=-1), int((y.array != -1).sum())


def trained(batches, accumulate, dtype=np.float64, **options):
    mt.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    model = model.double() if dtype == np.float64 else model
    options = {"loss_fn": mean_over_tokens, "max_steps": 2, "log_every": 1, "progress": False, **options}
    momentum = optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    trainer = Trainer(model, momentum, list(batches), accumulate=accumulate, **options)
    trainer.fit()
    return trainer


def rows(rng, n, padded=0, dtype=np.float64):
    y = rng.integers(0, 4, n)
    y[:padded] = -1
    return mt.tensor(rng.normal(size=(n, 3)).astype(dtype)), mt.tensor(y)


# --- the mean over all tokens -------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5),
    grad_clip=st.sampled_from([None, 0.01, 0.3, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_accumulated_batches_of_any_token_counts_equal_one_big_batch(sizes, grad_clip, seed):
    sizes = [(n, min(padded, n)) for n, padded in sizes]
    if all(n == padded for n, padded in sizes):
        sizes.append((3, 0))
    rng = np.random.default_rng(seed)
    parts = [rows(rng, *size) for size in sizes]
    whole = tuple(mt.cat(column) for column in zip(*parts, strict=True))
    several, one = trained(parts, len(parts), grad_clip=grad_clip), trained([whole], 1, grad_clip=grad_clip)
    for a, b in zip(several.model.parameters(), one.model.parameters(), strict=True):
        np.testing.assert_allclose(a.array, b.array, rtol=1e-9, atol=1e-12)  # float64, another order
    for a, b in zip(several.history, one.history, strict=True):
        assert (a["loss"], a["grad_norm"]) == pytest.approx((b["loss"], b["grad_norm"]), rel=1e-9)


@pytest.mark.parametrize("accumulate", [1, 2, 3, 7])
def test_equal_counts_give_the_bits_of_the_mean_of_losses(accumulate, rng):
    parts = [rows(rng, 5, dtype=np.float32) for _ in range(accumulate)]
    counted = trained(parts, accumulate, np.float32)
    plain = trained(parts, accumulate, np.float32, loss_fn=lambda m, b: mean_over_tokens(m, b)[0])
    assert weights_of(counted) == weights_of(plain)
    assert [r["loss"] for r in counted.history] == [r["loss"] for r in plain.history]
    by_hand = trained(parts, accumulate, np.float32, max_steps=1)
    mt.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    optimizer = optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for part in parts:
        (mean_over_tokens(model, part)[0] * (1 / accumulate)).backward()
    optimizer.step()
    assert [p.array.tobytes() for p in model.parameters()] == weights_of(by_hand)


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_batch_of_no_tokens_counts_for_nothing_though_its_mean_is_nan(empty, rng):
    parts = [rows(rng, 4), rows(rng, 6)]
    nothing = rows(rng, 3, padded=3)
    assert math.isnan(mean_over_tokens(nn.Linear(3, 4).double(), nothing)[0].item())
    want = trained(parts, 2, max_steps=1)
    parts.insert(empty, nothing)
    found = trained(parts, 3, max_steps=1)
    assert found.loss == pytest.approx(want.loss, rel=1e-12)
    for a, b in zip(found.model.parameters(), want.model.parameters(), strict=True):
        np.testing.assert_allclose(a.array, b.array, rtol=1e-9)


def test_a_step_without_tokens_has_no_gradient_and_says_so(rng):
    with pytest.raises(ValueError, match=r"counted 0 tokens in all of step 1.*; have train_loader leave out"):
        trained([rows(rng, 3, padded=3)], 2)


@pytest.mark.parametrize("n", [-1, 2.5, math.nan, math.inf, None, "5", mt.ones(2), 10**400, 2**53 + 1])
def test_an_impossible_number_of_tokens_is_said_before_the_weights_move(n):
    trainer = build(loss_fn=lambda model, batch: (loss_fn(model, batch), n))
    before = weights_of(trainer)
    with pytest.raises(TypeError, match=r"loss_fn returned .* as its number of tokens; return how many"):
        trainer.fit()
    assert weights_of(trainer) == before


def test_numbers_of_tokens_may_be_tensors_numpys_or_whole_floats():
    for n in (mt.tensor(3), np.int64(3), 3.0):
        trainer = build(loss_fn=lambda model, batch: (loss_fn(model, batch), n), log_every=12)
        assert trainer.fit()[0]["tokens_per_second"] > 0


def test_counting_some_batches_and_not_others_is_refused():
    calls = itertools.count()

    def sometimes(model, batch):
        loss = loss_fn(model, batch)
        return (loss, 4) if next(calls) % 2 else loss

    with pytest.raises(TypeError, match="some batches of step 1 and not of others; return"):
        build(loss_fn=sometimes, accumulate=2).fit()


def test_a_parameter_listed_twice_is_weighted_once(rng):
    parts = [rows(rng, 2), rows(rng, 7)]

    def shared(batches, accumulate):
        mt.manual_seed(0)
        model = nn.Linear(3, 4).double()
        optimizer = optim.SGD([model.weight, model.weight, model.bias], lr=0.5)
        Trainer(model, optimizer, batches, accumulate=accumulate, loss_fn=mean_over_tokens, max_steps=1,
                progress=False).fit()  # fmt: skip
        return model.weight.detach().numpy()

    whole = tuple(mt.cat(column) for column in zip(*parts, strict=True))
    np.testing.assert_allclose(shared(parts, 2), shared([whole], 1), rtol=1e-9)


# --- the first NaN or infinity ------------------------------------------------------------------------------


def line_with(mark):
    with open(__file__, encoding="utf-8") as file:
        return next(i for i, line in enumerate(file, 1) if mark in line and "line_with" not in line)


def bad_at(step, spoil):
    """A loss that goes wrong in the second batch of a step, after dropout was drawn."""

    def loss(model, batch):
        found = loss_fn(model, batch)
        if loss.trainer.step == step - 1 and batch[0].shape[0] == 2:  # the last batch of each epoch
            found = spoil(found)
        return found

    return loss


def stopped(spoil, folder, **options):
    loss = bad_at(4, spoil)
    trainer = build(loss_fn=loss, accumulate=2, checkpoint=folder, checkpoint_every=1, **options)
    loss.trainer = trainer
    with pytest.raises(RuntimeError) as caught:
        trainer.fit()
    assert trainer.step == 3
    assert load_checkpoint(trainer.checkpoints.newest()).step == 3
    assert all(np.isfinite(p.array).all() for p in trainer.model.parameters())
    return str(caught.value)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("form", "place"),
    [
        (lambda x, y: (x, y), r"batch\[0\]"),
        (lambda x, y: {"y": y, "x": x}, r"batch\['x'\]"),
        (lambda x, y: [{"a": [y, x.numpy()]}, "text"], r"batch\[0\]\['a'\]\[1\]"),
    ],
)
def test_data_that_is_not_finite_is_named_with_its_place_and_what_to_do(wrong, form, place, rng):
    """A lower learning rate, the advice where an op made it, would help nothing."""
    x, y = rows(rng, 4, dtype=np.float32)
    x = x.clone()
    x[2, 1] = wrong

    def loss(model, batch):
        return mean_over_tokens(model, (x, y))

    says = rf" at step 1, .*; {place}, float32\(4, 3\), holds {wrong} at \(2, 1\); mend the data, or have"
    with pytest.raises(RuntimeError, match=says) as caught:
        trained([form(x, y)], 1, np.float32, loss_fn=loss)
    assert "learning rate" not in str(caught.value)


def test_the_op_and_line_whose_forward_made_it_first_are_named(tmp_path):
    said = stopped(lambda loss: (loss - loss - 1).log() * loss, tmp_path)  # forward goes wrong
    line = line_with("# forward goes wrong")
    assert re.match(r"Trainer: the loss is nan at step 4, with weights as they were; run again, ", said)
    assert f"log made NaN at () of its result float32(), at {__file__}:{line}" in said


@pytest.mark.parametrize("grad_clip", [None, 1.0])
def test_the_op_and_line_whose_backward_made_it_first_are_named(grad_clip, tmp_path):
    said = stopped(lambda loss: loss + (loss * 0).sqrt(), tmp_path, grad_clip=grad_clip)  # backward does
    assert re.match(r"Trainer: the gradient's norm is (nan|inf) at step 4, with weights as they were", said)
    assert re.search(rf"the backward of <sqrt .*:{line_with('# backward does')}\b.* made inf", said)


def test_the_step_is_run_again_with_the_same_batches_and_dropout(tmp_path):
    seen = []
    calls = itertools.count()

    def loss(model, batch):
        y = model(batch[0])
        noise.numpy.random()  # a generator of the user's
        seen.append((batch[0].array.tobytes(), y.array.tobytes(), get_state("", noise).array.tobytes()))
        found = F.mse_loss(y, batch[1])
        return found / 0.0 if next(calls) in (8, 11) else found  # the last batch of step 3, and again

    noise = mt.Generator().manual_seed(3)
    trainer = build(loss_fn=loss, accumulate=3, generators={"noise": noise})
    with pytest.raises(RuntimeError, match=r"loss is inf at step 3.* div made inf"):
        trainer.fit()
    assert len(seen) == 12
    assert seen[9:] == seen[6:9]


def test_what_no_op_made_or_does_not_come_again_is_said():
    calls = itertools.count()

    def once(model, batch):
        found = loss_fn(model, batch)
        return found / 0.0 if next(calls) == 4 else found

    with pytest.raises(RuntimeError, match=r"step 5.*; run again with anomaly detection, no op made it"):
        build(loss_fn=once).fit()

    def twice(model, batch):
        found = once(model, batch)
        if trainer.step == 4 and seen:
            raise LookupError("the data is gone")
        seen.append(1) if trainer.step == 4 else None
        return found

    seen, calls = [], itertools.count()
    trainer = build(loss_fn=twice)
    with pytest.raises(RuntimeError, match=r"step 5.*; run again, the data is gone; lower the"):
        trainer.fit()


def test_a_gradient_too_large_for_its_norm_is_no_fault_of_an_op():
    def large(model, batch):
        return (model(batch[0].double()) * 1e200).sum() * 1e100

    trainer = build(loss_fn=large)
    trainer.model.double()
    with pytest.raises(RuntimeError, match=r"gradient's norm is inf at step 1"):
        trainer.fit()


def test_bad_data_is_named_as_what_held_it_before(tmp_path):
    def loss(model, batch):
        x = mt.tensor(np.where(trainer.step == 2, np.nan, batch[0].array))
        return F.mse_loss(model(x.float()), batch[1])

    trainer = build(loss_fn=loss, checkpoint=tmp_path, checkpoint_every=1)
    with pytest.raises(RuntimeError, match=r"at step 3.* its input \w+ .* holds NaN at \(0, 0\) already"):
        trainer.fit()
    assert load_checkpoint(trainer.checkpoints.newest()).step == 2


def test_looking_at_the_norm_changes_no_bit():
    looked, bounded = build(), build(grad_clip=math.inf)
    looked.fit()
    want = everything(looked)
    bounded = build(grad_clip=math.inf)
    bounded.fit()
    assert everything(bounded) == want
    assert looked.grad_norm == bounded.grad_norm > 0


def test_the_log_says_what_the_largest_batch_keeps_for_backward():
    kept = []

    def measured(model, batch):
        loss = loss_fn(model, batch)
        kept.append(mt.tape(loss).bytes_kept)
        return loss

    history = build(loss_fn=measured, accumulate=4, log_every=2, max_steps=4).fit()
    assert [r["bytes_kept"] for r in history] == [max(kept[4:8]), max(kept[12:16])]
    assert history[0]["bytes_kept"] > 0
