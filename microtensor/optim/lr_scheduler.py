"""Learning rate schedules: lr as a function of the number of steps taken. Call `step()` after the optimiser.

Each class states its formula with t, the number of `step()` calls so far. The rates are computed from t and
the initial rate alone, so that nothing accumulates; PyTorch's differ from them by rounding. One schedule
steps an optimiser: a second would overwrite the first one's rates (PyTorch multiplies their factors).
"""

from __future__ import annotations

import copy
import math
import weakref
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from microtensor.methods.arguments import as_number
from microtensor.optim.optimizer import Optimizer, has

__all__ = [
    "ConstantLR",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "NoamLR",
    "SequentialLR",
    "StepLR",
    "noam",
]


# optimiser → the schedule that steps it; for a schedule that is gone another may come
_in_charge: weakref.WeakKeyDictionary[Optimizer, weakref.ref[LRScheduler]] = weakref.WeakKeyDictionary()


class LRScheduler:
    """Base of all schedules: a subclass defines `get_lr()`, one rate per group, from last_epoch and base_lrs.

    Being made sets the rates of t = 0. `last_epoch` is t, PyTorch's name; t is counted in steps as soon as
    `step()` is called once per optimiser step, as is usual for Transformers.
    last_epoch: t to go on after (−1 starts); then every group must have its "initial_lr".
    Raises: TypeError for what is no optimiser; ValueError for a last_epoch without initial_lr, and a group
    without lr; the optimiser's groups being as they were.
    Source: PyTorch's LRScheduler. Differs: one schedule for an optimiser; a rate is a function of t alone.
    """

    unsaved: tuple[str, ...] = ("optimizer",)  # attributes that state_dict leaves out

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        name, groups = type(self).__name__, optimizer.param_groups
        for i, group in enumerate(groups):
            if "initial_lr" not in group:
                if last_epoch != -1:
                    raise ValueError(
                        f"{name}: last_epoch is {last_epoch} but group {i} has no initial_lr; start at −1"
                    )
                has(name, i, group, "lr")
                group["initial_lr"] = float(as_number(f"{name}.lr", group["lr"]))
        self.optimizer = optimizer
        self.base_lrs = [float(as_number(f"{name}.initial_lr", group["initial_lr"])) for group in groups]
        self.last_epoch = last_epoch
        self.step()

    def get_lr(self) -> Sequence[float]:
        """The rates of t = last_epoch, one per group.

        Raises: NotImplementedError where a subclass does not define it.
        Source: PyTorch's LRScheduler.get_lr. Differs: of t alone, not of the rates before; so it may be
        called at any time.
        """
        raise NotImplementedError(f"{type(self).__name__}: has no formula; define get_lr(self)")

    def get_last_lr(self) -> list[float]:
        """The rates set last, one per group.

        Source: PyTorch's LRScheduler.get_last_lr. Differs: a copy of the list.
        """
        return list(self._last_lr)

    def step(self) -> None:
        """t ← t + 1, and set the rates of that t.

        Raises: RuntimeError if another schedule steps the same optimiser; TypeError for a rate that is no
        number, ValueError for too few or too many; nothing being changed.
        Source: PyTorch's LRScheduler.step. Differs: no epoch to jump to.
        """
        groups, name = self.optimizer.param_groups, type(self).__name__
        self.last_epoch += 1
        try:
            rates = [float(as_number(f"{name}.get_lr", lr)) for lr in self.get_lr()]
            if len(rates) != len(groups):
                raise ValueError(
                    f"{name}: {len(rates)} rates for {len(groups)} groups; make the schedule after the last "
                    f"add_param_group, and give one rate for each"
                )
            if hasattr(self, "_last_lr"):  # not while being made: parts of SequentialLR are made, not stepped
                self._take_charge()
        except BaseException:
            self.last_epoch -= 1
            raise
        self._last_lr = rates
        for group, lr in zip(groups, rates, strict=True):
            group["lr"] = lr

    def _take_charge(self) -> None:
        held = _in_charge.get(self.optimizer)
        other = None if held is None else held()
        if other is not None and other is not self and other.optimizer is self.optimizer:
            raise RuntimeError(
                f"{type(self).__name__}: a {type(other).__name__} steps this optimiser already, and each "
                f"would overwrite the other's rates; join them with SequentialLR, multiply their factors in "
                f"one LambdaLR, or delete the one that has done its part"
            )
        _in_charge[self.optimizer] = weakref.ref(self)

    def state_dict(self) -> dict[str, Any]:
        """All of its numbers, copied; not the optimiser and no functions.

        Source: PyTorch's LRScheduler.state_dict. Differs: a copy.
        """
        return {k: copy.deepcopy(v) for k, v in self.__dict__.items() if k not in self.unsaved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state_dict(). The optimiser's rates are in the optimiser's own state.

        Raises: ValueError naming the entries that are missing or unexpected, or for other numbers of groups
        or schedules; TypeError for what is no dict.
        Source: PyTorch's LRScheduler.load_state_dict. Differs: all is checked before anything changes.
        """
        self.check_state_dict(state_dict)
        self.__dict__.update({k: copy.deepcopy(v) for k, v in state_dict.items() if k not in self.unsaved})

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse what load_state_dict would refuse; change nothing.

        Raises: the ValueError and TypeError of load_state_dict.
        Source: ours.
        """
        own, who = self.state_dict(), f"{type(self).__name__}.load_state_dict"
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"{who}: state_dict is {state_dict!r:.60}; give what state_dict() gave")
        if set(own) != set(state_dict):
            raise ValueError(
                f"{who}: missing {sorted(set(own) - set(state_dict))}, unexpected "
                f"{[k for k in state_dict if k not in own]}; load what was saved from a {type(self).__name__}"
            )
        for key in [key for key in ("base_lrs", "schedulers") if key in own]:
            n = len(state_dict[key]) if isinstance(state_dict[key], list | tuple) else "no"
            if n != len(own[key]):
                raise ValueError(f"{who}: {n} {key}, not {len(own[key])}; load what was saved with as many "
                                 f"groups and schedulers")  # fmt: skip


