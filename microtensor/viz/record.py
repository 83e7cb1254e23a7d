"""What a layer says about its forward: names and axes of tensors (`tag`), lines of its paper (`fold`).

It is heard only inside `recording()`, which `draw(module, ...)` enters for its one forward; otherwise each
call looks whether anybody listens, and returns. The engine knows nothing of this: a block is told by the
clock that numbers entries.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from microtensor.place import clock
from microtensor.viz import symbols

__all__ = ["Axis", "Recorder", "Span", "Tag", "current", "fold", "is_recording", "opens_fused", "recording",
           "tag"]  # fmt: skip


class Axis(NamedTuple):
    """What a module calls an axis of a tensor."""

    path: str
    name: str
    size: int


@dataclass
class Tag:
    """A tensor's symbol and the names of its axes. `of` is what a derived constant stands for."""

    tensor: Any  # kept alive, so that the id it is found by stays its own
    symbol: str | None
    axes: tuple[Axis, ...]
    transposed: bool = False
    of: Any = None
    path: str = ""  # of the module that said so

    @property
    def array(self) -> Any:
        """The values that the symbol means in a formula: of `of` if given, transposed if the symbol is."""
        array = (self.tensor if self.of is None else self.of).array
        return array.mT if self.transposed else array


@dataclass
class Span:
    """A block of the forward: entries with start ≤ index < end were made inside it.

    kind: "fold" (one node at level equations), "frame" (a cluster around folds) or "module" (a cluster at
    level ops). `names` binds the names in the texts to tensors, numbers, or None for what is absent.
    """

    kind: str
    key: str
    path: str  # of the module whose forward ran
    start: int
    end: int = -1
    texts: tuple[str, ...] = ()
    lane: str | None = None
    title: str | None = None
    index: int | None = None  # of a frame that is one of several: head 1, head 2 …
    within: int | None = None  # index of the frame around it
    constants: tuple[str, ...] = ()  # formulas of numbers that occur inside
    names: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """Tags by tensor, spans in the order in which they were opened."""

    def __init__(self, *, opens: bool = True) -> None:
        self.opens = opens  # fused ops, or does it want what training records?
        self.tags: dict[int, Tag] = {}  # by the id of an entry or leaf tensor
        self.spans: list[Span] = []
        self.numbered: list[Span] = []  # frames with an index that are open, innermost last
        self.same: list[tuple[Axis, Axis]] = []  # of tensors that were tagged twice
        self.paths: list[str] = []  # the modules whose forward is running, outermost first
        self.parameters: dict[int, str] = {}  # id of a parameter → its path in the module drawn
        self.inputs: dict[int, tuple[str, Any]] = {}  # id of an input of the module → (argument's name, it)

    def add(self, tag: Tag) -> None:
        """Keep a tag. A tensor's first symbol stays (the outer layer's); names of its axes mean the same."""
        node = tag.tensor if tag.tensor.grad_fn is None else tag.tensor.grad_fn
        before = self.tags.setdefault(id(node), tag)
        if before is tag:
            return
        before.symbol = before.symbol or tag.symbol
        self.same += zip(before.axes, tag.axes, strict=False)
        before.axes = before.axes or tag.axes

    def open(self, kind: str, key: str, **details: Any) -> Span:
        """Begin a span now: every entry made from now on is newer than this tick of the clock."""
        span = Span(kind, key, self.paths[-1] if self.paths else "", next(clock), **details)
        span.within = self.numbered[-1].index if self.numbered else None
        self.spans.append(span)
        if span.index is not None:
            self.numbered.append(span)
        return span

    def close(self, span: Span) -> None:
        """End a span now."""
        span.end = next(clock)
        if span.index is not None:
            self.numbered.pop()

    def symbol(self, symbol: str | None) -> str | None:
        """A symbol as the frame around it numbers it: S in head 2 is S_2."""
        if symbol is None or not self.numbered:
            return symbol
        frame = self.numbered[-1]
        return symbols.indexed(frame.names.get(symbol, symbol), str(frame.index))


class _State(threading.local):
    recorder: Recorder | None = None


_state = _State()


def current() -> Recorder | None:
    """The recorder that listens in this thread, if any."""
    return _state.recorder


def is_recording() -> bool:
    """Does anybody listen to `tag` and `fold` in this thread?

    Source: ours.
    """
    return _state.recorder is not None


def opens_fused() -> bool:
    """Shall a layer compute by the lines of its paper what it has a kernel for, because they are drawn?

    Source: ours.
    """
    return _state.recorder is not None and _state.recorder.opens


