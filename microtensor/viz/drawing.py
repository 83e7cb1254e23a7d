"""`draw`: a tensor or a module → a `Drawing`, which writes itself as DOT, SVG, PNG, PDF or JSON.

A module is run once, with hooks that note the module paths; drawing reads the tape and changes nothing: no
`.grad`, no random state, nothing freed.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from microtensor import engine
from microtensor.nn.module import Module
from microtensor.viz import axes, dot, flow, names, page, render, style, svg, trace
from microtensor.viz.findings import findings
from microtensor.viz.layout import in_order, struck, turned, variants
from microtensor.viz.page.folding import Folds
from microtensor.viz.paint import Options, Painter
from microtensor.viz.picture import Picture
from microtensor.viz.record import Recorder, current
from microtensor.viz.running import by_definition, run, variables

if TYPE_CHECKING:
    import graphviz

__all__ = ["Drawing", "draw", "to_dot"]

CHOICES: dict[str, tuple[Any, ...]] = {
    "level": ("equations", "ops", "heads", "tape"),
    "direction": ("TB", "BT", "LR"),
    "shapes": ("symbolic", "numeric", "both", None),
    "theme": ("auto", "light", "dark"),
    **dict.fromkeys(("legend", "values", "cost"), (True, False)),
}

OPTIONS = ", ".join([*CHOICES, "names", "grads", "depth", "max_nodes"])
MOST_HEADS = 4  # at level heads


class Made(NamedTuple):
    """What a drawing consists of."""

    texts: list[str]
    about: list[str]
    findings: list[str]


@dataclass(eq=False, repr=False)
class Drawing:
    """A drawing: its DOT text, and what Graphviz makes of it. Shown as SVG in a notebook.

    data: what its page says, as plain values: nodes, arrows, frames, and the steps of the backward.

    Raises: when asked for a file: ValueError for its suffix or above max_nodes, RuntimeError without
    Graphviz.
    Source: ours, drawn by Graphviz.
    """

    make: Callable[[], Made]
    _: KW_ONLY
    theme: str
    boxes: int
    max_nodes: int
    level: str
    data: dict[str, Any] | None = None
    states: list[Drawing] = field(default_factory=list)  # of its page: with frames folded

    @functools.cached_property
    def _made(self) -> Made:
        """The texts: of a drawing too large to be laid out only when they are asked for."""
        return self.make()

    @property
    def dot(self) -> str:
        """The drawing as DOT text.

        Source: ours; Graphviz's DOT language.
        """
        return self._made.texts[0]

    @property
    def about(self) -> list[str]:
        """Its equations, as plain text.

        Source: ours; the equations are the lecture's.
        """
        return self._made.about

    @property
    def findings(self) -> list[str]:
        """What is worth a look, found without being asked: a zero gradient, a dead row, the first NaN.

        Source: ours.
        """
        return self._made.findings

    def __repr__(self) -> str:
        return f"<Drawing of {self.boxes} nodes, level {self.level}>"

    @property
    def source(self) -> graphviz.Source:
        """A `graphviz.Source` of the DOT text.

        Raises: ModuleNotFoundError without the package graphviz.
        Source: the graphviz package's Source.
        """
        import graphviz

        return graphviz.Source(self.dot)

    @functools.cached_property
    def json(self) -> dict[str, Any]:
        """The layout: what Graphviz placed where, as its JSON output says it.

        Raises: ValueError above max_nodes; RuntimeError without Graphviz, or if it mirrors heads in each way
        to write them.
        Source: Graphviz's output format json.
        """
        return self._laid_out[1]

    @functools.cached_property
    def _laid_out(self) -> tuple[str, dict[str, Any]]:
        """The first text that comes out in order, its titles where no arrow runs, and its layout."""
        texts = self._made.texts
        for text in texts:
            layout = json.loads(self._render("json", text))
            if len(texts) > 1 and not in_order(layout):
                continue
            tried = [(struck(layout), text, layout)]
            while (hit := tried[-1][0]) and len(tried) < 8:
                text = turned(text, hit, in_two=len(tried) > 3)
                layout = json.loads(self._render("json", text))
                tried.append((struck(layout), text, layout))
            return min(tried, key=lambda made: len(made[0]))[1:]
        raise RuntimeError(f"draw: Graphviz mirrors heads in each of {len(texts)} ways to write them; "
                           f"choose another direction, or level='equations'")  # fmt: skip

    @property
    def rendered(self) -> str:
        """The text that pictures are made of: `dot`, or where that is better laid out, another way of it.

        Raises: as `json`, where it looks for another way.
        Source: ours.
        """
        return self._laid_out[0] if "subgraph" in self.dot else self.dot

    def save(self, path: str | Path) -> Path:
        """Write the drawing to a file; its suffix says how: .dot .svg .png .pdf .json, .html to explore it.

        Returns the path.
        Warns: of a .png or .pdf with signs that no font here has, where resvg-py is installed.
        Raises: ValueError for another suffix or above max_nodes; RuntimeError without Graphviz (then the .dot
        is written); OSError if it cannot be written.
        Source: ours; pictures are Graphviz's.
        """
        from microtensor.train.files import write  # only here: drawing alone needs nothing of training

        path = Path(path)
        kind = path.suffix[1:].lower()
        made: dict[str, Callable[[], str]] = {"dot": lambda: self.dot, "html": lambda: page.fill(self)}
        made["svg"] = lambda: self.svg(standalone=True)
        if kind not in (*render.FORMATS, *made):
            raise ValueError(f"Drawing.save: cannot write {path.name!r}; end the name in "
                             f".dot, .{', .'.join(render.FORMATS)}, .html")  # fmt: skip
        try:
            write("Drawing.save", path, made[kind]().encode() if kind in made else self._render(kind))
        except render.NoGraphviz:
            saved = self.save(_unused(path.with_suffix(".dot")))
            raise render.NoGraphviz(f"draw: no Graphviz found, saved {saved}; {render.CURE}") from None
        if kind in ("png", "pdf"):  # where the letters are drawn here
            drawn = re.sub(r'tooltip="[^"]*"', "", self.rendered, flags=re.IGNORECASE)
            render.warn_of_missing("Drawing.save", path, drawn)
        return path

    def svg(self, *, standalone: bool = False) -> str:
        """The drawing as SVG with theme, title and description; standalone with an XML declaration.

        Raises: as `json`.
        Source: ours, drawn by Graphviz.
        """
        made, layout = self._render("svg").decode(), self.json
        text = svg.finish(made, layout, dot=self.dot, theme=self.theme, about=self.about)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + text if standalone else text

    def _repr_svg_(self) -> str | None:
        """For notebooks; None if nothing can render it, so that they show the repr."""
        try:
            return self.svg()
        except (render.NoGraphviz, ValueError):
            return None

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """For notebooks: SVG where it can be rendered, and text, of which they choose."""
        made = {"image/svg+xml": self._repr_svg_(), "text/plain": repr(self)}
        return {k: t for k, t in made.items() if t and k in (include or made) and k not in (exclude or ())}

    def _render(self, kind: str, text: str = "") -> bytes:
        if self.boxes > self.max_nodes:
            raise ValueError(
                f"Drawing: {self.boxes} nodes are more than max_nodes={self.max_nodes}, and layout would "
                f"take long; use level='equations', draw the module that computes it with depth=1, or a part "
                f"of it, list it by mt.tape(y), raise max_nodes, or save the .dot"
            )
        return render.render(text or self.rendered, kind)


def _unused(path: Path) -> Path:
    """The path, or with a number if it is taken: a way out must not overwrite anything."""
    others = (path.with_stem(f"{path.stem}-{i}") for i in itertools.count(2))
    return next(p for p in itertools.chain([path], others) if not p.exists())


def draw(
    y: Any,
    *inputs: Any,
    level: str = "equations",
    direction: str = "TB",
    shapes: str | None = "symbolic",
    names: str | Mapping[Any, Any] = "math",
    theme: str = "auto",
    legend: bool = True,
    grads: Any = False,
    values: bool = False,
    cost: bool = False,
    depth: int | None = None,
    max_nodes: int = 300,
    **arguments: Any,
) -> Drawing:
    """Draw the graph behind a tensor, or behind module(*inputs, **arguments), which is run once for it.

    level: "equations" (a node is a line of the paper), "ops" (a node is a tape entry), "heads" (the lines of
        each head, from the module's forward_per_head) or "tape" (forward, what is kept alive, backward).
    grads: norms of gradients, and zeros; from the gradient of the result, "random", or True, which is 1.
    depth: modules deeper than that are single nodes. Layers of a list that are alike are drawn once, × N.
    values: cells for scores and attention weights. cost: operations and bytes of each node.
    direction: "TB", "BT" or "LR". shapes: "symbolic" (B×h×n×d_k), "numeric", "both" or None.
    names: "math" (W^Q), "code" (q_proj.weight), or a dict name → tensor on top of "math" and variables.
    theme: "auto" (an SVG follows the reader's setting), "light" or "dark". legend: with one?
    max_nodes: above it only the DOT text is to be had, since layout would take minutes.

    Raises: TypeError, ValueError for unknown options; RuntimeError if y was not recorded.
    Source: ours; the equations are the lecture's.

    >>> import microtensor as mt
    >>> from microtensor import viz
    >>> x = mt.ones(2, 3, requires_grad=True)
    >>> viz.draw((x * x).sum())
    <Drawing of 4 nodes, level equations>
    """
    check("draw", {"level": level, "direction": direction, "shapes": shapes, "theme": theme, "legend": legend,
            "values": values, "cost": cost})  # fmt: skip
    further = ", ".join(arguments) or "further arguments" * bool(inputs)
    _check_together(y, level, direction, depth, further)
    if isinstance(y, Module):
        recorder, result = run(y, inputs, arguments, level=level, options=OPTIONS)
        what, called = type(y).__name__, {}
    else:
        recorder, result, what, called = current() or Recorder(), y, "graph", variables()
    options = Options(level, values, cost, depth, shapes, names, direction, max_nodes)
    least, named = len(trace.entries_of(result)) + 2, (_pairs(names), called)
    made = functools.partial(_pictures, result, recorder, options, what, flow.seed(result, grads), named)
    write = functools.partial(_write, level=level, direction=direction, theme=theme, legend=legend)
    drawing = functools.partial(Drawing, theme=theme, max_nodes=max_nodes, level=level)
    if least > max_nodes and not recorder.spans:  # the ops, a leaf and the result, which nothing folds
        return drawing(lambda: write(next(made()[1]())), boxes=least)
    count, paint = made()
    if count > max_nodes:  # nobody may ever ask for the text
        return drawing(lambda: write(next(paint())), boxes=count)
    first, *others = (drawing(functools.partial(write, p), boxes=len(p.order), data=p.data) for p in paint())
    first.states = others
    return first


def _write(picture: Picture, *, level: str, direction: str, theme: str, legend: bool) -> Made:
    """The picture as DOT, in one way or, at level heads, in several."""
    colours = style.DARK if theme == "dark" else style.LIGHT
    texts = [dot.write(picture, direction, colours, legend, way) for way in variants(level, direction)]
    return Made(texts, picture.equations, picture.findings)


def check(who: str, chosen: dict[str, Any], choices: Mapping[str, tuple[Any, ...]] = CHOICES) -> None:
    """Raises: ValueError for an option that is not among its choices."""
    for option, value in chosen.items():
        if value not in choices[option]:
            said = ", ".join(map(repr, choices[option]))
            raise ValueError(f"{who}: {option}={value!r} is not to be had; choose {option} among {said}")


def _check_together(y: Any, level: str, direction: str, depth: int | None, further: str) -> None:
    if depth is not None and (level != "equations" or type(depth) is not int or depth < 1):
        cure = "leave it out, or choose level='equations', which folds modules"
        cure = "choose a whole number of at least 1" if level == "equations" else cure
        raise ValueError(f"draw: depth={depth!r} at level {level!r}; {cure}")
    if level == "heads" and not isinstance(y, Module):
        raise ValueError(f"draw: level='heads' takes a module, which it runs head by head, not "
                         f"{type(y).__name__}; pass the layer and its inputs, or choose "
                         f"level='equations'")  # fmt: skip
    if further and not isinstance(y, Module):
        raise TypeError(f"draw: of a tensor it takes options only, not {further}; options are {OPTIONS}, "
                        f"and inputs go with a module")  # fmt: skip
    if (level, direction) == ("heads", "BT"):
        raise ValueError("draw: level='heads' in direction 'BT' is no picture to read: Graphviz mixes up "
                         "its columns; choose another direction, or level='equations'")  # fmt: skip


@by_definition()
def _pictures(
    y: Any, recorder: Recorder, options: Options, what: str, start: Any, named: tuple[Any, ...]
) -> tuple[int, Callable[[], Iterator[Picture]]]:
    """Fold, name: the rooms one after the other. How many nodes, and what paints them, and then every
    other state of its page.
    """
    graph = trace.trace(y, recorder, *named)
    axes.carry(graph, recorder, strict=options.shapes in ("symbolic", "both"))
    code, narrow = options.names == "code", options.direction == "LR"
    shapes = axes.Shapes(graph, options.shapes, code=code, narrow=narrow)
    folds = Folds(graph, shapes, options)
    flows = None if start is None else flow.flow(graph, folds.ways, y, start, folds.calls.note)
    folded = folds.ways[0]
    heads = max((g.span.within or 0 for g in folded.groups if g.span is not None), default=0)
    if heads > MOST_HEADS:
        raise ValueError(f"draw: {heads} heads side by side are too many to be read; choose "
                         f"level='equations', or build the layer with at most {MOST_HEADS}")  # fmt: skip
    shapes.sizes |= {"h": heads} if heads else {}
    if options.level == "tape":
        flow.refuse_freed(graph, "level='tape'")
    title = "attention" if "Attention" in what else what.lower()
    found = findings(graph, names.Names(graph, folded, shapes, by_line=options.level != "ops"), flows, y)

    def paint() -> Iterator[Picture]:
        for way, state in zip(folds.ways, folds.states, strict=False):
            yield Painter(graph, way, shapes, options, flows, found).picture(title, state)

    return len(folded.groups) + 1, paint


def _pairs(called: str | Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """(name, tensor) pairs of a dict that is either way round."""
    if isinstance(called, str) and called in ("math", "code"):
        return []
    if not isinstance(called, Mapping):
        wrong = ValueError if isinstance(called, str) else TypeError
        raise wrong(f"draw: names={called!r} is not to be had; choose 'math', 'code' or a dict name → tensor")
    pairs = [(v, k) if isinstance(k, engine.Tensor) else (k, v) for k, v in called.items()]
    for name, tensor in pairs:
        if not isinstance(tensor, engine.Tensor) or not isinstance(name, str):
            raise TypeError(f"draw: names maps {name!r} to {type(tensor).__name__}; give names and tensors")
    return [(name or "∅", tensor) for name, tensor in pairs]


def to_dot(y: Any, names: Mapping[Any, str] | None = None) -> str:
    """The tape behind y as plain DOT text: quoted labels, no styles, for other programs to read.

    names: tensor → label, or label → tensor.

    Raises: RuntimeError if y was not recorded.
    Source: ours; Graphviz's DOT language.

    >>> import microtensor as mt
    >>> from microtensor import viz
    >>> x = mt.tensor(2.0, requires_grad=True)
    >>> print(viz.to_dot(x * x, names={x: "x"}))
    digraph tape {
      t0 [label="x", shape=box];
      t1 [label="mul", shape=ellipse];
      t0 -> t1;
      t0 -> t1;
    }
    <BLANKLINE>
    """
    return dot.simple(trace.trace(y, current() or Recorder(), _pairs(names or {})))
