"""Draw one multi-head attention layer from its own tape.

    python tools/draw_attention.py -o attention.svg attention.png --mask causal --dropout 0.1

The layer is run once on random numbers, and its tape is drawn. Without the program dot, pygraphviz will do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import microtensor as mt  # noqa: E402
from microtensor import viz  # noqa: E402
from models import MultiHeadAttention, causal_mask  # noqa: E402


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """What is to be drawn, and how."""
    parser = argparse.ArgumentParser(description="Draw one multi-head attention layer from its own tape.")
    add = parser.add_argument
    add("-o", "--output", nargs="+", action="extend", type=Path, help="files: .svg .png .pdf .dot .json")
    add("--level", choices=("equations", "ops"), default="equations")
    add("--heads", type=int, default=2)
    add("--d-model", type=int, default=16)
    add("--length", type=int, default=5, help="n, the number of positions")
    add("--memory", type=int, metavar="N", help="attend to N positions of another sequence (cross-attention)")
    add("--batch", type=int, default=2)
    add("--mask", choices=("none", "causal"), default="none")
    add("--dropout", type=float, default=0.0)
    add("--no-bias", action="store_true")
    add("--direction", choices=("TB", "BT", "LR"), default="TB")
    add("--shapes", choices=("symbolic", "numeric", "both", "none"), default="symbolic")
    add("--names", choices=("math", "code"), default="math")
    add("--theme", choices=("auto", "light", "dark"), default="auto")
    add("--no-legend", action="store_true")
    chosen = parser.parse_args(argv)
    if chosen.mask == "causal" and chosen.memory not in (None, chosen.length):
        parser.error("--mask causal needs as many keys as queries; leave --memory out")
    return chosen


def draw(chosen: argparse.Namespace) -> viz.Drawing:
    """One forward of a layer, as a drawing."""
    mt.manual_seed(0)
    layer = MultiHeadAttention(chosen.d_model, chosen.heads, bias=not chosen.no_bias, dropout=chosen.dropout)
    x = mt.randn(chosen.batch, chosen.length, chosen.d_model, requires_grad=True)
    memory = None
    if chosen.memory is not None:
        memory = mt.randn(chosen.batch, chosen.memory, chosen.d_model, requires_grad=True)
    mask = causal_mask(chosen.length) if chosen.mask == "causal" else None
    return viz.draw(
        layer,
        x,
        memory,
        mask=mask,
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
            print(f"saved {drawing.save(path)}")
    except (ValueError, RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
