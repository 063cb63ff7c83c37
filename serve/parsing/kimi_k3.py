"""The grammar of Kimi K3 (XTML): channels, calls and typed arguments in tags, each made of two tokens around a text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.events import ViolationKind
from serve.parsing.json_call import JsonCall
from serve.parsing.lexer import Lexicon, PatternWatch
from serve.parsing.machine import LONGEST_NAME, Row, State
from serve.parsing.values import PaddedValue, TypedValue

_NAMES = ("think", "response", "tools", "call", "argument", "json", "message")
_TAGS = tuple(f"{side} {name}" for side in ("open", "close") for name in _NAMES)
_TAG = re.compile(rf'\s*(?P<name>{"|".join(_NAMES)})(?P<attributes>(?:\s+\w+="[^"]*")*)\s*')
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
# The attributes of each opening tag; those of a call and an argument alone are read.
_ATTRIBUTES = {"call": {"tool", "index"}, "argument": {"key", "type"}, "json": {"type"}}
_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
# A call whose markers were skipped when the output was decoded.
_SKIPPED = re.compile(r'(?<!`)call tool="[^"\n]{1,128}" index="')
_LONGEST_SKIPPED = 160
_QUOTATION_END = re.compile(r"[`\n]")
_OUTSIDE_TEXT = frozenset({State.BETWEEN, State.SECTION, State.PARAMETERS, State.REMAINS})
_IN_CALL = frozenset({State.PARAMETERS, State.VALUE, State.ARGUMENTS})


class KimiK3(JsonCall):
    """`<|open|>call tool="name" index="1"<|sep|>`, arguments with a type each, and the same with `<|close|>`.

    The markers `<|open|>`, `<|close|>` and `<|sep|>` are tokens, all between them is text. A tag is looked up in the
    row of the state that it stands in: `open call` is `<|open|>call …<|sep|>`.
    """

    thinking_tags: ClassVar[tuple[str, str]] = ("<|open|>think<|sep|>", "<|close|>think<|sep|>")
    call_openers: ClassVar = ("<|open|>tools<|sep|>",)
    structural_tag: ClassVar = "kimi_k3"
    lexicon: ClassVar[Lexicon] = Lexicon(
        {"<|open|>": "open", "<|close|>": "close", "<|sep|>": "sep", "<|end_of_msg|>": "end_of_message"}
    )
    token_ids: ClassVar[Mapping[int, str]] = {
        163586: "<|end_of_msg|>",
        163587: "<|open|>",
        163588: "<|close|>",
        163589: "<|sep|>",
    }

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._origin = self.state  # of the tag at hand
        self._tag: list[str] = []
        self._tag_at = 0
        self._tag_end = 0
        self._tag_is_real = False
        self._side = ""  # open or close
        self._tag_name = ""  # of the tag
        self._attributes: dict[str, str] = {}
        self._padded = False
        self._noise: list[str] = []  # text where none belongs
        self._noise_at = 0
        self._noise_is_shown = False
        self._answered = False  # the response is over, or calls have begun
        self._responding = False
        self._ended = False  # the message is over
        self._section = (0, "")  # the tag that opened the section at hand, and where it stands
        self._is_empty = False  # no call has come in that section
        self._tool = ""
        self._given: set[str] = set()
        self._whole = False  # the arguments are one object, and have come
        self._value = TypedValue(None, {}, None)
        self._value_at = 0  # its first piece among `raw`
        self._value_begin = 0
        self._nested: Counter[str] = Counter()  # opening tags inside the value that wait for their closing tags
        self._odd = False  # the value holds a marker that belongs to no tag
        self._last_odd = 0  # number of pieces in `raw` when such a marker came last
        self._residue = False  # such a marker is the value's first or last word
        self._skipped = PatternWatch(_SKIPPED, _LONGEST_SKIPPED)

    # Tags

    def begin_tag(self, raw: str) -> State:
        self._origin = self.state
        self._tag = [raw]
        self._tag_at = self.position
        self._tag_is_real = self.real
        self._side = self.lexicon.kind(raw)
        return State.TAG

    def read_tag(self, raw: str) -> State | None:
        self._tag.append(raw)
        if not self.is_endless(self._tag_at, raw):
            return None
        tag = "".join(self._tag)
        if self._origin in _OUTSIDE_TEXT:
            self.out.violation("stray_marker", self._tag_at, tag[:LONGEST_NAME], hidden=True)
        return self._release(tag)

    def end_tag(self, raw: str) -> State:
        """Takes `<|sep|>`."""
        text = "".join(self._tag[1:])
        tag = self._tag[0] + text + raw
        match = _TAG.match(text)
        if match is None:
            return self._release(tag)
        self._tag_end = self.position + len(raw)
        self._padded = text[0] == " " and text[-1] == " "
        if match.end() < len(text):
            self._report_noise()
            self.out.violation("stray_text", self._tag_at, tag, hidden=True)
        return self._take_tag(match, tag)

    def cut_tag(self, raw: str) -> State:
        """Takes a marker inside a tag, whose `<|sep|>` was lost, or that is none."""
        text = "".join(self._tag[1:])
        match = _TAG.match(text)
        if match is None or f"{self._side} {match['name']}" not in self._rows[self._origin].on:
            return self.dispatch(raw, self._release(self._tag[0] + text))
        tag = self._tag[0] + match.group()
        self._tag_end = self._tag_at + len(tag)
        self._padded = False
        self.out.violation("drifted_marker", self._tag_at, tag, hidden=True)
        state = self._take_tag(match, tag)
        if rest := text[match.end() :]:
            state = self._dispatch_at(self._tag_end, rest, state)
        return self.dispatch(raw, state)

    def cut_tag_by_end(self, raw: str) -> State:
        """Ends the output inside a tag."""
        text = "".join(self._tag[1:])
        tag = self._tag[0] + text
        if self._origin in _IN_CALL or self._origin is State.REMAINS:
            self._raw.append(tag)
        elif _TAG.match(text) or any(name.startswith(text.strip()) for name in _NAMES):
            self._report_noise()
            self.out.violation("unfinished_call" if "call" in text else "stray_marker", self._tag_at, tag, hidden=True)
        else:
            return self._release(tag)
        return self._origin

    def _take_tag(self, match: re.Match[str], tag: str) -> State:
        """Does what the row of the state says of a tag."""
        self._tag_name = match["name"]
        attributes = _ATTRIBUTE.findall(match["attributes"])
        self._attributes = {key: _unescaped(value) for key, value in attributes}
        action = self._rows[self._origin].on.get(f"{self._side} {self._tag_name}")
        if action is None:
            return self._stray_tag(tag)
        self._report_noise()
        if self._origin is not State.VALUE and (attributes or self._side == "open"):
            self._check_attributes(len(attributes), tag)
        return action(self, tag) or self._origin

    def _check_attributes(self, count: int, tag: str) -> None:
        """Reports attributes that a tag does not have, and values that they do not take."""
        allowed = _ATTRIBUTES.get(self._tag_name, set()) if self._side == "open" else set()
        given = self._attributes
        if count > len(given) or not given.keys() <= allowed or not given.get("index", "0").isdigit():
            self.out.violation("stray_text", self._tag_at, tag, hidden=True)
        if "type" in allowed and given.get("type", "string") not in _TYPES:
            self.out.violation("mistyped_value", self._tag_at, tag, hidden=True)

    def _stray_tag(self, tag: str) -> State:
        if self._origin in (State.ARGUMENTS, State.REMAINS):
            return self._dispatch_at(self._tag_at, tag, self._origin)
        self._report_noise()
        in_call = self._origin is State.PARAMETERS
        if in_call:
            self._raw.append(tag)
        self.out.violation(
            "stray_marker", self._tag_at, tag, self.out.calls - 1 if in_call else None, hidden=in_call or self._answered
        )
        return self._origin

    def _release(self, text: str) -> State:
        """Returns what is no tag to the state that it stands in."""
        if self._origin is State.VALUE:
            self._odd_marker(text, self._tag_is_real, ends_in_it=text == self._tag[0] or text.endswith("<|sep|>"))
            return self._origin
        if self._origin in (State.REASONING, State.CONTENT):
            self.out.violation("stray_marker", self._tag_at, text[:LONGEST_NAME])
            if text == self._tag[0]:
                return self._origin
        return self._dispatch_at(self._tag_at, text, self._origin)

    def _dispatch_at(self, place: int, text: str, state: State) -> State:
        """Hands text to a state as if it stood at `place`."""
        here, self.position = self.position, place
        self._go(state)
        state = self._row.text(self, text) or state
        self.position = here
        return state

    # Prose

    def reason(self, raw: str) -> None:
        self._watch(raw)
        self.out.reasoning(raw)

    def write(self, raw: str) -> None:
        self._watch(raw)
        self.out.content(raw)

    def _watch(self, raw: str) -> None:
        place = 0
        if self.out.quotation:
            end = _QUOTATION_END.search(raw)
            self._skipped.clear()
            place = end.end() if end else len(raw)
        if (found := self._skipped.feed(raw[place:], self.position + place)) is not None:
            self.out.violation("malformed_call", *found)

    def outside(self, raw: str) -> None:
        """Takes text outside the channels: an answer if there is none yet, or else nothing that belongs there."""
        self.noise(raw)
        if self._noise and not self._answered:
            self._noise_is_shown = True
        if not self._answered:
            self.out.content(raw)

    def noise(self, raw: str) -> None:
        if not self._noise:
            text = raw.lstrip()
            self._noise_at = self.position + len(raw) - len(text)
            raw = text
        if raw:
            self._noise.append(raw)

    def _report_noise(self) -> None:
        if self._noise:
            self.out.violation("stray_text", self._noise_at, "".join(self._noise), hidden=not self._noise_is_shown)
            self._noise = []
            self._noise_is_shown = False

    def end_outside(self, raw: str) -> None:
        self._report_noise()

    def stray(self, raw: str) -> None:
        self._report_noise()
        super().stray(raw)

    def think_in_reasoning(self, raw: str) -> None:
        """Takes the tag that opens reasoning once it has begun: the template's own, or one too many."""
        if self.out.wrote_reasoning:
            self.out.violation("stray_marker", self._tag_at, raw)

    def open_think(self, raw: str) -> State:
        if self._answered or self._responding or self.out.wrote_content:
            self.out.violation("stray_marker", self._tag_at, raw)
        self.out.boundary()
        self._skipped.clear()
        return State.REASONING

    def close_think(self, raw: str) -> State:
        self._end_reasoning(self._tag_end)
        return State.BETWEEN

    def close_unanswered(self, raw: str) -> State:
        """Takes a tag that ends an answer in reasoning: the model never left it, and answered there."""
        self.out.violation("stray_marker", self._tag_at, raw, hidden=True)
        self._end_reasoning(self._tag_end)
        self._answered = True
        return State.BETWEEN

    def end_unanswered(self, raw: str) -> State:
        self._tag_at, self._tag_end = self.position, self.position + len(raw)
        return self.close_unanswered(raw)

    def open_response(self, raw: str) -> State:
        if self._origin is State.REASONING:
            self._end_reasoning(self._tag_at)
        if self._responding or self._answered or (self._origin is State.CONTENT and self.out.wrote_content):
            self.out.violation("stray_marker", self._tag_at, raw)
        else:
            self.out.boundary()
        self._responding = True
        self._skipped.clear()
        return State.CONTENT

    def close_response(self, raw: str) -> State:
        return self._answer()

    def close_message(self, raw: str) -> State:
        if self._ended:
            self.out.violation("stray_marker", self._tag_at, raw)
        self._ended = True
        return self.end_message(raw)

    def end_message(self, raw: str) -> State:
        self._report_noise()
        self._end_section("malformed_call")
        return self._answer()

    def _answer(self) -> State:
        self.out.boundary()
        self._responding = False
        self._answered = True
        return State.BETWEEN

    def _end_reasoning(self, place: int) -> None:
        self.out.end_reasoning(keep_space=True)
        self.reasoning_ends(place)
        self._skipped.clear()

    def _leave_prose(self) -> None:
        if self._origin is State.REASONING:
            self._end_reasoning(self._tag_at)
        self._answer()

    # Around calls

    def open_section(self, raw: str) -> State:
        self._leave_prose()
        self._section = (self._tag_at, raw)
        self._is_empty = True
        return State.SECTION

    def close_section(self, raw: str) -> State:
        self._end_section("malformed_call")
        self.out.boundary()
        return State.BETWEEN

    def end_in_section(self, raw: str) -> State:
        self._report_noise()
        self._end_section("unfinished_call")
        return State.BETWEEN

    def response_in_section(self, raw: str) -> State:
        self._end_section("malformed_call")
        return self.open_response(raw)

    def _end_section(self, kind: ViolationKind) -> None:
        if self._is_empty:
            self.out.violation(kind, *self._section, hidden=True)
        self._is_empty = False

    def open_call(self, raw: str) -> State:
        written = self._attributes.get("tool", "")
        self._leave_prose()
        self._is_empty = False
        self._begin, self._raw = self._tag_at, [raw]
        if not written:
            return State.REMAINS
        meant = [written] if written in self.tools else self.tools.names.meant_by(written, is_id=False)
        self._tool = meant[0] if len(meant) == 1 else written
        self._given = set()
        self._whole = False
        self.out.by_tags = True
        self._begin_arguments(self._tool)
        return State.PARAMETERS

    def orphan(self, raw: str) -> State:
        """Takes an argument that stands in no call."""
        self._leave_prose()
        self._is_empty = False
        self._begin, self._raw = self._tag_at, [raw]
        return State.REMAINS

    def keep(self, raw: str) -> None:
        self._raw.append(raw)

    def end_remains(self, raw: str) -> State:
        self._fail("malformed_call", raw)
        return State.SECTION

    def end_remains_at_section(self, raw: str) -> State:
        self._fail("malformed_call")
        return self.close_section(raw)

    def end_remains_at_call(self, raw: str) -> State:
        self._fail("malformed_call")
        return self.open_call(raw)

    def cut_remains(self, raw: str) -> State:
        self._fail("unfinished_call")
        return State.SECTION

    # In a call

    def noise_in_call(self, raw: str) -> None:
        self._raw.append(raw)
        self.noise(raw)

    def end_call(self, raw: str) -> State:
        self._raw.append(raw)
        self._end_call()
        return State.SECTION

    def end_open_call(self, raw: str) -> State:
        """Takes the end of a call whose object has not ended."""
        self._end_call("malformed_call")
        return State.SECTION

    def end_call_and_section(self, raw: str) -> State:
        self._end_call("malformed_call")
        return self.close_section(raw)

    def end_call_at_next(self, raw: str) -> State:
        self._end_call("malformed_call")
        return self.open_call(raw)

    def end_call_and_message(self, raw: str) -> State:
        self._end_call("malformed_call")
        return self.end_message(raw)

    def cut_call(self, raw: str) -> State:
        """Ends the output inside the call; its arguments stay open, so that nobody takes them for complete."""
        self._report_noise()
        self._end_call("unfinished_call")
        return State.SECTION

    def _end_call(self, fault: ViolationKind | None = None) -> None:
        if not self._whole and fault != "unfinished_call":
            self.out.arguments("}" if self._given else "{}")
        self.out.end_call(self._begin, "".join(self._raw), fault)
        self._raw = []

    def _fault(self, kind: ViolationKind, position: int, raw: str) -> None:
        self.out.violation(kind, position, raw, self.out.calls - 1, hidden=True)

    # Arguments

    def open_argument(self, raw: str) -> State:
        if self._whole:
            self._end_call("malformed_call")
            return self.orphan(raw)
        key = self._attributes.get("key", "")
        if key in self._given:
            self._fault("duplicate_argument", self._tag_at, raw)
        undeclared = self.tools.properties(self._tool) is None and not self.tools.may_have(self._tool, key)
        if undeclared or "key" not in self._attributes:
            self._fault("unknown_argument", self._tag_at, raw)
        opening = ", " if self._given else "{"
        self._given.add(key)
        self._raw.append(raw)
        kind = PaddedValue if self._padded else TypedValue
        schema, root = self.tools.parameter(self._tool, key), self.tools.schema(self._tool)
        self._value = kind(schema, root, self._attributes.get("type"))
        self._value_at = len(self._raw)
        self._value_begin = self._tag_end
        self._nested.clear()
        self._odd = self._residue = False
        self.out.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        return State.VALUE

    def value(self, raw: str) -> None:
        self._raw.append(raw)
        if text := self._value.feed(raw):
            self.out.arguments(text)

    def sep_in_value(self, raw: str) -> None:
        self._odd_marker(raw, self.real, ends_in_it=True)

    def _odd_marker(self, text: str, is_real: bool, *, ends_in_it: bool) -> None:
        """Takes a marker in a value that belongs to no tag."""
        self._odd = True
        self._residue = self._residue or is_real or len(self._raw) == self._value_at
        self.value(text)
        self._last_odd = len(self._raw) if ends_in_it else 0

    def tag_in_value(self, raw: str) -> State:
        """Takes a tag in a value: letters of it, or the value's end, or that of the call around it."""
        state = self._origin
        if self._side == "open" and not self._tag_is_real:
            self._nested[self._tag_name] += 1
            self.value(raw)
            return state
        if self._nested[self._tag_name] and not self._tag_is_real:
            self._nested[self._tag_name] -= 1
            self.value(raw)
            return state
        if self._side == "close" and self._tag_name == "argument":
            self._end_value()
            self._raw.append(raw)
            return State.PARAMETERS
        action = self._rows[State.PARAMETERS].on.get(f"{self._side} {self._tag_name}")
        if action is None:
            self._odd_marker(raw, self._tag_is_real, ends_in_it=True)
            return state
        self._fault("malformed_call", self._value_begin, "".join(self._raw[self._value_at :]))
        self._end_value()
        self._origin = State.PARAMETERS
        return action(self, raw) or State.PARAMETERS

    def _end_value(self) -> None:
        self.out.arguments(self._value.finish())
        piece = "".join(self._raw[self._value_at :]) if self._odd or not self._value.fits else ""
        if self._odd:
            residue = self._residue or self._last_odd == len(self._raw)
            self._fault("malformed_call" if residue else "ambiguous_value", self._value_begin, piece)
        if not self._value.fits:
            self._fault("mistyped_value", self._value_begin, piece)

    def cut_value(self, raw: str) -> State:
        self.out.arguments(self._value.cut())
        return self.cut_call(raw)

    def open_object(self, raw: str) -> State:
        """Takes `<|open|>json …`: all arguments in one object."""
        if self._given or self._whole:
            self._end_call("malformed_call")
            return self.orphan(raw)
        self._whole = True
        self.out.by_tags = False
        self._raw.append(raw)
        return State.ARGUMENTS

    def close_object(self, raw: str) -> State:
        self._raw.append(raw)
        if not self.out.has_arguments():
            self.out.arguments("{}")
        return State.PARAMETERS

    # Where calls are not parsed

    def write_call(self, raw: str) -> State:
        """Takes the tag of a section or call: from here on all is content."""
        self._leave_prose()
        self.out.content(raw)
        return State.FOREIGN

    _tokens: ClassVar = {"open": begin_tag, "close": begin_tag}
    _openings: ClassVar = {"open tools": open_section, "open call": open_call, "open response": open_response}
    _orphans: ClassVar = dict.fromkeys(("open argument", "open json"), orphan)
    _prose: ClassVar = {**_tokens, "sep": stray, **_openings, **_orphans}
    _unanswered: ClassVar = dict.fromkeys(("close response", "close tools", "close message"), close_unanswered)
    table: ClassVar[Mapping[State, Row]] = {
        State.REASONING: Row(
            text=reason,
            on={
                **_prose,
                **_unanswered,
                "open think": think_in_reasoning,
                "close think": close_think,
                "end_of_message": end_unanswered,
            },
            prose=True,
            exact=True,
        ),
        State.CONTENT: Row(
            text=write,
            on={
                **_prose,
                "open think": open_think,
                "close response": close_response,
                "close message": close_message,
                "end_of_message": end_message,
            },
            prose=True,
            exact=True,
        ),
        State.BETWEEN: Row(
            text=outside,
            on={**_prose, "open think": open_think, "close message": close_message, "end_of_message": end_message},
            end=end_outside,
            exact=True,
        ),
        State.TAG: Row(
            text=read_tag,
            on={"sep": end_tag, **dict.fromkeys(("open", "close", "end_of_message"), cut_tag)},
            end=cut_tag_by_end,
        ),
        State.SECTION: Row(
            text=noise,
            on={
                **_tokens,
                **_orphans,
                "open call": open_call,
                "open response": response_in_section,
                "close tools": close_section,
                "close message": close_message,
                "end_of_message": end_message,
            },
            end=end_in_section,
            exact=True,
        ),
        State.PARAMETERS: Row(
            text=noise_in_call,
            on={
                **_tokens,
                "open argument": open_argument,
                "open json": open_object,
                "close call": end_call,
                "close tools": end_call_and_section,
                "open call": end_call_at_next,
                **dict.fromkeys(("close message", "end_of_message"), end_call_and_message),
            },
            end=cut_call,
            exact=True,
        ),
        State.VALUE: Row(
            text=value,
            on={**_tokens, "sep": sep_in_value, **dict.fromkeys(_TAGS, tag_in_value)},
            end=cut_value,
            exact=True,
        ),
        State.ARGUMENTS: Row(
            text=JsonCall.read_arguments,
            on={
                **_tokens,
                "close json": close_object,
                "close call": end_open_call,
                "close tools": end_call_and_section,
                "open call": end_call_at_next,
                "close message": end_call_and_message,
            },
            end=cut_call,
            json=True,
            exact=True,
        ),
        State.REMAINS: Row(
            text=keep,
            on={
                **_tokens,
                "close call": end_remains,
                "close tools": end_remains_at_section,
                "close message": end_remains_at_section,
                "open call": end_remains_at_call,
            },
            end=cut_remains,
            exact=True,
        ),
    }
    _verbatim: ClassVar = dict.fromkeys(("open tools", "open call", "open argument", "open json"), write_call)
    reasoning_only: ClassVar[Mapping[State, Row]] = {
        State.REASONING: Row(text=reason, on={**table[State.REASONING].on, **_verbatim}, prose=True, exact=True),
        State.CONTENT: Row(text=write, on={**table[State.CONTENT].on, **_verbatim}, prose=True, exact=True),
        State.BETWEEN: Row(text=outside, on={**table[State.BETWEEN].on, **_verbatim}, end=end_outside, exact=True),
        State.TAG: table[State.TAG],
        State.FOREIGN: Row(text=JsonCall.write),
    }


def _unescaped(value: str) -> str:
    """Returns an attribute's value as it was before the format escaped it."""
    return value.replace("&quot;", '"').replace("&amp;", "&")
