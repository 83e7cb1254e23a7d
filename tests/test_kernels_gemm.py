"""The matrix product: right for any shape and strides, IEEE in every corner, the same bits on any thread."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microtensor.kernels import gemm, vectors
from microtensor.kernels.driver import in_tasks
from microtensor.kernels.threads import COMPILED

matmul = gemm.matmul


def normal(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def assert_close(c, a, b):
    """|error| ≤ 2 (K + 1) eps (|A| |B|): twice the bound on a sum of K products (Higham 2002, §3.1).

    Twice, because for float64 the oracle has the same error.
    """
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    bound = 2 * (a.shape[-1] + 1) * np.finfo(c.dtype).eps * np.matmul(abs(a), abs(b)).astype(np.float64)
    assert c.shape == exact.shape
    assert np.all(abs(c - exact) <= bound)


def misaligned(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def stretched(x, step):
    wide = np.full((*x.shape[:-2], x.shape[-2] * step, x.shape[-1] * step), np.nan, x.dtype)
    wide[..., ::step, ::step] = x
    return wide[..., ::step, ::step]


def wide_rows(x):
    """A view into rows that are more than a page of memory apart."""
    room = np.full((*x.shape[:-1], 5000), np.nan, x.dtype)
    room[..., : x.shape[-1]] = x
    return room[..., : x.shape[-1]]


LAYOUTS = {
    "contiguous": lambda x: x.copy(),
    "transposed": lambda x: x.swapaxes(-1, -2).copy().swapaxes(-1, -2),
    "transposed with wide rows": lambda x: wide_rows(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "wide rows": wide_rows,
    "every third": lambda x: stretched(x, 3),
    "reversed": lambda x: x[..., ::-1, ::-1].copy()[..., ::-1, ::-1],
    "read-only": read_only,
    "misaligned": misaligned,
}
layouts = st.sampled_from(sorted(LAYOUTS))
dtypes = st.sampled_from(["float32", "float64"])
sides = st.one_of(st.integers(1, 40), st.sampled_from([64, 65, 130, 270] if COMPILED else [65]))


@settings(max_examples=150 if COMPILED else 30, deadline=None)
@given(sides, sides, sides, dtypes, layouts, layouts, st.integers(0, 9))
def test_agrees_with_float64_for_any_shape_dtype_and_layout(m, k, n, dtype, left, right, seed):
    a, b = LAYOUTS[left](normal((m, k), dtype, seed)), LAYOUTS[right](normal((k, n), dtype, seed + 1))
    assert_close(matmul(a, b), a, b)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(3, 1100, 600), (600, 1030, 5), (1, 530, 300), (70, 515, 259), (4, 90_000, 3)]
)
def test_agrees_with_float64_beyond_one_block(m, k, n, dtype):
    a, b = normal((m, k), dtype), normal((k, n), dtype, 1)
    assert_close(matmul(a, b), a, b)
    assert_close(matmul(a, LAYOUTS["transposed"](b)), a, b)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(0, 2**8 - 1),
    st.integers(0, 4),
    dtypes,
    layouts,
    layouts,
)
def test_batch_axes_broadcast_as_in_numpy(batch, ones, cut, dtype, left, right):
    a_batch = [1 if ones >> i & 1 else n for i, n in enumerate(batch)]
    b_batch = [1 if ones >> (4 + i) & 1 else n for i, n in enumerate(batch)][cut:]
    a, b = LAYOUTS[left](normal((*a_batch, 3, 5), dtype)), LAYOUTS[right](normal((*b_batch, 5, 4), dtype, 1))
    assert_close(matmul(a, b), a, b)


def test_batch_axes_that_do_not_broadcast_are_an_error():
    with pytest.raises(ValueError, match="broadcast"):
        matmul(normal((2, 3, 4)), normal((3, 4, 5)))


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_strides_do_not_change_a_bit(left, right):
    a, b = normal((37, 75)), normal((75, 200), seed=1)
    assert np.array_equal(matmul(LAYOUTS[left](a), LAYOUTS[right](b)), matmul(a, b))


def test_an_axis_of_stride_zero_is_read_as_often_as_it_is_long():
    row, column = normal((1, 9)), normal((9, 1), seed=1)
    a, b = np.broadcast_to(row, (7, 9)), np.broadcast_to(column, (9, 33))
    assert np.array_equal(matmul(a, b), matmul(a.copy(), b.copy()))


@pytest.mark.parametrize(("m", "k", "n"), [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
@pytest.mark.parametrize("batch", [(), (2,), (0,), (2, 0, 3)])
def test_axes_of_length_zero_give_what_numpy_gives(batch, m, k, n):
    a, b = np.ones((*batch, m, k), np.float32), np.ones((*batch, k, n), np.float32)
    assert np.array_equal(matmul(a, b), np.matmul(a, b))
    assert np.array_equal(matmul(a, b[(0,) * len(batch)] if 0 not in batch else b), np.matmul(a, b))


@pytest.mark.parametrize("shape", [(5, 7), (4, 5, 7), (2, 4, 5, 7), (1, 2, 4, 5, 7)])
def test_result_is_new_contiguous_and_of_the_operands_dtype(shape):
    a, b = read_only(normal(shape)), read_only(normal((7, 3)))
    c = matmul(a, b)
    assert c.dtype == np.float32
    assert c.flags.c_contiguous
    assert c.flags.writeable
    assert not np.shares_memory(c, a)
    assert not np.shares_memory(c, matmul(a, b))


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (9, 5, 33), (13, 40, 70), (40, 600, 17)])
@pytest.mark.parametrize("left", ["contiguous", "transposed"])
@pytest.mark.parametrize("right", ["contiguous", "transposed"])
def test_nan_and_inf_go_where_ieee_sends_them_and_nowhere_else(special, m, k, n, left, right):
    a, b = normal((m, k)), normal((k, n), seed=1)
    a[m - 1, k - 1] = special
    b[k // 2, 0] = special
    a[0, k // 2] = 0.0  # 0 · inf = NaN
    expected = np.einsum("ik,kj->ij", a.astype(np.float64), b.astype(np.float64))
    c = matmul(LAYOUTS[left](a), LAYOUTS[right](b))
    assert np.array_equal(np.isnan(c), np.isnan(expected))
    assert np.array_equal(np.isinf(c), np.isinf(expected))
    finite = np.isfinite(expected)
    assert np.allclose(c[finite], expected[finite], rtol=1e-4, atol=1e-4)


def test_padding_beside_nan_memory_is_not_read():
    room = np.full((50, 50), np.nan, np.float32)
    room[:9, :11] = normal((9, 11))
    assert np.isfinite(matmul(room[:9, :11], room[:9, :11].T)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("right", ["contiguous", "transposed"])
@pytest.mark.parametrize("tasks", [2, 3, 5])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((1, 1, 130, 600), (1, 1, 600, 90)),
        ((1, 1, 3, 40), (1, 1, 40, 1000)),
        ((1, 1, 12, 40), (1, 1, 40, 30)),  # cut into many rows and few
        ((2, 3, 30, 32), (2, 3, 32, 30)),
        ((1, 1, 1, 300), (1, 1, 300, 700)),
        ((2, 1, 3, 40), (5, 40, 33)),
    ],
)
def test_serial_and_parallel_give_the_same_bits(a_shape, b_shape, tasks, right, dtype):
    a, b = normal(a_shape, dtype), LAYOUTS[right](normal(b_shape, dtype, 1))
    shape = np.matmul(a, b).shape
    serial, parallel, d = (np.full(shape, np.nan, dtype) for _ in range(3))
    d[...] = normal(b_shape[-1], dtype, 2)
    code, table = gemm._kernels[a.itemsize]
    for n, c in [(1, serial), (tasks, parallel)]:
        in_tasks(code, n, a, b, c, d, gemm.ADD | gemm.RELU, table, gemm._workspace.for_tasks(n))
    assert np.array_equal(serial, parallel)


@pytest.mark.parametrize("right", ["contiguous", "transposed"])
def test_a_row_of_the_product_does_not_depend_on_the_other_rows(right):
    a, b = normal((100, 700)), LAYOUTS[right](normal((700, 90), seed=1))
    many, few = matmul(a, b), matmul(a[: gemm.FEW_ROWS], b)
    for rows in (slice(17, 24), slice(50, 100)):
        assert np.array_equal(matmul(a[rows], b), many[rows])
    for rows in (slice(0, 1), slice(2, 4)):
        assert np.array_equal(matmul(a[rows], b), few[rows])
    if right == "contiguous":  # few rows and columns that are none in memory are added up in another order
        assert np.array_equal(few, many[: gemm.FEW_ROWS])


def test_a_linear_layer_on_a_batch_is_one_tall_product():
    x, w = normal((4, 6, 8)), normal((8, 5), seed=1)
    assert np.array_equal(matmul(x, w), matmul(x.reshape(24, 8), w).reshape(4, 6, 5))


def broadcasts(shape, dtype, rng):
    """Addends of all kinds for a result of this shape, with NaN beside them in memory."""
    whole = rng.standard_normal(shape).astype(dtype)
    yield whole
    yield whole[..., :1, :]
    yield whole[(0,) * (len(shape) - 1)]  # a bias
    yield stretched(whole, 2)
    yield whole[..., :1]
    yield whole[(..., *[slice(1)] * len(shape))]
    yield whole[(0,) * len(shape)]
    yield wide_rows(whole)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("left", ["contiguous", "transposed"])
@pytest.mark.parametrize("right", ["contiguous", "transposed"])
@pytest.mark.parametrize(
    "shape",
    [
        *[(1, 9, 70), (37, 20, 17), (2, 3, 5, 40), (4, 0, 3)],
        *(pytest.param(shape, marks=pytest.mark.compiled) for shape in [(3, 600, 65), (50, 300, 33)]),
    ],
)
def test_an_addend_and_relu_are_as_if_done_afterwards(shape, left, right, relu, dtype, rng):
    *batch, m, k, n = shape
    a, b = LAYOUTS[left](normal((*batch, m, k), dtype)), LAYOUTS[right](normal((*batch, k, n), dtype, 1))
    product = np.matmul(a.astype(np.float64), b.astype(np.float64))
    eps = np.finfo(dtype).eps
    for d in broadcasts(product.shape, dtype, rng):
        expected = np.maximum(product + d, 0) if relu else product + d
        c = matmul(a, b, d, relu=relu)
        assert c.dtype == dtype
        np.testing.assert_allclose(c, expected, rtol=0, atol=8 * (k + 1) * eps)
        out = np.full(product.shape, np.nan, dtype)
        assert matmul(a, b, d, relu=relu, out=out) is out
        assert np.array_equal(out, c)


@pytest.mark.parametrize("k", [7, 300, 1000])
@pytest.mark.parametrize("m", [1, 4, 40])
@pytest.mark.parametrize("right", ["contiguous", "transposed"])
def test_a_product_is_added_to_what_stands_in_c(m, k, right):
    a, b, c = normal((m, k)), LAYOUTS[right](normal((k, 50), seed=1)), normal((m, 50), seed=2)
    before = c.copy()
    assert matmul(a, b, c, out=c) is c
    assert np.array_equal(c, matmul(a, b, before))


def test_an_addend_or_out_of_another_shape_is_an_error_before_anything_is_written():
    a, b, c = normal((3, 4)), normal((4, 5)), np.full((3, 5), 7, np.float32)
    with pytest.raises(ValueError, match="broadcast"):
        matmul(a, b, normal((2, 5)), out=c)
    for out in (c[:2], c.T.copy().T, c.astype(np.float64)):
        with pytest.raises(ValueError, match=r"matmul: out is .*; give"):
            matmul(a, b, out=out)
    assert (c == 7).all()


def test_relu_lets_nan_through():
    a = np.array([[np.nan, -1.0, np.inf]], np.float32).T
    c = matmul(np.repeat(a, 9, 1), np.eye(9, 40, dtype=np.float32) * 0 + 1, relu=True)
    assert np.isnan(c[0]).all()
    assert np.array_equal(c[1:], np.broadcast_to([[0.0], [np.inf]], (2, 40)))


@pytest.mark.parametrize("layouts", [("contiguous", "contiguous"), ("transposed", "contiguous"),
                                     ("contiguous", "transposed"), ("every third", "reversed")])  # fmt: skip
@pytest.mark.parametrize(
    "sides", [(1, 5, 9), (1, 40, 300), (3, 9, 21), (4, 65, 130), (13, 257, 33), (700, 9, 65)]
)
def test_nothing_beside_c_is_written_and_the_workspace_is_large_enough(sides, layouts):
    m, k, n = sides
    a, b = LAYOUTS[layouts[0]](normal((m, k))), LAYOUTS[layouts[1]](normal((k, n), seed=1))
    room = np.full(m * n + 200, -77.0, np.float32)
    memory = np.full(gemm.WORKSPACE_BYTES + 1000, 77, np.uint8)
    c = room[100 : 100 + m * n].reshape(m, n)
    code, table = gemm._kernels[4]
    code(0, 1, 0, a, b, c, c, 0, table, memory.ctypes.data + 500)
    assert np.array_equal(c, matmul(a, b))
    assert (room[:100] == -77).all()
    assert (room[100 + m * n :] == -77).all()
    assert (memory[:500] == 77).all()
    assert (memory[500 + gemm.WORKSPACE_BYTES :] == 77).all()


@pytest.mark.parametrize("k", [1, 8, 130, 256, 257, 300, 520])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_packed_rows_of_a_fit_their_room_for_every_k(k, dtype):
    a, b = LAYOUTS["transposed"](normal((9000 if k < 100 else 1200, k), dtype)), normal((k, 3), dtype, 1)
    memory = np.full(gemm.WORKSPACE_BYTES + 200, 77, np.uint8)
    c = np.empty((len(a), 3), dtype)
    code, table = gemm._kernels[a.itemsize]
    code(0, 1, 0, a, b, c, c, 0, table, memory.ctypes.data)
    assert (memory[gemm.WORKSPACE_BYTES :] == 77).all()
    assert_close(c, a, b)


@pytest.mark.compiled
def test_nothing_beside_the_operands_is_read():
    """Operands end, or begin, where memory without permission begins: one element too many is a crash."""
    code = """
