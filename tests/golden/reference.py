"""The reference that the golden pack is written by: textbook forwards in loops, gradients by differences.

It shares nothing with microtensor: NumPy arrays in float64, a loop where the equation has an index, and no
derivative anywhere. Every gradient in the pack is a difference quotient of these forwards. Read it beside the
paper. `python tests/golden/reference.py` writes the pack again (some minutes).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Parameters = dict[str, Array]

PACK = Path(__file__).resolve().parents[2] / "microtensor" / "testing" / "golden"
EPS = 1e-5  # of every LayerNorm
DIGITS = 10  # after the point: differences are right to about 1e-11, so more digits would be noise
FIRST = 22  # the number of a case's first array: with 0 to 21 something comes too near the kink of a ReLU
H = 1 / 4096  # the smallest step of the differences; a power of two, so that x ± H loses next to nothing


# --- the numbers that go in ---------------------------------------------------------------------------------


def numbers(n: int, shape: tuple[int, ...], scale: float = 1.0, shift: float = 0.0) -> Array:
    """Array number n: shift + scale · x, x_i = ((31 i² + (17 n + 57) i + 89 n) mod 1999 − 999)/1000.

    i counts the elements, the last axis fastest. 1999 is prime: no row is like another. Three digits, so that
    every language has the same number; no generator, so that every language can make it.
    """
    values = [(31 * i * i + (17 * n + 57) * i + 89 * n) % 1999 - 999 for i in range(math.prod(shape))]
    return np.array([round(shift + scale * v / 1000, 6) for v in values]).reshape(shape)


# --- functions ----------------------------------------------------------------------------------------------


def rows(x: Array) -> Iterator[tuple[int, ...]]:
    """Where the vectors along the last axis are."""
    return np.ndindex(x.shape[:-1])


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """y_o = Σ_i x_i W_oi + b_o"""
    y = np.zeros((*x.shape[:-1], len(weight)))
    for at in rows(x):
        for o in range(len(weight)):
            y[(*at, o)] = x[at] @ weight[o] + (0.0 if bias is None else bias[o])
    return y


def embedding(ids: Array, weight: Array) -> Array:
    """y = the row of the table that the id names"""
    y = np.zeros((*ids.shape, weight.shape[1]))
    for at in np.ndindex(ids.shape):
        y[at] = weight[ids[at]]
    return y


def layer_norm(x: Array, weight: Array, bias: Array, eps: float = EPS) -> Array:
    """y = w · (x − μ)/√(σ² + eps) + b; σ² divides by C"""
    y = np.zeros(x.shape)
    for at in rows(x):
        C = len(x[at])
        mean = sum(x[at]) / C
        variance = sum((v - mean) ** 2 for v in x[at]) / C
        for c in range(C):
            y[(*at, c)] = weight[c] * (x[(*at, c)] - mean) / math.sqrt(variance + eps) + bias[c]
    return y


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """y = w · x/√(mean of x² + eps)"""
    y = np.zeros(x.shape)
    for at in rows(x):
        size = math.sqrt(sum(v * v for v in x[at]) / len(x[at]) + eps)
        y[at] = [w * v / size for w, v in zip(weight, x[at], strict=True)]
    return y


def relu(x: Array) -> Array:
    """max(0, x)"""
    return each(lambda v: max(0.0, v), x)


def gelu(x: Array, approximate: str = "none") -> Array:
    """x Φ(x); "tanh": Φ(x) ≈ (1 + tanh(√(2/π)(x + 0.044715 x³)))/2"""
    if approximate == "tanh":
        u = math.sqrt(2 / math.pi)
        return each(lambda v: v * (1 + math.tanh(u * (v + 0.044715 * v**3))) / 2, x)
    return each(lambda v: v * (1 + math.erf(v / math.sqrt(2))) / 2, x)


def tanh(x: Array) -> Array:
    """(eˣ − e⁻ˣ)/(eˣ + e⁻ˣ)"""
    return each(lambda v: (math.exp(v) - math.exp(-v)) / (math.exp(v) + math.exp(-v)), x)


def sigmoid(x: Array) -> Array:
    """1/(1 + e⁻ˣ)"""
    return each(lambda v: 1 / (1 + math.exp(-v)), x)


def silu(x: Array) -> Array:
    """x/(1 + e⁻ˣ)"""
    return each(lambda v: v / (1 + math.exp(-v)), x)


def softplus(x: Array) -> Array:
    """ln(1 + eˣ)"""
    return each(lambda v: math.log(1 + math.exp(v)), x)


def each(function: Callable[[float], float], x: Array) -> Array:
    """The function of every element."""
    y = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        y[at] = function(float(x[at]))
    return y


def softmax(x: Array, dim: int = -1) -> Array:
    """e^x_i / Σ_j e^x_j; a row of nothing but −∞ gives zeros"""
    x = np.moveaxis(x, dim, -1)
    y = np.zeros(x.shape)
    for at in rows(x):
        top = max(x[at])
        if top > -math.inf:
            e = [math.exp(v - top) for v in x[at]]
            y[at] = [v / sum(e) for v in e]
    return np.moveaxis(y, -1, dim)


def log_softmax(x: Array, dim: int = -1) -> Array:
    """x_i − ln Σ_j e^x_j"""
    x = np.moveaxis(x, dim, -1)
    y = np.zeros(x.shape)
    for at in rows(x):
        y[at] = x[at] - math.log(sum(math.exp(v) for v in x[at]))
    return np.moveaxis(y, -1, dim)


def dropout(x: Array, p: float, training: bool) -> Array:
    """x, because it is off: what is drawn when it is on is no reference for anybody"""
    assert not training
    return x + 0.0


def cross_entropy(
    logits: Array, target: Array, label_smoothing: float = 0.0, ignore_index: int = -100
) -> Array:
    """The mean over the targets that count of −Σ_c q_c ln softmax(x)_c, q = (1 − ε) at the target + ε/C"""
    losses = []
    log_p = log_softmax(logits)
    for n, wanted in enumerate(target):
        if wanted != ignore_index:
            smooth = sum(log_p[n]) / logits.shape[1]
            losses.append(-(1 - label_smoothing) * log_p[n, wanted] - label_smoothing * smooth)
    return np.array(sum(losses) / len(losses))


def nll_loss(log_p: Array, target: Array) -> Array:
    """The mean of −ln p at the target"""
    return np.array(sum(-log_p[n, wanted] for n, wanted in enumerate(target)) / len(target))


def mse_loss(x: Array, target: Array) -> Array:
    """The mean of (x − target)²"""
    return np.array(sum((a - b) ** 2 for a, b in zip(x.flat, target.flat, strict=True)) / x.size)


def scaled_dot_product_attention(Q: Array, K: Array, V: Array, mask: Array | None = None) -> Array:
    """y_t = Σ_s a_ts V_s, a_t = softmax_s(Q_t · K_s / √d_k); True = may attend, numbers are added"""
    T, S = Q.shape[-2], K.shape[-2]
    y = np.zeros((*Q.shape[:-1], V.shape[-1]))
    if mask is not None:
        mask = np.broadcast_to(mask, (*Q.shape[:-1], S))
    for at in np.ndindex(Q.shape[:-2]):
        for t in range(T):
            scores = np.zeros(S)
            for s in range(S):
                scores[s] = Q[at][t] @ K[at][s] / math.sqrt(Q.shape[-1])
                if mask is not None and mask.dtype == bool:
                    scores[s] = scores[s] if mask[at][t, s] else -math.inf
                elif mask is not None:
                    scores[s] += mask[at][t, s]
            a = softmax(scores)
            for s in range(S):
                y[at][t] += a[s] * V[at][s]
    return y


def sinusoid(p: int, i: int, d_model: int) -> float:
    """PE(p, 2j) = sin(p / 10000^(2j/d)), PE(p, 2j + 1) = cos of the same"""
    angle = p / 10000 ** ((i - i % 2) / d_model)
    return math.cos(angle) if i % 2 else math.sin(angle)


def positional_encoding(x: Array) -> Array:
    """x_p + PE_p"""
    y = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        y[at] = x[at] + sinusoid(at[-2], at[-1], x.shape[-1])
    return y


# --- layers: p holds their parameters by name ---------------------------------------------------------------


def part(p: Parameters, prefix: str) -> Parameters:
    """The parameters whose names begin so, without that beginning."""
    return {name[len(prefix) + 1 :]: x for name, x in p.items() if name.startswith(prefix + ".")}


def multi_head_attention(
    p: Parameters,
    query: Array,
    key: Array | None = None,
    mask: Array | None = None,
    *,
    n_heads: int,
) -> Array:
    """Concat(head_1 … head_h) W^O, head i from columns i·d_k … of the projections; value = key"""
    key = query if key is None else key
    Q, K, V = (
        linear(x, p[f"{name}.weight"], p[f"{name}.bias"])
        for name, x in (("q_proj", query), ("k_proj", key), ("v_proj", key))
    )
    d_k = Q.shape[-1] // n_heads
    concat = np.zeros(Q.shape)
    for b in range(len(Q)):
        for i in range(n_heads):
            columns = slice(i * d_k, (i + 1) * d_k)
            own = None if mask is None else mask_of(mask, b)
            head = scaled_dot_product_attention(Q[b][:, columns], K[b][:, columns], V[b][:, columns], own)
            concat[b][:, columns] = head
    return linear(concat, p["out_proj.weight"], p["out_proj.bias"])


def mask_of(mask: Array, b: int) -> Array:
    """(T, S) of item b: a mask of two axes is everyone's, one of four is (B, 1, T or 1, S)"""
    return mask if mask.ndim == 2 else mask[b, 0]


