# %% [markdown]
# # 07. Scaled dot-product attention, and why √d_k
#
# Before this: lesson 06, and what variance and independence are. After it you know what attention computes,
# why its scores are divided by the root of their width, and how a model learns, or fails to without the root.

# %%
import math
import os
import sys
from pathlib import Path

import microtensor as mt
from microtensor import nn, optim, train
from models import scaled_dot_product_attention

steps = 60 if os.environ.get("LESSON_SMOKE") == "1" or "--smoke" in sys.argv else 300
mt.manual_seed(0)
out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# Attention looks things up, softly. A query $q$ is compared with all keys; softmax turns the scores into
# shares; the answer is that mixture of the values. With a row for each query in $Q$, each key in $K$ and $V$:
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\!\left(\frac{QK^\top}{\sqrt{d_k}}\right) V.$$

# %%
Q, K, V = mt.randn(2, 8), mt.randn(5, 8), mt.randn(5, 3)  # 2 queries, 5 keys, d_k = 8
y, A = scaled_dot_product_attention(Q, K, V)  # with the shares; nn.functional's, PyTorch's, gives y only
mt.testing.assert_close(A, (Q @ K.T / math.sqrt(8)).softmax(-1))
mt.testing.assert_close(y, A @ V)
print(f"shares of query 0: {', '.join(f'{share:.2f}' for share in A[0].tolist())}")

# %% [markdown]
# Why the root? Let the entries of $q$ and $k$ be independent, of mean 0 and variance 1. Then each $q_i k_i$
# has mean 0 and variance 1, and variances of independent terms add up:
# $$\mathrm{Var}(q \cdot k) = \sum_{i=1}^{d_k} \mathrm{Var}(q_i k_i) = d_k, \qquad
# \mathrm{Var}(q \cdot k / \sqrt{d_k}) = 1.$$
# Softmax of large scores gives all to one key: its *entropy* $-\sum p \ln p$, at most $\ln 16 = 2.77$ here,
# sinks to 0. So does lesson 06's gradient: $p \circ (g - \langle g, p \rangle) = 0$ at $p = (1, 0, \dots)$.


# %%
def entropy_and_gradient(S):
    """Of the softmax of these scores, rows on average; the gradient's length for a random g."""
    A = S.requires_grad_().softmax(-1)
    A.backward(mt.randn_like(A))
    return -(A * A.clamp(min=1e-30).log()).sum(-1).mean().item(), S.grad.norm(dim=-1).mean().item()


print(" d_k  Var(q·k)  scaled   entropy  scaled   |gradient|  scaled")
for d in (4, 16, 64, 256, 1024):
    q, k = mt.randn(500, d), mt.randn(16, d)
    one_by_one = (mt.randn(5000, d) * mt.randn(5000, d)).sum(-1)
    plain, scaled = [(one_by_one / root).var().item() for root in (1, math.sqrt(d))]
    (entropy, gradient), (e, g) = entropy_and_gradient(q @ k.T), entropy_and_gradient(q @ k.T / math.sqrt(d))
    print(f"{d:4} {plain:9.2f} {scaled:7.2f} {entropy:9.3f} {e:7.3f} {gradient:12.4f} {g:7.4f}")
    assert abs(scaled - 1) < 0.1
assert entropy < 0.2 < 2 < e
assert gradient < g / 2

# %% [markdown]
# Does it matter? Two models, alike to the last bit but for the root, are to learn a lookup: of 8 symbols with
# a number each, say the number of the one asked for (who always says 0 has an error of 1). A symbol is a
# random vector $x$; the one asked for becomes a query $xW^Q$, each one shown a key $xW^K$. The matrices begin
# at random and have to agree on what is alike. **Learning is walking downhill**: a loss $L$ grows fastest
# along its gradient, so a step goes against it, $W \leftarrow W - \eta \, \partial L/\partial W$. The
# *learning rate* $\eta$ says how far. Here each step sees new random examples: *stochastic* gradient descent.


# %%
def losses(scale, steps, d=64, n=64):
    mt.manual_seed(1)
    symbols = mt.randn(16, d)  # d_k = 64, as in the paper
    W_Q, W_K = [(mt.randn(d, d) / math.sqrt(d)).requires_grad_() for _ in range(2)]
    optimizer = optim.SGD([W_Q, W_K], lr=0.3)
    for _ in range(steps):
        shown = mt.rand(n, 16).argsort(1)[:, :8]  # in each of n rows 8 of the 16 symbols, in random order
        q, k = symbols[shown[:, :1]] @ W_Q, symbols[shown] @ W_K  # (n, 1, d): the first is asked; (n, 8, d)
        numbers = mt.randn(n, 8, 1)
        y = nn.functional.scaled_dot_product_attention(q, k, numbers, scale=scale)  # y only: (n, 1, 1)
        loss = (y - numbers[:, :1]).square().mean()
        optimizer.zero_grad()  # forgets the last gradients, for backward() adds to .grad
        loss.backward()
        optimizer.step()  # W -= lr * W.grad
        yield loss.item()


scaled, plain = list(losses(1 / math.sqrt(64), steps)), list(losses(1.0, steps))
history = [{"step": t, "loss, scaled": scaled[t], "loss, plain": plain[t]} for t in range(steps)]
train.plot_history(history, out / "07_with_and_without.svg")
print(f"drawn: {out / '07_with_and_without.svg'}")
scaled, plain = sum(scaled[-20:]) / 20, sum(plain[-20:]) / 20
assert scaled < (0.005 if steps == 300 else 0.05)
assert plain > 10 * scaled
print(f"shown: after {steps} steps an error of {scaled:.4f} with the root, and of {plain:.2f} without it")

# %% [markdown]
# **Try.** 1. Give the model without the root other learning rates. Does one of them help? 2. What would you
# divide by if the entries of $q$ and $k$ had variance $\sigma^2$?
