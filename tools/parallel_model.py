"""What data-parallel training gives: measured with the ranks that there are, by a model with up to 64.

    python tools/parallel_model.py                               # a step, and the model's table: a minute
    python tools/parallel_model.py --alpha 5e-6 --beta 6e9       # the same for another network
    mpirun --bind-to none -n 2 python tools/parallel_model.py    # measured: a step, communication, α and β

A step of the encoder–decoder of `examples/translate_dates.py` with 64 sources of 30 tokens, and Adam:

    t(n) = compute(64/n rows, one thread) + α · log₂ n + 2 (n − 1)/n · bytes / β

compute(…) is measured here, for every n. The rest is Thakur et al. 2005, §4.5: a ring's volume, a tree's
start. Nothing of it is hidden behind backward, and no rank waits for a slower one.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.ending import Parser, run  # noqa: E402

# isort: split
import numpy as np  # noqa: E402

import microtensor as mt  # noqa: E402
from microtensor import nn, optim, train  # noqa: E402
from models import Transformer, TransformerConfig  # noqa: E402

B, S, T, V = 64, 30, 12, 300


class Job:
    """Steps on random tokens; the ranks share each batch."""

    def __init__(self) -> None:
        mt.manual_seed(0)
        rng = np.random.default_rng(0)
        self.batch = mt.from_numpy(rng.integers(3, V, (B, S))), mt.from_numpy(rng.integers(3, V, (B, T)))
        config = {"d_model": 128, "n_heads": 8, "d_ff": 256, "n_encoder_layers": 2, "n_decoder_layers": 2}
        self.model = Transformer(TransformerConfig(V, V, **config, dropout=0.0, shared_vocabulary=True))
        self.parameters = list(self.model.parameters())
        self.optimizer = optim.Adam(self.parameters, lr=1e-4)
        self.bytes = sum(p.array.nbytes for p in self.parameters)

    def step(self, rows: int = B) -> float:
        """Seconds of one step of all ranks on that many rows."""
        start, ranks = time.perf_counter(), train.world()
        self.optimizer.zero_grad()
        (src, tgt), _ = ranks.share(iter([tuple(t[:rows] for t in self.batch)]))
        logits = self.model(src, tgt[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten())
        ranks.backward(loss, self.parameters, len(src), last=True)
        ranks.average(self.parameters, loss.item(), len(src), len(src), counted=False)
        self.optimizer.step()
        return time.perf_counter() - start


def measure(job: Job, steps: int) -> None:
    """Steps with and without overlap in turns, and α and β of this machine."""
    ranks = train.world()
    times: dict[bool, list[float]] = {True: [], False: []}
    shares: dict[bool, list[float]] = {True: [], False: []}
    for i in range(2 * steps + 6):
        ranks.overlap = i % 2 == 0
        before, seconds = ranks.seconds, job.step()
        if i >= 6:  # buckets and caches are there
            times[ranks.overlap].append(seconds)
            shares[ranks.overlap].append((ranks.seconds - before) / seconds)
    ranks.overlap = True
    costs = None if ranks.size == 1 else alpha_beta(ranks.size)
    if not ranks.is_writer:
        return
    print(f"{ranks.size} ranks, {mt.get_num_threads()} threads each, {job.bytes / 1e6:.1f} MB of gradients")
    for overlap in (True, False) if ranks.size > 1 else (True,):
        name = "" if ranks.size == 1 else " with overlap" if overlap else " without"
        share = 100 * median(shares[overlap])
        print(f"{1e3 * median(times[overlap]):7.2f} ms a step{name}, {share:.1f} % of it for the other ranks")
    if costs is not None:
        print(f"alpha {costs[0]:.2e} s, beta {costs[1]:.2e} bytes/s")


def alpha_beta(n: int) -> tuple[float, float]:
    """Seconds of a start and bytes a second, from sums of 8 bytes and of 4 MiB over all ranks."""
    from mpi4py import MPI

    def seconds(array: Any) -> float:
        times = []
        for _ in range(50):
            MPI.COMM_WORLD.Barrier()
            start = time.perf_counter()
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)
            times.append(time.perf_counter() - start)
        return median(times)

    short, long = np.zeros(1), np.zeros(1 << 20, np.float32)
    alpha = seconds(short) / math.log2(n)
    return alpha, 2 * (n - 1) / n * long.nbytes / seconds(long)


def model(job: Job, steps: int, alpha: float, beta: float) -> None:
    """The table of t(n)."""
    mt.set_num_threads(1)
    job.step()
    first = None
    print(f"t(n) by α = {alpha:.2g} s, β = {beta:.2g} bytes/s, {job.bytes / 1e6:.1f} MB of gradients")
    print("ranks  rows  compute ms  communication ms  speed-up  communication")
    for n in (1, 2, 4, 8, 16, 32, 64):
        job.step(B // n)
        compute = median(job.step(B // n) for _ in range(steps))
        talk = alpha * math.log2(n) + 2 * (n - 1) / n * job.bytes / beta
        first = first or compute
        speedup, share = first / (compute + talk), 100 * talk / (compute + talk)
        times = f"{1e3 * compute:10.2f}  {1e3 * talk:16.2f}"
        print(f"{n:5}  {B // n:4}  {times}  {speedup:8.2f}  {share:11.0f} %")


def main() -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="of each kind, whose median is taken")
    parser.add_argument(
        "--alpha", type=float, default=25e-6, help="seconds to start a sum over two ranks; default 25e-6"
    )
    parser.add_argument("--beta", type=float, default=1.2e9, help="bytes a second between two; default 1.2e9")
    options = parser.parse_args()
    train.tune_allocator()
    job = Job()
    measure(job, options.steps)
    if train.world().size == 1:  # the model's steps are of one rank
        model(job, options.steps, options.alpha, options.beta)


if __name__ == "__main__":
    sys.exit(run(main))
