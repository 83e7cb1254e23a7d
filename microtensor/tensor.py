"""Tensor: a NumPy array that remembers how it was made. Operators and PyTorch-named methods over the ops.

`t.array` is the array inside, `t.grad_fn` the tape entry that made it (None for a leaf), `t.grad` its
gradient after `backward()`. Formulas live in `ops/`, the walk in `walk.py`; this file only gives them
PyTorch's names.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from microtensor import autograd, dtypes, engine, printing
from microtensor.engine import Array, Entry
from microtensor.hooks import Hooks
from microtensor.methods.arguments import CPU, as_tensors, check_device, check_truth, device
from microtensor.methods.conversions import Conversions
from microtensor.methods.draws import Draws
from microtensor.methods.elementwise import Elementwise
from microtensor.methods.gradients import Gradients
from microtensor.methods.indexing import Indexing
from microtensor.methods.inplace import InPlace
from microtensor.methods.products import Products
from microtensor.methods.reductions import Reductions
from microtensor.methods.shapes import Shapes
from microtensor.missing import explain_missing
from microtensor.mode import mode
from microtensor.place import mark_changed, warn

__all__ = ["Tensor", "as_tensor", "check_device", "device"]


class Tensor(Elementwise, Reductions, Shapes, Indexing, Products, Conversions, InPlace, Draws, Gradients):
    """An n-dimensional array with a reverse-mode derivative. Made by `mt.tensor`, `mt.zeros`, `mt.randn` …

    `array` is the NumPy array inside, `grad` what backward() brought, `grad_fn` the tape entry that made it.

    Source: torch.Tensor. Differs: it is made by functions, never by a call of the class.

    >>> import microtensor as mt
    >>> x = mt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> y = (x * x).sum()
    >>> y.backward()
    >>> x.grad
    tensor([2., 4., 6.])
    """

    __slots__ = ("__weakref__", "_grad", "_requires_grad", "array", "base", "called", "grad_fn", "hooks",
                 "made", "name", "summed", "version")  # fmt: skip

    array: Array
    _grad: Tensor | None
    grad_fn: Entry | None
    hooks: Hooks | None  # of a leaf
    name: str | None  # what drawings call it; None for most tensors
    summed: tuple[int, int, list[Any], list[Any] | None]  # of a .grad: autograd
    called: tuple[Any, ...]  # where a module was called that gave it, and the module's class; or unset
    made: tuple[Any, ...]  # where, by whom and, weakly, of what: where no entry tells it, or unset
    version: list[Any]  # [how many in-place changes, where and by what the last]; views share it
    base: tuple[Tensor, Entry | None] | None  # of a view: what it views, and the entry of that tensor then
    _requires_grad: builtins.bool

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Does backward() bring a gradient here? True for whatever was computed from one that does.

        Raises: when it is set, as `requires_grad_`.
        Source: torch.Tensor.requires_grad.
        """
        if self.base is not None:
            engine.refresh(self)
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Ask for a gradient (leaf tensors of a floating dtype), or stop asking. Returns the tensor.

        Shapes: any → the tensor itself
        Raises: RuntimeError for integers, and for what was computed if it is to stop; TypeError for what is
        neither True nor False.
        Source: torch.Tensor.requires_grad_.
        """
        check_truth("requires_grad_", "requires_grad", requires_grad)
        if requires_grad and not dtypes.floating(self.dtype):
            raise RuntimeError(f"requires_grad_: a tensor of shape {self.shape} is {self.dtype} and cannot "
                               f"have a gradient; make it floating with .float()")  # fmt: skip
        if self.grad_fn is not None and not requires_grad:
            raise RuntimeError(f"requires_grad_: this tensor was made by {self.grad_fn!r} and must pass "
                               f"gradients on; use detach() for a tensor without a gradient")  # fmt: skip
        self._requires_grad = requires_grad
        return self

    @property
    def is_leaf(self) -> bool:
        """True unless an op made it on the tape.

        Source: torch.Tensor.is_leaf.
        """
        return self.grad_fn is None

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis.

        Source: torch.Tensor.shape. Differs: a tuple, without methods of its own.
        """
        return self.array.shape

    @property
    def ndim(self) -> int:
        """The number of axes.

        Source: torch.Tensor.ndim.
        """
        return self.array.ndim

    @property
    def dtype(self) -> dtypes.DType:
        """The dtype of the elements, a NumPy dtype.

        Source: torch.Tensor.dtype.
        """
        return self.array.dtype

    @property
    def device(self) -> device:
        """Always the CPU.

        Source: torch.Tensor.device.
        """
        return CPU

    @property
    def data(self) -> Tensor:
        """The same memory without the tape.

        Setting it gives the tensor the memory of another; its views keep the old one and are views no more.

        Raises: when it is set, TypeError for what is no tensor, and for integers if it requires a gradient.
        Source: torch.Tensor.data.
        """
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        as_tensors("data", value=value)
        if self._requires_grad and not dtypes.floating(value.dtype):
            raise TypeError(f"data: {value.dtype} for a tensor that requires a gradient; use .float()")
        self.array, self.base = value.array, None
        mark_changed("x.data = …", self.version)  # for what was recorded, and
        self.version = [*self.version]  # another counter from now on: who shares memory shares the counter

    # --- out of the tape ------------------------------------------------------------------------------------

    def item(self) -> Any:
        """The only element, as a Python number.

        Shapes: any of one element → a number
        Raises: RuntimeError for none or several.
        Source: torch.Tensor.item.
        """
        if self.array.size != 1:
            raise RuntimeError(f"item: a tensor of shape {self.shape} has {self.array.size} elements, not "
                               f"one; index one, or use tolist()")  # fmt: skip
        return self.array.item()

    def tolist(self) -> Any:
        """The elements as nested Python lists.

        Shapes: any → lists as deep as it has axes; () → a number
        Source: torch.Tensor.tolist.
        """
        return self.array.tolist()

    def numpy(self, *, force: builtins.bool = False) -> Array:
        """The array inside, shared.

        Shapes: any → the same
        Raises: RuntimeError while a gradient is wanted, unless force.
        Source: torch.Tensor.numpy.
        """
        check_truth("numpy", "force", force)
        if self._requires_grad and not force:
            raise RuntimeError(f"numpy: a {self.shape} tensor requires a gradient, which is lost there; use "
                               f"detach().numpy()")  # fmt: skip
        return self.array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype, copy=copy)

    # --- backward -------------------------------------------------------------------------------------------

    def backward(
        self,
        gradient: Any = None,
        retain_graph: builtins.bool | None = None,
        create_graph: builtins.bool = False,
        inputs: Any = None,
    ) -> None:
        """Add d(self)/d(leaf) · gradient to the `.grad` of every leaf that this tensor was computed from.

        inputs: fill the `.grad` of these tensors alone, which may be inner ones.

        Shapes: any, gradient the same; it may be left out for one element (then it is 1)
        Raises: RuntimeError if nothing was recorded, the shape differs, or the graph was freed; TypeError for
        a gradient that is no tensor; ValueError for no inputs.
        Source: torch.Tensor.backward. Differs: warns once where `.grad` adds up three steps.
        """
        autograd.backward(self, gradient, retain_graph, create_graph, inputs)

    __hash__ = object.__hash__  # == is elementwise, so a tensor is itself in dicts and sets

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
            raise RuntimeError(f"bool: the truth of a {self.shape} tensor is ambiguous; use ~, & and | for "
                               f"not, and, or of each element, comparisons in parentheses: a & (b > 1); "
                               f"`x is not None` for `if x:`; any() or all() for all at once")  # fmt: skip
        return builtins.bool(self.array.item())

    def __float__(self) -> builtins.float:
        if mode.grad and self.requires_grad and self.array.size == 1:  # else there is no number
            warn(f"float: the gradient of a tensor x of shape {self.shape} does not go through its number; "
                 f"use x.exp() for math.exp(x), or x.item() where only the number is meant")  # fmt: skip
        return builtins.float(self.item())

    def __int__(self) -> builtins.int:
        return builtins.int(self.item())

    def __index__(self) -> builtins.int:
        if self.array.dtype.kind not in "iu":
            raise TypeError(f"index: a {self.dtype} tensor is no integer; use int() to cut it")
        return builtins.int(self.item())

    def __contains__(self, value: Any) -> builtins.bool:
        return builtins.bool(self.eq(value).any())

    # --- printing and copying -------------------------------------------------------------------------------

    def __repr__(self) -> str:
        empty = self.array.size == 0
        extras = [f"size={self.shape}"] if empty and self.ndim != 1 else []
        if self.dtype != dtypes.default and (empty or self.dtype not in (dtypes.int64, dtypes.boolean)):
            extras.append(f"dtype={self.dtype}")
        if self.grad_fn is not None:
            extras.append(f"grad_fn=<{self.grad_fn.op.name}>")
        elif self._requires_grad:
            extras.append("requires_grad=True")
        return printing.text(self.array, extras)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 or spec else str(self)

    def __deepcopy__(self, memo: dict[builtins.int, Any]) -> Tensor:
        if self.grad_fn is not None:
            raise RuntimeError(f"deepcopy: a {self.shape} tensor is recorded; use detach() or clone()")
        memo[id(self)] = copied = _rebuild(type(self), self.array.copy(), self._requires_grad, self.name)
        # a parameter's gradient is not copied, as in PyTorch: that of a model's copy would be a step too old
        copied._grad = self._grad.clone() if self._grad is not None and type(self) is Tensor else None
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        if self.grad_fn is not None:
            raise RuntimeError("pickle: a recorded tensor cannot be pickled; use detach() first")
        return _rebuild, (type(self), self.array, self._requires_grad, self.name)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor of data, uncopied where possible: a tensor itself, an array shared, numbers and lists copied.

    Python floats become the default dtype, integers int64, booleans bool; arrays keep their dtype.

    Shapes: that of data
    Raises: TypeError for data that is no rectangle of numbers, and a dtype that is not here; ValueError for a
    number that its integer dtype cannot hold; RuntimeError for another device.
    Source: torch.as_tensor.
    """
    check_device("as_tensor", device)
    if isinstance(data, Tensor):
        return data if dtype is None else data.to(dtypes.checked("as_tensor", dtype))
    array = dtypes.as_array(data, None if dtype is None else dtypes.checked("as_tensor", dtype), "as_tensor")
    return _make(array, None, None)


def _make(array: Array, entry: Entry | None, base: Any, kind: builtins.type[Tensor] = Tensor) -> Tensor:
    """A tensor around an array: made by `entry`, sharing memory with `base` (each may be None)."""
    t = Tensor() if kind is Tensor else object.__new__(kind)  # a call of the class is the faster of the two
    t.array, t.grad_fn, t._requires_grad = array, entry, entry is not None
    t._grad = t.name = t.base = t.hooks = None
    t.version = [0]
    if base is not None:
        engine.view_of(t, base)
    return t


def _rebuild(kind: builtins.type[Tensor], array: Array, requires_grad: bool, name: str | None) -> Tensor:
    t = _make(array, None, None, kind)
    t._requires_grad, t.name = requires_grad, name
    return t


engine.bind(Tensor, _make)
explain_missing(Tensor)
