"""DOT → bytes: the program `dot` if there is one, else pygraphviz in this process, else one clear error. Our
own SVG → pixels: the package resvg-py, which also tells what no font here has.

No sudo, no download, no shell. pygraphviz's wheel brings Graphviz along, but it prints errors and goes on,
and is not to be entered by two threads, so formats are listed here and a lock is held.
"""

from __future__ import annotations

import atexit
import functools
import html
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
import unicodedata
import warnings
from pathlib import Path
from typing import Any

from microtensor.viz.style import FONT
from microtensor.viz.svg import SVG

__all__ = ["FORMATS", "NoGraphviz", "pixels", "render", "warn_of_missing"]

FORMATS = ("svg", "png", "pdf", "json")
ASKED = {"png": "dpi=150", "pdf": "margin=0"}  # a PDF's own is half an inch all round, as of a printed page
FONTS, OURS = Path(__file__).with_name("fonts"), "DejaVu Sans"  # and their family
ONE = f'<svg xmlns="{SVG}" width="30" height="30" font-family="{FONT}"><text y="20">%s</text></svg>'  # letter
_lock = threading.Lock()


class NoGraphviz(RuntimeError):
    """Neither the program dot nor pygraphviz is there."""


CURE = 'pip install "pygraphviz>=2.0.4", or install Graphviz (apt, brew, winget)'


def render(text: str, kind: str) -> bytes:
    """The DOT text laid out and written in a format of FORMATS.

    Raises: NoGraphviz if nothing can.
    """
    _use_our_fonts()
    if kind in ASKED:
        text = text.replace("graph [", f"graph [{ASKED[kind]}, ", 1)
    with _lock:
        made = _by_program(text, kind) or _by_library(text, kind)
    if made is None:
        raise NoGraphviz(f"draw: no Graphviz found; the .dot can be saved; to render it, {CURE}")
    return made


def _by_program(text: str, kind: str) -> bytes | None:
    """What `dot` on PATH makes of it; None if it, or the package graphviz, is not there."""
    try:
        import graphviz
    except ImportError:
        return None
    try:
        return graphviz.Source(text).pipe(format=kind, quiet=True)  # type: ignore[no-any-return]
    except graphviz.ExecutableNotFound:
        return None


def _by_library(text: str, kind: str) -> bytes | None:
    try:
        import pygraphviz
    except ImportError:
        return None
    _start_fontconfig(pygraphviz)
    if not (made := _drawn(pygraphviz, text, kind)):
        raise RuntimeError(f"draw: Graphviz gave nothing for {kind}; save the .dot and try another format")
    return bytes(made)


def _drawn(pygraphviz: Any, text: str, kind: str) -> Any:
    with warnings.catch_warnings():  # what Graphviz remarks on fonts is no error of the drawing
        warnings.simplefilter("ignore")
        return pygraphviz.AGraph(string=text).draw(format=kind, prog="dot")


@functools.cache
def _start_fontconfig(pygraphviz: Any) -> None:
    """Lay out one letter with stderr closed: an older fontconfig complains of newer templates in the system
    when it starts, from C, and only then. What is said later is about a drawing, and stays visible.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        _drawn(pygraphviz, "digraph { a }", "svg")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


SYSTEM_FONTS = (
    *("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts"),
    *("/System/Library/Fonts", "/Library/Fonts", "~/Library/Fonts", "C:/Windows/Fonts"),
)


def _remove(folder: Path, owner: int) -> None:
    """Remove our folder when its process ends; a forked child, which inherits the order, leaves it alone."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _use_our_fonts() -> None:
    """Without any fonts (slim images) PNG and PDF would show boxes: add ours beside the system's.

    By a fontconfig file and copies of our fonts in a folder that goes with the process. Copies, because older
    fontconfigs write a `.uuid` into every folder that they look at, and absolute paths, because they take "."
    for the working directory. A FONTCONFIG_FILE that is there already is the user's and comes first. The
    system's own is not included: a wheel's older fontconfig complains of what it does not understand there.
    """
    folder, users = Path(tempfile.mkdtemp(prefix="microtensor-fonts-")), os.environ.get("FONTCONFIG_FILE", "")
    atexit.register(_remove, folder, os.getpid())
    for font in FONTS.glob("*.ttf"):
        shutil.copy(font, folder)
    folders = [folder, *(Path(name).expanduser() for name in SYSTEM_FONTS)]
    lines = [f"  <include>{html.escape(os.path.abspath(users))}</include>"] if os.path.isfile(users) else []
    lines += [f"  <dir>{html.escape(str(f))}</dir>" for f in folders if f.is_dir()]
    ours = "<prefer><family>DejaVu Sans</family></prefer>"  # what layouts are measured with
    for name in ("Helvetica", "Arial", "sans-serif"):
        lines.append(f'  <alias binding="same"><family>{name}</family>{ours}</alias>')
    lines.append(f"  <cachedir>{html.escape(str(folder / 'cache'))}</cachedir>")
    text = "\n".join(['<?xml version="1.0"?>', "<fontconfig>", *lines, "</fontconfig>", ""])
    (folder / "fonts.conf").write_text(text, encoding="utf-8")
    os.environ["FONTCONFIG_FILE"] = str(folder / "fonts.conf")


def pixels(text: str) -> bytes:
    """An SVG as PNG, at twice its size, with our fonts where the system has none.

    Raises: RuntimeError without the package resvg-py.
    """
    try:
        resvg: Any = importlib.import_module("resvg_py")
    except ImportError:
        raise RuntimeError(
            'attention: a .png needs resvg-py; pip install "microtensor[viz]", or save the .svg'
        ) from None
    return bytes(resvg.svg_to_bytes(svg_string=text, zoom=2, font_dirs=[str(FONTS)], sans_serif_family=OURS))


def warn_of_missing(who: str, path: Path, text: str) -> None:
    """Warn of the characters of a text that no font here has: each looks like U+10FFFF, which is none, and
    which may be a box, or as blank as spaces, joiners and U+2800 are. Nothing without resvg-py.
    """
    odd = {c for c in text if not c.isascii() and unicodedata.category(c) not in ("Cf", "Zs")} - {"\u2800"}
    if importlib.util.find_spec("resvg_py") is None or not odd:
        return
    none = pixels(ONE % "\U0010ffff")
    if missing := "".join(c for c in sorted(odd) if pixels(ONE % c) == none):
        warnings.warn(
            f"{who}: no font here has {missing}, which {path} shows as blanks or boxes; "
            f"save .svg, whose reader may have one, or install a font that has them",
            stacklevel=3,
        )
