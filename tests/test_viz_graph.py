"""What is drawn is what is on the tape: leaves, ops, an edge for each argument slot, folds."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import microtensor as mt
from microtensor import engine, nn, viz
from microtensor.viz import formula, symbols
from microtensor.viz.axes import HOUSE_LETTERS
from microtensor.viz.fold import fold
from microtensor.viz.record import Recorder, Span
from microtensor.viz.running import run
from microtensor.viz.style import LIGHT
from microtensor.viz.trace import trace
from models import DecoderLayer, MultiHeadAttention, causal_mask


def leaf(*shape: int) -> mt.Tensor:
    return mt.randn(shape, requires_grad=True)


def attention(**options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(16, 2, **{"dropout": 0.1, **options})


def edges(dot: str) -> Counter[tuple[str, str]]:
    """(tail, head) of every visible edge."""
    lines = [line for line in dot.split("\n") if "class=fwd" in line]
    return Counter(re.match(r"\s*(\w+)(?::\w+)* -> (\w+)", line).groups() for line in lines)  # type: ignore[union-attr, misc]


def ids(dot: str, kind: str) -> list[str]:
    """Ids of the nodes of a class."""
    return re.findall(rf'id="([^"]+)", class="{kind}[" ]', dot)


# --- the tape ---------------------------------------------------------------------------------------------


def test_x_times_x_has_two_edges() -> None:
    x = leaf(3)
    dot = viz.draw(x * x).dot
    assert edges(dot) == {("t0", "t1"): 2, ("t1", "out"): 1}
    assert 'id="fwd-t0-t1-2"' in dot


def test_leaves_drawn_are_the_leaves_of_the_tape() -> None:
    x, w, b, data = leaf(2, 3), leaf(3, 4), leaf(4), mt.ones(2, 4)
    dot = viz.draw((x @ w + b) * data + 1.0, level="ops").dot
    assert len(ids(dot, "leaf input")) == 3
    assert len(ids(dot, "leaf const")) == 1
    assert len(ids(dot, "op")) == 4


def test_edges_are_the_argument_slots_of_the_tape() -> None:
    recorder, y = run(
        attention(), (leaf(2, 5, 16), None, None, causal_mask(5)), {}, level="equations", options=""
    )
    graph = trace(y, recorder, [])
    slots = sum(len(node.parents) for node in graph.nodes)
    assert edges(viz_of(level="ops")).total() == slots + 1
    folded = fold(graph, by_line=True)
    want = Counter(
        {
            (id(source), id(group)): 1
            for group in folded.groups
            if group.span is not None
            for node in group.members
            for source in node.parents
            if folded.of[source] is not group
        }
    )
    assert Counter((id(e.source), id(e.head)) for e in folded.edges) == want
    assert edges(viz_of()).total() == want.total() + 1


def viz_of(**options: Any) -> str:
    return viz.draw(attention(), leaf(2, 5, 16), None, None, causal_mask(5), **options).dot


def test_several_uses_inside_one_fold_are_one_edge_that_says_so() -> None:
    with viz.recording():
        x = leaf(3)
        viz.tag(x, "x", axes="n")
        with viz.fold("square", "y = x * x + x", x=x):
            y = x * x + x
        dot = viz.draw(y).dot
    assert edges(dot) == {("t0", "square"): 1, ("square", "out"): 1}
    assert "×3" in dot


def test_a_tensor_without_gradient_is_drawn_with_a_dashed_edge() -> None:
    x, data = leaf(3), mt.ones(3)
    dot = viz.draw(x * data).dot
    assert len(re.findall("class=fwd.*style=dashed", dot)) == 1
    assert "no gradient flows back" in dot
    assert "no gradient flows back" not in viz.draw(x * x).dot


def test_an_operand_that_nobody_holds_any_more_is_still_an_operand() -> None:
    x = leaf(3)
    dot = viz.draw(x * mt.ones(3), level="ops").dot
    assert len(ids(dot, "leaf const")) == 1
    assert edges(dot).total() == 3


def test_chance_is_no_operand_of_dropout() -> None:
    dot = viz.draw(nn.functional.dropout(leaf(3), 0.5), level="ops").dot
    assert edges(dot) == {("t0", "t1"): 1, ("t1", "out"): 1}


def test_a_fused_op_is_one_node_that_says_so() -> None:
    dot = viz.draw(leaf(2, 3).softmax(-1), level="ops").dot
    assert len(ids(dot, "op softmax")) == 1
    assert ">fused<" in dot


def test_drawing_changes_nothing() -> None:
    layer, x = attention(), leaf(2, 5, 16)
    before = mt.get_rng_state().numpy().copy()
    y = layer(x)
    after = mt.get_rng_state().numpy().copy()
    viz.draw(layer, x)
    assert np.array_equal(mt.get_rng_state().numpy(), after)
    assert not np.array_equal(before, after)
    viz.draw(y)
    assert x.grad is None
    assert all(p.grad is None for p in layer.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in layer.modules())
    y.sum().backward()
    viz.draw(y)  # a freed tape still has its ops


def test_hooks_are_gone_even_if_the_forward_fails() -> None:
    layer = attention()
    with pytest.raises(ValueError, match="MultiHeadAttention"):
        viz.draw(layer, leaf(2, 5, 7))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in layer.modules())
    assert not viz.is_recording()


def test_a_tape_of_100_000_ops_is_written_without_recursion() -> None:
    x = leaf()
    y = x
    for _ in range(100_000):
        y = y + 1.0
    assert viz.to_dot(y).count("->") == 100_000


@pytest.mark.parametrize("level", ["equations", "ops"])
def test_a_long_tape_is_drawn_as_dot_but_not_laid_out(level: str) -> None:
    y = leaf()
    for _ in range(5_000):
        y = y + 1.0
    drawing = viz.draw(y, level=level)
    assert edges(drawing.dot).total() == 5_001
    with pytest.raises(ValueError, match="5002 nodes are more than max_nodes=300"):
        drawing.save("x.svg")
    assert drawing._repr_svg_() is None


def test_a_tape_too_long_for_a_layout_is_refused_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    y = leaf()
    for _ in range(400):
        y = y + 1.0
    monkeypatch.setattr("microtensor.viz.drawing.dot.write", lambda *args, **options: pytest.fail("written"))
    for level in ("equations", "ops", "tape"):
        drawing = viz.draw(y, level=level)
        with pytest.raises(ValueError, match=r"402 nodes are more than max_nodes=300.*(depth=1|coarser)"):
            drawing.svg()


def test_a_tape_too_long_for_a_layout_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    y = leaf()
    for _ in range(400):
        y = y + 1.0
    monkeypatch.setattr("microtensor.viz.drawing.trace.trace", lambda *args: pytest.fail("traced"))
    for level in ("equations", "ops", "tape"):
        with pytest.raises(ValueError, match=r"402 nodes .*draw the module .*depth=1, .*mt\.tape\(y\)"):
            viz.draw(y, level=level).svg()
    with pytest.raises(TypeError, match="grads is int"):
        viz.draw(y, grads=3)


def test_a_constant_of_one_number_shows_it_and_a_leaf_that_learns_is_called_so() -> None:
    t, half = leaf(), mt.tensor(-0.5)
    for level in ("equations", "ops", "tape"):
        drawing = viz.draw((half - t) * mt.tensor(2.0) - mt.tensor(1.0), level=level)
        leaf_label = r'id="node-(\w+)", class="leaf \w+".*label=<(.*)>, tool'
        said = dict(re.findall(leaf_label, drawing.dot))
        assert ">half = −0.5<" in said["half"]
        assert "gone: nobody kept it" in said["c_2"]  # the last: mul keeps its factor, sub nothing
        assert "<I>c</I><SUB>1</SUB> = 2" in said["c_1"]
        assert 'tooltip="t: leaf that learns' in drawing.dot
    assert 'tooltip="input: input ' in viz.draw(nn.Linear(2, 3), leaf(4, 2)).dot


@pytest.mark.parametrize("ops", [50, 400])
def test_the_text_of_a_long_tape_says_each_formula_once_where_it_stands(
    ops: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its label, in plain words in its tooltip, its gradient there; nothing is told to a page."""
    printed = []
    monkeypatch.setattr("microtensor.viz.paint.describe", lambda *args: pytest.fail("told a page"))
    real = formula.Printer.print
    monkeypatch.setattr(formula.Printer, "print", lambda *args: printed.append(args) or real(*args))
    y = leaf()
    for _ in range(ops):
        y = y * 2.0
    assert viz.draw(y, max_nodes=10).dot.count("tooltip") > ops
    assert len(printed) <= 4 * ops + 60  # of the legend


