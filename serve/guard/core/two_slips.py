"""Two slips in one name, each of them a token at most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from serve.guard.core.slip import Slip

TOKEN_CHARS = 4

Block = tuple[int, int, int]  # of what both names have: where it begins in each, and its length


def two_slips(name: str, source: str) -> Sequence[Slip]:
    """Returns each slip as if it were the only one; none if a name differs from another in one place, or in many.

    Args:
        name: Of the call.
        source: Of the prompt.
    """
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
    _, _, said, meant = Slip.between(name, source)
    return said[TOKEN_CHARS:-TOKEN_CHARS] in meant


def _in_place(name: str, source: str) -> Iterator[Block]:
    """Yields what two names of one length have at the same places."""
    start = 0
    for end in (*(at for at, (a, b) in enumerate(zip(name, source, strict=True)) if a != b), len(name)):
        if end > start:
            yield start, start, end - start
        start = end + 1
    yield len(name), len(name), 0


def _matched(name: str, source: str) -> Iterator[Block]:
    yield from map(tuple, SequenceMatcher(None, name, source, autojunk=False).get_matching_blocks())


def _gaps(name: str, source: str, blocks: Iterable[Block]) -> Sequence[Slip]:
    """Returns the slips between what two names have in common."""
    slips: list[Slip] = []
    a = b = 0
    for at, place, size in blocks:
        if (a, b) != (at, place):
            slips.append(Slip(source[:b] + name[a:at] + source[place:], b, name[a:at], source[b:place]))
        a, b = at + size, place + size
    return slips
