"""The Transformer: masks, wiring, faithfulness to the paper, gradients, decoding, PyTorch parity."""

import dataclasses
import inspect
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
import microtensor.nn.functional as F
import models
from microtensor.testing import gradcheck
from models import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    MultiHeadAttention,
    PositionalEncoding,
    Transformer,
    TransformerConfig,
    causal_mask,
    combine_masks,
    greedy_decode,
    padding_mask,
    scaled_dot_product_attention,
    sizes,
    text_encoder,
    transformer,
)

SMALL = {"d_model": 8, "n_heads": 2, "n_encoder_layers": 2, "n_decoder_layers": 2, "d_ff": 16, "max_len": 16}


def normal(seed, *shape):
    return mt.tensor(np.random.default_rng(seed).normal(size=shape))


def small_model(seed=0, **options):
    mt.manual_seed(seed)
    return Transformer(TransformerConfig(11, 7, **{**SMALL, "dropout": 0.0, **options}))


def ids(*rows):
    return mt.tensor(list(rows))


# --- masks --------------------------------------------------------------------------------------------------


def test_the_causal_mask_lets_each_position_see_itself_and_the_past():
    assert causal_mask(3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]


def test_the_padding_mask_hides_padding_from_every_head_and_query():
    mask = padding_mask(ids([5, 3, 0], [4, 0, 0]), 0)
    assert mask.shape == (2, 1, 1, 3)
    assert mask.tolist() == [[[[True, True, False]]], [[[True, False, False]]]]


def test_combined_masks_let_through_what_all_let_through():
    both = combine_masks(causal_mask(3), None, padding_mask(ids([5, 3, 0]), 0))
    assert both.tolist() == [[[[True, False, False], [True, True, False], [True, True, False]]]]
    assert combine_masks(None, None) is None


@pytest.mark.parametrize("attend", [lambda x, m: MultiHeadAttention(8, 2)(x, mask=m),
                                    lambda x, m: scaled_dot_product_attention(x, x, x, m)])  # fmt: skip
def test_a_mask_of_zeros_and_ones_is_refused_unless_boolean(attend):
    """Added to the scores it would hide nothing, and nobody would notice."""
    x = mt.randn(2, 3, 8)
    with pytest.raises(ValueError, match=r"hides nothing; make it boolean"):
        attend(x, mt.tril(mt.ones(3, 3)))
    with pytest.raises(TypeError, match=r"make it boolean"):
        attend(x, mt.tril(mt.ones(3, 3)).long())
    attend(x, mt.zeros(3, 3))
    attend(x, mt.ones(3, 3, requires_grad=True))  # a bias that is learned


def test_boolean_and_additive_masks_mean_the_same():
    layer, x = MultiHeadAttention(8, 2).double(), normal(0, 2, 3, 8)
    allowed = np.array([[1, 0, 1], [1, 1, 0], [0, 1, 1]], bool)
    added = mt.tensor(np.where(allowed, 0.0, -np.inf))
    np.testing.assert_allclose(
        layer(x, mask=mt.tensor(allowed)).detach().array, layer(x, mask=added).detach().array, rtol=1e-12
    )


@given(seed=st.integers(0, 1000), filler=st.integers(3, 10))
def test_what_stands_behind_padding_never_matters(seed, filler):
    """The ids under the mask may be anything: same logits, bit for bit."""
    model = small_model().eval()
    src, tgt = ids([5, 3, 4, 0, 0], [6, 7, 8, 9, 3]), ids([1, 4, 5], [1, 3, 3])
    mask = padding_mask(src, 0)
    other = src.clone()
    other[0, 3:] = filler
    assert (model(src, tgt, mask) == model(other, tgt, mask)).all()


def test_batch_items_are_independent():
    model = small_model().double().eval()
    src, tgt = ids([5, 3, 4], [6, 7, 8]), ids([1, 4], [1, 3])
    both = model(src, tgt).detach().array
    for i in range(2):
        alone = model(src[i : i + 1], tgt[i : i + 1]).detach().array
        np.testing.assert_allclose(both[i], alone[0], rtol=1e-11, atol=1e-13)


def test_logits_never_depend_on_later_target_tokens():
    model = small_model().eval()
    src = ids([5, 3, 4])
    one, other = model(src, ids([1, 4, 5, 6])), model(src, ids([1, 4, 3, 3]))
    assert (one[:, :2] == other[:, :2]).all()
    assert not (one[:, 2:] == other[:, 2:]).all()


