"""What drawn programs are made of: shapes, dtypes, layouts, arguments, and calls that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from oracle import Input, Name, Program

FLOATS = ["float64", "float32"]
INTEGERS = ["int64", "int32", "uint8"]
DTYPES = [*FLOATS, *INTEGERS, "bool"]
Shape = tuple[int, ...]


class Draw:
    """Draws from one generator, so that a seed is a program."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def int(self, low: int, high: int) -> int:
        """low … high, both included"""
        return int(self.rng.integers(low, high + 1))

    def shape(self, low: int = 0, high: int = 4, empty: bool = True) -> Shape:
        """Up to four axes, of length 1 more often than chance has it, and now and then of length 0."""
        lengths = [1, 1, 2, 3, 4, *([0] if empty and self.chance(0.3) else [])]
        return tuple(self.pick(lengths) for _ in range(self.int(low, high)))

    def dtype(self) -> str:
        return self.pick(["float64"] * 4 + ["float32"] * 2 + DTYPES)

    def x(
        self,
        shape: Shape | None = None,
        dtype: str | None = None,
        low: float = -3.0,
        high: float = 3.0,
        distinct: bool = False,
        ties: bool = True,
    ) -> Input:
        """A tensor in any layout, requiring a gradient or not; now and then of whole numbers, which tie."""
        shape = self.shape() if shape is None else shape
        dtype = dtype or self.dtype()
        layout = "plain"
        if shape and not distinct and self.chance(0.4):
            layout = self.pick(["transposed", "stepped", "expanded"])
        base = {
            "plain": lambda: shape,
            "stepped": lambda: (*shape[:-1], 2 * shape[-1]),
            "transposed": lambda: (shape[-1], *shape[1:-1], shape[0]) if len(shape) > 1 else shape,
            "expanded": lambda: self._unexpanded(shape),
        }[layout]()
        floating = dtype.startswith("float")
        if distinct:
            values = self.rng.permutation(math.prod(base)).reshape(base) * (0.37 if floating else 1) + int(
                low
            )
        elif floating and not (ties and self.chance(0.25)):
            values = self.rng.uniform(low, high, base)
        else:
            values = self.rng.integers(math.ceil(low), math.floor(high) + 1, base)
        if dtype == "uint8":
            values = np.abs(values)
        elif dtype == "bool":
            values = values > 0
        return Input(np.asarray(values).astype(dtype), layout, floating and self.chance(0.7), shape)

    def _unexpanded(self, shape: Shape) -> Shape:
        axis = self.int(0, len(shape) - 1)
        return tuple(1 if i == axis else n for i, n in enumerate(shape))

    def floating(self, shape: Shape | None = None, **options: Any) -> Input:
        return self.x(shape, self.pick(["float64", "float64", "float32"]), **options)

    def broadcasting(self, shape: Shape) -> Shape:
        """A shape that broadcasts against another."""
        return tuple(1 if self.chance(0.25) else n for n in shape[self.int(0, len(shape)) :])

    def operand(self, x: Input, number: float = 0.3, **options: Any) -> Any:
        """What stands beside a tensor: one whose shape broadcasts (or, seldom, does not), or a number."""
        if self.chance(number):
            return self.number()
        shape = self.broadcasting(x.shape) if self.chance(0.93) else self.shape()
        return self.x(shape, self.pick([x.base.dtype.name, self.dtype()]), **options)

    def number(self) -> Any:
        return self.pick([2, -1, 0, 1, 1.5, -0.5, 3.0, True])

    def dim(self, x: Input | int) -> int:
        """An axis, counted from either end; of a 0-d tensor 0 or −1."""
        n = max(x if isinstance(x, int) else len(x.shape), 1)
        return self.int(-n, n - 1)

    def dims(self, x: Input, low: int = 1) -> tuple[int, ...]:
        """Several different axes."""
        n = len(x.shape)
        axes = self.rng.permutation(n)[: self.int(min(low, n), n)]
        return tuple(int(a) - n * self.chance(0.4) for a in axes)

    def mask(self, shape: Shape) -> Input:
        return self.x(shape, "bool", -3.0, 3.0)

    def ids(self, shape: Shape, length: int, unique_along: int | None = None) -> Input:
        """Integers 0 … length − 1; each at most once along an axis if asked."""
        dtype = "int64"
        if unique_along is None:
            values = self.rng.integers(0, max(length, 1), shape)
        else:
            values = np.argsort(self.rng.random((*shape, max(length, 1))), -1)[..., 0]
            order = self.rng.permutation(max(length, 1))[: shape[unique_along] if shape else 1]
            values = np.broadcast_to(
                order.reshape([-1 if i == unique_along else 1 for i in range(len(shape))]), shape
            )
        return Input(np.array(values, dtype), shape=shape)

    def some(self, **options: Any) -> dict[str, Any]:
        """Some of the options, in PyTorch's sense optional."""
        return {k: v for k, v in options.items() if self.chance(0.5)}


