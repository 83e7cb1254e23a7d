"""Texts to learn from: a file of one's own, and one that every Python has; and the blocks of one."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from microtensor.create import from_numpy
from microtensor.data.dataset import TensorDataset
from microtensor.data.sampler import as_count
from microtensor.engine import Array
from microtensor.tensor import Tensor

__all__ = ["blocks", "python_docs", "read_text"]


def blocks(ids: Sequence[int] | Tensor | Array, length: int, every: int = 1) -> TensorDataset:
    """From each place of `every`: `length` ids of a text, and to be predicted, the next of each. No copies.

    Shapes: (N,) → samples (length,), (length,)
    Raises: ValueError unless there is a block, and the id after it, and for an `every` under 1; TypeError for
    ids that are no numbers in one row.
    Source: nanoGPT's batches are of such blocks, every=1, at random places.

    >>> [(x.tolist(), y.tolist()) for x, y in blocks([5, 6, 7, 8, 9], 2, every=2)]
    [([5, 6], [6, 7]), ([7, 8], [8, 9])]
    """
    array = ids.array if isinstance(ids, Tensor) else np.asarray(ids)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise TypeError(f"blocks: ids are {array.dtype} of shape {array.shape}; give integers in one row")
    if not 1 <= length < len(ids):
        raise ValueError(f"blocks: length is {length} of {len(ids)} ids; choose 1 <= length < {len(ids)}")
    every = as_count("blocks", "every", every)
    windows = np.lib.stride_tricks.sliding_window_view(array, length + 1)[::every]  # (n, length + 1)
    return TensorDataset(from_numpy(windows[:, :-1]), from_numpy(windows[:, 1:]))


def python_docs() -> str:
    """Python's own documentation of the language, as `help("with")` shows it: all topics, by name.

    About half a million characters, the same ones in each Python of one version.
    Raises: FileNotFoundError if this Python came without its module pydoc_data.
    Source: pydoc_data.topics of the standard library.

    >>> "The with statement" in python_docs().replace('"', "")
    True
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise FileNotFoundError(
            f"python_docs: this Python came without its documentation ({error}); read_text a file instead"
        ) from None
    return "\n\n".join(topics[name] for name in sorted(topics))


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file in UTF-8, with or without a byte order mark; every end of line is one newline.

    Raises: OSError if it cannot be read; ValueError naming the first byte that is not UTF-8; TypeError for
    what is no path.
    Source: ours.
    """
    name = os.fspath(path)  # of a number, open() would read and close what has it
    try:
        with open(name, encoding="utf-8-sig") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"read_text: {name!r} is not UTF-8 (byte 0x{error.object[error.start]:02x}: "
            f"{error.reason}); convert it, for example with iconv"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", error)
        raise type(error)(f"read_text: {name!r} cannot be read ({why}); give the path of a text") from None
