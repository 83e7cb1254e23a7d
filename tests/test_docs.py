"""The site of tools/docs: it is built without a warning, and every public name is on a page and is found."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from test_docstrings import NAMES

import microtensor
from microtensor import ops
from microtensor.engine import Op

pytest.importorskip("sphinx")
pytest.importorskip("furo")
pytest.importorskip("myst_parser")

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "tools" / "docs"
ROOMS = [
    *(
        "microtensor",
        "microtensor.nn",
        "microtensor.nn.functional",
        "microtensor.nn.init",
        "microtensor.nn.utils",
    ),
    *("microtensor.optim", "microtensor.optim.lr_scheduler", "microtensor.data", "microtensor.testing"),
    *(
        "microtensor.train",
        "microtensor.viz",
        "microtensor.utils",
        "microtensor.profiler",
        "microtensor.drills",
    ),
    *("microtensor.autograd", "models"),
]


def test_the_page_on_citing_names_this_version():
    assert f"{{{microtensor.__version__}}}" in (DOCS / "citing.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", DOCS, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def found_in(index: dict[str, Any]) -> set[str]:
    """The full names in a search index."""
    return {
        f"{prefix}.{entry[4]}".removeprefix(".")
        for prefix, entries in index["objects"].items()
        for entry in entries
    }


def test_every_public_name_is_on_a_page_and_in_the_search_index(site):
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    found = found_in(json.loads(text.removeprefix("Search.setIndex(").removesuffix(")")))
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    shown = set(re.findall(r'id="((?:microtensor|models)[\w.]*)"', pages))
    names = {f"{room}.{name}" for room in ROOMS for name in importlib.import_module(room).__all__}
    names |= {f"microtensor.{room}.{name}" for room, name in NAMES if room == "Tensor"}
    names |= {f"microtensor.ops.{name}" for name, thing in vars(ops).items() if isinstance(thing, Op)}
    names.add("microtensor.engine.op")
    assert names - found == set()
    assert {name for name in names if f"module-{name}" not in pages} - shown == set()


def test_no_page_asks_the_network_for_anything(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]*)"|<link[^>]* href="([^"]*)"', text)
        assert not [a + b for a, b in loaded if re.match(r"(https?:)?//", a + b)], page


def test_every_link_of_the_site_leads_somewhere(site):
    lost = set()
    for page in site.rglob("*.html"):
        for link in re.findall(r' (?:href|src)="([^"]*)"', page.read_text(encoding="utf-8")):
            path, _, place = unescape(link).partition("#")
            file = page.parent / path.partition("?")[0] if path else page
            if not re.match(r"\w+:", link) and (
                not file.exists()
                or (
                    place
                    and file.suffix == ".html"
                    and f'id="{place}"' not in file.read_text(encoding="utf-8")
                )
            ):
                lost.add((page.name, link))
    assert lost == set()


def test_the_gallery_of_the_site_shows_every_picture_and_the_guide_leads_to_it(site):
    pictures = {path.name for path in (ROOT / "examples" / "gallery").glob("*.svg")}
    shown = (site / "gallery.html").read_text(encoding="utf-8")
    assert pictures - set(re.findall(r'<img [^>]*src="_images/([^"]+)"', shown)) == set()
    assert 'href="gallery.html"' in (site / "guide.html").read_text(encoding="utf-8").split("<article")[1]


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda p: p.name)
def test_a_link_to_a_file_finds_it(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    files = [link for link in links if not link.startswith("https:")]
    assert [link for link in files if not (page.parent / link).exists()] == []


def test_a_docstring_is_no_markup_but_for_backticks_arguments_and_sections():
    sys.path.insert(0, str(DOCS))
    try:
        docstrings = importlib.import_module("docstrings")
    finally:
        sys.path.remove(str(DOCS))
    text = """|x|_ * `a_b`s, and
    not: this.

    p, q: numbers,
        both. Else: nothing.
    r: is no argument.

    Shapes: (N,) → ()
    Raises: ValueError for p_.

    >>> f(1)
    *2*"""
    assert [
        line
        for line in docstrings.to_rst([t.removeprefix("    ") for t in text.split("\n")], ["p", "q"])
        if line
    ] == [
        r"\|x\|\_ \* \ ``a_b``\ s, and not: this.",
        "``p, q``",
        "   numbers, both. Else: nothing. r: is no argument.",
        r":Shapes: \(N,) → ()",
        r":Raises: ValueError for p\_.",
        ">>> f(1)",
        "*2*",
    ]
