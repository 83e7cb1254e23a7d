"""What the small examples share: their options, and pictures as PNG and SVG."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # files are written; no screen is needed

import matplotlib.pyplot as plt

__all__ = ["COLOURS", "arguments", "new_figure", "save"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")  # Okabe & Ito 2008: told apart by all eyes
mpl.rcParams.update(
    {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}
)


def arguments(doc: str, out: str) -> argparse.Namespace:
    """seed, out and smoke, from the command line; --help says the first line of doc."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of all that is random; default 0")
    parser.add_argument("--out", type=Path, default=Path(out), help=f"folder for pictures; default {out}")
    parser.add_argument("--smoke", action="store_true", help="a few steps: does everything work?")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def new_figure(columns: int = 1, rows: int = 1, *, width: float = 6.0, height: float = 4.0) -> Any:
    """A figure and its axes, each so wide and high in inches."""
    size = (width * columns, height * rows)
    return plt.subplots(rows, columns, figsize=size, layout="constrained")


def save(figure: Any, path: Path) -> None:
    """Write path.png and path.svg, and say so."""
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=150)
    plt.close(figure)
    print(f"plotted {path}.png, .svg")
