"""Where a run keeps its checkpoints: a folder of `step-00001000.safetensors`, the newest few, or one file."""

from __future__ import annotations

import contextlib
import os
import re

from microtensor.train.serialize import Path

__all__ = ["CheckpointFolder"]

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

    def path_at(self, step: int) -> str:
        """Where the checkpoint of a step goes; the folder is made if it is missing."""
        os.makedirs(self.folder, exist_ok=True)
        return self.path if self.single else os.path.join(self.folder, f"step-{step:08d}.safetensors")

    def steps(self) -> dict[int, str]:
        """Step → path of the checkpoints in the folder, in order."""
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        found = {int(match[1]): name for name in names if (match := NAME.fullmatch(name))}
        return {step: os.path.join(self.folder, found[step]) for step in sorted(found)}

    def newest(self) -> str | None:
        """The path of the last checkpoint, None if there is none."""
        if self.single:
            return self.path if os.path.isfile(self.path) else None
        return next(reversed(self.steps().values()), None)

    def prune(self) -> None:
        """Delete the oldest checkpoints beyond `keep`."""
        if self.keep is not None and not self.single:
            for path in list(self.steps().values())[: -self.keep]:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def refuse_later(self, path: str, step: int) -> None:
        """An error if `path` is in this folder beside later steps, which would be taken for newer."""
        later = [s for s in self.steps() if s > step]
        if later and os.path.realpath(os.path.dirname(path) or ".") == os.path.realpath(self.folder):
            raise ValueError(
                f"Trainer: {path!r} is of step {step}, but {self.folder!r} goes on to step {later[-1]}; "
                f"delete the later ones, or use another folder"
            )