import ctypes, mmap
import numpy as np
from microtensor.kernels import gemm
libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
def guarded(shape, dtype, at_end):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = -(-size // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    whole = np.frombuffer(memory, np.uint8)
    for guard in (0, room + page):
        assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + guard), page, 0) == 0
    start = page + (room - size if at_end else 0)
    return whole[start : start + size].view(dtype).reshape(shape)
rng = np.random.default_rng(0)
for dtype in ("float32", "float64"):
    for m, k, n in [(1, 5, 9), (1, 70, 65), (3, 9, 21), (4, 33, 50), (13, 20, 33), (30, 32, 30), (64, 9, 65)]:
        for at_end in (False, True):
            a, b, bias = (guarded(shape, dtype, at_end) for shape in ((m, k), (k, n), (n,)))
            a_t, b_t = (guarded(shape, dtype, at_end).T for shape in ((k, m), (n, k)))
            out = guarded((m, n), dtype, at_end)
            a[...], b[...], bias[...] = rng.random((m, k)), rng.random((k, n)), rng.random(n)
            a_t[...], b_t[...] = a, b
            for left in (a, a_t):
                for right in (b, b_t):
                    gemm.matmul(left, right, bias, out=out)
                    assert np.allclose(out, np.matmul(a, b) + bias, rtol=1e-5)
