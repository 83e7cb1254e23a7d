"""The gradient of one optimiser step: of the mean over all tokens of its batches, and finite, or an error.

What is not finite is traced: the batches are run again, with the same dropout, until anomaly detection names
the op and the line that made the first NaN or infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from microtensor.anomaly import detect_anomaly
from microtensor.listing import kept_bytes, reachable
from microtensor.nn import Module
from microtensor.nn.utils import clip_grad_norm_
from microtensor.tensor import Tensor
from microtensor.train.generators import Generators, get_state, named_generators, set_state
from microtensor.train.parallel import tensors_in, world
from microtensor.train.stream import BatchStream

__all__ = ["Step", "parameters_of", "said"]

MOST = 2**53  # tokens of a batch: float64, which weights are computed in, holds each integer up to here


class Step:
    """Step `number` of a run: `backward` fills the `.grad`s, `clip` bounds them; then the optimiser may step.

    loss is the mean over all tokens, tokens their number (0 if loss_fn counts none), grad_norm the gradient's
    before clipping, bytes_kept the most that one batch kept for backward.
    """

    def __init__(
        self, number: int, model: Module, loss_fn: Callable[[Any, Any], Any], generators: Generators
    ):
        self.number, self.model, self.loss_fn = number, model, loss_fn
        self.loss = self.grad_norm = math.nan
        self.tokens = self.bytes_kept = 0
        self._generators, self._world = named_generators(generators), world()
        # each batch, the random states it began with, and what stood around it
        self._begun: list[tuple[Any, dict[str, Any], Callable[[], Any]]] = []
        self._counts: set[bool] = set()  # whether loss_fn counted the tokens of a batch

    def backward(self, batches: BatchStream, accumulate: int, stepped: list[Tensor], measure: bool) -> None:
        """Fill the `.grad`s with Σ nᵢ·gᵢ / Σ nᵢ, gᵢ being the gradient of the mean over batch i's nᵢ tokens.

        How many tokens the later batches have is not known yet, so each counts as if all had the number of
        the first; only if they have not are the gradients of what is stepped corrected, once.
        """
        total = seen = first = 0.0
        for i in range(accumulate):
            batch, part = self._world.share(batches)
            with self._world.own_random() as again:
                self._begun.append((batch, self._random_states(), again))
                loss, count = self._run(batch)
            n = count * (part if self._counts == {False} else part > 0)
            if not n:
                continue  # a mean over nothing counts for nothing; it may be NaN
            value, first, seen = float(loss.item()), first or n, seen + n
            self._refuse_infinite("loss", value)  # before it spoils the weights
            if measure and loss.grad_fn is not None:
                self.bytes_kept = max(self.bytes_kept, sum(kept_bytes(reachable(loss.grad_fn))))
            share, total = n / (first * accumulate), total + value * (n / first)
            loss = loss if share == 1.0 else loss * share
            self._world.backward(loss, stepped, first * accumulate, last=i == accumulate - 1)
        mean = total / (seen / first) if seen else math.nan
        counted = self._counts == {True}
        self.loss, seen = self._world.average(stepped, mean, seen, first * accumulate, counted)
        if not seen:
            raise ValueError(
                f"Trainer: loss_fn counted 0 tokens in all of step {self.number}, which so has no gradient; "
                f"have train_loader leave out batches without tokens"
            )
        self.tokens = int(seen) if counted else 0

    def clip(self, stepped: list[Tensor], grad_clip: float | None) -> None:
        """Scale the gradients to a norm of at most grad_clip; with None, only see that they are finite."""
        self.grad_norm = clip_grad_norm_(stepped, math.inf if grad_clip is None else grad_clip).item()
        self._refuse_infinite("gradient's norm", self.grad_norm)

    def _run(self, batch: Any) -> tuple[Any, int]:
        """The loss of a batch and its weight: its tokens, 1 if loss_fn counts none."""
        found = self.loss_fn(self.model, batch)
        self._counts.add(isinstance(found, tuple))
        loss, n = found if isinstance(found, tuple) and len(found) == 2 else (found, 1)
        if len(self._counts) > 1:
            raise TypeError(
                f"Trainer: loss_fn counted the tokens of some batches of step {self.number} and not of "
                f"others; return (loss, number of tokens) for all or for none"
            )
        n = _checked_count(n)
        if n and (not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad):
            raise TypeError(
                f"Trainer: loss_fn returned {said(loss)}; return a recorded tensor of one element, "
                f"or (loss, number of tokens)"
            )
        return loss, n

    def _refuse_infinite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            cause = self._data_fault() or f"{self._blame()}; lower the learning rate, or set grad_clip"
            raise RuntimeError(
                f"Trainer: the {what} is {value} at step {self.number}, with weights as they were; {cause}"
            )

    def _data_fault(self) -> str:
        """Which tensor of a batch is not finite, and what to do; one of masks may hold −∞."""
        for batch, *_ in self._begun:
            for name, t in tensors_in(batch):
                values = getattr(t, "array", t)
                if values.dtype.kind == "f" and not (fine := values < math.inf).all():  # NaN is not, either
                    at = tuple(np.argwhere(~fine)[0].tolist())
                    held = f"{name}, {t.dtype}{tuple(t.shape)}, holds {values[at]} at {at}"
                    return f"{held}; mend the data, or have train_loader leave such samples out"
        return ""

    def _blame(self) -> str:
        """What anomaly detection says when the batches of this step are run again."""
        try:
            with detect_anomaly():
                for batch, states, again in self._begun:
                    with again():
                        for name, state in states.items():
                            set_state(self._generators[name], state)
                        loss, n = self._run(batch)
                    if n:
                        loss.backward()
        except Exception as error:  # also what loss_fn itself raises at its second call
            return f"run again, {error}"
        return "run again with anomaly detection, no op made it out of finite numbers"

    def _random_states(self) -> dict[str, Any]:
        return {name: get_state(name, generator) for name, generator in self._generators.items()}


def _checked_count(n: Any) -> int:
    """The number of tokens that loss_fn returned."""
    try:
        if 0 <= n == int(n) <= MOST:
            return int(n)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise TypeError(
        f"Trainer: loss_fn returned {said(n)} as its number of tokens; return how many the mean is over, "
        f"an integer of 0 or more that float64 holds"
    )


def said(value: Any) -> str:
    """What was returned, in words: a tensor by its shape."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {value.shape}{'' if value.requires_grad else ' that needs no gradient'}"
    return f"{type(value).__name__} {value!r:.80}"


def parameters_of(optimizer: Any) -> list[Tensor]:
    """What it steps."""
    return [p for group in optimizer.param_groups for p in group["params"]]