def feed_forward(p: Parameters, x: Array, activation: str = "relu") -> Array:
    """max(0, x W_1 + b_1) W_2 + b_2, or GELU in the place of max(0, ·)"""
    hidden = linear(x, p["linear1.weight"], p["linear1.bias"])
    hidden = relu(hidden) if activation == "relu" else gelu(hidden)
    return linear(hidden, p["linear2.weight"], p["linear2.bias"])


def sublayer(p: Parameters, x: Array, function: Callable[[Array], Array], norm: str) -> Array:
    """post: LayerNorm(x + f(x)); pre: x + f(LayerNorm(x))"""
    w, b = p["norm.weight"], p["norm.bias"]
    return x + function(layer_norm(x, w, b)) if norm == "pre" else layer_norm(x + function(x), w, b)


def encoder_layer(
    p: Parameters, x: Array, mask: Array | None = None, *, n_heads: int, activation: str, norm: str
) -> Array:
    """Self-attention, then the feed-forward net"""
    attend, feed = part(p, "self_attention"), part(p, "feed_forward")
    x = sublayer(
        part(p, "sublayer1"), x, lambda h: multi_head_attention(attend, h, None, mask, n_heads=n_heads), norm
    )
    return sublayer(part(p, "sublayer2"), x, lambda h: feed_forward(feed, h, activation), norm)


