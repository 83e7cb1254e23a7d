"""The formulas in the docstrings of ops: each says what the op computes, and what its gradient is.

What is printed in drawings is evaluated here, by NumPy, and compared with the engine.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
from typing import Any

import evaluation
import numpy as np
import pytest

import microtensor as mt
from microtensor import engine, kernels, viz
from microtensor.viz import formula
from microtensor.viz.axes import Shapes
from microtensor.viz.fold import fold
from microtensor.viz.names import Names, summed
from microtensor.viz.record import Recorder
from microtensor.viz.texts import WORDS, Texts, of_docstring, texts_of
from microtensor.viz.trace import trace
from models import attention

OPS = sorted(name for name, op in engine.registry.items() if op.vjp_function is not None)


def in_numpy(name: str, x: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The functions that a formula calls and NumPy knows by another name, or with more arguments."""
    axis = params.get("axis")
    functions: dict[str, Any] = {
        "π": math.pi,
        **{f: getattr(np, f) for f in ("sin", "cos", "tan", "tanh", "sinh", "cosh", "log2", "log10")},
        **{f: getattr(np, f) for f in ("floor", "sign", "maximum", "minimum", "trunc")},
        **{f: getattr(np, f"arc{f[1:]}") for f in ("acos", "asin", "atan", "atan2")},
        "erf": np.vectorize(math.erf, otypes=[float]),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "clone": np.copy,
        "count": lambda x, axis=None: np.sum(x, axis=axis, keepdims=True),
        "rowsum": lambda x, axis=-1: np.sum(x, axis=axis, keepdims=True),
        "rowmean": lambda x: np.mean(x, axis=-1, keepdims=True),
        "rowvar": lambda x: np.var(x, axis=-1, keepdims=True),
        "prod_of_others": lambda x, axis=None: np.prod(x, axis=axis, keepdims=True) / x,
        "concat": lambda *xs: np.concatenate(xs, axis),
        "clamp": np.clip,
        "softmax": lambda x, axis=-1: np.moveaxis(
            evaluation.FUNCTIONS["softmax"](np.moveaxis(x, axis, -1)), -1, axis
        ),
        "inside": lambda x, low, high: np.clip(x, low, high) == x,
        "flip": lambda x, axis=None: np.flip(x, params.get("axes", axis)),
        "cumsum": np.cumsum,
        "dropout": lambda x, p: x * kernels.dropout_keeps(x.shape, **params) / (1 - p),
        "transpose": lambda x: np.transpose(x, params["axes"]),
    }
    return functions


def back(op: Any, args: Any, params: dict[str, Any], y: Any) -> dict[str, Any]:
    """What the gradient of an op calls otherwise than its formula does, or calls only there."""
    x, axis = args[0], params.get("axis")

    def restored(g: Any) -> Any:
        axes = range(x.ndim) if axis is None else [a % x.ndim for a in axis]
        return g.reshape([1 if i in axes else n for i, n in enumerate(x.shape)])

    def put_add(g: Any, index: Any) -> Any:
        np.add.at(z := np.zeros(x.shape), index, g)
        return z

    def put(g: Any, index: Any, value: Any) -> Any:
        z = g.copy()
        z[index] = value
        return z

    def add_rows(g: Any, ids: Any) -> Any:
        z = put_add(g, ids)
        if params["padding_idx"] is not None:
            z[params["padding_idx"]] = 0
        return z

    functions: dict[str, Any] = {
        "expand": lambda g: np.broadcast_to(restored(g), x.shape),
        "put_add": put_add,
        "put": put,
        "add_rows": add_rows,
        "on_diagonal": lambda g: put_add(g, _diagonal(x.shape, params["offset"])),
        "reshape": lambda g: g.reshape(x.shape),
        "cast": lambda g: g.astype(x.dtype),
        "unexpand": lambda g: _to(x.shape, g),
    }
    if op.name == "permute":
        functions["transpose"] = lambda g: g.transpose(np.argsort([a % x.ndim for a in params["axes"]]))
    if op.name == "gelu":
        functions |= _normal(params["approximate"])
    if op.name == "cross_entropy":
        functions |= _targets(x, args[1], params)
    if op.name == "attention":
        functions |= _attention(args, params)
    return functions


def _diagonal(shape: Any, offset: int) -> Any:
    i = np.arange(len(np.diagonal(np.empty(shape[-2:]), offset)))
    return (..., i - min(offset, 0), i + max(offset, 0))


