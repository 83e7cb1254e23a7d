"""GPT: a decoder that predicts the next token, with nanoGPT's parameter names, initialisation and interface.

Radford et al. 2019 (GPT-2), §2.3: the paper's decoder without attention to an encoder, LayerNorm before each
sub-layer and once more at the end, learned positions, GELU. Its attention is the lecture's, causally masked.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import Tensor, nn, optim, viz
from models.attention import CONCAT, scaled_dot_product_attention
from models.cache import KeyValueCache
from models.generate import generate
from models.gpt2 import gpt2_settings, gpt2_tensors, is_conv1d
from models.masks import causal_mask, check_ids
from models.pretrained import fill
from models.sizes import check_sizes

__all__ = ["GPT", "GPTConfig"]


@dataclass
class GPTConfig:
    """The sizes of a GPT; the defaults are GPT-2's smallest (its 50,257 tokens rounded up to 64 · 786).

    block_size: the longest sequence, in tokens. bias: in Linear and LayerNorm, as in GPT-2. gelu: "tanh", as
    GPT-2 has it, or "none", the exact one. eps: LayerNorm's. init_std: the standard deviation of new weights;
    GPT-2's suits its widths of 768 and more, a width of 128 learns far faster from 0.02 · √(768/128) ≈ 0.05.

    Raises: ValueError and TypeError for what cannot be meant, by the rules of sizes.py.
    Source: nanoGPT's GPTConfig. Differs: gelu and eps are not fixed, for checkpoints that have others, nor is
    init_std.
    """

    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True
    gelu: str = "tanh"
    eps: float = 1e-5
    init_std: float = 0.02


class CausalSelfAttention(nn.Module):
    """MultiHead(x, x, x), each position attending to itself and the past; Q, K, V from one product.

    Shapes: (B, T, C) → the same. Source: the paper, §3.2.2 and §3.2.3; nanoGPT's names.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C = config.n_embd
        self.n_head, self.dropout = config.n_head, config.dropout
        self.c_attn = nn.Linear(C, 3 * C, bias=config.bias)
        self.c_proj = nn.Linear(C, C, bias=config.bias)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
        """(B, T, C) → (B, T, C); with a cache, x holds the positions after those that it has read."""
        B, T, C = x.shape
        H, D = self.n_head, C // self.n_head
        viz.tag(self.c_attn.weight, None, axes="3d d")
        qkv = self.c_attn(x).reshape(B, T, 3, H, D)
        viz.tag(qkv, None, axes="B n 3 h d_k")
        if cache is None:  # (B, H, T, D) each; their gradients come in the order that qkv has in memory
            q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        else:  # nothing is recorded, so NumPy's views do
            q, k, v = map(mt.from_numpy, qkv.array.transpose(2, 0, 3, 1, 4))
            k, v = cache.extend(layer, k, v)  # (B, H, S, D)
        for symbol, part in zip("QKV", (q, k, v), strict=True):
            viz.tag(part, symbol, axes="B h n d_k")
        p = self.dropout if self.training else 0.0
        if viz.opens_fused():
            y, _ = scaled_dot_product_attention(q, k, v, causal_mask(T), p)
        elif cache is None or cache.length == 0:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:  # query t is position length + t: it sees every key up to that
            mask = mt.ones(T, k.shape[2], dtype=mt.bool).tril(cache.length) if T > 1 else None
            y = F.scaled_dot_product_attention(q, k, v, mask, p)
        with viz.fold("concat", *CONCAT, lane="O", H=y):
            y = y.transpose(1, 2).reshape(B, T, C)  # (B, T, C)
        viz.tag(y, "C", axes="B n d")
        return F.dropout(self.c_proj(y), self.dropout, self.training)


class MLP(nn.Module):
    """GELU(x W_1 + b_1) W_2 + b_2, GELU in its tanh form if config.gelu does not say otherwise.

    Shapes: (B, T, C) → the same. Source: Radford et al. 2019; the paper, eq. 2, has ReLU.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU(approximate=config.gelu)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) → (B, T, C)"""
        viz.tag(self.c_fc.weight, None, axes="4d d")
        y: Tensor = self.dropout(self.c_proj(self.gelu(self.c_fc(x))))
        return y


