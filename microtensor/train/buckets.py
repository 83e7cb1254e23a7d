"""Gradients added up over ranks in buckets, each sent off during backward as soon as it is full.

Nothing of MPI is known here: two functions that are given do what concerns all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from time import perf_counter
from typing import Any

import numpy as np

from microtensor.engine import Array, Entry
from microtensor.mode import Block
from microtensor.place import mark_changed
from microtensor.tensor import Tensor, as_tensor

__all__ = ["Buckets"]

BUCKET = 1 << 20  # bytes from which a bucket is full: below, the start of a sum costs more than the sum


class Buckets:
    """Σ of each parameter's gradients over all ranks; which bucket it lies in is decided in the first step.

    add_up(array) begins the sum of an array over all ranks, in place, and returns a request; its Test() says
    whether it is done, and drives it on. agree(array) copies rank 0's array to all ranks. All must begin the
    same sums in the same order, so a bucket that is full early waits for those before it.

    Source: Li et al. 2020, "PyTorch Distributed", §3.2. Differs: buckets follow the arrival of rank 0
    in the first step, not the order of registration; the first step overlaps nothing.
    """

    def __init__(
        self, parameters: list[Tensor], add_up: Callable[[Array], Any], agree: Callable[[Array], object]
    ):
        self.parameters, self._add_up, self._agree = parameters, add_up, agree
        self._number = {p: i for i, p in enumerate(parameters)}
        self._arrived: list[int] = []  # in the first step, in this order
        self._buckets: list[_Bucket] = []
        self._place: dict[int, tuple[_Bucket, int]] = {}  # of a parameter: its bucket and the place in it
        self._begun = 0  # buckets whose sum has begun in this step
        self._requests: list[Any] = []
        self._factor = 1.0
        self.seconds = 0.0  # spent here, in all steps: copies, sums, waiting

    @contextmanager
    def filling(self, factor: float) -> Iterator[None]:
        """Around the last backward of a step: factor · gradient, .grad and what is added to it, is summed."""
        self._factor = factor
        with Block(complete=self):
            yield

    def due(self, entries: Iterable[Entry]) -> list[tuple[int, Tensor]]:
        """(index of the oldest entry that uses it, leaf): past it a gradient is complete. Oldest first."""
        oldest: dict[Tensor, int] = {}
        stack = list(entries)
        seen = set(stack)
        while stack:
            entry = stack.pop()
            for node in entry.inputs:
                if type(node) is Entry:
                    if node not in seen:
                        seen.add(node)
                        stack.append(node)
                elif isinstance(node, Tensor):
                    oldest[node] = min(entry.index, oldest.get(node, entry.index))
        return sorted(((index, leaf) for leaf, index in oldest.items()), key=itemgetter(0))

    def __call__(self, leaf: Tensor, g: Array) -> None:
        """The walk has completed the gradient of a leaf."""
        start, i = perf_counter(), self._number.get(leaf)
        if i is not None and not self._buckets:
            self._arrived.append(i)
        elif i is not None:
            bucket, place = self._place[i]
            bucket.put(place, leaf.grad, g, self._factor)
            self._send(full=True)
        self.seconds += perf_counter() - start

    def finish(self, factor: float, scale: float, wait: Callable[[list[Any]], None]) -> None:
        """Every .grad becomes scale · Σ over ranks of its factor · gradient; None where no rank has one."""
        start = perf_counter()
        if not self._buckets:
            self._arrange()
        for bucket in self._buckets:
            for place, p in enumerate(bucket.parameters):
                if place in bucket.missing:  # its last use is not before another's, or it has none
                    bucket.put(place, p.grad, None, factor)
        self._send(full=False)
        wait(self._requests)
        for bucket in self._buckets:
            bucket.deliver(scale)
        self._begun, self._requests = 0, []
        self.seconds += perf_counter() - start

    def _send(self, full: bool) -> None:
        """Begin the sums that are next, if their buckets are full or need not be; drive on the others."""
        while self._begun < len(self._buckets) and not (full and self._buckets[self._begun].missing):
            self._requests.append(self._add_up(self._buckets[self._begun].array))
            self._begun += 1
        self._requests = [request for request in self._requests if not request.Test()]

    def _arrange(self) -> None:
        """Fill buckets in the order of arrival on rank 0, each of one dtype."""
        never = [i for i in range(len(self.parameters)) if i not in set(self._arrived)]
        order = np.array(self._arrived + never, np.int64)
        self._agree(order)
        open_: dict[Any, list[int]] = {}
        groups: list[list[int]] = []
        for i in order.tolist():
            group = open_.setdefault(self.parameters[i].dtype, [])
            group.append(i)
            if sum(self.parameters[j].array.nbytes for j in group) >= BUCKET:
                groups.append(open_.pop(self.parameters[i].dtype))
        for group in [*groups, *open_.values()]:
            bucket = _Bucket([self.parameters[i] for i in group])
            self._buckets.append(bucket)
            self._place |= {i: (bucket, place) for place, i in enumerate(group)}


class _Bucket:
    """Gradients in one array, and behind them for each the number of ranks that have one."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters = parameters
        ends = np.cumsum([p.numel() for p in parameters]).tolist()
        self.array = np.zeros(ends[-1] + len(parameters), parameters[0].dtype)
        pieces = zip(np.split(self.array, ends), parameters)  # noqa: B905 (behind them lie the numbers)
        self._pieces = [piece.reshape(p.shape) for piece, p in pieces]
        self._present = self.array[ends[-1] :]
        self.missing = set(range(len(parameters)))

    def put(self, place: int, grad: Tensor | None, g: Array | None, factor: float) -> None:
        """factor · (grad + g), of which both may be missing."""
        piece = self._pieces[place]
        addends = [array for array in (None if grad is None else grad.array, g) if array is not None]
        self._present[place] = bool(addends)
        if addends:
            np.multiply(sum(addends[1:], addends[0]), factor, out=piece)
        else:
            piece[...] = 0
        self.missing.discard(place)

    def deliver(self, scale: float) -> None:
        """The sums become gradients, and the bucket is empty again."""
        for p, piece, present in zip(self.parameters, self._pieces, self._present.tolist(), strict=True):
            if not present:
                continue
            if p.grad is None:
                p.grad = as_tensor(np.empty_like(piece))
            np.multiply(piece, scale, out=p.grad.array)
            mark_changed("Trainer", p.grad.version)
        self.missing = set(range(len(self.parameters)))
