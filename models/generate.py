"""Turning a trained model's probabilities into text, one token at a time."""

from __future__ import annotations

import microtensor as mt
from microtensor import Tensor
from models.attention import padding_mask
from models.transformer import Transformer

__all__ = ["greedy_decode"]


@mt.no_grad()
def greedy_decode(model: Transformer, src: Tensor, max_len: int | None = None) -> Tensor:
    """The likeliest next token, again and again, until every row has ended.

    Shapes: source ids (B, S) → ids (B, ≤ max_len) without the start token; after its end token a row is
    padding. The source is encoded once. The model is put into evaluation mode meanwhile.
    Raises: ValueError for a max_len that the model's positions do not allow.
    Source: the paper, §6.1, decodes with a beam of 4. Differs: a beam of 1.
    """
    c = model.config
    limit = c.max_len - 1 if max_len is None else max_len
    if not 0 < limit < c.max_len:
        raise ValueError(
            f"greedy_decode: max_len is {max_len}; choose 1 … {c.max_len - 1}, below the model's max_len"
        )
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        src_mask = padding_mask(src, c.pad_id)
        memory = model.encode(src, src_mask)
        ids = mt.full((src.shape[0], 1), c.bos_id)
        ended = mt.zeros(src.shape[0], 1, dtype=mt.bool)
        while ids.shape[1] <= limit and not ended.all():
            logits = model.decode(ids, memory, memory_mask=src_mask)  # (B, T, V)
            token = logits[:, -1:].argmax(-1)  # (B, 1)
            token = token.masked_fill(ended, c.pad_id)
            ids = mt.cat([ids, token], 1)
            ended = ended | (token == c.eos_id)
    finally:
        for module, training in modes:  # each as it was: parts of a model may be frozen in evaluation mode
            module.training = training
    return ids[:, 1:]
