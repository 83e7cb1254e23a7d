"""What an op computes and what its gradients are, as formulas, read from the op's own docstring.

`y = a / b; a remark          gradient: g / b, −g · a / b²; a remark` is the one text for the reader of the
code, for the label of a drawing, and for the test that evaluates it: `;` ends a formula, and `with A = …`
behind one gives names to what it uses. A docstring without formulas is no error: the op is then drawn by its
name.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import NamedTuple

from microtensor.engine import Op

__all__ = ["WORDS", "Texts", "of_docstring", "texts_of"]

# The signs that people write, as Python has them.
SIGNS = str.maketrans({"·": "*", "−": "-", "²": "**2", "³": "**3", "ᵀ": ".mT"})

# What a legend says of a word that formulas use and that is no function of every textbook.
WORDS = {
    "Σ": "summed over the axes that the left side lacks", "Σ_B": "over the batch, all axes but the last two",
    "unbroadcast": "summed where broadcasting repeated", "unexpand": "summed where it was repeated",
    "expand": "repeated along the axes", "split_h": "columns cut into {h} heads",
    "merge_h": "columns of all heads side by side", "head_h": "{H} of head number {h}, the last",
    "columns": "of that head", "d_k": "last axis of query and key", "shared": "its bytes stand further up",
    "unread": "its op keeps it, and no gradient here needs it", "keep": "1 where dropout let pass, else 0",
    "mask": "−∞ where {M} is False", "masked": "−∞ where the mask is False; numbers are added",
    "causal": "−∞ for keys that come later", "dropout": "0 with probability p, else / (1 − p)",
    "fused": "several simple ops in one", "rowsum": "Σ of each row",
    "axissum": "Σ along that axis, which stays with length 1", "rowmean": "mean of each row",
    "stats": "greatest score of each row, 1 / Σ of its exponentials",
    "rstd": "1 / √(variance of each row + eps)", "means": "of each row, in two parts whose sum is more exact",
    "lse": "ln Σ exp of each row, in two parts whose sum is more exact",
    "L": "the loss; ∂L/∂{y} is what backward begins with", "share": "1 / how many rows count",
    "q": "what the target says", "put": "with that at the index", "put_add": "0, but added to at the index",
    "add_rows": "each row added to that of its id", "part": "what came from there", "count": "how many",
    "prod_of_others": "product of all others", "on_diagonal": "there, else 0", "inside": "not clamped",
    "Φ": "share of a normal distribution below", "φ": "its density", "cast": "in another dtype",
}  # fmt: skip


class Texts(NamedTuple):
    """Formulas in Python, in the names of the op's inputs and parameters, y and its gradient g."""

    equation: str | None = None
    gradients: tuple[str | None, ...] = ()  # one per input, None where there is no gradient
    steps: tuple[str, ...] = ()  # what the gradients use: "A = …"


def texts_of(op: Op) -> Texts:
    """The texts of an op."""
    return of_docstring(op.__doc__ or "")


@functools.cache
def of_docstring(text: str) -> Texts:
    """The texts in a docstring."""
    first, _, rest = text.partition("gradient:")
    equation = re.match(r"\s*y = ([^;]*)", first)
    back = rest.split("\n\n")[0].split(";")
    steps = next((part.strip()[5:] for part in back[1:] if part.strip().startswith("with ")), "")
    try:
        gradients = _parts(back[0])
        return Texts(
            None if equation is None else _python(equation[1]),
            tuple(None if part == "None" else part for part in gradients),
            tuple(f"{name} = {value}" for name, value in _definitions(steps)),
        )
    except SyntaxError:
        return Texts()


def _python(text: str) -> str:
    """A formula as Python: √x → sqrt(x), |x| → abs(x)."""
    text = re.sub(r"√(\w+)", r"sqrt(\1)", text).replace("√(", "sqrt(")
    text = re.sub(r"\|([^|]+)\|", r"abs(\1)", text).translate(SIGNS)
    return ast.unparse(ast.parse(" ".join(text.split()), mode="eval"))


def _parts(text: str) -> list[str]:
    """Formulas with commas between them."""
    tree = ast.parse(_python(f"({text},)"), mode="eval").body if text.strip() else ast.Tuple([])
    assert isinstance(tree, ast.Tuple)
    return [ast.unparse(part) for part in tree.elts]


def _definitions(text: str) -> list[tuple[str, str]]:
    """`A = …, B = …` as pairs: read as the arguments of a call."""
    if not text:
        return []
    call = ast.parse(_python(f"f({' '.join(text.split())})"), mode="eval").body
    assert isinstance(call, ast.Call)
    return [(keyword.arg or "", ast.unparse(keyword.value)) for keyword in call.keywords]
