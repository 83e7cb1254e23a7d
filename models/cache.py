"""Keys and values of the positions that a model has read already: decoding computes each of them once.

Position t attends to the keys of 0 … t, which later tokens do not change; so they are kept, layer by layer.
"""

from __future__ import annotations

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
        self._layers: dict[int, list[Array]] = {}  # with room for more positions than are used

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of the next positions; returns those of all positions, as views.

        Shapes: key (B, H, T, d_k), value (B, H, T, d_v) → (B, H, length + T, d_k), (B, H, length + T, d_v)
        """
        if mt.is_grad_enabled():
            raise RuntimeError(
                "KeyValueCache: gradients are being recorded, and a cache is changed in place; "
                "decode under mt.no_grad()"
            )
        new = key.array, value.array
        B, _, T, _ = new[0].shape
        start, end = self.length, self.length + T
        kept = self._layers.get(layer)
        if kept is not None and len(kept[0]) != B:
            raise ValueError(
                f"KeyValueCache: a batch of {B} after one of {len(kept[0])}; "
                f"take a new cache for another batch"
            )
        if kept is None or end > kept[0].shape[2]:
            old = kept or [x[:, :, :0] for x in new]
            kept = self._layers[layer] = [self._grown(x, end) for x in old]
        for memory, x in zip(kept, new, strict=True):
            memory[:, :, start:end] = x
        k, v = kept
        return mt.from_numpy(k[:, :, :end]), mt.from_numpy(v[:, :, :end])

    def _grown(self, old: Array, end: int) -> Array:
        """Twice the room that is needed, with what was kept so far in it."""
        B, H, _, D = old.shape
        memory = np.empty((B, H, max(2 * end, 64), D), old.dtype)
        memory[:, :, : self.length] = old[:, :, : self.length]
        return memory

    def advance(self, T: int) -> None:
        """Every layer has read T more positions."""
        self.length += T