class Block(nn.Module):
    """z = x + Attention(LayerNorm(x)); out = z + MLP(LayerNorm(z)).

    Shapes: (B, T, C) → the same. Source: Radford et al. 2019, §2.3. The paper has LayerNorm after the sum.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, config.eps, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, config.eps, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
        """(B, T, C) → (B, T, C)"""
        x = x + self.attn(self.ln_1(x), cache, layer)
        y: Tensor = x + self.mlp(self.ln_2(x))
        return y


class GPT(nn.Module):
    """p(token t + 1 | tokens 0 … t) = softmax(logits_t), the logits by the transposed embedding.

    Called as (idx, targets=None) → (logits, loss); targets of −1 do not count.
    Shapes: idx and targets (B, T) → logits (B, T, V) and the mean cross entropy; without targets the logits
    (B, 1, V) of the last position, and None.
    Raises: ValueError for a sequence longer than block_size, n_embd that n_head does not divide, a negative
    init_std.
    Source: Radford et al. 2019, §2.3; names, initialisation and interface of nanoGPT.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                "ln_f": nn.LayerNorm(config.n_embd, config.eps, bias=config.bias),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight  # Press & Wolf 2017; the paper, §3.4
        self._initialise()

    def _initialise(self) -> None:
        """N(0, std²); what is added to the residual stream smaller, by the √ of how often (GPT-2, §2.3)."""
        std = self.config.init_std
        if not 0 <= std < math.inf:
            raise ValueError(f"GPT: init_std is {std}; make it 0 or more, and finite")
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=std / math.sqrt(2 * self.config.n_layer))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "ln_" not in name:
                nn.init.normal_(parameter, std=std)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *, dropout: float = 0.0) -> GPT:
        """GPT-2 with the weights of a folder: config.json and model.safetensors in Hugging Face's form.

        Half precisions become float32. dropout: for training it further, everywhere the same.
        Raises: FileNotFoundError for what is not there; ValueError for another model_type, settings that
        this GPT has not, a dropout outside 0 … 1, and naming the tensors that are missing, unexpected, there
        twice, of another shape, or no finite floats.
        Source: nanoGPT's GPT.from_pretrained. Differs: it reads a folder, and loads nothing from the network.
        """
        who = "GPT.from_pretrained"
        check_sizes(who, dropout=dropout)
        settings = gpt2_settings(who, folder)
        tensors = gpt2_tensors(who, folder, settings)
        model = cls(GPTConfig(**settings, dropout=dropout))
        fill(who, model, tensors, transposed=is_conv1d)
        return model

    def forward(
        self, idx: Tensor, targets: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T) → (logits, loss); with a cache, idx holds the tokens after those that it has read."""
        check_ids("GPT", idx=idx, targets=targets)
        start = 0 if cache is None else cache.length
        T = idx.shape[1]
        if start + T > self.config.block_size:
            raise ValueError(
                f"GPT: a sequence of {start + T} tokens, but block_size is {self.config.block_size}; give "
                f"its last {self.config.block_size} tokens, or make block_size larger"
            )
        parts: Any = self.transformer
        viz.tag(self.lm_head.weight, None, axes="vocab d")
        viz.tag(parts.wpe.weight, None, axes="n_max d")
        pos = mt.arange(start, start + T)
        viz.tag(pos, "pos", of=pos)
        x = parts.drop(parts.wte(idx) + parts.wpe(pos))  # (B, T, C)
        for layer, block in enumerate(parts.h):
            x = block(x, cache, layer)
        if cache is not None:
            cache.advance(T)
        x = parts.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, -1:]), None  # (B, 1, V)
        logits = self.lm_head(x)  # (B, T, V)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def generate(
        self,
        idx: Tensor,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        **options: Any,
    ) -> Tensor:
        """idx (B, T) and max_new_tokens more: `models.generate` under nanoGPT's name.

        Shapes: idx (B, T) → (B, T + n), n ≤ max_new_tokens
        Raises: as `models.generate`.
        Source: nanoGPT's GPT.generate; what differs is said by `models.generate`.
        """
        return generate(self, idx, max_new_tokens, temperature=temperature, top_k=top_k, **options)

    def get_num_params(self, non_embedding: bool = True) -> int:
        """How many numbers the parameters hold; position embeddings are left out with non_embedding.

        Raises: TypeError for a non_embedding that is neither a bool nor an integer.
        Source: nanoGPT's GPT.get_num_params.
        """
        total = sum(p.numel() for p in self.parameters())
        return total - self.transformer.wpe.weight.numel() if non_embedding else total

    def configure_optimizers(
        self, weight_decay: float, learning_rate: float, betas: tuple[float, float], device_type: str = "cpu"
    ) -> optim.AdamW:
        """AdamW that decays matrices and embeddings alone, not biases and LayerNorms.

        Raises: as `optim.AdamW`, for impossible options, and where no parameter is trained.
        Source: nanoGPT's GPT.configure_optimizers. Differs: device_type changes nothing.
        """
        trained = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        return optim.AdamW([g for g in groups if g["params"]], lr=learning_rate, betas=betas)
