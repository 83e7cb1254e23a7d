"""A process of its own for a student's file, which may do anything: what happens with it, as JSON.

Reads a job from stdin; writes what it found and the job's password, which the file could not know, to stdout.
Like `overlay` it must not import microtensor by itself before the file takes its place.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

Job = dict[str, Any]


def run(job: Job) -> dict[str, str]:
    """ "file", "symptom" and "tests", each with what is wrong with it; what is right is left out.

    What comes later is not looked at when something is wrong, unless `thorough`.
    """
    wrong: dict[str, str] = {}
    runpy.run_path(str(Path(__file__).with_name("overlay.py")))["install"](
        job["path"], job["module"], job["file"]
    )
    for what, look in (("file", _file), ("symptom", _symptom), ("tests", _tests)):
        if not wrong or (job.get("thorough") and "file" not in wrong):
            with contextlib.redirect_stdout(io.StringIO()):
                said = look(job)
            if said:
                wrong[what] = said
    return wrong


def _file(job: Job) -> str:
    return _said(lambda: importlib.import_module(job["module"]), job)


def _symptom(job: Job) -> str:
    code = compile(job["symptom"], "symptom.py", "exec")
    return _said(lambda: exec(code, {"__name__": "__main__"}), job)


def _said(do: Any, job: Job) -> str:
    """What an exception says, and at which line of the student's file; nothing if there is none."""
    try:
        do()
    except BaseException as error:  # SystemExit is no way out either
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == job["file"]]
        if isinstance(error, SyntaxError):  # whose text would name the line, too
            error, lines = type(error)(error.msg), [error.lineno]
        place = f" (line {lines[-1]} of {Path(job['file']).name})" if lines else ""
        name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        return f"{name}{error}{place}"
    return ""


def _tests(job: Job) -> str:
    """The first of the project's tests that fails, and why."""
    if not job["tests"]:
        return ""
    import pytest

    class Ear:
        """Hears of the first failure."""

        said = ""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            """Once for each phase of each test."""
            if report.failed and not self.said:
                crash = getattr(report.longrepr, "reprcrash", None)
                self.said = f"{report.nodeid}: {crash.message if crash else report.longrepr}"

    ear = Ear()
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *job["tests"]], plugins=[ear])
    return ear.said or ("" if code == 0 else f"pytest ended with {int(code)} and ran nothing")


if __name__ == "__main__":
    given = json.load(sys.stdin)
    found = run(given)
    print(f"\n{given['password']}{json.dumps(found)}")
