"""save and load: nested dicts, lists and tuples of tensors, arrays, numbers and strings in one file.

The tensors are the file's tensors, for any safetensors reader; the structure around them is JSON in its
metadata, with a checksum over both. Nothing is pickled: a file holds data and cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from microtensor.engine import Array
from microtensor.methods.arguments import check_device
from microtensor.tensor import as_tensor
from microtensor.train.files import replace_file
from microtensor.train.packing import DTYPES, Packer, Unpacker

__all__ = ["DamagedFileError", "Path", "check_storable", "digest", "load", "save"]

Path = str | os.PathLike[str]

VERSION = 1  # of the layout below; a reader refuses a higher one, which its checksum must vouch for


class DamagedFileError(ValueError):
    """A file is not what `save` wrote: cut off, altered, or never one of ours."""


def save(obj: Any, path: Path | IO[bytes]) -> None:
    """Write tensors, arrays, numbers, strings, bools, None and nested dicts, lists, tuples of them to a file.

    path: its name, or a binary file object such as io.BytesIO(), which is written to where it stands.

    A tensor comes back without its gradient; one that stands in several places is stored once. The file
    appears complete or not at all: if writing is broken off, a file that was there before stays as it was.
    A symbolic link stays: the file it names is replaced.

    Raises: TypeError naming the place of what cannot be stored; ValueError naming the place of a value that
    cannot (text that is no Unicode, an integer of over 4300 digits, what contains itself) and for an empty
    path; FileNotFoundError if the folder is missing; IsADirectoryError for a path of a folder.
    Source: ours; the names are those of PyTorch's save.

    >>> import tempfile, microtensor as mt
    >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    >>> save({"weights": [mt.ones(2), mt.zeros(2)], "epoch": 3}, path)
    >>> load(path)
    {'weights': [tensor([1., 1.]), tensor([0., 0.])], 'epoch': 3}
    """
    if hasattr(path, "write"):
        path.writelines(_whole(obj))  # type: ignore[union-attr]
        return
    path = os.fsdecode(path)
    if not path:
        raise ValueError("save: the path is empty; give the name of a file")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"save: there is no folder {folder!r}; create it first")
    if os.path.isdir(path):
        raise IsADirectoryError(f"save: {path!r} is a folder; give the name of a file in it")
    replace_file(path, _whole(obj))


def digest(obj: Any) -> str:
    """SHA-256 of what `save` would write of this object."""
    return _digest(*_packed(obj))


def check_storable(obj: Any) -> None:
    """Raise the error that `save` would raise for this object; write nothing."""
    _packed(obj)


def _packed(obj: Any) -> tuple[str, dict[str, Array]]:
    packer = Packer()
    return json.dumps(packer.pack(obj, ""), ensure_ascii=False, allow_nan=False), packer.arrays


def _whole(obj: Any) -> Iterator[bytes | memoryview]:
    structure, arrays = _packed(obj)
    ours = {"version": VERSION, "sha256": _digest(structure, arrays), "structure": structure}
    return _pieces(arrays, {"microtensor": json.dumps(ours)})


def _pieces(arrays: Mapping[str, Array], metadata: dict[str, str]) -> Iterator[bytes | memoryview]:
    """A safetensors file, piece by piece. The library would copy all of it, or name the temporary itself.

    The length of the header in 8 bytes, the header in JSON, filled up to a multiple of 8, and the tensors
    without gaps, the widest dtypes first, so that each begins at a multiple of its width.
    Source: the format of the safetensors library, its README.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    names, end = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name)), 0
    for name in names:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        kind, place = DTYPES[array.dtype.name], [begin, end]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": place}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        array = arrays[name]
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        yield little.reshape(-1).view(np.uint8).data


def load(path: Path | IO[bytes], map_location: Any = None, *, weights_only: bool | None = None) -> Any:
    """What `save` wrote; of any other safetensors file, a dict of its tensors, bfloat16 as float32.

    path: its name, or a binary file object, of which the rest is read.
    map_location: the only device, "cpu". weights_only: True, False and None are the same here, as a file
    holds data and cannot run code.

    Raises: FileNotFoundError; ValueError for a file that is damaged or altered (a DamagedFileError), for one
    without a checksum but with our structure, or of a later format, for a dtype that NumPy has not, such as
    float8; RuntimeError for another device; TypeError for weights_only.
    Source: ours; the names are those of PyTorch's load.
    """
    check_device("load", map_location)
    if weights_only not in (None, True, False):
        raise TypeError(f"load: weights_only is {weights_only!r}; give True, False or None")
    if hasattr(path, "read"):
        return _load_rest(path)
    path = os.fsdecode(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"load: there is no file {path!r}; check the path")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: _read(path, file, name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise DamagedFileError(
            f"load: {path!r} is damaged or no safetensors file ({error}); use another copy"
        ) from error
    text = metadata.get("microtensor")
    if text is None and not any('"sha256": "' in other for other in metadata.values()):
        return {name: as_tensor(array) for name, array in arrays.items()}
    structure = _checked_structure(path, text or "", arrays)  # ours, even if one bit of our mark is not
    try:
        return Unpacker(arrays).unpack(json.loads(structure))
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise DamagedFileError(
            f"load: the structure of {path!r} was not written by save ({type(error).__name__}: {error}); "
            f"use another copy"
        ) from error


def _load_rest(file: Any) -> Any:
    """What `load` gives of a file object: of a copy on disk, since the library reads files with names."""
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "copy of the file object")
        replace_file(copy, [file.read()])
        return load(copy)


def _read(path: str, file: Any, name: str) -> Array:
    """One tensor of an open safetensors file, whose header was checked when it was opened."""
    part = file.get_slice(name)
    dtype = part.get_dtype()
    if dtype in DTYPES.values():
        array: Array = file.get_tensor(name)
        return array
    if dtype != "BF16":
        raise ValueError(
            f"load: tensor {name!r} of {path!r} is {dtype}, which NumPy has not; convert it to float32 with "
            f"the program that wrote it"
        )
    with open(path, "rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        begin, end = json.loads(raw.read(length))[name]["data_offsets"]
        raw.seek(8 + length + begin)
        halves = np.frombuffer(raw.read(end - begin), "<u2")
    upper = halves.astype(np.uint32) << np.uint32(16)  # bfloat16 is the upper half of a float32
    return upper.view(np.float32).reshape(part.get_shape())


def _checked_structure(path: str, text: str, arrays: Mapping[str, Array]) -> str:
    try:
        ours = dict(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        ours = {}  # altered: the checksum will be missing
    version, structure = ours.get("version"), str(ours.get("structure"))
    if ours.get("sha256") != _digest(structure, arrays, version):  # first: the version may be damaged, too
        raise DamagedFileError(
            f"load: {path!r} was altered after it was written (its checksum differs); use another copy"
        )
    if version != VERSION:
        raise ValueError(
            f"load: {path!r} has format version {version}, this program reads {VERSION}; "
            f"use the microtensor that wrote it"
        )
    return structure


def _digest(structure: str, arrays: Mapping[str, Array], version: Any = VERSION) -> str:
    """SHA-256 of the version, from 2 on, the structure and each tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(b"" if version == 1 else f"{version}\n".encode(errors="surrogatepass"))
    digest.update(structure.encode(errors="surrogatepass"))
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\n{name}\n{array.dtype.name}{array.shape}\n".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
