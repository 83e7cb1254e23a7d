"""A module is run once, with hooks that note the paths of modules while it runs.

It reads and changes nothing: random numbers are as they were, and hooks are taken away.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import numpy as np

from microtensor import engine, kernels
from microtensor.nn.module import Module
from microtensor.ops.elementwise import relu_backward_composite
from microtensor.ops.fused import softmax_backward_composite, softmax_composite
from microtensor.ops.select import dropout_composite
from microtensor.place import PACKAGE
from microtensor.random import default_generator
from microtensor.viz.record import Recorder, Span, current, recording

__all__ = ["by_definition", "run", "variables"]

_DEFINITIONS: dict[str, Callable[..., Any]] = {
    "matmul": lambda a, b, add=None: np.matmul(a, b) if add is None else np.matmul(a, b) + add,
    "softmax_forward": functools.partial(softmax_composite, axis=-1),
    "softmax_backward": functools.partial(softmax_backward_composite, axis=-1),
    "dropout": lambda x, p, seed: dropout_composite(x, p=p, seed=seed),
    "relu_forward": lambda x: np.where(x <= 0, 0, x),
    "relu_backward": relu_backward_composite,
}
by_definition = functools.partial(kernels.instead, _DEFINITIONS)
"""A block in which these stand in for kernels: a first picture shall not wait until numba is loaded."""


def run(
    module: Module, inputs: tuple[Any, ...], arguments: dict[str, Any], *, level: str, options: str
) -> tuple[Recorder, Any]:
    """One forward with a recorder that knows modules, parameters and inputs by their paths."""
    forward, name = _forward(module, level)
    try:
        bound = inspect.signature(getattr(module, name)).bind(*inputs, **arguments).arguments
    except TypeError as error:
        raise TypeError(
            f"draw: {type(module).__name__}.{name}: {error}; options of draw are {options}"
        ) from None
    listening = recording(opens=level != "tape")
    with listening as recorder, _paths_noted(module, recorder), _same_chance(), by_definition():
        recorder.parameters = {id(p): path for path, p in module.named_parameters()}
        recorder.inputs = {id(t): (name, t) for name, t in reversed(list(_tensors(bound)))}
        result = forward(*inputs, **arguments)
    return recorder, result[0] if isinstance(result, tuple | list) else result


def variables() -> dict[int, str]:
    """id of a tensor, or of its entry → what it is called where the package was called from.

    The tensors among the variables there, and the parameters of modules among them (net.0.weight).
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    found = {} if frame is None else frame.f_locals
    seen = [(n, v) for n, v in found.items() if n.isidentifier() and n[0] != "_"]
    modules = [(name, each) for name, each in seen if isinstance(each, Module)]
    parts = [(f"{name}.{path}", p) for name, module in modules for path, p in module.named_parameters()]
    tensors = [(name, t) for name, t in (*seen, *parts) if isinstance(t, engine.Tensor)]
    return {id(t if t.grad_fn is None else t.grad_fn): name for name, t in reversed(tensors)}


def _forward(module: Module, level: str) -> tuple[Callable[..., Any], str]:
    """What is run, and its name: at level heads the loop over heads, which a layer has beside its forward."""
    if level != "heads":
        return module, "forward"
    if not hasattr(module, "forward_per_head"):
        raise TypeError(
            f"draw: level='heads' runs forward_per_head, and {type(module).__name__} has none; draw an "
            f"attention layer, or choose level='equations'"
        )
    return module.forward_per_head, "forward_per_head"


def _tensors(bound: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    for name, value in bound.items():
        for x in value if isinstance(value, tuple | list) else (value,):
            if isinstance(x, engine.Tensor):
                yield name, x


def _same_chance() -> contextlib.ExitStack:
    """Dropout in the forward that is only drawn leaves the random numbers of the training as they were."""
    stack = contextlib.ExitStack()
    stack.callback(default_generator.set_state, default_generator.get_state())
    return stack


@contextlib.contextmanager
def _paths_noted(module: Module, recorder: Recorder) -> Iterator[None]:
    """Hooks on every module that open a span before its forward and close it behind."""
    with contextlib.ExitStack() as stack:
        for path, m in module.named_modules():
            before, behind = _hooks(path, recorder)
            stack.callback(m.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(m.register_forward_hook(behind).remove)
        yield


def _hooks(path: str, recorder: Recorder) -> tuple[Callable[..., None], Callable[..., None]]:
    opened: list[Span] = []

    def before(module: Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if current() is recorder:  # not another thread, which may be using the module meanwhile
            recorder.paths.append(path)
            names = dict(enumerate(x for _, x in _tensors({**dict(enumerate(args)), **options})))
            opened.append(recorder.open("module", path, title=type(module).__name__, names=names))

    def behind(module: Module, args: tuple[Any, ...], output: Any) -> None:
        if current() is recorder:
            recorder.close(opened.pop())
            recorder.paths.pop()

    return before, behind
