# %% [markdown]
# # 03. Broadcasting, and its gradient
#
# Before this: lesson 02. After it you know why the gradient of a bias is a sum, and you can undo broadcasting
# for any two shapes.

# %%
import numpy as np

import microtensor as mt
from microtensor import nn

# %% [markdown]
# A bias $b$ of shape (3,) plus a matrix of shape (2, 3): NumPy, and we, copy $b$ into each row. The rule,
# read from the right: axes must be equal, or one of them 1, or missing; those are stretched by copying.
#
# Copying is linear. Write the elements of the input below each other, as a vector $b$, and those of the
# result as a vector $y$: then $y = Eb$ with a matrix $E$ of zeros and ones. Row $i$ belongs to $y_i$; its
# single 1 stands in the column of the element of $b$ that is copied there. For shape (2, 1) made (2, 3):


# %%
def copies(shape, wider):
    """E, a row for each element of `wider`, a column for each of `shape`."""
    units = np.eye(int(np.prod(shape)))  # the k-th row: the input whose k-th element is 1
    return np.stack([np.broadcast_to(unit.reshape(shape), wider).ravel() for unit in units], axis=1)


E = copies((2, 1), (2, 3))
print(E)
assert (E.sum(axis=1) == 1).all()

# %% [markdown]
# The chain rule then says $\bar b = E^\top \bar y$. A column of $E$ has its ones where the copies of one
# element are, so
# $$\bar b_j = \sum_{i\,:\,y_i \text{ is a copy of } b_j} \bar y_i.$$
# **The gradient of copying is adding up.** A copy moves the loss by its own $\bar y_i$; the element moves all
# its copies. So no matrix is needed: sum over the axes that broadcasting added in front, and over those that
# it stretched from 1.


# %%
def unbroadcast(g, shape):
    """The gradient by an input of this shape, where g is that by the result."""
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    return g.sum(axis=tuple(axis for axis, length in enumerate(shape) if length == 1), keepdims=True)


rng = np.random.default_rng(0)
for shape in [(4, 2, 3), (2, 3), (3,), (4, 1, 1), (1, 2, 1), (2, 1), (1,), ()]:
    g = rng.normal(size=(4, 2, 3))
    by_matrix = copies(shape, g.shape).T @ g.ravel()
    np.testing.assert_allclose(unbroadcast(g, shape).ravel(), by_matrix, rtol=1e-12)
    print(f"{shape!s:9} → (4, 2, 3): numbers that each gradient adds up: {g.size // by_matrix.size}")

# %% [markdown]
# An autograd with a hundred ops need not write this a hundred times. The formula of `mul` says no more than
# $\bar a = \bar y \circ b$, $\bar b = \bar y \circ a$, both as wide as $y$; the walk sees that an input was
# narrower, and does the rest, in one place: `unbroadcast` in `microtensor/walk.py`.

# %%
a = mt.tensor(rng.normal(size=(4, 1, 3)), requires_grad=True)
b = mt.tensor(rng.normal(size=(2, 1)), requires_grad=True)
y = a * b
g = rng.normal(size=y.shape)
y.backward(mt.from_numpy(g))
print(f"a {a.shape} * b {b.shape} = y {y.shape}, and the gradients are {a.grad.shape} and {b.grad.shape}")
np.testing.assert_allclose(a.grad.numpy(), unbroadcast(g * b.detach().numpy(), (4, 1, 3)), rtol=1e-12)
np.testing.assert_allclose(b.grad.numpy(), unbroadcast(g * a.detach().numpy(), (2, 1)), rtol=1e-12)

# %% [markdown]
# The rule is also a trap. A model gives (4, 1), the targets are (4,): no error, but all 16 differences, each
# prediction against every target. The least of *that* loss is reached where all predictions are the mean.

# %%
target = mt.tensor([0.0, 1.0, 2.0, 3.0])
perfect = target[:, None].clone().requires_grad_()  # (4, 1)
loss = (perfect - target).square().mean()
loss.backward()
print(f"perfect predictions, loss {loss.item()}, gradient {perfect.grad.flatten().tolist()}")
assert loss.item() == 2.5
mt.testing.assert_close(perfect.grad.flatten(), 0.5 * (target - target.mean()))  # it pulls to the mean
try:
    nn.functional.mse_loss(perfect, target)
except ValueError as error:
    print(f"refused: {error}")
else:
    raise AssertionError("mse_loss took the trap")
print("shown: what is copied forward is summed backward, for any two shapes; and what a missing axis costs")

# %% [markdown]
# **Try.** 1. Whose gradient is the *copying* of $\bar y$, to all elements alike? (Lesson 01 has one.)
# 2. A linear layer computes $XW^\top + b$ for 32 rows. How does $\bar b$ grow with the number of rows, and
# why does a mean as loss undo that?
