"""Where a token stands: fixed sinusoids, or learned vectors, that are added to the embeddings.

Self-attention is permutation-equivariant, so without them a model could not tell the order of its input.
"""

from __future__ import annotations

import math

import numpy as np

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import Tensor, nn, viz

__all__ = ["PositionalEncoding", "sinusoidal_encoding"]


def sinusoidal_encoding(length: int, d_model: int) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/d_model)), PE(p, 2i+1) = cos(p / 10000^(2i/d_model)).

    Shapes: → (length, d_model), sine and cosine interleaved; an odd d_model ends in a sine.
    The wavelengths grow geometrically from 2π towards 10000 · 2π, and PE(p + k) is a fixed linear function of
    PE(p).
    Raises: ValueError for a negative length or a d_model under 1.
    Source: the paper, §3.5; the lecture, sinusoidal positional encoding. Computed in float64, then rounded.
    """
    if length < 0 or d_model < 1:
        raise ValueError(
            f"sinusoidal_encoding: length {length}, d_model {d_model}; make them at least 0 and 1"
        )
    position = np.arange(length, dtype=np.float64)[:, None]  # (length, 1)
    rate = np.exp(np.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))  # (⌈d_model/2⌉,)
    encoding = np.empty((length, d_model))
    encoding[:, 0::2] = np.sin(position * rate)
    encoding[:, 1::2] = np.cos(position * rate[: d_model // 2])
    return mt.tensor(encoding, dtype=mt.get_default_dtype())


class PositionalEncoding(nn.Module):
    """x̃_p = x_p + PE_p, then dropout.

    kind: "sinusoidal", where the table is no parameter and is not saved, or "learned": a vector for each
    position, at first N(0, 1/d_model).

    Shapes: (B, T, d_model) → (B, T, d_model)
    Raises: ValueError for another kind, another width, and for sequences longer than max_len.
    Source: the paper, §3.5, §5.4 (dropout on the sums) and Table 3, row E (learned); the lecture.
    """

    pe: Tensor

    def __init__(
        self, d_model: int, max_len: int = 5000, dropout: float = 0.0, kind: str = "sinusoidal"
    ) -> None:
        super().__init__()
        self.dropout = dropout
        if kind == "learned":
            self.pe = nn.Parameter(mt.randn(max_len, d_model) * d_model**-0.5)
        elif kind == "sinusoidal":
            self.register_buffer("pe", sinusoidal_encoding(max_len, d_model), persistent=False)
        else:
            raise ValueError(f"PositionalEncoding: kind is {kind!r}; choose 'sinusoidal' or 'learned'")

    def forward(self, x: Tensor, past: int = 0) -> Tensor:
        """(B, T, d_model) → (B, T, d_model), for the positions past … past + T − 1"""
        max_len, d_model = self.pe.shape
        if x.ndim < 2 or x.shape[-1] != d_model:  # a width of 1 would broadcast
            raise ValueError(f"PositionalEncoding: x has shape {x.shape}; make it (B, T, {d_model})")
        length = past + x.shape[-2]
        if length > max_len:
            raise ValueError(
                f"PositionalEncoding: {length} positions, but max_len is {max_len}; make max_len larger"
            )
        pe = self.pe[past:length]
        viz.tag(pe, "P", of=pe)
        return F.dropout(x + pe, self.dropout, self.training)
