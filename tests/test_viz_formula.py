"""A label cannot lie: the text that is printed, evaluated on the tape's arrays, gives the engine's values."""

from __future__ import annotations

from typing import Any

import evaluation
import numpy as np
import pytest

import microtensor as mt
from microtensor import kernels, viz
from microtensor.viz import formula
from microtensor.viz.fold import Group, fold
from microtensor.viz.record import Recorder
from microtensor.viz.trace import trace
from models import MultiHeadAttention, causal_mask

H, D = 2, 4  # heads, and the width of one


class Truth:
    """The arrays and gradients of one run, under the names that a fold's texts use."""

    def __init__(self, y: Any, recorder: Recorder, seed: Any) -> None:
        self.recorder, self.graph = recorder, trace(y, recorder, [])
        self.groups = [g for g in fold(self.graph, by_line=True).groups if g.span is not None]
        self.tagged = {id(t.tensor): t for t in recorder.tags.values()}
        wanted = [t.tensor for t in recorder.tags.values() if t.tensor.requires_grad]
        found = mt.autograd.grad(y, wanted, seed, retain_graph=True, allow_unused=True)
        self.gradient = {id(t): g for t, g in zip(wanted, found, strict=True)}

    def names(self, group: Group) -> dict[str, Any]:
        assert group.span is not None
        names: dict[str, Any] = {"d_k": D, "split_h": _split, "merge_h": _merge, "Concat_h": _merge}
        names |= {"Concat": lambda *heads: np.concatenate(heads, -1), "columns": _columns}
        target = formula.parse(group.span.texts[0])[0]
        for name, value in {**group.span.names, target: self.output(group)}.items():
            tag = self.tagged.get(id(value))
            names[name] = tag.array if tag is not None else getattr(value, "array", value)
            if self.gradient.get(id(value)) is not None:
                names[f"d{name}"] = self.gradient_of(value)
        if group.span.key == "dropout":
            entry = group.members[0].value
            names["keep"] = kernels.dropout_keeps(entry.shape, **entry.params)
            names["dropout"] = lambda a, p: a * names["keep"] / (1 - p)
        return names

    def gradient_of(self, tensor: Any) -> Any:
        g = self.gradient[id(tensor)].array
        return g.T if self.tagged[id(tensor)].transposed else g

    def output(self, group: Group) -> Any:
        return next(
            t.tensor for t in self.recorder.tags.values() if self.graph.node_of(t.tensor) is group.last
        )


def _split(x: Any) -> Any:
    return x.reshape(*x.shape[:2], H, D).transpose(0, 2, 1, 3)


def _merge(x: Any) -> Any:
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], H * D)


def _columns(x: Any, head: int) -> Any:
    return x[..., (head - 1) * D : head * D]


def run(
    rng: np.random.Generator,
    mask: str | None,
    dropout: float,
    bias: bool,
    cross: bool,
    forward: str = "forward",
) -> Truth:
    mt.manual_seed(1)
    layer = MultiHeadAttention(H * D, H, bias=bias, dropout=dropout).double()
    if bias:
        for projection in layer.children():
            projection.bias.data = mt.tensor(rng.normal(size=H * D))
    x = mt.tensor(rng.normal(size=(2, 3, H * D)), requires_grad=True)
    memory = mt.tensor(rng.normal(size=(2, 5, H * D)), requires_grad=True) if cross else None
    masks = {"bool": causal_mask(3), "float": mt.tensor(rng.normal(size=(3, 3))), None: None}
    with viz.recording() as recorder:
        y = getattr(layer, forward)(x, memory, mask=masks[mask])
    return Truth(y, recorder, mt.tensor(rng.normal(size=y.shape)))


CASES = [
    (mask, dropout, bias, False)
    for mask in (None, "bool", "float")
    for dropout in (0.0, 0.3)
    for bias in (True, False)
] + [(None, 0.3, True, True)]


@pytest.mark.parametrize(("mask", "dropout", "bias", "cross"), CASES)
def test_every_equation_gives_the_engines_values(
    rng: np.random.Generator, mask: str | None, dropout: float, bias: bool, cross: bool
) -> None:
    truth = run(rng, mask, dropout, bias, cross)
    keys = {"linQ", "linK", "linV", "scores", "softmax", "av", "concat", "linO"}
    keys |= ({"mask"} if mask else set()) | ({"dropout"} if dropout else set())
    assert {g.span.key for g in truth.groups if g.span} == keys
    check_equations(truth)


def check_equations(truth: Truth) -> None:
    for group in truth.groups:
        assert group.span is not None
        got = evaluation.evaluate(group.span.texts[0], truth.names(group))
        # float64, and sums of 8 products in another order: a few units in the last place
        np.testing.assert_allclose(got, truth.output(group).array, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("mask", "dropout", "bias", "cross"), CASES)
def test_every_gradient_gives_the_engines_gradient(
    rng: np.random.Generator, mask: str | None, dropout: float, bias: bool, cross: bool
) -> None:
    count = check_gradients(run(rng, mask, dropout, bias, cross))
    assert count == 14 + 4 * bias + (mask is not None) + (dropout > 0)


