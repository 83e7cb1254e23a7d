"""Functions of neural networks with PyTorch's names: checks and defaults here, formulas in `ops`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from microtensor import engine, log_softmax, ops, sigmoid, softmax, tanh
from microtensor.random import Generator, default_generator
from microtensor.tensor import Tensor

__all__ = [
    "cross_entropy",
    "dropout",
    "embedding",
    "gelu",
    "kl_div",
    "layer_norm",
    "linear",
    "log_softmax",
    "mse_loss",
    "nll_loss",
    "normalize",
    "one_hot",
    "pad",
    "relu",
    "scaled_dot_product_attention",
    "sigmoid",
    "softmax",
    "tanh",
]


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(0, x), written over x if inplace; the gradient at 0 is 0."""
    return input.relu_() if inplace else input.relu()


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x · Φ(x), or with approximate="tanh" x/2 · (1 + tanh(√(2/π)(x + 0.044715x³))).

    Source: Hendrycks & Gimpel 2016, §2.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f'gelu: approximate is {approximate!r}; choose "none" or "tanh"')
    return ops.gelu(input, approximate=approximate == "tanh")  # type: ignore[no-any-return]


def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, generator: Generator | None = None
) -> Tensor:
    """Each element is dropped with probability p, the others divided by 1 − p; the identity if not training.

    Raises: ValueError unless 0 ≤ p ≤ 1. Source: Srivastava et al. 2014, §4.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout: p is {p}; it is the probability to drop, between 0 and 1")
    if not training or p == 0.0:
        return input
    _refuse_integers("dropout", input)
    keep = (generator or default_generator).numpy.random(input.shape, np.float32) >= p
    return ops.dropout(input, engine.make(keep, None, None), p=float(p))  # type: ignore[no-any-return]


def _refuse_integers(who: str, x: Tensor) -> None:
    """What is no whole number would be cut."""
    if x.dtype.kind != "f":
        raise TypeError(f"{who}: the input is {x.dtype}; make it floating with .float()")


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Y = X Wᵀ + b. Shapes: input (..., in), weight (out, in), bias (out,) → (..., out)."""
    if weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        found = None if bias is None else bias.shape
        raise ValueError(f"linear: weight {weight.shape}, bias {found}; make them (out, in) and (out,)")
    return ops.linear(input, weight, bias)  # type: ignore[no-any-return]


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight picked by integer ids. Shapes: input (...), weight (V, C) → (..., C).

    The row padding_idx gets no gradient. Raises: IndexError for an id outside 0 … V − 1, with the id.
    """
    ids = input.array
    if ids.dtype.kind not in "iu":
        raise TypeError(f"embedding: the ids are {ids.dtype}; make them integers with .long()")
    if ids.size and not (ids.min() >= 0 and ids.max() < len(weight)):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise IndexError(
            f"embedding: id {wrong} is outside 0 … {len(weight) - 1}; enlarge num_embeddings or fix the ids"
        )
    if padding_idx is not None:
        if not -len(weight) <= padding_idx < len(weight):
            raise ValueError(
                f"embedding: padding_idx {padding_idx} is outside 0 … {len(weight) - 1}; choose a row of "
                "the weight"
            )
        padding_idx %= len(weight)
    return ops.embedding(weight, input, padding_idx=padding_idx)  # type: ignore[no-any-return]


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """y = weight · (x − μ) / √(σ² + eps) + bias, μ and σ² over the last axes (σ² divides by C, not C − 1).

    Shapes: input (..., *normalized_shape), weight and bias normalized_shape → as input
    Raises: ValueError if the input does not end in normalized_shape, or weight or bias is not of it.
    Source: Ba, Kiros & Hinton 2016, §3. Differs: eps inside the root (the paper has none), as in PyTorch.
    """
    _refuse_integers("layer_norm", input)
    shape = tuple(normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        raise ValueError(
            f"layer_norm: input {input.shape} does not end in {shape}; normalise over its last axes"
        )
    for name, part in (("weight", weight), ("bias", bias)):
        if part is not None and part.shape != shape:
            raise ValueError(
                f"layer_norm: {name} has shape {part.shape}, not {shape}; make it normalized_shape"
            )
        if part is not None and part.dtype != input.dtype:
            raise TypeError(f"layer_norm: input {input.dtype} and {name} {part.dtype} differ; convert one")
    size = math.prod(shape)
    w = engine.make(np.ones(size, input.dtype), None, None) if weight is None else weight.reshape(size)
    b = engine.make(np.zeros(size, input.dtype), None, None) if bias is None else bias.reshape(size)
    rows = input if len(shape) == 1 else input.reshape(*input.shape[: -len(shape)], size)
    y: Tensor = ops.layer_norm(rows, w, b, eps=float(eps))
    return y if len(shape) == 1 else y.reshape(input.shape)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x / max(‖x‖ₚ, eps) along dim: every row of length 1."""
    return input / input.norm(p, dim, keepdim=True).clamp(min=eps)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """`value` (0) around the tensor: pad is (before, after) of the last axis, then of the one before.

    A negative number cuts off instead. Raises: ValueError for another mode and for a pad that does not fit.
    """
    if mode != "constant":
        raise ValueError(f'pad: mode is {mode!r}; only "constant" is known')
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ValueError(
            f"pad: {tuple(pad)} for shape {input.shape}; give two numbers for each of its last axes"
        )
    n = input.ndim - len(pad) // 2
    pairs = [(0, 0)] * n + list(zip(pad[-2::-2], pad[::-2], strict=True))
    shape = [a + length + b for length, (a, b) in zip(input.shape, pairs, strict=True)]
    if any(length < 0 for length in shape):
        raise ValueError(f"pad: {tuple(pad)} cuts more off than shape {input.shape} has; cut less")
    kept = [slice(max(-a, 0), m + min(b, 0)) for m, (a, b) in zip(input.shape, pairs, strict=True)]
    places = [slice(max(a, 0), m - max(b, 0)) for m, (a, b) in zip(shape, pairs, strict=True)]
    ground = np.full(shape, 0 if value is None else value, input.dtype)
    inner = ops.getitem(input, index=(*kept, Ellipsis))
    return ops.setitem(engine.make(ground, None, None), inner, index=(*places, Ellipsis))  # type: ignore[no-any-return]


