"""The gradient of a tensor that was cut into pieces: put together once, when all of them are here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["Pieces"]


class Pieces(list[tuple[Any, Any]]):
    """(index, gradient) of pieces of one tensor, joined when all are here: not by n arrays of zeros."""

    def __iadd__(self, g: Any) -> Pieces:  # type: ignore[override,misc]
        self.append((Ellipsis, g))
        return self

    def joined(self, like: Any) -> tuple[Any, bool]:
        """Their sum, each in its place, of the shape and dtype of `like`; and: does nobody else hold it?"""
        tiled = _tile([index for index, _ in self], like.shape)
        if tiled and (whole := self._whole(like.shape)) is not None:
            return whole, False
        y = (np.empty if tiled else np.zeros)(like.shape, like.dtype)
        for n, (index, g) in enumerate(self):
            if tiled or n == 0:
                y[index] = g
            else:
                y[index] += g
        return y, True

    def _whole(self, shape: tuple[int, ...]) -> Any:
        """The array that they are the pieces of, each in its place there already: attention makes it so."""
        base = self[0][1].base
        if type(base) is not np.ndarray or base.size != math.prod(shape) or not base.flags.carray:
            return None
        if base.dtype != self[0][1].dtype:
            return None
        y = base.reshape(shape)
        for index, g in self:
            place = np.asarray(y[index])  # of a number: elsewhere
            if g.base is not base or place.strides != g.strides or place.ctypes.data != g.ctypes.data:
                return None
        return y


def _tile(indices: list[Any], shape: tuple[int, ...]) -> bool:
    """Are they slices or integers along one axis that lie end to end, as split and unbind make them?"""
    spans = []
    for index in indices:
        *lead, last = (index if isinstance(index, tuple) else (index,)) or (None,)  # x[()] names no axis
        if not isinstance(last, slice | int) or any(part != slice(None) for part in lead):
            return False
        n = shape[len(lead)]
        first, end, step = last.indices(n) if isinstance(last, slice) else (last % n, last % n + 1, 1)
        if step != 1:
            return False
        spans.append((len(lead), first, max(first, end)))
    axes, firsts, ends = zip(*sorted(spans), strict=True)
    return len({*axes}) == 1 and [*firsts, shape[axes[0]]] == [0, *ends]
