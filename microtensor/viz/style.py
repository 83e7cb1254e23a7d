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

    def small(self, html: str) -> str:
        """A second line of a node."""
        return f'<FONT POINT-SIZE="{SMALL}" COLOR="{self.second}">{html}</FONT>'


# Stroke and fill of each kind on light paper, and on dark; then the other colours of the two themes.
KINDS = {
    "input": ("#1F2933", "#FFFFFF", "#F5F7FA", "#14181D"),
    "param": ("#533E01", "#FDF1D3", "#FBC607", "#3D2F07"),
    "const": ("#52606D", "#FFFFFF", "#C3CDD6", "#14181D"),
    "Q": ("#0173E3", "#DEEDFB", "#2F9DFF", "#0A2A47"),
    "K": ("#BF5804", "#F7E9DE", "#FE9658", "#46240A"),
    "V": ("#026744", "#DEEBE7", "#50F9AE", "#06382A"),
    "S": ("#A54386", "#F3E7EF", "#F26AB8", "#45203A"),
    "O": ("#2B3238", "#F0F2F4", "#E3E9F0", "#2A333D"),
    "vjp": ("#760F93", "#FFFFFF", "#D8A9F8", "#14181D"),
    "grad": ("#760F93", "#FFFFFF", "#D8A9F8", "#14181D"),
    "saved": ("#52606D", "#FFFFFF", "#C3CDD6", "#14181D"),
    "fault": ("#C00018", "#FDE6E8", "#FF8088", "#4A1015"),
}
OTHERS = {
    "text": ("#1F2933", "#F5F7FA"),
    "second": ("#52606D", "#C3CDD6"),
    "gradient": ("#760F93", "#D8A9F8"),
    "rule": ("#9AA5B1", "#7B8794"),
    "cluster": ("#FAFBFC", "#1B2127"),
    "backward": ("#F7F1F9", "#23182A"),
    "paper": ("#FFFFFF", "#14181D"),
}


def _theme(*, dark: bool) -> Theme:
    kinds = {kind: Colours(*(colours[2:] if dark else colours[:2])) for kind, colours in KINDS.items()}
    return Theme(kinds, **{name: pair[dark] for name, pair in OTHERS.items()})


LIGHT, DARK = _theme(dark=False), _theme(dark=True)

# What the legend calls a kind; `op` is how lane O is called where nothing has a lane.
LANES = {"Q": "query", "K": "key", "V": "value", "S": "attention", "O": "output path"}
LEGEND = {
    "input": "input or leaf / output",
    "param": "parameter",
    "const": "constant",
    **LANES,
    "op": "operation",
    "fault": "NaN or ∞ begins here",
}

SHAPES = {
    "input": 'shape=box, style="rounded,filled", penwidth=1.8',
    "param": "shape=box, style=filled, peripheries=2",
    "const": 'shape=note, style="dashed,filled"',
    "op": 'shape=box, style="rounded,filled"',
    "vjp": 'shape=box, style="rounded,filled,dashed", margin="0.1,0.08"',
    "plain": "shape=plaintext",
    "view": 'shape=box, style="rounded,filled,dashed"',
}


def to_dark() -> dict[str, str]:
    """Each light colour's dark counterpart."""
    kinds = {colours[i]: colours[i + 2] for colours in KINDS.values() for i in (0, 1)}
    return kinds | dict(OTHERS.values())
