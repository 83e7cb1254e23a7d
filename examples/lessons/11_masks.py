# %% [markdown]
# # 11. Masks, and a leak that no map shows
#
# Before this: lesson 10. After it you can say who may attend to whom, read a mask as text and as a picture,
# and you have a proof that finds a leak which no picture of the weights shows.

# %%
import math
import os
from pathlib import Path

import microtensor as mt
from microtensor import nn, viz
from microtensor.testing import check_causal
from models import MultiHeadAttention, causal_mask, combine_masks, explain_mask, padding_mask

mt.manual_seed(0)
out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# A mask $M$ has a row for each query $t$ and a column for each key $s$: $M_{ts}$ is True where $t$ may attend
# to $s$. Before the softmax, a score that may not be becomes $-\infty$, and $e^{-\infty} = 0$:
# $$A = \mathrm{softmax}(Z), \qquad Z_{ts} = \begin{cases} q_t \cdot k_s / \sqrt{d_k} & M_{ts} \\
# -\infty & \text{otherwise.} \end{cases}$$
# The *causal* mask, $s \le t$, keeps a decoder from reading the word that it is to predict. The *padding*
# mask keeps everybody from what only fills up a batch. Who may attend by both:

# %%
tokens = ["<pad>", "the", "cat", "sleeps", "<pad>"]
ids = mt.tensor([[0, 7, 8, 9, 0]])
mask = combine_masks(causal_mask(5), padding_mask(ids, pad_id=0))  # (1, 1, T, S)
print(explain_mask(mask, tokens))

# %% [markdown]
# The first row is empty: a text that is padded on the left has such queries. A softmax of nothing but
# $-\infty$ would be $0/0$. Here that row's weights are 0, its output is the bias of $W^O$ alone, and no
# gradient goes from it to any token.

# %%
layer = MultiHeadAttention(16, 2)
x = mt.randn(1, 5, 16, requires_grad=True)
y, A = layer(x, mask=mask, need_weights=True)  # (B, T, C) and (B, H, T, S)
assert (A.masked_select(~mask.expand(1, 2, 5, 5)) == 0).all()
mt.testing.assert_close(A.sum(-1)[0, 0], mt.tensor([0.0, 1, 1, 1, 1]), atol=1e-6, rtol=0.0)
mt.testing.assert_close(y[0, 0], layer.out_proj.bias)
y[0, 0].sum().backward()
assert (x.grad == 0).all()
picture = viz.attention(A, tokens, title="causal and padding mask")
print(f"drawn: {picture.save(out / '11_masks.svg')}")
picture  # a notebook shows it

# %% [markdown]
# Now a bug that nearly everybody writes once: softmax first, then the mask. Its weights are 0 ahead, too.


# %%
class Late(nn.Module):
    """One head that masks after its softmax."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x: mt.Tensor) -> tuple[mt.Tensor, mt.Tensor]:
        """(B, T, C) → (B, T, C) and weights (B, T, T)"""
        S = self.q(x) @ self.k(x).mT / math.sqrt(x.shape[-1])
        A = S.softmax(-1) * causal_mask(x.shape[1])
        return A @ x, A


late = Late(16)
_, A = late(x)
print(f"weights ahead: {A.triu(1).abs().max().item()}; sums of rows: {A.sum(-1)[0].tolist()}")
assert (A.triu(1) == 0).all()

# %% [markdown]
# The numbers to look at are the sums. Each weight was divided by $\sum_s e^{S_{ts}}$, and that sum runs over
# *future* keys as well: output $t$ depends on them through its denominator. Training can use what it tells;
# when the model writes, the future is not there, and all sums are others. `check_causal` needs no suspicion.
# It asks the tape whether $\partial y_t / \partial x_s = 0$ for every $s > t$; and it changes later inputs,
# and compares.

# %%
check_causal(lambda x: layer(x, mask=causal_mask(5)), x)  # no error: proved for this input
said = ""
try:
    check_causal(late, x)
except AssertionError as error:
    said = str(error)
print(said)
assert "output y[:, 0] depends on input x[0, " in said
assert "mask what lies ahead, before the softmax" in said
print("shown: a mask as text and as a picture, a row that sees nothing, and a leak through a denominator")

# %% [markdown]
# **Try.** 1. Divide the weights of `Late` by their new sums. On paper that is causal,
# $e^{S_{ts}} / \sum_{r \le t} e^{S_{tr}}$. Without the last two assertions, what does `check_causal` find in
# `x`, and what with token 1 times 10? Why? 2. `norm = nn.LayerNorm(5)`, and `norm(x.mT).mT` normalises over
# time. Is that causal?