def decoder_layer(
    p: Parameters,
    x: Array,
    memory: Array,
    tgt_mask: Array | None = None,
    memory_mask: Array | None = None,
    *,
    n_heads: int,
    activation: str,
    norm: str,
) -> Array:
    """Self-attention, attention to the memory, then the feed-forward net"""
    own, cross = part(p, "self_attention"), part(p, "cross_attention")
    feed = part(p, "feed_forward")
    x = sublayer(
        part(p, "sublayer1"), x, lambda h: multi_head_attention(own, h, None, tgt_mask, n_heads=n_heads), norm
    )
    x = sublayer(
        part(p, "sublayer2"),
        x,
        lambda h: multi_head_attention(cross, h, memory, memory_mask, n_heads=n_heads),
        norm,
    )
    return sublayer(part(p, "sublayer3"), x, lambda h: feed_forward(feed, h, activation), norm)


# --- models -------------------------------------------------------------------------------------------------


def transformer(p: Parameters, src: Array, tgt: Array, **c: Any) -> Array:
    """Figure 1 of the paper; the output projection is the target embedding (§3.4)"""
    kind = {name: c[name] for name in ("n_heads", "activation", "norm")}
    B, T = tgt.shape
    src_mask = (src != c["pad_id"])[:, None, None, :]  # (B, 1, 1, S)
    tgt_mask = np.zeros((B, 1, T, T), bool)
    for b, _, t, s in np.ndindex(tgt_mask.shape):
        tgt_mask[b, 0, t, s] = s <= t and tgt[b, s] != c["pad_id"]
    root = math.sqrt(c["d_model"])
    memory = positional_encoding(embedding(src, p["src_embedding.weight"]) * root)
    for i in range(c["n_encoder_layers"]):
        memory = encoder_layer(part(p, f"encoder.layers.{i}"), memory, src_mask, **kind)
    if c["norm"] == "pre":
        memory = layer_norm(memory, p["encoder.norm.weight"], p["encoder.norm.bias"])
    x = positional_encoding(embedding(tgt, p["tgt_embedding.weight"]) * root)
    for i in range(c["n_decoder_layers"]):
        x = decoder_layer(part(p, f"decoder.layers.{i}"), x, memory, tgt_mask, src_mask, **kind)
    if c["norm"] == "pre":
        x = layer_norm(x, p["decoder.norm.weight"], p["decoder.norm.bias"])
    return linear(x, p["tgt_embedding.weight"])


