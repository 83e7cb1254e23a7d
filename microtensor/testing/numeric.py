"""Gradients against central differences, once and twice differentiated. In float64: float32 is too coarse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from microtensor import autograd, dtypes
from microtensor.engine import Array
from microtensor.random import as_seed
from microtensor.tensor import Tensor, as_tensor
from microtensor.testing.blame import culprit
from microtensor.testing.close import worst_entry

__all__ = ["as_leaf", "away_from_zero", "gradcheck", "gradgradcheck"]


How = tuple[float, float, float, int]  # eps, atol, rtol, seed


def gradcheck(
    fn: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
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
    as they are. fn: takes the inputs and returns a tensor or a tuple of tensors; a module is also checked by
    its parameters. inputs: one tensor or a sequence.

    Shapes: inputs (...) → True
    Raises: AssertionError naming fn, the input, the worst entry with both numbers, and the first op on the
    tape whose VJP is wrong by itself, with its line and its module; ValueError unless something requires a
    gradient and all that does is float64 (in float32 a difference quotient has three digits), and unless fn
    is finite and gives the same twice.
    Source: PyTorch's gradcheck. Differs: one random direction for each input unless full; modules; the
    culprit is named.

    >>> from microtensor import nn, randn
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double()
    >>> gradcheck(model, randn(2, 3).double())
    True
    """
    name, args, wanted, parameters = _differentiated("gradcheck", fn, inputs)
    # fresh leaves: the caller's tensors keep their .grad, and no one writes into the caller's arrays
    leaves = [as_leaf(a, i in wanted) for i, a in enumerate(args)]
    by = {f"input {i}": leaves[i] for i in wanted}
    by |= {f"parameter {path}": p for path, p in parameters.items() if p.requires_grad}
    how = eps, atol, rtol, seed

    def check(function: Callable[..., Any], given: Sequence[Any]) -> str | None:
        its = {f"input {i}": x for i, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad}
        return _compare(function, given, its, True, how)

    fault = _compare(fn, leaves, by, full, how)
    if fault is not None:
        blamed = culprit(lambda: _floating(fn(*leaves)), fn, check)
        raise AssertionError(f"gradcheck: {name}, {fault}; {blamed}")
    return True


def _compare(fn: Any, leaves: Sequence[Any], by: dict[str, Tensor], full: bool, how: How) -> str | None:
    """Where backward and differences disagree, in words. `by`: what is differentiated by, among it leaves."""
    eps, atol, rtol, seed = how
    rng = np.random.default_rng(as_seed("gradcheck", seed))
    who, outputs, again = f"gradcheck: {_name(fn)}", _floating(fn(*leaves)), _floating(fn(*leaves))
    for y, z in zip(outputs, again, strict=True):
        if not np.isfinite(y.array).all():
            raise ValueError(f"{who}: a value {y.shape} is not finite; choose inputs inside the domain")
        if y.array.tobytes() != z.array.tobytes():
            raise ValueError(f"{who}: two calls gave two results; turn dropout off (.eval()), draw outside")
    cotangents = [away_from_zero(rng, y.shape) for y in outputs]
    recorded = [(y, u) for y, u in zip(outputs, cotangents, strict=True) if y.requires_grad]
    gradients: Sequence[Tensor | None] = [None] * len(by)
    if recorded:
        ys, us = zip(*recorded, strict=True)
        for u in us:
            u.flags.writeable = False  # a VJP that writes into its g fails here
        gradients = autograd.grad(ys, by.values(), [as_tensor(u) for u in us], allow_unused=True)

    def pairing(leaf: Tensor, x: Array) -> float:
        """⟨u, fn⟩ with the values x in a leaf."""
        before, leaf.array = leaf.array, x
        try:
            pairs = zip(cotangents, _floating(fn(*leaves)), strict=True)
            return float(sum((np.sum(u * y.array) for u, y in pairs), np.float64(0)))
        finally:
            leaf.array = before

    for (label, leaf), gradient in zip(by.items(), gradients, strict=True):
        x = leaf.array
        g = np.zeros(x.shape) if gradient is None else gradient.array
        axes = (np.eye(1, x.size, i).reshape(x.shape) for i in range(x.size))  # each element's
        directions = axes if full else [away_from_zero(rng, x.shape)]
        found, expected = [], []
        for v in directions:
            found.append(float(np.sum(g * v)))
            expected.append((pairing(leaf, x + eps * v) - pairing(leaf, x - eps * v)) / (2 * eps))
        entries = x.shape if full else (1,)
        fault = worst_entry(np.reshape(found, entries), np.reshape(expected, entries), rtol, atol)
        if fault is not None:
            way = "" if full else ", in a random direction"
            return f"{label} of shape {x.shape}{way}: {fault}: that is backward against central differences"
    return None


