"""Repair of a conversation's history: one malformed call of an earlier turn must not spoil every later turn.

vLLM parses the arguments of every earlier call and answers 400 when one is not JSON; a client that keeps its history
would get that 400 for ever. Kimi's chat template takes a call's name from its id, `functions.NAME:N`, and the model
sees the ids of calls and of results; Mistral's tokenizers up to version 11 and their templates refuse any id but nine
letters and digits. So each call needs an id of its own in that form, and each result the id of the call that it
answers. (The ids that clients get are made elsewhere: see `ClientView._unique_id`.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from serve.guard.core.json_prefix import closing_brackets, open_after
from serve.parsing.arguments import means_nothing
from serve.parsing.strict_json import loads

UNPARSED_KEY = "_unparsed_arguments"  # holds arguments that can't be completed: the model still sees what it wrote
_SPACE = " \t\n\r"
_ESCAPE = "\\u"
_DIGITS = "0123456789"
# Python reads no longer integer.
_MOST_DIGITS = 4300
# A few milliseconds for arguments made to be slow. Longer ones that are malformed are not completed, but kept whole.
_MOST_COMPLETED_CHARS = 64 * 1024
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_IN_STRING = ('"', '": null')
_OUTSIDE = ("", "null", ": null", '"": null')


class IdForm(NamedTuple):
    """The ids of calls that a model's chat template accepts.

    Attributes:
        fits: Matches one; it may hold the tool's name.
        spelling: Of a new one, by the tool's name and a number.
    """

    fits: re.Pattern[str]
    spelling: str


ID_FORMS = {
    "kimi_k2": IdForm(re.compile(r"functions\.(?P<name>.+):\d+"), "functions.{name}:{number}"),
    "mistral": IdForm(re.compile(r"[A-Za-z0-9]{9}"), "{number:09d}"),
}
"""By the model's grammar; the others take any id."""


class _Object(msgspec.Struct, gc=False):
    """Any object; its members are checked and not kept."""


_object = msgspec.json.Decoder(_Object)


class HistoryRepair:
    """One pass over a conversation, call after call.

    With an `id_form`, each call gets an id of its own in that form, and its results as well.

    Attributes:
        arguments: Calls whose arguments were malformed.
        ids: Calls whose ids did not have the form that the template needs, or were another call's.
        history_ids: The ids, if they are repaired. Note all calls and results with it before the pass.
    """

    def __init__(self, id_form: IdForm | None = None) -> None:
        self.arguments = 0
        self.ids = 0
        self.history_ids = None if id_form is None else HistoryIds(id_form)

    @property
    def clean(self) -> bool:
        return not (self.arguments or self.ids)

    def call(self, call: Any) -> Any:
        """Returns a call that engines accept: the very same object if it is one, or has a shape that is not OpenAI's.

        Valid JSON is never touched, not even its spacing.
        """
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            return call
        arguments = function.get("arguments")
        if isinstance(arguments, str) and not _is_object(arguments):
            self.arguments += 1
            call = {**call, "function": {**function, "arguments": completed(arguments)}}
        if self.history_ids is None:
            return call
        old = call.get("id")
        new = self.history_ids.call(id_text(old), str(function.get("name", "")))
        if new == old:
            return call
        self.ids += 1
        return {**call, "id": new}

    def result_id(self, call_id: Any) -> Any:
        """Returns the id by which a result refers to its call."""
        if self.history_ids is None:
            return call_id
        given = id_text(call_id)
        new = self.history_ids.result(given)
        return call_id if new == given else new


def id_text(identity: Any) -> str:
    """Returns an id as text; some clients count with numbers, or leave it out."""
    return "" if identity is None else str(identity)


def completed(text: str) -> str:
    """Returns malformed arguments as a JSON object.

    A spelling of no arguments becomes the empty object. Text that begins an object is completed where it was cut, so
    that the model sees its call almost as it meant it. Any other text is kept whole under one key, and so is a text too
    long to look for its cut.
    """
    if means_nothing(text):
        return "{}"
    ending = _ending(text) if len(text) <= _MOST_COMPLETED_CHARS else None
    return json.dumps({UNPARSED_KEY: text}, ensure_ascii=False) if ending is None else text + ending


