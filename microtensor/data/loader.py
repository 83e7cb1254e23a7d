"""DataLoader: batches of a data set, in order or shuffled, and a position that a resumed run goes on from.

An epoch's order depends on one number drawn at its start, so the position in the middle of an epoch is that
number (or what a sampler gave) and how many batches were handed out. Samples are loaded where they are used:
no worker processes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from microtensor.data.dataset import Samples, as_place, gather
from microtensor.data.sampler import as_count, batches_of
from microtensor.engine import Array
from microtensor.functions import stack
from microtensor.methods.arguments import as_rng
from microtensor.random import Generator
from microtensor.tensor import Tensor, as_tensor

__all__ = ["DataLoader", "default_collate"]


class DataLoader:
    """Iterating gives one epoch of batches, each collate_fn of a list of batch_size samples.

    shuffle: a new order each epoch, from `generator` (default: the one of `mt.manual_seed`); the same seed
    gives the same orders. drop_last: leave out a smaller last batch. sampler gives the indices of each
    epoch, in the place of shuffle; batch_sampler a list of them for each batch, in the place of batch_size,
    too. Both are asked for a whole epoch at its start. num_workers and pin_memory are PyTorch's and take 0
    and False only.

    Raises: TypeError for a dataset without length and items; ValueError for other impossible arguments.
    Source: PyTorch's DataLoader. Differs: no worker processes, and a position that can be saved.

    >>> loader = DataLoader([10, 11, 12, 13, 14], batch_size=2)
    >>> [batch.tolist() for batch in loader]
    [[10, 11], [12, 13], [14]]
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        *,
        generator: Generator | None = None,
    ) -> None:
        _check(dataset, batch_size, num_workers, pin_memory, generator)
        _check_samplers(sampler, batch_sampler, batch_size, shuffle, drop_last)
        self.dataset, self.batch_size = dataset, int(batch_size)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self.collate_fn = collate_fn or default_collate
        self.sampler, self.batch_sampler = sampler, batch_sampler
        source = sampler if batch_sampler is None else batch_sampler
        own = getattr(source, "generator", None)
        self.generator = own if isinstance(own, Generator) else generator  # whose state is kept
        self._drawn: list[Any] | None = None  # what the sampler gave for the epoch in progress
        self._seed: int | None = None  # of the order of the epoch in progress
        self._given = 0  # how many of its batches were handed out
        self._resuming = False  # the next iteration goes on instead of starting an epoch

    def __len__(self) -> int:
        """Batches per epoch."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        source: Any = self.dataset if self.sampler is None else self.sampler
        return batches_of(len(source), self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[Any]:
        if not self._resuming:
            self._seed = int(as_rng("DataLoader", self.generator).integers(2**62)) if self.shuffle else None
            self._drawn, self._given = self._draw(), 0
        self._resuming = False
        return self._epoch(self._seed, self._drawn, self._given)

    def _draw(self) -> list[Any] | None:
        said, n = "DataLoader: a sampler gave", len(self.dataset)
        if self.batch_sampler is not None:
            return [[as_place(said, i, n) for i in _listed(batch)] for batch in self.batch_sampler]
        return None if self.sampler is None else [as_place(said, i, n) for i in self.sampler]

    def _order(self, seed: int | None) -> Sequence[int] | Array:
        n = len(self.dataset)
        return range(n) if seed is None else Generator().manual_seed(seed).numpy.permutation(n)

    def _epoch(self, seed: int | None, drawn: list[Any] | None, start: int) -> Iterator[Any]:
        order: Any = self._order(seed) if drawn is None else drawn
        ready = self.batch_sampler is not None
        size = self.batch_size
        for i in range(start, len(order) if ready else batches_of(len(order), size, self.drop_last)):
            batch = self._batch(order[i] if ready else order[i * size : (i + 1) * size])
            # before the yield: the state counts the batch in use
            self._seed, self._drawn, self._given = seed, drawn, i + 1
            yield batch
        self._seed, self._drawn, self._given = None, None, 0

    def _batch(self, indices: Any) -> Any:
        indices = np.asarray(indices, np.int64)
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

        Source: ours; torchdata's StatefulDataLoader has this name.
        """
        generator = None if self.generator is None else as_tensor(self.generator.get_state())
        position: dict[str, Any] = {"seed": self._seed, "batch": self._given, "generator": generator}
        if self.sampler is not None or self.batch_sampler is not None:
            flat = self._drawn is not None and self.batch_sampler is None
            position["order"] = as_tensor(np.array(self._drawn, np.int64)) if flat else self._drawn
        sizes = {"dataset": len(self.dataset), "batch_size": self.batch_size, "shuffle": self.shuffle}
        return position | sizes

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state_dict(): the next iteration yields the rest of that epoch, in its order.

        Raises: ValueError naming what differs: the length of the data set, batch_size, shuffle, a generator;
        TypeError for what is no dict.
        Source: ours; torchdata's StatefulDataLoader has this name.
        """
        self.check_state_dict(state_dict)
        if self.generator is not None:
            self.generator.set_state(_array(state_dict["generator"]))
        self._seed, self._given = state_dict["seed"], int(state_dict["batch"])
        order = state_dict.get("order")
        self._drawn = order.tolist() if isinstance(order, Tensor) else copy.deepcopy(order)
        # the order is drawn before the first batch
        self._resuming = self._given > 0 or self._seed is not None or self._drawn is not None

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse what load_state_dict would refuse; change nothing.

        Raises: the ValueError and TypeError of load_state_dict.
        Source: ours.
        """
        own, who = self.state_dict(), "DataLoader.load_state_dict"
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"{who}: state_dict is {state_dict!r:.60}; give what state_dict() gave")
        if set(own) != set(state_dict):
            raise ValueError(f"{who}: a state has the keys {sorted(own)}, not {list(state_dict)}; load one "
                             f"from state_dict()")  # fmt: skip
        sizes = ("dataset", "batch_size", "shuffle")
        faults = [f"{k} is {state_dict[k]}, not {own[k]}" for k in sizes if state_dict[k] != own[k]]
        if (own["generator"] is None) != (state_dict["generator"] is None):
            faults.append("one has a generator of its own and one has none")
        faults += _damage(state_dict)
        if faults:
            raise ValueError(f"{who}: the saved state is of another loader: {'; '.join(faults)}; "
                             f"make the loader as it was when saved")  # fmt: skip


