"""The frames around boxes: those that a layer names, numbered heads, and modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from microtensor.viz.axes import Shapes
from microtensor.viz.fold import Group
from microtensor.viz.picture import Cluster
from microtensor.viz.record import Span

__all__ = ["Frames"]


class Frames:
    """Finds the cluster that a group stands in, and makes it when it is first needed."""

    def __init__(self, shapes: Shapes, level: str, bare: Callable[[str], str]) -> None:
        self.shapes, self.level, self.bare = shapes, level, bare
        self.clusters: list[Cluster] = []  # the outermost
        self.made: dict[object, Cluster] = {}

    def of(self, group: Group) -> Cluster | None:
        """The innermost cluster: frames, and at level ops also the modules below the one drawn."""
        cluster: Cluster | None = None
        for span in group.members[0].spans:
            if self.level == "tape" or (self.level == "heads" and span.index is None):
                continue
            if span.kind == "frame" or (span.kind == "module" and self.level == "ops" and span.path):
                cluster = self._open(span, cluster)
        return cluster

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
            made = Cluster(name, lines, tooltip, parent, span.kind == "module", span.index)
            self.made[key] = made
            (self.clusters if parent is None else parent.inner).append(made)
        return self.made[key]

    def _title(self, span: Span) -> list[str]:
        text = span.title or span.key
        for axis, size in self.shapes.sizes.items():
            text = text.replace(f"{{{axis}}}", str(size))
        return [line for line in text.replace("× 1 heads", "× 1 head").split("\n") if "{" not in line]
