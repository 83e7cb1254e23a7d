"""The lecture's statements as experiments: each is measured, and drawn.

Every function below returns the numbers that it found and a function that draws them; tests hold the numbers
to what the lecture says. Run as a program it prints all numbers and writes all pictures.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lesson import arguments, legend, run
from numpy.typing import NDArray

import microtensor as mt
from models import (
    EncoderLayer,
    MultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention,
    sinusoidal_encoding,
)

Array = NDArray[Any]
WIDTHS = [4, 16, 64, 256, 1024]
C, H, T = 16, 4, 6  # model width, heads and tokens of the small layers


class Result(NamedTuple):
    """What an experiment found: numbers by name, and how they are drawn onto matplotlib's axes."""

    numbers: dict[str, Any]
    draw: Callable[[Any], Any]


def normal(*shape: int) -> mt.Tensor:
    """Independent entries of variance 1, in float64."""
    return mt.randn(*shape, dtype=mt.float64)


def attention_layer() -> MultiHeadAttention:
    """A fresh one, whose biases are not zero either."""
    layer = MultiHeadAttention(C, H).double()
    for parameter in layer.parameters():
        parameter.data = parameter.data + 0.2 * mt.randn_like(parameter)
    return layer


# --- scaled dot-product attention ---------------------------------------------------------------------------


def score_variance() -> Result:
    """“If q and k have independent entries of variance 1, then q·k has variance d_k”: divided by √d_k, 1."""
    plain, scaled = [], []
    for d_k in WIDTHS:
        scores = (normal(20_000, d_k) * normal(20_000, d_k)).sum(-1)
        plain.append(scores.var().item())
        scaled.append((scores / math.sqrt(d_k)).var().item())

    def draw(axes: Any) -> None:
        axes.loglog(WIDTHS, plain, "o-", label="q·k")
        axes.loglog(WIDTHS, scaled, "s-", label="q·k/√d_k")
        axes.loglog(WIDTHS, WIDTHS, ":", color="black", label="d_k")
        axes.set_xlabel("d_k")
        axes.set_ylabel("variance of a score")
        legend(axes)

    return Result({"d_k": WIDTHS, "variance": plain, "variance / d_k, scaled": scaled}, draw)


def saturation() -> Result:
    """“For large d_k, un-scaled scores reach extreme magnitudes, the softmax saturates and gradients vanish”.

    Measured for 500 queries and 16 keys: the entropy of the weights (at most ln 16 = 2.77), and the length of
    the gradient by the scores, for a random cotangent.
    """
    entropy: dict[str, list[float]] = {"plain": [], "scaled": []}
    gradient: dict[str, list[float]] = {"plain": [], "scaled": []}
    for d_k in WIDTHS:
        scores = normal(500, d_k) @ normal(16, d_k).mT
        for name, factor in (("plain", 1.0), ("scaled", 1 / math.sqrt(d_k))):
            S = (scores * factor).requires_grad_()
            A = S.softmax(-1)
            A.backward(normal(*A.shape))
            entropy[name].append(-(A * A.clamp(min=1e-300).log()).sum(-1).mean().item())
            gradient[name].append(S.grad.norm(dim=-1).mean().item())

    def draw(axes: Any) -> None:
        for name, mark in zip(entropy, "os", strict=True):
            (line,) = axes.loglog(WIDTHS, gradient[name], f"{mark}-", label=f"gradient, {name}")
            axes.loglog(WIDTHS, entropy[name], f"{mark}:", color=line.get_color(), label=f"entropy, {name}")
        axes.set_xlabel("d_k")
        axes.set_ylabel("length of the gradient; entropy (nats)")
        legend(axes)

    numbers: dict[str, Any] = {"d_k": WIDTHS}
    for name in entropy:
        numbers |= {f"entropy, {name}": entropy[name], f"gradient, {name}": gradient[name]}
    return Result(numbers, draw)


