"""Data-parallel training: every process of an MPI run computes its share of each batch.

Started by mpirun, a Trainer finds the other ranks here, through mpi4py; alone, it finds one rank, and nothing
of MPI is loaded. How gradients are added up is told in buckets.py, how a rank learns that another is gone in
peers.py.
"""

from __future__ import annotations

import functools
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any

import numpy as np

from microtensor import random
from microtensor.engine import Array
from microtensor.mode import no_grad
from microtensor.random import default_generator
from microtensor.tensor import Tensor
from microtensor.train.buckets import Buckets
from microtensor.train.peers import Peers
from microtensor.train.start import start_limit

__all__ = ["World", "tensors_in", "world"]


class World:
    """The ranks of a run as one of them sees it; this class is a process alone.

    rank: our number, from 0; size: how many there are; is_writer: whether we write checkpoints, log and
    progress. seconds: what we spent on gradients and totals of all ranks, waiting included. overlap: sums of
    gradients begin during backward; False is there to see what that is worth.

    Raises: nothing; under mpirun, the methods of the ranks raise RuntimeError naming a rank that is gone.
    Source: ours; the names are MPI's.
    """

    rank, size, is_writer, seconds = 0, 1, True, 0.0
    overlap = True

    def share(self, batches: Any) -> tuple[Any, float]:
        """Our part of the next batch of all ranks, and what fraction of it that is.

        Raises: StopIteration after the last batch; among several ranks, ValueError for tensors of unequal
        lengths.
        Source: ours.
        """
        return next(batches), 1.0

    def own_random(self) -> AbstractContextManager[Callable[[], Any]]:
        """Around the forward of our part: each rank draws other numbers, and dropout those of our rows.

        It gives what may stand around the same forward again.
        Source: ours.
        """
        return nullcontext(nullcontext)

    def backward(self, loss: Tensor, stepped: list[Tensor], unit: float, last: bool) -> None:
        """loss.backward(), the last one of a step or not: gradients may leave for the other ranks.

        Raises: as `Tensor.backward`.
        Source: Li et al. 2020, "PyTorch Distributed", §3.2.
        """
        loss.backward()

    def average(
        self, stepped: list[Tensor], loss: float, n: float, unit: float, counted: bool
    ) -> tuple[float, float]:
        """Turn .grads from a rank's Σ nᵢ·gᵢ / unit into all ranks' Σ nᵢ·gᵢ / Σ nᵢ; gives mean, Σ n.

        counted: whether n is of tokens, not of rows.
        Raises: among several ranks, TypeError if they differ in `counted`, RuntimeError if they drew other
        batches.
        Source: ours; the sums are MPI's Allreduce.
        """
        if n and n != unit:
            with no_grad():
                for p in stepped:
                    if p.grad is not None:
                        p.grad.mul_(unit / n)
        return loss, n

    def any(self, flag: bool) -> bool:
        """Whether it is set on some rank.

        Raises: TypeError for a flag that is neither a bool nor an integer.
        Source: ours; MPI's Allreduce.
        """
        return flag

    def check_equal(self, digests: Callable[[], Mapping[str, str]]) -> None:
        """Look whether all ranks have these; a process alone has.

        Raises: RuntimeError naming what differs between which ranks.
        Source: ours.
        """

    def running(self, way_on: Callable[[], str]) -> AbstractContextManager[None]:
        """Around training: when a rank ends in it, the others learn why. way_on() says how to go on.

        Raises: among several ranks, RuntimeError naming the one that is gone.
        Source: ours.
        """
        return nullcontext()


