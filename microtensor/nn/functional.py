"""Functions of neural networks with PyTorch's names: checks and defaults here, formulas in `ops`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from microtensor import dtypes, engine, ops
from microtensor.methods.arguments import as_axis, as_integer, as_number
from microtensor.methods.calling import by_its_name
from microtensor.misfit import broadcast, factor, made
from microtensor.nn.checks import check_broadcast, check_flag, check_number, check_tensors, refuse_integers

# models use it; PyTorch has no such name, so it is not in __all__
from microtensor.nn.checks import check_mask as check_mask
from microtensor.nn.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from microtensor.nn.pointwise import (
    dropout,
    gelu,
    leaky_relu,
    log_softmax,
    logsigmoid,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from microtensor.random import draw_seed
from microtensor.tensor import Tensor

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_similarity"]
__all__ += ["cross_entropy", "dropout", "embedding", "gelu", "huber_loss", "kl_div", "l1_loss"]
__all__ += ["layer_norm", "leaky_relu", "linear", "log_softmax", "logsigmoid", "mse_loss", "nll_loss"]
__all__ += ["normalize", "one_hot", "pad", "relu", "rms_norm", "scaled_dot_product_attention", "sigmoid"]
__all__ += ["silu", "smooth_l1_loss", "softmax", "softplus", "tanh"]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Y = X Wᵀ + b.

    Shapes: input (..., in), weight (out, in), bias (out,) → (..., out); weight (in,), no bias → (...)
    Raises: ValueError for other shapes; TypeError for unequal dtypes.
    Source: PyTorch's linear; the lecture's projections Q = X W^Q, with W^Q = Wᵀ.
    """
    check_tensors("linear", input=input, weight=weight, bias=weight if bias is None else bias)
    if weight.array.ndim == 1 and bias is None:
        return by_its_name(input.matmul, "linear")(weight)
    if weight.array.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        found = None if bias is None else bias.shape
        raise ValueError(f"linear: weight {weight.shape}, bias {found}; make them (out, in) and (out,)")
    return ops.linear(input, weight, bias)  # type: ignore[no-any-return]


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of weight picked by integer ids; the row padding_idx gets no gradient.

    Shapes: input (...), weight (V, C) → (..., C)
    Raises: IndexError for an id outside 0 … V − 1, with the id; TypeError for ids that are no integers;
    ValueError for a padding_idx outside the rows or a weight that is no matrix.
    Source: PyTorch's embedding.
    """
    check_tensors("embedding", input=input, weight=weight)
    if weight.ndim != 2:
        raise ValueError(f"embedding: weight has shape {weight.shape}; make it (V, C), a row for each id")
    ids = input.array
    if ids.dtype.kind not in "iu":
        raise TypeError(f"embedding: the ids are {ids.dtype}; make them integers with .long()")
    if ids.size and not (ids.min() >= 0 and ids.max() < len(weight)):
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise IndexError(f"embedding: id {wrong} is outside 0 … {len(weight) - 1}; enlarge num_embeddings or "
                         f"fix the ids{made([input])}")  # fmt: skip
    row = None if padding_idx is None else padding_row("embedding", padding_idx, len(weight))
    return ops.embedding(weight, input, padding_idx=row)  # type: ignore[no-any-return]


def padding_row(who: str, padding_idx: int, rows: int) -> int:
    """As an id, which programs compare ids with: from the end, −1 is the last."""
    if not -rows <= as_integer(who, "padding_idx", padding_idx) < rows:
        raise ValueError(f"{who}: padding_idx {padding_idx} is outside 0 … {rows - 1}; choose a row of the "
                         f"weight")  # fmt: skip
    return int(padding_idx) % rows


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
) -> Tensor:
    """y = weight · (x − μ) / √(σ² + eps) + bias, μ and σ² over the last axes (σ² divides by C, not C − 1).

    x is input, or input + residual in one op, as a sublayer of the Transformer ends: LayerNorm(x + f(x)).

    Shapes: input and residual (..., *normalized_shape), weight and bias normalized_shape → as input
    Raises: ValueError if the input does not end in normalized_shape, weight or bias is not of it, or residual
    is not like input; TypeError for integers, and for dtypes that differ.
    Source: Ba, Kiros & Hinton 2016, §3. Differs: eps inside the root (the paper has none), as in PyTorch,
    which takes no residual.
    """
    refuse_integers("layer_norm", input)
    shape = _ends_in("layer_norm", input, normalized_shape)
    _check_affine("layer_norm", input, shape, weight=weight, bias=bias)
    eps = check_number("layer_norm", "eps", eps)
    w = engine.make(np.ones(shape, input.dtype), None, None) if weight is None else weight
    b = engine.make(np.zeros(shape, input.dtype), None, None) if bias is None else bias
    norm, given = (ops.layer_norm, [input]) if residual is None else (ops.add_layer_norm, [input, residual])
    if residual is not None:
        check_tensors("layer_norm", residual=residual)
        if (residual.shape, residual.dtype) != (input.shape, input.dtype):
            raise ValueError(f"layer_norm: input {input.dtype} {input.shape} and residual {residual.dtype} "
                             f"{residual.shape} differ; give two alike, or add them before")  # fmt: skip
    if len(shape) == 1:
        return norm(*given, w, b, eps=eps)  # type: ignore[no-any-return]
    rows = [x.reshape(*x.shape[: -len(shape)], math.prod(shape)) for x in given]
    y: Tensor = norm(*rows, w.reshape(-1), b.reshape(-1), eps=eps)
    return y.reshape(input.shape)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """y = weight · x / √(mean(x²) + eps), the mean over the last axes; eps: the dtype's smallest step at 1.

    Shapes: input (..., *normalized_shape), weight normalized_shape → as input
    Raises: ValueError if the input does not end in normalized_shape, or weight is not of it; TypeError for
    integers as input.
    Source: Zhang & Sennrich 2019, §3. Differs: eps inside the root (the paper has none), as in PyTorch.
    """
    refuse_integers("rms_norm", input)
    shape = _ends_in("rms_norm", input, normalized_shape)
    _check_affine("rms_norm", input, shape, weight=weight)
    axes = tuple(range(-len(shape), 0))
    small = check_number("rms_norm", "eps", np.finfo(input.dtype).eps if eps is None else eps)
    y = input * ((input * input).mean(axes, keepdim=True) + small).rsqrt()
    return y if weight is None else (y * weight).to(input.dtype)  # whatever the weight's is


def _ends_in(who: str, input: Tensor, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(normalized_shape, (tuple, list, Sequence)):
        raise TypeError(f"{who}: normalized_shape is {normalized_shape!r}; give the lengths in a tuple")
    shape = tuple(normalized_shape)
    if not shape or input.shape[-len(shape) :] != shape:
        raise ValueError(f"{who}: input {input.shape} does not end in {shape}; normalise over its last axes")
    return shape


def _check_affine(who: str, input: Tensor, shape: tuple[int, ...], **parts: Tensor | None) -> None:
    for name, part in parts.items():
        if part is None:
            continue
        if not isinstance(part, Tensor):
            check_tensors(who, **{name: part})
        if part.array.shape != shape:
            raise ValueError(f"{who}: {name} has shape {part.shape}, not {shape}; make it normalized_shape")
        if part.array.dtype != input.array.dtype and who == "layer_norm":
            raise TypeError(f"{who}: input {input.dtype} and {name} {part.dtype} differ; convert one")


@by_its_name
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x / max(‖x‖ₚ, eps) along dim: every row of length 1.

    Shapes: (...) → (...)
    Raises: IndexError for a dim that the input has not; TypeError for integers.
    Source: PyTorch's normalize.
    """
    refuse_integers("normalize", input)
    return input / input.norm(p, dim, keepdim=True).clamp(min=eps)