# --- wrong calls --------------------------------------------------------------------------------------------


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for v in value for leaf in _leaves(v)]
    return [value]


def _replaced(value: Any, target: Any, other: Any) -> Any:
    """The arguments with one of them, the object `target`, replaced."""
    if value is target:
        return other
    return (
        type(value)(_replaced(v, target, other) for v in value) if isinstance(value, tuple | list) else value
    )


def _exchanged(args: Any, options: dict[str, Any], old: Input, new: Input) -> Arguments:
    return _replaced(args, old, new), {k: _replaced(v, old, new) for k, v in options.items()}


def spoil(program: Program, d: Draw) -> Program:
    """The same call with something wrong, most of the time: an axis, a shape, a dtype …"""
    kind = d.pick(["keyword", "extra", "missing", "dim", "type", "dtype", "shape", "ids"])
    args, options = program.args, dict(program.options)
    tensors = [v for v in _leaves([*args, *options.values()]) if isinstance(v, Input)]
    numbers = [v for v in args[1:] if isinstance(v, int) and not isinstance(v, bool)]
    if kind == "keyword":
        options["wrong"] = 1
    elif kind == "extra":
        args = (*args, *[[7, 8]] * 7)
    elif kind == "missing":
        args = args[:-1] if len(args) > 1 or program.form == "function" else args
    elif kind == "dim":
        names = [k for k in ("dim", "axis") if k in options]
        if names:
            options[names[0]] = d.pick([9, -9, 4, -5])
        elif numbers:
            i = d.pick(
                [i for i, v in enumerate(args) if i and isinstance(v, int) and not isinstance(v, bool)]
            )
            args = (*args[:i], d.pick([9, -9, 4, -5]), *args[i + 1 :])
    elif kind == "type" and len(args) > 1:
        i = d.int(1, len(args) - 1)
        args = (*args[:i], d.pick(["a", 1.5, [1, "a"], {}]), *args[i + 1 :])
    elif kind == "dtype" and tensors:
        old = d.pick(tensors)
        args, options = _exchanged(args, options, old, d.x(old.shape, d.pick(DTYPES)))
    elif kind == "shape" and tensors:
        old = d.pick(tensors)
        args, options = _exchanged(args, options, old, d.x(d.shape(), old.base.dtype.name))
    elif kind == "ids":
        whole = [v for v in tensors[1:] if v.base.dtype == np.int64 and v.base.size]
        if whole:
            old = d.pick(whole)
            base = old.base.copy()
            base.flat[d.int(0, base.size - 1)] = d.pick([-9, 9, -1])
            args, options = _exchanged(args, options, old, Input(base, old.layout, old.grad, old.shape))
    return Program(program.name, program.form, args, options)


# --- the table ----------------------------------------------------------------------------------------------

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Maker = Callable[[Draw], Arguments]
CASES: dict[str, Maker] = {}


def case(names: str) -> Callable[[Maker], Maker]:
    """Declares what the named functions are called with; every one is a function, a method, or both."""

    def declare(maker: Maker) -> Maker:
        for name in names.split():
            assert name not in CASES, name
            CASES[name] = maker
        return maker

    return declare


__all__ = ["CASES", "DTYPES", "FLOATS", "Draw", "Name", "case", "spoil"]
