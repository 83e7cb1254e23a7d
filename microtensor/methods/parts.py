"""Tensor methods that cut a tensor into pieces, or put copies and pieces of it elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import dtypes, engine, ops
from microtensor.methods.arguments import as_axes, as_axis_of, as_integer, as_sizes, is_int
from microtensor.methods.calling import by_any_spelling

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


@by_any_spelling("tile repeat flip")
class Parts:
    """split, chunk, repeat, roll, tril … of a tensor, as methods."""

    __slots__ = ()

    def repeat(self: Any, *repeats: Any) -> Tensor:
        """Copies side by side, repeats[i] along axis i; more repeats than axes add axes in front.

        Shapes: (..., N) → (..., n · N), each axis by its number
        Raises: ValueError for fewer numbers than axes or one below 0; TypeError for what is no integer.
        Source: torch.Tensor.repeat.
        """
        times = as_sizes("repeat", repeats)
        if len(times) < self.ndim or any(n < 0 for n in times):
            raise ValueError(f"repeat: {times} for shape {self.shape}; give a number, 0 or more, for each "
                             f"axis")  # fmt: skip
        shape = (1,) * (len(times) - self.ndim) + self.shape
        x = self.reshape([n for length in shape for n in (1, length)])  # (1, a, 1, b, …)
        x = x.expand([n for pair in zip(times, shape, strict=True) for n in pair]).clone()
        return x.reshape([n * length for n, length in zip(times, shape, strict=True)])

    def tile(self: Any, *dims: Any) -> Tensor:
        """repeat, with ones put in front of dims where it is shorter than the shape.

        Shapes: (..., N) → (..., n · N), each axis by its number
        Raises: ValueError for a number below 0; TypeError for what is no integer.
        Source: torch.tile.
        """
        times = as_sizes("tile", dims)
        return self.repeat((1,) * (self.ndim - len(times)) + times)

    def repeat_interleave(self: Any, repeats: Any, dim: int | None = None) -> Tensor:
        """Each slice along dim (of the flattened tensor if None) repeated: a number, or one for each.

        Shapes: (..., N, ...), repeats () or (N,) → (..., Σ repeats, ...)
        Raises: TypeError for repeats that are no integers; ValueError for one below 0 or another length;
        IndexError for no such dim.
        Source: torch.repeat_interleave.
        """
        x = self if dim is not None else self.reshape(-1)
        axis = 0 if dim is None else as_axis_of("repeat_interleave", self, dim)
        times = dtypes.as_array(getattr(repeats, "array", repeats), who="repeat_interleave")
        if times.dtype.kind not in "iu":
            raise TypeError(f"repeat_interleave: repeats are {times.dtype}; make them integers")
        if times.ndim > 1 or times.size not in (1, x.shape[axis]) or (times < 0).any():
            raise ValueError(f"repeat_interleave: repeats {times.tolist()} along an axis of {x.shape[axis]}; "
                             f"give one number, 0 or more, or one for each")  # fmt: skip
        return ops.getitem(x, index=(slice(None),) * axis + (np.repeat(np.arange(x.shape[axis]), times),))

    def roll(self: Any, shifts: Any, dims: Any = None) -> Tensor:
        """Moved by shifts along the axes dims, what falls off coming back in front; without dims: flattened.

        Shapes: any → the same
        Raises: ValueError for shifts that are not one whole number for each axis; IndexError or TypeError
        for what is no axis.
        Source: torch.roll.
        """
        if dims is None or (isinstance(dims, tuple | list) and not dims):
            return self.reshape(-1).roll(shifts, 0).reshape(self.shape)
        steps, axes = (tuple(v) if isinstance(v, tuple | list) else (v,) for v in (shifts, dims))
        if len(steps) != len(axes) or not steps or not all(map(is_int, steps)):
            raise ValueError(f"roll: shifts {shifts} and dims {dims}; give a whole number for each axis")
        y: Tensor = self
        for step, axis in zip(steps, axes, strict=True):
            n = y.shape[as_axis_of("roll", y, axis)]
            y = ops.cat(*reversed(y.split([n - step % n, step % n], axis)), axis=axis) if n else y.clone()
        return y

    def tril(self: Any, diagonal: int = 0) -> Tensor:
        """The lower triangle of the last two axes, zeros above the diagonal.

        Shapes: (..., M, N) → the same
        Raises: ValueError below two axes; TypeError for a diagonal that is no integer.
        Source: torch.tril.
        """
        return self._triangle("tril", diagonal, False)

    def triu(self: Any, diagonal: int = 0) -> Tensor:
        """The upper triangle of the last two axes, zeros below the diagonal.

        Shapes: (..., M, N) → the same
        Raises: ValueError below two axes; TypeError for a diagonal that is no integer.
        Source: torch.triu.
        """
        return self._triangle("triu", diagonal, True)

    def _triangle(self: Any, who: str, diagonal: int, upper: bool) -> Tensor:
        if self.ndim < 2:
            raise ValueError(f"{who}: a tensor of shape {self.shape} is no matrix; give at least 2 axes")
        rows, columns = self.shape[-2:]
        keep = np.tri(rows, columns, as_integer(who, "diagonal", diagonal) - upper, dtype=bool) != upper
        nothing = False if self.dtype == np.bool_ else 0
        return ops.where(engine.make(keep, None, None), self, nothing).contiguous()

    def flip(self: Any, *dims: Any) -> Tensor:
        """Backwards along the axes dims, copied.

        Shapes: any → the same
        Raises: IndexError or TypeError for dims that are no axes; ValueError for one named twice.
        Source: torch.flip.
        """
        return ops.flip(self, axes=as_axes("flip", self, as_sizes("flip", dims)) or ())

    def split(self: Any, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Views of consecutive pieces along dim: of split_size (the last may be shorter) or of the sizes.

        Shapes: (..., N, ...) → a tuple of (..., n, ...)
        Raises: ValueError for a split_size below 1 or sizes that do not add up; TypeError for sizes that are
        no integers; IndexError for no such dim.
        Source: torch.split.
        """
        axis = as_axis_of("split", self, dim)
        length = self.shape[axis]
        if is_int(split_size):
            piece = int(split_size)  # type: ignore[arg-type]
            if piece < 1:
                raise ValueError(f"split: split_size {piece} is not positive; give the length of a piece")
            ends = [min(i + piece, length) for i in range(0, length, piece)] or [0]
        else:
            sizes = as_sizes("split", (split_size,)) if isinstance(split_size, Sequence) else (split_size,)
            if not all(is_int(n) and n >= 0 for n in sizes) or sum(sizes) != length or not sizes:
                raise ValueError(f"split: {split_size!r} does not split {length}, the length of axis {axis}; "
                                 f"give a whole number, or lengths that add up to it")  # fmt: skip
            ends = list(itertools.accumulate(sizes))
        lead = (slice(None),) * axis
        starts = [0, *ends[:-1]]
        return tuple(ops.getitem(self, index=(*lead, slice(a, b))) for a, b in zip(starts, ends, strict=True))

    def chunk(self: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """At most `chunks` views of equal length (the last may be shorter) along dim.

        Shapes: (..., N, ...) → a tuple of (..., ⌈N / chunks⌉, ...)
        Raises: ValueError for what is no whole number of chunks, at least 1; IndexError or TypeError for a
        dim that is no axis.
        Source: torch.chunk.
        """
        if not is_int(chunks) or as_integer("chunk", "chunks", chunks) < 1:
            raise ValueError(f"chunk: {chunks!r} chunks; ask for a whole number, at least one")
        n = self.shape[as_axis_of("chunk", self, dim)]
        return self.split(-(-n // chunks) if n else [0] * chunks, dim)

    def unbind(self: Any, dim: int = 0) -> tuple[Tensor, ...]:
        """Every slice along dim.

        Shapes: (..., N, ...) → a tuple of N views without the axis dim
        Raises: IndexError or TypeError for a dim that is no axis.
        Source: torch.unbind.
        """
        axis = as_axis_of("unbind", self, dim)
        return tuple(ops.getitem(self, index=(slice(None),) * axis + (i,)) for i in range(self.shape[axis]))
