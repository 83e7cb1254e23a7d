"""The trainer: a run that was stopped and resumed equals one that was not, however it was stopped."""

import itertools
import json
import re
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
from microtensor import nn, optim
from microtensor.data import DataLoader, TensorDataset
from microtensor.train import Trainer, interrupt, load_checkpoint
from microtensor.train.stream import BatchStream

F = nn.functional


def loss_fn(model, batch):
    x, y = batch
    return F.mse_loss(model(x), y)


def build(seed=0, shuffle=True, own=True, wrap=lambda loader: loader, **options):
    """A small run with everything that has a state: dropout, AdamW, a schedule, a shuffling loader."""
    mt.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    x = mt.tensor(np.random.default_rng(7).normal(size=(14, 3)).astype(np.float32))
    generator = mt.Generator().manual_seed(seed) if own else None
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 4, shuffle=shuffle, generator=generator)
    options = {"max_steps": 12, "progress": False, "loss_fn": loss_fn, **options}
    schedule = optim.lr_scheduler.NoamLR(optimizer, 16, 5)
    return Trainer(model, optimizer, wrap(loader), scheduler=schedule, **options)


def weights_of(trainer):
    return [p.array.tobytes() for p in trainer.model.parameters()]


def everything(trainer):
    """All that must be equal bit for bit."""
    state = trainer.optimizer.state_dict()
    moments = [
        v.array.tobytes() for s in state["state"].values() for v in s.values() if isinstance(v, mt.Tensor)
    ]
    loader = {
        k: v if v is None or isinstance(v, int) else v.tolist()
        for k, v in trainer._stream.state_dict().items()
    }
    return (
        weights_of(trainer),
        moments,
        state["param_groups"],
        trainer.scheduler.state_dict(),
        loader,
        mt.get_rng_state().tolist(),
    )


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "log.jsonl").read_text().splitlines()]


# --- resumed equals uninterrupted ---------------------------------------------------------------------------

run = {
    "kill": st.integers(1, 11),
    "every": st.integers(1, 4),
    "accumulate": st.integers(1, 3),
    "shuffle": st.booleans(),
    "own": st.booleans(),
    "grad_clip": st.sampled_from([None, 0.5]),
}


class Killed(Exception):
    pass


@given(**run)
def test_a_killed_run_that_resumes_ends_with_the_same_bits(kill, every, tmp_path_factory, **options):
    def die(trainer):
        if trainer.step == kill:
            raise Killed

    whole, broken = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("broken")
    common = {"checkpoint_every": every, "log_every": 1, **options}
    uninterrupted = build(checkpoint=whole, **common)
    uninterrupted.fit()
    want = everything(uninterrupted)
    with pytest.raises(Killed):
        build(checkpoint=broken, callbacks=[die], **common).fit()
    again = build(
        seed=99, checkpoint=broken, **common
    )  # other weights, orders and masks, were they not restored
    if again.checkpoints.newest() is None:
        assert kill <= every  # callbacks come before the checkpoint of a step
        return
    again.resume()
    assert everything(again) == want
    assert losses(broken) == losses(whole)


