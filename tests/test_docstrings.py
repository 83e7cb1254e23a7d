"""Every public name says what it computes, of what shapes, what it refuses, and where it is from."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from typing import Any

import pytest

import microtensor
from microtensor import Tensor

MODULES = [
    *("microtensor", "Tensor"),
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
    *("viz", "profiler", "autograd", "mode", "models"),
]
# rooms whose names are of numbers, orders, files and pictures: only some take tensors of a certain shape
WITHOUT_SHAPES = ("optim", "data", "train", "viz", "profiler", "mode")
SHAPELESS = {
    *("BeamNode", "answers", "exact_match"),
    *("Module", "ModuleDict", "ModuleList", "ParameterList", "calculate_gain", "check_op", "detect_anomaly"),
    *(
        "set_detect_anomaly",
        "TransformerConfig",
        "GPTConfig",
        "TextEncoderConfig",
        "composites",
        "enable_grad",
        "inference_mode",
    ),
    *(
        "finfo",
        "iinfo",
        "no_grad",
        "is_grad_enabled",
        "set_grad_enabled",
        "manual_seed",
        "set_default_dtype",
        "Generator",
    ),
    *(
        "get_num_threads",
        "set_num_threads",
        "get_default_dtype",
        "is_tensor",
        "device",
        "microtensor.cuda",
        "microtensor.Tensor",
    ),
}
# whatever they are given, they take it, or it is refused later and elsewhere
REFUSES_NOTHING = {
    *("Identity", "Sigmoid", "Tanh", "ExponentialLR", "Dataset", "Sampler", "Subset"),
    *(
        "SequentialSampler",
        "SubsetRandomSampler",
        "DatePair",
        "TaskPair",
        "normalize",
        "fold",
        "is_recording",
        "opens_fused",
        "recording",
    ),
    *("detect_anomaly", "set_detect_anomaly", "Switch", "composites", "enable_grad", "no_grad"),
    *(
        "enable_grad",
        "inference_mode",
        "is_grad_enabled",
        "set_grad_enabled",
        "Attention",
        "BeamNode",
        "Beams",
        "TransformerConfig",
    ),
    *(
        "GPTConfig",
        "TextEncoderConfig",
        "Row",
        "Stopped",
        "get_num_threads",
        "peak_memory",
        "get_default_dtype",
        "get_rng_state",
        "is_tensor",
    ),
    *("microtensor.Tensor", "microtensor.cuda", "Tensor.contiguous", "Tensor.cpu", "Tensor.data_ptr"),
    *("Tensor.dim", "Tensor.element_size", "Tensor.is_contiguous", "Tensor.tolist"),
}


# what NumPy and Python bring, and document
NOT_OURS = {"Size", "dtype"}


def room(module: str) -> Any:
    if module in ("microtensor", "Tensor"):
        return microtensor if module == "microtensor" else Tensor
    return importlib.import_module(module if module == "models" else f"microtensor.{module}")


def public(module: str) -> list[tuple[str, str]]:
    """What a module lists and can be called; of Tensor methods and properties, but not its slots."""
    found = room(module)
    if module == "Tensor":
        members = [name for name in dir(Tensor) if not name.startswith("_")]
        return [(module, n) for n in members if not inspect.ismemberdescriptor(member(module, n))]
    listed = [*found.__all__, *(["get_num_threads", "set_num_threads"] if module == "microtensor" else [])]
    names = [name for name in listed if callable(getattr(found, name)) and name not in NOT_OURS]
    return [(module, name) for name in names]


def member(module: str, name: str) -> Any:
    return inspect.getattr_static(room(module), name) if module == "Tensor" else getattr(room(module), name)


def text_of(module: str, name: str) -> str:
    return inspect.getdoc(member(module, name)) or ""


NAMES = [pair for module in MODULES for pair in public(module)]
IDS = [".".join(pair) for pair in NAMES]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_a_public_name_is_documented(module, name):
    text = text_of(module, name)
    first = text.split("\n")[0]
    assert first.endswith((".", ":", "?", "…")) or re.search(r"[=~·/Σ−]|tanh", first), (
        f"no sentence: {first!r}"
    )
    sections = re.findall(r"^(Shapes|Raises|Source):", text, re.MULTILINE)
    assert sections == sorted(sections, key=["Shapes", "Raises", "Source"].index)
    assert len(sections) == len(set(sections))
    assert "Source" in sections
    if not isinstance(member(module, name), property):
        assert "Raises" in sections or {name, f"{module}.{name}"} & REFUSES_NOTHING
        assert "Shapes" in sections or {name, f"{module}.{name}"} & SHAPELESS or room_has_no_shapes(module)


def room_has_no_shapes(module: str) -> bool:
    return module.split(".")[0] in WITHOUT_SHAPES


def test_the_exceptions_are_needed():
    documented = {key: text_of(m, name) for m, name in NAMES for key in (name, f"{m}.{name}")}
    for word, names in (("Shapes:", SHAPELESS), ("Raises:", REFUSES_NOTHING)):
        assert names <= set(documented)
        assert not [n for n in names if re.search(rf"^{word}", documented[n], re.MULTILINE)]
    assert set(microtensor.__all__) >= NOT_OURS


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_what_a_function_raises_itself_is_documented(module, name):
    function = member(module, name)
    function = inspect.unwrap(
        getattr(function, "__init__", function) if inspect.isclass(function) else function
    )
    if not inspect.isfunction(function) or function.__code__.co_filename == "<string>":  # a dataclass made it
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    made = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    raised = {e.func.id for e in made if isinstance(e, ast.Call) and isinstance(e.func, ast.Name)}
    said = re.search(r"^Raises:(.*?)^Source:", text_of(module, name), re.MULTILINE | re.DOTALL)
    assert raised <= set(re.findall(r"\w+Error", said.group(1) if said else "")), "say when"
