"""GPT: nanoGPT's numbers and names, cached equals uncached however the input is cut, sampling."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
from microtensor.testing import gradcheck
from models import GPT, GPTConfig, KeyValueCache, generate

SMALL = {"block_size": 12, "vocab_size": 11, "n_layer": 2, "n_head": 2, "n_embd": 8}


def small(seed=0, **options):
    mt.manual_seed(seed)
    model = GPT(GPTConfig(**{**SMALL, **options})).double()
    for p in model.parameters():  # far from the small initial weights, every part matters
        p.data = p.data + 0.3 * mt.randn_like(p)
    return model


def tokens(seed, *shape):
    return mt.tensor(np.random.default_rng(seed).integers(0, SMALL["vocab_size"], shape))


def test_names_and_sizes_are_those_of_nanogpt():
    names = [name for name, _ in GPT(GPTConfig(**SMALL)).named_parameters()]
    assert names[:2] == ["transformer.wte.weight", "transformer.wpe.weight"]
    assert "transformer.h.1.attn.c_attn.bias" in names
    assert "transformer.h.0.mlp.c_proj.weight" in names
    assert names[-2:] == ["transformer.ln_f.weight", "transformer.ln_f.bias"]
    assert not any("bias" in name for name, _ in GPT(GPTConfig(**SMALL, bias=False)).named_parameters())
    nano = GPT(GPTConfig(block_size=64, vocab_size=65, n_layer=4, n_head=4, n_embd=128, bias=False))
    assert nano.get_num_params() == 65 * 128 + 4 * (12 * 128 * 128 + 2 * 128) + 128


@pytest.mark.parametrize("options", [{}, {"init_std": 0.05}])
def test_initialisation_is_that_of_gpt2(options):
    mt.manual_seed(0)
    model = GPT(GPTConfig(block_size=32, vocab_size=99, n_layer=8, n_head=4, n_embd=64, **options))
    for name, p in model.named_parameters():
        std = options.get("init_std", 0.02) / (math.sqrt(16) if name.endswith("c_proj.weight") else 1)
        if name.endswith("bias"):
            assert not p.any()
        elif "ln_" in name:
            assert (p == 1).all()
        else:  # a standard deviation of n numbers is off by 1/√(2n) of itself
            assert abs(p.std().item() / std - 1) < 5 / math.sqrt(2 * p.numel())
    logits, loss = model(mt.randint(0, 99, (4, 32)), mt.randint(0, 99, (4, 32)))
    assert logits.shape == (4, 32, 99)
    spread = math.sqrt(64) * options.get("init_std", 0.02)  # of a logit: all tokens are about equally likely
    assert abs(loss.item() - math.log(99) - spread**2 / 2) < 5 * spread / math.sqrt(4 * 32)


def test_every_gradient_is_right():
    model, x = small(n_layer=1, n_embd=4), tokens(1, 2, 5)
    gradcheck(lambda *_: model(x, tokens(2, 2, 5))[1], tuple(model.parameters()))


def test_no_position_sees_the_future():
    model = small()
    x = tokens(3, 1, 7)
    logits = model(x, x)[0]
    for t in range(6):
        y = x.clone()
        y[0, t + 1 :] = (y[0, t + 1 :] + 1) % 11
        np.testing.assert_array_equal(model(y, y)[0].array[0, : t + 1], logits.array[0, : t + 1])
        assert not np.allclose(model(y, y)[0].array[0, t + 1 :], logits.array[0, t + 1 :])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_cached_equals_uncached_however_the_input_is_cut(chunks, seed):
    model = small(block_size=25)
    x = tokens(seed, 2, sum(chunks))
    cache = KeyValueCache()
    with mt.no_grad():
        whole = model(x, x)[0]
        start = 0
        for T in chunks:
            logits, _ = model(x[:, start : start + T], cache=cache)
            start += T
            assert cache.length == start
            # the same sums in another order: float64 leaves 1e−15 of values of order 1
            np.testing.assert_allclose(logits.array[:, 0], whole.array[:, start - 1], rtol=0, atol=1e-12)


def test_a_cache_refuses_what_it_cannot_keep():
    model, cache = small(), KeyValueCache()
    with pytest.raises(RuntimeError, match=r"^KeyValueCache: gradients are being recorded.*no_grad"):
        model(tokens(0, 1, 3), cache=cache)
    with mt.no_grad():
        model(tokens(0, 2, 3), cache=cache)
        with pytest.raises(ValueError, match=r"^KeyValueCache: a batch of 1 after one of 2; "):
            model(tokens(0, 1, 3), cache=cache)
        with pytest.raises(ValueError, match=r"^GPT: a sequence of 13 tokens, but block_size is 12; "):
            model(tokens(0, 2, 10), cache=cache)


OPTIONS = [
    {},
    {"temperature": 0.0},
    {"top_k": 3},
    {"top_p": 0.6},
    {"temperature": 2.0, "top_k": 5, "top_p": 0.9},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_generation_with_and_without_the_cache_draws_the_same_tokens(options):
    model, x = small(), tokens(4, 3, 5)
    drawn = [
        generate(model, x, 15, use_cache=cached, generator=mt.Generator().manual_seed(5), **options).tolist()
        for cached in (True, False)  # 20 tokens go beyond block_size
    ]
    assert drawn[0] == drawn[1]
    assert np.shape(drawn[0]) == (3, 20)
    assert [row[:5] for row in drawn[0]] == x.tolist()


def test_what_is_drawn_is_what_the_options_allow():
    class Fixed(mt.nn.Module):
        config = GPTConfig(**SMALL)
        logits = mt.tensor([[0.1, 0.15, 0.5, 0.25]]).log()

        def forward(self, idx):
            return self.logits.expand(idx.shape[0], 4).unsqueeze(1), None

    def drawn(**options):
        rows = generate(Fixed(), mt.zeros(4000, 1, dtype=mt.long), 1, use_cache=False, **options)[:, 1]
        return np.bincount(rows.numpy(), minlength=4) / 4000

    mt.manual_seed(0)
    close = {"rtol": 0, "atol": 0.04}  # five standard deviations of a share of 4,000
    np.testing.assert_allclose(drawn(), [0.1, 0.15, 0.5, 0.25], **close)
    np.testing.assert_allclose(drawn(top_k=2), [0, 0, 2 / 3, 1 / 3], **close)
    np.testing.assert_allclose(drawn(top_p=0.75), [0, 0, 2 / 3, 1 / 3], **close)
    np.testing.assert_allclose(drawn(top_p=0.76), [0, 0.15 / 0.9, 0.5 / 0.9, 0.25 / 0.9], **close)
    np.testing.assert_allclose(drawn(top_p=0.01), [0, 0, 1, 0])
    np.testing.assert_allclose(drawn(temperature=0.0), [0, 0, 1, 0])
    np.testing.assert_allclose(drawn(temperature=0.5, top_k=3), np.array([0, 9, 100, 25]) / 134, **close)


def test_a_row_that_has_ended_stays_so_and_modes_come_back():
    model = small()
    model.train()
    model.transformer.h[0].eval()
    y = generate(model, tokens(6, 4, 2), 9, eos_id=3, generator=mt.Generator().manual_seed(1))
    for row in y.tolist():
        if 3 in row[2:]:
            end = row.index(3, 2)
            assert set(row[end:]) == {3}
    assert model.training
    assert not model.transformer.h[0].training


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": -1.0}, r"^generate: temperature is -1.0; make it 0 or more"),
        ({"temperature": 1e-320}, r"generate: temperature is 1e-320; give 0, .*, or at least 1e-06"),
        ({"top_k": 0}, r"generate: top_k is 0; "),
        ({"top_p": 1.5}, r"generate: top_p is 1.5; "),
        ({"idx": mt.zeros(1, 0, dtype=mt.long)}, r"generate: idx has shape \(1, 0\); "),
    ],
)
def test_impossible_options_are_refused(options, text):
    x = options.pop("idx", tokens(0, 1, 2))
    with pytest.raises(ValueError, match="^" + text):
        generate(small(), x, 3, **options)


@pytest.mark.parametrize("make", [mt.ones, np.ones, lambda shape: np.ones(shape).tolist()])
@pytest.mark.parametrize(("idx", "targets"), [((), None), ((6,), None), ((1, 2, 3), None), ((2, 3), (3, 2)),
                                              ((2, 3), (6,)), ((2, 3), (2, 2))])  # fmt: skip
def test_ids_and_targets_of_other_shapes_are_refused(idx, targets, make):
    """(3, 2) holds as many targets as (2, 3): in another order, which the loss would not show."""
    given = [make(idx)] if targets is None else [mt.ones(*idx).long(), make(targets)]
    with pytest.raises((TypeError, ValueError), match=r"^GPT: (idx|targets) .*; "):
        small()(*given)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match=r"^GPTConfig: n_embd 8 is not divisible by n_head 3; "):
        GPTConfig(**{**SMALL, "n_head": 3})
    config = GPTConfig(**SMALL)
    config.n_head = 3  # it may be changed: the model that is made of it looks again
    with pytest.raises(ValueError, match=r"^GPTConfig: n_embd 8 is not divisible by n_head 3; "):
        GPT(config)


def test_matrices_decay_and_vectors_do_not():
    optimizer = small().configure_optimizers(0.1, 1e-3, (0.9, 0.95))
    decayed, kept = optimizer.param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in decayed["params"]} == {2}
    assert {p.ndim for p in kept["params"]} == {1}
