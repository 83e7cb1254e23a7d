"""Drills: realistic bugs to find. `python -m microtensor.drills` lists them and says how it goes.

A drill is data, a .toml beside this file: the text of a file of ours, what a bug makes of it, a program that
shows the symptom, hints, why it matters, and the tests that notice. What is wrong with any of that, a test of
ours says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import microtensor
from microtensor.train.files import replace_file

__all__ = ["Drill", "check", "hint", "read_drills", "start"]

HERE = Path(__file__).resolve().parent
ROOT = Path(microtensor.__file__).resolve().parents[1]  # of the repository, or where packages are installed
PATH = [str(ROOT), str(ROOT / "examples")]


@dataclasses.dataclass(frozen=True)
class Drill:
    """A bug: `wrong` stands in `file` where `right` should. The other fields are what a student reads."""

    name: str
    title: str
    file: str
    right: str
    wrong: str
    symptom: str
    hints: list[str]
    why: str
    tests: list[str]

    @property
    def module(self) -> str:
        """As it is imported; examples are no package."""
        return self.file.removesuffix(".py").removeprefix("examples/").replace("/", ".")

    def spoiled(self) -> str:
        """The text of the file with the bug.

        Raises: FileNotFoundError for a file that is only in the repository; ValueError if the text that is
        to be spoiled does not stand there once.
        """
        path = ROOT / self.file
        if not path.exists():
            raise FileNotFoundError(
                f"drills: {self.name} is about {self.file}, which is not installed; work in the repository"
            )
        text = path.read_text(encoding="utf-8")
        if (n := text.count(self.right)) != 1:
            raise ValueError(f"drills: {self.name}: its text stands {n} times in {self.file}; mend the drill")
        return text.replace(self.right, self.wrong)


def read_drills() -> dict[str, Drill]:
    """All drills by name."""
    paths = sorted(HERE.glob("*.toml"))
    return {p.stem: Drill(name=p.stem, **tomllib.loads(p.read_text(encoding="utf-8"))) for p in paths}


def start(name: str, folder: Path) -> Path:
    """Put a drill into a new folder: the file with the bug, and symptom.py, which shows it; the file's path.

    Raises: ValueError for a drill that there is not, or a folder that holds something.
    """
    drill = _drill(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"drills: {folder} is there already; name a new folder, or remove it")
    own = Path(drill.file).name
    head = f'"""{drill.title}"""\n\nimport overlay  # noqa: F401  # {drill.module} is now the {own} here\n\n'
    told = {"name": name, "path": PATH, "module": drill.module, "file": own, "hints": 0}
    files = {own: drill.spoiled(), "symptom.py": head + drill.symptom}
    files["overlay.py"] = (HERE / "overlay.py").read_text(encoding="utf-8")
    files["drill.json"] = json.dumps(told)  # the last, so that a folder is a drill when it is complete
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        replace_file(str(folder / file), [text.encode()])
    return folder / own


def hint(folder: Path) -> str:
    """The next hint of the drill in a folder; the last one again when there are no more."""
    told = _told(folder)
    hints = _drill(told["name"]).hints
    n = min(max(0, told["hints"]), len(hints) - 1)
    replace_file(str(folder / "drill.json"), [json.dumps({**told, "hints": n + 1}).encode()])
    return f"hint {n + 1} of {len(hints)}: {hints[n]}"


def check(folder: Path, timeout: float = 300) -> tuple[bool, str]:
    """Is the drill in a folder mended? And what is still wrong; or, if it is, why it mattered.

    The symptom that counts is ours, not the one in the folder. Then the project's own tests of the matter
    run, where they, pytest and hypothesis are installed.
    Raises: ValueError for a folder without a drill.
    """
    told = _told(folder)
    drill = _drill(told["name"])
    file = folder.resolve() / told["file"]
    if not file.exists():
        return False, f"{file} is gone; start the drill again in another folder"
    wrong = examine(drill, file, timeout)
    if not wrong:
        gap = untested(drill)
        doubt = f"The symptom is gone, but NO TEST RAN, and a wrong cure may pass: {gap}, and check again."
        return True, f"{doubt if gap else 'Mended, by the symptom and by the tests.'}\n\n{drill.why}"
    said = {
        "time": "Your file does not come to an end",
        "end": "Your file ends Python before it has been looked at",
        "file": "Your file cannot be imported",
        "symptom": "Not yet: the symptom is still there",
        "tests": "Not yet: the symptom is gone, but a test of the project fails",
    }
    what, why = next(iter(wrong.items()))
    return False, f"{said[what]}.\n{why}"


def examine(drill: Drill, file: Path, timeout: float = 300) -> dict[str, str]:
    """What is wrong with a file in the drill's place: see `runner`; or "time" or "end" if it stops that."""
    password = secrets.token_hex()
    tests = [] if untested(drill) else drill.tests
    job: dict[str, Any] = {"path": PATH, "module": drill.module, "file": str(file), "symptom": drill.symptom}
    job |= {"tests": tests, "password": password}
    environment = {**os.environ, "HYPOTHESIS_PROFILE": "quick", "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(HERE / "runner.py")],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment,
            timeout=timeout,
            cwd=ROOT if tests else file.parent,
        )
    except subprocess.TimeoutExpired:
        return {"time": f"It still ran after {timeout:g} seconds; look for a loop that does not end."}
    _, found, result = done.stdout.rpartition(password)
    if not found:
        return {"end": f"Python ended with {done.returncode}. {done.stderr[-1000:]}"}
    return dict(json.loads(result))


def untested(drill: Drill) -> str:
    """Why the project's tests of the matter cannot run, and what to do; nothing if they can."""
    if not all((ROOT / test.split("::")[0]).exists() for test in drill.tests):
        return "the tests are only in the repository; work in the repository"
    missing = " and ".join(tool for tool in ("pytest", "hypothesis") if find_spec(tool) is None)
    return missing and f"no {missing} here; in {ROOT}: {sys.executable} -m pip install -e '.[test]'"


def _drill(name: str) -> Drill:
    drills = read_drills()
    if name not in drills:
        raise ValueError(f"drills: there is no {name!r}; choose among {', '.join(drills)}")
    return drills[name]


def _told(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # unreadable, or holds something else
        told: dict[str, Any] = json.loads((folder / "drill.json").read_text(encoding="utf-8"))
        if [type(told[key]) for key in ("name", "file", "hints")] == [str, str, int]:
            return told
    raise ValueError(
        f"drills: {folder.resolve()} holds no drill; go to the folder that `start` made, or name it"
    )
