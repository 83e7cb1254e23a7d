"""Adam and AdamW: one compiled pass over all parameters (`kernels.adam_steps`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from microtensor import kernels
from microtensor.engine import Array
from microtensor.methods.arguments import as_number
from microtensor.optim.optimizer import Optimizer, Pending, check_switches, refuse
from microtensor.tensor import Tensor

__all__ = ["Adam", "AdamW"]

Params = Iterable[Tensor] | Iterable[dict[str, Any]]


class Adam(Optimizer):
    """p ← p − lr · m̂ / (√v̂ + eps), with m̂ and v̂ running means of g and g², corrected for their start at 0.

    g ← g + weight_decay · p;  m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;
    m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ); t counts the steps of this parameter from 1. maximize: −g for g.

    amsgrad: the largest v so far stands for v, so that no step grows because a large gradient is forgotten.

    Raises: ValueError for a negative or infinite lr, eps or weight_decay, and betas outside [0, 1).
    Source: Kingma & Ba 2015, Algorithm 1. Differs: the paper has no weight_decay; here it is L2
    regularisation, as in PyTorch. The decay of Loshchilov & Hutter is `AdamW`. amsgrad: Reddi, Kale & Kumar
    2018, Algorithm 2. Differs: the largest v is corrected for its start at 0, as in PyTorch.
    """

    # the two running means and the largest of one; each parameter counts its own steps
    slots = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
    counts = ("step",)
    optional = ("amsgrad", "max_exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_switches(self._name, foreach=foreach, fused=fused)
        refuse(self._name, capturable=capturable, differentiable=differentiable)
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        options |= {"amsgrad": amsgrad, "decoupled_weight_decay": decoupled_weight_decay}
        super().__init__(params, options)

    def _check_options(self, group: dict[str, Any]) -> None:
        super()._check_options(group)
        betas = group["betas"] if isinstance(group["betas"], Iterable) else ()
        betas = tuple(float(as_number(f"{self._name}.betas", beta)) for beta in betas)
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                f"{self._name}: betas are {group['betas']}; give two numbers from 0 up to, not including, 1"
            )
        group["betas"] = betas

    def _update(self, p: Array, g: Array, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            state.update(_start(p))
        state["step"] += 1
        if group["amsgrad"]:
            return _amsgrad(p, g, state, group)
        arrays, rules = (p, g, state["exp_avg"], state["exp_avg_sq"]), [_rule(group, state["step"])]
        if kernels.adam_steps(*([a] for a in arrays), kinds=[0], rules=rules):
            return
        own = [np.array(a, p.dtype, order="C") for a in arrays]  # kernels take no strided or shared memory
        if not kernels.adam_steps(*([a] for a in own), kinds=[0], rules=rules):
            raise ValueError(
                f"{self._name}: a parameter is {p.shape} but its gradient {g.shape}; make them alike"
            )
        p[...], state["exp_avg"][...], state["exp_avg_sq"][...] = own[0], own[2], own[3]

    def _update_together(self, pending: list[Pending]) -> bool:
        if type(self)._update is not Adam._update or any(group["amsgrad"] for _, _, _, group in pending):
            return False  # a subclass has another rule, and amsgrad has no kernel
        known: dict[tuple[int, int], int] = {}  # which group, at which step: numbered as they come
        fresh: dict[Tensor, dict[str, Any]] = {}
        states, kinds = [], []
        for p, array, _, group in pending:
            states.append(state := self.state.get(p) or fresh.setdefault(p, _start(array)))
            kinds.append(known.setdefault((id(group), state["step"] + 1), len(known)))
        groups = {id(group): group for *_, group in pending}
        rules = [_rule(groups[which], step) for which, step in known]
        params, grads = [array for _, array, _, _ in pending], [g for _, _, g, _ in pending]
        means, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        if not kernels.adam_steps(params, grads, means, squares, kinds, rules):
            return False
        for state in states:
            state["step"] += 1
        self.state.update(fresh)
        return True


def _start(p: Array) -> dict[str, Any]:
    return {"step": 0, "exp_avg": np.zeros(p.shape, p.dtype), "exp_avg_sq": np.zeros(p.shape, p.dtype)}


def _amsgrad(p: Array, g: Array, state: dict[str, Any], group: dict[str, Any]) -> None:
    """The step with the largest v so far; the numbers of the rule are `kernels.adam_rule`'s."""
    sign, shrink, decay, rest, beta2, rest2, rate, root, eps = _rule(group, state["step"])
    m, v = state["exp_avg"], state["exp_avg_sq"]
    p *= shrink
    d = sign * g + decay * p if decay else sign * g
    m += rest * (d - m)
    v[...] = beta2 * v + rest2 * d * d
    largest = state["max_exp_avg_sq"] = np.maximum(state.get("max_exp_avg_sq", v), v)
    p -= rate * m / (np.sqrt(largest) * root + eps)


def _rule(group: dict[str, Any], step: int) -> tuple[float, ...]:
    options = {name: group[name] for name in ("lr", "eps", "weight_decay", "maximize")}
    (beta1, beta2), decoupled = group["betas"], group["decoupled_weight_decay"]
    rule: tuple[float, ...] = kernels.adam_rule(
        **options, beta1=beta1, beta2=beta2, decoupled=decoupled, step=step
    )
    return rule


class AdamW(Adam):
    """Adam, whose weights also shrink: p ← p − lr · weight_decay · p, apart from the running means.

    p ← (1 − lr · weight_decay) p;  then Adam's step with weight_decay = 0.

    Raises: as Adam.
    Source: Loshchilov & Hutter 2019, Algorithm 2. Differs: the paper's schedule multiplier η and Adam's α are
    one number, lr, as in PyTorch: decay is lr · weight_decay where the paper has η · λ.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        switches: Any = {"foreach": foreach, "capturable": capturable, "differentiable": differentiable}
        switches |= {"fused": fused, "maximize": maximize, "decoupled_weight_decay": True}
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **switches)
