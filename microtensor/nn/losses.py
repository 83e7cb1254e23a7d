"""The losses of `functional`: how far a model's output is from its target, averaged, summed or one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from microtensor import dtypes, engine, ops
from microtensor.methods.arguments import as_integer
from microtensor.methods.calling import by_its_name
from microtensor.misfit import made
from microtensor.nn import checks
from microtensor.nn.checks import check_broadcast, check_fixed, check_number, check_tensors, refuse_integers
from microtensor.nn.pointwise import neg_log_sigmoid
from microtensor.tensor import Tensor

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss"]
__all__ += ["kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss"]


def _reduce(who: str, losses: Tensor, reduction: str) -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'{who}: reduction is {reduction!r}; choose "mean", "sum" or "none"')
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


# --- classes ------------------------------------------------------------------------------------------------


@by_its_name
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """−Σ_c w_c · q_c · ln softmax(input)_c, averaged over targets that are not ignore_index; logits go in.

    q is 1 − ε at the target plus ε/C everywhere (ε = label_smoothing). A floating target is q before the
    smoothing, a probability for each class. weight is w, 1 for each class if not given; the mean is then
    weighted, divided by the sum of the targets' w (for probabilities by their number). All targets ignored:
    NaN, as in PyTorch.

    Shapes: input (C,), (N, C) or (N, C, d…), target the same without C, or with it if it
    is floating, weight (C,) → scalar, or as target (without C) for reduction="none"
    Raises: ValueError for shapes, reduction, or ε outside 0 … 1; TypeError for an integer input or, beside
    class numbers, another dtype of weight; there RuntimeError for a weight that requires a gradient, and
    IndexError for a class outside 0 … C − 1.
    Source: "Attention Is All You Need", §5.4 (smoothing); PyTorch's cross_entropy.
    """
    who = "cross_entropy"
    refuse_integers(who, input)
    check_tensors(who, target=target)
    smoothing = check_number(who, "label_smoothing", label_smoothing, 1.0, "choose it between 0 and 1")
    if target.dtype.kind == "f":
        return _soft_cross_entropy(input, target, weight, reduction, smoothing)
    rows, ids = _class_rows(who, input, target, ignore_index)
    w = _class_weights(who, rows, weight)
    if w is None:
        average = reduction == "mean"
        losses: Tensor = ops.cross_entropy(
            rows, ids, ignore_index=ignore_index, label_smoothing=smoothing, average=average
        )
        return losses if average else _reduce(who, losses.reshape(target.shape), reduction)
    kept = engine.make(ids.array != ignore_index, None, None)
    # where: what an ignored row holds is nobody's business, not even its NaN
    log_p = ops.log_softmax(ops.where(kept.unsqueeze(1), rows, 0.0), axis=-1)
    losses = _picked(log_p, ids, w, ignore_index)
    if smoothing:
        spread = ops.where(kept, -(log_p * w).mean(1), 0.0)
        losses = (1.0 - smoothing) * losses + smoothing * spread
    return _mean_of_kept(who, losses, ids, w, ignore_index, reduction, target)


def _soft_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    """For a target that is a probability for each class."""
    if input.ndim == 0 or target.shape != input.shape:
        raise ValueError(f"cross_entropy: input {input.shape} and target {target.shape} do not fit; a "
                         f"floating target has the input's shape, class numbers are integers: convert them "
                         f"with .long()")  # fmt: skip
    axis = min(1, input.ndim - 1)
    classes = input.shape[axis]
    w = _class_weights("cross_entropy", input, weight, picked=False)
    q = target * (1.0 - smoothing) + smoothing / classes if smoothing else target
    terms = ops.log_softmax(input, axis=axis) * q
    if w is not None:
        terms = terms * w.reshape(-1, *[1] * (input.ndim - 1 - axis))
    return _reduce("cross_entropy", -terms.sum(axis), reduction)


@by_its_name
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """−w_c · input_c at the target c: the cross entropy of log-probabilities, averaged as `cross_entropy`.

    Shapes: input (C,), (N, C) or (N, C, d…), target the same without C, weight (C,) →
    scalar, or as target for reduction="none"
    Raises: ValueError for shapes or reduction; TypeError for a target that is not of integers, an integer
    input or another dtype of weight; RuntimeError for a weight that requires a gradient; IndexError for a
    class outside 0 … C − 1.
    Source: PyTorch's nll_loss.
    """
    refuse_integers("nll_loss", input)
    check_tensors("nll_loss", target=target)
    rows, ids = _class_rows("nll_loss", input, target, ignore_index)
    w = _class_weights("nll_loss", rows, weight)
    losses = _picked(rows, ids, w, ignore_index)
    return _mean_of_kept("nll_loss", losses, ids, w, ignore_index, reduction, target)


def _class_rows(who: str, input: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Scores as (N, C) and targets as (N,), checked."""
    as_integer(who, "ignore_index", ignore_index)
    shape, ids = input.array.shape, target.array
    want = shape[:1] * (len(shape) > 1) + shape[2:]
    if not shape or ids.shape != want:
        cure = f"make the target {want}, of class numbers (one-hot: argmax(1))"
        if ids.shape == shape[:-1]:
            cure = "the classes are axis 1, not the last: give input.transpose(1, -1)"
        elif ids.ndim == 1 and len(shape) == 2:  # which of both is wrong is not known
            cure = f"this target takes an input of {ids.size} rows, one a target, each of all classes, as "
            cure += f"logits.reshape(-1, classes) makes them; this input takes a target {want}"
        cure += made([input, target])
        raise ValueError(f"{who}: input {input.shape} and target {target.shape} do not fit; {cure}")
    if ids.dtype.kind not in "iu":
        raise TypeError(f"{who}: the target is {target.dtype}; give class numbers as an integer tensor")
    given, target = target, target if ids.dtype is dtypes.int64 else target.long()
    ids, classes = target.array, shape[min(1, len(shape) - 1)]
    outside = ids.view(np.uint64) >= classes  # as a number without a sign, a negative one is large
    if np.count_nonzero(outside) and (wrong := ids[outside & (ids != ignore_index)]).size:
        raise IndexError(f"{who}: target {wrong[0]} is outside 0 … {classes - 1}; fix it, or name it as "
                         f"ignore_index{made([given])}")  # fmt: skip
    if len(shape) == 2:
        return input, target
    rows = input if input.ndim < 3 else input.permute(0, *range(2, input.ndim), 1)  # (N, C, d…) → (N, d…, C)
    return rows.reshape(target.numel(), classes), target.reshape(-1)


