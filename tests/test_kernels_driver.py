"""Tasks by address: each runs once, on one thread or more, with the same arguments."""

import os
import subprocess
import sys

import numpy as np
import pytest

from microtensor.kernels import columns, driver, notice, threads


@threads.jit
def squares(task, tasks, driver_, factor, x, y):
    if task < 0:
        driver.again(tasks, driver_)
        return
    for i in range(len(x) * task // tasks, len(x) * (task + 1) // tasks):
        y[i] += factor * x[i] * x[i]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tasks", [1, 2, 3, 40])
def test_each_task_runs_once_with_the_arguments_of_all(tasks, dtype, rng):
    x, y = rng.normal(size=101).astype(dtype)[::2], np.ones(51, dtype)
    driver.in_tasks(squares, tasks, 3, x, y)
    np.testing.assert_allclose(y, 1 + 3 * x.astype(float) ** 2, rtol=1e-6)


@driver.jit_tasks
def count(task, y):
    first, last = driver.share(task, y.size)
    for i in range(first, last):
        y[i] += 1


@pytest.mark.parametrize("n", [0, 1, 2, 101])
def test_the_shares_of_all_tasks_are_everything_once(n):
    for way in count:
        y = np.zeros(n)
        way(y)
        assert y.tolist() == [1] * n


PROGRAM = """
import numpy as np
from microtensor.kernels import attention_forward, notice
notice.AFTER = 0.0
q = np.random.default_rng(0).normal(size=(2, 4, 130, 8)).astype(np.float32)
y, stats = attention_forward(q, q, q, None, 0.5, True, 0.0, 0)
print(y.tobytes().hex()[:40], float(y.sum()))
"""


def python(cache, **env):
    everything = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "NUMBA_NUM_THREADS": "2", **env}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=everything, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.compiled
def test_kernels_on_disk_hold_no_address_and_need_no_notice(tmp_path):
    """Two processes, where everything lies at other addresses; then one more that may not say anything."""
    first, second = (python(tmp_path, MICROTENSOR_QUIET="") for _ in range(2))
    assert first.stdout == second.stdout
    assert first.stderr == notice.LINE + "\n"
    assert second.stderr == ""
    for file in tmp_path.rglob("*.nb?"):
        file.unlink()
    silent = python(tmp_path, MICROTENSOR_QUIET="1", MICROTENSOR_NUM_THREADS="1")
    assert (silent.stdout, silent.stderr) == (first.stdout, "")


@threads.jit
def addresses(x, out):
    out[0] = columns.start_of(x)
    out[1] = columns.address_of(x, 1, 2, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_addresses_are_those_of_the_elements(dtype):
    x, out = np.zeros((3, 4, 2, 5), dtype).transpose(0, 2, 1, 3)[:, ::-1], np.zeros(2, np.int64)
    x = x.transpose(0, 2, 1, 3)
    addresses(x, out)
    assert out.tolist() == [x.ctypes.data, x[1, 2, 1:].ctypes.data]
