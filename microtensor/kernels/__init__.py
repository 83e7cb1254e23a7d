"""Compiled loops: NumPy arrays in, NumPy arrays out; nothing here knows tensors, tapes or gradients.

The names below are imported on first use (PEP 562), because importing numba costs more than many programs
take: `import microtensor` must stay cheap for a user who only draws a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

_HOME = {
    "get_num_threads": "threads",
    "set_num_threads": "threads",
    "matmul": "gemm",
    "attention_forward": "attention",
    "attention_backward": "attention",
    "attention_keeps": "attention",
    "softmax_forward": "rows",
    "softmax_backward": "rows",
    "log_softmax_forward": "rows",
    "log_softmax_backward": "rows",
    "logsumexp_forward": "rows",
    "layer_norm_forward": "norm",
    "layer_norm_backward": "norm",
    "cross_entropy_forward": "rows",
    "cross_entropy_backward": "rows",
    "mean_of_kept": "rows",
    "embedding_backward": "pointwise",
    "erf_forward": "pointwise",
    "gelu_backward": "pointwise",
    "gelu_forward": "pointwise",
    "adam_rule": "steps",
    "adam_steps": "steps",
    "scale": "steps",
    "sgd_rule": "steps",
    "sgd_steps": "steps",
    "sq_sums": "steps",
    "dropout": "gates",
    "dropout_keeps": "gates",
    "relu_backward": "gates",
    "relu_forward": "gates",
}


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function: Callable[..., Any] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = function  # the next access is a plain attribute
    return function


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
