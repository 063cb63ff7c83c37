"""Near copies: names that a call holds and the prompt does not, but for one slip.

Such a call is valid and perhaps wrong: `weights/kimi-kw/config.json` where the prompt says `kimi-k3`. Names in
arguments are few and short, so they are looked up in the prompt as they are written. Only for one that is not there is
a neighbour searched. A slip leaves most of a name intact, so a prompt without its parts has no neighbour: that shows in
the request's bytes, and most new names do without the prompt's text. StringZilla searches bytes ten times as fast as
`bytes.find`. What a model makes of the prompt on purpose looks like a slip too; `derived_names` has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

from stringzilla import find

from serve.guard.core.argument_names import contents_in, is_spaced, names_in, texts_in
from serve.guard.core.derived_names import (
    is_derived,
    is_opaque,
    is_stray_capital,
    is_torn_path,
    misses_folder,
    says_twice,
)
from serve.guard.core.plain_spelling import plain_spellings, swapped_tokens
from serve.guard.core.prompt_text import PromptText
from serve.guard.core.slip import Slip, in_common
from serve.guard.core.two_slips import may_have_two, two_slips

_MOST_NAMES = 64  # of one answer that are looked up
_MOST_ABSENT = 16  # of them, whose neighbours are searched
_MOST_PLACES = 2048  # of one answer, where a neighbour may stand
_MOST_SCANNED_BYTES = 64_000_000  # of one answer, the body's length for each name that is not said
_SHORT_SLIP = 2  # one character, or two that changed places
_LONG_SLIP = 8  # a token
_SHORT_NAME, _SHORTEST_NAME = 12, 6
_SHORT_WORD = 2  # characters, that stand somewhere in any prompt
_MOST_MISSING = 96  # characters of folders
_MOST_WITH_TWO = 4  # names of one answer in which two slips are looked for
_LEAST_WITH_TWO = 8  # characters of a name in which two slips count
_MANY_PARTS = 20  # characters of a name, from where on it has five pieces to look for
_MOST_WITH_PIECE = 64  # places
_LEAST_ALIKE = 0.75
_ENDS = ".,:-"
_LONG_PROMPT = 10_000  # characters that have most of what three letters in a row may be
_COMMON_PAIRS = """
    ab ac ad ag ai ak al am an ap ar as at av ay bl bo br bu ca ce ch ci ck cl co cr ct de di dr ds ea ec ed ee ef el
    em en er es et ev ew ex fa fe ff fi fo fr ga ge gh gi go gr gu ha he hi ho ia ic id ie if ig il im in io ir is it
    iv ke la ld le li ll lo ly ma mb me mi mm mo mp na nc nd ne nf ng ni nn no ns nt ob oc od of og ok ol om on oo op
    or os ot ou ov ow pa pe ph pi pl po pp pr qu ra rc rd re rg ri rk rl rm rn ro rr rs rt ry sa sc se sh si sk so sp
    ss st su sy ta te th ti to tr ts tt tu ty ub uc ue ui ul un up ur us ut va ve vi wa we wh wi wn wo wr ys
