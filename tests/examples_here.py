"""Runs an example in this process: a tenth of the time that a process of its own takes."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from microtensor import train

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NEEDS = {  # modules of the extra "examples", by the programs that need them
    "spiral": ["matplotlib"],
    "digits": ["matplotlib", "sklearn"],
    "induction_heads": ["matplotlib"],
    "tasks": ["matplotlib", "babel"],
    "lecture": ["matplotlib"],
    "sentence_similarity": ["tokenizers"],
    "translate_dates": ["babel", "matplotlib", "graphviz", "pygraphviz"],
    "char_gpt": [],
}


def skip_without_what_it_needs(name: str) -> None:
    for module in NEEDS.get(name, []):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}")


def run_here(name: str, *arguments: Any) -> tuple[Any, str, str]:
    """(exit status, or what it exits with, stdout, stderr)"""
    skip_without_what_it_needs(name)
    stdout, stderr = io.StringIO(), io.StringIO()
    streams = contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        patch.setattr(train, "tune_allocator", lambda: None)  # it is for good
        patch.setattr(sys, "excepthook", sys.excepthook)
        patch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        with streams[0], streams[1], pytest.raises(SystemExit) as end:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return end.value.code, stdout.getvalue(), stderr.getvalue()
