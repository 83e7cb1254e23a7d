"""The golden pack: is a module of any framework right? Its outputs and gradients against numbers on file.

The files beside this one hold inputs, weights, outputs and all gradients of small layers and models, made by
loops and differences that know nothing of microtensor (tests/golden of the repository, whose README.md says
what the files hold). `python -m microtensor.testing.golden mine` checks a module.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from microtensor.engine import Array
from microtensor.testing.close import worst_entry

__all__ = ["PACK", "check_case", "read_pack", "signature"]

PACK = Path(__file__).parent
# rtol, atol: the pack is right to 1e-9; a Transformer in float32 is right to some 1e-6 of its largest number
TOLERANCE = {"float64": (1e-7, 1e-8), "float32": (1e-3, 2e-5)}

# what a case holds
KINDS: dict[str, Any] = dict.fromkeys(("options", "inputs", "parameters", "gradients"), dict)
KINDS |= dict.fromkeys(("case", "function", "says"), str)
KINDS |= dict.fromkeys(("output", "cotangent"), float | list)

Case = dict[str, Any]


def read_pack(folder: Path = PACK) -> list[Case]:
    """The cases of a folder in the order of their names.

    Raises: ValueError for a folder without any, and for a file that is no case.
    """
    found = [_read(path) for path in sorted(folder.glob("*.json"))]
    if not found:
        raise ValueError(f"golden: {folder} holds no case; give the folder with the *.json of the pack")
    return found


def _read(path: Path) -> Case:
    with contextlib.suppress(OSError, ValueError):
        case = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(case, dict) and all(isinstance(case.get(key), kind) for key, kind in KINDS.items()):
            return case
    raise ValueError(f"golden: {path} is no case of a pack; name a folder that holds nothing else")


def signature(case: Case) -> str:
    """How the case's function is called, as it is written in Python."""
    lead, named = ["parameters"] if case["parameters"] else [], [*_masks(case), *case["options"]]
    first = [name for name in case["inputs"] if name not in named]
    return f"{case['function']}({', '.join([*lead, *first, *(f'{name}=…' for name in named)])})"


def _masks(case: Case) -> list[str]:
    """The inputs that are given by name."""
    return [name for name in case["inputs"] if name.endswith("mask")]


def check_case(case: Case, module: Any) -> str:
    """What the module has not or has wrong, in words: which arrays, and the first's worst entry; or "ok"."""
    function = getattr(module, case["function"], None)
    if function is None:
        return f"missing: {signature(case)}"
    try:
        faults = _faults(case, function, getattr(module, "tensor", np.array))
    except (Exception, SystemExit) as error:  # whatever a function raises is its result; the next case is run
        return f"WRONG  {signature(case)} raised {type(error).__name__}: {error}"
    if faults is None:
        return "no gradients: the output is right"
    wrong = [f"{what} {fault}" for what, fault in faults.items()][:1]
    others = "; also wrong: " + ", ".join([*faults][1:]) if len(faults) > 1 else ""
    return f"WRONG  {wrong[0]}{others}" if wrong else "ok"


def _faults(
    case: Case, function: Callable[..., Any], tensor: Callable[[Array], Any]
) -> dict[str, str] | None:
    """What is wrong, by array; None where the output is right and there are no gradients."""
    inputs = {name: tensor(np.array(values)) for name, values in case["inputs"].items()}
    parameters = {name: tensor(np.array(values)) for name, values in case["parameters"].items()}
    masks = {name: inputs[name] for name in _masks(case)}
    first = [x for name, x in inputs.items() if name not in masks]
    result = function(*([parameters] if parameters else []), *first, **masks, **case["options"])
    y, how = result if isinstance(result, tuple) else (result, {})
    faults = _compare("the output", y, case["output"])
    cotangent = np.array(case["cotangent"])
    if callable(how):
        gradients: Mapping[str, Any] = how(cotangent)
    elif hasattr(y, "backward") and not faults:  # a gradient of something else says nothing
        y.backward(tensor(cotangent.astype(_array(y).dtype)))
        gradients = {key: x.grad for key, x in {**inputs, **parameters, **how}.items() if hasattr(x, "grad")}
    else:
        return faults or None
    for name, expected in case["gradients"].items():
        faults |= _compare(f"the gradient of {name}", gradients.get(name), expected)
    return faults


def _array(value: Any) -> Array:
    return np.asarray(value.detach() if hasattr(value, "detach") else value)


def _compare(what: str, actual: Any, expected: Any) -> dict[str, str]:
    a, e = _array(actual), np.array(expected)
    if actual is None or a.shape != e.shape:
        return {what: "is not there" if actual is None else f"has shape {a.shape}, not {e.shape}"}
    if a.dtype.kind != "f":  # of a complex number half would be compared, and an object can equal anything
        return {what: f"has dtype {a.dtype}; give float32 or float64"}
    kind = "float32" if a.dtype.itemsize < 8 else "float64"
    fault = worst_entry(a, e, *TOLERANCE[kind])
    return {} if fault is None else {what: f"is off: {fault}"}