class Plain:
    """A loader that keeps no state of its own."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("stop", [1, 3, 4, 6, 11])
def test_a_loader_without_state_is_started_again_and_read_up_to_its_position(stop, shuffle, tmp_path):
    common = {"shuffle": shuffle, "own": False, "wrap": Plain}
    whole = build(**common)
    whole.fit()
    want = weights_of(whole)
    build(max_steps=stop, checkpoint=tmp_path, **common).fit()
    again = build(seed=99, checkpoint=tmp_path, **common)
    again.resume()
    assert weights_of(again) == want


@pytest.mark.parametrize("stop", [1, 7])
def test_a_stream_of_random_batches_resumes(stop, tmp_path):
    class Crops:  # as in nanoGPT: every batch is drawn anew, there are no epochs
        def __iter__(self):
            while True:
                x = mt.randn(4, 3)
                yield x, x[:, :1]

    whole = build(wrap=lambda loader: Crops())
    whole.fit()
    want = weights_of(whole)
    build(max_steps=stop, checkpoint=tmp_path, wrap=lambda loader: Crops()).fit()
    again = build(seed=99, checkpoint=tmp_path, wrap=lambda loader: Crops())
    again.resume(tmp_path)
    assert weights_of(again) == want


def test_fit_may_go_on_with_more_steps():
    whole, twice = build(), build(max_steps=5)
    whole.fit()
    want = everything(whole)
    twice = build(max_steps=5)
    twice.fit()
    twice.max_steps = 12
    twice.fit()
    assert everything(twice) == want


def test_generators_of_the_user_resume(tmp_path):
    def noisy(noise):
        def loss(model, batch):
            return (model(batch[0]) * noise.normal()).sum()

        return loss

    def make(seed, **options):
        noise = np.random.default_rng(seed)
        return build(seed, loss_fn=noisy(noise), generators={"noise": noise}, **options)

    whole = make(0)
    whole.fit()
    want = everything(whole)
    make(0, max_steps=5, checkpoint=tmp_path).fit()
    again = make(99, checkpoint=tmp_path)
    again.resume()
    assert everything(again) == want


# --- Ctrl-C and SIGKILL -------------------------------------------------------------------------------------


def press(trainer):
    if trainer.step == 5:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_resume(tmp_path):
    whole = build()
    whole.fit()
    want = everything(whole)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(
        KeyboardInterrupt, match=r"after step 5; .*step-00000005\.safetensors' holds step 5; go on"
    ):
        build(checkpoint=tmp_path, callbacks=[press]).fit()
    assert signal.getsignal(signal.SIGINT) is before
    again = build(seed=99, checkpoint=tmp_path)
    again.resume()
    assert everything(again) == want


def test_ctrl_c_in_the_middle_of_a_step_lets_it_finish():
    calls = itertools.count(1)

    def loss(model, batch):
        if next(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return loss_fn(model, batch)

    trainer = build(loss_fn=loss)
    with pytest.raises(KeyboardInterrupt, match="after step 3; nothing is saved"):
        trainer.fit()
    trainer.fit()
    assert trainer.step == 12


def test_a_second_ctrl_c_stops_at_once_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    clock = iter([10.0, 10.999, 11.0])  # the one between is the key that bounces
    monkeypatch.setattr(interrupt, "monotonic", lambda: next(clock))

    def loss(model, batch):
        if trainer.step == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it goes on")
        return loss_fn(model, batch)

    trainer = build(loss_fn=loss, checkpoint=tmp_path, checkpoint_every=2)
    with pytest.raises(KeyboardInterrupt, match=r"after step 5; .* holds step 4"):
        trainer.fit()
    assert load_checkpoint(trainer.checkpoints.newest()).step == 4


def test_another_thread_can_train():
    trainer = build()
    thread = threading.Thread(target=trainer.fit)
    thread.start()
    thread.join()
    assert trainer.step == 12


# --- the loop -----------------------------------------------------------------------------------------------


def test_accumulating_two_halves_equals_one_batch_of_the_whole():
    x = mt.randn(8, 3)

    def trained(size, accumulate):
        mt.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(x, x[:, :1]), size)
        Trainer(
            model, optimizer, loader, loss_fn=loss_fn, max_steps=3, accumulate=accumulate, progress=False
        ).fit()
        return model.weight.detach().numpy()

    np.testing.assert_allclose(trained(4, 2), trained(8, 1), rtol=1e-5)  # float32, another order of the sum


def test_clipping_bounds_the_step():
    trainer = build(grad_clip=1e-3, max_steps=1)
    trainer.optimizer = optim.SGD(trainer.model.parameters(), lr=1.0)
    trainer.scheduler = None
    before = [p.array.copy() for p in trainer.model.parameters()]
    trainer.fit()
    moved = sum(
        float(((p.array - b) ** 2).sum()) for p, b in zip(trainer.model.parameters(), before, strict=True)
    )
    assert moved**0.5 == pytest.approx(1e-3, rel=1e-3)
    assert trainer.grad_norm > 1e-3


def test_evaluation_sees_eval_mode_and_leaves_training_as_it_was():
    seen = []

    def evaluate(model):
        seen.append((model.training, mt.is_grad_enabled()))
        return {"score": mt.tensor(2.0)}

    trainer = build(eval_every=5, evaluate=evaluate, log_every=100)
    frozen = trainer.model[1]
    trainer.callbacks = (lambda t: frozen.eval(),)
    trainer.fit()
    assert seen == [(False, False)] * 2
    assert trainer.model.training
    assert not frozen.training
    assert [r.get("score") for r in trainer.history] == [2.0, 2.0, None]
    assert [r["step"] for r in trainer.history] == [5, 10, 12]


def test_evaluating_on_the_training_loader_is_refused():
    trainer = build(eval_every=1, evaluate=lambda model: len(list(trainer.train_loader)))
    with pytest.raises(RuntimeError, match="loader of its own"):
        trainer.fit()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, r"NoneType None for 'evaluation'"),
        ({"a": 1.0, "b": None}, r"NoneType None for 'b'"),
        (mt.ones(2), r"a tensor of shape \(2,\)"),
    ],
)
def test_an_evaluation_that_is_no_number_is_said(result, said):
    trainer = build(eval_every=1, evaluate=lambda model: result)
    with pytest.raises(TypeError, match=rf"Trainer: evaluate returned {said}.*; return a number"):
        trainer.fit()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda y: y.mean().item(), "float"),
        (lambda y: None, "NoneType None"),
        (lambda y: y[:2, 0], r"a tensor of shape \(2,\)"),
        (lambda y: (y.mean().detach(), 3), r"a tensor of shape \(\) that needs no gradient"),
    ],
)
def test_a_loss_that_is_no_scalar_tensor_is_said_before_the_weights_move(loss, said):
    trainer = build(loss_fn=lambda model, batch: loss(model(batch[0])))
    before = weights_of(trainer)
    with pytest.raises(TypeError, match=rf"Trainer: loss_fn returned {said}.*; return a recorded tensor"):
        trainer.fit()
    assert weights_of(trainer) == before


def test_the_log_has_one_json_line_per_logged_step(tmp_path):
    def counted(model, batch):
        return loss_fn(model, batch), len(batch[0])

    trainer = build(checkpoint=tmp_path, log_every=5, loss_fn=counted, grad_clip=1.0)
    history = trainer.fit()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines == history
    assert [line["step"] for line in lines] == [5, 10, 12]
    names = ("step", "loss", "lr", "grad_norm", "tokens_per_second", "peak_memory", "bytes_kept")
    assert set(lines[0]) == set(names)
    assert lines[0]["lr"] == pytest.approx(optim.lr_scheduler.noam(16, 5)(5))


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run_and_names_the_step(where, tmp_path):
    def bad(model, batch):
        if trainer.step < 6:
            return loss_fn(model, batch)
        zero = model(batch[0]).mean() * 0.0
        return zero / 0.0 if where == "loss" else zero.abs().sqrt()  # √x is finite at 0, its slope is not

    trainer = build(loss_fn=bad, checkpoint=tmp_path, checkpoint_every=2, grad_clip=1.0)
    with pytest.raises(RuntimeError, match=r"at step 7.*; lower the learning rate") as caught:
        trainer.fit()
    assert where in str(caught.value)
    assert all(np.isfinite(p.array).all() for p in trainer.model.parameters())
    assert load_checkpoint(trainer.checkpoints.newest()).step == 6


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    def spoil(trainer):
        if trainer.step == 5:
            trainer.model[0].weight.array[0, 0] = np.nan

    trainer = build(checkpoint=tmp_path, checkpoint_every=5, callbacks=[spoil])
    with pytest.raises(RuntimeError, match=r"0\.weight is not finite after step 5"):
        trainer.fit()
    assert trainer.checkpoints.newest() is None


def test_callbacks_may_stop_the_run(tmp_path):
    trainer = build(checkpoint=tmp_path, callbacks=[lambda t: t.stop() if t.step == 3 else None])
    trainer.fit()
    assert trainer.step == 3
    assert load_checkpoint(trainer.checkpoints.newest()).step == 3


def test_the_bar_shows_loss_rate_and_tokens(capsys):
    build(progress=True, loss_fn=lambda m, b: (loss_fn(m, b), 7)).fit()
    text = capsys.readouterr().err
    assert "12/12" in text
    assert all(word in text for word in ("loss=", "lr=", "tokens/s="))


# --- folders ------------------------------------------------------------------------------------------------


def test_a_folder_keeps_the_newest_checkpoints(tmp_path):
    build(checkpoint=tmp_path / "new" / "folder", checkpoint_every=2, keep=2, config={"a": 1}).fit()
    names = sorted(p.name for p in (tmp_path / "new" / "folder").iterdir())
    assert names == ["log.jsonl", "step-00000010.safetensors", "step-00000012.safetensors"]


def test_one_file_is_replaced_by_each_checkpoint(tmp_path):
    path = tmp_path / "run.safetensors"
    build(checkpoint=path, checkpoint_every=5, config={"a": 1}).fit()
    found = load_checkpoint(path)
    assert (found.step, found.config) == (12, {"a": 1})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.jsonl", "run.safetensors"]


def test_a_new_run_does_not_overwrite_an_old_one(tmp_path):
    build(checkpoint=tmp_path).fit()
    with pytest.raises(ValueError, match=r"an earlier run left .*step-00000012.*; go on with resume"):
        build(checkpoint=tmp_path).fit()
    build(checkpoint=tmp_path).resume()


def test_going_back_beside_later_checkpoints_is_refused(tmp_path):
    build(checkpoint=tmp_path, checkpoint_every=4).fit()
    trainer = build(checkpoint=tmp_path)
    with pytest.raises(ValueError, match="goes on to step 12"):
        trainer.resume(tmp_path / "step-00000004.safetensors")
    trainer = build(checkpoint=tmp_path / "other")
    trainer.resume(tmp_path / "step-00000004.safetensors")
    assert trainer.step == 12


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        build(checkpoint=tmp_path).resume()
    with pytest.raises(ValueError, match=r"resume\(path\)"):
        build().resume()
    with pytest.raises(RuntimeError, match="no place"):
        build().save()
    build(checkpoint=tmp_path).fit()
    trainer = build(checkpoint=tmp_path)
    trainer.scheduler = None
    with pytest.raises(ValueError, match="NoamLR"):
        trainer.load()


@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 0},
        {"accumulate": 0},
        {"grad_clip": 0.0},
        {"keep": 0},
        {"eval_every": 3},
        {"checkpoint_every": 1.5},
    ],
)
def test_impossible_numbers_are_refused(options):
    with pytest.raises(ValueError, match=rf"Trainer: {next(iter(options))}.*;"):
        build(**options)


def test_a_loader_without_batches_is_refused():
    with pytest.raises(ValueError, match="train_loader, a list, gave 0 batches and then none; give what can"):
        next(BatchStream([]))
    stream = BatchStream(iter([1, 2]))
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(ValueError, match=r"a list_iterator, gave 2 batches and then none; .* iterated again"):
        next(stream)


def test_every_name_of_ours_in_a_message_exists():
    """Messages of training name cures, such as mt.load; a cure that does not exist is none."""
    package = Path(mt.__file__).parent
    files = [path for room in ("train", "optim", "data") for path in (package / room).glob("*.py")]
    named = {
        name for path in files for name in re.findall(r"\bmt((?:\.[A-Za-z_]\w*)+)", path.read_text("utf-8"))
    }
    assert ".load" in named
    for name in named:
        found = mt
        for part in name[1:].split("."):
            assert hasattr(found, part), f"mt{name}"
            found = getattr(found, part)
