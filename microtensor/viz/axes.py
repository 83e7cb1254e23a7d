"""Symbolic shapes, B×h×n×d_k: a layer's names of axes, carried along ops that keep or permute them.

Nothing is guessed from sizes: axes are one where an op or a layer says so. In a drawing an axis has one name,
and a name one size; what no name reaches keeps its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from microtensor.viz import symbols
from microtensor.viz.depth import prefixes
from microtensor.viz.record import Axis, Recorder
from microtensor.viz.trace import Graph, Node, grouped

__all__ = ["CODE_WORDS", "Shapes", "carry"]

HOUSE_LETTERS = {"n": "T", "d": "C", "h": "H", "d_k": "D"}
CODE_WORDS = {"H": "AV", "C": "cat"}  # symbols that are letters of axes there
# The last axes of operands and of the result y: those with one letter are one, and so are those before them.
LETTERS = {
    "add_layer_norm": {"x": "d", "f": "d", "w": "d", "b": "d", "y": "d"},
    "attention": {"q": "td", "k": "sd", "v": "se", "mask": "ts", "y": "te"},
    "embedding": {"weight": "vd", "y": "d"},
    "layer_norm": {"x": "d", "w": "d", "b": "d", "y": "d"},
    "linear": {"x": "i", "w": "oi", "b": "o", "y": "o"},
    "matmul": {"a": "ij", "b": "jk", "y": "ik"},
}
SHUFFLES = {"cat", "getitem", "put_add", "reshape", "setitem"}  # where equal shapes are chance
Place = tuple[Node, int]  # an axis of a node, counted from its last, which is −1


def carry(graph: Graph, recorder: Recorder, *, strict: bool) -> None:
    """Name the axes of all nodes. What one layer calls n_q and n_k is n where both are one.

    strict: two sizes of a name are an error where one layer (or none) has given it, or else two names.
    Raises: ValueError for that.
    """
    strict = strict and len({tag.path for tag in recorder.tags.values()}) < 2
    one, sizes = _One(), dict[str, int]()
    for node in graph.nodes:
        for place, axis in zip(_places(node), reversed(node.tagged), strict=False):
            if strict and sizes.setdefault(axis.name, axis.size) != axis.size:
                what = node.symbol or (node.op.name if node.op is not None else "a leaf")
                raise ValueError(
                    f"draw: axis {axis.name} has size {axis.size} in {what} of shape {node.shape}, but "
                    f"{sizes[axis.name]} elsewhere; draw a module by draw(module, inputs), which tells its "
                    f"layers' axes apart, tag them differently, or draw with shapes='numeric'"
                )
            one.unite(axis, place)
    for before, axis in recorder.same:
        one.unite(before, axis)
    for node in graph.nodes:
        first: dict[object, Place] = {}
        for place, label, size in _labelled(node):  # 1 beside another size is repeated
            one.unite(first.setdefault((label, size), place), place)
    names = _names(one)
    for node in graph.nodes:
        found = [names.get(one.root(place), "") for place in _places(node)[::-1]]
        if any(found):
            found = [name or "1" * (n == 1) for name, n in zip(found, node.shape or (), strict=True)]
            node.axes = tuple(found) if all(found) else None


class _One:
    """What is one: classes of axes, each with a root, the oldest."""

    def __init__(self) -> None:
        self.parents: dict[object, object] = {}

    def root(self, x: object) -> object:
        while (above := self.parents.setdefault(x, x)) != x:
            self.parents[x] = x = self.parents[above]  # half the way next time
        return x

    def unite(self, a: object, b: object) -> None:
        self.parents[self.root(b)] = self.root(a)


def _places(node: Node) -> list[Place]:
    """Its axes, the last first."""
    return [(node, -i) for i in range(1, len(node.shape or ()) + 1)]


def _labelled(node: Node) -> Iterator[tuple[Place, object, int]]:
    """Each axis of an op's operands and result, with its size; those that are one have one label."""
    index = node.params.get("index")
    sliced = all(isinstance(part, slice) for part in (index if isinstance(index, tuple) else (index,)))
    if node.op is None or (node.op.name in SHUFFLES and not sliced):
        return
    for slot, x in (*node.arguments, ("y", node)):
        if isinstance(x, Node) and x.shape is not None:
            labels = _labels(node, slot, x)
            yield from zip(_places(x), reversed(labels), reversed(x.shape), strict=bool(labels))


def _labels(node: Node, slot: str, x: Node) -> Sequence[object]:
    """A label for each axis of a slot; none where an op's axes are not known to be its operand's."""
    rank, known = len(x.shape or ()), LETTERS.get(node.op.name)
    if node.op.name == "permute":
        return [a % rank for a in node.params["axes"]] if x is node else range(rank)
    if known is None and not node.op.broadcasts and rank != len(node.shape or ()):
        return ()
    letters = (known or {}).get(slot, "")[-rank:]
    return [*range(rank - len(letters), 0, -1), *letters]


