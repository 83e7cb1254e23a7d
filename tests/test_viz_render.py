"""From DOT to files: what Graphviz makes of it, what we make of its SVG, and what is said where it is
missing.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shlex
import struct
import subprocess
import sys
import threading
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microtensor as mt
from microtensor import viz
from microtensor.viz import render
from models import MultiHeadAttention, causal_mask

ROOT = Path(__file__).parent.parent
FONTS = ROOT / "microtensor" / "viz" / "fonts"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawing() -> viz.Drawing:
    return viz.draw(
        MultiHeadAttention(16, 2, dropout=0.1), mt.randn(2, 5, 16, requires_grad=True), mask=causal_mask(5)
    )


def run(program: str, **env: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True
    ).stdout


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "start"),
    [("dot", b"digraph"), ("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("json", b"{")],
)
def test_save_writes_what_the_suffix_says(
    drawing: viz.Drawing, tmp_path: Path, suffix: str, start: bytes
) -> None:
    path = drawing.save(tmp_path / f"x.{suffix}")
    assert path.read_bytes().startswith(start)


def test_a_pdf_is_as_large_as_the_picture_without_a_printers_margin(
    drawing: viz.Drawing, tmp_path: Path
) -> None:
    svg = ET.fromstring(drawing.save(tmp_path / "x.svg").read_bytes())
    box = re.search(rb"/MediaBox \[([^]]*)\]", drawing.save(tmp_path / "x.pdf").read_bytes())
    assert box is not None
    size = [float(n) for n in box[1].split()[2:]]
    wide, high = (float(n) for n in svg.attrib["viewBox"].split()[2:])
    assert abs(size[0] - wide) <= 2
    assert abs(size[1] - high) <= 2


def test_an_unknown_suffix_is_refused_with_those_that_exist(drawing: viz.Drawing, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"cannot write 'x.bmp'; end the name in .dot, .svg, .png, .pdf, .json"
    ):
        drawing.save(tmp_path / "x.bmp")


def test_source_is_a_graphviz_source(drawing: viz.Drawing) -> None:
    assert drawing.source.source.strip() == drawing.dot.strip()


def test_without_graphviz_the_dot_is_saved_and_the_cure_is_named(
    drawing: viz.Drawing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "_by_program", lambda text, kind: None)
    monkeypatch.setattr(render, "_by_library", lambda text, kind: None)
    with pytest.raises(render.NoGraphviz, match=r'no Graphviz found, saved .*x.dot; pip install "pygraphviz'):
        drawing.save(tmp_path / "x.png")
    assert (tmp_path / "x.dot").read_text(encoding="utf-8") == drawing.dot
    assert drawing._repr_svg_() is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.dot"]
    (tmp_path / "x.dot").write_text("mine")
    with pytest.raises(render.NoGraphviz, match=r"saved .*x-2.dot"):
        drawing.save(tmp_path / "x.png")
    assert (tmp_path / "x.dot").read_text() == "mine"


def test_the_program_dot_comes_first(
    tmp_path: Path, drawing: viz.Drawing, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("graphviz")
    program = tmp_path / "dot"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stdin.read()\nprint('made by dot', sys.argv[1:])\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert b"made by dot" in render.render(drawing.dot, "svg")
    assert b"-Tsvg" in render.render(drawing.dot, "svg")


def test_the_library_alone_can_render(drawing: viz.Drawing, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygraphviz")
    monkeypatch.setattr(render, "_by_program", lambda text, kind: None)
    assert render.render(drawing.dot, "png").startswith(b"\x89PNG")


def test_importing_and_drawing_load_no_graphviz() -> None:
    program = """
