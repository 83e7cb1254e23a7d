"""The lessons as their readers meet them: short, of one form, naming what exists; and they run."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from examples_here import run_here

import microtensor as mt
import models

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "examples" / "lessons" / "run.py"
LESSONS = sorted(RUN.parent.glob("[0-9][0-9]_*.py"))
MAY_IMPORT = {*sys.stdlib_module_names, "microtensor", "models", "numpy"}
lessons = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def cells(path: Path) -> list[tuple[str, str]]:
    """(marker, text) of each cell; the text of a markdown cell is without its #."""
    text = path.read_text(encoding="utf-8")
    before, *parts = re.split(r"^(# %%.*)\n", text, flags=re.MULTILINE)
    assert before == "", "the first line begins the first cell"
    found = []
    for marker, body in zip(parts[::2], parts[1::2], strict=True):
        assert marker in ("# %%", "# %% [markdown]")
        body = body.strip("\n")
        assert body, "an empty cell"
        if marker == "# %% [markdown]":
            assert all(re.match("#( |$)", line) for line in body.splitlines()), "code in a cell of text"
            body = re.sub("^# ?", "", body, flags=re.MULTILINE)
        found.append((marker, body))
    return found


def texts(path: Path) -> list[str]:
    return [text for marker, text in cells(path) if marker == "# %% [markdown]"]


def codes(path: Path) -> list[str]:
    return [text for marker, text in cells(path) if marker == "# %%"]


def asserts(statement: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Assert) or (isinstance(node, ast.Attribute) and node.attr.startswith("assert_"))
        for node in ast.walk(statement)
    )


def test_lessons_are_numbered_one_after_the_other() -> None:
    assert [path.name[:3] for path in LESSONS] == [f"{n:02}_" for n in range(1, len(LESSONS) + 1)]


@lessons
def test_a_lesson_has_at_most_100_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 100


@lessons
def test_a_lesson_begins_with_what_it_is_and_ends_with_what_to_try(path: Path) -> None:
    title, blank, *rest = texts(path)[0].splitlines()
    number = path.name[:2]
    assert re.fullmatch(rf"# {number}\. [A-Z].*[^.]", title)
    assert blank == ""
    before = re.match(r"Before this: (no lesson|lessons? \d\d)", rest[0])
    assert before is not None
    assert (before[1] == "no lesson") == (number == "01")
    assert "After it you " in " ".join(rest)
    assert texts(path)[-1].startswith("**Try.** 1. ")
    assert " 2. " in texts(path)[-1].replace("\n", " ")
    assert [marker for marker, _ in cells(path)][-2:] == ["# %%", "# %% [markdown]"]


@lessons
def test_a_lesson_ends_in_an_assertion_and_says_what_was_shown(path: Path) -> None:
    last = codes(path)[-1]
    assert asserts(ast.parse(last))
    assert re.search(r"shown: ", last)
    for code in codes(path):
        compile(code, path.name, "exec")  # each cell is whole


@lessons
def test_the_mathematics_of_a_lesson_is_closed(path: Path) -> None:
    for text in texts(path):
        bare = re.sub(r"`[^`]*`", "", text)
        assert bare.count("`") == 0
        assert bare.count("$$") % 2 == 0
        for line in re.sub(r"\$\$.+?\$\$", "", bare, flags=re.DOTALL).splitlines():
            assert line.count("$") % 2 == 0, f"a formula goes on in the next line: {line}"
        for formula in re.findall(r"\$\$(.+?)\$\$|\$(.+?)\$", bare, re.DOTALL):
            body = "".join(formula)
            assert body.replace(r"\{", "").count("{") == body.replace(r"\}", "").count("}"), body
            assert len(re.findall(r"\\left\b", body)) == len(re.findall(r"\\right\b", body)), body