def gradgradcheck(
    fn: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-4,
    full: bool = False,
    seed: int = 0,
) -> bool:
    """`gradcheck` of the gradient: is it differentiable again, by the inputs and by its cotangent?

    The differences are taken of gradients, which are exact to rounding; what they are compared with went
    through the tape twice. Of a module the gradients by its parameters are checked, too, and by them.

    Shapes: inputs (...) → True
    Raises: as `gradcheck`.
    Source: PyTorch's gradgradcheck. Differs: modules; random directions unless full.
    """
    name, args, wanted, parameters = _differentiated("gradgradcheck", fn, inputs)
    trained = [p for p in parameters.values() if p.requires_grad]
    rng = np.random.default_rng(as_seed("gradgradcheck", seed) + 1)
    made = _floating(fn(*[as_leaf(a, i in wanted) for i, a in enumerate(args)]), "gradgradcheck")
    probe = [y for y in made if y.requires_grad]
    cotangents = [as_leaf(as_tensor(rng.normal(size=y.shape)), True) for y in probe]
    if not probe:
        return True

    def gradient(*given: Any) -> tuple[Tensor, ...]:
        # clone(): each input is an inner node then, which no-one else counts a gradient for
        xs, us = list(given[: len(args)]), given[len(args) :]
        for i in wanted:
            xs[i] = xs[i].clone() if xs[i].requires_grad else xs[i].detach().requires_grad_()
        ys = [y for y in _outputs(fn(*xs)) if y.requires_grad]
        by = [xs[i] for i in wanted] + trained
        found = autograd.grad(ys, by, us, create_graph=True, allow_unused=True)
        return tuple(x * 0.0 if g is None else g for x, g in zip(by, found, strict=True))

    gradient.__name__ = f"the gradient of {name}"
    if trained:
        gradient.named_parameters = parameters.items  # type: ignore[attr-defined]
    given = (*args, *cotangents)
    return gradcheck(gradient, given, eps=eps, atol=atol, rtol=rtol, full=full, seed=seed)


def _name(fn: Any) -> str:
    called = type(fn) if hasattr(fn, "named_modules") else fn
    return str(getattr(called, "name", None) or getattr(called, "__name__", None) or fn)


def _differentiated(who: str, fn: Any, inputs: Any) -> tuple[str, tuple[Any, ...], list[int], dict[str, Any]]:
    """fn's name, inputs, which of them require a gradient, and parameters; all that do must be float64."""
    name, args = _name(fn), (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    parameters = dict(fn.named_parameters()) if hasattr(fn, "named_parameters") else {}
    wanted = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
    given = {f"input {i}": args[i] for i in wanted}
    given |= {f"parameter {path}": p for path, p in parameters.items() if p.requires_grad}
    if not given:
        raise ValueError(f"{who}: {name}: no input requires a gradient; set requires_grad=True on some")
    for label, x in given.items():
        if x.dtype != dtypes.float64:
            raise ValueError(f"{who}: {name}: {label} is {x.dtype}, too coarse; use .double()")
    return name, args, wanted, parameters


def as_leaf(value: Any, requires_grad: bool) -> Any:
    return as_tensor(value.array).requires_grad_(requires_grad) if isinstance(value, Tensor) else value


def _outputs(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _floating(result: Any, who: str = "gradcheck") -> list[Tensor]:
    if not (ys := [y for y in _outputs(result) if isinstance(y, Tensor)]):
        raise TypeError(f"{who}: fn gave {type(result).__name__}; return a tensor, or some")
    return [y for y in ys if dtypes.floating(y.dtype)]  # integers have no gradient: right, as in PyTorch


def away_from_zero(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Random numbers of either sign, none so small that an error times it would go unseen."""
    return np.asarray(rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape))
