"""Near copies: names that a call holds and the prompt does not, but for one slip.

Such a call is valid and perhaps wrong: `weights/kimi-kw/config.json` where the prompt says `kimi-k3`. Names in
arguments are few and short, so they are looked up in the prompt as they are written. Only for one that is not there is
a neighbour searched, where parts of the name that one slip leaves stand together, and in the request's bytes: the
prompt is decoded only where JSON may hide a name. StringZilla searches bytes ten times as fast as `bytes.find`. What a
model makes of the prompt on purpose looks like a slip too; `derived_names` has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise, repeat
from typing import Any

from serve.guard.core.argument_names import contents_in, is_spaced, names_in, plain_spellings, texts_in
from serve.guard.core.derived_names import (
    is_derived,
    is_of_domain,
    is_stray_capital,
    is_torn_path,
    misses_folder,
    says_on,
    says_twice,
)
from serve.guard.core.neighbours import Neighbours
from serve.guard.core.prompt_text import PromptText, Writing, in_capitals
from serve.guard.core.slip import TOKEN_CHARS, Slip

_MOST_NAMES = 64  # of one answer that are looked up
_MOST_ABSENT = 16  # of them, whose neighbours are searched
_MOST_GLANCES = 1024  # of one answer, at places where a neighbour might stand
_MOST_SCANNED_BYTES = 64_000_000  # of one answer, the body's length for each name that is not said
_SHORT_WORD = 2  # characters, that stand somewhere in any prompt
_MOST_WITH_TWO = 4  # names of one answer in which two slips are looked for
_LONG_PROMPT = 10_000  # bytes that have most of what three letters in a row may be
_LABELS = re.compile(r"(?:[^\W_]|[-.])*")  # of a host
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
        self._glances = repeat(None, _MOST_GLANCES)
        self._scanned = 0
        self._with_two_left = _MOST_WITH_TWO

    def first(self, arguments: Any) -> Slip | None:
        """Returns the slip of the first near copy among the names in a call's arguments; None if there is none.

        Paths of Windows have `/` for each backslash in it.

        Args:
            arguments: As parsed.
        """
        contents = None  # an edit has two, and a file that has one may be new
        for name in names_in(arguments):
            self._names -= 1
            if self._names < 0 or self._scanned > _MOST_SCANNED_BYTES:
                return None
            if self._prompt.says(name):
                continue
            self._scanned += len(self._prompt.body)
            if contents is None:
                contents = contents_in(arguments)
            prompt = self._prompt
            if "\\" in name:
                prompt, name = prompt.in_strokes, _in_strokes(name)
            if slip := self._slip_of(name, prompt, arguments, contents):
                return slip
        return None

    def _slip_of(self, name: str, prompt: PromptText, arguments: Any, contents: int) -> Slip | None:
        """Returns the slip of a name that the prompt does not have as the call writes it; None if it is meant.

        Args:
            name: To look up.
            prompt: To look it up in.
            arguments: Of the call.
            contents: How many texts of files these have.
        """
        if prompt is not self._prompt and prompt.says(name):
            return None
        misspelt = _instead(name, plain_spellings(name), prompt)
        if misspelt is not None and not _are_said_right([misspelt], name, arguments):
            return misspelt
        self._absent -= 1
        if is_spaced(name) or self._absent < 0:
            return None
        neighbours = Neighbours(name, prompt.writing_of(name), self._glances)
        slips = self._slips(neighbours, prompt, may_have_two=contents == 0)
        if not slips or _are_said_right(slips, name, arguments):
            return None
        if is_derived(slips, creates=contents > 0, creates_file=contents == 1, is_like_a_word=self._is_like_a_word):
            return None
        is_meant = any([_is_spelt(slip, neighbours.writing) for slip in slips])
        return None if is_meant or not _is_in_text(slips[0], neighbours, prompt) else slips[0]

    def _slips(self, neighbours: Neighbours, prompt: PromptText, *, may_have_two: bool) -> Sequence[Slip]:
        """Returns the slips of a name that is absent and has one nearest neighbour; none if it has not.

        Args:
            neighbours: Of the name.
            prompt: To look up.
            may_have_two: Whether a name with two slips counts, each of them a token at most.
        """
        name = neighbours.name
        nearest, *others = sorted(neighbours.with_one_slip(), key=lambda slip: slip.size) or (None,)
        if nearest is None or nearest.size >= TOKEN_CHARS:
            if repeated := _instead(name, neighbours.without_repetition(), prompt):
                return (repeated,)
            may_have_two = may_have_two and not neighbours.is_of_two_parts
            if may_have_two and (swapped := _instead(name, neighbours.in_other_order(), prompt)):
                return (swapped,)
        if nearest is not None:
            return () if others and others[0].size == nearest.size else (nearest,)
        self._with_two_left -= may_have_two
        return neighbours.with_two_slips() if may_have_two and self._with_two_left >= 0 else ()

    def _is_like_a_word(self, word: str) -> bool:
        """Returns whether the prompt has any two or three neighbours of a word's letters, as those of its language."""
        letters, writing = word.casefold(), self._prompt.writing
        if len(writing.data) > _LONG_PROMPT:
            return all(writing.has_uncased(letters[at : at + 3]) for at in range(max(1, len(letters) - 2)))
        return all(pair in _COMMON_PAIRS or writing.has_uncased(pair) for pair in map("".join, pairwise(letters)))


