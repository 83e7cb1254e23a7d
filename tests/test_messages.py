"""Every program of tools/docs/mistakes.md says what stands there, and with its cure it says nothing."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import microtensor as mt

PAGE = (Path(__file__).parent.parent / "tools" / "docs" / "mistakes.md").read_text(encoding="utf-8")
BLOCK = r"```{}\n((?:(?!```).)*?)```\n\n"
ENTRY = re.compile(
    r"^### ([^\n]+)\n\n" + BLOCK.format("python") + BLOCK.format("text") + r"(?=[^#\s])",  # and says why
    re.DOTALL | re.MULTILINE,
)
MISTAKES = {title: (program, message.strip()) for title, program, message in ENTRY.findall(PAGE)}
IMPORTS = re.search(BLOCK.format("python"), PAGE, re.DOTALL)
each_mistake = pytest.mark.parametrize("title", MISTAKES)


def said(program: str) -> str:
    """The error or the warning of a program, with its type; "" for none."""
    names: dict[str, Any] = {"__name__": "program"}
    assert IMPORTS
    exec(IMPORTS[1], names)
    mt.manual_seed(0)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            exec(compile(program, "program.py", "exec"), names)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "\n".join(dict.fromkeys(f"{w.category.__name__}: {w.message}" for w in heard))


def cured(program: str) -> str:
    """Each line above a cure is replaced by it."""
    return re.sub(r"^( *)\S.*\n *# cure: (.*)", r"\1\2", program, flags=re.MULTILINE)


@each_mistake
def test_a_mistake_is_told(title):
    program, message = MISTAKES[title]
    assert said(program) == message


@each_mistake
def test_its_cure_says_nothing(title):
    program, _ = MISTAKES[title]
    assert cured(program) != program
    assert said(cured(program)) == ""


@each_mistake
def test_a_message_says_who_what_with_values_and_what_to_do(title):
    _, message = MISTAKES[title]
    who, what, cure = re.fullmatch(r"\w+: ([\w.]+): (.+?); (.+)", message, re.DOTALL).groups()
    assert who
    assert cure
    assert re.search(r"\d|\(\)|'\w+'|None|Linear", what), "a value is missing"


def test_the_page_is_read_whole_and_has_thirty_mistakes_at_least():
    assert len(MISTAKES) == PAGE.count("\n### ") >= 30