@pytest.mark.parametrize("names", [3, None, ["x"], {"x": 3}])
def test_names_that_are_none_are_refused(names: Any) -> None:
    with pytest.raises(
        TypeError, match=r"draw: names.*; (choose 'math', 'code' or a dict|give names and ten)"
    ):
        viz.draw(leaf() * 2.0, names=names)


def test_a_name_for_what_is_not_drawn_is_refused() -> None:
    x = leaf()
    for names in ({mt.zeros(2, 3): "w"}, {"w": mt.zeros(2, 3)}):
        for draw in (viz.draw, viz.to_dot):
            with pytest.raises(
                ValueError, match=r"names calls a tensor of shape \(2, 3\) 'w', and it is no part"
            ):
                draw(x * 2.0, names=names)  # type: ignore[operator]


# --- folds ------------------------------------------------------------------------------------------------


def test_the_attention_layer_is_ten_lines_of_the_paper() -> None:
    dot = viz_of()
    assert [i.removeprefix("node-") for i in ids(dot, "op")] == [
        "linQ", "linK", "linV", "concat", "linO", "scores", "mask", "softmax", "dropout", "av",
    ]  # fmt: skip
    assert dot.startswith('digraph "attention_equations" {')
    assert "19 tape ops folded into equations" in dot
    assert "B = 2, n = 5, d = d<SUB>model</SUB> = 16, h = 2, d<SUB>k</SUB> = d/h = 8" in dot