def gpt(p: Parameters, idx: Array, **c: Any) -> Array:
    """GPT-2 in nanoGPT's names: learned positions, LayerNorm first, GELU by tanh, tied output"""
    T = idx.shape[1]
    causal = np.tril(np.ones((T, T), bool))
    x = embedding(idx, p["transformer.wte.weight"]) + p["transformer.wpe.weight"][:T]
    for i in range(c["n_layer"]):
        b = part(p, f"transformer.h.{i}")
        h = layer_norm(x, b["ln_1.weight"], b["ln_1.bias"])
        W, bias = np.split(b["attn.c_attn.weight"], 3), np.split(b["attn.c_attn.bias"], 3)
        split = {f"{n}_proj.weight": w for n, w in zip("qkv", W, strict=True)}
        split |= {f"{n}_proj.bias": v for n, v in zip("qkv", bias, strict=True)}
        split |= {"out_proj.weight": b["attn.c_proj.weight"], "out_proj.bias": b["attn.c_proj.bias"]}
        x = x + multi_head_attention(split, h, None, causal, n_heads=c["n_head"])
        h = layer_norm(x, b["ln_2.weight"], b["ln_2.bias"])
        h = gelu(linear(h, b["mlp.c_fc.weight"], b["mlp.c_fc.bias"]), "tanh")
        x = x + linear(h, b["mlp.c_proj.weight"], b["mlp.c_proj.bias"])
    x = layer_norm(x, p["transformer.ln_f.weight"], p["transformer.ln_f.bias"])
    return linear(x, p["transformer.wte.weight"])


def text_encoder(p: Parameters, ids: Array, token_types: Array, **c: Any) -> Array:
    """BERT without its heads: learned positions and types, LayerNorm, then post-norm layers with GELU"""
    x = embedding(ids, p["token_embedding.weight"]) + embedding(token_types, p["type_embedding.weight"])
    x = x + p["position_embedding.weight"][: ids.shape[1]]
    x = layer_norm(x, p["norm.weight"], p["norm.bias"])
    mask = (ids != c["pad_id"])[:, None, None, :]  # (B, 1, 1, S)
    kind = {"n_heads": c["n_heads"], "activation": "gelu", "norm": "post"}
    for i in range(c["n_layers"]):
        x = encoder_layer(part(p, f"encoder.layers.{i}"), x, mask, **kind)
    return x


