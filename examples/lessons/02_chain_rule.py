# %% [markdown]
# # 02. The chain rule, newest first
#
# Before this: lesson 01. After it you know why backward visits each entry once, and why "newest first" is all
# the sorting that this needs.

# %%
import os
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

import microtensor as mt
from microtensor import viz
from microtensor.engine import Entry

out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# $x_{k+1} = x_k \sin x_k$ uses $x_k$ twice, directly and by way of the sine: two ways part and meet again, a
# *diamond*. The chain rule adds up all ways from $x_0$ to $x_n$; here there are $2^n$.
# $$\frac{\partial x_n}{\partial x_0} = \sum_{\text{ways}} \; \prod_{\text{steps } u \to v \text{ of a way}}
# \frac{\partial v}{\partial u}$$


# %%
def diamonds(n, start=2.0):
    x = first = mt.tensor(start, dtype=mt.float64, requires_grad=True)
    for _ in range(n):
        x = x * x.sin()
    return x, first


def back(entry, g):
    """The nodes that an entry was made from, each with the gradient that the op's formula sends to it."""
    gradients = entry.op.vjp_function(g, *entry.saved)
    return [(node, g() if callable(g) else g) for node, g in zip(entry.inputs, gradients, strict=True)]


# %% [markdown]
# **Way by way.** The rule as it stands, by recursion: right, but an entry is visited once for each way to it.


# %%
def by_ways(node, g):
    """(gradient, visits) from here on."""
    if not isinstance(node, Entry):  # the start
        return g, 0
    below = [by_ways(*pair) for pair in back(node, g)]
    return sum(gradient for gradient, _ in below), 1 + sum(visits for _, visits in below)


# %% [markdown]
# **Each once.** Let gradients wait at a node and add up, and multiply the sum:
# $$\bar u = \sum_{v \text{ made from } u} \bar v \, \frac{\partial v}{\partial u}.$$
# When $u$ is visited, *all* of its $\bar v$ must have arrived. First come, first served is wrong: $x_k$ is
# visited before the sine that was made from it, and what the sine then sends to $x_k$ goes no further.
# **Newest first** is right. An input exists before what is made from it, so its number on the tape is lower.
# Take the highest number that waits: all ways to it lead through higher ones, so they have been visited. A
# heap finds it; `backward()` does just this.


# %%
def each_once(y, place):
    """(gradient, visits). place(entry, how many came before it) is a number: the lowest goes first."""
    waiting, heap, visits = {y.grad_fn: np.ones(())}, [(0, y.grad_fn)], 0  # gradients so far; who is to come
    while heap:  # of pairs (place, entry): heappop takes the one of the lowest place out
        entry, visits = heappop(heap)[1], visits + 1
        for node, g in back(entry, waiting[entry]):
            if node not in waiting and isinstance(node, Entry):  # the first that arrives there
                heappush(heap, (place(node, len(waiting)), node))
                assert node.index < entry.index  # made before
            waiting[node] = waiting.get(node, 0.0) + g
    return next(waiting[node] for node in waiting if not isinstance(node, Entry)), visits


# %%
print("diamonds  visits by ways, each once  gradient by ways, first come first, newest first")
for n in (1, 2, 4, 8, 12):
    y, x = diamonds(n)
    ways, many = by_ways(y.grad_fn, np.ones(()))
    early, _ = each_once(y, lambda entry, came: came)
    newest, few = each_once(y, lambda entry, came: -entry.index)
    print(f"{n:8} {many:15} {few:10} {ways:17.6f} {early:17.6f} {newest:13.6f}")
    assert (many, few) == (2 * (2**n - 1), 2 * n)
    slope = (diamonds(n, 2 + 1e-6)[0].item() - diamonds(n, 2 - 1e-6)[0].item()) / 2e-6
    np.testing.assert_allclose([ways, newest], slope, rtol=1e-6)
    assert n == 1 or abs(early / slope - 1) > 0.01
    y.backward()
    assert x.grad.item() == newest  # to the bit
picture = viz.draw(diamonds(2, 1.0)[0], level="ops", grads=True)  # from 1: no gradient is negative there
print(f"drawn: {picture.save(out / '02_diamonds.svg')}: where two gradients arrive, they are added up")
print(f"shown: {n} diamonds take {many} visits way by way, and {few} newest first, for the same gradient")
picture  # a notebook shows it

# %% [markdown]
# **Try.** 1. What does *oldest* first give, and which of these diamonds does it get right? 2. Take
# $x_{k+1} = x_k + x_k$, without the two assertions of visits and of `early`. Why is first come right now?