def _class_weights(who: str, input: Tensor, weight: Tensor | None, picked: bool = True) -> Tensor | None:
    """One number for each class, checked; where class numbers pick, of the input's dtype and fixed."""
    if weight is None:
        return None
    check_tensors(who, weight=weight)
    classes = input.shape[min(1, input.ndim - 1)]
    if weight.shape != (classes,):
        raise ValueError(f"{who}: weight {weight.shape} for {classes} classes; make it ({classes},)")
    if picked:
        check_fixed(who, "weight", weight)
        if weight.dtype != input.dtype:
            raise TypeError(f"{who}: input {input.dtype} and weight {weight.dtype} differ; convert one")
    return weight


def _picked(log_p: Tensor, ids: Tensor, w: Tensor | None, ignore_index: int) -> Tensor:
    """−w_c · log_p_c at each row's target c, 0 where it is ignored: (N, C), (N,) → (N,)"""
    kept = ids.array != ignore_index
    at = np.where(kept, ids.array, 0)
    losses = -ops.getitem(log_p, index=(np.arange(len(at)), at))
    if w is not None:
        losses = losses * engine.make(w.array[at], None, None)
    return ops.where(engine.make(kept, None, None), losses, 0.0)  # type: ignore[no-any-return]


def _mean_of_kept(
    who: str, losses: Tensor, ids: Tensor, w: Tensor | None, ignore_index: int, reduction: str, target: Tensor
) -> Tensor:
    if reduction == "mean":
        kept = ids.array[ids.array != ignore_index]
        total = float(len(kept) if w is None else w.array[kept].sum(dtype=np.float64))
        return losses.sum() / total  # NaN of none; 1/total may overflow
    return _reduce(who, losses.reshape(target.shape), reduction)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """−weight · (y · ln x + (1 − y) · ln(1 − x)), x the input, y the target; no logarithm is below −100.

    The gradient by x is (x − y)/(x (1 − x)), whose denominator is at least 10⁻¹². Prefer the logits: that
    function loses no digits near 1.

    Shapes: input and target equal, weight broadcasts to them → scalar, or as input for reduction="none"
    Raises: ValueError for unequal shapes, an input or a target outside 0 … 1, or another reduction; TypeError
    for integers as input; RuntimeError for a weight that requires a gradient.
    Source: PyTorch's binary_cross_entropy.
    """
    who = "binary_cross_entropy"
    _same_shape(who, input, target)
    refuse_integers(who, input)
    x = input.detach()
    for name, given in (("input", x.array), ("target", target.array)):
        if not ((given >= 0) & (given <= 1)).all():
            raise ValueError(f"{who}: {name} of {given.min():.4g} … {given.max():.4g}; give 0 … 1, or "
                             f"{who}_with_logits")  # fmt: skip
    edge = x * (1.0 - x) < 1e-12
    inside = ops.where(edge, 0.5, input)
    log_x = ops.where(edge, x.log().clamp(min=-100.0), inside.log())
    log_rest = ops.where(edge, (-x).log1p().clamp(min=-100.0), (-inside).log1p())
    losses = -(target * log_x + (1.0 - target) * log_rest)
    pull = ops.where(edge, 0.5e12 * (input - target.detach()) ** 2, 0.0)  # for its slope 10¹² (x − y) only
    return _weighted(who, losses + (pull - pull.detach()), input, weight, reduction)


