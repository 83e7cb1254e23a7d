"""One run at a time: a file in the checkpoint folder that names the process which trains there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from microtensor.train.process import Process, this_process

__all__ = ["RunLock"]


class RunLock:
    """As a `with` block: no other run can begin in `place`, a folder or a file, before its end.

    A process that was killed leaves its lock, which the next run on the same machine takes over. A child
    made by fork holds nothing.
    Raises: RuntimeError naming the process that trains there.
    """

    def __init__(self, path: str, place: str) -> None:
        self.path, self.place = path, place
        self._holder: Process | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds it, in this process."""
        return self._holder is not None and self._holder == this_process()

    def __enter__(self) -> RunLock:
        me = this_process()
        with _guard(os.path.dirname(self.path) or "."):
            other = _read(self.path)
            if other is not None and (other.host != me.host or other.alive()):
                raise RuntimeError(self._refusal(other, me))
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            try:
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:  # where _guard cannot guard, another was faster
                raise RuntimeError(self._refusal(_read(self.path), me)) from None
            try:
                with open(descriptor, "w", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(me)))
            except OSError:
                os.unlink(self.path)
                raise
        self._holder = me
        return self

    def renew(self) -> bool:
        """Take it again if somebody has deleted it; whether that was so.

        Raises: RuntimeError naming the process that has taken it meanwhile.
        """
        lost = _read(self.path) != self._holder
        if lost:
            self.__enter__()
        return lost

    def __exit__(self, *exception: object) -> None:
        if self.held and _read(self.path) == self._holder:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self._holder = None

    def _refusal(self, other: Process | None, me: Process) -> str:
        if other is None:
            return f"Trainer: another process trains in {self.place!r}; choose another place"
        if other == me:
            return f"Trainer: this process trains in {self.place!r} already; choose another place"
        if other.host == me.host:
            return (
                f"Trainer: process {other.pid} trains in {self.place!r}; wait for it or stop it, or choose "
                f"another folder"
            )
        return (
            f"Trainer: process {other.pid} of the machine {other.host!r} trains in {self.place!r}; choose "
            f"another folder, or delete {self.path!r} if that process is gone"
        )


@contextlib.contextmanager
def _guard(folder: str) -> Iterator[None]:
    """Only one process at a time looks at a lock and takes it; the system ends this with the process."""
    opened = None
    with contextlib.suppress(OSError):  # some network file systems lock no folders
        if fcntl is not None:
            opened = os.open(folder, os.O_RDONLY)
            fcntl.flock(opened, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if opened is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_UN)  # a fork in another thread may hold a copy of it
            os.close(opened)


def _read(path: str) -> Process | None:
    """Who holds the lock; None for no lock and for one cut off in writing, which holds nothing."""
    try:
        with open(path, encoding="utf-8") as file:
            found = Process(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None
    whole = isinstance(found.pid, int) and isinstance(found.host, str) and isinstance(found.started, str)
    return found if whole else None