# --- gradients ----------------------------------------------------------------------------------------------


def slope(loss: Callable[[], float], x: Array, at: tuple[int, ...]) -> tuple[float, float]:
    """d loss/d x[at] and how far it may be off: central differences, their h² removed by Richardson.

    D(h) = (loss(x + h) − loss(x − h))/2h is wrong by c h² + O(h⁴), so (4 D(h) − D(2h))/3 is wrong by O(h⁴):
    h⁴ = 4e-15 at h = H, beside which the loss's own rounding counts, 1e-16 |loss|/h or some 1e-12. The same
    from 2h is wrong by 16 times as much: a fifteenth of what the two differ by is the error.
    """
    kept = x[at]

    def central(h: float) -> float:
        x[at] = kept + h
        above = loss()
        x[at] = kept - h
        below = loss()
        x[at] = kept
        return (above - below) / (2 * h)

    one, two, four = central(H), central(2 * H), central(4 * H)
    fine, coarse = (4 * one - two) / 3, (4 * two - four) / 3
    return fine, abs(fine - coarse) / 15


# --- the cases ----------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """What goes in, and which function it goes into. Inputs and parameters are arrays, all else options."""

    function: str
    says: str
    inputs: dict[str, Array]
    parameters: Parameters
    options: dict[str, Any]
    cotangent: Array

    def output(self) -> Array:
        """The function's output, as it stands."""
        lead = [self.parameters] if self.parameters else []
        y: Array = globals()[self.function](*lead, **self.inputs, **self.options)
        return y

    def loss(self) -> float:
        """⟨cotangent, output⟩: what is differentiated. A plain sum would hide a softmax that gives zeros."""
        return float(np.sum(self.cotangent * self.output()))

    def arrays(self) -> dict[str, Array]:
        """What it is differentiated by: every floating input and every parameter."""
        floating = {name: x for name, x in self.inputs.items() if x.dtype.kind == "f"}
        return {**floating, **self.parameters}

    def gradients(self) -> dict[str, Array]:
        """By every element, each to 1e-9 at least; or an AssertionError where differences do not settle."""
        found = {}
        for name, x in self.arrays().items():
            found[name] = np.zeros(x.shape)
            for at in np.ndindex(x.shape):
                found[name][at], error = slope(self.loss, x, at)
                assert error < 1e-9, f"{self.function}: {name}{at} is off by {error:.1e}; is there a kink?"
        return found


def make(
    function: str,
    says: str,
    inputs: dict[str, Any],
    parameters: dict[str, tuple[int, ...]] | None = None,
    **options: Any,
) -> Case:
    """A case whose floating arrays are numbered 22, 23, … in the order of inputs, parameters, cotangent.

    An input is a shape, whose numbers are made, or a list of ids or of booleans. Of the parameters, weights
    of LayerNorms are 1 + x/2 and all others x/2, which keeps softmax and LayerNorm off their ends.
    """
    n = FIRST
    arrays: dict[str, Array] = {}
    for name, given in inputs.items():
        if isinstance(given, tuple):
            arrays[name] = numbers(n, given)
            n += 1
        else:
            arrays[name] = np.array(given)
    weights: Parameters = {}
    for name, shape in (parameters or {}).items():
        is_norm = name.endswith("weight") and len(shape) == 1
        weights[name] = numbers(n, shape, 0.5, 1.0 if is_norm else 0.0)
        n += 1
    case = Case(function, says, arrays, weights, options, np.zeros(()))
    return case._replace(cotangent=numbers(n, case.output().shape))


Shapes = dict[str, tuple[int, ...]]


def named(prefix: str, shapes: Shapes) -> Shapes:
    """The shapes under prefix.name."""
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def affine(prefix: str, out: int, into: int) -> Shapes:
    """A linear layer's weight and bias."""
    return named(prefix, {"weight": (out, into), "bias": (out,)})


def norm_shapes(prefix: str, C: int) -> Shapes:
    """A LayerNorm's weight and bias."""
    return named(prefix, {"weight": (C,), "bias": (C,)})


