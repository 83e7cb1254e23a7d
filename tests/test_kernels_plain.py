"""Every kernel is Python, too: the same numbers without machine code, and the instructions do the same."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microtensor.kernels import threads, tiles, vectors

ROOT = Path(__file__).resolve().parent.parent
Array = np.ndarray[Any, Any]
FILES = sorted(str(p) for p in (ROOT / "tests").glob("test_kernels_*.py"))


@pytest.mark.compiled
def test_kernels_pass_their_tests_as_plain_python() -> None:
    """So a debugger can step through any kernel, and a tracer see which of its lines the tests reach."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *FILES]
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1", "HYPOTHESIS_PROFILE": "quick"}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    passed, left_out = (int(part.split()[0]) for part in done.stdout.splitlines()[-1].split(", "))
    assert passed > 2 * left_out  # the marker is for the few tests that have to be left out


def test_without_the_jit_a_kernel_is_quiet_about_inf_and_nan_as_machine_code_is() -> None:
    code = """
import numpy as np
from microtensor.kernels.threads import COMPILED, jit
@jit
def log(x): return np.log(x)
assert not COMPILED and log.__wrapped__
print(log(np.float64(0)))
"""
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout == "-inf\n", done.stderr


# ---- instructions against the Python that says what they do ----

CASES = {  # the function; rows or height; width, as a part of the vector's lanes; k
    "block": (tiles.tile_block, vectors.MR, vectors.NV, 5),
    "block, one row": (tiles.tile_block, 1, vectors.NV, 3),
    "block, cut": (tiles.tile_block, vectors.MR - 1, vectors.NV - 0.25, 4),
    "low": (tiles.tile_low, vectors.LOW, vectors.NV, 4),
    "wide": (tiles.tile_wide, vectors.WIDE, vectors.NV + 1, 4),
    "wide, cut": (tiles.tile_wide, 2, vectors.NV + 0.5, 2),
    "narrow": (tiles.tile_narrow, 2, 0.5, 7),
    "row": (tiles.tile_row, 1, vectors.ROW, 3),
    "edge of a row": (tiles.tile_row_edge, 1, 2.5, 2),
    "row, beyond the tile": (tiles.tile_row_edge, 1, 9, 1),
}
GUARD = -77.0


