"""How many floating point operations an op takes: a multiply-add counts as two, moving elements as none."""

from __future__ import annotations

import math

from microtensor.viz.trace import Node

__all__ = ["flop", "readable"]

PER_ELEMENT = {"softmax": 5, "log_softmax": 5, "layer_norm": 8, "gelu": 8, "masked_fill": 0, "getitem": 0}


def flop(node: Node) -> int:
    """Operations of one op, by its shapes."""
    if node.op is None or node.op.view or node.shape is None:
        return 0
    size = math.prod(node.shape)
    if node.op.name in ("matmul", "linear"):
        inner = (node.parents[0].shape or (0,))[-1]
        return 2 * inner * size + (size if len(node.parents) > 2 else 0)
    if node.op.name in ("sum", "mean", "amax", "amin", "prod", "logsumexp", "cross_entropy"):
        return math.prod(node.parents[0].shape or (0,))
    return PER_ELEMENT.get(node.op.name, 1) * size


def readable(count: int) -> str:
    """2100 → 2.1 kFLOP."""
    for unit, scale in (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} FLOP"
