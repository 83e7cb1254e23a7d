"""Tensor methods that change a tensor in its own memory, and the one place that says when this is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import dtypes, engine, memory, ops
from microtensor.methods.arguments import as_fill, as_operand
from microtensor.methods.calling import by_any_spelling, by_its_name
from microtensor.mode import mode
from microtensor.place import mark_changed

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


def _in_place(names: str) -> Iterator[Callable[..., Tensor]]:
    """The named methods in place: x ← x.name(…)."""

    def in_place(name: str) -> Callable[..., Tensor]:
        def method(self: Any, *args: Any, **more: Any) -> Tensor:
            """x ← x.{0}(…), in place; see `{0}`.

            Shapes: as `{0}`, if the result has the shape of x → x itself
            Raises: RuntimeError for a leaf that requires a gradient while recording, read-only memory, or a
            result of a higher kind of dtype (floats into integers); ValueError for another shape; as `{0}`.
            Source: torch.Tensor.{0}_.
            """
            return self._change(f"{name}_", lambda x: getattr(x, name)(*args, **more), *args, *more.values())

        method.__doc__, method.__name__ = str(method.__doc__).format(name), f"{name}_"
        return by_its_name(method)

    return map(in_place, names.split())


@by_any_spelling("copy_ fill_")
class InPlace:
    """add_, copy_, zero_ … : x ← f(x) in x's own memory, counted by its version."""

    __slots__ = ()

    def _change(self: Any, who: str, function: Callable[[Tensor], Tensor], *others: Any) -> Tensor:
        """x ← function(x) in x's own memory; recorded like any op, refused where backward would go wrong.

        The tensor gets a new entry, older uses keep the one they saw. A change of a view is a change of the
        tensor that it views, which gets a new entry as well. `function`, which takes `others` into account,
        sees a copy, which backward may keep.
        """
        root = self._root_to_change(who)
        recorded = mode.grad and any(getattr(t, "requires_grad", False) for t in (root, *others))
        before = engine.make(self.array.copy() if recorded else self.array, self.grad_fn, None)
        result = function(before)
        assert recorded or not result.requires_grad, f"{who}: not told of a tensor that requires a gradient"
        if result.shape != self.shape:
            raise ValueError(f"{who}: a result of shape {result.shape} does not fit into {self.shape}; "
                             f"change out of place")  # fmt: skip
        if not dtypes.fits(result.dtype, self.dtype):
            raise RuntimeError(f"{who}: a result of {result.dtype} does not fit into {self.dtype}; change "
                               f"out of place")  # fmt: skip
        if recorded:
            result = result.to(self.dtype)
            if root is self:
                engine.adopt(self, result)
            else:
                self._record_view(who, root, result)
        np.copyto(self.array, dtypes.cast(result.array, self.dtype))
        mark_changed(who if root is self else f"{who} of a view of shape {self.shape}", self.version)
        return self

    def _root_to_change(self: Any, who: str) -> Any:
        """The tensor whose memory is about to change: this one, or what it views; an error if it must not."""
        if self.base is not None:
            engine.refresh(self)
        root = self if self.base is None else self.base[0]
        # else the leaf is a view, this one or what it shows, or no gradient goes through this one
        inner = root._requires_grad == self._requires_grad
        if mode.grad and root.grad_fn is None and (root._requires_grad or not inner):
            raise RuntimeError(f"{who}: a leaf tensor of shape {(root if inner else self).shape} that "
                               f"requires a gradient cannot be changed in place while recording; do it under "
                               f"no_grad(), as every update; else on a clone()")  # fmt: skip
        if mode.grad and root.grad_fn is not None and not inner:
            raise RuntimeError(f"{who}: this view of shape {self.shape} was taken under no_grad, of a tensor "
                               f"that is recorded: does a gradient flow through it? take it while recording; "
                               f"or change it under no_grad(), or change a clone()")  # fmt: skip
        if not self.array.flags.writeable:
            raise RuntimeError(f"{who}: this tensor of shape {self.shape} shares read-only memory; change a "
                               f"clone()")  # fmt: skip
        return root

    def _record_view(self: Any, who: str, root: Tensor, result: Tensor) -> None:
        """root ← root with `result` at the elements that this view shows, and the view from there again."""
        if memory.overlaps(self.array) or memory.overlaps(root.array):
            raise RuntimeError(f"{who}: cannot record a change of a view of shape {self.shape} with several "
                               f"elements at one place in memory; change a clone()")  # fmt: skip
        places = memory.places(self.array, root.array)
        changed = ops.setitem(root.reshape(-1), result, index=places).reshape(root.shape)
        # seen through the root, whose gradient one may ask for
        seen = ops.getitem(changed.reshape(-1), index=places)
        engine.adopt(root, changed)
        view: Any = self
        engine.adopt(view, seen)
        view.base = root, root.grad_fn

    def copy_(self: Any, other: Any) -> Tensor:
        """x ← other (broadcast, converted to x's dtype), in place.

        Shapes: any, other that broadcasts to it → x itself
        Raises: ValueError for another shape; RuntimeError for a leaf that requires a gradient while
        recording, a gradient into integers, and read-only memory.
        Source: torch.Tensor.copy_.
        """
        other = as_operand(other, self.dtype, "copy_")
        if other.ndim > self.ndim:
            raise ValueError(f"copy_: shape {other.shape} does not fit into {self.shape}; leave axes out")
        return self._assign("copy_", Ellipsis, other)

    def fill_(self: Any, value: Any) -> Tensor:
        """Every element ← value, in place.

        Shapes: any, value () → x itself
        Raises: as `copy_`; ValueError for more than one number.
        Source: torch.Tensor.fill_.
        """
        return self._assign("fill_", Ellipsis, as_fill("fill_", value, self.dtype))

    def zero_(self: Any) -> Tensor:
        """Every element ← 0, in place.

        Shapes: any → x itself
        Raises: RuntimeError as `copy_`.
        Source: torch.Tensor.zero_.
        """
        return self._assign("zero_", Ellipsis, 0)

    def _assign(self: Any, who: str, index: Any, value: Any) -> Tensor:
        """x[index] ← value; what was there before gets no gradient."""
        value = as_operand(value, self.dtype, who)
        cut = dtypes.floating(value.dtype) and not dtypes.floating(self.dtype)
        if cut and (who == "setitem" or (mode.grad and value.requires_grad)):  # copy_ is asked to convert
            lost = "gradient" if value.requires_grad else "fraction"
            raise RuntimeError(f"{who}: {self.dtype} has no {lost}, which a value of {value.dtype} may have; "
                               f"convert it first, with .detach().to(dtype)")  # fmt: skip
        value = value.to(self.dtype)
        root = self._root_to_change(who)
        if mode.grad and (root._requires_grad or value.requires_grad):
            return self._change(who, lambda x: ops.setitem(x, value, index=index), value)
        ops.assign(self.array, index, value.array, who)
        mark_changed(who, self.version)
        return self

    abs_, neg_, exp_, log_, sqrt_, rsqrt_ = _in_place("abs neg exp log sqrt rsqrt")
    sin_, cos_, tanh_, sigmoid_, relu_ = _in_place("sin cos tanh sigmoid relu")
    tan_, exp2_, square_, reciprocal_ = _in_place("tan exp2 square reciprocal")
    clamp_, clip_, clamp_min_, clamp_max_ = _in_place("clamp clip clamp_min clamp_max")
    floor_, ceil_, trunc_, round_, nan_to_num_ = _in_place("floor ceil trunc round nan_to_num")
    lerp_, addcmul_, addcdiv_ = _in_place("lerp addcmul addcdiv")
    tril_, triu_, masked_fill_ = _in_place("tril triu masked_fill")
    index_fill_, scatter_, scatter_add_ = _in_place("index_fill scatter scatter_add")
    index_add_, index_copy_ = _in_place("index_add index_copy")
    add_, sub_, mul_, div_, pow_ = _in_place("add sub mul div pow")
    remainder_, floor_divide_, fmod_ = _in_place("remainder floor_divide fmod")
    bitwise_and_, bitwise_or_, bitwise_xor_ = _in_place("bitwise_and bitwise_or bitwise_xor")
    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_
    __ipow__, __imod__, __ifloordiv__ = pow_, remainder_, floor_divide_
    __iand__, __ior__, __ixor__ = bitwise_and_, bitwise_or_, bitwise_xor_
