"""What a trained model answers to texts, and how many of its answers are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import microtensor as mt
from microtensor import nn
from microtensor.data import EOS, PairCorpus
from models.draft import evaluating
from models.generate import greedy_decode
from models.gpt import GPT
from models.transformer import Attention, Transformer

__all__ = ["answers", "exact_match", "looked_at"]

BATCH = 250  # sources that are read at once


def answers(model: nn.Module, corpus: PairCorpus, sources: Sequence[str], longest: int) -> list[str]:
    """What the model writes for each source, by greedy decoding.

    The encoder–decoder reads a source with EOS, and writes EOS behind `longest` characters at the latest, or
    else one more of them. A GPT goes on behind the source by `longest` characters, and all sources of a batch
    must be equally long, because it knows no padding.

    Raises: ValueError for a character that the corpus lacks, sources of unequal lengths for a GPT, and more
    characters than the model has positions.
    Source: ours.
    """
    found: list[str] = []
    for start in range(0, len(sources), BATCH):
        src = mt.from_numpy(corpus.batch(sources[start : start + BATCH])[:, 1:])  # (B, S), no BOS
        if not isinstance(model, GPT):
            ids = greedy_decode(model, src, longest + 1)  # with EOS
        elif (src[:, -1] == EOS).all():
            ids = greedy_decode(model, src[:, :-1], longest)[:, src.shape[1] - 1 :]
        else:
            raise ValueError("answers: a GPT cannot read sources of unequal lengths at once; sort them apart")
        found += [corpus.decode(row) for row in ids.tolist()]
    return found


def exact_match(model: nn.Module, corpus: PairCorpus, pairs: Sequence[Any]) -> float:
    """The share of the pairs whose source is answered by their target, without any mistake.

    Raises: ValueError for no pairs, TypeError for what are none, and as `answers` does.
    Source: ours.
    """
    if not pairs:
        raise ValueError("exact_match: there are no pairs; give one or more, such as corpus.test_pairs()")
    if not all(hasattr(pair, "source") and hasattr(pair, "target") for pair in pairs):
        raise TypeError(f"exact_match: pairs are {pairs!r:.60}; give what has source and target")
    longest = max(len(pair.target) for pair in pairs)
    found = answers(model, corpus, [pair.source for pair in pairs], longest)
    right: list[bool] = [text == pair.target for text, pair in zip(found, pairs, strict=True)]
    return sum(right) / len(right)


def looked_at(
    model: Transformer, corpus: PairCorpus, source: str, longest: int
) -> tuple[list[str], list[str], Attention]:
    """What the encoder–decoder writes for a source and what it reads, as labels of its attention weights.

    A label is a character, or "end" for EOS.

    Shapes: cross weights (1, H, T, S) with T = characters written + 1, S = characters read + 1
    Raises: as `answers` does.
    Source: the paper, Figures 3–5, shows such weights.
    """
    (written,) = answers(model, corpus, [source], longest)
    src, tgt = mt.from_numpy(corpus.batch([source])[:, 1:]), mt.from_numpy(corpus.batch([written])[:, :-1])
    with evaluating(model):
        _, attention = model(src, tgt, return_attention=True)
    return [*written, "end"], [*corpus.decode(src.tolist()[0]), "end"], attention
