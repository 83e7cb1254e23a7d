"""The Transformer of the paper and the lecture, built of microtensor's public names."""

from microtensor.annotations import hold
from models.answering import answers, exact_match, looked_at
from models.attention import MultiHeadAttention, scaled_dot_product_attention
from models.beam import BeamNode, Beams, beam_search
from models.cache import KeyValueCache
from models.generate import generate, greedy_decode
from models.gpt import GPT, GPTConfig
from models.masks import causal_mask, combine_masks, explain_mask, padding_mask
from models.positional import PositionalEncoding, sinusoidal_encoding
from models.sizes import hold_sizes
from models.text_encoder import TextEncoder, TextEncoderConfig
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
    "GPT",
    "Attention",
    "BeamNode",
    "Beams",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "GPTConfig",
    "KeyValueCache",
    "MultiHeadAttention",
    "PositionalEncoding",
    "TextEncoder",
    "TextEncoderConfig",
    "Transformer",
    "TransformerConfig",
    "answers",
    "beam_search",
    "causal_mask",
    "combine_masks",
    "exact_match",
    "explain_mask",
    "generate",
    "greedy_decode",
    "looked_at",
    "padding_mask",
    "scaled_dot_product_attention",
    "sinusoidal_encoding",
]

hold(__name__, "causal_mask", "embed")  # which say themselves what to count
hold_sizes(__name__)
