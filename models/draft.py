"""A text in the making: what each row holds so far, and the model's logits of what comes next.

One for a GPT, whose text goes on behind a prompt, and one for the encoder–decoder, whose text is written from
nothing with a source in view. How a token is chosen is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import microtensor as mt
from microtensor import Tensor, nn
from models.cache import KeyValueCache
from models.masks import check_ids, padding_mask
from models.transformer import Transformer

__all__ = ["Draft", "begin", "evaluating"]


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


class Draft:
    """Rows of token ids with room for more. A row that has ended in eos_id is filled up with `filler`."""

    shown_from = 0  # the first column that is handed to the caller

    def __init__(
        self, model: Any, first: Tensor, room: int, use_cache: bool, eos_id: int | None, filler: int
    ) -> None:
        self.model, self.eos_id, self.filler = model, eos_id, filler
        B, self.start = first.shape
        self.end, self.limit = self.start, self.start + room
        self.text = np.empty((B, self.limit), np.int64)  # appending a token copies none of those before it
        self.text[:, : self.start] = first.numpy()
        self.cache = KeyValueCache() if use_cache else None

    def logits(self) -> Tensor:
        """(N, V): of the next token of each row."""
        raise NotImplementedError

    def unread(self, first: int = 0) -> Tensor:
        """(N, T): the ids that the cache does not hold; all from `first` on if there is no cache."""
        return mt.from_numpy(self.text[:, first if self.cache is None else self.cache.length : self.end])

    def append(self, tokens: Tensor) -> None:
        """One token (N, 1) for each row."""
        self.text[:, self.end : self.end + 1] = tokens.numpy()
        self.end += 1

    def result(self) -> Tensor:
        """(N, T): what is handed to the caller."""
        return mt.tensor(self.text[:, self.shown_from : self.end])

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order; each takes the place of one that has the same source."""
        self.text = self.text[rows.numpy()]
        if self.cache is not None:
            self.cache.select(rows)

    def repeat(self, times: int) -> None:
        """Each row several times, one behind the other."""
        self.select(mt.arange(len(self.text)).repeat_interleave(times))


class Continuation(Draft):
    """A GPT's text behind its prompt. Beyond block_size the model sees the last block_size tokens.

    They are then all read at each step, because their positions move: no cache can serve there.
    """

    def logits(self) -> Tensor:
        """(N, V)"""
        block_size = self.model.config.block_size
        if self.end > block_size:
            self.cache = None
        unread = self.unread(max(0, self.end - block_size))
        logits, _ = self.model(unread) if self.cache is None else self.model(unread, cache=self.cache)
        return logits[:, -1]  # type: ignore[no-any-return]


class Translation(Draft):
    """The encoder–decoder's text behind its start token; the source is encoded once."""

    shown_from = 1

    def __init__(
        self, model: Transformer, src: Tensor, room: int, use_cache: bool, eos_id: int | None
    ) -> None:
        c = model.config
        first = mt.full((len(src), 1), c.bos_id)
        super().__init__(model, first, room, use_cache, c.eos_id if eos_id is None else eos_id, c.pad_id)
        self.src_mask = padding_mask(src, c.pad_id)
        self.memory: Tensor = model.encode(src, self.src_mask)

    def logits(self) -> Tensor:
        """(N, V)"""
        logits = self.model.decode(
            self.unread(), self.memory, memory_mask=self.src_mask, cache=self.cache
        )  # (N, T, V)
        return logits[:, -1]  # type: ignore[no-any-return]

    def repeat(self, times: int) -> None:
        """Each row several times, one behind the other, and its source with it."""
        rows = mt.arange(len(self.text)).repeat_interleave(times)
        self.text, self.src_mask, self.memory = (
            self.text[rows.numpy()],
            self.src_mask[rows],
            self.memory[rows],
        )
        if self.cache is not None:
            self.cache.select(rows, self.memory)


def begin(
    who: str, model: Any, idx: Tensor, room: tuple[str, int | None], use_cache: bool, eos_id: int | None
) -> Draft:
    """A draft with room for so many tokens, which `who` calls by that name; None is as many as there can be.

    For a GPT idx is the prompt, for the encoder–decoder the source.
    """
    translates = isinstance(model, Transformer)
    if not translates and not hasattr(getattr(model, "config", None), "block_size"):
        raise TypeError(f"{who}: model is {type(model).__name__}; give a GPT or a Transformer")
    check_ids(who, idx=idx)
    if idx.shape[1] < 1 and not translates:
        raise ValueError(
            f"{who}: idx has shape {idx.shape}; give (B, T) with one token at least to start from"
        )
    name, n = room
    config = model.config
    V = config.tgt_vocab_size if translates else config.vocab_size
    if eos_id is not None and not 0 <= eos_id < V:
        raise ValueError(f"{who}: eos_id is {eos_id}; give the id of one of the {V} tokens, or leave it out")
    if translates:
        n = config.max_len - 1 if n is None else n
        if not 0 <= n < config.max_len:
            raise ValueError(
                f"{who}: {name} is {n}; choose 0 … {config.max_len - 1}, below the model's max_len"
            )
        return Translation(model, idx, n, use_cache, eos_id)
    n = max(0, config.block_size - idx.shape[1]) if n is None else n
    if n < 0:
        raise ValueError(f"{who}: {name} is {n}; make it at least 0")
    return Continuation(model, idx, n, use_cache, eos_id, 0 if eos_id is None else eos_id)
