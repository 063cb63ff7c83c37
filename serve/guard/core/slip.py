"""The slip: the one place in which a name differs from another."""

from __future__ import annotations

from collections.abc import Callable
from typing import AnyStr, NamedTuple


class Slip(NamedTuple):
    """The one place in which the name of a call differs from one of the prompt.

    Attributes:
        name: As the call has it.
        start: Where the difference begins.
        said: What the call has there.
        meant: What the prompt has there.
    """

    name: str
    start: int
    said: str
    meant: str

    @classmethod
    def between(cls, name: str, source: str) -> Slip:
        """Returns all between the first and the last difference of two names, which are not the same."""
        start = in_common(name, source)
        end = in_common(name[start:][::-1], source[start:][::-1])
        return cls(name, start, name[start : len(name) - end], source[start : len(source) - end])

    @property
    def before(self) -> str:
        """The text before the difference."""
        return self.name[: self.start]

    @property
    def behind(self) -> str:
        """The text after the difference."""
        return self.name[self.start + len(self.said) :]

    @property
    def source(self) -> str:
        """The name as the prompt has it."""
        return f"{self.before}{self.meant}{self.behind}"

    @property
    def turned(self) -> Slip:
        """The same of names that are read backward."""
        return Slip(self.name[::-1], len(self.behind), self.said[::-1], self.meant[::-1])

    @property
    def swaps(self) -> bool:
        """True if the characters are the same in another order."""
        return len(self.said) > 1 and sorted(self.said) == sorted(self.meant)

    @property
    def size(self) -> int:
        """Number of characters that differ; those of a swap count as one."""
        return 1 if self.swaps else max(len(self.said), len(self.meant))

    @property
    def word(self) -> str:
        """The word of the call's name that holds the difference; empty between words."""
        return run_at(self.name, self.start, len(self.said), str.isalnum)

    @property
    def source_word(self) -> str:
        """The word of the prompt's name that holds the difference; empty between words."""
        return run_at(self.source, self.start, len(self.meant), str.isalnum)

    @property
    def number(self) -> str:
        """The digits of the call's name around the difference."""
        return run_at(self.name, self.start, len(self.said), str.isdecimal)

    @property
    def source_number(self) -> str:
        """The digits of the prompt's name around the difference."""
        return run_at(self.source, self.start, len(self.meant), str.isdecimal)


def run_at(text: str, start: int, length: int, belongs: Callable[[str], bool]) -> str:
    """Returns a part of a text with the characters of one kind on both sides of it.

    Args:
        text: That holds the part.
        start: Of the part.
        length: Of the part.
        belongs: Returns whether a character is of the kind.
    """
    end = start + length
    while start and belongs(text[start - 1]):
        start -= 1
    while end < len(text) and belongs(text[end]):
        end += 1
    return text[start:end]


def in_common(a: AnyStr, b: AnyStr) -> int:
    """Returns the length of what two texts both begin with."""
    for at, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return at
    return min(len(a), len(b))
