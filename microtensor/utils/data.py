"""The names of `microtensor.data`, where programs written for PyTorch look for them."""

from microtensor.data import (
    CharTokenizer,
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)

__all__ = [
    "CharTokenizer",
    "DataLoader",
    "Dataset",
    "Subset",
    "TensorDataset",
    "default_collate",
    "random_split",
]
