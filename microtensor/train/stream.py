"""Batches without end from a loader of one epoch, with a position to go on from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["BatchStream"]


class BatchStream:
    """Iterates over a loader again and again. Its state is the loader's, if that has one, else a count.

    A loader without state_dict is read from the start of an epoch up to its position when it resumes, so its
    order must not depend on anything but generators that are restored afterwards.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader: Any = loader
        self._iterator: Iterator[Any] | None = None
        self._taken = 0  # batches of the present epoch

    def __next__(self) -> Any:
        # three tries: the end of an epoch, the empty rest of one that a loader resumes, and a full one
        for _ in range(3):
            if self._iterator is None:
                self._iterator, self._taken = iter(self.loader), 0
            try:
                batch = next(self._iterator)
            except StopIteration:
                self._iterator = None
                continue
            self._taken += 1
            return batch
        raise ValueError(
            "Trainer: train_loader yields no batches; give one that can be iterated again each epoch"
        )

    @property
    def _keeps_state(self) -> bool:
        return hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")

    def state_dict(self) -> dict[str, Any]:
        """The loader's own state, or how many batches of the epoch were taken."""
        return (
            dict(self.loader.state_dict())
            if self._keeps_state
            else {"taken": self._taken if self._iterator else 0}
        )

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise ValueError if load_state_dict would; change nothing."""
        if self._keeps_state:
            getattr(self.loader, "check_state_dict", lambda _: None)(state_dict)
        elif set(state_dict) != {"taken"}:
            raise ValueError(
                "its loader kept a state and this one does not; make the loader as it was when saved"
            )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.check_state_dict(state_dict)
        self._iterator, self._taken = None, 0
        if self._keeps_state:
            self.loader.load_state_dict(state_dict)
        else:
            for _ in range(state_dict["taken"]):
                next(self)