def attention_shapes(C: int) -> Shapes:
    """Four projections."""
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    return {name: shape for projection in names for name, shape in affine(projection, C, C).items()}


def layer_shapes(C: int, F: int, attentions: tuple[str, ...]) -> Shapes:
    """An encoder's layer, or with two attentions a decoder's."""
    shapes: Shapes = {}
    for attention in attentions:
        shapes |= named(attention, attention_shapes(C))
    shapes |= affine("feed_forward.linear1", F, C) | affine("feed_forward.linear2", C, F)
    for i in range(len(attentions) + 1):
        shapes |= norm_shapes(f"sublayer{i + 1}.norm", C)
    return shapes


def transformer_shapes(c: dict[str, Any]) -> Shapes:
    """The encoder–decoder with its output tied to the target embedding."""
    C, F = c["d_model"], c["d_ff"]
    shapes: Shapes = {"tgt_embedding.weight": (c["tgt_vocab_size"], C)}
    shapes["src_embedding.weight"] = (c["src_vocab_size"], C)
    for side, attentions in (
        ("encoder", ("self_attention",)),
        ("decoder", ("self_attention", "cross_attention")),
    ):
        for i in range(c[f"n_{side}_layers"]):
            shapes |= named(f"{side}.layers.{i}", layer_shapes(C, F, attentions))
        if c["norm"] == "pre":
            shapes |= norm_shapes(f"{side}.norm", C)
    return shapes


def gpt_shapes(c: dict[str, Any]) -> Shapes:
    """GPT-2 with its output tied to the token embedding."""
    C = c["n_embd"]
    shapes: Shapes = {
        "transformer.wte.weight": (c["vocab_size"], C),
        "transformer.wpe.weight": (c["block_size"], C),
    }
    for i in range(c["n_layer"]):
        block = norm_shapes("ln_1", C) | affine("attn.c_attn", 3 * C, C) | affine("attn.c_proj", C, C)
        block |= norm_shapes("ln_2", C) | affine("mlp.c_fc", 4 * C, C) | affine("mlp.c_proj", C, 4 * C)
        shapes |= named(f"transformer.h.{i}", block)
    return shapes | norm_shapes("transformer.ln_f", C)


def text_encoder_shapes(c: dict[str, Any]) -> Shapes:
    """BERT without its heads."""
    C, rows = c["d_model"], {"token": c["vocab_size"], "position": c["max_len"], "type": c["n_types"]}
    shapes: Shapes = {f"{name}_embedding.weight": (n, C) for name, n in rows.items()}
    shapes |= norm_shapes("norm", C)
    for i in range(c["n_layers"]):
        shapes |= named(f"encoder.layers.{i}", layer_shapes(C, c["d_ff"], ("self_attention",)))
    return shapes


CAUSAL = [[s <= t for s in range(3)] for t in range(3)]
PADDED = [[[[True, True, True, True]]], [[[True, True, False, False]]]]  # (B, 1, 1, S)
BLIND = [[True, False, True, True], [False] * 4, [False, False, True, False]]  # query 1 sees nothing
SRC, TGT = [[3, 5, 4, 6], [6, 3, 0, 0]], [[1, 4, 8], [1, 7, 0]]  # 0 is padding


