"""Activations and losses as modules: a function of `functional` with its options kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from microtensor.nn import functional as F
from microtensor.nn.module import Module
from microtensor.tensor import Tensor

__all__ = [
    "GELU",
    "CrossEntropyLoss",
    "KLDivLoss",
    "LogSoftmax",
    "MSELoss",
    "NLLLoss",
    "ReLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
]


class _Function(Module):
    """Calls its function with its options, which are its attributes."""

    _function: Callable[..., Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def forward(self, *inputs: Tensor) -> Tensor:
        """(input) or (input, target), as the function takes them."""
        return type(self)._function(*inputs, **{name: getattr(self, name) for name in self._options})

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._options)


class ReLU(_Function):
    """max(0, x); inplace: written over x."""

    _function = F.relu

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)

    def extra_repr(self) -> str:
        """inplace, if it is on"""
        return "inplace=True" if self.inplace else ""


class GELU(_Function):
    """x · Φ(x), or its tanh approximation."""

    _function = F.gelu

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(approximate=approximate)


class Tanh(_Function):
    """tanh x"""

    _function = F.tanh


class Sigmoid(_Function):
    """1 / (1 + e⁻ˣ)"""

    _function = F.sigmoid


class Softmax(_Function):
    """eˣ / Σ eˣ along dim; a row that is −∞ everywhere gives zeros."""

    _function = F.softmax

    def __init__(self, dim: int) -> None:
        super().__init__(dim=dim)


class LogSoftmax(_Function):
    """x − ln Σ eˣ along dim."""

    _function = F.log_softmax

    def __init__(self, dim: int) -> None:
        super().__init__(dim=dim)


class _Loss(_Function):
    def extra_repr(self) -> str:
        """Nothing, as in PyTorch."""
        return ""


class CrossEntropyLoss(_Loss):
    """`functional.cross_entropy`: logits (N, C), classes (N,) → a scalar."""

    _function = F.cross_entropy

    def __init__(
        self, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
    ) -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing)


class NLLLoss(_Loss):
    """`functional.nll_loss`: log-probabilities (N, C), classes (N,) → a scalar."""

    _function = F.nll_loss

    def __init__(self, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(ignore_index=ignore_index, reduction=reduction)


class MSELoss(_Loss):
    """`functional.mse_loss`: two tensors of one shape → a scalar."""

    _function = F.mse_loss

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)


class KLDivLoss(_Loss):
    """`functional.kl_div`: log-probabilities and probabilities → a scalar."""

    _function = F.kl_div

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction=reduction, log_target=log_target)
