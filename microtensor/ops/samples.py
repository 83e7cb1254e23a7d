"""Sample inputs that several ops share: what the op contract is tested on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

Rng: TypeAlias = "np.random.Generator"  # a name only: importing it takes a while
Samples = Iterator[tuple[tuple[Any, ...], dict[str, Any]]]


def pairs(rng: Rng, low: float = -2.0, high: float = 2.0) -> Samples:
    """Two operands: equal shapes, each broadcast against the other, a 0-d one, and a Python scalar."""
    for a, b in [((2, 3), (2, 3)), ((4, 1), (3,)), ((3,), (2, 1, 3)), ((), (2, 2)), ((0, 3), (3,))]:
        yield (rng.uniform(low, high, a), rng.uniform(low, high, b)), {}
    yield (rng.uniform(low, high, (2, 3)), 1.5), {}
    yield (1.5, rng.uniform(low, high, (2, 3))), {}


def one(rng: Rng, low: float = -2.0, high: float = 2.0) -> Samples:
    """One operand of several shapes, 0-d and empty among them."""
    for shape in [(2, 3), (5,), (), (0, 2)]:
        yield (rng.uniform(low, high, shape),), {}


def positive(rng: Rng) -> Samples:
    """One operand where logarithms and roots are smooth."""
    return one(rng, 0.5, 2.0)


def positive_pairs(rng: Rng) -> Samples:
    """Two operands, both positive."""
    return pairs(rng, 0.5, 2.0)


def away_from_kinks(rng: Rng) -> Samples:
    """One operand of either sign, but nowhere near 0: a central difference must not cross the kink."""
    for (x,), params in one(rng, 0.2, 2.0):
        yield (x * np.where(rng.random(x.shape) < 0.5, -1.0, 1.0),), params


def distinct_pairs(rng: Rng) -> Samples:
    """Two operands that differ everywhere by far more than a central difference steps."""
    for (a, b), params in pairs(rng, 0.2, 1.0):
        yield (a, b + np.where(rng.random(np.shape(b)) < 0.5, -1.0, 1.0)), params


def dividends(rng: Rng) -> Samples:
    """Both signs of both, nowhere near a multiple of the divisor, where the remainder jumps."""
    for (a, b), params in pairs(rng, 0.2, 0.8):
        quotient = rng.integers(-2, 3, np.broadcast_shapes(np.shape(a), np.shape(b)))
        yield ((quotient + a) * b, b) if isinstance(b, float) or np.ndim(b) else (a, b), params
