"""Data sets, the loader that makes batches of them, a tokenizer, texts, and corpora made on the fly."""

from importlib import import_module

from microtensor.annotations import hold
from microtensor.data.dataset import Dataset, Subset, TensorDataset, random_split
from microtensor.data.loader import DataLoader, default_collate
from microtensor.data.pairs import BOS, EOS, PAD, PairBatches, PairCorpus
from microtensor.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from microtensor.data.tasks import RULES, AdditionTask, StringTask, TaskPair
from microtensor.data.texts import blocks, python_docs, read_text
from microtensor.data.tokenizer import CharTokenizer
from microtensor.missing import MissingNameError

_DATES = ("FORMATS", "LOCALES", "DateCorpus", "DatePair", "normalize")  # loaded when named

__all__ = ["BOS", "EOS", "PAD", "RULES", "AdditionTask", "BatchSampler", "CharTokenizer", "DataLoader"]
__all__ += ["Dataset", "PairBatches", "PairCorpus", "RandomSampler", "Sampler", "SequentialSampler"]
__all__ += ["StringTask", "Subset", "SubsetRandomSampler", "TaskPair", "TensorDataset"]
__all__ += ["WeightedRandomSampler", "blocks", "default_collate", "python_docs", "random_split"]
__all__ += ["read_text"]
__all__ += list(_DATES)


def __getattr__(name: str) -> object:
    if name in _DATES:
        return getattr(import_module(f"{__name__}.dates"), name)
    raise MissingNameError("data", name)


hold(__name__)
