"""Drills: each bug fits the source, shows its symptom and is killed by the suite; no check can be fooled."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from microtensor import drills
from microtensor.drills import Drill, check, hint, read_drills, runner, start
from microtensor.drills.__main__ import main
from microtensor.drills.overlay import Overlay, install

DRILLS = read_drills()
each_drill = pytest.mark.parametrize("name", DRILLS)
QUICK = "second-backward"  # needs no kernel


# --- each drill ---------------------------------------------------------------------------------------------


@each_drill
def test_a_drill_fits_the_source_and_is_complete(name):
    drill = DRILLS[name]
    compile(drill.spoiled(), drill.file, "exec")
    assert drill.right not in drill.spoiled()
    assert len(drill.hints) == 3
    assert min(map(len, (drill.title, *drill.hints, drill.why))) > 20
    assert drill.tests
    # `python symptom.py` looks for modules in its own folder first
    assert Path(drill.file).stem not in {*sys.stdlib_module_names, "numpy", "numba", "microtensor", "models"}


def functions(text):
    return {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}


def test_no_working_copy_states_the_gradient_that_is_looked_for():
    asked = []
    for drill in DRILLS.values():
        was, now = (
            functions(text) for text in ((drills.ROOT / drill.file).read_text("utf-8"), drill.spoiled())
        )
        changed = [name for name in now if name in was and ast.dump(was[name]) != ast.dump(now[name])]
        for op in [name.removesuffix("_vjp") for name in changed if name.endswith("_vjp")]:
            asked.append(drill.name)
            assert re.search("gradient: (.*)", ast.get_docstring(now[op]))[1] == "…", drill.name
    assert {"tanh-square", "softmax-sum"} <= set(asked)


@each_drill
def test_the_symptom_is_gone_where_there_is_no_bug(name, monkeypatch, capsys):
    for folder in drills.PATH:
        monkeypatch.syspath_prepend(folder)
    exec(compile(DRILLS[name].symptom, f"symptom of {name}", "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    for tolerance in re.findall(r"(?:< |atol=)(0\.0\d+|1e-3)", DRILLS[name].symptom):
        assert tolerance in shown, "a difference that one can see is allowed: say how much"


HARD_CODED = {  # cures that are right for one value of what the user chooses
    "softmax-sum": DRILLS["softmax-sum"].right.replace("(g, y, axis=axis)", "(g, y, axis=-1)"),
    "adam-bias": "        **options, beta1=beta1, beta2=beta2, decoupled=decoupled, step=1\n",
    "accumulate-mean": "            share, total = n / (first * 4), total + value * (n / first)\n",
    "variance-n": '        correction = as_number("var", correction or 1)\n',
    "ignore-index": "        kept += int(target[i] != -100)\n",
}


@pytest.mark.parametrize("name", HARD_CODED)
def test_a_cure_of_one_case_leaves_the_symptom(name, tmp_path, monkeypatch):
    file = start(name, tmp_path)
    text = file.read_text(encoding="utf-8").replace(DRILLS[name].wrong, HARD_CODED[name])
    file.write_text(text, encoding="utf-8")
    monkeypatch.setattr(drills, "untested", lambda drill: "no tests")
    mended, said = check(tmp_path)
    assert not mended
    assert said.startswith("Not yet: the symptom is still there"), said


def test_the_suite_kills_every_bug_and_each_has_its_symptom(tmp_path):
    """The mutation score: 100 %, by tests that fail, not by files that cannot be imported."""

    jobs = []
    for drill in DRILLS.values():
        file = tmp_path / drill.name / Path(drill.file).name
        file.parent.mkdir()
        file.write_text(drill.spoiled(), encoding="utf-8")
        job = {"path": drills.PATH, "module": drill.module, "file": str(file), "symptom": drill.symptom}
        jobs.append({**job, "tests": drill.tests, "thorough": True})
    own = {"HYPOTHESIS_PROFILE": "quick", "PYTHONPATH": os.pathsep.join(sys.path)}
    own["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # one imports trio; and hypothesis is imported already
    command = [sys.executable, "-P", str(drills.ROOT / "tests" / "examiner.py")]
    subprocess.run(command, input=json.dumps(jobs), env={**os.environ, **own}, cwd=drills.ROOT, text=True,
                   timeout=900, check=True)  # fmt: skip
    survivors = []
    for drill in DRILLS.values():
        wrong = json.loads((tmp_path / drill.name / "found.json").read_text(encoding="utf-8"))
        failed = wrong.get("tests", "").split(": ")[0].split("[")[0]
        if set(wrong) != {"symptom", "tests"} or failed not in {test.split("[")[0] for test in drill.tests}:
            survivors.append(f"{drill.name}: {wrong}")
    assert survivors == []


def test_a_text_that_is_not_there_once_is_an_error():
    drill = DRILLS[QUICK]
    for text, n in (("no such text", 0), ("\n", r"\d+")):
        with pytest.raises(ValueError, match=f"its text stands {n} times in microtensor/autograd"):
            Drill(**vars(drill) | {"right": text}).spoiled()


def test_what_is_only_in_the_repository_is_said_to_be(monkeypatch, tmp_path):
    monkeypatch.setattr(drills, "ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"target-shift is about examples/.* is not installed"):
        DRILLS["target-shift"].spoiled()
    assert "only in the repository" in drills.untested(DRILLS[QUICK])


# --- a student's way ----------------------------------------------------------------------------------------


def symptom(folder):
    return subprocess.run([sys.executable, "symptom.py"], cwd=folder, capture_output=True, text=True)


def test_no_linter_takes_the_first_import_of_a_symptom_away(tmp_path):
    for name in DRILLS:
        start(name, tmp_path / name)
        code = (tmp_path / name / "symptom.py").read_text(encoding="utf-8")
        assert re.search(r"^import overlay  # noqa: F401  # ", code, re.MULTILINE)
        tree = ast.parse(code)
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                bound = {(a.asname or a.name).partition(".")[0] for a in node.names}
                assert bound - {"overlay"} <= named, f"{name}: unused"


def test_a_drill_is_started_shown_mended_and_explained(tmp_path, capsys):
    folder = tmp_path / "mine"
    assert main(["start", QUICK, str(folder)]) == 0
    shown = capsys.readouterr().out
    assert DRILLS[QUICK].title in shown
    cd, python, *_ = re.findall(r"^    (\S.*)$", shown, re.MULTILINE)
    bare = {**os.environ, "PATH": ""}  # no python there: what is shown names the one that runs
    done = subprocess.run(f"{cd} && {python}", shell=True, env=bare, capture_output=True, text=True)
    assert done.returncode == 1
    assert "after both halves: [0.0, 1.0]" in done.stdout
    assert "AssertionError: the gradient of the first half is gone" in done.stderr
    assert main(["check", str(folder)]) == 1
    assert (
        "Not yet: the symptom is still there.\nthe gradient of the first half is gone"
        in capsys.readouterr().out
    )
    file = folder / "autograd.py"
    file.write_text(file.read_text(encoding="utf-8").replace(DRILLS[QUICK].wrong, DRILLS[QUICK].right))
    assert symptom(folder).returncode == 0
    assert main(["check", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Mended, by the symptom and by the tests.")
    assert DRILLS[QUICK].why in shown


def test_hints_come_one_at_a_time_and_the_last_one_stays(tmp_path, capsys):
    start(QUICK, tmp_path)
    for n in (1, 2, 3, 3):
        assert main(["hint", str(tmp_path)]) == 0
        assert capsys.readouterr().out == f"hint {n} of 3: {DRILLS[QUICK].hints[n - 1]}\n"
    assert hint(tmp_path).startswith("hint 3")


def test_without_a_command_all_drills_are_listed(capsys):
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and drill.title in shown for name, drill in DRILLS.items())
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"`python -m microtensor.drills` lists {len(DRILLS)}\sbugs", readme)


def test_what_cannot_be_started_or_found_is_said(tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "work.txt").write_text("mine")
    broken = ["{}", "{", "[]", "7", json.dumps({"name": QUICK, "file": "x.py", "hints": "1"})]
    folders = [tmp_path / f"broken{i}" for i in range(len(broken))]
    for place, text in zip(folders, broken, strict=True):
        place.mkdir()
        (place / "drill.json").write_text(text)
    for arguments, said in (
        (
            ["start", "softmax", str(tmp_path / "new")],
            "drills: there is no 'softmax'; choose among accumulate-m",
        ),
        (["start", QUICK, str(tmp_path / "full")], "is there already; name a new folder, or remove it"),
        (["start", QUICK, str(tmp_path / "full" / "work.txt")], "is there already; name a new folder"),
        (["check", str(tmp_path)], "holds no drill; go to the folder that `start` made, or name it"),
        (["hint", str(tmp_path)], "holds no drill"),
        *((["check", str(broken)], "holds no drill; go to the folder that") for broken in folders),
        *((["hint", str(broken)], "holds no drill; go to the folder that") for broken in folders),
    ):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


# --- no check can be fooled or stopped ----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    start(QUICK, tmp_path / "drill")
    return tmp_path / "drill"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def broken(:\n", r"Your file cannot be imported\.\nSyntaxError: [^()]* \(line 1 of autograd.py\)"),
        (
            "import microtensor.no_such\n",
            r"cannot be imported\.\nModuleNotFoundError: .* \(line 1 of autograd.py\)",
        ),
        ("import sys\nsys.exit(0)\n", r"cannot be imported\.\nSystemExit: 0 \(line 2 of autograd.py\)"),
        (
            "import os\nos._exit(0)\n",
            r"Your file ends Python before it has been looked at\.\nPython ended with 0",
        ),
        ("", r"the symptom is still there\.\nAttributeError: module 'microtensor.autograd' has no "),
    ],
)
def test_a_file_that_breaks_off_is_not_mended(folder, text, said):
    (folder / "autograd.py").write_text(text)
    mended, found = check(folder)
    assert not mended
    assert re.search(said, found), found


def test_a_file_that_never_ends_is_stopped(folder):
    (folder / "autograd.py").write_text("while True:\n    pass\n")
    mended, said = check(folder, timeout=3)
    assert not mended
    assert said.startswith("Your file does not come to an end.\nIt still ran after 3 seconds; look for")


def test_the_symptom_in_the_folder_counts_for_nothing(folder):
    (folder / "symptom.py").write_text("print('all is well')\n")
    assert symptom(folder).returncode == 0
    assert not check(folder)[0]


def test_a_cure_of_the_symptom_alone_is_not_enough(tmp_path):
    file = start("tanh-square", tmp_path)
    text = file.read_text(encoding="utf-8")
    patched = (
        "return (g * (1.0 - 0.7615941559557649 * abs(y)),)"  # right at −1, 0 and 1, which the symptom tries
    )
    file.write_text(text.replace("return (g * (1.0 - y),)", patched), encoding="utf-8")
    mended, said = check(tmp_path)
    assert not mended
    assert said.startswith(
        "Not yet: the symptom is gone, but a test of the project fails.\ntests/test_ops.py::"
    )


def test_a_file_that_is_gone_is_said(folder):
    (folder / "autograd.py").unlink()
    mended, said = check(folder)
    assert not mended
    assert "autograd.py is gone; start the drill again in another folder" in said


@pytest.mark.parametrize("missing", ["pytest", "hypothesis", "tests"])
def test_where_there_are_no_tests_the_symptom_decides_and_that_is_said_first(folder, monkeypatch, missing):
    file = folder / "autograd.py"
    file.write_text(file.read_text(encoding="utf-8").replace(DRILLS[QUICK].wrong, DRILLS[QUICK].right))
    if missing == "tests":
        monkeypatch.setattr(drills, "ROOT", folder)
    else:
        monkeypatch.setattr(drills, "find_spec", lambda name: None if name == missing else drills)
    mended, said = check(folder)
    assert mended
    assert said.startswith("The symptom is gone, but NO TEST RAN, and a wrong cure may pass: ")
    assert "Mended" not in said
    cure = "work in the repository" if missing == "tests" else f"{sys.executable} -m pip install -e '.[test]'"
    assert f"{cure}, and check again.\n\n" in said


def test_the_overlay_comes_before_the_package(tmp_path):
    with pytest.raises(RuntimeError, match="microtensor was imported before; put `import overlay` above"):
        install([], "microtensor.walk", "walk.py")
    overlay = Overlay("microtensor.walk", str(tmp_path / "walk.py"))
    assert overlay.find_spec("microtensor.walk").origin == str(tmp_path / "walk.py")
    assert overlay.find_spec("microtensor.engine") is None


def test_the_runner_says_what_it_found(tmp_path):
    job = {
        "module": "json",
        "file": str(tmp_path / "mine.py"),
        "tests": [],
        "symptom": "assert 1 > 2, 'too small'",
    }
    assert runner._file(job) == ""
    assert runner._symptom(job) == "too small"
    assert runner._symptom({**job, "symptom": "1 / 0"}) == "ZeroDivisionError: division by zero"
    assert runner._tests(job) == ""
