"""What a data set is: a length and an item for each index. Tensors as a data set, parts of one, splits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from microtensor import engine
from microtensor.methods.arguments import as_number, as_rng, is_int
from microtensor.random import Generator
from microtensor.tensor import Tensor

__all__ = ["Dataset", "Samples", "Subset", "TensorDataset", "as_place", "gather", "random_split"]


Sample = TypeVar("Sample", covariant=True)


@runtime_checkable
class Samples(Protocol):
    """All that a loader asks of a data set; a list of samples is one, too."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class Dataset(Generic[Sample]):
    """Base of data sets: a subclass defines `__len__` and `__getitem__(index)`, which returns one sample.

    Source: PyTorch's Dataset.

    >>> class Squares(Dataset[int]):
    ...     def __len__(self):
    ...         return 10
    ...     def __getitem__(self, index):
    ...         return index * index
    >>> Squares()[3]
    9
    """

    def __getitem__(self, index: int) -> Sample:
        raise NotImplementedError(f"{type(self).__name__}: has no samples; define __getitem__(self, index)")


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is (a[i], b[i], …) of the given tensors, which have one length.

    Shapes: (N, ...) each → samples (...)
    Raises: ValueError for no tensors or different lengths; TypeError for what is no tensor with an axis.
    Source: PyTorch's TensorDataset.
    """

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors:
            raise ValueError("TensorDataset: there are no tensors; give one or more of the same length")
        for i, t in enumerate(tensors):
            if not isinstance(t, Tensor) or t.ndim == 0:
                raise TypeError(f"TensorDataset: item {i} is {t!r:.80}; give tensors with at least one axis")
        lengths = [len(t) for t in tensors]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"TensorDataset: the tensors have lengths {lengths}; make their first axes equal"
            )
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)


class Subset(Dataset[Any]):
    """The samples of a data set at some indices, in their order.

    Raises: TypeError for an index that is no integer, IndexError for one outside, when that sample is asked.
    Source: PyTorch's Subset.
    """

    def __init__(self, dataset: Samples, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):  # for a data set that gives several samples at once
            return self.dataset[self._held(range(len(self))[index])]  # type: ignore[index]
        return self.dataset[self._held([as_place("Subset: asked for", index, len(self))])[0]]

    def _held(self, places: Iterable[int]) -> list[int]:
        n = len(self.dataset)
        return [as_place("Subset: its indices hold", self.indices[i], n) for i in places]


def random_split(
    dataset: Samples, lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset]:
    """Disjoint random parts of a data set: lengths of samples, or fractions that add up to 1.

    Fractions are cut to whole samples; what is left goes to the parts in turn, one sample each.
    Raises: ValueError for lengths that are negative or do not add up; TypeError for what is no number.
    Source: PyTorch's random_split.
    """
    n = len(dataset)
    lengths = [as_number("random_split", length) for length in lengths]
    if any(length < 0 for length in lengths):
        raise ValueError(f"random_split: lengths are {lengths}; make them 0 or more")
    sizes: list[Any] = lengths
    if math.isclose(sum(lengths), 1):
        sizes = [math.floor(n * fraction) for fraction in lengths]
        for i in range(n - sum(sizes)):
            sizes[i % len(sizes)] += 1
    if sum(sizes) != n or any(size != int(size) for size in sizes):
        raise ValueError(
            f"random_split: lengths {lengths} add up neither to the {n} samples nor to 1; change them"
        )
    order = iter(as_rng("random_split", generator).permutation(n).tolist())
    return [Subset(dataset, list(itertools.islice(order, int(size)))) for size in sizes]


def as_place(said: str, index: Any, n: int) -> int:
    """The index of one of n samples, negative ones counted from the end; said: who names it, and how."""
    if not is_int(index) or not -n <= index < n:
        raise (IndexError if is_int(index) else TypeError)(
            f"{said} {index!r:.80} as an index of {n} samples; give integers from {-n} to {n - 1}"
        )
    return int(index)


def gather(dataset: Any, indices: Any) -> list[Tensor] | None:
    """The batch of some indices by one array look-up per tensor, if these are tensors; else None.

    A subclass with its own __getitem__ is asked sample by sample.
    """
    while type(dataset) is Subset:
        dataset, indices = dataset.dataset, dataset._held(indices)
    if isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__:
        return [engine.make(t.array[indices], None, None) for t in dataset.tensors]
    return None
