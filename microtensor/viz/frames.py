"""The frames around boxes: those that a layer names, numbered heads, and modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from microtensor.viz.axes import Shapes
from microtensor.viz.depth import prefixes
from microtensor.viz.fold import Folded, Group, path_of
from microtensor.viz.picture import Cluster
from microtensor.viz.record import Span

__all__ = ["Frames"]


class Go(NamedTuple):
    """What a module computed until another one ran. A frame is around that: around more, arrows would leave
    it and return, as those of a sublayer do that calls another module between its norm and its sum.
    """

    call: int | None  # when the module was called
    first: int  # the number of the first group


class Frames:
    """Finds the cluster that a group stands in, and makes it when it is first needed."""

    def __init__(self, folded: Folded, shapes: Shapes, level: str, bare: Callable[[str], str]) -> None:
        self.shapes, self.level, self.bare, self.repeats = shapes, level, bare, folded.repeats
        self.clusters: list[Cluster] = []  # the outermost
        self.made: dict[object, Cluster] = {}
        ops = [g for g in folded.groups if g.last.op is not None]
        spans = (span for g in ops for n in g.members for span in n.spans)
        self.classes = {span.path: span.title for span in spans if span.kind == "module"}
        self.goes = self._goes(ops)
        self.sizes = Counter[Any](go for goes in self.goes.values() for go in goes.items())

    def _goes(self, ops: list[Group]) -> dict[Group, dict[str, Go]]:
        """Of each group, in which go the modules around it computed it."""
        found: dict[Group, dict[str, Go]] = {}
        before: dict[str, Go] = {}
        for number, group in enumerate(ops):
            calls = {span.path: span.start for span in group.members[0].spans if span.kind == "module"}
            whole = group.span is not None and group.span.kind == "module"  # a module lies in those around it
            around = prefixes(path_of(group))[: -1 if whole else None]
            goes = {path: Go(calls.get(path), number) for path in around}
            same = {p: before[p] for p, go in goes.items() if p in before and before[p].call == go.call}
            found[group] = before = goes | same
        return found

    def of(self, group: Group) -> Cluster | None:
        """The innermost cluster: frames, and modules below the one drawn."""
        if self.level == "tape":
            return None
        cluster = self.of_module(group)
        for span in group.members[0].spans if group.span is None or group.span.kind == "fold" else ():
            of_heads = span.index or self.level != "heads"
            framed = span.kind == "frame" and span in group.home.spans and of_heads
            if framed or (span.kind == "module" and self.level == "ops" and span.path):
                cluster = self._open(span, cluster)
        return cluster

    def of_module(self, group: Group) -> Cluster | None:
        """Level equations: the module around a group, where it is around several, or stands for several."""
        cluster: Cluster | None = None
        for path in prefixes(path_of(group)) if self.level == "equations" else ():
            go = None if path in self.repeats else self.goes[group].get(path)
            # no box around what only holds others, and computes nothing itself
            if path in self.repeats or (path in self.classes and self.sizes[path, go] > 1):
                cluster = self._module(path, go, cluster)
        return cluster

    def _module(self, path: str, go: Go | None, parent: Cluster | None) -> Cluster:
        count, last = self.repeats.get(path, (1, ""))
        name, kind = path.rsplit(".", 1)[-1], self.classes.get(path) or ""
        several = [f"{kind or name} × {count}", "each reads", "the one before"]
        title = several if count > 1 else [f"{name}: {kind}" if kind else name]
        tooltip = f"modules {path} … {last}" if count > 1 else f"module {path}"
        made = Cluster(f"cluster_{path}", title, tooltip, parent, True, outer=True, key=path)
        return self._known((path, go, parent), made)

    def _known(self, key: object, made: Cluster) -> Cluster:
        """The cluster that is known by that key: this one, if it is the first."""
        if key not in self.made:
            made.name = self.bare(made.name)
            (self.clusters if made.parent is None else made.parent.inner).append(made)
        return self.made.setdefault(key, made)

    def of_constant(self, group: Group, users: Mapping[Group, Iterable[Group]]) -> Cluster | None:
        """A constant that one cluster alone uses stands inside it, but not at level ops."""
        if group.last.kind != "const" or self.level == "ops":
            return None
        found = [self.of(user) for user in users.get(group, ())]
        return found[0] if found and all(c is found[0] for c in found) else None

    def _open(self, span: Span, parent: Cluster | None) -> Cluster:
        if span.kind == "module":
            last = span.path.rsplit(".", 1)[-1]
            made = Cluster(f"cluster_{last}", [last], f"module {span.path}", parent, True, key=span.path)
            return self._known((span.path, parent), made)
        name, lines = span.key + (f"_{span.index}" if span.index else ""), self._title(span)
        made = Cluster(f"cluster_{name}", lines, " ".join(lines), parent, False, span.index)
        made.key = f"{span.path}#{span.key}{span.index or ''}"
        return self._known(id(span), made)

    def _title(self, span: Span) -> list[str]:
        text = span.title or span.key
        for axis, size in self.shapes.sizes.items():
            text = text.replace(f"{{{axis}}}", str(size))
        return [line for line in text.replace("\n1 heads", "\n1 head").split("\n") if "{" not in line]