class LambdaLR(LRScheduler):
    """lr(t) = initial lr · f(t).   lr_lambda: f, or a list of one f per group.

    Raises: ValueError for anything but one function, or as many as groups.
    Source: PyTorch's LambdaLR. Differs: a state holds no functions.
    """

    unsaved = ("optimizer", "lr_lambdas")

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        groups = len(optimizer.param_groups)
        self.lr_lambdas = list(lr_lambda) if isinstance(lr_lambda, list | tuple) else [lr_lambda] * groups
        if [callable(f) for f in self.lr_lambdas] != [True] * groups:
            given = ", ".join(getattr(f, "__name__", repr(f)) for f in self.lr_lambdas) or "none"
            raise ValueError(f"LambdaLR: {given} for {groups} groups; give one function for each")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        factors = (as_number("LambdaLR.lr_lambda", f(self.last_epoch)) for f in self.lr_lambdas)
        return [lr * factor for lr, factor in zip(self.base_lrs, factors, strict=True)]


class StepLR(LRScheduler):
    """lr(t) = initial lr · gamma^⌊t / step_size⌋.

    Raises: ValueError for a step_size under 1.
    Source: PyTorch's StepLR.
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = _positive("StepLR", "step_size", step_size), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [lr * self.gamma ** (self.last_epoch // self.step_size) for lr in self.base_lrs]


class MultiStepLR(LRScheduler):
    """lr(t) = initial lr · gamma^(how many milestones t has reached).

    Raises: TypeError for milestones that are no numbers.
    Source: PyTorch's MultiStepLR.
    """

    def __init__(
        self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = sorted(as_number("MultiStepLR", m) for m in milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [lr * self.gamma ** bisect_right(self.milestones, self.last_epoch) for lr in self.base_lrs]


class ConstantLR(LRScheduler):
    """lr(t) = initial lr · factor until t reaches total_iters, then the initial lr.

    Raises: ValueError for a factor outside [0, 1] or a total_iters under 1.
    Source: PyTorch's ConstantLR.
    """

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 <= factor <= 1:
            raise ValueError(f"ConstantLR: factor is {factor}; give one in [0, 1]")
        self.factor, self.total_iters = factor, _positive("ConstantLR", "total_iters", total_iters)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [lr * (self.factor if self.last_epoch < self.total_iters else 1.0) for lr in self.base_lrs]


class ExponentialLR(LRScheduler):
    """lr(t) = initial lr · gammaᵗ.

    Raises: TypeError for a gamma that is no number.
    Source: PyTorch's ExponentialLR.
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [lr * self.gamma**self.last_epoch for lr in self.base_lrs]


