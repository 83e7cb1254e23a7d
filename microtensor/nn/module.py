"""Module and Parameter: a tree of named tensors with a forward. It knows tensors, and nothing of any layer.

Attributes are registered by being set: a Parameter, a Module, or a buffer of `register_buffer`. What walks
through the tree is in tree.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from microtensor import dtypes, engine
from microtensor.hooks import RemovableHandle
from microtensor.methods.calling import by_its_name
from microtensor.methods.gradients import forget_gradients
from microtensor.mode import no_grad
from microtensor.nn.checks import check_flag
from microtensor.nn.tree import Tree, join
from microtensor.place import caller
from microtensor.tensor import Tensor, as_tensor

__all__ = ["Module", "Parameter"]


class Parameter(Tensor):
    """A tensor that a module trains: registered when it is set as an attribute. It shares data's memory.

    Shapes: data (...) → (...)
    Raises: RuntimeError for integers that shall require a gradient.
    Source: PyTorch's Parameter.
    """

    def __new__(cls, data: Any, requires_grad: bool = True) -> Parameter:
        source = by_its_name(as_tensor, "Parameter")(data)
        parameter: Parameter = engine.make(source.array, None, None, cls)
        parameter.version = source.version
        return by_its_name(parameter.requires_grad_, "Parameter")(requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class IncompatibleKeys(NamedTuple):
    """What load_state_dict(strict=False) passed over: missing names, and names of nothing here."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module(Tree):
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

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Set a parameter; None keeps the name for one that is left out (bias=False).

        Raises: KeyError for a name that is empty, taken or has a dot; TypeError for what is no Parameter.
        Source: PyTorch's Module.register_parameter.
        """
        self._register("register_parameter", name, param, self._parameters, Parameter)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """A tensor that belongs to the module but is not trained; saved in checkpoints if persistent.

        Raises: KeyError for a name that is empty, taken or has a dot; TypeError for what is no tensor.
        Source: PyTorch's Module.register_buffer.
        """
        self._register("register_buffer", name, tensor, self._buffers, Tensor)
        if not persistent:
            self._transient.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Set a child module under a name that may be no Python name, but holds no dot.

        Raises: KeyError for a name that is empty, taken or has a dot; TypeError for what is no Module.
        Source: PyTorch's Module.add_module, and register_module.
        """
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

    # --- state ----------------------------------------------------------------------------------------------

    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> dict[str, Tensor]:
        """prefix + path → tensor of all parameters and persistent buffers, sharing memory with the module.

        keep_vars: the parameters themselves. A tied one stands under each of its names.
        Raises: TypeError for a prefix that is no string.
        Source: PyTorch's Module.state_dict. Differs: a plain dict; no destination, no extra state.
        """
        return {prefix + name: tensor if keep_vars else tensor.detach() for name, tensor in self._state()}

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self.named_modules(remove_duplicate=False):
            for name, tensor in (module._parameters | module._buffers).items():
                if tensor is not None and name not in module._transient:
                    yield join(path, name), tensor

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy values into the parameters and buffers, which stay the same objects. All is checked first.

        assign: what is given takes their places, with its memory and dtype; a parameter trains if the one
        before did. Make the optimiser afterwards. Returns missing and unexpected names, for strict=False.
        Raises: TypeError for no dictionary, RuntimeError naming all that is missing, unexpected, misshaped.
        Source: PyTorch's Module.load_state_dict. Differs: where something does not fit, nothing is copied.
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

    def train(self, mode: bool = True) -> Self:
        """Training behaviour (dropout on) for this module and all below.

        Raises: TypeError for a mode that is neither True nor False.
        Source: PyTorch's Module.train.
        """
        check_flag("train", "mode", mode)
        for module in self.modules():
            object.__setattr__(module, "training", bool(mode))
        return self

    def eval(self) -> Self:
        """Evaluation behaviour (dropout off) for this module and all below.

        Source: PyTorch's Module.eval.
        """
        return self.train(False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters (or set them to zero).

        Raises: TypeError for a set_to_none that is neither a bool nor an integer.
        Source: PyTorch's Module.zero_grad.
        """
        forget_gradients(self, self.parameters(), set_to_none)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Train all parameters below, or freeze them.

        Raises: RuntimeError for integers that shall require a gradient.
        Source: PyTorch's Module.requires_grad_.
        """
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call fn on every module below, then on this one: for initialising.

        Raises: TypeError for what cannot be called.
        Source: PyTorch's Module.apply.
        """
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Floating parameters and buffers in another dtype; device may be "cpu".

        Raises: TypeError for a dtype that is not here; RuntimeError for another device.
        Source: PyTorch's Module.to.
        """
        engine.make(np.zeros(()), None, None).to(*args, **kwargs)  # what is refused is refused here
        for tensor in (*self.parameters(), *self.buffers()):
            if dtypes.floating(tensor.dtype):
                tensor.data = tensor.detach().to(*args, **kwargs)
                tensor.grad = None if tensor.grad is None else tensor.grad.to(*args, **kwargs)
        return self

    def double(self) -> Self:
        """All floating parameters and buffers as float64.

        Source: PyTorch's Module.double.
        """
        return self.to(dtypes.float64)

    def float(self) -> Self:
        """All floating parameters and buffers as float32.

        Source: PyTorch's Module.float.
        """
        return self.to(dtypes.float32)

    def half(self) -> Self:
        """Refused: there is no float16.

        Raises: TypeError, always.
        Source: PyTorch's Module.half.
        """
        return self.to(np.float16)

    def cpu(self) -> Self:
        """The module itself.

        Source: PyTorch's Module.cpu.
        """
        return self

    def cuda(self, device: Any = "cuda") -> Self:
        """Refused: there is only the CPU.

        Raises: RuntimeError, unless device is "cpu"; TypeError for a number.
        Source: PyTorch's Module.cuda.
        """
        return self.to(device)

    # --- calling --------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes: written by each subclass.

        Raises: NotImplementedError where a subclass does not define it.
        Source: PyTorch's Module.forward.
        """
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
        Raises: TypeError for what cannot be called.
        Source: PyTorch's Module.register_forward_pre_hook.
        """
        return RemovableHandle(self._forward_pre_hooks, (hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call hook(module, args, output) after each forward; what it returns, if not None, is the output.

        with_kwargs: hook(module, args, kwargs, output). prepend: before the others.
        Raises: TypeError for what cannot be called.
        Source: PyTorch's Module.register_forward_hook. Differs: no always_call.
        """
        return RemovableHandle(self._forward_hooks, (hook, with_kwargs), prepend)

    # --- printing -------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What a subclass wants to see between the brackets of its name.

        Source: PyTorch's Module.extra_repr.
        """
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        children = [f"({name}): {child!r}" for name, child in self._modules.items() if child is not None]
        if children:
            extra = "\n".join(["", *extra.splitlines(), *children]).replace("\n", "\n  ") + "\n"
        return f"{type(self).__name__}({extra})"
