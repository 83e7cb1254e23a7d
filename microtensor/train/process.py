"""Which process wrote something, and whether it still runs: a number alone is given out again."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform

__all__ = ["Process", "this_process"]


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of a machine; `started` tells it from a later one with the same number, "" where unknown."""

    host: str
    pid: int
    started: str

    @property
    def host_hash(self) -> str:
        """Eight hexadecimal digits that stand for the host, to be part of a file's name."""
        return hashlib.sha256(self.host.encode()).hexdigest()[:8]

    def alive(self) -> bool:
        """Whether it runs. It must be of this machine."""
        found = _look(self.pid)
        if found is not None:
            running, started = found
            return running and (not self.started or started == self.started)
        if os.name == "nt":  # os.kill would end it
            return True
        try:
            os.kill(self.pid, 0)
        except OSError as error:
            return isinstance(error, PermissionError)  # it is another user's
        return True


def this_process() -> Process:
    """The present process; asked anew each time, because a fork makes another of it."""
    _, started = _look(os.getpid()) or (True, "")
    return Process(platform.node(), os.getpid(), started)


def _look(pid: int) -> tuple[bool, str] | None:
    """(it runs, when it began: the boot and its clock ticks, in hexadecimal); None where Linux does not tell.

    One that has ended but whose parent has not asked for its exit status does not run.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # after the name, which may hold anything
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().replace("-", "")[:8]
    except (OSError, ValueError):
        return None
    return fields[0] not in "ZX", f"{boot}{int(fields[19]):x}"
