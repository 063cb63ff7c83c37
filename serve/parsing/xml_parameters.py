"""Calls whose arguments have tags of their own: what the formats share that write each argument as text in a tag."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.events import ViolationKind
from serve.parsing.hermes import Hermes
from serve.parsing.json_scanner import JsonScanner
from serve.parsing.machine import State
from serve.parsing.tool_call_block import Block
from serve.parsing.values import UntypedValue, Value
from serve.parsing.xml_closing import END, IN_FUNCTION, Closings, Nesting

_TAG_AT_END = re.compile(r"</?[a-z][^<>\n]*>?\Z|[>/]\Z", re.IGNORECASE)
_LONGEST_TAG = 64


class TaggedArguments(Block):
    """A call whose arguments have tags of their own."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._name = ""
        self._given: set[str] = set()
        self._value = Value(None, {})
        self._value_at = 0  # its first piece among `raw`
        self._value_begin = 0
        self._held: list[str] = []  # what may close the value
        self._held_at = 0
        self._scanner = JsonScanner()

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
        self._held = []
        self.read_object(raw)
        return State.ARGUMENTS

    def read_object(self, raw: str) -> None:
        """Reads on in an object of all arguments. Blanks at its end are none of them."""
        self.out.by_tags = False
        self.raw.append(raw)
        self.in_string = self._scanner.feed_strings(raw)
        body = raw.rstrip()
        self._held.append(body)
        if body:
            self.out.arguments("".join(self._held))
            self._held = []
        self._held.append(raw[len(body) :])

    def cut_function(self, raw: str) -> State:
        self.enter_call()
        return self.release("unfinished_call")

    def value(self, raw: str) -> None:
        self.raw.append(raw)
        text = self._value.feed(raw)
        if text:
            self.out.arguments(text)

    def cut_value(self, raw: str) -> State:
        self.out.arguments(self._value.cut())
        return self.cut_call(raw)

    def cut_call(self, raw: str) -> State:
        """Ends the output inside the call; its arguments stay open, so that nobody takes them for complete."""
        if not self._given:
            self.out.arguments("{")
        self.out.end_call(self.begin, "".join(self.raw), "unfinished_call")
        self.raw = []
        return State.CONTENT

    def report(self, kind: ViolationKind, position: int, raw: str) -> None:
        """Reports a fault of the call that leaves it readable."""
        self.out.violation(kind, position, raw, self.out.calls - 1)


class XmlParameters(TaggedArguments, Hermes):
    """Actions on values, whose closing tags may be letters of theirs, and on the call around them.

    Attributes:
        verbatim: A value is all that stands between its tags; else one newline on each side is markup.
        nesting: Says which closing tags close a value.
        implied: The markers, by kind, that also end the value that they stand in, and where they lead.
    """

    verbatim: ClassVar[bool] = False
    nesting: ClassVar[Nesting] = IN_FUNCTION
    implied: ClassVar[Mapping[str, State]] = {"end_function": State.AFTER, "end_block": State.CONTENT}

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._wrapped = True
        self._flaw: ViolationKind | None = None
        self._value: UntypedValue = UntypedValue(None, {})
        self._closings = Closings()
        self._key = ""
        self._candidate = ""

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
        self._closings = Closings(self.nesting, self._wrapped)
        self._key = key
        self._value_at = len(self.raw)
        self._value_begin = begin
        self.out.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        return State.VALUE

    def may_follow(self, key: str) -> bool:
        """Returns whether a parameter of this name may come next."""
        properties = self.tools.properties(self._name)
        return key not in self._given and (
            self.tools.may_have(self._name, key) if properties is None else key in properties
        )

    def tag_in_value(self, raw: str) -> None:
        self._closings.opened(self.lexicon.kind(raw))
        self.value(raw)

    def maybe_close(self, raw: str) -> State:
        self._candidate = self.lexicon.kind(raw)
        self._held = [raw]
        self._held_at = self.position
        return State.CLOSING

    def after_maybe(self, raw: str) -> State | None:
        """Decides by the token after a closing tag whether it closed the value."""
        rest = raw.lstrip()
        if len(rest) < len(raw):
            self._held.append(raw[: len(raw) - len(rest)])
        if not rest:
            return None
        kind = self.lexicon.kind(rest)
        if not self._closings.closes(self._candidate, self.follower(kind) or "text"):
            self._keep()
            return self.dispatch(rest, State.VALUE)
        space = "".join(self._held[1:])
        state = self.close_value()
        if space and not kind:
            self.out.content(space)
        return self.dispatch(rest, state)

    def follower(self, kind: str) -> str:
        """Returns what the kind of the token after a closing tag counts as."""
        return kind

    def cut_maybe(self, raw: str) -> State:
        if self._closings.closes(self._candidate, END):
            return self.close_value()
        self._keep()
        return State.VALUE

    def close_value(self) -> State:
        """Takes the tag held back as real."""
        end = self.implied.get(self._candidate)
        closed = end is None
        self._note_odd_end(closed)
        self.raw += self._held
        if self._candidate == "drifted":
            self.report("drifted_marker", self._held_at, self._held[0])
        self._finish_value(closed)
        return State.PARAMETERS if end is None else self.end_by_tags(end)

    def _keep(self) -> None:
        """Takes the tag held back as text of the value."""
        self._closings.kept(self._candidate)
        self.value("".join(self._held))

    def end_unclosed_value(self) -> None:
        """Ends a value where the next parameter shows that its closing tag is missing."""
        self._note_odd_end(False)
        self._finish_value(False)

    def _note_odd_end(self, closed: bool) -> None:
        """Marks a value whose end may be damaged.

        It ends in `</key>` without having opened it: the model mixed up two ways to close it. Or it opens a tag of its
        own kind and never closes it. Or it is not `closed` by a tag of its own, but ends in what looks like one.
        """
        if self._closings.inside("parameter"):
            self._closings.odd = True
        pieces = self.raw[self._value_at :]
        while pieces and not pieces[-1].strip():
            pieces.pop()
        if pieces and (not closed or pieces[-1].rstrip().endswith(">")):  # few values, so that few are put together
            text = "".join(pieces).rstrip()
            if text.endswith(f"</{self._key}>") and f"<{self._key}" not in text:
                self._closings.odd = True
            if not closed and _TAG_AT_END.search(text, max(0, len(text) - _LONGEST_TAG)):
                self._closings.odd = True

    def _finish_value(self, closed: bool) -> None:
        self.out.arguments(self._value.finish(closed=closed))
        if self._closings.odd:
            self.report("ambiguous_value", self._value_begin, "".join(self.raw[self._value_at :]))
