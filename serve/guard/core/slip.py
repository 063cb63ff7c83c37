"""Slips: the one place, or the two, in which a name differs from another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import AnyStr

from serve.guard.core.argument_names import digit_turns, is_file, is_random

TOKEN_CHARS = 4
RECORD_DIGITS = 3  # that make a name one of a record: nobody guesses them
NUMBERED = re.compile(r"[A-Za-z]+[-_ ]?\d{1,3}|[A-Za-z]?[a-z]{3,}\d{4}")  # `USR005`, `test1228`
_OPAQUE_CHARS, _LONG_NUMBER = 8, 6
_LETTERS, _DIGITS = re.compile(r"[^\W_]*"), re.compile(r"\d*")


class Slip:
    """The one place in which the name of a call differs from one of the prompt.

    Attributes:
        name: As the call has it.
        start: Where the difference begins.
        said: What the call has there.
        meant: What the prompt has there.
        before: What precedes it in both.
        behind: What follows it in both.
        source: The name as the prompt has it.
        word: The word of the call's name that holds the difference; empty between words.
        source_word: The same of the prompt's name.
        swaps: True if the characters are the same in another order.
        size: Number of characters that differ; those of a swap count as one.
    """

    def __init__(self, name: str, start: int, said: str, meant: str) -> None:
        self.name = name
        self.start = start
        self.said = said
        self.meant = meant
        self.before = name[:start]
        self.behind = name[start + len(said) :]
        self.source = f"{self.before}{meant}{self.behind}"
        letters = self.around(_LETTERS)
        self.word, self.source_word = said.join(letters), meant.join(letters)
        self.swaps = len(said) > 1 and sorted(said) == sorted(meant)
        self.size = 1 if self.swaps else max(len(said), len(meant))

    @classmethod
    def between(cls, name: str, source: str) -> Slip:
        """Returns all between the first and the last difference of two names, which are not the same."""
        return cls(name, *_difference(name, source))

    @cached_property
    def is_opaque(self) -> bool:
        """True if nobody could have made up what the prompt has: `9f2c41` or a ticket's number, and not `k3`."""
        word, source = self.source_word, self.source
        turns = digit_turns(word)
        is_mixed = turns and len(word) >= _OPAQUE_CHARS and not NUMBERED.fullmatch(word)
        if ((turns > 1 or is_mixed) and is_random(word)) or (word.isdigit() and len(word) >= _LONG_NUMBER):
            return True
        if "/" in source or "@" in source or is_file(source) or (NUMBERED.fullmatch(source) and not self.swaps):
            return False
        digits = sum(map(str.isdigit, source.partition("==")[0]))  # the version of what is required counts nothing
        return digits >= RECORD_DIGITS or (digits > 0 and source.isupper())

    @property
    def number(self) -> str:
        """The digits of the call's name around the difference."""
        return self.said.join(self.around(_DIGITS))

    @property
    def source_number(self) -> str:
        """The digits of the prompt's name around the difference."""
        return self.meant.join(self.around(_DIGITS))

    def around(self, signs: re.Pattern[str]) -> tuple[str, str]:
        """Returns what a pattern of any number of signs finds right ahead of the difference, and right behind it."""
        ahead, behind = signs.match(self.before[::-1]), signs.match(self.behind)
        return ahead[0][::-1] if ahead else "", behind[0] if behind else ""


def in_common(a: AnyStr, b: AnyStr) -> int:
    """Returns the length of what two texts both begin with, which is short as a rule."""
    length = 0
    for one, other in zip(a, b, strict=False):
        if one != other:
            break
        length += 1
    return length


def _difference(name: str, source: str) -> tuple[int, str, str]:
    """Returns where two names begin to differ, and what each has from there to the last difference."""
    start = in_common(name, source)
    end = in_common(name[start:][::-1], source[start:][::-1])
    return start, name[start : len(name) - end], source[start : len(source) - end]


def two_slips(name: str, source: str) -> Sequence[Slip]:
    """Returns two slips, each as if it were the only one; none if names differ in one place or in many, or by more.

    What lies between them is as long as either, or it is chance that `converters` and `rules` have an `e`.
    """
    start, said, meant = _difference(name, source)
    best: Sequence[Slip] = ()
    least = len(name) // 4 + 1
    if said[TOKEN_CHARS:-TOKEN_CHARS] not in meant or 4 * abs(len(name) - len(source)) > len(name):
        return ()
    for a, b in product(range(TOKEN_CHARS + 1), repeat=2):
        if a + 1 >= least or b + 1 >= least or said[a : a + 1] != meant[b : b + 1]:
            continue
        same = in_common(said[a:], meant[b:])
        second, rest = said[a + same :], meant[b + same :]
        sizes = max(a, b), max(len(second), len(rest))
        size = sum(sizes)
        if 0 < sizes[1] <= TOKEN_CHARS and max(sizes) <= same and size < least:
            at, least = start + b + same, size
            first = Slip(source[:start] + said[:a] + source[start + b :], start, said[:a], meant[:b])
            best = (first, Slip(source[:at] + second + source[at + len(rest) :], at, second, rest))
    return best if all(any(map(str.isalnum, slip.said + slip.meant)) for slip in best) else ()
