"""Shapes that do not fit: the rule, and which small change to one of them would make them fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

__all__ = ["broadcast", "common", "made", "no_product", "to_fit"]

Shape: TypeAlias = tuple[int, ...]


def broadcast(who: str, *shapes: Shape) -> Shape:
    """The shape that all broadcast to.

    Raises: ValueError with the rule, and of two shapes what would make the shorter one fit.
    """
    if (shape := common(*shapes)) is not None:
        return shape
    given, cure = " and ".join(map(str, shapes)), ""
    if len(shapes) == 2:
        second = len(shapes[0]) >= len(shapes[1])
        cure = to_fit(*shapes, "second") if second else to_fit(*shapes[::-1], "first")
    raise ValueError(f"{who}: shapes {given} do not broadcast; from the right, axes must be equal or 1{cure}")


def common(*shapes: Shape) -> Shape | None:
    """The shape that all broadcast to, None where there is none."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def made(entries: Iterable[Any]) -> str:
    """Of each the op and line, as in " ((2, 3) is of exp at train.py:7)", and of what it is a view of.

    What no op recorded is left out.
    """
    lines = [f"{e.shape} is of {_origin(e)}" for e in entries if hasattr(e, "op")]
    return f" ({'; '.join(dict.fromkeys(lines))})" if lines else ""


def _origin(entry: Any) -> str:
    """Back to what is no view: heads were split, repeated or cut there; once a line."""
    ops = {entry.line: entry.op.name}
    while entry.op.view and hasattr(entry.inputs[0], "op"):
        entry = entry.inputs[0]
        ops.setdefault(entry.line, entry.op.name)
    return ", of ".join(f"{name} at {line}" for line, name in ops.items())


def to_fit(want: Shape, shape: Shape, name: str) -> str:
    """At most two ways to make a shape broadcast, as in ", as (8, 1) of the second's [:, None] would be"."""
    for kind in (_with_new_axes, _cut, _turned):
        ways: dict[Shape, str] = {}
        for how, new in kind(want, shape):
            if common(want, new) is not None:
                ways.setdefault(new, f"{new} of the {name}'s {how}")
        if ways:
            return f", as {' or '.join([*ways.values()][:2])} would be"
    return ""


def _with_new_axes(want: Shape, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Where axes are missing in between: a mask of keys, a mean without keepdim. The rightmost first."""
    few, many = len(shape), len(want)
    for kept in sorted(combinations(range(many), few), reverse=True)[:99] if 0 < few < many else ():
        axes = [":" if i in kept else "None" for i in range(many)]
        last, sizes = many - axes[::-1].index("None"), iter(shape)
        new = tuple(next(sizes) if i in kept else 1 for i in range(many))
        yield f"[{', '.join(axes[kept[0] : last])}]", new


def _cut(want: Shape, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Positions and causal masks are made for the longest text."""
    below = want[-len(shape) :]
    if 0 < len(shape) < len(want) and all(n >= m for n, m in zip(shape, below, strict=True)):
        new = tuple(n if m == 1 else m for n, m in zip(shape, below, strict=True))
        last = max(i for i in range(len(new)) if new[i] != shape[i])
        yield f"[{', '.join(f':{n}' for n in new[: last + 1])}]", new


def _turned(want: Shape, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """A mask of queries in place of keys; turned here, it would take what it was combined with along."""
    if len(shape) >= 2:
        yield ".mT, where it is made,", (*shape[:-2], shape[-1], shape[-2])


def no_product(a: Any, b: Any) -> ValueError:
    """What a product asks of two shapes, and which other way to transpose the second would give it."""
    K, L, cure = a.shape[-1], b.shape[-2], ""
    rule = f"the last axis of the first ({K}) must equal the second last of the second ({L})"
    if K == L:
        leading = f"{a.shape[:-2]} and {b.shape[:-2]}"
        rule = f"axes {leading} before the last two must be equal or 1, from the right"
        cure = "; look where these were split, turned or joined: by view(), transpose(), cat()"
    ways = {".mT": b.mT, ".mT instead of .T": b.T.mT, ".transpose(-3, -2)": b.swapaxes(-min(b.ndim, 3), -2)}
    for how, c in reversed(ways.items()):
        leads = a.shape[-3::-1][: c.ndim - 2] == c.shape[-3::-1][: a.ndim - 2]
        if leads and c.shape[-2] == K:
            cure = f", as {c.shape} of the second's {how} would"
    return ValueError(f"matmul: shapes {a.shape} and {b.shape} do not fit; {rule}{cure}")
