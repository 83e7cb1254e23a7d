"""The page to explore: one file that loads nothing, tells the engine's gradients, and works by keys alone.

The second half runs it in a headless Chromium, and is skipped where there is none.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_viz_render import load_tool

import microtensor as mt
import microtensor.nn.functional as F
from microtensor import viz
from microtensor.engine import Op, registry
from microtensor.mode import Block
from microtensor.viz import render, symbols
from microtensor.viz.names import word_of
from models import (
    GPT,
    BeamNode,
    DecoderLayer,
    FeedForward,
    GPTConfig,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    causal_mask,
)

HOSTILE = '</script><img src=x onerror="window.broken=1">\'&amp;\\N😀\u202e]]><!--'
VOID = {"meta", "link", "input", "path", "polygon", "polyline", "ellipse"}  # of SVG, they are <path … />


def norm(t: Any) -> float:
    array = t.array if isinstance(t, mt.Tensor) else t
    return float(np.linalg.norm(array.astype(np.float64)))


class Layer:
    """One self-attention with its gradients, as a program of the user has them."""

    def __init__(self) -> None:
        mt.manual_seed(3)
        self.layer = MultiHeadAttention(16, 2)
        self.x = mt.randn(2, 5, 16, requires_grad=True)
        self.g = mt.randn(2, 5, 16)
        self.mask = causal_mask(5)

    def draw(self, **options: Any) -> viz.Drawing:
        return viz.draw(self.layer, self.x, mask=self.mask, **{"grads": self.g, **options})

    def gradient_by(self, letter: str) -> Any:
        """Of x, along one of its three paths alone: the others get a copy without a gradient."""
        x = self.x.detach().requires_grad_()
        inputs = [x if each == letter else self.x.detach() for each in "QKV"]
        self.layer(*inputs, mask=self.mask).backward(self.g)
        return x.grad.array


@pytest.fixture
def made() -> Layer:
    return Layer()


def blocks(page: str) -> list[dict[str, Any]]:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


# --- the file -----------------------------------------------------------------------------------------------


class Checker(HTMLParser):
    """Tags that open and close as they should, and what they would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action", "data")]
        self.ids += [v or "" for k, v in attrs if k == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("level", ["equations", "ops", "heads", "tape"])
def test_the_page_is_one_well_formed_file_that_loads_nothing(made: Layer, level: str, tmp_path: Path) -> None:
    page = made.draw(level=level).save(tmp_path / "x.html").read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.loads == ["data:,"]
    assert len(set(checker.ids)) == len(checker.ids)
    assert set(re.findall(r"https?://[^\s\"'<>]+", page)) <= {
        "http://www.w3.org/2000/svg",  # names of languages, which nobody fetches
        "http://www.w3.org/1999/xlink",
    }
    assert "url(" not in page
    assert "@import" not in page
    assert not re.search(r"\{\{\w+\}\}", page)


def test_its_data_is_the_drawings(made: Layer, tmp_path: Path) -> None:
    drawing = made.draw(values=True)
    page = drawing.save(tmp_path / "x.html").read_text(encoding="utf-8")
    assert blocks(page) == [drawing.data, *(state.data for state in drawing.states)]
    assert page.count('class="picture"') == 1 + len(drawing.states)


def test_the_tools_write_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw_attention, draw_model = map(load_tool, ("draw_attention", "draw_model"))
    (tmp_path / "mine.py").write_text(
        "import microtensor as mt\ndef loss():\n    return (2 * mt.ones(3, requires_grad=True)).sum()\n"
    )
    attention, mine = tmp_path / "attention.html", tmp_path / "mine.html"
    assert draw_attention.main(["-o", str(attention), "--grads", "--level", "heads"]) == 0
    assert draw_model.main([f"{tmp_path / 'mine.py'}:loss", "-o", str(mine), "--grads", "--values"]) == 0
    assert capsys.readouterr().out == f"saved {attention}\nsaved {mine}\n"
    assert blocks(mine.read_text(encoding="utf-8"))[0]["steps"][0]["arrivals"][0]["norm"] == 1


def test_values_are_found_behind_a_constant_that_is_gone() -> None:
    """The positions that a GPT looks up live only in its forward."""
    mt.manual_seed(0)
    gpt = GPT(GPTConfig(block_size=4, vocab_size=5, n_layer=1, n_head=1, n_embd=4)).eval()
    ids = mt.randint(0, 5, (1, 3))
    nodes = viz.draw(gpt, ids, values=True).data["nodes"]
    without = [node["label"] for node in nodes for t in node["tensors"] if "values" not in t]
    assert len(without) <= 1, without  # the positions themselves
    last = next(node for node in nodes if node["kind"] == "output")
    assert last["tensors"][0]["values"]["norm"] == pytest.approx(norm(gpt(ids)[0]), rel=1e-5)


@pytest.mark.parametrize(
    ("level", "options"),
    [
        ("heads", {}),
        *itertools.product(["equations", "ops", "tape"], [{}, {"need_weights": True}, {"is_causal": True}]),
    ],
)
def test_a_masks_values_are_who_may_attend_as_its_symbol_means(level: str, options: dict[str, bool]) -> None:
    """Where scores are filled the op takes its negation."""
    causal, padding = causal_mask(4), mt.tensor([[True, True, False, True]] * 2)[:, None, None]
    mask = {} if "is_causal" in options else {"mask": causal & padding}
    attention = viz.draw(
        MultiHeadAttention(8, 2), mt.randn(2, 4, 8), **mask, **options, level=level, values=True
    )
    (found,) = (node for node in attention.data["nodes"] if node["id"] == "node-M")
    want = (mask["mask"] if mask else causal).numpy().reshape(-1, 4, 4)[0]
    assert np.array_equal(found["tensors"][0]["values"]["maps"][0], want)


def test_a_decoder_shows_both_masks_as_who_may_attend() -> None:
    own, others = causal_mask(4), mt.tensor([[True, False, True]] * 2)[:, None, None]
    layer = DecoderLayer(8, 2, 16).eval()
    data = viz.draw(layer, mt.randn(2, 4, 8), mt.randn(2, 3, 8), own, others, values=True).data
    shown = [n["tensors"][0]["values"] for n in data["nodes"] if n["label"].startswith("M")]
    assert sorted(values["mean"] for values in shown) == pytest.approx([0.625, 2 / 3], rel=1e-5)


def test_a_weights_values_are_those_of_the_matrix_that_its_symbol_names() -> None:
    """And beside it stand the sizes of that matrix: by the code's name they are those that are stored."""
    for names, layer in itertools.product(("math", "code"), (FeedForward(4, 6), MultiHeadAttention(4, 2))):
        data = viz.draw(layer, mt.randn(1, 3, 4), values=True, names=names).data
        said = {t["sizes"]: t["values"]["maps"][0] for n in data["nodes"] for t in n["tensors"]
                if "values" in t and t["name"] in ("<I>W</I><SUP>(1)</SUP>", "<I>W</I><SUP><I>Q</I></SUP>",
                                                   "linear1.weight", "q_proj.weight")}  # fmt: skip
        stored = next(p for n, p in layer.named_parameters() if n.startswith(("linear1.w", "q_proj.w")))
        want = stored.detach().numpy() if names == "code" else stored.detach().numpy().T
        ((sizes, cells),) = said.items()
        assert sizes == str(want.shape)
        assert np.allclose(cells, want, atol=1e-5)  # six digits


@pytest.mark.parametrize("level", ["equations", "ops", "heads", "tape"])
def test_the_walk_passes_every_arrow_that_a_gradient_does(level: str) -> None:
    x = mt.randn(2, 4, 8, requires_grad=True)
    layer = MultiHeadAttention(8, 2)
    data = viz.draw(layer, x, mask=causal_mask(4), grads="random", level=level).data
    lit = [arrival["arrow"] for step in data["steps"] for arrival in step["arrivals"]]
    backward = {a["id"] for a in data["arrows"] if a["kind"] == "bwd" or (level != "tape" and a["back"])}
    assert backward <= set(lit)
    assert data["steps"][0]["arrivals"][0]["arrow"] in backward  # that of the output


def test_the_first_nan_is_found_behind_a_constant_that_is_gone() -> None:
    x = mt.ones(3, 2, requires_grad=True)
    picked = F.embedding(mt.tensor([0, 2]), x)
    y = (picked - 2).sqrt().sum()
    assert viz.draw(y).findings == ["z_2 is the first with NaN"]


def test_tensors_without_elements_have_no_maps(tmp_path: Path) -> None:
    x = mt.ones(0, 3, requires_grad=True)
    data = viz.draw((x * 2).sum(), values=True).data
    assert data["nodes"][0]["tensors"][0]["values"] == {"hidden": 0}


def test_a_page_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    pages = [Layer().draw(values=True).save(tmp_path / f"{i}.html").read_bytes() for i in range(2)]
    assert pages[0] == pages[1]


def test_names_cannot_leave_the_block_that_they_are_in(tmp_path: Path) -> None:
    x = mt.ones(2, 3, requires_grad=True)
    page = viz.draw((x * x).sum(), names={HOSTILE: x}, grads=True).save(tmp_path / "x.html")
    text = page.read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert any(HOSTILE[:9] in node["label"] for node in blocks(text)[0]["nodes"])


def test_without_graphviz_there_is_the_one_error(
    made: Layer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "_by_program", lambda text, kind: None)
    monkeypatch.setattr(render, "_by_library", lambda text, kind: None)
    with pytest.raises(render.NoGraphviz, match=r"no Graphviz found, saved .*x.dot; pip install"):
        made.draw().save(tmp_path / "x.html")
    assert [p.name for p in tmp_path.iterdir()] == ["x.dot"]


def test_what_is_no_graph_of_tensors_has_no_page(made: Layer, tmp_path: Path) -> None:
    tree = viz.beam_tree([BeamNode(0, -1, 1, 0.0, 0.0, 0.0, True, 1)])
    with pytest.raises(ValueError, match="this drawing is a tree; save the"):
        tree.save(tmp_path / "x.html")
    with pytest.raises(ValueError, match="more than max_nodes=3"):
        made.draw(max_nodes=3).save(tmp_path / "x.html")
    assert list(tmp_path.iterdir()) == []


# --- the steps are the engine's -----------------------------------------------------------------------------


def ops_of(data: dict[str, Any]) -> list[str]:
    return [name for step in data["steps"] for name in step["ops"]]


@pytest.mark.parametrize("level", ["equations", "ops", "tape"])
def test_steps_follow_the_engines_walk(made: Layer, level: str) -> None:
    with viz.recording():
        y = made.layer(made.x, mask=made.mask)
        drawing = viz.draw(y, grads=made.g, level=level)
    walked: list[Op] = []
    with Block(watch=lambda entry, g, gradients: walked.append(entry.op) or gradients):
        y.backward(made.g)
    for data in (drawing.data, *(state.data for state in drawing.states)):
        assert ops_of(data) == [word_of(op) for op in walked]
        assert data["steps"][-1]["call"] == len(walked)


@pytest.mark.parametrize("level", ["equations", "ops", "tape"])
def test_an_op_has_one_word_in_nodes_facts_and_steps(level: str) -> None:
    """Nodes said transpose, and the steps of the backward permute."""
    mt.manual_seed(0)
    model = GPT(GPTConfig(block_size=8, vocab_size=5, n_layer=1, n_head=2, n_embd=8))
    with viz.recording():
        _, loss = model(mt.randint(0, 5, (1, 4)), mt.randint(0, 5, (1, 4)))
        drawing = viz.draw(loss, grads=True, level=level)
    others = {name for name, op in registry.items() if word_of(op) != name}
    facts = [fact for node in drawing.data["nodes"] for fact in node["facts"]]
    told = [*ops_of(drawing.data), *(fact for fact in facts if "= " not in fact)]  # which is a formula
    told += re.findall(r'\d\)?, (\w+ of [^"]*)"', drawing.dot)  # of arrows
    assert "transpose" in " ".join(told)
    assert others.isdisjoint(re.findall(r"\w+", " ".join(told)))


def test_three_paths_add_up_to_the_gradient_of_x(made: Layer) -> None:
    found = [a for step in made.draw().data["steps"] for a in step["arrivals"] if a["name"] == "<I>dX</I>"]
    paths = [made.gradient_by(letter) for letter in "VKQ"]  # newest first
    assert [(a["part"], a["of"]) for a in found] == [(1, 3), (2, 3), (3, 3)]
    assert [a["norm"] for a in found] == pytest.approx([norm(g) for g in paths], rel=1e-4)
    sums = [norm(sum(paths[: i + 1])) for i in range(3)]
    assert [a["sum"] for a in found] == pytest.approx(sums, rel=1e-4)


@pytest.mark.parametrize("level", ["equations", "ops", "heads", "tape"])
def test_every_gradient_that_is_complete_is_the_engines(made: Layer, level: str) -> None:
    drawing = made.draw(level=level)
    made.layer(made.x, mask=made.mask).backward(made.g)
    parts = dict(zip("QKVO", made.layer.children(), strict=True))
    known = {f"dW^{letter}": part.weight for letter, part in parts.items()}
    known |= {f"db_{letter}": parts[letter].bias for letter in "QVO"}  # that of b_K is rounding
    for data in (drawing.data, *(state.data for state in drawing.states)):
        done = {
            symbols.untagged(a["name"]): a["sum"]
            for step in data["steps"]
            for a in step["arrivals"]
            if a["part"] == a["of"]
        }
        assert done["dX"] == pytest.approx(norm(made.x.grad), rel=1e-4)
        hidden = known.keys() - done.keys()  # in a folded module
        assert not hidden or data["folded"]
        for name in known.keys() - hidden:
            assert done[name] == pytest.approx(norm(known[name].grad), rel=1e-4)


def test_without_gradients_the_order_is_the_same_and_has_no_numbers(made: Layer) -> None:
    with_numbers, without = made.draw().data, made.draw(grads=False).data
    assert ops_of(with_numbers) == ops_of(without)
    bare = [{k: v for k, v in a.items() if k not in ("norm", "sum", "zero")}
            for step in with_numbers["steps"] for a in step["arrivals"]]  # fmt: skip
    assert bare == [a for step in without["steps"] for a in step["arrivals"]]
    assert not any("norms" in t for node in without["nodes"] for t in node["tensors"])


@pytest.mark.parametrize("level", ["equations", "ops", "heads", "tape"])
def test_a_gradient_is_zero_where_the_picture_says_so_and_nowhere_else(made: Layer, level: str) -> None:
    drawing = made.draw(level=level)
    for data in (drawing.data, *(state.data for state in drawing.states)):
        arrivals = [a for step in data["steps"] for a in step["arrivals"]]
        zero = {symbols.untagged(a["name"]) for a in arrivals if a.get("zero")}
        told = {symbols.untagged(a["name"]) for a in arrivals}
        assert zero == {"db_K"} & told  # unless it is hidden in a module
        assert all(a["sum"] == 0 for a in arrivals if a.get("zero"))


def test_x_times_x_arrives_twice_and_adds_up() -> None:
    x = mt.tensor([3.0, 4.0], requires_grad=True)
    (step,) = [s for s in viz.draw(x * x, grads=mt.ones(2)).data["steps"] if s["ops"]]
    assert [(a["part"], a["of"], a["norm"], a["sum"]) for a in step["arrivals"]] == [
        (1, 2, 5.0, 5.0),
        (2, 2, 5.0, 10.0),
    ]


def test_a_layer_drawn_for_several_says_which_one_a_step_is_in() -> None:
    model = Transformer(TransformerConfig(9, 9, d_model=8, n_heads=2, d_ff=8, n_encoder_layers=2,
                                          n_decoder_layers=1)).eval()  # fmt: skip
    drawing = viz.draw(model, mt.randint(3, 9, (1, 4)), mt.randint(3, 9, (1, 3)))
    modules = [step["module"] for step in drawing.data["steps"] if step.get("module")]
    assert {re.match(r"encoder\.layers\.\d", m)[0] for m in modules} == {
        "encoder.layers.0",
        "encoder.layers.1",
    }
    assert modules[0].startswith("encoder.layers.1")


def test_values_are_those_of_the_tensors(made: Layer) -> None:
    with viz.recording():
        y = made.layer(made.x, mask=made.mask)
        data = viz.draw(y, values=True).data
    tensors = {t["name"]: t["values"] for node in data["nodes"] for t in node["tensors"] if "values" in t}
    assert tensors["<I>X</I>"]["norm"] == pytest.approx(norm(made.x), rel=1e-5)
    assert tensors["<I>Y</I>"]["least"] == pytest.approx(float(y.array.min()), rel=1e-5)
    weights = np.array(tensors["<I>A</I>"]["maps"])
    assert weights.shape == (2, 5, 5)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    assert tensors["<I>S̃</I>"]["hidden"] == 2 * 2 * 10
    assert tensors["<I>S̃</I>"]["maps"][0][0][1] == "−∞"
    json.dumps(data, allow_nan=False)


# --- folding ------------------------------------------------------------------------------------------------


def model(norm: str = "post") -> tuple[Any, ...]:
    mt.manual_seed(0)
    config = TransformerConfig(
        9, 9, d_model=8, n_heads=2, d_ff=8, n_encoder_layers=2, n_decoder_layers=2, norm=norm
    )
    return Transformer(config).eval(), mt.randint(3, 9, (1, 4)), mt.randint(3, 9, (1, 3))


def drawings() -> Iterator[tuple[str, viz.Drawing]]:
    made = Layer()
    for level in ("equations", "ops", "heads"):
        yield level, made.draw(level=level)
    yield "model", viz.draw(*model(), grads=mt.ones(1, 3, 9))
    yield "depth", viz.draw(*model("pre"), depth=2)


@pytest.mark.parametrize("what", range(5))
def test_a_click_folds_and_another_one_unfolds(what: int) -> None:
    _, drawing = list(drawings())[what]
    states = [drawing.data, *(state.data for state in drawing.states)]
    assert len(states) > 1
    assert states[0]["folded"] == []
    for data in states:
        assert len({node["id"] for node in data["nodes"]}) == len(data["nodes"])
        for frame in data["frames"]:
            assert frame["open"] == (
                frame["unit"] not in data["folded"]
            )  # layers drawn once keep theirs: × 2
            assert frame["open"] == (frame["unit"] in states[frame["to"]]["folded"])
        folded = [node for node in data["nodes"] if node["kind"] == "folded"]
        assert {node["unit"] for node in folded} == set(data["folded"])
        for node in folded:
            assert node["unit"] not in states[node["to"]]["folded"]


@pytest.mark.parametrize("what", range(5))
def test_a_tensor_has_one_gradient_in_every_state(what: int) -> None:
    """Where a node stands for the same ops, whatever is folded around it."""
    _, drawing = list(drawings())[what]
    first = {node["id"]: node for node in drawing.data["nodes"]}
    for state in drawing.states:
        for node in state.data["nodes"]:
            if node["kind"] in ("input", "output") and node["id"] in first:
                assert node["tensors"] == first[node["id"]]["tensors"]
        assert all(step["arrivals"] or step["ops"] for step in state.data["steps"])


def test_a_folded_attention_is_what_the_paper_calls_it(made: Layer) -> None:
    (folded,) = made.draw().states
    (node,) = [n for n in folded.data["nodes"] if n["kind"] == "folded"]
    assert node["equation"] == "<I>H</I> = attention(<I>Q</I>, <I>K</I>, <I>V</I>, <I>M</I>)"
    assert "subgraph" not in folded.dot


def test_many_ways_to_fold_are_one_a_depth() -> None:
    drawing = viz.draw(*model())
    assert drawing.data["together"]
    assert len(drawing.states) == 4
    assert drawing.states[0].data["folded"] == ["decoder", "encoder"]
    assert drawing.data["closed"] == 1


# --- in a browser -------------------------------------------------------------------------------------------

SIZES = [(1280, 900), (800, 1200), (400, 800)]


class Browser:
    """A headless Chromium that has no network, and one page of it."""

    def __init__(self, folder: Path) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        # without a sandbox, since CI is root in a container
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--host-resolver-rules=MAP * ~NOTFOUND"):  # fmt: skip
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        self.driver: Any = webdriver.Chrome(options=options, service=service)
        self.driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        self.folder = folder
        self.pages: dict[str, str] = {}

    def open(
        self, name: str, scheme: str = "light", size: tuple[int, int] = SIZES[0], motion: str = ""
    ) -> None:
        """Load a page anew, with nothing logged before."""
        features = [("prefers-color-scheme", scheme), ("prefers-reduced-motion", motion)]
        said = [{"name": name, "value": value} for name, value in features]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": said})
        look = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", look)
        self.logged("browser"), self.logged("performance")
        self.driver.get(self.pages[name])

    def add(self, name: str, drawing: viz.Drawing) -> None:
        self.pages[name] = drawing.save(self.folder / f"{name}.html").as_uri()

    def logged(self, kind: str) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log(kind)]

    def js(self, program: str, *arguments: Any) -> Any:
        return self.driver.execute_script(program, *arguments)

    def press(self, key: str, holding: str = "") -> None:
        from selenium.webdriver import ActionChains

        chain = ActionChains(self.driver, duration=0)
        chain = chain.key_down(holding).send_keys(key).key_up(holding) if holding else chain.send_keys(key)
        chain.perform()

    def settle(self) -> None:
        """Until what the browser makes of a change (pictures, and a mouse that things move under) is done."""
        wait = "setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])), 300)"
        self.driver.execute_async_script(wait)

    def acting(self, at_least: int) -> list[dict[str, Any]]:
        """What a screen reader is told that one can act on. The browser builds that tree after the page, and
        bit by bit: a page that was just opened can have a root alone, or its first sixteen nodes.
        """
        from selenium.webdriver.support.ui import WebDriverWait

        def found(driver: Any) -> list[dict[str, Any]] | None:
            nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
            kinds = ("button", "slider", "application")
            acting = [node for node in nodes if node.get("role", {}).get("value") in kinds]
            return acting if len(acting) >= at_least else None

        return WebDriverWait(self.driver, 20).until(found, f"fewer than {at_least} things to act on")

    def shown(self) -> Any:
        return self.js("return document.querySelector('.picture:not([hidden])')")

    def element(self, id: str) -> Any:
        found = 'return document.querySelector(`.picture:not([hidden]) [id$="-${arguments[0]}"]`)'
        return self.js(found, id)

    def point(self, id: str, click: bool = False) -> None:
        from selenium.webdriver import ActionChains

        moved = ActionChains(self.driver, duration=0).move_to_element(self.element(id))
        moved.move_by_offset(1, 0)  # where the mouse is already, it would rest
        (moved.click() if click else moved).perform()

    def hit(self, x: float, y: float) -> str:
        """The id of what answers to a mouse at a place of the window."""
        program = """const [x, y] = arguments;
            return document.elementFromPoint(x, y).closest('.picture [role=button]')?.id ?? ''"""
        return self.js(program, x, y).split("-", 2)[-1]

    def classes(self, word: str) -> set[str]:
        """Ids of what has the class, in the picture that is shown."""
        program = """const [shown, word] = arguments;
            return [...shown.querySelectorAll(`.node.${word}, .edge.${word}`)].map((found) => found.id)"""
        return {id.split("-", 2)[2] for id in self.js(program, self.shown(), word)}

    def panel(self) -> str:
        return self.js("return document.getElementById('panel').innerText")

    def focused(self) -> str:
        return self.js(
            "return document.activeElement.getAttribute('aria-label') || document.activeElement.id"
        )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    pytest.importorskip("selenium")
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        pytest.skip("no Chromium: apt-get install chromium chromium-driver")
    started = Browser(tmp_path_factory.mktemp("pages"))
    made = Layer()
    started.add("layer", made.draw(values=True))
    started.add("tape", made.draw(level="tape", need_weights=True))
    started.add("heads", made.draw(level="heads"))
    started.add("model", viz.draw(*model(), grads=mt.ones(1, 3, 9)))
    x = mt.ones(2, 3, requires_grad=True)
    started.add("hostile", viz.draw((x * x).sum(), names={HOSTILE: x}, grads=True, values=True))
    yield started
    started.driver.quit()


