"""Masks: what each number of axes means, what is refused, and that a row which sees nothing gives zeros."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import microtensor as mt
import microtensor.nn.functional as F
from models import (
    EncoderLayer,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    causal_mask,
    combine_masks,
    explain_mask,
    padding_mask,
    scaled_dot_product_attention,
)
from models.masks import four_axes

seeds = st.integers(0, 2**32 - 1)


def normal(seed, *shape, dtype=np.float64):
    return mt.tensor(np.random.default_rng(seed).normal(size=shape).astype(dtype), requires_grad=True)


def drawn(seed, *shape, share=0.6):
    return np.random.default_rng(seed).random(shape) < share


def meaning(mask, B, H, T, S):
    """The issue's list of shapes, spelled out: what each element of (B, H, T, S) is."""
    at = {
        1: lambda b, h, t, s: mask[s],
        2: lambda b, h, t, s: mask[t % len(mask), s] if len(mask) in (1, T) else mask[b, s],
        3: lambda b, h, t, s: mask[b % len(mask), t % mask.shape[1], s],
        4: lambda b, h, t, s: mask[b % len(mask), h % mask.shape[1], t % mask.shape[2], s],
    }[mask.ndim]
    return np.array(
        [[[[at(b, h, t, s) for s in range(S)] for t in range(T)] for h in range(H)] for b in range(B)], bool
    )


