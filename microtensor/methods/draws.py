"""Tensor methods that draw at random, from the generator of `manual_seed` or from one that is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from microtensor import engine
from microtensor.methods.arguments import as_integer, as_number, as_rng, as_spread, check_truth
from microtensor.random import Generator

if TYPE_CHECKING:
    from microtensor.tensor import Tensor


class Draws:
    """normal_, uniform_, bernoulli, multinomial of a tensor, as methods."""

    __slots__ = ()

    def normal_(
        self: Any, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
    ) -> Tensor:
        """x ~ N(mean, std²), in place.

        Shapes: any → x itself
        Raises: ValueError for a std below 0; TypeError for integers; RuntimeError as every change in place.
        Source: torch.Tensor.normal_.
        """
        mean, std = as_number("normal_", mean), as_spread("normal_", as_number("normal_", std))
        return self._draw("normal_", as_rng("normal_", generator).normal, mean, std)

    def uniform_(
        self: Any, low: float = 0.0, to: float = 1.0, *, generator: Generator | None = None
    ) -> Tensor:
        """x ~ U[low, to), in place.

        Shapes: any → x itself
        Raises: ValueError for low > to, and for what is infinite; TypeError for integers; RuntimeError as
        every change in place.
        Source: torch.Tensor.uniform_.
        """
        if not 0 <= as_number("uniform_", to) - as_number("uniform_", low) < float("inf"):
            raise ValueError(f"uniform_: low {low} lies above to {to}, or too far below; swap or limit them")
        return self._draw("uniform_", as_rng("uniform_", generator).uniform, low, to)

    def exponential_(self: Any, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
        """x ~ lambd · exp(−lambd · x) for x > 0, in place.

        Shapes: any → x itself
        Raises: ValueError for a lambd that is not above 0; TypeError for integers; RuntimeError as every
        change in place.
        Source: torch.Tensor.exponential_.
        """
        if not as_number("exponential_", lambd) > 0:
            raise ValueError(f"exponential_: lambd is {lambd}; make it larger than 0")
        rng = as_rng("exponential_", generator)
        return self._draw("exponential_", lambda a, b, size: rng.exponential(a, size), 1.0 / lambd, 0.0)

    def _draw(self: Any, who: str, draw: Callable[..., Any], a: float, b: float) -> Tensor:
        if self.dtype.kind != "f":
            raise TypeError(f"{who}: a {self.dtype} tensor cannot hold the draws; make it floating with "
                            f".float()")  # fmt: skip
        return self._assign(who, Ellipsis, draw(a, b, self.shape))

    def bernoulli(self: Any, p: Any = None, *, generator: Generator | None = None) -> Tensor:
        """1 with the probability that stands there, or p everywhere, else 0; the same dtype.

        Shapes: any → the same
        Raises: ValueError for what are no floats from 0 to 1; TypeError for a p that is no number.
        Source: torch.bernoulli.
        """
        chance = self.array if p is None else np.asarray(as_number("bernoulli", p), float)
        wrong = np.extract(~((chance >= 0) & (chance <= 1)) | (chance.dtype.kind != "f"), chance)
        if wrong.size:
            raise ValueError(f"bernoulli: {wrong[0]} is no probability; give floats from 0 to 1")
        draws = as_rng("bernoulli", generator).random(self.shape)
        return engine.make((draws < chance).astype(self.dtype), None, None)

    def multinomial(
        self: Any, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
    ) -> Tensor:
        """Indices drawn by the weights in each row.

        Shapes: (C,) → (num_samples,); (N, C) → (N, num_samples), int64
        Raises: ValueError for weights that are negative, not finite or all zero, and where a row has fewer
        weights above zero than are drawn without replacement; TypeError for num_samples that is no integer
        and a replacement that is no truth value.
        Source: torch.multinomial.
        """
        none = as_integer("multinomial", "num_samples", num_samples) < 1
        if none or self.ndim not in (1, 2) or self.dtype.kind != "f":
            raise ValueError(f"multinomial: {num_samples} samples of {self.dtype}{self.shape}; give 1 or "
                             f"more, and floats (C,) or (N, C)")  # fmt: skip
        check_truth("multinomial", "replacement", replacement)
        weights = np.atleast_2d(self.array).astype(np.float64)
        if not np.isfinite(weights).all() or (weights < 0).any() or (weights.sum(-1) == 0).any():
            reach = f"{weights.min(initial=0)} to {weights.max(initial=0)}"
            raise ValueError(f"multinomial: weights from {reach}, or a row of zeros; make them finite, at "
                             f"least 0 and not all 0: check the softmax")  # fmt: skip
        if not replacement and (num_samples > self.shape[-1] or ((weights > 0).sum(-1) < num_samples).any()):
            raise ValueError(f"multinomial: a row has fewer than {num_samples} weights above 0; draw with "
                             f"replacement=True")  # fmt: skip
        rng = as_rng("multinomial", generator)
        if replacement:
            ends = np.cumsum(weights, -1)
            draws = rng.random((len(weights), num_samples)) * ends[:, -1:]
            found = [np.searchsorted(e, d, side="right") for e, d in zip(ends, draws, strict=True)]
            ids = np.array(found, np.int64)  # of no rows, too
        else:  # the exponential race: the first num_samples of Exp(weight) clocks to ring
            with np.errstate(divide="ignore"):
                rings = rng.standard_exponential(weights.shape) / weights
            ids = np.argsort(rings, axis=-1, kind="stable")[:, :num_samples]
        return engine.make(np.array(ids.reshape(*self.shape[:-1], num_samples), order="C"), None, None)
