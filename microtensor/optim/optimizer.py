"""Optimizer: what all optimisers share, which is groups of parameters, a state for each, and checkpoints.

A subclass of ours holds only its equation, in `_update`, on plain arrays. A user's may override `step`, as in
PyTorch: `for group in self.param_groups: for p in group["params"]: …`. No model is known here.
"""

from __future__ import annotations

import copy
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from microtensor import engine
from microtensor.engine import Array
from microtensor.methods.arguments import as_number
from microtensor.methods.gradients import forget_gradients
from microtensor.mode import enable_grad, no_grad
from microtensor.place import last_walk, line_of, mark_changed, warn
from microtensor.tensor import Tensor

__all__ = ["Optimizer"]

Pending: TypeAlias = tuple[Tensor, Array, Array, dict[str, Any]]  # parameter, its array, gradient, options


class Optimizer:
    """Base of all optimisers: parameters in groups, each group with options that start as `defaults`.

    params: tensors, or dicts {"params": tensors, option: value, …}, one per group. A parameter that is listed
    twice in a group is stepped once (PyTorch steps it twice); in two groups it is an error.

    Raises: ValueError for no parameters, one in two groups, no leaf; TypeError for what is no tensor.
    Source: PyTorch's Optimizer. Differs: a state_dict is a snapshot, a parameter is stepped once.

    >>> import microtensor as mt
    >>> class SignDescent(mt.optim.Optimizer):
    ...     def __init__(self, params, lr):
    ...         super().__init__(params, {"lr": lr})
    ...     def _update(self, p, g, state, group):
    ...         p -= group["lr"] * np.sign(g)
    >>> w = mt.tensor([1.0, -2.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> SignDescent([w], lr=0.5).step()
    >>> w
    tensor([ 0.5000, -1.5000], requires_grad=True)
    """

    slots: tuple[str, ...] = ()  # names of state arrays that have their parameter's shape
    counts: tuple[str, ...] = ()  # names of state integers
    optional: tuple[str, ...] = ()  # names of options and slots that a saved state may lack

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        if isinstance(params, Tensor | Mapping) or not isinstance(params, Iterable):
            raise TypeError(
                f"{self._name}: params is one {type(params).__name__}; give model.parameters(), or a list"
            )
        given: list[Any] = list(params)
        if not given:
            raise ValueError(
                f"{self._name}: 0 parameters are given; give model.parameters(), with lists as nn.ModuleList"
            )
        for group in given if isinstance(given[0], Mapping) else [{"params": given}]:
            self.add_param_group(group)

    @property
    def _name(self) -> str:
        return type(self).__name__

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """One more group, {"params": tensors, option: value, …}; options left out are the defaults.

        Raises: TypeError for no such dict, what is no tensor, or integers; ValueError for no parameters, one
        of an earlier group, no leaf, and an impossible option.
        Source: PyTorch's Optimizer.add_param_group. Differs: an empty group is an error.
        """
        if not isinstance(param_group, Mapping) or "params" not in param_group:
            raise TypeError(
                f'{self._name}: a group is {param_group!r}; give {{"params": tensors, option: value, …}}'
            )
        group = {**self.defaults, **param_group}
        given = group["params"]
        params = [given] if isinstance(given, Tensor) or not isinstance(given, Iterable) else list(given)
        group["params"] = unique = list({id(p): p for p in params}.values())
        if not unique:
            raise ValueError(f"{self._name}: group {len(self.param_groups)} has no parameters; leave it out")
        taken = {id(p) for other in self.param_groups for p in other["params"]}
        for i, p in enumerate(unique):
            self._check_parameter(f"parameter {i} of group {len(self.param_groups)}", p, taken)
        self._check_options(group)
        self.param_groups.append(group)

    def _check_parameter(self, where: str, p: Any, taken: set[int]) -> None:
        if not isinstance(p, Tensor):
            raise TypeError(
                f"{self._name}: {where} is {type(p).__name__}; give tensors, such as model.parameters()"
            )
        if p.grad_fn is not None:
            raise ValueError(
                f"{self._name}: {where}, of shape {p.shape}, is no leaf: {p.grad_fn!r} made it; "
                f"give the tensor it was made from, or detach().requires_grad_()"
            )
        if p.dtype.kind != "f":
            raise TypeError(
                f"{self._name}: {where} is {p.dtype}, which has no gradient; give floating tensors"
            )
        if id(p) in taken:
            raise ValueError(
                f"{self._name}: {where}, of shape {p.shape}, is in an earlier group; list it in one"
            )

    def _check_options(self, group: dict[str, Any]) -> None:
        """Refuse impossible values. NumPy scalars become Python's, because they would widen float32."""
        options = ("lr", "eps", "weight_decay", "momentum", "dampening")
        for option in [name for name in options if name in group]:
            group[option] = value = float(as_number(f"{self._name}.{option}", group[option]))
            least, cure = (-math.inf, "") if option == "dampening" else (0, ", and 0 or more")
            if value < least or not math.isfinite(value):
                raise ValueError(f"{self._name}: {option} is {value}; make it finite{cure}")

    # --- stepping -------------------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zero.

        Raises: TypeError for a set_to_none that is neither a bool nor an integer.
        Source: PyTorch's Optimizer.zero_grad.
        """
        forget_gradients(self, self._params(), set_to_none)

    @no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, in place; the others neither move nor decay.

        Where none has one (a forgotten backward()) nothing moves and nothing is said, as in PyTorch.

        Warns: if a gradient still holds what another optimiser's step has used, as a discriminator's holds
        its generator's.
        closure: computes the gradients again and returns the loss, which step then returns.
        Raises: ValueError if a gradient has not its parameter's shape and dtype, ValueError or TypeError for
        an option that is gone or has become impossible, such as an lr of NaN; nothing being changed.
        Source: PyTorch's Optimizer.step. Differs: all is checked before anything moves; the warning.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        pending: list[Pending] = []
        for i, group in enumerate(self.param_groups):
            has(self._name, i, group, "params", *self.defaults)
            self._check_options(options := {**group})  # a schedule or a user may have set them since
            for p in group["params"]:
                grad = p.grad
                if grad is not None:
                    pending.append((p, p.array, grad.array, options))
        summed: Any = [getattr(p._grad, "summed", (0, 0, [], None)) for p, _, _, _ in pending]
        if used := next((walk for _, _, _, walk in summed if walk), None):
            walked, place, who = used
            warn(f"{self._name}.step: a .grad still holds gradients of the backward() at {line_of(walked)}, "
                 f"which {who} at {line_of(place)} has used for other parameters; call this optimizer's "
                 f"zero_grad() before the backward() at {line_of(last_walk[1])}")  # fmt: skip
        if self._update_together(pending):
            mark_changed(f"{self._name}.step", *(p.version for p, _, _, _ in pending))
        else:
            for p, _, g, _ in pending:  # all before any: a refusal leaves every parameter as it was
                self._check_slots(p, self.state.get(p, {}))
                self._check_gradient(p, g)
            for p, array, g, options in pending:
                with np.errstate(all="ignore"):  # what is too large becomes inf, as everywhere
                    self._update(array, g, self.state[p], options)
                mark_changed(f"{self._name}.step", p.version)
        for _, _, walk, _ in summed:
            walk[1:] = pending[0][0].version[1:3]  # this step, and where
        return loss

    def _update_together(self, pending: list[Pending]) -> bool:
        """Update all parameters in one compiled call; False, nothing being changed, if they go one by one.

        They do if kernels cannot take an array as it is, if memory is shared, and if shapes or dtypes differ:
        the kernel looks at that, and faster than we.
        """
        return False

    def _check_slots(self, p: Tensor, state: dict[str, Any]) -> None:
        """A model that changes its dtype after some steps would leave the old one in the state."""
        for name in self.slots:
            slot = state.get(name)
            if slot is not None and (slot.dtype != p.array.dtype or slot.shape != p.array.shape):
                raise RuntimeError(
                    f"{self._name}: a {p.dtype}{p.shape} parameter has a {slot.dtype}{slot.shape} {name}; "
                    f"make the optimiser after changing the model"
                )

    def _check_gradient(self, p: Tensor, g: Array) -> None:
        if g.shape != p.array.shape or g.dtype != p.array.dtype:
            raise ValueError(
                f"{self._name}: a parameter is {p.dtype}{p.shape} but its gradient {g.dtype}{g.shape}; "
                f"set p.grad to a tensor like p"
            )

    def _update(self, p: Array, g: Array, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Change p in place by its gradient g, which may be shared and must stay as it is."""
        raise NotImplementedError(
            f"{self._name}: has no rule; define step(self) or _update(self, p, g, state, group)"
        )

    # --- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """{"state": {index: {name: value}}, "param_groups": [{option: value, "params": [index]}]}, copied.

        Parameters are numbered in the order of the groups.
        Source: PyTorch's Optimizer.state_dict, and its layout. Differs: PyTorch's tensors are live, so that a
        kept state changes with the next step.
        """
        index = {p: i for i, p in enumerate(self._params())}
        groups = [{**_options(g), "params": [index[p] for p in g["params"]]} for g in self.param_groups]
        state = {index[p]: {name: _out(v) for name, v in s.items()} for p, s in self.state.items() if s}
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state_dict(), also from PyTorch's. Everything is checked before anything changes.

        Raises: ValueError naming what differs: groups, numbers of parameters, options, names or shapes;
        TypeError for what is no dict.
        Source: PyTorch's Optimizer.load_state_dict. Differs: it looks at options, names and shapes, too.
        """
        self.check_state_dict(state_dict)
        params = self._params()
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            options = _options(saved).items()
            group.update({k: tuple(v) if isinstance(group.get(k), tuple) else v for k, v in options})
        self.state.clear()
        for i, p in enumerate(params):
            saved = state_dict["state"].get(i)
            if saved:
                self.state[p] = {name: self._into(name, value, p) for name, value in saved.items()}

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse what load_state_dict would refuse; change nothing.

        Raises: the ValueError and TypeError of load_state_dict.
        Source: ours.
        """
        who = f"{self._name}.load_state_dict"
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"{who}: state_dict is {state_dict!r:.60}; give what state_dict() gave")
        if faults := self._faults(state_dict):
            raise ValueError(
                f"{who}: the state does not fit: {'; '.join(faults[:5])}"
                f"{f'; and {len(faults) - 5} more' if len(faults) > 5 else ''}; "
                f"load what was saved from the same optimiser of the same model"
            )

    def _faults(self, state_dict: Mapping[str, Any]) -> list[str]:
        if not {"state", "param_groups"} <= set(state_dict):
            return ['it has not the keys "state" and "param_groups"']
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            return [f"it has {len(groups)} parameter groups, not {len(self.param_groups)}"]
        faults = []
        for i, (group, saved) in enumerate(zip(self.param_groups, groups, strict=True)):
            if len(saved.get("params", ())) != len(group["params"]):
                faults.append(
                    f"its group {i} has {len(saved.get('params', ()))} parameters, not {len(group['params'])}"
                )
            faults += [f"its group {i} has no option {name!r}" for name in self.defaults
                       if name not in saved and name not in self.optional]  # fmt: skip
        params = self._params()
        for i, saved in state_dict["state"].items():
            if i not in range(len(params)):
                faults.append(f"it has a state for parameter {i!r} of {len(params)}")
            else:
                faults += self._slot_faults(i, params[i], saved)
        return faults

    def _slot_faults(self, i: int, p: Tensor, saved: Mapping[str, Any]) -> list[str]:
        faults = [f"parameter {i} has no {name}" for name in self.counts if name not in saved]
        faults += [f"{name} of parameter {i} is {saved[name]!r}, no number" for name in self.counts
                   if name in saved and not hasattr(saved[name], "__int__")]  # fmt: skip
        for name in self.slots:
            value = saved.get(name)
            shape = getattr(value, "shape", None)
            if name not in saved:
                faults += [f"parameter {i} has no {name}"] if name not in self.optional else []
            elif value is not None and (shape is None or tuple(shape) != p.shape):
                faults.append(f"{name} of parameter {i} has shape {shape}, not {p.shape}")
        return faults

    def _params(self) -> list[Tensor]:
        for i, group in enumerate(self.param_groups):
            has(self._name, i, group, "params")
        return [p for group in self.param_groups for p in group["params"]]

    def _into(self, name: str, value: Any, p: Tensor) -> Any:
        """A loaded value as we keep it: slots are contiguous arrays of p's dtype, counts are ints."""
        if name in self.slots and value is not None:
            source = value.array if isinstance(value, Tensor) else value
            return np.asarray(source, p.dtype).copy(order="C")
        if name in self.counts:
            return int(value)
        return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)

    def __repr__(self) -> str:
        lines = [f"{self._name} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {name}: {value}" for name, value in sorted(group.items()) if name != "params"]
        return "\n".join([*lines, ")"])


