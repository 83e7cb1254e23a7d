"""Handwritten digits of 8 × 8 pixels, read by a perceptron and by a tiny vision Transformer.

    python examples/digits.py            # scikit-learn's 1797 digits; a minute; writes to runs/digits/

The Transformer sees sixteen patches of 2 × 2 pixels as a sentence of sixteen words, with a token before them
whose last vector is classified. There are few digits, so both see them noisy and sometimes a pixel aside.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lesson import arguments, new_figure, run, save

import microtensor as mt
from microtensor import nn, optim, train
from microtensor.data import DataLoader, TensorDataset
from microtensor.optim.lr_scheduler import LambdaLR
from models import Encoder


class VisionTransformer(nn.Module):
    """head(Encoder([token, patches W + b] + positions)_0), as Dosovitskiy et al. 2021, "… 16×16 Words"."""

    def __init__(self, width: int = 32, side: int = 2) -> None:
        super().__init__()
        self.side, n = side, (8 // side) ** 2  # of a patch; patches
        self.embedding = nn.Linear(side * side, width)
        self.token = nn.Parameter(mt.zeros(1, 1, width))
        self.positions = nn.Parameter(0.1 * mt.randn(1, n + 1, width))
        self.encoder = Encoder(2, width, 4, 4 * width, dropout=0.1, activation="gelu", norm="pre")
        self.head = nn.Linear(width, 10)

    def forward(self, images: mt.Tensor) -> mt.Tensor:
        """(B, 8, 8) → (B, 10)"""
        B, p = len(images), self.side
        patches = images.reshape(B, 8 // p, p, 8 // p, p).transpose(2, 3).reshape(B, -1, p * p)
        words = mt.cat([self.token.expand(B, 1, -1), self.embedding(patches)], 1) + self.positions
        return self.head(self.encoder(words)[:, 0])


def varied(images: mt.Tensor) -> mt.Tensor:
    """(B, 8, 8) → the same with noise, one in three moved by up to a pixel each way."""
    B, eight = len(images), mt.arange(8)
    down, right = (1 + mt.randint(-1, 2, (B, 1, 1)) * (mt.rand(B, 1, 1) < 0.3) for _ in range(2))
    padded = nn.functional.pad(images, (1, 1, 1, 1))  # (B, 10, 10)
    moved = padded[mt.arange(B)[:, None, None], down + eight[:, None], right + eight]  # (B, 8, 8)
    return moved + 0.1 * mt.randn_like(moved)


def fit(model: nn.Module, data: TensorDataset, steps: int) -> None:
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    train.Trainer(
        model, optimizer, DataLoader(data, batch_size=64, shuffle=True, drop_last=True), max_steps=steps,
        loss_fn=lambda m, batch: nn.functional.cross_entropy(m(varied(batch[0])), batch[1]),
        scheduler=LambdaLR(optimizer, lambda t: min((t + 1) / 50, 1 - t / steps)),
    ).fit()  # fmt: skip
    model.eval()


def plot(wrong: dict[str, list[tuple[mt.Tensor, ...]]], path: Path) -> None:
    """The first eight digits, at most, that each model misreads: what was meant, and what it says."""
    figure, axes = new_figure(min(8, max(5, *map(len, wrong.values()))), len(wrong), width=1.1, height=1.7)
    figure.suptitle("test digits that are misread\n", fontsize=11)  # and a line for the first row's title
    for row, (title, mistakes) in zip(axes, wrong.items(), strict=True):
        row[0].text(-0.5, -2.2, title, fontsize=10, in_layout=False)  # or it would widen the column
        for place, (image, meant, said) in zip(row, mistakes, strict=False):
            place.imshow(image.numpy(), cmap="gray_r", vmin=0, vmax=1)
            place.text(3.5, -0.9, f"{meant.item()}, said {said.item()}", ha="center", fontsize=8)
        for place in row:
            place.axis("off")
    save(figure, path)


def main() -> None:
    options = arguments(__doc__, "runs/digits")
    from sklearn.datasets import load_digits  # takes a second: what is refused is refused before

    mt.manual_seed(options.seed)
    found = load_digits()
    images, digits = mt.tensor(found.images / 16, dtype=mt.float32), mt.tensor(found.target)
    test, rest = mt.randperm(len(digits)).split([360, 1437])
    wrong = {}
    layers = (nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
    for name, model in (("perceptron", nn.Sequential(*layers)), ("vision Transformer", VisionTransformer())):
        fit(model, TensorDataset(images[rest], digits[rest]), 10 if options.smoke else 2500)
        with mt.no_grad():
            said = model(images[test]).argmax(1)
        missed = said != digits[test]
        size, right = sum(p.numel() for p in model.parameters()), 1 - missed.float().mean().item()
        title = f"{name}, {size:,} parameters: {right:.1%} of 360 test digits right"
        print(title)
        wrong[title] = list(zip(images[test[missed]], digits[test[missed]], said[missed], strict=True))
    plot(wrong, options.out / "mistakes")


if __name__ == "__main__":
    sys.exit(run(main, "matplotlib", "sklearn"))
