"""Tensor methods that put elements in order, or count equal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from microtensor import engine
from microtensor.methods.arguments import as_axis, as_integer, as_tensors
from microtensor.methods.calling import by_any_spelling

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


class ValuesIndices(NamedTuple):
    """What max(dim), min(dim), sort and topk return: elements, and where they stood along dim (int64)."""

    values: Tensor
    indices: Tensor


@by_any_spelling()
class Order:
    """sort, argsort, topk, unique, bincount of a tensor, as methods."""

    __slots__ = ()

    def sort(self: Any, dim: int = -1, descending: bool = False, stable: bool | None = True) -> ValuesIndices:
        """(values, indices) in rising or falling order along dim; NaN counts as the largest.

        Shapes: any → twice the same
        Raises: IndexError or TypeError for a dim that is no axis.
        Source: torch.sort. Differs: equal elements keep their order, whatever `stable` is.
        """
        axis = as_axis("sort", self, dim)
        x = np.atleast_1d(self.array)
        order = np.argsort(np.flip(x, axis) if descending else x, axis, kind="stable")
        if descending:  # reversed twice, so that equal elements keep their order
            order = np.flip(x.shape[axis] - 1 - order, axis)
        indices = engine.make(np.array(order.reshape(self.shape), order="C"), None, None)
        return ValuesIndices(self.gather(axis, indices), indices)

    def argsort(self: Any, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
        """The indices that sort along dim; see `sort`.

        Shapes: any → the same, int64
        Raises: IndexError or TypeError for a dim that is no axis.
        Source: torch.argsort. Differs: equal elements keep their order, whatever `stable` is.
        """
        return self.sort(dim, descending).indices

    def topk(self: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
        """(values, indices) of the k largest (or smallest) along dim, in order, whatever `sorted` is.

        Shapes: (..., N, ...) → twice (..., k, ...)
        Raises: ValueError for a k outside 0 … N; TypeError for one that is no integer; IndexError for no such
        dim.
        Source: torch.topk. Differs: equals are taken in their order.
        """
        axis, k = as_axis("topk", self, dim), as_integer("topk", "k", k)
        length = self.shape[axis] if self.ndim else 1
        if not 0 <= k <= length:
            raise ValueError(f"topk: k is {k} of the {length} along dim {dim}; choose 0 … {length}")
        if not self.ndim:
            return self.sort()
        at = (slice(None),) * axis + (slice(0, k),)
        indices = self.argsort(axis, largest)[at].contiguous()
        return ValuesIndices(self.gather(axis, indices), indices)

    def unique(
        self: Any,
        sorted: bool = True,
        return_inverse: bool = False,
        return_counts: bool = False,
        dim: Any = None,
    ) -> Any:
        """The different elements, rising; then, if asked, where each element is among them, and how often.

        Shapes: any → (N,), the shape of x, (N,)
        Raises: ValueError for a dim.
        Source: torch.unique. Differs: only of all elements (dim None), and sorted whatever `sorted` is.
        """
        if dim is not None:
            raise ValueError(f"unique: dim is {dim!r}, and there is only None here; compare slices yourself")
        found = np.unique(self.array, return_inverse=True, return_counts=True, equal_nan=False)
        values, inverse, counts = (engine.make(a, None, None) for a in found)
        parts = (values, *[inverse.reshape(self.shape)] * return_inverse, *[counts] * return_counts)
        return parts if parts[1:] else values

    def bincount(self: Any, weights: Any = None, minlength: int = 0) -> Tensor:
        """How often each of 0, 1, 2 … occurs in a vector, or the sum of the weights that stand there.

        Shapes: (N,), weights (N,) → (max(minlength, largest + 1),)
        Raises: ValueError for what is no vector of integers from 0 on, weights of another shape, or a
        minlength below 0; TypeError for one that is no integer, and weights that are no tensor.
        Source: torch.bincount.
        """
        if self.ndim != 1 or self.dtype.kind not in "iu" or (self.array < 0).any():
            least = f" from {self.array.min()} on" if self.array.size else ""
            raise ValueError(f"bincount: {self.dtype}{self.shape}{least}; give a vector of integers, 0 or "
                             f"more")  # fmt: skip
        as_tensors("bincount", **({} if weights is None else {"weights": weights}))
        if weights is not None and weights.shape != self.shape:
            raise ValueError(f"bincount: weights {weights.shape} for {self.shape}; give one for each")
        n = as_integer("bincount", "minlength", minlength, 0)
        found = np.bincount(self.array, None if weights is None else weights.array, n)
        short = weights is not None and weights.dtype == np.float32
        return engine.make(found.astype(np.float32) if short else found, None, None)
