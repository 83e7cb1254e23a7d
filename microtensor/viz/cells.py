"""Values in a node: scores and attention weights as grids of coloured table cells, which all formats show."""

from __future__ import annotations

from typing import Any

import numpy as np

from microtensor.viz.fold import Folded, Group
from microtensor.viz.formula import two_digits
from microtensor.viz.style import to_dark
from microtensor.viz.trace import Graph

__all__ = ["CAPTION", "MOST_GRIDS", "grids"]

MOST_POSITIONS, MOST_GRIDS = 12, 4
GREY = "#E4E7EB"  # masked
SIZE = 'WIDTH="9" HEIGHT="9" FIXEDSIZE="TRUE"'
ORANGE, BLUE, PURPLE = (0xBF, 0x58, 0x04), (0x01, 0x73, 0xE3), (0xA5, 0x43, 0x86)
CAPTION = (
    "cells (first of the batch): row = query, column = key; <I>S</I> orange − 0 + blue, scale in its node; "
    "<I>A</I> white 0 … 1 purple"
)


def grids(graph: Graph, folded: Folded, group: Group, in_row: int) -> tuple[str, str]:
    """(HTML of the grids of a group, one per head; their scale, or why there are none) of scores, softmax."""
    array = group.last.array
    if group.span is None or group.span.key not in ("scores", "softmax") or array is None or array.ndim < 2:
        return "", ""
    while array.ndim > 3 or (array.ndim == 3 and group.span.within is not None):
        array = array[0]  # the first of the batch
    array = array if array.ndim == 3 else array[None]
    if max(array.shape[1:]) > MOST_POSITIONS or len(array) > MOST_GRIDS:
        return "", f"no cells: more than {MOST_GRIDS} heads or {MOST_POSITIONS} positions"
    ends, scale, said = (PURPLE, PURPLE), 1.0, ""
    hidden = np.broadcast_to(_hidden(graph, folded, group, array), array.shape)
    if group.span.key == "scores":  # before the mask
        hidden = np.zeros_like(hidden)
        scale = float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array))) or 1.0
        ends, said = (ORANGE, BLUE), f"cells ± {two_digits(scale)}"
    made = [_grid(grid / scale, mask, ends) for grid, mask in zip(array, hidden, strict=True)]
    cells = [f"<TD>{grid}</TD>" for grid in made]
    rows = ["".join(cells[i : i + in_row]) for i in range(0, len(cells), in_row)]
    wide, high = (
        count * (_points(n) + 2) + 2
        for count, n in ((min(in_row, len(made)), array.shape[2]), (len(rows), array.shape[1]))
    )
    return f"{_table(wide, high, spacing=2)}<TR>{'</TR><TR>'.join(rows)}</TR></TABLE>", said


def _hidden(graph: Graph, folded: Folded, group: Group, array: Any) -> Any:
    """Where the mask of this layer (and head) lets nobody attend."""
    assert group.span is not None
    place = (group.span.path, group.span.within)
    spans = (g.span for g in folded.groups if g.span is not None and (g.span.path, g.span.within) == place)
    span = next((span for span in spans if span.key == "mask"), None)
    if span is None:
        return np.zeros(array.shape[-2:], bool)
    mask = span.names["M"].array
    blocked = ~mask if mask.dtype == bool else np.isneginf(mask)
    while blocked.ndim > array.ndim or (
        blocked.ndim == array.ndim and blocked.shape[0] not in (1, len(array))
    ):
        blocked = blocked[0]
    return blocked


def _grid(values: Any, hidden: Any, ends: tuple[Any, Any]) -> str:
    rows = ""
    for line, masked in zip(values, hidden, strict=True):
        colours = (GREY if m else _colour(float(v), *ends) for v, m in zip(line, masked, strict=True))
        cells = (f'<TD {SIZE} BGCOLOR="{colour}"></TD>' for colour in colours)
        rows += f"<TR>{''.join(cells)}</TR>"
    wide, high = _points(values.shape[1]), _points(values.shape[0])
    return f"{_table(wide, high, border=1)}{rows}</TABLE>"


def _points(cells: int) -> int:
    """How long a row of cells is with its frame."""
    return 9 * cells + 2


def _table(wide: int, high: int, *, spacing: int = 0, border: int = 0) -> str:
    """A table of that size, in points: in a wider node Graphviz would draw its cells apart."""
    size = f'FIXEDSIZE="TRUE" WIDTH="{wide}" HEIGHT="{high}" COLOR="#9AA5B1"'
    return f'<TABLE {size} BORDER="{border}" CELLBORDER="0" CELLSPACING="{spacing}" CELLPADDING="0">'


def _colour(value: float, low: Any, high: Any) -> str:
    """A number of −1 … 1 between white and two colours; never one that a theme would take for its own."""
    share = min(abs(value), 1.0) if np.isfinite(value) else 1.0
    parts = [round(255 + share * (end - 255)) for end in (low if value < 0 else high)]
    text = "#{:02X}{:02X}{:02X}".format(*parts)
    return text if text not in to_dark() else text[:-1] + f"{int(text[-1], 16) ^ 1:X}"
