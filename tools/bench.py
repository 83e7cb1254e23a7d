"""Speed and memory beside the rivals: `python tools/bench.py [ROW …] [--quick] [--threads N] [--json FILE]`.

Without a name every row is measured but `layouts`, with --quick not the main job (`dates`) either. Every
rival runs in a process of its own, because thread pools in one process fight for the cores. The rounds take
turns, so that a noisy minute hits everybody; the least time tells what the code can do, the median what it
did. A ratio is our time (or memory) over the better rival's. "noise" is how far rounds lay from the best one,
ours or that rival's, whichever is more: a ratio within it says nothing. ok? is NO for what misses the row's
target, "no?" where by less than the noise. "peak" is the share of the best product of two large squares.

The rows: `nn 48 (64, 32, 64)` is a batch of 48 products, (64, 32) by (32, 64), neither matrix transposed;
`over NumPy` is the time of an op beyond NumPy's for the same arithmetic; the exponent is that of T by which
memory grows. NumPy's BLAS starts with OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE removed, which can make it
slower.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import ending  # noqa: E402

# isort: split
from tools.benchmarks import cases, probes  # noqa: E402

HANDICAPS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
LIMITS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MICROTENSOR_NUM_THREADS")
SAMPLE_SECONDS = 0.0003  # a sample repeats a fast call for so long: much less than a turn of the scheduler
ROUND_SECONDS = 0.5  # shared by the cases: the first training steps of a round wake caches and sleeping cores
ROUNDS, QUICK_ROUNDS = 15, 5


@dataclass(frozen=True)
class Row:
    """A timed row of the table: a benchmark, what its ratio should be at most, and on how many threads."""

    benchmark: str
    target: float
    threads: int | None = None  # all, if not said

    @property
    def name(self) -> str:
        return self.benchmark if self.threads is None else f"{self.benchmark} on {self.threads}"


TIMED = [Row("nanogpt", 0.8), Row("tiny", 0.4), Row("10.7M", 1.0), Row("encoder-decoder", 0.7)]
TIMED += [Row("gemm", 1.25), Row("gemm", 1.25, threads=1), Row("fused", 0.8), Row("dispatch", 1.0, threads=1)]
TIMED += [Row("generation", 0.5), Row("encoder", 1.0)]
MEANS = {"gemm": 1.05, "fused": 0.8}  # of rows with a geometric mean: what that should be at most
EXTRA = [Row("layouts", 1.0), Row("layouts", 1.0, threads=1)]  # by name only
PROBED: dict[str, Callable[[list[str], bool], list[probes.Line]]] = {
    "memory": probes.memory,
    "attention": probes.attention,
    "start": probes.start,
    "dates": probes.dates,
}
DISPATCH = {"a + b": 1.0, "a * b": 1.0, "chain": 1.0, "chain and its backward": 0.6}  # over PyTorch's time
OVER_NUMPY = {"chain": 2.0, "chain and its backward": 5.0}  # µs over NumPy's, an op: forward 2, backward 3


# --- a rival's process --------------------------------------------------------------------------------------


def work(benchmark: str, rival: str, threads: int) -> None:
    """For every line on stdin one round, answered by a JSON list of samples per case."""
    if rival == "torch":
        import torch

        torch.set_num_threads(threads)
    calls = []
    for name, operations, call in cases.BENCHMARKS[benchmark](rival):
        first = call()  # compiles; of training steps the loss, by which the rivals are compared
        start = time.perf_counter()
        call()
        calls.append((call, max(1, int(SAMPLE_SECONDS / (time.perf_counter() - start)))))
        loss = first.item() if benchmark in cases.GPTS else None  # type: ignore[attr-defined]
        print(json.dumps([name, operations, loss]), flush=True)
    print("ready", flush=True)
    for _ in sys.stdin:
        seconds = ROUND_SECONDS / len(calls)
        print(json.dumps([_seconds(call, repeats, seconds) for call, repeats in calls]), flush=True)


def _seconds(call: Callable[[], object], repeats: int, seconds: float) -> list[float]:
    call()  # untimed: the rival's round has emptied the caches
    samples = []
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        samples.append((time.perf_counter() - start) / repeats)
    return samples


class Worker:
    """A rival's process, seen from here."""

    def __init__(self, benchmark: str, rival: str, threads: int) -> None:
        env = {key: value for key, value in os.environ.items() if key not in HANDICAPS}
        env |= dict.fromkeys(LIMITS, str(threads))
        command = [sys.executable, __file__, benchmark, "--threads", str(threads), "--worker", rival]
        pipe = subprocess.PIPE
        # Ctrl-C is not heard in a session of its own: it is killed when we hear that
        self.process = subprocess.Popen(
            command, env=env, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        self.cases: list[tuple[str, float, float | None]] = []
        try:
            while (line := self._line()) != "ready":
                self.cases.append(tuple(json.loads(line)))
        except BaseException:
            self.process.kill()
            raise

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

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.process.kill()
        self.process.communicate()


# --- rounds, and what they say ------------------------------------------------------------------------------


def measure(benchmark: str, threads: int, rounds: int) -> list[dict[str, Any]]:
    """For each case the times of each rival: least, median, and the spread of the best of its rounds."""
    rivals = cases.rivals_of(benchmark)
    with ExitStack() as stack:
        workers = {r: stack.enter_context(Worker(benchmark, r, threads)) for r in rivals}
        _same_losses(workers)
        results = [{rival: worker.round() for rival, worker in workers.items()} for _ in range(rounds)]
        found = workers[rivals[0]].cases
    rows = []
    for i, (name, operations, _) in enumerate(found):
        times = {}
        for rival in rivals:
            best = [min(result[rival][i]) for result in results]
            everything = [sample for result in results for sample in result[rival][i]]
            median = statistics.median(everything)
            times[rival] = {
                "min": min(best),
                "median": median,
                "spread": statistics.median(best) / min(best) - 1,
            }
        rows.append({"case": name, "operations": operations, "rivals": times})
    return rows


def _same_losses(workers: dict[str, Worker]) -> None:
    """The same model from the same weights: the first losses are equal but for rounding."""
    losses = {r: [loss for *_, loss in worker.cases if loss is not None] for r, worker in workers.items()}
    for rival, values in losses.items():
        if not all(map(lambda a, b: math.isclose(a, b, rel_tol=1e-4), values, losses["microtensor"])):
            raise RuntimeError(f"bench: {rival} starts at losses {values}, we at {losses['microtensor']}")


def better(times: dict[str, Any], against: str | None = None) -> str | None:
    """The rival with the least time."""
    others = [r for r in times if r != "microtensor" and against in (None, r)]
    return min(others, key=lambda r: times[r]["min"], default=None)


def summary(row: Row, rows: list[dict[str, Any]]) -> list[probes.Line]:
    """The lines of the table: one a case, or for products their geometric mean and the worst of them."""
    if row.benchmark == "dispatch":
        return [line for case in rows for line in _dispatch(case)]
    lines = [_line(f"{row.name}: {c['case']}" if len(rows) > 1 else row.name, c, row.target) for c in rows]
    if row.benchmark not in MEANS or any(line["rival"] is None for line in lines):
        return lines
    mean = dict(lines[0], row=f"{row.name}: geometric mean", against="", gflops=None)
    mean["target"] = MEANS[row.benchmark]
    for key in ("ours", "rival", "ratio", "median", "noise"):
        mean[key] = statistics.geometric_mean([max(line[key], 1e-9) for line in lines])
    mean["ok"] = mean["ratio"] <= mean["target"]
    return [*lines, mean]


def _line(
    name: str, case: dict[str, Any], target: float, against: str | None = None, scale: float = 1e3
) -> Any:
    times, rival = case["rivals"], better(case["rivals"], against)
    ours = times["microtensor"]
    theirs = None if rival is None else times[rival]
    line = probes.line(name, ours["min"] * scale, None, "ms" if scale == 1e3 else "µs", target, rival or "")
    line |= {"ratio": None, "ok": None, "gflops": case["operations"] / ours["min"] / 1e9 or None}
    if theirs is not None:
        ratio = ours["min"] / theirs["min"]
        line |= {"rival": theirs["min"] * scale, "ratio": ratio, "ok": ratio <= target}
        line |= {"median": ours["median"] / theirs["median"], "noise": max(ours["spread"], theirs["spread"])}
    return line


def _dispatch(case: dict[str, Any]) -> list[probes.Line]:
    name, times = case["case"], case["rivals"]
    scale = 1e6 / (200 if name in OVER_NUMPY else 1)
    lines = [_line(f"dispatch: {name}", case, DISPATCH[name], "torch", scale)]
    if name in OVER_NUMPY:
        over = (times["microtensor"]["min"] - times["numpy"]["min"]) * scale
        lines.append(probes.line(f"dispatch: {name}, over NumPy", over, None, "µs", OVER_NUMPY[name]))
    return lines


def show(lines: list[probes.Line], peak: float | None = None) -> None:
    """The lines as a table; peak: the machine's GFLOP/s, to say what share of it was reached."""
    for line in lines:
        rival = "" if line["rival"] is None else f"{line['rival']:.4g} {line['unit']}"
        ratio, median = (f"{line[k]:.2f}" if rival and k in line else "" for k in ("ratio", "median"))
        noise = f"{line['noise']:.0%}" if line.get("noise") is not None else ""
        speed = f"{line['gflops']:.0f}" if line.get("gflops") else ""
        share = f"{line['gflops'] / peak:.0%}" if speed and peak else ""
        near = line["ok"] is False and line["ratio"] <= line["target"] * (1 + line.get("noise", 0))
        ok = "no?" if near else {True: "yes", False: "NO", None: ""}[line["ok"]]
        ours = f"{line['ours']:.4g} {line['unit']}"
        print(f"{line['row']:<46}{ours:>12}{rival:>12} {line['against']:<6}{ratio:>7}{median:>8}"
              f"{noise:>7}{line['target']:>8}{ok:>5}{speed:>8}{share:>6}", flush=True)  # fmt: skip


HEAD = f"{'row':<46}{'ours':>12}{'rival':>12} {'':<6}{'ratio':>7}{'median':>8}{'noise':>7}{'target':>8}"


def peak_of(threads: int) -> float:
    """GFLOP/s of the best product of two large squares that anybody here computes."""
    best = 0.0
    for case in measure("peak", threads, QUICK_ROUNDS):
        best = max(best, *(case["operations"] / times["min"] / 1e9 for times in case["rivals"].values()))
    return best


def run(names: list[str], everything: bool, quick: bool, threads: int, rounds: int) -> dict[str, Any]:
    """Measure the named rows (all if none) and print them as they come."""
    chosen = [row for row in (TIMED + EXTRA if names else TIMED) if not names or row.benchmark in names]
    chosen = list({(row.benchmark, row.threads or threads): row for row in chosen}.values())
    probed = [name for name in PROBED if name in names or (not names and name != "dates")]
    if not names and (everything or not quick):
        if find_spec("babel") is not None:
            probed.append("dates")
        else:
            print("no main job: it needs pip install -e '.[examples]'")
    busy = os.getloadavg()[0]  # before the peaks, which make a load of their own
    peaks = {n: peak_of(n) for n in {row.threads or threads for row in chosen}}
    if busy > 0.5:
        print(
            f"the last minute's load was {busy:.1f} on {os.cpu_count()} cores: what else runs slows all of it"
        )
    print(HEAD + f"{'ok?':>5}{'GFLOP/s':>8}{'peak':>6}")
    lines: list[probes.Line] = []
    details: dict[str, Any] = {}
    for row in chosen:
        n = row.threads or threads
        details[row.name] = measure(row.benchmark, n, rounds)
        found = summary(row, details[row.name])
        show(found, peaks[n])
        lines += found
    frameworks = ["microtensor", *(["torch"] if find_spec("torch") is not None else [])]
    for name in probed:
        found = PROBED[name](frameworks, quick)
        show(found)
        lines += found
    for n, peak in sorted(peaks.items()):
        print(f"peak: the best product of two large squares on {n} threads, {peak:.0f} GFLOP/s")
    print(f"machine: {', '.join(f'{name} {value}' for name, value in machine().items())}")
    return {"lines": lines, "cases": details, "peaks": peaks}


def machine() -> dict[str, Any]:
    """What the figures hold for: the processor by LLVM's name, its widest vectors, cores and versions."""
    has = llvm.get_host_cpu_features()
    vectors = next((name for name in ("avx512f", "avx2", "neon") if has.get(name)), "no wide vectors")
    packages = [name for name in ("numpy", "numba", "torch") if find_spec(name) is not None]
    return {
        "processor": llvm.get_host_cpu_name(),
        "with": vectors,
        "cores": os.cpu_count(),
        "Python": platform.python_version(),
    } | {name: metadata.version(name) for name in packages}


def check_file(parser: argparse.ArgumentParser, path: Path) -> None:
    """Refuse a file that cannot be written, before anything is measured."""
    there = path.exists()
    try:
        path.open("a").close()  # whether it may, only trying tells
    except OSError as error:
        parser.error(f"--json {path}: {error.strerror}; name another")
    if not there:
        path.unlink()


def main() -> None:
    parser = ending.Parser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    rows = [*dict.fromkeys(row.benchmark for row in TIMED + EXTRA), *PROBED]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(rows))
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="for every rival (default: all)")
    parser.add_argument("--rounds", type=int, help=f"default: {ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, no main job: three minutes for all rows, not ten"
    )
    parser.add_argument(
        "--all", action="store_true", help="with --quick the main job as well, two minutes more"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.rows[0], options.worker, options.threads)
        return
    unknown = set(options.rows) - set(rows)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; choose among {', '.join(rows)}")
    if options.json:
        check_file(parser, options.json)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    result = run(options.rows, options.all, options.quick, options.threads, rounds)
    if options.json:
        result |= {"threads": options.threads, "rounds": rounds, "machine": machine()}
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(ending.run(main))
