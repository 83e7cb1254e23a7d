"""The small examples as their users meet them, a few steps long; and the small tasks' pinned curves."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from microtensor import train
from microtensor.data import AdditionTask, StringTask

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LESSONS = ["spiral", "digits", "induction_heads"]
PLOTTED = {"spiral": ["boundary"], "digits": ["mistakes"], "induction_heads": ["attention", "loss"]}


def run(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": path, "MICROTENSOR_QUIET": "1"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--smoke", "--out", "out", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


def assert_plotted(folder: Path, *names: str) -> None:
    for name in names:
        png = (folder / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        width, height = (int.from_bytes(png[i : i + 4], "big") for i in (16, 20))
        assert 300 < height <= width < 2000, "a screen shows it whole"
        assert "<svg" in (folder / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_and_plots(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    needs = {"spiral": "matplotlib", "digits": "sklearn", "induction_heads": "matplotlib"}[name]
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    done = run(name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert_plotted(tmp_path / "out", *PLOTTED[name])
    said = {"spiral": "of 600 test points right", "digits": "vision Transformer, ",
            "induction_heads": "layer 2, induction scores: "}  # fmt: skip
    assert said[name] in done.stdout


@pytest.mark.parametrize("name", ["spiral", "tasks"])
def test_a_seed_or_a_folder_that_cannot_be_used_is_refused_at_once(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("babel")
    (tmp_path / "file").write_text("mine")
    for arguments, said in (
        (["--seed", "-1"], "--seed is -1; give at least 0"),
        (["--seed", "18446744073709551616"], f"--seed is {2**64}; give at most {2**53}"),
        (["--out", "file"], "--out file: file is no folder; name another"),
        (["--out", "file/in"], "--out file/in: file is no folder; name another"),
    ):
        done = run(name, *arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"{name}: {said}\n"
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_lets_nobody_write_is_refused_though_it_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    options = importlib.import_module("options")

    def refuse(*args: Any, **named: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "x")

    monkeypatch.setattr(options.tempfile, "mkdtemp", refuse)  # as in /proc, where root's os.access is true
    said = rf"--out {tmp_path}/x: nothing can be written in {tmp_path} \(No such .*\); name another"
    with pytest.raises(ValueError, match=said):
        options.check_folder("--out", tmp_path / "x")


@pytest.mark.parametrize("name", ["spiral", "lessons/run"])
def test_a_pipe_whose_reader_ends_is_told_in_one_line(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--smoke"]
    command += ["--out", "out"] if name == "spiral" else ["01"]
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        last = process.stderr.read().splitlines()[-1].rpartition("\r")[2]
    said = "what reads its output has ended (Broken pipe); let it read all, or write into a file"
    assert (process.returncode, last) == (141, f"{Path(name).name}: {said}")


def test_a_job_that_finds_no_memory_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    job = importlib.import_module("job")
    monkeypatch.setattr(train, "tune_allocator", lambda: None)  # for the whole process
    monkeypatch.setattr(sys, "argv", ["mine.py", "--out", str(tmp_path)])
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    assert job.Job("Mine.", "out", {}, {}).run(lambda options: np.empty(1 << 60, np.uint8)) == 1
    assert re.fullmatch("mine: Unable to allocate .*; give smaller numbers, or free some\n", said.getvalue())


def test_an_error_that_says_resume_says_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    job = importlib.import_module("job")
    monkeypatch.setattr(train, "tune_allocator", lambda: None)
    monkeypatch.setattr(sys, "argv", ["mine.py", "--out", str(tmp_path)])
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)

    def work(options: Any) -> None:
        raise RuntimeError("Trainer: rank 1 of 2 is gone; go on with resume()")

    assert job.Job("Mine.", "out", {}, {}).run(work) == 1
    assert said.getvalue().endswith(f" mine.py --out {tmp_path} --resume\n")


def test_a_smoke_run_leaves_the_pictures_of_a_full_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    arguments = importlib.import_module("lesson").arguments
    for given, out in (["--smoke"], "x-smoke"), ([], "x"), (["--smoke", "--out", "mine"], "mine"):
        monkeypatch.setattr(sys, "argv", ["x.py", *given])
        assert str(arguments("A lesson.", "x").out) == out
        assert Path(out).is_dir()


# --- tasks --------------------------------------------------------------------------------------------------


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("matplotlib")
    pytest.importorskip("babel")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("tasks")


def test_all_tasks_run_and_end_in_a_table(tasks: ModuleType, tmp_path: Path) -> None:
    done = run("tasks", "--only", "copy", "--only", "addition", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("task "))
    assert [line.split()[:2] for line in lines[start + 1 : start + 3]] == [["copy", "5"], ["addition", "5"]]
    assert_plotted(tmp_path / "out", "curves-copy-addition")  # those of all tasks stay


STOPPED = """
import runpy, signal, sys
sys.path.insert(0, {examples!r})
import microtensor as mt
from microtensor.optim import Adam
step, count = Adam.step, [0]
def counted(*args):
    count[0] += 1
    if count[0] == {at}:  # in the second task
        signal.raise_signal(signal.{sign})
    return step(*args)
