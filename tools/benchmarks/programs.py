"""Models and training steps written for PyTorch: every framework runs this text under the name `torch`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    """As in nanoGPT: one product for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attn = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Any) -> Any:
        B, T, C = x.shape
        parts = self.attn(x).split(C, dim=2)
        q, k, v = (z.view(B, T, self.heads, C // self.heads).transpose(1, 2) for z in parts)  # (B, H, T, D)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))


class LayerNorm(nn.Module):
    """Without a bias, as in nanoGPT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.attention = CausalSelfAttention(width, heads)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """nanoGPT's model, with its output projection tied to the embedding."""

    def __init__(self, layers: int, heads: int, width: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def initialise(model: Any, rng: Any) -> None:
    """The same weights whichever framework holds them: N(0, 0.02²), norms 1."""
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.copy_(torch.tensor(rng.normal(0.0, 0.02, tuple(p.shape)).astype("float32")))


def train_gpt(rng: Any, batch: int, context: int, layers: int, heads: int, width: int) -> Callable[[], Any]:
    """A training step of nanoGPT: forward, backward, clipping to 1, AdamW. Returns the loss."""
    vocabulary = 65
    model = GPT(layers, heads, width, context, vocabulary)
    initialise(model, rng)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    ids = torch.tensor(rng.integers(0, vocabulary, (batch, context + 1)))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step() -> Any:
        loss = F.cross_entropy(model(x).view(-1, vocabulary), y.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


@torch.no_grad()
def generate(model: Any, ids: Any, new: int, context: int) -> Any:
    """As in nanoGPT: every token reads the whole text again."""
    for _ in range(new):
        logits = model(ids if ids.shape[1] <= context else ids[:, -context:])[:, -1, :]
        ids = torch.cat((ids, torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)), dim=1)
    return ids


def generation(rng: Any, new: int, context: int) -> Callable[[], Any]:
    """`new` tokens, one text, from nanoGPT's CPU configuration."""
    model = GPT(4, 4, 128, context, 65)
    initialise(model, rng)
    return lambda: generate(model, torch.tensor([[1]]), new, context)


def fused(rng: Any) -> dict[str, Callable[[], Any]]:
    """Forward and backward of what a Transformer does between its products, at the sizes of nanoGPT's."""

    def normal(*shape: int) -> Any:
        return torch.tensor(rng.normal(size=shape).astype("float32"))

    def leaf(*shape: int) -> Any:
        return normal(*shape).requires_grad_(True)

    def case(function: Callable[..., Any], *leaves: Any) -> Callable[[], Any]:
        g = normal(*function(*leaves).shape)

        def call() -> Any:
            y = function(*leaves)
            y.backward(g)
            for x in leaves:
                x.grad = None
            return y

        return call

    targets = torch.tensor(rng.integers(0, 65, 768))
    heads = (12, 4, 64, 32)
    return {
        "softmax (48·64, 64)": case(lambda x: F.softmax(x, -1), leaf(48 * 64, 64)),
        "layer norm (768, 128)": case(
            lambda x, w, b: F.layer_norm(x, (128,), w, b), leaf(768, 128), leaf(128), leaf(128)
        ),
        "cross entropy (768, 65)": case(lambda x: F.cross_entropy(x, targets), leaf(768, 65)),
        "GELU (768, 512)": case(F.gelu, leaf(768, 512)),
        "causal attention (12, 4, 64, 32)": case(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            *(leaf(*heads), leaf(*heads), leaf(*heads)),
        ),
    }


def attention_step(rng: Any, T: int) -> None:
    """Causal attention forward and backward, one sentence of T tokens, 4 heads of 32."""
    leaves = [torch.tensor(rng.normal(size=(1, 4, T, 32)).astype("float32")) for _ in range(3)]
    for x in leaves:
        x.requires_grad_(True)
    F.scaled_dot_product_attention(*leaves, is_causal=True).sum().backward()


CHAIN = 200  # operations


def dispatch(rng: Any) -> dict[str, Callable[[], Any]]:
    """Sums and products of (4, 4) matrices: what an op costs beside its arithmetic."""
    a, b, c, g = (torch.tensor(rng.normal(size=(4, 4)).astype("float32")) for _ in range(4))
    a.requires_grad_(True)
    b.requires_grad_(True)

    def chain() -> Any:
        x = a
        for _ in range(CHAIN // 2):
            x = x * b + c
        return x

    def forward_and_backward() -> Any:
        chain().backward(g)
        a.grad = b.grad = None

    return {
        "a + b": lambda: a + b,
        "a * b": lambda: a * b,
        "chain": chain,
        "chain and its backward": forward_and_backward,
    }


def encoder_decoder(rng: Any, S: int, T: int) -> Callable[[], Any]:
    """A training step of PyTorch's own nn.Transformer, d_model 128, with embeddings and a tied projection."""
    B, C, vocabulary = 64, 128, 100

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = nn.Transformer(C, 4, 2, 2, 512, 0.1, batch_first=True)
            self.source, self.target = nn.Embedding(vocabulary, C), nn.Embedding(vocabulary, C)
            self.places = nn.Parameter(torch.randn(1, S, C), requires_grad=False)

        def embed(self, table: Any, ids: Any) -> Any:
            x = table(ids) * math.sqrt(C) + self.places[:, : ids.shape[1]]
            return F.dropout(x, 0.1, self.training)

        def forward(self, source: Any, target: Any, mask: Any) -> Any:
            x, y = self.embed(self.source, source), self.embed(self.target, target)
            return F.linear(self.transformer(x, y, tgt_mask=mask, tgt_is_causal=True), self.target.weight)

    model = Translator()
    source, target, y = (torch.tensor(rng.integers(3, vocabulary, (B, n))) for n in (S, T, T))
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    return trained(model, lambda: model(source, target, mask), y)


def trained(model: Any, forward: Callable[[], Any], targets: Any) -> Callable[[], Any]:
    """A step of Adam on the cross entropy of logits (B, T, V)."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)

    def step() -> Any:
        logits = forward()
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return step


def encoder(ids: Any, layers: int, heads: int, width: int, hidden: int, vocabulary: int) -> Callable[[], Any]:
    """BERT's forward by PyTorch's own nn.TransformerEncoder, which takes its fused path; no padding."""

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
            self.types, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
            layer = nn.TransformerEncoderLayer(width, heads, hidden, 0.1, "gelu", 1e-12, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids) + self.places.weight[: ids.shape[1]] + self.types.weight[0]
            return self.encoder(self.norm(x))

    return evaluated(Bert(), ids)


def evaluated(model: Any, ids: Any) -> Callable[[], Any]:
    """A forward of the ids that records nothing."""
    model.eval()
    given = torch.tensor(ids)

    def call() -> Any:
        with torch.no_grad():
            return model(given)

    return call
