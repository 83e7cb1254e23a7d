"""Tensor methods that fold axes away: PyTorch's `dim` and `keepdim` over the ops' `axis` and `keepdims`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import engine, ops
from microtensor.methods.arguments import (
    Dim,
    as_axes,
    as_axis,
    as_integer,
    as_number,
    as_tensors,
    refuse_empty,
    refuse_integers,
)
from microtensor.methods.calling import by_any_spelling
from microtensor.methods.order import Order, ValuesIndices

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


def _in(dtype: Any, x: Tensor) -> Tensor:
    return x if dtype is None else x.to(dtype=dtype)


@by_any_spelling()
class Reductions(Order):
    """sum, mean, max, softmax … of a tensor, as methods."""

    __slots__ = ()

    def sum(self: Any, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """Σ over the axes dim (all if None). Booleans and integers add up in int64, or in dtype.

        Shapes: any → without the axes dim; with keepdim they have length 1
        Raises: IndexError or TypeError for a dim that is no axis; ValueError for one named twice.
        Source: torch.sum.
        """
        x = _in(dtype, self)
        return _in(dtype, ops.sum(x, axis=as_axes("sum", x, dim), keepdims=keepdim))

    def mean(self: Any, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """Mean over the axes dim (all if None); NaN for none.

        Shapes: as `sum`
        Raises: RuntimeError for integers and booleans, as in PyTorch: convert first; for dim as `sum`.
        Source: torch.mean.
        """
        x = _in(dtype, self)
        refuse_integers("mean", x)
        return ops.mean(x, axis=as_axes("mean", x, dim), keepdims=keepdim)

    def var(
        self: Any,
        dim: Dim = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: int | None = None,
    ) -> Tensor:
        """Σ (x − μ)² / (n − correction) over the axes dim; correction=1, PyTorch's default, is unbiased.

        unbiased: the older name, False for correction 0; it may stand alone, as in x.var(False).

        Shapes: as `sum`
        Raises: TypeError for unbiased beside correction; RuntimeError for integers; for dim as `sum`.
        Source: torch.var. Differs: where nothing is left to divide by, the gradient is ±∞, by the sign of
        x − μ for every dim, and the second derivative ∞ or NaN.
        """
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if unbiased is not None and correction is not None:
            raise TypeError(f"var: unbiased={unbiased} and correction={correction}; give one of them")
        refuse_integers("var", self)
        correction = as_number("var", int(unbiased is not False) if correction is None else correction)
        axis = as_axes("var", self, dim)
        n, mean = ops.count(self.shape, axis), ops.mean(self, axis=axis, keepdims=True)
        left = max(n - correction, 0)
        d = self - (mean if left or n == 1 else mean.detach())  # g · d / 0 is ±∞: through μ they would meet
        return ops.sum(d * d, axis=axis, keepdims=keepdim) / left

    def std(
        self: Any,
        dim: Dim = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: int | None = None,
    ) -> Tensor:
        """√var; the gradient of a constant row is 0, where the formula would be 0/0.

        Shapes: as `sum`
        Raises: as `var`.
        Source: torch.std. Differs: the second derivative at equal elements is 0, as the first.
        """
        refuse_integers("std", self)
        variance = self.double().var(dim, unbiased, keepdim, correction=correction)  # squares leave float32
        constant = variance == 0
        return ops.where(constant, 0.0, ops.sqrt(ops.where(constant, 1.0, variance))).to(self.dtype)

    def norm(self: Any, p: Any = "fro", dim: Dim = None, keepdim: bool = False) -> Tensor:
        """(Σ |x|ᵖ)^(1/p), max |x| for p = ∞, how many are not 0 for p = 0; "fro" is p = 2.

        At the zero vector the gradient is 0.

        Shapes: as `sum`
        Raises: RuntimeError for integers; ValueError for another word than "fro", or "fro" over three axes;
        IndexError for p < 0 of no elements; for dim as `sum`.
        Source: torch.norm. Differs: no nuclear norm; the second derivative at the zero vector is 0, as the
        first.
        """
        refuse_integers("norm", self)
        if isinstance(p, str) and (p != "fro" or len(as_axes("norm", self, dim) or ()) > 2):
            raise ValueError(f'norm: p is {p!r} over dim {dim}; choose "fro" for two axes, or a number')
        p = 2 if p is None or isinstance(p, str) else as_number("norm", p)
        if p < 0:
            refuse_empty("norm", self, dim)
        if p in (math.inf, -math.inf):
            return self.abs().amax(dim, keepdim) if p > 0 else self.abs().amin(dim, keepdim)
        if p < 1:  # the slope of |x|ᵖ at 0 is infinite; as in PyTorch it counts as 0
            at_0, zero = (0.0 if p >= 0 else math.inf), self == 0
            powers = ops.where(zero, at_0, ops.where(zero, 1.0, self.abs()) ** p)
        else:
            powers = self * self if p == 2 else self.abs() ** p
        total = powers.sum(dim, keepdim)
        if p == 0:
            return total
        zero = total == (0 if p > 0 else math.inf)
        root = ops.where(zero, 1.0, total)
        return ops.where(zero, 0.0, ops.sqrt(root) if p == 2 else root ** (1.0 / p))

    def amax(self: Any, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The maximum over the axes dim; tied maxima share the gradient evenly.

        Shapes: as `sum`
        Raises: IndexError for a maximum of no elements; for dim as `sum`.
        Source: torch.amax. Differs: the gradient at a NaN is 0.
        """
        refuse_empty("amax", self, dim)
        return ops.amax(self, axis=as_axes("amax", self, dim), keepdims=keepdim)

    def amin(self: Any, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The minimum over the axes dim; tied minima share the gradient evenly.

        Shapes: as `sum`
        Raises: IndexError for a minimum of no elements; for dim as `sum`.
        Source: torch.amin. Differs: the gradient at a NaN is 0.
        """
        refuse_empty("amin", self, dim)
        return ops.amin(self, axis=as_axes("amin", self, dim), keepdims=keepdim)

    def max(self: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        """The largest element (ties share the gradient), or with a dim (values, indices) along it.

        With a dim the gradient goes to the first of a tie; with a tensor instead of dim it is `maximum`.

        Shapes: any → () (with keepdim all axes of length 1); with a dim twice without it, or with keepdim of
        length 1; two that broadcast → theirs
        Raises: IndexError for no elements, or for no such dim; TypeError for a dim that is no integer.
        Source: torch.max.
        """
        return self._extreme("max", ops.maximum, dim if other is None else other, keepdim)

    def min(self: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        """The smallest element, or with a dim or a tensor as `max` has it.

        Shapes: as `max`
        Raises: as `max`.
        Source: torch.min.
        """
        return self._extreme("min", ops.minimum, dim if other is None else other, keepdim)

    def _extreme(self: Any, name: str, of_two: engine.Op, dim: Any, keepdim: bool) -> Any:
        if isinstance(dim, engine.Tensor):
            if keepdim is not False:
                raise TypeError(f"{name}: keepdim is {keepdim!r} beside a tensor; leave it out, or give dim")
            return of_two(self, dim)
        if dim is None:
            return getattr(self, f"a{name}")(keepdim=keepdim)
        axis = as_axis(name, self, dim)
        indices = getattr(self, f"arg{name}")(axis, keepdim=True)
        found = ValuesIndices(self.gather(axis, indices), indices)
        return found if keepdim else ValuesIndices(*(t.squeeze(axis) for t in found))

    def count_nonzero(self: Any, dim: Dim = None) -> Tensor:
        """How many elements over the axes dim are not 0.

        Shapes: any → without the axes dim
        Raises: for dim as `sum`.
        Source: torch.count_nonzero.
        """
        return (self != 0).sum(dim)

    def prod(self: Any, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """Π over the axis dim (all if None), of integers in int64 or dtype; the gradient is right at zeros.

        Shapes: any → () or without the axis dim; with keepdim it has length 1
        Raises: IndexError or TypeError for a dim that is no axis.
        Source: torch.prod.
        """
        x = _in(dtype, self)
        axis = None if dim is None else as_axis("prod", x, dim)
        return _in(dtype, ops.prod(x, axis=axis if x.ndim else None, keepdims=keepdim))

    def cumsum(self: Any, dim: int, *, dtype: Any = None) -> Tensor:
        """Running sums along the axis dim. Booleans and integers add up in int64, or in dtype.

        Shapes: any → the same
        Raises: IndexError or TypeError for a dim that is no axis.
        Source: torch.cumsum.
        """
        return self._along(ops.cumsum, as_axis("cumsum", self, dim), dtype)

    def cumprod(self: Any, dim: int, *, dtype: Any = None) -> Tensor:
        """Running products along the axis dim. Booleans and integers multiply in int64, or in dtype.

        Shapes: any → the same
        Raises: IndexError or TypeError for a dim that is no axis.
        Source: torch.cumprod.
        """
        return self._along(ops.cumprod, as_axis("cumprod", self, dim), dtype)

    def diff(self: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
        """xᵢ₊₁ − xᵢ along the axis dim, n times, with the slices prepend and append put to its ends first.

        Shapes: (..., N, ...) → (..., max(N − n, 0), ...), N counted with prepend and append
        Raises: ValueError for 0-d tensors, n < 0, or slices with other axes; IndexError or TypeError for dim.
        Source: torch.diff.
        """
        if not self.ndim:
            raise ValueError("diff: a 0-d tensor has no neighbours; make it one axis or more with reshape")
        axis, times = as_axis("diff", self, dim), as_integer("diff", "n", n, 0)
        pieces = [t for t in (prepend, self, append) if t is not None]
        as_tensors("diff", **{f"piece {i} (with prepend and append)": t for i, t in enumerate(pieces)})
        if any(t.ndim != self.ndim for t in pieces):
            raise ValueError(f"diff: shapes {[t.shape for t in pieces]}; give as many axes to each")
        x: Tensor = ops.cat(*pieces, axis=axis) if len(pieces) > 1 and times else self.clone()
        for _ in range(min(times, x.shape[axis])):
            after, before = x.narrow(axis, 1, x.shape[axis] - 1), x.narrow(axis, 0, x.shape[axis] - 1)
            x = after.logical_xor(before) if x.dtype == np.bool_ else after - before
        return x

    def logsumexp(self: Any, dim: Dim, keepdim: bool = False) -> Tensor:
        """ln Σ eˣ over the axes dim, without overflow.

        Shapes: as `sum`
        Raises: for dim as `sum`.
        Source: torch.logsumexp. Differs: the gradient stays a softmax where all inputs are large.
        """
        return ops.logsumexp(self, axis=as_axes("logsumexp", self, dim), keepdims=keepdim)

    def softmax(self: Any, dim: int | None = None, dtype: Any = None) -> Tensor:
        """eˣ / Σ eˣ along the axis dim.

        Shapes: any → the same
        Raises: IndexError or TypeError for a dim that is no axis; RuntimeError for a dtype of integers.
        Source: torch.softmax. Differs: a row that is −∞ everywhere gives zeros and a zero gradient, not NaN;
        of integers it is computed, too.
        """
        return self._along(ops.softmax, as_axis("softmax", self, dim), dtype)

    def log_softmax(self: Any, dim: int | None = None, dtype: Any = None) -> Tensor:
        """x − ln Σ eˣ along the axis dim.

        Shapes: any → the same
        Raises: IndexError or TypeError for a dim that is no axis; RuntimeError for a dtype of integers.
        Source: torch.log_softmax. Differs: a row that is −∞ everywhere stays −∞; of integers it is computed,
        too.
        """
        return self._along(ops.log_softmax, as_axis("log_softmax", self, dim), dtype)

    def _along(self: Any, op: engine.Op, axis: int, dtype: Any) -> Tensor:
        """An op that wants an axis, in dtype; a 0-d tensor counts as one element along it."""
        x = _in(dtype, self)
        if op.floats and dtype is not None:
            refuse_integers(op.name, x)
        return _in(dtype, op(x, axis=axis) if x.ndim else op(x.reshape(1), axis=0).reshape(()))

    def argmax(self: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The index of the (first) maximum, of the flattened tensor if dim is None.

        Shapes: any → () or without the axis dim, int64; with keepdim reduced axes have length 1
        Raises: IndexError for no elements, or for no such dim; TypeError for a dim that is no integer.
        Source: torch.argmax. Differs: of booleans it is computed, too.
        """
        return self._index_of("argmax", np.argmax, dim, keepdim)

    def argmin(self: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The index of the (first) minimum, of the flattened tensor if dim is None.

        Shapes: as `argmax`
        Raises: as `argmax`.
        Source: torch.argmin. Differs: of booleans it is computed, too.
        """
        return self._index_of("argmin", np.argmin, dim, keepdim)

    def _index_of(self: Any, who: str, function: Any, dim: int | None, keepdim: bool) -> Tensor:
        refuse_empty(who, self, dim)
        axis = None if dim is None else as_axis(who, self, dim)
        return self._found(function, axis if self.ndim else None, keepdim)

    def _found(self: Any, function: Any, axis: Any, keepdim: bool) -> Tensor:
        return engine.make(np.asarray(function(self.array, axis=axis, keepdims=keepdim)), None, None)

    def any(self: Any, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Is any element true?

        Shapes: as `sum`, bool
        Raises: for dim as `sum`.
        Source: torch.any. Differs: a boolean for every dtype, uint8 too.
        """
        return self._found(np.any, as_axes("any", self, dim), keepdim)

    def all(self: Any, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Are all elements true?

        Shapes: as `sum`, bool
        Raises: for dim as `sum`.
        Source: torch.all. Differs: a boolean for every dtype, uint8 too.
        """
        return self._found(np.all, as_axes("all", self, dim), keepdim)
