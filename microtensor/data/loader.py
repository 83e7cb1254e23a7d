"""DataLoader: batches of a data set, in order or shuffled, and a position that a resumed run goes on from.

An epoch's order depends on one number drawn at its start, so the position in the middle of an epoch is that
number and how many batches were handed out. Samples are loaded where they are used: no worker processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from microtensor import engine
from microtensor.data.dataset import Samples, gather
from microtensor.engine import Array
from microtensor.random import Generator, default_generator
from microtensor.tensor import Tensor, as_tensor

__all__ = ["DataLoader", "default_collate"]


class DataLoader:
    """Iterating gives one epoch of batches, each collate_fn of a list of batch_size samples.

    shuffle: a new order each epoch, from `generator` (default: the one of `mt.manual_seed`); the same seed
    gives the same orders. drop_last: leave out a last batch that is smaller. num_workers and pin_memory are
    PyTorch's and take 0 and False only.
    Raises: TypeError for a dataset without length and items; ValueError for other impossible arguments.

    >>> loader = DataLoader([10, 11, 12, 13, 14], batch_size=2)
    >>> [batch.tolist() for batch in loader]
    [[10, 11], [12, 13], [14]]
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int = 1,
        shuffle: bool | None = None,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        generator: Generator | None = None,
    ) -> None:
        _check(dataset, batch_size, num_workers, pin_memory, generator)
        self.dataset, self.batch_size = dataset, int(batch_size)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self.collate_fn = collate_fn or default_collate
        self.generator = generator
        self._seed: int | None = None  # of the order of the epoch in progress
        self._given = 0  # how many of its batches were handed out
        self._resuming = False  # the next iteration goes on instead of starting an epoch

    def __len__(self) -> int:
        """Batches per epoch."""
        n = len(self.dataset)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        if not self._resuming:
            generator = self.generator or default_generator
            self._seed = int(generator.numpy.integers(2**62)) if self.shuffle else None
            self._given = 0
        self._resuming = False
        return self._epoch(self._seed, self._given)

    def _order(self, seed: int | None) -> Array:
        n = len(self.dataset)
        return np.arange(n) if seed is None else Generator().manual_seed(seed).numpy.permutation(n)

    def _epoch(self, seed: int | None, start: int) -> Iterator[Any]:
        order = self._order(seed)
        for i in range(start, len(self)):
            batch = self._batch(order[i * self.batch_size : (i + 1) * self.batch_size])
            self._seed, self._given = seed, i + 1  # before the yield: the state counts the batch in use
            yield batch
        self._seed, self._given = None, 0

    def _batch(self, indices: Array) -> Any:
        if self.collate_fn is default_collate:
            batch = gather(self.dataset, indices)
            if batch is not None:
                return batch
        return self.collate_fn([self.dataset[i] for i in indices.tolist()])

    # --- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where its latest iteration stands, and the state of its own generator; to be kept with the weights.

        A batch counts as soon as it is handed out. To evaluate inside a training loop use a second loader: an
        inner iteration of this one would move the position.
        """
        generator = None if self.generator is None else as_tensor(self.generator.get_state())
        position = {"seed": self._seed, "batch": self._given, "generator": generator}
        return {
            **position,
            "dataset": len(self.dataset),
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state_dict(): the next iteration yields the rest of that epoch, in its order.

        Raises: ValueError naming what differs: the length of the data set, batch_size, shuffle, a generator.
        """
        self.check_state_dict(state_dict)
        if self.generator is not None:
            self.generator.set_state(_array(state_dict["generator"]))
        self._seed, self._given = state_dict["seed"], int(state_dict["batch"])
        self._resuming = (
            self._given > 0 or self._seed is not None
        )  # the order is drawn before the first batch

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise the ValueError that load_state_dict would raise; change nothing."""
        own = self.state_dict()
        if set(own) != set(state_dict):
            raise ValueError(f"DataLoader: a state has the keys {sorted(own)}, not {sorted(state_dict)}; "
                             f"load one from state_dict()")  # fmt: skip
        faults = [
            f"{name} is {state_dict[name]}, not {own[name]}"
            for name in ("dataset", "batch_size", "shuffle")
            if state_dict[name] != own[name]
        ]
        if (own["generator"] is None) != (state_dict["generator"] is None):
            faults.append("one has a generator of its own and one has none")
        faults += _damage(state_dict)
        if faults:
            raise ValueError(f"DataLoader: the saved state is of another loader: {'; '.join(faults)}; "
                             f"make the loader as it was when saved")  # fmt: skip


def _damage(state_dict: Mapping[str, Any]) -> list[str]:
    """What no state_dict() ever held, such as a position before the first batch."""
    seed, given, generator = (state_dict[name] for name in ("seed", "batch", "generator"))
    faults = [] if seed is None or _is_count(seed) else [f"its seed is {seed!r}"]
    faults += [] if _is_count(given) else [f"its batch is {given!r}"]
    if generator is not None:
        try:
            Generator().set_state(_array(generator))
        except (ValueError, TypeError):
            faults.append("its generator's state is damaged")
    return faults


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def default_collate(batch: Sequence[Any]) -> Any:
    """A batch of a list of samples: tensors, arrays and numbers are stacked along a new first axis.

    Tuples and lists are collated item by item into a list (named tuples into their kind), dicts key by key;
    strings and bytes stay a list. Batches are data: no gradient flows back through them.
    Differs from PyTorch: Python floats become the default dtype, not float64.
    Raises: ValueError for samples of different shapes, lengths or keys; TypeError for what cannot be stacked.
    """
    first = batch[0]
    if isinstance(first, Tensor | np.ndarray):
        return _stack(batch)
    if isinstance(first, np.generic):
        return as_tensor(np.array(batch))
    if isinstance(first, bool | int | float):
        return as_tensor(list(batch))
    if isinstance(first, str | bytes):
        return list(batch)
    if isinstance(first, Mapping):
        if any(set(sample) != set(first) for sample in batch):
            raise ValueError(
                f"default_collate: not every sample has the keys {list(first)}; give a collate_fn"
            )
        return {key: default_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, tuple | list):
        if any(len(sample) != len(first) for sample in batch):
            raise ValueError(f"default_collate: samples have lengths {sorted({len(s) for s in batch})}; "
                             f"pad them, or give a collate_fn")  # fmt: skip
        items = [default_collate(column) for column in zip(*batch, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else items
    raise TypeError(f"default_collate: cannot stack {type(first).__name__}; return tensors, arrays, numbers, "
                    f"tuples or dicts of them, or give a collate_fn")  # fmt: skip


def _stack(samples: Sequence[Any]) -> Tensor:
    arrays = [_array(sample) for sample in samples]
    shapes = sorted({a.shape for a in arrays})
    if len(shapes) > 1:
        raise ValueError(f"default_collate: samples have shapes {', '.join(map(str, shapes))}; "
                         f"pad them, or give a collate_fn")  # fmt: skip
    stacked: Tensor = engine.make(np.stack(arrays), None, None)
    return stacked if isinstance(samples[0], Tensor) else as_tensor(stacked.array)


def _array(value: Any) -> Array:
    return value.array if isinstance(value, Tensor) else np.asarray(value)


def _check(dataset: Any, batch_size: Any, num_workers: int, pin_memory: bool, generator: Any) -> None:
    if not isinstance(dataset, Samples):
        raise TypeError(
            f"DataLoader: dataset is {type(dataset).__name__}; give something with __len__ and __getitem__"
        )
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"DataLoader: batch_size is {batch_size!r}; give an integer of 1 or more")
    if num_workers != 0:
        raise ValueError(
            f"DataLoader: num_workers is {num_workers}, but there are no worker processes; leave it at 0"
        )
    if pin_memory:
        raise ValueError(
            "DataLoader: pin_memory is True, but there is no device to copy to; leave it at False"
        )
    if generator is not None and not isinstance(generator, Generator):
        raise TypeError(
            f"DataLoader: generator is {type(generator).__name__}; give mt.Generator().manual_seed(…)"
        )
