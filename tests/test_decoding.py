"""Decoding: cached equals uncached however the text is cut; greedy, drawn and beam search do as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
from models import (
    GPT,
    GPTConfig,
    KeyValueCache,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    causal_mask,
    combine_masks,
    generate,
    greedy_decode,
    padding_mask,
)

SMALL = {"d_model": 8, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2, "d_ff": 16, "max_len": 32}
CLOSE = {"rtol": 0, "atol": 1e-11}  # float64: the same sums of values of order 1 to 10 in another order

chunkings = st.lists(st.integers(1, 4), min_size=1, max_size=6)
seeds = st.integers(0, 2**32 - 1)


def translator(seed=0, **options):
    mt.manual_seed(seed)
    model = Transformer(TransformerConfig(9, 7, **{**SMALL, "dropout": 0.0, **options})).double().eval()
    for p in model.parameters():  # far from the small initial weights, every part matters
        p.data = p.data + 0.3 * mt.randn_like(p)
    return model


def gpt(seed=0, **options):
    mt.manual_seed(seed)
    sizes = {"block_size": 12, "vocab_size": 7, "n_layer": 2, "n_head": 2, "n_embd": 8}
    model = GPT(GPTConfig(**{**sizes, **options})).double()
    for p in model.parameters():
        p.data = p.data + 0.3 * mt.randn_like(p)
    return model


def tokens(seed, low, high, *shape):
    return mt.tensor(np.random.default_rng(seed).integers(low, high, shape))


def pieces(chunks):
    ends = np.cumsum(chunks)
    return [slice(end - n, end) for n, end in zip(chunks, ends, strict=True)]


# --- the cache ----------------------------------------------------------------------------------------------


@given(chunks=chunkings, seed=seeds, B=st.integers(1, 3), norm=st.sampled_from(["post", "pre"]))
def test_a_translation_is_the_same_however_the_text_is_cut(chunks, seed, B, norm):
    """Also with padding (0) in the source and anywhere in the text, which no later position may see."""
    model = translator(norm=norm)
    src, tgt = tokens(seed, 0, 9, B, 5), tokens(seed + 1, 0, 7, B, sum(chunks))
    cache, src_mask = KeyValueCache(), padding_mask(src, 0)
    with mt.no_grad():
        whole = model(src, tgt)
        memory = model.encode(src)
        for piece in pieces(chunks):
            logits = model.decode(tgt[:, piece], memory, memory_mask=src_mask, cache=cache)
            np.testing.assert_allclose(logits.array, whole.array[:, piece], **CLOSE)
            assert cache.length == piece.stop


@given(chunks=chunkings, seed=seeds, share=st.sampled_from([0.5, 1.0]))
def test_a_mask_of_ones_own_speaks_of_all_that_was_read(chunks, seed, share):
    model, T = translator(), sum(chunks)
    src, tgt = tokens(seed, 1, 9, 2, 5), tokens(seed + 1, 0, 7, 2, T)
    allowed = mt.tensor(np.random.default_rng(seed).random((2, T, T)) <= share)
    mask, cache = combine_masks(causal_mask(T), allowed), KeyValueCache()
    with mt.no_grad():
        whole, memory = model(src, tgt, tgt_mask=mask), model.encode(src)
        for piece in pieces(chunks):
            rows = mask[:, :, piece, : piece.stop]
            logits = model.decode(tgt[:, piece], memory, rows, cache=cache)
            np.testing.assert_allclose(logits.array, whole.array[:, piece], **CLOSE)


@given(chunks=chunkings, seed=seeds, heads=st.booleans())
def test_attention_alone_is_the_same_however_its_input_is_cut(chunks, seed, heads):
    mt.manual_seed(0)
    layer, T, cache = MultiHeadAttention(8, 2).double(), sum(chunks), KeyValueCache()
    rng = np.random.default_rng(seed)
    x = mt.tensor(rng.normal(size=(2, T, 8)))
    mask = mt.tensor(rng.random((2, 2, T, T)) < 0.7) if heads else None
    with mt.no_grad():
        whole, weights = layer(x, mask=mask, is_causal=True, need_weights=True)
        for piece in pieces(chunks):
            part = None if mask is None else mask[:, :, piece, : piece.stop]
            y, A = layer(x[:, piece], mask=part, is_causal=True, need_weights=True, cache=cache)
            cache.advance(piece.stop - piece.start)
            np.testing.assert_allclose(y.array, whole.array[:, piece], **CLOSE)
            np.testing.assert_allclose(A.array, weights.array[:, :, piece, : piece.stop], **CLOSE)


def test_what_is_kept_of_the_source_is_computed_once():
    model = translator()
    seen = []
    for layer in model.decoder.layers:
        layer.cross_attention.k_proj.register_forward_hook(lambda *_: seen.append("key"))
        layer.cross_attention.v_proj.register_forward_hook(lambda *_: seen.append("value"))
    src, cache = tokens(0, 3, 9, 2, 5), KeyValueCache()
    with mt.no_grad():
        memory = model.encode(src)
        for t in range(4):
            model.decode(tokens(t, 3, 7, 2, 1), memory, cache=cache)
    assert seen == ["key", "value"] * 2  # one of each for each of two layers


def test_another_source_is_never_taken_for_the_one_that_was_kept():
    model, cache = translator(n_decoder_layers=1), KeyValueCache()  # of one layer: its keys know no source
    tgt = tokens(0, 3, 7, 2, 2)
    with mt.no_grad():
        one, other = model.encode(tokens(1, 3, 9, 2, 5)), model.encode(tokens(2, 3, 9, 2, 5))
        model.decode(tgt[:, :1], one, cache=cache)
        found, want = model.decode(tgt[:, 1:], other, cache=cache), model.decode(tgt, other)[:, 1:]
    np.testing.assert_allclose(found.array, want.array, **CLOSE)


def test_values_that_are_not_the_keys_are_not_kept():
    mt.manual_seed(0)
    layer, cache = MultiHeadAttention(8, 2).double(), KeyValueCache()
    x, key, one, other = (mt.randn(2, n, 8, dtype=mt.float64) for n in (3, 4, 4, 4))
    with mt.no_grad():
        layer(x, key, one, cache=cache)
        np.testing.assert_array_equal(layer(x, key, other, cache=cache).array, layer(x, key, other).array)


@given(rows=st.lists(st.integers(0, 2), min_size=1, max_size=5), seed=seeds, moved=st.booleans())
def test_selected_rows_go_on_as_if_each_had_been_read_alone(rows, seed, moved):
    """moved: the source's rows are selected, too; else all rows have the same source."""
    model, cache = translator(), KeyValueCache()
    src, tgt = tokens(seed, 0, 9, 3, 5), tokens(seed + 1, 0, 7, 3, 4)
    if not moved:
        rows = [*rows, 0, 0][:3]
        src = src[:1].expand(3, 5)
    chosen = mt.tensor(rows)
    with mt.no_grad():
        memory, src_mask = model.encode(src), padding_mask(src, 0)
        model.decode(tgt[:, :3], memory, memory_mask=src_mask, cache=cache)
        if moved:
            memory, src_mask = memory[chosen], src_mask[chosen]
        cache.select(chosen, memory if moved else None)
        found = model.decode(tgt[chosen][:, 3:], memory, memory_mask=src_mask, cache=cache)
        want = model(src[chosen], tgt[chosen])[:, 3:]
    np.testing.assert_allclose(found.array, want.array, **CLOSE)