def convex_combinations() -> Result:
    """“The output for token i is the corresponding convex combination of value rows”: weights ≥ 0, Σ = 1.

    So no projection of an output can leave the range that the values span there; 100 directions are tried.
    """
    Q, K, V = normal(40, 8), normal(7, 8), normal(7, 2)
    y, A = scaled_dot_product_attention(3 * Q, K, V)
    directions = normal(2, 100)
    out, hull = y @ directions, V @ directions
    beyond = mt.maximum(out - hull.amax(0), hull.amin(0) - out).amax().item()

    def draw(axes: Any) -> None:
        for i, corners in enumerate(combinations(V.numpy(), 3)):  # a hull is all triangles of its points
            axes.fill(*np.transpose(corners), color="0.9", label=None if i else "convex hull")
        axes.plot(*V.numpy().T, "s", label="values")
        axes.plot(*y.numpy().T, ".", label="outputs")
        axes.set(aspect="equal", xlabel="dimension 1", ylabel="dimension 2")
        legend(axes)

    numbers = {
        "smallest weight": A.amin().item(),
        "row sums": (A.sum(-1).amin().item(), A.sum(-1).amax().item()),
    }
    return Result(numbers | {"beyond the hull": beyond}, draw)


# --- multi-head attention -----------------------------------------------------------------------------------


def key_bias() -> Result:
    """b_K has no gradient: it adds q·b_K to a whole row of scores, and softmax ignores that."""
    layer = attention_layer()
    y = layer(normal(2, T, C))
    y.backward(normal(*y.shape))
    lengths = {name[0]: p.grad.norm().item() for name, p in layer.named_parameters() if name.endswith("bias")}

    def draw(axes: Any) -> None:
        axes.set_xlabel("bias")
        axes.bar([f"b_{name.upper()}" for name in lengths], list(lengths.values()))
        axes.set_ylabel("length of the gradient")

    return Result({f"gradient of b_{name.upper()}": length for name, length in lengths.items()}, draw)


def shapes_kept() -> Result:
    """“The result has the same shape as the input, so encoder layers can be stacked”: twelve of them."""
    x = normal(2, T, C)
    shapes, sizes = [tuple(x.shape)], [x.square().mean().sqrt().item()]
    for _ in range(12):
        x = EncoderLayer(C, H, 4 * C, dropout=0.0).double()(x).detach()
        shapes.append(tuple(x.shape))
        sizes.append(x.square().mean().sqrt().item())

    def draw(axes: Any) -> None:
        axes.plot(sizes, "o-")
        axes.set_ylim(0, 1.5)
        axes.set_xlabel("layers")
        axes.set_ylabel("root mean square")

    return Result({"shapes": shapes, "root mean square": sizes}, draw)


def causal_attention() -> Result:
    """“Position t attends only to positions ≤ t”: ∂y_t/∂x_s is exactly 0 for every later s."""
    layer, x = attention_layer(), normal(1, T, C).requires_grad_()
    y = layer(x, mask=causal_mask(T))
    lengths = np.zeros((T, T))
    for t in range(T):
        g = mt.zeros_like(y)
        g[0, t] = normal(C)
        (gx,) = mt.autograd.grad(y, x, g, retain_graph=True)
        lengths[t] = gx[0].norm(dim=-1).numpy()
    ahead = np.triu(np.ones((T, T), bool), 1)

    def draw(axes: Any) -> None:
        axes.figure.colorbar(axes.imshow(lengths, cmap="Purples"), label="length of ∂y_t/∂x_s")
        axes.set_xlabel("input s")
        axes.set_ylabel("output t")

    numbers = {"largest gradient ahead": lengths[ahead].max(), "smallest behind": lengths[~ahead].min()}
    return Result(numbers, draw)


# --- positions ----------------------------------------------------------------------------------------------


def equivariance() -> Result:
    """“Self-attention is permutation-equivariant, so the model needs an explicit signal of token position”.

    Tokens in another order: how far are the outputs from the old ones in that order, without and with it?
    """
    layer, x, order = attention_layer(), normal(1, T, C), mt.randperm(T).roll(1)
    place = sinusoidal_encoding(T, C).double()

    def deviation(position: mt.Tensor) -> Array:
        with mt.no_grad():
            moved = layer(x[:, order] + position) - layer(x + position)[:, order]
        return moved[0].norm(dim=-1).numpy()  # type: ignore[no-any-return]

    without, with_places = deviation(mt.zeros_like(place)), deviation(place)

    def draw(axes: Any) -> None:
        axes.semilogy(np.maximum(without, 1e-17), "o", label="without positions")
        axes.semilogy(with_places, "s", label="with positions")
        axes.set_xlabel("token")
        axes.set_ylabel("deviation")
        legend(axes)

    fixed = (order == mt.arange(T)).sum().item()
    return Result(
        {
            "without positions": without.max(),
            "with positions": with_places.max(),
            "tokens that stayed": fixed,
        },
        draw,
    )


