"""`draw`: a tensor or a module → a `Drawing`, which writes itself as DOT, SVG, PNG, PDF or JSON.

A module is run once, with hooks that note the module paths; drawing reads the tape and changes nothing: no
`.grad`, no random state, nothing freed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microtensor import engine
from microtensor.nn.module import Module
from microtensor.random import default_generator
from microtensor.viz import axes, dot, flow, names, render, style, svg, trace
from microtensor.viz.findings import findings
from microtensor.viz.fold import fold
from microtensor.viz.layout import in_order, variants
from microtensor.viz.paint import Options, paint
from microtensor.viz.picture import Picture
from microtensor.viz.record import Recorder, Span, current, recording

if TYPE_CHECKING:
    import graphviz

__all__ = ["Drawing", "draw", "to_dot"]

CHOICES: dict[str, tuple[Any, ...]] = {
    "level": ("equations", "ops", "heads", "tape"),
    "direction": ("TB", "BT", "LR"),
    "shapes": ("symbolic", "numeric", "both", None),
    "theme": ("auto", "light", "dark"),
    "legend": (True, False),
    "values": (True, False),
    "cost": (True, False),
}

MOST_HEADS = 4  # at level heads
UNREADABLE = {("heads", "BT"), ("tape", "LR")}


class Drawing:
    """A drawing: its DOT text, and what Graphviz makes of it. Shown as SVG in a notebook.

    Raises: when asked for a file: ValueError for its suffix or above max_nodes, RuntimeError without
    Graphviz.
    Source: ours, drawn by Graphviz.
    """

    def __init__(
        self,
        texts: list[str],
        *,
        theme: str,
        boxes: int,
        max_nodes: int,
        level: str,
        about: list[str],
        findings: Sequence[str] = (),
    ) -> None:
        self.dot, self.texts = texts[0], texts  # several ways to write it, of which one is rendered
        self.theme, self.boxes, self.max_nodes, self.level, self.about = theme, boxes, max_nodes, level, about
        self.findings = list(findings)

    def __repr__(self) -> str:
        return f"<Drawing of {self.boxes} nodes, level {self.level}>"

    @property
    def source(self) -> graphviz.Source:
        """A `graphviz.Source` of the DOT text (needs the package graphviz)."""
        import graphviz

        return graphviz.Source(self.dot)

    @functools.cached_property
    def json(self) -> dict[str, Any]:
        """The layout: what Graphviz placed where, as its JSON output says it."""
        return self._laid_out[1]

    @functools.cached_property
    def _laid_out(self) -> tuple[str, dict[str, Any]]:
        """The first text that comes out in order, and its layout."""
        for text in self.texts:
            layout = json.loads(self._render("json", text))
            if len(self.texts) == 1 or in_order(layout):
                return text, layout
        raise RuntimeError(
            f"draw: Graphviz mirrors heads in each of {len(self.texts)} ways to write them; choose another "
            f"direction, or level='equations'"
        )

    @property
    def rendered(self) -> str:
        """The text that pictures are made of: `dot`, or at level heads the first that came out in order."""
        return self.dot if len(self.texts) == 1 else self._laid_out[0]

    def save(self, path: str | Path) -> Path:
        """Write the drawing to a file; its suffix says how: .dot .svg .png .pdf .json.

        Raises: ValueError for another suffix or above max_nodes; RuntimeError without Graphviz (then the
        .dot is written).
        """
        path = Path(path)
        kind = path.suffix[1:].lower()
        if kind == "dot":
            path.write_text(self.dot, encoding="utf-8")
            return path
        if kind not in render.FORMATS:
            raise ValueError(
                f"Drawing.save: cannot write {path.name!r}; end the name in "
                f".dot, .{', .'.join(render.FORMATS)}"
            )
        try:
            path.write_bytes(self.svg(standalone=True).encode() if kind == "svg" else self._render(kind))
        except render.NoGraphviz:
            saved = self.save(_unused(path.with_suffix(".dot")))
            raise render.NoGraphviz(f"draw: no Graphviz found, saved {saved}; {render.CURE}") from None
        return path

    def svg(self, *, standalone: bool = False) -> str:
        """The drawing as SVG with theme, title and description; standalone with an XML declaration."""
        made, layout = self._render("svg").decode(), self.json
        text = svg.finish(made, layout, dot=self.dot, theme=self.theme, about=self.about)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + text if standalone else text

    def _repr_svg_(self) -> str | None:
        """For notebooks; None if nothing can render it, so that they show the repr."""
        try:
            return self.svg()
        except (render.NoGraphviz, ValueError):
            return None

    def _render(self, kind: str, text: str = "") -> bytes:
        if self.boxes > self.max_nodes:
            cure = "use level='equations', which is coarser" if self.level == "ops" else "draw a part of it"
            raise ValueError(
                f"Drawing: {self.boxes} nodes are more than max_nodes={self.max_nodes}, and layout would "
                f"take long; {cure}, raise max_nodes, or save the .dot"
            )
        return render.render(text or self.rendered, kind)


def _unused(path: Path) -> Path:
    """The path, or with a number if it is taken: a way out must not overwrite anything."""
    tries = (path.with_stem(f"{path.stem}-{i}") for i in itertools.count(2))
    return path if not path.exists() else next(p for p in tries if not p.exists())


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
    max_nodes: int = 300,
    **arguments: Any,
) -> Drawing:
    """Draw the graph behind a tensor, or behind module(*inputs, **arguments), which is run once for it.

    level: "equations" (a node is a line of the paper), "ops" (a node is a tape entry), "heads" (the lines of
        each head, from the module's forward_per_head) or "tape" (forward, what is kept alive, backward).
    grads: True from a scalar, or the gradient of the result: norms of gradients, and zeros among them.
    values: cells for scores and attention weights. cost: operations and bytes of each node.
    direction: "TB", "BT" or "LR". shapes: "symbolic" (B×h×n×d_k), "numeric", "both" or None.
    names: "math" (W^Q), "code" (q_proj.weight), or a dict name → tensor on top of "math".
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
    chosen = {"level": level, "direction": direction, "shapes": shapes, "theme": theme, "legend": legend,
              "values": values, "cost": cost}  # fmt: skip
    for option, value in chosen.items():
        _check(option, value)
    _check_together(y, level, direction)
    if isinstance(y, Module):
        recorder, result = _run(y, inputs, arguments, level)
        what = type(y).__name__
    elif inputs or arguments:
        raise TypeError(
            f"draw: of a tensor it takes options only, not {', '.join(arguments) or 'further arguments'}; "
            f"options are {', '.join([*chosen, 'names', 'max_nodes'])}, and inputs go with a module"
        )
    else:
        recorder, result, what = current() or Recorder(), y, "graph"
    options = Options(level, values, cost)
    drawn = _picture(result, recorder, names, options, shapes, what, grads, narrow=direction == "LR")
    colours = style.DARK if theme == "dark" else style.LIGHT
    ways = variants(direction) if level == "heads" else [None]
    texts = [dot.write(drawn, direction=direction, theme=colours, legend=legend, variant=v) for v in ways]
    said: dict[str, Any] = {"level": level, "about": drawn.equations, "findings": drawn.findings}
    return Drawing(texts, theme=theme, boxes=len(drawn.order), max_nodes=max_nodes, **said)


def _check(option: str, value: Any) -> None:
    if value not in CHOICES[option]:
        said = ", ".join(map(repr, CHOICES[option]))
        raise ValueError(f"draw: {option}={value!r} is not to be had; choose {option} among {said}")


def _check_together(y: Any, level: str, direction: str) -> None:
    if level == "heads" and not isinstance(y, Module):
        raise ValueError(
            f"draw: level='heads' takes a module, which it runs head by head, not {type(y).__name__}; pass "
            f"the layer and its inputs, or choose level='equations'"
        )
    if (level, direction) in UNREADABLE:
        raise ValueError(
            f"draw: level={level!r} in direction {direction!r} is no picture to read: Graphviz mixes up its "
            f"columns; choose another direction, or level='equations'"
        )


def _picture(
    y: Any,
    recorder: Recorder,
    called: str | Mapping[Any, Any],
    options: Options,
    shapes: str | None,
    what: str,
    grads: Any,
    *,
    narrow: bool,
) -> Picture:
    """Trace, fold, name: the rooms one after the other."""
    by_line = options.level != "ops"
    graph = trace.trace(y, recorder, _pairs(called))
    axes.carry(graph)
    folded = fold(graph, by_line=by_line)
    heads = max((g.span.within or 0 for g in folded.groups if g.span is not None), default=0)
    if heads > MOST_HEADS:
        raise ValueError(
            f"draw: {heads} heads side by side are too many to be read; choose level='equations', or build "
            f"the layer with at most {MOST_HEADS}"
        )
    written = axes.Shapes(graph, shapes, code=called == "code", narrow=narrow)
    written.sizes |= {"h": heads} if heads else {}
    said = names.Names(graph, folded, written, by_line=by_line)
    title = "attention" if "Attention" in what else what.lower()
    if options.level == "tape":
        flow.refuse_freed(graph, "level='tape'")
    start = flow.seed(y, grads)
    flows = None if start is None else flow.flow(graph, folded, y, start)
    found = findings(graph, folded, said, flows, y)
    return paint(graph, folded, said, written, options, what=title, flow=flows, found=found)


def _pairs(called: str | Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """(name, tensor) pairs of a dict that is either way round."""
    if isinstance(called, str):
        if called not in ("math", "code"):
            raise ValueError(
                f"draw: names={called!r} is not to be had; choose 'math', 'code' or a dict name → tensor"
            )
        return []
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


# --- running a module ---------------------------------------------------------------------------------------


def _run(
    module: Module, inputs: tuple[Any, ...], arguments: dict[str, Any], level: str = "equations"
) -> tuple[Recorder, Any]:
    """One forward with a recorder that knows modules, parameters and inputs by their paths."""
    forward, name = _forward(module, level)
    try:
        bound = inspect.signature(getattr(module, name)).bind(*inputs, **arguments).arguments
    except TypeError as error:
        raise TypeError(
            f"draw: {type(module).__name__}.{name}: {error}; options of draw are "
            f"{', '.join([*CHOICES, 'names', 'max_nodes'])}"
        ) from None
    with recording(opens=level != "tape") as recorder, _paths_noted(module, recorder), _same_chance():
        recorder.parameters = {id(p): path for path, p in module.named_parameters()}
        recorder.inputs = {id(t): (name, t) for name, t in reversed(list(_tensors(bound)))}
        result = forward(*inputs, **arguments)
    if isinstance(result, tuple | list):
        result = result[0]
    return recorder, result


def _forward(module: Module, level: str) -> tuple[Callable[..., Any], str]:
    """What is run, and its name: at level heads the loop over heads, which a layer has beside its forward."""
    if level != "heads":
        return module, "forward"
    if not hasattr(module, "forward_per_head"):
        raise TypeError(
            f"draw: level='heads' runs forward_per_head, and {type(module).__name__} has none; draw an "
            f"attention layer, or choose level='equations'"
        )
    return module.forward_per_head, "forward_per_head"


def _tensors(bound: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in bound.items():
        for x in value if isinstance(value, tuple | list) else (value,):
            if isinstance(x, engine.Tensor):
                yield name, x


@contextlib.contextmanager
def _same_chance() -> Iterator[None]:
    """Dropout in the forward that is only drawn leaves the random numbers of the training as they were."""
    state = default_generator.get_state()
    try:
        yield
    finally:
        default_generator.set_state(state)


@contextlib.contextmanager
def _paths_noted(module: Module, recorder: Recorder) -> Iterator[None]:
    """Hooks on every module that open a span before its forward and close it behind."""
    handles = []
    for path, part in module.named_modules():
        before, behind = _hooks(path, recorder)
        handles += [part.register_forward_pre_hook(before), part.register_forward_hook(behind)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hooks(path: str, recorder: Recorder) -> tuple[Callable[..., None], Callable[..., None]]:
    opened: list[Span] = []

    def before(module: Module, args: tuple[Any, ...]) -> None:
        if current() is recorder:  # not another thread, which may be using the module meanwhile
            recorder.paths.append(path)
            opened.append(recorder.open("module", path))

    def behind(module: Module, args: tuple[Any, ...], output: Any) -> None:
        if current() is recorder:
            recorder.close(opened.pop())
            recorder.paths.pop()

    return before, behind