def test_what_is_absent_is_not_drawn_and_the_next_line_names_what_it_gets() -> None:
    layer = attention(dropout=0.0, bias=False)
    drawing = viz.draw(layer, leaf(2, 5, 16))
    assert "node-mask" not in drawing.dot
    assert "node-dropout" not in drawing.dot
    assert drawing.about[:7] == [
        "Q = split_h(X W^Q)",
        "K = split_h(X W^K)",
        "V = split_h(X W^V)",
        "S = Q Kᵀ / √d_k",
        "A = softmax(S)",
        "H = A V",
        "C = Concat(head_1, …, head_h)",
    ]


def test_a_tooltip_says_the_gradients_that_flow_and_no_others() -> None:
    def gradients(of: viz.Drawing) -> list[str]:
        return re.findall('gradient: ([^"]*)', of.dot)

    whole = gradients(viz.draw(attention(), leaf(2, 5, 16), mask=causal_mask(5)))
    assert whole[0] == "dX += merge_h(dQ) (W^Q)ᵀ; dW^Q = Σ_B Xᵀ merge_h(dQ); db_Q = Σ merge_h(dQ)"
    assert "dS̃ = A ∘ (dA − rowsum(dA ∘ A))" in whole
    part = gradients(viz.draw(attention(bias=False), mt.randn(2, 5, 16)))
    assert part[0] == "dW^Q = Σ_B Xᵀ merge_h(dQ)"


def test_cross_attention_names_both_lengths() -> None:
    drawing = viz.draw(attention(), leaf(2, 5, 16), leaf(2, 7, 16))
    assert "K = split_h(Z W^K + b_K)" in drawing.about
    assert "B×h×n<SUB>q</SUB>×n<SUB>k</SUB>" in drawing.dot


def test_what_one_layer_calls_n_and_another_n_q_is_one_axis() -> None:
    drawing = viz.draw(DecoderLayer(16, 2, 32, dropout=0.0), leaf(2, 5, 16), leaf(2, 7, 16))
    assert ">B×h×n×n<" in drawing.dot  # self-attention
    assert ">B×h×n×n<SUB>k</SUB><" in drawing.dot  # cross-attention
    assert "n<SUB>q</SUB>" not in drawing.dot


