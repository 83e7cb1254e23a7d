"""Values in a node: scores and attention weights as grids of coloured table cells, which all formats show."""

from __future__ import annotations

from typing import Any

import numpy as np

from microtensor.viz.fold import Group
from microtensor.viz.formula import two_digits
from microtensor.viz.style import LIGHT, to_dark

__all__ = ["CAPTION", "GREY", "MOST_GRIDS", "NO_CELLS", "WRONG", "grids", "masked"]

MOST_POSITIONS, MOST_GRIDS = 12, 4
GREY = 'BGCOLOR="#E4E7EB"'  # masked
WRONG = 'BGCOLOR="{1}" BORDER="1" COLOR="{0}"'.format(*LIGHT.kinds["fault"])  # NaN, or ±∞ that no mask made
SIZE = 'WIDTH="9" HEIGHT="9" FIXEDSIZE="TRUE"'
ORANGE, BLUE, PURPLE = (0xBF, 0x58, 0x04), (0x01, 0x73, 0xE3), (0xA5, 0x43, 0x86)
CAPTION = (
    "cells (first of the batch): row = query, column = key; <I>S</I> orange − 0 + blue, scale in its node; "
    "<I>A</I> white 0 … 1 purple"
)
NO_CELLS = (
    "no cells: no node is a layer's scores or weights (a fused one keeps none); a page, .html, has values"
)


def grids(group: Group, alone: Any, in_row: int) -> tuple[str, str]:
    """(HTML of the grids of a group, one per head; their scale, or why there are none) of scores, softmax.

    alone: what masks alone make of it.
    """
    array, spans = group.last.array, (group.span, *reversed(group.last.spans))  # at level ops those around it
    span = next((s for s in spans if s is not None and s.kind == "fold"), None)
    if span is None or span.key not in ("scores", "softmax") or array is None or array.ndim < 2:
        return "", ""
    if not array.size:
        return "", "no cells: it has no elements"
    hidden = masked(array, alone)
    while array.ndim > 3 or (array.ndim == 3 and span.within is not None):
        array, hidden = array[0], hidden[0]  # the first of the batch
    array, hidden = (each if each.ndim == 3 else each[None] for each in (array, hidden))
    if max(array.shape[1:]) > MOST_POSITIONS or len(array) > MOST_GRIDS:
        return "", f"no cells: more than {MOST_GRIDS} heads or {MOST_POSITIONS} positions"
    ends, scale, said = (PURPLE, PURPLE), 1.0, ""
    if span.key == "scores":
        scale = float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array))) or 1.0
        ends, said = (ORANGE, BLUE), f"cells ± {two_digits(scale)}"
    cells = [f"<TD>{_grid(x / scale, mask, ends)}</TD>" for x, mask in zip(array, hidden, strict=True)]
    rows = ["".join(cells[i : i + in_row]) for i in range(0, len(cells), in_row)]
    sizes = (min(in_row, len(cells)), array.shape[2]), (len(rows), array.shape[1])
    wide, high = (count * (_points(n) + 2) + 2 for count, n in sizes)
    return f"{_table(wide, high, spacing=2)}<TR>{'</TR><TR>'.join(rows)}</TR></TABLE>", said


def masked(values: Any, alone: Any) -> Any:
    """Where nobody may attend: masks alone would have made −∞ of it, and it is that, or as a weight 0."""
    return np.isneginf(alone) & ((values == 0) | np.isneginf(values))


def _grid(values: Any, hidden: Any, ends: tuple[Any, Any]) -> str:
    rows = ""
    for line, masked in zip(values, hidden, strict=True):
        looks = (GREY if m else _look(float(v), *ends) for v, m in zip(line, masked, strict=True))
        cells = (f"<TD {SIZE} {look}></TD>" for look in looks)
        rows += f"<TR>{''.join(cells)}</TR>"
    return f"{_table(*map(_points, values.shape[::-1]), border=1)}{rows}</TABLE>"


def _points(cells: int) -> int:
    """How long a row of cells is with its frame."""
    return 9 * cells + 2


def _table(wide: int, high: int, *, spacing: int = 0, border: int = 0) -> str:
    """A table of that size, in points: in a wider node Graphviz would draw its cells apart."""
    size = f'FIXEDSIZE="TRUE" WIDTH="{wide}" HEIGHT="{high}" COLOR="#9AA5B1"'
    return f'<TABLE {size} BORDER="{border}" CELLBORDER="0" CELLSPACING="{spacing}" CELLPADDING="0">'


def _look(value: float, low: Any, high: Any) -> str:
    """A number of −1 … 1 between white and two colours, none that a theme takes for its own; or WRONG."""
    if not np.isfinite(value):
        return WRONG
    parts = [round(255 + abs(value) * (end - 255)) for end in (low if value < 0 else high)]
    text = "#{:02X}{:02X}{:02X}".format(*parts)
    return f'BGCOLOR="{text if text not in to_dark() else text[:-1] + f"{int(text[-1], 16) ^ 1:X}"}"'
