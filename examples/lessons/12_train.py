# %% [markdown]
# # 12. Train the whole Transformer
#
# Before this: lesson 11. After it you have trained the encoder–decoder of the paper, from random numbers to
# answers that are right, and you know what each part of a training run is for.

# %%
import os
import sys
from pathlib import Path

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import optim, train, viz
from microtensor.data import BOS, EOS, PAD, DataLoader, PairBatches, StringTask
from models import Transformer, TransformerConfig, exact_match, looked_at

mt.manual_seed(0)
out = Path(os.environ.get("LESSON_OUT", "lessons_out"))
out.mkdir(parents=True, exist_ok=True)
smoke = os.environ.get("LESSON_SMOKE") == "1" or "--smoke" in sys.argv
steps, n_test = (40, 50) if smoke else (800, 500)

# %% [markdown]
# The task: read 4 to 12 digits and write them backwards. Test pairs are drawn before anything else and never
# trained on, so what is right there was not learned by heart. A text is a row of ids, $d + 3$ for
# the digit $d$: 1 is BOS, which begins a target, 2 is EOS, the end, and 0 is PAD, which fills up a batch.

# %%
task = StringTask("reverse", n_test=n_test)
batches = PairBatches(task, steps, batch_size=64)
src, tgt = batches[0]
pair = batches.pairs(0)[0]
print(f"{pair.source} → {pair.target} is {src[0].tolist()} → {tgt[0].tolist()}")

# %% [markdown]
# The model gives $p(y_t \mid y_{<t}, x)$. In training all positions are asked at once: the decoder reads the
# target *shifted by one*, BOS $y_1 \dots y_n$, and shall say $y_1 \dots y_n$ EOS; the causal mask keeps $y_t$
# out of its own question. The loss is the mean of
# $$-\ln p(y_t \mid y_{<t}, x)$$
# over all tokens that are not padding. A model that knows nothing pays about $\ln V = 2.56$ for each, as a
# text here is made of $V = 13$ different ids: ten digits, PAD, BOS and EOS.

# %%
config = TransformerConfig(
    task.vocab_size, task.vocab_size, d_model=64, n_heads=4, n_encoder_layers=2, n_decoder_layers=2, d_ff=128,
    dropout=0.0, max_len=32, shared_vocabulary=True, pad_id=PAD, bos_id=BOS, eos_id=EOS,
)  # fmt: skip
model = Transformer(config)


def loss_of(model, batch):
    """The loss of a batch, and over how many tokens it is a mean."""
    src, tgt = batch  # (B, S), (B, T)
    logits = model(src, tgt[:, :-1])  # (B, T − 1, V)
    loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD)
    return loss, int((tgt[:, 1:] != PAD).sum())


# %% [markdown]
# Each step: forward, loss, `backward()`, and Adam moves each weight against its gradients, averaged and
# scaled. The learning rate rises at first (lesson 10 says why) and then falls to 0 in a straight line.

# %%
optimizer = optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
trainer = train.Trainer(
    model, optimizer, DataLoader(batches, collate_fn=lambda samples: samples[0]), loss_fn=loss_of,
    scheduler=optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / 100, 1 - t / steps)),
    evaluate=lambda m: {"exact match": exact_match(m, task, task.test_pairs())},
    max_steps=steps, eval_every=steps // 8, progress=False,
)  # fmt: skip
history = trainer.fit()
for record in history:
    if "exact match" in record:
        print("step {step:4}  loss {loss:.4f}  exact match {exact match:.3f}".format(**record))
train.plot_history(history, out / "12_train.svg")
print(f"drawn: {out / '12_train.svg'}")

# %% [markdown]
# Where does it look when it writes? Its attention to the source, each character written against those read:

# %%
question = "8675309"
written, read, attention = looked_at(model, task, question, 24)  # 24 characters at most
picture = viz.attention(attention.cross, written, read, title=f"attention to the source {question}")
print(f"{question} backwards: {''.join(written[:-1])}")
print(f"drawn: {picture.save(out / '12_attention.svg')}")
first, last = history[0]["loss"], history[-1]["loss"]
assert last < first
assert smoke or history[-1]["exact match"] >= 0.97
print(f"shown: loss {first:.2f} → {last:.4f}, {history[-1]['exact match']:.1%} of {n_test} new texts right")
picture  # a notebook shows it

# %% [markdown]
# **Try.** 1. Forget the shift: give the decoder `tgt[:, 1:]` in `loss_of`. The loss soon falls to nearly 0;
# why is every answer wrong, as the last assertion says, and mostly empty? 2. Let `question` have 20 digits.
# Which sums of embedding and position has no layer ever seen?
