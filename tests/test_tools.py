"""How the programs in tools/ end when something comes in between: with one line, and a status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"
GIVEN = {
    "draw_attention": ["-o", "a.dot"],
    "draw_model": [str(TOOLS.parent / "examples" / "gallery" / "pictures.py") + ":gpt", "-o", "a.dot"],
    "compare_drawings": [],
    "parallel_model": ["--steps", "1"],
    "bench": ["dispatch", "--quick"],
}
STARTED = """
import os, runpy, signal, sys
def press():
    os.kill(os.getpid(), signal.SIGINT)
class Importing:
    def find_spec(self, name, *rest):
        if name in ("microtensor", "tools.benchmarks"):
            press()
sys.modules["torch"] = None  # it would come first
{when}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
WHEN = {  # Ctrl-C is pressed
    "in its imports": "sys.meta_path.insert(0, Importing())",
    "at work": "import numpy as np; import microtensor as mt\n"
    "mt.manual_seed = np.random.default_rng = os.getloadavg = lambda *_: press()",
}


def started(name: str, when: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STARTED.format(when=when), str(TOOLS / f"{name}.py"), *GIVEN[name]]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS.parent)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_every_tool_is_here():
    programs = {path.stem for path in TOOLS.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    assert programs == {*GIVEN}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("name", GIVEN)
def test_ctrl_c_ends_a_tool_with_one_line(name, when, tmp_path):
    done = started(name, WHEN[when], tmp_path)
    lines = [line for line in done.stderr.splitlines() if not line.endswith(" is not installed")]
    assert lines == [f"{name}: stopped; start it again for all of its output"]
    assert done.returncode == (130 if when == "at work" else -signal.SIGINT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in GIVEN if name != "bench"])
def test_a_pipe_whose_reader_ends_is_told_in_one_line(name, tmp_path):
    command = [sys.executable, str(TOOLS / f"{name}.py"), *GIVEN[name]]
    with subprocess.Popen(
        command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        said = process.stderr.read().splitlines()[-1]
    line = "what reads its output has ended (Broken pipe); let it read all, or write into a file"
    assert (process.returncode, said) == (141, f"{name}: {line}")


@pytest.mark.parametrize("place", ["folder", "nowhere/figures.json", "file/figures.json"])
def test_bench_refuses_a_file_that_cannot_be_written_before_it_measures(place, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    command = [sys.executable, str(TOOLS / "bench.py"), "dispatch", "--json", place]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"bench.py: error: --json {place}: ")
    assert done.stderr.endswith("; name another\n")
