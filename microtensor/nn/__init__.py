"""Layers and what they are made of: PyTorch's `torch.nn`, in the parts that a Transformer needs."""

from microtensor.nn import functional, init, utils
from microtensor.nn.activations import (
    GELU,
    CrossEntropyLoss,
    KLDivLoss,
    LogSoftmax,
    MSELoss,
    NLLLoss,
    ReLU,
    Sigmoid,
    Softmax,
    Tanh,
)
from microtensor.nn.containers import ModuleDict, ModuleList, ParameterList, Sequential
from microtensor.nn.layers import Dropout, Embedding, Identity, LayerNorm, Linear
from microtensor.nn.module import Module, Parameter

__all__ = [
    "GELU",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Identity",
    "KLDivLoss",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "Module",
    "ModuleDict",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "ParameterList",
    "ReLU",
    "Sequential",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "functional",
    "init",
    "utils",
]
