"""The contract that every op keeps, checked on the op's own samples; and the check of the check, by sabotage.

Everything is checked in float64; a claim about float32 is a claim about dtypes, not digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from microtensor import dtypes
from microtensor.engine import Array, Op
from microtensor.mode import composites
from microtensor.random import as_seed
from microtensor.tensor import Tensor, as_tensor
from microtensor.testing.close import assert_close
from microtensor.testing.numeric import as_leaf, away_from_zero, gradcheck, gradgradcheck

__all__ = ["check_op"]


class _Sample:
    """One call of an op: arrays and scalars as its samples give them, and the same as tensors."""

    def __init__(self, op: Op, args: Sequence[Any], params: dict[str, Any]) -> None:
        self.op, self.params, self.name = op, params, op.name
        self.args = tuple(np.array(a) if isinstance(a, np.ndarray | np.generic) else a for a in args)
        arrays = {i: a for i, a in enumerate(self.args) if isinstance(a, np.ndarray)}
        self.floats = [i for i, a in arrays.items() if a.dtype.kind == "f"]
        for a in arrays.values():
            a.flags.writeable = False  # who writes into an input fails

    def tensors(self, args: Sequence[Any] | None = None, only: int | None = None) -> list[Any]:
        """Arrays as tensors; the floating ones (or the one numbered `only`; −1: none) require a gradient."""
        made: list[Any] = []
        for i, a in enumerate(self.args if args is None else args):
            wants = i in self.floats and only in (None, i)
            made.append(as_leaf(as_tensor(a), wants) if isinstance(a, np.ndarray) else a)
        return made

    def __call__(self, *args: Any) -> Tensor:
        """The op on tensors, with this sample's parameters."""
        y: Tensor = self.op(*args, **self.params)
        return y

    def backward(self, args: Sequence[Any], u: Array, only: int | None = None) -> tuple[Array, list[Any]]:
        """Value, and the gradient of ⟨u, y⟩ by every floating input (None where none was asked for)."""
        inputs = self.tensors(args, only)
        y = self(*inputs)
        u = np.array(u, y.dtype)
        u.flags.writeable = y.array.flags.writeable = False  # what a VJP is given is not its own
        if y.requires_grad:
            y.backward(as_tensor(u))
        return y.array, [None if inputs[i].grad is None else inputs[i].grad.array for i in self.floats]

    def __repr__(self) -> str:
        given = [f"{a.dtype}{a.shape}" if isinstance(a, np.ndarray) else repr(a) for a in self.args]
        return f"{self.op.name}({', '.join([*given, *(f'{k}={v!r}' for k, v in self.params.items())])})"


def check_op(op: Op, seed: int = 0) -> None:
    """The op contract, on every sample of the op; an AssertionError names claim, call and numbers.

    The value is finite and the same at every call; forward and VJP write into nothing that they were given,
    and the VJP gives a gradient for each input, of its shape, linear in g. The gradient equals central
    differences, so does the second; both are right for each input alone. float32 stays float32, forward and
    backward; integers, where they are taken, never become float64, or one count among float32 weights would
    double the memory of all that follows. Strided, reversed, Fortran-ordered and read-only inputs give the
    same. Broadcasting is undone right. A composite agrees with its kernel, forward and backward. And the
    check itself has teeth: a VJP that is wrong by 1 % is caught.

    Raises: AssertionError naming the first claim that is broken; ValueError for samples that are none.
    Source: ours; the claims are those of PyTorch's OpInfo tests.
    """
    samples = _samples(op, seed)
    broken: dict[Any, tuple[_Sample, Exception]] = {}  # the first sample that breaks each claim
    for sample in samples:
        for claim in _CLAIMS:
            try:
                claim(sample, np.random.default_rng(as_seed("check_op", seed)))
            except Exception as error:
                broken.setdefault(claim, (sample, error))
    if broken:  # a fault breaks claims behind its own, too: the first in order says most
        first, *others = [claim for claim in _CLAIMS if claim in broken]
        sample, fault = broken[first]
        kind = "" if isinstance(fault, AssertionError) else f"{type(fault).__name__}: "
        said = "; ".join([f"{kind}{fault}", *getattr(fault, "__notes__", ())])
        title = (first.__doc__ or "").split("\n")[0]
        also = ", ".join(claim.__name__.removeprefix("_claim_").replace("_", " ") for claim in others)
        raise AssertionError(
            f"check_op: {title} — not so for {sample!r}: {said}{also and f'; broken too: {also}'}"
        ) from fault
    if op.vjp_function is not None:
        _check_sabotage(op, samples)


