"""The states of random generators, ours and NumPy's, as values that `serialize.save` can store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from microtensor.random import Generator, default_generator
from microtensor.tensor import Tensor, as_tensor

__all__ = ["Generators", "get_state", "named_generators", "random_faults", "set_state"]

Generators = Mapping[str, Generator | np.random.Generator]


def named_generators(generators: Generators | None) -> dict[str, Any]:
    """The generators with the default one under its name, "default", which is refused for another."""
    if generators and generators.get("default", default_generator) is not default_generator:
        raise ValueError('generators: the name "default" is the default generator\'s; choose another')
    return {"default": default_generator, **(generators or {})}


def get_state(name: str, generator: Any) -> Any:
    """The state of a generator: a tensor of 48 bytes for ours, NumPy's nested dict for NumPy's.

    Raises: TypeError, with the name, for anything else.
    """
    if isinstance(generator, Generator):
        return as_tensor(generator.get_state())
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    raise TypeError(
        f"save_checkpoint: generator {name!r} is {type(generator).__name__}; give mt.Generator or NumPy's"
    )


def set_state(generator: Any, state: Any) -> None:
    """Go on from a state of get_state()."""
    if isinstance(generator, Generator):
        generator.set_state(state.array)
    else:
        generator.bit_generator.state = state


def random_faults(generators: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """What is wrong with putting the saved states into these generators; an empty list if nothing is."""
    faults = [f"it has no random state {name!r}" for name in generators if name not in saved]
    faults += [f"its random state {name!r} has no generator" for name in saved if name not in generators]
    tried = {name: _state_fault(generators[name], saved[name]) for name in generators if name in saved}
    return faults + [f"its random state {name!r} {fault}" for name, fault in tried.items() if fault]


def _state_fault(generator: Any, state: Any) -> str:
    """Tries the state on a new generator of the same kind."""
    if isinstance(generator, Generator) != isinstance(state, Tensor):
        return "is of another kind of generator"
    try:
        if isinstance(generator, Generator):
            Generator().set_state(state.array)
        elif generator.bit_generator.state["bit_generator"] != state["bit_generator"]:
            return "is of another kind of generator"
        else:
            type(generator.bit_generator)().state = state
    except (ValueError, TypeError, LookupError, OverflowError):
        return "is damaged"
    return ""
