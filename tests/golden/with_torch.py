"""PyTorch as the golden pack asks for it: its own layers, called with the pack's parameters.

Its names and masks are others (True = hidden, in most places); what is one matrix there is put together here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

Parameters = dict[str, Tensor]
linear, relu, softmax, log_softmax, dropout = F.linear, F.relu, F.softmax, F.log_softmax, F.dropout
gelu, tanh, sigmoid, silu, softplus = F.gelu, F.tanh, F.sigmoid, F.silu, F.softplus
nll_loss, mse_loss = F.nll_loss, F.mse_loss


def tensor(array: Any) -> Tensor:
    """What goes in: floats want a gradient."""
    return torch.tensor(array, requires_grad=array.dtype.kind == "f")


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    return F.embedding(ids, weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def cross_entropy(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits, target, **options)


def scaled_dot_product_attention(Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(Q, K, V, mask)


def positional_encoding(x: Tensor) -> Tensor:
    """PyTorch has none; this is the tutorial's."""
    d = x.shape[-1]
    position = torch.arange(x.shape[-2], dtype=x.dtype)[:, None]
    angle = position * torch.exp(torch.arange(0, d, 2, dtype=x.dtype) * (-torch.log(torch.tensor(1e4)) / d))
    pe = torch.zeros(x.shape[-2], d, dtype=x.dtype)
    pe[:, 0::2], pe[:, 1::2] = angle.sin(), angle.cos()[:, : d // 2]
    return x + pe


def hidden(mask: Tensor | None, B: int, n_heads: int, T: int) -> Tensor | None:
    """Our mask (True = may attend; (T, S) or (B, 1, T or 1, S)) as PyTorch's (B·H, T, S), True = hidden."""
    if mask is None:
        return None
    mask = mask.expand(B, n_heads, T, mask.shape[-1])
    return ~mask.reshape(B * n_heads, T, -1)


def packed(p: Parameters, prefix: str = "") -> Parameters:
    """Three projections as the one that nn.MultiheadAttention has."""
    made = {
        f"in_proj_{kind}": torch.cat([p[f"{prefix}{name}_proj.{kind}"] for name in "qkv"])
        for kind in ("weight", "bias")
    }
    return made | {f"out_proj.{kind}": p[f"{prefix}out_proj.{kind}"] for kind in ("weight", "bias")}


def renamed(p: Parameters, names: dict[str, str]) -> Parameters:
    """Our names of an encoder's or decoder's layer as PyTorch's."""
    made = {}
    for ours, theirs in names.items():
        if ours.endswith("attention"):
            made |= {f"{theirs}.{name}": x for name, x in packed(p, f"{ours}.").items()}
        else:
            made |= {f"{theirs}.{kind}": p[f"{ours}.{kind}"] for kind in ("weight", "bias")}
    return made


def multi_head_attention(
    parameters: Parameters,
    query: Tensor,
    key: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    n_heads: int,
) -> Tensor:
    key = query if key is None else key
    B, T, C = query.shape
    layer = nn.MultiheadAttention(C, n_heads, batch_first=True, dtype=query.dtype)
    options = {"attn_mask": hidden(mask, B, n_heads, T), "need_weights": False}
    y: Tensor = functional_call(layer, packed(parameters), (query, key, key), options)[0]
    return y


def feed_forward(parameters: Parameters, x: Tensor, activation: str) -> Tensor:
    p = parameters
    h = getattr(F, activation)(F.linear(x, p["linear1.weight"], p["linear1.bias"]))
    return F.linear(h, p["linear2.weight"], p["linear2.bias"])


ENCODER = {
    "self_attention": "self_attn",
    "feed_forward.linear1": "linear1",
    "feed_forward.linear2": "linear2",
}
ENCODER |= {"sublayer1.norm": "norm1", "sublayer2.norm": "norm2"}
DECODER = {**ENCODER, "cross_attention": "multihead_attn", "sublayer3.norm": "norm3"}


def layer(kind: Any, parameters: Parameters, n_heads: int, activation: Any, norm: str) -> nn.Module:
    d_ff, d_model = parameters["feed_forward.linear1.weight"].shape
    options = {"norm_first": norm == "pre", "batch_first": True, "dropout": 0.0, "dtype": torch.float64}
    made: nn.Module = kind(d_model, n_heads, d_ff, activation=activation, **options)
    return made


def encoder_layer(parameters: Parameters, x: Tensor, mask: Tensor | None = None, **kind: Any) -> Tensor:
    made = layer(nn.TransformerEncoderLayer, parameters, **kind)
    mask = hidden(mask, len(x), kind["n_heads"], x.shape[1])
    y: Tensor = functional_call(made, renamed(parameters, ENCODER), (x, mask))
    return y


def decoder_layer(
    parameters: Parameters, x: Tensor, memory: Tensor, tgt_mask: Tensor, memory_mask: Tensor, **kind: Any
) -> Tensor:
    made = layer(nn.TransformerDecoderLayer, parameters, **kind)
    masks = [hidden(mask, len(x), kind["n_heads"], x.shape[1]) for mask in (tgt_mask, memory_mask)]
    y: Tensor = functional_call(made, renamed(parameters, DECODER), (x, memory, *masks))
    return y


def part(p: Parameters, prefix: str) -> Parameters:
    """The parameters whose names begin so, without that beginning."""
    return {name[len(prefix) + 1 :]: x for name, x in p.items() if name.startswith(f"{prefix}.")}


def normed(x: Tensor, p: Parameters, name: str) -> Tensor:
    weight = p[f"{name}.weight"]
    return F.layer_norm(x, weight.shape, weight, p[f"{name}.bias"])


def transformer(parameters: Parameters, src: Tensor, tgt: Tensor, **c: Any) -> Tensor:
    p, kind = parameters, {name: c[name] for name in ("n_heads", "activation", "norm")}
    src_mask = (src != c["pad_id"])[:, None, None, :]
    causal = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).tril()
    tgt_mask = causal & (tgt != c["pad_id"])[:, None, None, :]
    root = c["d_model"] ** 0.5
    memory = positional_encoding(F.embedding(src, p["src_embedding.weight"]) * root)
    for i in range(c["n_encoder_layers"]):
        memory = encoder_layer(part(p, f"encoder.layers.{i}"), memory, src_mask, **kind)
    x = positional_encoding(F.embedding(tgt, p["tgt_embedding.weight"]) * root)
    memory = normed(memory, p, "encoder.norm") if c["norm"] == "pre" else memory
    for i in range(c["n_decoder_layers"]):
        x = decoder_layer(part(p, f"decoder.layers.{i}"), x, memory, tgt_mask, src_mask, **kind)
    x = normed(x, p, "decoder.norm") if c["norm"] == "pre" else x
    return F.linear(x, p["tgt_embedding.weight"])


