"""Train the paper's Transformer to read dates in 26 locales and write them as YYYY-MM-DD; look inside it.

    python examples/translate_dates.py                          # about 90 seconds of training on 2 cores
    python examples/translate_dates.py --resume                 # go on after Ctrl-C, or just look again
    python examples/translate_dates.py --resume --text "3 mars 1998"
    mpirun --bind-to none -n 2 python examples/translate_dates.py           # the same, by two processes

"mercredi 4 mars 1998" is read character by character by the encoder; the decoder writes "1998-03-04", each
character in view of the whole source. The dates it is tested on were never shown to it in any language.
"""

import sys
from argparse import Namespace
from pathlib import Path

from job import Job, naming

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import viz
from microtensor.data import BOS, EOS, PAD, DataLoader, DateCorpus, DatePair, PairBatches
from microtensor.optim import Adam
from microtensor.optim.lr_scheduler import LambdaLR, noam
from microtensor.train import Trainer, plot_history
from models import Transformer, TransformerConfig, answers, exact_match, looked_at

ISO_LENGTH, MAX_LENGTH, BATCH = 10, 64, 64  # of YYYY-MM-DD; of a source, with EOS; pairs per step
NORMAL = {"d_model": 128, "n_heads": 8, "d_ff": 256, "n_encoder_layers": 2, "n_decoder_layers": 2}
SMOKE = {"d_model": 32, "n_heads": 2, "d_ff": 64, "n_encoder_layers": 1, "n_decoder_layers": 1}
JOB = Job(__doc__, "runs/dates", {"steps": 1500, "seed": 0}, {"steps": 20})
about = "a date of 1900 to 2099 to read at the end; may be given more than once, the map shows the first"
JOB.parser.add_argument("--text", action="append", default=[], help=about)


def loss_of(model: Transformer, batch: tuple[mt.Tensor, mt.Tensor]) -> tuple[mt.Tensor, int]:
    """Mean cross entropy of each next character, with the paper's label smoothing; and how many there are."""
    src, tgt = batch
    logits = model(src, tgt[:, :-1])  # (B, 11, V): position t predicts character t + 1
    loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1)
    return loss, tgt[:, 1:].numel()  # a date has ten characters and EOS: none is PAD


def make_trainer(options: Namespace, corpus: DateCorpus, test: list[DatePair]) -> Trainer:
    """The paper's model, small. Departures: no dropout, since the training data hardly ever repeats."""
    mt.manual_seed(options.seed)
    sizes = {**(SMOKE if options.smoke else NORMAL), "max_len": MAX_LENGTH, "dropout": 0.0}
    V, ids = corpus.vocab_size, {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
    model = Transformer(TransformerConfig(V, V, **sizes, **ids, shared_vocabulary=True))
    optimizer = Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)  # the paper's §5.3
    # the paper's schedule, brought down to zero: the last fifth of the steps is worth several percent
    rate, steps = noam(model.config.d_model, warmup_steps=200, factor=0.5), options.steps
    batches = PairBatches(corpus, steps, batch_size=BATCH, seed=options.seed)
    return Trainer(
        model, optimizer, DataLoader(batches, collate_fn=lambda samples: samples[0]), max_steps=steps,
        loss_fn=loss_of, scheduler=LambdaLR(optimizer, lambda t: rate(t + 1) * max(0.0, 1.0 - t / steps)),
        evaluate=lambda m: {"exact_match": exact_match(m, corpus, test)},
        eval_every=max(1, steps // 5), checkpoint=options.out, checkpoint_every=max(1, steps // 15),
        config=JOB.kept(options),
    )  # fmt: skip


def look_inside(model: Transformer, corpus: DateCorpus, text: str, out: Path) -> None:
    """Which characters of the source each written one attends to, and the autograd graph of that layer."""
    written, read, attention = looked_at(model, corpus, text, ISO_LENGTH)
    title = f"attention to the source: last decoder layer, mean of {model.config.n_heads} heads"
    maps = viz.attention(attention.cross[-1].mean(1), written, read, title=title)
    print(f"attention to the date: {maps.save(out / 'cross_attention.svg')}")
    width, layer = model.config.d_model, model.decoder.layers[-1].cross_attention
    query, memory = (mt.zeros(1, len(t), width, requires_grad=True) for t in (written, read))
    print(f"graph of that layer:   {viz.draw(layer, query, memory).save(out / 'attention_layer.svg')}")


def work(options: Namespace) -> None:
    corpus = DateCorpus(n_test=1000)
    test = corpus.test_pairs()[: 50 if options.smoke else 1000]
    for text in options.text:
        with naming("--text"):
            if not 0 < (n := len(corpus.encode(text))) < MAX_LENGTH:
                raise ValueError(f"{text!r} has {n} characters; give 1 to {MAX_LENGTH - 1}")
    trainer = make_trainer(options, corpus, test)
    print(f"{len(corpus.patterns)} locales, {corpus.vocab_size} characters, {BATCH} dates a step")
    if not JOB.fit(trainer, options):
        return
    model, curves = trainer.model, options.out / "curves.png"
    print(f"exact match on {len(test)} held-out dates: {100 * exact_match(model, corpus, test):.1f} %")
    shown = [] if options.text else test[:10]
    for pair, found in zip(shown, answers(model, corpus, [p.source for p in shown], ISO_LENGTH), strict=True):
        mark = "right" if found == pair.target else f"WRONG, {pair.target}"
        print(f"  {found:<10}  {mark:<17}  {pair.locale}  {pair.source}")
    plot_history(options.out, curves)
    print(f"checkpoints and log:   {options.out}/\nloss and exact match on these dates: {curves}")
    look_inside(model, corpus, [*options.text, "mercredi 4 mars 1998"][0], options.out)
    days = {day.isoformat() for day in (*corpus.train_days, *corpus.test_days)}
    for text, found in zip(options.text, answers(model, corpus, options.text, ISO_LENGTH), strict=True):
        print(f"{text!r} is read as {found}{'' if found in days else ' (no day of the calendar)'}")


if __name__ == "__main__":
    sys.exit(JOB.run(work, "babel", "matplotlib", "graphviz", "pygraphviz"))
