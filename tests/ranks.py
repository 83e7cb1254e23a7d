"""What the ranks of test_parallel run, and the one process that they are compared with.

    mpirun -n 2 python tests/ranks.py JOB:FOLDER …        # one job after the other

Each rank leaves FOLDER-RANK.json: the records of its log, its weights and the files it has written.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

import microtensor as mt
from microtensor import nn, optim
from microtensor.data import DataLoader, TensorDataset
from microtensor.nn import functional as F
from microtensor.train import Trainer, buckets, world

STEPS, MIDDLE, FAILS = 16, 8, 11  # of a run; of its checkpoint; where a rank fails
ROWS, BATCH = 21, 5  # four batches of 5 and one of 1: less than there are ranks


class Net(nn.Module):
    """Some of it is used by some rows only, so by some ranks only, and some of it by none."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.body = nn.Sequential(
            nn.Linear(6, 40), nn.Tanh(), nn.Dropout(dropout), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)
        )
        self.rare = nn.Linear(6, 3)
        self.never = nn.Parameter(mt.ones(4, dtype=mt.float64))
        self.double()

    def forward(self, x, flag):
        z = x.reshape(len(x), 1, 3, 2).expand(-1, 2, -1, -1)  # (B, H, T, D)
        z = F.scaled_dot_product_attention(z, z, z, dropout_p=self.dropout if self.training else 0.0)
        y = self.body(x + z[:, 1].reshape(len(x), 6))
        return y + self.rare(x) * flag[:, None] if flag.any() else y


def data():
    rng = np.random.default_rng(5)
    target = rng.integers(0, 3, ROWS)
    target[rng.random(ROWS) < 0.3] = -100  # rows that do not count: some shares have none that does
    arrays = rng.normal(size=(ROWS, 6)), (rng.random(ROWS) < 0.15).astype(np.float64), target
    return TensorDataset(*map(mt.from_numpy, arrays))


def loss_of(model, batch):
    x, flag, target = batch
    return F.cross_entropy(model(x, flag), target), int((target != -100).sum())


def trainer(folder, steps=STEPS, dropout=0.0, progress=True, **options):
    """Uneven batches in a shuffled order, unequal counts, accumulation, clipping and momentum, in float64."""
    mt.manual_seed(3)
    model, dataset = Net(dropout), data()
    return Trainer(
        model,
        optim.Adam(model.parameters(), lr=0.02),
        DataLoader(dataset, batch_size=BATCH, shuffle=True),
        max_steps=steps,
        **{"loss_fn": loss_of, "accumulate": 2, "grad_clip": 0.5, **options},
        evaluate=lambda m: {"all": loss_of(m, dataset[:])[0].item()},
        eval_every=5,
        checkpoint=folder,
        checkpoint_every=MIDDLE,
        log_every=1,
        progress=progress,
    )


def weights(run):
    return {name: p.array.tolist() for name, p in run.model.named_parameters()}


def fails(kind):
    """A loss function that fails on rank 1 in step FAILS."""
    calls = []

    def loss_fn(model, batch):
        calls.append(1)
        if world().rank == 1 and len(calls) == 2 * FAILS:  # two batches a step
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("the sum is odd")
        return loss_of(model, batch)

    return loss_fn


def uncounted(model, batch):
    """A mean over rows, without a count."""
    return F.mse_loss(model(batch[0], batch[1]), batch[0][:, :3])


JOBS = {
    "train": lambda folder: trainer(folder),
    "resume": lambda folder: trainer(folder),
    "half": lambda folder: trainer(folder, MIDDLE),
    "uncounted": lambda folder: trainer(folder, loss_fn=uncounted),
    "dropout": lambda folder: trainer(folder, dropout=0.4),
    "stop": lambda folder: trainer(folder, callbacks=[stops]),
    "kill": lambda folder: trainer(folder, loss_fn=fails("kill")),
    "raise": lambda folder: trainer(folder, loss_fn=fails("raise")),
}


def stops(run):
    """Only rank 1 wants to stop; all do."""
    if run.world.rank == 1 and run.step == 3:
        run.stop()


def main(jobs):
    buckets.BUCKET = 1000  # bytes: many buckets
    written = set()

    def note(event, arguments):
        opened = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if opened or event in ("os.rename", "os.remove", "os.mkdir"):
            written.add(str(arguments[0]))

    sys.addaudithook(note)
    for job, folder in (text.split(":") for text in jobs):
        written.clear()
        run = JOBS[job](folder)
        history = run.resume() if job == "resume" else run.fit()
        state = mt.random.default_generator.get_state().tolist()
        found = {"history": history, "weights": weights(run), "written": sorted(written), "random": state}
        Path(f"{folder}-{run.world.rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
