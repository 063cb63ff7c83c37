"""Ids of a conversation's calls in the form that Kimi's chat template needs, `functions.NAME:N`, and of their results.

The template takes a call's name from its id, and the model sees both ids. So each call needs one of its own that names
its tool, and each result the id of the call that it answers. (The ids that clients get are made elsewhere: see
`ClientView._unique_id`.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_FORM = re.compile(r"functions\.(?P<name>.+):\d+")


@dataclass
class _SameId:
    """The calls of one turn that a client gave the same id; their results come in the order of the calls.

    Attributes:
        turn: Number of the turn.
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

    def __init__(self) -> None:
        self._kept: set[str] = set()  # ids that one call keeps
        self._taken: set[str] = set()  # ids that no other call may get
        self._calls = 0
        self._next = 0  # the number that a new id gets, if it is free
        self._turn = 0
        self._same: dict[str, _SameId] = {}

    def note_call(self, identity: str, name: str) -> None:
        """Notes a call that will come."""
        if _fits(identity, name):
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
        if identity in self._kept and _fits(identity, name):
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
        while (new := f"functions.{name}:{self._next}") in self._taken:
            self._next += 1
        self._next += 1
        self._taken.add(new)
        return new


def _fits(identity: str, name: str) -> bool:
    match = _FORM.fullmatch(identity)
    return match is not None and match["name"] == name
