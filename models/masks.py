"""Who may attend to whom: boolean masks, True = may attend, and what two, three and four axes of one mean.

Whoever takes a mask takes it through `four_axes`, so that it means the same everywhere, or is refused.
"""

from __future__ import annotations

import functools
import math
import operator
import unicodedata
from collections.abc import Iterable, Sequence
from numbers import Integral

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import Tensor

__all__ = [
    *("causal_mask", "check_fits", "check_ids", "combine_masks", "explain_mask", "four_axes"),
    "padding_mask",
]


def causal_mask(T: int, past: int = 0) -> Tensor:
    """(T, past + T), True at (t, s) where s ≤ past + t: each position sees itself and what came before.

    past: positions that were read before these T, as with a key/value cache. (Then write `[None]` behind it:
    `four_axes` knows the square one only, for a batch of T items.)

    Shapes: → (T, past + T)
    Raises: ValueError for a T or past that is negative or no whole number.
    Source: the paper, §3.2.3 (masked self-attention in the decoder); the lecture, decoder layer.
    """
    if not all(isinstance(n, Integral) and n >= 0 for n in (T, past)):
        raise ValueError(f"causal_mask: T is {T}, past {past}; count positions, 0 or more of each")
    return mt.ones(T, past + T, dtype=mt.bool).tril(past)


