"""One attention layer drawn with every option beside every other one, through the layout checks.

    python tests/drawings.py            # all of them; a line for each fault

The tests take a few of them: `cases(step=…)`.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from check_layout import problems  # noqa: E402

import microtensor as mt  # noqa: E402
from microtensor import viz  # noqa: E402
from models import MultiHeadAttention, causal_mask  # noqa: E402

BOTH = (False, True)
LAYERS = {"mask": BOTH, "dropout": (0.0, 0.1), "bias": BOTH, "heads": (1, 2, 4)}
RARE: list[dict[str, Any]] = [  # what else the program offers: --memory, --shapes, --theme, --paper, --fused
    {"cross": True, "mask": False},
    {"shapes": "numeric"},
    {"shapes": "both"},
    {"shapes": None},
    {"theme": "dark"},
    {"shapes": None, "legend": False, "grads": False, "values": False, "cost": False},
    {"need_weights": False, "values": False},
]
LOOKS = {"grads": BOTH, "values": BOTH, "cost": BOTH, "names": ("math", "code")}
VIEWS = [
    (level, direction)
    for level in ("equations", "ops", "heads", "tape")
    for direction in ("TB", "BT", "LR")
    if (level, direction) != ("heads", "BT")
]


def cases(level: str, direction: str, step: int = 1) -> Iterator[dict[str, Any]]:
    """Options of every drawing at a level, or of each step-th one; odd steps meet every pair of options."""
    options = {**LAYERS, **LOOKS}
    for values in itertools.islice(itertools.product(*options.values()), 0, None, step):
        yield dict(zip(options, values, strict=True)) | {"level": level, "direction": direction}


def rare(level: str, direction: str, step: int) -> Iterator[dict[str, Any]]:
    """Each of the rare options beside each step-th drawing of a view."""
    for case, option in itertools.product(cases(level, direction, step), RARE):
        if level == "tape" or "need_weights" not in option:
            yield case | option


def drawing(
    *,
    mask: bool = True,
    dropout: float = 0.1,
    bias: bool = True,
    heads: int = 2,
    cross: bool = False,
    grads: bool = False,
    **options: Any,
) -> viz.Drawing:
    """The layer, drawn."""
    mt.manual_seed(0)
    layer = MultiHeadAttention(16, heads, bias=bias, dropout=dropout)
    x, memory = mt.randn(2, 5, 16, requires_grad=True), mt.randn(2, 7, 16) if cross else None
    options["grads"] = mt.randn(2, 5, 16) if grads else False
    return viz.draw(layer, x, memory, mask=causal_mask(5) if mask else None, **options)


def page(case: dict[str, Any]) -> str:
    """The page on which its text is read."""
    found, larger = usual_page(case), {"slide": "a3", "a4": "a3", "a3": "a2"}
    return larger.get(found, found) if case.get("shapes") in ("numeric", "both") else found


def usual_page(case: dict[str, Any]) -> str:
    """Its page where shapes are symbols, or nothing: what the gallery's table says."""
    table = (ROOT / "examples" / "gallery" / "README.md").read_text(encoding="utf-8")
    row = rf"^\| {case['level']}\b[^|]*\b(?:{case['direction']}|any)\b[^|]* \| (.*) \|$"
    (pages,) = re.findall(row, table, re.MULTILINE)
    return pages.lower().split(" | ")[case["grads"] + (case["grads"] and case["names"] == "code")]


def faults(case: dict[str, Any]) -> list[str]:
    """What is wrong with one drawing."""
    line_by_line = {"need_weights": True} if case["level"] == "tape" else {}
    return problems(drawing(**line_by_line | case).json, page(case))


def main() -> int:
    """Draw all, on all cores, and say what is wrong."""
    every = [case for view in VIEWS for case in (*cases(*view), *rare(*view, step=97))]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        found = dict(zip(map(str, every), pool.map(faults, every, chunksize=16), strict=True))
    wrong = {case: said for case, said in found.items() if said}
    for case, said in wrong.items():
        print(case, "; ".join(said))
    print(f"{len(every)} drawings, {len(wrong)} with faults")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
