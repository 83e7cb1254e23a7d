"""A run's folder: it belongs to one run and one process, nothing in it is lost, nothing is left behind."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_train import build, loss_fn, losses, weights_of

import microtensor as mt
from microtensor import nn, optim
from microtensor.data import DataLoader, TensorDataset
from microtensor.train import Trainer, files, load_checkpoint
from microtensor.train.lock import RunLock
from microtensor.train.process import Process, this_process

TESTS = os.path.dirname(os.path.abspath(__file__))
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="makes processes by forking")


def content(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "log.jsonl").read_text().splitlines()]


# --- one folder, one run ------------------------------------------------------------------------------------


@pytest.fixture
def two_runs(tmp_path):
    """A long earlier run and a checkpoint of another, short one; in a folder each."""
    build(checkpoint=tmp_path / "old", checkpoint_every=2, log_every=1).fit()
    build(seed=5, checkpoint=tmp_path / "bak", max_steps=4).fit()
    return tmp_path / "old", tmp_path / "bak" / "step-00000004.safetensors"


def test_loading_from_elsewhere_into_the_folder_of_another_run_is_refused(two_runs):
    old, other = two_runs
    before = content(old)
    trainer = build(checkpoint=old, checkpoint_every=2, log_every=1)
    weights = weights_of(trainer)
    with pytest.raises(ValueError, match=r"step-00000012.* is of another run than .*bak.*; choose another"):
        trainer.resume(other)
    assert trainer.step == 0
    assert weights_of(trainer) == weights
    assert content(old) == before


def test_loading_from_elsewhere_over_a_single_file_is_refused(two_runs, tmp_path):
    _, other = two_runs
    path = tmp_path / "run.safetensors"
    build(checkpoint=path).fit()
    with pytest.raises(ValueError, match=r"another run than .*step-00000004"):
        build(checkpoint=path).load(other)
    assert load_checkpoint(path).step == 12


def test_a_run_that_came_into_the_folder_after_loading_is_refused(two_runs, tmp_path):
    _, other = two_runs
    trainer = build(checkpoint=tmp_path / "new")
    trainer.load(other)
    build(checkpoint=tmp_path / "new", max_steps=6).fit()
    for go_on in (trainer.fit, trainer.save):
        with pytest.raises(ValueError, match="of another run"):
            go_on()
    path = tmp_path / "one.safetensors"
    build(checkpoint=path, max_steps=4).fit()
    trainer = build(checkpoint=path)
    trainer.load()
    build(checkpoint=path).resume()
    with pytest.raises(ValueError, match="another process has replaced"):
        trainer.fit()
    assert load_checkpoint(path).step == 12


def test_saving_into_the_folder_of_another_run_is_refused(two_runs):
    old, _ = two_runs
    before = content(old)
    with pytest.raises(ValueError, match="an earlier run left"):
        build(checkpoint=old).save()
    assert content(old) == before


def test_loading_alone_leaves_the_log_and_fit_trims_it(tmp_path):
    build(checkpoint=tmp_path, checkpoint_every=4, log_every=1, keep=None, max_steps=10).fit()
    os.unlink(tmp_path / "step-00000010.safetensors")
    trainer = build(checkpoint=tmp_path, log_every=1)
    trainer.load()
    assert (trainer.step, len(losses(tmp_path))) == (8, 10)
    trainer.fit()
    assert steps(tmp_path) == list(range(1, 13))


def test_a_checkpoint_just_written_is_never_pruned(tmp_path):
    trainer = build(checkpoint=tmp_path, keep=2)
    for step in (7, 8, 9):
        (tmp_path / f"step-{step:08d}.safetensors").touch()
    trainer.checkpoints.prune(str(tmp_path / "step-00000007.safetensors"))
    assert list(trainer.checkpoints.steps()) == [7, 8, 9]
    trainer.checkpoints.prune(str(tmp_path / "step-00000009.safetensors"))
    assert list(trainer.checkpoints.steps()) == [8, 9]


def test_single_files_in_one_folder_have_a_log_each(tmp_path):
    for name in "ab":
        build(checkpoint=tmp_path / f"{name}.safetensors", max_steps=4, log_every=1).fit()
    build(checkpoint=tmp_path / "a.safetensors", log_every=1).resume()
    lines = {p.name: len(p.read_text().splitlines()) for p in tmp_path.glob("*.jsonl")}
    assert lines == {"a.jsonl": 12, "b.jsonl": 4}


def test_a_folder_and_a_file_in_each_others_place_are_refused_before_training(tmp_path):
    (tmp_path / "a.safetensors").mkdir()
    (tmp_path / "b").touch()
    for name, kind in (("a.safetensors", "a folder"), ("b", "a file")):
        trainer = build(checkpoint=tmp_path / name)
        with pytest.raises(ValueError, match=f"is {kind}; give checkpoint a name"):
            trainer.fit()
        assert trainer.step == 0


# --- what cannot be saved is known before the first step ----------------------------------------------------


class OddLoader(list):
    def state_dict(self):
        return {"position": {1, 2}}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"config": {"out": Path("x")}}, r"config\.out is \w*Path"),
        ({"config": {"deep": [{"f": print}]}}, r"config\.deep\.0\.f is builtin"),
        ({"generators": {"old": np.random.RandomState(0)}}, "generator 'old' is RandomState"),
        ({"wrap": lambda loader: OddLoader(loader)}, r"loader\.position is set"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_training(options, text, tmp_path):
    trainer = build(checkpoint=tmp_path, **options)
    with pytest.raises(TypeError, match=text):
        trainer.fit()
    assert trainer.step == 0
    assert content(tmp_path) == {}


def test_no_generator_takes_the_name_of_the_default_one():
    with pytest.raises(ValueError, match='"default" is the default generator'):
        build(generators={"default": mt.Generator()})


def test_a_frozen_mask_of_minus_infinity_can_be_saved(tmp_path):
    trainer = build(checkpoint=tmp_path)
    mask = nn.Parameter(mt.full((2, 2), -np.inf), requires_grad=False)
    trainer.model.mask = mask
    trainer.fit()
    assert load_checkpoint(trainer.checkpoints.newest()).model["mask"].tolist() == mask.tolist()


# --- parameters outside the optimiser -----------------------------------------------------------------------


def partly(folder, **options):
    mt.manual_seed(0)
    x = mt.randn(64, 4)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    loader = DataLoader(TensorDataset(x, x.sum(-1, keepdim=True)), batch_size=8, shuffle=True)
    options = {"max_steps": 40, "grad_clip": 1.0, "checkpoint": folder, "progress": False, **options}
    return Trainer(net, optim.SGD(net[2].parameters(), lr=0.05), loader, loss_fn=loss_fn, **options)


def test_parameters_outside_the_optimiser_do_not_count_in_clipping(tmp_path):
    seen = []

    def norm(trainer):
        gradients = [p.grad.array for p in trainer.optimizer.param_groups[0]["params"]]
        seen.append((trainer.grad_norm, float(np.sqrt(sum((g**2).sum() for g in gradients)))))

    partly(tmp_path, callbacks=[norm]).fit()
    for before, after in seen:
        assert after == pytest.approx(min(before, 1.0), rel=1e-4)  # float32


def test_a_run_of_half_a_model_resumes_with_the_same_bits(tmp_path):
    whole = partly(tmp_path / "whole")
    whole.fit()
    partly(tmp_path / "broken", max_steps=20).fit()
    again = partly(tmp_path / "broken")
    again.resume()
    assert weights_of(again) == weights_of(whole)
    assert losses(tmp_path / "whole") == losses(tmp_path / "broken")


# --- the log ------------------------------------------------------------------------------------------------


def test_numbers_of_evaluate_do_not_replace_those_of_training(tmp_path):
    def evaluate(model):
        return {"loss": 7.0, "step": -1, "lr": 8.0, "score": 9.0}

    plain = build(log_every=6)
    plain.fit()
    found = build(checkpoint=tmp_path, eval_every=6, evaluate=evaluate, log_every=100).fit()
    own = [[{k: r[k] for k in ("step", "loss", "lr")} for r in history] for history in (found, plain.history)]
    assert own[0] == own[1]
    added = {"eval_loss": 7.0, "eval_step": -1.0, "eval_lr": 8.0, "score": 9.0}
    assert all(added.items() <= r.items() for r in found)
    trainer = build(eval_every=6, evaluate=lambda model: {"loss": 1.0, "eval_loss": 2.0})
    with pytest.raises(ValueError, match="one name in the log"):
        trainer.fit()


DAMAGE = {
    "no text": b"\xff\xfe\x00garbage\n",
    "cut in a record": b'{"step": 999, "lo',
    "zeros after a power cut": b"\0" * 512,
    "UTF-16": '{"step": 3}\n'.encode("utf-16"),
    "another JSON": b'[1, 2]\n"step"\n\n{"step": NaN}\n{"step": 1e999}\n',
    "deep": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("tail", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("crlf", [False, True])
def test_a_damaged_log_does_not_keep_a_run_from_resuming(tail, crlf, tmp_path):
    build(checkpoint=tmp_path, log_every=1, max_steps=6).fit()
    log = tmp_path / "log.jsonl"
    text = log.read_bytes()
    log.write_bytes((text.replace(b"\n", b"\r\n") if crlf else text) + tail)
    build(checkpoint=tmp_path, log_every=1).resume()
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == list(range(1, 13))
    aside = tmp_path / "log.jsonl.damaged"
    kept = aside.read_bytes() if aside.exists() else b""
    assert all(line in kept for line in tail.split(b"\n") if line.strip(b"\0") and b'{"step": ' not in line)


def test_a_log_that_runs_share_is_left_whole_by_one_that_resumes(tmp_path):
    log = tmp_path / "all.jsonl"
    for name, n in (("a", 4), ("b", 10)):
        build(checkpoint=tmp_path / name, log=log, log_every=1, max_steps=n).fit()
    before = log.read_bytes()
    build(checkpoint=tmp_path / "a", log=log, log_every=1, max_steps=5).resume()
    assert log.read_bytes().startswith(before)
    found = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert found == [*range(1, 5), *range(1, 11), 5]


@pytest.mark.parametrize("text", ["# Notes\n", '{"text": "a sample"}\n', "[1]", '\n{"step": 3}\nbye\n'])
@pytest.mark.parametrize("default", [False, True])
def test_a_file_with_other_lines_than_records_is_no_log_and_stays(text, default, tmp_path):
    log = tmp_path / "notes.jsonl"
    log.write_text(text)
    options = {"checkpoint": tmp_path / "notes.safetensors"} if default else {"log": log}
    trainer = build(**options)
    with pytest.raises(
        ValueError, match=r"line \d of the log '.*notes.jsonl' is .*, no record of a run; give"
    ):
        trainer.fit()
    assert (trainer.step, log.read_text()) == (0, text)


def test_a_run_that_is_resumed_takes_no_lines_before_its_own(tmp_path):
    build(checkpoint=tmp_path / "run", max_steps=4).fit()
    log = tmp_path / "notes.md"
    for text in ("# Notes\n", '# Notes\n{"step": 9}\n'):
        log.write_text(text)
        with pytest.raises(ValueError, match=r"line 1 of the log .*, no record of a run"):
            build(checkpoint=tmp_path / "run", log=log).resume()
        assert log.read_text() == text


@pytest.mark.parametrize("resumed", [False, True])
def test_a_last_line_without_its_end_stays_a_line_of_its_own(resumed, tmp_path):
    log = tmp_path / "a.jsonl"
    if resumed:
        build(checkpoint=tmp_path / "run", log=log, log_every=1, max_steps=6).fit()
        log.write_bytes(log.read_bytes()[:-1])
        build(checkpoint=tmp_path / "run", log=log, log_every=1).resume()
        assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == list(range(1, 13))
    else:
        log.write_text('{"step": 1, "lo')
        build(log=log, log_every=12).fit()
        lines = log.read_text().splitlines()
        assert lines[0] == '{"step": 1, "lo'
        assert json.loads(lines[1])["step"] == 12


# --- one folder, one process --------------------------------------------------------------------------------


def test_a_second_run_in_the_folder_is_refused_while_the_first_trains(tmp_path):
    refused = []

    def second(trainer):
        if trainer.step == 3:
            assert (tmp_path / "run.lock").exists()
            with pytest.raises(RuntimeError, match=r"this process trains in .* already; choose") as caught:
                build(checkpoint=tmp_path).fit()
            refused.append(caught.value)

    build(checkpoint=tmp_path, callbacks=[second]).fit()
    assert refused
    assert not (tmp_path / "run.lock").exists()


@forks
def test_a_process_that_trains_there_is_named_and_its_end_makes_room(tmp_path):
    child = os.fork()
    if child == 0:
        with RunLock(str(tmp_path / "run.lock"), str(tmp_path)):
            signal.pause()
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "run.lock").exists() or not (tmp_path / "run.lock").read_bytes():
            assert time.monotonic() < deadline
            os.sched_yield()
        with pytest.raises(RuntimeError, match=rf"process {child} trains in .*; wait for it or stop it"):
            build(checkpoint=tmp_path).fit()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # ended, but nobody has asked for its status
    build(checkpoint=tmp_path).fit()
    os.waitpid(child, 0)
    assert "run.lock" not in content(tmp_path)


def test_two_single_files_in_one_folder_may_train_at_once_and_the_same_one_may_not(tmp_path):
    def second(trainer):
        if trainer.step == 3:
            build(checkpoint=tmp_path / "b.safetensors").fit()
            with pytest.raises(RuntimeError, match=r"trains in '.*a\.safetensors' already"):
                build(checkpoint=tmp_path / "a.safetensors").fit()

    build(checkpoint=tmp_path / "a.safetensors", callbacks=[second]).fit()
    assert sorted(content(tmp_path)) == ["a.jsonl", "a.safetensors", "b.jsonl", "b.safetensors"]


def test_a_lock_of_another_machine_is_respected_and_the_cure_named(tmp_path):
    (tmp_path / "run.lock").write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": ""}))
    with pytest.raises(RuntimeError, match=r"of the machine 'elsewhere' .* delete '.*run\.lock' if that"):
        build(checkpoint=tmp_path).fit()


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"pid": 1}', '{"host": 1, "pid": "x", "started": 2}'])
def test_a_lock_cut_off_in_writing_holds_nothing(text, tmp_path):
    (tmp_path / "run.lock").write_text(text)
    build(checkpoint=tmp_path).fit()


def test_a_later_process_with_the_same_number_is_not_the_holder():
    me = this_process()
    assert me.alive()
    if me.started:
        assert not Process(me.host, me.pid, "0123").alive()


@forks
def test_a_child_made_by_fork_neither_holds_nor_ends_the_lock(tmp_path):
    lock = RunLock(str(tmp_path / "run.lock"), str(tmp_path))
    with lock:
        child = os.fork()
        if child == 0:
            held = lock.held
            lock.__exit__()
            os._exit(held)
        assert os.waitpid(child, 0)[1] == 0
        assert (tmp_path / "run.lock").exists()
    assert not (tmp_path / "run.lock").exists()


RACE = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
from test_train import build
trainer = build(checkpoint=sys.argv[1], checkpoint_every=1, log_every=1, max_steps=150)
sys.stdin.readline()
try:
    (trainer.resume if trainer.checkpoints.newest() else trainer.fit)()
    print("done")
except (RuntimeError, ValueError) as error:
    print(type(error).__name__, error)
"""


