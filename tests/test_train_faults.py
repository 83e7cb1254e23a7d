"""What may befall a run: signals, kills, a disk that refuses, damaged files, a folder that is gone."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torture
from test_train import build, everything, loss_fn, losses, weights_of

from microtensor import nn, optim
from microtensor.train import Stopped, interrupt, load_checkpoint
from microtensor.train.lock import RunLock

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="makes processes by forking")


@pytest.fixture
def whole():
    """The end of a run that nothing befell, and its losses."""
    trainer = build(log_every=1)
    trainer.fit()
    return everything(trainer), [r["loss"] for r in trainer.history]


def flip(path, at=-5):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def empty(path):
    path.write_bytes(b"")


# --- the short form of tests/torture.py ---------------------------------------------------------------------


def test_killed_at_random_moments_a_run_ends_with_the_same_bits(tmp_path):
    assert "4 kills" in torture.kill(4, tmp_path, seed=1, max_steps=60)


@pytest.mark.parametrize("forever", [False, True])
def test_a_disk_that_refuses_any_operation_costs_no_checkpoint(forever, tmp_path):
    assert "write" in torture.refuse(tmp_path, forever, every=13 + forever)


def test_a_damaged_newest_checkpoint_costs_the_steps_since_the_one_before(tmp_path):
    assert "16 damaged files" in torture.damage(16, tmp_path, seed=0)


@forks
def test_a_file_too_large_for_the_system_leaves_the_checkpoint_before(tmp_path):
    import resource

    build(checkpoint=tmp_path, max_steps=4).fit()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    trainer = build(checkpoint=tmp_path)
    trainer.load()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            trainer.save()
        except OSError as error:
            said = str(error)
            os._exit(
                0 if error.errno == errno.EFBIG and "step-00000004" in said and "resume()" in said else 1
            )
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@forks
def test_a_read_only_folder_is_said_before_training_and_can_be_loaded_from(tmp_path):
    folder = tmp_path / "run"
    build(checkpoint=folder, max_steps=4).fit()
    folder.chmod(0o555)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        if os.geteuid() == 0:  # who may write everywhere
            os.seteuid(65534)
        trainer = build(checkpoint=".")
        trainer.load()
        try:
            trainer.fit()
        except PermissionError as error:
            said = "Trainer: nothing can be written in '.' (Permission denied); give checkpoint a folder"
            os._exit(0 if trainer.step == 4 and str(error).startswith(said) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(p.name for p in folder.iterdir()) == ["log.jsonl", "step-00000004.safetensors"]
    folder.chmod(0o755)


def test_a_save_that_fails_says_what_is_kept_and_may_be_tried_again(tmp_path, whole):
    trainer = build(checkpoint=tmp_path, checkpoint_every=4)
    with torture.Disk() as disk:
        trainer.callbacks = (lambda t: setattr(disk, "fail", "write") if t.step == 8 else None,)
        with pytest.raises(
            OSError, match=r"step-00000008.* could not be written \(No space.*; make room"
        ) as caught:
            trainer.fit()
    assert caught.value.errno == errno.ENOSPC
    assert "step-00000004.safetensors' holds step 4; go on with resume()" in str(caught.value)
    trainer.callbacks = ()
    assert load_checkpoint(trainer.save()).step == 8
    trainer.fit()
    assert everything(trainer) == whole[0]


@pytest.mark.parametrize(("number", "fails"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_a_folder_whose_change_is_not_on_the_disk_is_an_error_unless_it_never_can_be(
    number, fails, tmp_path, monkeypatch
):
    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    trainer = build(checkpoint=tmp_path, checkpoint_every=4)
    if fails:
        with pytest.raises(OSError, match=r"step-00000004.* could not be written"):
            trainer.fit()
    else:
        trainer.fit()
        assert trainer.step == 12


def test_a_log_that_cannot_be_written_is_said_with_its_name(tmp_path):
    trainer = build(checkpoint=tmp_path, checkpoint_every=4, log_every=1)
    with torture.Disk() as disk:
        trainer.callbacks = (lambda t: setattr(disk, "fail", "write") if t.step == 5 else None,)
        with pytest.raises(OSError, match=r"Trainer: the log '.*log\.jsonl' could not be written .No space"):
            trainer.fit()
    assert load_checkpoint(trainer.checkpoints.newest()).step == 4


# --- damaged files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [flip, cut, empty])
def test_the_run_goes_on_from_the_checkpoint_before_and_says_so(damage, tmp_path, whole):
    build(checkpoint=tmp_path, checkpoint_every=4, log_every=1, max_steps=9).fit()
    newest = tmp_path / "step-00000009.safetensors"
    damage(newest)
    trainer = build(checkpoint=tmp_path, log_every=1)
    said = (
        r"step-00000009\.safetensors' (is damaged|was altered).*; going on from '.*step-00000008.*, of step 8"
    )
    with pytest.warns(UserWarning, match=said) as caught:
        trainer.load()
    assert caught[0].filename == __file__
    assert newest.exists()  # whoever only looks changes no file
    trainer.fit()
    assert not newest.exists()
    assert (tmp_path / "step-00000009.safetensors.damaged").exists()
    assert everything(trainer) == whole[0]
    assert losses(tmp_path) == whole[1]


def test_several_damaged_files_are_all_named_and_if_all_are_none_is_loaded(tmp_path):
    build(checkpoint=tmp_path, checkpoint_every=4).fit()
    for step in (12, 8):
        flip(tmp_path / f"step-{step:08d}.safetensors")
    trainer = build(checkpoint=tmp_path)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"step-00000012.*; load: '.*step-00000008.*; going on from"):
            trainer.load()
        assert trainer.step == 4
    flip(tmp_path / "step-00000004.safetensors")
    before = weights_of(trainer)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"no checkpoint is whole: .*00012.*00008.*00004.*; use another"):
            trainer.load()
    assert weights_of(trainer) == before
    with pytest.raises(ValueError, match="an earlier run left"):
        build(checkpoint=tmp_path).fit()


def test_a_damaged_file_that_is_asked_for_is_named_with_the_last_one_that_is_whole(tmp_path):
    build(checkpoint=tmp_path, checkpoint_every=4).fit()
    asked = tmp_path / "step-00000012.safetensors"
    flip(asked)
    trainer = build()
    with pytest.raises(
        ValueError, match=r"step-00000012.* was altered .*; '.*step-00000008.*' of step 8 is who"
    ):
        trainer.load(asked)
    single = tmp_path / "one.safetensors"
    shutil.copy(asked, single)
    with pytest.raises(
        ValueError, match=r"one\.safetensors' was altered.*; '.*step-00000008.*' of step 8 is"
    ):
        trainer.load(single)
    for path in tmp_path.glob("step-*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"one\.safetensors' was altered .*; use another copy"):
        trainer.load(single)
    with pytest.raises(ValueError, match=r"no checkpoint is whole: .*one\.safetensors"):
        build(checkpoint=single).load()


def test_the_best_checkpoint_serves_where_the_last_ones_are_damaged(tmp_path, whole):
    options = {"eval_every": 1, "best": "evaluation", "evaluate": lambda model: -1.0, "checkpoint_every": 5}
    build(checkpoint=tmp_path, max_steps=7, keep=1, log_every=1, **options).fit()
    flip(tmp_path / "step-00000007.safetensors")
    again = build(checkpoint=tmp_path, log_every=1, **options)
    with pytest.warns(UserWarning, match=r"going on from '.*best-00000001.*, of step 1"):
        again.resume()
    assert everything(again) == whole[0]
    assert losses(tmp_path) == whole[1]


def test_the_own_folder_may_be_named_too_and_what_is_no_file_is_passed_over(tmp_path, whole):
    build(checkpoint=tmp_path, checkpoint_every=4, max_steps=8).fit()
    flip(tmp_path / "step-00000008.safetensors")
    (tmp_path / "step-00000009.safetensors").symlink_to(tmp_path / "gone")
    (tmp_path / "step-00000010.safetensors").mkdir()
    trainer = build(checkpoint=tmp_path)
    with pytest.warns(UserWarning, match=r"no file .*00010.*no file .*00009.*00008.*; going on from .*00004"):
        trainer.resume(f"{tmp_path}/../{tmp_path.name}")
    assert everything(trainer) == whole[0]


def test_load_checkpoint_takes_a_folder_and_its_newest_file_that_is_whole(tmp_path):
    build(checkpoint=tmp_path, checkpoint_every=4, config={"a": 1}).fit()
    assert load_checkpoint(tmp_path).step == 12
    flip(tmp_path / "step-00000012.safetensors")
    with pytest.warns(UserWarning, match=r"step-00000012.* was altered.*; going on from .*step-00000008"):
        assert load_checkpoint(str(tmp_path)).config == {"a": 1}
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        load_checkpoint(tmp_path.parent)


def test_another_folder_with_a_damaged_file_is_left_as_it_is(tmp_path, whole):
    build(checkpoint=tmp_path / "a", checkpoint_every=4, max_steps=8).fit()
    flip(tmp_path / "a" / "step-00000008.safetensors")
    before = sorted(p.name for p in (tmp_path / "a").iterdir())
    trainer = build(checkpoint=tmp_path / "b")
    with pytest.warns(UserWarning, match="going on from"):
        trainer.resume(tmp_path / "a")
    assert everything(trainer) == whole[0]
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == before


def test_a_checkpoint_without_its_checksum_is_refused(tmp_path):
    build(checkpoint=tmp_path, max_steps=1).fit()
    path = tmp_path / "step-00000001.safetensors"
    data = path.read_bytes()
    assert data.count(b"sha256") == 1
    path.write_bytes(data.replace(b"sha256", b"sha999"))
    with pytest.raises(ValueError, match="was altered after it was written"):
        load_checkpoint(path)


def test_a_checkpoint_of_another_architecture_is_refused_by_what_differs(tmp_path):
    build(checkpoint=tmp_path, max_steps=1).fit()
    trainer = build(checkpoint=tmp_path)
    trainer.model = nn.Sequential(*(nn.Linear(3, n) for n in (7, 1, 1, 1, 1, 1)))
    trainer.optimizer = optim.AdamW(trainer.model.parameters())
    before = weights_of(trainer)
    with pytest.raises(
        ValueError, match=r"does not fit: .*1\.weight is missing.*; and \d+ more; build every"
    ):
        trainer.load()
    assert weights_of(trainer) == before
    assert trainer.step == 0


# --- signals ------------------------------------------------------------------------------------------------


def raising(*numbers, at=5):
    def press(trainer):
        if trainer.step == at:
            for number in numbers:
                signal.raise_signal(number)

    return press


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(number, code, tmp_path, whole):
    before = signal.getsignal(number)
    with pytest.raises(
        Stopped, match=r"after step 5; '.*step-00000005.*' holds step 5; go on with r"
    ) as stop:
        build(checkpoint=tmp_path, callbacks=[raising(number)]).fit()
    assert stop.value.code == code
    assert isinstance(stop.value, KeyboardInterrupt)
    assert signal.getsignal(number) is before
    again = build(seed=99, checkpoint=tmp_path)
    again.resume()
    assert everything(again) == whole[0]


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_of_either_kind_stops_at_once(second, tmp_path, monkeypatch):
    clock = iter([10.0, 11.0])
    monkeypatch.setattr(interrupt, "monotonic", lambda: next(clock))

    def loss(model, batch):
        if trainer.step == 5:
            raising(signal.SIGTERM, second)(trainer)
        return loss_fn(model, batch)

    trainer = build(loss_fn=loss, checkpoint=tmp_path, checkpoint_every=2)
    with pytest.raises(Stopped, match=r"after step 5; '.*' holds step 4") as stop:
        trainer.fit()
    assert stop.value.code == 128 + second
    assert load_checkpoint(trainer.checkpoints.newest()).step == 4


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("pause", [0.0, 0.02, 0.05])
def test_a_signal_that_is_heard_twice_is_one(second, pause, tmp_path, whole):
    """A key that bounces, or a wrapper that passes Ctrl-C on as well: the step is finished and saved."""

    def loss(model, batch):
        if trainer.step == 5:
            signal.raise_signal(signal.SIGINT)
            time.sleep(pause)
            signal.raise_signal(second)
        return loss_fn(model, batch)

    trainer = build(loss_fn=loss, checkpoint=tmp_path)
    with pytest.raises(Stopped, match=r"after step 6; '.*step-00000006.*' holds step 6") as stop:
        trainer.fit()
    assert stop.value.code == 130
    again = build(seed=99, checkpoint=tmp_path)
    again.resume()
    assert everything(again) == whole[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_ignored_signal_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        trainer = build(callbacks=[raising(number)])
        trainer.fit()
        assert trainer.step == 12
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_in_another_thread_signals_are_left_to_the_main_one():
    seen, before = [], [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]

    def look(trainer):
        seen.append([signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)])

    thread = threading.Thread(target=build(callbacks=[look]).fit)
    thread.start()
    thread.join()
    assert seen == [before] * 12


UNCAUGHT = """
import signal, sys
sys.path[:0] = [{tests!r}, {root!r}]
from test_train import build
def press(trainer):
    if trainer.step == 3:
        signal.raise_signal(signal.SIGTERM)
