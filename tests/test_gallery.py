"""Every picture of the gallery is what the command below it makes."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from microtensor.viz.render import render

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "examples" / "gallery"
PAGE = (GALLERY / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"!\[.*?\]\((\S+)\)\n\n```sh\n(.*?)\n```", PAGE, flags=re.S)
MADE_BY = "14.1.5"  # the Graphviz of the committed pictures


def main_of(script: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(script).stem, ROOT / script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def graphviz() -> str:
    """The version that renders here, from the comment that it writes into an SVG."""
    found = re.search(rb"graphviz version ([\d.]+)", render("digraph { a }", "svg"))
    assert found is not None
    return found[1].decode()


def structure(svg: str) -> list[tuple[str, str]]:
    """Tags and texts without places, which differ between versions of Graphviz."""
    return sorted(
        (e.tag, e.text or "") for e in ET.fromstring(svg).iter() if e.tag.endswith(("tspan", "title"))
    )


@pytest.mark.parametrize(("picture", "command"), SHOWN, ids=[Path(p).stem for p, _ in SHOWN])
def test_a_picture_is_what_its_command_makes(
    picture: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    python, script, *arguments = shlex.split(command)
    target = arguments.index("-o") + 1
    committed = ROOT / arguments[target]
    assert python == "python"
    assert committed.resolve() == (GALLERY / picture).resolve()
    arguments[target] = str(tmp_path / committed.name)
    assert main_of(script)(arguments) == 0
    want, made = (
        committed.read_text(encoding="utf-8"),
        (tmp_path / committed.name).read_text(encoding="utf-8"),
    )
    if graphviz() == MADE_BY or "heat_map" in arguments:
        assert made == want
    assert structure(made) == structure(want)


def test_in_the_gallery_the_encoder_stands_left_of_the_decoder() -> None:
    """As in the paper's Figure 1."""
    root = ET.fromstring((GALLERY / "transformer.svg").read_text(encoding="utf-8"))
    texts = [(float(e.get("x", 0)), "".join(e.itertext())) for e in root.iter() if e.tag.endswith("}text")]
    left, right = (next(x for x, text in texts if f"{name}Layer(" in text) for name in ("Encoder", "Decoder"))
    assert left < right


def test_the_gallery_shows_every_picture_that_is_there() -> None:
    assert {Path(p).name for p, _ in SHOWN if "/" not in p} == {p.name for p in GALLERY.glob("*.svg")}
    assert len(SHOWN) > 8
    assert all(p.stat().st_size < 60 * 1024 for p in GALLERY.glob("*.svg"))


def test_the_table_beside_other_tools_is_what_the_program_measures() -> None:
    done = subprocess.run(
        [sys.executable, "tools/compare_drawings.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    missing = re.compile(r"compare_drawings: \w+ is not installed")
    assert [line for line in done.stderr.splitlines() if not missing.fullmatch(line)] == []  # GLib complained
    ours = [line.split("|") for line in done.stdout.split("\n") if line.startswith("| ours")]
    rows = [line.split("|") for line in PAGE.split("\n") if line.startswith("| microtensor")]
    assert [row[2:4] for row in rows] == [row[2:4] for row in ours]
    if graphviz() == MADE_BY:
        assert [row[2:] for row in rows] == [row[2:] for row in ours]