"""


class NearCopies:
    """Finds names in calls that are near copies of names in the prompt.

    Args:
        prompt: Of the request.
    """

    def __init__(self, prompt: PromptText) -> None:
        self._prompt = prompt
        self._names = _MOST_NAMES
        self._absent = _MOST_ABSENT
        self._places = _MOST_PLACES
        self._scanned = 0
        self._with_two_left = _MOST_WITH_TWO

    @cached_property
    def _text(self) -> str:
        return self._prompt.read()

    @cached_property
    def _bytes(self) -> bytes:
        return self._text.encode(errors="replace")

    @cached_property
    def _lower(self) -> str:
        return self._text.casefold()

    def first(self, arguments: Any) -> Slip | None:
        """Returns the slip of the first near copy among the names in a call's arguments; None if there is none.

        Args:
            arguments: As parsed.
        """
        contents = contents_in(arguments)  # an edit has two, and a file that has one may be new
        for name in names_in(arguments):
            self._names -= 1
            if self._names < 0 or self._scanned > _MOST_SCANNED_BYTES:
                return None
            if self._prompt.says(name):
                continue
            self._scanned += len(self._prompt.body)
            if (misspelt := self._misspelt(name)) and not _is_said_right(misspelt, name, arguments):
                return misspelt
            if is_spaced(name) or not self._may_differ(name):
                continue
            slips = self._slips(name, may_have_two=contents == 0)
            if not slips or any(self._is_spelt(slip) or _is_said_right(slip, name, arguments) for slip in slips):
                continue
            if not is_derived(
                slips, creates=contents > 0, creates_file=contents == 1, is_like_a_word=self._is_like_a_word
            ):
                return slips[0]
        return None

    def _may_differ(self, name: str) -> bool:
        """Returns whether the prompt may have a part of a name: of three, one slip leaves one, as do two short ones."""
        body = self._prompt.body
        return not self._prompt.shows(name) or any(find(body, piece.encode()) >= 0 for piece, _ in _pieces(name, 3))

    def _misspelt(self, name: str) -> Slip | None:
        """Returns the slip of a name that the prompt has in plain spelling only."""
        return self._instead(name, plain_spellings(name))

    def _swapped(self, name: str) -> Slip | None:
        """Returns the slip of a name whose tokens the prompt has in another order: `serve/core/guard/path.py`."""
        return self._instead(name, swapped_tokens(name))

    def _instead(self, name: str, sources: Iterable[str]) -> Slip | None:
        """Returns the slip between a name and the first of others that the prompt has instead."""
        source = next(filter(self._prompt.says, sources), None)
        return None if source is None or self._stands_in(self._text, name) else Slip.between(name, source)

    def _slips(self, name: str, *, may_have_two: bool) -> Sequence[Slip]:
        """Returns the slips of a name that is absent and has one nearest neighbour; none if it has not.

        Args:
            name: To look up.
            may_have_two: Whether a name with two slips counts, each of them a token at most.
        """
        self._absent -= 1
        if self._absent < 0:
            return ()
        if may_have_two and (swapped := self._swapped(name)):
            return (swapped,)
        written = self._prompt.body if self._prompt.shows(name) else self._bytes
        head, tail = _intact_ends(written, name)
        if head + tail + _longest_slip(name) >= len(name):
            if self._stands_in(self._text, name):
                return ()
            nearest, *others = sorted(self._neighbours(name, head, tail), key=lambda slip: slip.size) or (None,)
            if nearest is not None:
                return () if others and others[0].size == nearest.size else (nearest,)
        return self._with_two(written, name, head, tail) if may_have_two else ()

    def _is_spelt(self, slip: Slip) -> bool:
        """Returns whether the prompt has the name in other capitals, or elsewhere the word that changed."""
        if (
            any(holds(slip) for holds in (says_twice, misses_folder, is_stray_capital, is_torn_path))
            or (slip.swaps and not slip.said.isalnum())  # both words are there
            or (is_opaque(slip) and not slip.word.isalpha())
        ):
            return False
        if self._stands_in(self._lower, slip.name.casefold()):
            return True
        word = slip.word.casefold()
        return len(word) > _SHORT_WORD and self._stands_in(self._lower, word)

    def _is_like_a_word(self, word: str) -> bool:
        """Returns whether the prompt has any two or three neighbours of a word's letters, as those of its language."""
        letters = word.casefold()
        if len(self._lower) > _LONG_PROMPT:
            return all(letters[at : at + 3] in self._lower for at in range(max(1, len(letters) - 2)))
        return all(pair in _COMMON_PAIRS or pair in self._lower for pair in map("".join, pairwise(letters)))

    def _stands_in(self, text: str, name: str) -> bool:
        """Returns whether a text has a name as it is written, and not as a part of a longer word."""
        for place in self._found(text, name):
            before, after = text[place - 1 : place], text[place + len(name) : place + len(name) + 1]
            if not (before.isalnum() or before == "_" or after.isalnum() or after == "_"):
                return True
        return self._places <= 0  # nobody knows

    def _found(self, text: str, part: str) -> Iterator[int]:
        """Yields where a part stands in a text."""
        place = text.find(part)
        while place >= 0 and self._places > 0:
            self._places -= 1
            yield place
            place = text.find(part, place + 1)

    # Neighbours

    def _neighbours(self, name: str, head: int, tail: int) -> Iterable[Slip]:
        """Returns the slips that make a name of one in the prompt: the short ones, or else those of a token.

        Args:
            name: Of the call.
            head: Length of the longest beginning of the name that the prompt has.
            tail: Of the longest end.
        """
        if paths := self._with_folders(name, head, tail):
            return paths.values()
        for longest in (_SHORT_SLIP, _longest_slip(name)):
            if head + tail + longest >= len(name) and (found := self._within(name, head, tail, longest)):
                return found.values()
        return ()

    def _with_folders(self, name: str, head: int, tail: int) -> dict[str, Slip]:
        """Returns the longer paths of which a name lacks one or two folders.

        Args:
            name: Of the call.
            head: Length of the longest beginning of the name that the prompt has.
            tail: Of the longest end.
        """
        text, slips = self._text, {}
        for start in range(max(len(name) - tail, 1), min(head + 1, len(name))):
            before, stroke = name[:start], name[start - 1]
            if stroke not in "/\\":
                continue
            for at in self._found(text, stroke + name[start:]):
                begin = text.rfind(before, max(at - len(before) - _MOST_MISSING, 0), at)
                if begin < 0 or not _is_edge(text[max(begin - 2, 0) : begin][::-1], 0):
                    continue
                slip = Slip(name, start, "", text[begin + start : at + 1])
                if misses_folder(slip) and _is_edge(text, at + 1 + len(name) - start):
                    slips[slip.source] = slip
        return slips

    def _with_two(self, written: bytes, name: str, head: int, tail: int) -> Sequence[Slip]:
        """Returns both slips of a long name if the prompt has exactly one that differs from it in two places.

        One of three pieces of the name is intact, or two of five where a slip lies across two of them; those that the
        prompt has lead to the names to compare.

        Args:
            written: Has every part of a name that the prompt's text has.
            name: Of the call.
            head: Length of the longest beginning of the name that the prompt has.
            tail: Of the longest end.
        """
        self._with_two_left -= 1
        if len(name) < _LEAST_WITH_TWO or self._with_two_left < 0:
            return ()
        parts, least = (3, 1) if len(name) < _MANY_PARTS else (5, 2)
        intact: list[tuple[str, int]] = []
        for number, (piece, at) in enumerate(_pieces(name, parts)):
            known = at + len(piece) <= head or at >= len(name) - tail
            if known or find(written, piece.encode(errors="replace")) >= 0:
                intact.append((piece, at))
            elif number - len(intact) >= parts - least:
                return ()
        found, signs = dict[str, None](), _signs_of(name)
        for piece, at in intact[least - 1 :]:  # who has so many of them has one of these
            for place in islice(self._found(self._text, piece), _MOST_WITH_PIECE):
                start, end = max(place - at, 0), place - at + len(name)
                if " " not in name:  # otherwise other words stand around it
                    start, end = _around(self._text, place, place + len(piece), signs, len(name) + _LONG_SLIP)
                other = self._text[start:end]
                found[other if name[-1] in _ENDS else other.rstrip(_ENDS)] = None
        others = (other for other in found if may_have_two(name, other))
        close = get_close_matches(name, others, 2, _LEAST_ALIKE)
        both = [slips for slips in (two_slips(name, other) for other in close) if slips]
        if len(both) != 1 or (len(name) < _SHORT_NAME and not all(map(is_opaque, both[0]))):
            return ()
        return both[0]

    def _within(self, name: str, head: int, tail: int, longest: int) -> dict[str, Slip]:
        """Returns slips by the name that they were made of.

        A slip begins where at most the longest head in the prompt ends, and ends where at least the longest tail
        begins. So what precedes and what follows it is intact, at least as long as `before` and `after`. If both are
        short, either half of the name is intact all the same.

        Args:
            name: Of the call.
            head: Length of the longest beginning of the name that the prompt has.
            tail: Of the longest end.
            longest: Slip that counts.
        """
        half = (len(name) - longest + 1) // 2
        before, after = len(name) - tail - longest, len(name) - head - longest
        if max(before, after) < half:
            return self._with_head(name, half, longest) | self._with_tail(name, half, longest)
        if before >= after:
            return self._with_head(name, before, longest)
        return self._with_tail(name, after, longest)

    def _with_head(self, name: str, length: int, longest: int) -> dict[str, Slip]:
        text = self._text
        width = len(name) + longest + 2
        starts = (at for at in self._found(text, name[:length]) if _is_edge(text[max(at - 2, 0) : at][::-1], 0))
        windows = {text[at : at + width] for at in starts}
        slips = (_aligned(name, window, longest) for window in windows if _may_hold(window, name, length, longest))
        return {slip.source: slip for slip in slips if slip is not None}

    def _with_tail(self, name: str, length: int, longest: int) -> dict[str, Slip]:
        text, backward = self._text, name[::-1]
        width = len(name) + longest + 2
        ends = (at + length for at in self._found(text, name[-length:]) if _is_edge(text, at + length))
        windows = {text[max(end - width, 0) : end][::-1] for end in ends}
        slips = (
            _aligned(backward, window, longest) for window in windows if _may_hold(window, backward, length, longest)
        )
        turned = (slip.turned for slip in slips if slip is not None)
        return {slip.source: slip for slip in turned}


