"""The grammar of MiniMax-M3: calls in nested elements, each tag of which has a token of its own in front."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from serve.parsing.events import ViolationKind
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import Row, State
from serve.parsing.prose import Prose, content_row, reasoning_row
from serve.parsing.tool_call_block import Block
from serve.parsing.values import Schema, UntypedValue, alternatives, coerce, stated_types
from serve.parsing.xml_call import TaggedArguments

MARK = "]<]minimax[>["
_DEEPEST = 128  # elements in one another; vLLM reads as many
_NAMED = re.compile(r"""(?:invoke|parameter) name=\s*(?P<quote>["']?)(?P<name>[^"'<>]+?)(?P=quote)\s*/?""")
# Parameters whose tags lack their marks, one after another.
_UNMARKED = re.compile(r"\s*<(?P<key>[^\s<>/]{1,256})>(?P<text>.*?)</(?P=key)>\s*", re.DOTALL)
_TAGS = ("function", "end_function", "element", "end_element", "mark")


def _body(raw: str) -> str:
    """Returns what stands between the brackets of a tag."""
    return raw[len(MARK) :].lstrip("<").removeprefix("/")[:-1]


def _name(raw: str) -> str:
    """Returns the name of the tool in its tag."""
    named = _NAMED.fullmatch(_body(raw))
    return named["name"].strip() if named else ""


class MiniMaxM3(TaggedArguments):
    """`M<tool_call>M<invoke name="f">M<key>valueM</key>M</invoke>M</tool_call>`, where M is the mark.

    A parameter that the schema says to be a string streams. All others wait for their end tag: they may hold elements,
    and only the schema tells an object from a list. Where a value ends is decided here; what JSON comes of it, in
    `values_of`, and of a text in `values.py`.
    """

    thinking_tags: ClassVar = ("<mm:think>", "</mm:think>")
    call_openers: ClassVar = (f"{MARK}<tool_call>",)
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            "<mm:think>": "think",
            "</mm:think>": "end_think",
            f"{MARK}<tool_call>": "block",
            f"{MARK}</tool_call>": "end_block",
            f"{MARK}<invoke name=…": "function",
            f"{MARK}invoke name=…": "function",  # the model drops the bracket now and then
            f"{MARK}</invoke>": "end_function",
            f"{MARK}</…": "end_element",
            f"{MARK}<…": "element",
            MARK: "mark",
        }
    )
    token_ids: ClassVar[Mapping[int, str]] = {200058: MARK, 200059: "<mm:think>", 200060: "</mm:think>"}

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._in_block = False
        self._root: Schema = {}
        self._stray: list[str] = []  # what stands where nothing may stand
        self._stray_at = 0
        # The parameter at hand
        self._tag = ""
        self._open: list[Element] = []  # elements that are open, the parameter first
        self._read: list[Element] = []  # parameters of one name that are read and not written yet

    def token_of(self, raw: str) -> str:
        """Returns the mark of a tag, which is the token."""
        return MARK if raw.startswith(MARK) else raw

    # Prose

    def leading_stop(self, raw: str) -> None:
        """Takes `</mm:think>` in content: in front of it the model writes one too many, or ends what it never began."""
        if self.thought or self.out.wrote_content or self.out.calls:
            self.late_stop(raw)

    def tag_in_prose(self, raw: str) -> State | None:
        """Takes a tag that belongs to no call."""
        kind = self.lexicon.kind(raw)
        if kind == "function" and self._in_block:
            self.begin_call(self.state, self.position)
            return self.function(raw)
        if not self.spoiled:
            fault: ViolationKind = "malformed_call" if kind == "function" else "stray_marker"
            self.out.violation(fault, self.position, raw)
        self.spoiled = kind != "end_block"
        self._in_block = self._in_block and self.spoiled
        if self.state is State.REASONING:
            self.reason(raw)
        else:
            self.write(raw)
        return None

    # A block

    def block(self, raw: str) -> State:
        self._in_block = True
        return self.open_block(raw)

    def end_empty_block(self, raw: str) -> State:
        self._in_block = False
        return self.empty_block(raw)

    def function(self, raw: str) -> State:
        """Takes the tag that begins a call."""
        name = _name(raw)
        if not self.tools.may_be(name):
            return self.malformed(raw)
        self.spoiled = False
        self.raw.append(raw)
        self._name = name
        self._root = self.tools.schema(name)
        self._read = []
        self.start_by_tags()
        if not raw.startswith(f"{MARK}<"):
            self.report("drifted_marker", self.position, raw)
        if raw.endswith("/>"):
            return self._end_call()
        return State.PARAMETERS

    # Between parameters

    def between(self, raw: str) -> None:
        """Takes text, or a mark without a tag, where a tag is due."""
        self.raw.append(raw)
        self._set_aside(raw)

    def parameter(self, raw: str) -> State:
        """Takes the tag that opens a parameter."""
        self._report_stray()
        tag, key = self._tag_and_key(raw)
        schema = property_schema(self._root, key, self._root)
        self._check_key(key, schema, raw)
        self.raw.append(raw)
        self._tag = tag
        self._value_at = len(self.raw)
        self._value_begin = self.position + len(raw)
        if stated_types(schema, self._root) - {"null"} == {"string"}:
            self._write_read()
            self._write_key(key)
            self.begin_text(UntypedValue(schema, self._root, verbatim=True), self._value_begin)
            if raw.endswith("/>"):
                return self._end_string()
            return State.VALUE
        self._open = [Element(tag, key, schema)]
        return (raw.endswith("/>") and self._close_elements(0)) or State.ELEMENT

    def end_of_nothing(self, raw: str) -> None:
        """Takes the end tag of a parameter whose opening tag is missing, or of nothing."""
        stray, begin = "".join(self._stray), self._stray_at
        key = self._tag_and_key(raw)[1]
        self.raw.append(raw)
        if not stray or key in self._given or self.tools.parameter(self._name, key) is None:
            self._set_aside(raw)
            self._report_stray()
            return
        self._stray = []
        self.report("drifted_marker", begin, stray + raw)
        self._take_text(key, self._without_opening(stray, key))

    def end_function(self, raw: str) -> State:
        self._report_stray()
        self.raw.append(raw)
        return self._end_call()

    def end_block_in_call(self, raw: str) -> State:
        """Takes the end of the block inside a call."""
        self._lacks_end(raw)
        self.raw.append(raw)
        self._end_call()
        return self.end_block(raw)

    def next_function(self, raw: str) -> State:
        """Takes the beginning of the next call inside a call."""
        self._lacks_end(raw)
        self._end_call()
        self.begin_call(State.CONTENT, self.position)
        return self.function(raw)

    def next_block(self, raw: str) -> State:
        """Takes the beginning of the next block inside a call."""
        self._lacks_end(raw)
        self._end_call()
        return self.block(raw)

    def cut_call(self, raw: str) -> State:
        self._report_stray()
        self._write_read()
        return super().cut_call(raw)

    # A parameter that is a string

    def tag_in_value(self, raw: str) -> State | None:
        """Takes an opening tag in a string: the next parameter, if the end tag is missing, or letters of the string."""
        tag, key = self._tag_and_key(raw)
        properties = self.tools.properties(self._name)
        is_next = properties is not None and key in properties and key not in self._given and not +self._quoted
        if self.lexicon.kind(raw) == "element" and is_next:
            self._end_string()
            self.report("drifted_marker", self.position, raw)
            return self.parameter(raw)
        self._quoted[tag] += 1
        self.value(raw)
        return None

    def maybe_close(self, raw: str) -> State | None:
        """Takes an end tag, or a mark, in a string."""
        tag = self._tag_and_key(raw)[0] if raw != MARK else ""
        if self._quoted[tag] > 0:
            self._quoted[tag] -= 1
            self.value(raw)
            return None
        self._held = [raw]
        self._held_at = self.position
        return State.CLOSING

    def after_maybe(self, raw: str) -> State | None:
        """Decides by the token after an end tag whether it closed the string."""
        held = self._held[0]
        if held == MARK:
            return self._after_mark(raw)
        if raw.isspace():
            self._held.append(raw)
            return None
        if not (raw.startswith(MARK) or raw.lstrip().startswith("<")):
            self._keep()
            return self.dispatch(raw, State.VALUE)
        return self.dispatch(raw, self._close_string())

    def cut_maybe(self, raw: str) -> State:
        if self._held[0] == MARK:
            self._keep()
            return State.VALUE
        return self._close_string()

    def _after_mark(self, raw: str) -> State:
        """Decides about a mark without a tag: one too many in front of an end tag, or letters of the string."""
        kind = self.lexicon.kind(raw)
        if kind.startswith("end_") and kind != "end_think" and not self._quoted[self._tag_and_key(raw)[0]]:
            self.raw += self._held
            self.report("stray_marker", self._held_at, MARK)
        else:
            self._keep()
        return self.dispatch(raw, State.VALUE)

    def _keep(self) -> None:
        """Takes what is held back as text of the string."""
        self._odd = True
        self.value("".join(self._held))

    def _close_string(self) -> State:
        """Takes the end tag that is held back as real."""
        tag = self._held[0]
        self._end_string()
        self.raw += self._held
        if self._tag_and_key(tag)[0] != self._tag:
            self.report("drifted_marker", self._held_at, tag)
        match self.lexicon.kind(tag):
            case "end_function":
                return self._end_call()
            case "end_block":
                self._end_call()
                return self.end_block(tag)
        return State.PARAMETERS

    def _end_string(self) -> State:
        self.out.arguments(self._value.finish())
        self.report_doubt()
        return State.PARAMETERS

    # Any other parameter

    def text(self, raw: str) -> None:
        self.raw.append(raw)
        self._open[-1].text.append(raw)

    def element(self, raw: str) -> State | None:
        """Takes the tag that opens an element in a parameter."""
        self.raw.append(raw)
        if len(self._open) == _DEEPEST:
            self._open[-1].text.append(raw)
            self.report("malformed_arguments", self.position, raw)
            return None
        tag, key = self._tag_and_key(raw)
        self._open.append(Element(tag, key, child_schema(self._open[-1].schema, key, self._root)))
        return self._close_elements(len(self._open) - 1) if raw.endswith("/>") else None

    def function_in_element(self, raw: str) -> None:
        """Takes the beginning of a call in an element: letters of its text."""
        self.report("ambiguous_value", self.position, raw)
        self.text(raw)

    def mark_in_element(self, raw: str) -> None:
        """Takes a mark without a tag in an element: one too many, or what is left of an opening tag."""
        self.raw.append(raw)
        self.report("stray_marker", self.position, raw)

    def end_element(self, raw: str) -> State | None:
        """Takes an end tag: of the element at hand, of one around it, or of one whose opening tag is missing."""
        tag, key = self._tag_and_key(raw)
        place = next((at for at in reversed(range(len(self._open))) if self._open[at].tag == tag), -1)
        kind = self.lexicon.kind(raw)
        if place < 0 and kind in ("end_function", "end_block"):
            self.report("drifted_marker", self.position, raw)
            self._close_elements(0)
            return self.dispatch(raw, State.PARAMETERS)
        self.raw.append(raw)
        if place != len(self._open) - 1:
            self.report("drifted_marker", self.position, raw)
        if place >= 0:
            return self._close_elements(place)
        last = self._open[-1]
        if key != ITEM and property_schema(last.schema, key, self._root) is None:
            return self._close_elements(len(self._open) - 1)
        text = self._without_opening(last.take_text(), key)
        last.add(Element(tag, key, child_schema(last.schema, key, self._root), [text]))
        return None

    def cut_element(self, raw: str) -> State:
        key = self._open[0].key
        self._open = []
        self._write_read()
        self._write_key(key)
        return self.cut_call(raw)

    def _close_elements(self, place: int) -> State | None:
        """Ends the open elements from a place on."""
        while len(self._open) > place:
            ended = self._open.pop()
            if ended.is_mixed():
                self.report("stray_text", self._value_begin, "".join(self.raw[self._value_at :]))
            if self._open:
                self._open[-1].add(ended)
            else:
                self._take(ended)
                return State.PARAMETERS
        return None

    # Behind a call

    def behind(self, raw: str) -> None:
        """Takes what stands behind a call: a call ends the turn, so that it belongs to nothing."""
        self._set_aside(raw)

    def end_block(self, raw: str) -> State:
        """Takes the end of the block."""
        self._report_stray()
        if not self._in_block:
            self.stray(raw)
        self._in_block = False
        return State.AFTER

    def function_behind(self, raw: str) -> State:
        self._report_stray()
        self.begin_call(State.CONTENT, self.position)
        if not self._in_block:
            self.out.violation("drifted_marker", self.position, raw)
            self._in_block = True
        return self.function(raw)

    def block_behind(self, raw: str) -> State:
        self._report_stray()
        if self._in_block:
            self.out.violation("drifted_marker", self.position, raw)
        return self.block(raw)

    def stop_behind(self, raw: str) -> None:
        """Takes `</mm:think>` behind a call that stood in reasoning."""
        if self.open_thought:
            self._report_stray()
            self.open_thought = False
        else:
            self._set_aside(raw)

    def cut_behind(self, raw: str) -> State:
        self._report_stray()
        if self._in_block:
            self.out.violation("unfinished_call", self.position, "")
        return State.CONTENT

    # What all of them do

    def _end_call(self) -> State:
        self._write_read()
        self.out.arguments("}" if self._given else "{}")
        self.finish_call()
        return State.AFTER

    def _lacks_end(self, raw: str) -> None:
        """Reports a call without its end tag."""
        self._report_stray()
        self.report("drifted_marker", self.position, raw)

    def _tag_and_key(self, raw: str) -> tuple[str, str]:
        """Returns what the end tag must name, and the name of the value, of an opening tag; of an end tag the same."""
        body = _body(raw).removesuffix("/")
        if named := _NAMED.fullmatch(body):  # as in MiniMax-M2's calls
            return body.partition(" ")[0], named["name"].strip()
        tag = body if self.tools.parameter(self._name, body) is not None else body.partition(" ")[0] or body
        return tag, tag

    def _check_key(self, key: str, schema: Schema | None, raw: str) -> None:
        """Reports a name of a parameter that may not come here."""
        same = self._read[0].key == key if self._read else False
        if key in self._given and not (same and takes_lists(schema, self._root)):
            self.report("duplicate_argument", self.position, raw)
        if self.tools.properties(self._name) is None and schema is None and not self.tools.may_have(self._name, key):
            self.report("unknown_argument", self.position, raw)

    def _take_text(self, key: str, text: str) -> None:
        """Takes a parameter that is text."""
        self._take(Element(key, key, property_schema(self._root, key, self._root), [text]))

    def _take(self, read: Element) -> None:
        """Takes a parameter that is read. It is written once no other of the same name can make a list of it."""
        if self._read and (self._read[0].key != read.key or not takes_lists(read.schema, self._root)):
            self._write_read()
        self._read.append(read)
        self._given.add(read.key)

    def _write_read(self) -> None:
        if self._read:
            self._write_key(self._read[0].key)
            self.out.arguments(json.dumps(values_of(self._read, self._root), ensure_ascii=False))
            self._read = []

    def _write_key(self, key: str) -> None:
        self.out.arguments(f"{', ' if self.out.has_arguments() else '{'}{json.dumps(key, ensure_ascii=False)}: ")
        self._given.add(key)

    @staticmethod
    def _without_opening(text: str, key: str) -> str:
        """Returns text without what is left in front of it of an opening tag."""
        text = text.rpartition(MARK)[2]
        for opening in (f"<{key}>", f"{key}>"):
            if text.startswith(opening):
                return text[len(opening) :]
        return text

    def _set_aside(self, raw: str) -> None:
        """Keeps what stands where nothing may stand, from the first word on."""
        if not self._stray:
            word = raw.lstrip()
            self._stray_at = self.position + len(raw) - len(word)
            raw = word
        if raw:
            self._stray.append(raw)

    def _report_stray(self) -> None:
        """Reports what stands where nothing may stand, or takes it for parameters whose tags lack their marks."""
        stray = "".join(self._stray)
        if not stray:
            return
        self._stray = []
        in_call = self.state is State.PARAMETERS
        if in_call and self._take_unmarked(stray):
            self.report("drifted_marker", self._stray_at, stray)
            return
        kind: ViolationKind = "stray_marker" if stray.startswith(MARK) else "stray_text"
        self.out.violation(kind, self._stray_at, stray, self.out.calls - 1 if in_call else None)

    def _take_unmarked(self, stray: str) -> bool:
        """Takes parameters whose tags lack their marks; returns False if that is not what the text is."""
        found: list[re.Match[str]] = []
        place = 0
        while place < len(stray):
            match = _UNMARKED.match(stray, place)
            if match is None or self.tools.parameter(self._name, match["key"]) is None:
                return False
            found.append(match)
            place = match.end()
        keys = [match["key"] for match in found]
        if len({*keys}) < len(keys) or not self._given.isdisjoint(keys):
            return False
        for match in found:
            self._take_text(match["key"], match["text"])
        return True

    _prose: ClassVar = {"block": block, **dict.fromkeys((*_TAGS, "end_block"), tag_in_prose)}
    table: ClassVar[Mapping[State, Row]] = {
        State.REASONING: reasoning_row(_prose),
        State.CONTENT: content_row({**_prose, "end_think": leading_stop}),
        State.OPENED: Row(
            text=TaggedArguments.no_parameter,
            on={"function": function, "block": Block.reopen_block, "end_block": end_empty_block},
            end=Block.cut_block,
        ),
        State.PARAMETERS: Row(
            text=between,
            on={
                "element": parameter,
                "end_element": end_of_nothing,
                "end_function": end_function,
                "end_block": end_block_in_call,
                "function": next_function,
                "block": next_block,
            },
            end=cut_call,
        ),
        State.VALUE: Row(
            text=TaggedArguments.value,
            on={
                **dict.fromkeys(("element", "function", "block"), tag_in_value),
                **dict.fromkeys(("end_element", "end_function", "end_block", "mark"), maybe_close),
            },
            end=TaggedArguments.cut_value,
            exact=True,
        ),
        State.CLOSING: Row(text=after_maybe, end=cut_maybe),
        State.ELEMENT: Row(
            text=text,
            on={
                **dict.fromkeys(("element", "block"), element),
                **dict.fromkeys(("end_element", "end_function", "end_block"), end_element),
                "function": function_in_element,
                "mark": mark_in_element,
            },
            end=cut_element,
            exact=True,
        ),
        State.AFTER: Row(
            text=behind,
            on={"function": function_behind, "block": block_behind, "end_block": end_block, "end_think": stop_behind},
            end=cut_behind,
        ),
    }
    reasoning_only: ClassVar[Mapping[State, Row]] = {
        State.REASONING: reasoning_row({"block": Prose.cut_thinking}),
        State.CONTENT: content_row({"end_think": leading_stop}),
    }


