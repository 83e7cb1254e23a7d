# %% [markdown]
# # 01. A tensor remembers how it was made
#
# Before this: no lesson; you know derivatives and some Python. After it you know what an autograd keeps while
# it computes, and can follow that by hand to the gradient.

# %%
import os
from pathlib import Path

import microtensor as mt
from microtensor import viz

out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# A tensor is an array of numbers that may also remember. With `requires_grad=True` we say: I shall ask how a
# result depends on this one. Take
# $$y = \sum_i e^{x_i/2}, \qquad \text{so that} \qquad
# \frac{\partial y}{\partial x_i} = \tfrac12\, e^{x_i/2}.$$

# %%
x = mt.tensor([0.0, 1.0, 2.0], requires_grad=True)
y = (x * 0.5).exp().sum()
print(y)
print(mt.tape(y))

# %% [markdown]
# That is the *tape*: one **entry** for each operation, in the order in which they ran. Beside its number `y`
# holds no more than a pointer to the newest entry, `y.grad_fn`; an entry points to the entries of its inputs,
# and the oldest one to `x` itself (x1 in the table). No entry points forward, so a graph whose result
# nobody holds any more is freed with it.
#
# The column *cost* counts FLOP, operations on floating-point numbers. The column *kept* is what stays alive
# for backward. The derivative of $e^z$ is $e^z$, so `exp` keeps its result, three numbers of 4 bytes. `mul`
# keeps its two factors, which costs no memory: `x` is alive anyway.
# `sum` keeps the shape of what came in, and no array.

# %%
entry, names = y.grad_fn, []
while entry is not x:
    print(f"{entry.op.name} made shape {entry.shape} and keeps {entry.saved}")
    names.append(entry.op.name)
    entry = entry.inputs[0]
assert names == ["sum", "exp", "mul"]  # newest first

# %% [markdown]
# Each op knows its own derivative and nothing else. It is written as a **vector–Jacobian product**: given the
# gradient of $y$ by the op's output, $\bar v = \partial y/\partial v$, and what was kept, it returns the
# gradient of $y$ by each of the op's inputs $u$,
# $$\bar u_j = \sum_i \bar v_i \, \frac{\partial v_i}{\partial u_j}.$$
# The matrix $\partial v/\partial u$ is never built: for `exp` the formula is $\bar u = \bar v \circ v$,
# element by element. Start with $\partial y/\partial y = 1$, of shape () as `y` is, and go back along the
# pointers. (`vjp_params` names what a formula needs of the options of the call, as the axis of `sum`. And it
# may hand over a gradient as a function, to be called only if that input needs one: `mul` does.)

# %%
entry, g = y.grad_fn, mt.ones(()).numpy()
while entry is not x:
    options = {name: entry.params[name] for name in entry.op.vjp_params}
    g = entry.op.vjp_function(g, *entry.saved, **options)[0]  # by the first input, the only tensor here
    g = g() if callable(g) else g
    print(f"back through {entry.op.name}: {g}")
    entry = entry.inputs[0]

# %% [markdown]
# `y.backward()` does the same, and adds what arrives at `x` to `x.grad`. (Where a result is used twice, the
# order matters; that is lesson 02.) Afterwards the kept arrays are let go: they were for this one walk. In
# the picture, ‖∂‖ and the numbers at the arrows are *norms* of gradients, $\|g\| = \sqrt{\sum_i g_i^2}$.
# There $\bar u$ is called du: dy, dz_1, dx; and expand(dy) copies the one number dy for each of the sum.

# %%
path = out / "01_tape.svg"
picture = viz.draw(y, level="tape", grads=True, shapes="numeric")
picture.save(path)
print(f"drawn: {path}: forward, what is kept alive, and backward with every formula")
exp = y.grad_fn.inputs[0]
assert exp.saved is not None
y.backward()
assert exp.saved is None
picture  # a notebook shows it

# %% [markdown]
# Remembering costs memory, so it can be switched off: under `mt.no_grad()` the numbers are the same, and no
# entry is made.

# %%
with mt.no_grad():
    quiet = (x * 0.5).exp().sum()
assert quiet.item() == y.item()
assert quiet.grad_fn is None
assert x.grad.tolist() == g.tolist()  # backward() is our walk, to the bit
mt.testing.assert_close(x.grad, 0.5 * (x.detach() / 2).exp())  # and both are the formula
print("shown: an entry for each op, three steps back from y to x, and the gradient by following them")

# %% [markdown]
# **Try.** 1. Of `sqrt` and `square`, which keeps its result, which its input, and why? To see it, print
# `mt.tensor([1.0, 9.0], requires_grad=True).sqrt().grad_fn.saved`, and the same with `square`.
# 2. Call `y.backward()` once more and read the error. What would the walk need that is gone?