def _is_said_right(slip: Slip, name: str, arguments: Any) -> bool:
    """Returns whether the call names both, as one that renames: then it means the other one."""
    return any(slip.source in text.replace(name, "") for text in texts_in(arguments))


def _signs_of(name: str) -> re.Pattern[str]:
    """Returns a pattern of letters, digits and the signs of a name, as many as there are."""
    signs = re.escape("".join(sorted({sign for sign in name if not sign.isalnum()})))
    return re.compile(rf"(?:[^\W_]+|[{signs}]+)*" if signs else r"[^\W_]*")


def _around(text: str, start: int, end: int, signs: re.Pattern[str], longest: int) -> tuple[int, int]:
    """Returns where what stands around a part of a text and matches a pattern begins and ends.

    Args:
        text: That holds the part.
        start: Of the part.
        end: Of the part.
        signs: That go on with it; matches the empty text too.
        longest: Characters that are looked at from either end of the part.
    """
    before = signs.match(text[max(end - longest, 0) : start][::-1])
    behind = signs.match(text, end, start + longest)
    return start - (before.end() if before else 0), behind.end() if behind else end


def _longest_slip(name: str) -> int:
    """Returns how long a slip may be such that a neighbour is still near."""
    if len(name) < _SHORTEST_NAME:
        return _SHORT_SLIP
    return 3 if len(name) < _LEAST_WITH_TWO else min(_LONG_SLIP, max(4, len(name) // 3))


def _pieces(name: str, parts: int) -> list[tuple[str, int]]:
    """Returns a name in parts of about one length, each with the place where it begins."""
    cuts = [len(name) * number // parts for number in range(parts + 1)]
    return [(name[start:end], start) for start, end in pairwise(cuts)]


def _intact_ends(text: bytes, name: str) -> tuple[int, int]:
    """Returns how many characters the longest beginning and the longest end of a name, short of it, have in a text."""
    sought = name.encode(errors="replace")
    head, tail = _longest_head(text, sought), _longest_tail(text, sought)
    ends = sought[:head], sought[len(sought) - tail :]
    begin, end = (len(part.decode(errors="ignore")) for part in ends)  # which may be torn within a character
    return begin, end


def _longest_head(text: bytes, name: bytes) -> int:
    """Returns the length of the longest beginning of a name, short of all of it, that a text has: in one pass."""
    length = at = 0
    while length < len(name) - 1 and (at := find(text, name[: length + 1], at)) >= 0:
        length = in_common(name[:-1], text[at : at + len(name)])
    return length


def _longest_tail(text: bytes, name: bytes) -> int:
    """Returns the length of the longest end of a name, short of all of it, that a text has: in one pass."""
    length = end = 0
    while length < len(name) - 1 and (at := find(text, name[-length - 1 :], max(end - length, 0))) >= 0:
        end = at + length + 1
        length = in_common(name[:0:-1], text[max(end - len(name), 0) : end][::-1])
    return length


def _may_hold(window: str, name: str, length: int, longest: int) -> bool:
    """Returns whether a window has, beside the first characters of a name, one of the other two parts of it."""
    quarter = max((len(name) - length - longest + 1) // 2, 1)
    return name[length : length + quarter] in window or name[-quarter:] in window


def _is_edge(text: str, end: int) -> bool:
    """Returns whether a name may end before a place of a text."""
    if end >= len(text) or not (text[end].isalnum() or text[end] in "_.-"):
        return True
    return text[end] in ".-" and not text[end + 1 : end + 2].isalnum()


def _aligned(name: str, window: str, longest: int) -> Slip | None:
    """Returns the shortest difference between a name and what a window begins with; None if it is none or too long."""
    start = in_common(name, window)
    if name[start + longest :] not in window[start:]:  # which is behind any slip
        return None
    best: Slip | None = None
    for said in range(min(longest, len(name) - start) + 1):
        tail = name[start + said :]
        for meant in range(min(longest, len(window) - start) + 1):
            if said + meant == 0 or (best and said + meant >= len(best.said) + len(best.meant)):
                continue
            if window.startswith(tail, start + meant) and _is_edge(window, start + meant + len(tail)):
                best = Slip(name, start, name[start : start + said], window[start : start + meant])
    return best