ITEM = "item"  # the element around each member of a list
TEXT = "$text"  # the key of text that stands beside elements


@dataclass(slots=True)
class Element:
    """One element.

    Attributes:
        tag: What its closing tag must name.
        key: The name of its value.
        schema: Of its value, if there is one.
        settled: Number of pieces of text in front of its last child.
    """

    tag: str
    key: str
    schema: Schema | None
    text: list[str] = field(default_factory=list)
    children: list[Element] = field(default_factory=list)
    settled: int = 0

    def add(self, child: Element) -> None:
        self.children.append(child)
        self.settled = len(self.text)

    def take_text(self) -> str:
        """Takes away the text since the last child."""
        taken = "".join(self.text[self.settled :])
        del self.text[self.settled :]
        return taken

    def is_mixed(self) -> bool:
        """Returns whether text stands beside elements."""
        return bool(self.children) and any(not piece.isspace() for piece in self.text if piece)


def property_schema(schema: Any, key: str, root: Schema | None) -> Schema | None:
    """Returns the schema of an object's member: its own, or that of all that have none."""
    for each in alternatives(schema, root):
        properties = each.get("properties")
        if isinstance(properties, Mapping) and isinstance(properties.get(key), Mapping):
            return properties[key]  # type: ignore[no-any-return]
    others = (each.get("additionalProperties") for each in alternatives(schema, root))
    return next((other for other in others if isinstance(other, Mapping)), None)


