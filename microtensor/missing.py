"""Names that are not here: the error says what is close, and where a name that was meant is."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

__all__ = ["MissingNameError", "explain_missing"]

ROOMS = ["microtensor", "Tensor", "nn", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr_scheduler"]
ROOMS += ["data", "autograd"]
# of the package above this one, which is not looked into
MODELS = ["MultiHeadAttention", "Transformer", "Encoder", "EncoderLayer", "Decoder", "DecoderLayer"]
MODELS += ["PositionalEncoding", "GPT"]


class MissingNameError(AttributeError):
    """`<room>: there is no <name> here; did you mean …?` What was meant is looked for when this is read."""

    def __init__(self, room: str, name: str) -> None:
        super().__init__(room, name, name=name, obj=None)  # no object: else Python looks for close names, too
        self.room = room

    def __str__(self) -> str:
        from difflib import get_close_matches

        own = {name.lower(): name for name in _names(self.room)}
        others = {room: {n.lower(): n for n in _names(room)} for room in ROOMS if room != self.room}
        others["models"] = {f"{before}{n}".lower(): n for n in MODELS for before in ("", "Transformer")}
        others["engine"] = {"function": "op"}  # what has a gradient formula of its own is an op here
        wanted = str(self.name).lower()
        found = [own[name] for name in get_close_matches(wanted, own, cutoff=0.7)]
        found += [f"{room}.{names[wanted]}" for room, names in others.items() if wanted in names]
        cure = f"did you mean {' or '.join(found)}?" if found else "its documentation lists what there is"
        return f"{self.room}: there is no {self.name} here; {cure}"


def _names(room: str) -> list[str]:
    package = import_module(__package__)
    if room == "Tensor":
        return [name for name in dir(package.Tensor) if not name.startswith("_")]
    found = package if room == __package__ else import_module(f"{__package__}.{room}")
    return [*found.__all__, *getattr(found, "LAZY", ())]


def explain_missing(*owners: Any) -> None:
    """From now on a name that modules (given by their own names) or instances of classes lack is explained.

    It costs nothing until then; a module that looks for its names itself goes on doing so. Said in this way,
    and not by a `__getattr__`, type checkers still see it.
    Under Python 3.11 each attribute of each tensor would be read four times as slowly: its own words stand.
    """

    for owner in owners:
        if isinstance(owner, str):
            vars(sys.modules[owner]).setdefault("__getattr__", partial(_refuse, owner.partition(".")[2]))
        elif sys.version_info >= (3, 12):
            owner.__getattr__ = lambda self, name, room=owner.__name__: _refuse(room, name)


def _refuse(room: str, name: str) -> NoReturn:
    raise MissingNameError(room, name)
