"""The op and the tape: what one differentiable function is, and what an entry remembers of a call.

Called on arrays an `Op` only computes; called on tensors it computes and leaves one `Entry` that points back
to the entries of its inputs. `walk.py` carries gradients along them. Of formulas, layers and drawings nothing
is known here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from sys import _getframe as getframe
from types import SimpleNamespace
from typing import Any, TypeAlias
from weakref import ref as weak

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from microtensor import dtypes, memory
from microtensor.dtypes import float32, float64
from microtensor.hooks import Hooks, hand_over
from microtensor.misfit import broadcast, made
from microtensor.mode import mode
from microtensor.place import Place, caller, clock, line_of, noted, users

__all__ = ["Array", "Entry", "Op", "above", "adopt", "below", "bind", "clock", "op", "record", "refresh",
           "registry"]  # fmt: skip

Array: TypeAlias = NDArray[Any]

# every op ever declared, by name: the op contract, the drawing and the docs read it
registry: dict[str, Op] = {}


# --- the one late binding: tensor.py tells what a result is -------------------------------------------------

Tensor: Any = ()  # until tensor.py is imported: nothing is an instance of it
make: Callable[..., Any]


def bind(tensor_class: Any, maker: Callable[..., Any]) -> None:
    """Called once by tensor.py: its class, and maker(array, entry, base) that wraps a result."""
    global Tensor, make
    Tensor, make = tensor_class, maker


# --- the op -------------------------------------------------------------------------------------------------

# what a VJP may ask for, and where that is found when an op has run
INPUT, OUTPUT, RESIDUAL, SHAPE, DTYPE, ALL_INPUTS, ALL_SHAPES = range(7)
PLACES = ["inputs[{}]", "y", "residuals[{}]", "getattr(inputs[{}], 'shape', ())", "inputs[{}].dtype"]
PLACES += ["tuple(inputs)", "tuple([x.shape for x in inputs])"]


@cache
def _picker(*places: str) -> Any:
    """Picks what lies there, all at once: compiled, since every op on the tape asks."""
    return eval(f"lambda y, inputs, residuals: ({''.join(map('{},'.format, places))})")


class Op:
    """One differentiable function: forward on arrays, VJP, samples, label and, if fused, its definition.

    Called on arrays it computes; called on tensors it computes and records. Made by the decorator `op`.
    """

    def __init__(self, forward: Callable[..., Any], name: str, **options: Any) -> None:
        self.forward = options.pop("ufunc", None) or forward
        self.name = name
        self.label: str = options.pop("label", name)
        self.broadcasts: bool = options.pop("broadcasts", False)
        self.promotes: slice | None = options.pop("promotes", slice(None) if self.broadcasts else None)
        self.floats: bool = options.pop("floats", False)
        self.alike = slice(0, int(self.floats)) if self.promotes is None else self.promotes
        self.converts = self.alike != slice(0, 0)
        self.view: bool = options.pop("view", False)
        self.differentiable: bool = options.pop("differentiable", True)
        self.residuals: tuple[str, ...] = options.pop("residuals", ())
        self.samples_function: Callable[..., Any] | None = options.pop("samples", None)
        if options:
            known = "label, broadcasts, promotes, floats, view, differentiable, residuals, samples, ufunc"
            raise TypeError(f"op {name!r}: no such option {sorted(options)}; choose among {known}")
        self.__doc__ = forward.__doc__
        self.__name__, self.__module__ = forward.__name__, forward.__module__
        parameters = inspect.signature(forward).parameters.values()
        for p in parameters:
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty:
                raise TypeError(f"op {name!r}: {p.name}={p.default!r} is positional; inputs have no default: "
                                f"make {p.name} keyword-only, with a * before it")  # fmt: skip
        self.inputs = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self.defaults = {p.name: p.default for p in keywords if p.default is not p.empty}
        self.vjp_function: Any = None
        self.composite_function: Callable[..., Any] | None = None
        self.kept: list[str] = []  # what an entry saves, by the names of the VJP's parameters,
        self.plan: list[tuple[int, int]] = []  # and where it is found
        self.vjp_params: frozenset[str] = frozenset()
        self.take = self.versions = _picker()  # it all, and the versions of the inputs among it
        self.keeps_output = self.keeps_inputs = self.keeps_all = self.keeps_arrays = False

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def vjp(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register the gradient formula. Its parameters are its memory: `g`, then by name what is kept."""
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].name != "g":
            raise TypeError(f"{self.name}.vjp: the first parameter must be g, the gradient of the output")
        self.kept = [p.name for p in parameters[1:] if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.plan = [self._keep(name) for name in self.kept]
        self.vjp_params = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        kinds = {kind for kind, _ in self.plan}
        self.take = _picker(*(PLACES[kind].format(i) for kind, i in self.plan))
        version = "inputs[{0}].version, inputs[{0}].version[0]"
        several = "*(v for x in inputs for v in (x.version, x.version[0]))"
        versions = [version.format(i) for kind, i in self.plan if kind == INPUT]
        self.versions = _picker(*([several] if ALL_INPUTS in kinds else versions))
        self.keeps_output, self.keeps_inputs = OUTPUT in kinds, bool(kinds & {INPUT, ALL_INPUTS})
        self.keeps_all = self.plan == [(INPUT, i) for i in range(len(self.inputs))]
        self.keeps_arrays = bool(kinds & {INPUT, OUTPUT, RESIDUAL, ALL_INPUTS})
        self.vjp_function = function
        return function

    def _keep(self, name: str) -> tuple[int, int]:
        """Where a parameter of the VJP is found, by its name."""
        places = {f"{x}{what}": (kind, i) for i, x in enumerate(self.inputs)
                  for what, kind in (("", INPUT), ("_shape", SHAPE), ("_dtype", DTYPE))}  # fmt: skip
        places |= {residual: (RESIDUAL, i) for i, residual in enumerate(self.residuals)}
        if self.variadic:
            places |= {self.variadic: (ALL_INPUTS, 0), f"{self.variadic}_shapes": (ALL_SHAPES, 0)}
        if name == "y" and "y" in self.inputs:
            raise TypeError(f"{self.name}.vjp: y is the output, the forward has an input y; rename the input")
        if name != "y" and name not in places:
            raise TypeError(f"{self.name}.vjp: cannot keep {name!r}; name y, an input {self.inputs}, its "
                            f"shape or dtype (x_shape, x_dtype) or a residual {list(self.residuals)}, and "
                            f"metadata behind a *, as in (g, x, *, {name})")  # fmt: skip
        return places.get(name, (OUTPUT, 0))

    def samples(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register a generator of (args, params) that the op contract is tested on."""
        self.samples_function = function
        return function

    def composite(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register the definition of a fused op in simpler ops."""
        self.composite_function = function
        return function

    def __call__(self, *args: Any, **params: Any) -> Any:
        for a in args:
            if isinstance(a, Tensor):
                return self._record(args, params)
        y = self.forward(*args, **params)
        return y[0] if self.residuals else y

    def _record(self, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Compute on the arrays inside; if a gradient may flow, leave an entry on the tape."""
        now = mode.__dict__  # one look into what is the thread's own
        if now["composites"] and self.composite_function is not None:
            return self.composite_function(*args, **params)
        if self.defaults:
            params = {**self.defaults, **params}
        arrays, nodes, dtype, needed, plain, mixed = [], [], None, False, True, False
        for a in args:  # one pass, node_of written out: this loop is much of what an op costs over its kernel
            if isinstance(a, Tensor):
                if a.base is not None:
                    refresh(a)
                if a._requires_grad:
                    needed = True
                    nodes.append(a.grad_fn or a)
                else:
                    nodes.append(weak(a))
                a = a.array
                if a.dtype is not dtype:
                    mixed = dtype is not None
                    dtype = a.dtype
            else:
                plain = plain and (type(a) is float or type(a) is int or (a is None and not self.converts))
                nodes.append(a)
            arrays.append(a)
        if mixed and self.converts:  # a mask is none of those that are to be alike
            kinds = {a.dtype for a in arrays[self.alike] if type(a) is ndarray}
            dtype = kinds.pop() if len(kinds) == 1 else None
        if not (plain and (dtype is float32 or dtype is float64 or not self.converts)):
            args = self._prepare(args)
            arrays = [a.array if isinstance(a, Tensor) else a for a in args]
            nodes = [node_of(a) if isinstance(a, Tensor) else a for a in args]
        needed = needed and self.differentiable and now["grad"]
        if needed and self.vjp_function is None:
            return self._by_composite(args, params)
        try:
            run = now["run"]
            y = run(self.forward, *arrays, **params) if params else run(self.forward, *arrays)
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            raise (told := self._explain(error, arrays, args)) from told.__cause__
        except RuntimeError as error:  # a forward that calls ops on tensors: they are quiet already
            if not str(error).startswith("cannot enter context"):
                raise
            y = self.forward(*arrays, **params)
        y, residuals = y if self.residuals else (y, None)
        y = y if type(y) is ndarray else np.asarray(y)  # NumPy turns 0-d results into scalars
        base = args[0] if self.view and memory.shares(y, arrays[0]) else None
        if not needed or y.dtype.kind != "f":
            result = make(y, None, base)
            many = y.dtype is dtype in (float32, float64) and not mixed and (base is None or not now["grad"])
            return result if many else noted(result, self.name, nodes[0])  # inference makes many
        if self.keeps_inputs:
            args = [a if isinstance(a, Tensor) else NUMBER for a in args]  # type: ignore[assignment]
        saved = self.take(y, arrays, residuals) if self.plan else ()
        result = record(self, params, nodes, y, saved, self.versions(None, args, None), 3)
        if base is not None:
            view_of(result, base)
        if self.keeps_output:  # its check comes last
            result.grad_fn.checks += result.version, result.version[0]
        return result

    def _by_composite(self, args: tuple[Any, ...], params: dict[str, Any]) -> Any:
        if self.composite_function is None:
            raise TypeError(f"{self.name}: has no gradient; give it one with @{self.__name__}.vjp, or "
                            f"declare it with differentiable=False")  # fmt: skip
        return self.composite_function(*args, **params)

    def _prepare(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """NumPy scalars become Python's (law 6), arrays tensors, and mixed dtypes one dtype."""
        ready = [a.item() if isinstance(a, np.generic) else a for a in args]
        ready = [make(dtypes.as_array(a), None, None) if isinstance(a, np.ndarray) else a for a in ready]
        chosen = ready[self.alike]
        if chosen:
            common = dtypes.common(self.name, chosen)
            if self.floats and common.kind != "f":
                common = dtypes.default
            if not any(isinstance(a, Tensor) for a in chosen):
                chosen[0] = make(np.asarray(chosen[0], common), None, None)
            ready[self.alike] = [_cast(a, common, self.name) for a in chosen]
        return tuple(ready)

    def _explain(self, error: Exception, arrays: Sequence[Any], given: Sequence[Any]) -> Exception:
        """The error in the house's form; of shapes, with the lines that made them. Its cause adds to it."""
        told, text = error, str(error)
        if not text.startswith((f"{self.__name__}:", f"{self.name}:")):
            told = self._tell(error, text, arrays)
            told.__cause__ = None if told.__suppress_context__ else error
        if isinstance(told, ValueError):
            told.args = (f"{told}{made(given)}",)
        return told

    def _tell(self, error: Exception, text: str, arrays: Sequence[Any]) -> Exception:
        """In the house's form, which the text has not."""
        given = ", ".join(f"{a.dtype}{a.shape}" if hasattr(a, "shape") else f"{a!r:.60}" for a in arrays)
        if self.broadcasts and isinstance(error, ValueError):
            try:
                broadcast(self.name, *map(np.shape, arrays))
            except ValueError as misfit:
                return misfit
        kind = type(error) if type(error) in (ValueError, IndexError, TypeError) else ValueError
        one_number = "to Python scalars" in text or "truth value of an array" in text  # math.erf(x), if x > 0
        cure = "compute on whole arrays, by ops or NumPy" if one_number else "check the shapes and arguments"
        if "numpy boolean" in text:
            text, cure = "booleans have no minus", "use ~ for not (^ for -), or .long() to compute"
        return kind(f"{self.name}: {text} (given {given}); {cure}")


def op(name: str, **options: Any) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op: `@op("exp") def exp(x): ...`. Inputs are positional, metadata keyword-only.

    Then come `@exp.vjp` (its gradient), `@exp.samples` (what it is tested on), and for a fused op
    `@exp.composite`: its definition in simple ops, for higher derivatives, and for tests to compare it with.

    Options: `label` for drawings; `broadcasts` (inputs broadcast, the walk undoes it); `promotes` (the slice
    of inputs brought to one dtype, or None; all of them where `broadcasts`); `floats` (integers become the
    default dtype); `view` (the output may share the first input's memory); `differentiable`; `residuals`
    (names of what the forward returns beside y, for its VJP); `samples` (where several ops share them);
    `ufunc` (NumPy's function that is the forward: the decorated one then only names the inputs).
    """

    def declare(forward: Callable[..., Any]) -> Op:
        if name in registry and registry[name].__module__ != forward.__module__:
            where = registry[name].__module__
            raise ValueError(f"op: {name!r} is declared already in {where}; choose another name")
        registry[name] = made = Op(forward, name, **options)
        return made

    return declare


def _cast(a: Any, dtype: dtypes.DType, who: str) -> Any:
    """A tensor in the common dtype; a Python scalar as it is, but in that of integers where one computes."""
    if isinstance(a, Tensor):
        return a if a.array.dtype == dtype else registry["cast"](a, dtype=dtype)
    return a if dtype.kind == "f" or who in dtypes.EXACT else make(np.asarray(a).astype(dtype), None, None)


def view_of(view: Any, base: Any) -> None:
    """The tensor shares memory with base, and so all changes in place."""
    root = base if base.base is None else base.base[0]
    view.version, view.base = base.version, (root, root.grad_fn)


def refresh(view: Any) -> None:
    """A view of a tensor that was changed in place since it was taken gets the entry it would get now."""
    base, entry = view.base
    if view.version is not base.version:  # the base has other memory since: this is no view any more
        view.base = None
    elif base.grad_fn is not entry and mode.grad:
        if view.grad_fn is None and entry is not None:
            raise RuntimeError(f"view: one of shape {view.shape}, taken under no_grad of a tensor changed in "
                               f"place since at {line_of(base.version[1])}: does a gradient flow through it? "
                               f"take it while recording, or detach() it")  # fmt: skip
        flat = registry["reshape"](base, shape=(-1,))
        now = registry["getitem"](flat, index=memory.places(view.array, base.array))
        adopt(view, now)
        view.base = base, base.grad_fn


def adopt(tensor: Any, result: Any) -> None:
    """The tensor goes on as what an op just made of it: by the entry of the result."""
    hand_over(tensor.grad_fn, result.grad_fn)
    tensor.grad_fn, tensor._requires_grad = result.grad_fn, result._requires_grad


# --- the tape -----------------------------------------------------------------------------------------------


class Entry:
    """One line of the tape: `op(*inputs, **params)` made a result of `shape` and `dtype`.

    `inputs[i]` is the entry that made input i, or the leaf tensor itself if it requires a gradient, or a weak
    reference to a tensor that needs none, or a Python scalar. `saved` is what the VJP's signature names.
    """

    __slots__ = ("__weakref__", "called", "checks", "dtype", "hooks", "index", "inputs", "op", "params",
                 "place", "saved", "shape")  # fmt: skip

    op: Op
    params: dict[str, Any]
    inputs: Sequence[Any]
    shape: tuple[int, ...]
    dtype: dtypes.DType
    index: int  # an input is always older than its output
    place: Place | None  # where in the user's code
    called: tuple[Place, type]  # where the module was called that gave this result, if one did
    hooks: Hooks | None  # what waits for the gradient of this result
    saved: Any  # what the VJP takes beside g, None once freed
    checks: Sequence[Any]  # version counter, its value then, version counter, … of what is kept

    def __repr__(self) -> str:
        return f"<{self.op.name} → {self.dtype}{self.shape}, {self.line}>"

    @property
    def line(self) -> str:
        """`file:line` of the user's code that made this result."""
        return line_of(self.place)


NUMBER = SimpleNamespace(version=(0,))  # stands for an input that is no tensor: it never changes


def record(op: Op, params: dict[str, Any], inputs: Any, y: Array, saved: Any, checks: Any, ours: int) -> Any:
    """The result y that op just made, with its entry; `ours` frames or more lie below the user's.

    As make() and an `__init__` would do it, in no further call: all that is recorded comes through here.
    """
    result, entry = Tensor(), Entry()
    result.array, result.grad_fn, result._requires_grad = y, entry, True
    result._grad = result.name = result.base = result.hooks = entry.hooks = None
    entry.op, entry.params, entry.inputs = op, params, inputs
    entry.shape, entry.dtype, entry.index = y.shape, y.dtype, next(clock)
    entry.saved, entry.checks, result.version = saved, checks, [0]
    code = (frame := getframe(ours)).f_code
    entry.place = (code, frame.f_lasti) if code.co_filename in users else caller(ours + 1)
    return result


def node_of(tensor: Any) -> Any:
    """Where a tensor's gradient arrives: its entry, or the leaf itself; a weak reference if it needs none."""
    return tensor.grad_fn or (tensor if tensor._requires_grad else weak(tensor))


def below(nodes: Iterable[Any], oldest: int) -> set[Entry]:
    """The entries among the nodes, and those below them that are no older than an index."""
    seen, stack = set[Entry](), list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, Entry) and node not in seen and node.index >= oldest:
            seen.add(node)
            stack.extend(node.inputs)
    return seen


def above(entries: Iterable[Entry], goals: set[Any]) -> set[Entry]:
    """Of the entries those from which a goal is reached."""
    found: set[Entry] = set()
    for entry in sorted(entries, key=lambda e: e.index):
        if any(isinstance(n, (Entry, Tensor)) and (n in goals or n in found) for n in entry.inputs):
            found.add(entry)
    return found