@pytest.mark.parametrize("name", ["layer", "tape", "heads", "model", "hostile"])
def test_a_page_runs_without_network_and_without_complaint(browser: Browser, name: str) -> None:
    browser.open(name)
    browser.js("for (let i = 0; i <= states[0].steps.length; i++) take(i)")
    browser.js("for (const item of prepare(now).items) item.element.focus()")
    browser.js("states.forEach((state, i) => go(i))")
    assert browser.logged("browser") == []
    sent = [json.loads(message)["message"] for message in browser.logged("performance")]
    asked = [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}
    assert browser.pages[name] in asked
    assert browser.js("return window.broken") is None


def test_a_node_under_the_pointer_lights_up_its_paths(browser: Browser) -> None:
    browser.open("layer")
    browser.point("node-scores")
    assert browser.classes("self") == {"node-scores"}
    assert browser.classes("from") == {
        *("node-X", "node-W_Q+b_Q", "node-W_K+b_K", "node-linQ", "node-linK"),
        *("fwd-t0-linQ", "fwd-t0-linK", "fwd-linQ-scores", "fwd-linK-scores"),
        *("fwd-p_linQ-linQ", "fwd-p_linQ-linQ-2", "fwd-p_linK-linK", "fwd-p_linK-linK-2"),
    }
    down = ["scores", "mask", "softmax", "av", "concat", "linO", "out"]
    way = {f"fwd-{a}-{b}" for a, b in itertools.pairwise(down)}
    way |= {f"node-{key}" for key in down[1:-1]} | {"node-Y"}
    assert browser.classes("feeds") == browser.classes("grad") == way
    told = browser.panel()
    for text in ("S = Q K", "B×h×n×n", "(2, 2, 5, 5)", "dQ = dS K / √d", "computed from 5 nodes", "mean"):
        assert text in told.replace("\n", ""), text
    assert browser.js("return document.querySelectorAll('#panel .maps svg').length") == 2
    browser.point("node-M")
    assert browser.classes("grad") == set()  # no gradient flows to a mask
    assert "none flows here" in browser.panel()


