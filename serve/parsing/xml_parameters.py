"""Calls whose arguments have tags of their own: what stands around their values, which are read in `xml_value.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.events import ViolationKind
from serve.parsing.hermes import Hermes
from serve.parsing.json_scanner import JsonScanner
from serve.parsing.machine import State
from serve.parsing.values import UntypedValue
from serve.parsing.xml_value import XmlValue


class TaggedArguments(XmlValue):
    """A call whose arguments have tags of their own."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._name = ""
        self._given: set[str] = set()
        self._scanner = JsonScanner()
        self._blanks: list[str] = []  # at the end of an object of all arguments

    def start_by_tags(self) -> None:
        """Begins a call whose name is known."""
        self.enter_call()
        self._given = set()
        self.out.by_tags = True
        self.out.start_call(f"call_{self.out.calls}", self._name)

    def no_parameter(self, raw: str) -> State | None:
        """Takes text, or a marker, where the first parameter is due."""
        raw = self.keep_space(raw)
        return self.back_to_prose(raw, self.fault()) if raw else None

    def object_or_prose(self, raw: str) -> State | None:
        """Takes text where the first parameter is due: one JSON object of all arguments, or nothing like a call."""
        raw = self.keep_space(raw)
        if not raw.startswith("{"):
            return self.no_parameter(raw)
        self.start_by_tags()
        self._scanner = JsonScanner()
        self._blanks = []
        self.read_object(raw)
        return State.ARGUMENTS

    def read_object(self, raw: str) -> None:
        """Reads on in an object of all arguments. Blanks at its end are none of them."""
        self.out.by_tags = False
        self.raw.append(raw)
        self.in_string = self._scanner.feed_strings(raw)
        body = raw.rstrip()
        self._blanks.append(body)
        if body:
            self.out.arguments("".join(self._blanks))
            self._blanks = []
        self._blanks.append(raw[len(body) :])

    def cut_function(self, raw: str) -> State:
        self.enter_call()
        return self.release("unfinished_call")

    def cut_call(self, raw: str) -> State:
        """Ends the output inside the call; its arguments stay open, so that nobody takes them for complete."""
        if not self._given:
            self.out.arguments("{")
        self.out.end_call(self.begin, "".join(self.raw), "unfinished_call")
        self.raw = []
        return State.CONTENT


class XmlParameters(TaggedArguments, Hermes):
    """Actions on a call in the block, in formats that fall back on Hermes' objects now and then.

    Attributes:
        verbatim: A value is all that stands between its tags; else one newline on each side is markup.
        implied: The markers, by kind, that also end the value that they stand in, and where they lead.
    """

    verbatim: ClassVar[bool] = False
    implied: ClassVar[Mapping[str, State]] = {"end_function": State.AFTER, "end_block": State.CONTENT}

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._flaw: ViolationKind | None = None
        self._value: UntypedValue = UntypedValue(None, {})
        self._key = ""

    # Around the parameters

    def start_by_tags(self) -> None:
        self._flaw = None
        super().start_by_tags()

    def end_object(self, raw: str) -> State:
        """Takes the end of a call whose arguments are one object."""
        self.raw.append(raw)
        self._end_object(self._flaw)
        return self.implied[self.lexicon.kind(raw)]

    def end_object_at_next(self, raw: str) -> State:
        """Takes the next call, or the end of all, where the end of such a call is missing."""
        self._end_object("unfinished_call")
        return self.dispatch(raw, State.CONTENT)

    def cut_arguments(self, raw: str) -> State:
        """Ends the output in such an object, or right behind it."""
        self._end_object("unfinished_call")
        return State.CONTENT

    def _end_object(self, fault: ViolationKind | None) -> None:
        self.in_string = False
        self.out.end_call(self.begin, "".join(self.raw), fault)
        self.raw = []

    def space_between(self, raw: str) -> None:
        self.raw.append(raw)

    def end_by_tags(self, state: State) -> State:
        """Ends the call and reports its flaw, if it has one; returns `state`."""
        self.out.arguments("}" if self._given else "{}")
        self.out.end_call(self.begin, "".join(self.raw), self._flaw)
        self.raw = []
        return state

    # A value

    def begin_value(self, key: str, raw: str) -> State:
        """Begins the value of a parameter at the marker `raw`."""
        self.raw.append(raw)
        return self.begin_value_behind(key, raw, self.position, self.position + len(raw))

    def begin_value_behind(self, key: str, tag: str, place: int, begin: int) -> State:
        """Begins the value of a parameter. `tag` is the last marker in front of it, which stands at `place`."""
        if key in self._given:
            self.report("duplicate_argument", place, tag)
        if self.tools.properties(self._name) is None and not self.tools.may_have(self._name, key):
            self.report("unknown_argument", place, tag)
        opening = ", " if self._given else "{"
        self._given.add(key)
        self._value = UntypedValue(self.tools.parameter(self._name, key), self.tools.schema(self._name), self.verbatim)
        self._key = key
        self.begin_text(self._value, begin)
        self.out.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        return State.VALUE

    def may_follow(self, key: str) -> bool:
        """Returns whether a parameter of this name may come next."""
        properties = self.tools.properties(self._name)
        return key not in self._given and (
            self.tools.may_have(self._name, key) if properties is None else key in properties
        )

    def close_value(self) -> State:
        """Takes the tag held back as real."""
        end = self.implied.get(self._candidate)
        closed = end is None
        self.note_odd_end(self._key, closed)
        self.raw += self._held
        if self._candidate == "drifted":
            self.report("drifted_marker", self._held_at, self._held[0])
        self._finish_value(closed)
        return State.PARAMETERS if end is None else self.end_by_tags(end)

    def end_unclosed_value(self) -> None:
        """Ends a value where the next parameter shows that its closing tag is missing."""
        self.note_odd_end(self._key, False)
        self._finish_value(False)

    def _finish_value(self, closed: bool) -> None:
        self.out.arguments(self._value.finish(closed=closed))
        self.report_doubt()
