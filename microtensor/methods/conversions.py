"""Tensor methods that give the same values elsewhere: copies, other dtypes, new tensors of the same kind."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import dtypes, engine, ops
from microtensor.methods.arguments import as_lengths, as_number, as_operand, as_tensors, check_device
from microtensor.methods.calling import by_any_spelling

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


def _cast(dtype: str) -> Callable[[Any], Tensor]:
    def method(self: Any) -> Tensor:
        """In {}, the tensor itself if it is: the short form of `to`.

        Shapes: any → the same
        Raises: TypeError for half, since there is no float16 here.
        Source: PyTorch's methods of these names.
        """
        return self.to(np.dtype(dtype))

    method.__doc__ = str(method.__doc__).format(dtype)
    return method


@by_any_spelling("to type type_as half cuda")
class Conversions:
    """detach, clone, to, float, new_zeros … of a tensor, as methods."""

    __slots__ = ()

    def detach(self: Any) -> Tensor:
        """The same memory, outside the tape: no gradient flows through it.

        Shapes: any → the same
        Raises: TypeError, as a function, for what is no tensor.
        Source: torch.detach.
        """
        same = engine.make(self.array, None, None)
        same.version = self.version
        return same

    def detach_(self: Any) -> Tensor:
        """The tensor itself, taken off the tape: a leaf that requires no gradient.

        Shapes: any → the tensor itself
        Raises: RuntimeError for a view, which would be recorded again with what it views.
        Source: torch.Tensor.detach_.
        """
        if self.base is not None:
            raise RuntimeError(f"detach_: the tensor of shape {self.shape} is a view; use detach()")
        engine.adopt(self, self.detach())
        return self

    def clone(self: Any) -> Tensor:
        """A copy in row-major order; the gradient flows through it.

        Shapes: any → the same
        Raises: TypeError, as a function, for what is no tensor.
        Source: torch.clone. Differs: always in row-major order.
        """
        return ops.clone(self)

    def contiguous(self: Any) -> Tensor:
        """The tensor itself if its memory is in row-major order, else a copy that is.

        Shapes: any → the same
        Source: torch.Tensor.contiguous.
        """
        return self if self.is_contiguous() else self.clone()

    def is_floating_point(self: Any) -> builtins.bool:
        """Can it have a gradient?

        Shapes: any → True or False
        Raises: TypeError, as a function, for what is no tensor.
        Source: torch.is_floating_point.
        """
        return dtypes.floating(self.dtype)

    def to(
        self: Any,
        *args: Any,
        dtype: Any = None,
        device: Any = None,
        non_blocking: builtins.bool = False,
        copy: builtins.bool = False,
    ) -> Tensor:
        """In another dtype, or on "cpu" (the only device); the gradient flows through it.

        Shapes: any → the same; the tensor itself if there is nothing to do, unless copy
        Raises: TypeError for a dtype that is not here; RuntimeError for another device, and a dtype's name as
        text.
        Source: torch.Tensor.to.
        """
        for a in args:
            if isinstance(a, str):
                device = a
            else:
                dtype = a.dtype if isinstance(a, engine.Tensor) else a
        check_device("to", device)
        if dtype is None or dtypes.checked("to", dtype) == self.dtype:
            return self.clone() if copy else self
        return ops.cast(self, dtype=np.dtype(dtype))

    def type(self: Any, dtype: Any = None) -> Tensor:
        """In another dtype.

        Shapes: any → the same
        Raises: as `to`; TypeError without a dtype.
        Source: torch.Tensor.type. Differs: the dtype must be given; the name of the present one is x.dtype.
        """
        if dtype is None:
            raise TypeError(f"type: no dtype is given; the present one is x.dtype, {self.dtype}")
        return self.to(dtype=dtype)

    def type_as(self: Any, other: Tensor) -> Tensor:
        """In the other's dtype.

        Shapes: any, any → as the first
        Raises: TypeError for what is no tensor.
        Source: torch.Tensor.type_as.
        """
        as_tensors("type_as", other=other)
        return self.to(other.dtype)

    def cpu(self: Any) -> Tensor:
        """The tensor itself.

        Shapes: any → the same
        Source: torch.Tensor.cpu.
        """
        return self

    def cuda(self: Any, device: Any = "cuda") -> Tensor:
        """Refused: there is only the CPU.

        Shapes: any
        Raises: RuntimeError for every device but "cpu".
        Source: torch.Tensor.cuda. Differs: there is none.
        """
        return self.to(device)

    def new_tensor(self: Any, data: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        """A copy of data in this tensor's dtype, unless one is given.

        Shapes: that of data
        Raises: TypeError for data that is no rectangle of numbers, and a dtype that is not here; ValueError
        for a number that its integer dtype cannot hold; RuntimeError for another device.
        Source: torch.Tensor.new_tensor.
        """
        return self._new("new_tensor", data, dtype, device)

    def _new(self: Any, who: str, data: Any, dtype: Any, device: Any) -> Tensor:
        check_device(who, device)
        dtype = self.dtype if dtype is None else dtypes.checked(who, dtype)
        return as_operand(data, dtype, who).detach().to(dtype, copy=True)

    def _new_full(self: Any, who: str, size: Any, value: Any, dtype: Any, device: Any) -> Tensor:
        one = self._new(who, as_number(who, value), dtype, device).array
        return engine.make(np.full(as_lengths(who, size), one), None, None)

    def new_full(self: Any, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
        """One value everywhere in a shape, in this tensor's dtype.

        Shapes: size
        Raises: ValueError for a negative length, and a value that the dtype cannot hold; TypeError for
        lengths that are no integers, a value that is no number, and a dtype that is not here; RuntimeError
        for another device.
        Source: torch.Tensor.new_full.
        """
        return self._new_full("new_full", (size,), fill_value, dtype, device)

    def new_empty(self: Any, *size: Any, dtype: Any = None, device: Any = None) -> Tensor:
        """A tensor of a shape in this tensor's dtype, to be filled: its values mean nothing.

        Shapes: size
        Raises: as `new_full`.
        Source: torch.Tensor.new_empty.
        """
        return self._new_full("new_empty", size, 0, dtype, device)

    def new_zeros(self: Any, *size: Any, dtype: Any = None, device: Any = None) -> Tensor:
        """Zeros of a shape in this tensor's dtype.

        Shapes: size
        Raises: as `new_full`.
        Source: torch.Tensor.new_zeros.
        """
        return self._new_full("new_zeros", size, 0, dtype, device)

    def new_ones(self: Any, *size: Any, dtype: Any = None, device: Any = None) -> Tensor:
        """Ones of a shape in this tensor's dtype.

        Shapes: size
        Raises: as `new_full`.
        Source: torch.Tensor.new_ones.
        """
        return self._new_full("new_ones", size, 1, dtype, device)

    float, double, long, int, bool, half = (
        _cast(d) for d in ("float32", "float64", "int64", "int32", "bool", "float16")
    )