import sys
import microtensor as mt
assert "microtensor.viz" not in sys.modules
from microtensor import viz
x = mt.randn(3, requires_grad=True)
viz.draw(x * x).dot
print([m for m in ("graphviz", "pygraphviz", "models") if m in sys.modules])
"""
    assert run(program).strip() == "[]"


FIRST_PICTURE = """
import sys
import microtensor as mt
from microtensor import nn, viz
from models import MultiHeadAttention, causal_mask
mt.manual_seed(0)
x, g = mt.randn(2, 5, 16, requires_grad=True), mt.randn(2, 5, 16)
layer = MultiHeadAttention(16, 2, dropout=0.1)
def pictures():
    for level in ("equations", "ops", "heads", "tape"):
        more = {"need_weights": True} if level == "tape" else {}
        yield viz.draw(layer, x, mask=causal_mask(5), grads=g, level=level, values=True, **more)
    yield viz.draw(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16)), x, grads=g)
def told():
    mt.manual_seed(1)
    return [(made.dot, made.data) for made in pictures()]
first = told()
"""


def test_a_first_picture_of_an_attention_layer_loads_no_kernel() -> None:
    assert run(FIRST_PICTURE + "print([m for m in ('numba', 'llvmlite') if m in sys.modules])") == "[]\n"


def test_a_picture_is_the_same_whether_kernels_are_loaded_or_not() -> None:
    later = "layer(x).sum().backward(); print('numba' in sys.modules, told() == first)"
    assert run(FIRST_PICTURE + later) == "True True\n"


def test_threads_may_draw_one_layer_at_the_same_time() -> None:
    layer, x = MultiHeadAttention(16, 2), mt.randn(2, 5, 16, requires_grad=True)
    want, got = viz.draw(layer, x).svg(), list[str]()
    threads = [threading.Thread(target=lambda: got.append(viz.draw(layer, x).svg())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [want] * 8


# --- fonts ------------------------------------------------------------------------------------------------


def png(letter: str, conf: Path) -> bytes:
    program = f"""
import sys
import microtensor.viz.render as r
dot = 'digraph {{ n [label=<<I>{letter}</I>>, fontname="Helvetica,Arial"]; }}'
sys.stdout.buffer.write(r.render(dot, "png"))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FONTCONFIG_FILE": str(conf)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    return done.stdout


def test_letters_are_no_boxes_on_a_machine_without_fonts(tmp_path: Path) -> None:
    conf = tmp_path / "only_ours.conf"
    conf.write_text(f"<fontconfig><dir>{FONTS}</dir><cachedir>{tmp_path}</cachedir></fontconfig>")
    pictures = {png(letter, conf) for letter in "WK√"}
    assert len(pictures) == 3


def test_a_fontconfig_file_that_is_none_gives_way_to_ours(tmp_path: Path) -> None:
    assert len({png(letter, conf) for letter in "WK" for conf in (Path(os.devnull), tmp_path / "gone")}) == 2


def test_letters_are_no_boxes_where_the_users_configuration_has_no_fonts(tmp_path: Path) -> None:
    conf = tmp_path / "empty.conf"
    conf.write_text(f"<fontconfig><cachedir>{tmp_path}</cachedir></fontconfig>")
    assert len({png(letter, conf) for letter in "WK√"}) == 3


def test_a_layout_is_the_same_to_the_bit_without_the_systems_fonts(drawing: viz.Drawing) -> None:
    """Ours are a cut of the same ones, with the hints that round the widths of letters."""
    program = "import sys, microtensor.viz.render as r; {}; "
    program += "sys.stdout.write(r.render(sys.stdin.read(), 'svg').decode())"
    environment = {k: v for k, v in os.environ.items() if k != "FONTCONFIG_FILE"} | {"PYTHONPATH": str(ROOT)}
    made = {
        subprocess.run(
            [sys.executable, "-c", program.format(fonts)],
            env=environment | {"PYTHONIOENCODING": "utf-8"},
            input=drawing.dot,
            capture_output=True,
            check=True,
            encoding="utf-8",
        ).stdout
        for fonts in ("pass", "r.SYSTEM_FONTS = ()")
    }
    assert len(made) == 1