def test_masked_cells_look_as_in_the_picture(browser: Browser) -> None:
    browser.open("layer")
    greys = """const [id] = arguments, grey = /^#e4e7eb$/i;
        const count = (all) => all.filter((cell) => grey.test(cell.getAttribute("fill"))).length;
        prepare(now).elements.get(id).focus();
        return [count([...prepare(now).elements.get(id).querySelectorAll("polygon")]),
                count([...document.querySelectorAll("#panel .maps rect")])]"""
    assert browser.js(greys, "node-softmax") == [20, 20]
    assert browser.js(greys, "node-scores") == [0, 0]
    titles = "return [...document.querySelectorAll('#panel .maps title')].map((title) => title.textContent)"
    browser.js(greys, "node-softmax")
    assert browser.js(titles).count("masked") == 20


def test_a_resting_mouse_points_at_nothing(browser: Browser) -> None:
    browser.open("layer", size=(1280, 400))
    browser.point("node-scores")
    assert browser.classes("self") == {"node-scores"}
    for act in (
        "take(3)",
        "prepare(now).elements.get('node-Y').focus()",
        "at('graph').scrollTo({top: 0, behavior: 'instant'})",
    ):
        browser.js(act)
        browser.settle()
    assert browser.classes("self") == {"node-Y"}
    browser.js("take(3)")
    browser.js("at('graph').scrollTo({top: 400, behavior: 'instant'})")
    browser.settle()
    assert browser.panel().startswith("Step 3 of ")
    browser.point("node-linV")
    assert browser.classes("self") == {"node-linV"}


