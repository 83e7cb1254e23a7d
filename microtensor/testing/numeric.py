"""Gradients against central differences, once and twice differentiated. In float64: float32 is too coarse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from microtensor import autograd, dtypes
from microtensor.engine import Array
from microtensor.tensor import Tensor, as_tensor
from microtensor.testing.close import worst_entry

__all__ = ["as_leaf", "away_from_zero", "gradcheck", "gradgradcheck"]


def gradcheck(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-6,
    rtol: float = 1e-5,
    full: bool = False,
    seed: int = 0,
) -> bool:
    """Does backward give the derivative of fn? Central differences against the VJP of a random cotangent u.

    For every input x that requires a gradient: in one random direction v, ⟨∂⟨u, fn⟩/∂x, v⟩ must equal the
    slope of ⟨u, fn(x + tv)⟩ at t = 0; with `full` in the direction of every element of x. Other inputs stay
    as they are. fn: takes the inputs and returns a tensor or a tuple of tensors; inputs: one tensor or a
    sequence.
    Raises: AssertionError naming fn, the input and the worst entry with both numbers; ValueError unless some
    input requires a gradient and all that do are float64 (in float32 a difference quotient has three digits).
    """
    args: tuple[Any, ...] = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    name = _name(fn)
    wanted = _differentiated("gradcheck", name, args)
    rng = np.random.default_rng(seed)
    # fresh leaves: the caller's tensors keep their .grad, and no one writes into the caller's arrays
    leaves = [as_leaf(a, i in wanted) for i, a in enumerate(args)]
    outputs = [y for y in _outputs(fn(*leaves)) if dtypes.floating(y.dtype)]
    cotangents = [away_from_zero(rng, y.shape) for y in outputs]
    recorded = [(y, u) for y, u in zip(outputs, cotangents, strict=True) if y.requires_grad]
    xs = [leaves[i] for i in wanted]
    gradients: Sequence[Tensor | None] = [None] * len(xs)
    if recorded:
        ys, us = zip(*recorded, strict=True)
        gradients = autograd.grad(ys, xs, [as_tensor(u) for u in us], allow_unused=True)

    def pairing(i: int, x: Array) -> float:
        """⟨u, fn⟩ with input i replaced by x."""
        moved = [as_tensor(x) if j == i else as_leaf(a, False) for j, a in enumerate(args)]
        now = [y for y in _outputs(fn(*moved)) if dtypes.floating(y.dtype)]
        return float(sum((np.sum(u * y.array) for u, y in zip(cotangents, now, strict=True)), np.float64(0)))

    for i, gradient in zip(wanted, gradients, strict=True):
        x = args[i].array
        g = np.zeros(x.shape) if gradient is None else gradient.array
        directions = _every_element(x.shape) if full else [away_from_zero(rng, x.shape)]
        found, expected = [], []
        for v in directions:
            found.append(float(np.sum(g * v)))
            expected.append((pairing(i, x + eps * v) - pairing(i, x - eps * v)) / (2 * eps))
        entries = x.shape if full else (1,)
        fault = worst_entry(np.reshape(found, entries), np.reshape(expected, entries), rtol, atol)
        if fault is not None:
            way = "" if full else ", in a random direction"
            raise AssertionError(f"gradcheck: {name}, input {i} of shape {x.shape}{way}: {fault}: that is "
                                 f"backward against central differences; correct the VJP")  # fmt: skip
    return True


def gradgradcheck(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    full: bool = False,
    seed: int = 0,
) -> bool:
    """`gradcheck` of the gradient: is it differentiable again, by the inputs and by its cotangent?

    The differences are taken of gradients, which are exact to rounding; what they are compared with went
    through the tape twice. Raises as `gradcheck`.
    """
    args: tuple[Any, ...] = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    name = _name(fn)
    wanted = _differentiated("gradgradcheck", name, args)
    rng = np.random.default_rng(seed + 1)
    probe = [
        y for y in _outputs(fn(*[as_leaf(a, i in wanted) for i, a in enumerate(args)])) if y.requires_grad
    ]
    cotangents = [as_leaf(as_tensor(rng.normal(size=y.shape)), True) for y in probe]
    if not probe:
        return True

    def gradient(*given: Any) -> tuple[Tensor, ...]:
        # clone(): each input is an inner node then, which no-one else counts a gradient for
        xs, us = list(given[: len(args)]), given[len(args) :]
        for i in wanted:
            xs[i] = xs[i].clone() if xs[i].requires_grad else xs[i].detach().requires_grad_()
        ys = [y for y in _outputs(fn(*xs)) if y.requires_grad]
        by = [xs[i] for i in wanted]
        found = autograd.grad(ys, by, us, create_graph=True, allow_unused=True)
        return tuple(x * 0.0 if g is None else g for x, g in zip(by, found, strict=True))

    gradient.__name__ = f"the gradient of {name}"
    options: dict[str, Any] = {"eps": eps, "atol": atol, "rtol": rtol, "full": full, "seed": seed}
    return gradcheck(gradient, (*args, *cotangents), **options)


def _name(fn: Any) -> str:
    return str(getattr(fn, "name", None) or getattr(fn, "__name__", None) or fn)


def _differentiated(who: str, name: str, args: Sequence[Any]) -> list[int]:
    wanted = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
    if not wanted:
        raise ValueError(f"{who}: {name}: no input requires a gradient; set requires_grad=True on some")
    for i in wanted:
        if args[i].dtype != dtypes.float64:
            raise ValueError(
                f"{who}: {name}: input {i} is {args[i].dtype}, too coarse for differences; convert it with "
                ".double()"
            )
    return wanted


def as_leaf(value: Any, requires_grad: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    leaf = as_tensor(value.array)
    return leaf.requires_grad_() if requires_grad else leaf


def _outputs(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def away_from_zero(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Random numbers of either sign, none so small that an error times it would go unseen."""
    return np.asarray(rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape))


def _every_element(shape: tuple[int, ...]) -> Iterator[Array]:
    for at in np.ndindex(shape):
        v = np.zeros(shape)
        v[at] = 1.0
        yield v
