"""Examines drills, each in a fork of a process that has begun all that takes long: numba, pytest, hypothesis.

    python tests/examiner.py < jobs.json        # a list of the jobs of microtensor/drills/runner.py

Nothing of microtensor may be imported here: each job has a file for the place of one of its modules.
What it finds lies beside that file, in found.json.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import hypothesis  # noqa: F401
import numba
import pytest  # noqa: F401

RUNNER = Path(__file__).resolve().parent.parent / "microtensor" / "drills" / "runner.py"

if __name__ == "__main__":
    numba.njit(lambda: None)()  # loads what it needs for its first kernel
    run, running = runpy.run_path(str(RUNNER))["run"], 0
    for job in json.load(sys.stdin):
        running += 1
        if os.fork() == 0:
            try:
                Path(job["file"]).with_name("found.json").write_text(json.dumps(run(job)), encoding="utf-8")
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        if running == os.cpu_count():
            os.wait()
            running -= 1
    for _ in range(running):
        os.wait()
