"""What a folder of a pretrained model holds, read with plain errors: config.json and model.safetensors.

It knows Hugging Face's file names and nothing of any model. Weights come from safetensors files alone, which
cannot run code; a pickled pytorch_model.bin is not read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import microtensor as mt
from microtensor import Tensor, nn
from microtensor.train import load

__all__ = [
    "fill",
    "folder_path",
    "read_config",
    "read_json",
    "read_tensors",
    "refuse_other",
    "refuse_unfit",
    "renamed",
    "sizes",
]

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"  # of weights in several files: {"weight_map": {tensor: file}}


def folder_path(who: str, folder: Any) -> Path:
    """The folder as a path.

    Raises: TypeError for what is no path.
    """
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"{who}: folder is {folder!r:.60}; give the path of a folder")
    return Path(folder)


def read_config(who: str, folder: str | os.PathLike[str], model_type: str) -> dict[str, Any]:
    """The entries of config.json.

    Raises: FileNotFoundError without it; ValueError if it is no JSON object, or of another model_type.
    """
    config: dict[str, Any] = read_json(who, folder_path(who, folder) / "config.json")
    found = config.get("model_type")
    if found != model_type:
        raise ValueError(
            f"{who}: the model in {str(folder)!r} has model_type {found!r}; give a folder of a {model_type!r}"
        )
    return config


def sizes(who: str, config: Mapping[str, Any], names: Sequence[str]) -> dict[str, int]:
    """The entries of these names, each an integer of 1 or more.

    Raises: ValueError naming those that are not.
    """
    found = {name: config.get(name) for name in names}
    faults = [f"{name} {value!r}" for name, value in found.items() if type(value) is not int or value < 1]
    if faults:
        raise ValueError(f"{who}: config.json has {', '.join(faults)}; give integers of 1 or more")
    return {name: int(config[name]) for name in names}


def refuse_other(who: str, config: Mapping[str, Any], supported: Mapping[str, Sequence[Any]]) -> None:
    """Nothing, if each entry that is there has one of its supported values.

    Raises: ValueError naming those that have not: another architecture would compute wrong numbers.
    """
    faults = [
        f"{name} {config[name]!r} (only {' or '.join(map(repr, values))})"
        for name, values in supported.items()
        if name in config and config[name] not in values
    ]
    if faults:
        raise ValueError(f"{who}: config.json asks for {', '.join(faults)}; choose a model without that")


def read_tensors(who: str, folder: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of the files that model.safetensors.index.json names, by name.

    Raises: FileNotFoundError if a file is missing; ValueError for one that is damaged or holds more than
    tensors, and for a name that is in two of them.
    """
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(who, Path(folder)):
        if not path.is_file():
            raise FileNotFoundError(
                f"{who}: there is no {path.name} in {str(folder)!r}; save the model there as safetensors"
            )
        part = load(path)
        if not isinstance(part, dict) or not all(isinstance(t, Tensor) for t in part.values()):
            raise ValueError(f"{who}: {str(path)!r} holds more than tensors; save the model's weights alone")
        twice = sorted(tensors.keys() & part.keys())
        if twice:
            raise ValueError(f"{who}: {twice[0]} is in two files of {INDEX}; use another copy")
        tensors |= part
    return tensors


def renamed(who: str, tensors: Mapping[str, Tensor], name: Callable[[str], str | None]) -> dict[str, Tensor]:
    """The tensors by the names that a function gives them; it gives None to what is left out.

    Raises: ValueError for two of one name: one of them would be lost.
    """
    found: dict[str, str] = {}
    for theirs in tensors:
        new = name(theirs)
        if new is None:
            continue
        if new in found:
            raise ValueError(
                f"{who}: the weights have {found[new]} and {theirs}, two names of one tensor; "
                f"use another copy"
            )
        found[new] = theirs
    return {new: tensors[theirs] for new, theirs in found.items()}


def refuse_unfit(
    who: str, tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], more: Sequence[str] = ()
) -> None:
    """Nothing, if there is a tensor of each shape whose values are floats, finite as float32.

    more: what else was found wrong.
    Raises: ValueError naming those that are not so.
    """
    faults = [f"{name} is missing" for name in shapes if name not in tensors]
    faults += [f"{name} has shape {tensors[name].shape}, not {tuple(shape)}" for name, shape in shapes.items()
               if name in tensors and tensors[name].shape != tuple(shape)]  # fmt: skip
    faults += more
    if faults:
        raise ValueError(
            f"{who}: the weights are not those of config.json: {_some(faults)}; take both from one model"
        )
    faults = [f"{name} holds {fault}" for name in shapes if (fault := _fault(tensors[name]))]
    if faults:
        raise ValueError(f"{who}: {_some(faults)}; use a copy whose weights are floats, all of them finite")


def _fault(t: Tensor) -> str | None:
    """What is wrong with the values: a quantised weight, say, is none without its scale."""
    if not t.is_floating_point():
        return "integers or booleans"
    return None if mt.isfinite(t.float()).all() else "NaN, an infinity, or what overflows float32"


def _some(faults: Sequence[str]) -> str:
    return "; ".join(faults[:6]) + (f"; and {len(faults) - 6} more" if len(faults) > 6 else "")


def fill(
    who: str,
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    transposed: Callable[[str], bool] = lambda name: False,
    names: Mapping[str, str] | None = None,
) -> None:
    """Copy the tensors into the model's parameters and buffers, some of them transposed.

    names: our name of what the file calls otherwise → the file's.
    Raises: ValueError naming the missing, unexpected and misshaped ones, and those whose values are no
    finite floats, before anything is changed.
    """
    own = model.state_dict()
    called = {name: (names or {}).get(name, name) for name in own}
    shapes = {called[name]: t.shape[::-1] if transposed(name) else t.shape for name, t in own.items()}
    unexpected = [f"{name} is unexpected" for name in tensors if name not in shapes]
    refuse_unfit(who, tensors, shapes, unexpected)
    found = {name: tensors[theirs] for name, theirs in called.items()}
    model.load_state_dict({name: t.T if transposed(name) else t for name, t in found.items()})


def _weight_files(who: str, folder: Path) -> Iterator[Path]:
    """One file, or the parts that an index names; a whole file is taken before parts, as elsewhere."""
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        yield folder / WEIGHTS
        return
    parts = read_json(who, folder / INDEX).get("weight_map")
    if not isinstance(parts, dict) or not parts or not all(_is_name(part) for part in parts.values()):
        raise ValueError(f"{who}: {INDEX} has no weight_map of file names; use another copy")
    yield from (folder / name for name in sorted(set(parts.values())))


def _is_name(part: Any) -> bool:
    """Of a file in the folder itself: an index must not lead out of it."""
    return isinstance(part, str) and part.endswith(".safetensors") and os.path.basename(part) == part


def read_json(who: str, path: Path, kind: type = dict) -> Any:
    """What a JSON file holds: a dict, or what kind says.

    Raises: FileNotFoundError without it; ValueError if it is no JSON, or holds something else.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{who}: there is no {path.name} in {str(path.parent)!r}; give the folder of a saved model"
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{who}: {str(path)!r} is no JSON ({error}); use another copy") from None
    if not isinstance(found, kind):
        what = "object" if kind is dict else "array"
        raise ValueError(f"{who}: {str(path)!r} is no JSON {what}; use another copy")
    return found
