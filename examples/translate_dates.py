"""Train the paper's Transformer to read dates in 26 locales and write them as YYYY-MM-DD; look inside it.

    python examples/translate_dates.py                          # about a minute of training on 2 cores
    python examples/translate_dates.py --resume                 # go on after Ctrl-C, or just look again
    python examples/translate_dates.py --resume --text "3 mars 1998"
    mpirun --bind-to none -n 2 python examples/translate_dates.py           # the same, by two processes

"mercredi 4 mars 1998" is read character by character by the encoder; the decoder writes "1998-03-04", each
character in view of the whole source. The dates it is tested on were never shown to it in any language.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from job import Job

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import viz
from microtensor.data import BOS, EOS, PAD, DataLoader, DateCorpus, PairBatches, normalize
from microtensor.optim import Adam
from microtensor.optim.lr_scheduler import LambdaLR, noam
from microtensor.train import Trainer, plot_history
from models import Transformer, TransformerConfig, greedy_decode

ISO_LENGTH = 10  # characters of YYYY-MM-DD
MAX_LENGTH = 64  # of a source, with EOS
BATCH = 64  # pairs per step


def source_ids(corpus: DateCorpus, texts: Sequence[str]) -> mt.Tensor:
    """(B, S): the characters and EOS of each text. The encoder needs no start token."""
    return mt.from_numpy(corpus.batch(texts)[:, 1:])


def build(vocab_size: int, smoke: bool) -> Transformer:
    """The paper's model, small. Departures: no dropout, since the training data hardly ever repeats."""
    size = {"d_model": 32, "n_heads": 2, "d_ff": 64} if smoke else {"d_model": 128, "n_heads": 8, "d_ff": 256}
    layers = 1 if smoke else 2
    return Transformer(
        TransformerConfig(
            vocab_size,
            vocab_size,
            **size,
            n_encoder_layers=layers,
            n_decoder_layers=layers,
            dropout=0.0,
            max_len=MAX_LENGTH,
            shared_vocabulary=True,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
        )
    )


def loss_of(model: Transformer, batch: tuple[mt.Tensor, mt.Tensor]) -> tuple[mt.Tensor, int]:
    """Mean cross entropy of each next character, with the paper's label smoothing; and how many there are."""
    src, tgt = batch
    logits = model(src, tgt[:, :-1])  # (B, 11, V): position t predicts character t + 1
    loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1)
    return loss, tgt[:, 1:].numel()  # a date has ten characters and EOS: none is PAD


def translate(model: Transformer, corpus: DateCorpus, texts: list[str], batch: int = 250) -> list[str]:
    """The model's reading of each text, by greedy decoding."""
    found: list[str] = []
    for start in range(0, len(texts), batch):
        ids = greedy_decode(model, source_ids(corpus, texts[start : start + batch]), max_len=ISO_LENGTH + 1)
        found += [corpus.decode(row) for row in ids.tolist()]
    return found


def exact_match(model: Transformer, corpus: DateCorpus, n: int) -> float:
    """The share of held-out dates that are translated without any mistake."""
    pairs = corpus.test_pairs()[:n]
    found = translate(model, corpus, [pair.source for pair in pairs])
    return sum(f == pair.target for f, pair in zip(found, pairs, strict=True)) / len(pairs)


# --- looking inside -----------------------------------------------------------------------------------------


def attention_map(model: Transformer, corpus: DateCorpus, text: str, path: Path) -> None:
    """Which characters of the source each written one attends to: last decoder layer, mean of the heads."""
    import matplotlib as mpl

    mpl.use("Agg")  # a file is written; no screen is needed
    import matplotlib.pyplot as plt

    source = source_ids(corpus, [text])
    written = translate(model, corpus, [text])[0]
    target = mt.from_numpy(corpus.batch([written])[:, :-1])
    model.eval()
    with mt.no_grad():
        _, attention = model(source, target, return_attention=True)
    model.train()
    weights = attention.cross[-1].mean(1)[0].numpy()  # (T, S)
    columns, rows = [*corpus.decode(source.tolist()[0]), "end"], [*written, "end"]

    size = (
        0.32 * len(columns) + 2.2,
        0.32 * len(rows) + 0.9,
    )  # inches: square cells, room for labels and scale
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    image = axes.imshow(weights, cmap="Purples", vmin=0, vmax=1)
    axes.set_xticks(range(len(columns)), [printable(c) for c in columns])
    axes.set_yticks(range(len(rows)), [printable(c) for c in rows])
    axes.tick_params(length=0)
    axes.set_xlabel("source, as read (logical order)")
    axes.set_ylabel("written")
    axes.set_title(
        f"attention to the source: last decoder layer, mean of {model.config.n_heads} heads", size=9
    )
    figure.colorbar(image, label="attention weight", fraction=0.05, pad=0.02)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def printable(character: str) -> str:
    """The character if matplotlib's font has it, else its code point: never an empty box."""
    from matplotlib import font_manager, ft2font

    font = ft2font.FT2Font(font_manager.findfont("DejaVu Sans"))
    if character.isspace():
        return "␣"
    return character if all(ord(c) in font.get_charmap() for c in character) else f"{ord(character):X}"


