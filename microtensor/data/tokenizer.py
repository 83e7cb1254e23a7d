"""A tokenizer of one id per character: the smallest there is, and enough for a first language model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from microtensor.engine import Array
from microtensor.tensor import Tensor

__all__ = ["CharTokenizer"]


class CharTokenizer:
    """Ids 0, 1, … for the characters of a text, in the order of their code points.

    `CharTokenizer(tokenizer.chars)` is the same tokenizer again, so `chars` is all that a checkpoint keeps.
    Raises: ValueError for a text without characters; TypeError for what is no text.
    Source: ours; a language model's smallest vocabulary.

    >>> tokenizer = CharTokenizer("hello world")
    >>> tokenizer.chars, tokenizer.vocab_size
    (' dehlorw', 8)
    >>> tokenizer.encode("hold")
    [3, 5, 4, 1]
    >>> tokenizer.decode([3, 5, 4, 1])
    'hold'
    """

    def __init__(self, text: str | Iterable[str]) -> None:
        try:
            self.chars = "".join(sorted(set("".join(text))))
        except TypeError:
            raise TypeError(f"CharTokenizer: the text is {text!r:.60}; give strings") from None
        if not self.chars:
            raise ValueError(
                "CharTokenizer: the text is empty; give the text to be encoded, or its characters"
            )
        self._ids = {char: i for i, char in enumerate(self.chars)}

    @property
    def vocab_size(self) -> int:
        """How many characters there are.

        Source: ours; nanoGPT's name.
        """
        return len(self.chars)

    def __len__(self) -> int:
        return len(self.chars)

    def encode(self, text: str) -> list[int]:
        """The id of each character.

        Raises: ValueError naming the first character that the vocabulary lacks, and its place.
        Source: ours; nanoGPT's name.
        """
        try:
            return [self._ids[char] for char in text]
        except KeyError as error:
            char = error.args[0]
            raise ValueError(
                f"CharTokenizer: character {char!r} at position {text.index(char)} is not among the "
                f"{len(self.chars)} known ones; make the tokenizer from a text that has it"
            ) from None

    def decode(self, ids: Sequence[int] | Tensor | Array) -> str:
        """The text of a list, array or 1-D tensor of ids.

        Raises: ValueError for an id outside 0 … vocab_size − 1.
        Source: ours; nanoGPT's name.
        """
        numbers = ids.tolist() if isinstance(ids, Tensor) or hasattr(ids, "tolist") else list(ids)
        for i in numbers:
            if i not in range(len(self.chars)):
                raise ValueError(
                    f"CharTokenizer: id {i!r} is not in 0 … {len(self.chars) - 1}; give ids from encode()"
                )
        return "".join([self.chars[int(i)] for i in numbers])

    def __repr__(self) -> str:
        return f"CharTokenizer({self.chars!r})"
