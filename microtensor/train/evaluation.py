"""What a run knows of its evaluations: the numbers by name, the best one so far, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from microtensor.mode import no_grad
from microtensor.nn import Module
from microtensor.tensor import Tensor
from microtensor.train.step import said

__all__ = ["OWN_NAMES", "Best", "best_state", "evaluated"]

# of a record of the log
OWN_NAMES = ("step", "loss", "lr", "grad_norm", "tokens_per_second", "peak_memory", "bytes_kept")
STATE = {"name": str, "mode": str, "value": float, "step": int, "since": int}  # of Best


def evaluated(model: Module, evaluate: Callable[[Any], Any]) -> dict[str, float]:
    """What evaluate(model) says in eval mode, as numbers by their names in the log."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with no_grad():
            result = evaluate(model)
    finally:
        for module, training in modes:
            module.training = training
    named = result if isinstance(result, Mapping) else {"evaluation": result}
    for name in named:
        if not isinstance(name, str):
            raise TypeError(f"Trainer: evaluate returned the name {said(name)}; let all names be strings")
    named = {name: _number(name, value) for name, value in named.items()}
    clear = {f"eval_{name}" if name in OWN_NAMES else name: value for name, value in named.items()}
    if len(clear) < len(named):
        raise ValueError(f"Trainer: two of evaluate's {sorted(named)} have one name in the log; rename one")
    return clear


def _number(name: str, value: Any) -> float:
    """What evaluate returned as a float; a tensor or an array may have axes, but one element only."""
    try:
        single = value.item() if isinstance(value, Tensor | np.ndarray) else value
        if hasattr(single, "__float__"):
            return float(single)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise TypeError(
        f"Trainer: evaluate returned {said(value)} for {name!r}; return a number that a float holds, or a "
        f"dict of such numbers by name"
    )


class Best:
    """The best value of one number of evaluate, its step, and how many evaluations came since.

    name: of the number, None to look at nothing; mode: "min" or "max"; patience: so many evaluations without
    a better one end the run, None for no end. NaN is never better.
    """

    def __init__(self, name: str | None, mode: str, patience: int | None) -> None:
        self.name, self.mode, self.patience = name, mode, patience
        self.value, self.step, self.since = math.nan, 0, 0

    @property
    def over(self) -> bool:
        """Whether patience is at its end."""
        return self.patience is not None and self.since >= self.patience

    def see(self, result: Mapping[str, float], step: int) -> bool:
        """Whether this evaluation is the best so far."""
        if self.name is None:
            return False
        name = f"eval_{self.name}" if self.name in OWN_NAMES else self.name
        if name not in result:
            raise ValueError(
                f"Trainer: best is {self.name!r}, but evaluate returned {sorted(result)}; give one of these"
            )
        value = result[name]
        better = value < self.value if self.mode == "min" else value > self.value
        if better or (math.isnan(self.value) and not math.isnan(value)):
            self.value, self.step, self.since = value, step, 0
            return True
        self.since += 1
        return False

    def state_dict(self) -> dict[str, Any] | None:
        """For a checkpoint; None if it looks at nothing."""
        return None if self.name is None else {name: getattr(self, name) for name in STATE}

    def check_state_dict(self, path: str, state: Mapping[str, Any] | None) -> None:
        """Raise ValueError if load_state_dict would go on from another number than ours.

        A state that no evaluation has touched is of no number yet: its name may have been misspelt.
        """
        if state is None or (state["step"], state["since"]) == (0, 0):
            return
        if (state["name"], state["mode"]) != (self.name, self.mode):
            raise ValueError(
                f"Trainer: {path!r} is of a run with best={state['name']!r}, best_mode={state['mode']!r}; "
                f"give the same, or load its weights alone by load_checkpoint(path).restore(model)"
            )

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a state; from None, anew."""
        state = state or {"value": math.nan, "step": 0, "since": 0}
        self.value, self.step, self.since = state["value"], state["step"], state["since"]


def best_state(extra: Any) -> dict[str, Any] | None:
    """The state of a Best that a checkpoint holds beside other things, if any."""
    state = extra.get("best") if isinstance(extra, dict) else None
    ours = isinstance(state, dict) and {name: type(value) for name, value in state.items()} == STATE
    return state if ours else None