def _damage(state_dict: Mapping[str, Any]) -> list[str]:
    """What no state_dict() ever held, such as a position before the first batch."""
    seed, given, generator = (state_dict[name] for name in ("seed", "batch", "generator"))
    faults = [] if seed is None or _is_count(seed) else [f"its seed is {seed!r}"]
    faults += [] if _is_count(given) else [f"its batch is {given!r}"]
    order = state_dict.get("order")
    indices = order.tolist() if isinstance(order, Tensor) else order or []
    flat = [i for batch in indices for i in (batch if isinstance(batch, list) else [batch])]
    if not all(_is_count(i) and i < state_dict["dataset"] for i in flat):
        faults.append("its order is no list of samples")
    if generator is not None:
        try:
            Generator().set_state(_array(generator))
        except (ValueError, TypeError):
            faults.append("its generator's state is damaged")
    return faults


def _listed(batch: Any) -> Iterable[Any]:
    if not isinstance(batch, Iterable):
        raise TypeError(f"DataLoader: a batch_sampler gave {batch!r:.60} as a batch; give lists of integers")
    return batch


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def default_collate(batch: Sequence[Any]) -> Any:
    """A batch of a list of samples: tensors, arrays and numbers are stacked along a new first axis.

    Tuples and lists are collated item by item into a list (named tuples into their kind), dicts key by key;
    strings and bytes stay a list, as items of samples a tuple. Batches are data: no gradient flows back.

    Shapes: a list of B samples (...) → (B, ...)
    Raises: ValueError for no samples, and for different shapes, lengths or keys; TypeError for what cannot be
    stacked.
    Source: PyTorch's default_collate. Differs: Python floats become the default dtype, not float64.
    """
    if not len(batch):
        raise ValueError("default_collate: there are no samples; give a list of one or more")
    first = batch[0]
    if isinstance(first, Tensor | np.ndarray):
        return _stack(batch)
    if isinstance(first, np.generic):
        return as_tensor(np.array(batch))
    if isinstance(first, bool | int | float):
        return as_tensor(list(batch))
    if isinstance(first, str | bytes):
        return batch
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
    if len({a.dtype for a in arrays}) > 1:  # then as in a sum: int64 beside float32 is float32
        return stack([as_tensor(a) for a in arrays])
    return as_tensor(np.stack(arrays))


def _array(value: Any) -> Array:
    return value.array if isinstance(value, Tensor) else np.asarray(value)


def _check(dataset: Any, batch_size: Any, num_workers: int, pin_memory: bool, generator: Any) -> None:
    if not isinstance(dataset, Samples):
        raise TypeError(
            f"DataLoader: dataset is {type(dataset).__name__}; give something with __len__ and __getitem__"
        )
    as_count("DataLoader", "batch_size", batch_size)
    lacking = {"num_workers": "are no worker processes", "pin_memory": "is no device to copy to"}
    for name, value in (("num_workers", num_workers), ("pin_memory", pin_memory)):
        if value:
            raise ValueError(f"DataLoader: {name} is {value!r}, but there {lacking[name]}; leave it out")
    as_rng("DataLoader", generator)


def _check_samplers(sampler: Any, batch_sampler: Any, batch_size: int, shuffle: Any, drop_last: Any) -> None:
    for name, given in (("sampler", sampler), ("batch_sampler", batch_sampler)):
        if given is not None and not isinstance(given, Iterable):
            raise TypeError(f"DataLoader: {name} is {type(given).__name__}; give something that iterates")
    if sampler is not None and shuffle:
        raise ValueError("DataLoader: shuffle beside a sampler, which says the order; leave one out")
    if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
        raise ValueError(
            "DataLoader: batch_sampler makes the batches; leave out batch_size, shuffle, sampler and "
            "drop_last"
        )
