"""profile: the block that is watched, its tables by op and by module, and its trace for a browser."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from microtensor.cost import readable
from microtensor.nn.module import Module
from microtensor.profiler.recorder import Call, Recorder, Span, enter, leave, now
from microtensor.train.files import write

__all__ = ["Row", "profile"]


@dataclass
class Row:
    """One line of a table: of an op, whose backward calls are its VJPs, or of a module. Seconds and bytes.

    Source: ours.
    """

    name: str
    calls: int = 0
    forward: float = 0.0
    flop: int = 0
    backward_calls: int = 0
    backward: float = 0.0
    backward_flop: int = 0
    made: int = 0  # by the forward: results and residuals that are no views of its inputs
    kept: int = 0  # for backward, and by no older op: as in `mt.tape`

    @property
    def seconds(self) -> float:
        """Forward and backward.

        Source: ours.
        """
        return self.forward + self.backward

    def add(self, span: Span) -> None:
        """Count an op's span.

        Source: ours.
        """
        if span.backward:
            self.backward_calls += not span.late
            self.backward += span.own / 1e9
            self.backward_flop += span.flop
        else:
            self.calls += 1
            self.forward += span.own / 1e9
            self.flop += span.flop
        self.made += span.made
        self.kept += span.kept


class profile:
    """Watch a block: `print(p)` says what its ops and modules took, `p.save("trace.json")` when they ran.

    An op's time is that of its forward or its VJP alone, without ops that these run on tensors. What ran in
    other threads is not seen. One object watches one block; blocks may lie in each other. A few steps are
    enough: every op is remembered, and takes some microseconds more ("profiler", in the last line).

    module: the paths are those below it; if not given, below the module that is called first.
    Raises: TypeError for what is no module; RuntimeError if it has been entered before.
    Source: ours; torch.profiler asks for more and says more.

    >>> import microtensor as mt
    >>> x = mt.ones(100, 100, requires_grad=True)
    >>> with mt.profile() as p:
    ...     (x @ x).sum().backward()
    >>> sorted((row.name, row.calls, row.backward_calls, row.flop) for row in p.rows())
    [('matmul', 1, 1, 2000000), ('sum', 1, 1, 10000)]
    """

    def __init__(self, module: Module | None = None) -> None:
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"profile: the module is {type(module).__name__}; give an nn.Module, or nothing")
        self._module = module
        self._recorder: Recorder | None = None
        self._spans: list[Span] = []
        self._start = self._end = self._own = self._first = 0

    def __enter__(self) -> profile:
        if self._recorder is not None:
            raise RuntimeError("profile: it has been entered before; make another one, mt.profile()")
        self._recorder = recorder = enter(self)
        if self._module is not None:
            recorder.path_of(self._module)
        self._first, self._own, self._start = len(recorder.spans), recorder.own, now()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end = now()
        recorder = self._recorder
        assert recorder is not None
        self._spans, self._own = self._heard(recorder), recorder.own - self._own
        leave(self, recorder)

    def _heard(self, recorder: Recorder) -> list[Span]:
        return [span for span in recorder.spans[self._first :] if span.start >= self._start]

    def _finished(self, who: str) -> list[Span]:
        if not self._end:
            raise RuntimeError(f"profile.{who}: its block has not ended; ask after `with mt.profile() as p:`")
        return self._spans

    # --- tables ---------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """How long the block took.

        Raises: RuntimeError while it runs.
        Source: ours.
        """
        self._finished("seconds")
        return (self._end - self._start) / 1e9

    def rows(self, by: str = "op") -> list[Row]:
        """What each op took, or each module with all that it calls; longest first.

        by: "op" or "module". An op outside any module counts for none.
        Raises: ValueError for another `by`; RuntimeError while the block runs.
        Source: ours; PyTorch's key_averages is such a list.
        """
        if by not in ("op", "module"):
            raise ValueError(f'profile.rows: by is {by!r}; choose "op" or "module"')
        rows: dict[str, Row] = {}
        for span in self._finished("rows"):
            if span.kind == "op":
                paths = {call.path for call in span.call.chain()} if span.call else set()
                for name in [span.name] if by == "op" else paths:
                    rows.setdefault(name, Row(name)).add(span)
        if by == "module":
            calls = Counter(span.name for span in self._spans if span.kind == "module")
            rows |= {name: rows.get(name, Row(name)) for name in calls}
            for name, row in rows.items():
                row.calls, row.backward_calls = calls[name], 0
        return sorted(rows.values(), key=lambda row: (-row.seconds, row.name))

    def table(self, by: str = "op", limit: int | None = None) -> str:
        """`rows(by)` as text, the first `limit` of them. GFLOP/s and shares are of the time in that row.

        FLOP are the forward's, counted as in `mt.tape`. A VJP is taken to need as many, a product one product
        for each gradient.
        Raises: ValueError for another `by` or a limit that is no integer of 1 or more; RuntimeError while the
        block runs.
        Source: ours; PyTorch's key_averages().table() is such a text.
        """
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
            raise ValueError(f"profile.table: limit is {limit!r}; give an integer of 1 or more, or None")
        rows = self.rows(by)
        head = [by, "calls", "forward", "GFLOP/s", "calls", "backward", "GFLOP/s", "time", "share", "FLOP",
                "made", "kept"]  # fmt: skip
        lines = [head]
        for r in rows[:limit]:
            lines.append([
                r.name, str(r.calls), _time(r.forward), _rate(r.flop, r.forward),
                "" if by == "module" else str(r.backward_calls), _time(r.backward),
                _rate(r.backward_flop, r.backward), _time(r.seconds), self._share(r.seconds),
                readable(r.flop), readable(r.made, "B"), readable(r.kept, "B"),
            ])  # fmt: skip
        columns = [c for c in zip(*lines, strict=True) if any(c[1:])]
        widths = [max(map(len, c)) for c in columns]
        text = ["  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])])
                for cells in zip(*columns, strict=True)]  # fmt: skip
        if len(rows) > len(lines) - 1:
            rest = rows[len(lines) - 1 :]
            of = f", {_time(sum(r.seconds for r in rest))}" if by == "op" else ""
            text.append(f"… and {len(rest)} more{of}")
        return "\n".join(text)

    def _share(self, seconds: float) -> str:
        return f"{100 * seconds / self.seconds:.1f} %"

    def __repr__(self) -> str:
        if not self._end:
            return "<profile, running>" if self._recorder is not None else "<profile, not entered yet>"
        tables = [self.table("op", 20)] + [self.table("module", 30)] * bool(self.rows("module"))
        return "\n\n".join([*tables, self._total()])

    def _total(self) -> str:
        """Where all of the time went; what is left over is nobody's."""
        ops = sum(row.seconds for row in self.rows())
        parts = [("ops", ops)]
        for name in sorted({s.name for s in self._spans if s.kind == "step"}):
            own = sum(s.own for s in self._spans if s.kind == "step" and s.name == name)
            parts.append((name, own / 1e9))
        parts.append(("profiler", self._own / 1e9))
        left = self.seconds - sum(seconds for _, seconds in parts)
        parts.append(("Python between the ops, sums of gradients, and what is no op", left))
        told = "".join(f"\n  {_time(t):>8}  {self._share(t):>6}  {name}" for name, t in parts)
        return f"{_time(self.seconds)} in all{told}"

    # --- the trace ------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON, in one step, for ui.perfetto.dev or chrome://tracing to show.

        Ops lie in the calls of their modules, forward and backward; a module's backward lasts from the first
        to the last of its VJPs.
        Raises: RuntimeError while the block runs; OSError if the file cannot be written.
        Source: ours; the format is Chrome's Trace Event Format.
        """
        spans, recorder = self._finished("save"), self._recorder
        assert recorder is not None
        place = {"pid": os.getpid(), "tid": recorder.thread}
        # who lasts as long as what lies in it comes before it
        events = [*reversed([*_backward_of_modules(spans)]), *map(_event, spans)]
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        for event in events:
            begin, duration = event["ts"] - self._start, event["dur"]
            event |= {"ph": "X", "ts": begin / 1e3, "dur": duration / 1e3, **place}  # µs
        named = {"name": "process_name", "ph": "M", "args": {"name": "microtensor"}, **place}
        trace = {"displayTimeUnit": "ms", "traceEvents": [named, *events]}
        write("profile.save", path, json.dumps(trace).encode())


def _event(span: Span) -> dict[str, Any]:
    args: dict[str, Any] = {}
    if span.kind == "op":
        args = {"output": span.shape, "inputs": span.shapes, "FLOP": span.flop, "made": span.made,
                "kept": span.kept, "module": span.call.path if span.call else ""}  # fmt: skip
    name = f"{span.name} backward" if span.backward else span.name
    category = f"{span.kind}, backward" if span.backward else span.kind
    return {"name": name, "cat": category, "ts": span.start, "dur": span.end - span.start, "args": args}


def _backward_of_modules(spans: Iterable[Span]) -> Iterator[dict[str, Any]]:
    """A module call's backward: VJPs of one walk that come one after the other."""
    open_: list[tuple[Call, int]] = []  # (call, when its backward began), outermost first
    above, index, end, level = None, -1, 0, None

    def close(depth: int) -> Iterator[dict[str, Any]]:
        while len(open_) > depth:
            call, start = open_.pop()
            yield {"name": f"{call.path} backward", "cat": "module, backward", "ts": start,
                   "dur": end - start, "args": {}}  # fmt: skip

    for span in sorted(spans, key=lambda s: s.start):
        if above is not None and _within(span, above):
            continue  # ops that a VJP runs
        chain = span.call.chain() if span.backward and span.call else []
        again = span.index > index or (span.index == index and not span.late)  # a walk goes from new to old
        depth = 0 if again or not span.backward or span.above is not level else _common(open_, chain)
        yield from close(depth)
        open_ += [(call, span.start) for call in chain[depth:]]
        level = span.above
        above, index, end = (span, span.index, span.end) if span.backward else (None, -1, 0)
    yield from close(0)


def _within(span: Span, outer: Span) -> bool:
    return outer.start <= span.start < outer.end


def _common(open_: list[tuple[Call, int]], chain: list[Call]) -> int:
    depth = 0
    while depth < min(len(open_), len(chain)) and open_[depth][0] is chain[depth]:
        depth += 1
    return depth


def _time(seconds: float) -> str:
    """12.3 ms, say: three digits, and nothing for nothing."""
    if not seconds:
        return ""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if abs(seconds) * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _rate(flop: int, seconds: float) -> str:
    return f"{flop / seconds / 1e9:.2f}" if flop and seconds > 0 else ""
