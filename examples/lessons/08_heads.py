# %% [markdown]
# # 08. Heads: many small attentions are one batched
#
# Before this: lesson 07. After it you can read the reshape and transpose of every Transformer, and know why
# eight heads cost little more than one.

# %%
import os
from pathlib import Path

import microtensor as mt
from microtensor import viz
from models import MultiHeadAttention, causal_mask, scaled_dot_product_attention

out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)
mt.manual_seed(0)
mt.set_default_dtype(mt.float64)
B, T, C, h, d_k = 2, 6, 32, 4, 8  # batch, tokens, d_model, heads, C / h

# %% [markdown]
# One attention gives each token one mixture of the others. To look at two things takes two: $h$ **heads**
# with matrices of their own, narrow ones, $d_{\text{model}} \times d_k$ with $d_k = d_{\text{model}}/h$. What
# they give stands side by side and is mixed by $W^O$:
# $$\text{head}_i = \mathrm{Attention}(XW_i^Q, XW_i^K, XW_i^V), \qquad
# \mathrm{MultiHead}(X) = \mathrm{Concat}(\text{head}_1, \dots, \text{head}_h)\, W^O.$$


# %%
X = mt.randn(B, T, C)
W_Q, W_K, W_V = (mt.randn(h, C, d_k) / C**0.5 for _ in range(3))  # W_Q[i] is head i's
W_O = mt.randn(C, C) / C**0.5
weights = [W.requires_grad_() for W in (W_Q, W_K, W_V, W_O)]


def one_by_one(X, mask=None):
    heads = [scaled_dot_product_attention(X @ W_Q[i], X @ W_K[i], X @ W_V[i], mask)[0] for i in range(h)]
    return mt.cat(heads, dim=-1) @ W_O  # heads are (B, T, d_k)


# %% [markdown]
# Now put the matrices side by side. A product works column by column, so
# $$X\,[W_1^Q \,|\, \cdots \,|\, W_h^Q] = [XW_1^Q \,|\, \cdots \,|\, XW_h^Q]:$$
# one product holds all the small ones. In its rows $d_k$ numbers belong to each head: `reshape` to
# $(B, T, h, d_k)$ says just that and moves nothing. `transpose` brings the heads in front, next to the batch,
# as attention works on the last two axes. Then all the way back.


# %%
def at_once(X, mask=None, split=lambda Y: Y.reshape(B, T, h, d_k).transpose(1, 2)):  # → (B, h, T, d_k)
    side_by_side = [W.transpose(0, 1).reshape(C, C) for W in (W_Q, W_K, W_V)]  # (C, h, d_k) → (C, C)
    heads = scaled_dot_product_attention(*[split(X @ W) for W in side_by_side], mask)[0]
    return heads.transpose(1, 2).reshape(B, T, C) @ W_O


g, gradients, flop = mt.randn(B, T, C), {}, {}
for f in (one_by_one, at_once):
    y = f(X)
    print(f"{f.__name__:10} {str(mt.tape(y)).splitlines()[-1]}")
    gradients[f] = mt.autograd.grad(y, weights, g)
mt.testing.assert_close(at_once(X), one_by_one(X))
mt.testing.assert_close(gradients[at_once], gradients[one_by_one])

# %% [markdown]
# `MultiHeadAttention` is this, with biases; it keeps the matrices side by side (`at_once` makes a copy, and
# keeps that for backward), and `heads()` cuts them up. There are $4\,d_{\text{model}}^2$ weights however many
# heads, and the products take as many multiplications: $h$ heads are $h$ times narrower. Only the softmax has
# more to do. (In the picture $n$ is our $T$, $d$ our $C$, and $C$ is what Concat gives.)

# %%
for n in (1, 4, 8):
    layer = MultiHeadAttention(C, n, bias=False)
    assert sum(p.numel() for p in layer.parameters()) == 4 * C * C
    flop[n] = mt.tape(layer(X)).flop
    mt.testing.assert_close(layer(X), layer.forward_per_head(X))
    assert next(layer.heads())[0].shape == (C, C // n)
assert flop[1] < flop[8] < 1.05 * flop[1]
picture = viz.draw(MultiHeadAttention(C, 2), X, level="heads")
print(f"drawn: {picture.save(out / '08_heads.svg')}")
picture  # a notebook shows it

# %% [markdown]
# The classic mistake is to `reshape` to $(B, h, T, d_k)$ at once. Every shape fits, but a "head" now holds
# pieces of different *tokens*. The causal mask shows it: the first output must not depend on later tokens.


# %%
def wrong(X, mask=None):
    return at_once(X, mask, split=lambda Y: Y.reshape(B, h, T, d_k))


other, mask = X * (mt.arange(T) < 1)[:, None], causal_mask(T)  # other tokens from the second on
change = {f: (f(other, mask) - f(X, mask))[:, 0].abs().max().item() for f in (at_once, wrong)}
print(f"the first output changes by {change[at_once]} (right), {change[wrong]:.2f} (wrong)")
assert change[at_once] == 0.0 < 0.1 < change[wrong]
print(f"shown: heads one by one and all at once agree; 8 take {flop[8] / flop[1]:.2f} times the FLOP of one")

# %% [markdown]
# **Try.** 1. Cut $W^O$ into $h$ blocks of $d_k$ rows. How do the heads enter the result then? 2. Why must
# $d_{\text{model}}$ be divisible by $h$ here, and not in the formula?