@pytest.mark.parametrize("size", SIZES)
def test_a_badge_covers_no_letter_and_is_not_cut(browser: Browser, size: tuple[int, int]) -> None:
    browser.open("layer", size=size)
    for _ in range(browser.js("return states[now].steps.length")):  # upwards, as a reader goes
        browser.js("at('on').click()")
    browser.settle()
    free = """const box = (part) => part.getBoundingClientRect();
        const badge = box(document.querySelector('.badge'));
        const svg = document.querySelector('.picture:not([hidden]) svg');
        const shown = box(getComputedStyle(svg).overflow === 'visible' ? at('graph') : svg);
        const apart = (text) => text.right < badge.left || text.left > badge.right
            || text.bottom < badge.top || text.top + 2 > badge.bottom;
        return [[...svg.querySelectorAll('.node text')].map(box).every(apart),
            badge.top >= shown.top && badge.right <= shown.right]"""
    assert browser.js(free) == [True, True]


def test_the_tape_lights_up_the_gradients_own_path(browser: Browser) -> None:
    browser.open("tape")
    browser.js("prepare(now).elements.get('node-softmax').focus()")
    nodes = {id for id in browser.classes("grad") if not id.startswith("bwd")}
    assert nodes == {"vjp-softmax", "vjp-av", "vjp-concat", "vjp-linO", "grad-Y"}
    assert "saved-softmax" in browser.classes("feeds")
    browser.js("prepare(now).elements.get('grad-X').focus()")
    assert {"vjp-linQ", "vjp-linK", "vjp-linV"} <= browser.classes("from")


