"""Data sets, the loader that makes batches of them, a tokenizer, and corpora made on the fly."""

from importlib import import_module

from microtensor.data.dataset import Dataset, Subset, TensorDataset, random_split
from microtensor.data.loader import DataLoader, default_collate
from microtensor.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from microtensor.data.tokenizer import CharTokenizer

_DATES = (
    "BOS",
    "EOS",
    "FORMATS",
    "LOCALES",
    "PAD",
    "DateCorpus",
    "DatePair",
    "normalize",
)  # loaded when named

__all__ = [
    "BatchSampler",
    "CharTokenizer",
    "DataLoader",
    "Dataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "random_split",
]
__all__ += list(_DATES)


def __getattr__(name: str) -> object:
    if name in _DATES:
        return getattr(import_module(f"{__name__}.dates"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