def _names(one: _One) -> dict[object, str]:
    """The root of each class that a layer names → its name: that of the outermost layer, if it is free.

    A name that several classes would have is none's that has another: n of two sequences gives way to n_q and
    n_k of the layer that joins them. Those left with one name and different sizes are numbered.
    """
    called: dict[object, dict[str, list[Axis]]] = {}
    for axis in [x for x in one.parents if isinstance(x, Axis)]:
        called.setdefault(one.root(axis), {}).setdefault(axis.path, []).append(axis)
    wanted: dict[object, list[str]] = {}
    for root, paths in called.items():
        outer_first = sorted(paths, key=lambda path: len(prefixes(path)))
        wanted[root] = list(dict.fromkeys(_united(paths[path]) for path in outer_first))
    while True:
        alike = grouped((names[0], root) for root, names in wanted.items())
        contested = (root for roots in alike.values() if len(roots) > 1 for root in roots)
        if not (giving := [wanted[root] for root in contested if len(wanted[root]) > 1]):
            break
        for names in giving:
            del names[0]
    made: dict[object, str] = {}
    for name, roots in alike.items():
        of = {root: next(iter(called[root].values()))[0].size for root in roots}
        sizes = list(dict.fromkeys(of.values()))
        for root, n in of.items():
            made[root] = symbols.indexed(name, str(sizes.index(n) + 1)) if len(sizes) > 1 else name
    return made


def _united(axes: list[Axis]) -> str:
    """What one layer's names of an axis mean together: n_q and n_k of self-attention are n."""
    names = {axis.name for axis in axes}
    stems = {name.split("_")[0] for name in names}
    return stems.pop() if len(stems) < len(names) == 2 else axes[0].name


class Shapes:
    """Writes shapes as the option `shapes` asks, in math or in the house's letters."""

    def __init__(self, graph: Graph, how: str | None, *, code: bool, narrow: bool) -> None:
        self.how, self.code = how, code
        self.between = "<BR/>" if narrow else " "  # sizes below the names: a long row stays short
        pairs = (pair for n in graph.nodes for pair in zip(n.axes or (), n.shape or (), strict=False))
        self.sizes = {axis: size for axis, size in pairs if not axis.isdecimal()}

    def letter(self, axis: str) -> str:
        """The name of an axis as it is printed; 3d is 3 times what d is called."""
        stem = axis.lstrip("0123456789")
        base, _, sub = stem.partition("_")
        house = HOUSE_LETTERS.get(stem) or HOUSE_LETTERS.get(base, base) + (sub and f"_{sub}")
        return axis.removesuffix(stem) + house if self.code else axis

    def _upright(self, axis: str) -> str:
        return symbols.html(self.letter(axis)).replace("<I>", "").replace("</I>", "")

    def _parts(self, node: Node) -> tuple[list[str], list[int]]:
        """Names and sizes of its axes: of a transposed symbol those of the symbol, not of what is stored."""
        names, sizes = [self._upright(axis) for axis in node.axes or ()], list(node.shape or ())
        if node.transposed and not self.code:
            names[-2:], sizes[-2:] = names[:-3:-1], sizes[:-3:-1]
        return names, sizes

    def html(self, node: Node) -> str:
        """The shape in a label; empty where there is nothing to say."""
        if self.how is None or node.shape is None:
            return "" if self.how is None else "gone: nobody kept it"
        names, sizes = self._parts(node)
        if self.how == "numeric" or not names:
            return str(tuple(sizes)) if sizes else "scalar"
        return "×".join(names) + (f"{self.between}{tuple(sizes)}" if self.how == "both" else "")

    def plain(self, node: Node) -> str:
        """The sizes in a tooltip, always in numbers."""
        return "shape unknown" if node.shape is None else str(tuple(self._parts(node)[1]))

    def caption(self, drawn: set[str]) -> list[str]:
        """d = d_model = 16, h = 2, d_k = d/h = 8 …, as labels: what the words that are drawn mean."""
        drawn = drawn | {word.rsplit("_", 1)[-1] for word in drawn if "_h" in word.lower()}  # split_h
        sizes, meant = self.sizes, {"d": "" if self.code else "d<SUB>model</SUB> = "}
        shown = {axis for axis in sizes if self.letter(axis) in drawn}
        if {"d", "d_k"} <= shown and sizes["d"] == sizes["d_k"] * sizes.get("h", 0):
            shown, meant["d_k"] = shown | {"h"}, f"{self.letter('d')}/{self.letter('h')} = "
        return [f"{self._upright(a)} = {meant.get(a, '')}{n}" for a, n in sizes.items() if a in shown]