def test_a_click_folds_a_frame_and_enter_unfolds_it(browser: Browser) -> None:
    browser.open("layer")
    label = browser.element("cluster_attention").find_element("css selector", "text")
    browser.js("arguments[0].scrollIntoView({block: 'center'})", label)
    label.click()
    assert browser.element("node-attention").get_attribute("aria-expanded") == "false"
    assert browser.element("node-scores") is None
    assert browser.focused().startswith("folded: H = attention(Q, K, V, M)")
    browser.press("\ue007")  # Enter
    assert browser.element("node-scores") is not None
    assert browser.focused() == "frame: scaled dot-product attention, 2 heads"
    browser.press(" ")
    assert browser.element("node-scores") is None
    browser.js("document.getElementById('open-all').click()")
    assert browser.element("node-scores") is not None


def test_a_model_folds_and_unfolds_depth_by_depth(browser: Browser) -> None:
    browser.open("model")
    browser.js("document.getElementById('close-all').click()")
    counts = [browser.js("return states[now].nodes.length")]
    while browser.js("return now"):
        browser.js("states[now].items.find((item) => item.kind === 'folded').element.focus()")
        browser.press("\ue007")
        counts.append(browser.js("return states[now].nodes.length"))
    assert len(counts) == 5
    assert counts[0] < counts[-1]


