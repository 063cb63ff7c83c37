"""Slips: the one place, or the two, in which a name differs from another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import AnyStr

TOKEN_CHARS = 4

_Block = tuple[int, int, int]  # of what both names have: where it begins in each, and its length


@dataclass(frozen=True)
class Slip:
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

    @cached_property
    def before(self) -> str:
        return self.name[: self.start]

    @cached_property
    def behind(self) -> str:
        return self.name[self.start + len(self.said) :]

    @cached_property
    def source(self) -> str:
        """The name as the prompt has it."""
        return f"{self.before}{self.meant}{self.behind}"

    @property
    def turned(self) -> Slip:
        """The same of names that are read backward."""
        return Slip(self.name[::-1], len(self.behind), self.said[::-1], self.meant[::-1])

    @cached_property
    def swaps(self) -> bool:
        """True if the characters are the same in another order."""
        return len(self.said) > 1 and sorted(self.said) == sorted(self.meant)

    @cached_property
    def size(self) -> int:
        """Number of characters that differ; those of a swap count as one."""
        return 1 if self.swaps else max(len(self.said), len(self.meant))

    @cached_property
    def word(self) -> str:
        """The word of the call's name that holds the difference; empty between words."""
        return run_at(self.name, self.start, len(self.said), str.isalnum)

    @cached_property
    def source_word(self) -> str:
        """The word of the prompt's name that holds the difference; empty between words."""
        return run_at(self.source, self.start, len(self.meant), str.isalnum)

    @cached_property
    def number(self) -> str:
        """The digits of the call's name around the difference."""
        return run_at(self.name, self.start, len(self.said), str.isdecimal)

    @cached_property
    def source_number(self) -> str:
        """The digits of the prompt's name around the difference."""
        return run_at(self.source, self.start, len(self.meant), str.isdecimal)


def run_at(text: str, start: int, length: int, belongs: Callable[[str], bool]) -> str:
    """Returns a part of a text with the characters on both sides of it that belong to one kind."""
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


def two_slips(name: str, source: str) -> Sequence[Slip]:
    """Returns two slips, each as if it were the only one; none if names differ in one place or in many, or by more."""
    slips: Sequence[Slip] = ()
    if len(name) == len(source):
        blocks = [*_in_place(name, source)]
        slips = _gaps(name, source, blocks)
        if len(slips) != 2:  # two tokens may have a character in common by chance
            slips = _gaps(name, source, (block for block in blocks if block[2] != 1 or not name[block[0]].isalnum()))
    if len(slips) != 2:
        slips = _gaps(name, source, (block for block in _matched(name, source) if block[2] != 1))
    sizes = [slip.size for slip in slips]
    if len(slips) != 2 or max(sizes) > TOKEN_CHARS or 4 * sum(sizes) > len(name):
        return ()
    return slips if all(any(map(str.isalnum, slip.said + slip.meant)) for slip in slips) else ()


def may_have_two(name: str, source: str) -> bool:
    """Returns whether a name may differ from another by two slips, as far as can be seen without comparing all of it.

    Without what both begin and end with, and a token at either end, only what stands between the slips is left.
    """
    if 4 * abs(len(name) - len(source)) > len(name):
        return False
    slip = Slip.between(name, source)
    return slip.said[TOKEN_CHARS:-TOKEN_CHARS] in slip.meant


def _in_place(name: str, source: str) -> Iterator[_Block]:
    """Yields what two names of one length have at the same places."""
    start = 0
    for end in (*(at for at, (a, b) in enumerate(zip(name, source, strict=True)) if a != b), len(name)):
        if end > start:
            yield start, start, end - start
        start = end + 1
    yield len(name), len(name), 0


def _matched(name: str, source: str) -> Iterator[_Block]:
    yield from map(tuple, SequenceMatcher(None, name, source, autojunk=False).get_matching_blocks())


def _gaps(name: str, source: str, blocks: Iterable[_Block]) -> Sequence[Slip]:
    """Returns the slips between what two names have in common."""
    slips: list[Slip] = []
    a = b = 0
    for at, place, size in blocks:
        if (a, b) != (at, place):
            slips.append(Slip(source[:b] + name[a:at] + source[place:], b, name[a:at], source[b:place]))
        a, b = at + size, place + size
    return slips
