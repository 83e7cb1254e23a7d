"""What is timed: for each benchmark and rival its cases (name, floating-point operations, call)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

Case = tuple[str, float, Callable[[], object]]

GPTS = {  # batch, context, layers, heads, width
    "nanogpt": (12, 64, 4, 4, 128),
    "tiny": (8, 32, 2, 2, 32),
    "10.7M": (16, 128, 6, 6, 384),
}
SOURCE, TARGET = 30, 12  # tokens of the encoder–decoder


def programs(rival: str) -> Any:
    """`programs.py` with the rival's framework as `torch`."""
    if rival == "microtensor":
        for name in ("", ".nn", ".nn.functional", ".nn.utils", ".optim"):
            sys.modules["torch" + name] = import_module("microtensor" + name)
    return import_module("tools.benchmarks.programs")


def rng() -> Any:
    return np.random.default_rng(0)


def gemm(rival: str) -> Iterator[Case]:
    """C = A B: the products of small Transformers, squares and batches; and, not counted, ragged ones."""
    counted = [(768, 128, 384), (768, 128, 512), (768, 512, 128), (768, 128, 65)]
    counted += [(n, n, n) for n in (512, 1024, 64, 16)]
    for m, k, n in counted:
        yield _product(rival, (), m, k, n, "nn")
    yield _product(rival, (48,), 64, 32, 64, "nn")


def peak(rival: str) -> Iterator[Case]:
    """What the machine can do: two large squares, whose product takes less than a turn of the scheduler."""
    for n in (384, 512):
        yield _product(rival, (), n, n, n, "nn")


def layouts(rival: str) -> Iterator[Case]:
    """C = A B: transposed (nt, tn), ragged and thin."""
    for m, k, n in [(768, 128, 512), (768, 512, 128), (128, 1920, 512), (1024, 1024, 1024)]:
        for layout in ("nt", "tn"):
            yield _product(rival, (), m, k, n, layout)
    for m, k, n in [(100, 77, 33), (1, 128, 512), (128, 1920, 512)]:
        yield _product(rival, (), m, k, n, "nn")
    yield _product(rival, (256,), 30, 32, 30, "nt")
    yield _product(rival, (256,), 30, 30, 32, "nn")


def _product(rival: str, batch: tuple[int, ...], m: int, k: int, n: int, layout: str) -> Case:
    a = rng().standard_normal((*batch, m, k), dtype=np.float32)
    b = rng().standard_normal((*batch, k, n), dtype=np.float32)
    if layout == "tn":
        a = a.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    if layout == "nt":
        b = b.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    name = " ".join([layout, *map(str, batch), f"({m}, {k}, {n})"])
    operations = 2.0 * float(np.prod(batch)) * m * k * n
    if rival == "microtensor":
        kernels = import_module("microtensor.kernels")
        return name, operations, lambda: kernels.matmul(a, b)
    if rival == "numpy":
        return name, operations, lambda: a @ b
    torch = import_module("torch")
    ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    return name, operations, lambda: ta @ tb


def keep_memory(rival: str) -> None:
    """What the README tells who trains: freed memory stays with the process, as in PyTorch's allocator."""
    if rival == "microtensor":
        import_module("microtensor.train").tune_allocator()


def train(rival: str, name: str) -> Iterator[Case]:
    """One training step: forward, backward, clipping, AdamW."""
    keep_memory(rival)
    batch, context, layers, _, width = GPTS[name]
    parameters = 12 * layers * width**2 + 65 * width
    attention = 2 * layers * context * width  # of a token, its causal half of two products
    operations = 6.0 * batch * context * (parameters + attention / 2)
    yield name, operations, programs(rival).train_gpt(rng(), *GPTS[name])


