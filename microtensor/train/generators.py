"""The states of random generators, ours and NumPy's, as values that `serialize.save` can store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from microtensor.random import Generator
from microtensor.tensor import Tensor, as_tensor

__all__ = ["Generators", "get_state", "random_faults", "set_state"]

Generators = Mapping[str, Generator | np.random.Generator]


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
    faults += [
        f"its random state {name!r} belongs to no generator" for name in saved if name not in generators
    ]
    for name in generators:
        if name in saved:
            own, state = get_state(name, generators[name]), saved[name]
            same = isinstance(own, Tensor) == isinstance(state, Tensor)
            if not same or (isinstance(own, dict) and own["bit_generator"] != state["bit_generator"]):
                faults.append(f"its random state {name!r} is of another kind of generator")
    return faults
