"""The map of equations (tools/docs/map.md, and its short form in README) points to what is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import microtensor as mt
import models

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "tools" / "docs" / "map.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))
ROWS = [line for line in README.splitlines() if line.startswith("| §")]
each_entry = pytest.mark.parametrize("title", ENTRIES)


def line(entry: str, name: str) -> list[str]:
    """What stands in backticks behind "- Name:" """
    found = re.search(rf"^- {name}: (.*?)(?=\n- |\n\n|\Z)", entry, re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`]+)`", found[1]) if found else []


def find(path: str) -> Any:
    """`nn.Linear`, `MultiHeadAttention.heads`: what a name of the page is."""
    first, *rest = path.split(".")
    for room in (models, mt, mt.nn.functional, mt.optim.lr_scheduler, models.MultiHeadAttention):
        if hasattr(room, first) or first in ("mt", "models"):
            found = {"mt": mt, "models": models}.get(first) or getattr(room, first)
            for name in rest:
                found = getattr(found, name)
            return found
    raise AttributeError(f"the map names {path}, which is not there")


def check_code(span: str) -> None:
    """A name, with an option perhaps: `TransformerConfig(dropout=)`."""
    path, option = re.fullmatch(r"([\w.]+)(?:\((\w+)=.*\))?", span).groups()
    assert not option or option in inspect.signature(find(path)).parameters, span
    assert find(path) is not None


@each_entry
def test_an_entry_names_code_and_a_test_that_exist(title):
    code, tests = line(ENTRIES[title], "Code"), line(ENTRIES[title], "Test")
    assert code
    assert tests
    for span in code:
        check_code(span)
    for test in tests:
        file, name = test.split("::")
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test
    for lesson in line(ENTRIES[title], "Lesson"):
        assert (ROOT / "examples" / "lessons" / lesson).exists()


def test_what_differs_by_a_switch_names_one_that_there_is():
    differences = PAGE[PAGE.index("## Where we differ from the paper") :]
    switches = re.findall(r"`([A-Z]\w+\(\w+=[^`]*)`", differences)
    assert len(switches) >= 8
    for switch in switches:
        check_code(switch)


def test_the_readmes_short_form_points_to_what_exists():
    assert len(ROWS) == 10
    for row in ROWS:
        for span in re.findall(r"`([^`]+)`", row):
            check_code(span)


def test_every_section_of_the_readmes_short_form_has_an_entry():
    sections = set(re.findall(r"§\d(?:\.\d)*", "".join(ROWS)))
    assert sections <= set(re.findall(r"§\d(?:\.\d)*", "".join(ENTRIES.values())))
