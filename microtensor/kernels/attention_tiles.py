"""softmax(Q Kᵀ · scale + mask) V and its gradients without the matrix of weights: memory grows as T.

A block of queries meets one block of keys after the other. The block's scores live in a tile that stays in
the first caches: products fill it (vectors.py), softmax runs down its columns (columns.py), and the next
products use it up. The forward keeps two numbers for each query, its largest score and 1/Σ exp, from which
the backward makes the same weights again, bit for bit. A block of one query, as in decoding, is not worth a
tile: its scores are dot products, and their last bits others. Keys that no query of a block may attend to are
not visited. Every sum has one order, whatever the threads.
Source: Milakov & Gimelshein 2018 (online softmax); Dao et al. 2022, "FlashAttention", algorithms 1 and 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from microtensor.kernels.columns import (
    WORD,
    address_of,
    clear,
    dot_rows,
    drop,
    mix,
    scale_rows,
    scores,
    scores_back,
    start_of,
    stay_apart,
    weights,
    weights_again,
)
from microtensor.kernels.driver import again
from microtensor.kernels.layout import Array
from microtensor.kernels.threads import jit
from microtensor.kernels.tiles import tile_full, tile_slim
from microtensor.kernels.vectors import MR, NV, VECTOR_BYTES, transpose_square

QUERIES, KEYS = 64, 64  # of a block: two tiles of float32 fill the first cache
# NumPy's integers, because numba would compile a function anew for each of Python's that stands in a call
WRITE: Any = np.int64(0)  # what a product does to C
COLUMNS: Any = np.int64(0)  # which part of a product causality leaves, see _product
UNTIL: Any = np.int64(1)
FROM: Any = np.int64(2)
FAR = 1 << 40  # a diagonal so far away that causality leaves all
MASKED, X_STEP, Y_STEP, T_STEP, CAUSAL, BOUND, SEED, SEED_2, AHEAD = range(9)  # in `options`
BEFORE, TOP, TOTAL, FACTOR, DELTA = range(5)  # rows of `numbers`, one of each for each query of a block
mixed: Any = jit(inline=True)(mix)


@jit(entry=False)
def _product(
    like: Array, a: int, rs: int, cs: int, b: int, bs: int, c: int, ldc: int,
    M: int, K: int, N: int, add: int, part: int, diagonal: int,
) -> None:  # fmt: skip
    """C (+)= A B; addresses and strides in bytes. What causality makes zero is left out: in row i the COLUMNS
    before i + diagonal, or all terms but those UNTIL i − diagonal, or but those FROM i + diagonal.
    """
    stay_apart(like)
    size = like.itemsize
    NR = NV * (VECTOR_BYTES // size)
    for i in range(0, M, MR):
        left, first, last, height = 0, 0, K, min(MR, M - i)
        if part == COLUMNS:
            left = max(0, i + diagonal) // NR * NR
        elif part == UNTIL:
            last = min(K, i + height - diagonal)
        else:
            first = max(0, i + diagonal)
        if first >= last:
            continue
        ai, bi, ci, terms = a + i * rs + first * cs, b + first * bs, c + i * ldc, last - first
        panels = left + (N - left) // NR * NR
        for j in range(left, panels, NR):
            tile_full(like, ai, rs, cs, bi + j * size, bs, ci + j * size, ldc, terms, height, N - j, add)
        for j in range(panels, N, NR // NV):
            tile_slim(like, ai, rs, cs, bi + j * size, bs, ci + j * size, ldc, terms, height, N - j, add)


@jit(entry=False)
def _transpose(like: Array, source: int, stride: int, rows: int, columns: int, out: int) -> None:
    """out[c, r] = source[r, c]; right of r = rows, up to a whole panel, the last row again or anything."""
    stay_apart(like)
    size = like.itemsize
    lanes = VECTOR_BYTES // size
    for r in range(0, (rows + NV * lanes - 1) // (NV * lanes) * NV * lanes, lanes):
        row, height = source + min(r, rows - 1) * stride, max(1, min(lanes, rows - r))
        for c in range(0, columns, lanes):
            to, width = out + (c * QUERIES + r) * size, min(lanes, columns - c)
            transpose_square(like, row + c * size, stride, width, height, to, QUERIES * size)


# ---- masks ----


@jit(entry=False)
def _key_count(bias: Array, options: Array, x: int, y: int, i: int, queries: int, keys: int) -> int:
    """How many keys the block of queries from i on must visit: behind them all is hidden. At least one."""
    n, last, step = min(keys, i + queries) if options[CAUSAL] else keys, 1, options[T_STEP]
    if not options[MASKED]:
        return n
    start = x * options[X_STEP] + y * options[Y_STEP] + i * step
    for r in range(queries if step else 1):
        end = n
        while end > last and bias[start + r * step + end - 1] == -np.inf:
            end -= 1
        last = max(last, end)
    return last


@jit(entry=False)
def _mask(
    bias: Array, options: Array, x: int, y: int, i: int, j: int, queries: int, n: int, diagonal: int,
    constants: Array, tile: Array,
) -> tuple[int, int]:  # fmt: skip
    """Addresses of the bias of n keys, and of a tile or 0: a mask that is one for all queries is a row."""
    size, step = bias.itemsize, options[T_STEP]
    NR = NV * (VECTOR_BYTES // size)
    none = start_of(constants) + NR * NR * size
    start = start_of(bias) + (x * options[X_STEP] + y * options[Y_STEP] + i * step + j) * size
    if not options[MASKED]:
        return none, 0
    if step == 0:
        return start, 0
    _transpose(tile, start, step * size, queries, n, start_of(tile))
    for p in range(0, queries, NR):
        for key in range(max(0, p - diagonal), min(n, p - diagonal + NR)):
            for r in range(p, min(queries, key + diagonal)):
                tile[key, r] = -np.inf
    return none, start_of(tile)


@jit(entry=False)
def _set_row_keys(row_keys: Array, options: Array, item: int, i: int) -> None:
    """The part of the dropout's counter that says seed, batch item and head, and query."""
    head = mixed((mixed((item + options[AHEAD] & WORD) ^ options[SEED]) + options[SEED_2]) & WORD)
    for r in range(QUERIES):
        row_keys[r] = mixed(((i + r) & WORD) ^ head)


