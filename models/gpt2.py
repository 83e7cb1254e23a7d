"""GPT-2's checkpoints as Hugging Face writes them, in the names of models/gpt.py. It builds no model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import microtensor as mt
from microtensor import Tensor
from models.pretrained import read_config, read_tensors, refuse_other, refuse_unfit, renamed, sizes

__all__ = ["gpt2_settings", "gpt2_tensors", "is_conv1d"]

# what config.json calls the activation → how GELU is approximated
GELUS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}
# its other switches, and what our GPT computes; those that are not here change no number
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "activation_function": tuple(GELUS),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}


def gpt2_settings(who: str, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What config.json says, by the names of GPTConfig.

    Raises: ValueError for what is no GPT-2, and naming settings that our GPT has not.
    """
    config = read_config(who, folder, "gpt2")
    length = "n_positions" if "n_positions" in config else "n_ctx"  # old files have both, the oldest n_ctx
    n = sizes(who, config, (length, "vocab_size", "n_layer", "n_head", "n_embd"))
    refuse_other(who, config, SUPPORTED | {"n_inner": (None, 4 * n["n_embd"])})
    eps = config.get("layer_norm_epsilon", 1e-5)
    if not isinstance(eps, int | float) or not 0 <= eps < math.inf:
        raise ValueError(f"{who}: config.json has layer_norm_epsilon {eps!r}; give a number of 0 or more")
    gelu = GELUS[config.get("activation_function", "gelu_new")]
    return {"block_size": n.pop(length), **n, "gelu": gelu, "eps": float(eps)}


def gpt2_tensors(who: str, folder: str | os.PathLike[str], settings: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights by the names of our GPT, as the file has them: those of `is_conv1d` are transposed.

    The masks `attn.bias` are no weights. Some files leave out the first word of the names; most the output
    layer, which is the embedding.
    Raises: ValueError for an output layer of its own, a tensor that is there twice, and sizes in the
    settings that are not those of the weights: a model of such sizes might not fit into memory.
    """
    found = renamed(who, read_tensors(who, folder), _name)
    if "transformer.wte.weight" in found:
        found.setdefault("lm_head.weight", found["transformer.wte.weight"])
    V, P, L, C = (settings[name] for name in ("vocab_size", "block_size", "n_layer", "n_embd"))
    tables = {"transformer.wte.weight": (V, C), "transformer.wpe.weight": (P, C), "lm_head.weight": (V, C)}
    layers = [f"n_layer is {L}, but there are {len(found)} tensors"] if len(found) < L else []
    refuse_unfit(who, found, tables, layers)
    if not mt.equal(found["lm_head.weight"], found["transformer.wte.weight"]):
        raise ValueError(
            f"{who}: lm_head.weight is another matrix than wte.weight, but here they are one; choose a "
            f"model that ties them"
        )
    return found


def _name(theirs: str) -> str | None:
    if theirs.endswith((".attn.bias", ".attn.masked_bias")):
        return None
    return theirs if theirs.startswith(("transformer.", "lm_head.")) else f"transformer.{theirs}"


def is_conv1d(name: str) -> bool:
    """Whether GPT-2 stores this weight as (in, out), for x W; our Linear, for x Wᵀ, as (out, in)."""
    return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
