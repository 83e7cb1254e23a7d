"""Attention as the lecture and the paper state it: scaled dot-product attention, multi-head attention.

A boolean mask means True = may attend, everywhere. Names follow "Attention Is All You Need", §3.2 (Vaswani et
al. 2017) and the lecture: Q = X W^Q, Attention(Q, K, V) = softmax(Q Kᵀ/√d_k) V, and
MultiHead = Concat(head_1, …, head_h) W^O.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import Tensor, nn, viz
from models.cache import KeyValueCache
from models.masks import causal_mask, check_fits, combine_masks, four_axes

__all__ = ["MultiHeadAttention", "scaled_dot_product_attention"]

# What drawings write on these lines, and tests evaluate: the equation, then its gradients (see viz.fold).
PROJECTION = ("Q = split_h(X @ W + b)",
              "dX += merge_h(dQ) @ W.mT", "dW = Σ_B(X.mT @ merge_h(dQ))", "db = Σ(merge_h(dQ))")  # fmt: skip
SCORES = ("S = Q @ K.mT / sqrt(d_k)", "dQ = dS @ K / sqrt(d_k)", "dK = dS.mT @ Q / sqrt(d_k)")
MASK = ("Z = mask(S, M)", "dS = where(M, dZ, 0)")
ADD_MASK = ("Z = S + M", "dS = dZ")
SOFTMAX = ("A = softmax(S)", "dS = A * (dA - rowsum(dA * A))")
DROPOUT = ("D = dropout(A, p)", "dA = dD * keep / (1 - p)")
AVERAGE = ("H = A @ V", "dA = dH @ V.mT", "dV = A.mT @ dH")
SCALE = ("1 / sqrt(d_k)",)
HEAD = ("Q = X @ W + b", "dX += dQ @ W.mT", "dW = Σ_B(X.mT @ dQ)", "db = Σ(dQ)")
CONCAT = ("C = Concat_h(H)", "dH = split_h(dC)")
OUTPUT = ("Y = C @ W + b", "dC = dY @ W.mT", "dW = Σ_B(C.mT @ dY)", "db = Σ(dY)")


def scaled_dot_product_attention(
    Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V, and the weights A = softmax(…) before dropout.

    A boolean mask is True where a query may attend; a float mask is added to the scores. A query that may
    attend to nothing gets weights 0 and an output of 0.

    Shapes: Q (..., T, d_k), K (..., S, d_k), V (..., S, d_v), mask broadcast to (..., T, S)
    → (..., T, d_v) and (..., T, S)
    Raises: TypeError for a mask of integers; ValueError for a float mask of zeros and ones, for a mask that
    does not broadcast to the scores, and for Q, K and V that do not fit.
    Source: the paper, eq. 1; the lecture.
    """
    F.check_attention("scaled_dot_product_attention", Q, K, V)
    with viz.fold("attention", title="scaled\ndot-product\nattention,\n{h} heads"):
        with viz.fold("scores", *SCORES, lane="S", constants=SCALE, Q=Q, K=K):
            S = Q @ K.mT * (1.0 / math.sqrt(Q.shape[-1]))  # (..., T, S)
        viz.tag(S, "S")
        if mask is not None:
            check_fits("scaled_dot_product_attention", mask, S.shape)
            with viz.fold("mask", *(MASK if mask.dtype == mt.bool else ADD_MASK), lane="S", S=S, M=mask):
                S = _masked(S, mask)
            viz.tag(S, "S̃")
        with viz.fold("softmax", *SOFTMAX, lane="S", S=S):
            A = S.softmax(-1)
        viz.tag(A, "A")
        with viz.fold("dropout", *DROPOUT, lane="S", A=A, p=dropout):
            kept = F.dropout(A, dropout)
        viz.tag(kept, "Ã")
        with viz.fold("av", *AVERAGE, lane="O", A=kept, V=V):
            H = kept @ V
        viz.tag(H, "H")
    return H, A


