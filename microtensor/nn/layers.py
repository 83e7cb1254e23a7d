"""Layers: parameters around a function of `functional`. PyTorch's names, shapes and initial values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from microtensor import dtypes, engine
from microtensor.methods.arguments import as_lengths, check_device
from microtensor.nn import functional as F
from microtensor.nn import init
from microtensor.nn.checks import check_flag, check_number
from microtensor.nn.module import Module, Parameter
from microtensor.tensor import Tensor

__all__ = ["Dropout", "Embedding", "Flatten", "Identity", "LayerNorm", "Linear", "RMSNorm"]


def _parameter(who: str, *shape: int, dtype: Any, device: Any) -> Parameter:
    check_device(who, device)
    lengths = as_lengths(who, (shape,))
    found = dtypes.default if dtype is None else dtypes.checked(who, dtype)
    return Parameter(engine.make(np.zeros(lengths, found), None, None))


class Linear(Module):
    """Y = X Wᵀ + b.

    Shapes: (..., in_features) → (..., out_features); weight (out_features, in_features), bias (out_features,)
    Initial values: U(−1/√in, 1/√in) for both, as in PyTorch (`nn.init.xavier_uniform_` is the Transformer's).
    Raises: ValueError if the input does not end in in_features; TypeError for another dtype.
    Source: the lecture's projections Q = X W^Q, with W^Q = Wᵀ; PyTorch's Linear.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = _parameter("Linear", out_features, in_features, dtype=dtype, device=device)
        bound = 1.0 / math.sqrt(in_features) if in_features else 0.0
        init.uniform_(self.weight, -bound, bound)
        self.register_parameter("bias", None)
        if bias:
            self.bias = _parameter("Linear", out_features, dtype=dtype, device=device)
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) → (..., out_features)"""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"


class Embedding(Module):
    """A table of one vector per id; the row padding_idx starts at zero and gets no gradient.

    Shapes: integer ids (...) → (..., embedding_dim); weight (num_embeddings, embedding_dim)
    Initial values: N(0, 1), as in PyTorch.
    Raises: ValueError for a padding_idx outside the rows; when called, as `functional.embedding`.
    Source: "Attention Is All You Need", §3.4; PyTorch's Embedding.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.weight = _parameter("Embedding", num_embeddings, embedding_dim, dtype=dtype, device=device)
        init.normal_(self.weight)
        if padding_idx is not None:
            self.padding_idx = F.padding_row("Embedding", padding_idx, num_embeddings)
            self.weight.array[padding_idx] = 0

    def forward(self, input: Tensor) -> Tensor:
        """ids (...) → (..., embedding_dim)"""
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None
    ) -> Embedding:
        """The rows of a matrix as an embedding, whose memory it shares; freeze: without a gradient.

        Shapes: embeddings (V, C)
        Raises: ValueError for what is no matrix or a padding_idx outside its rows.
        Source: PyTorch's Embedding.from_pretrained.
        """
        if not isinstance(embeddings, Tensor) or embeddings.ndim != 2:
            given = embeddings.shape if isinstance(embeddings, Tensor) else embeddings
            raise ValueError(f"Embedding.from_pretrained: embeddings {given!r:.60}; give a matrix (V, C)")
        check_flag("Embedding.from_pretrained", "freeze", freeze)
        made = cls(embeddings.shape[0], embeddings.shape[1], padding_idx, dtype=embeddings.dtype)
        made.weight = Parameter(embeddings.detach(), requires_grad=not freeze)
        return made


class LayerNorm(Module):
    """y = weight · (x − μ)/√(σ² + eps) + bias over the last axes: `functional.layer_norm`.

    Shapes: (..., *normalized_shape) → the same; weight and bias normalized_shape
    Raises: ValueError if the input does not end in normalized_shape; TypeError for integers or another dtype.
    Source: Ba, Kiros & Hinton 2016, §3. Differs: eps inside the root (the paper has none), as in PyTorch.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape = as_lengths("LayerNorm", (normalized_shape,))
        self.normalized_shape, self.eps = shape, eps
        for name, wanted in (("weight", elementwise_affine), ("bias", elementwise_affine and bias)):
            made = _parameter("LayerNorm", *shape, dtype=dtype, device=device) if wanted else None
            self.register_parameter(name, made)
        if elementwise_affine:
            init.ones_(self.weight)

    def forward(self, input: Tensor, *, residual: Tensor | None = None) -> Tensor:
        """(..., *normalized_shape) → the same; given a residual, of input + residual"""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps, residual=residual)

    def extra_repr(self) -> str:
        affine, bias = self.weight is not None, self.bias is not None
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={affine}, bias={bias}"


class RMSNorm(Module):
    """y = weight · x / √(mean(x²) + eps) over the last axes: `functional.rms_norm`.

    Shapes: (..., *normalized_shape) → the same; weight normalized_shape
    Raises: ValueError if the input does not end in normalized_shape; TypeError for integers or another dtype.
    Source: Zhang & Sennrich 2019, §3. Differs: eps inside the root (the paper has none), as in PyTorch.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape = as_lengths("RMSNorm", (normalized_shape,))
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.register_parameter("weight", None)
        if elementwise_affine:
            self.weight = init.ones_(_parameter("RMSNorm", *shape, dtype=dtype, device=device))

    def forward(self, input: Tensor) -> Tensor:
        """(..., *normalized_shape) → the same"""
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class Dropout(Module):
    """In training, each element is dropped with probability p and the others are divided by 1 − p.

    Shapes: (...) → (...)
    Raises: ValueError unless 0 ≤ p ≤ 1; TypeError for integers in training.
    Source: Srivastava et al. 2014, §4. Differs: divided in training, not multiplied later, as in PyTorch.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        check_number("Dropout", "p", p, 1.0)
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        """(...) → (...)"""
        return F.dropout(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Flatten(Module):
    """The axes start_dim … end_dim as one: `Tensor.flatten`, which keeps axis 0 here, the batch.

    Shapes: (N, a, b, …) → (N, a · b · …)
    Raises: IndexError for an axis that the input has not, when called.
    Source: PyTorch's Flatten.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        """(N, a, b, …) → (N, a · b · …)"""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Identity(Module):
    """x, unchanged; takes and ignores any arguments when made, as in PyTorch.

    Shapes: (...) → (...)
    Source: PyTorch's Identity.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """(...) → (...)"""
        return input
