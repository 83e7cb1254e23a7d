"""Shapes that do not fit: the rule, and which small change to one of them would make them fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, count, islice
from typing import Any, TypeAlias

import numpy as np

from microtensor.place import caller, line_of

__all__ = ["broadcast", "common", "factor", "made", "no_product", "to_fit"]

Shape: TypeAlias = tuple[int, ...]


def broadcast(who: str, *shapes: Shape) -> Shape:
    """The shape that all broadcast to.

    Raises: ValueError with the rule, and of two shapes what would make the shorter one fit.
    """
    if (shape := common(*shapes)) is not None:
        return shape
    given, cure = " and ".join(map(str, shapes)), "from the right, axes must be equal or 1"
    n = next(n for n in count(1) if common(*(shape[-n:] for shape in shapes)) is None)
    if len(shapes) == 2:
        long, short = max(shapes, key=len), min(reversed(shapes), key=len)
        cure += to_fit(long, short, "second" if short == shapes[1] else "first", grow=True)
    raise ValueError(f"{who}: shapes {given} do not broadcast, at axis -{n}; {cure}") from None


def common(*shapes: Shape) -> Shape | None:
    """The shape that all broadcast to, None where there is none."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def made(tensors: Iterable[Any]) -> str:
    """Of each by what and where, as in " ((2, 3) is of exp at train.py:7)", and of what it is a view of."""
    lines = [f"{x.shape} is of {ways}" for x in tensors if hasattr(x, "grad_fn") and (ways := _origin(x))]
    return f" ({'; '.join(dict.fromkeys(lines))})" if lines else ""


def _origin(x: Any) -> str:
    """Back to what is no view: heads were split, repeated or cut there; once a line, not that which runs now.

    What is on no tape tells of what it was made of while that lives; three lines at most.
    """
    here, ways = line_of(caller()), dict[str, str]()
    while x is not None and len(ways) < 3:
        entry = getattr(x, "grad_fn", x)
        call, module = getattr(entry or x, "called", (None, type))
        if entry:
            place, who, x = entry.place, entry.op.name, entry.inputs[0] if entry.op.view else None
        else:
            place, who, source = getattr(x, "made", (None, "", None))
            x = x.base[0] if (alive := source and source()) is None and x.base else alive
        for at, name in ((call, module.__name__), (place, who)):
            if at and (line := line_of(at)) != here and line not in ways:
                ways[line] = line_of(at, name)
    return ", of ".join(ways.values())


def to_fit(want: Shape, shape: Shape, name: str, grow: bool = False) -> str:
    """At most two ways to make a shape broadcast, as in ", as (8, 1) of the second's [:, None] would be".

    To the shape that is wanted, or where that may grow with it, to one.
    """

    def fits(new: Shape) -> bool:
        return (both := common(want, new)) == want or (grow and both is not None)

    for kind in (_with_new_axes, _cut) if 0 < len(shape) < len(want) else ():
        # each new one once
        if ways := {new: how for how, new in reversed([*kind(want, shape)]) if fits(new)}:
            first = [f"{new} of the {name}'s {how}" for new, how in ways.items()][:-3:-1]
            return f", as {' or '.join(first)} would be"
    # a mask of queries in place of keys, or parts joined along the wrong axis: its .mT would fit and be wrong
    new = (*shape[:-2], *shape[:-3:-1])
    return f", as {new} would be; make the {name} so, by .mT only if it is not causal" if fits(new) else ""


def _with_new_axes(want: Shape, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Where axes are missing in between: a mask of keys, a mean without keepdim. The rightmost first."""
    for added in islice(combinations(range(len(want)), len(want) - len(shape)), 99):
        axes = ["None" if i in added else ":" for i in range(len(want))]
        new = np.expand_dims(np.broadcast_to(0, shape), added).shape
        yield f"[{', '.join(axes[axes.index(':') : added[-1] + 1])}]", new


def _cut(want: Shape, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Positions and causal masks are made for the longest text."""
    pairs = [*zip(shape, want[-len(shape) :], strict=True)]
    if all(n >= m for n, m in pairs):
        new = tuple(n if m == 1 else m for n, m in pairs)
        last = max((i for i in range(len(new)) if new[i] != shape[i]), default=-1)
        yield f"[{', '.join(f':{n}' for n in new[: last + 1])}]", new


def no_product(a: Any, b: Any) -> ValueError:
    """What a product asks of two shapes, and which other way to transpose the second would give it."""
    K, L, lead, cure = a.shape[-1], b.shape[-2], a.shape[:-2], factor(a.shape, b.shape)
    rule = f"the last axis of the first ({K}) must equal the second last of the second ({L})"
    if K == L:
        rule = f"axes {lead} and {b.shape[:-2]} before the last two must be equal or 1, from the right"
        cure = "; look where these were split, turned or joined: by view(), transpose(), cat()" + cure
    ways = {".mT": b.mT, ".mT instead of .T": b.T.mT, ".transpose(-3, -2)": b.swapaxes(-min(b.ndim, 3), -2)}
    fitting = (how for how, c in ways.items() if c.shape[-2] == K and common(lead, c.shape[:-2]) is not None)
    cure = next((f", as {ways[how].shape} of the second's {how} would" for how in fitting), cure)
    return ValueError(f"matmul: shapes {a.shape} and {b.shape} do not fit; {rule}{cure}")


def factor(*shapes: Shape) -> str:
    """How often the fewest heads go into the most: parts joined along them, or groups repeated too often."""
    few, many = min(heads := [n for shape in shapes for n in shape[-3:-2] if n > 1] or [1]), max(heads)
    cure = f"if cat() made it, join along another dim; if of groups, repeat the {few} more or the {many} less"
    return f"; {many} is {many // few} · {few}: {cure}" if many > few and many % few == 0 else ""