def _masked(S: Tensor, mask: Tensor) -> Tensor:
    """−∞ where a query may not attend; a float mask is added."""
    if mask.dtype != mt.bool:
        viz.tag(mask, "M", of=mask)
        return S + mask.to(S.dtype)
    blocked = ~mask
    viz.tag(blocked, "M", of=mask)
    return S.masked_fill(blocked, -math.inf)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, …, head_h) W^O, head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V).

    All heads are computed at once: W^Q holds W_1^Q … W_h^Q side by side, each d_model × d_k with d_k = d_v =
    d_model / h. `forward_per_head` is the textbook's loop over heads and gives the same numbers.

    Shapes: query (B, T, d_model), key and value (B, S, d_model) → (B, T, d_model)
    Raises: ValueError for a d_model that n_heads does not divide, shapes that do not fit, and a float mask of
    zeros and ones; TypeError for an integer mask.
    Source: the paper, §3.2.2; the lecture, multi-head attention. Differs: biases, as everywhere today (the
    paper has none; bias=False leaves them out), and an optional dropout on the weights (none in the paper's
    §5.4).
    """

    def __init__(self, d_model: int, n_heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        if n_heads < 1 or d_model % n_heads:
            raise ValueError(f"MultiHeadAttention: d_model {d_model} is not divisible by n_heads {n_heads}; "
                             f"choose n_heads among its divisors")  # fmt: skip
        self.d_model, self.n_heads, self.d_k, self.dropout = d_model, n_heads, d_model // n_heads, dropout
        self.q_proj = nn.Linear(d_model, d_model, bias=bias)
        self.k_proj = nn.Linear(d_model, d_model, bias=bias)
        self.v_proj = nn.Linear(d_model, d_model, bias=bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)
        for projection in self.children():
            nn.init.xavier_uniform_(projection.weight)
            if bias:
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        need_weights: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Self-attention of query, or attention of query to key (and value, which defaults to key).

        With a cache, self-attention reads positions that follow those of the cache, and S counts them all
        (`cache.advance(T)` after it); the keys and values of another key are computed once and kept.

        Shapes: query (B, T, C), key and value (B, S, C), mask (S,), (T, S), (B, S), (B, T, S) or
        (B, H, T, S), where 1 may stand for any → (B, T, C); with need_weights also the weights (B, H, T, S),
        before dropout.
        Raises: ValueError for shapes that do not fit, with both shapes, and for a mask of two axes that could
        be (T, S) and (B, S) where B = T: the causal mask is (T, S), another is mask[None] or mask[:, None].
        """
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value)
        past = cache.length if cache is not None and key is query else 0
        mask = self._mask(query, key, mask, is_causal, past)
        if viz.is_recording():
            self._tag(query, key, value)
        Q = self._heads_of("Q", query)  # (B, H, T, d_k)
        K, V = self._keys_and_values(key, value, cache, key is query)
        p = self.dropout if self.training else 0.0
        if need_weights or viz.opens_fused():
            heads, A = scaled_dot_product_attention(Q, K, V, mask, p)
        else:  # the same equation as one kernel, which keeps no weights
            with viz.fold("attention", lane="O", constants=SCALE):
                heads = F.scaled_dot_product_attention(Q, K, V, mask, p)
            viz.tag(mask, "M", of=mask)
            viz.tag(heads, "H")
        B, H, T, D = heads.shape
        with viz.fold("concat", *CONCAT, lane="O", H=heads):
            concat = heads.transpose(1, 2).reshape(B, T, H * D)  # (B, T, C)
        output = self._project(concat)
        return (output, A) if need_weights else output

    def _project(self, concat: Tensor) -> Tensor:
        """Y = C W^O + b_O"""
        o = self.out_proj
        viz.tag(concat, "C", axes="B n_q d")
        with viz.fold("linO", *OUTPUT, lane="O", C=concat, W=o.weight, b=o.bias):
            output: Tensor = o(concat)
        viz.tag(output, "Y")
        return output

    def _keys_and_values(
        self, key: Tensor, value: Tensor, cache: KeyValueCache | None, is_self: bool
    ) -> tuple[Tensor, ...]:
        """(B, H, S, d_k) and (B, H, S, d_v), of all positions that were read if there is a cache."""

        def project() -> tuple[Tensor, ...]:
            return self._heads_of("K", key), self._heads_of("V", value)

        if cache is None or not (is_self or key is value):
            return project()
        return cache.extend(self, *project()) if is_self else cache.recall(self, key, project)

    def _heads_of(self, letter: str, x: Tensor) -> Tensor:
        """Q = X W^Q + b_Q, say, for all heads: (B, T, C) → (B, H, T, d_k), the columns of each head."""
        part = getattr(self, f"{letter.lower()}_proj")
        with viz.fold(f"lin{letter}", *PROJECTION, lane=letter, X=x, W=part.weight, b=part.bias):
            B, T, _ = x.shape
            y: Tensor = part(x).reshape(B, T, self.n_heads, self.d_k).transpose(1, 2)
        viz.tag(y, letter, axes="B h n_q d_k" if letter == "Q" else "B h n_k d_k")
        return y

    def _tag(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Tell a drawing the paper's names; in self-attention key is query: both are X, their lengths n."""
        viz.tag(query, "X", axes="B n_q d")
        viz.tag(key, "Z", axes="B n_k d")
        viz.tag(value, "Z_V", axes="B n_k d")
        for letter, projection in zip("QKVO", self.children(), strict=True):
            viz.tag(projection.weight, f"W^{letter}", axes="d d", transposed=True)
            viz.tag(projection.bias, f"b_{letter}", axes="d")

    def heads(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Each head's (W_i^Q, W_i^K, W_i^V) as in the paper, views of the weights.

        Shapes: (d_model, d_k) each
        Source: the paper, §3.2.2.
        """
        for i in range(self.n_heads):
            columns = slice(i * self.d_k, (i + 1) * self.d_k)
            yield tuple(p.weight.T[:, columns] for p in (self.q_proj, self.k_proj, self.v_proj))  # type: ignore[misc]

    def forward_per_head(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The textbook's form: h heads of width d_model/h, concatenated, times W^O. Equal to `forward`.

        Shapes: as `forward`; each head's Q_i is (B, T, d_k).
        Raises: ValueError for shapes that do not fit, with both shapes, and for a mask that could be two, as
        `forward`.
        Source: the paper, §3.2.2; the lecture, multi-head attention.
        """
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value)
        if viz.is_recording():
            self._tag(query, key, value)
        mask = self._mask(query, key, mask, is_causal=False)
        masks = (None,) if mask is None else mask.unbind(1)  # one for all heads, or one for each
        heads, p = [], self.dropout if self.training else 0.0
        for i in range(self.n_heads):
            with viz.fold("head", title=f"head_{i + 1}", index=i + 1, H="head"):
                if len(masks) > 1:
                    viz.tag(masks[i], "M")
                Q, K, V = (self._head(i, *part) for part in zip("QKV", (query, key, value), strict=True))
                heads.append(scaled_dot_product_attention(Q, K, V, masks[i % len(masks)], p)[0])
        names = {f"H{i}": head for i, head in enumerate(heads, 1)}  # (B, T, d_v) each
        back = (f"d{H} = columns(dC, {H[1:]})" for H in names)
        with viz.fold("concat", f"C = Concat({', '.join(names)})", *back, lane="O") as line:
            line.names(**names)
            concat = mt.cat(heads, -1)  # (B, T, C)
        return self._project(concat)

    def _head(self, i: int, letter: str, x: Tensor) -> Tensor:
        """Q_i = X W_i^Q + b_Q,i, say: (B, T, d_model) → (B, T, d_k)"""
        part = self.get_submodule(f"{letter.lower()}_proj")
        columns = slice(i * self.d_k, (i + 1) * self.d_k)
        with viz.fold(f"lin{letter}", *HEAD, lane=letter, X=x) as line:
            W, b = part.weight.T[:, columns], None if part.bias is None else part.bias[columns]
            y: Tensor = x @ W if b is None else x @ W + b
            line.names(W=W, b=b)
        viz.tag(W, f"W^{letter}", axes="d d_k")
        viz.tag(b, f"b_{letter}", axes="d_k")
        viz.tag(y, letter, axes="B n_q d_k" if letter == "Q" else "B n_k d_k")
        return y

    # --- checks ---------------------------------------------------------------------------------------------

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x.ndim != 3 or x.shape[2] != self.d_model:
                raise ValueError(f"MultiHeadAttention: {name} has shape {x.shape}, d_model is "
                                 f"{self.d_model}; give (B, T, {self.d_model}), or build it with the width "
                                 f"that you have")  # fmt: skip
            if x.shape[0] != query.shape[0]:
                raise ValueError(f"MultiHeadAttention: {name} {x.shape} and query {query.shape} differ in "
                                 f"batch size; make their first axes equal")  # fmt: skip
        if key.shape[1] != value.shape[1]:
            raise ValueError(f"MultiHeadAttention: key {key.shape} and value {value.shape} differ in length; "
                             f"give one value for each key")  # fmt: skip

    def _mask(
        self, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, past: int = 0
    ) -> Tensor | None:
        """The mask as four axes that broadcast to (B, H, T, S); S counts `past` positions before the keys."""
        T, S = query.shape[1], past + key.shape[1]
        want = (query.shape[0], self.n_heads, T, S)
        if mask is not None:
            mask = four_axes("MultiHeadAttention", mask, want)
        if not is_causal:
            return mask
        if mask is not None and mask.dtype != mt.bool:
            raise TypeError(f"MultiHeadAttention: is_causal beside a {mask.dtype} mask; put −inf into that "
                            f"mask")  # fmt: skip
        if past + T != S:
            raise ValueError(f"MultiHeadAttention: is_causal with {T} queries and {S} keys; it needs as many "
                             f"of each")  # fmt: skip
        # the only query sees all that was read
        return mask if T == 1 and past else combine_masks(causal_mask(T, past)[None, None], mask)