# --- faithful to the paper ----------------------------------------------------------------------------------


def test_layers_are_fresh_and_never_copies_of_one():
    for stack in (Encoder(3, 8, 2, 16), Decoder(3, 8, 2, 16)):
        weights = [layer.self_attention.q_proj.weight for layer in stack.layers]
        assert len({id(w) for w in weights}) == 3
        assert not np.array_equal(weights[0].array, weights[1].array)


def test_the_encoder_layer_is_the_lectures_two_equations():
    layer = EncoderLayer(8, 2, 16, dropout=0.0).double()
    x = normal(0, 2, 3, 8)
    norm1, norm2, ffn = layer.sublayer1.norm, layer.sublayer2.norm, layer.feed_forward
    z = norm1(x + layer.self_attention(x))
    hidden = (ffn.linear1(z)).clamp(min=0.0)
    out = norm2(z + ffn.linear2(hidden))
    np.testing.assert_allclose(layer(x).detach().array, out.detach().array, rtol=1e-12)


def test_a_post_norm_layer_adds_and_normalises_in_one_op_over_several_axes_too():
    layer, x = EncoderLayer(8, 2, 16, dropout=0.0).double(), normal(0, 2, 3, 8)
    listed = mt.tape(layer(x.requires_grad_(True))).entries
    assert [entry.op for entry in listed].count("add_layer_norm") == 2
    norm, f, g = mt.nn.LayerNorm((3, 8)).double(), normal(1, 2, 3, 8), normal(2, 2, 3, 8)
    one, two = norm(x, residual=f.requires_grad_(True)), norm(x + f)
    np.testing.assert_array_equal(one.array, two.array)
    for a, b in zip(mt.autograd.grad(one, [x, f], g), mt.autograd.grad(two, [x, f], g), strict=True):
        np.testing.assert_allclose(a.array, b.array, rtol=1e-12, atol=1e-15)


def test_pre_norm_normalises_before_each_sub_layer_and_at_the_end():
    stack = Encoder(1, 8, 2, 16, dropout=0.0, norm="pre").double()
    layer, x = stack.layers[0], normal(0, 2, 3, 8)
    z = x + layer.self_attention(layer.sublayer1.norm(x))
    out = stack.norm(z + layer.feed_forward(layer.sublayer2.norm(z)))
    np.testing.assert_allclose(stack(x).detach().array, out.detach().array, rtol=1e-12)


def test_embeddings_are_scaled_and_shared_with_the_output():
    model = small_model()
    assert model.output.weight is model.tgt_embedding.weight
    assert model.src_embedding.weight is not model.tgt_embedding.weight
    embedded = model._embed(model.tgt_embedding, ids([1, 4]))
    want = model.tgt_embedding.weight.array[[1, 4]] * 8**0.5 + model.positions.pe.array[:2]
    np.testing.assert_allclose(embedded.detach().array[0], want, rtol=1e-6)


def test_one_vocabulary_ties_all_three_matrices():
    model = Transformer(TransformerConfig(9, 9, shared_vocabulary=True, **SMALL))
    assert model.src_embedding.weight is model.tgt_embedding.weight is model.output.weight
    with pytest.raises(ValueError, match="make the sizes equal"):
        TransformerConfig(9, 8, shared_vocabulary=True, **SMALL)


def test_the_defaults_are_the_papers_base_model():
    c = TransformerConfig(100, 100)
    assert (c.d_model, c.n_heads, c.n_encoder_layers, c.n_decoder_layers, c.d_ff) == (512, 8, 6, 6, 2048)
    assert (c.dropout, c.norm, c.activation, c.tie_weights, c.scale_embeddings) == (
        0.1,
        "post",
        "relu",
        True,
        True,
    )


def test_dropout_acts_in_training_only_and_repeats_with_the_seed():
    model = small_model(dropout=0.5)
    src, tgt = ids([5, 3, 4]), ids([1, 4, 5])
    mt.manual_seed(1)
    first, second = model(src, tgt), model(src, tgt)
    assert not (first == second).all()
    mt.manual_seed(1)
    assert (model(src, tgt) == first).all()
    model.eval()
    assert (model(src, tgt) == model(src, tgt)).all()


