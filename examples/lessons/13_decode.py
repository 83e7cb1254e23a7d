# %% [markdown]
# # 13. Decode: greedy, a beam, a cache
#
# Before this: lesson 12. After it you know why the likeliest next word can lead away from the likeliest text,
# what a beam does about that, and how much work a key/value cache saves.

# %%
import itertools
import math
import os
import sys
from pathlib import Path

import microtensor as mt
from microtensor import nn, viz
from models import GPT, GPTConfig, beam_search, generate, greedy_decode

out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)
mt.manual_seed(0)
smoke = os.environ.get("LESSON_SMOKE") == "1" or "--smoke" in sys.argv

# %% [markdown]
# A language model gives $p(y_t \mid y_{<t})$, and a text has the probability
# $P(y) = \prod_t p(y_t \mid y_{<t})$. There are $V^T$ texts, too many to try them all. So that we can, we
# take a very small model: the next word depends on the last one only, by a table to be read.

# %%
words = ["<s>", "a", "the", "dog", "cat", "bird", "</s>"]
table = mt.tensor([
    #<s>  a    the  dog   cat   bird  </s>
    [0.0, 0.6, 0.4, 0.00, 0.00, 0.00, 0.0],  # after <s>
    [0.0, 0.0, 0.0, 0.36, 0.33, 0.31, 0.0],  # after "a"
    [0.0, 0.0, 0.0, 0.05, 0.90, 0.05, 0.0],  # after "the"
    *[[0.0, 0.0, 0.0, 0.00, 0.00, 0.00, 1.0]] * 4,
], dtype=mt.float64)  # fmt: skip


class Bigram(nn.Module):
    """p(next | last), by the table; called as a GPT is."""

    config = GPTConfig(block_size=8, vocab_size=len(words))

    def forward(self, ids: mt.Tensor) -> tuple[mt.Tensor, None]:
        """(B, T) → logits (B, T, V)"""
        return table[ids].log(), None


# %% [markdown]
# *Greedy* takes the likeliest word, each time. A *beam* of $k$ keeps the $k$ likeliest texts so far, lets
# each go on by every word, and keeps the $k$ best again. It, too, may miss the best text; here we try all and
# see. The picture has the $k$ likeliest ways on of each text, so "a bird" is not in it: no more than $k$ of
# one text can be among the $k$ best.

# %%
model, start, options = Bigram(), mt.tensor([[0]]), {"eos_id": 6, "use_cache": False}
greedy = greedy_decode(model, start, 3, **options)[0].tolist()
tree = []
best = beam_search(model, start, 2, 0.0, 3, n_best=2, tree=tree, **options)
p = {text: math.prod(table[i, j].item() for i, j in itertools.pairwise((0, *text)))
     for text in itertools.product(range(7), repeat=3)}  # fmt: skip
for name, ids in (("greedy", greedy), ("beam", best.ids[0, 0].tolist()), ("best", [0, *max(p, key=p.get)])):
    print(f"{name:6}  P = {p[tuple(ids[1:])]:.3f}  {' '.join(words[i] for i in ids)}")
assert [words[i] for i in greedy] == ["<s>", "a", "dog", "</s>"]
assert [words[i] for i in best.ids[0, 0].tolist()] == ["<s>", "the", "cat", "</s>"]
assert math.isclose(best.log_probs[0, 0].exp().item(), max(p.values()))
picture = viz.beam_tree(tree, words, prompt=[0])
print(f"drawn: {picture.save(out / '13_beam.svg')}: of each text the two likeliest ways on")
picture  # a notebook shows it

# %% [markdown]
# To write a word, the model reads all words before it. Causal attention makes most of that needless: position
# $s$ sees nothing after it, so its keys and values stay what they are when the text grows. A cache keeps
# them, and each step reads the new token only. For a prompt of $m$ and $n$ new tokens that is $m + n - 1$
# positions in all, and without a cache $m + (m + 1) + \dots + (m + n - 1)$.

# %%
m, n = 8, 24 if smoke else 120
gpt = GPT(GPTConfig(block_size=m + n, vocab_size=65, n_layer=2, n_head=4, n_embd=64))
read = []
gpt.transformer.wte.register_forward_hook(lambda module, inputs, y: read.append(inputs[0].shape[1]))
texts, positions, flop = {}, {}, {}
for cache in (True, False):
    read.clear()
    with mt.profile() as watched:
        generator = mt.Generator().manual_seed(1)
        texts[cache] = generate(gpt, mt.arange(m)[None], n, generator=generator, use_cache=cache).tolist()
    positions[cache], flop[cache] = sum(read), sum(row.flop for row in watched.rows())
    print(f"cache {cache!s:5}  positions read {positions[cache]:5}  MFLOP {flop[cache] / 1e6:7.1f}")
assert texts[True] == texts[False]  # the cache changes nothing but the work
assert positions == {True: m + n - 1, False: n * m + n * (n - 1) // 2}
assert flop[False] > 0.4 * n * flop[True]
saved = 1 - flop[True] / flop[False]
print(f"shown: greedy misses the best text, a beam of 2 finds it; a cache saves {saved:.1%} of the FLOP")

# %% [markdown]
# **Try.** 1. For which values of $p(\text{the} \mid \text{<s>})$ does greedy find the best text, too? There
# are two ranges. (Other tables break assertions.) 2. The encoder reads its text without a causal mask. Could
# a cache spare it work in this way?