@by_its_name
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """⟨x1, x2⟩ / (max(‖x1‖, eps) · max(‖x2‖, eps)) along dim: the cosine of the angle between them.

    Shapes: x1 and x2 broadcast to (..., D, ...) → the same without the axis dim
    Raises: IndexError for a dim that they have not; ValueError for shapes that do not broadcast; TypeError
    for integers alone.
    Source: PyTorch's cosine_similarity. Differs: no gradient through a length below eps.
    """
    check_tensors("cosine_similarity", x1=x1, x2=x2)
    shape = broadcast("cosine_similarity", x1.shape, x2.shape)  # first: dim counts the axes of both
    x1, x2 = x1.broadcast_to(shape), x2.broadcast_to(shape)
    axis = as_axis("cosine_similarity", x1, dim)
    check_number("cosine_similarity", "eps", eps, math.inf, "make it 0 or more")
    dtype = dtypes.result_dtype((x1, x2))  # a 0-d tensor counts like the other
    refuse_integers("cosine_similarity", x1.to(dtype))
    a, b = (normalize(x.to(dtype), 2.0, axis, eps) for x in (x1, x2))
    return (a * b).sum(axis)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """`value` (0) around the tensor: pad is (before, after) of the last axis, then of the one before.

    A negative number cuts off instead.

    Shapes: (..., n) → (..., before + n + after), and so on for each axis that pad names
    Raises: ValueError for another mode, a pad that does not fit and a value that the integer dtype cannot
    hold; TypeError for a pad that is not of integers, and a value that is no number.
    Source: PyTorch's pad. Differs: mode "constant" only.
    """
    if mode != "constant":
        raise ValueError(f'pad: mode is {mode!r}; only "constant" is known')
    check_tensors("pad", input=input)
    if not isinstance(pad, Sequence) or not all(isinstance(n, int) for n in pad):
        raise TypeError(f"pad: pad is {pad!r}; give a tuple of integers, two for each of the last axes")
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ValueError(f"pad: {tuple(pad)} for shape {input.shape}; give two numbers for each of its last "
                         f"axes, those of the last one first")  # fmt: skip
    n = input.ndim - len(pad) // 2
    pairs = [(0, 0)] * n + list(zip(pad[-2::-2], pad[::-2], strict=True))
    shape = [a + length + b for length, (a, b) in zip(input.shape, pairs, strict=True)]
    if any(max(-a, 0) + max(-b, 0) > m for m, (a, b) in zip(input.shape, pairs, strict=True)):
        raise ValueError(f"pad: {tuple(pad)} cuts more off than shape {input.shape} has; cut less")
    kept = [slice(max(-a, 0), m + min(b, 0)) for m, (a, b) in zip(input.shape, pairs, strict=True)]
    places = [slice(max(a, 0), m - max(b, 0)) for m, (a, b) in zip(shape, pairs, strict=True)]
    value = 0 if value is None else as_number("pad", value)
    ground = np.full(shape, dtypes.as_array(value, input.dtype, "pad"))
    inner = ops.getitem(input, index=(*kept, Ellipsis))
    return ops.setitem(engine.make(ground, None, None), inner, index=(*places, Ellipsis))  # type: ignore[no-any-return]


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """1 at the class, 0 elsewhere, int64; num_classes −1 stands for the largest class + 1.

    Shapes: (...) → (..., num_classes)
    Raises: TypeError for classes that are no integers; ValueError for one outside 0 … num_classes − 1, and
    for no classes without num_classes.
    Source: PyTorch's one_hot.
    """
    check_tensors("one_hot", tensor=tensor)
    ids = tensor.array
    if not isinstance(num_classes, int):
        raise TypeError(f"one_hot: num_classes is {num_classes!r}; give an integer")
    if ids.dtype.kind not in "iu":
        raise TypeError(f"one_hot: the classes are {ids.dtype}; make them integers with .long()")
    if num_classes < 1 and not ids.size:
        raise ValueError(f"one_hot: {tensor.shape} holds no class to count from; give num_classes")
    n = int(ids.max()) + 1 if num_classes == -1 else num_classes
    if ids.size and not (ids.min() >= 0 and ids.max() < n):
        raise ValueError(f"one_hot: classes {ids.min()} … {ids.max()} do not fit into 0 … {n - 1}; enlarge "
                         f"num_classes, or fix what is negative")  # fmt: skip
    if n > 2**40:
        raise ValueError(f"one_hot: {n} classes fit into no memory; give fewer")
    hot = (ids[..., None] == np.arange(n)).astype(np.int64)
    return engine.make(hot, None, None)  # type: ignore[no-any-return]


