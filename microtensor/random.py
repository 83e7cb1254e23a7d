"""Random numbers: one seeded generator for all, or one of the user's. Its state is 48 bytes, to save."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Generator", "as_seed", "default_generator", "draw_seed"]


def as_seed(who: str, seed: Any) -> int:
    """A seed is an integer of 64 bits; negative ones count down from 2⁶⁴, as in PyTorch."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
        raise TypeError(f"{who}: the seed is {seed!r}; give an integer")
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"{who}: the seed is {seed}; give an integer of 64 bits")
    return int(seed) % 2**64


class Generator:
    """A source of random numbers with a seed and a state, drawn from SFC64.

    Raises: RuntimeError for another device than "cpu".
    Source: torch.Generator. Differs: the numbers are others; the state is 48 bytes.

    >>> g = Generator().manual_seed(0)
    >>> state = g.get_state()
    >>> a = g.numpy.random()
    >>> a == g.set_state(state).numpy.random()
    True
    """

    def __init__(self, device: str = "cpu") -> None:
        if str(device) != "cpu":
            raise RuntimeError(f'Generator: there is no device {str(device)!r} here; use "cpu"')
        self.manual_seed(int.from_bytes(os.urandom(8), "little") % 2**63)

    @cached_property
    def numpy(self) -> np.random.Generator:
        """NumPy's generator: made on first use, for `import numpy.random` takes a tenth of ours.

        Source: ours; it is a numpy.random.Generator.
        """
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(self._seed)))

    def manual_seed(self, seed: int) -> Generator:
        """Start again from a seed; the same seed gives the same numbers on every machine.

        Raises: TypeError for a seed that is no integer, ValueError for one of more than 64 bits.
        Source: torch.Generator.manual_seed.
        """
        self._seed = as_seed("manual_seed", seed)
        self.__dict__.pop("numpy", None)
        return self

    def initial_seed(self) -> int:
        """The seed it started from; a negative one counted down from 2⁶⁴.

        Source: torch.Generator.initial_seed.
        """
        return self._seed

    def get_state(self) -> NDArray[np.uint8]:
        """All of its state as 48 bytes.

        Shapes: (48,), uint8
        Source: torch.Generator.get_state. Differs: an array.
        """
        state: Any = self.numpy.bit_generator.state
        words = [*state["state"]["state"], state["has_uint32"], state["uinteger"]]
        return np.array(words, np.uint64).astype("<u8").view(np.uint8).copy()

    def set_state(self, state: NDArray[np.uint8]) -> Generator:
        """Go on from a state that get_state() gave. Returns the generator.

        Shapes: (48,), uint8
        Raises: ValueError for another shape or dtype.
        Source: torch.Generator.set_state.
        """
        state = np.asarray(state)
        if state.dtype != np.uint8 or state.shape != (48,):
            raise ValueError(f"set_state: {state.dtype}{state.shape} is not 48 bytes of state; use "
                             f"get_state()")  # fmt: skip
        words = np.ascontiguousarray(state).view("<u8").astype(np.uint64)
        rest = {"has_uint32": int(words[4]), "uinteger": int(words[5])}
        self.numpy.bit_generator.state = {"bit_generator": "SFC64", "state": {"state": words[:4]}, **rest}
        return self


default_generator = Generator()


apart: tuple[Generator, int, int] | None = None
"""Of processes that share a batch: what all draw seeds from, how many rows stand before ours, our rows."""


def draw_seed(generator: Generator | None, counters: int) -> int:
    """63 bits to count from; above 64, how many such counters the batch's rows before ours have.

    With them, an element of a batch that several processes share gets the numbers that one process gives it.
    """
    seeds, before, rows = apart or (default_generator, 0, 1)
    seed = int((generator or seeds).numpy.integers(2**63))
    return seed | counters * before // rows << 64
