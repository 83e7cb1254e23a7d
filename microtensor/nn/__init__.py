"""Layers and what they are made of: PyTorch's `torch.nn`, in the parts that a Transformer needs."""

from microtensor.annotations import hold
from microtensor.missing import explain_missing
from microtensor.nn import functional, init, utils
from microtensor.nn.activations import (
    GELU,
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    MSELoss,
    NLLLoss,
    ReLU,
    Sigmoid,
    SiLU,
    SmoothL1Loss,
    Softmax,
    Softplus,
    Tanh,
)
from microtensor.nn.containers import ModuleDict, ModuleList, ParameterList, Sequential
from microtensor.nn.layers import Dropout, Embedding, Flatten, Identity, LayerNorm, Linear, RMSNorm
from microtensor.nn.module import Module, Parameter

__all__ = ["GELU", "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten"]
__all__ += ["HuberLoss", "Identity", "KLDivLoss", "L1Loss", "LayerNorm", "LeakyReLU", "Linear"]
__all__ += ["LogSigmoid", "LogSoftmax", "MSELoss", "Module", "ModuleDict", "ModuleList", "NLLLoss"]
__all__ += ["Parameter", "ParameterList", "RMSNorm", "ReLU", "Sequential", "SiLU", "Sigmoid"]
__all__ += ["SmoothL1Loss", "Softmax", "Softplus", "Tanh", "functional", "init", "utils"]

explain_missing(__name__, functional.__name__, init.__name__, utils.__name__)
hold(__name__, "forward")
hold(functional.__name__, early=False)
hold(init.__name__)
hold(utils.__name__)