def test_every_step_of_the_slider_tells_the_engines_gradients(browser: Browser) -> None:
    paths = {letter: Layer().gradient_by(letter) for letter in "VKQ"}
    made = Layer()
    made.layer(made.x, mask=made.mask).backward(made.g)
    known = {
        f"dW{letter}": norm(part.weight.grad)
        for letter, part in zip("QKVO", made.layer.children(), strict=True)
    }
    browser.open("layer")
    browser.js("document.getElementById('step').focus()")
    told: dict[str, list[tuple[float, float]]] = {}
    for step in range(1, 1 + browser.js("return states[0].steps.length")):
        browser.press("\ue014")  # arrow right
        assert browser.panel().startswith(f"Step {step} of ")
        spoken = browser.js("return document.getElementById('step').getAttribute('aria-valuetext')")
        for line in spoken.split(": ")[1].split("; "):
            assert line in browser.panel().replace("\n", "")
            assert "1 of 1" not in line
            name, part, of = re.match(r"([^ ,]+)(?: = (\d) of (\d))?", line).groups("1")
            numbers = [float(x.replace("−", "-")) for x in re.findall(r"‖ (−?[\d.e−]+)", line)]
            told.setdefault(name, []).append((int(part) / int(of), *numbers))
    assert [part for part, *_ in told["dX"]] == pytest.approx([1 / 3, 2 / 3, 1])
    assert [own for _, own, _ in told["dX"]] == pytest.approx([norm(g) for g in paths.values()], rel=5e-3)
    assert told["dbK"] == [(1,)]  # ≡ 0, as in the picture
    assert told["dX"][-1][2] == pytest.approx(norm(made.x.grad), rel=5e-3)
    assert told["dX"][1][2] == pytest.approx(norm(paths["V"] + paths["K"]), rel=5e-3)
    for name, expected in known.items():
        assert told[name] == [(1, pytest.approx(expected, rel=5e-3))]
    assert browser.js("return document.querySelector('.badge text').textContent") == "dX 3/3"
    assert browser.classes("now") >= {"node-linQ", "node-X", "fwd-t0-linQ"}
    browser.press("\ue012")  # arrow left
    assert browser.js("return document.querySelector('.badge text').textContent") == "dX 2/3"
    browser.press("\ue00c")  # Escape
    assert browser.panel().startswith("How to explore")
    assert browser.classes("now") == browser.classes("done") == set()


INSIDE = """const [id, around] = arguments, outer = document.querySelector(around).getBoundingClientRect();
    const inner = (prepare(now).elements.get(id) ?? document.querySelector(id)).getBoundingClientRect();
    return inner.top >= outer.top && inner.left >= outer.left
      && inner.bottom <= outer.bottom && inner.right <= outer.right"""