def relative_offset(k: int = 7, d_model: int = 8) -> Result:
    """“The encoding for position p + k is a fixed linear function of the encoding for position p”.

    The function is fitted at positions 0 … 199 by least squares, then tried at 200 … 999; and compared with
    what the addition formulas give, a rotation by k · rate in each pair of dimensions.
    """
    pe = exact_encoding(1000 + k, d_model)
    M = np.linalg.lstsq(pe[:200], pe[k : 200 + k], rcond=None)[0].T
    unseen = np.abs(pe[200:1000] @ M.T - pe[200 + k :]).max()
    rotation = np.zeros((d_model, d_model))
    for i in range(0, d_model, 2):
        a = k / 10000.0 ** (i / d_model)
        rotation[i : i + 2, i : i + 2] = [[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]

    def draw(axes: Any) -> None:
        axes.figure.colorbar(axes.imshow(M, cmap="gray", vmin=-1, vmax=1), label="entry of the matrix")
        axes.set_xlabel("dimension of PE(p)")
        axes.set_ylabel(f"dimension of PE(p + {k})")

    apart = np.abs(M - rotation).max()
    return Result({"error at unseen positions": unseen, "distance to the rotation": apart}, draw)


def exact_encoding(length: int, d_model: int) -> Array:
    """(length, d_model) in float64: in the default dtype the table ends after seven digits."""
    before = mt.get_default_dtype()
    mt.set_default_dtype(mt.float64)
    try:
        return sinusoidal_encoding(length, d_model).numpy()  # type: ignore[no-any-return]
    finally:
        mt.set_default_dtype(before)


def wavelengths(d_model: int = 512) -> Result:
    """“Each dimension is a sinusoid of a different wavelength, ranging from 2π up to 10000 · 2π”.

    In units of 2π, from the angle that each pair of dimensions turns between positions 0 and 1.
    """
    first = exact_encoding(2, d_model)[1]
    lengths = 1 / np.arctan2(first[0::2], first[1::2])

    def draw(axes: Any) -> None:
        axes.semilogy(np.arange(0, d_model, 2), lengths)
        axes.set_xlabel("dimension 2i")
        axes.set_ylabel("wavelength / 2π")

    ratios = lengths[1:] / lengths[:-1]
    numbers = {"shortest / 2π": lengths[0], "longest / 2π": lengths[-1]}
    return Result(numbers | {"each to the next": (ratios.min(), ratios.max())}, draw)


EXPERIMENTS: list[Callable[[], Result]] = [
    *(score_variance, saturation, convex_combinations, key_bias, shapes_kept, causal_attention),
    *(equivariance, relative_offset, wavelengths),
]


def picture(result: Result, title: str, path: Path) -> None:
    """The drawing as a file."""
    import matplotlib as mpl

    mpl.use("Agg")  # a file is written; no screen is needed
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.set_title(title)
    result.draw(axes)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def shown(value: Any) -> str:
    """Numbers with four digits; of many equal shapes one."""
    if isinstance(value, list | tuple):
        return str(value[-1]) if isinstance(value[0], tuple) else ", ".join(map(shown, value))
    return f"{value:.4g}"


def main() -> None:
    """Print what all experiments find, and write their pictures."""
    options = arguments(__doc__, "runs/lecture")
    if options.smoke:
        del WIDTHS[2:]
    for experiment in EXPERIMENTS:
        mt.manual_seed(options.seed)
        result = experiment()
        name = experiment.__name__
        print(
            f"{name}: {(experiment.__doc__ or '').splitlines()[0]}\n"
            + "\n".join(f"  {key}: {shown(value)}" for key, value in result.numbers.items())
        )
        path = options.out / f"{name}.png"
        picture(result, name.replace("_", " "), path)
        print(f"  plotted {path}")


if __name__ == "__main__":
    sys.exit(run(main, "matplotlib"))
