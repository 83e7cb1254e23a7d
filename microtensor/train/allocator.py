"""Memory as the C library keeps it: `tune_allocator` has a step use again what the last one freed.

It changes the whole process, so that somebody has to call it: no import and no Trainer does.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys

__all__ = ["peak_memory", "tune_allocator"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST = 2**31 - 1  # of a C int


def tune_allocator(*, trim_threshold: int = 2**30, mmap_threshold: int = 32 * 2**20) -> bool:
    """Keep freed memory for the next step instead of giving it back to the kernel; True if malloc will.

    What a tape keeps is freed at each step's end. Given back, it comes as new pages, each of which the kernel
    fills with zeros at its first use (a page fault): memory is used again only while it stays with us. It is
    not for others either until the process ends. For the whole process, from now on, in every thread.

    trim_threshold: bytes; so much may lie unused at the end of the heap.
    mmap_threshold: bytes; what is smaller comes from the heap, not from a mapping of its own. Before
        glibc 2.35, 32 MiB is the most (on 64 bits).
    Returns: False, with nothing changed, where malloc is not glibc's (musl, macOS, Windows) or refuses.
    Raises: TypeError for what is no integer; ValueError for what no C int holds.
    Source: glibc's mallopt(3).
    """
    for name, value in (("trim_threshold", trim_threshold), ("mmap_threshold", mmap_threshold)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"tune_allocator: {name} is {value!r}; give bytes as an integer, such as 2**24")
        if not 0 <= value <= LARGEST:
            raise ValueError(f"tune_allocator: {name} is {value}; choose it between 0 and {LARGEST} bytes")
    try:
        library = ctypes.CDLL(None)
        _, mallopt = library.gnu_get_libc_version, library.mallopt
    except (OSError, TypeError, AttributeError):  # no such library, no libraries by no name, no such function
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, mmap_threshold) and mallopt(M_TRIM_THRESHOLD, trim_threshold))


def peak_memory() -> int | None:
    """The most memory that this process has had at once so far, in bytes; None where the system keeps none.

    Resident memory: what was swapped out or never touched does not count.

    Source: Linux's proc(5), VmHWM; getrusage(2) elsewhere.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file if line.startswith("VmHWM:")]
    except OSError:
        lines = []
    if lines:  # Linux: ru_maxrss would be at least that of the process which started this one
        return int(lines[0][1]) * 1024
    if importlib.util.find_spec("resource") is None:  # Windows
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
