"""A run's curves drawn from its log, PNG or SVG. matplotlib is imported when something is drawn."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Real
from typing import Any

from microtensor.train.evaluation import OWN_NAMES
from microtensor.train.files import write
from microtensor.train.serialize import Path

__all__ = ["plot_history"]

FORMATS = ("png", "svg", "pdf")
LARGEST = 1e300
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")  # told apart by all eyes: Okabe & Ito 2008


def plot_history(history: Path | Iterable[Mapping[str, Any]], path: Path) -> None:
    """Draw loss, learning rate and each number of evaluate over the steps; path's suffix says the format.

    history: what `fit` returned, a log file, or a checkpoint folder with its log.jsonl. Lines of a log that
    are no records are left out, and so is what a run wrote after the step that it was later resumed from.
    Numbers of evaluate with "loss" in their names share the loss's axes. Needs matplotlib.
    Raises: ValueError for another suffix than .png, .svg, .pdf and without any record; FileNotFoundError for
    no log and for no folder of path; ModuleNotFoundError without matplotlib.
    Source: ours.
    """
    kind = os.path.splitext(os.fspath(path))[1].lower().removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"plot_history: {os.fspath(path)!r} is no name of a picture; end it in .png or .svg")
    records = _one_run(_read(history) if isinstance(history, str | os.PathLike) else history)
    if not (panels := _panels(records)):
        raise ValueError("plot_history: there is no record to draw; train for at least log_every steps")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'plot_history: matplotlib is missing; pip install "microtensor[examples]"'
        ) from error
    drawn = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "microtensor"}):  # the same log, the same file
        figure = Figure((7, 1 + 2 * len(panels) + 0.22 * sum(map(len, panels))), layout="constrained")
        every = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, names in zip(every, panels, strict=True):
            # told apart not by colour alone
            axes.set_prop_cycle(color=4 * COLOURS, linestyle=5 * ("-", "--", "-.", ":"))
            for name in names:
                points = [(float(r["step"]), float(r[name])) for r in records if _is_number(r.get(name))]
                axes.plot(*zip(*points, strict=True), label=name, marker="." if len(points) < 40 else None)
            axes.grid(alpha=0.3)
            # "?", as it would leave out names that begin with _; above the axes, where it covers no curve
            legend = axes.legend(axes.lines, ["?"] * len(names), loc="lower left", bbox_to_anchor=(0, 1))
            for text, name in zip(legend.get_texts(), names, strict=True):
                text.set(text=_printable(str(name)), parse_math=False)
        every[0].set_ylabel("loss" if "loss" in str(panels[0][0]) else "")
        every[-1].set_xlabel("step")
        figure.savefig(drawn, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    write("plot_history", path, drawn.getvalue())


def _read(log: Path) -> list[Any]:
    path = os.path.join(log, "log.jsonl") if os.path.isdir(log) else os.fspath(log)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"plot_history: there is no log {path!r}; give it, or what fit() returned")
    records = []
    with open(path, "rb") as file:
        for line in file:
            with suppress(ValueError, RecursionError):  # cut off by a kill
                records.append(json.loads(line.decode()))
    return records


def _one_run(records: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Records in the order of their steps; one that comes after those of later steps takes their place."""
    kept: list[Mapping[str, Any]] = []
    for record in records:
        if isinstance(record, Mapping) and _is_number(record.get("step")):
            while kept and kept[-1]["step"] >= record["step"]:
                kept.pop()
            kept.append(record)
    return kept


def _panels(records: list[Mapping[str, Any]]) -> list[list[str]]:
    """The names that share axes, from top to bottom."""
    names = list(dict.fromkeys(name for r in records for name, value in r.items() if _is_number(value)))
    others = [name for name in names if name not in OWN_NAMES]
    losses = [name for name in ("loss", *others) if "loss" in str(name) and name in names]
    single = [[name] for name in others if name not in losses]
    return [panel for panel in (losses, *single, ["lr"] if "lr" in names else []) if panel]


def _is_number(value: Any) -> bool:
    """Whether it can be drawn: NumPy's are numbers, too; beyond LARGEST the scale of an axis overflows."""
    with suppress(OverflowError):  # an integer of hundreds of digits
        return isinstance(value, Real) and not isinstance(value, bool) and abs(float(value)) <= LARGEST
    return False


def _printable(name: str) -> str:
    """The name with what no font has, a lone surrogate or a NUL, as Python writes it."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)
