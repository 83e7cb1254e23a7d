"""What a test must not leave behind is noticed: see STATE in conftest.py. Each test here leaks on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

LEAKS = {
    "this thread's mode": "mt.set_grad_enabled(False)",
    "this thread's mode: anomalies": "mt.autograd.set_detect_anomaly(True)",
    "this thread's mode: composites": "mt.composites().__enter__()",
    "the default dtype": "mt.set_default_dtype(mt.float64)",
    "the number of threads as started": "kernels.set_num_threads(1)",
    "the ops declared outside microtensor": "op('leak')(abs)",
    "the environment": "os.environ['LEAK'] = '1'",
    "what NumPy does about inf and NaN": "np.seterr(all='ignore')",
    "the handlers of Ctrl-C and SIGTERM": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "the current directory": "os.chdir('/')",
    "files in the current directory": "open('left', 'w').close()",
    "running threads": "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()",
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What pytest says of a file with two tests for each leak: the one that leaks, and the next."""
    folder = tmp_path_factory.mktemp("leaks")
    lines = ["import os, signal, threading, time", "import numpy as np", "import microtensor as mt"]
    lines += ["from microtensor import kernels", "from microtensor.engine import op"]
    lines += [f"def test_{i}(): {code}\ndef test_{i}_next(): pass" for i, code in enumerate(LEAKS.values())]
    (folder / "conftest.py").write_text((HERE / "conftest.py").read_text(encoding="utf-8"))
    (folder / "test_leaking.py").write_text("\n".join(lines))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rE",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
    ]
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "NUMBA_NUM_THREADS": "2", "COLUMNS": "300"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("ERROR ")]


@pytest.mark.parametrize("what", LEAKS)
def test_a_leak_fails_the_test_that_leaks_and_not_the_next(what: str, errors: list[str]) -> None:
    test = f"test_{list(LEAKS).index(what)}"
    (error,) = (line for line in errors if f"::{test} " in line or f"::{test}_" in line)
    assert f"::{test} - AssertionError: the test leaked {what.split(':')[0]}:" in error