def _normal(approximate: bool) -> dict[str, Any]:
    """Φ and φ, which is its slope."""
    erf = np.vectorize(math.erf, otypes=[float])

    def cdf(x: Any) -> Any:
        if approximate:
            return (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        return (1 + erf(x / math.sqrt(2))) / 2

    return {"Φ": cdf, "φ": lambda x: (cdf(x + 1e-5) - cdf(x - 1e-5)) / 2e-5}


def _targets(logits: Any, target: Any, params: dict[str, Any]) -> dict[str, Any]:
    kept = target != params["ignore_index"]
    smooth, classes = params["label_smoothing"], logits.shape[-1]
    share = kept / max(kept.sum(), 1) if params["average"] else kept * 1.0
    return {
        "q": lambda t: (1 - smooth) * np.eye(classes)[np.where(kept, t, 0)] + smooth / classes,
        "share": lambda t: share[:, None],
    }


def residuals(op: Any, args: Any, params: dict[str, Any]) -> dict[str, Any]:
    """What a forward returns beside its result, as its gradient formulas mean it."""
    found = zip(op.residuals, op.forward(*args, **params)[1], strict=True) if op.residuals else ()
    made = {name: array for name, array in found if isinstance(array, np.ndarray)}  # a share is a function
    if "rstd" in made:
        made["rstd"] = made["rstd"][..., None]
    for in_two_parts in made.keys() & {"means", "lse"}:
        made[in_two_parts] = made[in_two_parts].sum(-1, keepdims=True)
    return made


def _softmax_by(s: Any, stats: Any) -> Any:
    """Of the greatest score of each row and 1 / Σ of its exponentials."""
    top, share = (part.reshape(s.shape[:-1])[..., None] for part in stats)
    return np.exp(s - top) * share


def _attention(args: Any, params: dict[str, Any]) -> dict[str, Any]:
    def masked(s: Any, mask: Any) -> Any:
        if mask is None:
            return s
        return np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask

    def causal(s: Any) -> Any:
        return np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if params["causal"] else s

    p, shape = params["dropout_p"], (*args[0].shape[:-1], args[1].shape[-2])
    keep = kernels.attention_keeps(shape, p, params["seed"]) if p else np.ones(shape, bool)
    return {"masked": masked, "causal": causal, "dropout": lambda x, p: np.where(keep, x, 0) / (1 - p)}


def _to(shape: tuple[int, ...], g: Any) -> Any:
    """Summed over the axes that broadcasting added or stretched."""
    g = np.asarray(g)
    g = g.sum(axis=tuple(range(g.ndim - len(shape))))
    return g.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True).reshape(shape)


def cases(name: str, rng: np.random.Generator) -> Any:
    op = engine.registry[name]
    assert op.samples_function is not None
    for args, params in op.samples_function(rng):
        args = [np.asarray(a) if isinstance(a, np.generic) else a for a in args]
        if any(a.size == 0 for a in args if isinstance(a, np.ndarray)):
            continue  # NumPy has no maximum of nothing
        yield op, args, {**op.defaults, **params}


# y is no formula of x alone: where it is put, or by a definition that the test of values holds already
UNSAID = {"cast", "expand", "reshape", "diagonal", "put_add", "setitem", "cross_entropy", "cat"}
UNSAID |= {"layer_norm", "add_layer_norm"}


