"""Samplers: which samples an epoch shows, and in what order. Iterating one gives an epoch's indices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any

import numpy as np

from microtensor.dtypes import float64
from microtensor.methods.arguments import as_operand, as_rng, is_int
from microtensor.random import Generator

__all__ = ["BatchSampler", "RandomSampler", "Sampler", "SequentialSampler", "SubsetRandomSampler"]
__all__ += ["WeightedRandomSampler"]


class Sampler:
    """Base of samplers: a subclass defines `__iter__`, which gives indices, and `__len__`, how many.

    Source: PyTorch's Sampler.
    """

    generator: Generator | None = None  # None: that of `mt.manual_seed`

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__}: gives no indices; define __iter__(self)")

    def _numpy(self) -> np.random.Generator:
        return as_rng(type(self).__name__, self.generator)


class SequentialSampler(Sampler):
    """0, 1, … len(data_source) − 1.

    Source: PyTorch's SequentialSampler.
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """num_samples indices (all, if not given) in a random order; with replacement each drawn from all.

    Raises: ValueError for a num_samples under 1, and for one above the samples without replacement.
    Source: PyTorch's RandomSampler. Differs: without replacement no sample comes twice, so not more than all.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        n = len(data_source)
        given, most = n if num_samples is None else num_samples, math.inf if replacement else n
        self.num_samples = as_count("RandomSampler", "num_samples", given, most)
        self.data_source, self.replacement, self.generator = data_source, bool(replacement), generator

    def __iter__(self) -> Iterator[int]:
        n = len(self.data_source)
        if self.replacement:
            return iter(self._numpy().integers(n, size=self.num_samples).tolist())
        return iter(self._numpy().permutation(n)[: self.num_samples].tolist())

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The given indices in a random order.

    Source: PyTorch's SubsetRandomSampler.
    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        return iter([self.indices[i] for i in self._numpy().permutation(len(self.indices)).tolist()])

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """num_samples indices, each drawn with a probability in proportion to its weight: for rare classes.

    Raises: ValueError for weights that are negative, not finite or all 0, for a num_samples under 1, and
    without replacement for more samples than weights above 0.
    Source: PyTorch's WeightedRandomSampler.
    """

    def __init__(
        self, weights: Any, num_samples: int, replacement: bool = True, generator: Generator | None = None
    ) -> None:
        self.weights = np.asarray(as_operand(weights, float64, "WeightedRandomSampler").array, np.float64)
        total = self.weights.sum() if self.weights.ndim == 1 else np.nan
        if not (np.isfinite(total) and total > 0 and self.weights.min() >= 0):
            raise ValueError(
                f"WeightedRandomSampler: weights {self.weights.shape} add up to {total}, the least is "
                f"{self.weights.min(initial=np.inf)}; give a list of numbers of 0 or more, not all 0"
            )
        most = math.inf if replacement else int((self.weights > 0).sum())
        self.num_samples = as_count("WeightedRandomSampler", "num_samples", num_samples, most)
        self.replacement, self.generator = bool(replacement), generator

    def __iter__(self) -> Iterator[int]:
        p = self.weights / self.weights.sum()
        return iter(self._numpy().choice(len(p), self.num_samples, self.replacement, p).tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of batch_size indices of a sampler; drop_last: without a last one that is shorter.

    Raises: ValueError for a batch_size under 1.
    Source: PyTorch's BatchSampler.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        self.batch_size = as_count("BatchSampler", "batch_size", batch_size)
        self.sampler, self.drop_last = sampler, bool(drop_last)
        self.generator = getattr(sampler, "generator", None)

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        return batches_of(len(self.sampler), self.batch_size, self.drop_last)  # type: ignore[arg-type]


def batches_of(n: int, batch_size: int, drop_last: bool) -> int:
    """How many batches n samples make."""
    return n // batch_size if drop_last else -(-n // batch_size)


def as_count(who: str, name: str, value: Any, most: float = math.inf) -> int:
    """How many; most: of how many samples, where none is drawn twice."""
    if not is_int(value) or value < 1:
        raise ValueError(f"{who}: {name} is {value!r:.60}; give an integer of 1 or more")
    if value > most:
        raise ValueError(f"{who}: {name} is {value} of {most} without replacement; ask for fewer, or "
                         f"replacement=True")  # fmt: skip
    return int(value)
