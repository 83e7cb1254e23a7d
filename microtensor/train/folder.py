"""Where a run keeps its checkpoints: a folder of `step-00001000.safetensors`, the newest few, or one file.

In a folder the best one stays beside them, `best-00000800.safetensors`, the same kind of file.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from microtensor.place import warn
from microtensor.train.checkpoint import Checkpoint
from microtensor.train.checkpoint import load_checkpoint as load_file
from microtensor.train.files import explaining, sweep
from microtensor.train.lock import RunLock
from microtensor.train.serialize import DamagedFileError, Path

__all__ = ["CheckpointFolder", "load_checkpoint", "load_marked", "mark_of"]

NAME = re.compile(r"(step|best)-(\d+)\.safetensors")


class CheckpointFolder:
    """Paths of a run's checkpoints.

    path: a folder, or a name that ends in .safetensors for one file that each checkpoint replaces.
    keep: how many a folder keeps; None keeps all.
    """

    def __init__(self, path: Path, keep: int | None) -> None:
        self.path, self.keep = os.fspath(path), keep
        self.single = self.path.endswith(".safetensors")
        self.folder = (os.path.dirname(self.path) or ".") if self.single else self.path
        self.lock = RunLock(f"{self.path}.lock" if self.single else self._in("run.lock"), self.path)
        self.log = f"{self.path.removesuffix('.safetensors')}.jsonl" if self.single else self._in("log.jsonl")
        self._damaged: dict[str, Any] = {}  # path → mark of what could not be read

    def _in(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def prepare(self) -> None:
        """Make the folder if it is missing.

        Raises: ValueError if a file is where the folder should be, or a folder where the file should be.
        """
        wrong = os.path.isdir(self.path) if self.single else os.path.isfile(self.path)
        if wrong:
            kind, other = ("a folder", "without .safetensors") if self.single else ("a file", "that is free")
            raise ValueError(f"Trainer: {self.path!r} is {kind}; give checkpoint a name {other}")
        os.makedirs(self.folder, exist_ok=True)

    @contextlib.contextmanager
    def writable(self) -> Iterator[bool]:
        """No other process writes checkpoints here inside the block; whether it had to be made sure of.

        Raises: OSError if nothing can be written here; RuntimeError naming another process that trains here.
        """
        with contextlib.ExitStack() as stack:
            with self._explaining():
                self.prepare()  # also in a run: somebody may have deleted the folder, and the lock with it
                new = not self.lock.held
                if new:
                    stack.enter_context(self.lock)
                else:
                    new = self.lock.renew()
            yield new

    def _explaining(self) -> contextlib.AbstractContextManager[None]:
        what = f"Trainer: nothing can be written in {self.folder!r}"
        return explaining(what, "give checkpoint a folder where files can be written")

    def path_at(self, step: int, kind: str = "step") -> str:
        """Where the checkpoint of a step goes."""
        return self.path if self.single else self._in(f"{kind}-{step:08d}.safetensors")

    def steps(self, kind: str = "step") -> dict[int, str]:
        """Step → path of the checkpoints in the folder, in order, but for those that were found damaged."""
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        found = {int(m[2]): self._in(name) for name in names if (m := NAME.fullmatch(name)) and m[1] == kind}
        return {step: found[step] for step in sorted(found) if found[step] not in self._damaged}

    def all(self) -> list[str]:
        """The paths of all checkpoints, the last one first."""
        if self.single:
            return [self.path] if os.path.isfile(self.path) else []
        found = [(step, kind, path) for kind in ("best", "step") for step, path in self.steps(kind).items()]
        return [path for _, _, path in sorted(found, reverse=True)]

    def newest(self) -> str | None:
        """The path of the last checkpoint, None if there is none."""
        return next(iter(self.all()), None)

    def read(self) -> tuple[Checkpoint, Any]:
        """The last checkpoint that can be read, and its mark.

        Warns: naming those after it that are damaged.
        Raises: FileNotFoundError if there is none; ValueError if all are damaged.
        """
        self._damaged.clear()
        if not self.all():
            raise FileNotFoundError(f"Trainer: there is no checkpoint in {self.path!r}; start with fit()")
        found, mark, faults = self._read()
        if found is None:
            raise DamagedFileError(f"Trainer: no checkpoint is whole: {faults}; use another copy")
        if faults:
            warn(f"Trainer: {faults}; going on from {found.path!r}, of step {found.step}")
        return found, mark

    def _read(self) -> tuple[Checkpoint | None, Any, str]:
        """The last one that can be read, its mark, and what is wrong with those after it."""
        faults: list[str] = []
        for path in self.all():
            mark = mark_of(path)
            try:
                return load_file(path), mark, "; ".join(faults)
            except (DamagedFileError, FileNotFoundError) as error:  # or a folder, or a link to nothing
                self._damaged[path] = mark
                faults.append(str(error).partition(";")[0])
        return None, None, "; ".join(faults)

    def set_damaged_aside(self) -> None:
        """Give damaged checkpoints a name that no run takes for one of its own."""
        for path, mark in self._damaged.items():
            if mark_of(path) == mark and os.path.lexists(path):
                with self._explaining():
                    os.replace(path, f"{path}.damaged")
        self._damaged.clear()

    def prune(self, written: str) -> None:
        """Delete the oldest checkpoints beyond `keep`, and best ones but the last; never what was written."""
        last = [] if self.keep is None else list(self.steps().values())[: -self.keep]
        for path in [] if self.single else [*last, *list(self.steps("best").values())[:-1]]:
            if path != written:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def sweep(self) -> None:
        """Delete what processes that were killed left of unfinished checkpoints."""
        sweep(self.folder)

    def refuse_other(self, path: str | None, step: int, mark: Any) -> None:
        """An error if another run's checkpoints are here than that which `path`, of this step, belongs to.

        A run that goes on among them would overwrite them, or they would be taken for its newest.
        mark: mark_of(path) when it was read or written.
        """
        newest = self.newest()
        if newest is None:
            return
        if path is not None and os.path.realpath(path) == os.path.realpath(newest):
            if mark_of(newest) != mark:
                raise ValueError(
                    f"Trainer: another process has replaced {newest!r}; load() it, or choose another folder"
                )
            return
        if path is None:
            raise ValueError(
                f"Trainer: an earlier run left {newest!r}; go on with resume(), or choose another folder"
            )
        if self.single or os.path.dirname(os.path.realpath(path)) != os.path.realpath(self.folder):
            raise ValueError(
                f"Trainer: {newest!r} is of another run than {path!r}, and would be overwritten or taken for "
                f"newer; choose another folder to go on from {path!r}, or move the other run away"
            )
        last = max({**self.steps(), **self.steps("best")})
        if last > step:
            raise ValueError(
                f"Trainer: {path!r} is of step {step}, but {self.folder!r} goes on to step {last}; "
                f"delete the later ones, or use another folder"
            )


def load_checkpoint(path: Path) -> Checkpoint:
    """Read and check a checkpoint; `restore` on the result puts its states back.

    path: a file, or a folder, whose newest checkpoint is taken; where that is damaged, the newest that is
    not, with a warning that names both.
    Raises: FileNotFoundError; ValueError for a damaged or altered file, naming the last whole one beside it,
    for one that is no checkpoint, and for one of a later version.
    Source: ours; safetensors in the place of pickles.
    """
    return load_marked(os.fspath(path))[0]


def load_marked(path: str) -> tuple[Checkpoint, Any]:
    """`load_checkpoint`, and the mark of the file that was read."""
    if os.path.isdir(path):
        return CheckpointFolder(path, None).read()
    mark = mark_of(path)
    try:
        return load_file(path), mark
    except DamagedFileError as error:
        beside = CheckpointFolder(os.path.dirname(path) or ".", None)._read()[0]
        other = "use another copy" if beside is None else f"{beside.path!r} of step {beside.step} is whole"
        raise DamagedFileError(f"{str(error).partition(';')[0]}; {other}") from error


def mark_of(path: str) -> tuple[int, int, int] | None:
    """What differs between a file and another that took its name; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
