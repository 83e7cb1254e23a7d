"""The Transformer of the paper and the lecture, built of microtensor's public names."""

from models.attention import (
    MultiHeadAttention,
    causal_mask,
    combine_masks,
    padding_mask,
    scaled_dot_product_attention,
)
from models.generate import greedy_decode
from models.positional import PositionalEncoding, sinusoidal_encoding
from models.transformer import (
    Attention,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    Transformer,
    TransformerConfig,
)

__all__ = [
    "Attention",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "MultiHeadAttention",
    "PositionalEncoding",
    "Transformer",
    "TransformerConfig",
    "causal_mask",
    "combine_masks",
    "greedy_decode",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoidal_encoding",
]
