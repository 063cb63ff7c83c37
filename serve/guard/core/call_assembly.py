"""The calls of one choice as far as they have arrived, and which of them an entry of a delta belongs to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from serve.guard.core.chunk import TokenDetails
from serve.guard.core.json_prefix import JsonPrefix
from serve.parsing.arguments import may_mean_nothing, means_nothing
from serve.parsing.strict_json import is_same, loads

_MOST_PIECES = 32  # of a spelling of no arguments
_BEGINNINGS = '{"'  # of an object, or of a text that holds one
Declares = Callable[[str], bool]
MAX_CALLS = 512  # of a choice: looking for defects takes time for each, and again for each


class Entry(NamedTuple):
    """One entry of a delta's `tool_calls`; what is missing or null is empty.

    Attributes:
        place: The engine's index of the call; None if it gives none.
        name: Of the tool, or a part of it.
    """

    place: int | None
    id: str
    name: str
    arguments: str

    @classmethod
    def of(cls, raw: Any) -> Entry | None:
        """Returns an entry as engines send it, arguments as an object and ids as numbers included; None for others."""
        if not isinstance(raw, dict):
            return None
        place, identity, function = raw.get("index"), raw.get("id"), raw.get("function")
        name = arguments = None
        if isinstance(function, dict):
            name, arguments = function.get("name"), function.get("arguments")
        elif function is not None:
            return None
        if isinstance(arguments, (dict, list)):
            arguments = _encoded(arguments)
        if type(identity) is int:
            identity = str(identity)
        if place is not None and not isinstance(place, int):
            return None
        for text in (identity, name, arguments):
            if text is not None and not isinstance(text, str):
                return None
        return cls(place, identity or "", name or "", arguments or "")

    @property
    def opens_object(self) -> bool:
        """True if its arguments begin with the bracket of an object."""
        return self.arguments.lstrip()[:1] == "{"


def _encoded(arguments: Any) -> str:
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:
        return "nested too deeply"  # which is a defect of the call


def _says_the_same(one: str, other: str) -> bool:
    """Returns whether two texts are JSON of the same value; whoever says a call twice may encode it in another way."""
    try:
        return is_same(loads(one), loads(other))
    except ValueError:
        return False


@dataclass
class HeldCall:
    """A call as far as it has arrived.

    Attributes:
        index: Its number in the order in which the calls of the choice began.
        place: The engine's index for it.
        id: Of the call; may be empty.
        tokens: What the engine says of its tokens.
    """

    index: int
    place: int = 0
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    prefix: JsonPrefix = field(default_factory=lambda: JsonPrefix(begins=_BEGINNINGS, lenient=True))
    tokens: list[TokenDetails] = field(default_factory=list)

    def feed(self, entry: Entry, declares: Declares) -> None:
        """Adds an entry. A late or split name is put together; one that is said again is not."""
        if entry.name and not (self.name and (self.pieces or self._is_named_by(entry, declares))):
            self.name += entry.name
        self.id = self.id or entry.id
        if not self.is_repeated_by(entry):
            self.feed_arguments(entry.arguments)

    def _is_named_by(self, entry: Entry, declares: Declares) -> bool:
        """Returns whether an entry says the whole name again, and not another part like the first."""
        return entry.name == self.name and (entry.id == self.id != "" or declares(self.name))

    def feed_arguments(self, arguments: str) -> None:
        if arguments:
            self.pieces.append(arguments)
            self.prefix.feed(arguments)

    def follow(self, prefix: JsonPrefix) -> None:
        """Reads the arguments by another prefix from the beginning on."""
        self.prefix = prefix
        for piece in self.pieces:
            prefix.feed(piece)

    def is_repeated_by(self, entry: Entry) -> bool:
        """Returns whether an entry says the whole call once more, as some servers do at its end."""
        if not entry.name or entry.id != self.id or not self.prefix.complete:
            return False
        if entry.id == "" or entry.name != self.name:
            return False
        return entry.arguments == self.arguments or _says_the_same(entry.arguments, self.arguments)

    def is_followed_by(self, entry: Entry) -> bool:
        """Returns whether an entry with this call's index begins another one: not all engines count their calls."""
        new_id = entry.id != self.id and "" not in (entry.id, self.id)
        if not entry.name:
            return new_id and self.prefix.complete and entry.opens_object
        # some servers make up an id for every delta, and repeat the name
        if not self.pieces or not self.name:
            return new_id and self.name != "" and (entry.name != self.name or not entry.arguments)
        if self.incomplete:
            return new_id and (entry.name != self.name or entry.opens_object or not entry.arguments)
        return new_id or entry.name != self.name or (entry.opens_object and not self.is_repeated_by(entry))

    @property
    def incomplete(self) -> bool:
        """True if the arguments so far begin what could be arguments, and do not end it."""
        if self.prefix.broken:
            return may_mean_nothing(self.arguments) and not self.is_empty
        return not self.prefix.complete

    @property
    def broken(self) -> bool:
        """True if nothing that may follow makes the arguments sound."""
        if not self.prefix.broken:
            return False
        return len(self.pieces) > _MOST_PIECES or not may_mean_nothing("".join(self.pieces))

    @property
    def is_empty(self) -> bool:
        """True if the arguments are some spelling of none."""
        return means_nothing("".join(self.pieces))

    @property
    def begins_object(self) -> bool:
        """True if the arguments begin as those of a call do."""
        return next(filter(None, map(str.lstrip, self.pieces)), "")[:1] == "{"

    @property
    def is_whole(self) -> bool:
        """True if neither the name nor the arguments need more."""
        return self.name != "" and self.prefix.complete

    @property
    def arguments(self) -> str:
        """The arguments' text; an engine that writes nothing for a call without arguments means `{}`."""
        return "".join(self.pieces) or "{}"

    @cached_property
    def value(self) -> Any:
        """The parsed arguments of a complete call.

        Raises:
            ValueError: They are not JSON.
        """
        return loads(self.arguments)

    def equals(self, other: HeldCall) -> bool:
        """Returns whether it is a whole call to the same tool with the same arguments."""
        try:
            return self.is_whole and self.name == other.name and is_same(self.value, other.value)
        except ValueError:
            return False

    def replace_arguments(self, arguments: str) -> None:
        """Puts what a spelling means in its place."""
        self.pieces = [arguments]
        self.prefix = JsonPrefix(begins=_BEGINNINGS)
        self.prefix.feed(arguments)
        self.__dict__.pop("value", None)