def test_all_attention_weights_are_returned_on_request():
    model = small_model().eval()
    src, tgt = ids([5, 3, 4, 0]), ids([1, 4, 5])
    logits, weights = model(src, tgt, return_attention=True)
    # without the weights attention is one kernel, which adds up in another order
    np.testing.assert_allclose(logits.detach().array, model(src, tgt).detach().array, rtol=1e-4, atol=1e-5)
    assert [w.shape for w in weights.encoder] == [(1, 2, 4, 4)] * 2
    assert [w.shape for w in weights.decoder] == [(1, 2, 3, 3)] * 2
    assert [w.shape for w in weights.cross] == [(1, 2, 3, 4)] * 2
    for w in (*weights.encoder, *weights.decoder, *weights.cross):
        np.testing.assert_allclose(w.detach().array.sum(-1), 1.0, rtol=1e-5)
    assert (weights.cross[0].array[..., 3] == 0).all()


# --- errors -------------------------------------------------------------------------------------------------


def test_errors_carry_the_values_and_the_cure():
    with pytest.raises(ValueError, match=r"d_model 10 is not divisible by n_heads 4; choose"):
        MultiHeadAttention(10, 4)
    with pytest.raises(ValueError, match=r"query has shape \(3, 8\), d_model is 8; give \(B, T, 8\)"):
        MultiHeadAttention(8, 2)(mt.randn(3, 8))
    with pytest.raises(ValueError, match=r"20 positions, but max_len is 16; make max_len larger"):
        small_model()(mt.randint(3, 9, (1, 20)), ids([1]))
    with pytest.raises(ValueError, match="activation is 'swish'; choose"):
        FeedForward(4, 8, "swish")
    with pytest.raises(ValueError, match="norm is 'sandwich'; choose"):
        EncoderLayer(4, 2, 8, norm="sandwich")
    with pytest.raises(ValueError, match="max_len is 16; choose 0 … 15"):
        greedy_decode(small_model(), ids([5]), max_len=16)


SIZES = {"d_model": 8, "n_heads": 2, "d_ff": 8, "n_layers": 1, "max_len": 8, "kind": "learned"}
CONFIGS = {"Transformer": {"src_vocab_size": 9, "tgt_vocab_size": 7}, "TextEncoder": {}, "GPT": {}}
MADE = {  # every class that is made of numbers → its parameters
    name: inspect.signature(getattr(models, name)).parameters
    for name in [*(f"{name}Config" for name in CONFIGS), "Decoder", "DecoderLayer", "Encoder", "EncoderLayer",
                 "FeedForward", "MultiHeadAttention", "PositionalEncoding"]
}  # fmt: skip
NUMBERS = [(name, p) for name, parameters in MADE.items() for p in parameters.values()
           if p.annotation in ("int", "int | None", "float") and p.name != "init_std"]  # fmt: skip
NUMBERS += [(name, inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, annotation="float"))
            for name in ("Encoder", "Decoder") for option in ("dropout",)]  # fmt: skip


def _good(name):
    own = {n: SIZES[n] for n, p in MADE[name].items() if n in SIZES and p.default is p.empty}
    return own | CONFIGS.get(name.removesuffix("Config"), {})


@pytest.mark.parametrize(("name", "p"), NUMBERS, ids=lambda v: getattr(v, "name", v))
def test_a_number_that_cannot_be_meant_is_refused_by_the_class_that_is_made_of_it(name, p):
    make, wrong = getattr(models, name), [-1, -(2**70)]
    assert make(**_good(name))
    if p.annotation == "float":
        wrong += [-0.1, math.nan, math.inf] + [1.5, 2] * ("dropout" in p.name)
    elif p.name.endswith("_id"):
        wrong += [99, 9] if name == "TransformerConfig" else [30522]
        wrong += [7] * (name == "TransformerConfig")
    elif "layer" not in p.name:
        wrong += [0]
    who = f"{name.removesuffix('s')}(Layer)?" if p.kind is p.KEYWORD_ONLY else name
    for number in wrong:
        with pytest.raises(ValueError, match=rf"^{who}: {p.name} is {re.escape(str(number))}; \w+ \w+ "):
            make(**{**_good(name), p.name: number})
    for no_number in ("a", [1], *([2.5, True] if p.annotation != "float" else [])):
        with pytest.raises(TypeError, match=rf"^{who}: {p.name} is {re.escape(repr(no_number))}; give \w+"):
            make(**{**_good(name), p.name: no_number})


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_refuses_a_configuration_that_was_changed_to_what_cannot_be_meant(name):
    config = getattr(models, f"{name}Config")(**CONFIGS[name])
    object.__setattr__(config, "dropout", 3)
    with pytest.raises(ValueError, match=rf"^{name}Config: dropout is 3; it is the probability to drop"):
        getattr(models, name)(config)


