"""Fixtures that every test may use, and one that every test gets: nobody leaks a mode into the next test."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import microtensor as mt
from microtensor.mode import mode

collect_ignore = ["programs"]  # written for PyTorch; test_torch_programs runs them

# compiling a kernel takes a second at its first call, on a busy machine several: no deadline can tell that
# apart from a slow test
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=10, derandomize=True, **_COMMON)
settings.register_profile("dev", max_examples=25, **_COMMON)
settings.register_profile("ci", max_examples=50, derandomize=True, **_COMMON)
settings.register_profile("deep", max_examples=2000, **_COMMON)
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


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Fails a test that leaves grad mode, composite mode or the default dtype other than it found them."""
    yield
    left = (mode.grad, mode.composites, mt.get_default_dtype())
    mode.grad, mode.composites = True, False
    mt.set_default_dtype(mt.float32)
    assert left == (True, False, np.float32), f"the test leaked (grad, composites, default dtype) = {left}"
