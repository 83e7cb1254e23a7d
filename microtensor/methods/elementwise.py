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


def _binary(op: engine.Op, named: bool = False) -> Callable[[Any, Any], Tensor]:
    def method(self: Any, other: Any) -> Tensor:
        if not isinstance(other, engine.Tensor) and not isinstance(other, _NUMBERS):
            if named:
                raise TypeError(f"{op.name}: {type(other).__name__} is no operand; give a tensor or a number")
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
    __mod__, __rmod__ = _binary(ops.remainder), _reflected(ops.remainder)
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

    mul, pow, maximum, minimum = (_binary(o, True) for o in (ops.mul, ops.pow, ops.maximum, ops.minimum))
    remainder, floor_divide = _binary(ops.remainder, True), _binary(ops.floor_divide, True)
    eq, ne, lt = (_binary(o, True) for o in (ops.equal, ops.not_equal, ops.less))
    le, gt, ge = (_binary(o, True) for o in (ops.less_equal, ops.greater, ops.greater_equal))
    logical_and, logical_or = _binary(ops.logical_and, True), _binary(ops.logical_or, True)
    bitwise_and, bitwise_or, bitwise_xor = (
        _binary(o, True) for o in (ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor)
    )
    bitwise_not = _unary(ops.bitwise_not)
    logical_not, isnan, isinf, isfinite = (
        _unary(o) for o in (ops.logical_not, ops.isnan, ops.isinf, ops.isfinite)
    )
    neg, abs, sign = _unary(ops.neg), _unary(ops.abs), _unary(ops.sign)
    exp, log, log1p, expm1 = _unary(ops.exp), _unary(ops.log), _unary(ops.log1p), _unary(ops.expm1)
    sqrt, rsqrt, square = _unary(ops.sqrt), _unary(ops.rsqrt), _unary(ops.square)
    reciprocal, sin, cos, tanh = _unary(ops.reciprocal), _unary(ops.sin), _unary(ops.cos), _unary(ops.tanh)
    sigmoid, erf, relu = _unary(ops.sigmoid), _unary(ops.erf), _unary(ops.relu)

    def add(self: Any, other: Any, *, alpha: float = 1) -> Tensor:
        """self + alpha · other"""
        return self + (other if alpha == 1 else other * alpha)

    def sub(self: Any, other: Any, *, alpha: float = 1) -> Tensor:
        """self − alpha · other"""
        return self - (other if alpha == 1 else other * alpha)

    def div(self: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
        """self / other, or with rounding_mode="floor" ⌊self / other⌋, which has no gradient."""
        if rounding_mode not in (None, "floor"):
            raise ValueError(f'div: rounding_mode is {rounding_mode!r}; choose None or "floor"')
        return self // other if rounding_mode else self / other

    def clamp(self: Any, min: Any = None, max: Any = None) -> Tensor:
        """min where smaller, max where larger; gradient 1 inside and at the bounds, which may be tensors."""
        if min is None and max is None:
            raise ValueError("clamp: neither min nor max is given; give at least one")
        x = self
        if isinstance(min, engine.Tensor) or isinstance(max, engine.Tensor):
            for bound, inside in ((min, ops.greater_equal), (max, ops.less_equal)):
                if bound is not None:
                    outside = ops.where(ops.isnan(x), ops.detach(x), bound)
                    x = ops.where(inside(x, bound), x, outside)
            return x
        min, max = as_number("clamp", min), as_number("clamp", max)
        if any(isinstance(bound, float) for bound in (min, max)) and not dtypes.floating(self.dtype):
            x = self.to(dtypes.default)
        return ops.clamp(x, low=min, high=max)

    def masked_fill(self: Any, mask: Tensor, value: Any) -> Tensor:
        """value where mask is True, else the tensor; mask broadcasts."""
        mask = as_mask("masked_fill", mask)
        return ops.masked_fill(self, mask, value=as_number("masked_fill", value))

    def equal(self: Any, other: Tensor) -> bool:
        """Have both the same shape and the same elements?"""
        return np.array_equal(self.array, other.array)

    def isclose(
        self: Any, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor:
        """|self − other| ≤ atol + rtol · |other|, element by element; dtypes must be equal."""
        if self.dtype != other.dtype:
            raise TypeError(
                f"isclose: dtypes {self.dtype} and {other.dtype} differ; convert one with .to(dtype)"
            )
        close = np.isclose(self.array, other.array, rtol, atol, equal_nan)
        return engine.make(np.asarray(close), None, None)

    def allclose(
        self: Any, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """Are all elements close, as `isclose` has it?"""
        return bool(self.isclose(other, rtol, atol, equal_nan).array.all())

    def where(self: Any, condition: Tensor, other: Any) -> Tensor:
        """The tensor where condition is True, else other."""
        return ops.where(as_mask("where", condition), self, other)