def _samples(op: Op, seed: int) -> list[_Sample]:
    """The calls that an op's samples stand for; refused if they are none, or check no gradient."""
    if not isinstance(op, Op):
        raise TypeError(f"check_op: {op!r} is no op; give what engine.op made, a function to gradcheck")
    if op.samples_function is None:
        raise ValueError(f"check_op: {op.name} has no samples; give it some with @{op.__name__}.samples")
    given = op.samples_function(np.random.default_rng(as_seed("check_op", seed)))
    pairs = list(given) if isinstance(given, Iterable) else []
    if not pairs or not all(isinstance(p, tuple) and [*map(type, p)] == [tuple, dict] for p in pairs):
        raise ValueError(
            f"check_op: the samples of {op.name} are empty, or not pairs of a tuple and a dict; yield (not "
            f"return) at least one (args, params), as in: yield (x,), {{}}"
        )
    samples = [_Sample(op, args, params) for args, params in pairs]
    if bare := [s for s in samples if not any(isinstance(a, np.ndarray) for a in s.args)]:
        raise ValueError(f"check_op: {bare[0]!r} has no array to record; yield one, such as np.array(1.0)")
    if op.differentiable and not any(sample.floats for sample in samples):
        raise ValueError(
            f"check_op: no sample of {op.name} has a floating array, so that no gradient is checked; yield "
            f"one, or declare the op with differentiable=False"
        )
    return samples


def _cotangent(sample: _Sample, rng: np.random.Generator) -> Array:
    return away_from_zero(rng, np.shape(sample.op(*sample.args, **sample.params)))


def _claim_value(sample: _Sample, rng: np.random.Generator) -> None:
    """the value is finite, and the same every time, on arrays as on tensors; no input is written into"""
    if names := list(sample.op.residuals):  # the engine takes them apart by their number, unasked
        _, kept = sample.op.forward(*sample.args, **{**sample.op.defaults, **sample.params})
        given = len(kept) if isinstance(kept, tuple) else type(kept).__name__
        assert given == len(names), f"the forward must return y and a tuple of {names}, not {given}"
    own = [np.array(a) if isinstance(a, np.ndarray) else a for a in sample.args]  # a forward may write here
    first, second = (np.asarray(sample.op(*own, **sample.params)) for _ in range(2))
    for i, pair in enumerate(zip(own, sample.args, strict=True)):
        a, b = (np.asarray(value).tobytes() for value in pair)
        assert a == b, f"the forward changed input {i}; make a new array"
    recorded = sample(*sample.tensors(only=-1)).array
    assert np.isfinite(first).all(), "a value is not finite; choose samples inside the op's domain"
    assert first.tobytes() == second.tobytes(), "two calls gave two results"
    # what tensors hold becomes floats, or one dtype, if the op says so: compare with arrays of these dtypes
    same = [getattr(a, "array", a) for a in sample.op._prepare(sample.args)]
    plain = np.asarray(sample.op(*same, **sample.params))
    assert plain.tobytes() == recorded.tobytes(), f"tensors gave {recorded!r}, arrays {plain!r}"


def _claim_pure(sample: _Sample, rng: np.random.Generator) -> None:
    """the VJP gives a gradient for each input, and writes into nothing that it is given"""
    try:
        sample.backward(sample.args, _cotangent(sample, rng))
    except ValueError as error:
        if "read-only" in str(error):
            error.add_note("the VJP writes into an array that it was given; make a new one")
        raise


