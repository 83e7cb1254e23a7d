"""Tensor methods that multiply and add up: products of matrices and vectors; and all of array ∘ tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import dtypes, engine, ops
from microtensor.methods.arguments import as_number, as_operand, as_tensors, for_arrays, refuse_two_dtypes
from microtensor.methods.calling import by_any_spelling

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


# array ∘ tensor, by the name under which NumPy asks the tensor for it, as for each of its own functions
_SAME = "floor_divide", "remainder", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"
_OPERATORS = {name: getattr(ops, name) for name in (*_SAME, "bitwise_and", "bitwise_or", "bitwise_xor")}
_OPERATORS |= {"add": ops.add, "subtract": ops.sub, "multiply": ops.mul, "divide": ops.div, "power": ops.pow}
_OPERATORS["matmul"] = lambda array, x: x.__rmatmul__(array)


@by_any_spelling("mm bmm mv addmm baddbmm")
class Products:
    """matmul, mm, bmm, mv, dot, outer of a tensor, as methods."""

    __slots__ = ()

    def matmul(self: Any, other: Any) -> Tensor:
        """A B: matrices, vectors (as rows on the left, columns on the right), or batches of matrices.

        Shapes: (..., M, K), (..., K, N) → (..., M, N), the leading axes broadcast; a vector's axis is left
        out
        Raises: ValueError for shapes that do not fit or 0-d tensors; TypeError for unequal dtypes.
        Source: torch.matmul. Differs: of booleans it is computed, too.
        """
        other = as_operand(other, self.dtype, "matmul")
        if self.ndim == 0 or other.ndim == 0:
            raise ValueError(f"matmul: shapes {self.shape} and {other.shape}, of which one is 0-d; use *")
        ends = self.shape[-1], other.shape[-2:][0]
        if 1 in (self.ndim, other.ndim) and ends[0] != ends[1]:
            given = f"{self.shape} and {other.shape}"
            raise ValueError(f"matmul: shapes {given} do not fit; make {ends[0]} and {ends[1]} equal")
        a = self.unsqueeze(0) if self.ndim == 1 else self
        y: Tensor = ops.matmul(a, other.unsqueeze(1) if other.ndim == 1 else other)
        y = ops.reshape(y, shape=(*y.shape[:-2], y.shape[-1])) if self.ndim == 1 else y
        return ops.reshape(y, shape=y.shape[:-1]) if other.ndim == 1 else y

    def __matmul__(self: Any, other: Any) -> Tensor:
        return self.matmul(other) if isinstance(other, engine.Tensor | np.ndarray) else NotImplemented

    def __rmatmul__(self: Any, other: Any) -> Tensor:
        return as_operand(other, self.dtype).matmul(self) if isinstance(other, np.ndarray) else NotImplemented

    def __array_ufunc__(self: Any, ufunc: Any, method: str, *inputs: Any, **given: Any) -> Tensor:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        if name not in _OPERATORS or given or not isinstance(inputs[0], np.ndarray | np.generic):
            raise for_arrays(name, self, ", y" * (ufunc.nin - 1))
        return _OPERATORS[name](*inputs)

    def mm(self: Any, other: Tensor) -> Tensor:
        """A B of two matrices; `matmul` broadcasts, this does not.

        Shapes: (M, K), (K, N) → (M, N)
        Raises: ValueError for other shapes; TypeError for what is no tensor and for unequal dtypes.
        Source: torch.mm.
        """
        return _product("mm", 2, self, other)

    def bmm(self: Any, other: Tensor) -> Tensor:
        """A_b B_b for each b of two batches of matrices; `matmul` broadcasts, this does not.

        Shapes: (B, M, K), (B, K, N) → (B, M, N)
        Raises: ValueError for other shapes; TypeError for what is no tensor and for unequal dtypes.
        Source: torch.bmm.
        """
        return _product("bmm", 3, self, other)

    def dot(self: Any, other: Tensor) -> Tensor:
        """Σ a b of two vectors.

        Shapes: (N,), (N,) → ()
        Raises: ValueError for other shapes; TypeError for what is no tensor and for unequal dtypes.
        Source: torch.dot.
        """
        as_tensors("dot", other=other)
        if self.ndim != 1 or self.shape != other.shape:
            _refuse("dot", "two vectors of one length", self, other)
        return self.matmul(other)

    def mv(self: Any, vec: Tensor) -> Tensor:
        """A b of a matrix and a vector.

        Shapes: (M, K), (K,) → (M,)
        Raises: ValueError for other shapes; TypeError for what is no tensor and for unequal dtypes.
        Source: torch.mv.
        """
        as_tensors("mv", vec=vec)
        if self.ndim != 2 or vec.ndim != 1:
            _refuse("mv", "(M, K) and (K,)", self, vec)
        return self.matmul(vec)

    def outer(self: Any, vec2: Tensor) -> Tensor:
        """a bᵀ of two vectors.

        Shapes: (M,), (N,) → (M, N)
        Raises: ValueError for other shapes; TypeError for what is no tensor.
        Source: torch.outer.
        """
        as_tensors("outer", vec2=vec2)
        if self.ndim != 1 or vec2.ndim != 1:
            _refuse("outer", "two vectors", self, vec2, "unsqueeze and *")
        return self.unsqueeze(1) * vec2

    def addmm(self: Any, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta · self + alpha · A B of two matrices; for beta = 0 self is left out, with its NaN.

        Shapes: (M, N) or what broadcasts to it, (M, K), (K, N) → (M, N)
        Raises: ValueError for other shapes; TypeError for unequal dtypes, and fractions for integers.
        Source: torch.addmm.
        """
        return self._add_product("addmm", _product("addmm", 2, mat1, mat2), beta, alpha)

    def baddbmm(self: Any, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta · self + alpha · A_b B_b for each b; for beta = 0 self is left out, with its NaN.

        Shapes: (B, M, N) or what broadcasts to it, (B, M, K), (B, K, N) → (B, M, N)
        Raises: ValueError for other shapes; TypeError for unequal dtypes, and fractions for integers.
        Source: torch.baddbmm.
        """
        return self._add_product("baddbmm", _product("baddbmm", 3, batch1, batch2), beta, alpha)

    def _add_product(self: Any, who: str, product: Any, beta: float, alpha: float) -> Tensor:
        refuse_two_dtypes(who, self, product)
        if self.ndim > product.ndim or any(
            n not in (1, m) for n, m in zip(self.shape[::-1], product.shape[::-1], strict=False)
        ):
            raise ValueError(f"{who}: shape {self.shape} does not broadcast to the product's "
                             f"{product.shape}; make axes equal or 1")  # fmt: skip
        beta, alpha = as_number(who, beta), as_number(who, alpha)
        if not dtypes.floating(self.dtype) and any(isinstance(v, float) for v in (beta, alpha)):
            raise TypeError(f"{who}: beta {beta} and alpha {alpha} for {self.dtype}; give integers")
        dtypes.refuse_cut(who, [beta, alpha], self.dtype, wraps=True)
        product = product if alpha == 1 else product * alpha
        scaled = self if beta == 1 else self * beta
        return product if beta == 0 else scaled + product


def _product(who: str, ndim: int, a: Any, b: Any) -> Tensor:
    """A B of two matrices or two batches of them; what fits into no product matmul refuses."""
    as_tensors(who, first=a, second=b)
    product: Tensor = a.matmul(b)
    if not a.ndim == b.ndim == ndim or a.shape[:-2] != b.shape[:-2]:
        form = "(M, K) and (K, N)" if ndim == 2 else "(B, M, K) and (B, K, N)"
        _refuse(who, form, a, b)
    return product


def _refuse(who: str, form: str, a: Any, b: Any, instead: str = "matmul") -> None:
    raise ValueError(f"{who}: takes {form}, not {a.shape} and {b.shape}; use {instead}")
