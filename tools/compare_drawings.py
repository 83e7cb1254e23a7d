"""One attention layer (mask, dropout, biases, two heads) drawn by torchviz, torchview and by us, in numbers.

    pip install torch torchviz torchview && python tools/compare_drawings.py

Prints the table of examples/gallery/README.md. What is not installed is left out.
"""

from __future__ import annotations

import argparse
import html
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.ending import Parser, run  # noqa: E402

# isort: split
import microtensor as mt  # noqa: E402
from microtensor import viz  # noqa: E402
from microtensor.viz.render import render  # noqa: E402
from models import MultiHeadAttention, causal_mask  # noqa: E402

A4 = (7.5, 10.2)  # inches that a printer uses
SHARE = re.compile(r"(^| )[0-9.,]+$")  # the norm on an arrow, alone or behind a shape
SHAPE = re.compile(r"\(\d+(, \d+)*,?\)|×")


def layer_of_torch(torch: Any) -> Any:
    """The same layer in PyTorch, line by line; its mask is ready, as ours is."""

    class Attention(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (torch.nn.Linear(16, 16) for _ in range(4))
            self.register_buffer("blocked", torch.ones(5, 5).triu(1).bool())

        def forward(self, x: Any) -> Any:
            q, k, v = (
                f(x).reshape(2, 5, 2, 8).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
            )
            scores = (q @ k.transpose(-2, -1) / 8**0.5).masked_fill(self.blocked, -torch.inf)
            weights = torch.nn.functional.dropout(scores.softmax(-1), 0.1)
            return self.out_proj((weights @ v).transpose(1, 2).reshape(2, 5, 16))

    return Attention()


def torchviz() -> str:
    """torchviz, with the names of parameters that it has to be given."""
    torch, tool = importlib.import_module("torch"), importlib.import_module("torchviz")
    layer, x = layer_of_torch(torch), torch.randn(2, 5, 16, requires_grad=True)
    dot = str(tool.make_dot(layer(x), params={**dict(layer.named_parameters()), "x": x}).source)
    return dot.replace('label="\n', 'label=" \n')  # an empty line, of what has no name, makes GLib complain


def torchview() -> str:
    """torchview, every module opened."""
    torch, tool = importlib.import_module("torch"), importlib.import_module("torchview")
    layer, x = layer_of_torch(torch), torch.randn(2, 5, 16)
    return str(tool.draw_graph(layer, input_data=x, depth=9, expand_nested=True).visual_graph.source)


def ours(level: str = "equations") -> str:
    """microtensor, with the norms of gradients."""
    mt.manual_seed(0)
    x = mt.randn(2, 5, 16, requires_grad=True)
    layer = MultiHeadAttention(16, 2, dropout=0.1)
    return viz.draw(layer, x, mask=causal_mask(5), grads=mt.randn(x.shape), level=level).dot


def measured(dot: str) -> Iterator[str]:
    """The columns: nodes, of 8 parameters those named, shapes, norms, equations, inches, points of text."""
    dot = re.sub(r'\bsize="[^"]*"', "", dot)  # it would shrink the picture before it is measured
    dot = re.sub(r'\bfontname=("[^"]*"|\w+)', 'fontname="Helvetica"', dot)  # whatever fonts are here
    layout = json.loads(render(dot, "json"))
    nodes = [o for o in layout["objects"][layout["_subgraph_cnt"] :] if o.get("style") != "invis"]
    edges = layout.get("edges", [])
    said = [html.unescape(re.sub(r"<[^>]*>", "", item.get("label", ""))) for item in (*nodes, *edges)]
    text = "\n".join(said)
    code = [f"{p}.{kind}" for p in ("q_proj", "k_proj", "v_proj", "out_proj") for kind in ("weight", "bias")]
    signs = [f"{kind}{lane}" for lane in "QKVO" for kind in "Wb"]
    wide, high = (float(part) / 72 for part in layout["bb"].split(",")[2:])
    scale = min(1.0, max(min(a / wide, b / high) for a, b in (A4, A4[::-1])))
    yield f"{len(nodes)}"
    yield f"{max(sum(name in text for name in names) for names in (code, signs))} of 8"
    yield f"{sum(bool(SHAPE.search(label)) for label in said)}"
    yield f"{text.count('‖∂‖') + sum(SHARE.search(label) is not None for label in said[len(nodes) :])}"
    yield f"{sum(' = ' in label for label in said)}"
    yield f"{wide:.1f} × {high:.1f}"
    yield f"{min(sizes(layout)) * scale:.1f}"


def sizes(layout: dict[str, Any]) -> list[float]:
    """Of every text that is drawn, but for super- and subscripts, in points."""
    found, size, script = [], 14.0, False
    for item in (layout, *layout["objects"], *layout.get("edges", [])):
        for step in item.get("_ldraw_", []):
            if step["op"] == "F":
                size, script = step["size"], False
            elif step["op"] == "t":
                script = bool(step["fontchar"] & 24)
            elif step["op"] == "T" and not script and step["text"].strip():
                found.append(size)
    return found


def main() -> int:
    """Print the table."""
    Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    tools: dict[str, Callable[[], str]] = {f.__name__: f for f in (torchviz, torchview, ours)}
    tools["ours, op by op"] = lambda: ours("ops")
    print("| | nodes | parameters named | labels with a shape | norms of gradients | equations | inches | "
          "smallest text on A4, pt |")  # fmt: skip
    print("|---" * 8 + "|")
    for name, tool in tools.items():
        try:
            print(f"| {name} | {' | '.join(measured(tool()))} |")
        except ModuleNotFoundError as missing:
            print(f"compare_drawings: {missing.name} is not installed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
