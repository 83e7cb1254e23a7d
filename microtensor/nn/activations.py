"""Activations and losses as modules: a function of `functional` with its options kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from microtensor.nn import functional as F
from microtensor.nn.module import Module
from microtensor.tensor import Tensor

__all__ = ["GELU", "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "HuberLoss", "KLDivLoss", "L1Loss"]
__all__ += ["LeakyReLU", "LogSigmoid", "LogSoftmax", "MSELoss", "NLLLoss", "ReLU", "SiLU", "Sigmoid"]
__all__ += ["SmoothL1Loss", "Softmax", "Softplus", "Tanh"]


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
        shown = [name for name in self._options if name != "inplace" or self.inplace]
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)


class ReLU(_Function):
    """max(0, x); inplace: written over x.

    Shapes: (...) → (...)
    Raises: RuntimeError for inplace on a leaf that requires a gradient.
    Source: PyTorch's ReLU.
    """

    _function = F.relu

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class LeakyReLU(_Function):
    """x where x > 0, else negative_slope · x; inplace: written over x.

    Shapes: (...) → (...)
    Raises: TypeError for integers; RuntimeError for inplace on a leaf that requires a gradient.
    Source: Maas et al. 2013, §2.
    """

    _function = F.leaky_relu

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__(negative_slope=negative_slope, inplace=inplace)


class SiLU(_Function):
    """x · σ(x), σ the sigmoid; inplace: written over x.

    Shapes: (...) → (...)
    Raises: TypeError for integers; RuntimeError for inplace on a leaf that requires a gradient.
    Source: Hendrycks & Gimpel 2016, §2.
    """

    _function = F.silu

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(inplace=inplace)


class Softplus(_Function):
    """ln(1 + e^(beta · x)) / beta, and x itself where beta · x > threshold.

    Shapes: (...) → (...)
    Raises: TypeError for integers.
    Source: PyTorch's Softplus.
    """

    _function = F.softplus

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__(beta=beta, threshold=threshold)


class LogSigmoid(_Function):
    """ln σ(x), σ the sigmoid.

    Shapes: (...) → (...)
    Raises: TypeError for integers.
    Source: PyTorch's LogSigmoid.
    """

    _function = F.logsigmoid


class GELU(_Function):
    """x · Φ(x), or with approximate="tanh" its approximation: `functional.gelu`.

    Shapes: (...) → (...)
    Raises: ValueError for another approximate when called; TypeError for integers.
    Source: Hendrycks & Gimpel 2016, §2.
    """

    _function = F.gelu

    def __init__(self, approximate: str = "none") -> None:
        super().__init__(approximate=approximate)


class Tanh(_Function):
    """tanh x

    Shapes: (...) → (...)
    Source: PyTorch's Tanh.
    """

    _function = F.tanh


class Sigmoid(_Function):
    """1 / (1 + e⁻ˣ)

    Shapes: (...) → (...)
    Source: PyTorch's Sigmoid.
    """

    _function = F.sigmoid


class Softmax(_Function):
    """eˣ / Σ eˣ along dim.

    Shapes: (...) → (...)
    Raises: when called, TypeError without a dim, IndexError for one that the input has not.
    Source: PyTorch's Softmax. Differs: dim must be given; a row that is −∞ everywhere gives zeros, not NaN.
    """

    _function = F.softmax

    def __init__(self, dim: int | None = None) -> None:
        super().__init__(dim=dim)


class LogSoftmax(_Function):
    """x − ln Σ eˣ along dim.

    Shapes: (...) → (...)
    Raises: when called, TypeError without a dim, IndexError for one that the input has not.
    Source: PyTorch's LogSoftmax. Differs: dim must be given.
    """

    _function = F.log_softmax

    def __init__(self, dim: int | None = None) -> None:
        super().__init__(dim=dim)


# --- losses -------------------------------------------------------------------------------------------------


class _Loss(_Function):
    """A loss with its options; those that are tensors are buffers, as in PyTorch."""

    def __init__(self, *, reduction: str = "mean", **options: Any) -> None:
        super().__init__(**options, reduction=reduction)
        for name in ("weight", "pos_weight"):
            if name in options:
                self.register_buffer(name, self.__dict__.pop(name))

    extra_repr = Module.extra_repr  # nothing, as in PyTorch


class CrossEntropyLoss(_Loss):
    """`functional.cross_entropy` of logits and classes, or probabilities of classes.

    Shapes: (C,), (N, C) or (N, C, d…) and the same without C → scalar, or as target for reduction="none"
    Raises: as `functional.cross_entropy`, when called.
    Source: "Attention Is All You Need", §5.4 (label_smoothing); PyTorch's CrossEntropyLoss.
    """

    _function = F.cross_entropy

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(
            weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )


class NLLLoss(_Loss):
    """`functional.nll_loss` of log-probabilities and classes.

    Shapes: (C,), (N, C) or (N, C, d…) and the same without C → scalar, or as target for reduction="none"
    Raises: as `functional.nll_loss`, when called.
    Source: PyTorch's NLLLoss.
    """

    _function = F.nll_loss

    def __init__(
        self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)


class BCELoss(_Loss):
    """`functional.binary_cross_entropy` of probabilities and targets in 0 … 1.

    Shapes: two of one shape → scalar, or that shape for reduction="none"
    Raises: as the function, when called.
    Source: PyTorch's BCELoss.
    """

    _function = F.binary_cross_entropy

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean") -> None:
        super().__init__(weight=weight, reduction=reduction)


class BCEWithLogitsLoss(_Loss):
    """`functional.binary_cross_entropy_with_logits` of logits and targets in 0 … 1.

    Shapes: two of one shape → scalar, or that shape for reduction="none"
    Raises: as the function, when called.
    Source: PyTorch's BCEWithLogitsLoss.
    """

    _function = F.binary_cross_entropy_with_logits

    def __init__(
        self, weight: Tensor | None = None, *, reduction: str = "mean", pos_weight: Tensor | None = None
    ) -> None:
        super().__init__(weight=weight, reduction=reduction, pos_weight=pos_weight)


class MSELoss(_Loss):
    """(input − target)²: `functional.mse_loss`.

    Shapes: two of one shape → scalar, or that shape for reduction="none"
    Raises: ValueError for unequal shapes or another reduction, when called.
    Source: PyTorch's MSELoss. Differs: unequal shapes are an error, not a broadcast.
    """

    _function = F.mse_loss

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)


class L1Loss(_Loss):
    """|input − target|: `functional.l1_loss`.

    Shapes: two of one shape → scalar, or that shape for reduction="none"
    Raises: ValueError for unequal shapes or another reduction, when called.
    Source: PyTorch's L1Loss. Differs: unequal shapes are an error, not a broadcast.
    """

    _function = F.l1_loss

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)


class SmoothL1Loss(_Loss):
    """d²/(2 beta) where |d| < beta, else |d| − beta/2, d = input − target: `functional.smooth_l1_loss`.

    Shapes: two of one shape → scalar, or that shape for reduction="none"
    Raises: ValueError for unequal shapes, another reduction or a negative beta, when called.
    Source: Girshick 2015, eq. 3. Differs: beta (1 there), as in PyTorch.
    """

    _function = F.smooth_l1_loss

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction=reduction, beta=beta)


class HuberLoss(_Loss):
    """d²/2 where |d| ≤ delta, else delta · (|d| − delta/2), d = input − target: `functional.huber_loss`.

    Shapes: two of one shape → scalar, or that shape for reduction="none"
    Raises: ValueError for unequal shapes, another reduction or a delta not above 0, when called.
    Source: Huber 1964, as PyTorch's HuberLoss.
    """

    _function = F.huber_loss

    def __init__(self, *, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction, delta=delta)


class KLDivLoss(_Loss):
    """target · (ln target − input): `functional.kl_div` of log-probabilities and probabilities.

    Shapes: two that broadcast → scalar, or what they broadcast to for reduction="none"
    Raises: ValueError for shapes that do not broadcast or another reduction, when called.
    Source: PyTorch's KLDivLoss.
    """

    _function = F.kl_div

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction=reduction, log_target=log_target)