def _ending(text: str) -> str | None:
    """Returns the text that completes the beginning of an object; None if nothing short does."""
    place = len(text)
    try:
        loads(text + " ")  # without the space, Python calls an escape at the very end malformed
    except json.JSONDecodeError as error:
        place = error.pos
    except ValueError:
        return None
    in_string = text.startswith('"', place)
    if text[place:].strip(_SPACE) and not in_string:
        return None
    still_open = open_after((), _STRING.sub("", text[:place]))
    if still_open is None:
        return None
    closing = closing_brackets(still_open)
    for ending in _IN_STRING if in_string else _OUTSIDE:
        if _is_object(text + ending + closing):
            return ending + closing
    return None


def _is_object(text: str) -> bool:
    """Returns True if engines, which are written in Python, read an object."""
    try:
        _object.decode(text)
    except (msgspec.DecodeError, RecursionError):
        sound = False
        odd = _ESCAPE in text  # Python reads half surrogate pairs
    else:
        sound = True
        odd = _has_long_digits(text)
    if not odd or len(text) > _MOST_COMPLETED_CHARS:
        return sound
    try:
        return isinstance(loads(text), dict)
    except ValueError:
        return False


def _has_long_digits(text: str) -> bool:
    """Returns True if more digits stand together than Python reads as a number; looks only where none can be missed."""
    for place in range(_MOST_DIGITS, len(text), _MOST_DIGITS):
        before, after = text[place - _MOST_DIGITS : place], text[place : place + _MOST_DIGITS + 1]
        digits = len(before) - len(before.rstrip(_DIGITS)) + len(after) - len(after.lstrip(_DIGITS))
        if after[0] in _DIGITS and digits > _MOST_DIGITS:
            return True
    return False


@dataclass
class _SameId:
    """The calls of one turn that a client gave the same id; their results come in the order of the calls.

    Attributes:
        ids: The calls' ids from now on.
        answered: How many of them have a result.
    """

    turn: int
    ids: list[str] = field(default_factory=list)
    answered: int = 0


class HistoryIds:
    """The ids of one conversation.

    Note all its calls and results first: an id that stays must not be given to another call before it. Then go through
    the conversation again in the same order.
    """

    def __init__(self, form: IdForm) -> None:
        self._form = form
        self._kept: set[str] = set()  # ids that one call keeps
        self._taken: set[str] = set()  # ids that no other call may get
        self._calls = 0
        self._next = 0  # the number that a new id gets, if it is free
        self._turn = 0
        self._same: dict[str, _SameId] = {}

    def note_call(self, identity: str, name: str) -> None:
        if self._fits(identity, name):
            self._kept.add(identity)
            self._taken.add(identity)

    def note_result(self, identity: str) -> None:
        """Notes a result that will come; if its call is gone, it must not become the result of another."""
        self._taken.add(identity)

    def begin_turn(self) -> None:
        """Begins the calls of another turn: results that follow answer these."""
        self._turn += 1

    def call(self, identity: str, name: str) -> str:
        """Returns the id of the next call: its own if it has the form and is the first to have it, or a new one."""
        self._next = max(self._next, self._calls)  # Kimi counts calls over the whole conversation
        self._calls += 1
        if identity in self._kept and self._fits(identity, name):
            self._kept.remove(identity)
            new = identity
        else:
            new = self._free(name)
        same = self._same.get(identity)
        if same is None or same.turn != self._turn:
            same = self._same[identity] = _SameId(self._turn)
        same.ids.append(new)
        return new

    def result(self, identity: str) -> str:
        """Returns the id of the call that the next result answers; as it is, if there is no such call."""
        same = self._same.get(identity)
        if same is None:
            return identity
        place = min(same.answered, len(same.ids) - 1)
        same.answered += 1
        return same.ids[place]

    def _free(self, name: str) -> str:
        while (new := self._form.spelling.format(name=name, number=self._next)) in self._taken:
            self._next += 1
        self._next += 1
        self._taken.add(new)
        return new

    def _fits(self, identity: str, name: str) -> bool:
        match = self._form.fits.fullmatch(identity)
        return match is not None and match.groupdict().get("name", name) == name
