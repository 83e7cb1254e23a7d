"""What Graphviz's SVG needs before a browser shows it well: text in lines, scripts, two themes, unique ids.

Graphviz places every run of text singly and asks for super- and subscripts with baseline-shift, which
browsers draw full size; in another font than it measured, runs would overprint. Widths come from the JSON
layout.
"""

from __future__ import annotations

import hashlib
import xml.etree.ElementTree as ET
from typing import Any

from microtensor.viz.style import FONT, to_dark

__all__ = ["SVG", "dress", "finish"]

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
XML = "http://www.w3.org/XML/1998/namespace"
SPACE = ("\xa0", " ")  # what Graphviz writes for the second of two spaces, in SVG only, and what it means
SCRIPT_SIZE, DOWN, UP = 0.72, 0.22, -0.36  # of the size of the line
ET.register_namespace("", SVG)
ET.register_namespace("xlink", XLINK)


def finish(text: str, layout: dict[str, Any], *, dot: str, theme: str, about: list[str]) -> str:
    """Graphviz's SVG → ours. layout: the JSON of the same drawing, dot: its text; about: its equations."""
    root = ET.fromstring(text.encode())
    scope = "mt-" + hashlib.sha256((dot + theme).encode()).hexdigest()[:8]
    widths = _widths(layout)
    for parent in list(root.iter()):
        _join_runs(parent, widths)
    root.set("font-family", FONT)  # here, not at every text: a sixth of the file
    for side in ("width", "height"):  # in pixels: renderers differ about points
        root.set(side, f"{float(root.get(side, '0pt').removesuffix('pt')) * 4 / 3:.2f}")
    name = root.findtext(f"{{{SVG}}}g/{{{SVG}}}title") or "graph"
    _own_ids(root, scope)
    dress(root, scope, theme, name.replace("_", ", level "), "; ".join(about))
    return ET.tostring(root, encoding="unicode")


def dress(root: ET.Element, scope: str, theme: str, title: str, description: str) -> None:
    """Title, description, and a style sheet for this drawing alone: its class is `scope`."""
    root.set("role", "img")
    root.set("class", f"microtensor {scope}")
    for number, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(f"{{{SVG}}}{tag}")
        element.text = text  # for those who listen to the drawing
        root.insert(number, element)
    if theme == "auto":
        _follow_reader(root, scope)
    root.insert(2, _style(root, scope, theme))


# --- text ---------------------------------------------------------------------------------------------------


Widths = dict[str, list[tuple[float, float, float]]]


def _widths(layout: dict[str, Any]) -> Widths:
    """text → (left end, height, width) of each run with that text; heights downwards, as in SVG."""
    found: Widths = {}
    for item in [layout, *layout.get("objects", []), *layout.get("edges", [])]:
        for step in item.get("_ldraw_", []):
            if step["op"] == "T":
                (x, y), width = step["pt"], step["width"]
                left = x - {"l": 0.0, "c": 0.5, "r": 1.0}[step["align"]] * width
                found.setdefault(step["text"].replace(*SPACE), []).append((left, -y, width))
    return found


class _Run:
    """One <text> of Graphviz, with its left end and width."""

    def __init__(self, element: ET.Element, widths: Widths) -> None:
        self.element, self.text = element, element.text or ""
        x, self.y = float(element.get("x", 0)), float(element.get("y", 0))
        self.size = float(element.get("font-size", 14))
        middle = element.get("text-anchor") == "middle"
        self.left, self.width = x, 0.6 * self.size * len(self.text)
        for left, y, width in widths.get(self.text.replace(*SPACE), ()):
            if abs(x - left - (width / 2 if middle else 0)) < 0.1 and abs(y - self.y) < 0.1:
                self.left, self.width = left, width
        self.end = self.left + self.width

    @property
    def shift(self) -> float:
        """How far below the line the run stands, in points."""
        where = self.element.get("baseline-shift")
        return self.size * {"sub": DOWN, "super": UP}.get(where or "", 0.0)


