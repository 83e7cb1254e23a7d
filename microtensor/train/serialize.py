"""save and load: nested dicts, lists and tuples of tensors, arrays, numbers and strings in one file.

The tensors are the file's tensors, for any safetensors reader; the structure around them is JSON in its
metadata, with a checksum over both. Nothing is pickled: a file holds data and cannot run code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from microtensor import engine
from microtensor.engine import Array
from microtensor.tensor import Tensor, as_tensor

__all__ = ["load", "replace_file", "save"]

Path = str | os.PathLike[str]

VERSION = 1  # of the layout below; a reader refuses a higher one
DTYPES = frozenset(
    ("float16", "float32", "float64", "bool", *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)))
)


def save(obj: Any, path: Path) -> None:
    """Write tensors, arrays, numbers, strings, bools, None and nested dicts, lists, tuples of them to a file.

    A tensor comes back without its gradient; one that stands in several places is stored once. The file
    appears complete or not at all: if writing is broken off, a file that was there before stays as it was.
    Raises: TypeError naming the place of what cannot be stored; FileNotFoundError if the folder is missing.

    >>> import tempfile, microtensor as mt
    >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    >>> save({"weights": [mt.ones(2), mt.zeros(2)], "epoch": 3}, path)
    >>> load(path)
    {'weights': [tensor([1., 1.]), tensor([0., 0.])], 'epoch': 3}
    """
    path = os.fspath(path)
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"save: there is no folder {folder!r}; create it first")
    packer = _Packer()
    structure = json.dumps(packer.pack(obj, ""), ensure_ascii=False, allow_nan=False)
    ours = {"version": VERSION, "sha256": _digest(structure, packer.arrays), "structure": structure}
    metadata = {"microtensor": json.dumps(ours)}  # one entry: safetensors writes several in random order
    replace_file(path, lambda temporary: save_file(packer.arrays, temporary, metadata))


def load(path: Path) -> Any:
    """What `save` wrote; of any other safetensors file, a dict of its tensors.

    Raises: FileNotFoundError; ValueError for a file that is damaged, altered or of a later format.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"load: there is no file {path!r}; check the path")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(
            f"load: {path!r} is damaged or no safetensors file ({error}); use another copy"
        ) from error
    if "microtensor" not in metadata:
        return {name: as_tensor(array) for name, array in arrays.items()}
    structure = _checked_structure(path, metadata["microtensor"], arrays)
    return _Unpacker(arrays).unpack(json.loads(structure))


def _checked_structure(path: str, text: str, arrays: Mapping[str, Array]) -> str:
    try:
        ours = dict(json.loads(text))
    except (ValueError, TypeError):
        ours = {"version": VERSION}  # altered: the checksum will be missing
    if ours.get("version") != VERSION:
        raise ValueError(
            f"load: {path!r} has format version {ours.get('version')}, this program reads {VERSION}; "
            f"use the microtensor that wrote it"
        )
    structure = str(ours.get("structure"))
    if ours.get("sha256") != _digest(structure, arrays):
        raise ValueError(
            f"load: {path!r} was altered after it was written (its checksum differs); use another copy"
        )
    return structure


def replace_file(path: str, write: Callable[[str], object]) -> None:
    """Let write(temporary name) make a file, then put it in the place of `path` in one step.

    Killed at any moment, or without power, the disk has the old file or the new one, whole: the new content
    is on the disk before its name is, and the folder's change is forced out as well.
    """
    temporary = f"{path}.tmp"  # in the same folder: os.replace is atomic within a file system only
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # Windows opens no folders
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _digest(structure: str, arrays: Mapping[str, Array]) -> str:
    """SHA-256 of the structure and of each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(structure.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name}\n{array.dtype.name}{array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


class _Packer:
    """Turns an object into JSON, with the arrays set aside under the names of their places.

    What JSON has not is an object with one key: {"$tensor": name}, {"$array": name}, {"$tuple": items},
    {"$float": "nan"}, and {"$dict": pairs} for a dict with other keys than plain strings.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self._names: dict[Any, str] = {}  # memory → name: a tensor in two places is stored once

    def pack(self, obj: Any, place: str) -> Any:
        if isinstance(obj, np.generic):
            obj = obj.item()
        if obj is None or isinstance(obj, bool | str | int):
            return obj
        if isinstance(obj, float):
            return float(obj) if math.isfinite(obj) else {"$float": repr(float(obj))}
        if isinstance(obj, Tensor):
            return {"$tensor": self._put(obj.array, place)}
        if isinstance(obj, np.ndarray):
            return {"$array": self._put(obj, place)}
        if isinstance(obj, Mapping):
            return self._pack_dict(obj, place)
        if isinstance(obj, list | tuple):
            items = [self.pack(item, _join(place, i)) for i, item in enumerate(obj)]
            return items if isinstance(obj, list) else {"$tuple": items}
        raise TypeError(
            f"save: {place or 'the object'} is {type(obj).__name__}; give tensors, arrays, numbers, strings "
            f"or dicts, lists, tuples of them"
        )

    def _pack_dict(self, obj: Mapping[Any, Any], place: str) -> Any:
        for key in obj:
            if not isinstance(key, str | int):
                raise TypeError(f"save: {place or 'the dict'} has the key {key!r}; use strings or integers")
        pairs = [[key, self.pack(value, _join(place, key))] for key, value in obj.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in obj):
            return dict(pairs)
        return {"$dict": pairs}

    def _put(self, array: Array, place: str) -> str:
        if array.dtype.name not in DTYPES:
            raise TypeError(
                f"save: {place or 'the array'} is of {array.dtype}; convert it to a float or integer dtype"
            )
        memory = (array.ctypes.data, array.shape, array.strides, array.dtype)
        if memory in self._names:
            return self._names[memory]
        name = place if place and place != "__metadata__" else "tensor"
        while name in self.arrays:  # {"a.b": x, "a": {"b": y}}
            name += "'"
        native = array.dtype.newbyteorder("=")
        self.arrays[name] = np.require(array, native, "C") if array.ndim else array.astype(native)
        self._names[memory] = name
        return name


class _Unpacker:
    """The way back."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays
        self._tensors: dict[str, Tensor] = {}

    def unpack(self, obj: Any) -> Any:
        if isinstance(obj, list):
            return [self.unpack(item) for item in obj]
        if not isinstance(obj, dict):
            return obj
        if len(obj) != 1 or not (kind := next(iter(obj))).startswith("$"):
            return {key: self.unpack(value) for key, value in obj.items()}
        value = obj[kind]
        if kind == "$tensor":
            if value not in self._tensors:
                self._tensors[value] = engine.make(self.arrays[value], None, None)
            return self._tensors[value]
        if kind == "$array":
            return self.arrays[value]
        if kind == "$tuple":
            return tuple(self.unpack(item) for item in value)
        if kind == "$dict":
            return {key: self.unpack(item) for key, item in value}
        return float(value)  # "$float"


def _join(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)