def function_cases() -> dict[str, Case]:
    """Functions without parameters of their own."""
    Q, K, V = (2, 3, 4), (2, 4, 4), (2, 4, 5)
    attend = "scaled_dot_product_attention"
    says = "softmax(Q Kᵀ/√d_k) V"
    return {
        "linear": make("linear", "x Wᵀ + b", {"x": (2, 3, 4), "weight": (5, 4), "bias": (5,)}),
        "embedding": make(
            "embedding", "rows by id; ids repeat", {"ids": [[1, 4, 1], [0, 1, 2]], "weight": (5, 3)}
        ),
        "layer_norm": make(
            "layer_norm",
            "w (x − μ)/√(σ² + eps) + b, σ² divides by C",
            {"x": (2, 3, 5), "weight": (5,), "bias": (5,)},
            eps=EPS,
        ),
        "rms_norm": make("rms_norm", "w x/√(mean x² + eps)", {"x": (2, 3, 5), "weight": (5,)}, eps=EPS),
        "relu": make("relu", "max(0, x)", {"x": (3, 4)}),
        "tanh": make("tanh", "tanh x", {"x": (3, 4)}),
        "sigmoid": make("sigmoid", "1/(1 + e⁻ˣ)", {"x": (3, 4)}),
        "silu": make("silu", "x/(1 + e⁻ˣ)", {"x": (3, 4)}),
        "softplus": make("softplus", "ln(1 + eˣ)", {"x": (3, 4)}),
        "gelu": make("gelu", "x Φ(x)", {"x": (3, 4)}, approximate="none"),
        "gelu_tanh": make("gelu", "x Φ(x), Φ by tanh", {"x": (3, 4)}, approximate="tanh"),
        "softmax": make("softmax", "along the last axis", {"x": (2, 3, 4)}, dim=-1),
        "softmax_middle": make("softmax", "along the middle axis", {"x": (2, 3, 4)}, dim=1),
        "log_softmax": make("log_softmax", "along the last axis", {"x": (2, 3, 4)}, dim=-1),
        "dropout_off": make("dropout", "in evaluation it is x", {"x": (3, 4)}, p=0.5, training=False),
        "nll_loss": make(
            "nll_loss", "the mean of −x at the target", {"log_p": (4, 5), "target": [2, 0, 4, 1]}
        ),
        "mse_loss": make("mse_loss", "the mean of (x − target)²", {"x": (3, 4), "target": (3, 4)}),
        "cross_entropy": make(
            "cross_entropy", "the mean of −ln p", {"logits": (4, 5), "target": [2, 0, 4, 1]}
        ),
        "cross_entropy_smoothed": make(
            "cross_entropy",
            "smoothed, without the targets −100",
            {"logits": (5, 4), "target": [2, -100, 0, 3, -100]},
            label_smoothing=0.1,
            ignore_index=-100,
        ),
        "attention": make(attend, says, {"Q": Q, "K": K, "V": V}),
        "attention_heads": make(attend, says + ", (B, H, T, d)", dict.fromkeys("QKV", (2, 2, 3, 3))),
        "attention_causal": make(
            attend, "True = may attend", dict.fromkeys("QKV", (2, 3, 4)) | {"mask": CAUSAL}
        ),
        "attention_blind": make(
            attend, "query 1 may attend to nothing: zeros", {"Q": Q, "K": K, "V": V, "mask": BLIND}
        ),
        "attention_added": make(
            attend, "a mask of numbers is added to the scores", {"Q": Q, "K": K, "V": V, "mask": (2, 3, 4)}
        ),
        "positional_encoding": make(
            "positional_encoding", "x + PE, sine and cosine interleaved", {"x": (2, 5, 6)}
        ),
        "positional_encoding_odd": make(
            "positional_encoding", "an odd width ends in a sine", {"x": (1, 4, 5)}
        ),
    }


