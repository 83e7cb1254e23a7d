"""Derivatives as users ask for them: `backward` fills `.grad`, `grad` returns gradients; `walk` does it."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from sys import getrefcount
from typing import Any

import numpy as np
from numpy import ndarray

from microtensor import engine
from microtensor.anomaly import detect_anomaly, set_detect_anomaly
from microtensor.missing import MissingNameError
from microtensor.place import clock, last_walk, last_zeroed, mark_changed
from microtensor.refusals import warn_of_sums
from microtensor.walk import walk

__all__ = ["backward", "detect_anomaly", "grad", "set_detect_anomaly"]


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add Σ d(tensor)/d(leaf) · gradient to the `.grad` of every leaf that the tensors were computed from.

    tensors: one tensor or several; grad_tensors: a gradient for each, of its shape (1 if it has one element).
    inputs: fill the `.grad` of these tensors alone, which may be inner ones.

    Shapes: tensors (...), grad_tensors the same
    Raises: RuntimeError if a tensor was not recorded, a gradient is missing or misshaped, or the tape is
    freed already. No `.grad` has changed then.
    Warns: once, if gradients are added up while their leaves are changed twice: a forgotten zero_grad().
    Source: PyTorch's autograd.backward.
    """
    nodes = None if inputs is None else {engine.node_of(x): x for x in _wanted("backward", inputs)}
    roots = _roots("backward", tensors, grad_tensors, retain_graph, create_graph)
    found = _walk(roots, "backward", bool(retain_graph), create_graph, nodes)
    # what retains its gradient has it already
    found = found if nodes is None else [(nodes[n], g, o) for n, g, o in found if not nodes[n].retains_grad]
    walked: list[Any] = [last_walk[1]]
    grown = [leaf for leaf, g, ours in found if leaf._requires_grad and _accumulate(leaf, g, ours, walked)]
    last_walk[0] = next(clock)  # it ends here: that a gradient grew is no change in between
    zeroed, last_zeroed[0] = last_zeroed[0], None
    if grown:
        warn_of_sums(grown, len(found), zeroed)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """The gradients Σ d(output)/d(input) · grad_output, one for each input; no leaf's `.grad` is touched.

    With create_graph they are recorded, so that they can be differentiated again, to any order.

    Shapes: outputs (...), grad_outputs the same → gradients of the inputs' shapes
    Raises: RuntimeError as `backward`, and if an input was not used (allow_unused gives None for it,
    materialize_grads zeros); ValueError for is_grads_batched and what contradicts itself.
    Source: PyTorch's autograd.grad. Differs: no is_grads_batched (call it for each), no only_inputs=False.

    >>> import microtensor as mt
    >>> x = mt.tensor(2.0, requires_grad=True)
    >>> (first,) = mt.autograd.grad(x**3, x, create_graph=True)
    >>> first.item(), mt.autograd.grad(first, x)[0].item()
    (12.0, 12.0)
    """
    if is_grads_batched or not only_inputs or (materialize_grads and allow_unused is False):
        raise ValueError("grad: there is no is_grads_batched, only_inputs=False, or materialize_grads with "
                         "allow_unused=False; call grad() once for each gradient")  # fmt: skip
    wanted = _wanted("grad", inputs)
    roots = _roots("grad", outputs, grad_outputs, retain_graph, create_graph)
    nodes = [engine.node_of(x) for x in wanted]
    found = _walk(roots, "grad", create_graph if retain_graph is None else retain_graph, create_graph, nodes)
    arrived = {id(n): _owned(g, ours) for n, g, ours in found}
    for i, (x, node) in enumerate(zip(wanted, nodes, strict=True)):
        if id(node) not in arrived and materialize_grads:
            arrived[id(node)] = engine.make(np.zeros(x.shape, x.dtype), None, None)
        if id(node) not in arrived and not allow_unused:
            raise RuntimeError(f"grad: input {i} of shape {x.shape} was not used to compute the outputs; "
                               f"pass allow_unused=True to get None for it")  # fmt: skip
    return tuple(arrived.get(id(n)) for n in nodes)


def _several(who: str, what: str, given: Any) -> list[Any]:
    """The tensors, one or several; a view learns what happened to its base."""
    several = [given] if isinstance(given, engine.Tensor) or not isinstance(given, Iterable) else list(given)
    for x in several:
        if not isinstance(x, engine.Tensor):
            raise TypeError(f"{who}: {what} holds {type(x).__name__}; give a tensor, or several in a list")
        if x.base is not None:
            engine.refresh(x)
    return several


def _wanted(who: str, inputs: Any) -> list[Any]:
    wanted = _several(who, "inputs", inputs)
    if not wanted:
        raise ValueError(f"{who}: inputs is empty; name at least one tensor, or leave it out for all leaves")
    for i, x in enumerate(wanted):
        if not x.requires_grad:
            raise RuntimeError(f"{who}: input {i} of shape {x.shape} requires no gradient; set "
                               f"requires_grad=True on it before the forward")  # fmt: skip
    return wanted


def _walk(roots: Any, who: str, keep: bool, create_graph: bool, wanted: Any) -> list[tuple[Any, Any, bool]]:
    """The walk with hooks. Inner tensors get the gradient they retain after it: if it fails, none has any."""
    retained: list[tuple[Any, Any]] = []
    found = walk(roots, keep, create_graph, wanted, retained=retained, who=who)
    for tensor, g in retained:
        _accumulate(tensor, g, False, [])
    return list(map(_with_owner, found))


