"""Where a run keeps its checkpoints: a folder of `step-00001000.safetensors`, the newest few, or one file."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

from microtensor.train.files import sweep
from microtensor.train.lock import RunLock
from microtensor.train.serialize import Path

__all__ = ["CheckpointFolder", "mark_of"]

NAME = re.compile(r"step-(\d+)\.safetensors")


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

    def path_at(self, step: int) -> str:
        """Where the checkpoint of a step goes."""
        return self.path if self.single else self._in(f"step-{step:08d}.safetensors")

    def steps(self) -> dict[int, str]:
        """Step → path of the checkpoints in the folder, in order."""
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        found = {int(match[1]): name for name in names if (match := NAME.fullmatch(name))}
        return {step: self._in(found[step]) for step in sorted(found)}

    def newest(self) -> str | None:
        """The path of the last checkpoint, None if there is none."""
        if self.single:
            return self.path if os.path.isfile(self.path) else None
        return next(reversed(self.steps().values()), None)

    def prune(self, written: str) -> None:
        """Delete the oldest checkpoints beyond `keep`, but not the one just written."""
        if self.keep is not None and not self.single:
            for path in list(self.steps().values())[: -self.keep]:
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
        if path is not None and _real(path) == _real(newest):
            if mark_of(newest) != mark:
                raise ValueError(
                    f"Trainer: another process has replaced {newest!r}; load() it, or choose another folder"
                )
            return
        if path is None:
            raise ValueError(
                f"Trainer: an earlier run left {newest!r}; go on with resume(), or choose another folder"
            )
        if self.single or os.path.dirname(_real(path)) != _real(self.folder):
            raise ValueError(
                f"Trainer: {newest!r} is of another run than {path!r}, and would be overwritten or taken for "
                f"newer; choose another folder to go on from {path!r}, or move the other run away"
            )
        last = max(self.steps())
        if last > step:
            raise ValueError(
                f"Trainer: {path!r} is of step {step}, but {self.folder!r} goes on to step {last}; "
                f"delete the later ones, or use another folder"
            )


def mark_of(path: str) -> tuple[int, int, int] | None:
    """What differs between a file and another that took its name; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _real(path: str) -> str:
    return os.path.realpath(path)
