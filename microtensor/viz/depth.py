"""Modules as single nodes: what lies deeper than `depth` is drawn by the name of its module.

Depth counts names in a module's path; the numbers of a list do not count, so that encoder.layers.0 lies at 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from microtensor.viz.record import Span
from microtensor.viz.trace import Graph, Node, grouped

__all__ = ["collapse", "hide", "module_span", "prefixes"]


def prefixes(path: str) -> list[str]:
    """The modules around a path by depth, outermost first: a, a.layers.0, a.layers.0.b."""
    found: list[str] = []
    for part in path.split(".") if path else []:
        if part.isdecimal() and found and not found[-1].rsplit(".", 1)[-1].isdecimal():
            found[-1] += f".{part}"
        else:
            found.append(f"{found[-1]}.{part}" if found else part)
    return found


def collapse(graph: Graph, depth: int | None) -> dict[Node, Span]:
    """Each node that a module at that depth hides → a span for what the module computed in one go."""
    return {} if depth is None else hide(graph, lambda node: module_span(node, depth))


def module_span(node: Node, depth: int) -> Span | None:
    """A span for the call of the module at that depth around a node, if there is one.

    What is there but has no call of its own (a ModuleDict) is no node: the parts of it that are called are.
    """
    around = itertools.takewhile(lambda span: span.kind != "fold", node.spans)  # a line stays one node
    calls = {span.path: span for span in reversed(list(around)) if span.kind == "module"}  # the outermost
    path = next((p for p in prefixes(next(iter(calls), ""))[depth - 1 :] if p in calls), "")
    if not path:
        return None
    own, last = calls[path], path.rsplit(".", 1)[-1]
    key = str(own.title) if last.isdecimal() else last
    return Span("module", key, path, own.start, title=own.title, names=own.names)


def hide(graph: Graph, span_of: Callable[[Node], Span | None]) -> dict[Node, Span]:
    """Each node that `span_of` gives a span → the span of all that was computed with it in one go.

    A parameter that one of them alone uses is hidden, too.
    """
    spans: dict[Node, Span] = {}
    running: Span | None = None
    for node in (n for n in graph.nodes if n.op is not None):
        found = span_of(node)
        if found is None or running is None or _place(found) != _place(running):
            running = found  # another module ran in between: a node of its own
        spans |= {} if running is None else {node: running}
    spans |= _parameters(graph, spans)
    _say(graph, spans)
    return spans


def _place(span: Span) -> tuple[str, str, int | None, int]:
    return span.path, span.key, span.within, span.start


def _parameters(graph: Graph, spans: dict[Node, Span]) -> dict[Node, Span]:
    uses = ((source, node) for node in graph.nodes for source in node.parents if source.kind == "param")
    users = grouped((source, spans.get(node)) for source, node in uses)
    return {p: u[0] for p, u in users.items() if u[0] is not None and all(span is u[0] for span in u)}


def _say(graph: Graph, spans: dict[Node, Span]) -> None:
    """y = Class(its inputs), in the order of the call, and then what it read beside them."""
    inputs: dict[int, dict[Node, None]] = {id(span): {} for span in spans.values()}
    for node in graph.nodes:
        span = spans.get(node)
        for source in node.parents if span is not None else ():
            if spans.get(source) is not span and source.kind != "param":
                inputs[id(span)][source] = None
    for span in {id(s): s for s in spans.values() if not s.texts}.values():
        read, called = list(inputs[id(span)]), [n for x in span.names.values() for n in graph.drawn_as(x)]
        read = sorted(read, key=lambda n: n.number) if span.kind == "frame" else read
        given = (n for n in dict.fromkeys([*called, *read]) if n in read)
        span.names = {f"x{i}": source for i, source in enumerate(given)}
        what = span.title if str(span.title).isidentifier() else span.key
        span.texts = (f"y = {what}({', '.join(span.names)})",)
