"""The encoder–decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017), as in the lecture.

Each class is an equation of the paper. The defaults are the paper's base model; every departure is a switch
of `TransformerConfig`. It is built of public names only: a user could have written it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import microtensor.nn.functional as F
from microtensor import Tensor, nn, viz
from models.attention import MultiHeadAttention
from models.cache import KeyValueCache
from models.masks import causal_mask, combine_masks, padding_mask
from models.positional import PositionalEncoding

__all__ = ["Attention", "Decoder", "DecoderLayer", "Encoder", "EncoderLayer", "FeedForward", "Transformer",
           "TransformerConfig"]  # fmt: skip

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}
Weights = list[Tensor]  # one (B, H, T, S) per layer


class FeedForward(nn.Module):
    """FFN(z) = max(0, z W_1 + b_1) W_2 + b_2, the same at every position.

    Shapes: (..., d_model) → (..., d_model)
    Raises: ValueError for another activation, and for an input that does not end in d_model.
    Source: the paper, eq. 2; the lecture. Switches: activation="gelu"; dropout after it (0 in the paper).
    """

    def __init__(self, d_model: int, d_ff: int, activation: str = "relu", dropout: float = 0.0) -> None:
        super().__init__()
        self.activation, self.dropout = activation, dropout
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        for linear in (self.linear1, self.linear2):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, z: Tensor) -> Tensor:
        """(..., d_model) → (..., d_model)"""
        for part, axes in ((self.linear1, "d d_ff"), (self.linear2, "d_ff d")):
            viz.tag(part.weight, "W", axes=axes, transposed=True)
            viz.tag(part.bias, "b")
        hidden = ACTIVATIONS[self.activation](self.linear1(z))  # (..., d_ff)
        z = self.linear2(F.dropout(hidden, self.dropout, self.training))
        return z


class SubLayer(nn.Module):
    """What wraps each f of a layer: LayerNorm(x + Dropout(f(x))), the paper's §3.1 and §5.4 ("post").

    norm="pre" is the later x + Dropout(f(LayerNorm(x))) (Xiong et al. 2020), which trains without warm-up.
    """

    def __init__(self, d_model: int, dropout: float, norm: str, eps: float = 1e-5) -> None:
        super().__init__()
        self.pre, self.dropout = norm == "pre", dropout
        self.norm = nn.LayerNorm(d_model, eps)

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """(B, T, d_model) and a function of it → (B, T, d_model)"""
        viz.tag(self.norm.weight, "γ")
        viz.tag(self.norm.bias, "β")
        y = F.dropout(function(self.norm(x) if self.pre else x), self.dropout, self.training)
        if not self.pre:  # in one op, unless its parts are to be drawn
            y = self.norm(x + y) if viz.opens_fused() else self.norm(x, residual=y)
        return x + y if self.pre else y


class EncoderLayer(nn.Module):
    """z = LayerNorm(x + MultiHead(x)); out = LayerNorm(z + FFN(z)).

    Shapes: (B, T, d_model) → (B, T, d_model)
    Raises: ValueError for shapes that do not fit, another activation or norm, and a d_model that n_heads does
    not divide.
    Source: the paper, §3.1, encoder; the lecture, encoder layer. Switches: attention_dropout, on the weights
    (0 in the paper); eps of the LayerNorms.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        dropout: float = 0.1,
        activation: str = "relu",
        norm: str = "post",
        attention_dropout: float = 0.0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, n_heads, dropout=attention_dropout)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.sublayer1 = SubLayer(d_model, dropout, norm, eps)
        self.sublayer2 = SubLayer(d_model, dropout, norm, eps)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, weights: Weights | None = None) -> Tensor:
        """x (B, T, d_model), mask as in MultiHeadAttention; its weights are appended to `weights`."""
        x = self.sublayer1(x, lambda h: _attend(self.self_attention, weights, h, h, h, mask))
        x = self.sublayer2(x, self.feed_forward)
        return x


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's output, then the FFN, each in residual and LayerNorm.

    Shapes: x (B, T, d_model), memory (B, S, d_model) → (B, T, d_model).
    Raises: ValueError for shapes that do not fit, another activation or norm, and a d_model that n_heads does
    not divide.
    Source: the paper, §3.1, decoder, and §3.2.3; the lecture, decoder layer.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        dropout: float = 0.1,
        activation: str = "relu",
        norm: str = "post",
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, n_heads)
        self.cross_attention = MultiHeadAttention(d_model, n_heads)
        self.feed_forward = FeedForward(d_model, d_ff, activation)
        self.sublayer1 = SubLayer(d_model, dropout, norm)
        self.sublayer2 = SubLayer(d_model, dropout, norm)
        self.sublayer3 = SubLayer(d_model, dropout, norm)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        weights: Weights | None = None,
        cross_weights: Weights | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """tgt_mask: who in x attends to whom in x (usually causal); memory_mask: who to what in memory.

        With a cache, x holds the positions after those that it has read, and tgt_mask speaks of them all.
        """
        own, cross = self.self_attention, self.cross_attention
        x = self.sublayer1(x, lambda h: _attend(own, weights, h, h, h, tgt_mask, cache=cache))
        x = self.sublayer2(
            x, lambda h: _attend(cross, cross_weights, h, memory, None, memory_mask, cache=cache)
        )
        x = self.sublayer3(x, self.feed_forward)
        return x


