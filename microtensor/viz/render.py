"""DOT → bytes: the program `dot` if there is one, else pygraphviz in this process, else one clear error.

No sudo, no download, no shell. pygraphviz's wheel brings Graphviz along, but it prints errors and goes on,
and is not to be entered by two threads, so formats are listed here and a lock is held.
"""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path

__all__ = ["FORMATS", "NoGraphviz", "render"]

FORMATS = ("svg", "png", "pdf", "json")
DPI = 150  # of PNG
_lock = threading.Lock()


class NoGraphviz(RuntimeError):
    """Neither the program dot nor pygraphviz is there."""


CURE = 'pip install "pygraphviz>=2.0.4", or install Graphviz (apt, brew, winget)'


def render(text: str, kind: str) -> bytes:
    """The DOT text laid out and written in a format of FORMATS.

    Raises: NoGraphviz if nothing can.
    """
    _use_our_fonts()
    sharp = text.replace("graph [", f"graph [dpi={DPI}, ", 1) if kind == "png" else text
    with _lock:
        made = _by_program(sharp, kind)
        if made is None:
            made = _by_library(sharp, kind)
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
    with warnings.catch_warnings():  # what Graphviz remarks on fonts is no error of the drawing
        warnings.simplefilter("ignore")
        made = pygraphviz.AGraph(string=text).draw(format=kind, prog="dot")
    if not made:
        raise RuntimeError(f"draw: Graphviz gave nothing for {kind}; save the .dot and try another format")
    return bytes(made)


def _use_our_fonts() -> None:
    """Without any fonts (slim images) PNG and PDF would show boxes: add ours behind the system's."""
    os.environ.setdefault("FONTCONFIG_FILE", str(Path(__file__).with_name("fonts") / "fonts.conf"))