print("FINE")
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "FINE" in run.stdout, (run.returncode, run.stderr)


@pytest.mark.parametrize("features", [{"avx512f", "avx2", "fma"}, {"avx2", "fma"}, {"avx2"}, {"neon"}, set()])
def test_tile_fits_the_vector_registers_of_the_cpu(features):
    tile = vectors._tile_for(frozenset(features))
    registers = 32 if features & {"avx512f", "neon"} else 16
    for rows, vectors_in_a_row in [(tile.rows, vectors.NV), (tile.wide_rows, vectors.NV + 1)]:
        sums, row_of_b, number_of_a = rows * vectors_in_a_row, vectors_in_a_row, 1
        assert sums + row_of_b + number_of_a <= registers
    assert tile.low_rows < tile.rows
    assert math.log2(tile.vector_bytes).is_integer()
    assert tile.fused == bool(features & {"fma", "neon"} and features != {"avx2"})


@pytest.mark.compiled
def test_a_plain_cpu_without_wide_vectors_computes_the_same_function():
    code = """
import numpy as np
from microtensor.kernels import gemm, vectors
assert vectors.VECTOR_BYTES == 16, vectors.VECTOR_BYTES
rng = np.random.default_rng(0)
for m, k, n in [(1, 9, 30), (3, 5, 7), (50, 60, 70)]:
    a, b = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
    for left in (a, np.asfortranarray(a)):
        for right in (b, np.asfortranarray(b)):
            assert np.allclose(gemm.matmul(left, right), np.matmul(a, b), rtol=1e-5)
print("FINE")
"""
    env = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert "FINE" in run.stdout, run.stderr
