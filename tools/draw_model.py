"""Draw any model: what a function of yours returns, as the graph of its own tape.

    python tools/draw_model.py examples/gallery/pictures.py:gpt -o model.svg --depth 2
    python tools/draw_model.py examples.gallery.pictures:formula -o formula.svg formula.html

The factory takes nothing and returns a tensor, which is drawn with the names of the factory's variables, or a
module with the inputs to run it on: (model, x, y …). A file that is there is replaced.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import ending  # noqa: E402

# isort: split
import microtensor as mt  # noqa: E402
from microtensor import nn, viz  # noqa: E402
from tools.draw_attention import add_looks, as_options, positive  # noqa: E402

# cures that a program has, and those that a command has
CURES = {
    r"; pass the gradient of it as grads=, .*": "; let the factory return a loss, such as its .sum()",
    r"; options of draw are .*": "; let the factory return the module and its inputs",
}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """What is to be drawn, and how."""
    parser = ending.Parser(description="Draw what a factory makes, from its own tape.")
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
    add("--depth", type=positive, help="modules deeper than that are single nodes")
    add("--direction", choices=("TB", "BT", "LR"), default="TB")
    add_looks(add, "symbolic")
    add("--grads", action="store_true", help="norms of gradients, from a result that is one number")
    add("--values", action="store_true", help="scores and weights as coloured cells")
    add("--cost", action="store_true", help="operations and bytes of each node")
    add("--max-nodes", type=positive, default=300, help="above it only .dot is written")
    return parser.parse_args(argv)


def load(name: str) -> Callable[[], Any]:
    """The function that a name like module:function or file.py:function means.

    Raises: ValueError if there is none that takes nothing.
    """
    place, _, function = name.rpartition(":")
    if not place:
        raise ValueError(f"{name!r} names no function; write module:function, or file.py:function")
    try:
        module = _module(place)
    except ModuleNotFoundError as error:
        ours = error.name is not None and f"{place}.".startswith(f"{error.name}.")
        cure = "name one that is installed, or a file, as in file.py:function" if ours else "install it"
        raise ValueError(f"{place}: there is no module {error.name}; {cure}") from None
    except SyntaxError as error:
        raise ValueError(f"{place} is no Python: {error}; mend it") from None
    found = getattr(module, function, None)
    if not callable(found):
        raise ValueError(f"{place} has no function {function!r}; name one that takes nothing")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ValueError(f"{name} wants arguments ({error}); name a function that takes nothing") from None
    return found  # type: ignore[no-any-return]


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        if not all(part.isidentifier() for part in place.split(".")):
            raise ValueError(
                f"{place!r} is the name of no module; write module:function, or file.py:function"
            )
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    if spec is None or spec.loader is None or not Path(place).is_file():
        raise ValueError(f"there is no file {place}; name one that exists")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(factory: Callable[[], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a factory returns, and its variables."""
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
    what = made if isinstance(made, tuple) else (made,)
    if not what or not isinstance(what[0], mt.Tensor | nn.Module):
        raise ValueError(
            f"the factory returned {repr(made)[:60]}; let it return a tensor, or a module and its inputs"
        )
    return what, variables


def told(error: Exception, factory: str) -> str:
    """What an error says, in a line; one of the factory's own, that names no cure, with its type and place.

    Raises: the error itself where it is neither: a fault of these programs.
    """
    said = str(error)
    ours = (*(str(ROOT / name) for name in ("microtensor", "tools")), "<")
    others = tuple(map(sysconfig.get_path, ("stdlib", "purelib")))
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith((*ours, *others))]
    if theirs and ";" not in said:
        where = f"{Path(theirs[-1].filename).name}, line {theirs[-1].lineno}"
        return (
            f"{factory} raised {' '.join(f'{type(error).__name__}: {said}'.split())} ({where}); mend it there"
        )
    if not isinstance(error, ValueError | TypeError | RuntimeError | OSError | ImportError):
        raise error
    for cure, other in CURES.items():
        said = re.sub(cure, other, said)
    return as_options(said)


def main(argv: list[str] | None = None) -> int:
    """Make, draw, save, and say where."""
    chosen = arguments(argv)
    try:
        what, variables = run(load(chosen.factory))
        options = {k: v for k, v in vars(chosen).items() if k not in ("factory", "output", "no_legend")}
        options |= {"legend": not chosen.no_legend}
        options |= {"shapes": None if chosen.shapes == "none" else chosen.shapes}
        call = functools.partial(viz.draw, *what, **options)
        drawing = eval("__draw__()", {"__draw__": call}, variables)  # names tensors as its caller does
        for path in chosen.output or [Path("model.svg")]:
            replaced = ", in place of the one that was there" if path.exists() else ""
            print(f"saved {drawing.save(path)}{replaced}")
    except MemoryError as error:
        print(f"draw_model: {error or 'out of memory'}; let the factory make less", file=sys.stderr)
        return 1
    except BrokenPipeError:
        raise  # no fault of the drawing
    except Exception as error:
        print(f"draw_model: {told(error, chosen.factory)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(ending.run(main))