def test_a_call_that_failed_leaves_the_cache_as_it_was():
    model, cache = translator(), KeyValueCache()
    src, tgt = tokens(0, 3, 9, 2, 5), tokens(1, 0, 7, 2, 4)

    def fail(*_):
        raise InterruptedError

    with mt.no_grad():
        memory, whole = model.encode(src), model(src, tgt)
        model.decode(tgt[:, :2], memory, cache=cache)
        handle = model.decoder.layers[1].register_forward_pre_hook(fail)
        with pytest.raises(InterruptedError):
            model.decode(tokens(2, 0, 7, 2, 3), memory, cache=cache)
        handle.remove()
        logits = model.decode(tgt[:, 2:], memory, cache=cache)
    np.testing.assert_allclose(logits.array, whole.array[:, 2:], **CLOSE)


def test_a_cache_refuses_what_it_cannot_keep():
    model, cache = translator(max_len=6), KeyValueCache()
    memory, tgt = model.encode(tokens(0, 3, 9, 2, 5)).detach(), tokens(1, 3, 7, 2, 4)
    with pytest.raises(RuntimeError, match=r"^KeyValueCache: gradients are being recorded.*no_grad"):
        model.decode(tgt, memory, cache=cache)
    with mt.no_grad():
        model.decode(tgt, memory, cache=cache)
        with pytest.raises(ValueError, match=r"^KeyValueCache: a batch of 1 after one of 2; "):
            model.decode(tgt[:1], memory[:1], cache=cache)
        with pytest.raises(ValueError, match=r"8 positions, but max_len is 6; make max_len larger"):
            model.decode(tgt, memory, cache=cache)
        with pytest.raises(
            ValueError, match=r"a mask of shape \(2, 2\) .* \(2, 2, 2, 6\): .* 2 queries and 6 keys"
        ):
            model.decode(tgt[:, :2], memory, causal_mask(2), cache=cache)


