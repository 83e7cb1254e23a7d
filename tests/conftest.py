"""Fixtures that every test may use, and one that every test gets: nothing leaks into the next test."""

from __future__ import annotations

import os
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import microtensor as mt
from microtensor.engine import Op, op, registry
from microtensor.mode import mode

collect_ignore = [
    "programs",
    "golden",
]  # programs for PyTorch, modules for the golden pack: other tests run them

# compiling a kernel takes a second at its first call, on a busy machine several: no deadline can tell that
# apart from a slow test
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=10, derandomize=True, **_COMMON)
settings.register_profile("dev", max_examples=25, **_COMMON)
settings.register_profile("ci", max_examples=50, derandomize=True, **_COMMON)
settings.register_profile("deep", max_examples=2000, derandomize=False, **_COMMON)  # also where CI is set
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        left_out = [item for item in items if item.get_closest_marker("compiled")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell that starts pytest in the background has it ignore Ctrl-C, and every process it starts."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the test's own name: the same numbers alone, in any order and in any process."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


# ---- nothing leaks from a test into the next ----


def _threads_are_as_started() -> bool:
    threads = sys.modules.get("microtensor.kernels.threads")  # numba is loaded by the first kernel only
    return threads is None or threads._threads == threads._threads_from_environment()


def _own_ops() -> dict[str, Op]:
    """Ops that were declared outside the package; inside it, a module may be imported by any test."""
    return {name: op for name, op in registry.items() if not op.__module__.startswith("microtensor.")}


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in CHANGED_BY_OTHERS}


def _put_environment_back(before: dict[str, str]) -> None:
    for name in {*_environment(), *before}:
        os.environ.pop(name, None)
    os.environ.update(before)


def _put_ops_back(before: dict[str, Op]) -> None:
    for name in {*_own_ops(), *before}:
        registry.pop(name, None)
    registry.update(before)


@pytest.fixture
def declare() -> Iterator[Callable[..., Any]]:
    """Lets a test declare ops without leaving them in the registry."""
    before = _own_ops()
    yield op
    _put_ops_back(before)


def _running() -> set[str]:
    """Names of threads; tqdm's, which watches all progress bars to come, starts with the first one."""
    return {t.name for t in threading.enumerate() if type(t).__name__ != "TMonitor"}


def _files() -> set[str]:
    return {name for name in os.listdir() if not name.startswith((".", "__pycache__"))}


CHANGED_BY_OTHERS = {
    "PYTEST_CURRENT_TEST",
    "GOMP_SPINCOUNT",  # when the first kernel is loaded
    "FONTCONFIG_FILE",  # when the first picture is laid out
    "TORCHINDUCTOR_CACHE_DIR",  # by PyTorch when it first needs its compiler (norm)
}
STOPS = (signal.SIGINT, signal.SIGTERM)
STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {  # how to look, how to put it back
    "this thread's mode": (lambda: dict(mode.__dict__), lambda before: mode.__dict__.update(before)),
    "the default dtype": (mt.get_default_dtype, mt.set_default_dtype),
    "the number of threads as started": (_threads_are_as_started, lambda _: None),
    "the ops declared outside microtensor": (_own_ops, _put_ops_back),
    "the environment": (_environment, _put_environment_back),
    "what NumPy does about inf and NaN": (np.geterr, lambda before: np.seterr(**before)),
    "the handlers of Ctrl-C and SIGTERM": (
        lambda: [signal.getsignal(number) for number in STOPS],
        lambda before: [signal.signal(*pair) for pair in zip(STOPS, before, strict=True)],
    ),
    "the current directory": (os.getcwd, os.chdir),
    "files in the current directory": (_files, lambda _: None),
    "running threads": (_running, lambda _: None),
}


def _changed(before: Any, now: Any) -> str:
    if isinstance(before, dict):  # the environment alone is pages long
        return ", ".join(sorted(k for k in {*before, *now} if before.get(k) != now.get(k)))
    return f"{before} became {now}"


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Fails a test that leaves any of STATE other than it found it, and puts it back for the next one."""
    before = {what: look() for what, (look, _) in STATE.items()}
    yield
    leaked = []
    for what, (look, put_back) in STATE.items():
        now = look()
        if now != before[what]:
            put_back(before[what])
            leaked.append(f"{what}: {_changed(before[what], now)}")
    assert not leaked, "the test leaked " + "; ".join(leaked)
