"""How kernels are compiled, and whether a call runs on one core or on all: decided here and nowhere else.

`jit` compiles with numba and keeps the machine code on disk; a cache that cannot be read or written only
costs time, never an error. `run` goes parallel where that pays and is safe. Both versions of a kernel must
give the same bits, so a kernel is parallel over independent rows or blocks only; it never splits a sum.
With NUMBA_DISABLE_JIT=1 every kernel runs as the Python that it is written in, for debuggers and the curious.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, overload

import numba
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.registry import cpu_target

from microtensor.kernels import notice

F = TypeVar("F", bound=Callable[..., Any])

_config: Any = numba.config  # numba has types for some of its names in some versions: treat all as untyped
_njit: Any = numba.njit
typeof: Any = numba.typeof
_FunctionCache: Any = FunctionCache
_CacheFile: Any = IndexDataCacheFile

FASTMATH = frozenset({"reassoc", "contract", "nsz", "arcp"})
"""Sums may be reordered, but NaN and inf exist: full fastmath would delete the tests for them."""

PARALLEL_FROM = 40_000
"""Nanoseconds of serial work from which waking the other cores (1 000 ns, or 50 000 if they sleep) pays."""


COMPILED = not _config.DISABLE_JIT
if COMPILED and not os.environ.get("MICROTENSOR_QUIET"):
    notice.tell_when_compiling()


@functools.cache
def _digest_of_shared_sources() -> str:
    shared = "threads", "driver", "vectors", "columns", "tiles", "operands", "panels", "tables", "exponential"
    sources = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in (*shared, "line", "chance")]
    return hashlib.sha256(b"".join(sources)).hexdigest()


class _SoftCache:
    """numba's disk cache, but a broken file means "compile again", and no two kinds of code share a file.

    numba's own key knows neither the options (parallel, fastmath: the two versions of one function would be
    mixed up) nor how we choose tiles, and two processes that save at once can leave an index that points at
    the other one's code. So options and CPU go into the file name, and a loaded signature is checked.
    numba notices a change in the kernel's own file only; we add the files that kernels share.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._disk = disk = _FunctionCache(function)  # RuntimeError if no directory can be written
        kind = repr((sorted(options.items()), cpu_target.target_context.codegen().magic_tuple()))
        name = f"{disk._impl.filename_base}-{hashlib.sha256(kind.encode()).hexdigest()[:12]}"
        stamp = (disk._impl.locator.get_source_stamp(), _digest_of_shared_sources())
        disk._cache_file = _CacheFile(disk.cache_path, name, stamp)
        self.cache_path = disk.cache_path

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            code = self._disk.load_overload(signature, target_context)
        except Exception:  # a pickle of garbage may raise anything at all
            return None
        return code if code is not None and tuple(code.signature.args) == tuple(signature) else None

    def save_overload(self, signature: Any, code: Any) -> None:
        try:
            self._disk.save_overload(signature, code)
        except OSError:  # full or read-only disk: this process has its code, the next one compiles again
            return
        except Exception:  # the index is garbage: start a new one, and if that fails too, do without
            with contextlib.suppress(Exception):
                self._disk.flush()
                self._disk.save_overload(signature, code)