def _weighted(who: str, losses: Tensor, input: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    if weight is not None:
        check_fixed(who, "weight", weight)
        check_broadcast(who, "weight", weight, "the input", input.shape)
        losses = losses * weight.to(losses.dtype)
    return _reduce(who, losses, reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """−weight · (pos_weight · y · ln σ(x) + (1 − y) · ln(1 − σ(x))), x the input, y the target.

    Shapes: input and target equal, weight and pos_weight broadcast to them → scalar, or as input for "none"
    Raises: ValueError for unequal shapes or another reduction; TypeError for integers as input; RuntimeError
    for a weight or pos_weight that requires a gradient.
    Source: PyTorch's binary_cross_entropy_with_logits.
    """
    who = "binary_cross_entropy_with_logits"
    _same_shape(who, input, target)
    refuse_integers(who, input)
    softplus = neg_log_sigmoid(input)
    if pos_weight is not None:
        check_fixed(who, "pos_weight", pos_weight)
        check_broadcast(who, "pos_weight", pos_weight, "the input", input.shape)
        softplus = (1.0 + (pos_weight.to(input.dtype) - 1.0) * target) * softplus
    return _weighted(who, (1.0 - target) * input + softplus, input, weight, reduction)


# --- numbers ------------------------------------------------------------------------------------------------


def _same_shape(who: str, input: Tensor, target: Tensor) -> None:
    check_tensors(who, input=input, target=target)
    if input.shape != target.shape:
        raise ValueError(f"{who}: input {input.shape} and target {target.shape} differ; reshape one of them")
    if target.dtype.kind != "f":
        refuse_integers(who, input)


def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """(input − target)².

    Shapes: input and target equal → scalar, or as input for reduction="none"
    Raises: ValueError for unequal shapes or another reduction; TypeError for integers.
    Source: PyTorch's mse_loss. Differs: unequal shapes are an error, not a broadcast.
    """
    _same_shape("mse_loss", input, target)
    return _reduce("mse_loss", (input - target) * (input - target), reduction)


def l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """|input − target|, whose gradient at 0 is 0.

    Shapes: input and target equal → scalar, or as input for reduction="none"
    Raises: ValueError for unequal shapes or another reduction; TypeError for integers.
    Source: PyTorch's l1_loss. Differs: unequal shapes are an error, not a broadcast.
    """
    _same_shape("l1_loss", input, target)
    return _reduce("l1_loss", (input - target).abs(), reduction)


def smooth_l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """d²/(2 beta) where |d| < beta, else |d| − beta/2, with d = input − target.

    Shapes: input and target equal → scalar, or as input for reduction="none"
    Raises: ValueError for unequal shapes, another reduction or a negative beta; TypeError for integers.
    Source: Girshick 2015, eq. 3. Differs: beta (1 there), as in PyTorch. Unequal shapes are an error.
    """
    _same_shape("smooth_l1_loss", input, target)
    if check_number("smooth_l1_loss", "beta", beta, math.inf, "make it 0 or more") == 0:
        return l1_loss(input, target, reduction=reduction)
    return _reduce("smooth_l1_loss", _huber(input - target, beta) * (1.0 / beta), reduction)


def huber_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """d²/2 where |d| ≤ delta, else delta · (|d| − delta/2), with d = input − target.

    Shapes: input and target equal → scalar, or as input for reduction="none"
    Raises: ValueError for unequal shapes, another reduction or a delta not above 0; TypeError for integers as
    input.
    Source: Huber 1964, as PyTorch's huber_loss. Differs: unequal shapes are an error, not a broadcast.
    """
    _same_shape("huber_loss", input, target)
    refuse_integers("huber_loss", input)
    if not check_number("huber_loss", "delta", delta) > 0:
        raise ValueError(f"huber_loss: delta is {delta}; make it more than 0")
    # the loss has the input's dtype, as in PyTorch; other losses have that of both
    return _reduce("huber_loss", _huber((input - target).to(input.dtype), delta), reduction)


def _huber(d: Any, delta: float) -> Tensor:
    far = d.abs()
    near = far < delta
    d = ops.where(near, d, 0.0)  # an infinite d² has no finite share in the gradient, not even times 0
    return ops.where(near, 0.5 * d * d, delta * (far - 0.5 * delta))  # type: ignore[no-any-return]


@by_its_name
def kl_div(input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target · (ln target − input), the divergence of exp(input) from target; 0 · ln 0 is 0.

    input holds log-probabilities, target probabilities, or logarithms of them with log_target.
    reduction: "batchmean" divides the sum by the length of axis 0, which is the divergence; "mean", PyTorch's
    default, by the number of elements.

    Shapes: input and target broadcast → scalar, or what they broadcast to for reduction="none"
    Raises: ValueError for shapes that do not broadcast or another reduction; TypeError for integers.
    Source: PyTorch's kl_div. Differs: the gradient by a target of 0 is finite there, not NaN.
    """
    for x in (input, target):
        refuse_integers("kl_div", x)
    checks.check_flag("kl_div", "log_target", log_target)
    if log_target:
        losses = target.exp() * (target - input)
    else:
        losses = target * (ops.where(target == 0, 1.0, target).log() - input)
    if reduction == "batchmean":
        return losses.sum() / (input.shape[0] if input.ndim else 1)
    return _reduce("kl_div", losses, reduction)