class LinearLR(LRScheduler):
    """lr(t) = initial lr · (start + (end − start) · min(t, total) / total) with start and end factors.

    Raises: ValueError for a start_factor outside (0, 1], an end_factor outside [0, 1], a total_iters under 1.
    Source: PyTorch's LinearLR.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ValueError(
                f"LinearLR: start_factor is {start_factor} and end_factor {end_factor}; "
                f"give start_factor in (0, 1] and end_factor in [0, 1]"
            )
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = _positive("LinearLR", "total_iters", total_iters)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        part = min(self.last_epoch, self.total_iters) / self.total_iters
        factor = self.start_factor + (self.end_factor - self.start_factor) * part
        return [lr * factor for lr in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """lr(t) = eta_min + ½ (initial lr − eta_min) (1 + cos(π t / T_max)); beyond T_max it rises again.

    Raises: ValueError for a T_max under 1.
    Source: Loshchilov & Hutter 2017, §3. Differs: no restarts, as in PyTorch.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = _positive("CosineAnnealingLR", "T_max", T_max), eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        part = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (lr - self.eta_min) * part for lr in self.base_lrs]


class SequentialLR(LRScheduler):
    """schedulers[0] until t reaches milestones[0], then schedulers[1] with its own t from 0, and so on.

    Raises: ValueError unless milestones rise and are one fewer than schedulers, and for another's schedulers.
    Source: PyTorch's SequentialLR.
    """

    unsaved = ("optimizer", "schedulers")

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        if len(milestones) != len(schedulers) - 1 or list(milestones) != sorted(set(milestones)):
            raise ValueError(
                f"SequentialLR: {len(schedulers)} schedulers with milestones {list(milestones)}; "
                f"give a rising list of one milestone fewer than schedulers"
            )
        for i, scheduler in enumerate(schedulers):
            if getattr(scheduler, "optimizer", None) is not optimizer:
                raise ValueError(
                    f"SequentialLR: scheduler {i} is for another optimiser; make all of them for this one"
                )
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Sequence[float]:
        i = bisect_right(self.milestones, self.last_epoch)
        scheduler = self.schedulers[i]
        scheduler.last_epoch = self.last_epoch - (self.milestones[i - 1] if i else 0)
        return scheduler.get_lr()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "schedulers": [s.state_dict() for s in self.schedulers]}

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().check_state_dict(state_dict)
        for scheduler, state in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.check_state_dict(state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for scheduler, state in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(state)


def noam(d_model: int, warmup_steps: int, factor: float = 1.0) -> Callable[[int], float]:
    """step → factor · d_model^−½ · min(step^−½, step · warmup_steps^−³ᐟ²); step counts from 1, 0 gives 0.

    It rises linearly to (d_model · warmup_steps)^−½ · factor at step = warmup_steps, then falls as step^−½.
    Raises: ValueError unless d_model and warmup_steps are at least 1 and step at least 0.
    Source: Vaswani et al. 2017, §5.3, equation (3). Differs: a factor (1 in the paper).

    >>> lr = noam(512, 4000)
    >>> round(lr(4000), 7), lr(0)
    (0.0006988, 0.0)
    """
    width, warmup = _positive("noam", "d_model", d_model), _positive("noam", "warmup_steps", warmup_steps)

    def lr(step: int) -> float:
        if step < 0:
            raise ValueError(f"noam: step is {step}; count steps from 1")
        falling = step**-0.5 if step else math.inf
        return float(factor * width**-0.5 * min(falling, step * warmup**-1.5))

    return lr


class NoamLR(LRScheduler):
    """lr = noam(d_model, warmup_steps, factor)(t + 1): the first optimiser step uses step 1.

    It sets the rate of every group by itself, whatever the optimiser's lr was.
    Raises: ValueError unless d_model and warmup_steps are at least 1.
    Source: Vaswani et al. 2017, §5.3, equation (3). Differs: a factor (1 in the paper).
    """

    def __init__(
        self, optimizer: Optimizer, d_model: int, warmup_steps: int, factor: float = 1.0, last_epoch: int = -1
    ) -> None:
        noam(d_model, warmup_steps, factor)  # refuses impossible values here
        self.d_model, self.warmup_steps, self.factor = d_model, warmup_steps, factor
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        lr = noam(self.d_model, self.warmup_steps, self.factor)(self.last_epoch + 1)
        return [lr] * len(self.base_lrs)


def _positive(who: str, name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{who}: {name} is {value}; make it 1 or more")
    return value
