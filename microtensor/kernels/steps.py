"""One compiled pass over all parameters of a model: optimiser steps, the gradients' norm, and its clipping.

A small Transformer has a hundred parameters, most of them small: called for each, even a fast kernel costs
more to call than to run. Here one call takes them all, cut into blocks (tables.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from microtensor.kernels.driver import Task, jit_tasks, share
from microtensor.kernels.layout import Array, contiguous
from microtensor.kernels.tables import numbers, place, table
from microtensor.kernels.threads import jit, run

# ---- Adam ----


@jit(inline=True)
def _adam(p: Array, m: Array, v: Array, g: Array, c: Array) -> None:
    F = p.dtype.type  # a float64 constant would make every operation of the loop a float64 one
    sign, shrink, decay, rest1, beta2 = F(c[0]), F(c[1]), F(c[2]), F(c[3]), F(c[4])
    rest2, rate, root, eps = F(c[5]), F(c[6]), F(c[7]), F(c[8])
    for i in range(p.size):
        gradient = sign * g[i] + decay * p[i]
        first = m[i] + rest1 * (gradient - m[i])
        second = beta2 * v[i] + rest2 * (gradient * gradient)
        m[i] = first
        v[i] = second
        p[i] = shrink * p[i] - rate * (first / (math.sqrt(second) * root + eps))


@jit_tasks
def _adam_all(task: Task, like: Array, at: Array, sizes: Array, first: Array, kinds: Array, c: Array) -> None:
    for block in range(*share(task, first[-1])):
        j, start, n = place(block, sizes, first)
        skip = start * like.itemsize
        p, m = numbers(like, at[0, j] + skip, n), numbers(like, at[1, j] + skip, n)
        v, g = numbers(like, at[2, j] + skip, n), numbers(like, at[3, j] + skip, n)
        _adam(p, m, v, g, c[kinds[j]])


def adam_steps(
    p: Sequence[Array],
    g: Sequence[Array],
    m: Sequence[Array],
    v: Sequence[Array],
    kinds: Sequence[int],
    rules: Sequence[tuple[float, ...]],
) -> bool:
    """A step of Adam or AdamW for all parameters, in place on p, m and v; rules[kinds[j]] is the j-th's.

    False, nothing being changed, if the arrays have to be taken one by one: see `tables.table`.
    Shapes: p[j], g[j], m[j], v[j] alike
    Source: see `adam_rule`.
    """
    found = table((p, m, v, g), 3)
    if found is None:
        return False
    arguments = np.array(kinds, np.int64), np.array(rules, np.float64)
    run(0.4 * found.sizes.sum(), *_adam_all, *found, *arguments)
    return True


def adam_rule(
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    step: int,
) -> tuple[float, ...]:
    """The numbers of one step, from Python's in float64. step counts from 1.

    Adam:  g ← g + weight_decay · p.  AdamW (decoupled):  p ← p − lr · weight_decay · p.  Then
    m ← m + (1 − β₁)(g − m);  v ← β₂ v + (1 − β₂) g²;  p ← p − lr · m̂ / (√v̂ + eps),
    with m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ). maximize: −g for g.

    Source: Kingma & Ba 2015, Algorithm 1; Loshchilov & Hutter 2019, Algorithm 2 (its α = lr, as in PyTorch).
    """
    shrink, decay = (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)
    rate, root = lr / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step)
    sign = -1.0 if maximize else 1.0
    return sign, shrink, decay, 1 - beta1, beta2, 1 - beta2, rate, root, eps


# ---- SGD ----


@jit(inline=True)
def _sgd(p: Array, g: Array, c: Array) -> None:
    F = p.dtype.type
    sign, decay, rate, zero = F(c[0]), F(c[1]), F(c[4]), F(0)
    for i in range(p.size):
        d = sign * g[i]
        p[i] = p[i] - rate * (d if decay == zero else d + decay * p[i])  # 0 · inf would be NaN


@jit(inline=True)
def _momentum(p: Array, b: Array, g: Array, c: Array) -> None:
    F = p.dtype.type
    sign, decay, momentum, rest, rate, zero = F(c[0]), F(c[1]), F(c[2]), F(c[3]), F(c[4]), F(0)
    starting, nesterov = c[5] != 0, c[6] != 0
    for i in range(p.size):
        d = sign * g[i]
        d = d if decay == zero else d + decay * p[i]
        total = d if starting else momentum * b[i] + rest * d
        b[i] = total
        p[i] = p[i] - rate * (d + momentum * total if nesterov else total)


@jit_tasks
def _sgd_all(task: Task, like: Array, at: Array, sizes: Array, first: Array, kinds: Array, c: Array) -> None:
    for block in range(*share(task, first[-1])):
        j, start, n = place(block, sizes, first)
        skip = start * like.itemsize
        p, g = numbers(like, at[0, j] + skip, n), numbers(like, at[-1, j] + skip, n)
        if at.shape[0] == 2:
            _sgd(p, g, c[kinds[j]])
        else:
            _momentum(p, numbers(like, at[1, j] + skip, n), g, c[kinds[j]])


def sgd_steps(
    p: Sequence[Array],
    g: Sequence[Array],
    b: Sequence[Array] | None,
    kinds: Sequence[int],
    rules: Sequence[tuple[float, ...]],
) -> bool:
    """A step of SGD for all parameters, in place on p and b; rules and False as in `adam_steps`.

    b: the running sums; None if no rule has momentum.
    Shapes: p[j], g[j], b[j] alike
    Source: see `sgd_rule`.
    """
    found = table((p, g), 1) if b is None else table((p, b, g), 2)
    if found is None:
        return False
    arguments = np.array(kinds, np.int64), np.array(rules, np.float64)
    run(0.2 * found.sizes.sum(), *_sgd_all, *found, *arguments)
    return True


def sgd_rule(
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    starting: bool,
) -> tuple[float, ...]:
    """The numbers of one step:  g ← ±g + weight_decay · p;  b ← g if starting, else μ b + (1 − dampening) g;
    p ← p − lr · b, or with nesterov p − lr · (g + μ b). Without momentum p ← p − lr · g.

    Source: Polyak 1964; Sutskever et al. 2013, §2, as in PyTorch.
    """
    sign = -1.0 if maximize else 1.0
    return sign, weight_decay, momentum, 1 - dampening, lr, float(starting), float(nesterov)


# ---- gradients ----


@jit(fastmath=True, entry=False)
def _block_of_squares(g: Array) -> float:
    s = 0.0
    for i in range(g.size):
        x = np.float64(g[i])
        s += x * x
    return s


@jit_tasks
def _squares(task: Task, like: Array, at: Array, sizes: Array, first: Array, blocks: Array) -> None:
    for block in range(*share(task, first[-1])):
        j, start, n = place(block, sizes, first)
        blocks[block] = _block_of_squares(numbers(like, at[0, j] + start * like.itemsize, n))


def sq_sums(arrays: Sequence[Array]) -> list[float]:
    """Σ g² of each array, in float64 and in the same order on every run, however many threads there are.

    Shapes: g (...) of any shapes → as many Python floats
    """
    if not arrays:
        return []
    found = table((arrays,), 0)
    if found is None and len(arrays) > 1:
        return [sq_sums([g])[0] for g in arrays]
    if found is None:
        arrays = [contiguous(arrays[0])]
        found = table((arrays,), 0)
        assert found is not None
    blocks, sums, some = np.empty(found.first[-1]), np.zeros(len(arrays)), found.sizes > 0
    run(0.07 * found.sizes.sum(), *_squares, *found, blocks)
    sums[some] = np.add.reduceat(blocks, found.first[:-1][some]) if blocks.size else 0.0
    floats: list[float] = sums.tolist()
    return floats


@jit(inline=True)
def _scale(g: Array, factor: float) -> None:
    F = g.dtype.type(factor)
    for i in range(g.size):
        g[i] *= F


@jit_tasks
def _scale_all(task: Task, like: Array, at: Array, sizes: Array, first: Array, factor: float) -> None:
    for block in range(*share(task, first[-1])):
        j, start, n = place(block, sizes, first)
        _scale(numbers(like, at[0, j] + start * like.itemsize, n), factor)


def scale(arrays: Sequence[Array], factor: float) -> None:
    """g ← factor · g, in place, for each array: one that is listed twice is multiplied twice.

    Shapes: g (...) of any shapes and layouts
    """
    found = table((arrays,), 1)
    if found is not None:
        run(0.1 * found.sizes.sum(), *_scale_all, *found, factor)
    else:
        for g in arrays:
            np.multiply(g, factor, out=g)
