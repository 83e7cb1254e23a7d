"""What the matrix product does to a panel, a strip of B that fits the first cache: copied, then multiplied.

Each function is compiled on its own for each dtype and called by address: gemm.py, which cuts matrices into
panels, contains none of this code. `like` tells the dtype; the rest is addresses, strides in bytes, counts.
"""

from __future__ import annotations

from typing import Any

from microtensor.kernels.threads import jit
from microtensor.kernels.tiles import (
    dot_columns,
    tile_block,
    tile_low,
    tile_narrow,
    tile_row,
    tile_row_edge,
    tile_wide,
)
from microtensor.kernels.vectors import (
    LOW,
    MR,
    NV,
    ROW,
    VECTOR_BYTES,
    WIDE,
    copy_number,
    copy_rows,
    transpose_square,
)

LINE = 64  # bytes; a vector that crosses a cache line costs two fetches


@jit(cache=False)
def lanes_of(size: int) -> int:
    """Numbers in a vector, without a division."""
    return VECTOR_BYTES // 4 if size == 4 else VECTOR_BYTES // 8


@jit(cache=False)
def _transpose(
    like: Any, size: int, source: int, step: int, rows: int, width: int, out: int, ld: int
) -> None:
    """out[r, j] = source[j, r], where source[j, r] and source[j, r + 1] are neighbours."""
    lanes = lanes_of(size)
    for j in range(0, width, lanes):
        for r in range(0, rows, lanes):
            corner, to = source + r * size + j * step, out + r * ld + j * size
            transpose_square(like, corner, step, min(lanes, rows - r), min(lanes, width - j), to, ld)


@jit
def pack(
    like: Any, size: int, source: int, rs: int, cs: int, rows: int, width: int, out: int, ld: int
) -> None:
    """out[r, j] = source[r, j], whatever the strides; up to a whole vector anything may stand beside it."""
    if cs == size:
        reach = NV * (lanes_of(size))
        for j in range(0, width, reach):
            copy_rows(like, source + j * cs, rs, rows, min(width - j, reach), out + j * size, ld)
    elif rs == size:
        _transpose(like, size, source, cs, rows, width, out, ld)
    else:  # neither way are the elements neighbours
        for r in range(rows):
            for j in range(width):
                copy_number(like, source + r * rs + j * cs, out + r * ld + j * size)


@jit
def panel(
    like: Any, size: int, a: int, a_rs: int, a_cs: int, b: int, bs: int, c: int, ldc: int,
    M: int, K: int, width: int, d: int, ldd: int, relu: int,
) -> None:  # fmt: skip
    """C = A B + D for all rows and one panel of B, at most NV + 1 vectors wide."""
    lanes = lanes_of(size)
    i = 0
    while i < M:
        left = M - i
        ai, ci, di = a + i * a_rs, c + i * ldc, d + i * ldd
        if width > NV * lanes:
            tile_wide(like, ai, a_rs, a_cs, b, bs, ci, ldc, K, left, width, di, ldd, relu)
            i += WIDE
        elif width <= lanes:
            tile_narrow(like, ai, a_rs, a_cs, b, bs, ci, ldc, K, left, width, di, ldd, relu)
            i += MR
        elif left <= LOW or MR < left <= 2 * LOW:
            tile_low(like, ai, a_rs, a_cs, b, bs, ci, ldc, K, left, width, di, ldd, relu)
            i += LOW
        else:
            tile_block(like, ai, a_rs, a_cs, b, bs, ci, ldc, K, left, width, di, ldd, relu)
            i += MR


@jit
def dots(
    like: Any, size: int, a: int, a_rs: int, b: int, b_cs: int, c: int, ldc: int, M: int, K: int, N: int,
    d: int, ldd: int, relu: int,
) -> None:  # fmt: skip
    """C = A B + D for few rows; the elements of a row of A are neighbours, and those of a column of B."""
    for j in range(0, N, lanes_of(size)):
        at = j * size
        for i in range(M):
            dj = d + i * ldd + at if d != 0 else 0
            dot_columns(like, a + i * a_rs, b + j * b_cs, b_cs, c + i * ldc + at, K, N - j, dj, relu)


@jit
def one_row(
    like: Any, size: int, a: int, a_cs: int, b: int, b_rs: int, c: int, K: int, N: int, d: int, relu: int
) -> None:
    """C = A B + D for one row, where B is read in place."""
    lanes = lanes_of(size)
    j = 0
    while j < N:
        at, left = j * size, N - j
        dj = d + at if d != 0 else 0
        if left >= ROW * lanes:
            tile_row(like, a, 0, a_cs, b + at, b_rs, c + at, 0, K, 1, left, dj, 0, relu)
            j += ROW * lanes
        else:
            tile_row_edge(like, a, 0, a_cs, b + at, b_rs, c + at, 0, K, 1, left, dj, 0, relu)
            j += ROW // 2 * lanes


@jit
def pack_panels(like: Any, size: int, b: int, b_rs: int, b_cs: int, K: int, panels: int, out: int) -> None:
    """Whole panels of B, one after the other; a few rows of all before the next: they share pages."""
    ld = NV * VECTOR_BYTES
    rows = 8 if b_cs == size else K
    for k in range(0, K, rows):
        for p in range(panels):
            source, to = b + k * b_rs + p * (ld // size) * b_cs, out + (p * K + k) * ld
            pack(like, size, source, b_rs, b_cs, min(rows, K - k), ld // size, to, ld)
