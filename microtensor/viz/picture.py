"""What is drawn, before it is DOT: boxes, arrows and clusters with their texts, still without colours."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["Arrow", "Box", "Cell", "Cluster", "Picture", "length"]

LONGEST_LINE = 32  # characters of an equation


@dataclass
class Cell:
    """One parameter in a box of parameters."""

    port: str
    symbol: str  # HTML
    shape: str
    tooltip: str


@dataclass(eq=False)
class Box:
    """One node of the drawing."""

    name: str
    id: str
    kind: str  # style.LIGHT.kinds
    shape: str  # style.SHAPES, or "cells"
    classes: str
    lines: list[str]  # HTML, in large type
    small: list[str]  # HTML, below them in small type; empty ones are left out
    tooltip: str
    url: str = ""
    aside: str = ""  # details of an op, small and behind its word (LR: below it)
    result: str = ""  # the shape of what an op gives, where boxes and not arrows say it (level ops, LR)
    cells: list[Cell] = field(default_factory=list)  # of parameters, or the parts of an equation

    @property
    def stacked(self) -> bool:
        """Do the cells stand one below the other, because side by side they would be too wide?"""
        return sum(length(cell.symbol + cell.shape) for cell in self.cells) > LONGEST_LINE

    lane: str | None = None
    block: str = ""  # the module whose lanes these are
    cluster: Cluster | None = None


@dataclass(eq=False)
class Cluster:
    """A frame around boxes and other clusters."""

    name: str
    lines: list[str]
    tooltip: str
    parent: Cluster | None
    module: bool
    index: int | None = None  # of a numbered frame
    boxes: list[Box] = field(default_factory=list)
    inner: list[Cluster] = field(default_factory=list)


@dataclass(eq=False)
class Arrow:
    """One edge of the drawing."""

    tail: Box
    head: Box
    port: str
    label: str  # HTML
    tooltip: str
    differentiable: bool
    id: str = ""
    head_port: str = ""


@dataclass(eq=False)
class Picture:
    """Everything that a drawing shows."""

    what: str
    level: str
    boxes: list[Box]
    arrows: list[Arrow]
    clusters: list[Cluster]
    caption: str
    equations: list[str]  # plain text, for the description of an SVG
    code: bool  # long names
    order: list[Box]  # all boxes, in the order of the computation


def length(html: str) -> int:
    """Characters of a label without its tags."""
    return len(re.sub(r"<[^>]*>|&\w+;", lambda tag: "" if tag[0][0] == "<" else "x", html))
