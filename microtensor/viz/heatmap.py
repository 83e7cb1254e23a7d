"""Attention weights as heat-maps: a map for each layer and head, rows are queries and columns are keys.

The SVG is our own text, and needs neither matplotlib nor Graphviz. What the tokens are is told by the caller.
"""

from __future__ import annotations

import hashlib
import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from microtensor.viz import render, style, svg, symbols
from microtensor.viz.drawing import check

__all__ = ["AttentionMaps", "attention"]

Maps = list[npt.NDArray[Any]]  # a layer's weights each: (H, T, S)

SMALLEST, LARGEST, SIDE = 7.0, 18.0, 320.0  # of a cell; of a map, where cells can be so large; pixels
GAP, NAME, LETTERS, SCALE = 24.0, 90.0, 10.0, 120.0  # between maps; their names'; letters' height; a scale's
PAGE = 74.0  # letters that are as wide as 170 mm when they are printed 6.5 points high
LONGEST_TOKEN = 40  # characters of a label
MOST_CELLS = 40_000
FAINTEST = 0.005  # weight that is drawn


class AttentionMaps:
    """Heat-maps of attention weights: SVG in two themes, shown by notebooks, saved as .svg or .png.

    Raises: when asked for a file: ValueError for another suffix, RuntimeError for .png without resvg-py.
    Source: ours; the paper, Figures 3 to 5, shows such weights.
    """

    def __init__(self, maps: Maps, queries: list[str], keys: list[str], *, theme: str, title: str) -> None:
        self.maps, self.queries, self.keys, self.theme, self.title = maps, queries, keys, theme, title

    def __repr__(self) -> str:
        heads, T, S = sum(map(len, self.maps)), len(self.queries), len(self.keys)
        return f"<AttentionMaps of {heads} heads, {T} queries × {S} keys>"

    def svg(self, *, standalone: bool = False) -> str:
        """The maps as SVG with title and description; standalone with an XML declaration.

        Source: ours.
        """
        text = ET.tostring(_Writer(self).root, encoding="unicode")
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + text if standalone else text

    def save(self, path: str | Path) -> Path:
        """Write the maps to a file; its suffix says how: .svg or .png. Returns the path.

        Warns: of a .png with signs that no font here has.
        Raises: ValueError for another suffix; RuntimeError for .png without the package resvg-py; OSError if
        it cannot be written.
        Source: ours.
        """
        from microtensor.train.files import write

        path = Path(path)
        if (kind := path.suffix.lower()) not in (".svg", ".png"):
            raise ValueError(f"AttentionMaps.save: cannot write {path.name!r}; end the name in .svg or .png")
        text = self.svg(standalone=True)
        write("AttentionMaps.save", path, text.encode() if kind == ".svg" else render.pixels(text))
        if kind == ".png":
            render.warn_of_missing("AttentionMaps.save", path, text)
        return path

    _repr_svg_ = svg  # for notebooks


def attention(
    weights: Any,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    theme: str = "auto",
    title: str = "attention weights",
) -> AttentionMaps:
    """A heat-map of every layer and head: how much each query (row) attends to each key (column).

    weights: of one layer (T, S), (H, T, S) or (1, H, T, S), or a list of these, one per layer, such as the
    lists of `models.Attention`. They are drawn as they are, so give those before dropout. The darkest colour
    is the greatest of them all, rounded up to a tenth, which the scale below them says.
    queries, keys: the tokens, T and S of them; by default their numbers. Without keys it is self-attention,
    where they are the queries. theme: "auto" (the reader's setting), "light" or "dark".

    Shapes: (T, S), (H, T, S) or (1, H, T, S) each, T and S the same for all
    Raises: ValueError for other shapes, labels of another number, an unknown theme, what is no share from 0
    to 1, and more than 40,000 cells; TypeError for weights that are no real numbers, and labels that are no
    sequence.
    Source: ours; the paper, Figures 3 to 5, shows such weights.

    >>> import microtensor as mt
    >>> from microtensor import viz
    >>> viz.attention(mt.randn(1, 2, 3, 5).softmax(-1), ["Ich", "bin", "da"], ["<s>", "I", "am", "here", "."])
    <AttentionMaps of 2 heads, 3 queries × 5 keys>
    """
    check("attention", {"theme": theme})
    layers = weights if isinstance(weights, list | tuple) else [weights]
    maps = [_layer(A, number) for number, A in enumerate(layers, 1)]
    if not maps:
        raise ValueError("attention: there are no weights; give those of one layer at least")
    shapes = sorted({A.shape[1:] for A in maps})
    if len(shapes) > 1:
        raise ValueError(f"attention: layers have (T, S) = {shapes}; draw each kind by itself")
    T, S = shapes[0]
    if (cells := sum(A.size for A in maps)) > MOST_CELLS:
        raise ValueError(
            f"attention: {cells} cells are more than {MOST_CELLS}; draw some layers, heads or positions"
        )
    if keys is None and queries is not None and T != S:
        raise ValueError(f"attention: {T} queries look at {S} keys, which are others; "
                         f"give the keys' tokens, too")  # fmt: skip
    named = _labels("queries", queries, T), _labels("keys", queries if keys is None else keys, S)
    return AttentionMaps(maps, *named, theme=theme, title=symbols.one_line(title, 200))


