"""What may a sequence model see? Proofs that future and padding do not matter, by gradient and by value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import numpy as np

from microtensor import ops
from microtensor.engine import Array
from microtensor.listing import reachable
from microtensor.mode import Block, enable_grad, mode
from microtensor.random import as_seed
from microtensor.tensor import Tensor, as_tensor
from microtensor.testing.numeric import as_leaf, away_from_zero
from microtensor.walk import walk

__all__ = ["check_causal", "check_padding"]

# some outputs in words, where they are (B, T), what they may not see (B, S), and the cure
Group = tuple[str, Array, Array, str]
AHEAD, PADDED = "mask what lies ahead, before the softmax", "mask padded keys, before the softmax"
APART = "keep rows apart: reduce and normalise within one of them"


def check_causal(model: Callable[..., Any], x: Any, *, seed: int = 0) -> None:
    """Output t depends on inputs ≤ t of its own row only; or an AssertionError names an output and an input.

    By gradient: that of output t by each later input is 0, and that of a row of the batch by each other row.
    By value: output t stays when all later inputs change (a little, much, to 0), and a row when
    all others do. model: a module or
    function of x that returns y (B, T, …), or a tuple that starts with it; modules run in eval mode. x:
    embeddings (B, T, C), or token ids (B, T), which are followed through the embedding that looks them up.
    Ids should be unlike any others that the model looks up, as positions 0, 1, 2 …

    Shapes: x (B, T, C) or ids (B, T), y (B, T, ...)
    Raises: ValueError if the shapes do not fit, no output depends on any input, or the model makes NaN.
    Source: "Attention Is All You Need", §3.2.3: no position attends to what comes after it.

    >>> from microtensor import randn, nn
    >>> check_causal(lambda x: x.cumsum(1), randn(2, 5, 3))
    >>> check_causal(lambda x: x.flip(1), randn(1, 4, 3))           # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: check_causal: output y[:, 0] depends on input x[0, 3]: its gradient there is ...
    """

    def groups(y: Array) -> Iterable[Group]:
        if y.shape[:2] != x.shape[:2]:
            raise ValueError(f"check_causal: x {x.shape} gave y {y.shape}; begin both with (B, T)")
        _finite("check_causal", "output y", y)
        row, at = np.indices(x.shape[:2])
        yield from ((f"y[:, {t}]", at == t, at > t, AHEAD) for t in range(x.shape[1]))
        yield from ((f"y[{b}]", row == b, row != b, APART) for b in range(len(x)) if len(x) > 1)

    _prove("check_causal", model, as_tensor(x), groups, seed)


def check_padding(
    model: Callable[..., Any], x: Any, mask: Any = None, *, pad_id: int | None = None, seed: int = 0
) -> None:
    """What padding holds never matters; or an AssertionError that names a padded input that is seen.

    Nobody asks how much padding there is: places that are counted over it are no leak of content.

    model and x as in `check_causal`; mask (B, S): True where x is no padding, or pad_id for token ids. If y
    has the same leading shape its padded positions may be anything, else all of y counts.

    Shapes: x (B, S, C) or ids (B, S), mask (B, S)
    Raises: ValueError if mask and pad_id are not one, nothing is padded, y depends on no input or is NaN.
    Source: ours; masks of padding as in the paper's batches of sentences.

    >>> from microtensor import randn, tensor
    >>> mask = tensor([[True, True, False]])
    >>> check_padding(lambda x: (x * mask[..., None]).sum(1), randn(1, 3, 2), mask)
    >>> check_padding(lambda x: x.mean(1), randn(1, 3, 2), mask)           # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: check_padding: output y depends on input x[0, 2]: its gradient there is ...
    """
    x = as_tensor(x)
    if (mask is None) == (pad_id is None):
        raise ValueError("check_padding: both mask and pad_id are given, or neither; give one of them")
    real = x.array != pad_id if mask is None else as_tensor(mask).array
    if real.dtype != np.bool_ or real.shape != x.shape[:2] or real.all():
        raise ValueError(
            f"check_padding: the mask is {real.dtype}{real.shape}{' and all True' * bool(real.all())}; "
            f"make it boolean, of shape {x.shape[:2]}, False at one position at least"
        )

    def groups(y: Array) -> Iterable[Group]:
        return [("y", real if y.shape[:2] == real.shape else np.ones(y.shape[:2], bool), ~real, PADDED)]

    _prove("check_padding", model, x, groups, seed)


def _prove(who: str, model: Any, x: Tensor, groups: Callable[[Array], Iterable[Group]], seed: int) -> None:
    rng = np.random.default_rng(as_seed(who, seed))
    training = [m for m in model.modules() if m.training] if hasattr(model, "modules") else []
    try:
        for module in training:
            object.__setattr__(module, "training", False)
        y, nodes, content = _run(who, model, x, None)
        if _run(who, model, x, None)[0].array.tobytes() != y.array.tobytes():
            raise ValueError(f"{who}: two calls gave two results; turn dropout off")
        _finite(who, "input x", content)
        seen = False
        for what, counted, hidden, cure in groups(y.array):
            where = counted.reshape(*counted.shape, *[1] * (y.ndim - 2))
            u = np.where(where, away_from_zero(rng, y.shape), 0.0).astype(y.dtype)
            _finite(who, "output y", np.where(where, y.array, 0.0))
            found = walk([(y.grad_fn or y, u)], retain_graph=True, wanted=nodes)
            g = sum((abs(a).reshape(*x.shape[:2], -1).sum(-1) for _, a, _ in found), np.zeros(hidden.shape))
            _finite(who, f"the gradient of output {what} by input x", g)
            seen = seen or bool(g.any())
            # gradients that cancel leave rounding; a weight of e⁻¹⁰ leaves more
            said = f"{who}: output {what} depends on input x{{}}: its gradient there is {{}}"
            _refuse(f"{said}; {cure}", g * hidden, 1e-6 * g.max())
            noise = (rng.normal(size=content.shape) * (1.0 + content.std())).astype(content.dtype)
            scale = 1e-5 * float(np.abs(y.array[np.isfinite(y.array)]).max(initial=0.0))
            said = f"{who}: output y{{}} changes with inputs that it may not see, without a gradient: by {{}}"
            # a step only shows across its threshold: of the sign, of the maximum, of "is it 0?"
            for change in (noise, -10 * noise, -content):
                z = _run(who, model, x, content + change * hidden[..., None])[0].array
                d = np.abs(np.subtract(z, y.array, where=where, out=np.zeros_like(z)))  # NaN elsewhere may be
                _refuse(f"{said}; {cure}", d.reshape(*y.shape[:2], -1).max(-1, initial=0.0), scale)
        if not seen:
            raise ValueError(f"{who}: y depends on no input at all: nothing is proved; check the model")
    finally:
        for module in training:
            object.__setattr__(module, "training", True)


def _finite(who: str, what: str, values: Array) -> None:
    """What is not finite proves nothing: NaN · 0 is NaN, and would accuse an input that may be seen."""
    if not np.isfinite(values).all():
        at = np.argwhere(~np.isfinite(values))[0].tolist()
        where = f"{who}: {what}{at[:2]} is {values[tuple(at)]}, which proves nothing"
        raise ValueError(f"{where}; give finite inputs, and let autograd.detect_anomaly() name the op")


def _refuse(said: str, amount: Array, allowed: float) -> None:
    if not amount.max(initial=0.0) <= allowed:
        at = [int(i) for i in np.unravel_index(int(np.argmax(amount)), amount.shape)]
        raise AssertionError(said.format(at, f"{amount.max():.3g}").replace("by nan;", "to nan;"))


def _run(who: str, model: Any, x: Tensor, content: Array | None) -> tuple[Tensor, list[Any], Array]:
    """y, the nodes of the tape that hold x's content (B, T, C), and the content, which may be given."""
    ids = x.array if x.dtype.kind in "iu" else None
    leaf = x if ids is not None else as_leaf(x if content is None else as_tensor(content), True)
    looked_up: list[Array] = []
    plain = mode.run

    def noting(forward: Any, *arrays: Any, **params: Any) -> Any:
        y = plain(forward, *arrays, **params)
        if ids is not None and forward is ops.embedding.forward and np.array_equal(arrays[1], ids):
            looked_up.append(y)
            return y if content is None else content
        return y

    with ExitStack() as stack:
        stack.enter_context(enable_grad())
        stack.enter_context(Block(run=noting))
        y = model(leaf)
    y = y[0] if isinstance(y, tuple | list) else y
    if not isinstance(y, Tensor) or y.ndim < 2 or not y.requires_grad:
        raise ValueError(f"{who}: the model gave {getattr(y, 'shape', y)}; return (B, T, …), recorded from x")
    if ids is None:
        return y, [leaf], leaf.array
    if not looked_up:
        raise ValueError(
            f"{who}: no embedding looked up the ids x of shape {x.shape}; give x as it is looked up, or "
            f"check a function of embeddings (B, T, C)"
        )
    entries = [e for e in reachable(y.grad_fn) if e.op is ops.embedding] if y.grad_fn is not None else []
    return y, [e for e in entries if e.saved and np.array_equal(e.saved[0], ids)], looked_up[0]