def test_a_pretrained_gpt_refuses_a_dropout_that_is_none_before_it_reads(tmp_path):
    with pytest.raises(ValueError, match=r"^GPT\.from_pretrained: dropout is 3; it is the probability"):
        models.GPT.from_pretrained(tmp_path, dropout=3)


def test_no_layer_and_the_last_id_and_each_probability_can_be_meant():
    assert len(Encoder(0, 8, 2, 8).layers) == 0
    config = TransformerConfig(9, 7, bos_id=6, eos_id=5, pad_id=6, dropout=1, n_encoder_layers=0)
    assert models.GPTConfig(n_layer=np.int64(0), dropout=np.float32(0.5)).n_layer == 0
    assert config == TransformerConfig(**vars(config))


# --- gradients of the whole ---------------------------------------------------------------------------------


OTHERWISE = {"norm": "pre", "activation": "gelu", "tie_weights": False, "positions": "learned"}


@pytest.mark.parametrize("options", [{}, OTHERWISE])
def test_the_whole_model_passes_gradcheck(options):
    model = small_model(n_encoder_layers=1, n_decoder_layers=1, **options).double()
    src, tgt = ids([5, 3, 4, 0], [6, 7, 3, 9]), ids([1, 4, 5], [1, 3, 0])
    target = ids([4, 5, 2], [3, 2, -100])
    parameters = list(model.parameters())

    def loss(*_):
        return F.cross_entropy(model(src, tgt).reshape(-1, 7), target.reshape(-1), label_smoothing=0.1)

    assert gradcheck(loss, parameters)


def test_composites_give_the_same_loss_and_gradients():
    model = small_model().double()
    src, tgt = ids([5, 3, 4, 0], [6, 7, 3, 9]), ids([1, 4, 5], [1, 3, 0])
    results = []
    for fused in (True, False):
        model.zero_grad()
        with mt.composites() if not fused else mt.enable_grad():
            loss = F.cross_entropy(model(src, tgt).reshape(-1, 7), ids(4, 5, 2, 3, 2, 6), label_smoothing=0.1)
        loss.backward()
        results.append([loss.item(), *(p.grad.array for p in model.parameters())])
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


# --- decoding -----------------------------------------------------------------------------------------------


def test_greedy_decoding_takes_the_likeliest_token_each_time_and_pads_after_the_end():
    model = small_model(seed=3)
    src = ids([5, 3, 4, 0], [6, 7, 3, 9], [8, 8, 8, 8])
    got = greedy_decode(model, src, max_len=6)
    assert model.training
    model.eval()
    for row in range(3):
        sequence = [1]
        for token in got[row].tolist():
            if sequence[-1] in (2, 0):
                assert token == 0
            else:
                logits = model(src[row : row + 1], ids(sequence))
                assert token == int(logits[0, -1].argmax())
            sequence.append(token)


def test_greedy_decoding_leaves_every_part_in_its_own_mode():
    model = small_model()
    model.encoder.eval()
    before = [m.training for m in model.modules()]
    greedy_decode(model, ids([5, 3]), max_len=3)
    assert [m.training for m in model.modules()] == before


def test_a_float64_mask_is_added_in_the_scores_dtype():
    layer = MultiHeadAttention(8, 2)
    assert layer(mt.randn(1, 3, 8), mask=mt.zeros(3, 3, dtype=mt.float64)).dtype == mt.float32


