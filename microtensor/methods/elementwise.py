"""Operators and functions that work element by element, as methods; arrays and scalars on either side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import dtypes, engine, ops
from microtensor.methods.arguments import as_mask, as_number

if TYPE_CHECKING:
    from microtensor.tensor import Tensor

_NUMBERS = (int, float, np.ndarray, np.generic)


def _unary(op: engine.Op) -> Callable[[Any], Tensor]:
    def method(self: Any) -> Tensor:
        return op._record((self,), {})

    method.__doc__, method.__name__, method.__qualname__ = op.__doc__, op.__name__, f"Tensor.{op.__name__}"
    return method


def _binary(op: engine.Op) -> Callable[[Any, Any], Tensor]:
    def method(self: Any, other: Any) -> Tensor:
        if not isinstance(other, engine.Tensor) and not isinstance(other, _NUMBERS):
            return NotImplemented
        return op._record((self, other), {})

    method.__doc__, method.__name__, method.__qualname__ = op.__doc__, op.__name__, f"Tensor.{op.__name__}"
    return method


def _reflected(op: engine.Op) -> Callable[[Any, Any], Tensor]:
    def method(self: Any, other: Any) -> Tensor:
        if not isinstance(other, engine.Tensor) and not isinstance(other, _NUMBERS):
            return NotImplemented
        return op._record((other, self), {})

    method.__doc__ = op.__doc__
    return method


class Elementwise:
    """+, exp, clamp … of a tensor."""

    __slots__ = ()

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

    def clamp(self: Any, min: Any = None, max: Any = None) -> Tensor:
        """min where smaller, max where larger; gradient 1 inside and at the bounds."""
        if min is None and max is None:
            raise ValueError("clamp: neither min nor max is given; give at least one")
        x = self
        if any(isinstance(bound, float) for bound in (min, max)) and not dtypes.floating(self.dtype):
            x = self.to(dtypes.default)
        return ops.clamp(x, low=min, high=max)

    def masked_fill(self: Any, mask: Tensor, value: Any) -> Tensor:
        """value where mask is True, else the tensor; mask broadcasts."""
        mask = as_mask("masked_fill", mask)
        return ops.masked_fill(self, mask, value=as_number("masked_fill", value))

    def where(self: Any, condition: Tensor, other: Any) -> Tensor:
        """The tensor where condition is True, else other."""
        return ops.where(as_mask("where", condition), self, other)
