"""microtensor as the golden pack asks for it: every function by its name in the pack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import Tensor, nn
from models import (
    GPT,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GPTConfig,
    MultiHeadAttention,
    PositionalEncoding,
    TextEncoder,
    TextEncoderConfig,
    Transformer,
    TransformerConfig,
)
from models import (
    scaled_dot_product_attention as equation,
)

Parameters = dict[str, Tensor]
linear, relu, softmax, log_softmax, dropout = F.linear, F.relu, F.softmax, F.log_softmax, F.dropout
gelu, tanh, sigmoid, silu, softplus = F.gelu, F.tanh, F.sigmoid, F.silu, F.softplus
nll_loss, mse_loss = F.nll_loss, F.mse_loss


def tensor(array: Any) -> Tensor:
    """What goes in: floats want a gradient."""
    return mt.tensor(array, requires_grad=array.dtype.kind == "f")


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    return F.embedding(ids, weight)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def cross_entropy(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits, target, **options)


def scaled_dot_product_attention(Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None) -> Tensor:
    y = F.scaled_dot_product_attention(Q, K, V, mask)
    as_written, _ = equation(Q, K, V, mask)
    assert mt.allclose(y, as_written, rtol=1e-4, atol=1e-6)  # the kernel and the equation
    return y


def positional_encoding(x: Tensor) -> Tensor:
    return made(lambda: PositionalEncoding(x.shape[-1]), x.dtype)(x)


def made(make: Callable[[], nn.Module], dtype: Any) -> nn.Module:
    """A module of this dtype from the start: its tables are rounded to the default dtype."""
    before = mt.get_default_dtype()
    mt.set_default_dtype(dtype)
    try:
        return make()
    finally:
        mt.set_default_dtype(before)


def called(
    make: Callable[[], nn.Module], parameters: Parameters, *inputs: Any, **options: Any
) -> tuple[Tensor, Parameters]:
    """The model with these parameters, and where their gradients will be."""
    model = made(make, next(iter(parameters.values())).dtype)
    own = dict(model.named_parameters())
    assert own.keys() == parameters.keys()
    for name, parameter in own.items():
        parameter.data = parameters[name].detach()
    y = model(*inputs, **options)
    return (y[0] if isinstance(y, tuple) else y), own


def multi_head_attention(
    parameters: Parameters,
    query: Tensor,
    key: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    n_heads: int,
) -> tuple[Tensor, Parameters]:
    return called(lambda: MultiHeadAttention(query.shape[-1], n_heads), parameters, query, key, mask=mask)


def feed_forward(parameters: Parameters, x: Tensor, activation: str) -> tuple[Tensor, Parameters]:
    d_ff, d_model = parameters["linear1.weight"].shape
    return called(lambda: FeedForward(d_model, d_ff, activation), parameters, x)


def encoder_layer(parameters: Parameters, x: Tensor, mask: Tensor, **kind: Any) -> tuple[Tensor, Parameters]:
    return called(layer(EncoderLayer, parameters, **kind), parameters, x, mask=mask)


def decoder_layer(
    parameters: Parameters, x: Tensor, memory: Tensor, tgt_mask: Tensor, memory_mask: Tensor, **kind: Any
) -> tuple[Tensor, Parameters]:
    return called(layer(DecoderLayer, parameters, **kind), parameters, x, memory, tgt_mask, memory_mask)


def layer(kind: Any, parameters: Parameters, n_heads: int, **options: Any) -> Callable[[], nn.Module]:
    d_ff, d_model = parameters["feed_forward.linear1.weight"].shape
    return lambda: kind(d_model, n_heads, d_ff, dropout=0.0, **options)  # type: ignore[no-any-return]


def transformer(parameters: Parameters, src: Tensor, tgt: Tensor, **sizes: Any) -> tuple[Tensor, Parameters]:
    return called(lambda: Transformer(TransformerConfig(**sizes, dropout=0.0)), parameters, src, tgt)


def gpt(parameters: Parameters, idx: Tensor, **sizes: Any) -> tuple[Tensor, Parameters]:
    return called(
        lambda: GPT(GPTConfig(**sizes)), parameters, idx, idx
    )  # with targets, logits of every position


def text_encoder(
    parameters: Parameters, ids: Tensor, token_types: Tensor, **sizes: Any
) -> tuple[Tensor, Parameters]:
    config = TextEncoderConfig(**sizes, dropout=0.0, attention_dropout=0.0)
    return called(lambda: TextEncoder(config), parameters, ids, token_types=token_types)