def test_a_small_model_learns_to_reverse_its_input():
    mt.manual_seed(0)
    model = Transformer(TransformerConfig(8, 8, **{**SMALL, "d_model": 32, "d_ff": 64}, dropout=0.0))
    parameters = list(model.parameters())
    optimizer = mt.optim.Adam(parameters, lr=3e-3)
    generator = mt.Generator().manual_seed(0)
    losses = []
    for _ in range(160):
        src = mt.randint(3, 8, (32, 4), generator=generator)
        target = src.flip(1)
        tgt = mt.cat([mt.full((32, 1), 1), target[:, :-1]], 1)
        loss = F.cross_entropy(model(src, tgt).reshape(-1, 8), target.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1.5
    assert np.mean(losses[-5:]) < 0.2  # guessing is ln 5 = 1.6; three seeds end at 0.11, 0.15 and 0.08


def test_learned_positions_are_parameters_that_tell_the_order():
    model = small_model(positions="learned", max_len=6)
    assert model.positions.pe.shape == (6, model.config.d_model)
    assert "positions.pe" in dict(model.named_parameters())
    src, tgt = mt.tensor([[3, 4, 5]]), mt.tensor([[1, 3]])
    assert not mt.allclose(model(src, tgt), model(src.flip(1), tgt))
    model(src, tgt).sum().backward()
    reached = (model.positions.pe.grad != 0).any(1)
    assert reached.tolist() == [True, True, True, False, False, False]
    copy = small_model(1, positions="learned", max_len=6).eval()
    copy.load_state_dict(model.state_dict())
    assert mt.equal(copy(src, tgt), model.eval()(src, tgt))
    with pytest.raises(ValueError, match="7 positions, but max_len is 6"):
        model(mt.full((1, 7), 3), tgt)
    with pytest.raises(ValueError, match="TransformerConfig: positions is 'rotary'; choose among 'sin"):
        small_model(positions="rotary")
    with pytest.raises(ValueError, match="kind is 'rotary'; choose 'sinusoidal' or 'learned'"):
        models.PositionalEncoding(4, kind="rotary")


def test_positional_encoding_is_added_and_not_saved():
    layer = PositionalEncoding(4, 10)
    assert layer.state_dict() == {}
    x = mt.zeros(1, 3, 4)
    assert (layer(x)[0] == layer.pe[:3]).all()
    for shape in [(4,), (1, 3, 1), (1, 3, 5)]:  # a width of 1 would become one of 4
        with pytest.raises(ValueError, match=rf"^PositionalEncoding: x has shape {re.escape(str(shape))}; "):
            layer(mt.zeros(*shape))


# --- parity with PyTorch ------------------------------------------------------------------------------------

PAIRS = {
    "self_attn": "self_attention",
    "multihead_attn": "cross_attention",
    "linear1": "feed_forward.linear1",
    "linear2": "feed_forward.linear2",
    "norm1": "sublayer1.norm",
    "norm2": "sublayer2.norm",
    "norm3": "sublayer3.norm",
}


def copy_into_torch(ours, theirs):
    """Give a torch layer our weights; return {its parameter's name: our gradient as torch lays it out}."""
    torch = pytest.importorskip("torch")
    own = dict(ours.named_parameters())
    laid_out = {}
    for name, parameter in theirs.named_parameters():
        part, _, rest = name.partition(".")
        prefix = PAIRS[part]
        if rest.startswith("in_proj_"):
            kind = rest.removeprefix("in_proj_")
            names = [f"{prefix}.{p}_proj.{kind}" for p in "qkv"]
        else:
            names = [f"{prefix}.{rest}"]
        laid_out[name] = names
        values = np.concatenate([own[n].array for n in names])
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(values))
    return {
        name: (lambda names=names: np.concatenate([own[n].grad.array for n in names]))
        for name, names in laid_out.items()
    }


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("masks", ["none", "causal", "padding", "both"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_layers_agree_with_pytorch_in_outputs_and_all_gradients(kind, masks, activation, norm):
    torch = pytest.importorskip("torch")
    options = {"dropout": 0.0, "activation": activation}
    mt.manual_seed(0)
    ours = (EncoderLayer if kind == "encoder" else DecoderLayer)(8, 2, 16, norm=norm, **options).double()
    layer = torch.nn.TransformerEncoderLayer if kind == "encoder" else torch.nn.TransformerDecoderLayer
    theirs = layer(8, 2, 16, batch_first=True, norm_first=norm == "pre", **options).double()
    gradient_of = copy_into_torch(ours, theirs)

    x, memory, g = normal(1, 2, 5, 8), normal(2, 2, 4, 8), normal(3, 2, 5, 8)
    lengths, memory_lengths = np.array([5, 3]), np.array([4, 2])
    causal = causal_mask(5) if masks in ("causal", "both") else None
    key = mt.tensor(np.arange(5) < lengths[:, None]) if masks in ("padding", "both") else None
    memory_key = mt.tensor(np.arange(4) < memory_lengths[:, None]) if masks in ("padding", "both") else None

    def four(mask):
        return None if mask is None else mask.reshape(2, 1, 1, -1)

    def off(mask):  # torch's boolean masks mean the opposite
        return None if mask is None else torch.from_numpy(~mask.array)

    xs = [x.requires_grad_(), *([memory.requires_grad_()] if kind == "decoder" else [])]
    ts = [torch.from_numpy(t.array.copy()).requires_grad_() for t in xs]
    mask = combine_masks(causal, four(key))
    if kind == "encoder":
        y, want = ours(x, mask), theirs(ts[0], src_mask=off(causal), src_key_padding_mask=off(key))
    else:
        y = ours(x, memory, mask, four(memory_key))
        want = theirs(
            *ts,
            tgt_mask=off(causal),
            tgt_key_padding_mask=off(key),
            memory_key_padding_mask=off(memory_key),
        )
    y.backward(g)
    want.backward(torch.from_numpy(g.array))
    close = {"rtol": 1e-9, "atol": 1e-11}  # float64, some hundred additions in other orders
    np.testing.assert_allclose(y.detach().array, want.detach().numpy(), **close)
    for mine, other in zip(xs, ts, strict=True):
        np.testing.assert_allclose(mine.grad.array, other.grad.numpy(), **close)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(gradient_of[name](), parameter.grad.numpy(), **close, err_msg=name)


MADE_OF: dict[Any, Any] = {
    models.GPTConfig: (),
    models.TransformerConfig: (9, 9),
    models.TextEncoderConfig: (),
}
FIELDS = [(kind, field) for kind in MADE_OF for field in dataclasses.fields(kind)]


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=lambda v: getattr(v, "name", None))
def test_every_field_of_a_configuration_is_checked_when_it_is_made(kind, field):
    sizes_first = dict(zip([f.name for f in dataclasses.fields(kind)], MADE_OF[kind], strict=False))
    for wrong in (
        "no",
        [1],
        object(),
        -1,
        math.nan,
        np.ones(2),
        "True",
        *([None] * (field.default is not None)),
    ):
        with pytest.raises(
            (TypeError, ValueError), match=rf"^{kind.__name__}: {field.name} is .*; (make|give|it is|choose) "
        ):
            kind(**{**sizes_first, field.name: wrong})


@pytest.mark.parametrize("kind", MADE_OF)
def test_a_width_that_its_heads_do_not_divide_is_refused_when_it_is_said(kind):
    heads, width = ("n_head", "n_embd") if kind is models.GPTConfig else ("n_heads", "d_model")
    with pytest.raises(
        ValueError, match=rf"^{kind.__name__}: {width} 10 is not divisible by {heads} 4; choose"
    ):
        kind(*MADE_OF[kind], **{width: 10, heads: 4})


def test_the_words_of_configurations_are_those_that_models_know():
    assert {*sizes.WORDS["activation"]} == {*transformer.ACTIVATIONS}
    assert {*sizes.WORDS["pooling"]} == {*text_encoder.POOLINGS}


@pytest.mark.parametrize(
    ("q", "k", "v", "wrong"),
    [
        ((2, 4, 10, 16), (2, 4, 12, 8), (2, 4, 12, 8), "query and key differ in width"),
        ((2, 4, 10, 16), (2, 4, 12, 16), (2, 4, 11, 16), "key and value differ in length"),
        ((2, 10, 4, 16), (2, 4, 12, 16), (2, 4, 12, 16), "heads and length are swapped"),
        ((16,), (12, 16), (12, 16), "each needs two axes at least"),
    ],
)
def test_what_does_not_fit_into_attention_is_told_in_its_words(q, k, v, wrong):
    """And not as a product of two matrices, of which the user wrote none."""
    with pytest.raises(ValueError, match=f"^scaled_dot_product_attention: query .*{wrong}.*; "):
        scaled_dot_product_attention(mt.zeros(q), mt.zeros(k), mt.zeros(v))
