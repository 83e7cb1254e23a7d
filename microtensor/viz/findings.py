"""What is worth a look, found without being asked: gradients that are zero, rows that attend to nothing, and
the op that made the first NaN.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from microtensor.engine import Tensor
from microtensor.mode import mode
from microtensor.viz import symbols
from microtensor.viz.flow import Flow
from microtensor.viz.names import Names
from microtensor.viz.trace import Graph, Node, kept

__all__ = ["Finding", "at_hand", "findings", "of_masks", "results", "told"]

MASKING = {"add", "cast", "masked_fill", "mul", "where"}  # ops that forbid by −∞, or pass that on


@dataclass
class Finding:
    """One thing: in words (HTML), at which node, and what is written there."""

    text: str
    node: Node
    mark: str
    fault: bool = False  # is it to be drawn in red?


def findings(graph: Graph, names: Names, flow: Flow | None, y: Any) -> list[Finding]:
    """All of them, in the order of the computation."""
    found = [*_dead_rows(graph, names)]
    if not np.isfinite(y.array).all() or any("∞" in f.mark for f in found):
        found += _nan(graph, names)
    if flow is not None:
        found += _zero(names, flow)
        if flow.broken is not None and not any(f.fault for f in found):
            what = f"the backward of {names.short(flow.broken)} makes the first NaN"
            found.append(Finding(what, flow.broken, "its backward makes NaN", fault=True))
    return sorted(found, key=lambda f: f.node.number)


def told(found: list[Finding]) -> list[str]:
    """What is to be read; what several layers have in common once."""
    times = Counter(finding.text for finding in found)
    return [f"{text} ({n} layers)" if n > 1 else text for text, n in times.items()]


def _zero(names: Names, flow: Flow) -> Iterator[Finding]:
    for node, why in flow.zero.items():
        text = f"∂L/∂{symbols.html(names.of(node) or 'w')} = 0"
        yield Finding(f"{text}: {symbols.escape(why)}" if why else text, node, "")


# --- rows that may attend to nothing ------------------------------------------------------------------------


def _dead_rows(graph: Graph, names: Names) -> Iterator[Finding]:
    found = {node: rows for node in graph.nodes if (rows := _dead(node)) is not None and rows.any()}
    alone = of_masks(graph) if found else {}
    for node, dead in found.items():
        of = "rows" if node.axis is None else f"lines along axis {node.axis}"
        hidden = dead & _all_hidden(node, alone[node])
        for rows, why in ((hidden, "may attend to nothing"), (dead & ~hidden, "have scores of −∞ only")):
            what = f"{int(rows.sum())} of {rows.size} {of} {why}"
            yield from [Finding(f"{names.short(node)}: {what}", node, what)] if rows.any() else []


def _dead(node: Node) -> Any:
    """Which rows of attention weights are zero throughout; None for other ops, and where a tape is freed."""
    if node.op is None or node.value.saved is None:
        return None
    saved = dict(zip(node.op.kept, node.value.saved, strict=True))
    if node.op.name == "softmax":
        return ~np.any(saved["y"], axis=node.params["axis"])
    if node.op.name == "attention":
        return saved["stats"][1] == 0  # the sums of exponentials
    return None


def _all_hidden(node: Node, alone: Any) -> Any:
    """Of which rows masks hide every key: those that would be dead if all scores were 0, too."""
    if node.op.name == "softmax":
        return np.all(np.isneginf(alone), axis=node.params["axis"])
    q, k, *others = (kept(node.value, i) for i in range(4))
    _, (stats,) = mode.quiet(node.op.forward, np.zeros_like(q), np.zeros_like(k), *others, **node.params)
    return stats[1] == 0


# --- the first NaN ------------------------------------------------------------------------------------------


def _nan(graph: Graph, names: Names) -> Iterator[Finding]:
    """The leaf or op with the first NaN, and leaves before it with ±∞ that no mask is."""
    for node, x in results(graph):
        if x is None or x.dtype.kind != "f":
            continue
        nan, of_mask = np.isnan(x).any(), node.kind == "const" or "mask" in (node.code or "")
        if node.op is None and not (np.isfinite(x) | np.isneginf(x) & of_mask).all():
            what = f"holds {'NaN' if nan else '∞'}"
            yield Finding(f"{names.short(node)} {what}", node, what, fault=True)
        elif nan:
            what = f"first NaN: {symbols.escape(names.op(node)[0])}"
            yield Finding(f"{names.short(node)} is the first with NaN", node, what, fault=True)
        if nan:
            return


def results(graph: Graph) -> Iterator[tuple[Node, Any]]:
    """Each node's values, oldest first. Those that nobody keeps are gone, and are computed again.

    Where an operand is gone, too, what depends on it is not known: None.
    """
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        known = at_hand(node)
        values[node] = _result(graph, node, values) if known is None and node.op is not None else known
        yield node, values[node]


def of_masks(graph: Graph) -> dict[Node, Any]:
    """What masks alone make of each tensor, if what is learned or computed were 0: −∞ where they forbid."""
    made: dict[Node, Any] = {}
    for node in graph.nodes:
        found = at_hand(node) if node.op is None and node.kind != "param" else None
        if node.op is not None and node.op.name.endswith("softmax"):
            found = made[node.parents[0]]
        elif node.op is not None and (node.op.view or node.op.name in MASKING):
            found = _result(graph, node, made)
        made[node] = np.broadcast_to(0.0, node.shape or ()) if found is None else found
    return made


def at_hand(node: Node) -> Any:
    """A leaf's values, and those of a result that a layer has tagged; None where they are gone."""
    if isinstance(node.value, Tensor):
        return node.value.array
    return node.value if isinstance(node.value, np.ndarray) else node.array


def _result(graph: Graph, node: Node, values: dict[Node, Any]) -> Any:
    arguments = []
    for i, given in enumerate(node.value.inputs):
        alive = given() if isinstance(given, weakref.ref) else given
        source = graph.by_id.get(id(alive))
        known = getattr(alive, "array", alive)
        if source is not None and source.differentiable:
            known = values.get(source)
        known = kept(node.value, i) if known is None else known
        if known is None and given is not None:
            return None
        arguments.append(known)
    op = node.value.op
    made = mode.quiet(op.forward, *arguments, **node.params)
    return np.asarray(made[0] if op.residuals else made)
