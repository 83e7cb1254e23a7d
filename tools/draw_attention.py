"""Draw one multi-head attention layer from its own tape.

    python tools/draw_attention.py -o attention.svg attention.png --mask causal --dropout 0.1

The layer is run once on random numbers, and its tape is drawn. Without the program dot, pygraphviz will do.
Without -o the file is attention.svg here; a file that is there is replaced, which is said.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.ending import Parser, run  # noqa: E402

# isort: split
import microtensor as mt  # noqa: E402
from microtensor import viz  # noqa: E402
from models import MultiHeadAttention, causal_mask  # noqa: E402

LEVELS = {
    "equations": "lines of the paper",
    "ops": "every op",
    "heads": "the lines of each head",
    "tape": "forward, what is kept alive, backward",
}
MOST = 4e9  # bytes: a picture is the same at any size, and shall not take all the memory there is
FILES = "files: .svg .html .png .pdf .dot .json; without it attention.svg; what is there is replaced"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """What is to be drawn, and how."""
    parser = Parser(description="Draw one multi-head attention layer from its own tape.")
    add = parser.add_argument
    add("-o", "--output", nargs="+", action="extend", type=Path, help=FILES)
    add(
        "--level", choices=LEVELS, default="equations", help="; ".join(f"{k}: {v}" for k, v in LEVELS.items())
    )
    add("--grads", action="store_true", help="norms of gradients, from a random gradient of Y")
    add("--values", action="store_true", help="scores and weights as coloured cells")
    add("--cost", action="store_true", help="operations and bytes of each node")
    add("--fused", action="store_true", help="level tape: the kernel that training runs, not line by line")
    add(
        "--paper", action="store_true", help="the picture of the paper's Figure 2: from below, without shapes"
    )
    add("--heads", type=positive, default=2, help="h, a divisor of d_model")
    add("--d-model", type=positive, default=16, help="d_model, the width")
    add("--length", type=positive, default=5, help="n, the number of positions")
    add(
        "--memory",
        type=positive,
        metavar="N",
        help="attend to N positions of another sequence (cross-attention)",
    )
    add("--batch", type=positive, default=2, help="B, the number of sequences")
    add("--mask", choices=("none", "causal"), default="none", help="who may attend to whom")
    add("--dropout", type=float, default=0.0, help="of the attention weights")
    add("--no-bias", action="store_true", help="projections without b, as in the paper")
    add(
        "--direction",
        choices=("TB", "BT", "LR"),
        help="LR is for slides, BT like the paper's figure",
    )
    add_looks(add)
    chosen = parser.parse_args(argv)
    complete(chosen, parser.error)
    return chosen


def add_looks(add: Callable[..., Any], shapes: str | None = None) -> None:
    """Add the options of how a drawing of anything looks."""
    add(
        "--shapes",
        choices=("symbolic", "numeric", "both", "none"),
        default=shapes,
        help="B×h×n×d_k or numbers",
    )
    add("--names", choices=("math", "code"), default="math", help="W^Q or q_proj.weight")
    add(
        "--theme",
        choices=("auto", "light", "dark"),
        default="auto",
        help="auto: an SVG follows the reader's setting",
    )
    add("--no-legend", action="store_true", help="the graph alone")


def complete(chosen: argparse.Namespace, refuse: Callable[[str], Any]) -> None:
    """Fill in what --paper decides, and refuse options that exclude each other."""
    usual, paper = {"direction": "TB", "shapes": "symbolic"}, {"direction": "BT", "shapes": "none"}
    for option, value in (paper if chosen.paper else usual).items():
        if chosen.paper and getattr(chosen, option) not in (None, value):
            refuse(f"--paper is --{option} {value}; leave --{option} out, or --paper")
        setattr(chosen, option, getattr(chosen, option) or value)
    chosen.no_legend |= chosen.paper
    for option in (each for each in ("grads", "values", "cost") if chosen.paper and getattr(chosen, each)):
        refuse(f"--{option} beside --paper, whose picture has no legend to explain it; leave one of them out")
    if chosen.paper and chosen.level == "heads":
        refuse("--paper is --direction BT, in which --level heads is not to be read; leave one of them out")
    if chosen.fused and chosen.level != "tape":
        refuse(f"--fused at --level {chosen.level}, which is drawn line by line; add --level tape")
    if chosen.fused and chosen.values:
        refuse("--values beside --fused, whose kernel keeps no scores or weights; leave one of them out")
    if chosen.mask == "causal" and chosen.memory not in (None, chosen.length):
        refuse("--mask causal needs as many keys as queries; leave --memory out")


def positive(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not text.isdecimal() or len(text) > 12 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1 and at most 12 digits")
    return int(text)


def check_memory(chosen: argparse.Namespace) -> None:
    """About what forward and backward take at most: some tensors of each size, four bytes an element.

    Raises: ValueError if that is much, before anything is computed.
    """
    B, h, n, m, d = chosen.batch, chosen.heads, chosen.length, chosen.memory or chosen.length, chosen.d_model
    scores = 0 if chosen.fused else B * h * n * m
    taken = 4 * (14 * scores + 16 * B * (n + m) * d + 10 * d * d)
    if taken > MOST:
        other = "" if chosen.memory is None else f" --memory {m}"
        raise ValueError(
            f"--batch {B} --heads {h} --length {n}{other} --d-model {d} may take {taken / 1e9:,.1f} GB, and "
            f"{MOST / 1e9:g} are the most; choose smaller sizes, the picture stays the same"
        )


def as_options(said: str) -> str:
    """What `draw` says of its arguments, said of the options of a command: level='ops' is --level ops."""

    def option(found: re.Match[str]) -> str:
        name, value = found[1].replace("_", "-"), (found[2] or "").strip("'").replace("None", "none")
        return f"--{name} {value}" if value not in ("", "True") else f"--{name}"

    names = "cost|depth|direction|grads|legend|level|max_nodes|names|shapes|theme|values"
    text = re.sub(rf"\b({names})=('\w+'|-?\w+)?", option, said.removeprefix("draw: "))
    return re.sub(r"\bmax_nodes\b", "--max-nodes", text)


def draw(chosen: argparse.Namespace) -> viz.Drawing:
    """One forward of a layer, as a drawing."""
    check_memory(chosen)
    mt.manual_seed(0)
    layer = MultiHeadAttention(chosen.d_model, chosen.heads, bias=not chosen.no_bias, dropout=chosen.dropout)
    x = mt.randn(chosen.batch, chosen.length, chosen.d_model, requires_grad=True)
    memory = None
    if chosen.memory is not None:
        memory = mt.randn(chosen.batch, chosen.memory, chosen.d_model, requires_grad=True)
    mask = causal_mask(chosen.length) if chosen.mask == "causal" else None
    line_by_line = {"need_weights": True} if chosen.level == "tape" and not chosen.fused else {}
    return viz.draw(
        layer,
        x,
        memory,
        mask=mask,
        **line_by_line,
        grads="random" if chosen.grads else False,
        values=chosen.values,
        cost=chosen.cost,
        level=chosen.level,
        direction=chosen.direction,
        shapes=None if chosen.shapes == "none" else chosen.shapes,
        names=chosen.names,
        theme=chosen.theme,
        legend=not chosen.no_legend,
    )


def main(argv: list[str] | None = None) -> int:
    """Draw, save, and say where."""
    chosen = arguments(argv)
    try:
        drawing = draw(chosen)
        for path in chosen.output or [Path("attention.svg")]:
            replaced = ", in place of the one that was there" if path.exists() else ""
            print(f"saved {drawing.save(path)}{replaced}")
    except BrokenPipeError:
        raise  # no fault of the drawing
    except (ValueError, RuntimeError, OSError) as error:
        print(f"draw_attention: {as_options(str(error))}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(f"draw_attention: {error or 'out of memory'}; choose smaller sizes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
