"""NaN, infinities, signed zeros, denormal and huge numbers, each function beside PyTorch: value and gradient.

A NaN that goes in comes out, of the gradient too; what is not chosen by a `where` leaks nothing; nothing
overflows on the way to a finite result. `MEANT` says where we differ, and why.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import microtensor as mt
from microtensor.nn import functional as F

torch = pytest.importorskip("torch")

NAN, INF = float("nan"), float("inf")
COMMON = [NAN, INF, -INF, 0.0, -0.0, 1e30, -1e30, 1e-30, 1.0, -1.0, 0.5, -2.5]
SPECIAL = {
    "float64": [*COMMON, 5e-324, -5e-324, 1e-310, 1e308, -1e308, -1e-200, 700.0, -745.0, 1e160, 30.0],
    "float32": [*COMMON, 1e-45, -1e-45, 1e-40, 3e38, -3e38, 88.0, -104.0, 1e20, 17.0],
}
FEW = [NAN, INF, -INF, 0.0, -0.0, 1.0, -2.0]  # in rows, which also differ by the order of their sums
Function = Callable[..., Any]


def _with(name: str, **options: Any) -> Function:
    """A function of the library or of nn.functional, with options."""
    return lambda t, *x: getattr(t if hasattr(mt, name) else t.nn.functional, name)(*x, **options)


def _method(name: str, *args: Any) -> Function:
    return lambda t, x: getattr(x, name)(*args)


ONE: dict[str, Function] = {
    name: _with(name)
    for name in "abs nan_to_num neg exp expm1 log log1p log2 log10 exp2 sqrt rsqrt square reciprocal sin cos"
    " tan sinh cosh tanh sigmoid erf relu asin acos atan frac logsigmoid silu softplus gelu".split()
}
ONE |= {f"pow {p}": _method("pow", p) for p in (3, 2, 1, 0, -1, -2, 2.5, 0.5, -0.5)}
ONE |= {f"{p} pow": lambda t, x, p=p: p**x for p in (2, 1, 0, 0.5, -1.5)}
ONE |= {
    f"clamp {low}, {high}": _method("clamp", low, high) for low, high in ((-1, 1), (None, 0.5), (0, None))
}
TWO: dict[str, Function] = {
    name: _with(name) for name in "add sub mul div pow maximum minimum atan2 logaddexp fmod remainder".split()
}
TWO |= {f"lerp {w}": lambda t, x, y, w=w: t.lerp(x, y, w) for w in (0.0, 0.25, 0.5, 1.0, 2.0, -1)}
TWO["lerp by a tensor"] = lambda t, x, y: t.lerp(x, y, t.full_like(x, 0.75).detach())
TWO["where"] = lambda t, x, y: t.where(x > y, x, y)
TWO |= {
    name: _with(name, reduction="none")
    for name in "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits kl_div".split()
}
TWO["huber_loss 2.5"] = _with("huber_loss", reduction="none", delta=2.5)
ROWS: dict[str, Function] = {
    name: _method(name, -1)
    for name in "sum mean prod amax amin logsumexp softmax log_softmax var std cumsum cumprod".split()
}
ROWS |= {
    f"{name} along": lambda t, x, name=name: getattr(x, name)(-1).values for name in ("max", "min", "sort")
}
ROWS |= {f"norm {p}": _method("norm", p, -1) for p in (2, 1, 3, INF, -INF)}
ROWS["layer_norm"] = _with("layer_norm", normalized_shape=(3,))
ROWS["normalize"] = _with("normalize")
ROWS["cross_entropy"] = lambda t, x: t.nn.functional.cross_entropy(
    x, t.tensor([i % 3 for i in range(len(x))]), reduction="none"
)


def _any(test: Callable[[Any], Any]) -> Callable[..., bool]:
    return lambda *x: bool(np.any(test(np.asarray(x))))


def _masked(*x: float) -> bool:
    return all(v == -INF for v in x)


_nan, _inf, _huge = _any(np.isnan), _any(np.isinf), _any(lambda x: abs(x) > 1e15)
# (functions, "value" or "gradient", inputs where it is so, why); differences.md says the most of it
MEANT: list[tuple[str, str, Callable[..., bool], str]] = [
    ("abs|norm (1|inf|-inf)", "gradient", _nan, "a NaN has no sign: NaN, where PyTorch has 0"),
    ("l1_loss", "gradient", lambda x, y: _nan(x - y), "a NaN has no sign"),
    ("mse_loss", "gradient", _huge, "PyTorch's 2 · d overflows"),
    ("lerp -1|lerp 2.0", "value", _huge, "PyTorch adds d · (w − 1) without rounding it"),
    ("pow -[12]", "value|gradient", _huge, "PyTorch's 1/x² underflows on the way"),
    ("pow", "gradient", lambda x, y: 0 < abs(x) < 1e-37, "denormal numbers have few digits"),
    ("atan2", "gradient", _any(lambda x: abs(x) < 1e-15), "PyTorch's squares underflow"),
    ("atan2", "gradient", _huge, "PyTorch's squares overflow"),
    ("fmod|remainder", "value", lambda x, y: y == 0 or abs(x / y) > 1e15, "PyTorch's quotient overflows"),
    ("remainder", "gradient", lambda x, y: y == 0 or abs(x / y) > 1e15, "PyTorch's quotient overflows"),
    ("kl_div", "value", lambda x, y: y == INF or _huge(x, y), "∞ · (ln ∞ − x) is ∞; in PyTorch ∞ − ∞ · x"),
    ("kl_div", "gradient", lambda x, y: y == 0, "0 · ln 0 has a finite slope here"),
    ("gelu", "value|gradient", _huge, "PyTorch's float32 kernel overflows, and makes ∞ NaN"),
    ("amax|amin", "gradient", _nan, "0 where the maximum is NaN"),
    ("(log_)?softmax|logsumexp|cross_entropy", "value|gradient", _masked, "a row of nothing but −∞: law 10"),
    ("cross_entropy", "gradient", lambda *x: INF in x, "the loss is NaN; PyTorch's whole row, too"),
    ("var|std", "gradient", _inf, "all NaN; in PyTorch finite elements get ±∞"),
    ("cumprod", "gradient", lambda *x: _nan(*x) or _inf(*x), "PyTorch divides by the elements"),
    ("prod", "gradient", lambda *x: _nan(*x) or _inf(*x), "PyTorch divides by the elements"),
]


def _run(t: Any, function: Function, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The result, and the gradients by each input for a cotangent of 1, −½ and ¾ in turn."""
    inputs = [t.tensor(a.tolist(), dtype=getattr(t, a.dtype.name), requires_grad=True) for a in arrays]
    y = function(t, *inputs)
    if not y.requires_grad:
        return [y.numpy()]
    u = t.tensor(np.resize([1.0, -0.5, 0.75], y.shape).tolist(), dtype=y.dtype)
    gradients = t.autograd.grad(y, inputs, u, allow_unused=True)
    return [y.detach().numpy(), *(np.zeros(a.shape) if g is None else g.numpy()
                                  for g, a in zip(gradients, arrays, strict=True))]  # fmt: skip


