"""Tensor methods that fold axes away: PyTorch's `dim` and `keepdim` over the ops' `axis` and `keepdims`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import dtypes, engine, ops
from microtensor.methods.arguments import Dim, as_axes, as_axis, refuse_empty

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


class Reductions:
    """sum, mean, max, softmax … of a tensor, as methods."""

    __slots__ = ()

    def sum(self: Any, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """Σ over the axes dim (all if None). Booleans and integers add up in int64."""
        x = self if dtype is None else self.to(dtype)
        return ops.sum(x, axis=as_axes("sum", x, dim), keepdims=keepdim)

    def mean(self: Any, dim: Dim = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
        """Mean over the axes dim (all if None); NaN for none. Integers: convert first, as in PyTorch."""
        x = self if dtype is None else self.to(dtype)
        if not dtypes.floating(x.dtype):
            raise RuntimeError(f"mean: a mean of {x.dtype} would be cut to {x.dtype}; use .float().mean()")
        return ops.mean(x, axis=as_axes("mean", x, dim), keepdims=keepdim)

    def var(self: Any, dim: Dim = None, *, correction: int = 1, keepdim: bool = False) -> Tensor:
        """Σ (x − μ)² / (n − correction) over the axes dim; correction=1, PyTorch's default, is unbiased."""
        if not dtypes.floating(self.dtype):
            raise RuntimeError(f"var: a variance of {self.dtype} would be cut; use .float().var()")
        axis = as_axes("var", self, dim)
        d = self - ops.mean(self, axis=axis, keepdims=True)
        n = ops.count(self.shape, axis)
        total = (d * d).sum(dim, keepdim)
        return total / max(n - correction, 0)

    def std(self: Any, dim: Dim = None, *, correction: int = 1, keepdim: bool = False) -> Tensor:
        """√var; the gradient of a constant row is 0, where the formula would be 0/0."""
        variance = self.var(dim, correction=correction, keepdim=keepdim)
        constant = variance == 0
        return ops.where(constant, variance, ops.sqrt(ops.where(constant, 1.0, variance)))

    def norm(self: Any, p: float = 2.0, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """(Σ |x|ᵖ)^(1/p), or max |x| for p = ∞; at the zero vector the gradient is 0."""
        if p in (math.inf, -math.inf):
            return self.abs().amax(dim, keepdim) if p > 0 else self.abs().amin(dim, keepdim)
        if p == 0:
            return (self != 0).to(self.dtype).sum(dim, keepdim)
        total = (self * self if p == 2 else self.abs() ** p).sum(dim, keepdim)
        zero = total == 0
        root = ops.where(zero, 1.0, total)
        return ops.where(zero, total, ops.sqrt(root) if p == 2 else root ** (1.0 / p))

    def amax(self: Any, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The maximum over the axes dim; tied maxima share the gradient evenly."""
        refuse_empty("amax", self, dim)
        return ops.amax(self, axis=as_axes("amax", self, dim), keepdims=keepdim)

    def amin(self: Any, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The minimum over the axes dim; tied minima share the gradient evenly."""
        refuse_empty("amin", self, dim)
        return ops.amin(self, axis=as_axes("amin", self, dim), keepdims=keepdim)

    def max(self: Any) -> Tensor:
        """The largest element; ties share the gradient."""
        return self.amax()

    def min(self: Any) -> Tensor:
        """The smallest element; ties share the gradient."""
        return self.amin()

    def prod(self: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Π over the axis dim (all if None); the gradient is right at zeros."""
        return ops.prod(self, axis=as_axes("prod", self, dim), keepdims=keepdim)

    def cumsum(self: Any, dim: int) -> Tensor:
        """Running sums along the axis dim."""
        return self._along(ops.cumsum, as_axis("cumsum", self, dim))

    def logsumexp(self: Any, dim: Dim, keepdim: bool = False) -> Tensor:
        """ln Σ eˣ over the axes dim, without overflow."""
        return ops.logsumexp(self, axis=as_axes("logsumexp", self, dim), keepdims=keepdim)

    def softmax(self: Any, dim: int) -> Tensor:
        """eˣ / Σ eˣ along the axis dim. Unlike in PyTorch, a row of nothing but −∞ gives zeros, not NaN."""
        return self._along(ops.softmax, as_axis("softmax", self, dim))

    def log_softmax(self: Any, dim: int) -> Tensor:
        """x − ln Σ eˣ along the axis dim."""
        return self._along(ops.log_softmax, as_axis("log_softmax", self, dim))

    def _along(self: Any, op: engine.Op, axis: int) -> Tensor:
        """An op that wants an axis; a 0-d tensor counts as one element along it."""
        return op(self, axis=axis) if self.ndim else op(self.reshape(1), axis=0).reshape(())

    def argmax(self: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The index of the (first) maximum, of the flattened tensor if dim is None."""
        refuse_empty("argmax", self, dim)
        return engine.make(np.asarray(np.argmax(self.array, axis=dim, keepdims=keepdim)), None, None)

    def argmin(self: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The index of the (first) minimum, of the flattened tensor if dim is None."""
        refuse_empty("argmin", self, dim)
        return engine.make(np.asarray(np.argmin(self.array, axis=dim, keepdims=keepdim)), None, None)

    def any(self: Any, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Is any element true?"""
        return engine.make(
            np.asarray(np.any(self.array, axis=as_axes("any", self, dim), keepdims=keepdim)), None, None
        )

    def all(self: Any, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """Are all elements true?"""
        return engine.make(
            np.asarray(np.all(self.array, axis=as_axes("all", self, dim), keepdims=keepdim)), None, None
        )
