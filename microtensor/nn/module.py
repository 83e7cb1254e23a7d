"""Module and Parameter: a tree of named tensors with a forward. It knows tensors, and nothing of any layer.

Attributes are registered by being set: a Parameter, a Module, or a buffer of `register_buffer`. Names are the
paths through the tree, joined by dots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from microtensor import dtypes, engine
from microtensor.hooks import RemovableHandle
from microtensor.methods.gradients import forget_gradients
from microtensor.mode import no_grad
from microtensor.place import caller
from microtensor.tensor import Tensor, as_tensor

__all__ = ["Module", "Parameter"]

M = TypeVar("M", bound="Module")


class Parameter(Tensor):
    """A tensor that a module trains: registered when it is set as an attribute. It shares data's memory.

    Shapes: data (...) → (...)
    Raises: RuntimeError for integers that shall require a gradient.
    Source: PyTorch's Parameter.
    """

    def __new__(cls, data: Any, requires_grad: bool = True) -> Parameter:
        source = as_tensor(data)
        parameter: Parameter = engine.make(source.array, None, None, cls)
        parameter.version = source.version
        parameter.requires_grad_(requires_grad)
        return parameter

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class IncompatibleKeys(NamedTuple):
    """What load_state_dict(strict=False) passed over: missing names, and names of nothing here."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """Base of all layers and models: set parameters and modules as attributes in __init__, write `forward`.

    Raises: AttributeError for attributes set before super().__init__() ran.
    Source: PyTorch's Module.

    >>> from microtensor import nn
    >>> class Twice(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear = nn.Linear(3, 3)
    ...     def forward(self, x):
    ...         return self.linear(self.linear(x))
    >>> [name for name, _ in Twice().named_parameters()]
    ['linear.weight', 'linear.bias']
    """

    training: bool

    def __init__(self) -> None:
        for table in ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"):
            object.__setattr__(self, table, {})
        object.__setattr__(self, "_transient", set())  # names of buffers that no checkpoint holds
        object.__setattr__(self, "training", True)

    # --- attributes -----------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        tables = self.__dict__
        if "_parameters" not in tables:
            raise AttributeError(f"{type(self).__name__}: cannot set {name!r} before the module exists; call "
                                 f"super().__init__() first")  # fmt: skip
        if isinstance(value, Parameter):
            self._move(name, self._parameters, value)
        elif isinstance(value, Module):
            self._move(name, self._modules, value)
        elif name in (table := self._parameters) or name in (table := self._modules):
            if value is not None:
                kind = "parameter" if table is self._parameters else "module"
                raise TypeError(f"{type(self).__name__}: {kind} {name!r} cannot be {type(value).__name__}; "
                                f"set a {kind}, None, or change values with copy_()")  # fmt: skip
            table[name] = None
        elif name in self._buffers:
            self.register_buffer(name, value, name not in self._transient)
        else:
            object.__setattr__(self, name, value)

    def _move(self, name: str, table: dict[str, Any], value: Any) -> None:
        for other in (self._parameters, self._buffers, self._modules):
            if other is not table:
                other.pop(name, None)
        self.__dict__.pop(name, None)
        self._transient.discard(name)
        table[name] = value

    def __getattr__(self, name: str) -> Any:  # only called when normal look-up found nothing
        own = self.__dict__
        for table in ("_parameters", "_modules", "_buffers"):
            if table in own and name in own[table]:
                return own[table][name]
        raise AttributeError(f"{type(self).__name__}: has no attribute {name!r}; set it in __init__")

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        """Set a parameter; None keeps the name for one that is left out (bias=False)."""
        self._register("register_parameter", name, parameter, self._parameters, Parameter)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """A tensor that belongs to the module but is not trained; saved in checkpoints if persistent."""
        self._register("register_buffer", name, tensor, self._buffers, Tensor)
        if not persistent:
            self._transient.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Set a child module under a name that may be no Python name, but holds no dot."""
        self._register("add_module", name, module, self._modules, Module)

    def _register(self, who: str, name: str, item: Any, table: dict[str, Any], kind: type) -> None:
        """Set it under a name that must be free: what stood there before would be lost without a word."""
        if not isinstance(name, str) or not name or "." in name:
            raise KeyError(f"{who}: the name is {name!r}; give a string without a dot")
        if name not in table and hasattr(self, name):
            raise KeyError(f"{who}: {type(self).__name__} has {name!r} already; choose another name, or del "
                           f"it first")  # fmt: skip
        if item is not None and not isinstance(item, kind):
            raise TypeError(f"{who}: {name} is {type(item).__name__}; make it a {kind.__name__} or None")
        self._move(name, table, item)

    register_module = add_module

    def get_submodule(self, target: str) -> Module:
        """The module at a path, such as "layers.0.norm"; this one for ""."""
        return self._at("module", target)  # type: ignore[no-any-return]

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a path, such as "layers.0.weight"."""
        return self._at("parameter", target)  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a path."""
        return self._at("buffer", target)  # type: ignore[no-any-return]

    def _at(self, kind: str, target: str) -> Any:
        found = dict(getattr(self, f"named_{kind}s")(remove_duplicate=False)).get(target)
        if found is None:
            raise AttributeError(f"{type(self).__name__}: has no {kind} {target!r}; see named_{kind}s()")
        return found

    # --- walking the tree -----------------------------------------------------------------------------------

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it with their paths, each once (or under each of its names).

        memo: the modules that were seen already.
        """
        memo = set() if memo is None else memo
        waiting = [(prefix, self)]
        while waiting:
            path, at = waiting.pop()
            if at not in memo:
                if remove_duplicate:
                    memo.add(at)
                yield path, at
                waiting += [(_join(path, n), m) for n, m in reversed(at._modules.items()) if m is not None]

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules set on this one, each once, under the first of its names."""
        at: dict[Module, str] = {}
        return ((n, m) for n, m in self._modules.items() if m is not None and at.setdefault(m, n) == n)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def children(self) -> Iterator[Module]:
        """The modules set on this one, each once."""
        return (child for _, child in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, under the first of its names; two modules may share one (tied weights)."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Every buffer once, with its path."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def _named(self, table: str, prefix: str, recurse: bool, once: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self.named_modules(None, prefix, once) if recurse else [(prefix, self)]:
            for name, tensor in getattr(module, table).items():
                if tensor is not None and not (once and id(tensor) in seen):
                    seen.add(id(tensor))
                    yield _join(path, name), tensor

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Every parameter once: what an optimiser takes."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Every buffer once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    # --- state ----------------------------------------------------------------------------------------------

    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> dict[str, Tensor]:
        """prefix + path → tensor of all parameters and persistent buffers, sharing memory with the module.

        keep_vars: the parameters themselves. A tied one stands under each of its names, as in PyTorch.
        """
        return {prefix + name: tensor if keep_vars else tensor.detach() for name, tensor in self._state()}

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules(remove_duplicate=False):
            for name, tensor in (module._parameters | module._buffers).items():
                if tensor is not None and name not in module._transient:
                    yield _join(path, name), tensor

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy values into the parameters and buffers, which stay the same objects. All is checked first.

        assign: what is given takes their places, with its memory and dtype; a parameter trains if the one
        before did. Make the optimiser afterwards. Returns missing and unexpected names, for strict=False.
        Raises: TypeError for no dictionary, RuntimeError naming all that is missing, unexpected, misshaped.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"load_state_dict: {type(state_dict).__name__} is no state_dict(); mt.load files")
        own = dict(self._state())
        for name in [name for name, value in state_dict.items() if isinstance(value, Mapping)]:
            raise TypeError(f"load_state_dict: {name!r} is a dict in a dict; give the inner one, [{name!r}]")
        given = {name: as_tensor(value) for name, value in state_dict.items()}
        both = [name for name in own if name in given]
        faults = [f"{n} has shape {given[n].shape}, not {own[n].shape}" for n in both
                  if given[n].shape != own[n].shape]  # fmt: skip
        missing, unexpected = [n for n in own if n not in given], [n for n in given if n not in own]
        names = [*(f"{n} is missing" for n in missing), *(f"{n} is unexpected" for n in unexpected)]
        if faults or (names and strict):
            raise RuntimeError(f"load_state_dict: {type(self).__name__} does not fit: "
                               f"{'; '.join(faults + names)}; load what was saved from the same archi"
                               f"tecture{', or (strict=False) what is there' * (not faults)}")  # fmt: skip
        modules = dict(self.named_modules(remove_duplicate=False))
        for name in both if assign else ():
            if isinstance(own[name], Parameter):
                new = given[name] if isinstance(given[name], Parameter) else Parameter(given[name], False)
                given[name] = new.requires_grad_(own[name].requires_grad)
        with no_grad():
            for name in both:
                path, _, last = name.rpartition(".")
                if assign:
                    setattr(modules[path], last, given[name])
                else:
                    own[name].copy_(given[name])
        return IncompatibleKeys(missing, unexpected)

    def train(self: M, mode: bool = True) -> M:
        """Training behaviour (dropout on) for this module and all below."""
        for module in self.modules():
            object.__setattr__(module, "training", bool(mode))
        return self

    def eval(self: M) -> M:
        """Evaluation behaviour (dropout off) for this module and all below."""
        return self.train(False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters (or set them to zero)."""
        forget_gradients(self, self.parameters(), set_to_none)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Train all parameters below, or freeze them."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def apply(self: M, function: Callable[[Module], Any]) -> M:
        """Call function on every module below, then on this one: for initialising."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def to(self: M, *args: Any, **kwargs: Any) -> M:
        """Floating parameters and buffers in another dtype; device may be "cpu"."""
        engine.make(np.zeros(()), None, None).to(*args, **kwargs)  # what is refused is refused here
        for tensor in (*self.parameters(), *self.buffers()):
            if dtypes.floating(tensor.dtype):
                tensor.data = tensor.detach().to(*args, **kwargs)
                tensor.grad = None if tensor.grad is None else tensor.grad.to(*args, **kwargs)
        return self

    def double(self: M) -> M:
        """All floating parameters and buffers as float64."""
        return self.to(dtypes.float64)

    def float(self: M) -> M:
        """All floating parameters and buffers as float32."""
        return self.to(dtypes.float32)

    def half(self: M) -> M:
        """Refused: there is no float16."""
        return self.to(np.float16)

    def cpu(self: M) -> M:
        """The module itself."""
        return self

    def cuda(self: M, device: Any = "cuda") -> M:
        """Refused: there is only the CPU."""
        return self.to(device)

    # --- calling --------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes: written by each subclass."""
        raise NotImplementedError(f"{type(self).__name__}: has no forward; define forward(self, …)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hooked = self._forward_pre_hooks or self._forward_hooks
        result = (self._call_with_hooks if hooked else self.forward)(*args, **kwargs)
        for y in result if type(result) is tuple else (result,):
            if isinstance(y, Tensor):  # a message that names the line in forward names its caller, too
                (y.grad_fn or y).called = caller(2), type(self)
        return result

    def _call_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        for hook, with_kwargs in list(self._forward_pre_hooks.values()):
            changed = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if changed is not None:
                given = changed if isinstance(changed, tuple) else (changed,)
                args, kwargs = given if with_kwargs else (given, kwargs)
        result = self.forward(*args, **kwargs)
        for hook, with_kwargs in list(self._forward_hooks.values()):
            changed = hook(self, args, kwargs, result) if with_kwargs else hook(self, args, result)
            result = result if changed is None else changed
        return result

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call hook(module, args) before each forward; what it returns, unless None, replaces args.

        with_kwargs: hook(module, args, kwargs), which returns None or both. prepend: before the others.
        """
        return RemovableHandle(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call hook(module, args, output) after each forward; what it returns, if not None, is the output.

        with_kwargs: hook(module, args, kwargs, output). prepend: before the others.
        """
        return RemovableHandle(self._forward_hooks, (hook, with_kwargs), prepend)

    # --- printing -------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What a subclass wants to see between the brackets of its name."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        children = [f"({name}): {child!r}" for name, child in self._modules.items() if child is not None]
        if children:
            extra = "\n".join(["", *extra.splitlines(), *children]).replace("\n", "\n  ") + "\n"
        return f"{type(self).__name__}({extra})"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
