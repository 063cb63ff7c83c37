"""The part of a call's arguments that may go out while they grow: always a beginning of arguments that are right."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from dataclasses import replace
from typing import Any, NamedTuple

from serve.guard.core.call_check import ODD_KEYS, open_arguments, suspicion
from serve.guard.core.json_prefix import JsonPrefix
from serve.guard.core.markup import REPLACEMENT, has_markup, unfinished
from serve.guard.core.schema import ListRule, ObjectRule, SchemaOutline, TextRule, WholeRule, names_of
from serve.guard.core.schema_cost import Budget, UnjudgedError, measure
from serve.parsing.strict_json import has_half_character, loads

_LONG = 4096  # characters that come at once: nobody waits for them, so they need not be followed
_LONG_VALUE = 4096  # characters of a value that is judged before its document is whole
_JUDGING_S = 0.005  # of one call's values
_LONG_NUMBER = 300  # characters; what has more may be more than a number can be
_PIECE = 32  # characters of arguments that are all there, of which nobody needs to know more exactly what is sound
_BATCH = 32  # pieces that go out together: less than a second of a slow engine

# Text in a string of which nothing could be markup, an end, or a part of an escape. Most pieces are no more than that.
_QUIET = re.compile(
    r'[^"\\\x00-\x1f<◁\ufffd\ud800-\udfff]*+(?:\\["\\/bfnrt][^"\\\x00-\x1f<◁\ufffd\ud800-\udfff]*+)*+'
).fullmatch
# Escapes behind which markup may hide, or half a character.
_HIDING = re.compile(r"<\\[/u]|◁\\|\\u(?:00[2-7]|25[bBcC]|2581|[fF][fF]5|[dD][89a-fA-F])|[\ud800-\udfff]")


class LivePrefix(JsonPrefix):
    """Follows arguments by their schema, in the same pass that checks that they are JSON.

    It is sound: what it lets out can always be completed to arguments that are right. It need not be complete: where
    it can't tell, the rest waits until the whole call is judged.

    Attributes:
        ready: True once it pays to `take` what may go out.
        stuck: True once the rest must wait for the whole call.
    """

    def __init__(self, outline: SchemaOutline, budget: Budget | None = None) -> None:
        super().__init__(begins="{", lenient=True)
        self.ready = True  # nobody should wait for the beginning
        self.stuck = False
        self._outline = outline
        self._names = names_of(outline.plain)
        self._budget = budget or Budget(_JUDGING_S)
        self._texts: list[str] = []
        self._starts: list[int] = []  # of each text, in characters
        self._read = 0  # characters before the present text
        self._safe = 0  # characters that may go out
        self._taken = 0  # characters that have gone out
        self._due = 0  # number of texts at which more may go out
        self._quiet = False  # in a string, with nothing before the next text that it could be a part of
        self._open: list[_Open] = []  # the brackets whose rules are followed
        self._whole: _WholeValue | None = None  # the value that is judged at its end
        self._growing: _String | None = None  # the one that goes out as it grows
        self._key_start = -1

    @property
    def begun(self) -> bool:
        """True once anything may go out."""
        return self._safe > 0

    def feed(self, text: str) -> None:
        texts = self._texts
        texts.append(text)
        if len(texts) >= self._due:
            self.ready = True
        if not self._quiet or not _QUIET(text):
            self._follow(text)

    def take(self) -> str:
        if not self.stuck:
            self._catch_up(len(self._texts))
        self.ready = False
        self._due = len(self._texts) + _BATCH
        if self._safe == self._taken:
            return ""
        ready = self._between(self._taken, self._safe)
        self._taken = self._safe
        return ready

    def _catch_up(self, end: int) -> None:
        """Counts so many texts, if they have passed without a look at them, which was in the middle of a string."""
        read, starts = self._read, self._starts
        if len(starts) == end:
            return
        for text in self._texts[len(starts) : end]:
            starts.append(read)
            read += len(text)
        self._read = read
        if self._growing is not None:
            self._growing.scanned = self._safe = read

    def _follow(self, text: str) -> None:
        """Reads a text with an eye on the schema."""
        if self.stuck:
            super().feed(text)
            return
        self._catch_up(len(self._texts) - 1)
        self._quiet = False
        self._starts.append(self._read)
        if len(text) > _LONG:
            self._stop()
            super().feed(text)
            return
        place = 0
        while place < len(text) and not self.broken:
            place = self._steps[self._state](self, text, place)
        self._read += len(text)
        if self.broken or (self._whole is not None and self._read - self._whole.start > _LONG_VALUE):
            self._stop()
        elif self._growing is not None and self._state == "string":
            self._scan(self._growing, self._read)
            self._quiet = self._growing.is_quiet

    def _between(self, start: int, end: int) -> str:
        begin = self._starts[-1]
        if start >= begin:  # of the newest text, as nearly always
            return self._texts[len(self._starts) - 1][start - begin : end - begin]
        first = bisect_right(self._starts, start) - 1
        begin = self._starts[first]
        return "".join(self._texts[first:])[start - begin : end - begin]

    def _stop(self) -> None:
        self.stuck = True
        self._whole = self._growing = None

    # What begins and ends, as the steps of the document see it

    def _value(self, text: str, place: int) -> int:
        after = super()._value(text, place)
        if self._state in ("value", "first_sign") or self.broken or self.stuck or self._whole is not None:
            return after  # nothing but space, or nobody asks
        self._begin(text[after - 1], self._read + after - 1)
        return after

    def _key(self, text: str, place: int) -> int:
        after = super()._key(text, place)
        if self._state == "string":
            self._key_start = self._read + after - 1
        return after

    def _string(self, text: str, place: int) -> int:
        after = super()._string(text, place)
        if self.unescaped and not self.stuck:
            self._stop()
        elif self._state in _OUTSIDE and not self.stuck:
            end = self._read + after
            if self._whole is not None:
                self._end_value(end)
            elif self._growing is not None:
                self._end_string(self._growing, end)
            else:
                self._end_key(end)
        return after

    def _literal(self, text: str, place: int) -> int:
        after = super()._literal(text, place)
        if self._state != "literal":
            self._end_value(self._read + after)
        return after

    def _in_number(self, text: str, place: int) -> int:
        after = super()._in_number(text, place)
        if self._state != "number" and not self.broken:
            self._end_value(self._read + after)
        return after

    def _close(self, place: int) -> int:
        after = super()._close(place)
        if self.stuck:
            return after
        if self._whole is not None:
            self._end_value(self._read + after)
        elif not self._open.pop().may_end:
            self._stop()
        elif self._stack:  # the last bracket ends the call, and waits for its verdict
            self._safe = self._read + after
        return after

    def _begin(self, sign: str, start: int) -> None:
        """Begins a value: one to follow, or one to judge at its end."""
        schema = self._open[-1].next() if self._open else self._outline.plain
        rule = self._outline.rule(schema, sign)
        if isinstance(rule, WholeRule):
            if self._open:
                self._whole = _WholeValue(start, rule.schema, sign, len(self._stack) - (sign in "{["))
            else:
                self._stop()
        elif isinstance(rule, TextRule):
            self._growing = _String(start, rule, self._member)
            self._safe = start + 1
        else:
            self._open.append(_OpenObject(rule) if isinstance(rule, ObjectRule) else _OpenList(rule))
            self._safe = start + 1

    @property
    def _member(self) -> str:
        """The name of the member that has begun; empty in a list."""
        inner = self._open[-1] if self._open else None
        return inner.member if isinstance(inner, _OpenObject) else ""

    def _end_key(self, end: int) -> None:
        """Names the member that is next, unless no one would name one so."""
        raw = self._between(self._key_start, end)
        inner = self._open[-1]
        if "<" in raw or REPLACEMENT in raw or _HIDING.search(raw) or not isinstance(inner, _OpenObject):
            self._stop()
            return
        name = json.loads(raw)
        odd = name.startswith(ODD_KEYS) or name in inner.members
        if odd or (len(self._open) == 1 and self._names and name not in self._names):
            self._stop()
        else:
            inner.name(name)

    def _end_value(self, end: int) -> None:
        """Judges the value that has waited for its end, if this is it."""
        whole = self._whole
        if whole is None or len(self._stack) != whole.depth:
            return
        self._whole = None
        if end - whole.start <= _LONG_VALUE and self._is_right(whole, self._between(whole.start, end)):
            self._safe = end
        else:
            self._stop()

    def _is_right(self, whole: _WholeValue, raw: str) -> bool:
        if whole.sign in _NUMBER_SIGNS and (len(raw) > _LONG_NUMBER or math.isinf(float(raw))):
            return False
        if whole.schema is True and whole.sign not in '"[{':
            return True
        try:
            with self._budget:
                value = loads(raw)
                if _is_doubtful(raw, value, self._member):
                    return False
                size = measure(value, math.inf, self._budget.share_s)
                self._budget.admit(self._outline.bound_s(replace(size, depth=size.depth + whole.depth)))
                return self._outline.accepts(whole.schema, value)
        except (ValueError, UnjudgedError):
            return False

    # Strings that go out as they grow

    def _scan(self, string: _String, end: int) -> None:
        """Lets more of a string out, of which all up to `end` has been read, up to what may be markup."""
        if string.doubtful:
            return
        more = self._between(string.scanned, end)
        string.scanned = end
        if string.tail or not _QUIET(more):
            seen = string.tail + more
            tagged = has_markup(seen) or string.closing in seen or "<parameter" in seen
            if tagged or REPLACEMENT in seen or _HIDING.search(seen):
                string.doubtful = True
                return
            length = max(unfinished(seen), string.begins_closing(seen)) if "<" in seen or "◁" in seen else 0
            string.tail = seen[len(seen) - length :]
        if end - string.start > string.rule.most:  # its escapes may have made it longer
            string.doubtful = True
            return
        self._safe = end - len(string.tail)

    def _end_string(self, string: _String, end: int) -> None:
        """Lets the end of a string out, if the string is right."""
        self._growing = None
        self._scan(string, end - 1)
        if string.doubtful or string.tail or string.rule.least > 0:
            raw = self._between(string.start, end)
            value = json.loads(raw)
            if _is_doubtful(raw, value, self._member) or not string.rule.least <= len(value) <= string.rule.most:
                self._stop()
                return
        self._safe = end


def sound_part(outline: SchemaOutline, arguments: str) -> int:
    """Returns how many characters of whole arguments might go out while they grow."""
    prefix = LivePrefix(outline)
    for start in range(0, len(arguments), _PIECE):
        prefix.feed(arguments[start : start + _PIECE])
    return len(prefix.take())


def _is_doubtful(raw: str, value: Any, member: str) -> bool:
    """Returns whether the value of a member holds what makes a whole call suspicious."""
    if REPLACEMENT in raw or has_half_character(raw, value) or (isinstance(value, str) and any(open_arguments(value))):
        return True
    return suspicion(raw, {member: value} if member else value) is not None


_NUMBER_SIGNS = frozenset("-0123456789")
_OUTSIDE = frozenset({"comma", "colon", "end"})  # states of a document behind a string


class _WholeValue(NamedTuple):
    """A value that is judged at its end.

    Attributes:
        sign: Its first character.
        depth: Brackets around it.
    """

    start: int
    schema: Any
    sign: str
    depth: int


class _String:
    """A string that goes out as it grows.

    Attributes:
        rule: What is demanded of it.
        closing: The tag that would close a member of its name.
        scanned: Up to where it was searched for markup.
        tail: What may begin markup at its end.
        doubtful: True if the rest of it waits for its end.
    """

    __slots__ = ("closing", "doubtful", "rule", "scanned", "start", "tail")

    def __init__(self, start: int, rule: TextRule, member: str) -> None:
        self.start = start
        self.rule = rule
        self.closing = f"</{member}" if member else "</>"
        self.scanned = start + 1
        self.tail = ""
        self.doubtful = False

    @property
    def is_quiet(self) -> bool:
        """True if any text that could not be markup may go out at once."""
        return not self.doubtful and not self.tail and self.rule.most == math.inf

    def begins_closing(self, seen: str) -> int:
        """Returns the length of the end of a text that may begin `closing`, or 0."""
        sizes = range(min(len(self.closing) - 1, len(seen)), 0, -1)
        return next((size for size in sizes if seen.endswith(self.closing[:size])), 0)


class _OpenObject:
    """An object that is being followed.

    Attributes:
        may_end: True once it has all that it must have.
        members: The names of those that have begun.
        member: The last of them.
    """

    def __init__(self, rule: ObjectRule) -> None:
        self._rule = rule
        self.members: set[str] = set()
        self.member = ""

    @property
    def may_end(self) -> bool:
        return self._rule.required <= self.members

    def name(self, name: str) -> None:
        self.member = name
        self.members.add(name)

    def next(self) -> Any:
        """Returns the schema of the member that begins."""
        return self._rule.member(self.member)


class _OpenList:
    """A list that is being followed.

    Attributes:
        may_end: True once it has as many items as it must have.
    """

    def __init__(self, rule: ListRule) -> None:
        self._rule = rule
        self._items = 0

    @property
    def may_end(self) -> bool:
        return self._items >= self._rule.least

    def next(self) -> Any:
        """Returns the schema of the item that begins."""
        self._items += 1
        return self._rule.item(self._items - 1)


_Open = _OpenObject | _OpenList
