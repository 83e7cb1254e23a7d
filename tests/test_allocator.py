"""Memory of the process: what a step frees is used again by the next, and how much there was at most."""

from __future__ import annotations

import builtins
import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

import microtensor as mt
from microtensor import nn, optim, train
from microtensor.train import allocator

ROOT = Path(__file__).resolve().parent.parent
GLIBC = hasattr(ctypes.CDLL(None), "gnu_get_libc_version") if sys.platform == "linux" else False
MIB = 2**20


def in_new_process(code):
    """What the code prints as JSON: malloc's options are for a whole process, and stay."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


STEPS = """
import json, resource, sys
import microtensor as mt
from microtensor import train
took_effect = train.tune_allocator() if {tuned} else None
x = mt.ones(64, 128, requires_grad=True)
def step():
    y = x
    for _ in range(300):  # 32 kB each, kept until backward: 10 MB
        y = y * 1.01
    y.sum().backward()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
before = faults()
for _ in range(10):
    step()
print(json.dumps([took_effect, (faults() - before) / 10]))
"""


@pytest.mark.skipif(not GLIBC, reason="malloc is not glibc's")
def test_memory_that_a_tape_kept_is_used_again_by_the_next_step():
    (_, before), (took_effect, after) = (in_new_process(STEPS.format(tuned=t)) for t in (False, True))
    assert took_effect is True
    assert before > 300  # page faults in a step; of the 10 MB at least an eighth was given back
    assert after < before / 10


@pytest.mark.parametrize("fault", [OSError, TypeError, AttributeError])
def test_another_c_library_is_left_alone(monkeypatch, fault):
    def no_library(name):
        raise fault

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    assert train.tune_allocator() is False


def test_a_library_that_is_not_glibc_is_not_called(monkeypatch):
    class Musl:
        def mallopt(self, option, value):
            raise AssertionError("called")

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Musl())
    assert train.tune_allocator() is False


@pytest.mark.parametrize("refused", [{-3}, {-1}, {-1, -3}])
def test_what_glibc_refuses_has_no_effect(monkeypatch, refused):
    asked = []

    class Glibc:
        def gnu_get_libc_version(self):
            return b"2.36"

        def mallopt(self, option, value):
            asked.append((option, value))
            return int(option not in refused)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Glibc())
    assert train.tune_allocator(trim_threshold=5, mmap_threshold=7) is False
    assert set(asked) <= {(-1, 5), (-3, 7)}
    refused.clear()
    asked.clear()
    assert train.tune_allocator(trim_threshold=5, mmap_threshold=7) is True
    assert sorted(asked) == [(-3, 7), (-1, 5)]


@pytest.mark.parametrize("name", ["trim_threshold", "mmap_threshold"])
def test_impossible_thresholds_are_refused_before_anything_is_changed(monkeypatch, name):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("was called"))
    for value in ("1 GiB", 1.0, True, None):
        with pytest.raises(TypeError, match=f"tune_allocator: {name} is {value!r}; give bytes"):
            train.tune_allocator(**{name: value})
    for value in (-1, 2**31):
        with pytest.raises(ValueError, match=f"tune_allocator: {name} is {value}; choose it between 0 and"):
            train.tune_allocator(**{name: value})


def test_no_import_tunes():
    code = """
import ctypes, json
called = []
plain = ctypes.CDLL
class Library(plain):
    def __getattr__(self, name):
        called.append(name)
        return super().__getattr__(name)
ctypes.CDLL = Library
import microtensor.nn, microtensor.optim, microtensor.train, microtensor.data, models
print(json.dumps(called))
"""
    assert "mallopt" not in in_new_process(code)


# --- how much there was -------------------------------------------------------------------------------------

GROW = """
import json
import numpy as np
from microtensor import train
before = train.peak_memory()
np.ones(100 * 2**20, np.uint8)
after = train.peak_memory()
print(json.dumps([before, after, train.peak_memory()]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no such number for us")
def test_peak_memory_is_in_bytes_and_never_falls():
    before, after, later = in_new_process(GROW)
    assert 90 * MIB < after - before < 110 * MIB
    assert later >= after
    assert 10 * MIB < before < 2000 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_peak_memory_is_not_that_of_the_process_which_started_this_one():
    code = f"""
import subprocess, sys
import numpy as np
held = np.ones(600 * 2**20, np.uint8)
child = "import json; from microtensor import train; print(json.dumps(train.peak_memory()))"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, cwd={str(ROOT)!r}).stdout)
"""
    assert in_new_process(code) < 500 * MIB


@pytest.mark.skipif(sys.platform == "win32", reason="there is no resource module")
@pytest.mark.parametrize(("platform", "unit"), [("darwin", 1), ("linux", 1024), ("freebsd14", 1024)])
def test_without_proc_the_unit_is_the_systems(monkeypatch, platform, unit):
    import resource

    def no_proc(path, *args, **kwargs):
        raise FileNotFoundError(path)

    monkeypatch.setattr(builtins, "open", no_proc)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: type("Usage", (), {"ru_maxrss": 5}))
    assert train.peak_memory() == 5 * unit


def test_without_any_number_there_is_none(monkeypatch):
    def no_proc(path, *args, **kwargs):
        raise FileNotFoundError(path)

    monkeypatch.setattr(builtins, "open", no_proc)
    monkeypatch.setattr(allocator.importlib.util, "find_spec", lambda name: None)
    assert train.peak_memory() is None


def test_the_trainer_logs_the_peak(tmp_path, monkeypatch):
    def records(peak):
        monkeypatch.setattr("microtensor.train.trainer.peak_memory", lambda: peak)
        net = nn.Linear(2, 1)
        trainer = train.Trainer(
            net, optim.SGD(net.parameters(), lr=0.1), [mt.ones(4, 2)],
            loss_fn=lambda net, x: net(x).square().mean(), max_steps=2, log_every=1, progress=False,
            log=tmp_path / f"{peak}.jsonl", evaluate=lambda net: {"peak_memory": 1.0}, eval_every=2,
        )  # fmt: skip
        trainer.fit()
        return [json.loads(line) for line in (tmp_path / f"{peak}.jsonl").read_text().splitlines()]

    first, second = records(12345)
    assert first["peak_memory"] == second["peak_memory"] == 12345
    assert second["eval_peak_memory"] == 1
    assert "peak_memory" not in records(None)[0]