@contextlib.contextmanager
def recording(*, opens: bool = True) -> Iterator[Recorder]:
    """Listen to `tag` and `fold` in this thread; `draw(y)` inside the block uses what was said.

    opens: are fused ops opened, so that each line of the paper is drawn? False: what training records.

    Source: ours.

    >>> import microtensor as mt
    >>> from microtensor import viz
    >>> with viz.recording():
    ...     x = mt.ones(2, requires_grad=True)
    ...     viz.tag(x, "x", axes="n")
    ...     print(viz.draw(x * x).dot.splitlines()[0])
    digraph "graph_equations" {
    """
    before, _state.recorder = _state.recorder, Recorder(opens=opens)
    try:
        yield _state.recorder
    finally:
        _state.recorder = before


def tag(
    tensor: Any, symbol: str | None, *, axes: str | None = None, transposed: bool = False, of: Any = None
) -> None:
    """Call the tensor `symbol` in drawings, its axes by the names in `axes` ("B h n d_k"). None is ignored.

    A tensor tagged twice keeps its first symbol, and the two names of an axis mean one: the query of
    self-attention, tagged "B n_q d", is its key, tagged "B n_k d", so both are n.

    symbol: written as W^Q, b_K, W_1^Q; None names the axes alone.
    transposed: the symbol means the transpose, as W^Q does of a weight stored (out, in); so do the axes.
    of: the tensor that a constant was derived from without a gradient, and is drawn as (a mask, negated); a
        symbol that it has already stays.

    Raises: ValueError if the number of axes is not the tensor's.
    Source: ours; the symbols are the lecture's.
    """
    if (recorder := _state.recorder) is None or tensor is None:
        return
    names = (axes or "").split()
    shown = tensor if of is None else of
    if axes is not None and len(names) != shown.ndim:
        raise ValueError(
            f"tag: {symbol} has shape {shown.shape}, but axes={axes!r} names {len(names)} axes; "
            f"name each axis once"
        )
    path = recorder.paths[-1] if recorder.paths else ""
    known = recorder.tags.get(id(of))
    called = recorder.symbol(symbol) if of is None else known.symbol if known is not None else symbol
    names[-2:] = names[-2:][:: -1 if transposed else 1]  # as they are stored
    own = tuple(Axis(path, name, size) for name, size in zip(names, shown.shape, strict=False))
    recorder.add(Tag(tensor, called, own, transposed, of, path))


class _Nothing:
    """What `fold` returns when nobody listens: a block that does nothing and is made once."""

    __slots__ = ()

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None: ...

    def names(self, **names: Any) -> None: ...


_nothing = _Nothing()


class _Block:
    """A span that is open while the block runs."""

    def __init__(self, recorder: Recorder, details: dict[str, Any]) -> None:
        self.recorder, self.details = recorder, details

    def __enter__(self) -> _Block:
        self.span = self.recorder.open(**self.details)
        return self

    def __exit__(self, *exception: object) -> None:
        self.recorder.close(self.span)

    def names(self, **names: Any) -> None:
        """What names in the texts are that the block makes itself: a head's part of a weight."""
        self.span.names.update(names)


def fold(
    key: str,
    *texts: str,
    lane: str | None = None,
    title: str | None = None,
    index: int | None = None,
    constants: tuple[str, ...] = (),
    **names: Any,
) -> _Nothing | _Block:
    """What is computed inside the block is one node at level equations: `with viz.fold("scores", ...):`.

    texts: the equation ("S = Q @ K.mT / sqrt(d_k)"), then its gradients ("dQ = dS @ K / sqrt(d_k)"), as
        Python expressions: they are printed in labels and evaluated in tests. Without a text the block is a
        frame around the folds inside it, with `title` as its label; {h} there is the size of axis h.
    lane: colour and column, one of Q, K, V, S (scores and weights of attention), O (output path).
    index: of a frame that is one of several: what is named and folded in it is numbered (S_1, head 1).
    constants: formulas of numbers inside, in names of axes ("1 / sqrt(d_k)"): an op that was given the number
        shows the formula.
    names: what the names in the texts are: tensors, numbers, or None for a term that is absent; in a frame,
        other symbols for those that are given inside it (H="head").

    Source: ours; the equations are the lecture's.
    """
    if (recorder := _state.recorder) is None:
        return _nothing
    kind = "fold" if texts else "frame"
    details = {"kind": kind, "key": key, "texts": texts, "lane": lane, "title": title, "index": index}
    return _Block(recorder, {**details, "names": names, "constants": constants})
