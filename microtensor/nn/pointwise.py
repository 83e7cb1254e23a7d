"""The functions of `functional` that keep the shape: activations and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from microtensor import ops
from microtensor.methods.arguments import as_rng
from microtensor.nn.checks import check_flag, check_number, check_tensors, refuse_integers
from microtensor.random import Generator, draw_seed
from microtensor.tensor import Tensor

__all__ = ["dropout", "gelu", "leaky_relu", "log_softmax", "logsigmoid", "relu", "sigmoid", "silu"]
__all__ += ["softmax", "softplus", "tanh"]


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(0, x), written over x if inplace; the gradient at 0 is 0.

    Shapes: (...) → (...)
    Raises: RuntimeError for inplace on a leaf that requires a gradient.
    Source: PyTorch's relu.
    """
    check_tensors("relu", input=input)
    return input.relu_() if inplace else input.relu()


def tanh(input: Tensor) -> Tensor:
    """tanh x

    Shapes: (...) → (...)
    Raises: TypeError for what is no tensor.
    Source: PyTorch's tanh.
    """
    check_tensors("tanh", input=input)
    return input.tanh()


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ)

    Shapes: (...) → (...)
    Raises: TypeError for what is no tensor.
    Source: PyTorch's sigmoid.
    """
    check_tensors("sigmoid", input=input)
    return input.sigmoid()


def softmax(input: Tensor, dim: int | None = None, *, dtype: Any = None) -> Tensor:
    """eˣ / Σ eˣ along dim, computed in dtype if given.

    Shapes: (...) → (...)
    Raises: TypeError without a dim; IndexError for one that the input has not.
    Source: "Attention Is All You Need", §3.2.1. Differs from PyTorch: dim must be given; a row of
    nothing but −∞ gives zeros, not NaN.
    """
    check_tensors("softmax", input=input)
    return input.softmax(dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, *, dtype: Any = None) -> Tensor:
    """x − ln Σ eˣ along dim, computed in dtype if given.

    Shapes: (...) → (...)
    Raises: TypeError without a dim; IndexError for one that the input has not.
    Source: PyTorch's log_softmax. Differs: dim must be given; a row of nothing but −∞ stays −∞, not NaN.
    """
    check_tensors("log_softmax", input=input)
    return input.log_softmax(dim, dtype)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x · Φ(x), or with approximate="tanh" x/2 · (1 + tanh(√(2/π)(x + 0.044715x³))).

    Shapes: (...) → (...)
    Raises: ValueError for another approximate; TypeError for integers.
    Source: Hendrycks & Gimpel 2016, §2.
    """
    refuse_integers("gelu", input)
    if approximate not in ("none", "tanh"):
        raise ValueError(f'gelu: approximate is {approximate!r}; choose "none" or "tanh"')
    return ops.gelu(input, approximate=approximate == "tanh")  # type: ignore[no-any-return]


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x · σ(x), σ the sigmoid; written over x if inplace.

    Shapes: (...) → (...)
    Raises: TypeError for integers; RuntimeError for inplace on a leaf that requires a gradient.
    Source: Hendrycks & Gimpel 2016, §2 (SiLU); the gate of Shazeer 2020's SwiGLU.
    """
    refuse_integers("silu", input)
    return _maybe_in_place(input, inplace, lambda x: x * x.sigmoid())


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where x > 0, else negative_slope · x; written over x if inplace.

    Shapes: (...) → (...)
    Raises: TypeError for integers; RuntimeError for inplace on a leaf that requires a gradient.
    Source: Maas et al. 2013, §2.
    """
    refuse_integers("leaky_relu", input)
    slope = check_number("leaky_relu", "negative_slope", negative_slope)
    return _maybe_in_place(input, inplace, lambda x: ops.where(x > 0, x, x * slope))


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """ln(1 + e^(beta · x)) / beta, and x itself where beta · x > threshold, as it is nearly there.

    Shapes: (...) → (...)
    Raises: TypeError for integers.
    Source: PyTorch's softplus.
    """
    refuse_integers("softplus", input)
    b, top = check_number("softplus", "beta", beta), check_number("softplus", "threshold", threshold)
    z = input * b
    far = z > top  # NaN is not, and goes through the formula as through any other
    return ops.where(far, input, ops.where(far, 0.0, z).exp().log1p() / b)  # type: ignore[no-any-return]


def logsigmoid(input: Tensor) -> Tensor:
    """ln σ(x) = −ln(1 + e⁻ˣ), σ the sigmoid.

    Shapes: (...) → (...)
    Raises: TypeError for integers.
    Source: PyTorch's logsigmoid.
    """
    refuse_integers("logsigmoid", input)
    return -neg_log_sigmoid(input)


def _maybe_in_place(input: Tensor, inplace: bool, function: Callable[[Tensor], Tensor]) -> Tensor:
    """function(input), written over the input if inplace; what backward needs is kept in a clone then."""
    return input.copy_(function(input.clone())) if inplace else function(input)


def dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Each element is dropped with probability p, the others divided by 1 − p; the identity if not training.

    inplace: written over the input. generator: whose random numbers; default: that of `mt.manual_seed`.

    Shapes: (...) → (...)
    Raises: ValueError unless 0 ≤ p ≤ 1; TypeError for integers in training, and a flag that is no bool.
    Source: Srivastava et al. 2014, §4. Differs: divided in training, not multiplied later, as in PyTorch.
    """
    check_tensors("dropout", input=input)
    check_number("dropout", "p", p, 1.0)
    check_flag("dropout", "training", training)
    if not training or p == 0.0:
        return input
    refuse_integers("dropout", input)
    as_rng("dropout", generator)  # is it one?
    seed = draw_seed(generator, input.numel())
    return _maybe_in_place(input, inplace, lambda x: ops.dropout(x, p=float(p), seed=seed))


def neg_log_sigmoid(x: Tensor) -> Tensor:
    """ln(1 + e⁻ˣ), which is −x to every digit below −40, where e⁻ˣ is on its way to infinity."""
    far = x < -40.0
    return ops.where(far, -x, (-ops.where(far, 0.0, x)).exp().log1p())  # type: ignore[no-any-return]
