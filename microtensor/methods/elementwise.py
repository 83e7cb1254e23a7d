"""Operators and functions that work element by element, as methods; arrays and scalars on either side."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import dtypes, engine, ops
from microtensor.methods.arguments import (
    as_choice,
    as_fill,
    as_integer,
    as_number,
    as_operand,
    as_tensors,
    refuse_integers,
    refuse_two_dtypes,
)
from microtensor.methods.calling import by_any_spelling
from microtensor.methods.masks import as_mask
from microtensor.misfit import broadcast
from microtensor.operators import operator

if TYPE_CHECKING:
    from microtensor.tensor import Tensor

_NUMBERS = (int, float, np.ndarray, np.generic)


# what the ops' docstrings leave out, by the kind of method that is made of them
_ONE = "any → the same", "what is no tensor"
_TENSORS = "two that broadcast → the broadcast one", "what is no tensor"
_TWO = "two that broadcast, or a number → the broadcast one", "what is neither tensor nor number"
_REFUSED = {"neg": "booleans", **dict.fromkeys(["floor_divide", "remainder", "fmod"], "booleans alone")}
_REFUSED |= dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"], "floats")
_DIFFERS = dict.fromkeys(["floor", "ceil", "trunc", "sign"], "records nothing, not a gradient of zeros")
_DIFFERS["sign"] = f"sign(nan) is NaN; {_DIFFERS['sign']}"
_DIFFERS["atan2"] = "the gradient is right for a uint8 numerator"


def _says(op: engine.Op, kind: tuple[str, str]) -> str:
    """The op's docstring, with shapes and errors; `Source` follows when the method has its name."""
    shapes, no_operand = kind
    by_zero = ", and for integers by 0" if _REFUSED.get(op.name) == "booleans alone" else ""
    apart = "" if kind is _ONE else f"ValueError for shapes that do not broadcast{by_zero}; "
    refused = f", and {_REFUSED[op.name]}" if op.name in _REFUSED else ""
    raises = f"{apart}TypeError for {no_operand}{refused}."
    return f"{op.__doc__}\n\nShapes: {shapes}\nRaises: {raises}"


def _unary(op: engine.Op) -> Callable[[Any], Tensor]:
    def method(self: Any) -> Tensor:
        return op._record((self,), {})

    method.__doc__ = _says(op, _ONE)
    return method


def _binary(op: engine.Op, named: bool = False) -> Callable[[Any, Any], Tensor]:
    def with_number(self: Any, other: Any) -> Tensor:
        if not isinstance(other, engine.Tensor) and not isinstance(other, _NUMBERS):
            if named:
                raise TypeError(f"{op.name}: {type(other).__name__} is no operand; give a tensor or a number")
            return NotImplemented
        return op._record((self, other), {})

    method = operator(op, with_number)
    method.__doc__ = _says(op, _TWO)
    return method


def _of_tensors(op: engine.Op) -> Callable[[Any, Any], Tensor]:
    def method(self: Any, other: Any) -> Tensor:
        as_tensors(op.name, other=other)
        return op._record((self, other), {})

    method.__doc__ = _says(op, _TENSORS)
    return method


def _reflected(op: engine.Op) -> Callable[[Any, Any], Tensor]:
    def method(self: Any, other: Any) -> Tensor:
        if not isinstance(other, engine.Tensor) and not isinstance(other, _NUMBERS):
            return NotImplemented
        return op._record((other, self), {})

    method.__doc__ = op.__doc__
    return method


