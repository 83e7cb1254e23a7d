"""Replacing a file in one step, and clearing away what killed processes left of such steps."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator

from microtensor.train.process import Process, this_process

__all__ = ["explaining", "replace_file", "sweep", "write"]

TEMPORARY = re.compile(r"microtensor-([0-9a-f]{8})-(\d+)-([0-9a-f]*)-\d+\.tmp")
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_count = itertools.count()


def replace_file(path: str, pieces: Iterable[bytes | memoryview]) -> None:
    """Put a file of these pieces, one after the other, in the place of `path` in one step.

    Killed at any moment, or without power, the disk has the old file or the new one, whole: the new content
    is on the disk before its name is, and the folder's change is forced out as well. A file that was there
    passes on its permissions; a new one gets the usual ones. A symbolic link stays: its file is replaced.
    """
    path = os.path.realpath(path)
    folder = os.path.dirname(path)  # the temporary, too: os.replace is atomic within a file system only
    me = this_process()
    name = f"microtensor-{me.host_hash}-{me.pid}-{me.started}-{next(_count)}.tmp"
    temporary = os.path.join(folder, name)  # of this process alone: two that write here never meet
    try:
        descriptor = os.open(temporary, FLAGS, 0o666)
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
        _fill(descriptor, pieces)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot do it for a folder
            raise
    finally:
        os.close(opened)


def _fill(descriptor: int, pieces: Iterable[bytes | memoryview]) -> None:
    with open(descriptor, "wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def explaining(what: str, cure: str) -> Iterator[None]:
    """Inside the block an OSError says what it means for the run."""
    try:
        yield
    except OSError as error:
        told = type(error)(f"{what} ({error.strerror or error}); {cure}")
        told.errno = error.errno  # given to OSError, it would stand before who speaks
        raise told from error


def write(who: str, path: str | os.PathLike[str], data: bytes) -> None:
    """A file that a user asked for by name, in its place in one step."""
    cure = "give a name in a folder that exists, and where files can be written"
    with explaining(f"{who}: {str(path)!r} could not be written", cure):
        replace_file(os.fspath(path), [data])


def sweep(folder: str) -> None:
    """Delete the temporaries in a folder that processes of this machine left when they were killed."""
    me = this_process()
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        match = TEMPORARY.fullmatch(name)
        if match and match[1] == me.host_hash and not Process(me.host, int(match[2]), match[3]).alive():
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
