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
# While one comes from memory a core could do a hundred operations: use it again while it is in a *cache*, a
# small memory beside the core. `njit` makes machine code of the loops as they stand. **Naive.** Memory holds
# row behind row and sends 16 neighbours at a time; *down* a column of $B$ one of them is used. **Reordered.**
# Along rows all are, and one instruction of a core computes 4, 8 or 16 neighbours. **Blocked.** 128 columns
# at a time, a strip of $B$ that can stay in the cache for all rows of $A$. Alone it seldom pays: all of $B$
# is only 1 MB, and rows of a strip are no neighbours.


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
# **Packed.** So copy the strip into an array of its own, where rows are neighbours. And take four of its rows
# at once: a number of $C$ comes into a **register**, one of the few dozen places in which a core computes,
# gets four terms instead of one, and goes: a quarter as often. **Parallel.** Each core takes its share of the
# strips: under `parallel=True` `prange` deals its numbers out to them, else it is `range`. All add in the
# order of $k$: the same bits. NumPy's library and ours, `microtensor/kernels/tiles.py`, keep a tile of $C$ in
# registers for hundreds of $k$. No loop can ask for that; the instructions are written one by one.


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
for name in versions:  # the first call of ten compiles: wait for seconds, for ours up to a minute, once
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