def test_tags_and_folds_cost_nothing_and_say_nothing_outside_a_recording() -> None:
    assert not viz.is_recording()
    assert viz.fold("a", "y = x") is viz.fold("b", "y = x")
    viz.tag(leaf(3), "x", axes="far too many axes")  # not even looked at
    with viz.recording() as outer:
        with viz.recording() as inner:
            viz.tag(leaf(3), "x")
        assert (len(outer.tags), len(inner.tags)) == (0, 1)


def test_a_fold_that_a_path_leaves_and_reenters_is_refused_with_the_path() -> None:
    a = leaf(3).exp()
    b = a.sin()
    y = a + b
    graph = trace(y, Recorder(), [])
    span = Span("fold", "outer", "", 0, texts=("y = x",))
    for made in (a, y):  # not b: a block cannot do that, since it takes all that is computed in its time
        graph.node_of(made).spans = (span,)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="leaves it and returns: outer → sin → outer; put that path inside"):
        fold(graph, by_line=True)
    graph.node_of(b).spans = (span,)  # type: ignore[union-attr]
    assert len(fold(graph, by_line=True).groups) == 2


def test_an_axis_with_two_sizes_is_an_error_with_both() -> None:
    with viz.recording():
        x, w = leaf(2, 3), leaf(3, 4)
        viz.tag(x, "x", axes="n d")
        viz.tag(w, "w", axes="n k")
        with pytest.raises(ValueError, match=r"axis n has size 3 in w of shape \(3, 4\), but 2 elsewhere"):
            viz.draw(x @ w)
        assert "(2, 4)" in viz.draw(x @ w, shapes="numeric").dot


def test_a_tag_with_the_wrong_number_of_axes_is_refused() -> None:
    with viz.recording(), pytest.raises(ValueError, match=r"tag: x has shape \(3,\)"):
        viz.tag(leaf(3), "x", axes="n d")


def test_untagged_tensors_show_numbers_and_axes_are_carried_by_ops_not_by_sizes() -> None:
    with viz.recording():
        x, w = leaf(5, 5), leaf(5, 5)
        viz.tag(x, "x", axes="n d")
        dot = viz.draw(x.mT @ w, level="ops").dot
        assert "d×n" in dot
        assert "(5, 5)" in dot  # w, and the product with it
        viz.tag(w, "w", axes="n k")
        assert "d×k" in viz.draw(x.mT @ w, level="ops").dot


# --- heads ------------------------------------------------------------------------------------------------


def test_each_head_is_drawn_with_its_own_lines_and_parameters_once() -> None:
    drawing = viz.draw(attention(), leaf(2, 5, 16), mask=causal_mask(5), level="heads")
    lines = ("linQ", "linK", "linV", "scores", "mask", "softmax", "dropout", "av")
    assert set(ids(drawing.dot, "op")) == {
        *(f"node-{key}{head}" for key in lines for head in (1, 2)),
        "node-concat",
        "node-linO",
    }
    assert len(ids(drawing.dot, "leaf param")) == 4
    assert ids(drawing.dot, "leaf const") == ["node-M"]
    found = edges(drawing.dot)
    assert found["p_linQ", "linQ1"] == found["p_linQ", "linQ2"] == found["p_linO", "linO"] == 1
    # X into 6 lanes and 3 boxes of parameters into 2 heads, 7 inside each head and M to it; C, Y, W^O
    assert found.total() == 6 + 6 + 2 * (7 + 1) + 2 + 1 + 1 + 1
    assert "Q_2 = X W_2^Q + b_Q,2" in drawing.about
    assert "C = Concat(head_1, head_2)" in drawing.about
    assert "d<SUB>k</SUB> = d/h = 8" in drawing.dot


def test_masks_of_heads_are_told_apart() -> None:
    mask = mt.ones(2, 2, 5, 5, dtype=mt.bool).tril()
    drawing = viz.draw(attention(), leaf(2, 5, 16), mask=mask, level="heads")
    assert ids(drawing.dot, "leaf const") == ["node-M_1", "node-M_2"]
    assert "S̃_2 = mask(S_2, M_2)" in drawing.about


