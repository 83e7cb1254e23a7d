"""What waits at a node of the tape for its gradient: hooks that may replace it, and a tensor that retains it.

It hangs on the node (an entry or a leaf), and on most nodes there is none. Nothing of the tape is known here.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Hooks", "RemovableHandle", "hand_over"]


class RemovableHandle:
    """What registering a hook returns: `remove()`, or the end of a with block, takes the hook off again."""

    _ids = itertools.count()

    def __init__(self, hooks: dict[int, Any], hook: Any, prepend: bool = False) -> None:
        self._hooks, self._id = hooks, next(self._ids)
        hooks[self._id] = hook
        for key in list(hooks)[:-1] if prepend else ():  # each of the others to the end
            hooks[key] = hooks.pop(key)

    def remove(self) -> None:
        """Take the hook off; a second time does nothing."""
        self._hooks.pop(self._id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


class Hooks:
    """The hooks of one node in the order of their registration, and the tensor that retains its gradient.

    The tensor is held weakly: it owns the node, so that a strong reference would be a cycle.
    """

    __slots__ = ("functions", "keeper")

    def __init__(self, keeper: weakref.ref[Any] | None = None) -> None:
        self.functions: dict[int, Callable[..., Any]] = {}
        self.keeper = keeper

    def __call__(self, g: Any, node: Any, make: Callable[..., Any], retained: list[tuple[Any, Any]]) -> Any:
        """The complete gradient of the node as its hooks leave it: each sees what the one before it returned.

        An array is shown as a tensor (`make` wraps it) whose memory they cannot write into.
        """
        if not isinstance(g, np.ndarray):
            g = self._run(g, node)
        elif self.functions:
            shown = g.view()
            shown.flags.writeable = False
            g = self._run(make(shown, None, None), node).array
        if self.keeper is not None and (tensor := self.keeper()) is not None:
            retained.append((tensor, g))
        return g

    def _run(self, g: Any, node: Any) -> Any:
        for hook in list(self.functions.values()):
            changed = hook(g)
            if changed is not None:
                if not isinstance(changed, type(g)) or (changed.shape, changed.dtype) != (g.shape, g.dtype):
                    raise _explain(hook, node, g, changed)
                g = changed
        return g


def _explain(hook: Any, node: Any, g: Any, changed: Any) -> Exception:
    made = repr(node) if hasattr(node, "place") else f"a leaf of shape {node.shape}"
    who = f"register_hook: the hook {getattr(hook, '__qualname__', hook)!s} of {made}"
    if not isinstance(changed, type(g)):
        return TypeError(f"{who} returned {type(changed).__name__}; return a tensor, or None for no change")
    given, got = f"{g.dtype}{g.shape}", f"{changed.dtype}{changed.shape}"
    return RuntimeError(f"{who} made a {given} gradient {got}; keep shape and dtype")


def hand_over(before: Any, now: Any) -> None:
    """A tensor got another entry by an in-place change: it retains the gradient of its newest value."""
    if before is not None and before.hooks is not None and before.hooks.keeper is not None:
        keeper, before.hooks.keeper = before.hooks.keeper, None
        if now is not None:
            now.hooks = now.hooks or Hooks()
            now.hooks.keeper = keeper
