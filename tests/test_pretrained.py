"""GPT-2 checkpoints of Hugging Face's form, written here, against a forward in NumPy; and what is refused."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file

import microtensor as mt
from models import GPT, GPTConfig, generate

V, P, L, H, C = 13, 10, 2, 2, 8  # tokens, positions, layers, heads, width
CONFIG = {
    "model_type": "gpt2",
    "n_positions": P,
    "n_ctx": P,
    "vocab_size": V,
    "n_layer": L,
    "n_head": H,
    "n_embd": C,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
}


def weights(prefix="transformer.", masks=True, seed=0):
    """GPT-2's tensors by Hugging Face's names, matrices (in, out) as its Conv1D has them."""
    rng = np.random.default_rng(seed)
    shapes = {"wte.weight": (V, C), "wpe.weight": (P, C), "ln_f.weight": (C,), "ln_f.bias": (C,)}
    for i in range(L):
        for name, shape in {
            **{"ln_1": (C,), "ln_2": (C,), "attn.c_attn": (C, 3 * C), "attn.c_proj": (C, C)},
            **{"mlp.c_fc": (C, 4 * C), "mlp.c_proj": (4 * C, C)},
        }.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[-1:]}
    made = {prefix + name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    for i in range(L if masks else 0):  # buffers of old files
        made[f"{prefix}h.{i}.attn.bias"] = np.tril(np.ones((1, 1, P, P), np.float32))
        made[f"{prefix}h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
    return made


def write(folder, tensors, **config):
    (folder / "config.json").write_text(json.dumps(CONFIG | config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


def numpy_gpt2(w, ids, gelu, eps):
    """Logits (T, V) of ids (T,), in float64, by the formulas of Radford et al. and loops over the heads."""
    w = {name.removeprefix("transformer."): t.astype(np.float64) for name, t in w.items()}

    def norm(x, name):
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def conv1d(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    T, D = len(ids), C // H
    x = w["wte.weight"][ids] + w["wpe.weight"][:T]
    for i in range(L):
        q, k, v = np.split(conv1d(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, axis=1)  # (T, C) each
        heads = []
        for h in range(H):
            part = slice(h * D, (h + 1) * D)
            scores = q[:, part] @ k[:, part].T / math.sqrt(D)  # (T, T)
            p = np.tril(np.exp(scores - scores.max()))
            heads.append(p / p.sum(-1, keepdims=True) @ v[:, part])
        x = x + conv1d(np.concatenate(heads, -1), f"h.{i}.attn.c_proj")
        x = x + conv1d(gelu(conv1d(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")), f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_exact(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


IDS = np.array([3, 1, 12, 0, 7, 7, 5])


def logits(model):
    x = mt.tensor(IDS[None])
    return model(x, x)[0].array[0]


# float32 against float64: a few roundings of logits of order 10; the two GELUs are 1e-3 apart
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("prefix", ["transformer.", ""])
@pytest.mark.parametrize(
    ("activation", "gelu", "eps"),
    [("gelu_new", gelu_tanh, 1e-5), ("gelu_pytorch_tanh", gelu_tanh, 1e-5), ("gelu", gelu_exact, 0.1)],
)
def test_gpt2_computes_what_its_formulas_say(tmp_path, prefix, activation, gelu, eps):
    w = weights(prefix, masks=activation == "gelu_new")
    write(tmp_path, w, activation_function=activation, layer_norm_epsilon=eps)
    model = GPT.from_pretrained(tmp_path)
    np.testing.assert_allclose(logits(model), numpy_gpt2(w, IDS, gelu, eps), **CLOSE)
    assert model.lm_head.weight is model.transformer.wte.weight
    longer = generate(model, mt.tensor(IDS[None]), 5, temperature=0.0)[0].numpy()  # beyond P positions
    for t in range(len(IDS), P):
        assert longer[t] == numpy_gpt2(w, longer[:t], gelu, eps)[-1].argmax()


def test_the_oldest_and_the_barest_config_are_read(tmp_path):
    write(tmp_path, weights())
    names = ("model_type", "n_ctx", "vocab_size", "n_layer", "n_head", "n_embd")
    (tmp_path / "config.json").write_text(json.dumps({name: CONFIG[name] for name in names}))
    model = GPT.from_pretrained(str(tmp_path), dropout=0.25)
    assert model.config == GPTConfig(P, V, L, H, C, dropout=0.25)
    np.testing.assert_allclose(logits(model.eval()), numpy_gpt2(weights(), IDS, gelu_tanh, 1e-5), **CLOSE)


def test_an_output_layer_that_is_the_embedding_may_be_in_the_file(tmp_path):
    w = weights()
    write(tmp_path, w | {"lm_head.weight": w["transformer.wte.weight"].copy()})
    np.testing.assert_allclose(
        logits(GPT.from_pretrained(tmp_path)), numpy_gpt2(w, IDS, gelu_tanh, 1e-5), **CLOSE
    )


def test_half_precisions_become_float32(tmp_path):
    halves = {name: t.astype(np.float16) for name, t in weights().items()}
    model = GPT.from_pretrained(write(tmp_path, halves))
    assert {p.dtype for p in model.parameters()} == {mt.float32}
    np.testing.assert_allclose(logits(model), numpy_gpt2(halves, IDS, gelu_tanh, 1e-5), **CLOSE)


def test_bfloat16_becomes_the_float32_of_the_same_value(tmp_path):
    w = weights(masks=False)
    cut = {name: (t.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for name, t in w.items()}
    halves = {name: (t.view(np.uint32) >> 16).astype("<u2") for name, t in w.items()}
    header, place = {}, 0
    for name, t in halves.items():
        header[name] = {
            "dtype": "BF16",
            "shape": list(t.shape),
            "data_offsets": [place, place := place + t.nbytes],
        }
    write(tmp_path, w)
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + b"".join(t.tobytes() for t in halves.values())
    (tmp_path / "model.safetensors").write_bytes(data)
    state = GPT.from_pretrained(tmp_path).state_dict()
    np.testing.assert_array_equal(state["transformer.wte.weight"].numpy(), cut["transformer.wte.weight"])
    name = "transformer.h.1.mlp.c_fc.weight"
    np.testing.assert_array_equal(state[name].numpy(), cut[name].T)


@pytest.mark.parametrize("name", ["transformer.wte.weight", "transformer.h.1.ln_1.bias", "lm_head.weight"])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        *((lambda t, d=d: (4 * t).astype(d), "integers or booleans") for d in ("i1", "u1", "i8", "?")),
        *(
            (lambda t, x=x: np.where(t == t.max(), x, t.astype(np.float64)), "NaN, an infinity, or what ove")
            for x in (math.nan, -math.inf, 1e300)
        ),
    ],
)
def test_weights_that_are_no_finite_floats_are_refused_by_name(tmp_path, name, spoil, says):
    w = weights()
    w["lm_head.weight"] = w["transformer.wte.weight"].copy()
    write(tmp_path, w | {name: spoil(w[name])})
    with pytest.raises(ValueError, match=rf"^GPT\.from_pretrained: {name} holds {says}.*; use a copy "):
        GPT.from_pretrained(tmp_path)


def test_a_tensor_that_is_there_twice_is_refused(tmp_path):
    w = weights()
    write(tmp_path, w | {"wte.weight": w["transformer.wte.weight"] + 1})
    with pytest.raises(
        ValueError, match=r"the weights have (transformer\.)?wte\.weight and (transformer\.)?wte\.weight, two"
    ):
        GPT.from_pretrained(tmp_path)
    split_in_two(tmp_path, w)
    save_file(w, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"transformer\.\S+ is in two files of model\.safetensors\.index"):
        GPT.from_pretrained(tmp_path)


@pytest.mark.parametrize("content", [[mt.ones(2)], {"wte.weight": 3}])
def test_a_file_of_more_than_tensors_is_refused(tmp_path, content):
    mt.save(content, write(tmp_path, weights()) / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors' holds more than tensors; "):
        GPT.from_pretrained(tmp_path)


def split_in_two(folder, w):
    """model.safetensors in two files and their index."""
    parts = {"a.safetensors": dict(list(w.items())[:9]), "b.safetensors": dict(list(w.items())[9:])}
    for file, tensors in parts.items():
        save_file(tensors, folder / file)
    index = {"weight_map": {name: file for file, tensors in parts.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink(missing_ok=True)


def test_weights_in_several_files_are_read(tmp_path):
    w = weights()
    split_in_two(write(tmp_path, w), w)
    np.testing.assert_allclose(
        logits(GPT.from_pretrained(tmp_path)), numpy_gpt2(w, IDS, gelu_tanh, 1e-5), **CLOSE
    )
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"^GPT\.from_pretrained: there is no b\.safetensors in "):
        GPT.from_pretrained(tmp_path)


@pytest.mark.parametrize("part", ["../b.safetensors", "/b.safetensors", "b.bin", 3])
def test_an_index_cannot_lead_out_of_its_folder_or_to_a_pickle(tmp_path, part):
    write(tmp_path, weights())
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"wte.weight": part}}))
    with pytest.raises(ValueError, match=r"index\.json has no weight_map of file names; "):
        GPT.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "bert"}, r"has model_type 'bert'; give a folder of a 'gpt2'"),
        ({"activation_function": "relu"}, r"asks for activation_function 'relu' \(only 'gelu_new' or"),
        ({"scale_attn_by_inverse_layer_idx": True}, r"asks for scale_attn_by_inverse_layer_idx True \(only"),
        ({"scale_attn_weights": False}, r"asks for scale_attn_weights False \(only True\); "),
        ({"add_cross_attention": True}, r"asks for add_cross_attention True"),
        ({"tie_word_embeddings": False}, r"asks for tie_word_embeddings False"),
        ({"n_inner": 99}, r"asks for n_inner 99 \(only None or 32\); "),
        ({"n_layer": "2", "n_embd": 0}, r"has n_layer '2', n_embd 0; give integers of 1 or more"),
        ({"n_positions": None}, r"has n_positions None; give integers"),
        ({"layer_norm_epsilon": "small"}, r"has layer_norm_epsilon 'small'; give a number"),
        ({"n_layer": 1}, r"h\.1\.attn\.c_attn\.bias is unexpected; .*; and 6 more; take both from one model"),
        ({"n_layer": 3}, r"transformer\.h\.2\.ln_1\.weight is missing; "),
        ({"n_layer": 10**15}, r"n_layer is 10{15}, but there are 29 tensors; "),
        ({"vocab_size": 10**13}, r"transformer\.wte\.weight has shape \(13, 8\), not \(10{13}, 8\); "),
        ({"n_positions": 10**13}, r"transformer\.wpe\.weight has shape \(10, 8\), not \(10{13}, 8\); "),
        ({"n_embd": 10**13}, r"transformer\.wte\.weight has shape \(13, 8\), not \(13, 10{13}\); "),
        ({"vocab_size": 14}, r"transformer\.wte\.weight has shape \(13, 8\), not \(14, 8\); "),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path, config, says):
    write(tmp_path, weights(), **config)
    with pytest.raises(ValueError, match=r"^GPT\.from_pretrained: .*" + says):
        GPT.from_pretrained(tmp_path)


def test_the_shape_of_a_matrix_is_said_as_the_file_has_it(tmp_path):
    w = weights()
    w["transformer.h.0.attn.c_attn.weight"] = w["transformer.h.0.attn.c_attn.weight"].T.copy()
    with pytest.raises(ValueError, match=r"h\.0\.attn\.c_attn\.weight has shape \(24, 8\), not \(8, 24\); "):
        GPT.from_pretrained(write(tmp_path, w))


def test_an_output_layer_of_its_own_is_refused(tmp_path):
    w = weights()
    with pytest.raises(ValueError, match=r"lm_head\.weight is another matrix than wte\.weight"):
        GPT.from_pretrained(write(tmp_path, w | {"lm_head.weight": w["transformer.wte.weight"] + 1}))
    with pytest.raises(ValueError, match=r"lm_head\.weight has shape \(12, 8\), not \(13, 8\); "):
        GPT.from_pretrained(write(tmp_path, w | {"lm_head.weight": w["transformer.wte.weight"][:12]}))


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no config\.json in .*nowhere"):
        GPT.from_pretrained(tmp_path / "nowhere")
    write(tmp_path, weights())
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-5])
    with pytest.raises(ValueError, match=r"model\.safetensors' is damaged"):
        GPT.from_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(FileNotFoundError, match=r"there is no model\.safetensors in .* as safetensors"):
        GPT.from_pretrained(tmp_path)
    for text, says in (("{", "is no JSON"), ("[]", "is no JSON object"), ("\xff", "is no JSON")):
        (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ValueError, match=rf"config\.json' {says}"):
            GPT.from_pretrained(tmp_path)
