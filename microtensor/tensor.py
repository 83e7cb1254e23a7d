"""Tensor: a NumPy array that remembers how it was made. Operators and PyTorch-named methods over the ops.

`t.array` is the array inside, `t.grad_fn` the tape entry that made it (None for a leaf), `t.grad` its gradient
after `backward()`. Formulas live in `ops/`, the walk in `walk.py`; this file only gives them PyTorch's names.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from microtensor import autograd, dtypes, engine, ops
from microtensor.engine import Array, Entry
from microtensor.methods.arguments import as_mask, as_number
from microtensor.methods.inplace import InPlace
from microtensor.methods.reductions import Reductions
from microtensor.methods.shapes import Shapes

__all__ = ["Tensor", "as_tensor", "check_device"]


def _unary(op: engine.Op) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor) -> Tensor:
        return op._record((self,), {})  # type: ignore[no-any-return]

    method.__doc__, method.__name__, method.__qualname__ = op.__doc__, op.__name__, f"Tensor.{op.__name__}"
    return method


def _binary(op: engine.Op) -> Callable[[Tensor, Any], Tensor]:
    def method(self: Tensor, other: Any) -> Tensor:
        if not isinstance(other, _OPERANDS):
            return NotImplemented  # type: ignore[no-any-return]
        return op._record((self, other), {})  # type: ignore[no-any-return]

    method.__doc__, method.__name__, method.__qualname__ = op.__doc__, op.__name__, f"Tensor.{op.__name__}"
    return method


def _reflected(op: engine.Op) -> Callable[[Tensor, Any], Tensor]:
    def method(self: Tensor, other: Any) -> Tensor:
        if not isinstance(other, _OPERANDS):
            return NotImplemented  # type: ignore[no-any-return]
        return op._record((other, self), {})  # type: ignore[no-any-return]

    method.__doc__ = op.__doc__
    return method


class Tensor(Reductions, Shapes, InPlace):
    """An n-dimensional array with a reverse-mode derivative. Make one with `mt.tensor`, `mt.zeros`, `mt.randn` …

    >>> import microtensor as mt
    >>> x = mt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> y = (x * x).sum()
    >>> y.backward()
    >>> x.grad
    tensor([2., 4., 6.])
    """

    __slots__ = ("__weakref__", "_requires_grad", "array", "base", "grad", "grad_fn", "name", "version")
    __array_priority__ = 1000  # NumPy's binary operators hand over to ours: ndarray ∘ tensor is a tensor
    __array_ufunc__ = None

    array: Array
    grad: Tensor | None
    grad_fn: Entry | None
    name: str | None  # what drawings call it; None for most tensors
    version: list[int]  # counts in-place changes; views share it with what they view
    base: (
        tuple[Tensor, Entry | None] | None
    )  # of a recorded view: what it views, and that tensor's entry then

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Does backward() bring a gradient to this tensor? True for whatever was computed from one that does."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Ask for a gradient (leaf tensors of a floating dtype), or stop asking. Returns the tensor."""
        if requires_grad and not dtypes.floating(self.dtype):
            raise RuntimeError(
                f"requires_grad_: a {self.dtype} tensor cannot have a gradient; make it floating with .float()"
            )
        if self.grad_fn is not None and not requires_grad:
            raise RuntimeError(
                f"requires_grad_: this tensor was made by {self.grad_fn!r} and must pass gradients on; "
                f"use detach() for a tensor without a gradient"
            )
        self._requires_grad = bool(requires_grad)
        return self

    @property
    def is_leaf(self) -> bool:
        """True unless an op made it on the tape."""
        return self.grad_fn is None

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.array.ndim

    @property
    def dtype(self) -> dtypes.DType:
        """The dtype of the elements, a NumPy dtype."""
        return self.array.dtype

    @property
    def device(self) -> str:
        """Always "cpu"."""
        return "cpu"

    @property
    def data(self) -> Tensor:
        """The same memory without the tape (PyTorch's `.data`)."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        self.array = value.array
        self.version[0] += 1

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the length of one axis."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements."""
        return self.array.size

    def element_size(self) -> int:
        """Bytes per element."""
        return self.array.itemsize

    def is_contiguous(self) -> bool:
        """Do the elements lie in memory in row-major order, without gaps?"""
        return self.array.flags.c_contiguous

    # --- out of the tape ------------------------------------------------------------------------------------

    def item(self) -> Any:
        """The only element, as a Python number."""
        if self.array.size != 1:
            raise RuntimeError(f"item: a tensor of shape {self.shape} has {self.array.size} elements, not one; "
                               f"index one, or use tolist()")  # fmt: skip
        return self.array.item()

    def tolist(self) -> Any:
        """The elements as nested Python lists."""
        return self.array.tolist()

    def numpy(self) -> Array:
        """The array inside, shared; refused while a gradient is wanted, as in PyTorch."""
        if self._requires_grad:
            raise RuntimeError(
                "numpy: this tensor requires a gradient, which NumPy would lose; use detach().numpy()"
            )
        return self.array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if copy or (dtype is not None and array.dtype != dtype):
            return array.astype(dtype or array.dtype)
        return array

    def detach(self) -> Tensor:
        """The same memory, outside the tape: no gradient flows through it."""
        same = _make(self.array, None, None)
        same.version = self.version
        return same

    def clone(self) -> Tensor:
        """A copy; the gradient flows through it."""
        return ops.clone(self)  # type: ignore[no-any-return]

    def contiguous(self) -> Tensor:
        """The tensor itself if its memory is in row-major order, else a copy that is."""
        return self if self.is_contiguous() else self.clone()

    def to(self, *args: Any, dtype: Any = None, device: Any = None, copy: bool = False) -> Tensor:
        """In another dtype, or on "cpu" (the only device); the gradient flows through it."""
        for a in args:
            if isinstance(a, Tensor):
                dtype = a.dtype
            elif isinstance(a, str) and a.split(":")[0] in ("cpu", "cuda", "mps"):
                device = a
            else:
                dtype = a
        check_device("to", device)
        if dtype is None or np.dtype(dtype) == self.dtype:
            return self.clone() if copy else self
        return ops.cast(self, dtype=np.dtype(dtype))  # type: ignore[no-any-return]

    type = to

    def float(self) -> Tensor:
        """As float32."""
        return self.to(dtypes.float32)

    def double(self) -> Tensor:
        """As float64."""
        return self.to(dtypes.float64)

    def long(self) -> Tensor:
        """As int64."""
        return self.to(dtypes.int64)

    def int(self) -> Tensor:
        """As int32."""
        return self.to(dtypes.int32)

    def bool(self) -> Tensor:
        """As booleans: True where not zero."""
        return self.to(dtypes.boolean)

    # --- backward -------------------------------------------------------------------------------------------

    def backward(
        self,
        gradient: Any = None,
        retain_graph: builtins.bool | None = None,
        create_graph: builtins.bool = False,
    ) -> None:
        """Add d(self)/d(leaf) · gradient to the `.grad` of every leaf that this tensor was computed from.

        gradient: same shape as the tensor; may be left out for one element (then it is 1).
        Raises: RuntimeError if nothing was recorded, the shape differs, or the graph was freed.
        """
        autograd.backward(self, gradient, retain_graph=retain_graph, create_graph=create_graph)

    # --- elementwise ----------------------------------------------------------------------------------------

    __add__, __radd__ = _binary(ops.add), _reflected(ops.add)
    __sub__, __rsub__ = _binary(ops.sub), _reflected(ops.sub)
    __mul__, __rmul__ = _binary(ops.mul), _reflected(ops.mul)
    __truediv__, __rtruediv__ = _binary(ops.div), _reflected(ops.div)
    __pow__, __rpow__ = _binary(ops.pow), _reflected(ops.pow)
    __floordiv__, __rfloordiv__ = _binary(ops.floor_divide), _reflected(ops.floor_divide)
    __lt__, __le__, __gt__, __ge__ = (
        _binary(o) for o in (ops.less, ops.less_equal, ops.greater, ops.greater_equal)
    )
    __and__, __rand__ = _binary(ops.bitwise_and), _reflected(ops.bitwise_and)
    __or__, __ror__ = _binary(ops.bitwise_or), _reflected(ops.bitwise_or)
    __xor__, __rxor__ = _binary(ops.bitwise_xor), _reflected(ops.bitwise_xor)
    __neg__, __abs__, __invert__ = _unary(ops.neg), _unary(ops.abs), _unary(ops.bitwise_not)
    __eq__ = _binary(ops.equal)  # type: ignore[assignment]
    __ne__ = _binary(ops.not_equal)  # type: ignore[assignment]

    def __hash__(self) -> builtins.int:  # == is elementwise, so a tensor is itself in dicts and sets
        return id(self)

    add, sub, mul, div, pow = (_binary(o) for o in (ops.add, ops.sub, ops.mul, ops.div, ops.pow))
    maximum, minimum = _binary(ops.maximum), _binary(ops.minimum)
    eq, ne, lt, le = (_binary(o) for o in (ops.equal, ops.not_equal, ops.less, ops.less_equal))
    gt, ge = _binary(ops.greater), _binary(ops.greater_equal)
    logical_and, logical_or = _binary(ops.logical_and), _binary(ops.logical_or)
    logical_not, isnan, isinf, isfinite = (
        _unary(o) for o in (ops.logical_not, ops.isnan, ops.isinf, ops.isfinite)
    )
    neg, abs, sign = _unary(ops.neg), _unary(ops.abs), _unary(ops.sign)
    exp, log, log1p, expm1 = _unary(ops.exp), _unary(ops.log), _unary(ops.log1p), _unary(ops.expm1)
    sqrt, rsqrt, square = _unary(ops.sqrt), _unary(ops.rsqrt), _unary(ops.square)
    reciprocal, sin, cos, tanh = _unary(ops.reciprocal), _unary(ops.sin), _unary(ops.cos), _unary(ops.tanh)
    sigmoid, erf, relu = _unary(ops.sigmoid), _unary(ops.erf), _unary(ops.relu)

    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        """min where smaller, max where larger; gradient 1 inside and at the bounds."""
        if min is None and max is None:
            raise ValueError("clamp: neither min nor max is given; give at least one")
        x = self
        if any(isinstance(bound, builtins.float) for bound in (min, max)) and not dtypes.floating(self.dtype):
            x = self.to(dtypes.default)
        return ops.clamp(x, low=min, high=max)  # type: ignore[no-any-return]

    def masked_fill(self, mask: Tensor, value: Any) -> Tensor:
        """value where mask is True, else the tensor; mask broadcasts."""
        mask = as_mask("masked_fill", mask)
        return ops.masked_fill(self, mask, value=as_number("masked_fill", value))  # type: ignore[no-any-return]

    def where(self, condition: Tensor, other: Any) -> Tensor:
        """The tensor where condition is True, else other."""
        return ops.where(as_mask("where", condition), self, other)  # type: ignore[no-any-return]

    # --- as a sequence and as a number ----------------------------------------------------------------------

    def __len__(self) -> builtins.int:
        if self.ndim == 0:
            raise TypeError("len: a 0-d tensor has no length; use item() for its number")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("iter: a 0-d tensor cannot be iterated; use item() for its number")
        return iter(self.unbind())

    def __bool__(self) -> builtins.bool:
        if self.array.size != 1:
            raise RuntimeError(
                f"bool: the truth of a tensor of shape {self.shape} is ambiguous; use any() or all()"
            )
        return builtins.bool(self.array.item())

    def __float__(self) -> builtins.float:
        return builtins.float(self.item())

    def __int__(self) -> builtins.int:
        return builtins.int(self.item())

    def __index__(self) -> builtins.int:
        if self.array.dtype.kind not in "iu":
            raise TypeError(f"index: a {self.dtype} tensor is no integer; use int() to cut it")
        return builtins.int(self.item())

    def __contains__(self, value: Any) -> builtins.bool:
        return builtins.bool((self == value).any())

    # --- matrices -------------------------------------------------------------------------------------------

    def matmul(self, other: Tensor) -> Tensor:
        """A B: matrices, vectors (as rows on the left, columns on the right), or batches of matrices."""
        if not isinstance(other, Tensor):
            other = as_tensor(other, self.dtype)
        if self.ndim == 0 or other.ndim == 0:
            raise ValueError(
                f"matmul: shapes {self.shape} and {other.shape}: a 0-d tensor is no matrix; use *"
            )
        a = self.unsqueeze(0) if self.ndim == 1 else self
        b = other.unsqueeze(1) if other.ndim == 1 else other
        y: Tensor = ops.matmul(a, b)
        if self.ndim == 1:
            y = y.reshape((*y.shape[:-2], y.shape[-1]))
        return y.reshape(y.shape[:-1]) if other.ndim == 1 else y

    def __matmul__(self, other: Any) -> Tensor:
        return self.matmul(other) if isinstance(other, Tensor | np.ndarray) else NotImplemented

    def __rmatmul__(self, other: Any) -> Tensor:
        return as_tensor(other, None).matmul(self) if isinstance(other, np.ndarray) else NotImplemented

    def mm(self, other: Tensor) -> Tensor:
        """A B of two matrices; `matmul` broadcasts, this does not."""
        if self.ndim != 2 or other.ndim != 2:
            raise ValueError(f"mm: takes two matrices, not {self.shape} and {other.shape}; use matmul")
        return self.matmul(other)

    def bmm(self, other: Tensor) -> Tensor:
        """A_b B_b for each b of two batches of matrices; `matmul` broadcasts, this does not."""
        if self.ndim != 3 or other.ndim != 3 or len(self) != len(other):
            raise ValueError(f"bmm: takes (B, M, K) and (B, K, N), not {self.shape} and {other.shape}; use matmul")
        return self.matmul(other)

    def dot(self, other: Tensor) -> Tensor:
        """Σ a b of two vectors."""
        if self.ndim != 1 or self.shape != other.shape:
            raise ValueError(
                f"dot: takes two vectors of one length, not {self.shape} and {other.shape}; use matmul"
            )
        return (self * other).sum()

    # --- printing and copying -------------------------------------------------------------------------------

    def __repr__(self) -> str:
        text = np.array2string(self.array, separator=", ", prefix="tensor(", precision=4, suppress_small=True)
        extra = ""
        if self.dtype not in (dtypes.default, dtypes.int64, dtypes.boolean):
            extra += f", dtype={self.dtype}"
        if self.grad_fn is not None:
            extra += f", grad_fn=<{self.grad_fn.op.name}>"
        elif self._requires_grad:
            extra += ", requires_grad=True"
        return f"tensor({text}{extra})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 else format(str(self), spec)

    def __deepcopy__(self, memo: dict[builtins.int, Any]) -> Tensor:
        if self.grad_fn is not None:
            raise RuntimeError(
                "deepcopy: only leaf tensors can be copied with their gradient; use detach() or clone()"
            )
        copied = _fill(_new(type(self)), self.array.copy(), None, None)
        copied._requires_grad, copied.name = self._requires_grad, self.name
        copied.grad = None if self.grad is None else self.grad.clone()
        memo[id(self)] = copied
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        if self.grad_fn is not None:
            raise RuntimeError("pickle: a recorded tensor cannot be pickled; use detach() first")
        return _rebuild, (type(self), self.array, self._requires_grad, self.name)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of data without a copy where possible: a tensor itself, an array shared, numbers and lists copied.

    Python floats become the default dtype, integers int64, booleans bool; arrays keep their dtype.
    """
    check_device("as_tensor", device)
    if isinstance(data, Tensor):
        return data if dtype is None else data.to(dtype)
    array = dtypes.as_array(data)
    return _make(array if dtype is None else array.astype(dtype, copy=False), None, None)


def check_device(who: str, device: Any) -> None:
    """Everything lives on the CPU; another device is refused by name."""
    if device is not None and str(device) != "cpu":
        raise RuntimeError(f'{who}: there is no device {str(device)!r} here; microtensor computes on "cpu"')


_OPERANDS = (Tensor, np.ndarray, np.generic, int, float)
_new = object.__new__


def _fill(t: Tensor, array: Array, entry: Entry | None, base: Tensor | None) -> Tensor:
    t.array = array
    t.grad_fn = entry
    t._requires_grad = entry is not None
    t.grad = t.name = t.base = None
    if base is None:
        t.version = [0]
    else:
        t.version = base.version
        root = base if base.base is None else base.base[0]
        t.base = root, root.grad_fn
    return t


def _make(array: Array, entry: Entry | None, base: Tensor | None) -> Tensor:
    """A tensor around an array: made by `entry`, sharing memory with `base` (each may be None)."""
    return _fill(_new(Tensor), array, entry, base)


def _rebuild(kind: builtins.type[Tensor], array: Array, requires_grad: bool, name: str | None) -> Tensor:
    t = _fill(_new(kind), array, None, None)
    t._requires_grad, t.name = requires_grad, name
    return t


engine.bind(Tensor, _make)
