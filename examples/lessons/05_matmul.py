# %% [markdown]
# # 05. Matrix product, from three loops to registers
#
# Before this: lesson 04. After it you know why the same sums can take many times as long.

# %%
import os
import sys
import timeit

import numpy as np
from numba import njit, prange

from microtensor.kernels import matmul

n = 128 if os.environ.get("LESSON_SMOKE") == "1" or "--smoke" in sys.argv else 512
fast = njit(fastmath={"contract"})  # a product and the addition behind it may be one instruction

# %% [markdown]
# Most of a Transformer's time goes into $c_{ij} = \sum_k a_{ik} b_{kj}$: $2n^3$ operations on $3n^2$ numbers.
# While one comes from memory a core could do a hundred operations: all depends on using again what has come.
# `njit` makes machine code of these loops as they stand. **Naive.** Memory holds row behind row and hands out
# lines of 64 bytes; the inner loop goes *down* a column of $B$ and uses 4 of them. **Reordered.** Along rows
# of $B$ and $C$ whole lines are used, and one instruction does 4, 8 or 16 columns. **Blocked.** 128
# columns at a time: all rows of $A$ meet a strip of $B$ so narrow that a cache holds it. Alone it brings
# little: here all of $B$ is 1 MB, and may fit; and rows that begin a power of 2 apart fight for few places.


# %%
@fast
def naive(A, B, C):
    for i in range(len(A)):
        for j in range(B.shape[1]):
            for k in range(len(B)):
                C[i, j] += A[i, k] * B[k, j]


@fast
def reordered(A, B, C):
    for i in range(len(A)):
        for k in range(len(B)):
            for j in range(B.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


@fast
def blocked(A, B, C):
    for j in range(0, B.shape[1], 128):
        for i in range(len(A)):
            c = C[i, j : j + 128]
            for k in range(len(B)):
                a, b = A[i, k], B[k, j : j + 128]
                for m in range(128):
                    c[m] += a * b[m]


# %% [markdown]
# **Packed.** So a strip is copied once: its rows are neighbours. Four at a time meet eight rows of $A$. And
# nearer than any cache are the **registers**, the few dozen places that a core computes in: a number of $C$
# comes, gets four terms, and goes, a quarter as often as before. **Parallel.** Each core takes its share of
# the strips. (`prange` is `range` but with `parallel=True`.) All add in the order of $k$: the same numbers,
# to the bit. NumPy's library and ours, `microtensor/kernels/tiles.py`, keep a tile of $C$ in registers for
# hundreds of $k$. No loop can ask for that; the instructions are written one by one.


# %%
@fast
def strip(A, b, C, j):
    for i in range(0, len(A), 8):
        for k in range(0, len(b), 4):
            b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
            for r in range(i, i + 8):
                c, a0, a1, a2, a3 = C[r, j : j + 128], A[r, k], A[r, k + 1], A[r, k + 2], A[r, k + 3]
                for m in range(128):
                    c[m] = c[m] + a0 * b0[m] + a1 * b1[m] + a2 * b2[m] + a3 * b3[m]


def strips(A, B, C):
    for s in prange(B.shape[1] // 128):
        strip(A, B[:, 128 * s : 128 * s + 128].copy(), C, 128 * s)


# %%
A, B = np.random.default_rng(0).normal(size=(2, n, n)).astype(np.float32)
C, exact, results, least = np.zeros_like(A), A.astype(np.float64) @ B, {}, {}
versions = {"naive": naive, "reordered": reordered, "blocked": blocked, "packed": njit(strips),
            "parallel": njit(strips, parallel=True),
            "microtensor": lambda A, B, C: matmul(A, B, out=C), "NumPy": np.matmul}  # fmt: skip
for name in versions:  # the first call of ten compiles
    times = timeit.repeat("versions[name](A, B, C)", "C.fill(0)", number=1, repeat=10, globals=globals())
    assert np.abs(C - exact).max() < 1e-6 * n
    results[name], least[name], speed = C.tobytes(), min(times), 2e-9 * n**3 / min(times)
    print(f"{name:11} {1e3 * min(times):8.2f} ms {speed:6.1f} GFLOP/s {'▇' * round(speed / 5)}")
assert len({results[name] for name in list(versions)[:5]}) == 1  # ours, all five, to the bit
assert least["packed"] < least["naive"] / 4
print(f"shown: the same bits, {least['naive'] / least['packed']:.0f} times as fast on one core")

# %% [markdown]
# **Try.** 1. Put the naive loops in the order j, k, i. Down what does the inner one go now? 2. Let `strip`
# and `strips` cut 32 columns, then 16. What comes more often, and what did the compiler give up at 16?