def _instead(name: str, sources: Iterable[str], prompt: PromptText) -> Slip | None:
    """Returns the slip between a name and the first of others that the prompt has instead."""
    source = next(filter(prompt.says, sources), None)
    return None if source is None or prompt.writing_of(name).says(name) else Slip.between(name, source)


def _is_in_text(slip: Slip, neighbours: Neighbours, prompt: PromptText) -> bool:
    """Returns whether the prompt's text has the source of a slip, and not the name."""
    is_body = neighbours.writing is prompt.writing
    since = max(neighbours.since(slip.before.encode(errors="replace")), 0) if is_body else 0
    has_source = prompt.shows(slip.source) and prompt.writing.has_within(slip.source, since)
    return (has_source or prompt.text.has(slip.source)) and (is_body or not prompt.text.says(slip.name))


def _is_spelt(slip: Slip, writing: Writing) -> bool:
    """Returns whether the prompt has the name in other capitals, or elsewhere the word that changed."""
    word = _place_of(slip)
    if not word.isalpha() and slip.is_opaque:
        return False
    spellings = [*writing.spellings_of(word)]
    if (
        not spellings
        or says_twice(slip)
        or says_on(slip)
        or misses_folder(slip)
        or is_stray_capital(slip)
        or is_torn_path(slip)
        or (slip.swaps and not slip.said.isalnum())  # both words are there
        or (not slip.said and not slip.meant[0].isalnum() and not slip.behind[:1].isalnum())  # the word is the same
    ):
        return False
    if any(writing.says(name) for name in in_capitals(slip.name) if any(word in name for word in spellings)):
        return True
    return len(word) > _SHORT_WORD and any(map(writing.says, spellings))


def _place_of(slip: Slip) -> str:
    """Returns the word that holds a difference; of an address the whole host."""
    if is_of_domain(slip):
        return slip.name
    if "@" not in slip.before and (":" not in slip.before or "/" in slip.before.partition("://")[2]):
        return slip.word
    return slip.said.join(slip.around(_LABELS))


def _are_said_right(slips: Sequence[Slip], name: str, arguments: Any) -> bool:
    """Returns whether the call names both, as one that renames: then it means the other one."""
    texts = "\n".join([text for text in texts_in(arguments) if text != name])
    if not texts:
        return False
    others = f"{texts}\n{_in_strokes(texts)}".replace(name, "")
    return any([slip.source in others for slip in slips])


def _in_strokes(text: str) -> str:
    return text.replace("\\\\", "\\").replace("\\", "/")
