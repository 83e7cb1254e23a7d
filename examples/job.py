"""What the training jobs beside this file share: settings, --resume, --text, and how to go on."""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ending import run
from options import Parser, check_count, check_folder, naming

from microtensor.data import python_docs, read_text
from microtensor.train import Trainer, load_checkpoint, world


class Job:
    """A program that trains in a folder of checkpoints, and goes on there as it was begun.

    settings: name → default of each option that a run is begun with and keeps. smoke: the defaults of those
    that --smoke makes small. More options: `parser`. Of all of them whole numbers are 1 or more, but for the
    seed, and others 0 or more.
    """

    def __init__(self, doc: str, out: str, settings: Mapping[str, Any], smoke: Mapping[str, Any]) -> None:
        self.out, self.settings, self.smoke = out, dict(settings), dict(smoke)
        self.names = (*settings, "smoke")  # of what a run's config has: those of no other program
        self.parser = Parser("a tiny model, a few steps", description=doc.splitlines()[0])
        self.parser.set_defaults(seed=None, smoke=None)  # not given: as the run was begun
        add = self.parser.add_argument
        for name, value in ((name, value) for name, value in settings.items() if name != "seed"):
            small = f" (with --smoke {smoke[name]})" if name in smoke else ""
            add(f"--{name}", type=type(value), help=f"default {value}{small}")
        add("--out", type=Path, help=f"folder for all that is written; default {out} (or {out}-smoke)")
        add("--resume", action="store_true", help="go on from the newest checkpoint in --out")

    def settle(self, options: argparse.Namespace) -> None:
        """Refuse what cannot work, before anything is trained; a resumed run keeps what it was begun with.

        `options.begun` becomes the whole config of the run that goes on, or {}.
        """
        if options.out is None:
            options.out = Path(f"{self.out}-smoke" if options.smoke else self.out)
        check_folder("--out", options.out)
        kept = self.checkpoints(options)
        if kept and not options.resume:
            raise ValueError(f"{options.out} holds a run already; go on with --resume, or name another --out")
        if options.resume and not kept:
            raise ValueError(
                f"--resume: {options.out} holds no checkpoint; leave --resume out, or name another --out"
            )
        options.begun = begun_with(kept[-1].parent) if kept else {}
        if kept and set(options.begun) != set(self.names):
            raise ValueError(f"--resume: the run in {options.out} is of another program; name another --out")
        defaults = {**self.settings, "smoke": False, **(self.smoke if options.smoke else {})}
        for name, default in defaults.items():
            wish = getattr(options, name)
            value = options.begun.get(name, default if wish is None else wish)
            if wish not in (None, value):
                raise ValueError(f"--{name} {wish}: the run in {options.out} has {value}; leave --{name} out")
            setattr(options, name, value)
        for name, value in vars(options).items():
            if type(value) is int:
                check_count(f"--{name}", value, least=int(name != "seed"))
            if type(value) is float and not 0 <= value < math.inf:  # not NaN either
                raise ValueError(f"--{name} is {value}; give a finite number, 0 or more")

    def checkpoints(self, options: argparse.Namespace) -> list[Path]:
        """Those that are kept, the newest last; none before --out is settled."""
        return checkpoints(options.out) if options.out else []

    def kept(self, options: argparse.Namespace) -> dict[str, Any]:
        """What of the options goes into the config of a checkpoint."""
        return {name: getattr(options, name) for name in (*self.settings, "smoke")}

    def fit(self, trainer: Trainer, options: argparse.Namespace) -> bool:
        """Train, or go on with --resume; says how much, how long. Whether we speak: of several ranks one."""
        n = sum(p.numel() for p in trainer.model.parameters())
        print(f"{n:,} parameters, {trainer.max_steps} steps")
        if not options.resume:
            print(f"{options.out} holds no run yet, so one is trained first; the bar says how long it takes")
        start = time.perf_counter()
        if options.resume:
            trainer.load()
        begun = trainer.step
        trainer.fit()
        print(f"trained to step {trainer.step} {took(time.perf_counter() - start, begun, trainer.step)}")
        if options.smoke:
            print(f"({trainer.step} steps teach little yet: what follows may be noise)")
        return trainer.world.is_writer

    def run(self, work: Callable[[argparse.Namespace], int | None], *needs: str) -> int:
        """As `run` of ending; work gets the options, once they are settled."""
        options = self.parser.parse_args()

        def job() -> int | None:
            if not world().is_writer:
                sys.stdout = None  # of several ranks one speaks
            self.settle(options)
            if world().size > 1:  # said now: mpirun passes on nothing that is printed after Ctrl-C
                print("after Ctrl-C, go on with the same command and --resume", flush=True)
            return work(options)

        mendable = (ValueError, OSError, RuntimeError, MemoryError)

        def words(what: str) -> str:
            return what.replace("resume()", command("--resume"))

        return run(job, *needs, farewell=lambda: self._farewell(options), words=words, mendable=mendable)

    def _farewell(self, options: argparse.Namespace) -> str:
        kept = self.checkpoints(options)
        if not kept:
            return "nothing is saved yet"
        return f"{kept[-1]} is kept. Go on with:\n  {command('--resume')}"


class TextJob(Job):
    """A job that learns from a text, --text FILE or this Python's documentation; a run keeps to its own."""

    def __init__(self, doc: str, out: str, settings: Mapping[str, Any], smoke: Mapping[str, Any]) -> None:
        super().__init__(doc, out, settings, smoke)
        self.names += ("text", "sha256")
        file = "a file in UTF-8; default the documentation of this Python"
        self.parser.add_argument("--text", type=Path, help=file)

    def settle(self, options: argparse.Namespace) -> None:
        """As that of a Job; options.text becomes the text."""
        super().settle(options)
        file, begun = options.text, options.begun
        options.source = str(file or begun.get("text", ""))
        if options.source:
            with naming("--text"):
                options.text = read_text(options.source)
        else:
            options.text = python_docs()
        options.sha256 = hashlib.sha256(options.text.encode()).hexdigest()
        if not options.resume or options.sha256 == begun.get("sha256"):
            return
        own = begun.get("text") or "the documentation of Python"
        way = "leave --text out"
        if file is None or str(file) == begun.get("text"):  # where it was, but no longer the same
            own = f"an earlier {own}" if begun.get("text") else "the documentation of another Python"
            way = "bring that back"
        raise ValueError(f"--resume: {options.out} was begun with {own}; {way}, or name another --out")

    def kept(self, options: argparse.Namespace) -> dict[str, Any]:
        """As that of a Job, with the text's file ("": Python's documentation) and checksum."""
        return super().kept(options) | {"text": options.source, "sha256": options.sha256}


def took(seconds: float, begun: int, end: int) -> str:
    """How long a run trained, in words; before step `begun`, where it goes on, nobody measured."""
    if begun == end:
        return "by an earlier run"
    return f"in {seconds:.0f} s with evaluation" + (f", from step {begun} on" if begun else "")


def command(option: str) -> str:
    """The command line of this program, with this option last."""
    python = min(sys.executable, os.path.relpath(sys.executable), key=len)
    return shlex.join([python, *[given for given in sys.argv if given != option], option])


def checkpoints(folder: Path) -> list[Path]:
    """Those in a folder, the newest last."""
    return sorted(folder.glob("step-*.safetensors"))


def begun_with(folder: Path) -> dict[str, Any]:
    """The config of the run in a folder; what is damaged there is told when it goes on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dict(load_checkpoint(folder).config or {})
