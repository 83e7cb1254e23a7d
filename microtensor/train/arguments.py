"""What a Trainer is given, looked at before anything is trained: by itself, and whether it goes together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from microtensor.train.evaluation import Best
from microtensor.train.folder import CheckpointFolder
from microtensor.train.step import said

__all__ = ["check_arguments", "check_best", "check_callables"]

OPTIONAL = ("eval_every", "keep", "checkpoint_every", "patience")


def check_arguments(counts: Mapping[str, Any], grad_clip: Any, train_loader: Any, *steppers: Any) -> None:
    """Raise ValueError or TypeError for an impossible number, and what yields nothing or cannot step."""
    for name, value in zip(("optimizer", "scheduler"), steppers, strict=True):
        if isinstance(value, type) or not (hasattr(value, "step") or (value is None and name == "scheduler")):
            raise TypeError(f"Trainer: {name} is {said(value)}; give an object that has step()")
    for name, value in counts.items():
        counts_up = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not counts_up and not (value is None and name in OPTIONAL):
            raise ValueError(f"Trainer: {name} is {value!r}; give an integer of 1 or more")
    if grad_clip is not None and (isinstance(grad_clip, bool) or not isinstance(grad_clip, Real)):
        raise TypeError(f"Trainer: grad_clip is {said(grad_clip)}; give a number, or None for no clipping")
    if grad_clip is not None and not float(grad_clip) > 0:
        raise ValueError(f"Trainer: grad_clip is {grad_clip}; make it more than 0, or None for no clipping")
    if not isinstance(train_loader, Iterable) and not hasattr(train_loader, "__getitem__"):
        raise TypeError(f"Trainer: train_loader is {said(train_loader)}; give what yields batches")


def check_callables(loss_fn: Any, evaluate: Any, eval_every: int | None, callbacks: Any) -> None:
    """Raise TypeError for what cannot be called, ValueError for evaluate without eval_every or vice versa."""
    if not isinstance(callbacks, Iterable):
        raise TypeError(f"Trainer: callbacks is {said(callbacks)}; give a list of functions of the trainer")
    given = {"loss_fn": [loss_fn], "evaluate": [] if evaluate is None else [evaluate], "callbacks": callbacks}
    for name, functions in given.items():
        for function in functions:
            if not callable(function):
                raise TypeError(f"Trainer: {name} has {said(function)}; give a function")
    if (eval_every is None) != (evaluate is None):
        raise ValueError("Trainer: eval_every and evaluate need each other; give both or neither")


def check_best(best: Best, evaluate: Any, folder: CheckpointFolder | None) -> None:
    """Raise ValueError or TypeError where best, best_mode and patience make no sense."""
    if best.mode not in ("min", "max"):
        raise ValueError(f'Trainer: best_mode is {best.mode!r}; give "min" or "max"')
    if best.name is None and best.patience is not None:
        raise ValueError(f"Trainer: patience {best.patience} for nothing; say best=, a number of evaluate")
    if best.name is not None and evaluate is None:
        raise ValueError(f"Trainer: best={best.name!r} is a number of evaluate; give evaluate and eval_every")
    if best.name is not None and folder is not None and folder.single:
        raise ValueError(f"Trainer: {folder.path!r} is one file, best keeps two; give checkpoint a folder")
