"""The lecture's statements, each as a property of our code: what a student may rely on."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
from models import (
    EncoderLayer,
    MultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention,
    sinusoidal_encoding,
)

sizes = st.integers(1, 6)
seeds = st.integers(0, 2**32 - 1)


def normal(seed, *shape):
    return mt.tensor(np.random.default_rng(seed).normal(size=shape))


def attention_layer(d_model, n_heads, seed=0, **options):
    mt.manual_seed(seed)
    return MultiHeadAttention(d_model, n_heads, **options).double()


# --- scaled dot-product attention ---------------------------------------------------------------------------


@given(T=sizes, S=sizes, d=sizes, seed=seeds)
def test_rows_of_the_weights_are_distributions(T, S, d, seed):
    _, A = scaled_dot_product_attention(normal(seed, T, d), normal(seed + 1, S, d), normal(seed + 2, S, d))
    assert (A.array >= 0).all()
    np.testing.assert_allclose(A.array.sum(-1), 1.0, rtol=1e-14 * S)  # S additions, each to half an ulp


@given(T=sizes, S=sizes, d=sizes, seed=seeds, size=st.sampled_from([1.0, 1e3]))
def test_the_output_lies_in_the_convex_hull_of_the_value_rows(T, S, d, seed, size):
    """y = Σ a_s v_s with the very weights, so no projection of y leaves the range of the values."""
    V = normal(seed + 2, S, d)
    y, A = scaled_dot_product_attention(size * normal(seed, T, d), normal(seed + 1, S, d), V)
    np.testing.assert_allclose(y.array, A.array @ V.array, rtol=1e-12, atol=1e-13)
    direction = np.random.default_rng(seed).normal(size=d)
    along, values = y.array @ direction, V.array @ direction
    slack = 1e-12 * (1 + np.abs(values).max())
    assert (along >= values.min() - slack).all()
    assert (along <= values.max() + slack).all()


@pytest.mark.parametrize("d_k", [4, 64, 256])
def test_the_variance_of_a_score_is_d_k_and_1_after_scaling(d_k):
    n = 100_000
    q, k = normal(1, n, d_k), normal(2, n, d_k)
    scores = (q * k).sum(-1)
    # q·k has variance d_k and, by the central limit, nearly normal tails: the relative standard error of a
    # variance estimate is √(2/n)·√(1 + 3/d_k) < 0.6 %; five of them are 3 %
    assert scores.var().item() == pytest.approx(d_k, rel=0.03)
    assert (scores * (1 / math.sqrt(d_k))).var().item() == pytest.approx(1.0, rel=0.03)


def test_scores_are_divided_by_the_root_of_d_k():
    Q, K = normal(1, 3, 16), normal(2, 5, 16)
    _, A = scaled_dot_product_attention(Q, K, normal(3, 5, 16))
    S = Q.array @ K.array.T / 4.0
    want = np.exp(S) / np.exp(S).sum(-1, keepdims=True)
    np.testing.assert_allclose(A.array, want, rtol=1e-13)


def test_a_query_that_may_attend_to_nothing_gives_zeros_and_zero_gradients():
    Q, K, V = (normal(i, 2, 4).requires_grad_() for i in (1, 2, 3))
    mask = mt.tensor([[False, False], [True, False]])
    y, A = scaled_dot_product_attention(Q, K, V, mask)
    (y * normal(4, 2, 4)).sum().backward()
    assert (y.array[0] == 0).all()
    assert (A.array[0] == 0).all()
    assert (Q.grad.array[0] == 0).all()
    assert all(np.isfinite(t.grad.array).all() for t in (Q, K, V))


# --- multi-head attention -----------------------------------------------------------------------------------


@given(
    B=st.integers(1, 3),
    T=sizes,
    S=sizes,
    h=st.sampled_from([1, 2, 3]),
    d_k=st.integers(1, 4),
    bias=st.booleans(),
)
def test_multi_head_attention_is_its_heads_concatenated_times_W_O(B, T, S, h, d_k, bias):
    layer = attention_layer(h * d_k, h, bias=bias)
    x, memory = normal(1, B, T, h * d_k), normal(2, B, S, h * d_k)
    rows = []
    for i, (W_Q, W_K, W_V) in enumerate(layer.heads()):
        assert W_Q.shape == W_K.shape == W_V.shape == (h * d_k, d_k)
        cut = slice(i * d_k, (i + 1) * d_k)
        bias_of = [p.bias.array[cut] if bias else 0.0 for p in (layer.q_proj, layer.k_proj, layer.v_proj)]
        q, k, v = (
            a.array @ w.array + b
            for a, w, b in zip((x, memory, memory), (W_Q, W_K, W_V), bias_of, strict=True)
        )
        scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(d_k)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        rows.append(weights / weights.sum(-1, keepdims=True) @ v)
    want = np.concatenate(rows, -1) @ layer.out_proj.weight.array.T + (
        layer.out_proj.bias.array if bias else 0
    )
    np.testing.assert_allclose(layer(x, memory).detach().array, want, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(layer.forward_per_head(x, memory).detach().array, want, rtol=1e-10, atol=1e-12)


def test_both_forms_of_multi_head_attention_have_the_same_gradients_under_a_mask():
    layer = attention_layer(8, 4)
    x, g = normal(1, 2, 5, 8), normal(2, 2, 5, 8)
    mask = mt.tensor(np.random.default_rng(3).random((2, 4, 5, 5)) < 0.6)
    gradients = []
    for forward in (layer.forward, layer.forward_per_head):
        layer.zero_grad()
        forward(x, mask=mask).backward(g)
        gradients.append([p.grad.array for p in layer.parameters()])
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@given(B=st.integers(1, 3), T=sizes, h=st.sampled_from([1, 2, 4]))
def test_the_output_has_the_shape_of_the_input_so_that_layers_stack(B, T, h):
    x = normal(0, B, T, 8)
    assert attention_layer(8, h)(x).shape == x.shape
    layer = EncoderLayer(8, h, 16).double()
    assert layer(layer(x)).shape == x.shape


@given(T=st.integers(2, 7), seed=seeds)
def test_self_attention_without_positions_is_permutation_equivariant(T, seed):
    layer = attention_layer(8, 2)
    x, order = normal(seed, 1, T, 8), np.random.default_rng(seed).permutation(T)
    before, after = layer(x[:, order]).detach().array, layer(x).detach().array[:, order]
    np.testing.assert_allclose(before, after, rtol=1e-10, atol=1e-12)


def test_positions_end_the_equivariance():
    layer = attention_layer(8, 2)
    x, order = normal(0, 1, 5, 8), np.array([4, 2, 0, 1, 3])
    place = sinusoidal_encoding(5, 8).double()
    moved, stayed = layer(x[:, order] + place), layer(x + place)
    assert np.abs(moved.detach().array - stayed.detach().array[:, order]).max() > 1e-3


@given(T=st.integers(1, 6), h=st.sampled_from([1, 2, 4]), seed=seeds)
def test_the_key_bias_has_no_gradient_but_the_query_bias_has(T, h, seed):
    """b_K adds q·b_K to a whole row of scores, and softmax ignores what is added to a whole row."""
    layer = attention_layer(8, h, seed=seed % 1000)
    layer(normal(seed, 2, T + 1, 8)).backward(normal(seed + 1, 2, T + 1, 8))
    scale = max(np.abs(p.grad.array).max() for p in layer.parameters())
    assert np.abs(layer.k_proj.bias.grad.array).max() <= 1e-13 * scale  # zero but for rounding
    assert np.abs(layer.q_proj.bias.grad.array).max() > 1e-6 * scale


# --- the causal mask ----------------------------------------------------------------------------------------


@given(T=st.integers(2, 6), h=st.sampled_from([1, 2]), seed=seeds)
def test_a_causal_output_has_exactly_zero_gradient_to_later_inputs(T, h, seed):
    layer = EncoderLayer(8, h, 16, dropout=0.0).double()
    x = normal(seed, 1, T, 8).requires_grad_()
    y = layer(x, causal_mask(T))
    for t in range(T):
        g = np.zeros((1, T, 8))
        g[0, t] = np.random.default_rng(seed).normal(size=8)
        (gx,) = mt.autograd.grad(y, x, mt.tensor(g), retain_graph=True)
        assert (gx.array[0, t + 1 :] == 0).all()
        assert np.abs(gx.array[0, t]).max() > 0


def test_is_causal_is_the_causal_mask():
    layer, x = attention_layer(8, 2), normal(0, 2, 5, 8)
    assert (layer(x, is_causal=True) == layer(x, mask=causal_mask(5))).all()


# --- positions ----------------------------------------------------------------------------------------------


@given(p=st.integers(0, 200), k=st.integers(0, 50), half=st.integers(1, 32))
def test_the_encoding_of_p_plus_k_is_a_fixed_linear_function_of_the_encoding_of_p(p, k, half):
    """For each pair of dimensions it is the rotation by k·rate, the same for every p."""
    d = 2 * half
    pe = sinusoidal_encoding(p + k + 1, d).double().array
    angle = k / 10000.0 ** (np.arange(0, d, 2) / d)
    sin_p, cos_p = pe[p, 0::2], pe[p, 1::2]
    # float32 holds the table to 6e-8
    np.testing.assert_allclose(pe[p + k, 0::2], sin_p * np.cos(angle) + cos_p * np.sin(angle), atol=3e-7)
    np.testing.assert_allclose(pe[p + k, 1::2], cos_p * np.cos(angle) - sin_p * np.sin(angle), atol=3e-7)


def test_wavelengths_grow_geometrically_from_2_pi_towards_10000_times_2_pi():
    d = 512
    pe = sinusoidal_encoding(2, d).double().array
    rate = np.arctan2(pe[1, 0::2], pe[1, 1::2])  # the angle turned per position
    wavelength = 2 * math.pi / rate
    assert wavelength[0] == pytest.approx(2 * math.pi, rel=1e-6)
    assert wavelength[-1] == pytest.approx(2 * math.pi * 10000 ** (1 - 2 / d), rel=1e-3)
    np.testing.assert_allclose(wavelength[1:] / wavelength[:-1], 10000 ** (2 / d), rtol=1e-3)


@pytest.mark.parametrize("d_model", [1, 2, 3, 7, 8])
def test_sine_and_cosine_are_interleaved_for_any_width(d_model):
    pe = sinusoidal_encoding(20, d_model).array
    for p in (0, 1, 19):
        for i in range(d_model):
            angle = p / 10000 ** ((i - i % 2) / d_model)
            assert pe[p, i] == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle), abs=1e-6)
