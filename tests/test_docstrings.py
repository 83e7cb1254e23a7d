"""Every public name says what it computes, of what shapes, what it refuses, and where it is from."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

MODULES = [
    *(
        "nn",
        "nn.functional",
        "nn.init",
        "nn.utils",
        "optim",
        "optim.lr_scheduler",
        "data",
        "testing",
        "train",
    ),
    *("viz", "autograd", "mode", "models"),
]
# rooms whose names are of numbers, orders, files and pictures: only some take tensors of a certain shape
WITHOUT_SHAPES = ("optim", "data", "train", "viz", "mode")
SHAPELESS = {
    *("Module", "ModuleDict", "ModuleList", "ParameterList", "calculate_gain", "check_op", "detect_anomaly"),
    *("set_detect_anomaly", "TransformerConfig"),
}
# whatever they are given, they take it, or it is refused later and elsewhere
REFUSES_NOTHING = {
    *("Identity", "Sigmoid", "Tanh", "clip_grad_value_", "ExponentialLR", "Dataset", "Sampler", "Subset"),
    *(
        "SequentialSampler",
        "SubsetRandomSampler",
        "DatePair",
        "normalize",
        "fold",
        "is_recording",
        "recording",
    ),
    *("detect_anomaly", "set_detect_anomaly", "Block", "Switch", "composites", "enable_grad", "no_grad"),
    *(
        "enable_grad",
        "inference_mode",
        "is_grad_enabled",
        "set_grad_enabled",
        "Attention",
        "TransformerConfig",
    ),
}


def room(module: str) -> Any:
    return importlib.import_module(module if module == "models" else f"microtensor.{module}")


def public(module: str) -> list[tuple[str, str]]:
    found = room(module)
    return [(module, name) for name in found.__all__ if callable(getattr(found, name))]


NAMES = [pair for module in MODULES for pair in public(module)]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[".".join(pair) for pair in NAMES])
def test_a_public_name_is_documented(module, name):
    text = inspect.getdoc(getattr(room(module), name)) or ""
    first = text.split("\n")[0]
    assert first.endswith((".", ":", "?")) or re.search(r"[=~·/Σ−]|tanh", first), f"no sentence: {first!r}"
    sections = re.findall(r"^(Shapes|Raises|Source):", text, re.MULTILINE)
    assert sections == sorted(sections, key=["Shapes", "Raises", "Source"].index)
    assert len(sections) == len(set(sections))
    assert "Source" in sections
    assert "Raises" in sections or name in REFUSES_NOTHING
    assert "Shapes" in sections or name in SHAPELESS or module.split(".")[0] in WITHOUT_SHAPES


def test_the_exceptions_are_needed():
    documented = {name: inspect.getdoc(getattr(room(module), name)) or "" for module, name in NAMES}
    for word, names in (("Shapes:", SHAPELESS), ("Raises:", REFUSES_NOTHING)):
        assert names <= set(documented)
        assert not [n for n in names if re.search(rf"^{word}", documented[n], re.MULTILINE)]
