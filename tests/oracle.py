"""Programs that run on two libraries, `microtensor` and PyTorch, and what must be the same about them.

`agree(case, …)` is for hand-picked cases. A `Program` is one call of one function on drawn inputs, each built
on both sides from the same numbers in the same memory layout; `compare` runs it and says what differs.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microtensor as mt

torch = pytest.importorskip("torch")

Case = Callable[..., Any]


def outcome(t: Any, case: Case, inputs: Sequence[Any]) -> Any:
    """The result as a list of tensors, or the exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = case(t, *inputs)
    except Exception as error:
        return error
    return list(y) if isinstance(y, tuple | list) else [y]


def _tensor(t: Any, value: Any, grad: bool) -> Any:
    """Arrays become tensors of their dtype in the same layout; anything else stays."""
    if not isinstance(value, np.ndarray):
        return value
    if t is mt:
        made = mt.as_tensor(value.copy() if value.flags.c_contiguous else value)
    else:
        made = torch.from_numpy(np.array(value))
        if not value.flags.c_contiguous:  # torch has no negative strides: the values, in a layout of its own
            made = made.contiguous()
    return made.requires_grad_() if grad and value.dtype.kind == "f" else made


def array_of(y: Any) -> np.ndarray:
    """The numbers of a result of either library."""
    if isinstance(y, mt.Tensor):
        return y.array
    return y.detach().clone().numpy() if isinstance(y, torch.Tensor) else np.asarray(y)


def dtype_of(y: Any) -> str:
    """Its dtype in words, or its type if it is no tensor."""
    return str(y.dtype).removeprefix("torch.") if hasattr(y, "dtype") else type(y).__name__


def agree(
    case: Case, *inputs: Any, grad: bool = True, rng: Any = None, tolerance: float | None = None
) -> None:
    """Run the case on both, with gradients of a random cotangent; fail where they differ."""
    ours_in = [_tensor(mt, a, grad) for a in inputs]
    theirs_in = [_tensor(torch, a, grad) for a in inputs]
    ours, theirs = outcome(mt, case, ours_in), outcome(torch, case, theirs_in)
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        assert isinstance(theirs, Exception), f"torch gives {theirs}, we raise {ours!r}"
        assert isinstance(ours, Exception), f"torch raises {theirs!r}, we give {ours}"
        assert isinstance(ours, ValueError | TypeError | IndexError | RuntimeError), repr(ours)
        return
    assert len(ours) == len(theirs)
    # float64 sums differ in their order only; float32 has 24 bits, of which exp and sums use up some
    short = any(isinstance(a, np.ndarray) and a.dtype == np.float32 for a in inputs) or not grad
    rtol = tolerance or (1e-5 if short else 1e-10)
    options = {"rtol": rtol, "atol": rtol, "equal_nan": True}
    for y, z in zip(ours, theirs, strict=True):
        assert dtype_of(y) == dtype_of(z), f"dtype {dtype_of(y)}, torch has {dtype_of(z)}"
        assert array_of(y).shape == array_of(z).shape, f"shape {array_of(y).shape}, torch {array_of(z).shape}"
        np.testing.assert_allclose(array_of(y), array_of(z), **options)
    recorded = [(y, z) for y, z in zip(ours, theirs, strict=True) if getattr(z, "requires_grad", False)]
    recorded = [(y, z) for y, z in recorded if z.numel() or y.requires_grad]
    if not grad or not recorded:
        return
    rng = np.random.default_rng(0) if rng is None else rng
    for y, z in recorded:
        if not y.requires_grad:  # sign, floor: PyTorch records a gradient that is zero everywhere
            continue
        u = np.asarray(rng.normal(size=array_of(z).shape)).astype(array_of(z).dtype)
        y.backward(mt.as_tensor(u), retain_graph=True)
        z.backward(torch.from_numpy(u.copy()), retain_graph=True)
    for i, (a, b) in enumerate(zip(ours_in, theirs_in, strict=True)):
        if isinstance(a, mt.Tensor) and a.requires_grad:
            if b.grad is None or a.grad is None:
                known = b.grad if a.grad is None else a.grad
                assert known is None or not array_of(known).any(), f"input {i}: {a.grad}; torch has {b.grad}"
                continue
            assert dtype_of(a.grad) == dtype_of(b.grad)
            np.testing.assert_allclose(array_of(a.grad), array_of(b.grad), **options, err_msg=f"gradient {i}")


def layouts(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float64) -> list[np.ndarray]:
    """Random elements contiguous, transposed, with gaps and backwards."""
    x = np.asarray(rng.normal(size=shape)).astype(dtype)
    wide = np.zeros((*shape, 2), dtype)
    wide[..., 0] = x
    return [x, np.asarray(x, order="F"), wide[..., 0], np.asarray(np.flip(np.array(np.flip(x))))]


# --- drawn programs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Name:
    """An attribute of the library, such as a dtype: `Name("int64")` is mt.int64 or torch.int64."""

    name: str