@pytest.mark.parametrize("name", [name for name in OPS if name not in UNSAID])
def test_the_formula_of_an_op_gives_what_it_computes(rng: np.random.Generator, name: str) -> None:
    for op, args, params in cases(name, rng):
        text = formula.of_op(op, len(args))
        names = {**dict(zip(op.inputs, args, strict=True)), **params, **in_numpy(name, args[0], params)}
        names |= printed(op, args, params)
        names |= back(op, args, params, None) if name in ("gelu", "attention") else {}
        want = op(*args, **params)
        got = evaluation.evaluate(text, names)
        np.testing.assert_allclose(np.reshape(got, want.shape), want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", OPS)
def test_the_gradient_formulas_of_an_op_give_its_gradients(rng: np.random.Generator, name: str) -> None:
    compared = 0
    for op, args, params in cases(name, rng):
        tensors = [mt.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
        wanted = [t for t in tensors if isinstance(t, mt.Tensor) and t.dtype.kind == "f"]
        for t in wanted:
            t.requires_grad_()
        y = op(*tensors, **params)
        g = np.asarray(rng.normal(size=y.shape))
        gradients = mt.autograd.grad(y, wanted, mt.tensor(g, dtype=y.dtype))
        found = dict(zip(map(id, wanted), gradients, strict=True))
        names = {**names_of(op, args, params, y.array, g), **printed(op, args, params)}
        node = trace(y, Recorder(), ()).output
        for slot, (tensor, text) in enumerate(zip(tensors, per_input(op, len(args)), strict=True)):
            if id(tensor) in found:
                assert text is not None
                got = evaluate(
                    summed(node, dict(node.arguments)[op.inputs[slot]], text)
                    if op.variadic is None
                    else text,
                    {**names, "slot": slot, "unbroadcast": functools.partial(_to, tensor.shape)},
                )
                if op.broadcasts or (name == "linear" and args[0].ndim > 1):  # every sum is said
                    assert np.shape(got) == tensor.shape, (name, text)
                got = _to(tensor.shape, got)
                tight = 1e-9 if name == "gelu" else 1e-10  # φ is a difference quotient here
                np.testing.assert_allclose(got, found[id(tensor)].array, rtol=tight, atol=tight)
                compared += 1
    assert compared


def printed(op: Any, args: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The axis and the number of elements that a drawing prints: an axis that it does not print is none."""
    first, *others = (mt.tensor(a) if isinstance(a, np.ndarray) else a for a in args)
    if not isinstance(first, mt.Tensor) or first.dtype.kind != "f" or "axis" not in params:
        return {}
    graph = trace(op(first.requires_grad_(), *others, **params), Recorder(), ())
    shapes = Shapes(graph, "symbolic", code=False, narrow=False)
    said = Names(graph, fold(graph, by_line=True), shapes, by_line=True)._of_op(graph.output)
    return {name: said[name] for name in ("axis", "n") if said.get(name) is not None}


def per_input(op: Any, count: int) -> list[str | None]:
    texts = texts_of(op).gradients
    return list(texts) * count if op.variadic else list(texts)


def names_of(op: Any, args: Any, params: dict[str, Any], y: Any, g: Any) -> dict[str, Any]:
    """What the names in a gradient formula are: rows of matrices, reduced axes put back with length 1."""
    names = {**params, **in_numpy(op.name, args[0], params), **back(op, args, params, y)}
    x = np.asarray(args[0])
    if "keepdims" in params and op.name not in ("sum", "mean"):
        axes = range(x.ndim) if params["axis"] is None else [a % x.ndim for a in params["axis"]]
        lengths = [1 if i in axes else n for i, n in enumerate(x.shape)]
        y, g = y.reshape(lengths), g.reshape(lengths)
    if op.variadic:
        axis = params["axis"]
        names["part"] = lambda g: np.split(g, np.cumsum([a.shape[axis] for a in args])[:-1], axis)
    inputs = dict(zip(op.inputs, args, strict=False))
    if op.name == "linear" and x.ndim == 1:
        inputs["x"], g = x[None], g[None]
    if op.name in ("linear", "layer_norm", "add_layer_norm", "matmul") and g.ndim == 1:
        g = g[None]
    if op.name == "cross_entropy" and g.ndim:
        g = g[:, None]  # one for each row
    names |= {**inputs, **residuals(op, args, params), "y": y, "g": g}
    if op.name == "attention":
        names["softmax"] = _softmax_by
    for step in ordered(texts_of(op).steps):
        names[formula.parse(step)[0]] = evaluation.evaluate(step, names)  # type: ignore[index]
    return names


def ordered(steps: tuple[str, ...]) -> tuple[str, ...]:
    """Steps stand in the order in which they can be computed."""
    known: set[str | None] = set()
    for step in steps:
        defined = {formula.parse(s)[0] for s in steps}
        assert not formula.operands(step) & defined - known
        known.add(formula.parse(step)[0])
    return steps


def evaluate(text: str, names: dict[str, Any]) -> Any:
    got = evaluation.evaluate(text, names)
    return got[names["slot"]] if isinstance(got, list) else got


def test_every_op_of_the_tape_says_its_formula_and_a_gradient_for_each_input() -> None:
    for name in OPS:
        op, texts = engine.registry[name], texts_of(engine.registry[name])
        assert texts.equation, name
        assert len(texts.gradients) == (1 if op.variadic else len(op.inputs)), name
        known = {*op.inputs, *op.residuals, "y", "g", "π", *(formula.parse(step)[0] for step in texts.steps)}
        known |= {*inspect.signature(op.forward).parameters, "n"}  # how many elements a mean is of
        for text in (*texts.gradients, *texts.steps):
            assert text is None or formula.operands(text) <= known, (name, text)


@pytest.mark.parametrize("name", OPS)
def test_the_gradient_formulas_of_an_op_read_what_it_keeps_and_nothing_else(
    rng: np.random.Generator, name: str
) -> None:
    for op, args, params in cases(name, rng):
        tensors = [mt.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
        for t in (t for t in tensors if isinstance(t, mt.Tensor) and t.dtype.kind == "f"):
            t.requires_grad_()
        entry, texts = op(*tensors, **params).grad_fn, texts_of(op)
        read = set().union(*map(formula.operands, (*filter(None, texts.gradients), *texts.steps)))
        numbers = {name for name, a in zip(op.inputs, args, strict=False) if not isinstance(a, np.ndarray)}
        kept = {name for name, a in zip(op.kept, entry.saved, strict=True) if isinstance(a, np.ndarray)}
        arrays = {*op.inputs, *op.residuals, "y"} - {"g"}
        assert read & arrays - numbers == kept, name


TEXTBOOK = {*"exp log sqrt sin cos tan asin acos atan atan2 sinh cosh tanh sigmoid relu erf max".split(),
            *"abs min mean prod sum softmax maximum minimum clamp floor trunc sign log2 log10 cumsum".split(),
            *"flip where concat transpose reshape clone diagonal layer_norm cross_entropy Concat".split(),
            "Concat_h"}  # fmt: skip


def test_a_legend_explains_every_word_of_a_formula_that_no_textbook_has() -> None:
    used = set[str]()
    for name in OPS:
        op, texts = engine.registry[name], texts_of(engine.registry[name])
        used |= {kept for kept in op.kept if kept not in (*op.inputs, "y") and not kept.endswith(SCALARS)}
        for text in (texts.equation, *texts.gradients, *texts.steps):
            used |= calls(text or "0")
    for text in (text for value in vars(attention).values() if isinstance(value, tuple) for text in value):
        used |= calls(text)
    assert used - TEXTBOOK - WORDS.keys() == set()
    elsewhere = {
        "L",
        "d_k",
        "shared",
        "keep",
        "head_h",
        "columns",
        "unread",
        "axissum",
        "unbroadcast",
        "fused",
    }  # names, in Concat_h, in a layer, rowsum along another axis, the walk's, below an op's word
    assert WORDS.keys() - used == elsewhere


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_sum_along_another_axis_than_the_last_is_no_rowsum(name: str) -> None:
    x = mt.randn(2, 3, 4, requires_grad=True)
    for axis in (0, 1):
        drawn = viz.draw(getattr(x, name)(axis), level="tape").dot
        assert "rowsum" not in drawn
        assert f", {axis})" in drawn
        assert "axissum: Σ along that axis" in drawn
    for axis in (2, -1):
        drawn = viz.draw(getattr(x, name)(axis), level="tape").dot
        assert "rowsum: Σ of each row" in drawn
        assert "axissum" not in drawn
    dead = mt.full((2, 3), -float("inf"), requires_grad=True)
    assert "3 of 3 lines along axis 0 may attend" in viz.draw(dead.softmax(0)).findings[0]


SCALARS = ("_shape", "_shapes", "_dtype")


def calls(text: str) -> set[str]:
    tree = ast.parse(text)
    return {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}


def test_a_false_gradient_is_caught(rng: np.random.Generator) -> None:
    op, args, params = next(cases("tanh", rng))
    y = op(*args, **params)
    names = names_of(op, args, params, y, np.ones(y.shape))
    true = evaluation.evaluate(texts_of(op).gradients[0] or "", names)
    assert not np.allclose(evaluation.evaluate("g * (1 - y)", names), true)


def test_a_docstring_is_read_as_people_write_it() -> None:
    text = """y = √x + |a|; a remark          gradient: −g · x², aᵀ @ b; another;
    with A = x³, B = where(a < b, 0, g); the end

    Source: none.
    """
    assert of_docstring(text) == Texts(
        "sqrt(x) + abs(a)",
        ("-g * x ** 2", "a.mT @ b"),
        ("A = x ** 3", "B = where(a < b, 0, g)"),
    )


@pytest.mark.parametrize("text", ["", "Copies a tensor.", "y = x in another dtype     gradient: g, back"])
def test_a_docstring_without_formulas_is_no_error(text: str) -> None:
    assert of_docstring(text) == Texts()


def test_an_op_without_formulas_is_drawn_by_its_name() -> None:
    @engine.op("told_by_nobody")
    def told_by_nobody(x):  # type: ignore[no-untyped-def]
        return 2 * x

    @told_by_nobody.vjp
    def told_by_nobody_vjp(g):  # type: ignore[no-untyped-def]
        return (2 * g,)

    try:
        dot = viz.draw(told_by_nobody(mt.ones(3, requires_grad=True))).dot
    finally:
        del engine.registry["told_by_nobody"]
    assert "y = told_by_nobody(x)" in dot
    assert "dx = told_by_nobody_vjp(dy)" in dot
