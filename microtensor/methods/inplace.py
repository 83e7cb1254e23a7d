"""Tensor methods that change a tensor in its own memory, and the one place that says when this is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import engine, ops
from microtensor.methods.arguments import as_operand
from microtensor.mode import mode

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


class InPlace:
    """add_, copy_, zero_ … : x ← f(x) in x's own memory, counted by its version."""

    __slots__ = ()

    def _change(self: Any, who: str, function: Callable[[Tensor], Tensor]) -> Tensor:
        """x ← function(x) in x's own memory; recorded like any op, refused where backward would go wrong."""
        recorded = mode.grad and (self._requires_grad or who == "setitem")
        if mode.grad and self._requires_grad:
            if self.grad_fn is None:
                raise RuntimeError(
                    f"{who}: a leaf tensor of shape {self.shape} that requires a gradient cannot be changed in place "
                    f"while recording; do it under mt.no_grad(), or on a clone()"
                )
            if self.base is not None:
                raise RuntimeError(
                    f"{who}: this tensor of shape {self.shape} is a view of a recorded one, which would lose the "
                    f"change's gradient; change the tensor it views by index (x[i] = …), or a clone()"
                )
        result = function(self if recorded else self.detach())
        if result.shape != self.shape:
            raise ValueError(
                f"{who}: a result of shape {result.shape} does not fit into {self.shape}; change out of place"
            )
        if not self.array.flags.writeable:
            raise RuntimeError(
                f"{who}: this tensor of shape {self.shape} shares read-only memory; change a clone()"
            )
        np.copyto(self.array, result.array, casting="same_kind")
        self.version[0] += 1
        if mode.grad and result.requires_grad:
            if self.base is not None:
                raise RuntimeError(
                    f"{who}: cannot record a gradient into a view; change the tensor it views by index"
                )
            self.grad_fn, self._requires_grad = result.grad_fn, True
        return self

    def add_(self: Any, other: Any, *, alpha: float = 1) -> Tensor:
        """x ← x + alpha · other, in place."""
        return self._change("add_", lambda x: x + (other if alpha == 1 else other * alpha))

    def sub_(self: Any, other: Any) -> Tensor:
        """x ← x − other, in place."""
        return self._change("sub_", lambda x: x - other)

    def mul_(self: Any, other: Any) -> Tensor:
        """x ← x · other, in place."""
        return self._change("mul_", lambda x: x * other)

    def div_(self: Any, other: Any) -> Tensor:
        """x ← x / other, in place."""
        return self._change("div_", lambda x: x / other)

    def copy_(self: Any, other: Any) -> Tensor:
        """x ← other (broadcast, converted to x's dtype), in place."""
        other = as_operand(other, self.dtype)
        return self._change("copy_", lambda x: ops.cast(other, dtype=x.dtype).expand(x.shape))

    def fill_(self: Any, value: Any) -> Tensor:
        """Every element ← value, in place."""
        return self._change("fill_", lambda x: engine.make(np.full(x.shape, value, x.dtype), None, None))

    def zero_(self: Any) -> Tensor:
        """Every element ← 0, in place."""
        return self.fill_(0)

    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_
