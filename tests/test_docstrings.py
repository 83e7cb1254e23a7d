"""Every public name says what it computes, of what shapes, what it refuses, and where it is from."""

from __future__ import annotations

import ast
import functools
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
    *"GPT.configure_optimizers GPT.from_pretrained GPT.get_num_params KeyValueCache.advance".split(),
    *"TextEncoder.from_pretrained cuda.is_available".split(),
}
# whatever they are given, they take it, or it is refused later and elsewhere
REFUSES_NOTHING = {
    *("Identity", "Sigmoid", "Tanh", "Dataset", "Sampler"),
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
    *(
        "Switch",
        "inference_mode",
        "is_grad_enabled",
        "set_grad_enabled",
        "Attention",
        "BeamNode",
        "Beams",
    ),
    *(
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
    *"AttentionMaps.svg DataLoader.state_dict DateCorpus.test_pairs Generator.get_state".split(),
    *"Generator.initial_seed LRScheduler.get_last_lr LRScheduler.state_dict Module.children".split(),
    *"Module.cpu Module.double Module.eval Module.extra_repr Module.float Module.modules".split(),
    *"Module.named_children MultiHeadAttention.heads Optimizer.state_dict Row.add Trainer.stop".split(),
    *"World.own_random cuda.is_available".split(),
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


def function_of(item: Any) -> Any:
    """What was written with `def`, under its decorators; None for what is data."""
    for inner in ("fget", "func", "__func__"):
        item = getattr(item, inner, item)
    item = inspect.unwrap(item)
    return item if inspect.isfunction(item) else None


def with_methods(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Classes also with their methods and properties: each at the class that defines it, or at the most
    general one that inherits it from a class of ours that is not public itself."""
    classes = [pair for pair in pairs if inspect.isclass(member(*pair))]
    kinds = {pair: member(*pair) for pair in sorted(classes, key=lambda pair: len(member(*pair).__mro__))}
    found, seen = list(pairs), {function_of(member(*pair)) for pair in public("Tensor")}
    for (module, name), kind in kinds.items():
        ours = [k for k in kind.__mro__ if k.__module__.split(".")[0] in ("microtensor", "models")]
        for owner in [k for k in ours if k is kind or k not in kinds.values()]:
            # what `forward` takes, gives and refuses is said by its class, which is what is called
            names = [name for name in vars(owner) if not name.startswith("_") and name != "forward"]
            for attribute in names:
                function = function_of(vars(owner)[attribute])
                shown = inspect.getattr_static(kind, attribute) is vars(owner)[attribute]
                if function is not None and shown and function not in seen:
                    seen.add(function)
                    found.append((module, f"{name}.{attribute}"))
    return found


def member(module: str, name: str) -> Any:
    if module == "Tensor":
        return inspect.getattr_static(Tensor, name)
    kind, dot, attribute = name.rpartition(".")
    return (
        inspect.getattr_static(getattr(room(module), kind), attribute) if dot else getattr(room(module), name)
    )


def text_owner(module: str, name: str) -> Any:
    """The class where the text of a method stands: an override without one means what it overrides."""
    kind, _, attribute = name.rpartition(".")
    order = getattr(room(module), kind).__mro__
    return next((k for k in order if getattr(vars(k).get(attribute), "__doc__", None)), order[0])


def text_of(module: str, name: str) -> str:
    _, dot, attribute = name.rpartition(".")
    written = vars(text_owner(module, name)).get(attribute) if dot else member(module, name)
    return inspect.getdoc(written) or ""


NAMES = with_methods([pair for module in MODULES if module != "Tensor" for pair in public(module)])
NAMES += public("Tensor")
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
    if not isinstance(member(module, name), property | functools.cached_property):
        assert "Raises" in sections or keys(module, name) & REFUSES_NOTHING
        # where a class has none, its methods need none
        names = {part for key in keys(module, name) for part in (key, *key.split(".")[-2:-1])}
        assert "Shapes" in sections or names & SHAPELESS or room_has_no_shapes(module)


def keys(module: str, name: str) -> set[str]:
    """Under what an exception may be listed; one for a text is one for all whose text it is."""
    kind, _, attribute = name.rpartition(".")
    of_its_text = {f"{text_owner(module, name).__name__}.{attribute}"} if kind else set()
    return {name, f"{module}.{name}"} | of_its_text


def room_has_no_shapes(module: str) -> bool:
    return module.split(".")[0] in WITHOUT_SHAPES


def test_the_exceptions_are_needed():
    documented = {key: text_of(m, name) for m, name in NAMES for key in keys(m, name)}
    for word, names in (("Shapes:", SHAPELESS), ("Raises:", REFUSES_NOTHING)):
        assert names <= set(documented)
        assert not [n for n in names if re.search(rf"^{word}", documented[n], re.MULTILINE)]
    assert set(microtensor.__all__) >= NOT_OURS


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_what_a_function_raises_itself_is_documented(module, name):
    function = member(module, name)
    function = function_of(function.__init__ if inspect.isclass(function) else function)
    if function is None or function.__code__.co_filename == "<string>":  # a dataclass made it
        return
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    made = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    raised = {e.func.id for e in made if isinstance(e, ast.Call) and isinstance(e.func, ast.Name)}
    said = re.search(r"^Raises:(.*?)^Source:", text_of(module, name), re.MULTILINE | re.DOTALL)
    assert raised <= set(re.findall(r"\w+Error", said.group(1) if said else "")), "say when"