def child_schema(schema: Any, key: str, root: Schema | None) -> Schema | None:
    """Returns the schema of what stands in an element: of a member of an object, or of a list."""
    own = property_schema(schema, key, root)
    return _items(schema, root) if own is None else own


def takes_lists(schema: Schema | None, root: Schema | None) -> bool:
    """Returns whether a value may be a list, as far as a schema says."""
    return not (types := stated_types(schema, root)) or "array" in types


def value_of(element: Element, root: Schema | None) -> Any:
    """Returns the JSON value of an element. `$ref` refers to the root."""
    schema = element.schema
    types = _types(schema, root)
    if not element.children:
        text = "".join(element.text)
        if not text.strip() and "string" not in types:  # how the template writes both of them when they are empty
            if "array" in types:
                return []
            if "object" in types:
                return {}
        return coerce(text, schema, root) if types and schema is not None else text
    if _is_list(element, types):
        return [value_of(child, root) for child in element.children]
    members = list(_members(element.children, root))
    if element.is_mixed():
        key = TEXT
        while any(key == other for other, _ in members):
            key = f"${key}"
        members.append((key, "".join(element.text)))
    return dict(members)


def values_of(elements: Sequence[Element], root: Schema | None) -> Any:
    """Returns the value of an element, or of several with the same name, which are a list. `$ref` refers to the
    root.
    """
    if len(elements) == 1:
        return value_of(elements[0], root)
    if "array" not in _types(elements[0].schema, root):
        return [value_of(each, root) for each in elements]
    members: list[Any] = []
    for each in elements:
        if not each.children:
            each.schema = _items(each.schema, root)
        value = value_of(each, root)
        members += value if each.children and isinstance(value, list) else [value]
    return members


def _members(children: Iterable[Element], root: Schema | None) -> Iterator[tuple[str, Any]]:
    by_key: dict[str, list[Element]] = {}
    for child in children:
        by_key.setdefault(child.key, []).append(child)
    for key, same in by_key.items():
        yield key, values_of(same, root)


def _is_list(element: Element, types: frozenset[str]) -> bool:
    """Returns whether what stands in an element is a list: as its schema says, or else as the template writes lists."""
    if ("array" in types) != ("object" in types):
        return "array" in types
    return all(child.key == ITEM for child in element.children)


def _types(schema: Schema | None, root: Schema | None) -> frozenset[str]:
    """Returns the types that a schema states, or that its words imply."""
    types = stated_types(schema, root)
    if types:
        return types
    for each in alternatives(schema, root):
        if "items" in each:
            return frozenset({"array"})
        if "properties" in each or "additionalProperties" in each:
            return frozenset({"object"})
    return types


def _items(schema: Any, root: Schema | None) -> Schema | None:
    found = (each.get("items") for each in alternatives(schema, root))
    return next((items for items in found if isinstance(items, Mapping)), None)
