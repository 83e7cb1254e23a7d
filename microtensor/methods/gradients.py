"""Tensor methods that listen to the gradient that backward brings to one tensor, leaf or not."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import engine
from microtensor.hooks import Hooks, RemovableHandle
from microtensor.methods.names import Named
from microtensor.place import caller, last_zeroed, warn

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


def forget_gradients(owner: Any, tensors: Iterable[Any], set_to_none: bool) -> None:
    """zero_grad of modules and optimisers."""
    last_zeroed[0] = caller(), f"{type(owner).__name__}.zero_grad"
    for x in tensors:
        zeros = not set_to_none and x.grad is not None  # a new array: the old gradient may be shared
        x.grad = engine.make(np.zeros_like(x.grad.array), None, None) if zeros else None


class Gradients(Named):
    """grad, register_hook, retain_grad."""

    __slots__ = ()

    @property
    def grad(self: Any) -> Tensor | None:
        """What backward() has brought here, added up; None before. Inner tensors keep none: `retain_grad`.

        Shapes: as the tensor. Warns where an inner tensor is asked for a gradient that it does not keep.
        Raises: on setting, TypeError for what is no tensor, ValueError for another shape or dtype.
        Source: torch.Tensor.grad
        """
        if self._grad is None and self.grad_fn is not None and not self.retains_grad:
            warn(f"grad: a tensor of shape {self.shape} that {self.grad_fn!r} made keeps no gradient, so "
                 f"that this is None; a parameter is to stay a leaf: make it by detach().requires_grad_(), "
                 f"and update it in place under no_grad(), w -= … for w = w - …; of another tensor call "
                 f"retain_grad() before backward()")  # fmt: skip
        return self._grad

    @grad.setter
    def grad(self: Any, value: Tensor | None) -> None:
        if value is not None and not isinstance(value, engine.Tensor):
            raise TypeError(f"grad: {type(value).__name__} is no tensor; give a tensor like this one, or "
                            f"None")  # fmt: skip
        if value is not None and (value.shape, value.dtype) != (self.shape, self.dtype):
            raise ValueError(f"grad: {value.dtype}{value.shape} for a {self.dtype}{self.shape} tensor; make "
                             f"it alike")  # fmt: skip
        self._grad = value

    def register_hook(self: Any, hook: Callable[[Any], Any]) -> RemovableHandle:
        """Call hook(gradient) once in each backward, when the gradient of this tensor is complete.

        What the hook returns, unless None, replaces the gradient, here and further down. Hooks run in the
        order of their registration; they must not write into the gradient. After an in-place change a hook
        stays with the value that it was registered on.

        Shapes: any → a handle, whose remove() takes the hook off
        Raises: RuntimeError if the tensor requires no gradient; TypeError for what cannot be called. In
        backward TypeError for a hook that returns no tensor, RuntimeError for another shape or dtype.
        Source: torch.Tensor.register_hook. Differs: what a hook is shown is read-only memory.

        >>> import microtensor as mt
        >>> x = mt.ones(2, requires_grad=True)
        >>> handle = x.register_hook(lambda g: g.clamp(max=1.0))
        >>> (3.0 * x).sum().backward()
        >>> x.grad
        tensor([1., 1.])
        >>> handle.remove()
        """
        if not callable(hook):
            raise TypeError(f"register_hook: {hook!r} cannot be called; give a function of the gradient")
        return RemovableHandle(_hooks("register_hook", self).functions, hook)

    def retain_grad(self: Any) -> None:
        """Make backward fill `.grad` of this tensor too, which was computed; on leaves it always does.

        The gradient is what the hooks leave of it, and it adds up over several backwards. After an in-place
        change it is the gradient of the newest value.

        Shapes: any; `.grad` has the same
        Raises: RuntimeError if the tensor requires no gradient.
        Source: torch.Tensor.retain_grad.

        >>> import microtensor as mt
        >>> h = mt.ones(2, requires_grad=True) * 2.0
        >>> h.retain_grad()
        >>> (h * h).sum().backward()
        >>> h.grad
        tensor([4., 4.])
        """
        if self.grad_fn is not None or not self._requires_grad:
            _hooks("retain_grad", self).keeper = weakref.ref(self)

    @property
    def retains_grad(self: Any) -> bool:
        """Was `retain_grad` called on this inner tensor?

        Source: torch.Tensor.retains_grad.
        """
        hooks = None if self.grad_fn is None else self.grad_fn.hooks
        return hooks is not None and hooks.keeper is not None


def _hooks(who: str, tensor: Any) -> Hooks:
    """The hooks of the node that a tensor's gradient arrives at, made if there are none yet."""
    if tensor.base is not None:
        engine.refresh(tensor)
    if not tensor._requires_grad:
        raise RuntimeError(f"{who}: this tensor of shape {tensor.shape} requires no gradient, so that none "
                           f"will come; set requires_grad=True on it, or on what it is computed from before "
                           f"the forward")  # fmt: skip
    node = engine.node_of(tensor)
    if node.hooks is None:
        node.hooks = Hooks()
    return node.hooks
