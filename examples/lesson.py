"""What the small examples share: their options, how they end, and pictures as PNG and SVG."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ending import run
from options import Parser, check_folder

__all__ = ["COLOURS", "arguments", "legend", "new_figure", "run", "save"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")  # Okabe & Ito 2008: told apart by all eyes
STYLE = {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}


def arguments(doc: str, out: str) -> argparse.Namespace:
    """seed, out and smoke of the command line; --help says the first line of doc.

    A value that cannot be used is refused before anything is written.
    """
    parser = Parser("a few steps", description=doc.splitlines()[0])
    parser.add_argument("--out", type=Path, help=f"folder for pictures; default {out} (or {out}-smoke)")
    options = parser.parse_args()
    options.out = options.out or Path(f"{out}-smoke" if options.smoke else out)
    try:
        check_folder("--out", options.out)
    except ValueError as error:
        parser.error(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def new_figure(columns: int = 1, rows: int = 1, *, width: float = 6.0, height: float = 4.0) -> Any:
    """A figure and its axes, each so wide and high in inches."""
    from matplotlib import rcParams  # here, so that `run` can say in one line that it is missing
    from matplotlib.figure import Figure

    rcParams.update(STYLE)
    figure = Figure((width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns)


def legend(axes: Any) -> None:
    """What each mark means, beside the axes, where it covers none."""
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))


def save(figure: Any, path: Path) -> None:
    """Write path.png and path.svg, and say so."""
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=150)
    print(f"plotted {path}.png, .svg")