def cpu_features() -> frozenset[str]:
    """What the CPU that we compile for can do, in LLVM's names; also part of every cache file's name."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return frozenset(feature[1:] for feature in features.split(",") if feature.startswith("+"))


@overload
def jit(function: F) -> F: ...
@overload
def jit(
    *,
    parallel: bool = ...,
    fastmath: bool = ...,
    cache: bool = ...,
    entry: bool = ...,
    lean: bool = ...,
    inline: bool = ...,
) -> Callable[[F], F]: ...
def jit(
    function: Callable[..., Any] | None = None,
    *,
    parallel: bool = False,
    fastmath: bool = False,
    cache: bool = True,
    entry: bool = True,
    lean: bool = False,
    inline: bool = False,
) -> Any:
    """Compiles a kernel on its first call, or loads it from disk.

    parallel: `numba.prange` loops use all cores. fastmath: allows the `FASTMATH` subset.
    cache: False for a helper that is only called by other kernels of its file: their files contain it.
    entry: False for such a helper if Python never calls it: half of its compile time is for Python's objects.
    lean: no reference counts, no way to be called by address: two fifths less to compile, for a kernel that
    makes no arrays but slices. A helper with entry=False is so, too.
    inline: such a helper becomes text of its callers. A large one that is called once compiles in half the
    time, because LLVM takes what a function calls through all its passes again.
    """
    if function is None:
        return functools.partial(
            jit,
            parallel=parallel,
            fastmath=fastmath,
            cache=cache,
            entry=entry,
            lean=lean,
            inline=inline,
        )
    if not COMPILED:
        return np.errstate(all="ignore")(function)  # IEEE without warnings, as compiled
    assumed = sorted(FASTMATH) if fastmath else []
    options = {
        "error_model": "numpy",
        "parallel": parallel,
        "fastmath": set(assumed) or False,
        "inline": "always" if inline else "never",
        "no_cpython_wrapper": not entry,
        "no_cfunc_wrapper": lean or not entry,
        "_nrt": not lean and entry,
    }
    kernel = _njit(**options)(function)
    if cache and entry and not inline:
        with contextlib.suppress(RuntimeError, OSError):  # no writable directory, or the source is no file
            kernel._cache = _SoftCache(function, {**options, "fastmath": assumed})
    return kernel


def jit_both(function: F, *, fastmath: bool = False) -> tuple[F, F]:
    """Compiles a kernel with `prange` loops twice: (serial, parallel), the pair that `run` wants."""
    return jit(fastmath=fastmath)(function), jit(parallel=True, fastmath=fastmath)(function)


def compiled(kernel: Any, signature: tuple[Any, ...]) -> Callable[..., Any]:
    """The machine code of a kernel for arguments of these numba types."""
    code: Callable[..., Any] = kernel.compile(signature) if COMPILED else kernel
    return code


def run(work: float, serial: Callable[..., Any], parallel: Callable[..., Any], *args: Any) -> Any:
    """serial(*args) or parallel(*args), whichever is faster and safe.

    work: about how many nanoseconds the serial kernel takes; for scale, a streaming pass over float32 costs
    0.1 to 0.3 per element, an exp about 1. An error of a factor of two does not matter.
    Serial if the work is small, if there is one thread, in a forked child (GNU OpenMP kills it), and while
    another Python thread is in a parallel kernel (numba's workqueue layer aborts the process).
    """
    if work < PARALLEL_FROM or _threads < 2 or not _busy.acquire(blocking=False):
        return serial(*args)
    try:
        return parallel(*args) if _set_share() else serial(*args)
    finally:
        _busy.release()


def get_num_threads() -> int:
    """How many threads a large kernel uses.

    Source: torch.get_num_threads.
    """
    return _threads


def set_num_threads(n: int) -> None:
    """Lets large kernels use n threads, in the whole process.

    Raises: TypeError for what is no integer; ValueError if n is not in 1 … the number numba was started with;
    RuntimeError in a forked child.
    Source: torch.set_num_threads.
    """
    global _threads
    limit = _config.NUMBA_NUM_THREADS
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"set_num_threads: n is {n!r}, a {type(n).__name__}; give an int")
    if not 1 <= n <= limit:
        raise ValueError(
            f"set_num_threads: n is {n}, but numba was started with {limit} threads; "
            f"choose 1 to {limit}, or set NUMBA_NUM_THREADS before the program starts"
        )
    if _forked and n > 1:
        raise RuntimeError(
            f"set_num_threads: n is {n}, but this process is a fork of another and must stay serial; "
            f"start it with multiprocessing's 'spawn' method to use threads"
        )
    _threads = n


def _threads_from_environment() -> int:
    limit: int = _config.NUMBA_NUM_THREADS
    text = os.environ.get("MICROTENSOR_NUM_THREADS", "").strip()
    if not text:
        # the ranks of an MPI run on this machine, as Open MPI or MPICH says
        names = "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"
        ranks = max(int(os.environ.get(name, "1")) for name in names)
        return limit if ranks == 1 else max(1, min(limit, (os.cpu_count() or 1) // ranks))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"MICROTENSOR_NUM_THREADS: {text!r} is no number of threads; set it to 1 or more, or unset it"
        )
    return min(int(text), limit)


def _set_share() -> bool:
    """Starts numba's threads and tells them how many to use (numba keeps that number per Python thread)."""
    global _threads
    if _told.threads == _threads:
        return True
    try:
        numba.set_num_threads(_threads)
        _told.threads = _threads
    except ValueError:  # the threading layer that NUMBA_THREADING_LAYER asks for is not installed
        _threads = 1
        return False
    return True


def _after_fork() -> None:
    global _threads, _forked
    _threads, _forked = 1, True


if "OMP_WAIT_POLICY" not in os.environ:  # pragma: no branch — read once, when the process starts
    # GNU OpenMP's waiting threads spin for milliseconds. Where other programs want the cores too, a spinning
    # thread uses up the turn that the working one needs, and a product of 0.2 ms takes 8 ms. About 0.1 ms of
    # spinning still bridges the gap between two kernels. Read once, when the first parallel kernel is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


class _Told(threading.local):
    """How many threads numba was last told to use for this Python thread: telling it takes 3 µs."""

    threads = 0


_told = _Told()
_busy = threading.Lock()
_forked = False
_threads = _threads_from_environment()

if hasattr(os, "register_at_fork"):  # pragma: no branch — Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)