def _layer(A: Any, number: int) -> npt.NDArray[Any]:
    """One layer's weights as (H, T, S)."""
    array = np.asarray(A.detach().numpy() if hasattr(A, "detach") else A)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"attention: layer {number} has weights of dtype {array.dtype}; give real numbers")
    if array.ndim == 4 and len(array) != 1:
        raise ValueError(
            f"attention: layer {number} has shape {array.shape}, a batch of {len(array)}; choose a row, such "
            f"as [A[:1] for A in weights]"
        )
    if array.ndim not in (2, 3, 4) or not array.size:
        raise ValueError(f"attention: layer {number} has shape {array.shape}; "
                         f"give (T, S), (H, T, S) or (1, H, T, S)")  # fmt: skip
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1 + 1e-3):  # NaN is neither
        raise ValueError(
            f"attention: layer {number} has weights from {low:g} to {high:g}; give shares from 0 to 1, "
            f"as softmax makes them"
        )
    return array.reshape(-1, *array.shape[-2:])


def _labels(name: str, tokens: Sequence[str] | None, n: int) -> list[str]:
    if tokens is None:
        return [str(i) for i in range(n)]
    if not hasattr(tokens, "__len__"):
        raise TypeError(f"attention: {name} is {tokens!r}; give a list of {n} tokens")
    if len(tokens) != n:
        raise ValueError(f"attention: {len(tokens)} {name} are named, and the weights have {n}; give as many")
    return [symbols.token(token, LONGEST_TOKEN) for token in tokens]


