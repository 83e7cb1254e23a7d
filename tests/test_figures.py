"""Every figure of curves and points can be read: nothing is covered or cut, axes have names, also in grey."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from examples_here import run_here

from microtensor.train import plot_history

Figure = pytest.importorskip("matplotlib.figure").Figure
Canvas = pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg
ONLY = {"tasks": ["--only", "copy", "--only", "reverse"]}


def faults(figure: Any) -> list[str]:
    """What a reader of the figure would miss, in words."""
    canvas = Canvas(figure)
    canvas.draw()
    found = []
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is not None and legend.get_window_extent().overlaps(axes.bbox):
            found.append("a legend may cover what is drawn")
        looks = Counter((str(line.get_linestyle()), line.get_marker()) for line in axes.lines)
        found += [f"{n} lines are told apart by colour alone: {look}" for look, n in looks.items() if n > 1]
        if axes.axison and any(i.get_array().ndim == 2 and i.colorbar is None for i in axes.images):
            found.append("a map says not what its colours are")
        named = axes.get_label() == "<colorbar>" or not axes.axison
        for axis in () if named else (axes.xaxis, axes.yaxis):
            ticks = any(tick.get_visible() and tick.get_text() for tick in axis.get_ticklabels())
            alone = axis is axes.yaxis and legend is not None and len(legend.get_texts()) == 1
            if ticks and not alone and not axis.get_label_text():
                found.append(f"an axis without a name: {axis.axis_name}")
    box, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
    if min(box.x0, box.y0) < -0.01 or box.x1 > width + 0.01 or box.y1 > height + 0.01:
        found.append("something is cut off at the edge")
    return found


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The faults of each figure that is saved."""
    found: list[list[str]] = []
    real = Figure.savefig

    def savefig(self: Any, *args: Any, **options: Any) -> Any:
        found.append(faults(self))
        return real(self, *args, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return found


@pytest.mark.parametrize("name", ["lecture", "spiral", "induction_heads", "tasks"])
def test_the_figures_of_an_example_can_be_read(name: str, seen: list[list[str]], tmp_path: Path) -> None:
    status, _, stderr = run_here(name, "--smoke", "--out", tmp_path / "out", *ONLY.get(name, []))
    assert status in (None, 0), stderr
    assert seen
    assert [found for found in seen if found] == []


@pytest.mark.parametrize("n", [1, 3, 4])
def test_curves_of_a_run_can_be_read(n: int, seen: list[list[str]], tmp_path: Path) -> None:
    """Curves that leave no corner of the axes free, as many as there are styles of lines."""
    history = [
        {"step": t, "lr": 1e-3, "right": t / 50, **{f"loss: {k}": ((t + 17 * k) % 50) / 50 for k in range(n)}}
        for t in range(50)
    ]
    plot_history(history, tmp_path / "a.png")
    assert seen == [[]]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda axes: axes.legend(loc="upper right"), "a legend may cover what is drawn"),
        (lambda axes: axes.plot([3, 1], label="c"), "2 lines are told apart by colour alone: ('-', 'None')"),
        (lambda axes: axes.set_ylabel(""), "an axis without a name: y"),
        (lambda axes: axes.imshow([[1.0, 2.0]]), "a map says not what its colours are"),
        (lambda axes: axes.figure.text(0.9, 0.5, 99 * "x"), "something is cut off at the edge"),
    ],
)
def test_what_cannot_be_read_is_found(spoil: Any, said: str) -> None:
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot([1, 2], label="a")
    axes.plot([2, 1], "--", label="b")
    axes.set(xlabel="x", ylabel="y")
    assert faults(figure) == []
    spoil(axes)
    assert faults(figure) == [said]