def _attend(attention: MultiHeadAttention, kept: Weights | None, *inputs: Any, **options: Any) -> Any:
    """What attention gives for its inputs; if there is a list, its weights are appended to that."""
    if kept is None:
        return attention(*inputs, **options)
    y, A = attention(*inputs, need_weights=True, **options)
    kept.append(A)
    return y


class Encoder(nn.Module):
    """N fresh encoder layers in a row (never copies of one), and with norm="pre" a LayerNorm at the end.

    options: dropout, activation, norm, attention_dropout and eps of `EncoderLayer`.

    Shapes: (B, T, d_model) → (B, T, d_model)
    Raises: ValueError for shapes that do not fit, another activation or norm, and a d_model that n_heads does
    not divide.
    Source: the paper, §3.1, encoder; Xiong et al. 2020 for norm="pre".
    """

    def __init__(self, n_layers: int, d_model: int, n_heads: int, d_ff: int, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(d_model, n_heads, d_ff, **options) for _ in range(n_layers))
        pre, eps = options.get("norm") == "pre", options.get("eps", 1e-5)
        self.norm = nn.LayerNorm(d_model, eps) if pre else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None, *, weights: Weights | None = None) -> Tensor:
        """(B, T, d_model) → (B, T, d_model)"""
        for layer in self.layers:
            x = layer(x, mask, weights=weights)
        x = self.norm(x)
        return x


class Decoder(nn.Module):
    """N fresh decoder layers in a row, and with norm="pre" a LayerNorm at the end.

    options: dropout, activation and norm of `DecoderLayer`.

    Shapes: x (B, T, d_model), memory (B, S, d_model) → (B, T, d_model)
    Raises: ValueError for shapes that do not fit, another activation or norm, and a d_model that n_heads does
    not divide.
    Source: the paper, §3.1, decoder; Xiong et al. 2020 for norm="pre".
    """

    def __init__(self, n_layers: int, d_model: int, n_heads: int, d_ff: int, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(d_model, n_heads, d_ff, **options) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model) if options.get("norm") == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        weights: Weights | None = None,
        cross_weights: Weights | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """x (B, T, d_model), memory (B, S, d_model) → (B, T, d_model); the cache advances by T."""
        kept = {"weights": weights, "cross_weights": cross_weights, "cache": cache}
        for layer in self.layers:
            x = layer(x, memory, tgt_mask, memory_mask, **kept)
        if cache is not None:
            cache.advance(x.shape[1])
        x = self.norm(x)
        return x


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes and switches of a Transformer. Defaults: the paper's base model (Table 3, §3.1–3.5, §5.4).

    shared_vocabulary: the source embedding is the target's too, as in the paper with its one BPE vocabulary
    for both languages; it needs equal vocabulary sizes. Two alphabets, two embeddings: False.

    Raises: ValueError and TypeError for what cannot be meant, by the rules of sizes.py.
    Source: the paper, Table 3, §3.1–3.5 and §5.4.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 512
    n_heads: int = 8
    n_encoder_layers: int = 6
    n_decoder_layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    max_len: int = 512
    norm: str = "post"  # "pre": LayerNorm before each sub-layer
    activation: str = "relu"  # "gelu"
    positions: str = "sinusoidal"  # "learned": Table 3, row E
    tie_weights: bool = True  # §3.4: the output projection is the target embedding's matrix
    shared_vocabulary: bool = False
    scale_embeddings: bool = True  # §3.4: embeddings times √d_model
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2


@dataclass
class Attention:
    """All attention weights of one forward, before dropout: lists of (B, H, T, S), one tensor per layer.

    Shapes: (B, H, T, S) each
    Source: the paper, Figures 3–5, shows such weights.
    """

    encoder: Weights
    decoder: Weights
    cross: Weights


