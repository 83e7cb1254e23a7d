"""One text, two uses: a formula is a Python expression, printed in labels and evaluated in tests.

`S = Q @ K.mT / sqrt(d_k)` prints as S = Q Kᵀ / √d_k and, evaluated on the tape's arrays, must give the
engine's values: a label cannot lie. The texts of ops stand in their docstrings, those of layers in `fold`.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from microtensor.viz import symbols
from microtensor.viz.texts import texts_of

__all__ = ["Formula", "Printer", "evaluate", "indices", "number", "of_op", "operands", "parse", "two_digits"]


def of_op(op: Any, count: int) -> str:
    """The formula of an op with `count` inputs."""
    names = [f"{op.variadic}{i}" for i in range(count)] if op.variadic else op.inputs[:count]
    text = texts_of(op).equation
    if text is None:
        return f"{op.__name__}({', '.join(names)})"
    return text.replace(op.variadic, ", ".join(names)) if op.variadic else text


@functools.cache  # trees, too, are those that `parse` keeps
def operands(formula: str | ast.expr) -> frozenset[str]:
    """The names that a formula reads, functions left out."""
    tree = parse(formula)[1] if isinstance(formula, str) else formula
    functions = {n.func for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n not in functions)


@functools.cache
def parse(text: str) -> tuple[str | None, ast.expr, bool]:
    """(the name left of =, the expression, is it +=)."""
    statement = ast.parse(text).body[0]
    if isinstance(statement, ast.Expr):
        return None, statement.value, False
    if isinstance(statement, ast.Assign) and isinstance(name := statement.targets[0], ast.Name):
        return name.id, statement.value, False
    if isinstance(statement, ast.AugAssign) and isinstance(name := statement.target, ast.Name):
        return name.id, statement.value, True
    raise ValueError(f"fold: {text!r} is no formula; write an expression, or name = expression")


def number(value: Any) -> str:
    """A Python number as it is printed: four digits, a real minus, ∞."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return symbols.clean(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    return f"{value:.4g}".replace("-", "−")


def two_digits(value: float) -> str:
    """A norm: 0.35, 1.0, 2,100, 2.1e+08."""
    if 100 <= abs(value) < 1e7:
        return f"{float(f'{value:.2g}'):,.0f}"
    return f"{value:#.2g}".rstrip(".") if math.isfinite(value) else number(value)


def indices(index: Any) -> str:
    """An index as it stands between brackets: 0, 2:5, …, ids for an array of them."""
    if isinstance(index, tuple):
        return ", ".join(indices(part) for part in index) or "()"
    if isinstance(index, slice):
        ends = ["" if end is None else indices(end) for end in (index.start, index.stop, index.step)]
        return ":".join(ends if ends[2] else ends[:2])
    if isinstance(index, np.ndarray | list):
        return "mask" if np.asarray(index).dtype == bool else "ids"
    return "…" if index is Ellipsis else str(index).replace("-", "−")


# --- printing -----------------------------------------------------------------------------------------------

LOOSE, SUM, PRODUCT, SIGN, POWER, ATOM = range(6)
INFIX: dict[type[ast.operator], tuple[str, int]] = {
    ast.Add: (" + ", SUM),
    ast.Sub: (" − ", SUM),
    ast.Mult: (" ∘ ", PRODUCT),
    ast.Div: (" / ", PRODUCT),
    ast.MatMult: (" ", PRODUCT),
}
COMPARISONS: dict[type[ast.cmpop], str] = {ast.Lt: "<", ast.Gt: ">", ast.Eq: "="}


class Formula(NamedTuple):
    """Stands for a name that is a formula itself: 1 / sqrt(d_k)."""

    text: str


