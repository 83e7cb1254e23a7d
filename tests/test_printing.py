"""Tensors print as PyTorch prints them, whose own text is the oracle."""

from __future__ import annotations

import numpy as np
import pytest

import microtensor as mt
from microtensor import nn

SHAPES = [(), (1,), (3,), (20,), (2, 3), (3, 30), (2, 3, 4), (2, 2, 2, 2), (0,), (0, 3), (2, 0)]
LONG = [(1000,), (1001,), (40, 30), (2, 600), (3, 400, 2), (11, 11, 11), (7, 2, 100)]
FLOATS = {
    "ordinary": lambda rng, s: rng.normal(size=s),
    "large": lambda rng, s: rng.normal(size=s) * 1e6,
    "small": lambda rng, s: rng.normal(size=s) * 1e-6,
    "whole": lambda rng, s: np.round(rng.normal(size=s) * 10),
    "whole and large": lambda rng, s: np.round(rng.normal(size=s) * 1e9),
    "zeros": lambda rng, s: np.zeros(s),
    "minus zeros": lambda rng, s: -np.zeros(s),
    "inf among": lambda rng, s: np.where(rng.random(s) < 0.3, np.inf, rng.normal(size=s)),
    "nan among whole": lambda rng, s: np.where(rng.random(s) < 0.3, np.nan, 1.0),
    "nan": lambda rng, s: np.full(s, np.nan),
    "minus inf": lambda rng, s: np.full(s, -np.inf),
    "of all sizes": lambda rng, s: np.exp(8 * rng.normal(size=s)),
    "huge": lambda rng, s: np.full(s, 1e30),
    "subnormal": lambda rng, s: np.full(s, 1e-40),
}


def _agree(array):
    torch = pytest.importorskip("torch")
    for requires_grad in [False, True] if array.dtype.kind == "f" else [False]:
        theirs = torch.from_numpy(array.copy()).requires_grad_(requires_grad)
        ours = mt.from_numpy(array.copy()).requires_grad_(requires_grad)
        # PyTorch writes dtype=torch.float64, which may push what follows to the next line
        wanted, found = (
            t.replace("torch.", "").replace(",\n       dtype", ", dtype") for t in (repr(theirs), repr(ours))
        )
        if array.dtype != np.float32:
            wanted, found = (t.replace(",\n       requires_grad", ", requires_grad") for t in (wanted, found))
        assert found == wanted


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floating_tensors_print_as_in_pytorch(kind, dtype, rng):
    for shape in SHAPES + LONG:
        _agree(np.asarray(FLOATS[kind](rng, shape)).astype(dtype))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
def test_integers_and_booleans_print_as_in_pytorch(dtype, rng):
    for shape in SHAPES + LONG:
        _agree(np.asarray(rng.integers(0, 200, shape) * (rng.random(shape) < 0.5)).astype(dtype))
        if np.dtype(dtype).kind == "i":
            _agree(np.asarray(rng.integers(-200_000, 200, shape)).astype(dtype))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x: x, "tensor([1., 2.], requires_grad=True)"),
        (lambda x: x * 1.5, "tensor([1.5000, 3.0000], grad_fn=<mul>)"),
        (lambda x: x.detach(), "tensor([1., 2.])"),
        (lambda x: x.double(), "tensor([1., 2.], dtype=float64, grad_fn=<cast>)"),
        (lambda x: x.sum(), "tensor(3., grad_fn=<sum>)"),
        (nn.Parameter, "Parameter containing:\ntensor([1., 2.], requires_grad=True)"),
        (lambda x: x[:0].reshape(0, 2), "tensor([], size=(0, 2), grad_fn=<reshape>)"),
    ],
)
def test_what_follows_the_values(make, text):
    assert repr(make(mt.tensor([1.0, 2.0], requires_grad=True))) == text


def test_the_default_dtype_is_not_written():
    mt.set_default_dtype(mt.float64)
    try:
        assert repr(mt.ones(1)) == "tensor([1.])"
        assert repr(mt.ones(1, dtype=mt.float32)) == "tensor([1.], dtype=float32)"
    finally:
        mt.set_default_dtype(mt.float32)


def test_several_numbers_have_no_format_of_one():
    assert f"{mt.tensor(2.0):.1f} {mt.tensor([1.0])}" == "2.0 tensor([1.])"
    with pytest.raises(RuntimeError, match=r"^item: a tensor of shape \(2,\) has 2 elements, not one; index"):
        f"{mt.ones(2):.3f}"
