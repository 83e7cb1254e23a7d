"""Turning a trained model's probabilities into text, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import microtensor as mt
from microtensor import Generator, Tensor, nn
from microtensor.annotations import hold
from models.draft import Draft, begin, evaluating

__all__ = ["generate", "greedy_decode"]

TINY = 1e-6  # the least temperature above 0: logits divided by less can leave float32


def generate(
    model: nn.Module,
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
    """Tokens drawn from p ∝ softmax(logits / temperature), each read again as input for the next.

    temperature 0 takes the likeliest. top_k: only the k likeliest; top_p: only the likeliest that together
    have the probability top_p (Holtzman et al. 2020, "nucleus"). When all rows have drawn eos_id, it ends.

    A GPT goes on behind the prompt idx, which is returned, too; a row that has ended is filled with eos_id.
    Beyond block_size it reads the last block_size tokens, all of them at each step, because their positions
    move: no cache can serve there. The encoder–decoder translates the source idx, and its text is returned
    without start token; a row that has ended (eos_id, by default its own) is filled with padding. It writes
    fewer than max_len tokens.

    Shapes: idx (B, T) → (B, T + n) of a GPT, (B, n) of the encoder–decoder, n ≤ max_new_tokens
    Raises: ValueError for an empty idx, a temperature below 0 or from 0 to TINY, top_k < 1 or top_p outside
    (0, 1], and for more tokens than the encoder–decoder has positions.
    Source: nanoGPT's `generate`, with top_p, eos_id and a key/value cache. Differs: the model is put into
    evaluation mode meanwhile.
    """
    _check_sampling(max_new_tokens, temperature, top_k, top_p)

    def choose(logits: Tensor) -> Tensor:
        return _draw(logits, temperature, top_k, top_p, generator)

    with evaluating(model):
        draft = begin("generate", model, idx, ("max_new_tokens", max_new_tokens), use_cache, eos_id)
        return _write(draft, choose)


def greedy_decode(
    model: nn.Module,
    src: Tensor,
    max_len: int | None = None,
    *,
    eos_id: int | None = None,
    use_cache: bool = True,
) -> Tensor:
    """The likeliest next token, again and again, until every row has ended: `generate` at temperature 0.

    The encoder–decoder translates src, which it encodes once; a GPT goes on behind it, up to its block_size.
    The model is put into evaluation mode meanwhile.

    Shapes: source ids (B, S) → ids (B, ≤ max_len) without the start token; after its end token a row is
    padding. Of a GPT (B, S + ≤ max_len).
    Raises: ValueError for a max_len that the model's positions do not allow.
    Source: the paper, §6.1, decodes with a beam of 4 (`beam_search`). Differs: a beam of 1.
    """
    with evaluating(model):
        draft = begin("greedy_decode", model, src, ("max_len", max_len), use_cache, eos_id)
        return _write(draft, lambda logits: logits.argmax(-1, keepdim=True))


def _write(draft: Draft, choose: Callable[[Tensor], Tensor]) -> Tensor:
    """Fill the draft with what `choose` makes of the logits, until it is full or every row has ended."""
    ended = mt.zeros(len(draft.text), 1, dtype=mt.bool)
    while draft.end < draft.limit and not (draft.eos_id is not None and ended.all()):
        token = choose(draft.logits())  # (B, 1)
        if draft.eos_id is not None:
            token = token.masked_fill(ended, draft.filler)
            ended = ended | (token == draft.eos_id)
        draft.append(token)
    return draft.result()


def _check_sampling(n: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if n < 0:
        raise ValueError(f"generate: max_new_tokens is {n}; make it 0 or more")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"generate: temperature is {temperature}; make it 0 or more, and finite")
    if 0 < temperature < TINY:
        raise ValueError(
            f"generate: temperature is {temperature}; give 0, for the likeliest, or at least {TINY:g}"
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


hold(__name__)  # also for GPT.generate, which is another name of it
