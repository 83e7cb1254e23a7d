"""Tensor methods that move elements: shapes, views, pieces and indexing, with PyTorch's names and order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import ops
from microtensor.methods.arguments import as_axis, as_index, as_sizes

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


class Shapes:
    """reshape, transpose, split, indexing … of a tensor, as methods."""

    __slots__ = ()

    def reshape(self: Any, *shape: Any) -> Tensor:
        """The same elements in another shape; one length may be −1. A view where memory allows."""
        return ops.reshape(self, shape=as_sizes(shape))

    def view(self: Any, *shape: Any) -> Tensor:
        """As reshape, but an error where memory does not allow a view (use contiguous() first)."""
        y = self.reshape(*shape)
        if not np.shares_memory(y.array, self.array) and self.array.size:
            raise RuntimeError(
                f"view: a tensor of shape {self.shape} and strides {self.array.strides} cannot be seen as "
                f"{as_sizes(shape)} without a copy; use reshape(), or contiguous().view()"
            )
        return y

    def flatten(self: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """The axes start_dim … end_dim joined into one."""
        if self.ndim == 0:
            return self.reshape(1)
        first, last = as_axis("flatten", self, start_dim), as_axis("flatten", self, end_dim)
        if first > last:
            raise ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}; swap them")
        joined = math.prod(self.shape[first : last + 1])
        return self.reshape(*self.shape[:first], joined, *self.shape[last + 1 :])

    def squeeze(self: Any, dim: int | None = None) -> Tensor:
        """Without the axes of length 1, or without axis dim if its length is 1."""
        drop = range(self.ndim) if dim is None else [as_axis("squeeze", self, dim)]
        return self.reshape(tuple(n for i, n in enumerate(self.shape) if n != 1 or i not in drop))

    def unsqueeze(self: Any, dim: int) -> Tensor:
        """With a new axis of length 1 at position dim."""
        if not -self.ndim - 1 <= dim <= self.ndim:
            raise IndexError(
                f"unsqueeze: dim {dim} is out of range for {self.ndim} axes; use {-self.ndim - 1} … "
                f"{self.ndim}"
            )
        at = dim % (self.ndim + 1)
        return self.reshape((*self.shape[:at], 1, *self.shape[at:]))

    def permute(self: Any, *dims: Any) -> Tensor:
        """The axes in another order."""
        axes = as_sizes(dims)
        if sorted(as_axis("permute", self, d) for d in axes) != list(range(self.ndim)):
            raise ValueError(
                f"permute: {axes} does not name each of the {self.ndim} axes of shape {self.shape} once"
            )
        return ops.permute(self, axes=axes)

    def transpose(self: Any, dim0: int, dim1: int) -> Tensor:
        """Two axes swapped."""
        a, b = as_axis("transpose", self, dim0), as_axis("transpose", self, dim1)
        axes = list(range(self.ndim))
        if axes:  # a 0-d tensor has none to swap
            axes[a], axes[b] = b, a
        return ops.permute(self, axes=tuple(axes))

    swapaxes = transpose

    @property
    def T(self: Any) -> Tensor:
        """All axes in reverse order."""
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self: Any) -> Tensor:
        """The last two axes swapped."""
        return self.transpose(-2, -1)

    def t(self: Any) -> Tensor:
        """A matrix, transposed."""
        if self.ndim > 2:
            raise RuntimeError(
                f"t: a tensor of shape {self.shape} is no matrix; use .mT for its last two axes"
            )
        return self.T

    def expand(self: Any, *sizes: Any) -> Tensor:
        """Axes of length 1 (and new leading ones) repeated without a copy; −1 keeps a length."""
        want = as_sizes(sizes)
        if len(want) < self.ndim:
            raise ValueError(
                f"expand: {want} has fewer axes than {self.shape}; name every axis, -1 keeps its length"
            )
        old = (1,) * (len(want) - self.ndim) + self.shape
        return ops.expand(self, shape=tuple(o if w == -1 else w for w, o in zip(want, old, strict=True)))

    def broadcast_to(self: Any, shape: Sequence[int]) -> Tensor:
        """Broadcast to a shape, without a copy."""
        return self.expand(*shape)

    def flip(self: Any, *dims: Any) -> Tensor:
        """Backwards along the axes dims."""
        return ops.flip(self, axes=tuple(as_axis("flip", self, d) for d in as_sizes(dims)))

    def split(self: Any, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Views of consecutive pieces along dim: of split_size (the last may be shorter) or of the sizes."""
        axis = as_axis("split", self, dim)
        length = self.shape[axis]
        if isinstance(split_size, int):
            if split_size < 1:
                raise ValueError(
                    f"split: split_size {split_size} is not positive; give the length of a piece"
                )
            ends = [min(i + split_size, length) for i in range(0, length, split_size)] or [0]
        else:
            ends = np.cumsum(split_size).tolist()
            if not ends or ends[-1] != length:
                raise ValueError(
                    f"split: sizes {list(split_size)} do not add up to {length}, the length of axis {axis}"
                )
        lead = (slice(None),) * axis
        starts = [0, *ends[:-1]]
        return tuple(ops.getitem(self, index=(*lead, slice(a, b))) for a, b in zip(starts, ends, strict=True))

    def chunk(self: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """At most `chunks` views of equal length (the last may be shorter) along dim."""
        if chunks < 1:
            raise ValueError(f"chunk: {chunks} chunks; ask for at least one")
        return self.split(max(1, -(-self.shape[dim] // chunks)), dim)

    def unbind(self: Any, dim: int = 0) -> tuple[Tensor, ...]:
        """Every slice along dim."""
        lead = (slice(None),) * as_axis("unbind", self, dim)
        return tuple(ops.getitem(self, index=(*lead, i)) for i in range(self.shape[dim]))

    # --- indexing and iteration -----------------------------------------------------------------------------

    def __getitem__(self: Any, index: Any) -> Tensor:
        y: Tensor = self
        for step in _steps(as_index(index)):
            y = ops.getitem(y, index=step)
        return y

    def __setitem__(self: Any, index: Any, value: Any) -> None:
        *views, last = _steps(as_index(index))
        y: Any = self
        for step in views:
            y = ops.getitem(y, index=step)
        y._assign("setitem", last, value)

    def gather(self: Any, dim: int, index: Tensor) -> Tensor:
        """y[…, i, …] = x[…, index[…, i, …], …] along dim; repeated indices add up in the gradient."""
        axis, ids = as_axis("gather", self, dim), index.array
        if ids.dtype.kind not in "iu":
            raise TypeError(f"gather: index is {ids.dtype}; make it an integer tensor with .long()")
        if ids.size and ids.min() < 0:
            raise IndexError(f"gather: index {ids.min()} is negative; count from the start")
        grid = list(np.ix_(*(np.arange(n) for n in ids.shape)))
        grid[axis] = ids
        return ops.getitem(self, index=tuple(grid))


def _steps(index: Any) -> list[Any]:
    """An index as NumPy reads it; or as two, where PyTorch reads it otherwise: a view, then arrays.

    PyTorch takes integers and None first, and leaves the other axes where they are. NumPy would count
    integers among the arrays, and move the axis that they make to the front: x[0, :, ids].
    """
    parts = index if isinstance(index, tuple) else (index,)
    if ops.is_basic(index) or all(isinstance(p, np.ndarray | slice) or p is Ellipsis for p in parts):
        return [index]
    view: list[Any] = []
    rest: list[Any] = []
    for part in parts:
        if isinstance(part, np.ndarray):  # a boolean array stands for as many axes as it has
            view += [slice(None)] * (part.ndim if part.dtype == np.bool_ else 1)
            rest.append(part)
        else:
            view.append(part)
            if not isinstance(part, int):
                rest.append(Ellipsis if part is Ellipsis else slice(None))
    return [tuple(view), tuple(rest)]
