"""Small tasks that a Transformer learns in seconds: copy, reverse or sort a text, add two numbers.

Each is a rule that Python says in a line, so that a model's every answer can be judged. What is tested on is
drawn first and never trained on. Models are not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from microtensor.data.pairs import PairCorpus
from microtensor.random import as_seed

__all__ = ["RULES", "AdditionTask", "StringTask", "TaskPair"]

RULES: dict[str, Callable[[str], str]] = {
    "copy": lambda text: text,
    "reverse": lambda text: text[::-1],
    "sort": lambda text: "".join(sorted(text)),
}
"""What a `StringTask` makes of its source, by name."""


class TaskPair(NamedTuple):
    """One example: a source, and what is to be written for it.

    Source: ours.
    """

    source: str
    target: str


class _Task(PairCorpus):
    """Draws sources; the first n_test different ones are held out, and never drawn again to train on."""

    def __init__(self, n_test: int, seed: int, rarest: int) -> None:
        """rarest: of the kind of source that there are the fewest of, how many there are."""
        if not 0 <= 2 * n_test <= rarest:
            raise ValueError(
                f"{type(self).__name__}: n_test is {n_test}, and of some sources there are {rarest} only; "
                f"hold out at most half of them, or make the sources longer"
            )
        rng, held_out = np.random.default_rng(as_seed(type(self).__name__, seed)), dict[str, str]()
        while len(held_out) < n_test:
            source = self._draw(rng)
            held_out.setdefault(self._essence(source), source)
        self._held_out = held_out

    def train_pairs(self, n: int, rng: np.random.Generator) -> list[TaskPair]:
        pairs: list[TaskPair] = []
        while len(pairs) < self._at_least_none(n):
            source = self._draw(rng)
            if self._essence(source) not in self._held_out:
                pairs.append(TaskPair(source, self.answer(source)))
        return pairs

    def test_pairs(self) -> list[TaskPair]:
        return [TaskPair(source, self.answer(source)) for source in self._held_out.values()]

    def answer(self, source: str) -> str:
        """What is to be written for a source."""
        raise NotImplementedError

    def _draw(self, rng: np.random.Generator) -> str:
        raise NotImplementedError

    def _essence(self, source: str) -> str:
        """Equal for sources of which one gives the other away."""
        return source


class StringTask(_Task):
    """Pairs such as ("3142", "1234"): a text, and what a rule makes of it.

    rule: "copy", "reverse" or "sort". characters: what a text is drawn from, each as likely as the others.
    shortest, longest: how many it has, each length as likely. n_test texts are held out; seed draws them.

    Raises: ValueError for another rule, no characters or one twice, lengths that are no range, and an n_test
    that is more than half of the shortest texts.
    Source: ours. Copying and reversing are the classic tests of sequence models (Graves et al. 2014, §4.1).

    >>> StringTask("reverse").answer("3142")
    '2413'
    """

    def __init__(
        self,
        rule: str,
        *,
        characters: str = "0123456789",
        shortest: int = 4,
        longest: int = 12,
        n_test: int = 1000,
        seed: int = 0,
    ) -> None:
        if rule not in RULES:
            raise ValueError(f"StringTask: there is no rule {rule!r}; choose among {sorted(RULES)}")
        if not 1 <= shortest <= longest:
            raise ValueError(f"StringTask: lengths {shortest} to {longest}; choose 1 <= shortest <= longest")
        if not characters or len(set(characters)) < len(characters):
            raise ValueError(f"StringTask: characters is {characters!r}; give one or more, each once")
        self.rule, self.shortest, self.longest = rule, shortest, longest
        self.characters = "".join(sorted(characters))
        super().__init__(n_test, seed, len(characters) ** shortest)

    def answer(self, source: str) -> str:
        """The source as the rule changes it.

        Raises: TypeError for what is no string.
        Source: ours.
        """
        return RULES[self.rule](source)

    def _draw(self, rng: np.random.Generator) -> str:
        length = rng.integers(self.shortest, self.longest + 1)
        return "".join([self.characters[i] for i in rng.integers(len(self.characters), size=length).tolist()])


class AdditionTask(_Task):
    """Pairs such as ("345+678=", "3201"): two numbers of n_digits digits, and their sum from right to left.

    The sum's lowest digit stands first, because that is the order in which a carry runs: each digit then
    depends on three that were read and one that was written. With reverse=False it is written as usual, which
    is much harder to learn. All numbers are filled up with zeros, so that every pair has one length. n_test
    sums are held out; a + b is never trained on where b + a is tested.

    Raises: ValueError for n_digits under 1, and an n_test that is more than half of all sums.
    Source: ours; digits in reverse: Lee et al. 2023, "Teaching Arithmetic to Small Transformers".

    >>> AdditionTask(3).answer("345+678=")
    '3201'
    """

    characters = "+0123456789="

    def __init__(self, n_digits: int = 3, *, reverse: bool = True, n_test: int = 1000, seed: int = 0) -> None:
        if n_digits < 1:
            raise ValueError(f"AdditionTask: n_digits is {n_digits}; make it at least 1")
        self.n_digits, self.reverse = n_digits, reverse
        super().__init__(n_test, seed, 10**n_digits * (10**n_digits + 1) // 2)

    def answer(self, source: str) -> str:
        """The n_digits + 1 digits of the sum.

        Raises: ValueError for what is no sum of two whole numbers.
        Source: ours; digits in reverse: Lee et al. 2023, "Teaching Arithmetic to Small Transformers".
        """
        try:
            total = sum(map(int, source.removesuffix("=").split("+")))
        except ValueError:
            raise ValueError(f'AdditionTask: {source!r} is no sum; write one as "345+678="') from None
        digits = f"{total:0{self.n_digits + 1}}"
        return digits[::-1] if self.reverse else digits

    def _draw(self, rng: np.random.Generator) -> str:
        a, b = rng.integers(10**self.n_digits, size=2).tolist()
        return f"{a:0{self.n_digits}}+{b:0{self.n_digits}}="

    def _essence(self, source: str) -> str:
        return "+".join(sorted(source.removesuffix("=").split("+")))
