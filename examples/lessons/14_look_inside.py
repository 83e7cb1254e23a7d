# %% [markdown]
# # 14. Look inside: which head does what
#
# Before this: lesson 13. After it you can find the head that does a job in a trained model: by what it looks
# at, and by what goes wrong without it.

# %%
import os
import sys
from pathlib import Path

import microtensor as mt
from microtensor import nn, optim, viz
from models import MultiHeadAttention

out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)
smoke = os.environ.get("LESSON_SMOKE") == "1" or "--smoke" in sys.argv
mt.manual_seed(0)
V, T, C, H, half, steps = 32, 32, 64, 4, 16, 20 if smoke else 600

# %% [markdown]
# Random tokens are said, and then said again: $x_t = x_{t-n}$, where $n$ is another one in each text. No more
# is known. Attention alone, $x \leftarrow x + \mathrm{MultiHead}(\mathrm{LayerNorm}(x))$, twice, learns it.


# %%
class AttentionOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, C), nn.Embedding(T, C)
        self.layers = nn.ModuleList(MultiHeadAttention(C, H) for _ in range(2))
        self.norms, self.output = nn.ModuleList(nn.LayerNorm(C) for _ in range(3)), nn.Linear(C, V)

    def forward(self, ids):
        """(B, T) → logits (B, T, V), and each layer's weights (B, H, T, T)."""
        x, weights = self.tokens(ids) + self.positions(mt.arange(ids.shape[1])), []
        for norm, layer in zip(self.norms, self.layers, strict=False):
            y, A = layer(norm(x), is_causal=True, need_weights=True)
            x, weights = x + y, [*weights, A]
        return self.output(self.norms[2](x)), weights


def repeated(periods):
    """(B,) periods → ids (B, T); within a period all differ."""
    return mt.rand(len(periods), V).argsort(1).gather(1, mt.arange(T) % periods[:, None])


def losses(ids):
    """(B, T − 1): of each token but the first."""
    return nn.functional.cross_entropy(model(ids[:, :-1])[0].transpose(1, 2), ids[:, 1:], reduction="none")


# %%
model, test = AttentionOnly(), repeated(mt.full((100,), half))
optimizer = optim.Adam(model.parameters(), betas=(0.9, 0.98))
for step in range(steps):
    optimizer.param_groups[0]["lr"] = 4e-3 * min((step + 1) / 50, 1 - step / steps)
    loss = losses(repeated(mt.randint(4, half + 1, (64,)))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% [markdown]
# How can it know? If the present token stood at $s$ before, then $s + 1$ holds what comes. A head that looks
# to $s + 1 = t - n + 1$ is an *induction head*. It finds the place because a head of layer 1 told each token
# which one stands before it. So we look for both kinds, by their mean weight at the right key.

# %%
with mt.no_grad():
    _, weights = model(test)  # two of (B, H, T, T)
first, again = mt.arange(1, half), mt.arange(half, T - 1)
previous = weights[0][:, :, first, first - 1].mean((0, 2)).numpy()
induction = weights[1][:, :, again, again - half + 1].mean((0, 2)).numpy()
print(f"previous token, layer 1: {previous.round(2)}; induction, layer 2: {induction.round(2)}")
picture = viz.attention([A[:1] for A in weights], list(map(str, test[0].tolist())), title="said twice")
print(f"drawn: {picture.save(out / '14_attention.svg')}")
picture  # a notebook shows it

# %% [markdown]
# A map shows where a head looks, not whether it matters. So take each away, alone: its part of $W^O$ is 0.

# %%
found, W_O = [], model.layers[0].out_proj.weight  # the loss where everything has been said before
for head in (*range(H), H):  # the last: all are there
    with mt.no_grad():
        whole = W_O.clone()
        W_O[:, head * C // H : (head + 1) * C // H] = 0
        found.append(losses(test)[:, half:].mean().item())
        W_O.copy_(whole)
*without, loss = [round(n, 4) for n in found]
print(f"loss {loss}; without head 0, 1, 2 or 3 of layer 1: {without}")
assert all((A.triu(1) == 0).all() and mt.allclose(A.sum(-1), mt.ones(()), atol=1e-5) for A in weights)
assert smoke or (previous.max() > 0.5 and induction.max() > 0.8 and loss < 0.1)
assert smoke or without[previous.argmax()] > 3 * sorted(without)[-2]  # the best; the worst of the others
print("shown: heads found by where they look, and what each is worth by taking it away")

# %% [markdown]
# **Try.** 1. Take induction heads away, one, then all. What does the model lose, and why not with the first?
# 2. Train layer 2 alone. What is the best that one layer can know of a text that is said again?
