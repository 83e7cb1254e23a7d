"""Turning a trained model's probabilities into text, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import microtensor as mt
from microtensor import Generator, Tensor, nn
from models.cache import KeyValueCache
from models.masks import padding_mask
from models.transformer import Transformer

__all__ = ["generate", "greedy_decode"]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode and nothing recorded; then each module as it was, parts may be frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with mt.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def generate(
    model: Any,
    idx: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: Generator | None = None,
    eos_id: int | None = None,
    use_cache: bool = True,
) -> Tensor:
    """Tokens drawn from p ∝ softmax(logits / temperature), each read again as input for the next (a GPT).

    temperature 0 takes the likeliest. top_k: only the k likeliest; top_p: only the likeliest that together
    have the probability top_p (Holtzman et al. 2020, "nucleus"). A row that has drawn eos_id goes on with
    eos_id, and when all rows have, it ends. Beyond block_size the model reads the last block_size tokens, all
    of them at each step, because their positions move: no cache can serve there.

    Shapes: idx (B, T) → (B, T + n), n ≤ max_new_tokens
    Raises: ValueError for an empty idx, a negative temperature, top_k < 1 or top_p outside (0, 1].
    Source: nanoGPT's `generate`, with top_p, eos_id and a key/value cache. Differs: the model is put into
    evaluation mode meanwhile.
    """
    _check_sampling(idx, max_new_tokens, temperature, top_k, top_p)
    block_size = model.config.block_size
    B, T = idx.shape
    ended = mt.zeros(B, 1, dtype=mt.bool)
    ids = mt.cat([idx, mt.empty(B, max_new_tokens, dtype=mt.long)], 1)
    text, end = ids.numpy(), T  # the same memory: a token costs no copy of those before it
    with evaluating(model):
        cache = KeyValueCache() if use_cache else None
        while end < T + max_new_tokens:
            if end > block_size:
                cache = None
            start = max(0, end - block_size) if cache is None else cache.length
            unread = mt.from_numpy(text[:, start:end])
            logits, _ = model(unread) if cache is None else model(unread, cache=cache)
            token = _draw(logits[:, -1], temperature, top_k, top_p, generator)  # (B, 1)
            if eos_id is not None:
                token = token.masked_fill(ended, eos_id)
                ended = ended | (token == eos_id)
            text[:, end : end + 1] = token.numpy()
            end += 1
            if eos_id is not None and ended.all():
                break
    return ids[:, :end]


def _check_sampling(idx: Tensor, n: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if idx.ndim != 2 or idx.shape[1] < 1:
        raise ValueError(
            f"generate: idx has shape {idx.shape}; give (B, T) with one token at least to start from"
        )
    if n < 0 or not 0 <= temperature < math.inf:
        raise ValueError(
            f"generate: max_new_tokens is {n}, temperature {temperature}; make them finite and at least 0"
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"generate: top_k is {top_k}; keep at least 1 token, or leave it out")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"generate: top_p is {top_p}; give a probability above 0, up to 1, or leave it out")


def _draw(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: Generator | None
) -> Tensor:
    """(B, V) → (B, 1): one token a row."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        kept = logits.topk(top_k, dim=-1).values
        logits = logits.masked_fill(logits < kept[:, -1:], -math.inf)
    if top_p is not None and top_p < 1:
        logits = _nucleus(logits, top_p)
    return logits.softmax(-1).multinomial(1, generator=generator)


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """−∞ but for the fewest tokens whose probabilities, the largest first, add up to top_p."""
    values, order = logits.sort(dim=-1, descending=True)
    p = values.softmax(-1)
    beyond = p.cumsum(-1) - p >= top_p  # those before it have enough already
    return mt.full(tuple(logits.shape), -math.inf, dtype=logits.dtype).scatter(
        -1, order, values.masked_fill(beyond, -math.inf)
    )


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
    with evaluating(model):
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
    return ids[:, 1:]
