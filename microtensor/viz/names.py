"""What each tensor is called in a drawing, and how a node's op or fold reads with those names."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from microtensor.engine import Op
from microtensor.viz import formula, symbols
from microtensor.viz.axes import CODE_WORDS, Shapes
from microtensor.viz.depth import prefixes
from microtensor.viz.fold import Folded, Group
from microtensor.viz.formula import Formula, Printer
from microtensor.viz.record import Span
from microtensor.viz.texts import WORDS, texts_of
from microtensor.viz.trace import Graph, Node, grouped

__all__ = ["Names", "read", "summed", "word_of"]

STEMS = {"input": "x", "param": "w", "const": "c", "op": "z"}
# The parameters of an op that its label shows.
SHOWN = {"permute": "axes", "cast": "dtype", "masked_fill": "value", "dropout": "p",
         "amax": "axis", "amin": "axis", "cat": "axis", "cumsum": "axis", "mean": "axis", "sum": "axis",
         "flip": "axes"}  # fmt: skip


class Names:
    """Symbols of nodes: the name given to draw, else the layer's, else one made up (x_1, z_2)."""

    def __init__(self, graph: Graph, folded: Folded, shapes: Shapes, *, by_line: bool) -> None:
        self.graph, self.folded, self.shapes, self.code = graph, folded, shapes, shapes.code
        self.by_line, self.numbered = by_line, self._numbered()
        self.letters = {axis: shapes.letter(axis) for axis in ("h", "n", "d", "d_k")}
        self.made = self._made_up()
        self.called = self._called()

    def _numbered(self) -> dict[Node, str]:
        """X^(1), X^(2) … where layers call several tensors X: in one drawing a name means one."""
        drawn = {*(g.last for g in self.folded.groups), *(e.source for e in self.folded.edges)}
        nodes = sorted({self.folded.ends.get(n, n) for n in drawn}, key=lambda n: n.number)
        named = (n for n in nodes if n.given is None and n.symbol and not (self.code and n.code))
        several = (nodes for nodes in grouped((n.symbol, n) for n in named).values() if len(nodes) > 1)
        return {n: symbols.which(n.symbol or "", i) for ns in several for i, n in enumerate(ns, 1)}

    def _called(self) -> dict[str, str]:
        """Path of a node that is a module → its own name, where one of its class is beside it: Linear[2]."""
        spans = (g.span for g in self.folded.groups if g.span is not None and g.span.kind == "module")
        alone = {span.path: span.title for span in spans if span.path not in self.folded.repeats}
        alike = grouped(((*prefixes(path)[-2:-1], title), path) for path, title in alone.items())
        several = {path: path.rpartition(".")[2] for paths in alike.values() if paths[1:] for path in paths}
        return {p: f"{alone[p]}[{name}]" if name.isdecimal() else name for p, name in several.items()}

    def _made_up(self) -> dict[Node, str]:
        """x, or x_1, x_2 … for leaves without a name; z_1, z_2 … for results, y for the last."""
        outputs = (n for group in self.folded.groups for n in group.outputs or [group.last])
        nameless = (n for n in outputs if self._known(self.folded.ends.get(n, n)) is None)
        waiting = grouped((STEMS[n.kind], n) for n in nameless if n.op is None or self.by_line)
        output = self.folded.stands.get(self.graph.output, self.graph.output)
        waiting |= {"y": [output]} if self._known(self.graph.output) is None else {}
        made, taken = dict[Node, str](), {self._known(node) for node in self.graph.nodes}
        for stem, nodes in waiting.items():
            alone = [stem] if len(nodes) == 1 and stem != "z" else []
            names = itertools.chain(alone, (f"{stem}_{i}" for i in itertools.count(1)))
            made |= dict(zip(nodes, (name for name in names if name not in taken), strict=False))
        return made

    def _known(self, node: Node) -> str | None:
        if (given := self.numbered.get(node, node.given)) is not None:
            return given
        if self.code:
            symbol = node.code or CODE_WORDS.get(node.symbol or "", node.symbol)
        else:
            symbol = node.symbol or (node.code and ".".join(node.code.split(".")[-2:]))  # norm.weight will do
        called = r"self[\1].\2" if self.code else r"\2_\1"  # 2.weight behind a factor reads as 2
        return symbol and re.sub(r"^(\d+)\.(.*)", called, symbol)

    def of(self, node: Node) -> str | None:
        """The node's symbol; None for an op whose result has no name."""
        node = self.folded.stands.get(node, node)
        return self._known(self.folded.ends.get(node, node)) or self.made.get(node)

    def stable(self, node: Node) -> str:
        """What ids are made of: the layer's symbol, whatever the drawing calls the tensor."""
        return node.symbol or node.code or self.of(node) or "y"

    def _in_formula(self, node: Node, *, stored: bool = False) -> str | None:
        """The symbol as a formula needs it: a stored weight is the transpose of the paper's.

        stored: the formula means the tensor as it is stored (an op's), and not the paper's (a fold's).
        """
        symbol = self.of(node)
        means_stored = self.code and node.given is None and node.code is not None
        return f"{symbol}.mT" if node.transposed and means_stored is not stored else symbol

    def printer(self, names: dict[str, Any], *, html: bool) -> Printer:
        """A printer that knows these names and the letters of axes."""
        return Printer({**self.letters, **names}, html=html)

    def line(self, group: Group, *, html: bool) -> str:
        """What a group computes, as an equation."""
        if group.span is not None:
            printer = self.printer(self._bound(group), html=html)
            several = group.outputs[:-1] if group.span.kind != "fold" else []
            others = [printer.symbol(self.of(node) or "z") for node in several]
            return ", ".join([*others, printer.print(group.span.texts[0])])
        node = group.last
        return self.printer(self._of_op(node), html=html).print(f"y = {node.formula}")

    def _of_op(self, node: Node) -> dict[str, Any]:
        """The names in an op's texts → symbols, numbers, or None for what is absent; y is the result."""
        values: dict[str, Any] = {k: v for k, v in node.params.items() if isinstance(v, int | float | None)}
        for slot, value in node.arguments:
            is_node = isinstance(value, Node)
            values[slot] = (self._in_formula(value, stored=True) or slot) if is_node else value
        if "axis" in node.params:
            x, y = (math.prod(n.shape or ()) for n in (node.parents[0], node))
            values |= {"axis": node.axis, "n": x // max(y, 1)}  # how many elements a mean is of
        if "index" in node.params:
            values["index"] = formula.indices(node.params["index"])
        if "dropout_p" in node.params:  # of attention: None for what it does without, else its word stays
            used = {"dropout": values["dropout_p"], "causal": values.pop("causal"), "masked": values["mask"]}
            values |= {word: None for word, value in used.items() if not value}
            width = (node.parents[0].shape or (0,))[-1]
            if width and math.isclose(values["scale"], width**-0.5):
                values["scale"] = Formula("1 / sqrt(d_k)")
        numbers = (k for k, v in values.items() if isinstance(v, float) and k != "dropout_p")
        values |= {k: self._constant(node, values[k]) for k in numbers}
        if node.op.name == "linear":  # of one matrix, or one row, there is nothing to be summed
            rank = len(node.shape or ())
            values |= {sign: None for sign, least in (("Σ_B", 2), ("Σ", 1)) if rank <= least}
        values |= {"scalar": None} if all(n.shape == () for n in (node, *node.parents)) else {}
        return {**values, "y": self._in_formula(node, stored=True) or "y"}

    def _constant(self, node: Node, value: float) -> Any:
        """The formula of a number that an op was given, if a layer has said one that gives it."""
        for text in (text for span in node.spans for text in span.constants):
            known = formula.operands(text) <= self.shapes.sizes.keys()
            if known and math.isclose(formula.evaluate(text, self.shapes.sizes), value, rel_tol=1e-6):
                return Formula(text)
        return value

    def gradients(self, group: Group, *, html: bool = False) -> list[str]:
        """The gradient formulas of a fold or an op, but for what is absent or needs no gradient."""
        if group.span is None:
            return self._gradients_of_op(group.last, html=html)
        printer = self.printer(self._bound(group), html=html)
        signs = ((text, self._sign_of(group.span, text)) for text in group.span.texts[1:])
        return [printer.print(text, sign) for text, sign in signs if sign is not None]

    def _gradients_of_op(self, node: Node, *, html: bool) -> list[str]:
        names = self._of_op(node)
        left, right = (self.printer(n, html=html) for n in (names, {**names, "g": f"d{names['y']}"}))
        lines = [f"{left.print(f'd{s}')} {self._sign(x)} {right.print(text)}" for s, x, text in slots(node)]
        steps = (step for step in texts_of(node.op).steps if formula.parse(step)[0] in read(node))
        return [*map(right.print, steps), *lines]

    def _sign(self, node: Node, paths: int = 1) -> str:
        """Between a gradient and what one path gives it: += where several add up, here or in all."""
        return "+=" if max(paths, self.folded.uses[self.folded.stands.get(node, node)]) > 1 else "="

    def _sign_of(self, span: Span, text: str) -> str | None:
        """The sign in a fold's gradient formula, dX = …: "" for the text's own, None if X needs none."""
        of = (formula.parse(text)[0] or "d")[1:]
        node = self.graph.node_of(tensor := span.names.get(of))
        if node is None or not node.differentiable:
            return None if of in span.names else ""
        return self._sign(node, sum(x is tensor for x in span.names.values()))  # in X Xᵀ it is Q and K

    def _bound(self, group: Group) -> dict[str, Any]:
        """The names in a fold's texts → symbols, numbers, or None for what is absent."""
        assert group.span is not None
        bound: dict[str, Any] = {}
        for name, value in group.span.names.items():
            node = value if isinstance(value, Node) else self.graph.node_of(value)
            symbol = node and self._in_formula(node)  # a tensor beside the tape keeps its formal name
            bound[name] = value if isinstance(value, int | float | None) else symbol or name
        target = formula.parse(group.span.texts[0])[0]
        if target is not None:
            bound[target] = self.of(group.last) or target
        if group.span.path in self.called:
            bound[str(group.span.title)] = self.called[group.span.path]
        return bound

    def words(self, drawn: set[str]) -> list[str]:
        """What is drawn and no tensor's name, in words: functions, what an op keeps, which of several."""
        named = symbols.words(self.of(node) or "" for node in self.graph.nodes)
        plain, html = (self.printer({}, html=html) for html in (False, True))
        numbered = next(map(symbols.html, self.numbered.values()), "")  # (1), and there is a (2)
        several = {n.symbol for n in self.numbered}
        one = {n.symbol: self.of(n) for n in self.graph.nodes if n.symbol and n.symbol not in several}
        called = {s: symbols.escape(symbols.clean(one.get(s) or s)) for s in ("H", "M")}
        letters = {s: "its layer’s " * (s in several) + text for s, text in called.items()}
        letters |= {"h": self.shapes.letter("h"), "y": symbols.html(self.of(self.graph.output) or "y")}
        weights = {n.symbol: n for n in self.graph.nodes if n.kind == "param" and n.symbol in one}
        parts = {s: symbols.indexed(s or "", "1") for s in weights}
        first = {len(weights[s].shape or ()): s for s in reversed(parts) if parts[s] in one}  # by rank
        of = next((s for n in self.graph.nodes if (s := self.of(n) or "") and f"d{s}" in drawn), None)
        heads = ", not of head 1" * ("head_" in " ".join(drawn))
        said = [f"{numbered}: the first of that name{heads}"] if numbered else []
        said += ["∘: product, element by element"] if "∘" in drawn else []
        said += [f"{symbols.html(f'd{of}')}: ∂L/∂{symbols.html(of)}, its gradient"] if of else []
        for rank, s in sorted(first.items(), reverse=True):
            matrix = "rows" if self._in_formula(weights[s]) != one[s] else "columns"  # as stored
            of_it = "entries" if rank == 1 else matrix
            said.append(f"{html.symbol(parts[s])}: {of_it} of {html.symbol(one[s] or '')} for head 1")
        new = {word.rstrip("(") for word in drawn - named - {*map(self.shapes.letter, self.shapes.sizes)}}
        words = (word for word in WORDS if plain.print(word) in new or (word == "L" and of))
        return said + [f"{html.print(w)}: {symbols.escape(WORDS[w]).format(**letters)}" for w in words]

    def short(self, node: Node) -> str:
        """A tensor by its symbol, or else by what made it: Q Kᵀ."""
        symbol = self.result(node)
        if symbol or node.op is None:
            return symbol or "x"
        inner = {s: (self._moved(v) or "x") if isinstance(v, Node) else v for s, v in node.arguments}
        return self.printer({**self._of_op(node), **inner}, html=True).print(node.formula)

    def _moved(self, node: Node) -> str | None:
        """A tensor's symbol; K.mT for an unnamed transpose of K."""
        symbol = self.of(node)
        if symbol is None and node.op is not None and node.op.name == "permute":
            rank, source = len(node.shape or ()), self.of(node.parents[0])
            swapped = [*range(rank - 2), rank - 1, rank - 2]
            is_transpose = source is not None and [a % rank for a in node.params["axes"]] == swapped
            return f"{source}.mT" if is_transpose else None
        return symbol

    def result(self, node: Node) -> str:
        """The symbol of an op's result as HTML, Kᵀ for the transpose of K; empty if it has none."""
        symbol = self._moved(node)
        return "" if symbol is None else self.printer({"x": symbol}, html=True).print("x")

    def op(self, node: Node) -> tuple[str, str]:
        """(word, details) of an op at level ops: ("transpose", "(0, 2, 1, 3)")."""
        details = [v for _, v in node.arguments if isinstance(v, int | float)]
        if node.op.name == "getitem":
            return word_of(node.op), f"[{formula.indices(node.params['index'])}]"
        shown = node.params.get(SHOWN.get(node.op.name, ""))
        said = (self._number(node, v) for v in (*details, shown) if v is not None)
        return word_of(node.op), ", ".join(said) + self._negated(node)

    def _negated(self, node: Node) -> str:
        """`if M is False` of a fill whose mask is drawn by what it negates: M, who may attend."""
        mask: Any = dict(node.arguments).get("mask")
        given, array = (getattr(x, "array", None) for x in (getattr(mask, "value", None), mask))
        opposite = given is not None and given.dtype == bool and array is not None and (given != array).all()
        return f" if {symbols.html(self.of(mask) or 'M')} is False" if opposite else ""

    def _number(self, node: Node, value: Any) -> str:
        found = self._constant(node, value) if isinstance(value, float) else value
        if isinstance(found, Formula):
            return self.printer({}, html=True).print(found.text)
        return symbols.escape(formula.number(value))


def word_of(op: Op) -> str:
    """What an op is called outside of formulas: its label if that is a word, as transpose of permute."""
    is_word = op.label.isascii() and op.label.replace(" ", "").isalpha()
    return op.label if is_word and not op.name.endswith(op.label) else op.name


def slots(node: Node) -> Iterator[tuple[str, Node, str]]:
    """Each argument of an op that needs a gradient: (its name, its node, the formula of its gradient)."""
    op, texts = node.op, texts_of(node.op).gradients
    for slot, value in node.arguments:
        if isinstance(value, Node) and value.differentiable:
            said = texts[op.inputs.index(slot) if op.variadic is None else 0] if texts else None
            yield slot, value, summed(node, value, said or f"{op.name}_vjp({', '.join(['g', *op.kept])})")


def read(node: Node) -> set[str]:
    """What the gradient formulas of an op read, and what only their steps use."""
    return set[str]().union(*map(formula.operands, [*(t for *_, t in slots(node)), *texts_of(node.op).steps]))


def summed(node: Node, source: Node, text: str) -> str:
    """The gradient of what was broadcast, with the sum over the axes along which it was repeated."""
    ours, theirs, matrices = source.shape, node.shape, node.op is not None and node.op.name == "matmul"
    if node.op is None or not node.op.broadcasts or ours is None or theirs is None:
        return text
    if matrices:  # their last two axes are no broadcasting
        ours, theirs = (*ours[:-2], 1, 1), (*theirs[:-2], 1, 1)
    if ours == theirs:
        return text
    sign = {1: "Σ", 2: "Σ_B"}.get(len(ours)) if ours == theirs[-len(ours) :] else None
    return f"{sign or 'unbroadcast'}({text})"
