"""A limit for the time in which the ranks of a run find each other: MPI waits for a missing one for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["start_limit"]

LIMIT = "MICROTENSOR_START_LIMIT"  # seconds
# MPI holds the interpreter while it waits, so another process watches it, until our end of the pipe closes
WATCH = """
import os, select, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
if not select.select([sys.stdin], [], [], float(sys.argv[1]))[0]:
    print(sys.argv[3], file=sys.stderr, flush=True)
    os.kill(int(sys.argv[2]), signal.SIGKILL)
"""


@contextmanager
def start_limit(size: int) -> Iterator[None]:
    """Inside, a process waits for the other ranks; if that takes too long, it says so, and is ended."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK", "?")
    seconds = os.environ.get(LIMIT, "300")
    if not seconds.isdecimal():
        raise ValueError(f"train: {LIMIT} is {seconds!r}; give whole seconds")
    text = (
        f"train: rank {rank} of {size} has waited {seconds} s for all others to begin, and one has ended or "
        f"is busy; let every rank come to its Trainer, or set {LIMIT} to more seconds"
    )
    command = [sys.executable, "-I", "-S", "-c", WATCH, seconds, str(os.getpid()), text]
    with subprocess.Popen(command, stdin=subprocess.PIPE):  # its end closes the pipe and waits
        yield
