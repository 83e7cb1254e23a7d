"""Decoding: cached equals uncached however the text is cut; greedy, drawn and beam search do as they say."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
from microtensor.data import EOS, StringTask, TaskPair
from models import (
    GPT,
    GPTConfig,
    KeyValueCache,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    answers,
    beam_search,
    causal_mask,
    combine_masks,
    exact_match,
    generate,
    greedy_decode,
    looked_at,
    padding_mask,
)

SMALL = {"d_model": 8, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2, "d_ff": 16, "max_len": 32}
CLOSE = {"rtol": 0, "atol": 1e-11}  # float64: the same sums of values of order 1 to 10 in another order

chunkings = st.lists(st.integers(1, 4), min_size=1, max_size=6)
seeds = st.integers(0, 2**32 - 1)


def translator(seed=0, **options):
    mt.manual_seed(seed)
    sizes = {"src_vocab_size": 9, "tgt_vocab_size": 7, "dropout": 0.0, **SMALL, **options}
    model = Transformer(TransformerConfig(**sizes)).double().eval()
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
    model = translator(norm=norm, positions="learned" if norm == "pre" else "sinusoidal")
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


@pytest.mark.parametrize("make", [translator, gpt])
def test_decoding_leaves_dropout_out(make):
    model, src = make(dropout=0.5).train(), tokens(0, 3, 7, 2, 4)
    model_off = make(dropout=0.0)
    for decode in (greedy_decode, lambda m, x: beam_search(m, x, max_len=5).ids):
        assert decode(model, src).tolist() == decode(model_off, src).tolist()


def test_a_source_is_encoded_once_and_every_position_is_read_once():
    model, lengths = translator(), []
    model.encoder.register_forward_hook(lambda *_: lengths.append("source"))
    model.decoder.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    drawn = generate(model, tokens(0, 3, 9, 2, 5), 4, generator=mt.Generator().manual_seed(0))
    assert lengths == ["source", *[1] * drawn.shape[1]]


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
         r"^greedy_decode: idx has shape \(5,\); make it \(B, T\)"),
        (lambda: generate(gpt(), [[1, 2]], 3), TypeError, "^generate: idx is list; give a tensor"),
        (lambda: generate(gpt(), tokens(0, 3, 7, 2, 5), 3, eos_id=7), ValueError,
         "^generate: eos_id is 7; give the id of one of the 7 tokens"),
        (lambda: beam_search(translator(), tokens(0, 3, 9, 2, 5), 0), ValueError,
         "^beam_search: beam_size is 0, n_best 1; make them at least 1"),
        (lambda: beam_search(translator(), tokens(0, 3, 9, 2, 5), 3, n_best=4), ValueError,
         "^beam_search: beam_size is 3, n_best 4; .* no more than beam_size"),
        (lambda: beam_search(translator(), tokens(0, 3, 9, 2, 5), length_penalty=-1.0), ValueError,
         "^beam_search: length_penalty is -1.0; make it finite and at least 0"),
        (lambda: beam_search(translator(), tokens(0, 3, 9, 2, 5), max_len=32), ValueError,
         "^beam_search: max_len is 32; choose 0 … 31"),
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_is_refused(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


# --- beam search --------------------------------------------------------------------------------------------


def next_log_probs(model, given_ids, text):
    """log P of each next token after a text, by one call of the uncached model; given: source or prompt."""
    with mt.no_grad():
        if isinstance(model, GPT):
            logits, _ = model(mt.tensor([[*given_ids, *text]]))
        else:
            logits = model(mt.tensor([given_ids]), mt.tensor([[1, *text]]))
    return logits[0, -1].log_softmax(-1).array


def lp(length, alpha):
    """Wu et al. 2016, eq. 14"""
    return (5 + length) ** alpha / (5 + 1) ** alpha


def reference_beam(model, given_ids, K, alpha, limit, V):
    """The K best [(score, log P, text)], one text at a time; nothing is cut short."""
    beam = [(0.0, 0.0, ())]
    for _ in range(limit):
        ways = []
        for score, log_p, text in beam:
            if text and text[-1] == EOS:
                ways.append((score, log_p, text))
                continue
            following = next_log_probs(model, given_ids, text)
            for token in range(V):
                total = log_p + following[token]
                ways.append((total / lp(len(text) + 1, alpha), total, (*text, token)))
        beam = sorted(ways, key=lambda way: -way[0])[:K]
    return beam


def every_text(model, given_ids, alpha, limit, V):
    """All texts that end within the limit or fill it: [(score, log P, text)], the best first."""
    found = []
    for length in range(1, limit + 1):
        for text in itertools.product(range(V), repeat=length):
            ended = text[-1] == EOS
            if EOS in text[:-1] or (length < limit and not ended):
                continue
            log_p = sum(next_log_probs(model, given_ids, text[:i])[t] for i, t in enumerate(text))
            found.append((log_p / lp(length, alpha), log_p, text))
    return sorted(found, key=lambda way: -way[0])


def texts_of(beams, b, skip):
    """[(score, log P, text)] of one item; what stands behind a text is filling."""
    found = []
    for n, length in enumerate(beams.lengths[b].tolist()):
        row = beams.ids[b, n].tolist()[skip:]
        found.append((beams.scores[b, n].item(), beams.log_probs[b, n].item(), tuple(row[:length])))
        assert set(row[length:]) <= {0 if skip == 0 else EOS}
    return found


def assert_same_texts(found, want):
    assert [text for *_, text in found] == [text for *_, text in want]
    np.testing.assert_allclose([f[:2] for f in found], [w[:2] for w in want], rtol=1e-11)


def models_of(seed, V):
    """Both kinds, for V tokens: the model, and how many columns of its ids were given to it."""
    return [(translator(seed, tgt_vocab_size=V), 0), (gpt(seed, vocab_size=V, block_size=16), 3)]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_as_wide_as_there_are_texts_ranks_them_all(seed, alpha):
    V, limit = 4, 3
    n_texts = 1 + 3 + 9 + 27  # ended after 1, 2 and 3 tokens, or full
    src = tokens(seed, 0, 4, 2, 3)
    for model, skip in models_of(seed, V):
        beams = beam_search(model, src, n_texts, alpha, limit, n_best=n_texts, eos_id=EOS)
        for b in range(2):
            want = every_text(model, src[b].tolist(), alpha, limit, V)
            assert len(want) == n_texts
            assert_same_texts(texts_of(beams, b, skip), want)


@given(seed=st.integers(0, 50), K=st.integers(1, 7), alpha=st.sampled_from([0.0, 0.6, 3.0]),
       limit=st.integers(1, 7), n_best=st.integers(1, 7), cached=st.booleans())  # fmt: skip
def test_a_batch_of_beams_is_the_textbooks_beam_of_each_item(seed, K, alpha, limit, n_best, cached):
    """The batch and the stop when nothing can change any more take nothing away."""
    V, n_best = 5, min(n_best, K)
    src = tokens(seed, 0, 5, 3, 3)
    for model, skip in models_of(seed, V):
        beams = beam_search(model, src, K, alpha, limit, n_best=n_best, eos_id=EOS, use_cache=cached)
        for b in range(3):
            want = reference_beam(model, src[b].tolist(), K, alpha, limit, V)[:n_best]
            assert_same_texts(texts_of(beams, b, skip)[: len(want)], want)


@given(seed=seeds, alpha=st.sampled_from([0.0, 0.6, 3.0]))
def test_a_beam_of_one_is_greedy_decoding(seed, alpha):
    src = tokens(seed, 0, 7, 3, 4)
    for model in (translator(seed % 50), gpt(seed % 50)):
        beams = beam_search(model, src, 1, alpha, 8, eos_id=EOS)
        assert beams.ids[:, 0].tolist() == greedy_decode(model, src, 8, eos_id=EOS).tolist()


def test_a_wider_beam_finds_what_greedy_decoding_misses():
    """Not always, but often, and at no other time something worse by much: or it would not be searching."""
    gains = []
    for seed in range(12):
        model, src = translator(seed), tokens(seed, 3, 9, 2, 4)
        narrow, wide = (beam_search(model, src, K, 0.0, 6).log_probs.array for K in (1, 6))
        gains += (wide - narrow).ravel().tolist()
    assert sum(g > 1e-9 for g in gains) >= 5
    assert np.mean(gains) > 0


def test_longer_texts_win_as_the_penalty_grows():
    lengths = []
    for alpha in (0.0, 1.0, 4.0):
        found = [beam_search(translator(seed), tokens(seed, 3, 9, 4, 4), 5, alpha, 12) for seed in range(6)]
        lengths.append(np.mean([beams.lengths.array.mean() for beams in found]))
    assert lengths[0] < lengths[1] < lengths[2]


def test_the_search_stops_when_nothing_can_change_the_best():
    """A text that ends at once and is nearly certain: no other can become likelier than it."""
    model, steps = translator(), []
    model.output = mt.nn.Linear(8, 7).double()
    model.output.weight.data.zero_()
    model.output.bias.data = mt.tensor([0.0, 0, 9, 0, 0, 0, 0], dtype=mt.float64)
    model.decoder.register_forward_pre_hook(lambda *_: steps.append(1))
    src = tokens(0, 3, 9, 2, 4)
    beams = beam_search(model, src, 3)
    assert len(steps) == 1
    assert beams.ids.tolist() == [[[EOS]]] * 2
    beam_search(model, src, 3, n_best=3)
    assert len(steps) == 3  # two more: the second and third text end one token later


def test_the_search_goes_on_while_a_longer_text_may_still_win():
    """At first the end is likelier, then nothing but token 1 is: its log P stays, and its lp grows."""

    class Fixed(mt.nn.Module):
        config = GPTConfig(vocab_size=3)
        first, later = mt.tensor([1e-9, 0.4, 0.6]).log(), mt.tensor([1e-9, 1.0, 1e-9]).log()

        def forward(self, idx):
            logits = self.first if idx.shape[1] == 1 else self.later
            return logits.expand(len(idx), 1, 3), None

    found = [beam_search(Fixed(), mt.zeros(1, 1, dtype=mt.long), 2, alpha, 6, eos_id=EOS, use_cache=False)
             for alpha in (0.0, 2.0)]  # fmt: skip
    assert [beams.ids.tolist() for beams in found] == [[[[0, 2]]], [[[0, 1, 1, 1, 1, 1, 1]]]]
    want = [math.log(0.6), math.log(0.4) / lp(6, 2.0)]
    np.testing.assert_allclose([beams.scores.item() for beams in found], want, rtol=1e-6)  # float32 logits


def test_where_there_are_fewer_texts_than_places_the_rest_is_empty():
    model, src = translator(tgt_vocab_size=3), tokens(0, 3, 9, 2, 4)
    beams = beam_search(model, src, 9, max_len=1, n_best=5)
    assert (beams.lengths.array[:, :3] == 1).all()
    assert (beams.lengths.array[:, 3:] == 0).all()
    assert (beams.scores.array[:, 3:] == -math.inf).all()
    assert (beams.ids.array[:, 3:] == 0).all()
    nothing = beam_search(model, src, 2, max_len=0, n_best=2)
    assert nothing.ids.shape == (2, 2, 0)
    assert nothing.log_probs.tolist() == [[0.0, -math.inf]] * 2
    assert beam_search(model, src[:0], 2).ids.shape == (0, 1, 0)


def test_a_gpt_without_an_end_token_writes_on_and_past_its_block():
    model, prompt = gpt(block_size=6), tokens(0, 0, 7, 2, 3)
    beams = beam_search(model, prompt, 3, max_len=8, n_best=2)
    assert beams.ids.shape == (2, 2, 11)
    for b in range(2):
        text = beams.ids[b, 0].tolist()
        seen = [next_log_probs(model, text[max(0, t - 6) : t], [])[text[t]] for t in range(3, 11)]
        assert beams.log_probs[b, 0].item() == pytest.approx(sum(seen), rel=1e-11)
    assert beam_search(model, prompt, 3).ids.shape == (2, 1, 6)  # by itself up to block_size


def test_searching_reads_every_position_once_and_the_prompt_in_one_copy():
    model, read = gpt(), []
    model.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0].shape))
    beam_search(model, tokens(0, 0, 7, 2, 5), 3, max_len=4)
    assert read == [(2, 5), (6, 1), (6, 1), (6, 1)]
    source = translator()
    rows = []
    for layer in source.decoder.layers:
        layer.cross_attention.k_proj.register_forward_hook(lambda _, inputs, y: rows.append(len(y)))
    beam_search(source, tokens(0, 3, 9, 2, 5), 3, max_len=4, n_best=3)
    assert rows == [2, 2]


def test_modes_come_back_after_a_search():
    model = translator().train()
    model.encoder.eval()
    before = [m.training for m in model.modules()]
    beam_search(model, tokens(0, 3, 9, 1, 4), max_len=3)
    assert [m.training for m in model.modules()] == before


# --- texts --------------------------------------------------------------------------------------------------

CORPUS = StringTask("reverse", shortest=2, longest=4, n_test=40)


def reader(**options):
    return translator(src_vocab_size=CORPUS.vocab_size, tgt_vocab_size=CORPUS.vocab_size, **options)


def test_answers_are_the_greedy_texts_of_sources_of_any_length_and_number(monkeypatch):
    monkeypatch.setattr("models.answering.BATCH", 3)
    model, sources = reader(), ["31", "4159", "265", "35", "8979"]
    alone = [greedy_decode(model, mt.tensor([[*CORPUS.encode(s), EOS]]), max_len=6)[0] for s in sources]
    assert answers(model, CORPUS, sources, 5) == [CORPUS.decode(ids) for ids in alone]
    assert answers(model, CORPUS, [], 5) == []


def test_a_gpt_answers_behind_the_source():
    model = gpt(vocab_size=CORPUS.vocab_size)
    ids = generate(model, mt.tensor([CORPUS.encode("31"), CORPUS.encode("45")]), 4, temperature=0)
    assert answers(model, CORPUS, ["31", "45"], 4) == [CORPUS.decode(row[2:]) for row in ids]
    with pytest.raises(ValueError, match=r"^answers: a GPT cannot read sources of unequal lengths at once; "):
        answers(model, CORPUS, ["31", "415"], 4)


def test_an_exact_match_has_no_mistake_and_nothing_more(monkeypatch):
    written = {"12": "21", "345": "543", "6789": "987", "01": "101"}

    def answers(model, corpus, sources, longest):
        assert longest == 4  # the longest target's length
        return [written[source] for source in sources]

    monkeypatch.setattr("models.answering.answers", answers)
    pairs = [TaskPair(source, source[::-1]) for source in written]
    assert exact_match(None, CORPUS, pairs) == 0.5
    with pytest.raises(ValueError, match=r"^exact_match: there are no pairs; "):
        exact_match(None, CORPUS, [])


def test_what_is_looked_at_is_named_by_its_characters():
    model = reader().train()
    written, read, attention = looked_at(model, CORPUS, "4159", 5)
    assert model.training
    assert read == ["4", "1", "5", "9", "end"]
    assert written == [*answers(model, CORPUS, ["4159"], 5)[0], "end"]
    src, tgt = (
        mt.tensor([[*CORPUS.encode("4159"), EOS]]),
        mt.from_numpy(CORPUS.batch(["".join(written[:-1])])),
    )
    _, expected = model.eval()(src, tgt[:, :-1], return_attention=True)
    assert [A.shape for A in attention.cross] == [(1, 2, len(written), 5)] * 2
    for found, A in zip(attention.cross, expected.cross, strict=True):
        assert np.array_equal(found.array, A.array)
