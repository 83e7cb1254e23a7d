"""Compiling and going parallel: the state of the disk, of threads and of forks may cost time, no more."""

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from microtensor import kernels
from microtensor.kernels import threads

LAYERS = ["default", "workqueue", "omp"]
TOY = """
import numpy as np
from numba import prange
from microtensor.kernels.threads import jit, jit_both, run

@jit
def double(x, y):
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]

def check(dtype=np.float32):
    y = np.zeros(3, dtype)
    double(np.arange(3, dtype=dtype), y)
    assert y.tolist() == [0, 2, 4], y

"""


def python(code, **env):
    everything = {**os.environ, **env}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=everything, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


@pytest.fixture
def toy(tmp_path):
    """Runs code after importing the toy kernel, with a numba cache of its own: run(code), run.cache."""
    (tmp_path / "toy.py").write_text(TOY)
    cache = tmp_path / "cache"
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])

    def run(code, **env):
        code = "import toy\n" + textwrap.dedent(code) + "\nprint(toy.double.stats.cache_hits.total())"
        return python(code, PYTHONPATH=path, NUMBA_CACHE_DIR=str(cache), **env)

    run.files = lambda pattern: sorted(cache.rglob(pattern))
    return run


# Choosing serial or parallel


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.setattr(threads, "_threads", 2)
    monkeypatch.setattr(threads, "_set_share", lambda: True)


def which(work):
    return threads.run(work, lambda: "serial", lambda: "parallel")


@pytest.mark.usefixtures("two_threads")
def test_only_large_work_is_worth_waking_the_other_cores():
    assert which(threads.PARALLEL_FROM - 1) == "serial"
    assert which(threads.PARALLEL_FROM) == "parallel"


def test_one_thread_means_serial(monkeypatch):
    monkeypatch.setattr(threads, "_threads", 1)
    assert which(1e12) == "serial"


@pytest.mark.usefixtures("two_threads")
def test_a_second_caller_runs_serial_while_the_first_is_parallel():
    assert threads.run(1e12, lambda: "serial", lambda: which(1e12)) == "serial"
    assert which(1e12) == "parallel"


