"""Encoders of the BERT family as Hugging Face writes them, in the names of models/text_encoder.py.

config.json, model.safetensors and tokenizer.json are transformers' files; modules.json, the pooling's
config.json, sentence_bert_config.json and config_sentence_transformers.json, where they are there,
sentence-transformers'. It builds no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from microtensor import Tensor
from models.pretrained import (
    read_config,
    read_json,
    read_tensors,
    refuse_other,
    refuse_unfit,
    renamed,
    sizes,
)

__all__ = ["bert_names", "bert_settings", "bert_tensors", "bert_tokenizer"]

SIZES = {  # in config.json → ours
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "max_len",
    "type_vocab_size": "n_types",
}
NUMBERS = {
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "eps",
}
# the other switches, and what our encoder computes; those that are not here change no number
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}
# what sentence-transformers may put behind the encoder, and how it calls our poolings
MODULES = ["Transformer", "Pooling", "Normalize"]
MODE = "pooling_mode_"
POOLINGS = {"mean_tokens": "mean", "max_tokens": "max", "cls_token": "cls"}

EMBEDDINGS = {  # ours → in model.safetensors
    "token_embedding": "embeddings.word_embeddings",
    "position_embedding": "embeddings.position_embeddings",
    "type_embedding": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
LAYER = {
    "self_attention.q_proj": "attention.self.query",
    "self_attention.k_proj": "attention.self.key",
    "self_attention.v_proj": "attention.self.value",
    "self_attention.out_proj": "attention.output.dense",
    "sublayer1.norm": "attention.output.LayerNorm",
    "feed_forward.linear1": "intermediate.dense",
    "feed_forward.linear2": "output.dense",
    "sublayer2.norm": "output.LayerNorm",
}
NO_WEIGHTS = ("pooler.", "cls.", "embeddings.position_ids", "embeddings.token_type_ids")


def bert_settings(who: str, folder: Path, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What the files say, by the names of TextEncoderConfig; defaults hold for what config.json leaves out.

    Raises: FileNotFoundError without config.json; ValueError for what is no BERT, and naming settings that
    our encoder has not.
    """
    config = {theirs: defaults[ours] for theirs, ours in (SIZES | NUMBERS).items()}
    config |= read_config(who, folder, "bert")
    refuse_other(who, config, SUPPORTED)
    _refuse_prompt(who, folder)
    found: dict[str, Any] = {SIZES[name]: n for name, n in sizes(who, config, [*SIZES]).items()}
    for theirs, ours in NUMBERS.items():
        if type(config[theirs]) not in (int, float) or not 0 <= config[theirs] < 1:
            raise ValueError(f"{who}: config.json has {theirs} {config[theirs]!r}; give one of 0 … 1")
        found[ours] = float(config[theirs])
    pad_id = config.get("pad_token_id")
    if pad_id is not None and not (type(pad_id) is int and 0 <= pad_id < found["vocab_size"]):
        raise ValueError(f"{who}: config.json has pad_token_id {pad_id!r}; give an id of the vocabulary")
    found["pad_id"] = pad_id or 0
    return found | {"pooling": _pooling(who, folder), "max_seq_length": _max_seq_length(who, folder)}


def _pooling(who: str, folder: Path) -> str:
    """How tokens become a sentence: the mean, unless a file says otherwise."""
    place = _pooling_folder(who, folder)
    if place is None:
        return "mean"
    settings = read_json(who, folder / place / "config.json")
    modes = [name.removeprefix(MODE) for name, on in settings.items() if name.startswith(MODE) and on]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ValueError(
            f"{who}: {place}/config.json has {modes}; choose a model whose pooling is one of "
            f"{', '.join(POOLINGS)}"
        )
    return POOLINGS[modes[0]]


