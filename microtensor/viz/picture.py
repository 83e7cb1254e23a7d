"""What is drawn, before it is DOT: boxes, arrows and clusters with their texts, still without colours."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Arrow", "Box", "Cell", "Cluster", "Picture", "in_lines", "length", "side_by_side"]

LONGEST_LINE = 32  # characters of an equation


@dataclass
class Cell:
    """One parameter in a box of parameters."""

    port: str
    symbol: str  # HTML
    shape: str
    tooltip: str
    gradient: str = ""  # its norm, ‖∂‖ 0.35
    zero: bool = False  # is it that of a gradient that is 0?
    found: str = ""  # a finding, in bold and in place of it
    fault: bool = False  # is it to be drawn in red?


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
    rows: list[tuple[str, str, str]] = field(default_factory=list)  # level tape: name, shape, bytes
    gradient: str = ""  # its norm
    found: str = ""  # a finding, in bold
    fault: bool = False  # is it to be drawn in red?
    grids: str = ""  # of values: HTML
    marked: list[int] = field(default_factory=list)  # lines of a VJP that are 0
    longest: int = 0  # characters that its lines may have, if not those of its equation

    @property
    def stacked(self) -> bool:
        """Do the cells stand one below the other, because side by side they would be too wide?"""
        return sum(length(cell.symbol + cell.shape) for cell in self.cells) > 24

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
    key: str = ""  # the path of its module, and of a frame in it also the layer's word for it
    column: str = ""  # level tape: fwd, tape, bwd
    outer: bool = False  # a module around lines of the paper, not around ops
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
    kind: str = "fwd"  # "bwd" and "saved" at level tape
    flows: bool = False  # is the gradient drawn along it?
    gradient: str = ""  # the norm of what it contributes


@dataclass(eq=False)
class Picture:
    """Everything that a drawing shows."""

    what: str
    level: str
    boxes: list[Box]
    arrows: list[Arrow]
    clusters: list[Cluster]
    captions: list[str]  # HTML lines: sizes, findings, what cells mean
    findings: list[str]  # in plain text
    equations: list[str]  # plain text, for the description of an SVG
    code: bool  # long names
    order: list[Box]  # all boxes, in the order of the computation
    rows: list[list[Box]] = field(default_factory=list)  # boxes of several columns that stand side by side
    data: dict[str, Any] = field(default_factory=dict)  # what a page says of it


def length(html: str) -> int:
    """Characters of a label without its tags."""
    return len(re.sub(r"<[^>]*>|&\w+;", lambda tag: "" if tag[0][0] == "<" else "x", html))


def in_lines(line: str, longest: int = LONGEST_LINE) -> list[str]:
    """An equation in one line; where it is longer, in several of about equal length."""
    if length(line) <= longest:
        return [line]
    words = line.split(" ")  # tags hold no spaces
    signs = ("+", "−", "/", "∘", "=", "+=")
    breaks = [i for i in range(1, len(words)) if words[i - 1] not in signs and words[i] != "="]
    halves = [(" ".join(words[:i]), " ".join(words[i:])) for i in breaks]
    # the longer half counts; a break before a sign is worth some characters
    best = min(halves, key=lambda h: max(map(length, h)) + 4 * (h[1][0] not in "+−/∘·"), default=())
    return [part for half in best for part in in_lines(half, longest)] or [line]


def side_by_side(texts: list[str], longest: float, between: str) -> list[str]:
    """Texts in lines: as many in each as fit."""
    lines: list[str] = []
    for text in texts:
        if lines and length(lines[-1] + between + text) <= longest:
            lines[-1] += between + text
        else:
            lines.append(text)
    return lines