class CallAssembly:
    """Puts calls together from the entries of deltas: in turns, in one chunk, numbered in any way or not at all.

    Clients go by the index. Engines do not always: an index may be missing, the same for all, or some other number. So
    an entry belongs to the call of its id and index, or else to the latest one of its index; without an index to the
    call of its id, or the latest one. It begins another call if that one cannot go on so (`HeldCall.is_followed_by`).

    Args:
        declares: Returns whether a tool of the request has a name.

    Attributes:
        calls: All calls, in the order in which they began.
    """

    def __init__(self, declares: Declares) -> None:
        self._declares = declares
        self.calls: list[HeldCall] = []
        self._by_place: dict[int, HeldCall] = {}
        self._by_id: dict[str, HeldCall] = {}
        self._first_by_id: dict[str, HeldCall] = {}

    @property
    def newest(self) -> HeldCall | None:
        return self.calls[-1] if self.calls else None

    def take(self, entry: Entry) -> HeldCall | None:
        """Adds an entry to its call, and returns that; None if there are too many calls."""
        if not (entry.id or entry.name) and entry.place is not None and (call := self._by_place.get(entry.place)):
            call.feed_arguments(entry.arguments)  # as nearly all entries are
            return call
        call = self._continued(entry)
        if call is None:
            if len(self.calls) == MAX_CALLS:
                return None
            number = len(self.calls)
            call = HeldCall(number, number if entry.place is None else entry.place)
            self.calls.append(call)
            self._by_place[call.place] = call
        call.feed(entry, self._declares)
        if call.id:
            self._by_id[call.id] = call
            self._first_by_id.setdefault(call.id, call)
        return call

    def first_of(self, call: HeldCall) -> HeldCall:
        """Returns the first call with the id of this one, which may be itself."""
        return self._first_by_id.get(call.id, call)

    def is_said_again(self, call: HeldCall) -> bool:
        """Returns whether a call is one that came before, which some servers say again under another index."""
        first = self.first_of(call)
        return first is not call and first.equals(call)

    def _continued(self, entry: Entry) -> HeldCall | None:
        """Returns the call that an entry goes on with; None if it begins one."""
        if entry.place is None:
            named = self._by_id.get(entry.id)
            call = named or self.newest
        else:
            call = self._by_place.get(entry.place)
            named = self._by_id.get(entry.id) if entry.id else None
            if named is not None and (named.place == entry.place or (call is None and not entry.name)):
                call = named
        return None if call is None or call.is_followed_by(entry) else call
