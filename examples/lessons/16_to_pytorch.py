# %% [markdown]
# # 16. From here to PyTorch
#
# Before this: lesson 15. After it you know that what you learned is true there: the same program, the same
# weights, the same numbers; and what has another form.

# %%
import numpy as np

import microtensor as mt
from models import EncoderLayer

try:
    import torch
except ModuleNotFoundError:
    torch = None

# %% [markdown]
# The names here are PyTorch's. So this is one program for both: `lib` is either.


# %%
def program(lib):
    """The loss of each step, as a sine is fitted."""
    x = lib.linspace(-2, 2, 50, dtype=lib.float64)[:, None]
    W1 = lib.linspace(-1, 1, 16, dtype=lib.float64)[None].requires_grad_()
    W2 = lib.linspace(0, 1, 16, dtype=lib.float64)[:, None].requires_grad_()
    optimizer, losses = lib.optim.AdamW([W1, W2], lr=0.05), []
    for _ in range(5):
        loss = lib.nn.functional.mse_loss(lib.tanh(x @ W1) @ W2, x.sin())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


saved = [3.002291055290623, 1.162631254040003, 0.200828430968797, 0.025143482957623, 0.334571440071449]
losses = program(mt)
np.testing.assert_allclose(losses, saved if torch is None else program(torch), rtol=1e-12)

# %% [markdown]
# Now a whole encoder layer. Three things have another form there: $W^Q, W^K, W^V$ are one matrix of
# $3d_{\text{model}}$ rows; parts have other names; and a padding mask is True where a key is *hidden*. Here
# True means "may attend", everywhere.

# %%
C, H, F, B, T = 8, 2, 16, 2, 5
layer = EncoderLayer(C, H, F, dropout=0.0).double()
sizes = [*(p.numel() for p in layer.parameters()), B * T * C, B * T * C]
wave = mt.arange(sum(sizes), dtype=mt.float64).square().sin()  # no pattern, and the same everywhere
*parts, x, g = wave.split(sizes)
for p, part in zip(layer.parameters(), parts, strict=True):
    p.data = part.reshape(p.shape).clone()
x, g = x.reshape(B, T, C), g.reshape(B, T, C)
keep = mt.arange(T) < mt.tensor([[5], [3]])  # (B, S): the second text has 3 tokens
y = layer(x, mask=keep[:, None, None])
y.backward(g)


def by_their_names(ours):
    """Arrays by name, as PyTorch has them."""
    names = {"self_attn.out_proj": "self_attention.out_proj"}
    for i in (1, 2):
        names |= {f"linear{i}": f"feed_forward.linear{i}", f"norm{i}": f"sublayer{i}.norm"}
    theirs = {}
    for kind in ("weight", "bias"):
        parts = [ours[f"self_attention.{c}_proj.{kind}"] for c in "qkv"]
        theirs[f"self_attn.in_proj_{kind}"] = np.concatenate(parts)
        theirs |= {f"{name}.{kind}": ours[f"{own}.{kind}"] for name, own in names.items()}
    return theirs


weights = by_their_names({name: p.detach().numpy() for name, p in layer.named_parameters()})
gradients = by_their_names({name: p.grad.numpy() for name, p in layer.named_parameters()})

# %% [markdown]
# The lengths of the output and of twelve gradients, as PyTorch 2.13 found them, are kept here. Where it is
# installed, it is asked itself, and every single number has to be the same to $10^{-12}$.

# %%
saved = [11.6222609134, 5.1309943524, 4.9747040327, 4.9987972036, 6.0567621192, 7.8278384096, 7.6578352026,
         3.8511937158, 1.9293493525, 1.9349269400, 4.4234270839, 1.0292461149, 6.9526337564]  # fmt: skip
lengths = [np.linalg.norm(array) for array in (y.detach().numpy(), *gradients.values())]
np.testing.assert_allclose(lengths, saved, rtol=1e-9)
if torch is not None:
    theirs = torch.nn.TransformerEncoderLayer(C, H, F, dropout=0.0, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    output = theirs(torch.tensor(x.numpy()), src_key_padding_mask=~torch.tensor(keep.numpy()))
    output.backward(torch.tensor(g.numpy()))
    np.testing.assert_allclose(output.detach().numpy(), y.detach().numpy(), rtol=0, atol=1e-12)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(theirs.get_parameter(name).grad.numpy(), gradient, rtol=0, atol=1e-12)
source = "saved from PyTorch, which is not installed" if torch is None else f"in PyTorch {torch.__version__}"
print(f"shown: losses to {losses[-1]:.12f}, an output and {len(gradients)} gradients as {source}")

# %% [markdown]
# **Try.** 1. PyTorch has both meanings: what is True in a boolean mask of its MultiheadAttention, and what in
# one of its `scaled_dot_product_attention`? 2. Take a small program of yours, change its import lines only,
# and run it here. Which name is the first that is missing?
