"""The tree of a beam search: what the search notes is what it did, and what is drawn is what it noted."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from crossings import in_corners
from hypothesis import given
from hypothesis import strategies as st

import microtensor as mt
from microtensor import viz
from models import GPT, BeamNode, GPTConfig, Transformer, TransformerConfig, beam_search

V, SOURCES = 7, mt.tensor([[3, 4, 5], [6, 3, 0]])


def translator(seed: int) -> Transformer:
    mt.manual_seed(seed)
    model = Transformer(TransformerConfig(9, V, 8, 2, 1, 1, 16, dropout=0.0, max_len=12))
    for p in model.parameters():  # far from the small initial weights: tokens differ in their probability
        p.data = p.data + 0.5 * mt.randn_like(p)
    return model


def path(tree: list[BeamNode], i: int) -> list[BeamNode]:
    return [] if i < 0 else [*path(tree, tree[i].parent), tree[i]]


# --- what the search notes ----------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), K=st.integers(1, 9), alpha=st.sampled_from([0.0, 0.6]), data=st.data())
def test_a_search_notes_what_it_does(seed: int, K: int, alpha: float, data: st.DataObject) -> None:
    n_best = data.draw(st.integers(1, K))
    model, tree = translator(seed), list[BeamNode]()
    beams = beam_search(model, SOURCES, K, alpha, 4, n_best=n_best, tree=tree)
    again = beam_search(model, SOURCES, K, alpha, 4, n_best=n_best)
    for noted, silent in zip(beams, again, strict=True):
        np.testing.assert_array_equal(noted.numpy(), silent.numpy())
    depth = [len(path(tree, i)) for i in range(len(tree))]
    for row in range(2):
        mine = [i for i, node in enumerate(tree) if node.row == row]
        assert all(
            tree[i].parent < i and (tree[i].parent < 0 or tree[tree[i].parent].row == row) for i in mine
        )
        for d in range(1, max(depth) + 1):  # what has ended keeps a place in the beam
            assert sum(tree[i].kept for i in mine if depth[i] == d) <= K
        for parent in {tree[i].parent for i in mine}:
            children = [tree[i] for i in mine if tree[i].parent == parent]
            assert len(children) == min(K, V)
            assert len({node.token for node in children}) == len(children)
            assert [n.log_p for n in children] == sorted((n.log_p for n in children), reverse=True)
            assert parent < 0 or (tree[parent].kept and tree[parent].token != 2), "only those go on"
        found = {tree[i].rank: i for i in mine if tree[i].rank}
        assert sorted(found) == list(range(1, n_best + 1))
        for rank, i in found.items():
            length = int(beams.lengths[row, rank - 1])
            assert [n.token for n in path(tree, i)] == beams.ids[row, rank - 1, :length].tolist()
            assert tree[i].log_prob == beams.log_probs[row, rank - 1].item()
            assert tree[i].score == beams.scores[row, rank - 1].item()
    for i, node in enumerate(tree):
        assert node.log_prob == pytest.approx(sum(n.log_p for n in path(tree, i)), abs=1e-9)


def test_a_gpt_s_search_is_noted_too() -> None:
    tree: list[BeamNode] = []
    prompt = mt.tensor([[1, 2, 3]])
    beams = beam_search(GPT(GPTConfig(8, V, 1, 2, 8)), prompt, 3, max_len=4, tree=tree)
    (best,) = (i for i, node in enumerate(tree) if node.rank == 1)
    assert [node.token for node in path(tree, best)] == beams.ids[0, 0, 3:].tolist()
    assert sum(node.kept for node in tree) == 4 * 3


def test_a_list_that_holds_a_tree_is_refused() -> None:
    tree: list[BeamNode] = []
    model = translator(0)
    beam_search(model, SOURCES, tree=tree)
    before = list(tree)
    with pytest.raises(
        ValueError, match=rf"beam_search: tree holds {len(tree)} nodes already; give an empty"
    ):
        beam_search(model, SOURCES, tree=tree)
    assert tree == before


# --- what is drawn ------------------------------------------------------------------------------------------


def node(parent: int, token: int, log_p: float, kept: bool = True, rank: int = 0, row: int = 0) -> Any:
    return SimpleNamespace(row=row, parent=parent, token=token, log_p=log_p, log_prob=10 * log_p,
                           score=5 * log_p, kept=kept, rank=rank)  # fmt: skip


TREE = [
    node(-1, 0, -0.1),
    node(-1, 1, -0.2),
    node(-1, 2, -0.3, kept=False),
    node(0, 1, -0.4, kept=False),
    node(-1, 3, -9.0, row=1),
    node(1, 3, -0.5, rank=1),
    node(0, 3, -0.6, rank=2),
    node(1, 2, -0.7),
]
NAMES = ["the", "cat", "sat", "</s>"]


def drawn(dot: str) -> tuple[dict[str, tuple[str, str]], dict[tuple[str, str], str]]:
    """name → (class, label) of the nodes and (tail, head) → class of the arrows, which have no label."""
    boxes = r'^  (n\d+) \[id="\S+", class="(\w+)", label=<(.*?)>, color'
    nodes = {m[1]: (m[2], m[3]) for m in re.finditer(boxes, dot, re.MULTILINE)}
    arrows = {
        (m[1], m[2]): m[3]
        for m in re.finditer(r'^  (\w+) -> (n\d+) \[(?!.*label).*class="(\w+)".*\];$', dot, re.MULTILINE)
    }
    return nodes, arrows


def test_every_node_of_the_row_stands_behind_its_parent_and_is_found_kept_or_pruned() -> None:
    nodes, arrows = drawn(viz.beam_tree(TREE, NAMES).dot)
    want = {
        "n0": "found",
        "n1": "found",
        "n2": "pruned",
        "n3": "pruned",
        "n5": "found",
        "n6": "found",
        "n7": "kept",
    }
    assert {name: kind for name, (kind, _) in nodes.items()} == want
    assert arrows == {
        ("start" if TREE[int(name[1:])].parent < 0 else f"n{TREE[int(name[1:])].parent}", name): kind
        for name, kind in want.items()
    }


def test_tokens_and_log_probabilities_are_written() -> None:
    nodes, _ = drawn(viz.beam_tree(TREE, NAMES).dot)
    assert nodes["n7"][1].startswith("sat<BR/>")
    assert ">−0.70, Σ −7.00<" in nodes["n7"][1]
    assert "<B>&lt;/s&gt;</B>" in nodes["n5"][1]
    assert "place 1: score −2.50" in nodes["n5"][1]
    assert "place 2: score −3.00" in nodes["n6"][1]
    assert drawn(viz.beam_tree(TREE).dot)[0]["n7"][1].startswith("2<BR/>")
    assert drawn(viz.beam_tree(TREE, lambda i: f"w{i}").dot)[0]["n7"][1].startswith("w2<BR/>")


def test_spaces_and_line_breaks_are_shown_as_in_heat_maps() -> None:
    names = [" the", " ", "\n", "\t", "\r\n"]
    path = [BeamNode(0, i - 1, i, -1.0, -1.0 - i, -1.0, True, int(i == 4)) for i in range(5)]
    drawing = viz.beam_tree(path, names)
    for shown in ("·the", "·", "¶", "→", "∖r¶"):
        assert f"label=<<B>{shown}</B>" in drawing.dot
    assert drawing.about[0].startswith("1: ·the · ¶ → ∖r¶, ")


def test_the_start_is_called_by_the_tokens_of_the_prompt() -> None:
    dot = viz.beam_tree(TREE, NAMES, prompt=[0, 2]).dot
    assert f"label=<{NAMES[0]} {NAMES[2]}>".replace("<b>", "&lt;b&gt;") in dot.replace("&lt;/s&gt;", "</s>")
    assert "label=<start>" in viz.beam_tree(TREE, NAMES).dot
    with pytest.raises(ValueError, match="token 99 has no name"):
        viz.beam_tree(TREE, NAMES, prompt=[99])


def test_another_row_is_another_tree() -> None:
    drawing = viz.beam_tree(TREE, NAMES, row=1)
    assert list(drawn(drawing.dot)[0]) == ["n4"]
    assert drawing.boxes == 2


def test_themes_differ_in_colours_only() -> None:
    light, dark = (viz.beam_tree(TREE, NAMES, theme=theme).dot for theme in ("light", "dark"))
    assert light != dark
    assert re.sub(r"#[0-9A-F]{6}", "", light) == re.sub(r"#[0-9A-F]{6}", "", dark)


def test_a_tree_from_above_has_narrow_boxes_since_many_stand_side_by_side() -> None:
    below, beside = (viz.beam_tree(TREE, NAMES, direction=direction) for direction in ("TB", "LR"))
    turned = beside.dot.replace("=LR", "=TB").replace("port=e", "port=s").replace("port=w", "port=n")
    assert below.dot == turned.replace(", Σ", "<BR/>Σ")
    wide = [{o["name"]: float(o["width"]) for o in d.json["objects"]} for d in (below, beside)]
    assert all(wide[0][name] < wide[1][name] for name in ("n0", "n1", "n2", "n3", "n7"))


def test_the_picture_says_what_was_found(tmp_path: Path) -> None:
    pytest.importorskip("pygraphviz")
    root = ET.parse(viz.beam_tree(TREE, NAMES).save(tmp_path / "tree.svg")).getroot()
    assert [element.text for element in root[:2]] == [
        "beam search",
        "1: cat </s>, log P −5.00, score −2.50; 2: the </s>, log P −6.00, score −3.00",
    ]
    assert len(root.findall(".//*[@class='node found']")) == 4
    shown = {"".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"the", "cat", "sat", "</s>", "−0.70, Σ −7.00", "−9.00"} - shown == {"−9.00"}


@given(st.lists(st.text(max_size=30), min_size=4, max_size=4))
def test_whatever_tokens_are_called_the_graph_stays_the_same(names: list[str]) -> None:
    pygraphviz = pytest.importorskip("pygraphviz")
    graph = pygraphviz.AGraph(string=viz.beam_tree(TREE, names).dot)
    plain = pygraphviz.AGraph(string=viz.beam_tree(TREE).dot)
    assert (graph.nodes(), graph.edges()) == (plain.nodes(), plain.edges())


def test_hostile_tokens_stay_text(tmp_path: Path) -> None:
    pytest.importorskip("pygraphviz")
    evil = ['"]; evil [label="', "<B>&amp;</B>", "\\N\\E", "-->{}\n\x00"]
    text = viz.beam_tree(TREE, evil).save(tmp_path / "x.svg").read_text(encoding="utf-8")
    shown = {
        "".join(t.itertext()) for t in ET.fromstring(text.encode()).iter("{http://www.w3.org/2000/svg}text")
    }
    assert {'"];·evil·[label="', "<B>&amp;</B>", "∖N∖E"} <= shown


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((TREE,), {"row": 2}, r"no node of row 2; choose among \[0, 1\]"),
        (([],), {}, r"no node of row 0; give the list that beam_search.* has filled"),
        (([node(0, 1, -0.1)],), {}, "node 0 has parent 0; parents stand before their nodes"),
        ((TREE,), {"direction": "RL"}, "direction='RL' is not to be had; choose direction among"),
        ((TREE,), {"theme": "blue"}, "theme='blue' is not to be had"),
        ((TREE, NAMES[:2]), {}, "token 3 has no name among 2; name all, or leave tokens out"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"beam_tree: .*{message}"):
        viz.beam_tree(*arguments, **options)


@pytest.mark.parametrize("token", [-1, 1.5, 4])
def test_a_token_without_a_name_gets_none(token: Any) -> None:
    with pytest.raises(ValueError, match=f"beam_tree: token {token} has no name among 4; name all"):
        viz.beam_tree([*TREE, node(0, token, -0.1)], NAMES)


def test_names_are_a_sequence_or_a_function() -> None:
    with pytest.raises(TypeError, match="beam_tree: tokens is 5; give a list of names, or a function"):
        viz.beam_tree(TREE, 5)  # type: ignore[arg-type]


def test_the_legend_says_what_each_kind_of_box_is() -> None:
    legend = viz.beam_tree(TREE, NAMES).dot.split("node [")[0]
    assert "bold, blue: found; solid: kept; dashed: not kept" in legend


@pytest.mark.parametrize("direction", ["LR", "TB"])
def test_no_text_touches_the_corner_of_its_box(direction: str) -> None:
    assert in_corners(viz.beam_tree(TREE, NAMES, direction=direction).json) == []


@pytest.mark.parametrize("K", [1, 2, 3])
def test_the_legend_says_how_many_ways_to_go_on_each_text_shows(K: int) -> None:
    """A text with two boxes behind it looked as if it could go on by no other token."""
    tree: list[BeamNode] = []
    beam_search(GPT(GPTConfig(8, V, 1, 2, 8)), mt.tensor([[1, 2, 3]]), K, max_len=4, tree=tree)
    legend = viz.beam_tree(tree).dot.split("node [")[0]
    assert f"of each text that goes on: its {K} likeliest next tokens only" in legend


def test_the_legend_says_what_a_score_is() -> None:
    assert "score: Σ / length penalty" in viz.beam_tree(TREE, NAMES).dot


@pytest.mark.parametrize("direction", ["LR", "TB"])
def test_arrows_touch_their_boxes_in_the_middle_of_a_side(direction: str) -> None:
    """At a corner, which is round, they would end in the air."""
    (edges,) = re.findall(r"^  edge \[(.*)\];$", viz.beam_tree(TREE, NAMES, direction=direction).dot, re.M)
    tail, head = ("e", "w") if direction == "LR" else ("s", "n")
    assert f"tailport={tail}, headport={head}" in edges