def check_gradients(truth: Truth) -> int:
    sums: dict[int, Any] = {}
    count = 0
    for group in truth.groups:
        assert group.span is not None
        names = truth.names(group)
        for text in group.span.texts[1:]:
            target, _, adds = formula.parse(text)
            assert target is not None
            tensor = group.span.names[target[1:]]
            if tensor is None:
                continue
            shape = truth.gradient_of(tensor).shape
            got = evaluation.evaluate(text, names)
            assert got.shape == shape, text  # a sum over the batch is said
            count += 1
            if adds:
                sums[id(tensor)] = sums.get(id(tensor), 0) + got
            else:
                np.testing.assert_allclose(got, truth.gradient_of(tensor), rtol=1e-11, atol=1e-12)
    for key, value in sums.items():
        np.testing.assert_allclose(value, truth.gradient[key].array, rtol=1e-11, atol=1e-12)
    return count


@pytest.mark.parametrize(("mask", "dropout", "bias", "cross"), [CASES[0], CASES[6], CASES[8], CASES[-1]])
def test_what_is_said_of_each_head_gives_the_engines_values(
    rng: np.random.Generator, mask: str | None, dropout: float, bias: bool, cross: bool
) -> None:
    truth = run(rng, mask, dropout, bias, cross, "forward_per_head")
    check_equations(truth)
    of_a_head = 11 + 3 * bias + (mask is not None) + (dropout > 0)
    assert check_gradients(truth) == 2 * of_a_head + 2 + 2 + bias  # two heads, Concat, and W^O with b_O


def test_a_false_label_is_caught(rng: np.random.Generator) -> None:
    truth = run(rng, None, 0.0, True, False)
    group = next(g for g in truth.groups if g.span is not None and g.span.key == "scores")
    wrong = evaluation.evaluate("S = Q @ K.mT / d_k", truth.names(group))
    assert not np.allclose(wrong, truth.output(group).array)


@pytest.mark.parametrize(
    ("text", "plain", "html"),
    [
        ("Q @ K.mT", "Q Kᵀ", "<I>Q</I> <I>K</I><SUP>T</SUP>"),
        ("S / sqrt(d_k)", "S / √d_k", "<I>S</I> / √<I>d</I><SUB><I>k</I></SUB>"),
        ("dQ @ W_Q.mT", "dQ (W^Q)ᵀ", "<I>dQ</I> (<I>W</I><SUP><I>Q</I></SUP>)<SUP>T</SUP>"),
        ("A * (dA - rowsum(dA * A))", "A ∘ (dA − rowsum(dA ∘ A))", None),
        ("where(M, dS, 0)", "dS where M, else 0", None),
        ("a - (b - c)", "a − (b − c)", None),
        ("(a + b) * c", "(a + b) ∘ c", None),
        ("a / (b * c)", "a / (b ∘ c)", None),
        ("-x", "−x", None),
        ("x ** 2", "x^2", "<I>x</I><SUP>2</SUP>"),
        ("2 * x", "2 · x", None),
        ("abs(x)", "|x|", None),
        ("(A @ B).mT", "(A B)ᵀ", None),
        ("weight[ids]", "weight[ids]", None),
        ("sum(x)", "Σ x", None),
        ("sum(x, (0, 1))", "sum(x, (0, 1))", None),
        ("Concat_h(H)", "Concat(head_1, …, head_h)", None),
    ],
)  # fmt: skip
def test_a_formula_prints_as_it_is_written_on_paper(text: str, plain: str, html: str | None) -> None:
    assert formula.Printer({}, html=False).print(text) == plain
    if html is not None:
        assert formula.Printer({}, html=True).print(text) == html


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (0, "0"),
        (slice(2, 5), "2:5"),
        ((Ellipsis, None, slice(0, None, 2)), "…, None, 0::2"),
        (np.array([1, 2]), "ids"),
        (np.array([True]), "mask"),
    ],
)
def test_an_index_is_printed_as_it_is_written(index: Any, text: str) -> None:
    assert formula.indices(index) == text


def test_an_indexed_tensor_shows_its_index() -> None:
    x = mt.randn(9, 9, requires_grad=True)
    assert viz.draw(x[2:5, 0]).about == ["y = x[2:5, 0]"]
    assert "[2:5, 0]" in viz.draw(x[2:5, 0], level="ops").dot


def test_names_stand_for_symbols_numbers_and_nothing() -> None:
    printer = formula.Printer({"A": "S̃", "W": "W^Q", "b": None, "p": 0.1, "Y": "Q"}, html=False)
    assert printer.print("Y = A @ W + b") == "Q = S̃ W^Q"
    assert printer.print("dropout(A, p)") == "dropout(S̃, 0.1)"
    assert printer.print("dA += dY @ W.mT") == "dS̃ += dQ (W^Q)ᵀ"
    assert evaluation.evaluate("Y = a + b", {"a": 2.0, "b": None}) == 2.0


@pytest.mark.parametrize(("p", "plain"), [(2, "g · 2 ∘ x"), (3, "g · 3 ∘ x^2"), (0.5, "g · 0.5 ∘ x^−0.5")])
def test_an_exponent_of_numbers_is_computed(p: float, plain: str) -> None:
    assert formula.Printer({"p": p}, html=False).print("g * p * x ** (p - 1)") == plain


def test_scalars_are_multiplied_plainly() -> None:
    x, w = (mt.tensor(value, requires_grad=True) for value in (2.0, 3.0))
    assert "∘" not in viz.draw((x * w).tanh() * x, level="tape").dot
    assert "∘" in viz.draw((x * w).tanh() * mt.ones(2), level="tape").dot


def test_a_text_that_is_no_formula_is_refused_with_the_cure() -> None:
    with pytest.raises(ValueError, match="no formula"):
        formula.parse("x, y = 1")
    with pytest.raises(ValueError, match="use names, calls"):
        formula.Printer({}, html=False).print("[x for x in y]")
