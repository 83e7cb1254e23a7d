"""microtensor: an autograd and a Transformer from scratch. `import microtensor as mt`; PyTorch's names.

Read in this order: engine, walk, ops/elementwise, tensor, nn/tree, nn/module. Nothing here loads numba or
graphviz: the kernels come when the first product is computed.
"""

from importlib import import_module
from math import e, inf, nan, pi

from numpy import dtype

from microtensor import autograd
from microtensor.create import (
    arange,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    get_rng_state,
    linspace,
    manual_seed,
    normal,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    set_rng_state,
    tensor,
    zeros,
    zeros_like,
)
from microtensor.dtypes import boolean as bool
from microtensor.dtypes import float32, float64, get_default_dtype, int32, int64, set_default_dtype, uint8
from microtensor.functions import (
    METHODS,
    Size,
    as_functions,
    broadcast_tensors,
    cat,
    concat,
    cuda,
    hstack,
    is_tensor,
    isin,
    meshgrid,
    searchsorted,
    stack,
    vstack,
    where,
)
from microtensor.limits import finfo, iinfo
from microtensor.listing import tape
from microtensor.methods.arguments import device
from microtensor.methods.einsum import einsum
from microtensor.missing import MissingNameError, explain_missing
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

__all__ = ["Generator", "Size", "Tensor", "arange", "as_tensor", "autograd", "bool", "broadcast_tensors"]
__all__ += ["cat", "composites", "concat", "cuda", "device", "double", "dtype", "e", "einsum", "empty"]
__all__ += ["empty_like", "enable_grad", "eye", "finfo", "float", "float32", "float64", "from_numpy"]
__all__ += ["full", "full_like", "get_default_dtype", "get_rng_state", "hstack", "iinfo", "inf"]
__all__ += ["inference_mode", "int", "int32", "int64", "is_grad_enabled", "is_tensor", "isin", "linspace"]
__all__ += ["long", "manual_seed", "meshgrid", "nan", "no_grad", "normal", "ones", "ones_like", "pi"]
__all__ += ["rand", "rand_like", "randint", "randn", "randn_like", "randperm", "searchsorted"]
__all__ += ["set_default_dtype", "set_grad_enabled", "set_rng_state", "stack", "tape", "tensor"]
__all__ += ["uint8", "vstack", "where", "zeros", "zeros_like"]

# the methods that are functions, too
add, sub, mul, div, remainder, floor_divide = as_functions("add sub mul div remainder floor_divide")
pow, square, sqrt, rsqrt, reciprocal = as_functions("pow square sqrt rsqrt reciprocal")
neg, abs, sign, exp, log, log1p, expm1 = as_functions("neg abs sign exp log log1p expm1")
sin, cos, tanh, sigmoid, erf, relu = as_functions("sin cos tanh sigmoid erf relu")
tan, asin, acos, atan, atan2, sinh, cosh = as_functions("tan asin acos atan atan2 sinh cosh")
exp2, log2, log10, logaddexp = as_functions("exp2 log2 log10 logaddexp")
floor, ceil, trunc, round, frac, fmod = as_functions("floor ceil trunc round frac fmod")
lerp, addcmul, addcdiv, nan_to_num, clip = as_functions("lerp addcmul addcdiv nan_to_num clip")
maximum, minimum, clamp, clamp_min, clamp_max = as_functions("maximum minimum clamp clamp_min clamp_max")
eq, ne, lt, le, gt, ge = as_functions("eq ne lt le gt ge")
equal, isclose, allclose, isnan, isinf, isfinite = as_functions("equal isclose allclose isnan isinf isfinite")
logical_and, logical_or = as_functions("logical_and logical_or")
logical_xor, logical_not = as_functions("logical_xor logical_not")
bitwise_and, bitwise_or = as_functions("bitwise_and bitwise_or")
bitwise_xor, bitwise_not = as_functions("bitwise_xor bitwise_not")
cumprod, diff, unique, bincount, argwhere = as_functions("cumprod diff unique bincount argwhere")
sum, mean, prod, cumsum, var, std, norm = as_functions("sum mean prod cumsum var std norm")
logsumexp, softmax, log_softmax = as_functions("logsumexp softmax log_softmax")
max, min, amax, amin, argmax, argmin = as_functions("max min amax amin argmax argmin")
sort, argsort, topk = as_functions("sort argsort topk")
any, all, count_nonzero, nonzero = as_functions("any all count_nonzero nonzero")
reshape, flatten, unflatten, squeeze, unsqueeze = as_functions("reshape flatten unflatten squeeze unsqueeze")
transpose, permute, swapaxes, movedim, t = as_functions("transpose permute swapaxes movedim t")
broadcast_to, tile, repeat_interleave = as_functions("broadcast_to tile repeat_interleave")
roll, flip, tril, triu, ravel = as_functions("roll flip tril triu ravel")
narrow, select, diagonal, diag, trace = as_functions("narrow select diagonal diag trace")
index_add, index_copy, masked_fill = as_functions("index_add index_copy masked_fill")
split, chunk, unbind, gather = as_functions("split chunk unbind gather")
scatter, scatter_add, index_select = as_functions("scatter scatter_add index_select")
index_fill, take_along_dim, masked_select = as_functions("index_fill take_along_dim masked_select")
matmul, mm, bmm, mv, dot, outer = as_functions("matmul mm bmm mv dot outer")
addmm, baddbmm = as_functions("addmm baddbmm")
clone, detach, numel, is_floating_point = as_functions("clone detach numel is_floating_point")
bernoulli, multinomial = as_functions("bernoulli multinomial")
__all__ += METHODS

float, double, long, int = float32, float64, int64, int32  # PyTorch's second names


# loaded when first named: rooms, and names that are in one
LAZY = dict.fromkeys("data kernels nn ops optim profiler testing train utils viz".split())  # noqa: SIM905
LAZY |= {"load": "train", "save": "train", "profile": "profiler"}
LAZY |= {"get_num_threads": "kernels", "set_num_threads": "kernels"}


def __getattr__(name: str) -> object:
    if name not in LAZY:
        raise MissingNameError(__name__, name)
    room = import_module(f"{__name__}.{LAZY[name] or name}")
    explain_missing(room.__name__)
    return getattr(room, name) if LAZY[name] else room