def _with_owner(found: tuple[Any, Any, bool]) -> tuple[Any, Any, bool]:
    """Did the walk make this gradient, or does nobody but `found` hold it or, if it is a view, its memory?"""
    ours = found[2]
    if not ours and type(found[1]) is ndarray and getrefcount(found[1]) == 2:  # found's and the argument's
        alone, g, base = getrefcount(found[1].base) == 2, found[1], found[1].base  # counted unnamed
        whole = type(base) is ndarray and base.flags.owndata and base.nbytes == g.nbytes
        ours = g.flags.owndata or (alone and whole)
    return found[0], found[1], ours


def _roots(who: str, tensors: Any, gradients: Any, keep: Any, create_graph: bool) -> list[tuple[Any, Any]]:
    for name, flag in (("retain_graph", keep), ("create_graph", create_graph)):
        if not isinstance(flag, int | None):  # as PyTorch has it
            raise TypeError(f"{who}: {name} is {flag!r:.60}; give True or False")
    several = _several(who, "outputs" if who == "grad" else "tensors", tensors)
    if not isinstance(gradients, (list, tuple)):
        gradients = [gradients] * (len(several) if gradients is None else 1)
    if len(gradients) != len(several):
        raise ValueError(f"{who}: {len(several)} tensors but {len(gradients)} gradients; give one for each")
    return [_root(who, y, gradients[i], create_graph) for i, y in enumerate(several)]


def _made(y: Any) -> str:
    return "a leaf" if y.grad_fn is None else f"made by {y.grad_fn!r}"


def _root(who: str, y: Any, g: Any, create_graph: bool) -> tuple[Any, Any]:
    if not y._requires_grad:
        raise RuntimeError(f"{who}: this tensor of shape {y.shape} was not recorded: no input requires a "
                           f"gradient, or no_grad, detach() or numpy() cut it off; compute in tensors, from "
                           f"requires_grad=True up to here, gradients by create_graph=True")  # fmt: skip
    shape, dtype = y.array.shape, y.array.dtype
    if g is None:
        if y.array.size != 1:
            raise RuntimeError(f"{who}: a tensor of shape {y.shape} needs a gradient of that shape to start "
                               f"from ({_made(y)}); reduce it to a scalar first, as in .sum() or .mean(), or "
                               f"pass {'grad_outputs' if who == 'grad' else 'gradient'}=")  # fmt: skip
        g = np.array(1, dtype, ndmin=len(shape))
    if not isinstance(g, (engine.Tensor, ndarray)):
        raise TypeError(f"{who}: the gradient to start from is {type(g).__name__}; give a tensor of "
                        f"shape {y.shape} ({_made(y)})")  # fmt: skip
    array = g.array if isinstance(g, engine.Tensor) else g
    if array.shape != shape:
        raise RuntimeError(f"{who}: the gradient has shape {tuple(g.shape)}, the tensor {y.shape} "
                           f"({_made(y)}); make them equal")  # fmt: skip
    if create_graph:  # the walk runs on tensors; a gradient that is one stays on its own tape
        return engine.node_of(y), (engine.make(g, None, None) if isinstance(g, ndarray) else g).to(dtype)
    return engine.node_of(y), array if array.dtype is dtype else array.astype(dtype)


def _accumulate(leaf: Any, g: Any, ours: bool, walked: list[Any]) -> bool:
    """leaf.grad += g. True if that makes it a sum over two changes of the leaf: was zero_grad() forgotten?

    walked: where backward was called, to which the step that uses its gradients adds where and who it is. If
    that is known of the gradients of before, other leaves had theirs there: this leaf's step is to ask.
    """
    total, updates, grown, used = leaf._grad, 0, False, None
    if total is None:
        leaf._grad = total = _owned(g, ours)
    elif isinstance(g, engine.Tensor):  # create_graph: it is part of a graph, never changed in place
        leaf._grad = total = total + g
    elif total.grad_fn is None and total.array.flags.writeable:
        at, updates, before, used = getattr(total, "summed", (leaf.version[0], 0, [], None))
        changed = at != leaf.version[0]  # the leaf has other values than at the last backward
        if changed or before[1:]:
            grown = total.array.any()  # no: somebody has set it to zero, in whatever way
            updates = updates + changed if grown else 0
            used = (used or (None if changed else before)) if grown else None
        total.array += g
        mark_changed("backward", total.version)
    else:
        leaf._grad = total = engine.make(total.array + g, None, None)
    total.summed = leaf.version[0], updates, walked, used
    return grown and updates == 2


def _owned(g: Any, ours: bool) -> Any:
    """A gradient as a tensor for the user to keep and change: what others may hold is copied (law 4)."""
    if isinstance(g, engine.Tensor):
        return g
    return engine.make(g if ours and g.flags.carray else np.array(g, order="C"), None, None)


def __getattr__(name: str) -> Any:  # the checks are used by tests: a training run need not load them
    if name in ("gradcheck", "gradgradcheck"):
        return getattr(import_module("microtensor.testing"), name)
    raise MissingNameError("autograd", name)