class _Writer:
    """Places everything: maps in rows that a page can hold, queries named left of each and keys below."""

    def __init__(self, drawn: AttentionMaps) -> None:
        self.drawn = drawn
        self.colours = style.DARK if drawn.theme == "dark" else style.LIGHT
        T, S = len(drawn.queries), len(drawn.keys)
        self.cell = min(LARGEST, max(SMALLEST, SIDE / max(T, S)))
        self.letters = min(LETTERS, self.cell)  # of tokens
        tenths = math.ceil(10 * max(float(A.max()) for A in drawn.maps) - 1e-6)
        self.top = min(1.0, max(1, tenths) / 10)  # the weight that is darkest
        self.wide, self.high = self.cell * S, self.cell * T
        self.left = max(NAME / 2, GAP + 8 + self._width(drawn.queries))  # of the first map
        self.below = 34 + self._width(drawn.keys)  # a map: its keys, and what they are
        heads, self.apart = max(map(len, drawn.maps)), max(self.wide, NAME) + GAP
        rows = math.ceil(heads / max(1, (PAGE * self.letters - self.left) // self.apart))
        in_row, high = math.ceil(heads / rows), GAP + self.high + self.below
        self.several = len(drawn.maps) * heads > 1  # a single map is nobody's but its title's
        width = self.left + max(in_row * self.apart, SCALE + 152, 8.5 * len(drawn.title) + GAP - self.left)
        lines = [
            (maps[i : i + in_row], number, i)
            for number, maps in enumerate(drawn.maps, 1)
            for i in range(0, len(maps), in_row)
        ]
        height = 36 + len(lines) * high + 24
        size = {"width": f"{width:g}", "height": f"{height:g}", "viewBox": f"0 0 {width:g} {height:g}"}
        self.root = ET.Element(f"{{{svg.SVG}}}svg", {"font-family": style.FONT, **size})
        self._add("rect", width="100%", height="100%", fill=self.colours.paper)
        self._text(width / 2, 22, drawn.title, size=13, weight="bold", anchor="middle")
        for row, line in enumerate(lines):
            self._row(*line, 36 + row * high + GAP)
        self._scale(self.left, height - 24)
        self._finish()

    def _width(self, tokens: Sequence[str]) -> float:
        """Of the widest token, about: in our font few letters are as wide as high, and most 0.64."""
        wide = dict.fromkeys("mMW@%", 1.0) | dict.fromkeys("abcdefghijklnopqrstuvxyz0123456789", 0.64)
        return self.letters * max(sum(wide.get(c, 0.84 if c.isascii() else 1.0) for c in t) for t in tokens)

    def _add(self, tag: str, parent: Any = None, **attributes: Any) -> ET.Element:
        said = {k.replace("_", "-"): v if isinstance(v, str) else f"{v:g}" for k, v in attributes.items()}
        return ET.SubElement(self.root if parent is None else parent, f"{{{svg.SVG}}}{tag}", said)

    def _text(
        self, x: float, y: float, text: str, *, size: float = LETTERS, weight: str = "normal",
        anchor: str = "start", up: bool = False, second: bool = False,
    ) -> None:  # fmt: skip
        """A line of text from (x, y) on, or with up=True from there upwards."""
        turned = {"transform": f"rotate(-90 {x:g} {y:g})"} if up else {}
        colour = self.colours.second if second else self.colours.text
        self._add(
            "text", x=x, y=y, font_size=size, font_weight=weight, text_anchor=anchor, fill=colour, **turned
        ).text = text

    def _row(self, maps: npt.NDArray[Any], layer: int, first: int, y: float) -> None:
        half = self.letters * 0.35  # of a letter's height, to stand in the middle of a cell
        self._text(20, y + self.high / 2, "queries", anchor="middle", up=True, second=True)
        for t, token in enumerate(self.drawn.queries):
            at = y + (t + 0.5) * self.cell + half
            self._text(self.left - 5, at, token, size=self.letters, anchor="end")
        for i, weights in enumerate(maps):
            x = self.left + i * self.apart
            self._map(weights, x, y, f"layer {layer}, head {first + i + 1}" if self.several else "")
            end = y + self.high
            for s, token in enumerate(self.drawn.keys):
                at = x + (s + 0.5) * self.cell + half
                self._text(at, end + 5, token, size=self.letters, anchor="end", up=True)
            self._text(x + self.wide / 2, end + self.below - 14, "keys", anchor="middle", second=True)

    def _map(self, weights: npt.NDArray[Any], x: float, y: float, name: str) -> None:
        """A frame, and a cell for every weight that can be seen; each says what it is under the pointer."""
        self._text(x + self.wide / 2, y - 6, name, anchor="middle", second=True)
        group = self._add("g", **{"class": "map"})
        for t, s in np.argwhere(weights >= FAINTEST).tolist():
            place = {"x": x + s * self.cell, "y": y + t * self.cell, "width": self.cell, "height": self.cell}
            cell = self._cell(f"{min(1.0, weights[t, s] / self.top):.2f}", group, **place)
            self._add("title", cell).text = self._said(t, s, weights)
        self._add("rect", x=x, y=y, width=self.wide, height=self.high, fill="none", stroke=self.colours.rule)

    def _cell(self, share: str, parent: Any = None, **place: float) -> ET.Element:
        look = {"fill": self.colours.kinds["S"].stroke, "fill_opacity": share}
        return self._add("rect", parent, **place, **look)

    def _said(self, t: int, s: int, weights: npt.NDArray[Any]) -> str:
        key = f"{self.drawn.keys[s]}: {weights[t, s]:.2f}" if weights[t, s] else "nothing, it is fully masked"
        return f"{self.drawn.queries[t]} → {key}"

    def _strongest(self, weights: npt.NDArray[Any]) -> str:
        """The key that each of the first queries attends to most."""
        return ", ".join(self._said(t, int(row.argmax()), weights) for t, row in enumerate(weights[:10]))

    def _scale(self, x: float, y: float) -> None:
        """What a colour means, from 0 to the greatest weight, rounded up to a tenth, in ten steps."""
        for i in range(10):
            place = {"x": x + 14 + i * SCALE / 10, "y": y, "width": SCALE / 10, "height": 10}
            self._cell(f"{(i + 0.5) / 10:g}", **place)
        self._add("rect", x=x + 14, y=y, width=SCALE, height=10, fill="none", stroke=self.colours.rule)
        self._text(x, y + 9, "0")
        self._text(x + 20 + SCALE, y + 9, f"{self.top:g}  attention weight")

    def _finish(self) -> None:
        """Title, description and themes, as the drawings have them."""
        scope = "mt-" + hashlib.sha256(ET.tostring(self.root)).hexdigest()[:8]
        about = [
            f"{f'layer {i}, head {j}: ' if self.several else ''}{self._strongest(weights)}"
            for i, maps in enumerate(self.drawn.maps, 1)
            for j, weights in enumerate(maps, 1)
        ]
        said = "; ".join(["rows are queries, columns keys", *about[:50]])
        svg.dress(self.root, scope, self.drawn.theme, self.drawn.title, said)
