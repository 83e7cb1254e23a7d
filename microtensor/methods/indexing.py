"""Tensor methods that pick elements by their places, and put them there: indexing, gather, scatter …"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import engine, ops
from microtensor.methods.arguments import (
    as_axis,
    as_choice,
    as_fill,
    as_index,
    as_integer,
    as_number,
    as_operand,
    as_tensors,
)
from microtensor.methods.calling import by_any_spelling
from microtensor.methods.masks import as_mask, look_for_mask
from microtensor.misfit import broadcast

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


@by_any_spelling("nonzero")
class Indexing:
    """x[…], gather, scatter, masked_select … of a tensor, as methods."""

    __slots__ = ()

    def __getitem__(self: Any, index: Any) -> Tensor:
        y: Tensor = self
        look_for_mask(self.array.shape, index := as_index(index, self.array.shape))
        for step in _steps(index):
            y = ops.getitem(y, index=step)
        return y

    def __setitem__(self: Any, index: Any, value: Any) -> None:
        look_for_mask(self.array.shape, index := as_index(index, self.array.shape))
        *views, last = _steps(index)
        y: Any = self
        for step in views:
            y = ops.getitem(y, index=step)
        y._assign("setitem", last, value)

    def gather(self: Any, dim: int, index: Tensor) -> Tensor:
        """y[…, i, …] = x[…, index[…, i, …], …] along dim; repeated indices add up in the gradient.

        Shapes: index with as many axes as x, none longer but dim → as index
        Raises: ValueError for other shapes; IndexError for an index outside 0 … N − 1, or no such dim;
        TypeError for an index that is no tensor of integers.
        Source: torch.gather.
        """
        x = self if self.ndim else self.reshape(1)
        return ops.getitem(x, index=_grid("gather", x, dim, index))

    def scatter(self: Any, dim: int, index: Tensor, src: Any = None, *, value: Any = None) -> Tensor:
        """y = x, but y[…, index[…, i, …], …] = src[…, i, …] along dim; src may be one number, value.

        Of several sources for one place the last stays.

        Shapes: index at most as long as src and, but for dim, as x → as x
        Raises: as `gather`; ValueError for a src of another dtype; TypeError for what is neither tensor nor
        number.
        Source: torch.scatter. Differs: no reduce.
        """
        if not self.ndim:
            return self.reshape(1).scatter(dim, index, src, value=value).reshape(())
        grid = _grid("scatter", self, dim, index)
        return ops.setitem(self, _source("scatter", self, index, value if src is None else src), index=grid)

    def scatter_add(self: Any, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """y = x + Σ of src[…, i, …] over all i that index sends to a place.

        Shapes: as `scatter`
        Raises: as `scatter`.
        Source: torch.scatter_add.
        """
        if not self.ndim:
            return self.reshape(1).scatter_add(dim, index, src).reshape(())
        as_tensors("scatter_add", src=src)
        grid = _grid("scatter_add", self, dim, index)
        return self + ops.put_add(_source("scatter_add", self, index, src), index=grid, shape=self.shape)

    def index_select(self: Any, dim: int, index: Tensor) -> Tensor:
        """The slices along dim that a vector of integers names; repeated ones add up in the gradient.

        Shapes: (..., N, ...), index (K,) → (..., K, ...)
        Raises: IndexError for an index outside 0 … N − 1, or no such dim; TypeError for an index that is no
        tensor of integers; ValueError for one that is no vector.
        Source: torch.index_select.
        """
        if not self.ndim:
            return self.reshape(1).index_select(dim, index).reshape(())
        return ops.getitem(self, index=_slices("index_select", self, dim, index))

    def index_fill(self: Any, dim: int, index: Tensor, value: Any) -> Tensor:
        """A copy with value in the slices along dim that a vector of integers names.

        Shapes: (..., N, ...), index (K,) → (..., N, ...)
        Raises: as `index_select`, but an index may count from the end; ValueError for more than one number;
        RuntimeError for a value with a gradient into integers.
        Source: torch.index_fill.
        """
        if not self.ndim:
            return self.reshape(1).index_fill(dim, index, value).reshape(())
        value = as_fill("index_fill", value, self.dtype)
        chosen = np.zeros(self.shape, bool)
        # each once, however often it is named
        chosen[_slices("index_fill", self, dim, index, wrap=True)] = True
        return ops.where(engine.make(chosen, None, None), value, self)

    def index_add(self: Any, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
        """A copy with alpha · source[…, i, …] added to the slice index[i] along dim; repeated ones add up.

        Shapes: (..., N, ...), index (K,), source (..., K, ...) → (..., N, ...)
        Raises: as `index_select`; ValueError for a source of another shape or dtype; TypeError for no tensor.
        Source: torch.index_add.
        """
        as_tensors("index_add", source=source)
        if not self.ndim:  # a source of more axes stays one
            return self.reshape(1).index_add(dim, index, source.unsqueeze(0), alpha=alpha).reshape(())
        at = self._slices_of("index_add", dim, index, source)
        added = ops.put_add(source, index=at, shape=self.shape)
        return self.add(added, alpha=alpha)

    def index_copy(self: Any, dim: int, index: Tensor, source: Tensor) -> Tensor:
        """A copy with source[…, i, …] as the slice index[i] along dim; of repeated ones the last stays.

        Shapes: (..., N, ...), index (K,), source (..., K, ...) → (..., N, ...)
        Raises: as `index_add`.
        Source: torch.index_copy.
        """
        as_tensors("index_copy", source=source)
        source = source if source.ndim else source.reshape(1)
        if not self.ndim:
            return self.reshape(1).index_copy(dim, index, source).reshape(())
        return ops.setitem(self, source, index=self._slices_of("index_copy", dim, index, source))

    def _slices_of(self: Any, who: str, dim: int, index: Tensor, source: Tensor) -> tuple[Any, ...]:
        """Where slices named by index lie, checked against what goes there."""
        at, axis = _slices(who, self, dim, index), as_axis(who, self, dim)
        want = (*self.shape[:axis], at[-1].size, *self.shape[axis + 1 :])
        if source.shape != want or source.dtype != self.dtype:
            raise ValueError(f"{who}: source is {source.dtype}{source.shape}; give {self.dtype}{want}")
        return at

    def narrow(self: Any, dim: int, start: int, length: int) -> Tensor:
        """A view of `length` elements along dim from start on, which may count from the end.

        Shapes: (..., N, ...) → (..., length, ...)
        Raises: IndexError for what reaches outside, or no such dim; TypeError for what is no integer.
        Source: torch.narrow.
        """
        axis = as_axis("narrow", self, dim)
        n = self.shape[axis] if self.ndim else 0
        first, length = as_integer("narrow", "start", start), as_integer("narrow", "length", length)
        first += n if first < 0 else 0
        if not (self.ndim and 0 <= first <= n and 0 <= length <= n - first):
            raise IndexError(f"narrow: start {start} and length {length} along dim {dim} of {self.shape}; "
                             f"stay within it")  # fmt: skip
        return ops.getitem(self, index=(slice(None),) * axis + (slice(first, first + length),))

    def select(self: Any, dim: int, index: int) -> Tensor:
        """The slice number index along dim, a view: x.select(1, i) is x[:, i].

        Shapes: (..., N, ...) → without the axis dim
        Raises: IndexError for an index outside −N … N − 1, or no such dim; TypeError for what is no integer.
        Source: torch.select.
        """
        axis, at = as_axis("select", self, dim), as_integer("select", "index", index)
        if not self.ndim or not -self.shape[axis] <= at < self.shape[axis]:
            raise IndexError(f"select: index {at} along dim {dim} is outside the shape {self.shape}; choose "
                             f"another")  # fmt: skip
        return ops.getitem(self, index=(slice(None),) * axis + (at,))

    def diagonal(self: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """The diagonal of the axes dim1 and dim2 as the last axis, a view; offset > 0 lies above.

        Shapes: (..., M, N) → (..., K), as many as there are on it
        Raises: ValueError for one axis twice; IndexError or TypeError for what is none.
        Source: torch.diagonal.
        """
        first, second = (as_axis("diagonal", self, d) for d in (dim1, dim2))
        if first == second:
            raise ValueError(f"diagonal: dim1 {dim1} and dim2 {dim2} are one axis of {self.shape}; name two")
        others = [a for a in range(self.ndim) if a not in (first, second)]
        turned = self.permute(*others, first, second)
        return ops.diagonal(turned, offset=as_integer("diagonal", "offset", offset))

    def diag(self: Any, diagonal: int = 0) -> Tensor:
        """The matrix with a vector on its diagonal, zeros elsewhere; of a matrix a copy of the diagonal.

        Shapes: (N,) → (N + |diagonal|, N + |diagonal|); (M, N) → (K,)
        Raises: ValueError for other shapes; TypeError for a diagonal that is no integer.
        Source: torch.diag.
        """
        if self.ndim not in (1, 2):
            raise ValueError(f"diag: shape {self.shape} is neither a vector nor a matrix; use diagonal()")
        offset = as_integer("diag", "diagonal", diagonal)
        if self.ndim == 2:
            return self.diagonal(offset).clone()
        n = len(self) + abs(offset)
        return ops.put_add(self, index=ops.places_on_diagonal((n, n), offset), shape=(n, n))

    def trace(self: Any) -> Tensor:
        """Σ of the diagonal of a matrix.

        Shapes: (M, N) → ()
        Raises: ValueError for another shape.
        Source: torch.trace.
        """
        if self.ndim != 2:
            raise ValueError(f"trace: shape {self.shape} is no matrix; use diagonal().sum(-1)")
        return self.diagonal().sum()

    def argwhere(self: Any) -> Tensor:
        """The places of all elements that are not 0, as `nonzero`.

        Shapes: any → (N, axes), int64
        Raises: TypeError, as a function, for what is no tensor.
        Source: torch.argwhere.
        """
        return self.nonzero()

    def take_along_dim(self: Any, indices: Tensor, dim: int | None = None) -> Tensor:
        """gather, with indices and x broadcast against each other off dim; both flattened if dim is None.

        Shapes: (..., N, ...), indices (..., K, ...) → (..., K, ...); with dim None (K,)
        Raises: ValueError for other shapes; IndexError for an index outside the axis; TypeError for indices
        that are no tensor of integers.
        Source: torch.take_along_dim. Differs: an index outside is an error.
        """
        as_tensors("take_along_dim", indices=indices)
        if dim is None:
            return self.reshape(-1).gather(0, indices.reshape(-1))
        axis = as_axis("take_along_dim", self, dim)
        if indices.ndim != self.ndim:
            raise ValueError(f"take_along_dim: shapes {self.shape} and {indices.shape}; give as many axes")
        off = ((*t.shape[:axis], 1, *t.shape[axis + 1 :]) for t in (self, indices))
        shape = broadcast("take_along_dim", *off)
        x, ids = (t.expand(*shape[:axis], -1, *shape[axis + 1 :]) if t.ndim else t for t in (self, indices))
        return x.gather(axis, ids.where(ids >= 0, ids + x.shape[axis]) if x.ndim else ids)

    def masked_select(self: Any, mask: Tensor) -> Tensor:
        """A vector of the elements where mask is True; both broadcast.

        Shapes: two that broadcast → (N,)
        Raises: TypeError for a mask that is not boolean; ValueError for shapes that do not broadcast.
        Source: torch.masked_select.
        """
        shape = broadcast("masked_select", self.shape, as_mask("masked_select", mask).shape)
        return ops.getitem(self.expand(shape), index=np.broadcast_to(mask.array, shape))

    def where(self: Any, condition: Tensor, other: Any) -> Tensor:
        """The tensor where condition is True, else other.

        Shapes: what broadcasts → the broadcast one
        Raises: TypeError for a condition that is not boolean, and an other that is neither tensor nor
        number; ValueError for shapes that do not broadcast.
        Source: torch.Tensor.where.
        """
        return ops.where(as_mask("where", condition), self, as_choice("where", other))

    def nonzero(self: Any, *, as_tuple: bool = False) -> Any:
        """The places of all elements that are not 0, or as_tuple one vector per axis.

        Shapes: any → (N, axes), int64; as_tuple a tuple of (N,)
        Raises: TypeError, as a function, for what is no tensor.
        Source: torch.nonzero.
        """
        if as_tuple:
            return tuple(engine.make(a.copy(), None, None) for a in np.nonzero(np.atleast_1d(self.array)))
        return engine.make(np.argwhere(self.array), None, None)


def _integers(who: str, ids: Any, length: int, wrap: bool = False) -> Any:
    """Indices that count from the start of an axis (wrap: or from its end)."""
    if ids.dtype.kind != "i":
        raise TypeError(f"{who}: index is {ids.dtype}; make it an integer tensor with .long()")
    if wrap:
        ids = np.where(ids < 0, ids + length, ids)
    outside = ids.view(f"u{ids.itemsize}") >= length  # as a number without a sign, a negative one is large
    if np.count_nonzero(outside):
        raise IndexError(f"{who}: index {ids[outside][0]} is outside 0 … {length - 1}; count from the start "
                         f"of the axis")  # fmt: skip
    return ids


def _grid(who: str, x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """Where x[…, index[…, i, …], …] lies, as NumPy indexes."""
    as_tensors(who, index=index)
    axis = as_axis(who, x, dim)
    lengths = zip(index.shape, x.shape, strict=False)
    if max(index.ndim, 1) != x.ndim or any(n > m for i, (n, m) in enumerate(lengths) if i != axis):
        raise ValueError(f"{who}: index {index.shape} for shape {x.shape}; give as many axes, none "
                         f"longer but axis {axis}")  # fmt: skip
    ids = _integers(who, index.array, x.shape[axis])
    grid = [np.arange(n).reshape(-1, *[1] * i) for i, n in enumerate(index.shape[::-1])][::-1]
    return (*grid[:axis], ids, *grid[axis + 1 :])


def _source(who: str, x: Any, index: Any, src: Any) -> Any:
    """What goes to the places of index: the corner of src that is as large, or one number."""
    if not isinstance(src, engine.Tensor):
        return as_operand(as_number(who, src), x.dtype, who)
    src, shape = src if src.ndim else src.reshape(1), index.shape or (1,)  # 0-d counts as a vector
    if src.dtype != x.dtype or src.ndim != len(shape):
        raise ValueError(f"{who}: src {src.dtype}{src.shape} for {x.dtype}{x.shape} by index {index.shape}; "
                         f"give one dtype and as many axes")  # fmt: skip
    if any(n > m for n, m in zip(shape, src.shape, strict=True)):
        raise ValueError(f"{who}: index {index.shape} is longer than src {src.shape}; give a source for each")
    corner = ops.getitem(src, index=(*(slice(0, n) for n in shape), Ellipsis))
    return corner if index.ndim else corner.reshape(())


def _slices(who: str, x: Any, dim: int, index: Any, wrap: bool = False) -> tuple[Any, ...]:
    """Where the slices of x along dim lie that a vector names."""
    as_tensors(who, index=index)
    axis = as_axis(who, x, dim)
    if index.ndim > 1:
        raise ValueError(f"{who}: index has shape {index.shape}; give a vector of integers")
    return (slice(None),) * axis + (_integers(who, np.atleast_1d(index.array), x.shape[axis], wrap),)


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