def encoder_decoder(rival: str) -> Iterator[Case]:
    """One training step of an encoder–decoder: d_model 128, 4 heads, 2 + 2 layers, d_ff 512, dropout 0.1."""
    keep_memory(rival)
    found = programs(rival)
    if rival == "torch":
        step = found.encoder_decoder(rng(), SOURCE, TARGET)
    else:
        mt, models = import_module("microtensor"), import_module("models")
        config = models.TransformerConfig(100, 100, d_model=128, n_heads=4, d_ff=512, n_encoder_layers=2,
                                          n_decoder_layers=2, dropout=0.1)  # fmt: skip
        model = models.Transformer(config)
        source, target, y = (mt.tensor(rng().integers(3, 100, (64, n))) for n in (SOURCE, TARGET, TARGET))
        step = found.trained(model, lambda: model(source, target), y)
    block = 12 * 128**2  # attention 4 C², feed-forward 8 C²
    tokens = SOURCE * 2 * block + TARGET * 2 * (block + 4 * 128**2) + TARGET * 100 * 128
    yield "encoder–decoder", 6.0 * 64 * tokens, step


def encoder(rival: str) -> Iterator[Case]:
    """Forward of 32 texts of 32 tokens, nothing recorded: all-MiniLM-L6-v2's sizes, random weights."""
    keep_memory(rival)
    B, T = 32, 32
    layers, heads, width, hidden, vocabulary = 6, 12, 384, 1536, 30522
    found = programs(rival)
    ids = rng().integers(1, vocabulary, (B, T))
    if rival == "torch":
        call = found.encoder(ids, layers, heads, width, hidden, vocabulary)
    else:
        models = import_module("models")
        model = models.TextEncoder(models.TextEncoderConfig(vocabulary, width, layers, heads, hidden))
        call = found.evaluated(model, ids)
    yield "32 texts", 2.0 * B * T * layers * (4 * width**2 + 2 * width * hidden + 2 * T * width), call


def generation(rival: str) -> Iterator[Case]:
    """256 tokens, one text: ours with its cache of keys and values, nanoGPT's program without."""
    new, context = 256, 512
    if rival == "torch":
        yield "256 tokens", 0.0, programs(rival).generation(rng(), new, context)
        return
    mt, models = import_module("microtensor"), import_module("models")
    config = models.GPTConfig(block_size=context, vocab_size=65, n_layer=4, n_head=4, n_embd=128, bias=False)
    model, start = models.GPT(config), mt.tensor([[1]])
    yield "256 tokens", 0.0, lambda: model.generate(start, new)


def fused(rival: str) -> Iterator[Case]:
    """Fused ops, forward and backward."""
    for name, call in programs(rival).fused(rng()).items():
        yield name, 0.0, call


def dispatch(rival: str) -> Iterator[Case]:
    """Ops on (4, 4): an op, and a chain of sums and products; NumPy does only the arithmetic of it."""
    if rival != "numpy":
        for name, call in programs(rival).dispatch(rng()).items():
            yield name, 0.0, call
        return
    a, b, c, g = (rng().normal(size=(4, 4)).astype("float32") for _ in range(4))

    def chain(backward: bool) -> None:
        x = a
        for _ in range(100):
            x = x * b + c
        for _ in range(100 if backward else 0):
            x = g * b
            x += g * a

    yield "a + b", 0.0, lambda: a + b
    yield "a * b", 0.0, lambda: a * b
    yield "chain", 0.0, lambda: chain(False)
    yield "chain and its backward", 0.0, lambda: chain(True)


BENCHMARKS: dict[str, Callable[[str], Iterator[Case]]] = {
    "gemm": gemm,
    "layouts": layouts,
    "peak": peak,
    "fused": fused,
    "dispatch": dispatch,
    "encoder-decoder": encoder_decoder,
    "encoder": encoder,
    "generation": generation,
    **{name: (lambda rival, name=name: train(rival, name)) for name in GPTS},  # type: ignore[misc]
}


def rivals_of(benchmark: str) -> list[str]:
    """Who takes part: ours first; PyTorch only where it is installed."""
    numpy = ["numpy"] if benchmark in ("gemm", "layouts", "peak", "dispatch") else []
    return ["microtensor", *numpy, *(["torch"] if find_spec("torch") is not None else [])]