def _claim_linear(sample: _Sample, rng: np.random.Generator) -> None:
    """the gradient is linear in g: with twice the g it is twice as large"""
    u = _cotangent(sample, rng)
    once, twice = (sample.backward(sample.args, n * u)[1] for n in (1.0, 2.0))
    for i, a, b in zip(sample.floats, twice, once, strict=True):
        if b is not None:
            assert_close(a, 2.0 * b, msg=f"multiply the gradient of input {i} by g, once")


def _claim_gradient(sample: _Sample, rng: np.random.Generator) -> None:
    """the gradient equals central differences"""
    if sample.floats:
        gradcheck(sample, sample.tensors(), full=True)


def _claim_second_order(sample: _Sample, rng: np.random.Generator) -> None:
    """the second derivative equals central differences of the first"""
    if sample.floats:
        gradgradcheck(sample, sample.tensors())
        for i in sample.floats:
            gradgradcheck(sample, sample.tensors(only=i))


def _claim_each_alone(sample: _Sample, rng: np.random.Generator) -> None:
    """an input gets the same gradient when it is the only one that asks for one"""
    u = _cotangent(sample, rng)
    _, together = sample.backward(sample.args, u)
    for k, i in enumerate(sample.floats):
        _, alone = sample.backward(sample.args, u, only=i)
        assert_close(alone[k], together[k], msg=f"input {i}")


def _claim_float32(sample: _Sample, rng: np.random.Generator) -> None:
    """float32 stays float32, forward and backward, and is the float64 result to its digits"""
    u = _cotangent(sample, rng)
    exact, gradients = sample.backward(sample.args, u)
    rounded = [a.astype(np.float32) if i in sample.floats else a for i, a in enumerate(sample.args)]
    dtype = sample(*sample.tensors(rounded)).dtype
    right = dtype == sample.params.get("dtype", np.float32) or not sample.floats
    assert right, f"float32 inputs gave {dtype} in the forward; {dtypes.NARROW}"
    y, short = sample.backward(rounded, u)
    # 24 bits, and sums of some dozens of terms: 1e-4 is far above rounding and far below any wrong formula
    assert_close(y, exact, rtol=1e-4, atol=1e-4, check_dtype=False, msg="value")
    for k, (a, b) in enumerate(zip(short, gradients, strict=True)):
        assert a.dtype == np.float32, f"input {sample.floats[k]}: a float32 input got a {a.dtype} gradient"
        assert_close(a, b, rtol=1e-3, atol=1e-3, check_dtype=False, msg=f"gradient {sample.floats[k]}")


def _claim_integers(sample: _Sample, rng: np.random.Generator) -> None:
    """integers give integers or floats of the default dtype, where the op takes them"""
    whole = [a.astype(np.int64) if i in sample.floats else a for i, a in enumerate(sample.args)]
    try:
        dtype = sample(*sample.tensors(whole, only=-1)).dtype
    except Exception:
        return
    right = dtype.kind != "f" or dtype == sample.params.get("dtype", dtypes.default)
    assert right, f"int64 inputs gave {dtype}; declare the op with floats=True: they become floats first"


def _layouts(a: Array) -> Iterator[tuple[str, Array]]:
    """The same elements in other memory: every second one of a larger array, backwards, by columns …"""
    wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]) if a.ndim else (2,), a.dtype)
    wide[..., ::2] = a if a.ndim else a.reshape(1)
    yield "strided", (wide[..., ::2] if a.ndim else wide[::2].reshape(()))
    yield "reversed", np.asarray(np.flip(np.array(np.flip(a), order="C")))
    yield "in Fortran order", np.asarray(a, order="F")
    yield "writeable", a.copy()  # the samples themselves are read-only


