"""Values in a node: scores and attention weights as grids of coloured table cells, which all formats show."""

from __future__ import annotations

from typing import Any

import numpy as np

from microtensor.viz.fold import Group
from microtensor.viz.formula import two_digits
from microtensor.viz.style import to_dark
from microtensor.viz.trace import Node

__all__ = ["CAPTION", "MOST_GRIDS", "grids", "masked"]

MOST_POSITIONS, MOST_GRIDS = 12, 4
GREY = "#E4E7EB"  # masked
SIZE = 'WIDTH="9" HEIGHT="9" FIXEDSIZE="TRUE"'
ORANGE, BLUE, PURPLE = (0xBF, 0x58, 0x04), (0x01, 0x73, 0xE3), (0xA5, 0x43, 0x86)
CAPTION = (
    "cells (first of the batch): row = query, column = key; <I>S</I> orange − 0 + blue, scale in its node; "
    "<I>A</I> white 0 … 1 purple"
)


def grids(group: Group, in_row: int) -> tuple[str, str]:
    """(HTML of the grids of a group, one per head; their scale, or why there are none) of scores, softmax."""
    array = group.last.array
    if group.span is None or group.span.key not in ("scores", "softmax") or array is None or array.ndim < 2:
        return "", ""
    node = group.members[0]
    hidden = masked(node, node.parents[0].array if node.parents else None, array)
    while array.ndim > 3 or (array.ndim == 3 and group.span.within is not None):
        array, hidden = array[0], hidden[0]  # the first of the batch
    array, hidden = (each if each.ndim == 3 else each[None] for each in (array, hidden))
    if max(array.shape[1:]) > MOST_POSITIONS or len(array) > MOST_GRIDS:
        return "", f"no cells: more than {MOST_GRIDS} heads or {MOST_POSITIONS} positions"
    ends, scale, said = (PURPLE, PURPLE), 1.0, ""
    if group.span.key == "scores":
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


def masked(node: Node, scores: Any, weights: Any) -> Any:
    """Where softmax's weights are 0 because nobody may attend there: its scores are −∞, if they are known."""
    known = scores is not None and node.op is not None and node.op.name == "softmax"
    return np.isneginf(scores) if known else np.zeros(weights.shape, bool)


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