def test_level_heads_is_refused_where_there_are_none_to_unroll() -> None:
    with pytest.raises(TypeError, match="Linear has none"):
        viz.draw(nn.Linear(3, 2), leaf(4, 3), level="heads")
    with pytest.raises(ValueError, match="takes a module"):
        viz.draw(leaf(3) * 2, level="heads")
    with pytest.raises(ValueError, match="direction 'BT' is no picture to read"):
        viz.draw(attention(), leaf(2, 5, 16), level="heads", direction="BT")
    with pytest.raises(ValueError, match="8 heads side by side"):
        viz.draw(MultiHeadAttention(16, 8), leaf(2, 5, 16), level="heads")


def test_heads_that_graphviz_would_mirror_are_written_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = viz.draw(attention(), leaf(2, 5, 16), level="heads")
    texts = drawing.make().texts
    assert len(set(texts)) == len(texts) == 4
    seen: list[str] = []

    def render(text: str, kind: str) -> bytes:
        seen.append(text)
        places = (
            {"scores1": "9,0", "scores2": "1,0"} if len(seen) < 3 else {"scores1": "1,0", "scores2": "9,0"}
        )
        for i in (1, 2):
            x = float(places[f"scores{i}"][0])
            places |= {f"lin{lane}{i}": f"{x + k},0" for k, lane in enumerate("QKV")}
        return json.dumps({"objects": [{"name": n, "pos": p} for n, p in places.items()]}).encode()

    monkeypatch.setattr("microtensor.viz.render.render", render)
    assert drawing.rendered == texts[2]
    assert seen == texts[:3]
    assert drawing.dot == texts[0]


# --- names and options ------------------------------------------------------------------------------------


def test_names_in_code_are_module_paths_and_house_letters() -> None:
    drawing = viz.draw(attention(), leaf(2, 5, 16), names="code")
    assert "Q = split_H(query q_proj.weightᵀ + q_proj.bias)" in drawing.about
    assert "B×H×T×D" in drawing.dot


def test_what_nobody_has_named_is_called_as_its_variable_where_it_is_drawn() -> None:
    net, weight = nn.Sequential(nn.Linear(3, 2), nn.Tanh()), leaf(3)
    rows, _hidden = mt.randn(4, 3), leaf(3)
    scaled = rows * weight
    loss = net(scaled * _hidden).sum()
    assert viz.draw(loss).about == [
        "scaled = rows ∘ weight", "z_1 = scaled ∘ x", "z_2 = z_1 weight_0ᵀ + bias_0", "z_3 = tanh(z_2)",
        "loss = Σ z_3",
    ]  # fmt: skip
    assert "net.0.weight" in viz.draw(loss, names="code").dot
    assert viz.draw(loss, names={"L": loss}).about[-1] == "L = Σ z_3"
    with viz.recording():
        viz.tag(weight, "W")
        assert viz.draw(rows * weight).about == ["y = rows ∘ W"]

    def elsewhere(result: mt.Tensor) -> viz.Drawing:
        return viz.draw(result)

    assert elsewhere(weight * 2.0).about == ["result = x · 2"]


def test_a_name_that_is_made_up_is_nobodys() -> None:
    x, y, z_1, x_2 = leaf(2), leaf(2), leaf(2), leaf(2)
    assert viz.draw((x * z_1).exp() * leaf(2)).about == ["z_2 = x ∘ z_1", "z_3 = exp(z_2)", "y = z_3 ∘ x_1"]
    assert viz.draw(y * x_2 * leaf(2) * leaf(2)).about[-1] == "y_1 = z_2 ∘ x_3"


def test_names_given_replace_the_layers_either_way_round() -> None:
    layer, x, mask = attention(), leaf(2, 5, 16), causal_mask(5)
    for names in ({"tokens": x, "allowed": mask}, {x: "tokens", mask: "allowed"}):
        drawing = viz.draw(layer, x, mask=mask, names=names)
        assert "Q = split_h(tokens W^Q + b_Q)" in drawing.about
        assert "S̃ = mask(S, allowed)" in drawing.about


