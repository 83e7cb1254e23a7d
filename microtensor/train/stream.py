"""Batches without end from a loader of one epoch, with a position to go on from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from microtensor.train.generators import Generators, get_state, named_generators, random_faults, set_state

__all__ = ["BatchStream"]

END = object()


class BatchStream:
    """Iterates over a loader again and again. Its state is the loader's, if that has one.

    A loader without state_dict is started again when a run resumes, with the random states that its epoch
    began with, and read up to its position. It may draw from the default generator and from `generators`, not
    from others; the caller then puts back the random states of the checkpoint.
    """

    def __init__(self, loader: Iterable[Any], generators: Generators | None = None) -> None:
        self.loader: Any = loader
        self._generators: Generators = named_generators(generators)
        self._stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._iterator: Iterator[Any] | None = None
        self._start: dict[str, Any] = {}  # the random states when the epoch began
        self._taken = 0  # batches of this epoch

    def __next__(self) -> Any:
        # three tries: the end of an epoch, the empty rest of one that a loader resumes, and a full one
        taken = self._taken
        for _ in range(3):
            batch = next(self._begin() if self._iterator is None else self._iterator, END)
            if batch is not END:
                self._taken += 1
                return batch
            self._iterator = None
        raise ValueError(
            f"Trainer: train_loader, a {type(self.loader).__name__}, gave {taken} batches and then none; "
            f"give what can be iterated again, such as a list or a DataLoader"
        )

    def _begin(self) -> Iterator[Any]:
        if not self._stateful:
            self._start = {name: get_state(name, g) for name, g in self._generators.items()}
        self._iterator, self._taken = iter(self.loader), 0
        return self._iterator

    def state_dict(self) -> dict[str, Any]:
        """The loader's own state, or how many batches of the epoch were taken and its first random states."""
        if self._stateful:
            return dict(self.loader.state_dict())
        if self._iterator is None:
            return {"taken": 0, "start": {}}
        return {"taken": self._taken, "start": dict(self._start)}

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise ValueError if load_state_dict would; change nothing."""
        if self._stateful:
            getattr(self.loader, "check_state_dict", lambda _: None)(state_dict)
        elif set(state_dict) != {"taken", "start"}:
            raise ValueError("its loader had a state_dict and this one has none; use the same kind of loader")
        else:
            taken, start = state_dict["taken"], state_dict["start"]
            if type(taken) is not int or taken < 0 or not isinstance(start, Mapping):
                raise ValueError(f"its position {taken!r} in the data is damaged; use another copy")
            faults = random_faults(self._generators, start) if taken else []
            if faults:
                raise ValueError(f"at the start of the epoch {'; '.join(faults)}")

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state; the generators are left where reading up to it took them."""
        self.check_state_dict(state_dict)
        self._iterator, self._taken = None, 0
        if self._stateful:
            self.loader.load_state_dict(state_dict)
            return
        for name, state in state_dict["start"].items():
            set_state(self._generators[name], state)
        for _ in range(state_dict["taken"]):
            next(self)