def has(who: str, i: int, group: Mapping[str, Any], *names: str) -> None:
    """Refuse group i if it lacks one of the names: a user may have edited it, or appended it to the list."""
    for name in names:
        if name not in group:
            raise ValueError(f"{who}: group {i} has no {name!r}; set it in optimizer.param_groups[{i}], or "
                             f"add the group with add_param_group, which fills in defaults")  # fmt: skip


def keep_groups(base: type) -> None:
    """From now on a schedule that refuses to be made leaves the groups of its optimiser as they were.

    To be called after `hold`: constructors look last whether they were given what their annotations say.
    """
    for kind in (base, *base.__subclasses__()):
        kind.__init__ = _kept(vars(kind)["__init__"])  # type: ignore[misc]


def _kept(make: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(make)
    def call(*args: Any, **given: Any) -> None:
        optimizer = given.get("optimizer", args[1] if len(args) > 1 else None)
        groups = [(group, {**group}) for group in getattr(optimizer, "param_groups", ())]
        try:
            make(*args, **given)
        except BaseException:
            for group, before in groups:
                group.clear()
                group.update(before)
            raise

    return call


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}


def _out(value: Any) -> Any:
    """A state value as it leaves: arrays become tensors, and everything is a copy."""
    if isinstance(value, np.ndarray):
        return engine.make(value.copy(), None, None)
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def refuse(who: str, **arguments: Any) -> None:
    """An error for each of PyTorch's switches that is on here without meaning anything."""
    for name, value in arguments.items():
        if value:
            raise ValueError(f"{who}: {name}={value!r} is not supported; leave it out")


def check_switches(who: str, **switches: Any) -> None:
    """PyTorch's choice between its implementations: False, None and True all mean our only one."""
    for name, value in switches.items():
        if value is not None and not isinstance(value, bool):
            raise TypeError(
                f"{who}: {name} is {value!r}; give True, False or None, which all do the same here"
            )