def test_a_picture_leaves_nothing_behind_and_says_nothing(tmp_path: Path) -> None:
    """Old fontconfigs write a file into every folder they look at, and complain about newer systems."""
    before = set((ROOT / "microtensor").rglob(".uuid"))
    program = "import microtensor.viz.render as r; r.render('digraph { a }', 'png')"
    environment = {k: v for k, v in os.environ.items() if k != "FONTCONFIG_FILE"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    assert list(tmp_path.iterdir()) == []
    assert set((ROOT / "microtensor").rglob(".uuid")) == before


def test_a_forked_child_leaves_the_fonts_to_its_parent() -> None:
    program = """
import os, sys
import microtensor.viz.render as r
r.render("digraph { a }", "svg")
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
assert os.path.exists(os.environ["FONTCONFIG_FILE"])
"""
    environment = {k: v for k, v in os.environ.items() if k != "FONTCONFIG_FILE"} | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_our_fonts_know_every_letter_that_drawings_use(drawing: viz.Drawing) -> None:
    if importlib.util.find_spec("fontTools") is None:
        pytest.skip("fontTools reads the fonts")
    from fontTools.ttLib import TTFont

    known = set(TTFont(FONTS / "DejaVuSans.ttf").getBestCmap())
    known &= set(TTFont(FONTS / "DejaVuSans-Oblique.ttf").getBestCmap())
    said = drawing.dot + "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "microtensor/viz").glob("*.py")
    )
    assert {c for c in said if ord(c) > 32} - {chr(c) for c in known} <= set(
        "▶╍"
    )  # in the upright font alone
    upright = set(TTFont(FONTS / "DejaVuSans.ttf").getBestCmap())
    assert {ord(c) for c in "▶╍━√∘ᵀ×→∅∖"} <= upright
    assert (FONTS / "LICENSE_DEJAVU.txt").exists()


# --- SVG --------------------------------------------------------------------------------------------------


def test_svg_is_well_formed_and_says_what_it_is(drawing: viz.Drawing) -> None:
    text = drawing.svg()
    root = ET.fromstring(text)
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text == "attention, level equations"  # type: ignore[union-attr]
    assert "S = Q Kᵀ / √d_k" in root.find(f"{SVG}desc").text  # type: ignore[union-attr, operator]
    assert "<!DOCTYPE" not in text
    assert not text.startswith("<?xml")
    assert drawing.svg(standalone=True).startswith("<?xml")
    assert drawing._repr_svg_() == text


def test_every_renderer_finds_the_size_of_an_svg_in_pixels(drawing: viz.Drawing) -> None:
    """Points are 4/3 pixels, or none at all: resvg-py by itself refuses them."""
    root = ET.fromstring(drawing.svg())
    box = [float(number) for number in root.get("viewBox", "").split()]
    size = [float(root.get(side, "")) for side in ("width", "height")]  # no unit
    assert size == pytest.approx([4 / 3 * side for side in box[2:]], abs=0.01)
    resvg = pytest.importorskip("resvg_py")
    png = bytes(resvg.svg_to_bytes(svg_string=drawing.svg()))
    assert struct.unpack(">II", png[16:24]) == pytest.approx(size, abs=1)


def test_svg_text_is_one_element_per_line_with_its_length(drawing: viz.Drawing) -> None:
    text = drawing.svg()
    assert "baseline-shift" not in text
    lines = {"".join(t.text or "" for t in line): line for line in ET.fromstring(text).iter(f"{SVG}text")}
    line = lines["Q = splith(X WQ + bQ)"]
    assert line.get("lengthAdjust") == "spacingAndGlyphs"
    assert 50 < float(line.get("textLength", 0)) < 200
    assert all(line.get("textLength") for line in lines.values())
    assert "M" in lines
    assert "d×d" not in "".join(k for k in lines if k.startswith("Q"))  # table cells stay apart


def test_svg_text_keeps_its_spaces_in_browsers_which_hand_no_such_wish_down() -> None:
    x = mt.randn(3, requires_grad=True)
    found = _texts(viz.draw((x * x).sum(), grads=True))
    lines = ["".join(run.text or "" for run in line) for line in found]
    kept = [line.get("{http://www.w3.org/XML/1998/namespace}space") for line in found]
    assert [said != " ".join(said.split()) for said in lines] == [wish == "preserve" for wish in kept]
    assert any(kept)


