"""What a run must survive, at full length: SIGKILL at random moments, a full disk, damaged files.

    python tests/torture.py --kills 50          # some minutes; tests/test_train_faults.py runs a short form

After each of these the run goes on from its last good checkpoint and has to end with the bits of one that was
never disturbed: weights, optimiser, schedule, order of the data, dropout, best checkpoint and early stop.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import microtensor as mt  # noqa: E402
from microtensor import nn, optim  # noqa: E402
from microtensor.data import DataLoader, TensorDataset  # noqa: E402
from microtensor.train import Trainer, files, load_checkpoint, lock, plot, report  # noqa: E402


def build(folder: Path, max_steps: int, **options: Any) -> Trainer:
    """A small run with everything that has a state; it ends by early stop or at max_steps."""
    mt.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.3), nn.GELU(), nn.Linear(16, 4))
    optimizer = optim.AdamW(model.parameters(), lr=0.01)
    data = np.random.default_rng(7)
    y = data.integers(0, 4, 30)
    y[::4] = -1  # no tokens: the counts of batches differ
    samples = TensorDataset(mt.tensor(data.normal(size=(30, 3)).astype(np.float32)), mt.tensor(y))
    loader = DataLoader(samples, 4, shuffle=True, generator=mt.Generator().manual_seed(1))
    noise = np.random.default_rng(5)

    def loss_fn(model: Any, batch: Any) -> Any:
        x, y = batch
        x = x + mt.tensor(noise.normal(0, 0.1, x.shape).astype(np.float32))
        return nn.functional.cross_entropy(model(x), y, ignore_index=-1), int((y.array != -1).sum())

    def evaluate(model: Any) -> float:
        return float(np.square(model(samples[:][0]).array).mean())

    options = {"checkpoint_every": 2, "log_every": 1, "keep": 2, "eval_every": 3, "patience": 6, **options}
    return Trainer(
        model, optimizer, loader, loss_fn=loss_fn, max_steps=max_steps, accumulate=3, grad_clip=0.5,
        scheduler=optim.lr_scheduler.CosineAnnealingLR(optimizer, max_steps), generators={"noise": noise},
        evaluate=evaluate, best="evaluation", checkpoint=folder, progress=False, **options)  # fmt: skip


def go_on(folder: Path, max_steps: int, **options: Any) -> Trainer:
    """Train to the end, from the last checkpoint if there is one."""
    trainer = build(folder, max_steps, **options)
    (trainer.resume if trainer.checkpoints.newest() else trainer.fit)()
    return trainer


def outcome(folder: Path) -> tuple[Any, ...]:
    """All that the end of a run must have in common with that of an undisturbed one."""
    lines = plot._one_run(plot._read(folder))  # one that left no checkpoint was begun anew, and logged twice
    log = [{k: r[k] for k in ("step", "loss", "lr", "grad_norm")} | {"e": r.get("evaluation")} for r in lines]
    last = max(folder.glob("step-*.safetensors"))
    best = [(path.name, path.read_bytes()) for path in folder.glob("best-*.safetensors")]
    return last.name, last.read_bytes(), best, log


def undisturbed(folder: Path, max_steps: int, **options: Any) -> tuple[Any, ...]:
    """The outcome of a run that nothing happens to."""
    go_on(folder, max_steps, **options)
    return outcome(folder)


def check_folder(folder: Path, damaged: str = "") -> None:
    """Every checkpoint in it is whole, but for the one that we damaged."""
    for path in folder.glob("*.safetensors"):
        if path.name != damaged:
            load_checkpoint(path)


# --- SIGKILL ------------------------------------------------------------------------------------------------


def kill(kills: int, folder: Path, seed: int, max_steps: int = 400) -> str:
    """Processes that train the same run one after the other, each killed at a random moment."""
    rng, done, finished = random.Random(seed), 0, 0
    run, whole = folder / "run", undisturbed(folder / "whole", max_steps, patience=None)
    command = [sys.executable, __file__, "--child", str(run), "--steps", str(max_steps)]
    steps = []
    while done < kills:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            if rng.random() < 0.8:  # of the others many die while they start or read the checkpoint
                process.stdout.readline()  # it has begun to train
            time.sleep(rng.uniform(0, 0.3))
            ended = process.poll() is not None
        finally:
            process.kill()
            _, said = process.communicate()
        if said:
            raise AssertionError(f"after {done} kills the run said: {said}")
        check_folder(run)
        done += not ended
        newest = build(run, max_steps).checkpoints.newest()
        steps.append(int(newest[-20:-12]) if newest else 0)
        if ended:
            assert outcome(run) == whole, "the run ended with other bits"
            shutil.rmtree(run)
            finished += 1
    go_on(run, max_steps, patience=None)
    assert outcome(run) == whole, "the run ended with other bits"
    left = [path.name for path in run.iterdir() if path.suffix not in (".safetensors", ".jsonl")]
    assert not left, left
    return f"{done} kills, found at steps {steps}; {finished + 1} runs of {max_steps} steps ended bit for bit"


# --- a disk that refuses ------------------------------------------------------------------------------------


class Disk:
    """Inside the block the fail-th operation on files that could fail, and maybe all later ones, does.

    fail: a number, or the name of an operation, all of which fail then.
    """

    def __init__(
        self, fail: int | str | None = None, forever: bool = False, number: int = errno.ENOSPC
    ) -> None:
        self.fail, self.forever, self.number = fail, forever, number
        self.done: list[str] = []  # what was asked of the disk
        self._stack = contextlib.ExitStack()

    def ask(self, name: str) -> None:
        self.done.append(name)
        n = len(self.done) - 1
        later = self.forever and isinstance(self.fail, int) and n > self.fail
        if later or self.fail in (n, name):
            raise OSError(self.number, os.strerror(self.number))

    def __enter__(self) -> Disk:
        for name in ("open", "fsync", "replace", "makedirs"):
            real = getattr(os, name)
            self._stack.enter_context(mock.patch.object(os, name, self._asking(name, real)))
        for module in (files, lock, report):
            self._stack.enter_context(mock.patch.object(module, "open", self._open, create=True))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _asking(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any, **options: Any) -> Any:
            self.ask(name)
            return real(*args, **options)

        return asked

    def _open(self, path: Any, mode: str = "r", **options: Any) -> Any:
        file = open(path, mode, **options)  # noqa: SIM115 (the caller closes it)
        return file if "r" in mode else _Half(file, self)


class _Half:
    """A file that, where the disk refuses, has written half of what it was given."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def __enter__(self) -> _Half:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> None:
        try:
            self._disk.ask("write")
        except OSError:
            self._file.write(data[: len(data) // 2])
            raise
        self._file.write(data)

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(piece)


def refuse(folder: Path, forever: bool, every: int = 1, max_steps: int = 7) -> str:
    """The disk refuses the 1st, 2nd, 3rd … operation of a run, and of one that goes on after a kill."""
    whole = undisturbed(folder / "whole", max_steps)
    said: list[str] = []
    for kind in ("new", "resumed"):
        with Disk() as disk:
            begin(folder / kind, kind, max_steps)
            disk.done.clear()
            assert refusal(go_on, folder / kind, max_steps) is None
        for n in range(0, len(disk.done), every):
            run = folder / f"{kind}-{n}"
            damaged = begin(run, kind, max_steps)
            number = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS)[n % 4]
            with Disk(n, forever, number):
                error = refusal(go_on, run, max_steps)
            if error is not None:  # some things can be done without, such as forcing out a folder's change
                assert error.errno == number, error
                assert "Trainer: " in str(error), error
                assert os.strerror(number) in str(error), error
                said.append(disk.done[n])
            check_folder(run, damaged)
            left = [p.name for p in run.glob("*") if p.suffix in (".tmp", ".lock")]
            assert not left, (kind, n, disk.done[n], left)
            assert refusal(go_on, run, max_steps) is None
            assert outcome(run) == whole, f"{kind}, operation {n} ({disk.done[n]}): other bits"
            shutil.rmtree(run)
    failed = ", ".join(f"{said.count(name)} {name}" for name in sorted(set(said)))
    return f"a disk that refuses an operation{' and all after it' if forever else ''}, said at {failed}"


def begin(run: Path, kind: str, max_steps: int) -> str:
    """Of a run that is to be resumed, leave what a kill leaves, and a damaged newest file."""
    run.mkdir()
    if kind == "new":
        return ""
    with contextlib.suppress(Died):
        build(run, max_steps, callbacks=[die_at(5)]).fit()
    newest = max(run.glob("step-*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-9])
    return newest.name


class Died(Exception):
    """In the place of SIGKILL."""


def die_at(step: int) -> Callable[[Trainer], None]:
    def die(trainer: Trainer) -> None:
        if trainer.step == step:
            raise Died

    return die


def say_once(text: str) -> Callable[[Trainer], None]:
    left = [text]
    return lambda trainer: print(left.pop(), flush=True) if left else None


def refusal(function: Callable[..., Any], *args: Any, **options: Any) -> OSError | None:
    """The disk's error, if there is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*args, **options)
        except OSError as error:
            return error
    return None


# --- damaged files ------------------------------------------------------------------------------------------


def damage(times: int, folder: Path, seed: int, max_steps: int = 12) -> str:
    """The newest checkpoint is cut off, or a bit of it turned: the run goes on from the one before."""
    rng, run = random.Random(seed), folder / "run"
    whole = undisturbed(folder / "whole", max_steps)
    with contextlib.suppress(Died):
        build(folder / "killed", max_steps, callbacks=[die_at(10)]).fit()
    harmless = 0
    for i in range(times):
        shutil.copytree(folder / "killed", run)
        newest = Path(build(run, max_steps).checkpoints.newest())
        data = bytearray(newest.read_bytes())
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        if i % 2:
            del data[at:]
        else:
            data[at] ^= 1 << bit
        newest.write_bytes(data)
        trainer = build(run, max_steps)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trainer.load()
        if said:
            assert newest.name in str(said[0].message)
            assert trainer.step < int(newest.stem[-8:])
        else:  # the bit may be one of a letter in JSON whose case is free
            harmless += 1
            assert trainer.step == int(newest.stem[-8:])
        trainer.fit()
        assert outcome(run) == whole, f"byte {at}, bit {bit}: other bits"
        assert newest.with_name(newest.name + ".damaged").exists() == bool(said)
        shutil.rmtree(run)
    return f"{times} damaged files, {harmless} of them read as they were: all runs ended bit for bit"


# --- a file system that is full indeed ----------------------------------------------------------------------


def fill(folder: Path, max_steps: int = 12) -> str:
    """A run on a file system of 16 KiB, with room for its first checkpoints only; then it grows."""
    whole, run = undisturbed(folder / "whole", max_steps, keep=None), folder / "small"
    run.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(run)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        return "a full file system: left out, as this user may mount none"
    try:
        error = refusal(go_on, run, max_steps, keep=None)
        assert error is not None
        assert error.errno == errno.ENOSPC, error
        check_folder(run)
        subprocess.run(["mount", "-o", "remount,size=1m", str(run)], check=True)
        go_on(run, max_steps, keep=None)
        assert outcome(run) == whole, "the run ended with other bits"
    finally:
        subprocess.run(["umount", str(run)], check=True)
    return f"a full file system: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="processes to kill; default 50")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default 0")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        go_on(options.child, options.steps, callbacks=[say_once("trains")], patience=None)
        return
    jobs: list[Callable[[Path], str]] = [
        lambda folder: kill(options.kills, folder, options.seed),
        lambda folder: refuse(folder, forever=False),
        lambda folder: refuse(folder, forever=True),
        lambda folder: damage(400, folder, options.seed),
        fill,
    ]
    for job in jobs:
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            print(f"{job(Path(folder))} ({time.perf_counter() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
