"""The formulas of drawings, evaluated by NumPy: what tests compare with the engine's values."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from microtensor.viz.formula import parse

__all__ = ["FUNCTIONS", "evaluate"]


def _softmax(x: Any) -> Any:
    top = np.max(x, axis=-1, keepdims=True)
    e = np.exp(x - np.where(np.isneginf(top), 0, top))
    return e / np.maximum(e.sum(axis=-1, keepdims=True), 1)  # 0 in a row that may attend to nothing


FUNCTIONS: dict[str, Any] = {
    **{n: vars(np)[n] for n in ("abs", "exp", "log", "max", "min", "mean", "prod", "sum", "sqrt", "where")},
    "Σ": lambda x: np.sum(x, axis=tuple(range(x.ndim - 1))),  # over all axes but the last
    "Σ_B": lambda x: np.sum(x, axis=tuple(range(x.ndim - 2))),  # over all but the last two: the batch
    "mask": lambda s, m: np.where(m, s, -math.inf),
    "relu": lambda x: np.maximum(x, 0),
    "rowsum": lambda x: np.sum(x, axis=-1, keepdims=True),
    "softmax": _softmax,
}


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """The value of a formula's right side, computed by NumPy on the values that its names have.

    A name that is None drops its term, as in print. Functions that a layer defines (split_h) come in `names`.
    """
    text = ast.unparse(parse(text)[1])
    for absent in (name for name, value in names.items() if value is None):
        text = re.sub(rf" \+ {absent}(?=[),]| [+-]|$)", "", text)
    return eval(text, {"__builtins__": {}, **FUNCTIONS, **names})
