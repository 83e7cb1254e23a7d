"""microtensor: an autograd and a Transformer from scratch. `import microtensor as mt`; the names are PyTorch's.

Read in this order: engine, walk, ops/elementwise, tensor, nn/module. Nothing here loads numba or graphviz: the
kernels come when the first product is computed.
"""

from importlib import import_module

from microtensor import autograd
from microtensor.create import (
    arange,
    bernoulli,
    empty,
    eye,
    from_numpy,
    full,
    full_like,
    get_rng_state,
    linspace,
    manual_seed,
    multinomial,
    normal,
    ones,
    ones_like,
    rand,
    randint,
    randn,
    randn_like,
    randperm,
    set_rng_state,
    tensor,
    tril,
    triu,
    zeros,
    zeros_like,
)
from microtensor.dtypes import boolean as bool
from microtensor.dtypes import (
    float32,
    float64,
    get_default_dtype,
    int32,
    int64,
    set_default_dtype,
    uint8,
)
from microtensor.functions import *
from microtensor.mode import (
    composites,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from microtensor.random import Generator
from microtensor.tensor import Tensor, as_tensor

__version__ = "0.1.0"

float, double, long, int = float32, float64, int64, int32  # PyTorch's second names


_LAZY = ("data", "kernels", "nn", "ops", "optim", "testing", "train", "utils", "viz")  # loaded when first named


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