def layer_graph(model: Transformer, corpus: DateCorpus, text: str, path: Path) -> None:
    """The autograd graph of the layer behind that map: the last decoder layer's attention to the source."""
    layer = model.decoder.layers[-1].cross_attention
    memory = model.encode(source_ids(corpus, [text])).detach().requires_grad_()
    query = mt.zeros(1, ISO_LENGTH + 1, model.config.d_model, requires_grad=True)
    viz.draw(layer, query, memory).save(path)


# --- the job ------------------------------------------------------------------------------------------------


JOB = Job(__doc__, "runs/dates", {"steps": 1500, "seed": 0}, {"steps": 20})
JOB.parser.add_argument(
    "--text",
    action="append",
    default=[],
    help="a date of 1900 to 2099 to translate at the end; may be given more than once, and the attention map "
    "shows the first",
)


def make_trainer(options: argparse.Namespace, corpus: DateCorpus, n_test: int) -> Trainer:
    mt.manual_seed(options.seed)
    model = build(corpus.vocab_size, options.smoke)
    optimizer = Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)  # the paper's §5.3
    # the paper's schedule, brought down to zero: the last fifth of the steps is worth several percent
    rate = noam(model.config.d_model, warmup_steps=200, factor=0.5)
    steps = options.steps
    scheduler = LambdaLR(optimizer, lambda t: rate(t + 1) * max(0.0, 1.0 - t / steps))
    batches = PairBatches(corpus, steps, batch_size=BATCH, seed=options.seed)
    return Trainer(
        model,
        optimizer,
        DataLoader(batches, batch_size=1, collate_fn=lambda samples: samples[0]),
        loss_fn=loss_of,
        scheduler=scheduler,
        max_steps=steps,
        evaluate=lambda m: {"exact_match": exact_match(m, corpus, min(n_test, 200))},
        eval_every=max(1, steps // 5),
        checkpoint=options.out,
        checkpoint_every=max(1, steps // 15),
        config=JOB.kept(options),
    )


def run(options: argparse.Namespace) -> None:
    corpus = DateCorpus(n_test=1000)
    for text in options.text:
        if unseen := [c for c in normalize(text) if c not in corpus.characters]:
            named = f"{unseen[0]!r} ({unicodedata.name(unseen[0], 'without a name')})"
            raise ValueError(
                f"--text {text!r}: {named} is in no date that the model has seen; "
                "write it as the locale does, capitals and all: '3 mars 1998'"
            )
        if not 0 < len(corpus.encode(text)) < MAX_LENGTH:
            raise ValueError(
                f"--text {text!r} has {len(corpus.encode(text))} characters; give 1 to {MAX_LENGTH - 1}"
            )
    n_test = 50 if options.smoke else 1000
    trainer = make_trainer(options, corpus, n_test)
    model = trainer.model
    n_parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(corpus.patterns)} locales, {corpus.vocab_size} characters, {n_parameters:,} parameters, "
          f"{trainer.max_steps} steps of {BATCH} dates")  # fmt: skip
    print("the first step takes longer: kernels are loaded or, the first time, compiled (half a minute)")
    start = time.perf_counter()
    (trainer.resume if options.resume else trainer.fit)()
    if not trainer.world.is_writer:
        return
    print(f"trained to step {trainer.step} in {time.perf_counter() - start:.0f} s (evaluation included)")
    print(f"exact match on {n_test} held-out dates: {100 * exact_match(model, corpus, n_test):.1f} %")
    if options.smoke:
        print(f"({trainer.step} steps teach nothing yet: the readings below are still noise)")
    show(model, corpus, options)


def show(model: Transformer, corpus: DateCorpus, options: argparse.Namespace) -> None:
    """Ten translations, or else the user's own, the attention map, the graph of the layer, and the curves."""
    pairs = [] if options.text else corpus.test_pairs()[:10]
    for pair, found in zip(pairs, translate(model, corpus, [p.source for p in pairs]), strict=True):
        mark = "right" if found == pair.target else f"WRONG, {pair.target}"
        print(f"  {found:<10}  {mark:<17}  {pair.locale}  {pair.source}")
    text = options.text[0] if options.text else "mercredi 4 mars 1998"
    heat_map, graph = options.out / "cross_attention.png", options.out / "attention_layer.svg"
    attention_map(model, corpus, text, heat_map)
    layer_graph(model, corpus, text, graph)
    curves = options.out / "curves.png"
    plot_history(options.out, curves)
    print(f"checkpoints and log:   {options.out}{os.sep}")
    print(f"loss and exact match:  {curves}")
    print(f"attention to the date: {heat_map}")
    print(f"graph of that layer:   {graph}")
    for text, found in zip(options.text, translate(model, corpus, options.text), strict=True):
        print(f"{text!r} is read as {found}{'' if is_date(found) else ' (no day of the calendar)'}")


def is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(JOB.run(run, "babel", "matplotlib", "graphviz", "pygraphviz"))
