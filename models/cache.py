"""Keys and values of the positions that a model has read already: decoding computes each of them once.

Position t attends to the keys of 0 … t, which later tokens do not change; so they are kept, layer by layer.
"""

from __future__ import annotations

import microtensor as mt
from microtensor import Tensor

__all__ = ["KeyValueCache"]


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
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}  # with room for more positions than are used

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of the next positions; returns those of all positions, as views.

        Shapes: key (B, H, T, d_k), value (B, H, T, d_v) → (B, H, length + T, d_k), (B, H, length + T, d_v)
        """
        if mt.is_grad_enabled():
            raise RuntimeError(
                "KeyValueCache: gradients are being recorded, and a cache is changed in place; "
                "decode under mt.no_grad()"
            )
        end = self.length + key.shape[2]
        kept = self._layers.get(layer)
        if kept is not None and kept[0].shape[0] != key.shape[0]:
            raise ValueError(
                f"KeyValueCache: a batch of {key.shape[0]} after one of {kept[0].shape[0]}; "
                f"take a new cache for another batch"
            )
        if kept is None or end > kept[0].shape[2]:
            old_key, old_value = kept or (None, None)
            kept = self._grown(old_key, end, key), self._grown(old_value, end, value)
            self._layers[layer] = kept
        for memory, new in zip(kept, (key, value), strict=True):
            memory[:, :, self.length : end] = new
        return kept[0][:, :, :end], kept[1][:, :, :end]

    def _grown(self, old: Tensor | None, end: int, like: Tensor) -> Tensor:
        """Twice the room that is needed, with what was kept so far in it."""
        B, H, _, D = like.shape
        memory = mt.empty(B, H, max(2 * end, 64), D, dtype=like.dtype)
        if old is not None:
            memory[:, :, : self.length] = old[:, :, : self.length]
        return memory

    def advance(self, T: int) -> None:
        """Every layer has read T more positions."""
        self.length += T
