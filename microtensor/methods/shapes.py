"""Tensor methods about where elements lie: sizes, strides, shapes and views, in PyTorch's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from microtensor import ops
from microtensor.methods.arguments import as_axes, as_axis, as_axis_of, as_shape, as_sizes, as_tensors
from microtensor.methods.calling import by_any_spelling
from microtensor.methods.parts import Parts

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


@by_any_spelling("swapaxes nelement permute expand broadcast_to")
class Shapes(Parts):
    """size, reshape, transpose, expand … of a tensor, as methods."""

    __slots__ = ()

    def size(self: Any, dim: int | None = None) -> Any:
        """The shape, or the length of one axis.

        Shapes: any → a tuple of integers, or one
        Raises: IndexError or TypeError for a dim that is no axis.
        Source: torch.Tensor.size. Differs: the shape is a tuple, without methods of its own.
        """
        return self.shape if dim is None else self.shape[as_axis_of("size", self, dim)]

    def dim(self: Any) -> int:
        """The number of axes.

        Shapes: any → an integer
        Source: torch.Tensor.dim.
        """
        return self.ndim

    def numel(self: Any) -> int:
        """The number of elements.

        Shapes: any → an integer
        Raises: TypeError, as a function, for what is no tensor.
        Source: torch.numel.
        """
        return self.array.size

    nelement = numel

    def element_size(self: Any) -> int:
        """Bytes per element.

        Shapes: any → an integer
        Source: torch.Tensor.element_size.
        """
        return self.array.itemsize

    @property
    def itemsize(self: Any) -> int:
        """Bytes per element.

        Source: torch.Tensor.itemsize.
        """
        return self.array.itemsize

    @property
    def nbytes(self: Any) -> int:
        """Bytes of all elements.

        Source: torch.Tensor.nbytes.
        """
        return self.array.nbytes

    def stride(self: Any, dim: int | None = None) -> Any:
        """How many elements apart neighbours along each axis, or along one, lie in memory.

        Shapes: any → a tuple of integers, or one
        Raises: IndexError or TypeError for a dim that is no axis.
        Source: torch.Tensor.stride.
        """
        steps = tuple(n // self.array.itemsize for n in self.array.strides)
        return steps if dim is None else steps[as_axis_of("stride", self, dim)]

    def data_ptr(self: Any) -> int:
        """The address of the first element.

        Shapes: any → an integer
        Source: torch.Tensor.data_ptr.
        """
        return self.array.ctypes.data

    def is_contiguous(self: Any) -> bool:
        """Do the elements lie in memory in row-major order, without gaps?

        Shapes: any → True or False
        Source: torch.Tensor.is_contiguous.
        """
        return self.array.flags.c_contiguous

    # --- other shapes ---------------------------------------------------------------------------------------

    def reshape(self: Any, *shape: Any) -> Tensor:
        """The same elements in another shape; one length may be −1. A view where memory allows.

        Shapes: any → the given one, of as many elements
        Raises: ValueError for another number of elements; TypeError for a shape that is not made of integers.
        Source: torch.reshape.
        """
        return ops.reshape(self, shape=as_shape("reshape", self, shape))

    def view(self: Any, *size: Any) -> Tensor:
        """As reshape, but an error where memory does not allow a view (use contiguous() first).

        Shapes: any → the given one, of as many elements
        Raises: RuntimeError where only a copy would do; for the shape as `reshape`.
        Source: torch.Tensor.view. Differs: takes no dtype.
        """
        return self._view("view", size)

    def _view(self: Any, who: str, shape: tuple[Any, ...]) -> Tensor:
        sizes = as_shape(who, self, shape)
        y: Tensor = ops.reshape(self, shape=sizes)
        if y.base is None and self.array.size:
            raise RuntimeError(f"{who}: a tensor of shape {self.shape} and strides {self.stride()} cannot be "
                               f"seen as {sizes} without a copy; use reshape(), or "
                               f"contiguous().view()")  # fmt: skip
        return y

    def flatten(self: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """The axes start_dim … end_dim joined into one.

        Shapes: (..., A, B, C, ...) → (..., A · B · C, ...); () → (1,)
        Raises: ValueError for a start_dim after end_dim; IndexError or TypeError for what is no axis.
        Source: torch.flatten.
        """
        first, last = as_axis("flatten", self, start_dim), as_axis("flatten", self, end_dim)
        if first > last:
            raise ValueError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}; swap them")
        joined = math.prod(self.shape[first : last + 1])
        return ops.reshape(self, shape=(*self.shape[:first], joined, *self.shape[last + 1 :]))

    def unflatten(self: Any, dim: int, sizes: Sequence[int]) -> Tensor:
        """The axis dim as several, of the given lengths (one may be −1): the inverse of flatten.

        Shapes: (..., A · B, ...) → (..., A, B, ...)
        Raises: ValueError for sizes that do not multiply to its length; IndexError or TypeError for no axis
        dim.
        Source: torch.unflatten.
        """
        axis = as_axis("unflatten", self, dim)
        if not self.ndim or not isinstance(sizes, tuple | list) or not sizes:
            raise ValueError(f"unflatten: shape {self.shape}, sizes {sizes!r}; give an axis and its lengths")
        parts = as_sizes("unflatten", (sizes,))
        known = -math.prod(parts) if -1 in parts else math.prod(parts)
        if (known < 1 or self.shape[axis] % known) if -1 in parts else known != self.shape[axis]:
            raise ValueError(f"unflatten: sizes {parts} do not multiply to {self.shape[axis]}, the length of "
                             f"axis {axis}; choose others")  # fmt: skip
        parts = tuple(self.shape[axis] // known if n == -1 else n for n in parts)
        return ops.reshape(self, shape=(*self.shape[:axis], *parts, *self.shape[axis + 1 :]))

    def squeeze(self: Any, dim: int | Sequence[int] | None = None) -> Tensor:
        """Without the axes of length 1, or without those among the axes dim that have length 1.

        Shapes: (..., 1, ...) → (..., ...)
        Raises: IndexError or TypeError for a dim that is no axis; ValueError for one named twice.
        Source: torch.squeeze.
        """
        shape = self.shape
        drop = range(len(shape)) if dim is None else as_axes("squeeze", self, dim) or ()
        return ops.reshape(self, shape=tuple([n for i, n in enumerate(shape) if n != 1 or i not in drop]))

    def unsqueeze(self: Any, dim: int) -> Tensor:
        """With a new axis of length 1 at position dim.

        Shapes: (..., ...) → (..., 1, ...)
        Raises: IndexError or TypeError for a dim that is no axis of the result.
        Source: torch.unsqueeze.
        """
        at = as_axis("unsqueeze", self, dim, new=1)
        return ops.reshape(self, shape=(*self.shape[:at], 1, *self.shape[at:]))

    def permute(self: Any, *dims: Any) -> Tensor:
        """The axes in another order.

        Shapes: (A, B, C), dims (2, 0, 1) → (C, A, B)
        Raises: ValueError for dims that do not name each axis once; IndexError or TypeError for what is no
        axis.
        Source: torch.permute.
        """
        axes = as_sizes("permute", dims)
        if sorted(as_axis("permute", self, d) for d in axes) != list(range(self.ndim)):
            raise ValueError(f"permute: {axes} does not name each of the {self.ndim} axes of shape "
                             f"{self.shape} once; do")  # fmt: skip
        return ops.permute(self, axes=axes)

    def transpose(self: Any, dim0: int, dim1: int) -> Tensor:
        """Two axes swapped.

        Shapes: (..., M, ..., N, ...) → (..., N, ..., M, ...)
        Raises: IndexError or TypeError for what is no axis.
        Source: torch.transpose; torch.swapaxes.
        """
        a, b = as_axis("transpose", self, dim0), as_axis("transpose", self, dim1)
        axes = list(range(self.ndim))
        if axes:  # a 0-d tensor has none to swap
            axes[a], axes[b] = b, a
        return ops.permute(self, axes=tuple(axes))

    swapaxes = transpose

    def movedim(self: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
        """The axes source moved to the places destination; the others keep their order.

        Shapes: (A, B, C), 0 to −1 → (B, C, A)
        Raises: ValueError for more axes than places, or one named twice; IndexError or TypeError for what is
        none.
        Source: torch.movedim.
        """
        a, b = as_axes("movedim", self, source) or (), as_axes("movedim", self, destination) or ()
        if len(a) != len(b):
            raise ValueError(f"movedim: {source} to {destination}; give as many places as axes")
        axes = [i for i in range(self.ndim) if i not in a]
        for to, axis in sorted(zip(b, a, strict=True)):
            axes.insert(to, axis)
        return ops.permute(self, axes=tuple(axes))

    @property
    def T(self: Any) -> Tensor:
        """All axes in reverse order.

        Shapes: (A, B, C) → (C, B, A)
        Source: torch.Tensor.T.
        """
        return ops.permute(self, axes=tuple(reversed(range(self.ndim))))

    @property
    def mT(self: Any) -> Tensor:
        """The last two axes swapped; a 0-d tensor has none to swap.

        Shapes: (..., M, N) → (..., N, M); () → ()
        Raises: IndexError for one axis.
        Source: torch.Tensor.mT.
        """
        if self.ndim == 1:
            raise IndexError(f"mT: a tensor of shape {self.shape} is no matrix; make it one by unsqueeze()")
        return self.transpose(-2, -1) if self.ndim else self.T

    def t(self: Any) -> Tensor:
        """A matrix, transposed; vectors and numbers as they are.

        Shapes: (M, N) → (N, M)
        Raises: RuntimeError above two axes.
        Source: torch.t.
        """
        if self.ndim > 2:
            raise RuntimeError(f"t: a tensor of shape {self.shape} is no matrix; use .mT for its last two "
                               f"axes")  # fmt: skip
        return self.T

    def expand(self: Any, *size: Any) -> Tensor:
        """Axes of length 1 (and new leading ones) repeated without a copy; −1 keeps a length.

        Shapes: (..., 1, ...) → (..., N, ...), and more in front
        Raises: ValueError for fewer lengths than axes, −1 in front, or an axis that is not 1; TypeError for
        no lengths.
        Source: torch.Tensor.expand. Differs: what lies repeated in memory cannot be written into.
        """
        return self._expand("expand", size)

    def _expand(self: Any, who: str, sizes: tuple[Any, ...]) -> Tensor:
        want = as_sizes(who, sizes)
        if len(want) < self.ndim:
            raise ValueError(f"{who}: {want} has fewer axes than {self.shape}; name every axis, -1 keeps its "
                             f"length")  # fmt: skip
        new = len(want) - self.ndim
        if -1 in want[:new]:
            raise ValueError(f"{who}: {want} for shape {self.shape}; a new axis in front needs a length, not "
                             f"-1")  # fmt: skip
        old = (1,) * new + self.shape
        shape = tuple(o if w == -1 else w for w, o in zip(want, old, strict=True))
        if any(o not in (1, n) or n < 0 for o, n in zip(old, shape, strict=True)):
            raise ValueError(f"{who}: shape {self.shape} does not broadcast to {want}; only axes of length 1 "
                             f"grow")  # fmt: skip
        # where nothing is repeated, every place may be written to
        return ops.reshape(self, shape=shape) if shape == old else ops.expand(self, shape=shape)

    def ravel(self: Any) -> Tensor:
        """The elements in row-major order along one axis: a view where they lie so.

        Shapes: any → (N,)
        Raises: TypeError, as a function, for what is no tensor.
        Source: torch.ravel.
        """
        return self.reshape(-1).contiguous()

    def broadcast_to(self: Any, *size: Any) -> Tensor:
        """Broadcast to a shape, without a copy.

        Shapes: any → the given one
        Raises: as `expand`.
        Source: torch.broadcast_to.
        """
        return self._expand("broadcast_to", size)

    def view_as(self: Any, other: Tensor) -> Tensor:
        """view of the other's shape.

        Shapes: any, other (...) → (...)
        Raises: TypeError for what is no tensor; as `view`.
        Source: torch.Tensor.view_as.
        """
        as_tensors("view_as", other=other)
        return self._view("view_as", (other.shape,))

    def reshape_as(self: Any, other: Tensor) -> Tensor:
        """reshape to the other's shape.

        Shapes: any, other (...) → (...)
        Raises: TypeError for what is no tensor; as `reshape`.
        Source: torch.Tensor.reshape_as.
        """
        as_tensors("reshape_as", other=other)
        return ops.reshape(self, shape=as_shape("reshape_as", self, (other.shape,)))

    def expand_as(self: Any, other: Tensor) -> Tensor:
        """expand to the other's shape.

        Shapes: any, other (...) → (...)
        Raises: TypeError for what is no tensor; as `expand`.
        Source: torch.Tensor.expand_as.
        """
        as_tensors("expand_as", other=other)
        return self._expand("expand_as", (other.shape,))
