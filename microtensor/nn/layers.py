"""Layers: parameters around a function of `functional`. PyTorch's names, shapes and initial values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from microtensor import dtypes, engine
from microtensor.nn import functional as F
from microtensor.nn import init
from microtensor.nn.module import Module, Parameter
from microtensor.tensor import Tensor

__all__ = [
    "GELU",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Identity",
    "LayerNorm",
    "Linear",
    "ModuleList",
    "ReLU",
    "Sequential",
]


def _parameter(*shape: int, dtype: Any = None) -> Parameter:
    return Parameter(engine.make(np.zeros(shape, dtype or dtypes.default), None, None))


class Linear(Module):
    """Y = X Wᵀ + b.

    Shapes: (..., in_features) → (..., out_features); weight (out_features, in_features), bias (out_features,)
    Initial values: U(−1/√in, 1/√in) for both, as in PyTorch (`nn.init.xavier_uniform_` is the Transformer's).
    Source: the lecture's projections Q = X W^Q, with W^Q = Wᵀ.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = _parameter(out_features, in_features, dtype=dtype)
        bound = 1.0 / math.sqrt(in_features) if in_features else 0.0
        init.uniform_(self.weight, -bound, bound)
        self.register_parameter("bias", _parameter(out_features, dtype=dtype) if bias else None)
        if bias:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """(..., in_features) → (..., out_features)"""
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """in, out, bias"""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


class Embedding(Module):
    """A table of one vector per id. Shapes: integer ids (...) → (..., embedding_dim).

    Initial values N(0, 1); the row padding_idx starts at zero and gets no gradient.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        self.weight = _parameter(num_embeddings, embedding_dim, dtype=dtype)
        init.normal_(self.weight)
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(
                    f"Embedding: padding_idx {padding_idx} is outside 0 … {num_embeddings - 1}; choose a row"
                )
            self.weight.array[padding_idx] = 0

    def forward(self, input: Tensor) -> Tensor:
        """ids (...) → (..., embedding_dim)"""
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """rows, columns, padding row"""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class LayerNorm(Module):
    """y = weight · (x − μ)/√(σ² + eps) + bias over the last axes. Shapes: (..., *normalized_shape) → same.

    Source: Ba, Kiros & Hinton 2016, §3; see `functional.layer_norm` for where we differ.
    """

    def __init__(
        self,
        normalized_shape: int | Iterable[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.normalized_shape, self.eps = shape, eps
        self.register_parameter("weight", _parameter(*shape, dtype=dtype) if elementwise_affine else None)
        self.register_parameter(
            "bias", _parameter(*shape, dtype=dtype) if elementwise_affine and bias else None
        )
        if elementwise_affine:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        """(..., *normalized_shape) → the same"""
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """shape, eps"""
        return f"{self.normalized_shape}, eps={self.eps}"


class Dropout(Module):
    """In training, each element is dropped with probability p and the others are divided by 1 − p."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"Dropout: p is {p}; it is the probability to drop, between 0 and 1")
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """(...) → (...)"""
        return F.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        """p"""
        return f"p={self.p}"


class ReLU(Module):
    """max(0, x)"""

    def forward(self, input: Tensor) -> Tensor:
        """(...) → (...)"""
        return F.relu(input)


class GELU(Module):
    """x · Φ(x), or its tanh approximation."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """(...) → (...)"""
        return F.gelu(input, self.approximate)


class Identity(Module):
    """x, unchanged; takes and ignores any arguments, as in PyTorch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """(...) → (...)"""
        return input


class CrossEntropyLoss(Module):
    """`functional.cross_entropy` with its options kept."""

    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """logits (N, C), classes (N,) → scalar"""
        return F.cross_entropy(
            input,
            target,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class ModuleList(Module):
    """A list of modules that are registered under their numbers."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> ModuleList:
        """One more at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Several more at the end."""
        for module in modules:
            self.append(module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(*[list(self)[index]] if type(self) is ModuleList else list(self)[index])
        return list(self)[index]

    def __setitem__(self, index: int, module: Module) -> None:
        self._modules[str(range(len(self))[index])] = module


class Sequential(ModuleList):
    """Modules one after the other: the output of each is the input of the next."""

    def __init__(self, *modules: Module) -> None:
        super().__init__(modules)

    def forward(self, input: Any) -> Any:
        """The input of the first module → the output of the last."""
        for module in self:
            input = module(input)
        return input