@jit(inline=True)
def _diagonal(options: Array, i: int, j: int, n: int) -> int:
    """Where n keys from j on meet the queries from i on: row k of a tile is for queries ≥ k + diagonal."""
    return j - i if options[CAUSAL] and j + n - 1 > i else -FAR


# ---- forward ----


@jit(entry=False)
def _softmax_panel(
    s: Array, p: int, n: int, diagonal: int, keys: int, tile: int, constants: Array, numbers: Array
) -> int:
    """Online softmax down the columns of a panel of queries; how many keys it may see."""
    size = s.itemsize
    NR, ld = NV * (VECTOR_BYTES // size), QUERIES * size
    at, triangle = start_of(s) + p * size, start_of(constants)
    scale = triangle + (NR * NR + KEYS) * size
    seen = min(n, max(0, p + NR - diagonal))
    free = min(seen, max(0, p - diagonal))
    row = start_of(numbers) + p * size
    before, top, total = row + BEFORE * ld, row + TOP * ld, row + TOTAL * ld
    for i in range(p, p + NR):
        numbers[BEFORE, i] = numbers[TOP, i]
    if tile:
        scores(s, at, ld, seen, scale, keys, tile + p * size, ld, top)
    else:
        scores(s, at, ld, free, scale, keys, 0, 0, top)
        scores(s, at + free * ld, ld, seen - free, scale, keys + free * size, triangle, NR * size, top)
    weights(s, at, ld, seen, before, top, total)
    clear(s, at + seen * ld, ld, min(n - seen, MR), NR)
    return seen


@jit(entry=False)
def _softmax_row(
    s: Array, tile: Array, bias: Array, start: int, step: int, n: int, constants: Array, numbers: Array
) -> None:
    """Online softmax of one query, whose n scores fill the rows of a panel: its lanes share the maximum."""
    size = s.itemsize
    NR, ld = NV * (VECTOR_BYTES // size), QUERIES * size
    height, scale = (n + NR - 1) // NR, start_of(constants) + (NR * NR + KEYS) * size
    for c in range(height * NR):
        tile[c // QUERIES, c % QUERIES] = bias[start + c * step] if c < n else -np.inf
    numbers[BEFORE] = numbers[TOP, 0]
    row = start_of(numbers)
    before, top, total = row + BEFORE * ld, row + TOP * ld, row + TOTAL * ld
    scores(s, start_of(s), NR * size, height, scale, scale - KEYS * size, start_of(tile), NR * size, top)
    for c in range(1, NR):
        if numbers[TOP, c] > numbers[TOP, 0]:
            numbers[TOP, 0] = numbers[TOP, c]
    numbers[TOP] = numbers[TOP, 0]
    weights(s, start_of(s), NR * size, height, before, top, total)
    for c in range(1, NR):
        numbers[TOTAL, 0] += numbers[TOTAL, c]
        numbers[TOTAL, c] = 0


@jit(inline=True)
def _forward_block(
    q: Array, k: Array, v: Array, bias: Array, y: Array, stats: Array, constants: Array, options: Array,
    x: int, h: int, i: int, tiles: Array, panels: Array, rows: Array, numbers: Array, row_keys: Array,
) -> None:  # fmt: skip
    """One block of queries against all of its keys."""
    size, D, E = y.itemsize, q.shape[3], v.shape[3]
    NR, ld = NV * (VECTOR_BYTES // size), QUERIES * size
    s, tile, out = tiles[0], tiles[2], start_of(rows)
    queries = min(QUERIES, q.shape[2] - i)
    width = (queries + NR - 1) // NR * NR
    numbers[TOP], numbers[TOTAL] = -np.inf, 0
    q_rows, one = address_of(q, x, h, i), queries == 1 and not options[BOUND]
    _transpose(s, q_rows, q.strides[2], queries, D, start_of(panels))
    if options[BOUND]:
        _set_row_keys(row_keys, options, x * q.shape[1] + h, i)
    last = _key_count(bias, options, x, h, i, queries, k.shape[2])
    reach, key_step = (KEYS * NR, size) if one else (KEYS, ld)
    for j in range(0, last, reach):
        n = min(reach, last - j)
        diagonal = _diagonal(options, i, j, n)
        k_rows = address_of(k, x, h, j)
        if one:
            dot_rows(s, q_rows, 0, k_rows, k.strides[2], n, D, start_of(s))
            start = x * options[X_STEP] + h * options[Y_STEP] + i * options[T_STEP] + j
            at = start if options[MASKED] else NR * NR
            _softmax_row(s, tile, bias, at, options[MASKED], n, constants, numbers)
        else:
            _product(s, k_rows, k.strides[2], size, start_of(panels), ld, start_of(s), ld,
                     n, D, width, WRITE, COLUMNS, diagonal)  # fmt: skip
            keys, mask = _mask(bias, options, x, h, i, j, queries, n, diagonal, constants, tile)
            for p in range(0, width, NR):
                seen = _softmax_panel(s, p, n, diagonal, keys, mask, constants, numbers)
                if options[BOUND]:
                    drop(s, start_of(s) + p * size, ld, seen, start_of(row_keys) + p * 4, j, options[BOUND])
        if j:
            scale_rows(s, out, E * size, queries, E, start_of(numbers) + BEFORE * ld, out, E * size)
        _product(s, start_of(s), size, key_step, address_of(v, x, h, j), v.strides[2], out, E * size,
                 queries, n, E, j, UNTIL, diagonal)  # fmt: skip
    kept = constants[NR * NR + KEYS + 1]
    for r in range(queries):
        top, total = numbers[TOP, r], numbers[TOTAL, r]
        stats[0, x, h, i + r] = 0 if top == -np.inf else top
        stats[1, x, h, i + r] = 0 if total == 0 else 1 / total
        numbers[FACTOR, r] = stats[1, x, h, i + r] * kept
    factors = start_of(numbers) + FACTOR * ld
    scale_rows(s, out, E * size, queries, E, factors, address_of(y, x, h, i), y.strides[2])


@jit(lean=True)
def forward(
    task: int, tasks: int, driver: int,
    q: Array, k: Array, v: Array, bias: Array, y: Array, stats: Array, constants: Array, options: Array,
    tiles: Array, panels: Array, rows: Array, numbers: Array, row_keys: Array,
) -> None:  # fmt: skip
    """A task's share of the blocks."""
    if task < 0:
        again(tasks, driver)
        return
    blocks = (q.shape[2] + QUERIES - 1) // QUERIES
    pieces = q.shape[0] * q.shape[1] * blocks
    for piece in range(pieces * task // tasks, pieces * (task + 1) // tasks):
        item, block = piece // blocks, piece % blocks
        # from both ends in turns: with a causal mask the last blocks have most to do
        block = blocks - 1 - block // 2 if block % 2 else block // 2
        _forward_block(
            q, k, v, bias, y, stats, constants, options, item // q.shape[1], item % q.shape[1],
            block * QUERIES, tiles[task], panels[task], rows[task], numbers[task], row_keys[task],
        )  # fmt: skip


# ---- backward ----


@jit(entry=False)
def _softmax_panel_back(
    s: Array, d: Array, p: int, j: int, n: int, diagonal: int, keys: int, tile: int, constants: Array,
    numbers: Array, row_keys: Array, bound: int,
) -> None:  # fmt: skip
    """For a panel of queries: S becomes the weights, D the gradient of the scores."""
    size = s.itemsize
    NR, ld = NV * (VECTOR_BYTES // size), QUERIES * size
    at, back, triangle = start_of(s) + p * size, start_of(d) + p * size, start_of(constants)
    scale = triangle + (NR * NR + KEYS) * size
    seen = min(n, max(0, p + NR - diagonal))
    free = min(seen, max(0, p - diagonal))
    row = start_of(numbers) + p * size
    top, delta, chance = row + TOP * ld, row + DELTA * ld, start_of(row_keys) + p * 4
    if tile:
        weights_again(s, at, ld, seen, scale, keys, tile + p * size, ld, top)
    else:
        weights_again(s, at, ld, free, scale, keys, 0, 0, top)
        edge, bias = at + free * ld, keys + free * size
        weights_again(s, edge, ld, seen - free, scale, bias, triangle, NR * size, top)
    if bound:
        drop(s, back, ld, seen, chance, j, bound)
    scores_back(s, at, back, ld, seen, delta, scale)
    if bound:
        drop(s, at, ld, seen, chance, j, bound)
    clear(s, at + seen * ld, ld, min(n - seen, MR), NR)
    clear(s, back + seen * ld, ld, min(n - seen, MR), NR)


@jit(entry=False)
def _rows_back(
    g: Array, y: Array, stats: Array, kept: float, x: int, h: int, i: int, queries: int, rows: Array,
    numbers: Array,
) -> None:  # fmt: skip
    """rows = G · kept/Σ exp, delta = (Σ G·Y)/Σ exp: the softmax's division, done once for all keys."""
    size, E = g.itemsize, g.shape[3]
    for r in range(queries):
        numbers[TOP, r] = stats[0, x, h, i + r]
        numbers[FACTOR, r] = stats[1, x, h, i + r] * kept
    factors = start_of(numbers) + FACTOR * QUERIES * size
    delta = start_of(numbers) + DELTA * QUERIES * size
    source = address_of(g, x, h, i)
    dot_rows(g, source, g.strides[2], address_of(y, x, h, i), y.strides[2], queries, E, delta)
    scale_rows(g, source, g.strides[2], queries, E, factors, start_of(rows), E * size)
    for r in range(queries):
        numbers[DELTA, r] *= stats[1, x, h, i + r]


@jit(entry=False)
def _clear_keys(dk: Array, dv: Array, x: int, h: int, first: int, end: int) -> None:
    """dK and dV of the keys from `first` to `end`, which no query has met so far, are 0."""
    clear(dk, address_of(dk, x, h, first), dk.strides[2], end - first, dk.shape[3])
    clear(dk, address_of(dv, x, h, first), dv.strides[2], end - first, dv.shape[3])


@jit(inline=True)
def _backward_block(
    g: Array, q: Array, k: Array, v: Array, bias: Array, y: Array, stats: Array, constants: Array,
    options: Array, dq: Array, dk: Array, dv: Array, x: int, h: int, i: int, part: int, done: int,
    tiles: Array, panels: Array, rows: Array, numbers: Array, row_keys: Array,
) -> int:  # fmt: skip
    """One block of queries against all of its keys: dQ of the block; what it adds to dK and dV of the first
    `done` keys, or what those of others are. Returns how many keys have met queries now.
    """
    size, D, E = y.itemsize, q.shape[3], v.shape[3]
    NR, ld = NV * (VECTOR_BYTES // size), QUERIES * size
    s, d, tile = tiles[0], tiles[1], tiles[2]
    S, dS, out = start_of(s), start_of(d), start_of(rows)
    queries = min(QUERIES, q.shape[2] - i)
    width = (queries + NR - 1) // NR * NR
    qT, gT, q_rows = start_of(panels), start_of(panels) + D * ld, address_of(q, x, h, i)
    _rows_back(g, y, stats, constants[NR * NR + KEYS + 1], x, h, i, queries, rows, numbers)
    _transpose(s, q_rows, q.strides[2], queries, D, qT)
    _transpose(s, out, E * size, queries, E, gT)
    if options[BOUND]:
        _set_row_keys(row_keys, options, x * q.shape[1] + h, i)
    last = _key_count(bias, options, x, h, i, queries, k.shape[2])
    for j in range(0, last, KEYS):
        n = min(KEYS, last - j)
        at = _diagonal(options, i, j, n)
        k_rows, v_rows = address_of(k, x, h, j), address_of(v, x, h, j)
        _product(s, k_rows, k.strides[2], size, qT, ld, S, ld, n, D, width, WRITE, COLUMNS, at)  # K Qᵀ
        _product(s, v_rows, v.strides[2], size, gT, ld, dS, ld, n, E, width, WRITE, COLUMNS, at)  # V Gᵀ
        keys, mask = _mask(bias, options, x, h, i, j, queries, n, at, constants, tile)
        for p in range(0, width, NR):
            _softmax_panel_back(s, d, p, j, n, at, keys, mask, constants, numbers, row_keys, options[BOUND])
        dv_rows, dk_rows = address_of(dv, part + x, h, j), address_of(dk, part + x, h, j)
        old = max(done - j, 0)
        if 0 < old < n:
            _clear_keys(dk, dv, part + x, h, done, j + n)
        _product(s, S, ld, size, out, E * size, dv_rows, dv.strides[2], n, queries, E, old, FROM, at)
        _product(s, dS, ld, size, q_rows, q.strides[2], dk_rows, dk.strides[2], n, queries, D, old, FROM, at)
        _product(s, dS, size, ld, k_rows, k.strides[2], address_of(dq, x, h, i), dq.strides[2],
                 queries, n, D, j, UNTIL, at)  # fmt: skip
    return max(done, last)


@jit(lean=True)
def backward(
    task: int, tasks: int, driver: int,
    g: Array, q: Array, k: Array, v: Array, bias: Array, y: Array, stats: Array, constants: Array,
    options: Array, dq: Array, dk: Array, dv: Array,
    tiles: Array, panels: Array, rows: Array, numbers: Array, row_keys: Array,
) -> None:  # fmt: skip
    """A task's share of the matrices, or of the chunks that they are cut into."""
    if task < 0:
        again(tasks, driver)
        return
    chunks = dk.shape[0] // k.shape[0]
    pieces = q.shape[0] * q.shape[1] * chunks
    for piece in range(pieces * task // tasks, pieces * (task + 1) // tasks):
        item, chunk = piece // chunks, piece % chunks
        x, h, part = item // q.shape[1], item % q.shape[1], chunk * k.shape[0]
        done = 0
        for i in range(chunk * QUERIES, q.shape[2], chunks * QUERIES):
            done = _backward_block(
                g, q, k, v, bias, y, stats, constants, options, dq, dk, dv, x, h, i, part, done,
                tiles[task], panels[task], rows[task], numbers[task], row_keys[task],
            )  # fmt: skip
        _clear_keys(dk, dv, part + x, h, done, k.shape[2])
