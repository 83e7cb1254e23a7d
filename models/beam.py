"""Beam search: the likeliest texts as far as a beam can see, not the likeliest next tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import microtensor as mt
from microtensor import Tensor, nn
from models.draft import Draft, begin, evaluating

__all__ = ["BeamNode", "Beams", "beam_search"]

Array = NDArray[Any]


class Beams(NamedTuple):
    """The best texts for each row of a batch, the best first.

    ids: as `generate` returns them. lengths: how many tokens were written, the end token counted, filling
    not. log_probs: log P(text), by the model, in float64. scores: log_probs / lp(lengths), by which they are
    ranked. Where there are fewer texts than were asked for, scores are −∞ and lengths 0.

    Shapes: ids (B, n_best, T), lengths, log_probs and scores (B, n_best)
    Source: ours.
    """

    ids: Tensor
    lengths: Tensor
    log_probs: Tensor
    scores: Tensor


@dataclass
class BeamNode:
    """One way to go on that a beam search looked at, a node of its tree; `viz.beam_tree` draws them.

    row: of the batch. parent: the place among the nodes of the one that it goes on from, −1 at the start.
    log_p: of this token; log_prob and score: of the text up to it. kept: did it come into the beam? rank: 1
    for the best text that was found, and so on; 0 where no text that was found ends.

    Source: ours.
    """

    row: int
    parent: int
    token: int
    log_p: float
    log_prob: float
    score: float
    kept: bool
    rank: int = 0


def _lp(length: Any, alpha: float) -> Any:
    """lp(Y) = (5 + |Y|)^α / (5 + 1)^α"""
    return ((5.0 + length) / 6.0) ** alpha


def beam_search(
    model: nn.Module,
    src: Tensor,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    max_len: int | None = None,
    *,
    n_best: int = 1,
    eos_id: int | None = None,
    use_cache: bool = True,
    tree: list[BeamNode] | None = None,
) -> Beams:
    """The texts Y of the highest log P(Y) / lp(Y) that a beam finds, lp(Y) = (5 + |Y|)^α / 6^α.

    A text ends with eos_id (of the encoder–decoder by default its own) or at max_len tokens; |Y| counts the
    tokens that were written, α is length_penalty: 0 ranks by probability alone, which favours short texts.
    At each step the beam holds the beam_size best by that score, those that have ended among the others,
    which go on by every token. It is over when none of the others can come among the n_best. A beam of 1 is
    `greedy_decode`; one as wide as there are texts finds the best of all.

    The encoder–decoder translates src; a GPT goes on behind it, up to its block_size, or beyond it by the
    window that `generate` describes.

    tree: an empty list, into which the search writes what it looked at: of each text that it goes on with,
    the beam_size likeliest next tokens, whether they were kept or not.

    Shapes: src (B, S) → ids (B, n_best, T), of a GPT (B, n_best, S + T)
    Raises: ValueError for a beam_size or n_best under 1, an n_best above beam_size, a length_penalty that is
    negative or not finite, a max_len that the model's positions do not allow, and a tree that is not empty.
    Source: the paper, §6.1 (a beam of 4, α = 0.6); Wu et al. 2016, eq. 14. Differs: no coverage penalty, and
    max_len is not the source's length + 50.
    """
    if beam_size < 1 or not 1 <= n_best <= beam_size:
        raise ValueError(
            f"beam_search: beam_size is {beam_size}, n_best {n_best}; make them at least 1, and n_best no "
            f"more than beam_size"
        )
    if not 0 <= length_penalty < math.inf:
        raise ValueError(
            f"beam_search: length_penalty is {length_penalty}; make it finite and at least 0 (the paper: 0.6)"
        )
    if tree:
        raise ValueError(f"beam_search: tree holds {len(tree)} nodes already; give an empty list")
    with evaluating(model):
        draft = begin("beam_search", model, src, ("max_len", max_len), use_cache, eos_id)
        beam = _Beam(draft, beam_size, length_penalty, tree)
        while draft.end < draft.limit and beam.is_open(n_best):
            beam.step()
    return beam.best(n_best)


class _Beam:
    """For each row of the batch K texts, by falling score; all share the draft, as rows b·K … b·K + K − 1."""

    def __init__(self, draft: Draft, K: int, alpha: float, tree: list[BeamNode] | None = None) -> None:
        B = len(draft.text)
        self.tree, self.nodes = tree, np.full((B, 1), -1)  # where in the tree each text ends
        self.draft, self.K, self.alpha = draft, K, alpha
        self.eos_id = -1 if draft.eos_id is None else draft.eos_id
        self.log_probs = np.zeros((B, 1))  # the draft's rows are repeated K times after the first step
        self.lengths = np.zeros((B, 1), np.int64)
        self.ended = np.zeros((B, 1), bool)

    @property
    def scores(self) -> Array:
        """(B, K)"""
        return self.log_probs / _lp(self.lengths, self.alpha)  # type: ignore[no-any-return]

    def step(self) -> None:
        """One more token: of all the ways to go on, the K best of each row of the batch."""
        B, k = self.log_probs.shape
        log_p = self.draft.logits().double().log_softmax(-1).numpy().reshape(B, k, -1)
        V = log_p.shape[-1]
        ways = self.log_probs[:, :, None] + log_p  # (B, k, V)
        ways[self.ended] = -math.inf
        # what has ended goes on in one way, which costs nothing
        ways[..., self.draft.filler][self.ended] = self.log_probs[self.ended]
        lengths = self.lengths + ~self.ended  # (B, k)
        scores = (ways / _lp(lengths, self.alpha)[:, :, None]).reshape(B, k * V)
        chosen = mt.from_numpy(scores).topk(min(self.K, k * V)).indices.numpy()  # (B, ≤ K)
        if chosen.shape[1] < self.K:  # fewer ways than places: the others stay empty
            chosen = np.pad(chosen, ((0, 0), (0, self.K - chosen.shape[1])), constant_values=-1)
        parent, token = chosen // V, chosen % V
        if self.tree is not None:
            self._note(self.tree, log_p, ways, scores.reshape(B, k, V), chosen)
        self._move(np.where(chosen < 0, 0, parent), k)
        at = np.arange(B)[:, None]
        self.log_probs = np.where(chosen < 0, -math.inf, ways.reshape(B, k * V)[at, chosen])
        empty = self.log_probs == -math.inf
        self.lengths = np.where(empty, 0, lengths[at, parent])
        self.ended = self.ended[at, parent] | (token == self.eos_id) | empty
        self.draft.append(mt.tensor(np.where(empty, self.draft.filler, token).reshape(-1, 1)))

    def _note(self, tree: list[BeamNode], log_p: Array, ways: Array, scores: Array, chosen: Array) -> None:
        """The K likeliest ways of each text to go on, of (B, k, V); among them are the chosen (B, K)."""
        B, k, V = ways.shape
        nodes = np.full((B, self.K), -1)
        for b in range(B):
            place = {int(way): i for i, way in enumerate(chosen[b]) if way >= 0}
            for j in range(k):
                if self.ended[b, j]:  # it is carried along, and stays the node that it is
                    way = j * V + self.draft.filler
                    if way in place:
                        nodes[b, place[way]] = self.nodes[b, j]
                    continue
                for token in np.argsort(-scores[b, j], kind="stable")[: self.K].tolist():
                    if ways[b, j, token] == -math.inf:
                        break
                    way, at = j * V + token, (b, j, token)
                    found = float(log_p[at]), float(ways[at]), float(scores[at])
                    tree.append(BeamNode(b, int(self.nodes[b, j]), token, *found, kept=way in place))
                    if way in place:
                        nodes[b, place[way]] = len(tree) - 1
        self.nodes = nodes

    def _move(self, parent: Array, k: int) -> None:
        """Each place of the beam goes on with the text of its parent (B, K), one of k."""
        B, K = parent.shape
        if k < K:
            self.draft.repeat(K)
        elif (parent != np.arange(K)).any():
            self.draft.select(mt.tensor((np.arange(B)[:, None] * K + parent).reshape(-1)))

    def is_open(self, n_best: int) -> bool:
        """Can a text that goes on still come among the n_best? Its log P can but fall, its lp rise."""
        if self.ended.shape[1] < n_best:  # nothing was read yet
            return len(self.ended) > 0
        highest = _lp(self.draft.limit - self.draft.start, self.alpha)
        hope = np.where(self.ended, -math.inf, self.log_probs / highest)  # (B, K)
        finished = np.sort(np.where(self.ended, self.scores, -math.inf), axis=1)  # (B, K), the best last
        return bool((hope.max(1) > finished[:, -n_best]).any())

    def best(self, n: int) -> Beams:
        """What has been found, the n best of each row of the batch."""
        (B, k), draft = self.log_probs.shape, self.draft
        if self.tree:
            for b, rank in np.argwhere(self.nodes[:, :n] >= 0).tolist():
                self.tree[self.nodes[b, rank]].rank = rank + 1
        text = draft.text[:, : draft.end].reshape(B, k, draft.end)
        text[self.log_probs == -math.inf, draft.start :] = draft.filler
        short = ((0, 0), (0, n - min(k, n)))  # nothing was written: one empty text
        log_probs, scores = (
            np.pad(x[:, :n], short, constant_values=-math.inf) for x in (self.log_probs, self.scores)
        )
        lengths = np.pad(self.lengths[:, :n], short)
        end = draft.start + int(lengths.max(initial=0))
        ids = np.pad(text[:, :n], (*short, (0, 0)), mode="edge")[:, :, draft.shown_from : end]
        return Beams(*map(mt.tensor, (ids, lengths, log_probs, scores)))