class _Ranks(World):
    """One of several ranks; `communicator` is mpi4py's."""

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi, self._all = mpi, communicator.Dup()
        # of gradients alone: their sums begin before the step's totals on some ranks, after them on others
        self._early = communicator.Dup()
        self.rank, self.size = self._all.rank, self._all.size
        self.is_writer = self.rank == 0
        self._peers = Peers(mpi, communicator.Dup())
        self._buckets: Buckets | None = None
        self._random: tuple[Any, Array] | None = None  # rank 0's state after the forward, on its way
        self._batches = 0  # a checksum of the batches of this step
        self._seconds = 0.0

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return self._seconds + (0.0 if self._buckets is None else self._buckets.seconds)

    def share(self, batches: Any) -> tuple[Any, float]:
        """Our rows of every tensor: a batch is divided along axis 0."""
        self._settle_random()
        batch = next(batches)
        tensors = [t for _, t in tensors_in(batch)]
        lengths = {len(t) for t in tensors}
        if len(lengths) != 1:
            raise ValueError(
                f"Trainer: the batch has tensors of shapes {[tuple(t.shape) for t in tensors]}, which "
                f"cannot be divided among {self.size} ranks; let axis 0 of each be the batch"
            )
        (B,) = lengths
        for t in tensors:  # of large ones the beginning
            text = np.ascontiguousarray(getattr(t, "array", t)[:8]).tobytes()[: 1 << 14]
            self._batches = zlib.crc32(text, self._batches)
        self._rows, part = _rows(B, self.rank, self.size)
        return _cut(batch, self._rows, B), part

    @contextmanager
    def own_random(self) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        again = functools.partial(_apart, self.rank, self._rows, default_generator.get_state())
        with again():
            yield again
        state = default_generator.get_state()
        self._random = self._all.Ibcast(state), state

    def _settle_random(self) -> None:
        """What is drawn for all, the order of the data, say, goes on where rank 0 stands."""
        if self._random is not None:
            request, state = self._random
            self._wait([request])
            default_generator.set_state(state)
            self._random = None

    def backward(self, loss: Tensor, stepped: list[Tensor], unit: float, last: bool) -> None:
        with self._for(stepped).filling(unit) if last and self.overlap else nullcontext():
            loss.backward()

    def average(
        self, stepped: list[Tensor], loss: float, n: float, unit: float, counted: bool
    ) -> tuple[float, float]:
        start = perf_counter()
        sums = np.zeros(3 + self.size)
        sums[:3], sums[3 + self.rank] = (loss * n if n else 0.0, n, counted), self._batches
        self._wait([self._add_up(sums)])
        self._seconds += perf_counter() - start
        self._batches = 0
        for rank, checksum in enumerate(sums[3:].tolist()):
            if checksum != sums[3]:
                raise RuntimeError(
                    f"Trainer: rank {rank} drew another batch than rank 0; draw data from generators "
                    f"that all ranks seed alike, and nothing from sets or from the clock"
                )
        total, n, counting = sums[:3].tolist()
        if counting not in (0, self.size):
            raise TypeError(
                f"Trainer: loss_fn counted the tokens on {counting:.0f} of {self.size} ranks; return "
                f"(loss, number of tokens) on all or on none"
            )
        self._settle_random()
        self._for(stepped).finish(unit, 1.0 / n if n else 0.0, self._wait)
        return total / n if n else math.nan, n

    def any(self, flag: bool) -> bool:
        flags = np.array([flag], np.int32)
        self._wait([self._add_up(flags)])
        return bool(flags[0])

    def check_equal(self, digests: Callable[[], Mapping[str, str]]) -> None:
        mine = dict(digests())
        for rank, other in enumerate(self._peers.exchange(mine)):
            differing = [name for name in mine if other.get(name) != mine[name]]
            if differing:
                raise RuntimeError(
                    f"Trainer: {' and '.join(differing)} of rank {rank} and rank {self.rank} differ; call "
                    f"mt.manual_seed before the model is built, seed all other generators, load the same file"
                )

    def running(self, way_on: Callable[[], str]) -> AbstractContextManager[None]:
        return self._peers.watched(way_on)

    def _for(self, stepped: list[Tensor]) -> Buckets:
        known = [] if self._buckets is None else self._buckets.parameters
        if self._buckets is None or [id(p) for p in known] != [id(p) for p in stepped]:
            self._seconds = self.seconds
            self._buckets = Buckets(stepped, self._add_up_early, self._agree)
        return self._buckets

    def _add_up(self, array: Array) -> Any:
        return self._all.Iallreduce(self._mpi.IN_PLACE, array)

    def _add_up_early(self, array: Array) -> Any:
        return self._early.Iallreduce(self._mpi.IN_PLACE, array)

    def _agree(self, array: Array) -> None:
        self._wait([self._all.Ibcast(array)])

    def _wait(self, requests: list[Any]) -> None:
        self._peers.wait(requests)


@contextmanager
def _apart(rank: int, rows: slice, state: Array) -> Iterator[None]:
    """Ranks other than 0, which draws what a process alone would, draw other numbers, but the same seeds."""
    seeds = default_generator
    if rank:
        seeds = random.Generator()
        seeds.set_state(state)
        own = np.random.SeedSequence([*state.tolist(), rank])
        default_generator.numpy = np.random.Generator(np.random.SFC64(own))
    random.apart = seeds, rows.start, rows.stop - rows.start
    try:
        yield
    finally:
        random.apart = None


def _rows(B: int, rank: int, n: int) -> tuple[slice, float]:
    """⌈rB/n⌉ … ⌈(r+1)B/n⌉ − 1 of B rows, and their part of all. A rank without any takes the first, as 0."""
    first, end = -(-rank * B // n), -(-(rank + 1) * B // n)
    return (slice(first, end), (end - first) / B) if first < end else (slice(0, 1), 0.0)


def tensors_in(batch: Any, name: str = "batch") -> Iterator[tuple[str, Any]]:
    """All tensors and arrays with an axis that stand in a batch, each after its place, "batch['x'][0]"."""
    if isinstance(batch, Tensor | np.ndarray):
        if batch.ndim:
            yield name, batch
        return
    inner = (
        batch if isinstance(batch, Mapping) else range(len(batch) if isinstance(batch, tuple | list) else 0)
    )
    for key in inner:
        yield from tensors_in(batch[key], f"{name}[{key!r}]")


def _cut(batch: Any, rows: slice, B: int) -> Any:
    """The same with those rows of each; a list of B other things, of texts say, is cut, too."""
    if isinstance(batch, Tensor | np.ndarray):
        return batch[rows] if batch.ndim else batch
    if isinstance(batch, Mapping):
        return {name: _cut(part, rows, B) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        if len(batch) == B and not list(tensors_in(batch)):
            return batch[rows]
        parts = [_cut(part, rows, B) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


@functools.cache
def world() -> World:
    """The ranks of this run: those that mpirun has started, or this process alone.

    Waits for all of them, up to MICROTENSOR_START_LIMIT seconds (300), then says so and is ended.
    Raises: ModuleNotFoundError if mpirun has started several and mpi4py is not installed.
    Source: ours.

    >>> world().rank, world().size, world().is_writer
    (0, 1, True)
    """
    size = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("PMI_SIZE", "1")  # Open MPI, MPICH
    if int(size) < 2:
        return World()
    with start_limit(int(size)):
        try:
            from mpi4py import MPI
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"train: mpirun has started {size} processes, but {error}, which "
                f"connects them; run pip install 'microtensor[mpi]'"
            ) from error
        return _Ranks(MPI, MPI.COMM_WORLD)
