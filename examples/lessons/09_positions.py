# %% [markdown]
# # 09. Positions, the hands of many clocks
#
# Before this: lesson 08. After it you know why attention alone cannot tell the order of its tokens, what the
# sinusoids add, and how a head can look "three tokens back" wherever it stands.

# %%
import os
from pathlib import Path

import numpy as np

import microtensor as mt
from microtensor import viz
from models import MultiHeadAttention, scaled_dot_product_attention, sinusoidal_encoding

mt.manual_seed(0)
out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# Shuffle the tokens, $x \mapsto Px$, and the outputs of self-attention $f$ are shuffled likewise:
# $f(Px) = P\,f(x)$. That is called *permutation equivariance*. "Dog bites man" and "man bites dog" give each
# word the same output: its order is lost. Add a vector $PE_p$ that depends on the position $p$ only,
# $\tilde x_p = x_p + PE_p$, and it is there again.

# %%
T, C = 6, 16  # tokens, width
layer, x = MultiHeadAttention(C, 4), mt.randn(1, T, C)
order = mt.tensor([5, 0, 1, 2, 3, 4])  # every token moves
PE = sinusoidal_encoding(T, C)  # (T, C)
with mt.no_grad():
    lost = (layer(x[:, order]) - layer(x)[:, order])[0].norm(dim=-1)  # (T,): how far each output is off
    regained = (layer(x[:, order] + PE) - layer(x + PE)[:, order])[0].norm(dim=-1)
print(f"deviation without positions {lost.max().item():.1e}, with them at least {regained.min().item():.2f}")
assert lost.max() < 1e-5
assert regained.min() > 0.05

# %% [markdown]
# The paper writes a position as the hands of many clocks. Pair $i$ of dimensions is a point on a circle,
# $$PE_{(p,2i)} = \sin(\omega_i p), \qquad PE_{(p,2i+1)} = \cos(\omega_i p),
# \qquad \omega_i = 10000^{-2i/d_{\text{model}}},$$
# that turns by $\omega_i$ with each token. The fast hand tells neighbours apart, the slow one near from far.
# The wavelengths $2\pi/\omega_i$ grow from $2\pi$ by a constant factor towards $10000 \cdot 2\pi$. They never
# quite reach it: the last pair has $2i = d_{\text{model}} - 2$.

# %%
sines, cosines = sinusoidal_encoding(2, 512)[1].numpy().reshape(-1, 2).T  # position 1, 256 pairs
lengths = 2 * np.pi / np.arctan2(sines, cosines)
print(f"wavelengths / 2π: {', '.join(f'{n:.4g}' for n in lengths[[0, 1, 128, 255]] / (2 * np.pi))}")
np.testing.assert_allclose(lengths, 2 * np.pi * 10000 ** (np.arange(0, 512, 2) / 512), rtol=1e-5)

# %% [markdown]
# Now the reason for sine *and* cosine. To go $k$ tokens on is to turn each hand by $\omega_i k$, which is a
# matrix, and the same one at every $p$:
# $$\begin{pmatrix} \sin\omega(p+k) \\ \cos\omega(p+k) \end{pmatrix} =
# \begin{pmatrix} \cos\omega k & \sin\omega k \\ -\sin\omega k & \cos\omega k \end{pmatrix}
# \begin{pmatrix} \sin\omega p \\ \cos\omega p \end{pmatrix}$$


# %%
def rotation(k: int, d_model: int) -> mt.Tensor:
    """R_k with R_k PE(p) = PE(p + k): one such block for each pair. Back is the transpose, R_−k = R_kᵀ."""
    sin, cos = sinusoidal_encoding(abs(k) + 1, d_model)[-1].reshape(-1, 2).T
    even = mt.arange(0, d_model, 2)
    R = mt.zeros(d_model, d_model)
    R[even, even], R[even, even + 1] = cos, sin
    R[even + 1, even], R[even + 1, even + 1] = -sin, cos
    return R if k >= 0 else R.T


T, C = 24, 64
PE = sinusoidal_encoding(T, C)
mt.testing.assert_close(PE[:-7] @ rotation(7, C).T, PE[7:], atol=1e-5, rtol=0.0)  # rows are positions
mt.testing.assert_close(rotation(3, C) @ rotation(4, C), rotation(7, C), atol=1e-5, rtol=0.0)
mt.testing.assert_close(rotation(7, C) @ rotation(-7, C), mt.eye(C), atol=1e-5, rtol=0.0)

# %% [markdown]
# A projection $W^Q$ is a matrix, so a head can learn this one. Take $Q = PE\,R_{-k}^\top$ and $K = PE$. The
# score of query $p$ and key $s$ is $PE(p-k) \cdot PE(s) = \sum_i \cos\omega_i(p - k - s)$, greatest where
# $s = p - k$. (Times 20, so that the softmax decides.) Three such heads:

# %%
back = [0, 1, 5]
Q = mt.stack([20 * PE @ rotation(-k, C).T for k in back])  # (H, T, C)
_, A = scaled_dot_product_attention(Q, PE, PE)  # (H, T, T)
for k, looks_at in zip(back, A.argmax(-1).tolist(), strict=True):
    asks = range(max(k, 0), T + min(k, 0))  # who has a token there
    print(f"{k} back: tokens {asks[0]} … {asks[-1]} look at {looks_at[asks[0]]} … {looks_at[asks[-1]]}")
    assert [looks_at[p] for p in asks] == [p - k for p in asks]
picture = viz.attention(A, title=f"made of positions alone: {', '.join(map(str, back))} back")
print(f"drawn: {picture.save(out / '09_positions.svg')}")
print("shown: order lost and regained, clocks from 2π to 9647 · 2π, and relative offsets as rotations")
picture  # a notebook shows it

# %% [markdown]
# **Try.** 1. A head with `back = [-1]` looks one *ahead*: what does it look at at the last token, and what
# would the causal mask of a decoder leave it? 2. With $d_{\text{model}} = 2$ there is one clock only, of
# wavelength $2\pi$. Which position below 100 does it take for position 0, and why 44 of all numbers?