@lessons
def test_a_lesson_imports_what_its_reader_has(path: Path) -> None:
    allowed = MAY_IMPORT | {"05": {"numba"}, "16": {"torch"}}.get(path.name[:2], set())
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] in allowed


PUBLIC = (mt, mt.Tensor, mt.nn, mt.nn.functional, mt.optim, mt.viz, mt.testing, mt.train, models)


def exists(name: str, code: str) -> bool:
    """Is a name in the code of a lesson, or a public one, also behind its room (viz.draw, mt.tape)?"""
    first, *rest = name.split(".")
    if re.search(rf"\b{re.escape(name)}\b", code):
        return True
    thing = mt if first == "mt" else getattr(mt, first, getattr(models, first, None))
    for part in rest:
        thing = getattr(thing, part, None)
    return thing is not None or any(hasattr(place, name) for place in PUBLIC)


@lessons
def test_what_the_text_of_a_lesson_names_exists(path: Path) -> None:
    code = "\n".join(codes(path))
    for text in texts(path):
        for number in re.findall(r"[Ll]essons? (\d\d)", text):
            assert 1 <= int(number) <= len(LESSONS)
        for name in re.findall(r"`(\w[\w.]*)(?:\([^`]*\))?`", text):
            assert name[0].isdigit() or exists(name, code), name
        for name in re.findall(r"`([\w/]+/[\w.]+)`", text):
            assert (ROOT / name).exists(), name


@lessons
def test_a_lesson_that_can_be_short_is_so_by_either_switch(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    both = 'os.environ.get("LESSON_SMOKE") == "1" or "--smoke" in sys.argv'
    assert text.count("LESSON_SMOKE") == text.count("--smoke") == text.count(both) <= 1


def test_readme_lists_every_lesson() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"(\d\d) \[(.+?)\]\(examples/lessons/(\w+\.py)\)", readme)
    titles = {path.name: texts(path)[0].splitlines()[0] for path in LESSONS}
    assert {name: f"# {number}. {title}" for number, title, name in listed} == titles


# --- they run -----------------------------------------------------------------------------------------------


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    # a kernel that is to stop warns of how it does that; as an error that keeps it running until it is killed
    warnings = "error,ignore::PendingDeprecationWarning:ipykernel.kernelbase"
    own = {"PYTHONPATH": path, "MICROTENSOR_QUIET": "1", "LESSON_OUT": "pictures", "PYTHONWARNINGS": warnings}
    command = [sys.executable, str(RUN), "--smoke", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env={**os.environ, **own}, capture_output=True, text=True)