def test_of_processes_that_start_at_once_one_trains_and_the_others_are_told(tmp_path):
    (tmp_path / "run.lock").write_text(
        json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1, "started": ""})
    )
    code = RACE.format(tests=TESTS, root=os.path.dirname(TESTS))
    command = [sys.executable, "-c", code, str(tmp_path)]
    runs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for run in runs:
        run.stdin.write("\n")
        run.stdin.flush()
    said = [run.communicate(timeout=120)[0].strip() for run in runs]
    assert said.count("done") >= 1
    told = ("trains in", "an earlier run left", "of another run", "has replaced")
    assert all(text == "done" or any(part in text for part in told) for text in said), said
    assert steps(tmp_path) == list(range(1, 151))
    whole = build(max_steps=150)
    whole.fit()
    assert load_checkpoint(tmp_path / "step-00000150.safetensors").model["0.weight"].array.tobytes() == (
        whole.model[0].weight.array.tobytes()
    )


# --- files --------------------------------------------------------------------------------------------------


def test_files_have_the_usual_permissions_and_keep_those_they_have(tmp_path):
    path = tmp_path / "a.safetensors"
    before = os.umask(0o022)
    try:
        mt.save(1, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.chmod(0o640)
        mt.save(2, path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_a_symbolic_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "store").mkdir()
    link = tmp_path / "a.safetensors"
    link.symlink_to(tmp_path / "store" / "real.safetensors")
    for value in (1, 2):
        mt.save(value, link)
        assert link.is_symlink()
        assert mt.load(tmp_path / "store" / "real.safetensors") == value
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_a_run_clears_away_what_dead_processes_left_and_nothing_else(tmp_path):
    me = this_process()
    names = {
        f"microtensor-{me.host_hash}-{2**22 + 1}-0123-0.tmp": False,  # more than the highest process number
        f"microtensor-{me.host_hash}-{me.pid}-0123-0.tmp": not me.started,  # an earlier process of our number
        f"microtensor-{me.host_hash}-{me.pid}-{me.started}-99.tmp": True,
        f"microtensor-00000000-{2**22 + 1}-0123-0.tmp": True,  # another machine's
        "microtensor-notes.tmp": True,
        "step-00000001.safetensors.tmp": True,
    }
    for name in names:
        (tmp_path / name).touch()
    build(checkpoint=tmp_path).fit()
    assert {name for name in names if (tmp_path / name).exists()} == {
        n for n, stays in names.items() if stays
    }


@forks
def test_a_kill_while_a_large_file_is_written_leaves_what_the_next_run_deletes(tmp_path):
    child = os.fork()
    if child == 0:
        os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
        mt.save(mt.zeros(1000), tmp_path / "step-00000001.safetensors")
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    assert left.stat().st_size > 4000
    files.sweep(str(tmp_path))
    assert not list(tmp_path.iterdir())