# --- greedy and drawn ---------------------------------------------------------------------------------------

OPTIONS = [
    {},
    {"temperature": 0.0},
    {"top_k": 3},
    {"top_p": 0.6},
    {"temperature": 2.0, "top_k": 5, "top_p": 0.9},
    {"eos_id": 4},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("seed", range(4))
def test_drawn_translations_are_the_same_with_and_without_the_cache(options, seed):
    model, src = translator(seed), tokens(seed, 0, 9, 4, 5)
    drawn = [
        generate(model, src, 9, use_cache=cached, generator=mt.Generator().manual_seed(seed), **options)
        for cached in (True, False)
    ]
    assert drawn[0].tolist() == drawn[1].tolist()
    end = options.get("eos_id", 2)
    for row in drawn[0].tolist():
        if end in row:
            assert not any(row[row.index(end) + 1 :])


def test_tokens_are_drawn_from_the_models_own_distribution():
    model, src = translator(), tokens(0, 3, 9, 1, 5)
    logits = model(src, mt.tensor([[1]])).detach()[0, 0]
    rows = generate(model, src.expand(4000, 5), 1, temperature=0.7, generator=mt.Generator().manual_seed(1))
    shares = np.bincount(rows.numpy()[:, 0], minlength=7) / 4000
    # five standard deviations of a share of 4,000
    np.testing.assert_allclose(shares, (logits / 0.7).softmax(-1).array, rtol=0, atol=0.04)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_decoding_is_generation_at_temperature_zero(seed):
    src = tokens(seed, 0, 7, 3, 4)
    for model in (translator(seed), gpt(seed)):
        for cached in (True, False):
            found = greedy_decode(model, src, 6, eos_id=2, use_cache=cached)
            assert found.tolist() == generate(model, src, 6, temperature=0.0, eos_id=2).tolist()
    assert greedy_decode(gpt(), src).shape == (3, 12)  # up to block_size
    assert greedy_decode(gpt(), src, 0).tolist() == src.tolist()
    assert greedy_decode(translator(), src, 0).shape == (3, 0)


def test_a_source_is_encoded_once_and_every_position_is_read_once():
    model, lengths = translator(), []
    model.encoder.register_forward_hook(lambda *_: lengths.append("source"))
    model.decoder.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    generate(model, tokens(0, 3, 9, 2, 5), 4, eos_id=-1)  # which is never drawn
    assert lengths == ["source", 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: generate(translator(), tokens(0, 3, 9, 2, 5), 32), ValueError,
         r"^generate: max_new_tokens is 32; choose 0 … 31, below the model's max_len"),
        (lambda: greedy_decode(translator(), tokens(0, 3, 9, 2, 5), -1), ValueError,
         r"^greedy_decode: max_len is -1; choose 0 … 31"),
        (lambda: greedy_decode(gpt(), tokens(0, 3, 7, 2, 5), -1), ValueError,
         r"^greedy_decode: max_len is -1; make it at least 0"),
        (lambda: greedy_decode(translator(), tokens(0, 3, 9, 5)), ValueError,
         r"^greedy_decode: idx has shape \(5,\); give \(B, T\)"),
        (lambda: generate(gpt(), [[1, 2]], 3), TypeError, "^generate: idx is list; give token ids"),
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_is_refused(call, kind, text):
    with pytest.raises(kind, match=text):
        call()