# --- losses -------------------------------------------------------------------------------------------------


def _reduce(who: str, losses: Tensor, reduction: str) -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'{who}: reduction is {reduction!r}; choose "mean", "sum" or "none"')
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def cross_entropy(
    input: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """−Σ_c q_c · ln softmax(input)_c, averaged over the targets that are not ignore_index; logits go in.

    q is 1 − ε at the target plus ε/C everywhere (ε = label_smoothing).
    Shapes: input (C,), (N, C) or (N, C, d…), target the same without C → scalar, or as target for "none"
    Raises: ValueError for shapes or ε outside 0 … 1; IndexError for a class outside 0 … C − 1.
    All targets ignored: NaN, as in PyTorch. Source: "Attention Is All You Need", §5.4 (smoothing).
    """
    _refuse_integers("cross_entropy", input)
    rows, ids = _class_rows("cross_entropy", input, target, ignore_index)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"cross_entropy: label_smoothing is {label_smoothing}; choose it between 0 and 1")
    losses = ops.cross_entropy(rows, ids, ignore_index=ignore_index, label_smoothing=float(label_smoothing))
    return _mean_of_kept("cross_entropy", losses, ids, ignore_index, reduction, target.shape)


def nll_loss(input: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """−input at the target: cross entropy of log-probabilities. Shapes and errors as `cross_entropy`."""
    rows, ids = _class_rows("nll_loss", input, target, ignore_index)
    kept = ids.array != ignore_index
    picked = -ops.getitem(rows, index=(np.arange(len(kept)), np.where(kept, ids.array, 0)))
    losses = ops.where(engine.make(kept, None, None), picked, 0.0)
    return _mean_of_kept("nll_loss", losses, ids, ignore_index, reduction, target.shape)


def _class_rows(who: str, input: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Scores as (N, C) and targets as (N,), checked."""
    if input.ndim == 0 or target.shape != input.shape[:1] * (input.ndim > 1) + input.shape[2:]:
        raise ValueError(
            f"{who}: input {input.shape} and target {target.shape} do not fit; the target has the input's "
            f"shape without its class axis (axis 1, or 0 if it is the only one)"
        )
    if target.dtype.kind not in "iu":
        raise TypeError(f"{who}: the target is {target.dtype}; give class numbers as an integer tensor")
    classes = input.shape[min(1, input.ndim - 1)]
    kept = target.array[target.array != ignore_index]
    if kept.size and not (kept.min() >= 0 and kept.max() < classes):
        wrong = kept.min() if kept.min() < 0 else kept.max()
        raise IndexError(
            f"{who}: target {wrong} is outside 0 … {classes - 1}; fix it, or name it as ignore_index"
        )
    rows = input.unsqueeze(0) if input.ndim == 1 else input if input.ndim == 2 else input.transpose(1, -1)
    if input.ndim > 2:  # (N, C, d1, …) → (N, d1, …, C)
        rows = input.permute(0, *range(2, input.ndim), 1)
    return rows.reshape(-1, classes), target.long().reshape(-1)


def _mean_of_kept(
    who: str, losses: Tensor, ids: Tensor, ignore_index: int, reduction: str, shape: tuple[int, ...]
) -> Tensor:
    if reduction == "mean":
        kept = int((ids.array != ignore_index).sum())
        return losses.sum() * (1.0 / kept if kept else math.nan)
    return _reduce(who, losses.reshape(shape), reduction)


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input − target)². Shapes: equal. Unlike in PyTorch, unequal shapes are an error, not a broadcast."""
    if input.shape != target.shape:
        raise ValueError(
            f"mse_loss: input {input.shape} and target {target.shape} differ; reshape one of them"
        )
    return _reduce("mse_loss", (input - target) * (input - target), reduction)


def kl_div(input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target · (ln target − input), the divergence of exp(input) from target; 0 · ln 0 is 0.

    input holds log-probabilities, target probabilities, or logarithms of them with log_target.
    reduction: "batchmean" divides the sum by the length of axis 0, which is the divergence; "mean", PyTorch's
    default, by the number of elements. Shapes: both broadcast.
    """
    if log_target:
        losses = target.exp() * (target - input)
    else:
        losses = target * (ops.where(target == 0, 1.0, target).log() - input)
    if reduction == "batchmean":
        return losses.sum() / (input.shape[0] if input.ndim else 1)
    return _reduce("kl_div", losses, reduction)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """1 at the class, 0 elsewhere, int64. Shapes: (...) → (..., num_classes); −1: the largest class + 1."""
    ids = tensor.array
    if ids.dtype.kind not in "iu":
        raise TypeError(f"one_hot: the classes are {ids.dtype}; make them integers with .long()")
    n = int(ids.max()) + 1 if num_classes == -1 else num_classes
    if ids.size and not (ids.min() >= 0 and ids.max() < n):
        raise ValueError(
            f"one_hot: classes {ids.min()} … {ids.max()} do not fit into 0 … {n - 1}; enlarge num_classes"
        )
    hot = (ids[..., None] == np.arange(n)).astype(np.int64)
    return engine.make(hot, None, None)  # type: ignore[no-any-return]


# --- attention ----------------------------------------------------------------------------------------------


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Tensor:
    """softmax(Q Kᵀ / √d_k + mask) V; a boolean mask is True where a query may attend.

    Shapes: query (..., T, D), key (..., S, D), value (..., S, E), attn_mask broadcast to (..., T, S)
    → (..., T, E)
    is_causal lets query t see keys 0 … t (aligned top-left). A query that may attend to nothing gives zeros.
    Raises: ValueError for is_causal beside a mask. Source: "Attention Is All You Need", eq. 1.
    """
    if is_causal and attn_mask is not None:
        raise ValueError(
            "scaled_dot_product_attention: is_causal with an attn_mask; combine them into one mask"
        )
    scores = query @ key.mT * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)  # (..., T, S)
    if is_causal:
        attn_mask = engine.make(np.tri(*scores.shape[-2:], dtype=bool), None, None)
    if attn_mask is not None and attn_mask.dtype == np.bool_:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.to(scores.dtype)  # a float64 mask would widen float32 scores
    return dropout(scores.softmax(-1), dropout_p) @ value  # (..., T, E)
