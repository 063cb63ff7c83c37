"""The names of a prompt that one of a call may be a slip of: searched in bytes, around what a slip leaves intact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, pairwise

from stringzilla import find

from serve.guard.core.derived_names import misses_folder
from serve.guard.core.prompt_text import CHARACTER_BYTES, Writing
from serve.guard.core.slip import TOKEN_CHARS, Slip, in_common, two_slips

_SHORT_SLIP = 2  # one character, or two that changed places
_LONG_SLIP = 8  # a token
_LONG_WORD = 12  # without a sign in it: the last group of a UUID
_SHORT_NAME, _SHORTEST_NAME = 12, 6
_MOST_MISSING = 96  # characters of folders
_LEAST_WITH_TWO = 8  # characters of a name in which two slips count
_MANY_PARTS = 20  # characters of a name, from where on it has five pieces to look for
_COMMON = 12  # places of a part that makes its name one of a row
_MOST_PLACES = 128  # of such a part that are looked at
_ENDS = ".,:-"
_MOST_TOKENS = 24
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d{1,3}|[^\W_]")  # as vocabularies have them, three digits at a time
_LONG_NUMBER = re.compile(r"(?<!\d)(?:\d{3})+\d{1,2}(?!\d)")
_SIGNS = str.maketrans("", "", "#.-+ ")
_ASCII_SIGNS = frozenset(sign for sign in map(chr, range(128)) if not sign.isalnum())
_JOINED = frozenset(re.findall(rb"[A-Za-z0-9_.\\-]", bytes(range(128))))  # with a name, or a part of an escape

Span = tuple[int, int]  # of a part of the name: where it begins and ends


class Neighbours:
    """Those of one name that the prompt does not have.

    Attributes:
        name: To look up.
        writing: That has every part of the name that the prompt has.

    Args:
        name: To look up.
        writing: To look in.
        glances: One for each place that is looked at.
    """

    def __init__(self, name: str, writing: Writing, glances: Iterator[None]) -> None:
        self.name = name
        self.writing = writing
        self._glances = glances
        self._few: dict[str, Sequence[int]] = {}
        self._common: list[str] = []
        self._sought = sought = _utf8(name)
        self._heads, self._tails = _heads(writing.data, sought), _tails(writing.data, sought)
        # Of the longest beginning and the longest end that the writing has; they may be torn within a character.
        head, tail = self._heads[-1][0], self._tails[-1][0]
        self._head = len(sought[:head].decode(errors="ignore"))
        self._tail = len(sought[-tail:].decode(errors="ignore")) if tail else 0

    @property
    def is_of_two_parts(self) -> bool:
        """True if the prompt has nearly all of a long name in two parts, of which two slips would leave less."""
        return self._head + self._tail + _SHORT_SLIP >= len(self.name) >= _SHORT_NAME

    @cached_property
    def _signs(self) -> re.Pattern[bytes]:
        """A pattern of letters, digits and the signs of the name, as many as there are."""
        signs = re.escape("".join(sorted(_ASCII_SIGNS.intersection(self.name))))
        return re.compile(rf"[A-Za-z0-9\x80-\xff{signs}]*".encode())

    def since(self, part: bytes) -> int:
        """Returns a place before which the writing does not have a part of the name; -1 if it has it nowhere."""
        size = len(part)
        if self._sought.startswith(part):
            for length, at in self._heads:
                if length >= size:
                    return at
            return -1
        if self._sought.endswith(part):
            for length, end in self._tails:
                if length >= size:
                    return max(end - size, 0)
            return -1
        return 0

    def in_other_order(self) -> Iterator[str]:
        """Yields the name with two tokens in each other's place, and what has the same characters in another order.

        The latter only where it begins or ends with what the prompt has of the name, at a few places.
        """
        name, head, tail = self.name, self._head, self._tail
        yield from _swapped_tokens(name, head, len(name) - tail)
        sought, data = _utf8(name), self.writing.data
        part = name[:head] if head > tail else name[len(name) - tail :]
        ahead = 0 if head > tail else len(sought) - len(_utf8(part))
        places = self._few_places(part) if len(part) >= max(TOKEN_CHARS, len(name) // 4) else None
        for at in places or ():
            other = data[max(at - ahead, 0) : at - ahead + len(sought)]
            if sum(other) == sum(sought) and sorted(other) == sorted(sought):
                yield other.decode(errors="replace")

    def without_repetition(self) -> Iterator[str]:
        """Yields the name with a part once that it says several times in a row, as far as the prompt may have it."""
        name, head = self.name, self._head
        for size in range(1, min(head, len(name) - head) + 1):
            part, end = name[head - size : head], head
            while name.startswith(part, end):
                end += size
            if end - head >= TOKEN_CHARS:
                yield name[:head] + name[end:]

    def with_one_slip(self) -> Iterable[Slip]:
        """Returns the slips that make the name of one in the prompt: the short ones, or else longer ones."""
        missing = len(self.name) - self._head - self._tail
        is_nearly_there = self._head == len(self.name) - 1  # so that no folder is missing
        if missing <= 0 and not is_nearly_there and (paths := self._with_folders()):
            return paths.values()
        most = _longest_slip(self.name)
        for longest in dict.fromkeys((_SHORT_SLIP, min(TOKEN_CHARS, most), most)):
            if missing > longest:
                continue
            found = self._within(longest).values()
            if near := [slip for slip in found if slip.size <= _LONG_SLIP or _is_group(slip)]:
                return near
        return ()

    def with_two_slips(self) -> Sequence[Slip]:
        """Returns both slips of a long name if the prompt has exactly one that differs from it in two places.

        What lies between the slips is intact, and one of three pieces of the name, or two of five where a slip lies
        across two of them. Those in few places lead to the names to compare.
        """
        name = self.name
        start = self._head + TOKEN_CHARS
        end = len(name) - self._tail - TOKEN_CHARS
        if len(name) < _LEAST_WITH_TWO or (start < end and self._few_places(name[start:end]) == []):
            return ()
        if end - start >= TOKEN_CHARS:
            leading, least = [(start, end)], 2
            intact = [*_halves(0, start, TOKEN_CHARS), *_halves(end, len(name), TOKEN_CHARS)]
        else:
            parts, least = (3, 1) if len(name) < _MANY_PARTS else (5, 2)
            leading = intact = [span for span in pieces_of(name, parts) if self._few_places(name[slice(*span)]) != []]
        found: dict[str, None] = {}
        for span in leading:
            if self._few_places(name[slice(*span)]):
                for place in self._places_of(span, intact, _LONG_SLIP, least):
                    other = self._around(*span, place)
                    found[other if name[-1] in _ENDS else other.rstrip(_ENDS)] = None
        both = [slips for slips in (two_slips(name, other) for other in found) if slips]
        if len(both) != 1 or (len(name) < _SHORT_NAME and not all(slip.is_opaque for slip in both[0])):
            return ()
        return both[0]

    def _with_folders(self) -> dict[str, Slip]:
        """Returns the longer paths of which the name lacks one or two folders."""
        name, writing = self.name, self.writing
        slips: dict[str, Slip] = {}
        for start in range(max(len(name) - self._tail, 1), min(self._head + 1, len(name))):
            before, behind = name[:start], name[start - 1 :]
            if behind[0] not in "/\\":
                continue
            for at in self._places_of((start - 1, len(name)), [(0, start)], _MOST_MISSING):
                ahead = writing.ahead_of(at, len(before) + _MOST_MISSING)
                begin = ahead.rfind(before)
                if begin < 0 or not _is_edge(ahead[:begin][::-1], 0):
                    continue
                slip = Slip(name, start, "", ahead[begin + start :] + behind[0])
                if misses_folder(slip) and _may_end(writing, at + len(_utf8(behind))):
                    slips[slip.source] = slip
        return slips

    def _within(self, longest: int) -> dict[str, Slip]:
        """Returns slips, none longer than the longest, by the name that they were made of.

        A slip begins where at most the longest head in the prompt ends, and ends where at least the longest tail
        begins. So what precedes and what follows it is intact, at least as long as `ahead` and `behind`. If both are
        short, either half of the name is intact all the same.
        """
        name = self.name
        half = (len(name) - longest + 1) // 2
        ahead, behind = max(len(name) - self._tail - longest, 0), max(len(name) - self._head - longest, 0)
        if max(ahead, behind) < half:
            return self._with_head(half, behind, longest) | self._with_tail(half, ahead, longest)
        if not behind or (ahead and self._is_rarer(name[:ahead], name[-behind:])):
            return self._with_head(ahead, behind, longest)
        return self._with_tail(behind, ahead, longest)

    def _with_head(self, length: int, behind: int, longest: int) -> dict[str, Slip]:
        """Returns slips in names that begin with as many characters of the name, and have as many behind any slip."""
        name, writing = self.name, self.writing
        if longest > _SHORT_SLIP and self._few_places(name[:length]) is None:
            return {}
        halves = _halves(length, len(name), longest)
        others = [(len(name) - behind, len(name))] if behind >= halves[0][1] - length else halves
        places = self._places_of((0, length), others, longest)
        rest, size = name[length:], len(_utf8(name[:length]))
        more = len(rest) + longest + 2
        found: dict[str, Slip] = {}
        for window in {writing.behind(at + size, more) for at in places if _may_begin(writing, at)}:
            if aligned := _aligned(rest, window, longest):
                start, end, end_there = aligned
                slip = Slip(name, length + start, rest[start:end], window[start:end_there])
                found[slip.source] = slip
        return found

    def _with_tail(self, length: int, ahead: int, longest: int) -> dict[str, Slip]:
        """Returns slips in names that end with as many characters of the name, and have as many ahead of any slip."""
        name, writing = self.name, self.writing
        if longest > _SHORT_SLIP and self._few_places(name[-length:]) is None:
            return {}
        rest, size = name[-length - 1 :: -1], len(_utf8(name[-length:]))
        halves = _halves(0, len(rest), longest)
        others = [(0, ahead)] if ahead >= halves[0][1] else halves
        places = self._places_of((len(rest), len(name)), others, longest)
        more = len(rest) + longest + 2
        found: dict[str, Slip] = {}
        for window in {writing.ahead_of(at, more)[::-1] for at in places if _may_end(writing, at + size)}:
            if aligned := _aligned(rest, window, longest):
                start, end, end_there = aligned
                slip = Slip(name, len(rest) - end, rest[start:end][::-1], window[start:end_there][::-1])
                found[slip.source] = slip
        return found

    def _places_of(self, part: Span, others: Sequence[Span], more: int, least: int = 1) -> Iterator[int]:
        """Yields where a part of the name stands with others about as far from it as in the name.

        Args:
            part: Of the name.
            others: Of the name.
            more: Characters by which a neighbour may be longer or shorter than the name.
            least: How many of the others have to be there.
        """
        name, data = self.name, self.writing.data
        start, sought = len(_utf8(name[: part[0]])), name[slice(*part)]
        near = [(_utf8(name[slice(*other)]), len(_utf8(name[: other[0]])) - start) for other in others]
        places: Iterable[int] | None = self._few_places(sought)
        if places is None:  # as of a folder that has many files, whose names may be in few places
            rarer = [self._few_places(name[slice(*other)]) for other in others] if least == 1 else [None]
            beside = (
                _near(data, _utf8(sought), place - ahead, more)
                for (_, ahead), few in zip(near, rarer, strict=False)
                for place in few or ()
            )
            places = islice(_found(data, _utf8(sought)), _MOST_PLACES) if None in rarer else sorted({*beside} - {-1})
        for at, _ in zip(places, self._glances, strict=False):
            there = 0
            for other, ahead in near:
                there += _near(data, other, at + ahead, more) >= 0
                if there == least:
                    yield at
                    break

    def _is_rarer(self, part: str, other: str) -> bool:
        """Returns whether a part of the name, rather than another, is the longer or the only one in few places."""
        longer, shorter = (part, other) if len(part) >= len(other) else (other, part)
        is_longer = self._few_places(longer) is not None or self._few_places(shorter) is None
        return is_longer == (longer is part)

    def _few_places(self, part: str) -> Sequence[int] | None:
        """Returns where the writing has a part of the name; None if that is in many places."""
        for common in self._common:
            if part in common:
                return None
        if part not in self._few:
            sought = _utf8(part)
            since = self.since(sought)
            self._few[part] = [*islice(_found(self.writing.data, sought, since), _COMMON)] if since >= 0 else []
            if len(self._few[part]) == _COMMON:
                self._common.append(part)
                return None
        return self._few[part]

    def _around(self, start: int, end: int, place: int) -> str:
        """Returns what stands around a part of the name: all that is joined with it, or as much as the name has.

        Args:
            start: Of the part in the name.
            end: Of the part in the name.
            place: Where it begins in the writing.
        """
        name, writing = self.name, self.writing
        part, end_there = name[start:end], place + len(_utf8(name[start:end]))
        if " " in name:  # other words stand around it
            return f"{writing.ahead_of(place, start)}{part}{writing.behind(end_there, len(name) - end)}"
        return writing.joined(place, end_there, self._signs, len(name) + _LONG_SLIP)


def _is_group(slip: Slip) -> bool:
    """Returns whether a difference is in one word of an opaque name, as a group of a UUID is."""
    differing = slip.said + slip.meant
    return differing.isalnum() and not differing.isalpha() and slip.is_opaque


def _swapped_tokens(name: str, first: int, last: int) -> Iterator[str]:
    """Yields a name with two neighbours among its tokens in each other's place, unless these are two words alone.

    The first of the two begins at `first` or before, and the last of them ends at `last` or behind.
    """
    tokens = [*_TOKEN.finditer(name)]
    least = 2 if name.translate(_SIGNS).isdigit() else 3
    for a, b in pairwise(tokens) if least <= len(tokens) <= _MOST_TOKENS else ():
        if a[0] != b[0] and a.start() <= first and b.end() >= last:
            yield f"{name[: a.start()]}{b[0]}{name[a.end() : b.start()]}{a[0]}{name[b.end() :]}"
    for digits in _LONG_NUMBER.finditer(name):  # whose last token, a shorter one, may have come before the one before
        end, rest = digits.end(), len(digits[0]) % 3
        if end - 3 - rest > first or end < last:
            continue
        yield f"{name[: end - 3 - rest]}{name[end - 3 : end]}{name[end - 3 - rest : end - 3]}{name[end:]}"


def pieces_of(name: str, parts: int) -> list[Span]:
    """Returns where parts of a name of about one length begin and end."""
    return [*pairwise(len(name) * number // parts for number in range(parts + 1))]


def _utf8(part: str) -> bytes:
    return part.encode(errors="replace")


def _found(data: bytes, sought: bytes, since: int = 0) -> Iterator[int]:
    at = find(data, sought, since)
    while at >= 0:
        yield at
        at = find(data, sought, at + 1)


def _longest_slip(name: str) -> int:
    """Returns how long a slip may be such that a neighbour is still near."""
    if len(name) < _SHORTEST_NAME:
        return _SHORT_SLIP
    return 3 if len(name) < _LEAST_WITH_TWO else min(_LONG_WORD, max(4, len(name) // 3))


def _heads(text: bytes, name: bytes) -> list[Span]:
    """Returns ever longer beginnings of a name, short of all of it, that a text has: their lengths and first places.

    Of those of a length in between, the first place is that of the next longer one. It takes a pass or two.
    """
    length = len(name) // 3  # most names share as much or nothing
    if (at := find(text, name[:length])) < 0:
        length = at = 0
    heads = [(length - 1, 0), (length, at)]
    while length < len(name) - 1 and (at := find(text, name[: length + 1], at)) >= 0:
        length += 1
        length += in_common(name[length:-1], text[at + length : at + len(name)])
        heads.append((length, at))
    return heads


def _tails(text: bytes, name: bytes) -> list[Span]:
    """Returns ever longer ends of a name, as `_heads` does, with the places at which they end: in one pass."""
    length = 3  # such as an ending that other files have
    if (at := find(text, name[-length:])) < 0:
        length = at = 0
    tails = [(length - 1, 0), (length, at + length)]
    while length < len(name) - 1 and (at := find(text, name[-length - 1 :], max(at - 1, 0))) >= 0:
        length += 1
        more = in_common(name[-length - 1 : 0 : -1], text[max(at + length - len(name), 0) : at][::-1])
        at, length = at - more, length + more
        tails.append((length, at + length))
    return tails


def _halves(start: int, end: int, longest: int) -> list[Span]:
    """Returns two parts of what holds one slip, of which it leaves one intact; empty if it may be all of it."""
    size = max((end - start - longest + 1) // 2, 0)
    return [(start, start + size), (end - size, end)]


def _near(data: bytes, part: bytes, at: int, more: int) -> int:
    """Returns where a part stands near a place; farther from it if JSON may have escaped what lies between; or -1."""
    reach, at = 2 * more, max(at, 0)
    found = data.find(part, at - reach if at > reach else 0, at + len(part) + reach)
    if found >= 0:
        return found
    reach = more * CHARACTER_BYTES
    start, end = at - reach if at > reach else 0, at + len(part) + reach
    return data.find(part, start, end) if data.find(b"\\u", start, end) >= 0 else -1


def _may_begin(writing: Writing, at: int) -> bool:
    """Returns whether a name may begin at a place."""
    before = writing.data[at - 2 : at]
    if writing.is_json and before == b"\\n":  # as in any list
        return True
    return before[-1:] not in _JOINED or _is_edge(writing.ahead_of(at, 2)[::-1], 0)


def _may_end(writing: Writing, end: int) -> bool:
    """Returns whether a name may end before a place."""
    return writing.data[end : end + 1] not in _JOINED or _is_edge(writing.behind(end, 2), 0)


def _is_edge(text: str, end: int) -> bool:
    """Returns whether a name may end before a place of a text: Chinese, for one, has no blanks around it."""
    if end >= len(text) or not (_is_plain(text[end]) or text[end] in "_.-"):
        return True
    return text[end] in ".-" and not _is_plain(text[end + 1 : end + 2])


def _is_plain(sign: str) -> bool:
    """Returns whether a sign is a letter or digit of ASCII."""
    return sign.isalnum() and sign.isascii()


def _aligned(name: str, window: str, longest: int) -> tuple[int, int, int] | None:
    """Returns the shortest difference between a name and what a window begins with; None if it is none or too long.

    It is where it begins, where it ends in the name, and where in the window.
    """
    start = in_common(name, window)
    best, least = None, 2 * longest + 1
    for said in range(min(longest, len(name) - start) + 1):
        if said >= least:
            break
        tail = name[start + said :]
        last = start + min(longest, least - said - 1) + len(tail)
        at = window.find(tail, start + (said == 0), last)
        while at >= 0 and not _is_edge(window, at + len(tail)):
            at = window.find(tail, at + 1, last)
        if at >= 0:
            best, least = (start, start + said, at), said + at - start
    return best
