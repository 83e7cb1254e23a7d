# %% [markdown]
# # 04. An op of your own, and how to trust it
#
# Before this: lesson 03. After it you can add a differentiable function to an autograd, and let a machine
# look for the mistakes that everybody makes in gradients.

# %%
import numpy as np

import microtensor as mt
from microtensor.engine import op
from microtensor.testing import check_op

# %% [markdown]
# An op is a function on arrays, and a formula for its gradient. Let ours be the length of the hypotenuse,
# $$y = \sqrt{a^2 + b^2}, \qquad \frac{\partial y}{\partial a} = \frac{a}{y},
# \qquad \frac{\partial y}{\partial b} = \frac{b}{y}.$$
# The parameters of the formula are its memory: `g` is the gradient $\bar y$, the others say by name what the
# tape is to keep; here both inputs and the output. `broadcasts=True` leaves the sums of lesson 03 to the
# walk, `floats=True` turns integers into floats first. The samples are calls on which the op is to be tested.


# %%
@op("hypot", broadcasts=True, floats=True)
def hypot(a, b):
    """y = √(a² + b²)          gradient: g · a/y, g · b/y"""
    return np.hypot(a, b)  # no overflow where a² would be too large


@hypot.vjp
def hypot_vjp(g, a, b, y):
    return (g * a / y, g * b / y)


@hypot.samples
def hypot_samples(rng):
    yield (rng.normal(size=(2, 3)), rng.normal(size=(3,))), {}
    yield (rng.normal(size=(2, 1)), 2.0), {}


# %% [markdown]
# Is the formula right? A derivative can be *measured*. Choose a direction $d$ and a random $\bar y$; then,
# with $\langle u, v \rangle = \sum_i u_i v_i$,
# $$\langle \bar a, d \rangle \approx
# \frac{\langle \bar y, f(a + hd) \rangle - \langle \bar y, f(a - hd) \rangle}{2h},$$
# but for order $h^2$. The random $\bar y$ matters: with ones only, a formula that forgets `g` would pass.

# %%
rng = np.random.default_rng(0)
a, b, d, g = rng.normal(size=(4, 5))
x = mt.tensor(a, requires_grad=True)
hypot(x, mt.tensor(b)).backward(mt.tensor(g))
for h in (1e-1, 1e-2, 1e-3):
    measured = (g @ hypot(a + h * d, b) - g @ hypot(a - h * d, b)) / (2 * h)
    print(f"h = {h}: measured {measured:.9f}, by the formula {x.grad.numpy() @ d:.9f}")
assert abs(measured - x.grad.numpy() @ d) < 1e-5

# %% [markdown]
# `check_op` measures every element that way, and the second derivative; and it looks for what such a
# measurement does not see. Nothing said means that all of its claims hold.

# %%
check_op(hypot)


# %% [markdown]
# A test that cannot fail is worth nothing, so let us make mistakes: 1 % too much, inputs mixed up, $\bar y$
# forgotten, its array written into although others may hold it, a NumPy constant that turns float32 into
# float64.


# %%
def in_place(g, a, b, y):
    g /= y
    return (g * a, g * b)


mistakes = {
    "1 % too much": lambda g, a, b, y: (1.01 * g * a / y, g * b / y),
    "mixed up": lambda g, a, b, y: (g * b / y, g * a / y),
    "g forgotten": lambda g, a, b, y: (a / y, b / y),
    "written into g": in_place,
    "float64": lambda g, a, b, y: (g * a / y * np.float64(1), g * b / y),
}
caught = []
for name, formula in mistakes.items():
    hypot.vjp(formula)
    try:
        check_op(hypot)
    except AssertionError as error:
        caught.append(name)
        print(f"{name}: not so: {str(error).removeprefix('check_op: ').split(' — ')[0]}")
hypot.vjp(hypot_vjp)
check_op(hypot)
assert caught == list(mistakes)
print(f"shown: a formula that agrees with measurement, and {len(caught)} wrong ones that were caught")

# %% [markdown]
# **Try.** 1. What is the gradient of `hypot` at $a = b = 0$, by the formula and in truth? 2. Leave out
# `broadcasts=True`, and read what the walk says.