def _texts(of: viz.Drawing) -> list[ET.Element]:
    return list(ET.fromstring(of.svg()).iter(f"{SVG}text"))


def test_svg_scripts_are_small_and_the_next_run_takes_the_shift_back(drawing: viz.Drawing) -> None:
    for line in ET.fromstring(drawing.svg()).iter(f"{SVG}text"):
        shift = 0.0
        for run in line:
            shift += float(run.get("dy", 0))
            size = float(run.get("font-size", 0))
            if size in (11.0, 10.0, 9.0):
                assert abs(shift) < 0.02
            else:
                assert min(abs(shift - s * size / 0.72) for s in (0.22, -0.36)) < 0.02


def test_svg_follows_the_reader_inside_its_own_scope(drawing: viz.Drawing) -> None:
    text = drawing.svg()
    style = re.search("<style>(.*?)</style>", text).group(1)  # type: ignore[union-attr]
    scope = re.search('class="microtensor (mt-[0-9a-f]{8})"', text).group(1)  # type: ignore[union-attr]
    assert "@media screen and (prefers-color-scheme: dark)" in style
    rules = re.findall(
        r"[{}]?(\.[^{},]+)[{,]", style.replace("@media screen and (prefers-color-scheme: dark){", "")
    )
    assert len(rules) > 20
    assert all(rule.startswith(f".{scope} ") for rule in rules)


def test_svg_of_a_fixed_theme_follows_nobody() -> None:
    x = mt.randn(3, requires_grad=True)
    light, dark = (viz.draw(x * x, theme=theme).svg() for theme in ("light", "dark"))
    assert "prefers-color-scheme" not in light + dark
    assert "#14181d" in dark.lower()
    assert "#14181d" not in light.lower()


def test_two_drawings_on_a_page_share_no_id(drawing: viz.Drawing) -> None:
    def ids(of: viz.Drawing) -> list[str]:
        return [e.get("id", "") for e in ET.fromstring(of.svg()).iter() if e.get("id")]

    x = mt.randn(3, requires_grad=True)
    first, second = ids(drawing), ids(viz.draw(x * x))
    assert len(set(first)) == len(first)
    assert not set(first) & set(second)


# --- the tool ---------------------------------------------------------------------------------------------


def load_tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tool() -> Any:
    return load_tool("draw_attention")


def test_the_tool_draws_to_several_files_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"attention.{suffix}" for suffix in ("svg", "png", "dot", "json", "pdf")]
    options = ["--mask", "causal", "--dropout", "0.1", "--heads", "4", "--level", "ops", "--no-bias"]
    assert tool().main(["-o", *map(str, files[:3]), "-o", *map(str, files[3:]), *options]) == 0
    assert all(path.stat().st_size > 1000 for path in files)
    assert capsys.readouterr().out.split() == [word for path in files for word in ("saved", str(path))]
    assert "node-b_Q" not in files[2].read_text(encoding="utf-8")


def test_the_tool_draws_every_level_and_the_papers_figure(tmp_path: Path) -> None:
    def dot(*options: str) -> str:
        assert tool().main(["-o", str(tmp_path / "x.dot"), "--mask", "causal", *options]) == 0
        return (tmp_path / "x.dot").read_text(encoding="utf-8")

    assert dot("--level", "heads", "--grads").count("‖∂‖ ≡ 0") == 1
    assert 'id="vjp-softmax"' in dot("--level", "tape", "--values", "--cost")
    assert 'id="vjp-softmax"' not in dot("--level", "tape", "--fused")
    paper = dot("--paper", "--no-bias")
    assert "rankdir=BT" in paper
    assert "B×" not in paper
    assert "tape op" not in paper


def test_a_model_is_drawn_in_every_look_that_a_layer_has(tmp_path: Path) -> None:
    def dot(*options: str) -> str:
        what = [f"{ROOT}/examples/gallery/pictures.py:perceptron", "-o", str(tmp_path / "x.dot")]
        assert load_tool("draw_model").main([*what, *options]) == 0
        return (tmp_path / "x.dot").read_text(encoding="utf-8")

    usual = dot()
    assert "input or leaf" in usual
    assert "input or leaf" not in dot("--no-legend")
    assert ">(8, 1)</FONT>" not in dot("--shapes", "none")
    assert ">(8, 1)</FONT>" in dot("--shapes", "numeric")
    assert dot("--theme", "dark") != usual