@pytest.mark.parametrize("name", ["layer", "tape", "heads", "model"])
def test_a_norm_stands_in_a_box_from_the_step_on_that_makes_its_gradient_whole(
    browser: Browser, name: str
) -> None:
    """Beside "sum so far 10.1" the box of X said 11."""
    browser.open(name)
    norms = """const words = [...document.querySelectorAll('.picture:not([hidden]) .node tspan')];
        return words.filter((word) => word.textContent.startsWith('‖∂‖') && getComputedStyle(word).visibility
          === 'visible').map((word) => word.closest('.node').id.split('-').slice(2).join('-'))"""
    every, steps = set(browser.js(norms)), browser.js("return states[now].steps")
    drawn_at = {
        node["id"]: node.get("gradient", node["id"]) for node in browser.js("return states[now].nodes")
    }
    last = {arrival["to"]: i for i, step in enumerate(steps, 1) for arrival in step["arrivals"]}
    whole = {node: last.get(drawn_at[node], 1) for node in every}  # that of Y is given at the first
    assert every
    for i in range(1, len(steps) + 1):
        browser.js("take(arguments[0])", i)
        assert set(browser.js(norms)) == {node for node in every if whole[node] <= i}


def test_a_step_of_one_call_says_so(browser: Browser) -> None:
    browser.open("layer")
    steps = browser.js("return states[0].steps")
    for i, step in enumerate(steps, 1):
        browser.js("take(arguments[0])", i)
        first, end = step["call"] - len(step["ops"]) + 1, step["call"]
        which = f"product number {end}" if first == end else f"products number {first} to {end}"
        assert (f"vector-Jacobian {which} of the walk" in browser.panel()) is (i > 1)
    assert {len(step["ops"]) == 1 for step in steps[1:]} == {True, False}


@pytest.mark.parametrize("size", SIZES)
def test_a_step_shows_what_arrives_and_where(browser: Browser, size: tuple[int, int]) -> None:
    browser.open("layer", size=size, motion="reduce")
    for step in (10, 1, 10):
        browser.js("take(arguments[0])", step)
    browser.settle()
    for node in ("node-X", "node-linQ"):
        assert browser.js(INSIDE, node, "#graph"), node
    assert browser.js(INSIDE, "#panel .gradient", "#panel")
    browser.js("prepare(now).elements.get('node-softmax').focus()")
    assert browser.js(INSIDE, "#panel .line", "#panel"), "its gradient formula"
    browser.js("at('graph').scrollTo(0, 1e4)")
    browser.point("node-Y")
    assert browser.js(INSIDE, "node-Y", "#graph"), "what the mouse points at stays under it"


def test_escape_and_a_click_beside_the_nodes_let_go_of_one_and_keep_the_step(browser: Browser) -> None:
    browser.open("layer")
    browser.js("take(3)")
    browser.settle()  # the page scrolls to the step, and a click would miss a node that moves
    for let_go in ("escape", "beside"):
        browser.point("node-X", click=True)
        browser.point("cluster_attention")
        browser.js("hover(null)")
        assert browser.classes("self") == {"node-X"}  # it stays when the mouse has gone
        if let_go == "escape":
            browser.press("\ue00c")
        else:
            browser.js("document.getElementById('graph').click()")
        assert browser.classes("self") == set()
        assert browser.panel().startswith("Step 3 of ")
    browser.press("\ue00c")
    assert browser.panel().startswith("How to explore")


def test_a_button_that_can_do_no_more_hands_the_focus_over(browser: Browser) -> None:
    browser.open("layer")
    for button, key, then in (
        ("close-all", "\ue007", "open-all"),
        ("open-all", "\ue007", "close-all"),
        ("on", "\ue007", "on"),
        ("back", "\ue007", "step"),
    ):
        browser.js("at(arguments[0]).focus()", button)
        browser.press(key)
        assert browser.js("return document.activeElement.id") == then


def test_the_panel_writes_mathematics_and_says_why_a_gradient_is_zero(browser: Browser) -> None:
    browser.open("tape")
    browser.js("take(10)")
    assert "gradient of Q = splith(X WQ + bQ)" in browser.panel().replace("\n", "")
    browser.js("prepare(now).elements.get('vjp-linQ').focus()")
    assert browser.panel().replace("\n", "").startswith("gradient of Q = splith(X WQ + bQ)")
    browser.open("layer")
    browser.js("prepare(now).elements.get('node-W_K+b_K').focus()")
    assert "= 0: softmax ignores a number that is added to a whole row of scores" in browser.panel()
    browser.js("prepare(now).elements.get('node-W_Q+b_Q').focus()")
    assert "= 0" not in browser.panel()


def test_a_matrix_without_cells_says_why(browser: Browser) -> None:
    browser.open("layer", size=SIZES[0])
    browser.js("prepare(now).elements.get('node-W_Q+b_Q').focus()")
    assert browser.panel().count("16 × 16: cells are shown up to 12 a side") == 1  # not of b_Q
    browser.js("prepare(now).elements.get('node-softmax').focus()")
    assert "a side" not in browser.panel()


@pytest.mark.parametrize("name", ["layer", "heads", "model"])
def test_a_node_with_a_gradient_tells_its_formulas_or_where_they_are(browser: Browser, name: str) -> None:
    """A folded attention told none, and not why."""
    browser.open(name)
    mute = """return states.flatMap(({ nodes }) => nodes).filter((node) => node.equation && !node.gradient
        && node.tensors.some(({ needs }) => needs) && !formulas(node).length).map(({ label }) => label)"""
    assert browser.js(mute) == []
    browser.js("go(states[0].closed)")
    browser.js("prepare(now).nodes.find(({ kind }) => kind === 'folded').element.focus()")
    assert "It is several ops, each with formulas of its own: unfold it." in browser.panel()