def _claim_layouts(sample: _Sample, rng: np.random.Generator) -> None:
    """inputs that are strided, reversed, in Fortran order or read-only give the same"""
    u = _cotangent(sample, rng)
    exact, gradients = sample.backward(sample.args, u)
    for i, a in enumerate(sample.args):
        if not isinstance(a, np.ndarray):
            continue
        for layout, other in _layouts(a):
            args = [other if j == i else b for j, b in enumerate(sample.args)]
            y, again = sample.backward(args, u)
            # other strides add up in another order: the last bits of float64 may differ
            assert_close(y, exact, rtol=1e-12, atol=1e-12, msg=f"input {i} {layout}")
            assert_close(again, gradients, rtol=1e-12, atol=1e-12, msg=f"input {i} {layout}, gradient")


def _claim_broadcasting(sample: _Sample, rng: np.random.Generator) -> None:
    """the gradient of a broadcast input is the sum over its copies"""
    u = _cotangent(sample, rng)
    y, gradients = sample.backward(sample.args, u)
    for k, i in enumerate(sample.floats):
        assert gradients[k].shape == sample.args[i].shape, f"input {i}: the gradient is {gradients[k].shape}"
    if not sample.op.broadcasts or sample.op.promotes is None:
        return  # what brings no inputs to one dtype (matmul, setitem) broadcasts parts: its gradcheck says so
    copies = [np.broadcast_to(a, y.shape).copy() if isinstance(a, np.ndarray) else a for a in sample.args]
    same, each = sample.backward(copies, u)
    assert_close(same, y, msg="value with inputs broadcast beforehand")
    for k, i in enumerate(sample.floats):
        total = np.zeros(sample.args[i].shape)
        for at in np.ndindex(y.shape):  # the definition, element by element
            own = at[len(at) - total.ndim :]
            total[tuple(0 if n == 1 else j for j, n in zip(own, total.shape, strict=True))] += each[k][at]
        assert_close(gradients[k], total, rtol=1e-12, atol=1e-12, msg=f"input {i}")


def _claim_composite(sample: _Sample, rng: np.random.Generator) -> None:
    """the composite gives the kernel's value and gradients"""
    if sample.op.composite_function is None:
        return
    u = _cotangent(sample, rng)
    y, gradients = sample.backward(sample.args, u)
    with composites():
        z, others = sample.backward(sample.args, u)
    assert_close(z, y, rtol=1e-10, atol=1e-10, msg="value")
    assert_close(others, gradients, rtol=1e-9, atol=1e-9, msg="gradient")


_CLAIMS = (
    _claim_value,
    _claim_pure,
    _claim_linear,
    _claim_gradient,
    _claim_each_alone,
    _claim_broadcasting,
    _claim_second_order,
    _claim_float32,
    _claim_integers,
    _claim_layouts,
    _claim_composite,
)


# --- the check of the check ---------------------------------------------------------------------------------


@contextmanager
def _spoiled(op: Op, position: int) -> Iterator[None]:
    """Inside the block the op's gradient for one input is 1 % too large."""
    right = op.vjp_function
    assert right is not None

    def wrong(*args: Any, **params: Any) -> tuple[Any, ...]:
        gradients = list(right(*args, **params))
        g = gradients[position]
        g = g() if callable(g) else g
        gradients[position] = None if g is None else g * 1.01
        return tuple(gradients)

    op.vjp_function = wrong
    try:
        yield
    finally:
        op.vjp_function = right


def _check_sabotage(op: Op, samples: Sequence[_Sample]) -> None:
    """For every differentiable input, some sample must expose a gradient that is wrong by 1 %."""
    for position in sorted({i for sample in samples for i in sample.floats}):
        with _spoiled(op, position):
            caught = False
            for sample in samples:
                if position in sample.floats and not caught:
                    try:
                        gradcheck(sample, sample.tensors(only=position), full=True)
                    except AssertionError:
                        caught = True
        if not caught:
            raise AssertionError(
                f"check_op: {op.name}: its gradient for input {position} made wrong by 1 % passes every "
                f"sample; add a sample where that gradient is not zero"
            )
