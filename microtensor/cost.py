"""How many floating-point operations an op takes: a multiply-add counts as two, moving elements as none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from microtensor.engine import Op

__all__ = ["PRODUCTS", "flop", "readable"]

Shape = tuple[int, ...] | None  # None where it is not known any more

PRODUCTS = ("matmul", "linear")
PER_ELEMENT = {"softmax": 5, "log_softmax": 5, "layer_norm": 8, "add_layer_norm": 9, "gelu": 8, "dropout": 2}
REDUCTIONS = {"sum", "mean", "amax", "amin", "prod", "logsumexp", "cross_entropy", "embedding_backward"}
MOVES = {"masked_fill", "getitem", "setitem", "cat", "flip", "clone", "cast", "where", "embedding", "expand"}


def flop(op: Op, shape: Shape, inputs: Sequence[Shape]) -> int:
    """Operations of one op, by the shapes of its result and of its inputs."""
    if op.view or shape is None or op.name in MOVES:
        return 0
    size = math.prod(shape)
    if op.name in PRODUCTS:
        return 2 * (inputs[0] or (0,))[-1] * size + (size if len(inputs) > 2 else 0)
    if op.name == "attention":  # two products and a softmax for each pair of a query and a key
        q, k, v = (s or (0, 0) for s in inputs[:3])
        return (2 * q[-1] + 2 * v[-1] + PER_ELEMENT["softmax"]) * math.prod(q[:-1]) * k[-2]
    if op.name in REDUCTIONS:
        return math.prod(inputs[0] or (0,))
    return PER_ELEMENT.get(op.name, 1) * size


def readable(count: int, unit: str = "FLOP") -> str:
    """2100 → 2.1 kFLOP: three digits of the decimal number, a half upwards."""
    least = 10 ** max(0, len(str(count)) - 3)  # whole numbers: 3.385 has no exact binary fraction
    count = (count + least // 2) // least * least
    thousands = min((len(str(count)) - 1) // 3, 5)
    return f"{count / 1000**thousands:g} {('', 'k', 'M', 'G', 'T', 'P')[thousands]}{unit}"
