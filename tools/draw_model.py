"""Draw any model: what a function of yours returns, as the graph of its own tape.

    python tools/draw_model.py examples/gallery/pictures.py:gpt -o model.svg --depth 2
    python tools/draw_model.py examples.gallery.pictures:formula -o formula.svg formula.html

The factory takes nothing and returns a tensor, which is drawn with the names of the factory's variables, or a
module with the inputs to run it on: (model, x, y …). A file that is there is replaced.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import microtensor as mt  # noqa: E402
from microtensor import nn, viz  # noqa: E402


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """What is to be drawn, and how."""
    parser = argparse.ArgumentParser(description="Draw what a factory makes, from its own tape.")
    add = parser.add_argument
    add("factory", help="module:function, or file.py:function")
    add(
        "-o",
        "--output",
        nargs="+",
        action="extend",
        type=Path,
        help="files: .svg .html .png .pdf .dot .json; without it model.svg; what is there is replaced",
    )
    add("--level", choices=("equations", "ops", "heads", "tape"), default="equations")
    add("--depth", type=int, help="modules deeper than that are single nodes")
    add("--direction", choices=("TB", "BT", "LR"), default="TB")
    add("--names", choices=("math", "code"), default="math")
    add("--grads", action="store_true", help="norms of gradients, from a result that is one number")
    add("--values", action="store_true", help="scores and weights as coloured cells")
    add("--cost", action="store_true", help="operations and bytes of each node")
    add("--max-nodes", type=int, default=300, help="above it only .dot is written")
    return parser.parse_args(argv)


def load(name: str) -> Callable[[], Any]:
    """The function that a name like module:function or file.py:function means.

    Raises: ValueError if there is none.
    """
    place, _, function = name.rpartition(":")
    if not place:
        raise ValueError(f"{name!r} names no function; write module:function, or file.py:function")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        if spec is None or spec.loader is None or not Path(place).exists():
            raise ValueError(f"there is no file {place}; name one that exists")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    found = getattr(module, function, None)
    if not callable(found):
        raise ValueError(f"{place} has no function {function!r}; name one that takes nothing")
    return found  # type: ignore[no-any-return]


def run(factory: Callable[[], Any]) -> tuple[tuple[Any, ...], dict[str, mt.Tensor]]:
    """What a factory returns, and, for a tensor, the tensors among its variables."""
    variables: dict[str, Any] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is getattr(factory, "__code__", None):
            variables.update(frame.f_locals)

    before = sys.getprofile()
    sys.setprofile(look)  # the one way to see what a function that has returned called its tensors
    try:
        made = factory()
    finally:
        sys.setprofile(before)
    if not isinstance(made, mt.Tensor):
        return made if isinstance(made, tuple) else (made,), {}
    modules = [(name, each) for name, each in variables.items() if isinstance(each, nn.Module)]
    variables |= {f"{name}.{path}": p for name, module in modules for path, p in module.named_parameters()}
    return (made,), {n: t for n, t in variables.items() if isinstance(t, mt.Tensor)}


def main(argv: list[str] | None = None) -> int:
    """Make, draw, save, and say where."""
    chosen = arguments(argv)
    try:
        what, variables = run(load(chosen.factory))
        options = {k: v for k, v in vars(chosen).items() if k not in ("factory", "output")}
        options |= {"names": variables} if variables and chosen.names == "math" else {}
        drawing = viz.draw(*what, **options)
        for path in chosen.output or [Path("model.svg")]:
            replaced = ", in place of the one that was there" if path.exists() else ""
            print(f"saved {drawing.save(path)}{replaced}")
    except (ValueError, TypeError, RuntimeError, OSError, ImportError) as error:
        print(f"draw_model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
