"""What counts, probabilities, ids and switches a model can be made of: one rule for each name, in all models.

The names mean the same everywhere, so that a new model is held to the rules without a word. No model is
known here.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from numbers import Integral, Real
from typing import Any

__all__ = ["check_sizes", "hold_sizes"]

Rule = tuple[Any, str, float, float, str]  # what it is, its annotation, the least, the most, what to do

COUNT: Rule = (Integral, "int", 1, math.inf, "make it at least 1")
LAYERS: Rule = (Integral, "int", 0, math.inf, "make it at least 0")  # without any it embeds, and is a model
DROPS: Rule = (Real, "float", 0.0, 1.0, "it is the probability to drop, between 0 and 1")
FROM_0: Rule = (Real, "float", 0.0, sys.float_info.max, "make it 0 or more, and finite")

VOCABULARIES = ("vocab_size", "src_vocab_size", "tgt_vocab_size")
IDS = ("pad_id", "bos_id", "eos_id")
RULES: dict[str, Rule] = {
    **dict.fromkeys((*VOCABULARIES, "block_size", "max_len", "max_seq_length", "n_types"), COUNT),
    **dict.fromkeys(("d_model", "n_embd", "n_heads", "n_head", "d_ff"), COUNT),
    **dict.fromkeys(("n_layers", "n_layer", "n_encoder_layers", "n_decoder_layers"), LAYERS),
    **{"dropout": DROPS, "attention_dropout": DROPS, "eps": FROM_0, "init_std": FROM_0},
}
HEADS = {"d_model": "n_heads", "n_embd": "n_head"}  # what a width is split among
FLAGS = ("bias", "tie_weights", "shared_vocabulary", "scale_embeddings")
WORDS = {
    **{"norm": ("post", "pre"), "activation": ("relu", "gelu"), "positions": ("sinusoidal", "learned")},
    **{"gelu": ("tanh", "none"), "pooling": ("mean", "max", "cls")},
}


def check_sizes(who: str, **given: Any) -> None:
    """Each value by the rule of its name, ids by the vocabularies beside them, and widths by the heads.

    Raises: TypeError for what is of another kind, ValueError for what cannot be meant.
    Source: ours.
    """
    for name, value in given.items():
        if name in FLAGS and not isinstance(value, bool):
            raise TypeError(f"{who}: {name} is {value!r:.60}; choose True or False")
        if name in WORDS and str(value) not in WORDS[name]:
            raise ValueError(
                f"{who}: {name} is {value!r:.60}; choose among {', '.join(map(repr, WORDS[name]))}"
            )
    for name in [name for name in given if name in RULES]:
        if given[name] is not None or name != "max_seq_length":  # None: not to be cut
            _check(who, name, given[name], RULES[name])
    for width, heads in HEADS.items():
        if width in given and given[width] % given.get(heads, 1):
            raise ValueError(f"{who}: {width} {given[width]} is not divisible by {heads} {given[heads]}; "
                             f"choose {heads} among its divisors")  # fmt: skip
    known = [given[name] for name in VOCABULARIES if name in given]
    if given.get("shared_vocabulary") and len({*known}) > 1:
        raise ValueError(f"{who}: shared_vocabulary with vocabularies of {known[0]} and {known[1]}; make "
                         f"the sizes equal, or shared_vocabulary=False")  # fmt: skip
    for name in IDS if known else ():
        V = min(known) if name == "pad_id" else known[-1]  # the source has padding alone
        rule: Rule = (Integral, "int", 0, V - 1, f"give the id of one of the {V} tokens")
        if name in given:
            _check(who, name, given[name], rule)


def _check(who: str, name: str, value: Any, rule: Rule) -> None:
    kind, annotation, least, most, cure = rule
    if not isinstance(value, kind) or (kind is Integral and isinstance(value, bool)):
        raise TypeError(f"{who}: {name} is {value!r:.60}; give {annotation}")
    if not least <= value <= most:
        raise ValueError(f"{who}: {name} is {value}; {cure}")


def hold_sizes(room: str) -> None:
    """From now on the public classes of a module, given by its name, check what they are made of.

    A configuration is checked when it is made, and by the model that is made of it: some can be changed.
    Source: ours.
    """
    names = vars(sys.modules[room])
    kinds: list[Any] = [names[name] for name in names["__all__"] if isinstance(names[name], type)]
    for kind in kinds:
        parameters = [*inspect.signature(kind.__init__).parameters]
        if "__init__" in vars(kind) and not {"config", *RULES, *FLAGS, *WORDS}.isdisjoint(parameters):
            kind.__init__ = _held(kind.__init__, parameters, is_dataclass(kind))


def _held(make: Callable[..., None], names: list[str], is_config: bool) -> Callable[..., None]:
    @functools.wraps(make)
    def init(self: Any, *args: Any, **given: Any) -> None:
        if not is_config:
            named = dict(zip(names, (self, *args), strict=False)) | given
            del named["self"]
            check_sizes(type(self).__name__, **named)
            if is_dataclass(config := named.get("config")):
                check_sizes(type(config).__name__, **vars(config))
        make(self, *args, **given)
        if is_config:
            check_sizes(type(self).__name__, **vars(self))

    return init
