"""The frames around boxes: those that a layer names, numbered heads, and modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from microtensor.viz.axes import Shapes
from microtensor.viz.depth import prefixes
from microtensor.viz.fold import Folded, Group, path_of
from microtensor.viz.picture import Cluster
from microtensor.viz.record import Span

__all__ = ["Frames"]


class Frames:
    """Finds the cluster that a group stands in, and makes it when it is first needed."""

    def __init__(self, folded: Folded, shapes: Shapes, level: str, bare: Callable[[str], str]) -> None:
        self.shapes, self.level, self.bare, self.repeats = shapes, level, bare, folded.repeats
        self.clusters: list[Cluster] = []  # the outermost
        self.made: dict[object, Cluster] = {}
        ops = [g for g in folded.groups if g.last.op is not None]
        spans = (span for g in ops for n in g.members for span in n.spans)
        self.classes = {span.path: span.title for span in spans if span.kind == "module"}
        self.sizes = Counter(path for g in ops for path in self._around(g))

    def _around(self, group: Group) -> list[str]:
        """The modules that a line of the paper lies in, outermost first."""
        own = group.span is not None and group.span.kind == "module"
        return prefixes(path_of(group))[: -1 if own else None]

    def of(self, group: Group) -> Cluster | None:
        """The innermost cluster: frames, and modules below the one drawn."""
        if self.level == "tape":
            return None
        cluster = self.of_module(group)
        for span in group.members[0].spans if group.span is None or group.span.kind == "fold" else ():
            framed = (
                span.kind == "frame" and span in group.home.spans and (span.index or self.level != "heads")
            )
            if framed or (span.kind == "module" and self.level == "ops" and span.path):
                cluster = self._open(span, cluster)
        return cluster

    def of_module(self, group: Group) -> Cluster | None:
        """Level equations: the module around a group, where it is around several, or stands for several."""
        cluster: Cluster | None = None
        for path in prefixes(path_of(group)) if self.level == "equations" else ():
            # no box around what only holds others, and computes nothing itself
            if path in self.repeats or (path in self.classes and self.sizes[path] > 1):
                cluster = self._module(path, cluster)
        return cluster

    def _module(self, path: str, parent: Cluster | None) -> Cluster:
        if (path, parent) not in self.made:
            count, last = self.repeats.get(path, (1, ""))
            name, kind = path.rsplit(".", 1)[-1], self.classes.get(path) or ""
            title = f"{kind or name} × {count}" if count > 1 else f"{name}: {kind}" if kind else name
            tooltip = f"modules {path} … {last}" if count > 1 else f"module {path}"
            made = Cluster(self.bare(f"cluster_{path}"), [title], tooltip, parent, True, outer=True, key=path)
            self.made[path, parent] = made
            (self.clusters if parent is None else parent.inner).append(made)
        return self.made[path, parent]

    def of_constant(self, group: Group, users: Mapping[Group, Iterable[Group]]) -> Cluster | None:
        """A constant that one cluster alone uses stands inside it, but not at level ops."""
        if group.last.kind != "const" or self.level == "ops":
            return None
        found = [self.of(user) for user in users.get(group, ())]
        return found[0] if found and all(c is found[0] for c in found) else None

    def _open(self, span: Span, parent: Cluster | None) -> Cluster:
        key: object = (span.path, parent) if span.kind == "module" else id(span)
        if key not in self.made:
            last = span.path.rsplit(".", 1)[-1] if span.kind == "module" else span.key
            name = self.bare(f"cluster_{last}" if span.index is None else f"cluster_{last}_{span.index}")
            lines = [last] if span.kind == "module" else self._title(span)
            tooltip = f"module {span.path}" if span.kind == "module" else " ".join(lines)
            where = span.path if span.kind == "module" else f"{span.path}#{span.key}{span.index or ''}"
            made = Cluster(name, lines, tooltip, parent, span.kind == "module", span.index, key=where)
            self.made[key] = made
            (self.clusters if parent is None else parent.inner).append(made)
        return self.made[key]

    def _title(self, span: Span) -> list[str]:
        text = span.title or span.key
        for axis, size in self.shapes.sizes.items():
            text = text.replace(f"{{{axis}}}", str(size))
        return [line for line in text.replace("× 1 heads", "× 1 head").split("\n") if "{" not in line]