def gpt(parameters: Parameters, idx: Tensor, **c: Any) -> Tensor:
    """A block of GPT-2 is PyTorch's encoder layer with norm_first, a causal mask and GELU by tanh."""
    p, T = parameters, idx.shape[1]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    x = F.embedding(idx, p["transformer.wte.weight"]) + p["transformer.wpe.weight"][:T]
    for i in range(c["n_layer"]):
        b = part(p, f"transformer.h.{i}")
        theirs = {"norm1": "ln_1", "norm2": "ln_2", "linear1": "mlp.c_fc", "linear2": "mlp.c_proj"}
        theirs |= {"self_attn.in_proj_": "attn.c_attn.", "self_attn.out_proj": "attn.c_proj"}
        weights = {
            (name if name.endswith("_") else f"{name}.") + kind: b[f"{ours.rstrip('.')}.{kind}"]
            for name, ours in theirs.items()
            for kind in ("weight", "bias")
        }
        made = nn.TransformerEncoderLayer(
            *(c["n_embd"], c["n_head"], 4 * c["n_embd"], 0.0),
            activation=lambda h: F.gelu(h, approximate="tanh"),
            batch_first=True,
            norm_first=True,
            dtype=x.dtype,
        )
        x = functional_call(made, weights, (x, ~causal))
    return F.linear(normed(x, p, "transformer.ln_f"), p["transformer.wte.weight"])


def text_encoder(parameters: Parameters, ids: Tensor, token_types: Tensor, **c: Any) -> Tensor:
    p = parameters
    x = F.embedding(ids, p["token_embedding.weight"]) + F.embedding(token_types, p["type_embedding.weight"])
    x = normed(x + p["position_embedding.weight"][: ids.shape[1]], p, "norm")
    mask = (ids != c["pad_id"])[:, None, None, :]
    for i in range(c["n_layers"]):
        own = part(p, f"encoder.layers.{i}")
        x = encoder_layer(own, x, mask, n_heads=c["n_heads"], activation="gelu", norm="post")
    return x
