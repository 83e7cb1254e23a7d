"""Stochastic gradient descent, with heavy-ball or Nesterov momentum: one pass over all parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from microtensor import kernels
from microtensor.engine import Array
from microtensor.optim.optimizer import Optimizer, Pending, check_switches, refuse
from microtensor.tensor import Tensor

__all__ = ["SGD"]


class SGD(Optimizer):
    """p ← p − lr · d, where d is the gradient, or with momentum μ its running sum b.

    g ← g + weight_decay · p;  b ← μ b + (1 − dampening) g, and b ← g at the first step;
    d = b, or g + μ b with nesterov. maximize: g ← −g before all of this.

    Raises: ValueError for a number that is not finite, a negative lr, momentum or weight_decay, and for
    nesterov without momentum or with dampening.
    Source: Polyak 1964; Sutskever et al. 2013, §2. Differs, as in PyTorch: lr multiplies the sum, not each
    gradient in it, and the first b is not dampened. weight_decay is L2 regularisation (∇ of ½ λ‖p‖²).
    """

    slots = ("momentum_buffer",)

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_switches("SGD", foreach=foreach, fused=fused)
        refuse("SGD", differentiable=differentiable)
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**options, "nesterov": nesterov, "maximize": maximize})

    def _check_options(self, group: dict[str, Any]) -> None:
        super()._check_options(group)
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError(
                f"SGD: nesterov with momentum {group['momentum']} and dampening {group['dampening']}; "
                f"give a momentum above 0 and no dampening"
            )

    def _update(self, p: Array, g: Array, state: dict[str, Any], group: dict[str, Any]) -> None:
        momentum = group["momentum"]
        if group["maximize"]:
            g = -g
        if group["weight_decay"]:
            g = g + group["weight_decay"] * p
        if momentum:
            b = state.get("momentum_buffer")
            if b is None:
                b = state["momentum_buffer"] = np.array(g)  # 0-d sums are NumPy scalars: an array again
            else:
                b *= momentum
                b += (1 - group["dampening"]) * g
            g = g + momentum * b if group["nesterov"] else b
        p -= group["lr"] * g

    def _update_together(self, pending: list[Pending]) -> bool:
        moving = {bool(group["momentum"]) for _, _, _, group in pending}
        if type(self)._update is not SGD._update or len(moving) != 1:
            return False  # a subclass has another rule; some sum up and some do not: one by one
        sums: list[Array] = []
        fresh: dict[Tensor, Array] = {}
        kinds: list[int] = []
        known: dict[tuple[int, bool], int] = {}  # which group, starting or not: numbered as they come
        for p, array, _, group in pending:
            b = None
            if group["momentum"]:
                b = self.state.get(p, {}).get("momentum_buffer")
                if b is None:
                    fresh[p] = np.empty(array.shape, array.dtype)
                sums.append(fresh[p] if b is None else b)
            kinds.append(known.setdefault((id(group), b is None), len(known)))
        groups = {id(group): group for *_, group in pending}
        rules = [_rule(groups[which], starting) for which, starting in known]
        params, grads = [array for _, array, _, _ in pending], [g for _, _, g, _ in pending]
        if not kernels.sgd_steps(params, grads, sums or None, kinds, rules):
            return False
        for p, b in fresh.items():
            self.state[p]["momentum_buffer"] = b
        return True


def _rule(group: dict[str, Any], starting: bool) -> tuple[float, ...]:
    names = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
    options = {name: group[name] for name in names}
    rule: tuple[float, ...] = kernels.sgd_rule(**options, starting=starting)
    return rule