# --- attention ----------------------------------------------------------------------------------------------


@by_its_name
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
    """softmax(Q Kᵀ · scale + mask) V, scale 1/√d_k if not given; in a boolean mask True = may attend.

    is_causal lets query t see keys 0 … t (aligned top-left). A query that may attend to nothing gives zeros.
    A floating mask is added to the scores; `check_mask` says which would hide nothing, and are refused.

    Shapes: query (..., T, D), key (..., S, D), value (..., S, E), attn_mask broadcast to (..., T, S)
    → (..., T, E)
    Raises: ValueError for is_causal beside a mask, shapes that do not fit, and a float mask that hides
    nothing or holds NaN; TypeError for integers.
    Source: "Attention Is All You Need", eq. 1. Differs: mask, scale and dropout, as in PyTorch.
    """
    who = "scaled_dot_product_attention"
    check_tensors(who, query=query, key=key, value=value)
    refuse_integers(who, query)
    check_flag(who, "is_causal", is_causal)
    if is_causal and attn_mask is not None:
        raise ValueError(f"{who}: attn_mask {attn_mask.shape} beside is_causal; combine them into one mask")
    lead = check_attention(who, query, key, value)
    p = check_number(who, "dropout_p", dropout_p, 1.0)
    if attn_mask is not None:
        check_mask(who, attn_mask)
        scores = (*lead, query.shape[-2], key.shape[-2])
        check_broadcast(who, "attn_mask", attn_mask, "the scores (..., T, S)", scores)
        if attn_mask.dtype != np.bool_:
            attn_mask = attn_mask.to(query.dtype)  # a float64 mask would widen float32 scores
    q, k, v = [x if x.shape[:-2] == lead else x.expand(*lead, *x.shape[-2:]) for x in (query, key, value)]
    return ops.attention(  # type: ignore[no-any-return]
        q, k, v, attn_mask, causal=bool(is_causal), dropout_p=p,
        scale=1.0 / math.sqrt(q.shape[-1]) if scale is None else check_number(who, "scale", scale),
        seed=draw_seed(None, math.prod(lead)) if p else 0,
    )  # fmt: skip