def check_ids(who: str, **given: Tensor | None) -> None:
    """Token ids are a tensor (B, T), also those of one text; what is said of each (or None) has their shape.

    Shapes: all (B, T)
    Raises: TypeError for what is no tensor, ValueError for another shape, or several.
    Source: ours. As many targets in another shape would be read in another order, without a word.
    """
    shapes = {}
    for name, ids in given.items():
        if ids is None:
            continue
        if not isinstance(ids, Tensor):
            raise TypeError(f"{who}: {name} is {type(ids).__name__}; give a tensor (B, T)")
        if ids.ndim != 2:
            raise ValueError(f"{who}: {name} has shape {ids.shape}; make it (B, T), B = 1 for one text")
        shapes[name] = ids.shape
    if len({*shapes.values()}) > 1:
        told = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{who}: {told} differ; give one for each token")


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """ids (B, S) → (B, 1, 1, S), True where a token is no padding: broadcasts over heads and queries.

    Shapes: ids (B, S) → (B, 1, 1, S)
    Raises: ValueError for ids of another shape, TypeError for ids that are no tensor of integers.
    Source: the lecture, padding; the paper's batches hold sentences of different lengths.
    """
    check_ids("padding_mask", ids=ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(
            f"padding_mask: ids are {ids.dtype}; give token ids, which are integers. What is a mask already "
            f"needs four axes only: mask[:, None, None, :]"
        )
    return (ids != pad_id).reshape(ids.shape[0], 1, 1, ids.shape[1])


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """Who may attend by all of the boolean masks; None stands for no restriction.

    Axes mean what they mean to attention, also side by side: (T, S), (B, T, S) and (B, 1, 1, S) make one of
    four axes. Masks of one and two axes make one of at most two. Two axes are (B, S) only where the others
    tell that there are B items and not B queries; else they are (T, S).

    Shapes: (S,), (B, S), (T, S), (B, T, S) or (B, H, T, S) each → what they broadcast to
    Raises: TypeError for a mask that is not boolean; ValueError for shapes that do not fit together, and for
    two axes that could be (B, S) as well as (T, S).
    Source: ours.
    """
    present = [m for m in masks if m is not None]
    for m in present:
        if not isinstance(m, Tensor) or m.dtype != mt.bool:
            what = m.dtype if isinstance(m, Tensor) else type(m).__name__
            raise TypeError(
                f"combine_masks: a mask is {what}; make it boolean: True = may attend, so mask != 0 if its "
                f"zeros forbid, mask == 0 if they allow, mask > -math.inf if it is added to the scores"
            )
    if not present:
        return None
    if max(m.ndim for m in present) > 2:
        want = _common_shape(present)
        present = [four_axes("combine_masks", m, want) for m in present]
    try:
        return functools.reduce(operator.and_, present)
    except ValueError:
        shapes = ", ".join(str(tuple(m.shape)) for m in present)
        raise ValueError(
            f"combine_masks: masks of the shapes {shapes} do not broadcast; a mask of keys (B, S) that meets "
            f"one of (T, S) is mask[:, None, None, :]"
        ) from None


def _common_shape(masks: Sequence[Tensor]) -> tuple[int, int, int, int]:
    """(B, H, T, S) as the masks of three and four axes tell it; those of two tell T, or B if T is known."""
    full = [m.shape if m.ndim > 3 else (m.shape[0], 1, *m.shape[1:]) for m in masks if m.ndim > 2]
    B, H, T = (_longest(shape[axis] for shape in full) for axis in range(3))
    first = [m.shape[0] for m in masks if m.ndim == 2]
    if T == 1:
        T = _longest([n for n in first if n != B] or first)
    elif B == 1:
        B = _longest(n for n in first if n != T)
    return B, H, T, _longest(m.shape[-1] for m in masks if m.ndim)


def _longest(sizes: Iterable[int]) -> int:
    """What sizes broadcast to, if they do: the one that is not 1 (0 is one, too)."""
    return next((n for n in sizes if n != 1), 1)


def four_axes(who: str, mask: Tensor, want: tuple[int, int, int, int]) -> Tensor:
    """The mask of one to four axes as four that broadcast to want = (B, H, T, S), or an error of `who`.

    One axis is (S,), three are (B, T, S), four (B, H, T, S). Two are (T, S), or (B, S) where that does not
    fit. Where B = T both would: then the causal mask is (T, S), a mask whose rows are all equal is either,
    and any other is refused, because a batch of another size would decide what it means.
    """
    F.check_mask(who, mask)
    *_, T, S = want
    shape, last = tuple(mask.shape), tuple(mask.shape[-1:])
    if len(shape) > 2:
        readings = [shape if len(shape) > 3 else (shape[0], 1, *shape[1:])]
    else:
        readings = [(1, 1, *shape), (shape[0], 1, 1, *last)] if len(shape) == 2 else [(1, 1, 1, *last)]
    fitting = [r for r in readings if len(r) == 4 and all(n in (1, w) for n, w in zip(r, want, strict=True))]
    if not fitting:
        raise ValueError(
            f"{who}: a mask of shape {shape} does not broadcast to (B, H, T, S) = {want}: there are {T} "
            f"queries and {S} keys; give (S,), (B, S), (T, S), (B, T, S) or (B, H, T, S), where 1 may stand "
            f"for any of them: a mask of keys (B, S) is mask[:, None, None, :]"
        )
    if len(fitting) == 2 and not _same_either_way(mask):
        raise ValueError(
            f"{who}: a mask of shape {shape} is (T, S) as well as (B, S) for (B, H, T, S) = {want}; "
            f"say which: mask[None] for queries and keys, mask[:, None] for the keys of each batch item"
        )
    return mask.reshape(fitting[0])


def check_fits(who: str, mask: Tensor, scores: tuple[int, ...]) -> None:
    """A mask for scores (..., T, S) of any axes broadcasts to them, and enlarges none."""
    F.check_mask(who, mask)
    aligned = zip(reversed(mask.shape), reversed(scores), strict=False)
    if mask.ndim > len(scores) or any(n not in (1, s) for n, s in aligned):
        raise ValueError(
            f"{who}: a mask of shape {tuple(mask.shape)} does not broadcast to the scores (..., T, S) = "
            f"{tuple(scores)}; from the right, make its axes equal to theirs or 1"
        )


def _same_either_way(mask: Tensor) -> bool:
    """Is a mask of two axes the same as (T, S) and (B, S), or the causal mask, which is always (T, S)?"""
    if bool((mask == mask[:1]).all()):
        return True
    T, S = mask.shape
    return T == S and bool((_allowed(mask) == causal_mask(T)).all())


def _allowed(mask: Tensor) -> Tensor:
    return mask if mask.dtype == mt.bool else mask > -math.inf


# --- a mask in words ----------------------------------------------------------------------------------------


def explain_mask(
    mask: Tensor,
    tokens: Sequence[str] | Sequence[Sequence[str]],
    queries: Sequence[str] | Sequence[Sequence[str]] | None = None,
) -> str:
    """The mask as text: a row for each query, ■ under each key that it may attend to, and who sees nothing.

    tokens: those of the keys, in one list for all of the batch, or a list for each item; queries: those of
    the queries where they are others, as in attention to an encoder. A batch or heads that differ stand below
    each other. A query that may attend to nothing gets zeros, and its gradient is zero.

    Shapes: mask as in `MultiHeadAttention`, tokens (S,) or (B, S), queries (T,) or (B, T)
    Raises: ValueError for a mask or queries that do not fit the tokens; TypeError for a mask of integers.
    Source: ours.

    >>> print(explain_mask(causal_mask(3), ["I", "am", "here"]))
          I  am  here
    I     ■  ·   ·
    am    ■  ■   ·
    here  ■  ■   ■
    >>> print(explain_mask(padding_mask(mt.tensor([[7, 8, 0], [0, 0, 0]]), 0), ["a", "b", "<pad>"], ["x"]))
    item 0:
       a  b  <pad>
    x  ■  ■  ·
    item 1:
       a  b  <pad>
    x  ·  ·  ·
    fully masked (zeros out, zero gradient): query 0 'x'
    """
    F.check_mask("explain_mask", mask)
    keys = _lists(tokens)
    asking = keys if queries is None else _lists(queries)
    T, S = len(asking[0]), len(keys[0])
    n = mask.shape[0] if mask.ndim > 1 and (mask.ndim > 2 or mask.shape[0] != T) else 1
    B = _longest((len(keys), len(asking), n))
    H = mask.shape[1] if mask.ndim == 4 else 1
    if {len(row) for row in keys} != {S} or {len(row) for row in asking} != {T}:
        raise ValueError(
            "explain_mask: the lists of tokens differ in length; fill them up with your padding token"
        )
    if not {len(keys), len(asking), n} <= {1, B}:
        raise ValueError(
            f"explain_mask: {len(keys)} lists of tokens, {len(asking)} of queries, a mask of {n} items; give "
            f"one list for each item, or one for all"
        )
    allowed = _allowed(four_axes("explain_mask", mask, (B, H, T, S)))
    lines: list[str] = []
    for b in range(max(allowed.shape[0], len(keys), len(asking))):
        for h in range(allowed.shape[1]):
            title = [f"item {b}"] * (B > 1) + [f"head {h}"] * (H > 1)
            lines += [", ".join(title) + ":"] * bool(title)
            grid = allowed[b % allowed.shape[0], h].expand(T, S).tolist()
            lines += _grid(grid, keys[b % len(keys)], asking[b % len(asking)])
    return "\n".join(lines)


def _lists(tokens: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """One list of tokens for each item of the batch, or one for all; each token as it can be shown."""
    if all(isinstance(token, str) for token in tokens):
        return [[_shown(str(token)) for token in tokens]]
    if not all(isinstance(row, Iterable) and all(isinstance(t, str) for t in row) for row in tokens):
        raise TypeError(
            f"explain_mask: tokens are {tokens!r:.60}; give texts, or a list of them for each item"
        )
    return [[_shown(token) for token in row] for row in tokens]


def _shown(token: str) -> str:
    """A token on one line: no line break may tear the table."""
    return "␣" if token == " " else token if token.isprintable() and token else repr(token)[1:-1] or "ε"


def _width(text: str) -> int:
    """Columns of a terminal: Chinese characters take two, combining accents none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _grid(allowed: list[list[bool]], keys: list[str], queries: list[str]) -> list[str]:
    margin = max(map(_width, queries), default=0)
    cells = [("", keys)]
    cells += [(q, ["■" if seen else "·" for seen in row]) for q, row in zip(queries, allowed, strict=True)]
    lines = []
    for label, row in cells:
        columns = [text + " " * (_width(key) - _width(text)) for text, key in zip(row, keys, strict=True)]
        lines.append("  ".join([label + " " * (margin - _width(label)), *columns]).rstrip())
    blind = [f"query {t} {queries[t]!r}" for t, row in enumerate(allowed) if not any(row)]
    return lines + ([f"fully masked (zeros out, zero gradient): {', '.join(blind)}"] if blind else [])
