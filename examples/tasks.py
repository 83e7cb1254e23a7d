"""Train small Transformers on five small tasks, and hold each to the accuracy that is pinned for it.

    python examples/tasks.py                            # copy, reverse, sort, addition, dates: some minutes
    python examples/tasks.py --only sort --only addition --seed 1
    python examples/tasks.py --resume                   # go on after Ctrl-C: what is finished is kept

The encoder–decoder reads a text and writes its copy, its reverse, its characters in order, or the date that
it says; a GPT goes on behind "345+678=", the sum's lowest digit first, as a carry runs. An accuracy is the
share of held-out items, none of which was trained on, that are answered without any mistake.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from job import Job, begun_with, checkpoints, took
from lesson import COLOURS, legend, new_figure, save

import microtensor as mt
import microtensor.nn.functional as F
from microtensor.data import (
    BOS,
    EOS,
    PAD,
    AdditionTask,
    DataLoader,
    DateCorpus,
    PairBatches,
    PairCorpus,
    StringTask,
)
from microtensor.optim import Adam
from microtensor.optim.lr_scheduler import LambdaLR
from microtensor.train import Trainer
from models import GPT, GPTConfig, Transformer, TransformerConfig, exact_match

LONGEST = 64  # positions of a model
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))  # of lines: not by colour alone


@dataclass(frozen=True)
class Task:
    """What is trained, for how long, and the least accuracy that it then has, whatever the seed."""

    corpus: Callable[[], PairCorpus]
    steps: int
    accuracy: float  # pinned: the least of the seeds 0, 1 and 2, and a little less
    width: int = 64
    batch: int = 64  # pairs per step
    lr: float = 2e-3  # after `warm_up` steps; then it falls to 0 in a straight line
    warm_up: int = 100
    decoder_only: bool = False


TASKS = {
    "copy": Task(lambda: StringTask("copy"), 800, 0.99),
    "reverse": Task(lambda: StringTask("reverse"), 800, 0.98),
    "sort": Task(lambda: StringTask("sort"), 800, 0.99),
    "addition": Task(lambda: AdditionTask(3), 2500, 0.99, batch=128, decoder_only=True),
    "dates": Task(DateCorpus, 1500, 0.985, width=128, lr=3e-3, warm_up=200),
}


class Result(NamedTuple):
    """How a task went: the records of the log, seconds with evaluation, and the accuracy at the end.

    begun: the steps of an earlier run that this one went on from, whose seconds are not counted.
    """

    history: list[dict[str, Any]]
    seconds: float
    accuracy: float
    begun: int = 0


def build(task: Task, vocab_size: int) -> GPT | Transformer:
    """The model for a task. Departure from the paper: no dropout, since the training data hardly repeats."""
    if task.decoder_only:
        return GPT(GPTConfig(LONGEST, vocab_size, n_layer=2, n_head=4, n_embd=task.width))
    return Transformer(
        TransformerConfig(
            vocab_size,
            vocab_size,
            d_model=task.width,
            n_heads=task.width // 16,
            n_encoder_layers=2,
            n_decoder_layers=2,
            d_ff=2 * task.width,
            dropout=0.0,
            max_len=LONGEST,
            shared_vocabulary=True,
            pad_id=PAD,
            bos_id=BOS,
            eos_id=EOS,
        )
    )


def loss_of(model: GPT | Transformer, batch: tuple[mt.Tensor, mt.Tensor]) -> tuple[mt.Tensor, int]:
    """Cross entropy of each character of the targets; and how many there are."""
    src, tgt = batch  # (B, S) ends in EOS; (B, T) starts with BOS and ends in EOS
    if isinstance(model, GPT):  # one text, source and target, of which the target's characters count
        text = mt.cat([src[:, :-1], tgt[:, 1:-1]], 1)
        expected = text[:, 1:].clone()
        expected[:, : src.shape[1] - 2] = -1
        _, loss = model(text[:, :-1], expected)
        return loss, tgt[:, 1:-1].numel()
    logits = model(src, tgt[:, :-1])  # (B, T − 1, V): position t predicts character t + 1
    loss = F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=PAD)
    return loss, int((tgt[:, 1:] != PAD).sum())


def train(
    task: Task, seed: int, steps: int, n_test: int, *, folder: Path | None = None, **options: Any
) -> Result:
    """Train a model on a task, looking at held-out items ten times on the way; go on with what folder holds.

    options: of the Trainer.
    """
    start = time.perf_counter()
    corpus = task.corpus()
    test = corpus.test_pairs()[:n_test]
    batches = PairBatches(corpus, steps, batch_size=task.batch, seed=seed)
    mt.manual_seed(seed)
    model = build(task, corpus.vocab_size)
    optimizer = Adam(model.parameters(), lr=task.lr, betas=(0.9, 0.98), eps=1e-9)
    scheduler = LambdaLR(optimizer, lambda t: min((t + 1) / task.warm_up, 1 - t / steps))
    trainer = Trainer(
        model,
        optimizer,
        DataLoader(batches, collate_fn=lambda samples: samples[0]),
        loss_fn=loss_of,
        scheduler=scheduler,
        max_steps=steps,
        evaluate=lambda m: {"exact_match": exact_match(m, corpus, test)},
        eval_every=max(1, steps // 10),
        log_every=min(10, steps),
        checkpoint=folder,
        checkpoint_every=max(1, steps // 10),
        **options,
    )
    if folder and checkpoints(folder):
        trainer.load()
    begun = trainer.step
    history = trainer.fit()
    if folder:  # the log has the steps before a stop, too
        history = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    held_out = {pair.source for pair in corpus.test_pairs()}
    some = corpus.train_pairs(10_000, np.random.default_rng((seed, steps)))
    assert held_out.isdisjoint(pair.source for pair in some), "a held-out item was trained on"
    return Result(history, time.perf_counter() - start, exact_match(model, corpus, test), begun)


# --- the job ------------------------------------------------------------------------------------------------


class TasksJob(Job):
    """A job of several runs, each in a folder of its own."""

    def checkpoints(self, options: Namespace) -> list[Path]:
        """As that of a Job: those of the first task come first."""
        folders = [options.out / name for name in options.only or TASKS] if options.out else []
        return [path for folder in folders for path in checkpoints(folder)]

    def settle(self, options: Namespace) -> None:
        """As that of a Job: all runs have the same settings."""
        super().settle(options)
        for folder in {path.parent for path in self.checkpoints(options)}:
            if begun_with(folder) != options.begun:
                raise ValueError(f"--resume: {folder} is of another seed; name tasks of one by --only")


JOB = TasksJob(__doc__, "runs/tasks", {"seed": 0}, {})
about = "train this one; may be given more than once"
JOB.parser.add_argument("--only", action="append", choices=list(TASKS), default=[], help=about)


def verdict(name: str, result: Result) -> str:
    """Whether the task reached what is pinned for it; a short run is not judged."""
    task = TASKS[name]
    if result.accuracy >= task.accuracy:
        return "pass"
    return "FAIL" if result.history[-1]["step"] == task.steps else "too short"


def table(results: dict[str, Result]) -> str:
    """Task, steps, seconds (of an earlier run unknown), accuracy and what is pinned for it, a line each."""
    lines = [f"{'task':<10} {'steps':>6} {'seconds':>8} {'exact match':>12} {'pinned':>10}"]
    for name, result in results.items():
        pinned, step = f"≥ {TASKS[name].accuracy:.1%}", result.history[-1]["step"]
        seconds = f"{'> ' if result.begun else ''}{result.seconds:.1f}" if result.begun < step else "before"
        lines.append(
            f"{name:<10} {step:>6} {seconds:>8} {result.accuracy:>12.1%} "
            f"{pinned:>10}  {verdict(name, result)}"
        )
    return "\n".join(lines)


def plot(results: dict[str, Result], path: Path) -> None:
    """Loss and accuracy over the steps, a line for each task."""
    figure, (left, right) = new_figure(2)
    for colour, style, (name, result) in zip(COLOURS, STYLES, results.items(), strict=False):
        look = {"color": colour, "linestyle": style, "label": name}
        left.plot([r["step"] for r in result.history], [r["loss"] for r in result.history], **look)
        seen = [r for r in result.history if "exact_match" in r]
        right.plot([r["step"] for r in seen], [100 * r["exact_match"] for r in seen], marker=".", **look)
    left.set(
        title="loss of every tenth training batch", xlabel="step", ylabel="cross entropy (nats)", yscale="log"
    )
    left.yaxis.set_major_formatter("{x:g}")  # not 4 × 10⁰
    left.yaxis.set_minor_formatter(lambda loss, _: f"{loss:g}" if f"{loss:e}"[0] in "235" else "")
    right.set(title="held-out items without a mistake", xlabel="step", ylabel="exact match (%)")
    right.set_ylim(-3, 103)
    legend(right)
    save(figure, path)


def work(options: Namespace) -> int:
    """0 if every task reaches its accuracy, else 1. A smoke run is too short to reach any, and gives 0."""
    results = {}
    for name in options.only or TASKS:
        print(f"{name}:", flush=True)
        steps, n_test = (5, 20) if options.smoke else (TASKS[name].steps, 1000)
        done = results[name] = train(
            TASKS[name], options.seed, steps, n_test, folder=options.out / name, config=JOB.kept(options)
        )
        told = f"{done.accuracy:.1%} of {n_test} held-out items right"
        how = took(done.seconds, done.begun, done.history[-1]["step"])
        print(f"  {told}, trained {how}: {verdict(name, done)} (≥ {TASKS[name].accuracy:.1%})", flush=True)
    print(f"\n{table(results)}")
    plot(results, options.out / "-".join(["curves", *options.only]))
    passed = all(result.accuracy >= TASKS[name].accuracy for name, result in results.items())
    return 0 if passed or options.smoke else 1


if __name__ == "__main__":
    raise SystemExit(JOB.run(work, "matplotlib", "babel"))
