"""Every option of every program that we give out: what cannot be meant is refused, and --help is answered."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from examples_here import EXAMPLES, NEEDS, run_here

ROOT = EXAMPLES.parent
GIVEN = ["", "-1", "0", "nan", "inf", "text", "nowhere.txt", "file.txt", "file.txt/in", "folder"]
NAMES = {"-1", "0", "nan", "inf", "text", "nowhere.txt", "folder"}  # that a folder or a line may have
MEANT = {  # of what is given, what these options can work with
    **{"--seed": {"0"}, "--lr": {"0"}, "--init_std": {"0"}, "--dropout": {"0"}, "--temperature": {"0"}},
    **{"--out": NAMES, "--notebooks": NAMES},
    **{"--prompt": {*GIVEN[1:]}, "--query": {*GIVEN[1:]}, "translate_dates --text": {*GIVEN[1:]}},
}
OTHERS = {
    "--dropout": ["1.5"],
    "translate_dates --text": ["§", "1" * 64],
    "--out": ["a" * 300],
    "--prompt": ["☃"],
}


def options_of(name: str) -> list[Any]:
    """What the program takes, as argparse has it."""
    found = []

    def look(parser: argparse.ArgumentParser, *_: Any) -> Any:
        found.append(parser)
        raise SystemExit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", look)
        run_here(name)
    return [option for option in found[0]._actions if option.dest != "help"]


@pytest.mark.parametrize("name", [*NEEDS, "lessons/run"])
def test_what_an_option_cannot_mean_is_one_line_and_nothing_is_written(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file.txt").write_text("mine")
    Path("folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    tried, wrong = 0, []
    monkeypatch.setitem(os.environ, "LESSON_SMOKE", "")  # which the lessons' program sets
    for option in options_of(name):
        flag = option.option_strings[0] if option.option_strings else ""
        both = f"{name} {flag}"
        meant = MEANT.get(both, MEANT.get(flag, set()))
        values = [v for v in GIVEN if v not in meant] + OTHERS.get(both, OTHERS.get(flag, []))
        for value in values if option.nargs != 0 else ["1"]:
            given = [f"{flag}={value}"] if option.nargs == 0 else [flag, value] if flag else [value]
            status, stdout, stderr = run_here(name, *given, *(["--smoke"] if flag != "--smoke" else []))
            tried += 1
            line = re.fullmatch(rf"{Path(name).name}: (?=.*{flag[2:]})(.+?); .+\n", stderr)
            who = re.findall(r"([^\s']+): ", line[1]) if line else []  # no function or class of ours
            if (status, stdout) != (2, "") or not line or not {*who} <= {flag, value, "file.txt"}:
                wrong.append((given, status, stderr or stdout))
    assert not wrong, "\n".join(map(str, wrong))
    assert tried >= 9
    assert sorted(tmp_path.rglob("*")) == before
    assert Path("file.txt").read_text() == "mine"


PROGRAMS = [*(f"examples/{name}" for name in NEEDS), "examples/lessons/run", "examples/gallery/pictures"]
PROGRAMS += [f"tools/{path.stem}" for path in (ROOT / "tools").glob("*.py") if path.stem != "ending"]
PROGRAMS += ["tests/torture"]
HEAVY = ["numba", "matplotlib", "sklearn", "babel", "torch", "torchviz", "pygraphviz", "tokenizers", "mpi4py"]
HELP = f"""
import runpy, sys
sys.argv[1:] = ["--help"]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    sys.stderr.write(" ".join(module for module in {HEAVY} if module in sys.modules))
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_answers_help_and_loads_nothing_heavy_for_it(name, tmp_path):
    path = ROOT / f"{name}.py"
    code = (
        f"import sys; sys.argv[0] = {str(path)!r}; sys.path[:0] = [{str(ROOT)!r}, {str(path.parent)!r}]{HELP}"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {path.name} ")
    assert "-h, --help" in done.stdout
    assert list(tmp_path.iterdir()) == []