def _pooling_folder(who: str, folder: Path) -> str | None:
    """Where modules.json says; without it 1_Pooling, if that is there."""
    if not (folder / "modules.json").exists():
        return "1_Pooling" if (folder / "1_Pooling" / "config.json").exists() else None
    modules = [
        m if isinstance(m, dict) else {"type": m} for m in read_json(who, folder / "modules.json", list)
    ]
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    if kinds not in (MODULES[:2], MODULES):
        raise ValueError(
            f"{who}: modules.json has {kinds}; choose a model of Transformer, Pooling and perhaps Normalize, "
            f"once each and in this order"
        )
    root, place = (module.get("path") for module in modules[:2])
    if root != "" or not isinstance(place, str) or Path(place).anchor or ".." in Path(place).parts:
        raise ValueError(
            f"{who}: modules.json has the Transformer in {root!r}, the Pooling in {place!r}; give a folder "
            f"with the one in '' and the other below it"
        )
    return place


def _refuse_prompt(who: str, folder: Path) -> None:
    """Nothing, unless a file says that a prompt is put before each text, which `embed` does not."""
    path = folder / "config_sentence_transformers.json"
    prompt = read_json(who, path).get("default_prompt_name") if path.exists() else None
    if prompt is not None:
        raise ValueError(
            f"{who}: {path.name} has default_prompt_name {prompt!r}; make it null, and put the prompt before "
            f"the texts yourself"
        )


def _max_seq_length(who: str, folder: Path) -> int | None:
    """Where texts are cut, if a file says so. What becomes of case tokenizer.json alone may say."""
    path = folder / "sentence_bert_config.json"
    settings = read_json(who, path) if path.exists() else {}
    length, lower = settings.get("max_seq_length"), settings.get("do_lower_case", False)
    if lower is not False or not (length is None or (type(length) is int and length > 0)):
        raise ValueError(
            f"{who}: {path.name} has max_seq_length {length!r} and do_lower_case {lower!r}; give an integer "
            f"of 1 or more, and false"
        )
    return length


def bert_tokenizer(who: str, folder: Path) -> Any:
    """The `tokenizers.Tokenizer` of tokenizer.json.

    Raises: ModuleNotFoundError without that library; FileNotFoundError; ValueError for a damaged file.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f'{who}: tokenizers is missing; pip install "microtensor[text]"') from error
    path = folder / "tokenizer.json"
    read_json(who, path)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise ValueError(f"{who}: {str(path)!r} is no tokenizer ({error}); use another copy") from error


def bert_tensors(who: str, folder: Path, settings: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights by the names that BertModel gives them today.

    Left out are the pooler, the heads (cls, and where names begin with "bert." all others than the
    encoder's), and constants. The oldest files call weight and bias of a LayerNorm gamma and beta.
    Raises: ValueError for a tensor that is there twice, and for sizes in the settings that are not those of
    the weights: a model of such sizes might not fit into memory.
    """
    tensors = read_tensors(who, folder)
    prefixed = any(theirs.startswith("bert.") for theirs in tensors)

    def name(theirs: str) -> str | None:
        new = theirs.removeprefix("bert.")
        head = prefixed and not theirs.startswith(("bert.", "embeddings.", "encoder."))
        if head or new.startswith(NO_WEIGHTS):
            return None
        return new.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")

    found = renamed(who, tensors, name)
    C, M, L = (settings[ours] for ours in ("d_model", "d_ff", "n_layers"))
    tables = {"token": "vocab_size", "position": "max_len", "type": "n_types"}
    shapes = {EMBEDDINGS[f"{table}_embedding"] + ".weight": (settings[n], C) for table, n in tables.items()}
    shapes["encoder.layer.0.intermediate.dense.weight"] = (M, C)
    layers = [f"num_hidden_layers is {L}, but there are {len(found)} tensors"] if len(found) < L else []
    refuse_unfit(who, found, shapes, layers)
    return found


def bert_names(n_layers: int) -> dict[str, str]:
    """Our parameters → BertModel's."""
    modules = dict(EMBEDDINGS)
    for i in range(n_layers):
        modules |= {f"encoder.layers.{i}.{ours}": f"encoder.layer.{i}.{t}" for ours, t in LAYER.items()}
    return {f"{ours}.{end}": f"{t}.{end}" for ours, t in modules.items() for end in ("weight", "bias")}
