"""How a kind of node looks: colours of both themes, shapes, fonts.

A kind is told by shape and border as well as by colour, so that it survives a black-and-white print. The
colours keep their distance under the three common forms of colour blindness; tests measure it.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DARK", "FONT", "LANES", "LIGHT", "Colours", "Theme", "to_dark"]

FONT = "Helvetica,Arial,sans-serif"
BIG, SMALL, CLUSTER = 11, 9, 10  # equations; second lines, edge labels, legend; labels of clusters


class Colours(NamedTuple):
    """Of one kind of node."""

    stroke: str
    fill: str


class Theme(NamedTuple):
    """All the colours of a drawing."""

    kinds: dict[str, Colours]
    text: str
    second: str
    gradient: str
    rule: str
    cluster: str
    backward: str  # the cluster of level tape
    paper: str


LIGHT = Theme(
    kinds={
        "input": Colours("#1F2933", "#FFFFFF"),
        "param": Colours("#533E01", "#FDF1D3"),
        "const": Colours("#52606D", "#FFFFFF"),
        "Q": Colours("#0173E3", "#DEEDFB"),
        "K": Colours("#BF5804", "#F7E9DE"),
        "V": Colours("#026744", "#DEEBE7"),
        "S": Colours("#A54386", "#F3E7EF"),
        "O": Colours("#2B3238", "#F0F2F4"),
        "vjp": Colours("#760F93", "#FFFFFF"),
        "grad": Colours("#760F93", "#FFFFFF"),
        "saved": Colours("#52606D", "#FFFFFF"),
        "fault": Colours("#C00018", "#FDE6E8"),
    },
    text="#1F2933",
    second="#52606D",
    gradient="#760F93",
    rule="#9AA5B1",
    cluster="#FAFBFC",
    backward="#F7F1F9",
    paper="#FFFFFF",
)

DARK = Theme(
    kinds={
        "input": Colours("#F5F7FA", "#14181D"),
        "param": Colours("#FBC607", "#3D2F07"),
        "const": Colours("#C3CDD6", "#14181D"),
        "Q": Colours("#2F9DFF", "#0A2A47"),
        "K": Colours("#FE9658", "#46240A"),
        "V": Colours("#50F9AE", "#06382A"),
        "S": Colours("#F26AB8", "#45203A"),
        "O": Colours("#E3E9F0", "#2A333D"),
        "vjp": Colours("#D8A9F8", "#14181D"),
        "grad": Colours("#D8A9F8", "#14181D"),
        "saved": Colours("#C3CDD6", "#14181D"),
        "fault": Colours("#FF8088", "#4A1015"),
    },
    text="#F5F7FA",
    second="#C3CDD6",
    gradient="#D8A9F8",
    rule="#7B8794",
    cluster="#1B2127",
    backward="#23182A",
    paper="#14181D",
)

# What the legend calls a kind; `op` is how lane O is called where nothing has a lane.
LANES = {"Q": "query", "K": "key", "V": "value", "S": "attention weights", "O": "output path"}
LEGEND = {
    "input": "input / output",
    "param": "parameter",
    "const": "constant",
    **LANES,
    "op": "operation",
    "fault": "makes the first NaN",
}

SHAPES = {
    "input": 'shape=box, style="rounded,filled", penwidth=1.8',
    "param": "shape=box, style=filled, peripheries=2",
    "const": 'shape=note, style="dashed,filled"',
    "op": 'shape=box, style="rounded,filled"',
    "vjp": 'shape=box, style="rounded,filled,dashed", margin="0.1,0.08"',
    "grad": 'shape=box, style="rounded,filled", penwidth=1.8',
    "plain": "shape=plaintext",
    "view": 'shape=box, style="rounded,filled,dashed"',
}


def to_dark() -> dict[str, str]:
    """Each light colour's dark counterpart."""
    kinds = ((colours, DARK.kinds[kind]) for kind, colours in LIGHT.kinds.items())
    pairs = {light: dark for both in kinds for light, dark in zip(*both, strict=True)}
    pairs |= dict(zip(LIGHT[1:], DARK[1:], strict=True))
    return pairs