def test_all_of_it_is_reached_by_keys_alone(browser: Browser) -> None:
    browser.open("layer")
    reached = []
    for _ in range(5):
        browser.press("\ue004")  # Tab
        reached.append(browser.focused())
    # what cannot be done is left out
    assert reached[:2] == ["close-all", "X: input (2, 5, 16) float32"]
    assert reached[2:5] == ["details", "step", "next step"]
    browser.js("document.getElementById('panel').focus()")
    browser.press("\ue004", holding="\ue008")  # Shift and Tab, back into the graph
    seen = [browser.focused()]
    while len(seen) < 40:
        browser.press("\ue014")
        if browser.focused() == seen[-1]:
            break
        seen.append(browser.focused())
        assert browser.js("return document.activeElement.matches(':focus-visible')")
    assert len(seen) == browser.js("return states[0].nodes.length + states[0].frames.length")
    assert seen[-1] == "Y: output (2, 5, 16) float32"
    assert browser.classes("self") == {"node-Y"}
    browser.press("\ue011")  # Home
    assert browser.classes("self") == {"node-X"}
    browser.press("\ue00c")  # Escape
    assert browser.classes("self") == browser.classes("from") == set()


def test_everything_to_act_on_has_a_name_and_a_role(browser: Browser) -> None:
    for name in ("layer", "tape"):
        browser.open(name)
        acting = browser.acting(at_least=16)
        assert all(node.get("name", {}).get("value", "").strip() for node in acting)
        count = "return document.querySelectorAll(arguments[0]).length"
        known = "[role=button], button, input, #panel"
        assert browser.js(count, "[tabindex], button, input") == browser.js(count, known)
    assert browser.js("return document.getElementById('panel').getAttribute('aria-live')") == "polite"
    assert browser.js("return document.documentElement.lang") == "en"


def test_names_are_shown_as_they_are_called(browser: Browser) -> None:
    browser.open("hostile")
    browser.js("prepare(now).items[0].element.focus()")
    assert '</script><img src=x onerror="window' in browser.panel()
    assert "😀" in browser.panel() or "…" in browser.panel()
    assert browser.js("return document.images.length") == 0


LUMINANCE = """
const parts = (c) => c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
  .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
const bright = (c) => parts(c).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => { const c = getComputedStyle(e).backgroundColor;
  return c === "rgba(0, 0, 0, 0)" && e.parentElement ? behind(e.parentElement) : c; };
const told = [...document.querySelectorAll("h1, button:enabled, label, output, #panel *")];
return told.filter((e) => e.innerText)
  .map((e) => { const [a, b] = [getComputedStyle(e).color, behind(e)].map(bright).sort().reverse();
    return (a + 0.05) / (b + 0.05); });
"""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_can_be_read_and_nothing_covers_anything(
    browser: Browser, scheme: str, size: tuple[int, int]
) -> None:
    browser.open("layer", scheme, size)
    browser.js("take(3)")
    browser.js("prepare(now).elements.get('node-softmax').focus()")
    assert min(browser.js(LUMINANCE)) >= 4.5
    dark = browser.js("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    assert dark == (scheme == "dark")
    boxes = browser.js("""
        const parts = ["h1", "header div", "#graph", "#panel", "#back", "#step", "#on", "#count"];
        return parts.map((name) => {
          const box = document.querySelector(name).getBoundingClientRect();
          return [box.left, box.top, box.right, box.bottom]; })""")
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 0
        assert top >= 0
        assert right <= size[0]
        assert bottom <= size[1]
        for other in boxes[:i]:
            assert left >= other[2] or right <= other[0] or top >= other[3] or bottom <= other[1]
    small = browser.js(
        """const texts = [...arguments[0].querySelectorAll('text')];
        return Math.min(...texts.map((text) => text.getBoundingClientRect().height))""",
        browser.shown(),
    )
    assert small >= 9


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_fixed_theme_follows_nobody(browser: Browser, theme: str) -> None:
    browser.add(theme, viz.draw(mt.ones(2, requires_grad=True) * 2, theme=theme))
    other = {"light": "dark", "dark": "light"}[theme]
    browser.open(theme, scheme=other)
    paper = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[theme]
    assert browser.js("return getComputedStyle(document.body).backgroundColor") == paper
    assert (
        browser.js("return getComputedStyle(arguments[0].querySelector('polygon')).fill", browser.shown())
        == paper
    )


def test_motion_is_only_for_those_who_have_not_declined_it(browser: Browser) -> None:
    duration = "return getComputedStyle(document.querySelector('.picture .node')).transitionDuration"
    browser.open("layer", motion="no-preference")
    assert browser.js(duration) == "0.12s"
    browser.open("layer", motion="reduce")
    assert browser.js(duration) == "0s"


def test_a_node_answers_to_the_mouse_everywhere_between_its_cells(browser: Browser) -> None:
    browser.open("layer")
    id = "node-W_Q+b_Q"
    box = browser.js("return arguments[0].getBoundingClientRect().toJSON()", browser.js(
        """const found = document.querySelector(`.picture:not([hidden]) [id$="-${arguments[0]}"]`);
        found.scrollIntoView({block: 'center'});
        return found""", id))  # fmt: skip
    steps = [(i / 40, j / 12) for i in range(1, 40) for j in range(1, 12)]
    places = [(box["x"] + i * box["width"], box["y"] + j * box["height"]) for i, j in steps]
    assert {browser.hit(x, y) for x, y in places} == {id}