@dataclass
class Input:
    """A tensor to be: the elements of a leaf, and how what the function sees is a view of that leaf."""

    base: np.ndarray
    layout: str = "plain"
    grad: bool = False
    shape: tuple[int, ...] = ()

    def build(self, t: Any) -> tuple[Any, Any]:
        """(leaf, view of it)"""
        leaf = t.tensor(self.base.tolist(), dtype=getattr(t, self.base.dtype.name)).reshape(self.base.shape)
        if self.grad:
            leaf.requires_grad_()
        if self.layout == "transposed":
            return leaf, leaf.transpose(0, -1)
        if self.layout == "stepped":
            return leaf, leaf[..., ::2]
        return leaf, leaf.expand(self.shape) if self.layout == "expanded" else leaf

    def __repr__(self) -> str:
        elements = np.array2string(self.base, separator=", ", threshold=40).replace("\n", "")
        return f"{self.layout} {self.base.dtype}{self.shape}{' grad' * self.grad} {elements}"


@dataclass
class Program:
    """One call: a function of the library, or a method of the first input, perhaps in place."""

    name: str
    form: str  # "function", "method", "property" or "in place"
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, t: Any) -> tuple[list[Any], Any]:
        """The leaves, and the results as a list or the exception."""
        leaves: list[Any] = []

        def real(value: Any) -> Any:
            if isinstance(value, Input):
                leaf, view = value.build(t)
                leaves.append(leaf)
                return view
            if isinstance(value, Name):
                return getattr(t, value.name)
            if isinstance(value, slice):
                return value
            return type(value)(map(real, value)) if isinstance(value, tuple | list) else value

        args, options = real(self.args), {k: real(v) for k, v in self.options.items()}
        return leaves, outcome(t, self._call, (args, options))

    def _call(self, t: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self.form == "function":
            found = getattr(t, self.name)(*args, **options)
        elif self.form == "property":
            found = getattr(args[0], self.name)
        elif self.form == "method":
            found = getattr(args[0], self.name)(*args[1:], **options)
        else:  # the change shows in the tensor itself and in what it views
            whole = args[0].clone()
            part = whole[..., :1] if self.form == "in place, view" and whole.ndim else whole
            changed = getattr(part, self.name)(*args[1:], **options)
            return [whole, changed, changed is part]
        if isinstance(found, t.Tensor):
            return [found]
        if isinstance(found, t.dtype):
            return [str(found).removeprefix("torch.")]
        return [*found] if isinstance(found, tuple | list) else [found]


def is_meant(entries: Sequence[Sequence[Any]], name: str, made: Program, found: str) -> bool:
    """Is it in a list of (names, what was found, words of differences.md, perhaps which programs alone)?"""
    return any(
        re.fullmatch(names, name) and re.search(what, found) and all(f(made) for f in only)
        for names, what, _, *only in entries
    )


def not_told(words: Iterable[str]) -> list[str]:
    """Those that the list of differences does not say."""
    page = Path(__file__).parent.parent / "tools" / "docs" / "differences.md"
    told = " ".join(page.read_text(encoding="utf-8").split())
    return [some for some in words if some not in told]


FORM = re.compile(r"[\w.\[\] ]+: .+; .+", re.DOTALL)
# what Python itself says of a call that does not fit the signature
SIGNATURE = re.compile(r"[\w.<>]+\(\) (got|takes|missing|requires) ")


def compare(program: Program, rng: np.random.Generator, values: bool = True) -> str | None:
    """What differs between the libraries: None if nothing does. values=False: shapes and dtypes only.

    In float32 it may be PyTorch that rounds badly (layer norm of two numbers that are nearly equal): what is
    near its float64 answer is right.
    """
    again = copy.deepcopy(rng)
    found = _compare(program, program, rng, values)
    rounded = found and re.match(r"(result|derivative) [\w ]+ is (?!float|int|uint|bool)", found)
    exact = widened(program) if rounded else None
    return found if exact is None or _compare(program, exact, again, values) else None


def widened(program: Program) -> Program | None:
    """The program with float64 for float32; None if it has no float32, or float64 beside it."""
    inputs = [x for x in (*program.args, *program.options.values()) if isinstance(x, Input)]
    if {x.base.dtype.name for x in inputs if x.base.dtype.kind == "f"} != {"float32"}:
        return None

    def wide(x: Any) -> Any:
        single = isinstance(x, Input) and x.base.dtype == np.float32
        return dataclasses.replace(x, base=x.base.astype(np.float64)) if single else x

    options = {name: wide(x) for name, x in program.options.items()}
    return dataclasses.replace(program, args=tuple(map(wide, program.args)), options=options)


def _compare(program: Program, theirs_: Program, rng: np.random.Generator, values: bool) -> str | None:
    """What differs between one program's results here and another's, the same or wider, in PyTorch."""
    leaves, ours = program.run(mt)
    others, theirs = theirs_.run(torch)
    if isinstance(theirs, Exception) or isinstance(ours, Exception):
        return _compare_errors(ours, theirs)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, torch has {len(theirs)}"
    short = any(leaf.dtype == mt.float32 for leaf in leaves) or any(dtype_of(y) == "float32" for y in ours)
    rtol = 3e-5 if short else 1e-9  # float32 has 24 bits, of which exp, sums and powers use up some
    for i, (y, z) in enumerate(zip(ours, theirs, strict=True)):
        if dtype_of(y) != dtype_of(z) and theirs_ is program:
            return f"result {i} is {dtype_of(y)}, torch has {dtype_of(z)}"
        if array_of(y).shape != array_of(z).shape:
            return f"result {i} has shape {array_of(y).shape}, torch {array_of(z).shape}"
        if values and not _close(array_of(y), array_of(z), rtol):
            return f"result {i} is {array_of(y).tolist()}, torch has {array_of(z).tolist()}"
    return _compare_gradients(leaves, ours, others, theirs, rng, 10 * rtol) if values else None


def _close(a: np.ndarray, b: np.ndarray, rtol: float) -> bool:
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    scale = float(np.max(np.abs(b), where=np.isfinite(b), initial=1.0))  # a sum rounds at its largest term
    return bool(np.allclose(a, b, rtol=rtol, atol=rtol * min(scale, 1e6), equal_nan=True))


def _compare_errors(ours: Any, theirs: Any) -> str | None:
    if not isinstance(theirs, Exception):
        return f"raises {ours!r}, torch gives {[array_of(z).tolist() for z in theirs]}"
    if not isinstance(ours, Exception):
        return f"gives {[array_of(y).tolist() for y in ours]}, torch raises {str(theirs)[:200]!r}"
    if not isinstance(ours, ValueError | TypeError | IndexError | RuntimeError):
        return f"raises {ours!r}, which is no error of ours"
    if not (FORM.fullmatch(str(ours)) or (type(ours) is TypeError and SIGNATURE.match(str(ours)))):
        return f"raises {ours!r}, which does not say who, what and what to do"
    return None


def _compare_gradients(
    leaves: list[Any], ours: list[Any], others: list[Any], theirs: list[Any], rng: Any, rtol: float
) -> str | None:
    wanted = [i for i, leaf in enumerate(others) if leaf.requires_grad]
    pairs = [(y, z) for y, z in zip(ours, theirs, strict=True) if getattr(z, "requires_grad", False)]
    if any(getattr(y, "requires_grad", False) and not getattr(z, "requires_grad", False)
           for y, z in zip(ours, theirs, strict=True)):  # fmt: skip
        return "records a gradient, torch does not"
    if not wanted or not pairs:
        return None
    cotangents = [np.asarray(rng.normal(size=z.shape)).astype(array_of(z).dtype) for _, z in pairs]
    for order in (1, 2):
        try:
            g = _gradients(torch, [z for _, z in pairs], cotangents, [others[i] for i in wanted], order, rng)
        except (RuntimeError, IndexError):  # index_fill's at an index below 0, which its forward takes
            return None  # PyTorch has no (second) derivative of this
        h = _gradients(mt, [y for y, _ in pairs], cotangents, [leaves[i] for i in wanted], order, rng)
        for k, (a, b) in enumerate(zip(h, g, strict=True)):
            zeros = np.zeros(leaves[wanted[k]].shape)
            a, b = zeros if a is None else array_of(a), zeros if b is None else array_of(b)
            if a.shape != b.shape or not _close(a, b, rtol if order == 1 else 10 * rtol):
                return f"derivative {order} by input {wanted[k]} is {a.tolist()}, torch has {b.tolist()}"
    return None


def _gradients(
    t: Any, results: list[Any], cotangents: list[Any], leaves: list[Any], order: int, rng: Any
) -> Any:
    """The gradients of Σ u·y; of order 2, those of Σ v·g for the gradients g, with v the sine of 1, 2, 3 …"""
    us = [
        t.tensor(u.tolist(), dtype=y.dtype).reshape(u.shape) for u, y in zip(cotangents, results, strict=True)
    ]
    total = sum((u * y).sum() for u, y in zip(us, results, strict=True))
    if not total.requires_grad:
        return [None] * len(leaves)
    first = t.autograd.grad(total, leaves, create_graph=order == 2, retain_graph=True, allow_unused=True)
    if order == 1:
        return first
    again = [g for g in first if g is not None and g.requires_grad]
    if not again:
        return [None] * len(leaves)
    weights = [
        t.tensor(np.sin(np.arange(1.0, g.numel() + 1)).tolist(), dtype=g.dtype).reshape(g.shape)
        for g in again
    ]
    total = sum((v * g).sum() for v, g in zip(weights, again, strict=True))
    return t.autograd.grad(total, leaves, allow_unused=True)
