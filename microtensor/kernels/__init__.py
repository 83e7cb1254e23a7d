"""Compiled loops: NumPy arrays in, NumPy arrays out; nothing here knows tensors, tapes or gradients.

The names below are imported on first use (PEP 562), because importing numba costs more than many programs
take: `import microtensor` must stay cheap for a user who only draws a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from threading import get_ident
from typing import Any

_NAMES = {
    "threads": "get_num_threads set_num_threads",
    "gemm": "matmul",
    "attention": "attention_forward attention_backward attention_keeps",
    "rows": "softmax_forward softmax_backward log_softmax_forward log_softmax_backward logsumexp_forward "
    "cross_entropy_forward cross_entropy_backward mean_of_kept",
    "norm": "layer_norm_forward layer_norm_backward",
    "pointwise": "embedding_backward erf_forward gelu_backward gelu_forward",
    "steps": "adam_rule adam_steps scale sgd_rule sgd_steps sq_sums",
    "gates": "dropout relu_backward relu_forward",
    "chance": "dropout_keeps",
}
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}
_instead: dict[int, Mapping[str, Callable[..., Any]]] = {}  # by thread


@contextmanager
def instead(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """In this thread they stand in for the kernels of their names, whether those are loaded or not."""
    _instead[get_ident()] = functions
    for name in functions:
        globals().pop(name, None)  # so that until the end each access asks `__getattr__`
    try:
        yield
    finally:
        _instead.pop(get_ident(), None)


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    own = _instead.get(get_ident(), {}).get(name)
    function: Callable[..., Any] = own or getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    if not _instead:
        globals()[name] = function  # the next access is a plain attribute
    return function


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