SHAPES = [(4,), (2, 4), (3, 4), (1, 4), (2, 3, 4), (2, 1, 4), (1, 3, 4), (2, 5, 3, 4), (2, 1, 1, 4)]
SHAPES += [(1, 5, 1, 4)]
UNFIT = [(), (3,), (4, 3), (5, 4), (3, 3, 4), (5, 3, 4), (2, 3, 3, 4), (1, 2, 5, 3, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_one_to_four_axes_mean_what_they_are_listed_to_mean(shape):
    mask = drawn(1, *shape)
    found = four_axes("x", mt.tensor(mask), (2, 5, 3, 4)).expand(2, 5, 3, 4)
    np.testing.assert_array_equal(found.numpy(), meaning(mask, 2, 5, 3, 4))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["bool", "added"])
def test_attention_takes_each_of_them(shape, kind):
    layer = MultiHeadAttention(10, 5).double()
    x, memory = normal(0, 2, 3, 10), normal(1, 2, 4, 10)
    mask, full = drawn(2, *shape), meaning(drawn(2, *shape), 2, 5, 3, 4)
    given_mask = mt.tensor(mask if kind == "bool" else np.where(mask, 0.0, -np.inf))
    want = layer(x, memory, mask=mt.tensor(full)).detach().array
    # the same sums, by the compiled kernel or one head after the other
    np.testing.assert_allclose(layer(x, memory, mask=given_mask).detach().array, want, rtol=1e-12, atol=1e-14)
    per_head = layer.forward_per_head(x, memory, mask=given_mask).detach().array
    np.testing.assert_allclose(per_head, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", UNFIT)
def test_a_mask_that_fits_nowhere_is_refused_with_both_shapes_and_the_cure(shape):
    layer = MultiHeadAttention(10, 5)
    with pytest.raises(
        ValueError, match=r"mask of shape .* \(2, 5, 3, 4\).*; give \(S,\), \(B, S\)"
    ) as error:
        layer(mt.randn(2, 3, 10), mt.randn(2, 4, 10), mask=mt.ones(shape, dtype=mt.bool))
    assert str(shape) in str(error.value)


def test_two_axes_that_could_be_queries_or_batch_are_refused_unless_it_does_not_matter():
    """Else the meaning of a program would change with the size of its batch."""
    layer, x = MultiHeadAttention(8, 2).double(), normal(0, 3, 3, 8)
    lengths = mt.tensor([[True, True, False], [True, False, False], [True, True, True]])
    cures = r".*mask\[None\].*mask\[:, None\]"
    with pytest.raises(ValueError, match=r"\(3, 3\) is \(T, S\) as well as \(B, S\)" + cures):
        layer(x, mask=lengths)
    as_keys, as_queries = layer(x, mask=lengths[:, None]), layer(x, mask=lengths[None])
    assert (as_keys == layer(x, mask=lengths[:, None, None, :])).all()
    assert (as_queries == layer(x, mask=lengths[None, None])).all()
    assert not (as_keys == as_queries).all()
    every = mt.tensor([[True, False, True]] * 3)  # each row the same: either reading is the same
    assert (layer(x, mask=every) == layer(x, mask=every[0])).all()
    added = mt.zeros(3, 3).masked_fill(~lengths, -math.inf)
    with pytest.raises(ValueError, match=r"as well as \(B, S\)"):
        layer(x, mask=added)


def test_the_causal_mask_is_never_taken_for_the_keys_of_a_batch():
    layer = MultiHeadAttention(8, 2).double()
    for B in (1, 2, 3, 4):
        x, mask = normal(0, B, 3, 8), causal_mask(3)
        want = layer(x, mask=mask[None, None])
        assert (layer(x, mask=mask) == want).all()
        added = mt.zeros(3, 3).masked_fill(~mask, -math.inf)
        # a float mask goes through other instructions of the kernel
        np.testing.assert_allclose(
            layer(x, mask=added).detach().array, want.detach().array, rtol=1e-12, atol=1e-14
        )


@pytest.mark.parametrize(
    ("mask", "kind", "text"),
    [
        (mt.ones(3, 3, dtype=mt.int64), TypeError, "the mask is int64; make it boolean"),
        (mt.ones(3, 3), ValueError, "hides nothing; make it boolean"),
        (mt.full((3, 3), math.nan), ValueError, "holds NaN"),
        ([[True] * 3] * 3, TypeError, "mask is list; give a tensor"),
        (np.ones((3, 3), bool), TypeError, "mask is ndarray; give a tensor"),
    ],
    ids=["integers", "zeros and ones", "NaN", "a list", "an array"],
)
def test_what_is_no_mask_is_refused_everywhere(mask, kind, text):
    layer, x = MultiHeadAttention(8, 2), mt.randn(2, 3, 8)
    for attend in (
        lambda: layer(x, mask=mask),
        lambda: layer.forward_per_head(x, mask=mask),
        lambda: scaled_dot_product_attention(x, x, x, mask),
        lambda: F.scaled_dot_product_attention(x, x, x, mask),
        lambda: explain_mask(mask, "abc"),
    ):
        with pytest.raises(kind, match=text):
            attend()


def test_causal_attention_needs_a_key_for_each_query():
    layer, x = MultiHeadAttention(8, 2), mt.randn(2, 3, 8)
    with pytest.raises(ValueError, match=r"is_causal with 3 queries and 4 keys; it needs as many of each"):
        layer(x, mt.randn(2, 4, 8), is_causal=True)
    with pytest.raises(TypeError, match=r"is_causal beside a float32 mask; put −inf into that mask"):
        layer(x, mask=mt.zeros(3, 3), is_causal=True)


@pytest.mark.parametrize("attend", [scaled_dot_product_attention, F.scaled_dot_product_attention])
@pytest.mark.parametrize("shape", [(4, 3), (3, 3, 3), (3, 2, 3, 3)])
@pytest.mark.parametrize("make", [lambda shape: mt.ones(shape, dtype=mt.bool), mt.zeros])
def test_the_equation_refuses_shapes_that_do_not_broadcast_to_its_scores(attend, shape, make):
    """(3, 2, 3, 3) broadcasts with them, but would make three batches of one."""
    x = mt.randn(2, 3, 8)
    with pytest.raises(ValueError, match=r"mask .* the scores .*\(2, 3, 3\); from the right") as error:
        attend(x, x, x, make(shape))
    assert str(shape) in str(error.value)


def test_a_source_mask_of_two_axes_is_that_of_the_batch_in_encoder_and_decoder():
    mt.manual_seed(0)
    sizes = {
        "d_model": 8,
        "n_heads": 2,
        "n_encoder_layers": 1,
        "n_decoder_layers": 1,
        "d_ff": 16,
        "dropout": 0.0,
    }
    model = Transformer(TransformerConfig(9, 9, **sizes)).double()
    for B, S, T in ((2, 4, 3), (3, 4, 3), (4, 4, 3), (3, 3, 3), (2, 2, 2)):
        src, tgt = mt.tensor(np.random.default_rng(B).integers(0, 3, (B, S))), mt.full((B, T), 5)
        src[:, 0] = 4
        assert (model(src, tgt, src != 0) == model(src, tgt)).all()


def test_masks_are_made_of_what_can_be_counted():
    assert causal_mask(2, past=1).tolist() == [[True, True, False], [True, True, True]]
    assert causal_mask(0).shape == (0, 0)
    for T, past in ((-1, 0), (2, -1), (2.0, 0)):
        with pytest.raises(ValueError, match=rf"causal_mask: T is {T}, past {past}; count"):
            causal_mask(T, past)
    with pytest.raises(TypeError, match=r"padding_mask: ids are float32; give token ids"):
        padding_mask(mt.ones(2, 3), 0)
    with pytest.raises(TypeError, match=r"padding_mask: ids are bool.*mask\[:, None, None, :\]"):
        padding_mask(mt.ones(2, 3).bool(), 0)


# --- masks together -----------------------------------------------------------------------------------------


@given(first=st.sampled_from(SHAPES), second=st.sampled_from(SHAPES), seed=seeds)
def test_combined_masks_let_through_what_both_let_through(first, second, seed):
    """Also (T, S) beside (B, T, S), which broadcasting by NumPy's rule would take for heads or batch."""
    one, other = drawn(seed, *first), drawn(seed + 1, *second)
    pair = {first, second} - {(2, 4)}
    if (2, 4) in (first, second) and pair <= {(3, 4), (2, 1, 4), (2, 1, 1, 4)} and pair:
        # nobody tells how many queries there are, so it may be (T, S)
        with pytest.raises(ValueError, match=r"combine_masks: .* mask\[:, None"):
            combine_masks(mt.tensor(one), mt.tensor(other))
        return
    assume({first, second} != {(2, 4), (1, 5, 1, 4)})  # which is for two queries
    both = combine_masks(mt.tensor(one), mt.tensor(other))
    found = four_axes("x", both, (2, 5, 3, 4)).expand(2, 5, 3, 4).numpy()
    want = meaning(one, 2, 5, 3, 4) & meaning(other, 2, 5, 3, 4)
    np.testing.assert_array_equal(found, want)


@given(B=st.integers(1, 4), T=st.integers(1, 4), H=st.integers(1, 3), seed=seeds)
def test_causal_and_padding_combine_for_every_size(B, T, H, seed):
    ids = np.random.default_rng(seed).integers(0, 3, (B, T))
    padding, heads = padding_mask(mt.tensor(ids), 0), drawn(seed, B, H, T, T)
    both = combine_masks(causal_mask(T), padding, mt.tensor(heads))
    want = np.tri(T, dtype=bool) & (ids != 0)[:, None, None] & heads
    np.testing.assert_array_equal(both.numpy(), want)


def test_masks_that_do_not_go_together_are_refused_with_their_shapes():
    def full(*shape):
        return mt.ones(shape, dtype=mt.bool)

    lengths = mt.tensor([[True, False, False], [True, True, True], [True, True, False]])
    with pytest.raises(ValueError, match=r"combine_masks: .*\(3, 3\) is \(T, S\) as well as \(B, S\)"):
        combine_masks(full(3, 1, 3, 3), lengths)
    with pytest.raises(ValueError, match=r"combine_masks: a mask of shape \(3, 5\) .* = \(2, 1, 3, 4\)"):
        combine_masks(full(2, 3, 4), full(3, 5))
    with pytest.raises(ValueError, match=r"combine_masks: a mask of shape \(1, 2, 2, 3, 4\)"):
        combine_masks(full(1, 2, 2, 3, 4), full(3, 4))
    with pytest.raises(ValueError, match=r"combine_masks: .* shapes \(3,\), \(4,\) do not broadcast"):
        combine_masks(full(3), full(4))
    with pytest.raises(TypeError, match=r"a mask is float32; make it boolean.* mask > -math.inf"):
        combine_masks(full(3, 3), mt.zeros(3, 3))
    with pytest.raises(TypeError, match=r"combine_masks: a mask is list; "):
        combine_masks([[True]])


# --- rows that see nothing ----------------------------------------------------------------------------------


def reference(q, k, v, allowed):
    """Each row by itself, over the keys that it may attend to; zeros if there are none."""
    y = np.zeros((*q.shape[:-1], v.shape[-1]))
    for at in np.ndindex(*q.shape[:-1]):
        keys = np.flatnonzero(allowed[at])
        if len(keys):
            scores = k[at[:-1]][keys] @ q[at] / math.sqrt(q.shape[-1])
            weights = np.exp(scores - scores.max())
            y[at] = weights @ v[at[:-1]][keys] / weights.sum()
    return y


WAYS = {
    "equation": lambda q, k, v, m: scaled_dot_product_attention(q, k, v, m)[0],
    "kernel": F.scaled_dot_product_attention,
}


@given(seed=seeds, sizes=st.tuples(*[st.integers(1, 4)] * 4), share=st.sampled_from([0.0, 0.2, 0.7]),
       way=st.sampled_from(sorted(WAYS)), added=st.booleans(), dtype=st.sampled_from(["f4", "f8"]),
       composites=st.booleans(), size=st.sampled_from([1.0, 1e4]))  # fmt: skip
def test_a_row_that_sees_nothing_gives_zeros_and_gets_none(
    seed, sizes, share, way, added, dtype, composites, size
):
    B, H, T, S = sizes
    q, k, v = (normal(seed + i, B, H, n, 3, dtype=dtype) for i, n in enumerate((T, S, S)))
    allowed = drawn(seed, B, H, T, S, share=share)
    mask = mt.tensor(np.where(allowed, 0, -np.inf).astype(dtype) if added else allowed)
    with mt.composites() if composites else mt.enable_grad():
        y = WAYS[way](q * size, k, v, mask)
        y.backward(normal(seed + 3, B, H, T, 3, dtype=dtype))
    blind, unseen = ~allowed.any(-1), ~allowed.any(-2)
    assert not y.detach().array[blind].any()
    assert not q.grad.array[blind].any()
    assert not k.grad.array[unseen].any()
    assert not v.grad.array[unseen].any()
    for g in (y.detach(), q.grad, k.grad, v.grad):
        assert np.isfinite(g.array).all()
    if size == 1.0:  # where scores are large, rounding them is enough to choose another key
        want = reference(*(x.detach().array.astype(float) for x in (q, k, v)), allowed)
        # a handful of products of numbers of order 1
        np.testing.assert_allclose(y.detach().array, want, rtol=0, atol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_layer_whose_item_is_all_padding_adds_its_bias_and_stays_finite(norm):
    mt.manual_seed(0)
    layer = EncoderLayer(8, 2, 16, dropout=0.0, norm=norm).double()
    mt.nn.init.normal_(layer.self_attention.out_proj.bias)
    x = normal(0, 2, 3, 8)
    mask = padding_mask(mt.tensor([[5, 4, 0], [0, 0, 0]]), 0)
    y = layer.self_attention(x, mask=mask)
    assert (y[1] == layer.self_attention.out_proj.bias).all()
    assert (layer.self_attention.forward_per_head(x, mask=mask)[1] == y[1]).all()
    whole = layer(x, mask)
    whole.sum().backward()
    assert np.isfinite(whole.detach().array).all()
    for p in (x, *layer.parameters()):
        assert np.isfinite(p.grad.array).all()


# --- masks in words -----------------------------------------------------------------------------------------


def test_a_mask_is_explained_for_each_item_and_head_that_differs():
    mask = mt.tensor(drawn(0, 2, 2, 1, 2))
    text = explain_mask(mask, [["a", "b"], ["c", "d"]], ["x"])
    titles = [line for line in text.split("\n") if line.endswith(":")]
    assert titles == ["item 0, head 0:", "item 0, head 1:", "item 1, head 0:", "item 1, head 1:"]
    for b in range(2):
        for h in range(2):
            row = text.split(f"item {b}, head {h}:\n")[1].split("\n")
            assert row[0].split() == [["a", "b"], ["c", "d"]][b]
            assert row[1].split() == ["x", *("■" if seen else "·" for seen in mask[b, h, 0].tolist())]


def test_rows_that_see_nothing_are_named():
    mask = mt.tensor([[False, False], [True, False], [False, False]])
    text = explain_mask(mask, "ab", ["I", "see", "\n"])
    assert text.split("\n")[-1] == (r"fully masked (zeros out, zero gradient): query 0 'I', query 2 '\\n'")
    assert "fully masked" not in explain_mask(causal_mask(2), "ab")


def test_columns_stand_below_their_tokens_in_every_script():
    tokens = ["日本", "e\u0301t\u00e9", " ", "", "x"]
    lines = explain_mask(causal_mask(5), tokens).split("\n")
    assert lines[0].split() == ["日本", "e\u0301t\u00e9", "␣", "ε", "x"]
    assert lines[5] == "x     ■     ■    ■  ■  ■"  # two columns for each of 日本, none for the accent
    assert lines[1] == "日本  ■     ·    ·  ·  ·"


def test_a_mask_of_keys_and_a_mask_to_be_added_are_explained_too():
    keys = mt.tensor([[True, False, True], [True, True, True]])
    assert explain_mask(keys, "abc").count("item") == 2
    assert explain_mask(keys[0], "abc").split("\n")[1] == "a  ■  ·  ■"
    added = mt.zeros(3, 3).masked_fill(~causal_mask(3), -math.inf)
    assert explain_mask(added, "abc") == explain_mask(causal_mask(3), "abc")


@pytest.mark.parametrize(
    ("mask", "tokens", "text"),
    [
        (causal_mask(3), "ab", r"explain_mask: a mask of shape \(3, 3\) .* = \(3, 1, 2, 2\)"),
        (causal_mask(2), [["a", "b"], ["c"]], "explain_mask: the lists of tokens differ in length; "),
        (
            mt.ones(3, 1, 1, 2).bool(),
            [["a", "b"]] * 2,
            "2 lists of tokens, 2 of queries, a mask of 3 items; ",
        ),
    ],
)
def test_tokens_that_do_not_fit_the_mask_are_refused(mask, tokens, text):
    with pytest.raises(ValueError, match=text):
        explain_mask(mask, tokens)