def test_parameters_inputs_and_constants_are_told_apart() -> None:
    dot = viz_of(level="ops")
    assert set(ids(dot, "leaf param")) == {f"node-{s}_{i}" for s in "Wb" for i in "QKVO"}
    assert ids(dot, "leaf input") == ["node-X"]
    assert ids(dot, "leaf const") == ["node-M"]
    assert ids(dot, "output") == ["node-Y"]


@pytest.mark.parametrize(
    ("option", "value", "exists"),
    [
        ("level", "atoms", "'equations', 'ops', 'heads'"),
        ("direction", "RL", "'TB', 'BT', 'LR'"),
        ("shapes", "greek", "'symbolic', 'numeric', 'both', None"),
        ("theme", "pink", "'auto', 'light', 'dark'"),
        ("names", "greek", "'math', 'code'"),
    ],
)
def test_an_unknown_value_is_refused_with_what_exists(option: str, value: str, exists: str) -> None:
    with pytest.raises(ValueError, match=re.escape(exists)):
        viz.draw(leaf(3) * 2, **{option: value})


def test_calls_that_make_no_sense_are_refused_with_the_cure() -> None:
    with pytest.raises(TypeError, match="takes a tensor or a module, not int"):
        viz.draw(3)
    with pytest.raises(RuntimeError, match="was not recorded"):
        viz.draw(mt.ones(3) * 2)
    for look in (viz.draw, viz.to_dot):
        with pytest.raises(RuntimeError, match="a leaf, which no op has made; draw what is computed from it"):
            look(mt.ones(3, requires_grad=True))
    with pytest.raises(TypeError, match="options only, not gradients; options are level"):
        viz.draw(leaf(3) * 2, gradients=True)
    with pytest.raises(TypeError, match=r"forward: .*options of draw are level"):
        viz.draw(attention(), leaf(2, 5, 16), levl="ops")
    with pytest.raises(TypeError, match="give names and tensors"):
        viz.draw(leaf(3) * 2, names={"x": 3})


def test_a_shared_layer_and_layers_of_one_kind_stay_apart() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = attention(dropout=0.0), attention(dropout=0.0)

        def forward(self, x: mt.Tensor) -> mt.Tensor:
            return self.second(self.first(self.first(x)))

    dot = viz.draw(Two(), leaf(2, 5, 16)).dot
    assert len(ids(dot, "op linQ")) == 3
    assert len(set(re.findall(r' \[id="([^"]+)"', dot))) == len(re.findall(r' \[id="', dot))
    assert "node-second.linQ" in dot


def test_every_op_of_the_registry_can_be_printed() -> None:
    for op in engine.registry.values():
        ours = op.__module__.startswith("microtensor.")  # others are those of README and of tests
        if op.vjp_function is None or op.samples_function is None or not ours:
            continue
        args, params = next(iter(op.samples_function(np.random.default_rng(0))))
        args = [mt.tensor(a) if isinstance(a, np.ndarray) else a for a in args]
        for a in args:
            if isinstance(a, mt.Tensor) and a.dtype.kind == "f":
                a.requires_grad_()
        assert viz.draw(op(*args, **params)).dot
        assert viz.draw(op(*args, **params), level="ops").dot


def test_in_code_a_letter_is_an_axis_or_a_tensor() -> None:
    nodes = viz.draw(MultiHeadAttention(16, 2), mt.ones(2, 5, 16), names="code").data["nodes"]
    tensors = {re.sub("<[^>]*>", "", t["name"]) for node in nodes for t in node["tensors"]}
    assert {"AV", "cat"} <= tensors
    assert not tensors & set(HOUSE_LETTERS.values())


@pytest.mark.parametrize(("names", "called"), [("math", "weight<SUB>2</SUB>"), ("code", " self[2].weight")])
def test_a_number_in_a_path_is_no_factor_and_no_index_of_an_array(names: str, called: str) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    dot = viz.draw(model, mt.ones(4, 2), names=names).dot
    assert called in dot
    assert "> 2.weight" not in dot
    assert not re.search(r"[ >]\[2\]", dot)


