# %% [markdown]
# # 06. Softmax that never overflows
#
# Before this: lesson 05. After it you know why everybody subtracts the maximum first, why a loss takes
# logarithms *inside* the softmax, and that neither changes the mathematics.

# %%
import decimal

import numpy as np

import microtensor as mt
from microtensor import nn

# %% [markdown]
# Softmax turns scores into shares, all positive, that add up to 1:
# $$p_i = \frac{e^{x_i}}{\sum_j e^{x_j}}.$$
# On paper that is the end. A computer's float32 ends at $3.4 \cdot 10^{38} \approx e^{88.7}$: beyond it is
# `inf`, and inf/inf is `nan`. At the other end, below $e^{-104}$, all is 0, and 0/0 is `nan`, too.


# %%
def naive(x):
    with np.errstate(all="ignore"):
        e = np.exp(x)
        return e / e.sum()


shape = np.array([0.0, -1.0, 0.5, 2.0, 1.0], np.float32)
for shift in (0, 80, 100, -110):
    print(f"scores around {shift:4}: {naive(shape + np.float32(shift))}")
assert np.isnan(naive(shape + 100)).any()
assert np.isnan(naive(shape - 110)).all()

# %% [markdown]
# The shares do not depend on where zero is. Multiply above and below by $e^{-c}$:
# $$\frac{e^{x_i}}{\sum_j e^{x_j}} = \frac{e^{x_i - c}}{\sum_j e^{x_j - c}} \quad \text{for every } c.$$
# So choose $c = \max_j x_j$. Now all exponents are at most 0 and one of them is 0: no power is above 1, and
# the sum lies between 1 and $n$. **Nothing can overflow, and nothing is divided by 0.** Powers that become 0
# were shares below $10^{-45}$.


# %%
def stable(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def exact(x):
    """With 60 digits, and exponents as large as they get."""
    with decimal.localcontext(decimal.Context(prec=60)):
        e = [decimal.Decimal(float(score)).exp() for score in x]
        return np.array([float(power / sum(e)) for power in e])


rng = np.random.default_rng(0)
print("size of scores   error of naive, of stable, of mt.softmax")
for size in (1, 10, 100, 1000, 1e5):
    x = (size * rng.normal(size=50)).astype(np.float32)
    errors = [np.abs(p - exact(x)).max() for p in (naive(x), stable(x), mt.softmax(mt.tensor(x), 0).numpy())]
    print(f"{size:14g}   " + "  ".join(f"{error:.0e}" for error in errors))
    assert max(errors[1:]) < 1e-6
    assert size < 100 or np.isnan(errors[0])

# %% [markdown]
# What comes back through it? With $[i = j]$ for 1 where $i = j$ and 0 elsewhere, the quotient rule gives
# $$\frac{\partial p_i}{\partial x_j} = p_i \, ([i = j] - p_j), \qquad
# \bar x_j = \sum_i g_i \, p_i \, ([i = j] - p_j) = p_j \Big(g_j - \sum_i g_i p_i\Big)$$
# for a gradient $g$ by the shares: $\bar x = p \circ (g - \langle g, p \rangle)$. It adds up to 0.

# %%
x, g = mt.randn(5, requires_grad=True), mt.randn(5)
p = x.softmax(0)
p.backward(g)
mt.testing.assert_close(x.grad, p.detach() * (g - g @ p.detach()))

# %% [markdown]
# A loss wants $-\log p_t$, the surprise at the right answer $t$. A share may honestly round to 0, and then
# its logarithm is lost. So take it before rounding:
# $$\log p_i = x_i - c - \log \sum_j e^{x_j - c},$$
# where the last term lies between 0 and $\log n$. The gradient is tame ($g_t = -1/p_t$, the others 0):
# $\partial(-\log p_t)/\partial x_i = p_i - [i = t]$, never outside $[-1, 1]$. However wrong a model is, no
# step explodes here.

# %%
x = mt.tensor([[0.0, 200.0, 50.0]], requires_grad=True)
target = mt.tensor([0])
too_late = -x.softmax(1).log()[0, 0]  # share 1.4e-87 is 0 in float32
loss = nn.functional.cross_entropy(x, target)
loss.backward()
print(f"-log of the share {too_late.item()}, cross_entropy {loss.item()}, gradient {x.grad.tolist()}")
assert too_late.item() == np.inf
assert loss.item() == 200.0
assert x.grad.tolist() == [[-1.0, 1.0, 0.0]]
print("shown: with the maximum subtracted scores of every size are right, and the logarithm belongs inside")

# %% [markdown]
# **Try.** 1. Two halves of a row are known by their maxima $c_1, c_2$ and sums $s_1, s_2$ of $e^{x_j - c}$.
# What are $c$ and $s$ of the whole? (So a row need never be in memory at once: FlashAttention.) 2. A row of
# nothing but $-\infty$ has no softmax. What does `mt.softmax` give? (Lesson 11 shows who needs it.)