def check_attention(who: str, query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The axes before the last two, broadcast."""
    q, k, v = query.shape, key.shape, value.shape
    if min(len(q), len(k), len(v)) < 2:
        wrong = "; each needs two axes at least, (..., length, width)"
    elif q[-1] != k[-1]:
        wrong = ": query and key differ in width; make their last axes equal"
    elif k[-2] != v[-2]:
        wrong = ": key and value differ in length; give one value for each key"
    else:
        try:
            return q[:-2] if q[:-2] == k[:-2] == v[:-2] else np.broadcast_shapes(q[:-2], k[:-2], v[:-2])
        except ValueError:
            wrong = f" do not broadcast; make their axes before the last two equal or 1{factor(q, k, v)}"
    for name, x, *others in (("query", q, k, v), ("key", k, q, v), ("value", v, q, k)):
        if all(len(x) > 2 and y[:-2] == (*x[:-3], x[-2]) != x[:-2] for y in others):
            wrong = f": the {name}'s heads and length are swapped; give {name}.transpose(-3, -2)"
        for y in others:  # (..., T, H·D) beside (..., H, S, D)
            if 1 < len(x) == len(y) - 1 and x[:-2] == y[:-3] and x[-1] == y[-3] * y[-1] != y[-1]:
                heads = f"{name}.unflatten(-1, ({y[-3]}, {y[-1]})).transpose(-3, -2)"
                wrong = f": the {name} is not split into heads; give {heads}"
    raise ValueError(f"{who}: query {q}, key {k} and value {v}{wrong}{made([query, key, value])}")