def layer_cases() -> dict[str, Case]:
    """Layers: width 6, 2 heads, hidden width 10."""
    C, F, x, memory = 6, 10, (2, 3, 6), (2, 4, 6)
    attend, own = attention_shapes(C), ("self_attention",)
    feed = affine("linear1", F, C) | affine("linear2", C, F)
    cases = {
        "multi_head_attention": make(
            "multi_head_attention", "self-attention", {"query": x}, attend, n_heads=2
        ),
        "multi_head_attention_causal": make(
            "multi_head_attention", "a mask (T, T)", {"query": x, "mask": CAUSAL}, attend, n_heads=2
        ),
        "multi_head_attention_cross": make(
            "multi_head_attention",
            "value = key; a mask (B, 1, 1, S)",
            {"query": x, "key": memory, "mask": PADDED},
            attend,
            n_heads=3,
        ),
    }
    for activation in ("relu", "gelu"):
        cases[f"feed_forward_{activation}"] = make(
            "feed_forward", "f(x W_1 + b_1) W_2 + b_2", {"x": x}, feed, activation=activation
        )
    for norm, activation in (("post", "relu"), ("pre", "gelu")):
        kind = {"n_heads": 2, "activation": activation, "norm": norm}
        cases[f"encoder_layer_{norm}"] = make(
            "encoder_layer",
            f"{norm}-norm, {activation}; a mask (B, 1, 1, S)",
            {"x": memory, "mask": PADDED},
            layer_shapes(C, F, own),
            **kind,
        )
        cases[f"decoder_layer_{norm}"] = make(
            "decoder_layer",
            f"{norm}-norm, {activation}; causal and padded",
            {"x": x, "memory": memory, "tgt_mask": CAUSAL, "memory_mask": PADDED},
            layer_shapes(C, F, (*own, "cross_attention")),
            **kind,
        )
    return cases


def model_cases() -> dict[str, Case]:
    """The encoder–decoder in both forms, and GPT-2."""
    cases = {}
    for norm, activation, layers in (("post", "relu", 2), ("pre", "gelu", 1)):
        c = {"src_vocab_size": 7, "tgt_vocab_size": 9, "d_model": 6, "n_heads": 2, "d_ff": 10}
        c |= {"n_encoder_layers": layers, "n_decoder_layers": layers, "norm": norm}
        c |= {"activation": activation, "pad_id": 0}
        says = f"{norm}-norm, {activation}, {layers} + {layers} layers, padded; output = target embedding"
        cases[f"transformer_{norm}"] = make(
            "transformer", says, {"src": SRC, "tgt": TGT}, transformer_shapes(c), **c
        )
    c = {"vocab_size": 8, "block_size": 6, "n_embd": 6, "n_head": 2, "n_layer": 2}
    says = "GPT-2 of 2 layers; output = token embedding"
    cases["gpt"] = make("gpt", says, {"idx": [[3, 1, 7, 1], [0, 5, 5, 2]]}, gpt_shapes(c), **c)
    c = {"vocab_size": 8, "max_len": 5, "n_types": 2, "d_model": 6, "n_heads": 2, "d_ff": 10, "n_layers": 1}
    c |= {"eps": EPS, "pad_id": 0}
    inputs = {"ids": [[3, 1, 7, 1], [5, 2, 0, 0]], "token_types": [[0, 0, 1, 1], [0, 1, 0, 0]]}
    says = "BERT of one layer without its heads, padded"
    cases["text_encoder"] = make("text_encoder", says, inputs, text_encoder_shapes(c), **c)
    return cases


def cases() -> dict[str, Case]:
    """All of the pack by name."""
    return function_cases() | layer_cases() | model_cases()


# --- writing ------------------------------------------------------------------------------------------------


def as_lists(arrays: dict[str, Array]) -> dict[str, Any]:
    """Nested lists of numbers with DIGITS digits; −0.0 is 0.0."""
    return {
        name: ((np.round(x, DIGITS) + 0.0) if x.dtype.kind == "f" else x).tolist()
        for name, x in arrays.items()
    }


def as_text(name: str, case: Case) -> str:
    """The JSON of a case."""
    content = {"case": name, "function": case.function, "says": case.says, "options": case.options}
    content |= {"inputs": as_lists(case.inputs), "parameters": as_lists(case.parameters)}
    content |= as_lists({"cotangent": case.cotangent, "output": case.output()})
    content["gradients"] = as_lists(case.gradients())
    parts = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, separators=(',', ':'))}"
             for k, v in content.items())  # fmt: skip
    return "{" + ",\n".join(parts) + "}\n"


def write(wanted: list[str]) -> None:
    """The files of the named cases, or of all."""
    every = cases()
    for name in wanted or every:
        (PACK / f"{name}.json").write_text(as_text(name, every[name]), encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1:])
