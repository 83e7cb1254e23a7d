"""Identical layers once: consecutive modules of a list with equal ops, sizes and inner edges become one, × N.

Each is fed by the one before it and by inputs that all have in common (a mask, a memory). What is left out is
remembered as the twins of what is drawn, so that norms are said as a range.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from microtensor.viz.fold import Edge, Folded, Group, path_of
from microtensor.viz.trace import Node, grouped

__all__ = ["repeat"]


def repeat(folded: Folded) -> Folded:
    """Join layers until none are left to be joined, outer lists first."""
    paths = {path_of(g) for g in folded.groups}
    # the lists around each, as its parts begin: a.layers. of a.layers.0.b, nothing of 0.b
    bases = {path[: part.start()] for path in paths for part in re.finditer(r"(?<![^.])\d+(?![^.])", path)}
    for base in sorted(bases, key=lambda b: (b.count("."), b)):
        folded = _join(folded, base)
    return folded


class _Layer:
    """The groups of one module of a list, in order, and the edges into and out of them."""

    def __init__(self, folded: Folded, path: str) -> None:
        self.path = path
        ops = [g for g in folded.groups if g.last.op is not None]
        self.groups = [g for g in ops if f"{path_of(g)}.".startswith(f"{path}.")]
        own = set(self.groups)
        users = grouped((edge.tail, edge.head) for edge in folded.edges)
        constants = (g for g in folded.groups if g.last.kind in ("param", "const"))
        leaves = [g for g in constants if g in users and own.issuperset(users[g])]
        into = [e for e in folded.edges if e.head in own]
        order = {e.tail: i for i, e in reversed(list(enumerate(into)))}
        self.groups += sorted(leaves, key=lambda g: order[g])
        self.place = {g: i for i, g in enumerate(self.groups)}
        self.inner = [e for e in into if e.tail in self.place]
        self.outer = [e for e in into if e.tail not in self.place]
        self.leaving = [e for e in folded.edges if e.tail in self.place and e.head not in self.place]
        last = folded.output.outputs[-1:] if folded.output in own else []
        self.results = {e.source for e in self.leaving} | set(last)

    def signature(self) -> Any:
        """What two layers must have in common."""
        where = {n: (i, j) for g, i in self.place.items() for j, n in enumerate(g.members)}
        return (
            [_looks(g) for g in self.groups],
            [(self.place[e.tail], self.place[e.head], where[e.source], _slots(e)) for e in self.inner],
            [(self.place[e.head], _slots(e)) for e in self.outer],
            sorted(where[n] for n in self.results),
        )


def _looks(group: Group) -> Any:
    key = group.span.key if group.span is not None else None
    return key, [(n.kind, n.op.name if n.op else "", n.shape, n.dtype, _params(n)) for n in group.members]


def _params(node: Node) -> list[str]:
    """An op's parameters but for chance."""
    return [f"{k}={v!r}" for k, v in sorted(node.params.items()) if k != "seed"]


def _slots(edge: Edge) -> list[str]:
    return [slot for _, slot in edge.slots]


def _join(folded: Folded, base: str) -> Folded:
    number = re.compile(re.escape(base) + r"(\d+)(?:\.|$)")
    numbers = sorted({int(m[1]) for g in folded.groups if (m := number.match(path_of(g)))})
    layers = [_Layer(folded, f"{base}{i}") for i in numbers]
    runs: list[list[_Layer]] = []
    for layer in layers:
        if runs and _follows(runs[-1], layer):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    for run in (run for run in runs if len(run) > 1):
        folded = _without(folded, run)
    return folded


def _follows(run: list[_Layer], layer: _Layer) -> bool:
    """Is the layer the same as those before it, fed by the last of them and by what they all are fed by?"""
    first, last = run[0], run[-1]
    if layer.signature() != first.signature() or len(last.results) != 1:
        return False
    (result,) = last.results
    if any(e.head not in layer.place for e in last.leaving):
        return False
    pairs = list(zip(last.outer, layer.outer, strict=True))
    fed = {a.source for a, b in pairs if b.source is result and a.source is not result}
    alike = (a.source is b.source or (b.source is result and a.source in fed) for a, b in pairs)
    return len(fed) == 1 and all(alike)


def _without(folded: Folded, run: list[_Layer]) -> Folded:
    """The drawing without all but the first layer of a run."""
    first, others = run[0], run[1:]
    gone = {g for layer in others for g in layer.groups}
    stands_for = {g: first.groups[i] for layer in others for g, i in layer.place.items()}
    for group in first.groups:
        twins = [layer.groups[first.place[group]] for layer in others]
        for nodes in zip(*((*g.members, *g.inside) for g in (group, *twins)), strict=True):
            folded.twins.setdefault(nodes[0], []).extend(_all(nodes[1:], folded.twins))
    for mine, *theirs in zip(*([*way.inner, *way.outer] for way in (first, *others)), strict=True):
        folded.like.setdefault(mine, []).extend(_all(theirs, folded.like))
    (begin,), (end,) = first.results, run[-1].results
    edges = [e for e in folded.edges if e.head not in gone and (e.tail not in gone or e in run[-1].leaving)]
    for edge in edges:
        if edge.source is end:
            edge.source, edge.tail = begin, stands_for[edge.tail]
    of = {node: stands_for.get(group, group) for node, group in folded.of.items()}
    groups = [g for g in folded.groups if g not in gone]
    made = Folded(groups, edges, stands_for.get(folded.output, folded.output), of, folded.twins, folded.like)
    made.repeats = {**folded.repeats, first.path: (len(run), run[-1].path)}
    made.ends = {**folded.ends, begin: folded.ends.get(end, end)}
    used = {e.source for e in edges} | {begin}
    for group in first.groups:
        group.outputs = [n for n in group.members if n in used] or group.outputs
    return made


def _all(parts: Iterable[Any], twins: Mapping[Any, list[Any]]) -> list[Any]:
    """Nodes or edges, each with those that it stands for already."""
    return [twin for part in parts for twin in (part, *twins.get(part, ()))]