def test_a_picture_of_decoding_in_a_format_that_it_has_not_is_refused_in_a_line(tmp_path: Path) -> None:
    command = [sys.executable, f"{ROOT}/examples/gallery/pictures.py", "heat_map", "-o", f"{tmp_path}/h.pdf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert done.stderr.startswith("pictures: ")


@pytest.mark.parametrize("name", ["draw_attention", "draw_model"])
def test_a_tool_says_where_it_writes_and_what_it_replaces(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    what = [f"{ROOT}/examples/gallery/pictures.py:formula"] if name == "draw_model" else []
    file = f"{name.removeprefix('draw_')}.svg"
    for behind in ("", ", in place of the one that was there"):
        assert load_tool(name).main(what) == 0
        assert capsys.readouterr().out == f"saved {file}{behind}\n"
    assert [path.name for path in tmp_path.iterdir()] == [file]
    with pytest.raises(SystemExit):
        load_tool(name).main(["--help"])
    assert f"without it {file}; what is there is replaced" in " ".join(capsys.readouterr().out.split())


def commands() -> list[list[str]]:
    """What docstrings of tools and examples and the pages tell to run of the drawing tools."""
    pages = [ROOT / "README.md", *(ROOT / "tools").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    shown = re.compile(r"^ *\S*python tools/(draw_\w+)\.py(.*)$", re.M)
    found = [
        m for page in [*pages, *(ROOT / "tools").glob("draw_*.py")] for m in shown.findall(page.read_text())
    ]
    return sorted([name, *shlex.split(rest)] for name, rest in set(found))


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_a_command_that_is_shown_runs(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("examples", "tools"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    assert len(commands()) > 5
    assert load_tool(command[0]).main(command[1:]) == 0
    assert [word for word in capsys.readouterr().out.split() if Path(word).is_file()]


def test_a_factorys_tensor_is_drawn_with_the_names_of_its_variables(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import microtensor as mt\nfrom microtensor import nn\n"
        "def made():\n    x, net = mt.ones(2, 3), nn.Linear(3, 1)\n    loss = net(x).sum()\n    return loss\n"
    )
    made: list[viz.Drawing] = []
    for options in ([], ["--names", "code"]):
        assert load_tool("draw_model").main([f"{file}:made", "-o", f"{tmp_path}/x.dot", *options]) == 0
        made.append((tmp_path / "x.dot").read_text(encoding="utf-8"))
    for drawn in made:
        assert "loss = Σ z_1" in drawn
        assert "z_1 = x net.weightᵀ + net.bias" in drawn


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--fused", "--fused at --level equations, which is drawn line by line; add --level tape"),
        ("--fused --level heads", "--fused at --level heads, which is drawn line by line; add --level tape"),
        ("--fused --level tape --values", "--values beside --fused, .*; leave one of them out"),
        ("--paper --direction LR", "--paper is --direction BT; leave --direction out, or --paper"),
        ("--paper --level heads", "--paper is --direction BT, in which .*; leave one of them out"),
        ("--paper --grads", "--grads beside --paper, whose .*; leave one of them out"),
        ("--paper --cost --values", "--values beside --paper, whose .*; leave one of them out"),
        ("--paper --cost", "--cost beside --paper, whose .*; leave one of them out"),
        ("--paper --shapes both", "--paper is --shapes none; leave --shapes out, or --paper"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool().main(["-o", str(tmp_path / "x.dot"), *options.split()])
    assert re.search(f"error: {said}$", capsys.readouterr().err, re.M)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("draw_attention", "--level lines", "argument --level: invalid choice: 'lines' .*; see --help"),
        ("draw_attention", "--hedas 2", "unrecognized arguments: --hedas 2; see --help"),
        ("draw_model", "", "the following arguments are required: factory; see --help"),
        ("draw_model", "x.py:y --depth 0", "argument --depth: '0' is no whole number .*; see --help"),
        ("draw_model", "x.py:y --level", "argument --level: expected one argument; see --help"),
    ],
)
def test_what_a_tool_cannot_read_is_told_in_a_line_that_names_help(
    name: str, options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        load_tool(name).main(options.split())
    assert re.fullmatch(rf"\S+: error: {said}\n", capsys.readouterr().err)


@pytest.mark.parametrize("option", ["length", "memory", "batch", "d-model", "heads"])
def test_a_size_that_no_memory_holds_is_refused_before_it_is_computed(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool().main(["-o", str(tmp_path / "x.dot"), f"--{option}", "100000000"]) == 1
    found = capsys.readouterr().err
    assert re.fullmatch(
        r"draw_attention: .* may take [\d,.]+ GB, and 4 are the most; choose smaller .*\n", found
    )
    assert f"--{option} 100000000" in found
    with pytest.raises(SystemExit, match="2"):
        tool().main([f"--{option}", "9" * 400])


def test_memory_that_runs_out_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate 149. GiB")

    monkeypatch.setattr(viz, "draw", full)
    assert tool().main(["-o", str(tmp_path / "x.dot")]) == 1
    assert capsys.readouterr().err == "draw_attention: Unable to allocate 149. GiB; choose smaller sizes\n"
    assert load_tool("draw_model").main([f"{ROOT}/examples/gallery/pictures.py:formula"]) == 1
    assert capsys.readouterr().err == "draw_model: Unable to allocate 149. GiB; let the factory make less\n"


MINE = """
import microtensor as mt
from microtensor import nn
from models import GPT, GPTConfig
def loss(): return mt.ones(3, requires_grad=True) * 2
def model(): return nn.Linear(3, 4), mt.ones(2, 3)
def alone(): return nn.Linear(3, 4)
def wants(x): return x
def empty(): return ()
def number(): return 3
def key(): return {}["weight"]
def zero():
    return 1 / 0
class Broken(nn.Module):
    def forward(self, x): return [][1]
def broken(): return Broken(), mt.ones(2)
def bare(): raise ValueError("no data")
def gpt(): return GPT(GPTConfig(5, 20, n_layer=1, n_head=2, n_embd=16)), mt.randint(0, 20, (2, 5))
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("mine.py:loss --grads", r"--grads needs .*, not \(3,\); let the factory return a loss, .*"),
        ("mine.py:model --grads", r"--grads needs .*, not \(2, 4\); let the factory return a loss, .*"),
        ("mine.py:alone", "Linear.forward: .* 'input'; let the factory return the module and its inputs"),
        ("mine.py:empty", r"the factory returned \(\); let it return a tensor, or a module and its inputs"),
        ("mine.py:number", "the factory returned 3; let it return a tensor, or a module and its inputs"),
        ("mine.py:key", r"mine.py:key raised KeyError: 'weight' \(mine.py, line 11\); mend it there"),
        ("mine.py:zero", r"mine.py:zero raised ZeroDivisionError: .* \(mine.py, line 13\); mend it there"),
        ("mine.py:broken", r"mine.py:broken raised IndexError: .* \(mine.py, line 15\); mend it there"),
        ("mine.py:bare", r"mine.py:bare raised ValueError: no data \(mine.py, line 17\); mend it there"),
        ("early.py:x", r"early.py:x raised KeyError: 1 \(early.py, line 1\); mend it there"),
        ("mine.py:wants", "mine.py:wants wants arguments .*; name a function that takes nothing"),
        ("mine.py:loss --level heads", "--level heads takes a module, .*, or choose --level equations"),
        ("mine.py:gpt --max-nodes 5 --level ops", ".* than --max-nodes 5, .*; use --level equations, .*"),
        (
            "mine.py:gpt --depth 2 --level ops",
            "--depth 2 at .*; leave it out, or choose --level equations, .*",
        ),
        ("nomod:x", "nomod: there is no module nomod; name one that is installed, or a file, .*"),
        ("os.nomod:x", "os.nomod: there is no module os.nomod; name one that is installed, or a file, .*"),
        ("needs.py:x", "needs.py: there is no module nomod; install it"),
        ("wrong.py:x", "wrong.py is no Python: .*; mend it"),
        ("..mine:x", "'..mine' is the name of no module; write module:function, or file.py:function"),
        ("mine", "'mine' names no function; write module:function, or file.py:function"),
    ],
)
def test_errors_of_a_command_advise_what_a_command_can(
    options: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("mine", MINE), ("needs", "import nomod"), ("wrong", "def f(:"), ("early", "{}[1]")):
        (tmp_path / f"{name}.py").write_text(text)
    assert load_tool("draw_model").main([*options.split(), "-o", "x.svg"]) == 1
    assert re.fullmatch(rf"draw_model: {said}\n", capsys.readouterr().err)
    assert not (tmp_path / "x.svg").exists()


@pytest.mark.parametrize("option", ["--max-nodes", "--depth"])
def test_a_number_that_is_no_size_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        load_tool("draw_model").main([f"{ROOT}/examples/gallery/pictures.py:formula", option, "-5"])
    assert f"{option}: '-5' is no whole number of at least 1" in capsys.readouterr().err
    assert tool().as_options("draw: above max_nodes=-5, raise max_nodes") == (
        "above --max-nodes -5, raise --max-nodes"
    )


def test_the_tool_explains_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool().main(["-o", str(tmp_path / "x.svg"), "--heads", "3"]) == 1
    assert "not divisible" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_leaves_the_one_that_was_there(tmp_path, monkeypatch):
    drawing = viz.draw(mt.ones(2, requires_grad=True) * 2.0)
    path = drawing.save(tmp_path / "x.dot")
    before = path.read_bytes()

    def full(descriptor, pieces):
        os.write(descriptor, b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("microtensor.train.files._fill", full)
    for save in (drawing.save, viz.attention(np.ones((1, 1, 2, 2)) / 2).save):
        path = path.with_suffix(".dot" if save == drawing.save else ".svg")
        with pytest.raises(OSError, match=r"\.save: '.*x\.(dot|svg)' could not be written \(No space left"):
            save(path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [before]
    cure = "give a name in a folder that exists, and where files can be written"
    with pytest.raises(OSError, match=f"could not be written .*; {cure}"):
        drawing.save(tmp_path / "none" / "x.dot")


@pytest.mark.parametrize("kind", ["png", "pdf"])
def test_letters_that_no_font_here_has_are_told_once_by_what_is_drawn_here(kind: str, tmp_path: Path) -> None:
    """They became boxes without a word."""
    pytest.importorskip("resvg_py")
    x = mt.ones(2, 3, requires_grad=True)
    path = tmp_path / f"x.{kind}"
    odd, plain = (viz.draw((x * x).sum(), names={name: x}) for name in ("a\U0010fff0", "été"))
    said = f"Drawing.save: no font here has \U0010fff0, which {path} shows as blanks or boxes; save .svg"
    with pytest.warns(UserWarning, match=re.escape(said)) as told:
        odd.save(path)
    assert [(w.filename, len(told)) for w in told] == [(__file__, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain.save(path)
        for other in ("svg", "dot", "json"):
            odd.save(tmp_path / f"x.{other}")


def test_without_resvg_nobody_knows_which_letters_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    x = mt.ones(2, requires_grad=True)
    assert viz.draw((x * x).sum(), names={"\U0010fff0": x}).save(tmp_path / "x.png").exists()


def test_every_letter_of_our_own_has_a_font(tmp_path: Path) -> None:
    """Symbols, signs and legends of each level, from the fonts that come with the package or the system's."""
    mt.manual_seed(0)
    layer, x = MultiHeadAttention(16, 2, dropout=0.1), mt.randn(2, 5, 16, requires_grad=True)
    for level in ("equations", "ops", "heads", "tape"):
        looks = {"level": level, "grads": mt.randn(2, 5, 16), "values": True, "cost": True}
        viz.draw(layer, x, mask=causal_mask(5), **looks).save(tmp_path / "x.png")
