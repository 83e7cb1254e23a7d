"""The benchmark tool measures what it says; how fast anything is is no claim of a test."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
HERE = [sys.executable, str(ROOT / "tools" / "bench.py")]


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("bench", ROOT / "tools" / "bench.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def times(least, median=None, spread=0.0):
    return {"min": least, "median": median or least, "spread": spread}


def test_a_row_is_measured_from_end_to_end(tmp_path):
    out = tmp_path / "figures.json"
    command = [*HERE, "dispatch", "--rounds", "1", "--quick", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    assert "dispatch: a + b" in done.stdout
    (found,) = figures["cases"].values()
    assert [case["case"] for case in found] == ["a + b", "a * b", "chain", "chain and its backward"]
    for case in found:
        assert {"microtensor", "numpy"} <= set(case["rivals"])
        assert all(0 < t["min"] <= t["median"] for t in case["rivals"].values())


def test_an_unknown_row_is_refused_by_name():
    done = subprocess.run([*HERE, "gem"], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert "no such row: gem; choose among nanogpt" in done.stderr


def test_the_load_of_others_is_read_before_the_peaks_make_one(bench, monkeypatch, capsys):
    load = [0.0]
    monkeypatch.setattr(os, "getloadavg", lambda: load * 3)
    monkeypatch.setattr(bench, "peak_of", lambda n: load.insert(0, 5.0) or 1.0)
    monkeypatch.setattr(bench, "measure", lambda *_: [])
    monkeypatch.setattr(bench, "summary", lambda *_: [])
    bench.run(["nanogpt"], False, True, 1, 1)
    assert "load was" not in capsys.readouterr().out
    bench.run(["nanogpt"], False, True, 1, 1)
    assert "load was 5.0 on" in capsys.readouterr().out


def test_ratios_are_of_the_better_rival_and_the_mean_is_geometric(bench):
    def case(name, ours, numpy, torch):
        rivals = {
            "microtensor": times(ours, 2 * ours),
            "numpy": times(numpy),
            "torch": times(torch, 4 * torch, 0.25),
        }
        return {"case": name, "operations": 8e9, "rivals": rivals}

    lines = bench.summary(bench.Row("gemm", 1.0), [case("x", 2.0, 9.0, 4.0), case("y", 8.0, 9.0, 1.0)])
    assert [line["ratio"] for line in lines] == pytest.approx([0.5, 8.0, 2.0])  # √(0.5 · 8)
    assert [line["ok"] for line in lines] == [True, False, False]
    assert lines[0]["against"] == "torch"
    assert lines[0]["median"] == pytest.approx(4.0 / 16.0)
    assert lines[0]["noise"] == 0.25
    assert lines[0]["gflops"] == pytest.approx(4.0)


def test_dispatch_is_compared_with_torch_and_counted_over_numpy(bench):
    rivals = {"microtensor": times(800e-6), "numpy": times(200e-6), "torch": times(400e-6)}
    of_torch, over = bench.summary(
        bench.Row("dispatch", 1.0), [{"case": "chain", "operations": 0.0, "rivals": rivals}]
    )
    assert of_torch["ratio"] == pytest.approx(2.0)
    assert over["ours"] == pytest.approx(3.0)  # 600 µs for 200 operations
    assert not over["ok"]


def test_without_a_rival_there_is_no_ratio(bench):
    rows = [{"case": "nanogpt", "operations": 1e9, "rivals": {"microtensor": times(1.0)}}]
    (line,) = bench.summary(bench.Row("nanogpt", 1.0), rows)
    assert line["ratio"] is None
    assert line["ok"] is None
    memory = bench.probes.line("peak memory", 110.0, None, "MiB", 1.0, "torch")
    assert (memory["ratio"], memory["ok"]) == (None, None)  # 110 MiB are not 110 times a rival's
    assert bench.probes.line("start", 1.5, None, "s", 2.0)["ok"]


def test_a_miss_within_the_noise_is_no_verdict_and_seconds_are_no_ratio(bench, capsys):
    line = bench._line(
        "GELU", {"rivals": {"microtensor": times(0.82), "torch": times(1.0)}, "operations": 0}, 0.8
    )
    bench.show([line, line | {"noise": 0.05}, bench.probes.line("start", 1.5, None, "s", 1.0)])
    clear, near, seconds = [text.split() for text in capsys.readouterr().out.splitlines()]
    assert (clear[-1], near[-1], seconds[-1]) == ("NO", "no?", "NO")
    assert seconds == ["start", "1.5", "s", "1.0", "NO"]
    noisy = {"rivals": {"microtensor": times(0.8, spread=0.5), "torch": times(1.0)}, "operations": 0}
    assert bench._line("GELU", noisy, 0.8)["noise"] == 0.5  # ours counts, too


def test_rivals_that_compute_something_else_are_noticed(bench):
    class Fake:
        def __init__(self, loss):
            self.cases = [("nanogpt", 1.0, loss)]

    bench._same_losses({"microtensor": Fake(4.17), "torch": Fake(4.17 * (1 + 1e-6))})
    with pytest.raises(RuntimeError, match="torch starts at losses"):
        bench._same_losses({"microtensor": Fake(4.17), "torch": Fake(4.18)})


def test_both_frameworks_run_one_text_and_compute_the_same_loss(bench):
    pytest.importorskip("torch")
    code = """
import sys
sys.path.insert(0, {root!r})
from tools.benchmarks import cases
step = cases.programs({rival!r}).train_gpt(cases.rng(), 2, 8, 1, 2, 16)
print(*[step().item() for _ in range(3)])
"""
    losses = []
    for rival in ("microtensor", "torch"):
        command = [sys.executable, "-c", code.format(root=str(ROOT), rival=rival)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        losses.append([float(x) for x in done.stdout.split()])
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize(("name", "n"), [("fused", 5), ("dispatch", 4), ("gemm", 9), ("encoder", 1)])
def test_the_cases_of_a_benchmark_run(bench, name, n):
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tools.benchmarks import cases
names = [(name, call())[0] for name, _, call in cases.BENCHMARKS[{name!r}]("microtensor")]
assert len(set(names)) == len(names) == {n}, names
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_figures_say_for_what_machine_they_hold(bench):
    machine = bench.machine()
    assert (machine["cores"], machine["numpy"]) == (os.cpu_count(), np.__version__)
    assert machine["processor"] not in ("", platform.machine())  # its make, not x86_64