@by_any_spelling("allclose isclose addcmul addcdiv lerp clamp clip clamp_min clamp_max eq ne lt le gt ge div")
class Elementwise:
    """+, exp, clamp … of a tensor."""

    __slots__ = ()

    __add__, __radd__ = _binary(ops.add), _reflected(ops.add)
    __sub__, __rsub__ = _binary(ops.sub), _reflected(ops.sub)
    __mul__, __rmul__ = _binary(ops.mul), _reflected(ops.mul)
    __truediv__, __rtruediv__ = _binary(ops.div), _reflected(ops.div)
    __rpow__ = _reflected(ops.pow)
    __mod__, __rmod__ = _binary(ops.remainder), _reflected(ops.remainder)
    __floordiv__, __rfloordiv__ = _binary(ops.floor_divide), _reflected(ops.floor_divide)
    __lt__, __le__ = _binary(ops.less), _binary(ops.less_equal)
    __gt__, __ge__ = _binary(ops.greater), _binary(ops.greater_equal)
    __and__, __rand__ = _binary(ops.bitwise_and), _reflected(ops.bitwise_and)
    __or__, __ror__ = _binary(ops.bitwise_or), _reflected(ops.bitwise_or)
    __xor__, __rxor__ = _binary(ops.bitwise_xor), _reflected(ops.bitwise_xor)
    __neg__, __abs__, __invert__ = _unary(ops.neg), _unary(ops.abs), _unary(ops.bitwise_not)
    __eq__ = _binary(ops.equal)  # type: ignore[assignment]
    __ne__ = _binary(ops.not_equal)  # type: ignore[assignment]

    mul, _power, _plus, _minus = (_binary(o, True) for o in (ops.mul, ops.pow, ops.add, ops.sub))
    _over, remainder, fmod = (_binary(o, True) for o in (ops.div, ops.remainder, ops.fmod))
    floor_divide = _binary(ops.floor_divide, True)
    maximum, minimum, atan2 = (_of_tensors(o) for o in (ops.maximum, ops.minimum, ops.atan2))
    logaddexp, logical_xor = _of_tensors(ops.logaddexp), _of_tensors(ops.logical_xor)
    logical_and, logical_or = _of_tensors(ops.logical_and), _of_tensors(ops.logical_or)
    eq, ne, lt = (_binary(o, True) for o in (ops.equal, ops.not_equal, ops.less))
    le, gt, ge = (_binary(o, True) for o in (ops.less_equal, ops.greater, ops.greater_equal))
    bitwise_and, bitwise_or = _binary(ops.bitwise_and, True), _binary(ops.bitwise_or, True)
    bitwise_xor, bitwise_not = _binary(ops.bitwise_xor, True), _unary(ops.bitwise_not)
    logical_not, isnan, isinf = _unary(ops.logical_not), _unary(ops.isnan), _unary(ops.isinf)
    neg, abs, sign, isfinite = _unary(ops.neg), _unary(ops.abs), _unary(ops.sign), _unary(ops.isfinite)
    exp, log, log1p, expm1 = _unary(ops.exp), _unary(ops.log), _unary(ops.log1p), _unary(ops.expm1)
    sqrt, rsqrt, square = _unary(ops.sqrt), _unary(ops.rsqrt), _unary(ops.square)
    reciprocal, sin, cos, tanh = _unary(ops.reciprocal), _unary(ops.sin), _unary(ops.cos), _unary(ops.tanh)
    sigmoid, erf, relu = _unary(ops.sigmoid), _unary(ops.erf), _unary(ops.relu)
    tan, asin, acos, atan = _unary(ops.tan), _unary(ops.asin), _unary(ops.acos), _unary(ops.atan)
    sinh, cosh, log2, log10 = _unary(ops.sinh), _unary(ops.cosh), _unary(ops.log2), _unary(ops.log10)
    exp2, floor, ceil, trunc = _unary(ops.exp2), _unary(ops.floor), _unary(ops.ceil), _unary(ops.trunc)

    def pow(self: Any, exponent: Any) -> Tensor:
        """xᵖ; integers to a power below 0 must be made floating first.

        Shapes: two that broadcast, or a number → the broadcast one
        Raises: ValueError for integers to a number below 0, and shapes that do not broadcast; TypeError for
        booleans alone, and what is neither tensor nor number.
        Source: torch.pow. Differs: of booleans alone there is no power.
        """
        if isinstance(exponent, int | np.integer) and exponent < 0 and not dtypes.floating(self.dtype):
            raise ValueError(f"pow: {self.dtype} to the power {exponent} is no integer; use .float()")
        return self._power(exponent)

    def __pos__(self: Any) -> Tensor:
        if self.dtype == np.bool_:
            raise TypeError("pos: booleans have no plus; use .long() to compute")
        return self

    def __pow__(self: Any, exponent: Any) -> Tensor:
        return self.pow(exponent) if isinstance(exponent, (engine.Tensor, *_NUMBERS)) else NotImplemented

    def add(self: Any, other: Any, *, alpha: float = 1) -> Tensor:
        """self + alpha · other

        Shapes: two that broadcast, or a number → the broadcast one
        Raises: ValueError for shapes that do not broadcast; TypeError for what is neither tensor nor number,
        and an alpha that the result's dtype would cut.
        Source: torch.add.
        """
        return self._plus(other if type(alpha) is int and alpha == 1 else _scaled("add", self, other, alpha))

    def sub(self: Any, other: Any, *, alpha: float = 1) -> Tensor:
        """self − alpha · other

        Shapes: two that broadcast, or a number → the broadcast one
        Raises: as `add`; TypeError for booleans alone.
        Source: torch.sub. Differs: booleans count as 0 and 1 beside numbers.
        """
        return self._minus(other if type(alpha) is int and alpha == 1 else _scaled("sub", self, other, alpha))

    def div(self: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
        """self / other; rounding_mode "floor" rounds it down, "trunc" towards 0, neither with a gradient.

        Shapes: two that broadcast, or a number → the broadcast one
        Raises: ValueError for shapes that do not broadcast, another rounding_mode, or a rounded division of
        integers by 0; TypeError for what is neither tensor nor number.
        Source: torch.div. Differs: rounding records nothing, where PyTorch records a gradient of zeros.
        """
        if rounding_mode is None:
            return self._over(other)
        if str(rounding_mode) not in ("floor", "trunc"):
            raise ValueError(f'div: rounding_mode is {rounding_mode!r}; choose None, "floor" or "trunc"')
        down = self.floor_divide(other)
        if rounding_mode == "floor":
            return down
        return ops.trunc(self / other) if dtypes.floating(down.dtype) else (self - self.fmod(other)) // other

    def round(self: Any, *, decimals: int = 0) -> Tensor:
        """The nearest number with so many decimals, halves to the even one; passes no gradient on.

        Shapes: any → the same
        Raises: TypeError for decimals of integers, and decimals that are no integer.
        Source: torch.round. Differs: records nothing, where PyTorch records a gradient of zeros.
        """
        if not as_integer("round", "decimals", decimals):
            return ops.rint(self)
        if not dtypes.floating(self.dtype):
            raise TypeError(f"round: {decimals} decimals of {self.dtype}; make it floating with .float()")
        scale = 10.0 ** abs(decimals)
        return ops.rint(self * scale) / scale if decimals > 0 else ops.rint(self / scale) * scale

    def frac(self: Any) -> Tensor:
        """x − trunc(x), with the sign of x.

        Shapes: any → the same
        Raises: TypeError for integers and booleans.
        Source: torch.frac.
        """
        if not dtypes.floating(self.dtype):
            raise TypeError(f"frac: {self.dtype} has no fraction; make it floating with .float()")
        return self - ops.trunc(self)

    def lerp(self: Any, end: Tensor, weight: Any) -> Tensor:
        """self + weight · (end − self), counted from the nearer end: at weight 1 exactly `end`.

        Shapes: what broadcasts → the broadcast one; weight may be a number
        Raises: TypeError for unequal dtypes, and what is no tensor; ValueError for shapes that do not
        broadcast.
        Source: torch.lerp.
        """
        as_tensors("lerp", end=end)
        if isinstance(weight, float):
            refuse_integers("lerp", self)
        weight = as_operand(weight, self.dtype, "lerp")
        if self.dtype != end.dtype or (weight.ndim and weight.dtype != end.dtype):  # one number may differ
            kinds = f"{self.dtype}, {end.dtype} and {weight.dtype}"
            raise TypeError(f"lerp: dtypes {kinds} differ; convert them with .to(dtype)")
        near = abs(weight) < 0.5
        return ops.where(near, self, end) + (end - self) * ops.where(near, weight, weight - 1)

    def addcmul(self: Any, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        """self + value · tensor1 · tensor2

        Shapes: what broadcasts → the broadcast one
        Raises: TypeError for what is no tensor, and a value that the result's dtype would cut; ValueError for
        shapes that do not broadcast.
        Source: torch.addcmul.
        """
        return _with(self, ops.mul, tensor1, tensor2, value)

    def addcdiv(self: Any, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        """self + value · tensor1 / tensor2

        Shapes: what broadcasts → the broadcast one
        Raises: RuntimeError for integers divided by integers; as `addcmul`.
        Source: torch.addcdiv.
        """
        return _with(self, ops.div, tensor1, tensor2, value)

    def nan_to_num(self: Any, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor:
        """nan, posinf and neginf (None: the largest and the lowest number) instead of NaN, ∞ and −∞.

        Shapes: any → the same
        Raises: TypeError for what is no number, and, as a function, for what is no tensor.
        Source: torch.nan_to_num.
        """
        ends = np.finfo(self.dtype if dtypes.floating(self.dtype) else np.float64)
        instead = (nan, 0.0), (posinf, ends.max), (neginf, ends.min)
        nan, high, low = (float(e) if v is None else as_number("nan_to_num", v) for v, e in instead)
        if not dtypes.floating(self.dtype):
            return self.clone()
        x = ops.where(ops.equal(self, math.inf), high, ops.where(ops.equal(self, -math.inf), low, self))
        return ops.where(ops.isnan(self), nan, x)

    def clamp(self: Any, min: Any = None, max: Any = None) -> Tensor:
        """min where smaller, max where larger; gradient 1 inside and at the bounds, which may be tensors.

        Shapes: any; with tensors what broadcasts → the broadcast one
        Raises: ValueError without a bound, for shapes that do not broadcast, and for a bound that all
        elements would get but their dtype cannot hold; TypeError for one that is neither tensor nor number.
        Source: torch.clamp; torch.clip. Differs: −2 as a lower bound of uint8 is no bound, and not 254.
        """
        if min is None and max is None:
            raise ValueError("clamp: neither min nor max is given; give at least one")
        x = self
        if isinstance(min, engine.Tensor) or isinstance(max, engine.Tensor):
            min, max = (None if bound is None else as_choice("clamp", bound) for bound in (min, max))
            dtype = dtypes.result_dtype([t for t in (x, min, max) if t is not None])
            x = x.to(dtype)
            for bound, inside in ((min, ops.greater_equal), (max, ops.less_equal)):
                if bound is not None:
                    x = ops.where(inside(x, bound), x, ops.where(ops.isnan(x), ops.detach(x), bound))
            return x.to(dtype)
        min, max = (None if bound is None else as_number("clamp", bound) for bound in (min, max))
        if any(isinstance(bound, float) for bound in (min, max)) and not dtypes.floating(self.dtype):
            x = self.to(dtypes.default)
        return ops.clamp(x, low=min, high=max)

    clip = clamp

    def clamp_min(self: Any, min: Any) -> Tensor:
        """min where smaller: `clamp` from below.

        Shapes: any; with a tensor what broadcasts → the broadcast one
        Raises: as `clamp`.
        Source: torch.clamp_min.
        """
        return self.clamp(min=min)

    def clamp_max(self: Any, max: Any) -> Tensor:
        """max where larger: `clamp` from above.

        Shapes: any; with a tensor what broadcasts → the broadcast one
        Raises: as `clamp`.
        Source: torch.clamp_max.
        """
        return self.clamp(max=max)

    def masked_fill(self: Any, mask: Tensor, value: Any) -> Tensor:
        """value where mask is True, else the tensor; mask broadcasts.

        Shapes: two that broadcast, value () → the broadcast one
        Raises: TypeError for a mask that is not boolean, or a value that is no number; ValueError for one
        that the dtype cannot hold, and shapes that do not fit; RuntimeError for a value with a gradient into
        integers.
        Source: torch.masked_fill.
        """
        mask = as_mask("masked_fill", mask)
        value = as_fill("masked_fill", value, self.dtype)
        if value.requires_grad:
            return ops.where(mask, value, self)
        return ops.masked_fill(self, mask, value=value.item())

    def equal(self: Any, other: Tensor) -> bool:
        """Have both the same shape and the same elements?

        Shapes: any, any → True or False
        Raises: TypeError for what is no tensor.
        Source: torch.equal.
        """
        as_tensors("equal", other=other)
        return np.array_equal(self.array, other.array)

    def isclose(
        self: Any, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor:
        """|self − other| ≤ atol + rtol · |other|, element by element.

        Shapes: two that broadcast → the broadcast one, bool
        Raises: TypeError for unequal dtypes, and what is no tensor; ValueError for shapes that do not
        broadcast.
        Source: torch.isclose.
        """
        as_tensors("isclose", other=other)
        refuse_two_dtypes("isclose", self, other)
        broadcast("isclose", self.shape, other.shape)
        rtol, atol = (float(as_number("isclose", part)) for part in (rtol, atol))
        if not (rtol >= 0 and atol >= 0):
            raise ValueError(f"isclose: rtol is {rtol} and atol {atol}; make them 0 or more")
        return engine.make(np.asarray(np.isclose(self.array, other.array, rtol, atol, equal_nan)), None, None)

    def allclose(
        self: Any, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """Are all elements close, as `isclose` has it?

        Shapes: two that broadcast → True or False
        Raises: as `isclose`.
        Source: torch.allclose.
        """
        return bool(self.isclose(other, rtol, atol, equal_nan).array.all())


for _name, _method in vars(Elementwise).items():
    if not _name.startswith("_") and "Source:" not in (_method.__doc__ or "Source:"):  # made of an op
        _differs = f" Differs: {_DIFFERS[_name]}." if _name in _DIFFERS else ""
        _method.__doc__ += f"\nSource: torch.{_name}.{_differs}"
        _method.__name__, _method.__qualname__ = _name, f"Tensor.{_name}"


def _with(x: Tensor, of_two: engine.Op, a: Tensor, b: Tensor, value: Any) -> Tensor:
    """x + value · a b or a / b, each in the sum's dtype, as large as it: 1/0 meets no sum of nothing."""
    as_tensors("addcmul", tensor1=a, tensor2=b)
    if of_two is ops.div and not (dtypes.floating(a.dtype) or dtypes.floating(b.dtype)):
        raise RuntimeError("addcdiv: divides integers by integers; make one floating with .float()")
    dtype, shape = dtypes.result_dtype((x, a, b)), broadcast("addcmul", x.shape, a.shape, b.shape)
    return x.to(dtype).add(of_two(a.expand(shape).to(dtype), b.to(dtype)), alpha=value)


def _scaled(who: str, x: Any, other: Any, alpha: Any) -> Any:
    """alpha · other, if alpha is of no higher kind than the sum."""
    alpha = as_number(who, alpha)
    if not isinstance(other, engine.Tensor | int | float):
        return other  # refused by who adds it
    dtype = dtypes.result_dtype((x, other))
    if not dtypes.fits(dtypes.of_scalar(alpha), dtype) and (dtype != np.bool_ or isinstance(alpha, float)):
        raise TypeError(f"{who}: the factor {alpha!r} is cut in {dtype}; give a whole one, or use .float()")
    dtypes.refuse_cut(who, [alpha], dtype, wraps=True)
    if not isinstance(other, engine.Tensor):
        return bool(other and alpha) if dtype == np.bool_ else other * alpha
    if dtype == np.bool_:
        return other.logical_and(as_operand(alpha != 0, dtype))
    return ops.mul(other.to(dtype), alpha)