@pytest.mark.usefixtures("two_threads")
def test_an_exception_in_a_parallel_kernel_does_not_lock_out_the_next():
    with pytest.raises(ZeroDivisionError):
        threads.run(1e12, lambda: 0, lambda: 1 // 0)
    assert which(1e12) == "parallel"


def test_a_threading_layer_that_is_not_installed_means_serial():
    code = """
    from microtensor.kernels import threads
    print(threads.run(1e12, lambda: "serial", lambda: "parallel"), threads.get_num_threads())
    """
    assert python(code, NUMBA_THREADING_LAYER="tbb", NUMBA_NUM_THREADS="2") in ("serial 1", "parallel 2")


# How many threads


@pytest.mark.parametrize(
    ("n", "error", "text"),
    [
        (0, ValueError, "set_num_threads: n is 0, but numba was started with .*; choose 1 to "),
        (10**6, ValueError, "set NUMBA_NUM_THREADS before the program starts"),
        (1.5, TypeError, "set_num_threads: n is 1.5, a float; give an int"),
        (True, TypeError, "set_num_threads: n is True, a bool; give an int"),
    ],
)
def test_a_wrong_number_of_threads_is_explained(n, error, text):
    with pytest.raises(error, match=text):
        kernels.set_num_threads(n)


def test_the_number_of_threads_can_be_set_and_read(monkeypatch):
    monkeypatch.setattr(threads, "_threads", threads._threads)
    kernels.set_num_threads(1)
    assert kernels.get_num_threads() == 1


def test_the_environment_limits_the_number_of_threads():
    code = "from microtensor import kernels; print(kernels.get_num_threads())"
    assert python(code, MICROTENSOR_NUM_THREADS="1", NUMBA_NUM_THREADS="2") == "1"
    assert python(code, MICROTENSOR_NUM_THREADS="64", NUMBA_NUM_THREADS="2") == "2"
    code = """
    import pytest
    with pytest.raises(ValueError, match="MICROTENSOR_NUM_THREADS: 'none' is no number of threads"):
        from microtensor.kernels import threads
    """
    python(code, MICROTENSOR_NUM_THREADS="none")


@pytest.mark.parametrize(("text", "n"), [("", 2), (" ", 2), ("1", 1), ("2", 2), ("64", 2)])
def test_the_environment_says_how_many_threads_up_to_numbas_limit(text, n, monkeypatch):
    monkeypatch.setattr(threads._config, "NUMBA_NUM_THREADS", 2)
    monkeypatch.setenv("MICROTENSOR_NUM_THREADS", text)
    assert threads._threads_from_environment() == n


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"])
@pytest.mark.parametrize(
    ("cores", "ours", "ranks", "n"), [(8, 8, 2, 4), (8, 1, 2, 1), (2, 2, 3, 1), (7, 7, 2, 3), (1, 2, 1, 2)]
)
def test_ranks_of_one_machine_share_its_cores(name, cores, ours, ranks, n, monkeypatch):
    monkeypatch.delenv("MICROTENSOR_NUM_THREADS", raising=False)
    monkeypatch.setenv(name, str(ranks))
    monkeypatch.setattr(threads.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(threads._config, "NUMBA_NUM_THREADS", ours)  # those that mpirun binds this rank to
    assert threads._threads_from_environment() == n


@pytest.mark.parametrize("text", ["none", "0", "-1", "1.5"])
def test_what_is_no_number_of_threads_is_refused(text, monkeypatch):
    monkeypatch.setenv("MICROTENSOR_NUM_THREADS", text)
    with pytest.raises(ValueError, match=f"MICROTENSOR_NUM_THREADS: '{text}' is no number of threads"):
        threads._threads_from_environment()


def test_numba_without_a_threading_layer_makes_everything_serial_from_then_on(monkeypatch):
    def refuse(n):
        raise ValueError("No threading layer could be loaded")

    monkeypatch.setattr(threads, "_threads", 2)
    monkeypatch.setattr(threads._told, "threads", 0)
    monkeypatch.setattr(threads.numba, "set_num_threads", refuse)
    assert which(1e12) == "serial"
    assert kernels.get_num_threads() == 1


def test_after_a_fork_everything_is_serial_and_stays_so(monkeypatch):
    for name in ("_threads", "_forked"):
        monkeypatch.setattr(threads, name, getattr(threads, name))
    monkeypatch.setattr(threads._config, "NUMBA_NUM_THREADS", 2)
    threads._after_fork()
    assert which(1e12) == "serial"
    kernels.set_num_threads(1)
    with pytest.raises(RuntimeError, match="set_num_threads: n is 2, but this process is a fork of another"):
        kernels.set_num_threads(2)


# Python threads and forks


WORK = """
import os, sys, threading
import numpy as np
from microtensor.kernels import matmul
a = np.random.default_rng(0).random((300, 300), np.float32)
expected = matmul(a, a)
"""


@pytest.mark.compiled
@pytest.mark.parametrize("layer", LAYERS)
def test_four_python_threads_at_once_all_get_the_right_product(layer):
    code = """
    right = []
    def loop():
        for _ in range(50):
            right.append(np.array_equal(matmul(a, a), expected))
    workers = [threading.Thread(target=loop) for _ in range(4)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    print(sum(right))
    """
    out = python(WORK + textwrap.dedent(code), NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="2")
    assert out == "200"


@pytest.mark.compiled
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("layer", LAYERS)
def test_a_forked_child_computes_the_same_serially(layer):
    code = """
    from microtensor import kernels
    child = os.fork()
    if child == 0:
        same = np.array_equal(matmul(a, a), expected) and kernels.get_num_threads() == 1
        try:
            kernels.set_num_threads(2)
        except RuntimeError as error:
            os._exit(0 if same and "fork" in str(error) else 3)
        os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(matmul(a, a), expected)
    print(kernels.get_num_threads())
    """
    out = python(WORK + textwrap.dedent(code), NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="2")
    assert out == "2"


# The cache on disk


@pytest.mark.compiled
def test_machine_code_is_found_again(toy):
    assert toy("toy.check()") == "0"
    assert toy("toy.check()") == "1"


@pytest.mark.compiled
@pytest.mark.parametrize("pattern", ["*.nbi", "*.nbc"])
def test_a_damaged_cache_file_is_replaced(toy, pattern):
    code = f"""
    import importlib, os, pathlib
    def hits():
        importlib.reload(toy)  # a kernel that knows the files only
        toy.check()
        return toy.double.stats.cache_hits.total()
    toy.check()
    (file,) = pathlib.Path(os.environ["NUMBA_CACHE_DIR"]).rglob({pattern!r})
    whole = file.read_bytes()
    for damage in (b"", b"no pickle at all", whole[: len(whole) // 2]):
        file.write_bytes(damage)
        assert hits() == 0, damage
    assert hits() == 1
    """
    toy(code)
    assert toy("toy.check()") == "1"


@pytest.mark.compiled
def test_an_index_that_points_at_code_for_another_dtype_is_not_believed(toy):
    toy("import numpy as np; toy.check(np.float32); toy.check(np.float64)")
    first, second = toy.files("*.nbc")
    first.write_bytes(second.read_bytes())  # what two processes that save at once can leave behind
    assert toy("toy.check()") == "0"


@pytest.mark.compiled
@pytest.mark.parametrize("moment", ["before the import", "before the first call"])
def test_without_a_writable_directory_kernels_run_uncached(toy, moment):
    deny = """
    import numba.core.caching
    def deny(self): raise PermissionError("read-only file system")
    numba.core.caching._CacheLocator.ensure_cache_path = deny
    """
    code = deny + "\n    import importlib; importlib.reload(toy)" * (moment == "before the import")
    assert toy(textwrap.dedent(code) + "\ntoy.check()") == "0"
    assert toy.files("*.nbc") == []


@pytest.mark.compiled
def test_the_serial_and_the_parallel_version_do_not_share_a_file(toy):
    code = """
    import inspect
    serial, parallel = toy.jit_both(toy.double.py_func)
    x = toy.np.ones(3)
    serial(x, x.copy()), parallel(x, x.copy())
    """
    toy(code)
    assert len({file.name.rsplit(".", 2)[0] for file in toy.files("*.nbc")}) == 2


def test_kernels_work_without_a_source_file():
    kernel = "from microtensor.kernels.threads import jit\n@jit\ndef f(x): return x + 1\nprint(f(1))"
    assert python(f"exec(compile({kernel!r}, '<stdin>', 'exec'))") == "2"


class BrokenDisk:
    """numba's cache, but its next calls fail in these ways, one after the other; None succeeds."""

    def __init__(self, *failures):
        self.failures, self.saved, self.flushed = list(failures), [], 0

    def step(self):
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def load_overload(self, signature, context):
        self.step()

    def save_overload(self, signature, code):
        self.step()
        self.saved.append(code)

    def flush(self):
        self.flushed += 1


def soft_cache(*failures):
    cache = object.__new__(threads._SoftCache)
    cache._disk = BrokenDisk(*failures)
    return cache


def test_a_cache_that_cannot_be_read_has_nothing():
    assert soft_cache(ValueError("garbage")).load_overload("signature", None) is None
    assert soft_cache().load_overload("signature", None) is None


def test_a_full_disk_keeps_nothing_and_stops_nobody():
    cache = soft_cache(OSError("no space left on device"))
    cache.save_overload("signature", "code")
    assert (cache._disk.saved, cache._disk.flushed) == ([], 0)


@pytest.mark.parametrize(("second", "saved"), [(None, ["code"]), (OSError("full, too"), [])])
def test_a_garbled_index_is_begun_anew_once(second, saved):
    cache = soft_cache(KeyError("garbage"), second)
    cache.save_overload("signature", "code")
    assert (cache._disk.saved, cache._disk.flushed) == (saved, 1)


# Laziness


def test_importing_the_kernels_package_does_not_import_numba():
    assert python("import sys, microtensor.kernels; print('numba' in sys.modules)") == "False"


def test_a_kernel_is_looked_up_once():
    kernels.__dict__.pop("matmul", None)
    product = kernels.matmul
    assert kernels.__dict__["matmul"] is product
    assert np.array_equal(product(np.eye(2), np.eye(2)), np.eye(2))


def test_what_stands_in_for_a_kernel_does_so_in_one_block_of_one_thread():
    product, seen = kernels.matmul, []
    with kernels.instead({"matmul": min}):
        assert kernels.matmul is min
        assert kernels.relu_forward is not min
        other = threading.Thread(target=lambda: seen.append(kernels.matmul))
        other.start()
        other.join()
        assert seen == [product]
    assert kernels.matmul is product
    assert kernels.__dict__["matmul"] is product  # as fast as before
    with pytest.raises(ZeroDivisionError), kernels.instead({"matmul": min}):
        _ = 1 / 0
    assert kernels.matmul is product


def test_an_unknown_kernel_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"microtensor\.kernels.*no attribute 'nonsense'"):
        _ = kernels.nonsense
    assert "matmul" in dir(kernels)
