"""Symbolic shapes, B×h×n×d_k: a layer's names of axes, carried along ops that keep or permute them.

Nothing is guessed from sizes. What no tag reaches keeps its numbers, and a name with two sizes is an error.
"""

from __future__ import annotations

from microtensor.viz import symbols
from microtensor.viz.trace import Graph, Node

__all__ = ["CODE_WORDS", "HOUSE_LETTERS", "Shapes", "carry"]

HOUSE_LETTERS = {"n": "T", "n_q": "T_q", "n_k": "T_k", "d": "C", "h": "H", "d_k": "D"}
CODE_WORDS = {"H": "AV", "C": "cat"}  # symbols that are letters of axes there
# Ops whose output has the axes of an input of the same shape only by accident.
SHUFFLES = {"attention", "cat", "embedding", "getitem", "linear", "matmul", "permute", "put_add", "reshape",
            "setitem"}  # fmt: skip


def carry(graph: Graph) -> None:
    """Give axes to untagged nodes: back through transposes and broadcasting, then forward."""
    for node in reversed(graph.nodes):
        if node.op is not None and node.op.name == "permute" and node.axes is not None:
            source = node.parents[0]
            if source.axes is None:
                names = dict(zip(_permutation(node), node.axes, strict=True))
                source.axes = tuple(names[i] for i in range(len(names)))
    for node in graph.nodes:
        if node.op is not None:
            node.axes = node.axes or _forward(node)
            if node.op.broadcasts and node.op.name not in SHUFFLES:
                _to_constants(node, node.axes, node.shape)
            if node.op.name == "attention":
                q, k = node.parents[:2]
                if q.axes and k.axes and q.shape and k.shape:
                    _to_constants(node, (*q.axes[:-1], k.axes[-2]), (*q.shape[:-1], k.shape[-2]))


def _to_constants(node: Node, axes: tuple[str, ...] | None, shape: tuple[int, ...] | None) -> None:
    """A constant that is broadcast to a result (of attention: to its scores) has the result's last axes."""
    for source in node.parents:
        rank = len(source.shape or ())
        unknown = source.op is None and source.axes is None and rank > 0
        if unknown and axes and shape and source.shape == shape[-rank:]:
            source.axes = axes[-rank:]


def _permutation(node: Node) -> list[int]:
    axes = node.params["axes"]
    return [a % len(axes) for a in axes]


def _forward(node: Node) -> tuple[str, ...] | None:
    assert node.op is not None
    sources = node.parents
    first = sources[0].axes if sources else None
    if node.op.name == "permute":
        return None if first is None else tuple(first[i] for i in _permutation(node))
    if node.op.name == "attention":
        third = sources[2].axes
        return None if first is None or third is None else (*first[:-1], third[-1])
    if node.op.name in ("matmul", "linear"):
        second = sources[1].axes
        if first is None or second is None or len(first) < len(second) or len(first) < 2:
            return None
        return (*first[:-1], second[0] if node.op.name == "linear" else second[-1])
    if node.op.name not in SHUFFLES:
        return next((s.axes for s in sources if s.shape == node.shape and s.axes is not None), None)
    return None


class Shapes:
    """Writes shapes as the option `shapes` asks, in math or in the house's letters."""

    def __init__(
        self, graph: Graph, how: str | None, *, code: bool, narrow: bool, apart: bool = False
    ) -> None:
        self.how, self.code = how, code
        self.between = "<BR/>" if narrow else " "  # sizes below the names: a long row stays short
        self.apart = apart  # several modules name axes: where they mean two sizes, numbers are drawn
        self.unclear: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.symbolic = how in ("symbolic", "both")
        for node in graph.nodes:
            self._collect(node)

    def _collect(self, node: Node) -> None:
        for name, size in zip(node.axes or (), node.shape or (), strict=False):
            if self.sizes.setdefault(name, size) == size or not self.symbolic:
                continue
            if self.apart:
                self.unclear.add(name)
            else:
                what = node.symbol or (node.op.name if node.op is not None else "a leaf")
                raise ValueError(
                    f"draw: axis {name} has size {size} in {what} of shape {node.shape}, but "
                    f"{self.sizes[name]} elsewhere; draw a module by draw(module, inputs), which tells its "
                    f"layers' axes apart, tag them differently, or draw with shapes='numeric'"
                )

    def letter(self, axis: str) -> str:
        """The name of an axis as it is printed."""
        return HOUSE_LETTERS.get(axis, axis) if self.code else axis

    def _order(self, node: Node) -> slice | list[int]:
        """A transposed symbol is shown with the shape of the symbol, not of what is stored."""
        if not node.transposed or self.code or node.shape is None:
            return slice(None)
        rank = len(node.shape)
        return [*range(rank - 2), rank - 1, rank - 2]

    def _parts(self, node: Node) -> tuple[list[str] | None, tuple[int, ...]]:
        assert node.shape is not None
        order = self._order(node)
        where = list(range(len(node.shape)))[order] if isinstance(order, slice) else order
        sizes = tuple(node.shape[i] for i in where)
        if node.axes is None:
            return None, sizes
        axes = [node.axes[i] for i in where]
        pairs = zip(axes, sizes, strict=True)
        return [str(n) if a in self.unclear else self.letter(a) for a, n in pairs], sizes

    def html(self, node: Node) -> str:
        """The shape in a label; empty where there is nothing to say."""
        if self.how is None or node.shape is None:
            return ""
        names, sizes = self._parts(node)
        if self.how == "numeric" or names is None:
            return "scalar" if sizes == () else str(sizes)
        text = (
            "×".join(symbols.html(name).replace("<I>", "").replace("</I>", "") for name in names) or "scalar"
        )
        return f"{text}{self.between}{sizes}" if self.how == "both" else text

    def plain(self, node: Node) -> str:
        """The sizes in a tooltip, always in numbers."""
        return "shape unknown" if node.shape is None else str(self._parts(node)[1])

    def caption(self) -> list[str]:
        """d = d_model = 16, h = 2, d_k = d/h = 8 …, as labels."""
        said: list[str] = []
        if not self.symbolic:
            return said
        for axis, size in self.sizes.items():
            if axis in self.unclear:
                continue
            name = symbols.html(self.letter(axis)).replace("<I>", "").replace("</I>", "")
            said.append(f"{name} = {self._meaning(axis)}{size}")
        return said

    def _meaning(self, axis: str) -> str:
        if axis == "d" and not self.code:
            return "d<SUB>model</SUB> = "
        sizes = self.sizes
        if axis == "d_k" and {"d", "h"} <= sizes.keys() and sizes["d_k"] * sizes["h"] == sizes["d"]:
            return f"{self.letter('d')}/{self.letter('h')} = "
        return ""