def test_of_many_heads_the_arrow_of_a_parameter_has_its_lanes_colour() -> None:
    dot = viz.draw(MultiHeadAttention(16, 4), mt.ones(2, 5, 16), level="heads").dot
    for lane in "QKV":
        colours = re.findall(rf'p_lin{lane} -> lin{lane}\d(?::\w+)* .*?color="(#\w+)"', dot)
        assert colours == [LIGHT.kinds[lane].stroke] * 4
    (colour,) = re.findall(r'p_linO(?::\w+)* -> linO(?::\w+)* .*?color="(#\w+)"', dot)
    assert colour == LIGHT.kinds["param"].stroke  # it crosses nothing


def test_of_a_head_each_arrow_ends_at_what_it_brings() -> None:
    """But that of a parameter from the left: at the left of the box, or it would cross that of X."""
    dot = viz.draw(attention(), leaf(2, 5, 16), level="heads").dot
    for head, lane in itertools.product("12", "QKV"):
        ends = re.findall(rf"(t|p)\w+(?::o\d:s)? -> lin{lane}{head}:(l?h\d):n ", dot)
        assert ends == [("p", "h2" if head == "1" else "lh1"), ("t", "h1")]
        (box,) = re.findall(rf"\n +lin{lane}{head} \[.*", dot)
        (left, first), *ports = re.findall(r'PORT="(l?h\d)">(.*?)</TD>', box)
        assert (left, first[-3:]) == ("lh1", " = ")
        ports = [port for port in ports if port[0] != "lh2"]
        assert ports == [("h1", "<I>X</I>"), ("h2", symbols.html(f"W_{head}^{lane}"))]


@pytest.mark.parametrize("level", ["equations", "ops"])
def test_a_tooltip_says_of_a_symbol_that_means_the_transpose_of_a_weight_that_it_does(level: str) -> None:
    """It called q_proj.weight W^Q, as if X were multiplied by what is stored: it is by its transpose."""
    layer = DecoderLayer(8, 2, 16)
    drawing = viz.draw(layer, mt.ones(1, 3, 8), mt.ones(1, 4, 8), level=level)
    facts = [node["facts"] for node in drawing.data["nodes"] if node["kind"] == "parameter"]
    lines = [" ".join(each) for each in facts] if level == "ops" else itertools.chain(*facts)
    stored = dict(layer.named_parameters())
    for line in lines:
        path, turned = re.search(r"([\w.]+\.(?:weight|bias))(ᵀ?)", line).groups()
        weight = stored.pop(path)
        assert turned == "ᵀ" * (weight.ndim == 2), line  # nn.Linear computes x @ weight.T
        assert str(weight.shape[:: -1 if turned else 1]) in line
    assert stored == {}


def test_what_only_moves_elements_stands_with_what_it_moves() -> None:
    """Kᵀ is made among the scores, but is the keys': of their colour, and outside the frame of the scores."""
    drawing = viz.draw(attention(), leaf(2, 5, 16), level="ops")
    (line,) = (line for line in drawing.dot.split("\n") if "<I>K</I><SUP>T</SUP> = transpose" in line)
    assert f'color="{LIGHT.kinds["K"].stroke}"' in line
    frame = next(o for o in drawing.json["objects"] if o["name"] == "cluster_attention")
    inside = [drawing.json["objects"][number]["class"] for number in frame["nodes"]]
    assert "op permute" not in inside
    assert inside.count("op matmul") == 2


@pytest.mark.parametrize("level", ["equations", "heads", "tape"])
@pytest.mark.parametrize("names", ["math", "code"])
def test_the_legend_says_what_a_function_does_that_is_called_like_a_tensor(level: str, names: str) -> None:
    layer, x = MultiHeadAttention(16, 2), leaf(2, 5, 16)
    dot = viz.draw(layer, x, mask=causal_mask(5), level=level, names=names).dot
    assert ("mask: −∞ where" in dot) == ("mask(" in dot)
    mask = mt.tensor([True, False])
    assert "mask: −∞" not in viz.draw(mt.where(mask, leaf(2), 0.0), names={"mask": mask}).dot
