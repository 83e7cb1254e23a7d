"""Layers and what they are made of: PyTorch's `torch.nn`, in the parts that a Transformer needs."""

from microtensor.nn import functional, init, utils
from microtensor.nn.layers import (
    GELU,
    CrossEntropyLoss,
    Dropout,
    Embedding,
    Identity,
    LayerNorm,
    Linear,
    ModuleList,
    ReLU,
    Sequential,
)
from microtensor.nn.module import Module, Parameter

__all__ = [
    "GELU",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Identity",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "Parameter",
    "ReLU",
    "Sequential",
    "functional",
    "init",
    "utils",
]