build(checkpoint=sys.argv[1], callbacks=[press]).fit()
"""


def test_a_program_that_does_not_catch_it_ends_with_the_message(tmp_path):
    tests = os.path.dirname(os.path.abspath(__file__))
    code = UNCAUGHT.format(tests=tests, root=os.path.dirname(tests))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "Stopped: Trainer: stopped after step 3; " in done.stderr
    assert [p.name for p in tmp_path.glob("*.safetensors")] == ["step-00000003.safetensors"]


# --- a folder that changes under the run --------------------------------------------------------------------


def test_a_folder_that_was_deleted_is_made_again_though_the_log_is_elsewhere(tmp_path, whole):
    folder = tmp_path / "run"
    trainer = build(checkpoint=folder, checkpoint_every=4, log=tmp_path / "log.jsonl",
                    callbacks=[lambda t: shutil.rmtree(folder) if t.step == 6 else None])  # fmt: skip
    trainer.fit()
    assert everything(trainer) == whole[0]
    assert len(list(folder.glob("step-*"))) == 2


def test_a_folder_that_was_deleted_is_made_again(tmp_path, whole):
    folder = tmp_path / "run"
    trainer = build(checkpoint=folder, checkpoint_every=4, log_every=1,
                    callbacks=[lambda t: shutil.rmtree(folder) if t.step == 6 else None])  # fmt: skip
    trainer.fit()
    assert everything(trainer) == whole[0]
    names = ["log.jsonl", "step-00000008.safetensors", "step-00000012.safetensors"]
    assert sorted(p.name for p in folder.iterdir()) == names
    assert losses(folder) == whole[1][6:]


def test_a_lock_that_was_deleted_is_taken_again_unless_another_run_has_it(tmp_path):
    def delete(trainer):
        if trainer.step == 3:
            os.unlink(tmp_path / "run.lock")

    def look(trainer):
        if trainer.step == 5:
            assert (tmp_path / "run.lock").exists()

    trainer = build(checkpoint=tmp_path, checkpoint_every=4, callbacks=[delete, look])
    trainer.fit()
    assert not (tmp_path / "run.lock").exists()

    def steal(trainer):
        delete(trainer)
        if trainer.step == 3:
            Path(tmp_path / "b" / "run.lock").write_text('{"host": "elsewhere", "pid": 1, "started": ""}')

    (tmp_path / "b").mkdir()
    (tmp_path / "run.lock").touch()
    trainer = build(checkpoint=tmp_path / "b", checkpoint_every=4, callbacks=[steal])
    with pytest.raises(RuntimeError, match="of the machine 'elsewhere' trains in"):
        trainer.fit()
    assert not list((tmp_path / "b").glob("*.safetensors"))
    assert (tmp_path / "b" / "run.lock").exists()


def test_a_lock_that_cannot_be_written_is_not_left_behind(tmp_path):
    with torture.Disk("write"), pytest.raises(OSError, match="No space"):
        RunLock(str(tmp_path / "run.lock"), str(tmp_path)).__enter__()
    assert not list(tmp_path.iterdir())


def test_renewing_a_lock_that_is_held_changes_nothing(tmp_path):
    lock = RunLock(str(tmp_path / "run.lock"), str(tmp_path))
    with lock:
        before = (tmp_path / "run.lock").stat()
        assert not lock.renew()
        assert (tmp_path / "run.lock").stat().st_mtime_ns == before.st_mtime_ns
        assert stat.S_ISREG(before.st_mode)


def test_two_trainers_of_one_process_in_one_folder_do_not_overwrite_each_other(tmp_path):
    first = build(checkpoint=tmp_path, max_steps=4)
    first.fit()
    second = build(checkpoint=tmp_path, max_steps=8)
    second.resume()
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    first.max_steps = 12
    for go_on in (first.fit, first.save):
        with pytest.raises(ValueError, match=r"is of step 4, but .* goes on to step 8; delete the later"):
            go_on()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    second.max_steps = 12
    second.fit()
    assert second.step == 12


def test_a_resumed_run_of_fewer_steps_trains_nothing_and_one_of_more_goes_on(tmp_path, whole):
    build(checkpoint=tmp_path, max_steps=8).fit()
    fewer = build(checkpoint=tmp_path, max_steps=5)
    assert fewer.resume() == []
    assert fewer.step == 8
    assert sorted(p.name for p in tmp_path.glob("*.safetensors")) == ["step-00000008.safetensors"]
    more = build(checkpoint=tmp_path, max_steps=12)
    more.resume()
    assert everything(more) == whole[0]


def test_an_error_of_loss_fn_leaves_folder_lock_and_handlers_as_they_were(tmp_path):
    def loss(model, batch):
        if trainer.step == 5:
            raise LookupError("no such batch")
        return loss_fn(model, batch)

    before = signal.getsignal(signal.SIGTERM)
    trainer = build(loss_fn=loss, checkpoint=tmp_path, checkpoint_every=2)
    with pytest.raises(LookupError):
        trainer.fit()
    assert signal.getsignal(signal.SIGTERM) is before
    assert not (tmp_path / "run.lock").exists()
    assert load_checkpoint(trainer.checkpoints.newest()).step == 4
