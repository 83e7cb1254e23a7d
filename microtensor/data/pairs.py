"""Pairs of texts, a source and what is to be written for it: their characters as ids, and batches of them.

What the pairs say is not known here: a corpus draws them, and keeps some of them back to be tested on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from microtensor.create import from_numpy
from microtensor.data.dataset import Dataset
from microtensor.tensor import Tensor

__all__ = ["BOS", "EOS", "PAD", "PairBatches", "PairCorpus"]

PAD, BOS, EOS = 0, 1, 2  # ids; the characters of the corpus follow from 3 on


class PairCorpus:
    """Base of corpora of pairs with `source` and `target`: a subclass sets `characters` and draws pairs.

    Raises: NotImplementedError where a subclass lacks `train_pairs` or `test_pairs`.
    Source: ours.
    """

    characters: str
    """Every character of the corpus, sorted by code point; character i has id i + 3."""

    def train_pairs(self, n: int, rng: np.random.Generator) -> Sequence[Any]:
        """n pairs to train on, drawn with replacement; none of them is in `test_pairs`.

        Raises: NotImplementedError where a subclass does not define it; ValueError for a negative n;
        TypeError for an rng that is not NumPy's.
        Source: ours.
        """
        raise NotImplementedError(f"{type(self).__name__}: draws no pairs; define train_pairs(self, n, rng)")

    def _at_least_none(self, n: int) -> int:
        if n < 0:
            raise ValueError(f"{type(self).__name__}: {n} pairs cannot be drawn; give 0 or more")
        return n

    def test_pairs(self) -> Sequence[Any]:
        """The pairs that are held out: the same ones for the same seed.

        Raises: NotImplementedError where a subclass does not define it.
        Source: ours.
        """
        raise NotImplementedError(f"{type(self).__name__}: holds no pairs out; define test_pairs(self)")

    @property
    def vocab_size(self) -> int:
        """V, with PAD, BOS and EOS. Sources and targets share one vocabulary.

        Source: ours.
        """
        return EOS + 1 + len(self.characters)

    def encode(self, text: str) -> list[int]:
        """The ids of the text, without BOS and EOS.

        Raises: ValueError naming the first character that the corpus lacks.
        Source: ours.
        """
        ids = [self.characters.find(char) for char in text]
        if -1 in ids:
            raise ValueError(
                f"{type(self).__name__}: {text[ids.index(-1)]!r} in {text!r} is no character of the corpus; "
                f"use {self.characters!r}"
            )
        return [i + EOS + 1 for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The text up to the first EOS; PAD and BOS are skipped.

        Raises: ValueError if an id is outside 0 … V − 1.
        Source: ours.
        """
        text = ""
        for i in ids.tolist() if isinstance(ids, Tensor) else ids:
            if i not in range(self.vocab_size):
                raise ValueError(
                    f"{type(self).__name__}: id {i!r} is no character; ids are 0 to {self.vocab_size - 1}"
                )
            if i == EOS:
                break
            text += self.characters[int(i) - EOS - 1] if i > EOS else ""
        return text

    def batch(self, texts: Sequence[str]) -> npt.NDArray[np.int64]:
        """BOS, the characters and EOS of each text, one text a row, filled up with PAD on the right.

        Shapes: B texts of at most L characters → (B, L + 2)
        Raises: ValueError naming the first character that the corpus lacks.
        Source: ours.
        """
        rows = [[BOS, *self.encode(text), EOS] for text in texts]
        ids = np.full((len(rows), max(map(len, rows), default=0)), PAD, dtype=np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        return ids


class PairBatches(Dataset[tuple[Tensor, Tensor]]):
    """Batch i of a run, made when it is asked for: a function of the seed and i, so that a run can resume.

    `pool` batches are drawn at a time and dealt out by length, so that little of a batch is padding. A sample
    is a batch: source ids (B, S), which end in EOS, and target ids (B, T + 2) between BOS and EOS. A loader
    hands it on as it is: `DataLoader(batches, collate_fn=lambda samples: samples[0])`.

    Raises: ValueError for counts under 1; IndexError for a batch that the run does not have.
    Source: ours; batches by length: "Attention Is All You Need", §5.1.
    """

    def __init__(
        self, corpus: PairCorpus, n_batches: int, *, batch_size: int = 64, pool: int = 8, seed: int = 0
    ) -> None:
        for name, value in (("n_batches", n_batches), ("batch_size", batch_size), ("pool", pool)):
            if value < 1:
                raise ValueError(f"PairBatches: {name} is {value}; make it at least 1")
        self.corpus, self.n_batches, self.seed = corpus, n_batches, seed
        self.batch_size, self.pool = batch_size, pool
        self._drawn: tuple[int, list[list[Any]]] = (-1, [])  # the number of the pool, and its batches

    def __len__(self) -> int:
        return self.n_batches

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pairs = self.pairs(index)
        sources = self.corpus.batch([pair.source for pair in pairs])[:, 1:]  # read, not written: no start
        return from_numpy(sources), from_numpy(self.corpus.batch([pair.target for pair in pairs]))

    def pairs(self, index: int) -> list[Any]:
        """What batch `index` holds, as text.

        Raises: IndexError for a batch that the run does not have.
        Source: ours; batches by length: "Attention Is All You Need", §5.1.
        """
        if not 0 <= index < self.n_batches:
            raise IndexError(f"PairBatches: there is no batch {index}; batches are 0 to {self.n_batches - 1}")
        number, place = divmod(index, self.pool)
        if self._drawn[0] != number:
            rng, size = np.random.default_rng((self.seed, number)), self.batch_size
            pairs = sorted(self.corpus.train_pairs(size * self.pool, rng), key=lambda pair: len(pair.source))
            batches = [pairs[k : k + size] for k in range(0, len(pairs), size)]
            self._drawn = number, [batches[k] for k in rng.permutation(self.pool)]
        return self._drawn[1][place]