def _differences(name: str, function: Function, arrays: list[np.ndarray]) -> list[str]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        ours, theirs = _run(mt, function, arrays), _run(torch, function, arrays)
    rtol, atol = (1e-9, 1e-15) if arrays[0].dtype == np.float64 else (4e-5, 1e-6)
    found = []
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        what = f"gradient {k - 1}" if k else "value"
        wrong = ~np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        for place in map(tuple, np.argwhere(wrong)):
            inputs = arrays[0][place[0]] if arrays[0].ndim == 2 else [x[place] for x in arrays]
            inputs = [float(x) for x in inputs]
            if not any(re.fullmatch(names, name) and re.match(kinds, what) and where(*inputs)
                       for names, kinds, where, _ in MEANT):  # fmt: skip
                found.append(f"{what} at {inputs} is {a[place]}, torch has {b[place]}")
    return found


@pytest.mark.parametrize("dtype", SPECIAL)
@pytest.mark.parametrize("name", ONE)
def test_one_special_number(name, dtype):
    assert _differences(name, ONE[name], [np.array(SPECIAL[dtype], dtype)]) == []


@pytest.mark.parametrize("dtype", SPECIAL)
@pytest.mark.parametrize("name", TWO)
def test_two_special_numbers(name, dtype):
    both = np.array(list(itertools.product(SPECIAL[dtype], repeat=2)), dtype).T
    assert _differences(name, TWO[name], list(both)) == []


@pytest.mark.parametrize("dtype", SPECIAL)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_special_numbers(name, dtype):
    rows = np.array(list(itertools.product(FEW, repeat=3)), dtype)
    assert _differences(name, ROWS[name], [rows]) == []


def test_the_mean_of_weights_too_small_to_be_inverted():
    """1/5e−324 is infinite, Σ w/Σ w is not"""
    weight = mt.tensor([5e-324, 1.0], dtype=mt.float64)
    loss = F.nll_loss(mt.tensor([[-3.0, 0.0]], dtype=mt.float64), mt.tensor([0]), weight)
    assert loss.item() == 3.0


def test_clamp_promotes_all_three_at_once():
    """A 0-d float64 bound does not widen float32, even if a boolean is clamped."""
    x, low, high = mt.tensor([True, False]), mt.tensor(-2.0, dtype=mt.float64), mt.tensor([0.5, 3.0])
    assert x.clamp(low, high).dtype == mt.float32
    assert x.clamp(high, low).dtype == mt.float32


@pytest.mark.parametrize("dtype", SPECIAL)
def test_the_cross_entropy_of_probabilities_that_are_nearly_0_or_1(dtype):
    edge = [0.0, -0.0, 5e-324, 1e-40, 1e-30, 1e-13, 1e-11, 0.5, 1 - 1e-7, 1 - 1e-13, 1.0]
    pairs = np.array(list(itertools.product(edge, [0.0, 0.3, 1.0])), dtype).T
    function = _with("binary_cross_entropy", reduction="none")
    with np.errstate(all="ignore"):
        ours, theirs = (_run(t, function, list(pairs)) for t in (mt, torch))
    rtol = 1e-7 if dtype == "float64" else 4e-5  # PyTorch's 10⁻¹² is a float32
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol)
    held = abs(theirs[2]) > 50  # ln 0 is −100 in the gradient by the target, too; in PyTorch −∞
    np.testing.assert_allclose(ours[2][~held], theirs[2][~held], rtol=rtol, atol=rtol)
    assert (abs(ours[2]) <= 100.0).all()
    for wrong in (-1e-3, 1.001, NAN, INF):
        with pytest.raises(ValueError, match=r"_entropy: input of \S+ … \S+; give 0 … 1, or bin"):
            F.binary_cross_entropy(mt.tensor([wrong]), mt.tensor([0.5]))
        with pytest.raises(ValueError, match=r"_entropy: target of \S+ … \S+; give 0 … 1, or bin"):
            F.binary_cross_entropy(mt.tensor([0.5]), mt.tensor([wrong]))
