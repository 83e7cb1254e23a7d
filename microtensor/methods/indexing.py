"""Tensor methods that pick elements by their places, and put them there: indexing, gather, scatter …"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import engine, ops
from microtensor.methods.arguments import as_axis, as_index, as_mask, as_number, as_operand

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


class Indexing:
    """x[…], gather, scatter, masked_select … of a tensor, as methods."""

    __slots__ = ()

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
        x = self if self.ndim else self.reshape(1)
        return ops.getitem(x, index=_grid("gather", x, dim, index))

    def scatter(self: Any, dim: int, index: Tensor, src: Any = None, *, value: Any = None) -> Tensor:
        """y = x, but y[…, index[…, i, …], …] = src[…, i, …] along dim; src may be one number, value.

        Of several sources for one place the last stays. Shapes: index at most as long as src and, but for
        dim, as x.
        """
        if not self.ndim:
            return self.reshape(1).scatter(dim, index, src, value=value).reshape(())
        grid = _grid("scatter", self, dim, index)
        return ops.setitem(self, _source("scatter", self, index, value if src is None else src), index=grid)

    def scatter_add(self: Any, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """y = x + Σ of src[…, i, …] over all i that index sends to a place; shapes as `scatter`."""
        if not self.ndim:
            return self.reshape(1).scatter_add(dim, index, src).reshape(())
        grid = _grid("scatter_add", self, dim, index)
        return self + ops.put_add(_source("scatter_add", self, index, src), index=grid, shape=self.shape)

    def index_select(self: Any, dim: int, index: Tensor) -> Tensor:
        """The slices along dim that a vector of integers names; repeated ones add up in the gradient."""
        if not self.ndim:
            return self.reshape(1).index_select(dim, index).reshape(())
        return ops.getitem(self, index=_slices("index_select", self, dim, index))

    def index_fill(self: Any, dim: int, index: Tensor, value: Any) -> Tensor:
        """A copy with value in the slices along dim that a vector of integers names."""
        if not self.ndim:
            return self.reshape(1).index_fill(dim, index, value).reshape(())
        filling = as_operand(as_number("index_fill", value), self.dtype)
        return ops.setitem(self, filling, index=_slices("index_fill", self, dim, index))

    def take_along_dim(self: Any, indices: Tensor, dim: int | None = None) -> Tensor:
        """gather, with indices and x broadcast against each other off dim; both flattened if dim is None."""
        if dim is None:
            return self.reshape(-1).gather(0, indices.reshape(-1))
        axis = as_axis("take_along_dim", self, dim)
        if indices.ndim != self.ndim:
            raise ValueError(f"take_along_dim: shapes {self.shape} and {indices.shape}; give as many axes")
        shape = np.broadcast_shapes(*((*t.shape[:axis], 1, *t.shape[axis + 1 :]) for t in (self, indices)))
        x, ids = (t.expand(*shape[:axis], -1, *shape[axis + 1 :]) if t.ndim else t for t in (self, indices))
        return x.gather(axis, ids)

    def masked_select(self: Any, mask: Tensor) -> Tensor:
        """A vector of the elements where mask is True; both broadcast."""
        shape = np.broadcast_shapes(self.shape, as_mask("masked_select", mask).shape)
        return ops.getitem(self.expand(shape), index=np.broadcast_to(mask.array, shape))

    def nonzero(self: Any, *, as_tuple: bool = False) -> Any:
        """The places of all elements that are not 0: (N, axes) int64, or as_tuple one vector per axis."""
        if as_tuple:
            return tuple(engine.make(a, None, None) for a in np.nonzero(np.atleast_1d(self.array)))
        return engine.make(np.argwhere(self.array), None, None)


def _integers(who: str, ids: Any, length: int) -> Any:
    """Indices that count from the start of an axis."""
    if ids.dtype.kind not in "iu":
        raise TypeError(f"{who}: index is {ids.dtype}; make it an integer tensor with .long()")
    if ids.size and not (ids.min() >= 0 and ids.max() < length):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise IndexError(
            f"{who}: index {wrong} is outside 0 … {length - 1}; count from the start of the axis"
        )
    return ids


def _grid(who: str, x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """Where x[…, index[…, i, …], …] lies, as NumPy indexes."""
    axis = as_axis(who, x, dim)
    lengths = zip(index.shape, x.shape, strict=False)
    if max(index.ndim, 1) != x.ndim or any(n > m for i, (n, m) in enumerate(lengths) if i != axis):
        raise ValueError(f"{who}: index {index.shape} for shape {x.shape}; give as many axes, none "
                         f"longer but axis {axis}")  # fmt: skip
    grid: list[Any] = list(np.ix_(*(np.arange(n) for n in index.shape))) or [None]
    grid[axis] = _integers(who, index.array, x.shape[axis])
    return tuple(grid)


def _source(who: str, x: Any, index: Any, src: Any) -> Any:
    """What goes to the places of index: the corner of src that is as large, or one number."""
    if not isinstance(src, engine.Tensor):
        return as_operand(as_number(who, src), x.dtype)
    if src.dtype != x.dtype or src.ndim != index.ndim:
        raise ValueError(f"{who}: src {src.dtype}{src.shape} for {x.dtype}{x.shape} by index {index.shape}; "
                         f"give one dtype and as many axes")  # fmt: skip
    if any(n > m for n, m in zip(index.shape, src.shape, strict=True)):
        raise ValueError(f"{who}: index {index.shape} is longer than src {src.shape}; give a source for each")
    return ops.getitem(src, index=(*(slice(0, n) for n in index.shape), Ellipsis))


def _slices(who: str, x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """Where the slices of x along dim lie that a vector names."""
    axis = as_axis(who, x, dim)
    if index.ndim > 1:
        raise ValueError(f"{who}: index has shape {index.shape}; give a vector of integers")
    return (slice(None),) * axis + (_integers(who, np.atleast_1d(index.array), x.shape[axis]),)


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
