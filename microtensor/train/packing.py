"""Nested Python values as JSON and back, with the arrays set aside under the names of their places.

What JSON has not is an object with one key: {"$tensor": name}, {"$array": name}, {"$tuple": items},
{"$float": "nan"}, and {"$dict": pairs} for a dict with other keys than plain strings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from microtensor import engine
from microtensor.engine import Array
from microtensor.tensor import Tensor

__all__ = ["DTYPES", "Packer", "Unpacker"]

FLOATS = {"bool": "BOOL", "float16": "F16", "float32": "F32", "float64": "F64"}
# what can be stored: NumPy's name of a dtype → the file format's
DTYPES = FLOATS | {f"{s}int{n}": f"{s.upper() or 'I'}{n}" for s in ("", "u") for n in (8, 16, 32, 64)}
DEPTH = 100  # of nesting; JSON's readers and Python's stack end at several hundred
BITS = 14284  # of an integer: more may have over 4300 digits, which Python refuses to read


class Packer:
    """Turns an object into what the json module writes; `arrays` holds its tensors and arrays."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self._names: dict[Any, str] = {}  # memory → name: a tensor in two places is stored once
        self._open: list[int] = []  # the containers around the present place

    def pack(self, obj: Any, place: str) -> Any:
        """Raises: TypeError naming the place of what cannot be stored; ValueError for an impossible value."""
        if isinstance(obj, np.generic):
            obj = obj.item()
        if obj is None or isinstance(obj, bool | int | str):
            return _checked(obj, place)
        if isinstance(obj, float):
            return float(obj) if math.isfinite(obj) else {"$float": repr(float(obj))}
        if isinstance(obj, Tensor):
            return {"$tensor": self._put(obj.array, place)}
        if isinstance(obj, np.ndarray):
            return {"$array": self._put(obj, place)}
        if isinstance(obj, Mapping | list | tuple):
            return self._pack_container(obj, place)
        raise TypeError(
            f"save: {place or 'the object'} is {type(obj).__name__}; give tensors, arrays, numbers, strings "
            f"or dicts, lists, tuples of them"
        )

    def _pack_container(self, obj: Any, place: str) -> Any:
        where = _short(place) or "the object"
        if id(obj) in self._open:
            raise ValueError(f"save: {where} contains itself; give nested values that end")
        if len(self._open) == DEPTH:
            raise ValueError(f"save: {where} is nested {DEPTH} deep; give values that are nested less")
        self._open.append(id(obj))
        try:
            if isinstance(obj, Mapping):
                return self._pack_dict(obj, place)
            items = [self.pack(item, _join(place, i)) for i, item in enumerate(obj)]
            return items if isinstance(obj, list) else {"$tuple": items}
        finally:
            self._open.pop()

    def _pack_dict(self, obj: Mapping[Any, Any], place: str) -> Any:
        for key in obj:
            if not isinstance(key, str | int):
                raise TypeError(f"save: {place or 'the dict'} has the key {key!r}; use strings or integers")
            _checked(key, place, "has a key that")
        pairs = [[key, self.pack(value, _join(place, key))] for key, value in obj.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in obj):
            return dict(pairs)
        return {"$dict": pairs}

    def _put(self, array: Array, place: str) -> str:
        if array.dtype.name not in DTYPES:
            raise TypeError(f"save: {place or 'the array'} is of {array.dtype}; make it floats or integers")
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


class Unpacker:
    """The way back. It raises whatever a structure that no Packer made leads to."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays
        self._tensors: dict[str, Tensor] = {}

    def unpack(self, obj: Any) -> Any:
        """What was packed."""
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
        if kind == "$float":
            return float(value)
        raise ValueError(f"it has the mark {kind!r}")


def _checked(value: Any, place: str, what: str = "") -> Any:
    """The same string, integer or None, if a file of JSON can have it."""
    where = _short(place) or "the object"
    if isinstance(value, int) and value.bit_length() > BITS:
        raise ValueError(
            f"save: {where} {what or 'is an integer that'} has {value.bit_length()} bits, of {BITS} at most; "
            f"give it as a string, by hex()"
        )
    try:
        str(value).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"save: {where} {what or 'is a string that'} is no Unicode text: {ascii(value)[:40]}; "
            f'make it one, for instance by text.encode("utf-8", "replace").decode()'
        ) from None
    return value


def _join(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)


def _short(place: str) -> str:
    return place if len(place) <= 60 else f"{place[:57]}…"
