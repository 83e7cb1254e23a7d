"""einsum: a sum of products over named axes, as permutations, reshapes and one matmul for each pair."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import engine, ops

if TYPE_CHECKING:
    from microtensor.tensor import Tensor

__all__ = ["einsum"]


def einsum(equation: str, *operands: Any) -> Tensor:
    """The sum of products over the axes that the equation names and its output does not: "bij,bjk->bik".

    A letter is an axis, the same letter the same axis: length 1 is broadcast, twice in one operand is its
    diagonal. "..." stands for the axes without a letter. Without "->" the output is what "..." stands for,
    then the letters that occur once, in order. Operands meet from left to right.

    Shapes: as the equation says
    Raises: ValueError where equation and operands do not fit; TypeError for operands that are no tensors, and
    an equation that is no text.
    Source: torch.einsum. Differs: takes no lists of axis numbers.

    >>> import microtensor as mt
    >>> einsum("ij,ij->i", mt.ones(2, 3), mt.ones(2, 3))
    tensor([3., 3.])
    """
    xs = list(operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands)
    if not xs or not all(isinstance(x, engine.Tensor) for x in xs):
        raise TypeError(f"einsum: operands are {[type(x).__name__ for x in xs]}; give one tensor or more")
    if not isinstance(equation, str):
        raise TypeError(f'einsum: the equation is {equation!r}; write it as text, like "ij,jk->ik"')
    terms, arrow, output = equation.replace(" ", "").partition("->")
    if terms.count(",") != len(xs) - 1:
        raise ValueError(f"einsum: {equation!r} for {len(xs)} operands; name the axes of each, between "
                         f"commas")  # fmt: skip
    labels = [_labels(equation, term, x.ndim) for term, x in zip(terms.split(","), xs, strict=True)]
    every = list(itertools.chain.from_iterable(labels))
    dots = sorted({c for c in every if not c.isalpha()}, key=int, reverse=True)
    if arrow:
        kept = _labels(equation, output, len(output.replace("...", "")) + len(dots) * ("..." in output))
    else:
        kept = [*dots, *sorted(c for c in set(every) if c.isalpha() and every.count(c) == 1)]
    if len(set(kept)) < len(kept) or not set(kept) <= set(every):
        raise ValueError(f"einsum: {equation!r} has an output axis twice, or one that no operand has; fix it")
    lengths = _lengths(equation, labels, xs)
    y, axes = _diagonal(xs[0], labels[0], lengths)
    for i, x in enumerate(xs[1:], 1):
        later = {*kept, *itertools.chain.from_iterable(labels[i + 1 :])}
        y, axes = _contract(y, axes, *_diagonal(x, labels[i], lengths), later, lengths)
    y, axes = _summed(y, axes, kept)
    return y.permute([axes.index(c) for c in kept])


def _labels(equation: str, term: str, ndim: int) -> list[str]:
    """The name of each axis: its letter, or for the axes of "..." their number, counted from the right."""
    head, dots, tail = term.partition("...")
    letters = head + tail
    extra = ndim - len(letters)
    if not ((letters.isascii() and letters.isalpha()) or not letters) or extra < 0 or (extra and not dots):
        raise ValueError(f"einsum: {term!r} of {equation!r} does not name {ndim} axes; give each a letter, "
                         f'or "..." to the rest')  # fmt: skip
    return [*head, *map(str, reversed(range(extra))), *tail]


def _lengths(equation: str, labels: list[list[str]], xs: list[Any]) -> dict[str, int]:
    """The length of each named axis; those of length 1 are broadcast to it."""
    found: dict[str, int] = {}
    for x, axes in zip(xs, labels, strict=True):
        for n, c in zip(x.shape, axes, strict=True):
            if n != found.setdefault(c, n) and 1 not in (n, found[c]):
                raise ValueError(f"einsum: axis {c!r} of {equation!r} has lengths {found[c]} and {n}; make "
                                 f"them equal")  # fmt: skip
            found[c] = n if found[c] == 1 else found[c]
    return found


def _diagonal(x: Any, axes: list[str], lengths: dict[str, int]) -> tuple[Any, list[str]]:
    """An operand with each of its axes once, and in its full length."""
    for c in [c for c in dict.fromkeys(axes) if axes.count(c) > 1]:
        places = [i for i, other in enumerate(axes) if other == c]
        others = [i for i in range(x.ndim) if i not in places]
        if len({x.shape[i] for i in places}) > 1:
            raise ValueError(f"einsum: axis {c!r} has several lengths in one operand {x.shape}; make them "
                             f"equal")  # fmt: skip
        x = ops.permute(x, axes=(*others, *places))  # (…, n, n)
        x = ops.getitem(x, index=(Ellipsis, *[np.arange(x.shape[-1])] * len(places)))  # (…, n)
        axes = [*(axes[i] for i in others), c]
    return x.expand([lengths[c] for c in axes]), axes


def _summed(x: Any, axes: list[str], kept: Container[str]) -> tuple[Any, list[str]]:
    gone = [i for i, c in enumerate(axes) if c not in kept]
    return (x.sum(gone) if gone else x), [c for c in axes if c in kept]


def _contract(
    a: Any, a_axes: list[str], b: Any, b_axes: list[str], later: set[str], lengths: dict[str, int]
) -> tuple[Any, list[str]]:
    """Two operands as one: the product over shared axes, summed over those that nobody needs later."""
    a, a_axes = _summed(a, a_axes, later | set(b_axes))
    b, b_axes = _summed(b, b_axes, later | set(a_axes))
    batch = [c for c in a_axes if c in b_axes and c in later]
    inner = [c for c in a_axes if c in b_axes and c not in later]
    left = [c for c in a_axes if c not in b_axes]
    right = [c for c in b_axes if c not in a_axes]

    def size(names: list[str]) -> int:
        return math.prod(lengths[c] for c in names)

    lead = [lengths[c] for c in batch]
    a = a.permute([a_axes.index(c) for c in batch + left + inner]).reshape(*lead, size(left), size(inner))
    b = b.permute([b_axes.index(c) for c in batch + inner + right]).reshape(*lead, size(inner), size(right))
    y = a @ b if inner else a * b  # (batch, left, inner) (batch, inner, right) → (batch, left, right)
    axes = batch + left + right
    return y.reshape([lengths[c] for c in axes]), axes
