"""How a rank learns that another one is gone, instead of waiting for it for ever.

A rank that fails says so to all others before it ends, and so does one that comes to its end. One that is
killed cannot; the others of its machine see that its process is no more. mpirun ends what is left of a run,
too, but half a second after the death, and without a word about how to go on.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from microtensor.train.process import Process, this_process

__all__ = ["Peers"]

SPIN, NAP, LOOK = 0.001, 0.0001, 0.05  # seconds: of waiting without sleep, of sleep, between looks at others
PATIENCE = 3.0  # seconds that a rank of a failed run gives the others to say why
FAILED, LEAVING = 1, 2  # tags: this rank, or one that it heard of, has failed; it comes to its end


class _Lost(RuntimeError):
    """Another rank is gone: the text says which, and why."""


class Peers:
    """The other ranks of a run: are they there? The communicator is used for nothing else.

    Messages are JSON, nothing is pickled.
    """

    def __init__(self, mpi: Any, communicator: Any) -> None:
        self._mpi, self._news = mpi, communicator
        self.rank, self.size = communicator.rank, communicator.size
        self._others = [rank for rank in range(self.size) if rank != self.rank]
        self._here: dict[int, Process] = {}  # those of this machine
        self._lost: dict[int, str] = {}  # the first rank that failed: why
        self._left: set[int] = set()
        self._sent: list[tuple[Any, Any]] = []  # requests, and what must live as long as they
        self._told = False
        me = this_process()
        for rank, fields in enumerate(self.exchange(dataclasses.asdict(me))):
            if rank != self.rank and fields["host"] == me.host:
                self._here[rank] = Process(**fields)
        atexit.register(self._leave)

    def exchange(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        """The values of all ranks, in their order; all must call it."""
        mine = np.frombuffer(json.dumps(value).encode(), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self.wait([self._news.Iallgather(np.array([mine.size]), sizes)])
        texts = np.empty(int(sizes.sum()), np.uint8)
        self.wait([self._news.Iallgatherv(mine, [texts, sizes.tolist()])])
        return [json.loads(text.tobytes()) for text in np.split(texts, np.cumsum(sizes)[:-1])]

    def wait(self, requests: list[Any]) -> None:
        """Until all are done. After a while it leaves the core to others, and looks whether the ranks live.

        Raises: RuntimeError naming a rank that is gone.
        """
        begun = time.monotonic()
        looked = begun
        while not self._mpi.Request.Testall(requests):
            now = time.monotonic()
            if now - looked > LOOK:
                self._look(needed=True)
                looked = now
            if now - begun > SPIN:
                time.sleep(NAP)

    @contextmanager
    def watched(self, way_on: Callable[[], str]) -> Iterator[None]:
        """Around what ranks do together: an error here is told to the others, theirs becomes one here."""
        if self._lost:
            raise RuntimeError(f"Trainer: {self._said()}; start mpirun again")
        before: Any = signal.getsignal(signal.SIGTERM)
        ours = callable(before) and threading.current_thread() is threading.main_thread()

        def terminated(number: int, frame: Any) -> None:
            self._look()  # mpirun ends us if another rank is gone
            before(number, frame)

        if ours:
            signal.signal(signal.SIGTERM, terminated)
        try:
            yield
        except _Lost as lost:
            self._tell()
            raise RuntimeError(f"Trainer: {lost}, so rank {self.rank} ends; {way_on()}") from None
        except BaseException as error:
            self._lost = self._lost or {self.rank: f"failed with {type(error).__name__}: {error}"}
            self._tell()
            error.add_note(f"on rank {self.rank} of {self.size}: {way_on()}")
            raise
        finally:
            if ours:  # of a run that has failed, mpirun's signal shall not cut off what is said
                signal.signal(signal.SIGTERM, signal.SIG_IGN if self._lost else before)

    def _said(self) -> str:
        (rank, why), *_ = self._lost.items()
        return f"rank {rank} of {self.size} {why}"

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            (rank, why), *_ = self._lost.items()
            self._send(FAILED, {"rank": rank, "why": why})

    def _send(self, tag: int, value: dict[str, Any]) -> None:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        self._sent += [(self._news.Isend(text, rank, tag), text) for rank in self._others]

    def _look(self, needed: bool = False) -> None:
        """Hear what others have said, and see who of this machine is gone; needed: or has come to its end."""
        self._hear()
        for rank in [] if self._lost else self._others:
            if rank in self._here and rank not in self._left and not self._here[rank].alive():
                self._lost[rank] = (
                    f"is gone (its process {self._here[rank].pid} was killed, or ended at once)"
                )
            elif needed and rank in self._left:
                self._lost[rank] = "came to its end while others were training"
        if self._lost:
            raise _Lost(self._said())

    def _hear(self) -> None:
        status = self._mpi.Status()
        # a matched probe: a signal's handler that looks in between finds the next message, not the same
        while message := self._news.Improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status):
            text = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
            tag, source = status.tag, status.source
            message.Recv(text)
            said = json.loads(text.tobytes())
            if tag == LEAVING:
                self._left.add(source)
            elif not self._lost:
                self._lost[said["rank"]] = said["why"]

    def _leave(self) -> None:
        """The end of the process: those who wait for us hear of it, and we let them finish.

        MPI's own end waits for all ranks, for ever if one is gone, and it spins. After a failure the run is
        aborted, as soon as all have told their users why.
        """
        if self._mpi.Is_finalized():
            return
        self._send(LEAVING, {})
        begun = time.monotonic()
        while len(self._left) < self.size - 1:
            with suppress(_Lost):
                self._look()
            if self._lost and time.monotonic() - begun > PATIENCE:
                break
            time.sleep(NAP * 50)
        if self._lost:
            sys.stderr.flush()
            self._news.Abort(1)
        self._mpi.Request.Waitall([request for request, _ in self._sent])
