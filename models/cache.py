"""Keys and values of the positions that a model has read already: decoding computes each of them once.

Position t attends to the keys of 0 … t, which later tokens do not change; so they are kept, layer by layer.
Those of an encoder's output, which every position attends to, are computed once, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import microtensor as mt
from microtensor import Tensor

__all__ = ["KeyValueCache"]

Array = NDArray[Any]


class KeyValueCache:
    """What each layer of a decoder has read: keys (B, H, length, d_k) and values (B, H, length, d_v).

    A model that is called with a cache reads only new tokens and attends to all of them. The memory doubles
    when it is full, so that each key is copied a constant number of times. For inference only.

    Shapes: for each layer (B, H, length, d_k) and (B, H, length, d_v)
    Raises: RuntimeError while gradients are recorded; ValueError for a batch of another size.
    Source: ours.
    """

    def __init__(self) -> None:
        self.length = 0  # positions that every layer has read
        self._layers: dict[Hashable, list[Array]] = {}  # with room for more positions than are used
        self._memories: dict[Hashable, tuple[Tensor, tuple[Tensor, ...]]] = {}

    def extend(self, layer: Hashable, *new: Tensor) -> tuple[Tensor, ...]:
        """Keep the keys and values of the next positions; returns those of all positions, as views.

        `advance` then tells that every layer has read them; until then they may be written again.

        Shapes: key (B, H, T, d_k), value (B, H, T, d_v) → (B, H, length + T, d_k), (B, H, length + T, d_v)
        Raises: RuntimeError while gradients are recorded; ValueError for a batch of another size.
        Source: ours.
        """
        self._refuse_gradients()
        B, _, T, _ = new[0].shape
        start, end = self.length, self.length + T
        kept = self._layers.get(layer)
        if kept is not None and len(kept[0]) != B:
            raise ValueError(
                f"KeyValueCache: a batch of {B} after one of {len(kept[0])}; "
                f"take a new cache for another batch"
            )
        if kept is None or end > kept[0].shape[2]:
            old = kept or [x.array[:, :, :0] for x in new]
            kept = self._layers[layer] = [self._grown(x, end) for x in old]
        for memory, x in zip(kept, new, strict=True):
            memory[:, :, start:end] = x.array
        return tuple(mt.from_numpy(x[:, :, :end]) for x in kept)

    def recall(
        self, layer: Hashable, memory: Tensor, make: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """The keys and values of memory, made only if `layer` has not attended to this tensor before.

        Shapes: memory (B, S, d_model) → what `make` gives: (B, H, S, d_k), (B, H, S, d_v)
        Raises: RuntimeError while gradients are recorded.
        Source: ours.
        """
        self._refuse_gradients()
        known, found = self._memories.get(layer, (None, ()))
        if known is not memory:
            found = make()
            self._memories[layer] = memory, found
        return found

    def select(self, rows: Tensor, memory: Tensor | None = None) -> None:
        """Go on with these rows of the batch, in this order, some of them several times: a beam's survivors.

        memory: the encoder's output with its rows chosen likewise, which takes the place of the one read so
        far. Without it what was read of the memory stays as it is, for rows that share theirs.

        Shapes: rows (N,)
        Raises: IndexError for a row that the batch has not; nothing is changed then.
        Source: ours.
        """
        chosen = rows.numpy()
        batch = max((len(kept[0]) for kept in self._layers.values()), default=0)
        try:
            np.empty(batch)[chosen if batch else []]
        except IndexError:
            raise IndexError(
                f"KeyValueCache: rows {chosen.tolist()!r:.60} of a batch of {batch}; give integers under it"
            ) from None
        for kept in self._layers.values():
            for i, x in enumerate(kept):
                read = x[chosen, :, : self.length]  # a copy: it may be written where it was read
                if len(read) != len(x):
                    kept[i] = np.empty((len(read), *x.shape[1:]), x.dtype)
                kept[i][:, :, : self.length] = read
        if memory is not None:
            for layer, (_, found) in self._memories.items():
                self._memories[layer] = memory, tuple(mt.from_numpy(x.array[chosen]) for x in found)

    def advance(self, T: int) -> None:
        """Every layer has read T more positions.

        Raises: TypeError for what is no integer.
        Source: ours.
        """
        self.length += T

    def _grown(self, old: Array, end: int) -> Array:
        """Room for twice as many positions as `end`, with what was kept so far in it."""
        B, H, _, D = old.shape
        memory = np.empty((B, H, max(2 * end, 64), D), old.dtype)
        memory[:, :, : self.length] = old[:, :, : self.length]
        return memory

    def _refuse_gradients(self) -> None:
        if mt.is_grad_enabled():
            raise RuntimeError(
                "KeyValueCache: gradients are being recorded, and a cache is changed in place; "
                "decode under mt.no_grad()"
            )
