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

from microtensor.engine import Entry, Tensor
from microtensor.mode import mode
from microtensor.viz import symbols
from microtensor.viz.cells import masked
from microtensor.viz.flow import Flow
from microtensor.viz.names import Names
from microtensor.viz.trace import Graph, Node, kept

__all__ = ["Finding", "findings", "results", "told"]


@dataclass
class Finding:
    """One thing: in words (HTML), at which node, and what is written there."""

    text: str
    node: Node
    mark: str
    fault: bool = False  # is it to be drawn in red?


def findings(graph: Graph, names: Names, flow: Flow | None, y: Any) -> list[Finding]:
    """All of them, in the order of the computation."""
    found = [*_dead_rows(graph, names), *_nan(graph, names, y)]
    if flow is not None:
        found += _zero(graph, names, flow)
        if flow.broken is not None and not any(f.fault for f in found):
            what = f"the backward of {names.short(flow.broken)} makes the first NaN"
            found.append(Finding(what, flow.broken, "its backward makes NaN", fault=True))
    return sorted(found, key=lambda f: f.node.number)


def told(found: list[Finding]) -> list[str]:
    """What is to be read; what several layers have in common once."""
    times = Counter(finding.text for finding in found)
    return [f"{text} ({n} layers)" if n > 1 else text for text, n in times.items()]


def _zero(graph: Graph, names: Names, flow: Flow) -> Iterator[Finding]:
    for node in graph.nodes:
        if node in flow.zero:
            why = _reason(graph, node)
            text = f"∂L/∂{symbols.html(names.of(node) or 'w')} = 0"
            yield Finding(f"{text}: {symbols.escape(why)}" if why else text, node, "")


def _reason(graph: Graph, node: Node) -> str:
    """Why, if a layer has said so of this parameter, or of the part of it that a head uses."""
    for span in (span for user in graph.nodes if node in user.parents for span in user.spans):
        for name, why in span.zero.items():
            bound = graph.node_of(span.names.get(name))
            if bound is not None and node in (bound, *bound.parents):
                return why
    return ""


# --- rows that may attend to nothing ------------------------------------------------------------------------


def _dead_rows(graph: Graph, names: Names) -> Iterator[Finding]:
    for node in graph.nodes:
        dead = _dead(node)
        if dead is not None and dead.any():
            what = "rows" if node.axis is None else f"lines along axis {node.axis}"
            what = f"{int(dead.sum())} of {dead.size} {what} may attend to nothing"
            yield Finding(f"{names.short(node)}: {what}", node, what)


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


# --- the first NaN ------------------------------------------------------------------------------------------


def _nan(graph: Graph, names: Names, y: Any) -> Iterator[Finding]:
    """If y is not finite: the leaf or op with the first NaN, and leaves before it with ±∞ that no mask is."""
    for node, x in results(graph) if not np.isfinite(y.array).all() else ():
        if x is None or x.dtype.kind != "f":
            continue
        nan = np.isnan(x).any()
        if node.op is None and not (np.isfinite(x) | masked(node, None, x)).all():
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
        values[node] = _values(node) if node.op is None else _result(graph, node, values)
        yield node, values[node]


def _values(leaf: Node) -> Any:
    if isinstance(leaf.value, Tensor):
        return leaf.value.array
    return leaf.value if isinstance(leaf.value, np.ndarray) else leaf.array


def _result(graph: Graph, node: Node, values: dict[Node, Any]) -> Any:
    assert node.op is not None
    if node.array is not None:
        return node.array
    arguments = []
    for i, given in enumerate(node.value.inputs):
        alive = given() if isinstance(given, weakref.ref) else given
        known = getattr(alive, "array", alive)
        if isinstance(alive, Entry):
            known = values.get(graph.by_id[id(alive)])
        known = kept(node.value, i) if known is None else known
        if known is None and given is not None:
            return None
        arguments.append(known)
    made = mode.quiet(node.op.forward, *arguments, **node.params)
    return np.asarray(made[0] if node.op.residuals else made)