def skip_without_what_draws(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for word, package in (
        ("viz.draw", "pygraphviz"),
        ("beam_tree", "pygraphviz"),
        ("plot_history", "matplotlib"),
    ):
        if word in text:
            pytest.importorskip(package)


@lessons
def test_a_lesson_runs(path: Path, tmp_path: Path) -> None:
    skip_without_what_draws(path)
    done = run(path.name[:2], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "shown: " in done.stdout
    assert set(os.listdir(tmp_path)) <= {"pictures"}
    for name in re.findall(r"pictures/[\w.]+", done.stdout):
        assert "<svg" in (tmp_path / name).read_text(encoding="utf-8")


@lessons
def test_a_lesson_runs_as_a_notebook(path: Path, tmp_path: Path) -> None:
    skip_without_what_draws(path)
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package)
    done = run(path.name[:2], "--notebooks", "made", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads((tmp_path / "made" / f"{path.stem}.ipynb").read_text(encoding="utf-8"))["cells"]
    assert [cell["cell_type"] for cell in made] == [
        "markdown" if "markdown" in marker else "code" for marker, _ in cells(path)
    ]
    assert "".join(made[0]["source"]) == texts(path)[0]
    shown = [output for cell in made if cell["cell_type"] == "code" for output in cell["outputs"]]
    assert "error" not in {output["output_type"] for output in shown}
    results = [output["data"] for output in shown if output["output_type"] == "execute_result"]
    assert all("image/svg+xml" in data for data in results), "a cell ends in a value that is no picture"
    assert "shown: " in "".join("".join(output.get("text", "")) for output in shown)


def test_the_last_lesson_holds_without_pytorch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')\n", encoding="utf-8")
    (lesson,) = RUN.parent.glob("16_*.py")
    places = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": places, "MICROTENSOR_QUIET": "1"}
    done = subprocess.run([sys.executable, lesson], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("as saved from PyTorch, which is not installed\n")


@pytest.mark.parametrize(
    ("arguments", "sign"),
    [([], signal.SIGINT), ([], signal.SIGTERM), (["--notebooks", "made"], signal.SIGTERM)],
)
def test_a_stop_is_no_traceback_and_leaves_nothing_running(
    arguments: list[str], sign: signal.Signals, tmp_path: Path
) -> None:
    if arguments:
        for package in ("jupytext", "nbclient", "ipykernel"):
            pytest.importorskip(package)
    shutil.copy(RUN, tmp_path)
    code = "import os, pathlib, time\npathlib.Path('id').write_text(str(os.getpid()))\ntime.sleep(60)"
    (tmp_path / "01_a.py").write_text(f"# %%\n{code}\n", encoding="utf-8")
    command = [sys.executable, str(tmp_path / "run.py"), *arguments]
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        while not (tmp_path / "id").exists() or not (tmp_path / "id").read_text():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        os.killpg(process.pid, sign) if sign == signal.SIGINT else process.send_signal(sign)
        _, stderr = process.communicate()  # to the end: what runs on would hold the pipe open
    assert (process.returncode, stderr) == (128 + sign, b"")


def test_what_makes_no_notebook_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "nbclient", None)
        patch.setitem(sys.modules, "ipykernel", None)
        said, _, _ = run_here("lessons/run", "--notebooks", "made")
    assert re.match(
        r"""run: No module named .*'nbclient', 'ipykernel'; run pip install -e "\.\[lessons]"$""", said
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_be_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in ("jupytext", "nbclient", "ipykernel"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    for name, why in (("file", "File exists"), ("file/in", "Not a directory")):
        status, _, stderr = run_here("lessons/run", "--notebooks", name)
        assert status == 2
        assert stderr == f"run: --notebooks {name} can be no folder ({why}); name another\n"


def test_a_lesson_that_does_not_hold_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    copy = tmp_path / "lessons"
    copy.mkdir()
    (copy / "run.py").write_text(RUN.read_text(encoding="utf-8"), encoding="utf-8")
    for name, code in (("01_a", "assert 1 == 2"), ("02_b", "print('fine')")):
        (copy / f"{name}.py").write_text(f"# %%\n{code}\n", encoding="utf-8")
    done = subprocess.run([sys.executable, str(copy / "run.py")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
    assert "fine" in done.stdout
    assert done.stdout.endswith("failed: 01_a\n")
    done = subprocess.run([sys.executable, str(copy / "run.py"), "03"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "run: there is no lesson 03; choose among 01, 02\n"


def test_no_learning_rate_heals_scores_without_the_root() -> None:
    """What the answers to lesson 07 say."""
    (path,) = RUN.parent.glob("07_*.py")
    (code,) = (code for code in codes(path) if "def losses(" in code)
    code = code[: code.index("scaled, plain = list(")]

    def error(lr: float, scale: float) -> float:
        names = {"mt": mt, "nn": mt.nn, "optim": mt.optim, "math": math}
        exec(code.replace("lr=0.3", f"lr={lr}"), names)
        return sum(list(names["losses"](scale, 300))[-20:]) / 20

    assert code.count("lr=0.3") == 1
    with_root = error(0.3, 1 / math.sqrt(64))
    assert [lr for lr in (0.01, 0.03, 0.1, 1.0) if not error(lr, 1.0) > 20 * with_root] == []
