"""Induction heads grow in a model of two layers of nothing but attention, and are seen at work.

    python examples/induction_heads.py          # half a minute; writes attention and loss to runs/induction/

Random tokens are said again and again: nothing but the repetition can be known. A head of layer 2 then looks
back to where the present token stood, and one further: what followed then follows now. It finds the place
because heads of layer 1 told each token which one stood before it.
"""

import numpy as np
from lesson import COLOURS, arguments, legend, new_figure, run, save

import microtensor as mt
from microtensor import nn, optim, train
from microtensor.data import DataLoader, TensorDataset
from models import MultiHeadAttention

V, T, WIDTH, HEADS = 32, 48, 64, 4  # tokens, positions, width of the residual stream, heads of a layer


class AttentionOnly(nn.Module):
    """x ← x + MultiHead(LayerNorm(x)), twice; logits from LayerNorm(x). As Elhage et al. 2021, but for LN."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, WIDTH), nn.Embedding(T, WIDTH)
        self.attention = nn.ModuleList(MultiHeadAttention(WIDTH, HEADS) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.output = nn.Linear(WIDTH, V, bias=False)

    def forward(self, ids: mt.Tensor) -> tuple[mt.Tensor, list[mt.Tensor]]:
        """(B, T) → logits (B, T, V), and the attention weights (B, H, T, T) of both layers."""
        x, weights = self.tokens(ids) + self.positions(mt.arange(ids.shape[1])), []
        for norm, attention in zip(self.norms, self.attention, strict=False):
            y, A = attention(norm(x), is_causal=True, need_weights=True)
            x, weights = x + y, [*weights, A]
        return self.output(self.norms[2](x)), weights


def repeated(periods: np.ndarray, rng: np.random.Generator) -> mt.Tensor:
    """(B,) periods → (B, T) ids: ids[b, t] = ids[b, t − periods[b]], and within a period all differ.

    Trained on unequal periods, a head must look for the token: a fixed way back would be wrong.
    """
    different = rng.random((len(periods), V)).argsort(1)
    return mt.from_numpy(np.take_along_axis(different, np.arange(T) % periods[:, None], 1))


def losses(model: AttentionOnly, ids: mt.Tensor) -> mt.Tensor:
    """(B, T − 1): of each token but the first."""
    logits, _ = model(ids[:, :-1])  # (B, T − 1, V)
    return nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


def show(axes, name: str, A: mt.Tensor, queries: range, distance: int) -> float:
    """Print each head's mean weight of the key `distance` before its query; draw the best. Its score."""
    scores = A.numpy()[:, :, queries, np.array(queries) - distance].mean((0, 2))
    print(f"{name} scores: {'  '.join(f'{head:.2f}' for head in scores)}")
    image = axes.imshow(A[0, scores.argmax()], cmap="Blues", vmin=0, vmax=1, zorder=3)  # above the grid
    axes.figure.colorbar(image, ax=axes, label="attention weight")
    axes.set(title=f"{name}: head {scores.argmax() + 1}", xlabel="key", ylabel="query")
    return scores.max()


def main() -> None:
    options = arguments(__doc__, "runs/induction")
    mt.manual_seed(options.seed)
    steps, half, rng = 10 if options.smoke else 1000, T // 2, np.random.default_rng(options.seed)
    model = AttentionOnly()
    data = TensorDataset(repeated(rng.integers(half // 2, half + 1, size=64 * steps), rng))
    test = repeated(np.full(100, half), rng)
    optimizer = optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    history = train.Trainer(
        model, optimizer, DataLoader(data, batch_size=64), max_steps=steps, eval_every=steps // 10,
        loss_fn=lambda model, batch: losses(model, batch[0]).mean(),
        scheduler=optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / 50, 1 - t / steps)),
        evaluate=lambda model: {"first": losses(model, test)[:, : half - 1].mean(),
                                "second": losses(model, test)[:, half:].mean()},
    ).fit()  # fmt: skip
    print("loss of the first half {first:.3f}, of the second {second:.3f}".format(**history[-1]))
    with mt.no_grad():
        _, weights = model(test)
    figure, (left, right) = new_figure(2, width=5.0)
    show(left, "layer 1, previous token", weights[0], range(1, half), 1)
    induction = show(right, "layer 2, induction", weights[1], range(half, T), half - 1)
    save(figure, options.out / "attention")
    figure, axes = new_figure()
    for name, colour, marker in (("first", COLOURS[1], "s"), ("second", COLOURS[0], "o")):
        points = [(record["step"], record[name]) for record in history if name in record]
        axes.plot(*zip(*points, strict=True), color=colour, marker=marker, label=f"{name} half")
    axes.set(title="what was said becomes known", xlabel="step", ylabel="loss (nats)", ylim=(0, 4.2))
    legend(axes)
    save(figure, options.out / "loss")
    if not options.smoke and induction < 0.5:
        raise SystemExit("no head of layer 2 looks to what followed the present token before")


if __name__ == "__main__":
    raise SystemExit(run(main, "matplotlib"))
