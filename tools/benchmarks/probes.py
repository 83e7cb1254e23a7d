"""What is measured once in a fresh process: memory, import, the time to the first step, the main job."""

from __future__ import annotations

import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from tools.benchmarks import cases

ROOT = Path(__file__).resolve().parent.parent.parent
LENGTHS = (1024, 2048, 4096)


def _peak() -> float:
    """The most memory this process has held, in MiB (ru_maxrss is in KiB on Linux, in bytes on macOS)."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def step_memory(rival: str, name: str) -> float:
    """MiB that three training steps add to the peak after the imports: weights, optimiser, tape, kernels."""
    cases.programs(rival)
    import_module("microtensor.kernels.gemm" if rival == "microtensor" else "torch")
    before = _peak()
    ((_, _, step),) = cases.BENCHMARKS[name](rival)
    for _ in range(3):
        step()
    return _peak() - before


def attention_memory(rival: str, length: str) -> float:
    """MiB that causal attention of T tokens, forward and backward, adds to the peak of one of 64 tokens."""
    program = cases.programs(rival)
    program.attention_step(cases.rng(), 64)  # compiles, warms up
    before = _peak()
    program.attention_step(cases.rng(), int(length))
    return _peak() - before


def first_step(rival: str) -> float:
    """0: what counts is how long the process took, from its start to the end of one step of nanoGPT."""
    ((_, _, step),) = cases.BENCHMARKS["nanogpt"](rival)
    step()
    return 0.0


PROBES: dict[str, Callable[..., float]] = {
    "memory": step_memory,
    "attention": attention_memory,
    "start": first_step,
}


def probe(name: str, rival: str, *rest: str) -> float:
    """What a probe finds in a process of its own."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tools.benchmarks.probes import PROBES; "
    code += f"print(PROBES[{name!r}](*{(rival, *rest)!r}))"
    return float(_run([sys.executable, "-c", code]).split()[-1])


def _run(command: list[str], cwd: str | None = None, **env: str) -> str:
    done = subprocess.run(command, env=os.environ | env, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"bench: {' '.join(command)[:200]} failed:\n{done.stderr}")
    return done.stdout


def _seconds(command: list[str], repeats: int, **env: str) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        _run(command, **env)
        times.append(time.perf_counter() - start)
    return min(times)


Line = dict[str, Any]


def line(row: str, ours: float, rival: float | None, unit: str, target: float, against: str = "") -> Line:
    """A line of the table: both numbers, their ratio (ours, against nobody) and what it should be at most."""
    ratio = ours / rival if rival is not None else None if against else ours
    return {"row": row, "ours": ours, "rival": rival, "unit": unit, "ratio": ratio, "target": target,
            "against": against, "ok": None if ratio is None else ratio <= target}  # fmt: skip


def memory(rivals: list[str], quick: bool) -> list[Line]:
    """Peak memory of training steps (ru_maxrss over that after the imports, in a fresh process)."""
    lines = []
    for name in ("nanogpt", "encoder-decoder", *(() if quick else ("10.7M",))):
        found = [probe("memory", rival, name) for rival in rivals]
        lines.append(line(f"peak memory {name}", found[0], _second(found), "MiB", 1.0, "torch"))
    return lines


def attention(rivals: list[str], quick: bool) -> list[Line]:
    """Peak memory of causal attention over its length, and the exponent with which it grows."""
    lines, sizes = [], [LENGTHS[0], LENGTHS[-1]] if quick else LENGTHS
    found = {rival: [probe("attention", rival, str(n)) for n in sizes] for rival in rivals}
    ours, theirs = found[rivals[0]], found[rivals[1]] if len(rivals) > 1 else None
    for i, n in enumerate(sizes):
        rival = None if theirs is None else theirs[i]
        lines.append(line(f"attention memory T={n}", ours[i], rival, "MiB", 1.0, "torch"))
    exponent = math.log(ours[-1] / ours[0]) / math.log(sizes[-1] / sizes[0])
    return [*lines, line("attention memory exponent", exponent, None, "", 1.2)]


def start(rivals: list[str], quick: bool) -> list[Line]:
    """Seconds of `import`, and from the start of a process to the end of its first training step.

    All have their bytecode, as pip leaves it, whatever PYTHONDONTWRITEBYTECODE says of this checkout.
    """
    python, repeats = [sys.executable, "-c"], 3 if quick else 9
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tools.benchmarks.probes import first_step; "
    steps = {rival: [*python, code + f"first_step({rival!r})"] for rival in rivals}
    imports = {m: [*python, f"import {m}"] for m in ("microtensor", "numpy")}
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as bytecode:
        env = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
        for command in (*steps.values(), *imports.values()):
            _run(command, **env)
        empty = _seconds(steps[rivals[0]], 1, **env, NUMBA_CACHE_DIR=cache)
        steps_took = {r: _seconds(step, repeats, **env, NUMBA_CACHE_DIR=cache) for r, step in steps.items()}
        took = {m: _seconds(command, repeats, **env) for m, command in imports.items()}
    warm = steps_took[rivals[0]]
    lines = [line("import, over NumPy's", took["microtensor"] - took["numpy"], None, "s", 0.1)]
    lines.append(line("start to first step, warm", warm, None, "s", 2.0))
    lines += [line("start to first step, empty cache", empty, None, "s", 25.0)]
    for rival in rivals[1:]:
        lines.append(line(f"start to first step, beside {rival}", warm, steps_took[rival], "s", 1.0, rival))
    return lines


def dates(rivals: list[str], quick: bool) -> list[Line]:
    """Seconds of the main job, examples/translate_dates.py in an empty folder, and the share it misreads."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        said = _run([sys.executable, str(ROOT / "examples" / "translate_dates.py")], cwd=folder)
        took = time.perf_counter() - begun
    (exact,) = re.findall(r"exact match on .* dates: ([\d.]+) %", said)
    misread = line("main job, misread dates", 100.0 - float(exact), None, "%", 2.0)
    return [line("main job", took, None, "s", 120.0), misread]


def _second(found: list[float]) -> float | None:
    return found[1] if len(found) > 1 else None