def _join_runs(parent: ET.Element, widths: Widths) -> None:
    """Replace the <text> children of an element by one per line, with a <tspan> per run."""
    line: list[_Run] = []
    for child in [*parent, None]:
        run = _Run(child, widths) if child is not None and child.tag == f"{{{SVG}}}text" else None
        joins = run and line and abs(run.y - line[-1].y) < 0.1 and abs(run.left - line[-1].end) <= 1.5
        if line and not joins:
            _as_one(parent, line)
            line = []
        line += [run] if run is not None else []


def _as_one(parent: ET.Element, line: list[_Run]) -> None:
    first = line[0]
    text = ET.Element(f"{{{SVG}}}text", {"x": f"{first.left:g}", "y": f"{first.y:g}"})
    if (said := "".join(run.text for run in line)) != " ".join(said.split()):
        text.set(f"{{{XML}}}space", "preserve")  # here: browsers do not hand it down
    if (length := line[-1].end - first.left) > 0:  # without it a wide font leaves the box
        text.set("textLength", f"{length:.2f}")
        text.set("lengthAdjust", "spacingAndGlyphs")
    index, before = list(parent).index(first.element), 0.0
    for run in line:
        text.append(_tspan(run, run.shift - before))
        before = run.shift
        parent.remove(run.element)
    parent.insert(index, text)


def _tspan(run: _Run, dy: float) -> ET.Element:
    script = run.element.get("baseline-shift") is not None
    looks = ("font-weight", "font-style", "fill", "text-decoration")
    given = {key: value for key in looks if (value := run.element.get(key)) is not None}
    span = ET.Element(f"{{{SVG}}}tspan", given)
    span.set("font-size", f"{run.size * (SCRIPT_SIZE if script else 1):g}")
    if abs(dy) > 1e-6:
        span.set("dy", f"{dy:.2f}")
    span.text = run.text
    return span


# --- what it is, ids, themes --------------------------------------------------------------------------------


def _own_ids(root: ET.Element, scope: str) -> None:
    """Ids that no other drawing on the page has; links within the drawing follow."""
    for number, element in enumerate(root.iter()):
        if (id := element.get("id")) is not None:
            if id.startswith("a_"):  # a link's id ends in a count that goes on from drawing to drawing
                id = f"a{number}"
            element.set("id", f"{scope}-{id}")
        if (link := element.get(f"{{{XLINK}}}href", "")).startswith("#"):
            element.set(f"{{{XLINK}}}href", f"#{scope}-{link[1:]}")


def _follow_reader(root: ET.Element, scope: str) -> None:
    """A class for each theme colour; colours that are no theme's (data) stay out of it."""
    light = {colour.lower() for colour in to_dark()}
    for element in root.iter():
        classes = element.get("class", "").split()
        for key, letter in (("fill", "f"), ("stroke", "s")):
            colour = element.get(key, "").lower()
            colour = "#ffffff" if colour == "white" else colour  # Graphviz writes some colours by name
            if colour in light:
                classes.append(letter + colour[1:])
        if classes:
            element.set("class", " ".join(classes))


def _style(root: ET.Element, scope: str, theme: str) -> ET.Element:
    """Rules scoped to this drawing, since an inline <style> reaches the whole page."""
    style = ET.Element(f"{{{SVG}}}style")
    under_pointer = (".node:hover path", ".node:hover polygon", ".edge:hover path")
    style.text = ",".join(f".{scope} {what}" for what in under_pointer) + "{stroke-width:2.4}"
    if theme == "auto":  # print stays light
        used = {word for element in root.iter() for word in element.get("class", "").split()}
        pairs = sorted((light[1:].lower(), dark) for light, dark in to_dark().items())
        looks = [(f"{key[0]}{a}", f"{key}:{b}") for a, b in pairs for key in ("fill", "stroke")]
        rules = (f".{scope} .{word}{{{look}}}" for word, look in looks if word in used)
        style.text += f"@media screen and (prefers-color-scheme: dark){{{''.join(rules)}}}"
    return style
