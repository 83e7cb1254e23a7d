"""A perceptron with two hidden layers unwinds three interleaved spirals, and its boundaries are drawn.

    python examples/spiral.py            # some seconds; writes runs/spiral/boundary.png and .svg

No line separates the arms: what is drawn is how far the decision of a small network can bend.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from lesson import COLOURS, arguments, legend, new_figure, run, save

import microtensor as mt
from microtensor import nn, optim, train
from microtensor.data import DataLoader, TensorDataset

ARMS, MARKERS = 3, "os^"


def spirals(n: int, noise: float = 0.15) -> tuple[mt.Tensor, mt.Tensor]:
    """n points (n, 2) on three arms of one and a quarter turns, and the number (n,) of each point's arm."""
    arm = mt.arange(n) % ARMS
    radius = mt.linspace(0.05, 1, n)
    angle = 2.5 * math.pi * radius + 2 * math.pi / ARMS * arm + noise * mt.randn(n)
    return mt.stack([radius * angle.cos(), radius * angle.sin()], 1), arm


def accuracy(model: nn.Module, x: mt.Tensor, arm: mt.Tensor) -> float:
    with mt.no_grad():
        return (model(x).argmax(1) == arm).float().mean().item()


def plot(model: nn.Module, x: mt.Tensor, arm: mt.Tensor, title: str, path: Path) -> None:
    """The arm that the network says at each place, paler where it doubts, and the points of a test."""
    side = np.linspace(-1.15, 1.15, 300, dtype=np.float32)
    places = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    with mt.no_grad():
        p = model(mt.from_numpy(places)).softmax(1).numpy()  # (90000, 3)
    colours = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in COLOURS[:ARMS]])
    shade = 1 - 0.55 * p[..., None] * (1 - colours)  # (90000, 3, 3): each arm's colour on white
    figure, axes = new_figure(width=6.2, height=5.0)
    axes.imshow(shade.prod(1).reshape(300, 300, 3), origin="lower", extent=(-1.15, 1.15) * 2)
    axes.contour(side, side, p.argmax(1).reshape(300, 300), levels=[0.5, 1.5], colors="white", linewidths=1.2)
    for k in range(ARMS):
        shown: Any = x.numpy()[arm.numpy() == k].T
        axes.scatter(*shown, c=COLOURS[k], marker=MARKERS[k], s=16, linewidths=0.4, edgecolors="white",
                     label=f"arm {k + 1}")  # fmt: skip
    axes.set(title=title, xlabel="x₁", ylabel="x₂", aspect="equal")
    legend(axes)
    axes.grid(False)
    save(figure, path)


def main() -> None:
    options = arguments(__doc__, "runs/spiral")
    mt.manual_seed(options.seed)
    data, (x, arm) = TensorDataset(*spirals(600)), spirals(600)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, ARMS))
    trainer = train.Trainer(
        model,
        optim.Adam(model.parameters(), lr=0.01),
        DataLoader(data, batch_size=100, shuffle=True),
        loss_fn=lambda m, batch: nn.functional.cross_entropy(m(batch[0]), batch[1]),
        max_steps=20 if options.smoke else 1000,
    )
    trainer.fit()
    right = accuracy(model, x, arm)
    title = f"three spirals: {right:.1%} of 600 test points right"
    print(title)
    plot(model, x, arm, title, options.out / "boundary")


if __name__ == "__main__":
    sys.exit(run(main, "matplotlib"))
