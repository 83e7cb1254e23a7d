"""Modules as single nodes: what lies deeper than `depth` is drawn by the name of its module.

Depth counts names in a module's path; the numbers of a list do not count, so that encoder.layers.0 lies at 2.
"""

from __future__ import annotations

from microtensor.viz.record import Span
from microtensor.viz.trace import Graph, Node

__all__ = ["collapse", "prefixes"]


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
    """Each node that a module at that depth hides → a span for what the module computed in one go.

    A parameter that one of them alone uses is hidden, too.
    """
    spans: dict[Node, Span] = {}
    running: Span | None = None
    for node in graph.nodes:
        if depth is None or node.op is None:
            continue
        module = next((s for s in reversed(node.spans) if s.kind == "module"), None)
        around = prefixes(module.path if module is not None else "")
        if len(around) < depth:
            running = None
            continue
        path = around[depth - 1]
        if running is None or running.path != path:  # another module ran in between: a node of its own
            title, last = _class(node, path), path.rsplit(".", 1)[-1]
            running = Span("module", title if last.isdecimal() else last, path, 0, title=title)
        spans[node] = running
    spans |= _parameters(graph, spans)
    _say(graph, spans)
    return spans


def _class(node: Node, path: str) -> str:
    return next((s.title for s in node.spans if s.kind == "module" and s.path == path and s.title), path)


def _parameters(graph: Graph, spans: dict[Node, Span]) -> dict[Node, Span]:
    users: dict[Node, list[Span | None]] = {}
    for node in graph.nodes:
        for source in node.parents:
            if source.kind == "param":
                users.setdefault(source, []).append(spans.get(node))
    return {p: u[0] for p, u in users.items() if u[0] is not None and all(span is u[0] for span in u)}


def _say(graph: Graph, spans: dict[Node, Span]) -> None:
    """y = Class(its inputs)."""
    inputs: dict[int, dict[Node, None]] = {id(span): {} for span in spans.values()}
    for node in graph.nodes:
        span = spans.get(node)
        for source in node.parents if span is not None else ():
            if spans.get(source) is not span and source.kind != "param":
                inputs[id(span)][source] = None
    for span in {id(s): s for s in spans.values()}.values():
        span.names = {f"x{i}": source for i, source in enumerate(inputs[id(span)])}
        span.texts = (
            f"y = {span.title if str(span.title).isidentifier() else span.key}({', '.join(span.names)})",
        )