@pytest.mark.parametrize("relu", [0, 1])
@pytest.mark.parametrize("addend", ["nothing", "a row for all", "C"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_the_micro_kernels_compute_what_their_python_says(
    case: str, dtype: Any, addend: str, relu: int, rng: Any
) -> None:
    function, height, part, k = CASES[case]
    a, b, room, sizes = operands(height, part, k, dtype, rng)
    row = rng.normal(size=sizes[2]).astype(dtype)
    results = []
    for way in (function.plain, as_kernel(function)):
        c = room.copy()
        d = {"nothing": (0, 0), "a row for all": (row.ctypes.data, 0), "C": (c.ctypes.data, c.strides[0])}
        way(c, a.ctypes.data, *a.strides, b.ctypes.data, b.strides[0], c.ctypes.data, c.strides[0],
            *sizes, *d[addend], relu)  # fmt: skip
        results.append(c)
    agree(*results, room, k)
    assert not relu or results[0][0, 0] >= 0


@pytest.mark.parametrize("add", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("function", "part"), [(tiles.tile_full, 2), (tiles.tile_slim, 0.75)])
def test_tiles_that_add_to_c_do_what_their_python_says(
    function: Any, part: float, dtype: Any, add: int, rng: Any
) -> None:
    a, b, room, sizes = operands(vectors.MR - 1, part, 5, dtype, rng)
    results = []
    for way in (function.plain, as_kernel(function)):
        c = room.copy()
        way(c, a.ctypes.data, *a.strides, b.ctypes.data, b.strides[0], c.ctypes.data, c.strides[0],
            *sizes, add)  # fmt: skip
        results.append(c)
    agree(*results, room, 5)


@pytest.mark.parametrize("relu", [0, 1])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("terms", "part"), [(1, 1), (3.5, 0.5), (0.5, 1), (2.25, 0.25)])
def test_dot_products_compute_what_their_python_says(
    terms: float, part: float, dtype: Any, add: bool, relu: int, rng: Any
) -> None:
    lanes = vectors.VECTOR_BYTES // dtype().itemsize
    k, width = max(1, int(terms * lanes)), max(1, int(part * lanes))
    a, d = rng.normal(size=k).astype(dtype), rng.normal(size=width).astype(dtype)
    b = rng.normal(size=(width, k + 3)).astype(dtype)
    room = np.full((1, lanes + 1), GUARD, dtype)
    room[:, :width] = 1
    results = []
    for way in (tiles.dot_columns.plain, as_kernel(tiles.dot_columns)):
        c = room.copy()
        way(c, a.ctypes.data, b.ctypes.data, b.strides[0], c.ctypes.data, k, width,
            d.ctypes.data if add else 0, relu)  # fmt: skip
        results.append(c)
    agree(*results, room, k)


def operands(height: int, part: float, k: int, dtype: Any, rng: Any) -> Any:
    """A, B, a room with a guarded border for C, and (k, height, width)."""
    lanes = vectors.VECTOR_BYTES // dtype().itemsize
    width = int(part * lanes)
    a = rng.normal(size=(k, 2 * height)).astype(dtype).T[::2]  # (height, k), neither axis of neighbours
    b = rng.normal(size=(k, width + 3 * lanes)).astype(dtype)  # a packed panel has room for whole vectors
    room = np.full((height + 1, width + lanes), GUARD, dtype)
    room[:height, :width] = rng.normal(size=(height, width))
    return a, b, room, (k, height, width)


def agree(plain: Array, machine: Array, room: Array, k: int) -> None:
    assert not np.array_equal(plain, room)
    # k products, each rounded once more than in one fused instruction
    eps = np.finfo(room.dtype).eps
    np.testing.assert_allclose(machine, plain, rtol=8 * k * eps, atol=8 * k * eps)
    np.testing.assert_array_equal(machine == GUARD, room == GUARD)  # nothing beside height × width is written


@cache
def as_kernel(function: Any) -> Any:
    """A compiled caller of the instructions, or their plain Python where nothing is compiled.

    The same one for all tests: it is compiled once for each dtype.
    """
    if function is vectors.copy_rows or function is vectors.transpose_square:

        @threads.jit(cache=False)
        def call(like, source, stride, rows, width, out, ld):  # type: ignore[no-untyped-def]
            function(like, source, stride, rows, width, out, ld)

        return call

    if function is tiles.dot_columns:

        @threads.jit(cache=False)
        def call_dots(like, a, b, bs, c, k_len, width, d, relu):  # type: ignore[no-untyped-def]
            function(like, a, b, bs, c, k_len, width, d, relu)

        return call_dots

    @threads.jit(cache=False)
    def call_adding(like, a, rs, cs, b, bs, c, ldc, k_len, height, width, add):  # type: ignore[no-untyped-def]
        function(like, a, rs, cs, b, bs, c, ldc, k_len, height, width, add)

    @threads.jit(cache=False)
    def call_tile(like, a, rs, cs, b, bs, c, ldc, k, height, width, d, ldd, relu):  # type: ignore[no-untyped-def]
        function(like, a, rs, cs, b, bs, c, ldc, k, height, width, d, ldd, relu)

    return call_tile if function in [case[0] for case in CASES.values()] else call_adding


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 2), (2, 3), (99, 99)])
@pytest.mark.parametrize("name", ["copy_rows", "transpose_square"])
def test_copies_copy_what_their_python_says(name: str, rows: int, width: int, dtype: Any, rng: Any) -> None:
    function = getattr(vectors, name)
    lanes = vectors.VECTOR_BYTES // dtype().itemsize
    rows, width = min(rows, lanes), min(width, lanes)
    shape = (rows, width) if name == "copy_rows" else (width, rows)
    source = rng.normal(size=(shape[0], shape[1] + 2)).astype(dtype)[:, 1:-1]
    results = []
    for way in (function.plain, as_kernel(function)):
        out = np.full((rows + 1, lanes + 1), GUARD, dtype)
        way(source, source.ctypes.data, source.strides[0], rows, width, out.ctypes.data, out.strides[0])
        results.append(out)
        np.testing.assert_array_equal(out[:rows, :width], source if name == "copy_rows" else source.T)
        np.testing.assert_array_equal(out[rows:], GUARD)
        np.testing.assert_array_equal(out[:, lanes:], GUARD)  # up to a whole vector it may be anything
    if name == "copy_rows":
        np.testing.assert_array_equal(*results)
