"""A drawing as a page to explore: one HTML file that needs no network and no server.

`page.html` is the template, `page.css` and `page.js` go into it as they are, the pictures are those that
Graphviz lays out, and what they show is told by JSON (see `describe`). Folding changes the picture: there is
one for each state (see `folding`), so that none has holes and each is what `draw` would draw.
"""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

from microtensor.viz import style
from microtensor.viz.svg import SVG, XLINK

if TYPE_CHECKING:
    from microtensor.viz.drawing import Drawing

__all__ = ["fill"]

HERE = Path(__file__).parent
LEGENDS = {"equations": "by equations", "ops": "op by op", "heads": "head by head", "tape": "its whole tape"}


def fill(drawing: Drawing) -> str:
    """The page of a drawing.

    Raises: ValueError for a drawing that is no graph of tensors (a beam tree), and above max_nodes;
    RuntimeError without Graphviz.
    """
    if drawing.data is None and drawing.boxes <= drawing.max_nodes:
        raise ValueError(
            f"Drawing.save: a page explores a graph of tensors, and this drawing is a {drawing.level}; save "
            f"the .svg"
        )
    pictures = [_picture(each) for each in (drawing, *drawing.states)]
    title = drawing.dot.split('"', 2)[1].rpartition("_")[0].replace("_", " ")
    parts = {
        "title": html.escape(f"{title}, {LEGENDS[drawing.level]}"),
        "theme": drawing.theme,
        "style": _colours() + _file("page.css"),
        "pictures": "\n".join(f'<div class="picture" hidden>{svg}</div>' for svg in pictures),
        "data": json.dumps([each.data for each in (drawing, *drawing.states)]).replace("<", "\\u003c"),
        "script": _file("page.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("page.html"))


def _file(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _colours() -> str:
    """The colours of both themes, as the drawings have them."""
    themes = {"light": _variables(style.LIGHT), "dark": _variables(style.DARK)}
    rules = [f":root[data-theme={name}] {{ {said} }}" for name, said in themes.items()]
    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {themes['dark']} }} }}"
    return "\n".join([f":root {{ {themes['light']} }}", dark, *rules, ""])


def _variables(theme: style.Theme) -> str:
    names = ("text", "second", "gradient", "rule", "cluster", "paper")
    scheme = "dark" if theme is style.DARK else "light"
    return f"color-scheme:{scheme};" + "".join(f"--{name}:{getattr(theme, name)};" for name in names)


def _picture(drawing: Drawing) -> str:
    """The SVG without links, which lead nowhere from here, and without tooltips, which would cover it."""
    root = ET.fromstring(drawing.svg())
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag == f"{{{SVG}}}title"]:
            parent.remove(child)
        if parent.tag == f"{{{SVG}}}a":
            parent.tag = f"{{{SVG}}}g"
            for name in ("href", "title"):
                parent.attrib.pop(f"{{{XLINK}}}{name}", None)
    root.set("role", "application")
    root.set("aria-label", "graph: arrow keys walk along it, Enter folds and unfolds")
    root.set("style", f"--wide:{root.attrib.pop('width')}px")
    root.attrib.pop("height")
    return ET.tostring(root, encoding="unicode")