Adam.step = counted
sys.argv[0] = {examples!r} + "/tasks.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def weights(folder: Path) -> dict[str, Any]:
    return {str(p.relative_to(folder)): load_file(p) for p in sorted(folder.rglob("step-00000005.*"))}


@pytest.mark.parametrize(("sign", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGKILL", -9)])
def test_tasks_that_are_stopped_keep_what_is_finished_and_go_on(
    tasks: ModuleType, tmp_path: Path, sign: str, code: int
) -> None:
    only = ["--only", "copy", "--only", "sort"]
    whole = run("tasks", *only, cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "out").rename(tmp_path / "whole")
    program = STOPPED.format(examples=str(EXAMPLES), at=8, sign=sign)
    command = [sys.executable, "-c", program, "--smoke", "--out", "out", *only]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    stopped = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert stopped.returncode == code, stopped.stderr
    assert "Traceback" not in stopped.stderr
    if code > 0:
        assert stopped.stdout.splitlines()[-1].endswith(" --resume")
    first = tmp_path / "out" / "copy" / "step-00000005.safetensors"
    before = first.stat().st_mtime_ns
    again = run("tasks", *only, cwd=tmp_path)
    assert again.stderr == "tasks: out holds a run already; go on with --resume, or name another --out\n"
    resumed = run("tasks", *only, "--resume", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert first.stat().st_mtime_ns == before
    ends, there = weights(tmp_path / "out"), weights(tmp_path / "whole")
    assert list(ends) == list(there) == [f"{name}/step-00000005.safetensors" for name in ("copy", "sort")]
    for file, tensors in there.items():
        assert all(np.array_equal(tensors[name], ends[file][name]) for name in tensors)
    for name in ("copy", "sort"):
        logs = [(tmp_path / out / name / "log.jsonl").read_text() for out in ("out", "whole")]
        losses, those_of_one_go = (re.findall('"loss": [^,]+', log) for log in logs)
        assert losses == those_of_one_go
    rows = [
        re.findall(r"^(\w+ +5) +(before|> |)(?:\d+\.\d)? +(.*)", t.stdout, re.M) for t in (whole, resumed)
    ]
    assert [(name, how) for name, _, how in rows[0]] == [(name, how) for name, _, how in rows[1]]
    assert [[took for _, took, _ in table] for table in rows] == [["", ""], ["before", "> "]]
    assert "right, trained by an earlier run: " in resumed.stdout
    assert re.search(r"right, trained in \d s with evaluation, from step [1-4] on: ", resumed.stdout)


@pytest.mark.parametrize(("first", "last"), [(4.4, 2.5), (4.4, 0.003)])
def test_the_axis_of_losses_says_plain_numbers(
    tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: float, last: float
) -> None:
    history = [{"step": 1, "loss": first}, {"step": 2, "loss": last, "exact_match": 0.5}]
    said = []

    def look(figure: Any, path: Path) -> None:
        figure.savefig(tmp_path / "a.png")
        ticks = figure.axes[0].yaxis.get_ticklabels(which="both")
        said.extend(tick.get_text() for tick in ticks if tick.get_text())

    monkeypatch.setattr(tasks, "save", look)
    tasks.plot({"copy": tasks.Result(history, 1.0, 0.5)}, tmp_path / "a")
    assert len(said) >= 2
    assert all(re.fullmatch(r"[\d.]+", text) for text in said), said


def test_tasks_of_two_seeds_are_not_gone_on_with_as_one(tasks: ModuleType, tmp_path: Path) -> None:
    for name, seed in (("copy", "0"), ("sort", "1")):
        assert run("tasks", "--only", name, "--seed", seed, cwd=tmp_path).returncode == 0
    done = run("tasks", "--resume", cwd=tmp_path)
    said = f"tasks: --resume: {Path('out', 'copy')} is of another seed; name tasks of one by --only\n"
    assert (done.returncode, done.stderr) == (2, said)


# Losses of every third step. Rounding differs between processors (composites for kernels: by 2e-7); other
# draws, initial values, schedules or gradients would change them much more.
HEADS = {
    "sort": [
        2.557809,
        2.461520,
        2.191580,
        2.119320,
        2.114663,
        1.934601,
        1.927219,
        1.869223,
        1.801414,
        1.808066,
    ],
    "addition": [
        2.666707,
        2.569994,
        2.506782,
        2.435054,
        2.395737,
        2.365104,
        2.355344,
        2.219843,
        2.294662,
        2.278301,
    ],
}


@pytest.mark.parametrize("name", HEADS)
def test_a_curve_begins_as_it_is_pinned(tasks: ModuleType, name: str) -> None:
    corpora = {
        "sort": lambda: StringTask("sort", longest=6, n_test=50),
        "addition": lambda: AdditionTask(2, n_test=50),
    }
    small = {"width": 32, "batch": 16, "warm_up": 10, "decoder_only": name == "addition"}
    task = tasks.Task(corpora[name], 30, 0.0, **small)
    result = tasks.train(task, 0, 30, 10, progress=False)
    losses = [record["loss"] for record in result.history if record["step"] % 3 == 0]
    assert losses == pytest.approx(HEADS[name], rel=1e-4)


def test_a_curve_ends_with_what_the_table_says(tasks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "exact_match", lambda model, corpus, pairs: len(pairs))
    task = tasks.Task(lambda: StringTask("copy", n_test=300), 1, 0.0, width=16, batch=4)
    result = tasks.train(task, 0, 1, 300, progress=False)
    assert result.history[-1]["exact_match"] == result.accuracy == 300


@pytest.mark.parametrize(
    ("accuracy", "steps", "verdict", "code"),
    [(1.0, 9, "pass", 0), (0.4, 9, "FAIL", 1), (0.4, 5, "too short", 1)],
)
def test_a_task_that_misses_its_accuracy_fails(
    tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any,
    accuracy: float, steps: int, verdict: str, code: int,
) -> None:  # fmt: skip
    history = [{"step": steps, "loss": 1.0, "exact_match": accuracy}]
    monkeypatch.setattr(tasks, "TASKS", {"sort": tasks.Task(lambda: None, 9, 0.5)})
    monkeypatch.setattr(tasks, "train", lambda *args, **options: tasks.Result(history, 1.0, accuracy))
    assert tasks.work(Namespace(out=tmp_path, only=[], seed=0, smoke=False)) == code
    assert verdict in capsys.readouterr().out


def test_each_task_says_how_it_went_before_the_next_one_begins(
    tasks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    said = []

    def train(task: Any, *args: Any, **options: Any) -> Any:
        said.append(capsys.readouterr().out)
        return tasks.Result([{"step": task.steps, "loss": 1.0, "exact_match": 0.5}], 71.6, 0.995)

    monkeypatch.setattr(tasks, "train", train)
    assert tasks.work(Namespace(out=tmp_path, only=["copy", "sort"], seed=0, smoke=False)) == 0
    assert said[1].startswith(
        "  99.5% of 1000 held-out items right, trained in 72 s with evaluation: pass (≥ 99.0%)\n"
    )


def test_every_task_is_pinned_to_what_its_readme_says(tasks: ModuleType) -> None:
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    for name, task in tasks.TASKS.items():
        (row,) = (line for line in readme.splitlines() if line.startswith(f"| {name} |"))
        assert f"| {task.steps:,} |" in row
        assert f"≥ {100 * task.accuracy:g}%" in row.replace(" %", "%")