class Printer:
    """Prints formulas. Names stand for symbols, numbers, or None: then the term with it is left out."""

    def __init__(self, names: Mapping[str, Any], *, html: bool) -> None:
        self.names, self.html = names, html
        self._text = symbols.escape if html else str  # signs and numbers

    def print(self, text: str, sign: str = "") -> str:
        """The formula in symbols, with its left side; sign: = or +=, by default the text's own."""
        target, tree, plus = parse(text)
        left = f"{self._name(target)[0]} {sign or ('+=' if plus else '=')} " if target else ""
        return left + self._print(tree)[0]

    def symbol(self, symbol: str) -> str:
        """One symbol."""
        return symbols.html(symbol) if self.html else symbols.clean(symbol)

    def _super(self, text: str, plain: str) -> str:
        return f"<SUP>{text}</SUP>" if self.html else plain

    def _print(self, tree: ast.AST) -> tuple[str, int]:
        """(text, how tightly it binds)."""
        method = getattr(self, "_" + type(tree).__name__.lower(), None)
        if method is None:
            raise ValueError(
                f"fold: cannot print {ast.unparse(tree)!r}; use names, calls, + − * / @ **, .mT and indices"
            )
        return method(tree)  # type: ignore[no-any-return]

    def _inside(self, tree: ast.AST, least: int) -> str:
        text, binds = self._print(tree)
        return text if binds >= least else f"({text})"

    def _absent(self, tree: ast.AST) -> bool:
        return isinstance(tree, ast.Name) and tree.id in self.names and self.names[tree.id] is None

    def _name(self, tree: ast.Name | str) -> tuple[str, int]:
        name = tree if isinstance(tree, str) else tree.id
        if name in self.names:
            value = self.names[name]
            if isinstance(value, Formula):
                return self._print(parse(value.text)[1])
            if not isinstance(value, str):
                negative = isinstance(value, int | float) and value < 0
                return self._text(number(value)), SIGN if negative else ATOM
            return self._stored(value), ATOM
        if name.startswith("d") and isinstance(of := self.names.get(name[1:]), str):  # a gradient, dQ
            return self._stored("d" + of), ATOM
        base, _, sub = name.partition("_")
        if isinstance(self.names.get(sub), str):  # split_h: h may have another letter
            return self.symbol(f"{base}_{self.names[sub]}"), ATOM
        weight = len(name) == 3 and name[0] == "W"  # W_Q is an identifier's way to write W^Q
        return self.symbol(name.replace("_", "^") if weight else name), ATOM

    def _stored(self, symbol: str) -> str:
        text = self.symbol(symbol.removesuffix(".mT"))
        return self._transposed(text) if symbol.endswith(".mT") else text

    def _constant(self, tree: ast.Constant) -> tuple[str, int]:
        return self._text(number(tree.value)), ATOM

    def _tuple(self, tree: ast.Tuple) -> tuple[str, int]:
        return f"({', '.join(self._print(e)[0] for e in tree.elts)})", ATOM

    def _unaryop(self, tree: ast.UnaryOp) -> tuple[str, int]:
        return "−" + self._inside(tree.operand, POWER), SIGN

    def _binop(self, tree: ast.BinOp) -> tuple[str, int]:
        if isinstance(tree.op, ast.Add) and self._absent(tree.right):
            return self._print(tree.left)
        numbers = {name: value for name, value in self.names.items() if isinstance(value, int | float)}
        if isinstance(tree.op, ast.Pow):
            said, computed = ast.unparse(tree.right), operands(tree.right) <= numbers.keys()
            power = number(evaluate(said, numbers)) if computed else self._print(tree.right)[0]
            if power == "1":
                return self._print(tree.left)
            base = self._inside(tree.left, ATOM)
            base = f"({base})" if base.endswith("</SUP>") else base
            return base + self._super(power, f"^{power}"), POWER
        known = self.names.get(tree.right.id) if isinstance(tree.right, ast.Name) else None
        if isinstance(tree.op, ast.Mult) and isinstance(known, Formula) and known.text.startswith("1 / "):
            return self._print(ast.BinOp(tree.left, ast.Div(), parse(known.text[4:])[1]))
        between, binds = INFIX[type(tree.op)]
        plain = any(operands(t) <= {*numbers, "d", "d_k"} for t in (tree.left, tree.right))
        if isinstance(tree.op, ast.Mult) and (plain or "scalar" in self.names):
            between = " · "  # not element by element
        # left to right, as Python reads it: only the right side needs brackets at the same level
        return self._inside(tree.left, binds) + between + self._inside(tree.right, binds + 1), binds

    def _compare(self, tree: ast.Compare) -> tuple[str, int]:
        sign = self._text(COMPARISONS[type(tree.ops[0])])
        return f"{self._inside(tree.left, SUM)} {sign} {self._inside(tree.comparators[0], SUM)}", LOOSE

    def _attribute(self, tree: ast.Attribute) -> tuple[str, int]:
        stored = self.names.get(tree.value.id) if isinstance(tree.value, ast.Name) else None
        if isinstance(stored, str) and stored.endswith(".mT"):  # twice transposed
            return self.symbol(stored[:-3]), ATOM
        text, binds = self._print(tree.value)
        return (text if tree.attr != "mT" else self._transposed(text, binds)), ATOM

    def _transposed(self, text: str, binds: int = ATOM) -> str:
        bracket = binds < ATOM or text.endswith("</SUP>") or (not self.html and ("^" in text or "ᵀ" in text))
        return (f"({text})" if bracket else text) + self._super("T", "ᵀ")

    def _subscript(self, tree: ast.Subscript) -> tuple[str, int]:
        return f"{self._inside(tree.value, ATOM)}[{self._print(tree.slice)[0]}]", ATOM

    def _call(self, tree: ast.Call) -> tuple[str, int]:
        assert isinstance(tree.func, ast.Name)
        function, arguments = tree.func.id, [a for a in tree.args if not self._absent(a)]
        function = "axissum" if function == "rowsum" and len(arguments) > 1 else function
        if function in self.names and self.names[function] is None:  # absent: drop(x) is x
            return self._print(arguments[0])
        if function == "sqrt":
            return "√" + self._inside(arguments[0], ATOM), ATOM
        if function == "abs":
            return f"|{self._print(arguments[0])[0]}|", ATOM
        if function in ("Σ", "Σ_B", "sum") and len(arguments) == 1:
            sign = self.symbol("Σ" if function == "sum" else function)
            return f"{sign} {self._inside(arguments[0], PRODUCT)}", PRODUCT
        if function == "where":
            condition = self._print(arguments[0])[0]
            then, otherwise = (self._inside(a, SUM) for a in arguments[1:])
            return f"{then} where {condition}, else {otherwise}", LOOSE
        if function == "Concat_h":  # the paper's Concat(head_1, …, head_h), evaluated as merge_h(H)
            first, last = self.symbol("head_1"), self.symbol(f"head_{self.names.get('h', 'h')}")
            return f"Concat({first}, …, {last})", ATOM
        return f"{self._name(function)[0]}({', '.join(self._print(a)[0] for a in arguments)})", ATOM


# --- evaluating ---------------------------------------------------------------------------------------------


def evaluate(text: str, numbers: Mapping[str, float]) -> Any:
    """The value of a formula of numbers. Tests evaluate those of tensors, with functions of their own."""
    return eval(text, {"__builtins__": {}, "sqrt": math.sqrt, **numbers})
