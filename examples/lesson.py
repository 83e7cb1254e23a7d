"""What the small examples share: their options, how they end, and pictures as PNG and SVG."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ending import run

__all__ = ["COLOURS", "arguments", "checked", "legend", "new_figure", "run", "save"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")  # Okabe & Ito 2008: told apart by all eyes
STYLE = {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}


def arguments(doc: str, out: str, *, only: Collection[str] = ()) -> argparse.Namespace:
    """seed, out, smoke and only (of these names) of the command line; --help says the first line of doc."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    if only:
        text = "train this one; may be given more than once"
        parser.add_argument("--only", action="append", choices=list(only), default=[], help=text)
    parser.add_argument("--seed", type=int, default=0, help="of all that is random; default 0")
    parser.add_argument("--out", type=Path, help=f"folder for pictures; default {out} (or {out}-smoke)")
    parser.add_argument("--smoke", action="store_true", help="a few steps: does everything work?")
    return checked(parser, out)


def checked(parser: argparse.ArgumentParser, out: str) -> argparse.Namespace:
    """The command line's options; a seed or a folder that cannot be used is refused before anything runs."""
    options = parser.parse_args()
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}; give 0 or more")
    options.out = options.out or Path(f"{out}-smoke" if options.smoke else out)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {options.out} can be no folder ({error.strerror}); name another")
    if not os.access(options.out, os.W_OK):
        parser.error(f"--out {options.out} is read-only; name another")
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