class Transformer(nn.Module):
    """The encoder–decoder Transformer: p(tgt_t | tgt_<t, src) = softmax(logits_t).

    Shapes: source ids (B, S), target ids (B, T) → logits (B, T, V)
    Raises: ValueError for unequal vocabularies that shall be shared, ids of another shape or longer than
    max_len, and masks that do not fit; IndexError for an id outside the vocabulary.
    Source: the paper, Figure 1 and §3; the lecture, "putting it together". Initial values: Xavier uniform;
    N(0, 1/d_model) for embeddings, so that they have variance 1 after × √d_model.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = c = config
        self.tgt_embedding = nn.Embedding(c.tgt_vocab_size, c.d_model)
        self.src_embedding = nn.Embedding(c.src_vocab_size, c.d_model)
        if c.shared_vocabulary:
            self.src_embedding.weight = self.tgt_embedding.weight
        self.positions = PositionalEncoding(c.d_model, c.max_len, c.dropout, c.positions)
        kind = {"dropout": c.dropout, "activation": c.activation, "norm": c.norm}
        self.encoder = Encoder(c.n_encoder_layers, c.d_model, c.n_heads, c.d_ff, **kind)
        self.decoder = Decoder(c.n_decoder_layers, c.d_model, c.n_heads, c.d_ff, **kind)
        self.output = nn.Linear(c.d_model, c.tgt_vocab_size, bias=False)
        nn.init.xavier_uniform_(self.output.weight)
        if c.tie_weights:
            self.output.weight = self.tgt_embedding.weight
        for embedding in (self.src_embedding, self.tgt_embedding):
            nn.init.normal_(embedding.weight, std=c.d_model**-0.5)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        *,
        return_attention: bool = False,
    ) -> Tensor | tuple[Tensor, Attention]:
        """Source ids (B, S), target ids (B, T) → logits (B, T, V); position t predicts the token after tgt_t.

        Masks not given are made from the ids: padding for the source, padding and causal for the target.
        src_mask is for encoder and decoder, whose queries are others: of two axes it is (B, S), whatever T.
        return_attention: also every layer's and head's weights, before dropout.
        """
        kept = Attention([], [], []) if return_attention else None
        if src_mask is None:
            src_mask = padding_mask(src, self.config.pad_id)
        elif src_mask.ndim == 2:
            src_mask = src_mask[:, None, None, :]  # (B, 1, 1, S)
        memory = self.encode(src, src_mask, attention=kept)
        logits = self.decode(tgt, memory, tgt_mask, src_mask, attention=kept)
        return logits if kept is None else (logits, kept)

    def encode(
        self, src: Tensor, src_mask: Tensor | None = None, *, attention: Attention | None = None
    ) -> Tensor:
        """The memory of source ids; a src_mask that is not given is made from them: padding.

        Shapes: source ids (B, S) → memory (B, S, d_model)
        Raises: as the class, for ids and masks that do not fit.
        Source: the paper, §3.1, encoder.
        """
        if src_mask is None:
            src_mask = padding_mask(src, self.config.pad_id)
        viz.tag(src, None, axes="B n_src")
        x = self._embed(self.src_embedding, src)
        memory: Tensor = self.encoder(x, src_mask, weights=attention and attention.encoder)
        return memory

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        *,
        attention: Attention | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """The logits of target ids that attend to the memory.

        With a cache, tgt holds the ids after those that it has read, and a tgt_mask speaks of them all.

        Shapes: target ids (B, T), memory (B, S, d_model) → logits (B, T, V)
        Raises: as the class, for ids and masks that do not fit.
        Source: the paper, §3.1, decoder.
        """
        viz.tag(tgt, None, axes="B n_tgt")
        if cache is not None or tgt_mask is None:  # a cache keeps where padding is, for the next call
            seen = self._seen(tgt, cache)
            tgt_mask = seen if tgt_mask is None else tgt_mask
        x = self._embed(self.tgt_embedding, tgt, cache.length if cache else 0)
        kept = {"weights": attention and attention.decoder, "cross_weights": attention and attention.cross}
        logits: Tensor = self.output(self.decoder(x, memory, tgt_mask, memory_mask, cache=cache, **kept))
        return logits

    def _seen(self, tgt: Tensor, cache: KeyValueCache | None) -> Tensor | None:
        """Each position sees itself and what came before, but no padding; None if nothing is hidden."""
        padding = padding_mask(tgt, self.config.pad_id)  # (B, 1, 1, T)
        if cache is None:
            return combine_masks(causal_mask(tgt.shape[1]), padding)
        (read,) = cache.extend(self, padding.mT)  # like keys of width 1: (B, 1, length + T, 1)
        if tgt.shape[1] == 1:  # the newest position: nothing comes after it
            return None if read.all() else read.mT
        return combine_masks(causal_mask(tgt.shape[1], cache.length)[None], read.mT)

    def _embed(self, embedding: nn.Module, ids: Tensor, past: int = 0) -> Tensor:
        viz.tag(embedding.weight, None, axes="vocab d")
        x: Tensor = embedding(ids)  # (B, T, d_model)
        if self.config.scale_embeddings:
            with viz.fold("scale", "Z = X * sqrt(d)", "dX = dZ * sqrt(d)", X=x):
                x = x * math.sqrt(self.config.d_model)
        x = self.positions(x, past)
        return x
