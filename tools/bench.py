"""Speed beside the rivals: `python tools/bench.py gemm [--threads 1] [--rounds 5] [--json FILE]`.

Every rival runs in a process of its own, because thread pools in one process fight for the cores. The rounds
take turns, so that a noisy minute hits everybody; the minimum tells what the code can do, the median what it
did. NumPy's BLAS starts with OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE removed: they can make it slower.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RIVALS = ["microtensor", "numpy"] + ["torch"] * (find_spec("torch") is not None)
HANDICAPS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
SAMPLE_SECONDS = 0.001  # a sample repeats a fast call for so long: less than a turn of the scheduler
ROUND_SECONDS = 0.02  # for one case

Case = tuple[str, float, Callable[[], object]]  # its name, floating-point operations in a call, the call


def gemm(rival: str) -> Iterator[Case]:
    """C = A B: the products of a small Transformer, squares, ragged edges and batches; nt, tn: transposed."""
    import numpy as np

    rng = np.random.default_rng(0)
    plain = [(768, 128, 384), (768, 128, 512), (768, 512, 128), (768, 128, 65), (128, 1920, 512)]
    plain += [(n, n, n) for n in (1024, 512, 64, 16)] + [(100, 77, 33), (1, 128, 512)]
    shapes: list[tuple[tuple[int, ...], int, int, int]] = [((), *shape) for shape in plain]
    shapes += [((256,), 30, 32, 30), ((256,), 30, 30, 32), ((64, 4), 64, 32, 64)]
    for batch, m, k, n in shapes:
        for layout in ("nn", "nt", "tn"):
            a = rng.standard_normal((*batch, m, k), dtype=np.float32)
            b = rng.standard_normal((*batch, k, n), dtype=np.float32)
            if layout == "tn":
                a = a.swapaxes(-1, -2).copy().swapaxes(-1, -2)
            if layout == "nt":
                b = b.swapaxes(-1, -2).copy().swapaxes(-1, -2)
            name = " ".join([layout, "×".join(map(str, batch)) or "1", f"({m}, {k}, {n})"])
            operations = 2.0 * np.prod(batch) * m * k * n
            yield name, operations, _product(rival, a, b)


def _product(rival: str, a: Any, b: Any) -> Callable[[], object]:
    if rival == "microtensor":
        from microtensor import kernels

        return lambda: kernels.matmul(a, b)
    if rival == "numpy":
        return lambda: a @ b
    import torch

    ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    return lambda: ta @ tb


BENCHMARKS: dict[str, Callable[[str], Iterator[Case]]] = {"gemm": gemm}


def work(benchmark: str, rival: str, threads: int) -> None:
    """A rival's process: for every line on stdin one round, answered by a JSON list of samples per case."""
    sys.path.insert(0, str(ROOT))
    if rival == "torch":
        import torch

        torch.set_num_threads(threads)
    cases = []
    for name, operations, call in BENCHMARKS[benchmark](rival):
        call()  # compile
        start = time.perf_counter()
        call()
        cases.append((call, max(1, int(SAMPLE_SECONDS / (time.perf_counter() - start)))))
        print(json.dumps([name, operations]), flush=True)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps([_seconds(call, repeats) for call, repeats in cases]), flush=True)


def _seconds(call: Callable[[], object], repeats: int) -> list[float]:
    samples = []
    end = time.perf_counter() + ROUND_SECONDS
    while not samples or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        samples.append((time.perf_counter() - start) / repeats)
    return samples


class Worker:
    def __init__(self, benchmark: str, rival: str, threads: int) -> None:
        limits = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MICROTENSOR_NUM_THREADS")
        env = {key: value for key, value in os.environ.items() if key not in HANDICAPS}
        env |= dict.fromkeys(limits, str(threads))
        command = [sys.executable, __file__, benchmark, "--threads", str(threads), "--worker", rival]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
        self.cases: list[tuple[str, float]] = []
        while (line := self._line()) != "ready":
            self.cases.append(tuple(json.loads(line)))

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"bench: the process of a rival ended with status {self.process.wait()}")
        return line

    def round(self) -> list[list[float]]:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        samples: list[list[float]] = json.loads(self._line())
        return samples

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def measure(benchmark: str, threads: int, rounds: int) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        workers = {r: stack.enter_context(Worker(benchmark, r, threads)) for r in RIVALS}
        results = [{rival: worker.round() for rival, worker in workers.items()} for _ in range(rounds)]
        cases = workers[RIVALS[0]].cases
    rows = []
    for i, (name, operations) in enumerate(cases):
        row: dict[str, Any] = {"case": name, "operations": operations}
        for rival in RIVALS:
            seconds = [sample for result in results for sample in result[rival][i]]
            row[rival] = {"min_seconds": min(seconds), "median_seconds": statistics.median(seconds)}
        rows.append(row)
    return rows


def report(rows: list[dict[str, Any]]) -> None:
    """Gigaoperations per second, best (median), and our speed over each rival's, from the best times."""
    ours, *others = RIVALS
    heads = "".join(f"{rival:>18}" for rival in RIVALS) + "".join(f"{'/ ' + r:>9}" for r in others)
    print(f"{'case':<26}{heads}")
    for row in rows:
        line = f"{row['case']:<26}"
        for rival in RIVALS:
            best, median = (row["operations"] / row[rival][f"{k}_seconds"] / 1e9 for k in ("min", "median"))
            line += f"{best:>9.1f} ({median:6.1f})"
        for rival in others:
            line += f"{row[rival]['min_seconds'] / row[ours]['min_seconds']:>9.2f}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="for every rival (default: all)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.benchmark, options.worker, options.threads)
        return
    rows = measure(options.benchmark, options.threads, options.rounds)
    report(rows)
    if options.json:
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        result = {
            "benchmark": options.benchmark,
            "threads": options.threads,
            "machine": machine,
            "rows": rows,
        }
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
