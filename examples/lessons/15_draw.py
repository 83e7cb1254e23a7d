# %% [markdown]
# # 15. Draw it all, and hold a picture to its word
#
# Before this: lesson 14. After it you can draw any tensor or module at four levels, and read the picture as a
# program: compute what it says, and get the gradients of `backward()`.

# %%
import math
import os
from pathlib import Path

import microtensor as mt
from microtensor import viz
from models import MultiHeadAttention, Transformer, TransformerConfig, causal_mask

mt.manual_seed(0)
out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# Nobody draws these pictures: `viz.draw` reads the tape. `equations` has a node for each line of the paper,
# `heads` one for each line of each head, `ops` one for each op; `tape` shows what forward keeps alive for
# backward and the formula of every gradient. With `grads` the norms of gradients are written on it; $n$ is
# our $T$, $d$ our $C$, $h$ our $H$ (theirs is $AV$), *stats* two numbers of each row of scores.

# %%
T, C, H, D = 4, 16, 2, 8
layer = MultiHeadAttention(C, H)
x, dY = mt.randn(1, T, C), mt.randn(1, T, C)
mask = causal_mask(T) & mt.tensor([False, True, True, True])  # key 0 is padding
for level in ("equations", "heads", "ops", "tape"):
    picture = viz.draw(layer, x, mask=mask, level=level, grads=dY if level == "tape" else False)
    print(f"{level:9}  {picture.boxes} nodes, drawn: {picture.save(out / f'15_{level}.svg')}")
picture  # a notebook shows the last one

# %% [markdown]
# Some things are found without being asked for. A bias of all keys adds $q_t \cdot b_K$ to the whole row $t$,
# which softmax ignores, so its gradient is 0. Token 0 is padding, and its query sees nothing, in both heads.

# %%
print("\n".join(picture.findings))
assert picture.findings[0].startswith("∂L/∂b_K = 0")
assert picture.findings[1] == "H: 2 of 8 rows may attend to nothing"

# %% [markdown]
# Now take the picture at its word, from the top of "forward" down and from the bottom of "backward" up; a
# line here is a line there. $\mathrm{split}_h$ cuts the columns into heads, $\mathrm{merge}_h$ is its
# inverse.


# %%
def split(z):
    return z.reshape(T, H, D).transpose(0, 1)  # (T, C) → (H, T, D)


def merge(z):
    return z.transpose(0, 1).reshape(T, C)


with mt.no_grad():
    X, dY = x[0], dY[0]
    WQ, WK, WV, WO = (projection.weight.T for projection in layer.children())
    bQ, bK, bV, bO = (projection.bias for projection in layer.children())
    Q, K, V = split(X @ WQ + bQ), split(X @ WK + bK), split(X @ WV + bV)
    A = (Q @ K.mT / math.sqrt(D)).masked_fill(~mask, -math.inf).softmax(-1)  # weights(Q, K, M)
    head = A @ V
    dH = split(dY @ WO.T)
    dS = A * (dH @ V.mT - (dH * head).sum(-1, keepdim=True))
    dQ, dK, dV = dS @ K / math.sqrt(D), dS.mT @ Q / math.sqrt(D), A.mT @ dH
    dW = {"q": X.T @ merge(dQ), "k": X.T @ merge(dK), "v": X.T @ merge(dV), "out": merge(head).T @ dY}
    db = {"q": merge(dQ).sum(0), "k": merge(dK).sum(0), "v": merge(dV).sum(0), "out": dY.sum(0)}

# %%
y = layer(x, mask=mask)
kept = sum(z.array.nbytes for z in (Q, K, V, mask, head)) + 2 * H * T * 4  # and two numbers for each row
assert kept == mt.tape(y).bytes_kept
assert f"Σ = {kept / 1000:.1f} kB" in picture.dot
y.backward(dY[None])
for name in dW:
    projection = layer.get_submodule(f"{name}_proj")
    mt.testing.assert_close(dW[name], projection.weight.grad.T, atol=1e-5, rtol=1e-5)
    mt.testing.assert_close(db[name], projection.bias.grad, atol=1e-5, rtol=1e-5)

# %% [markdown]
# A picture of a model is as easy: layers that are alike are drawn once, and `depth` says how far modules
# open. And where a loss is NaN, the first op that made one is red.

# %%
config = TransformerConfig(20, 20, d_model=16, n_heads=2, d_ff=32, dropout=0.0)  # six layers each
model = viz.draw(Transformer(config), mt.arange(3, 8)[None], mt.arange(3, 7)[None], depth=2)
wrong = viz.draw(mt.tensor([1.0, -1.0], requires_grad=True).sqrt().sum())
print(f"a Transformer: {model}, drawn: {model.save(out / '15_model.svg')}; NaN: {wrong.findings[0]}")
assert "EncoderLayer × 6" in model.dot
assert wrong.findings == ["z_1 is the first with NaN"]
print(f"shown: four levels, {len(dW) + len(db)} gradients and {kept} bytes as the picture has them")
model

# %% [markdown]
# **Try.** 1. In float64, which of the bytes that are kept alive double, and which do not? 2. Build the layer
# with `bias=False`, or give it no mask. Which findings are printed?
