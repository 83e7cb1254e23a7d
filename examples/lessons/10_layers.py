# %% [markdown]
# # 10. Layers, and why learning warms up
#
# Before this: lesson 09. After it you know what wraps attention and the feed-forward network in a layer, and
# why the paper's order of residual and LayerNorm needs a learning rate that starts small.

# %%
import os
import sys
from pathlib import Path

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import nn, optim, train
from models import DecoderLayer, Encoder, EncoderLayer, causal_mask

mt.manual_seed(0)
out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)
smoke = os.environ.get("LESSON_SMOKE") == "1" or "--smoke" in sys.argv

# %% [markdown]
# Each sub-layer $f$ *adds* to what came in (the residual), and LayerNorm gives each token's vector mean 0 and
# variance 1 again (times a weight, plus a bias, which are learned: 1 and 0 at first). An encoder layer has
# two, a decoder layer one more, which looks into the encoder's output:
# $$z = \mathrm{LayerNorm}(x + \mathrm{MultiHead}(x)), \qquad
# \mathrm{out} = \mathrm{LayerNorm}(z + \mathrm{FFN}(z)).$$

# %%
C, H, T = 32, 4, 8
encoder, decoder = EncoderLayer(C, H, 2 * C, dropout=0.0), DecoderLayer(C, H, 2 * C, dropout=0.0)
x, y = mt.randn(2, T, C), mt.randn(2, T, C)
norm1, norm2 = encoder.sublayer1.norm, encoder.sublayer2.norm
z = norm1(x + encoder.self_attention(x))
memory = norm2(z + encoder.feed_forward(z))
mt.testing.assert_close(encoder(x), memory)
mt.testing.assert_close(memory.mean(-1), mt.zeros(2, T), atol=1e-6, rtol=0.0)
mt.testing.assert_close(memory.var(-1, correction=0), mt.ones(2, T), atol=1e-4, rtol=0.0)
norm1, norm2, norm3 = (layer.norm for layer in (decoder.sublayer1, decoder.sublayer2, decoder.sublayer3))
z = norm1(y + decoder.self_attention(y, mask=causal_mask(T)))
z = norm2(z + decoder.cross_attention(z, memory))  # Q from the decoder, K and V from the encoder's output
mt.testing.assert_close(decoder(y, memory, causal_mask(T)), norm3(z + decoder.feed_forward(z)))

# %% [markdown]
# That is *post*-LN, the paper's. Every LayerNorm stands on the one way back to the early layers. *Pre*-LN,
# $x + f(\mathrm{LayerNorm}(x))$, leaves the sum alone: a way straight through, on which gradients arrive as
# they are. We measure both in ten layers, at the first step and as they learn. The task could not be easier:
# say each token again.

# %%
V, depth, steps = 16, 10, 12 if smoke else 150


def learn(norm, warm_up):
    """Ten layers trained from the same seed: the gradient in each at the first step, and all losses."""
    mt.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(V, C), Encoder(depth, C, H, 2 * C, dropout=0.0, norm=norm), nn.Linear(C, V)
    )
    optimizer, losses, gradients = optim.Adam(model.parameters(), betas=(0.9, 0.98)), [], []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min((step + 1) / warm_up, 1)
        ids = mt.randint(0, V, (16, T))
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        weights = [layer.feed_forward.linear2.weight for layer in model[1].layers]
        gradients = gradients or [weight.grad.norm().item() for weight in weights]
        optimizer.step()
        losses.append(loss.item())
    return gradients, losses


runs = {"post, no warm-up": ("post", 1), "post, warm-up": ("post", 100), "pre, no warm-up": ("pre", 1)}
found = {name: learn(*how) for name, how in runs.items()}
for name, (g, losses) in found.items():
    print(f"{name:16}  loss {losses[0]:.2f} → {losses[-1]:.3f}  first step, layers 1, 5, 10: ", end="")
    print(f"gradients {g[0]:.2f}, {g[4]:.2f}, {g[9]:.2f}")
    assert g[0] > g[9] if name.startswith("pre") else g[0] < g[9]

# %% [markdown]
# Post-LN gives the last layer a larger gradient than the first, pre-LN a smaller one. Post-LN that starts at
# the full rate is thrown off and stays long near $\ln 16 = 2.77$, the loss of one who knows nothing; when the
# rate rises over 100 steps, it learns. Pre-LN learns at once.

# %%
curves = {f"loss: {name}": losses for name, (_, losses) in found.items()}
history = [{"step": t + 1} | {name: losses[t] for name, losses in curves.items()} for t in range(steps)]
train.plot_history(history, out / "10_layers.svg")
print(f"drawn: {out / '10_layers.svg'}")
thrown, warm, pre = (losses[-1] for losses in curves.values())
assert pre < min(thrown, warm)
assert smoke or (thrown > 3 * warm and warm < 0.1 and pre < 0.1)
print("shown: layers are the lecture's equations; ten in post-LN order are lost without warm-up for long")

# %% [markdown]
# **Try.** 1. Take the two `x +` out of `models/transformer.py`. What do ten layers without a residual learn?
# (Leave out what is asserted, here and there: it holds with them.)
# 2. Adam divides each gradient by its running size. Why, then, do unequal gradients of layers matter all the
# same?
