"""Many arrays as one argument: a table of addresses, and blocks of all of them that any thread may take.

numba compiles a kernel anew for each length of a tuple of arrays, and asking NumPy for an address takes a µs.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np import arrayobj

from microtensor.kernels.layout import Array
from microtensor.kernels.threads import COMPILED, jit
from microtensor.kernels.vectors import _array_at

_arrays: Any = arrayobj  # numba has types for some of its names only

BLOCK = 8192
"""Elements of one parameter that a thread takes in one go. The squares of a block are added up by themselves:
fixed, so that no sum depends on the number of threads."""


class Table(NamedTuple):
    like: Array  # an empty one that tells the dtype
    at: Array  # (roles, n) the address of each array
    sizes: Array  # (n,) elements
    first: Array  # (n + 1,) how many blocks the parameters before have


_LIKE = {dtype: np.empty(0, dtype) for dtype in (np.dtype(np.float32), np.dtype(np.float64))}


def _plain_numbers(like: Array, address: int, n: int) -> Array:
    """The n numbers of like's dtype at an address."""
    return _array_at(like, address, (n,), (like.itemsize,))  # type: ignore[arg-type]


def _typed_numbers(typing: Any, like: Any, address: Any, n: Any) -> Any:
    kind = types.Array(like.dtype, 1, "C")

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, (_, address, n) = _arrays.make_array(kind)(context, builder), arguments
        data, size = builder.inttoptr(address, array.data.type), like.dtype.bitwidth // 8
        _arrays.populate_array(array, data, [n], [n.type(size)], n.type(size), None)
        return array._getvalue()

    return kind(like, types.intp, types.intp), codegen


numbers: Any = intrinsic(_typed_numbers) if COMPILED else _plain_numbers


# What an array is, in words of 8 bytes: its type, with which the header of every Python object ends, then the
# fields of NumPy's C interface (PyArrayObject_fields). Programs compiled for NumPy contain these offsets, so
# NumPy keeps them.
HEADER, WORDS = object.__basicsize__ - 8, 8
TYPE, DATA, NDIM, SHAPE, STRIDES, OWNER, DTYPE, FLAGS = range(WORDS)
CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400
INT = 0xFFFFFFFF  # a C int fills half a word


@functools.cache
def _headers_are_known() -> bool:
    """Is an array laid out as we think? Looked at once: asking NumPy for an address takes half a µs each."""
    base = np.zeros((3, 4), np.float32)
    fixed = base[1:, 2:]
    fixed.flags.writeable = False
    return COMPILED and all(
        _has_known_header(a) for a in (base, base.T, fixed, np.zeros(()), base.view(np.int32))
    )


def _has_known_header(a: Array) -> bool:
    if type(a).__basicsize__ < HEADER + 8 * WORDS:
        return False
    words = (ctypes.c_int64 * WORDS).from_address(id(a) + HEADER)
    flags = a.flags.c_contiguous * CONTIGUOUS + a.flags.aligned * ALIGNED + a.flags.writeable * WRITEABLE
    owner = 0 if a.base is None else id(a.base)
    return (
        (words[TYPE], words[DATA], words[NDIM] & INT) == (id(type(a)), a.ctypes.data, a.ndim)
        and (words[OWNER], words[DTYPE]) == (owner, id(a.dtype))
        and words[FLAGS] & (CONTIGUOUS | ALIGNED | WRITEABLE) == flags
        and words[STRIDES] - words[SHAPE] == 8 * a.ndim
    )


@jit
def _locate(ids: Array, array: int, dtype: int, written: int, at: Array, sizes: Array, first: Array) -> bool:
    """Fills at, sizes and first; False at the first object that is no array like the others of its column.

    ids: (roles, n) addresses of Python objects. array, dtype: those of np.ndarray and of the dtype.
    """
    for j in range(ids.shape[1]):
        shape, ndim, size = ids[0, :0], 0, 1
        for role in range(ids.shape[0]):
            header = numbers(ids, ids[role, j] + HEADER, WORDS)
            if header[TYPE] != array or header[DTYPE] != dtype:
                return False
            needed = CONTIGUOUS | ALIGNED | (WRITEABLE if role < written else 0)
            if header[FLAGS] & needed != needed:
                return False
            lengths = numbers(ids, header[SHAPE], header[NDIM] & INT)
            if role == 0:
                shape, ndim = lengths, lengths.size
            if lengths.size != ndim:
                return False
            for i in range(ndim):
                if lengths[i] != shape[i]:
                    return False
            at[role, j] = header[DATA]
        for i in range(ndim):
            size *= shape[i]
        sizes[j] = size
        first[j + 1] = first[j] + (size + BLOCK - 1) // BLOCK
    return True


def _locate_plain(
    roles: Sequence[Sequence[Array]], written: int, at: Array, sizes: Array, first: Array
) -> bool:
    """_locate by asking NumPy."""
    like = roles[0][0]
    for j, column in enumerate(zip(*roles, strict=True)):
        for role, a in enumerate(column):
            if type(a) is not np.ndarray or a.dtype != like.dtype or a.shape != column[0].shape:
                return False
            if not (a.flags.c_contiguous and a.flags.aligned and (a.flags.writeable or role >= written)):
                return False
            at[role, j] = a.ctypes.data
        sizes[j] = column[0].size
        first[j + 1] = first[j] + -(-column[0].size // BLOCK)
    return True


def table(roles: Sequence[Sequence[Array]], written: int) -> Table | None:
    """Where the arrays are; None unless kernels can take them as they are: some, of one dtype, each column of
    one shape, C-contiguous, and those of the first `written` roles writable and nowhere shared.
    """
    n = len(roles[0])
    like = _LIKE.get(roles[0][0].dtype) if n else None
    if like is None:
        return None
    at, sizes, first = np.empty((len(roles), n), np.int64), np.empty(n, np.int64), np.zeros(n + 1, np.int64)
    if _headers_are_known():
        ids = np.fromiter(map(id, chain(*roles)), np.int64, at.size).reshape(at.shape)
        found = _locate(ids, id(np.ndarray), id(like.dtype), written, at, sizes, first)
    else:
        found = _locate_plain(roles, written, at, sizes, first)
    return Table(like, at, sizes, first) if found and _apart(at, sizes * like.itemsize, written) else None


def _apart(at: Array, lengths: Array, written: int) -> bool:
    """Is no memory that is written part of another array? Threads would race for it."""
    ends = at + lengths
    if written == 0 or (np.sort(at, axis=None)[1:] >= np.sort(ends, axis=None)[:-1]).all():
        return True
    starts, stops = np.sort(at[:written], axis=None), np.sort(ends[:written], axis=None)
    if not (starts[1:] >= stops[:-1]).all():
        return False
    next_written = np.append(starts, np.iinfo(np.int64).max)[np.searchsorted(stops, at[written:], "right")]
    return bool((next_written >= ends[written:]).all())


@jit(entry=False)
def place(block: int, sizes: Array, first: Array) -> tuple[int, int, int]:
    """Whose block it is (first[j] ≤ block < first[j + 1]), where in the array it starts, and its length."""
    j, end = 0, first.size - 1
    while end - j > 1:
        middle = (j + end) // 2
        if first[middle] <= block:
            j = middle
        else:
            end = middle
    start = (block - first[j]) * BLOCK
    return j, start, min(BLOCK, sizes[j] - start)
