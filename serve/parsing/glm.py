"""The grammar of GLM 4.5 to 5, Ling 3, Laguna, LongCat and Hy3: a name, and each argument as a key and a value.

Where a value ends is decided in `xml_call.py`. All between its tags belongs to it, newlines too (`verbatim`); which
JSON type it gets is decided in `values.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.events import ViolationKind
from serve.parsing.hermes import Hermes
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import LONGEST_NAME, Row, State
from serve.parsing.prose import THINK, Prose, content_row, reasoning_row, reasoning_table
from serve.parsing.tool_call_block import Block
from serve.parsing.xml_call import END, XmlParameters, XmlValue, value_rows

# What is held back while it may be a name, and perhaps a key; bounded, so that prose behind a marker is not.
_WORD = r"[^\s<>{}=\"']{0,256}"
_SPACED_NAME = re.compile(rf"\s{{0,64}}(?P<name>{_WORD})\s{{0,64}}")
_NAME_AND_KEY = re.compile(rf"{_SPACED_NAME.pattern}(?P<key>{_WORD})\s{{0,64}}")
_PAIRS = {
    "<tool_call>": "block",
    "</tool_call>": "end_block",
    "<arg_key>": "key",
    "</arg_key>": "end_key",
    "<arg_value>": "parameter",
    "</arg_value>": "end_parameter",
}


class Glm(XmlParameters):
    """`<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

    Models drop, double and mix up these tags, under load in 5 to 17 % of calls (vllm-project/vllm#49248). Where the
    others leave no doubt about a key and its value, the call is read and the drift reported; else it is reported as
    malformed, because what stands between the others may not be all of it.
    """

    call_openers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    structural_tag: ClassVar[str | None] = "glm_4_7"
    lexicon: ClassVar[Lexicon] = Lexicon({**THINK, **_PAIRS})
    token_ids: ClassVar[Mapping[int, str]] = {
        154842: "</think>",
        154843: "<tool_call>",
        154844: "</tool_call>",
        154847: "<arg_key>",
        154848: "</arg_key>",
        154849: "<arg_value>",
        154850: "</arg_value>",
    }
    verbatim: ClassVar = True
    followers: ClassVar = {
        "end_parameter": {"key", "end_block", "block", "end_wrapper", END},
        "end_block": {"block", "end_wrapper", END},
    }
    outer: ClassVar = "end_block"
    implied: ClassVar = {"end_block": State.CONTENT}

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._opened_at = 0  # the name's first piece among `raw`
        self._bare_key = ""  # what stands behind the name in the place of `<arg_key>`
        self._name_before = ""  # of a call that another `<tool_call>` broke off
        self._key_end = ("", 0)  # the last tag that ended a key, and where it stands
        self._key_pieces: list[str] = []
        self._key_at = 0  # the tag that opens it
        self._in_wrapper = False

    # Around the calls

    def open_wrapper(self, raw: str) -> State:
        """Takes `<tool_calls>` in prose."""
        super().open_block(raw)
        return State.WRAPPER

    def open_first_block(self, raw: str) -> State:
        """Takes `<tool_call>` behind `<tool_calls>`."""
        self.raw.append(raw)
        self._in_wrapper = True
        return self._begin_name()

    def close_wrapper(self, raw: str) -> State:
        """Takes `</tool_calls>` outside of a call."""
        if self._in_wrapper:
            self.close_block(raw)
        elif self.out.at_call and not self.spoiled:
            self.stray(raw)
        else:
            self.stray_tag(raw)
        self._in_wrapper = False
        return State.CONTENT

    def release(self, fault: ViolationKind | None = None) -> State:
        self._in_wrapper = False
        return super().release(fault)

    # The name

    def open_block(self, raw: str) -> State:
        super().open_block(raw)
        return self._begin_name()

    def open_again(self, raw: str) -> State:
        """Takes `<tool_call>` where another one has opened a call that did not come."""
        before = self._name if self._name in self.tools else ""
        self.reopen_block(raw)
        return self._begin_name(before)

    def _begin_name(self, before: str = "") -> State:
        self._name = ""
        self._name_before = before
        self._bare_key = ""
        self._opened_at = len(self.raw)
        return State.OPENED

    def read_name(self, raw: str) -> State | None:
        """Takes text behind `<tool_call>`: the name of a tool, an object, or prose."""
        held = "".join(self.raw[self._opened_at :])
        if self.lexicon.kind(raw):
            return self._no_name(held, "", raw)
        if not held.strip() and raw.lstrip().startswith("{"):
            return self.begin_object(raw)
        text = held + raw
        match = _SPACED_NAME.match(text)
        if match and match["name"] in self.tools and match.end() < len(text):
            match = _NAME_AND_KEY.match(text)
            self._bare_key = match["key"] if match else ""
        assert match is not None  # the patterns match the empty text
        self._name = match["name"]
        end = match.end()
        self.raw.append(text[len(held) : end])
        if self._name in self.tools and not self._bare_key and text.startswith("{", end):
            return self.object_or_prose(text[end:])
        return self._no_name(text[:end], text[end:], "") if end < len(text) else None

    def _no_name(self, held: str, rest: str, marker: str) -> State:
        """Takes what cannot follow the name: prose, unless it looks like a call."""
        meant = bool(marker) or rest[0] in "<{[" or "\n" in held or self._name in self.tools
        return self.back_to_prose(rest or marker, self.fault() if meant else None)

    def name_ends(self, raw: str) -> State:
        """Takes `<tool_sep>`."""
        if not self._name or self._bare_key:
            return self.malformed(raw)
        self.raw.append(raw)
        return State.FUNCTION

    def no_arguments(self, raw: str) -> State:
        """Takes `</tool_call>` behind the name."""
        if not self._name:
            return self.empty_block(raw)
        if self._bare_key:
            return self.malformed(raw)
        if self._origin is State.REASONING and self.tools and self._name not in self.tools and not self.real:
            self.release()
            self.reason(raw)  # thinking about the format
            return State.REASONING
        self.start_by_tags()
        self.raw.append(raw)
        return self.end_by_tags(State.CONTENT)

    def value_end_behind_name(self, raw: str) -> State:
        """Takes `</arg_value>` behind the name of a tool: a call without arguments that ends as others do."""
        if self._bare_key or self._name not in self.tools:
            return self.malformed(raw)
        self.start_by_tags()
        self.report("stray_marker", self.position, raw)
        self.raw.append(raw)
        return State.PARAMETERS

    # The key

    def first_key(self, raw: str) -> State:
        if not self._name or self._bare_key:
            return self.malformed(raw)
        self.start_by_tags()
        return self.open_key(raw)

    def end_bare_key(self, raw: str) -> State:
        """Takes `</arg_key>` behind the name: where `<arg_key>` is missing, the text before it holds both."""
        if self._bare_key or self._name_before:
            meant = [(self._name_before, self._name) if self._name_before else (self._name, self._bare_key)]
        else:
            meant = [(tool, self._name.removeprefix(tool)) for tool in self.tools if self._name.startswith(tool)]
        fitting = [(tool, key) for tool, key in meant if self._takes(tool, key)]
        if len(fitting) != 1:
            return self.malformed(raw)
        self._name, key = fitting[0]
        self.start_by_tags()
        self._drifted(raw)
        self._key_pieces = [key]
        return self.end_key(raw)

    def _takes(self, tool: str, key: str) -> bool:
        properties = self.tools.properties(tool)
        return bool(key) and (self.tools.parameter(tool, key) is not None or properties is None)

    def _drifted(self, raw: str) -> None:
        """Reports that a tag stands in the place of another one, or is one too many, where this leaves no doubt."""
        self.report("drifted_marker", self.position, raw)

    def open_key(self, raw: str) -> State:
        """Takes `<arg_key>`."""
        self.raw.append(raw)
        self._key_pieces = []
        self._key_at = self.position
        return State.KEY

    def read_key(self, raw: str) -> State | None:
        if not self.is_endless(self._key_at, raw):
            self.raw.append(raw)
            self._key_pieces.append(raw)
            return None
        end = max(0, self._key_at + LONGEST_NAME - self.position)
        self.raw.append(raw[:end])
        state = self.cut_call(raw)
        self.out.content(raw[end:])
        return state

    def end_key(self, raw: str) -> State:
        self.raw.append(raw)
        self._key_end = (raw, self.position)
        return State.KEY_ENDED

    def value_in_key(self, raw: str) -> State:
        """Takes `<arg_value>` where `</arg_key>` is missing."""
        self._drifted(raw)
        return self.open_value(raw)

    def value_end_in_key(self, raw: str) -> State:
        """Takes `</arg_value>` where `</arg_key>` is due."""
        self._drifted(raw)
        return self.end_key(raw)

    def end_key_again(self, raw: str) -> None:
        self._drifted(raw)
        self.raw.append(raw)

    def next_key_without_value(self, raw: str) -> State:
        self._flaw = "malformed_call"
        return self.open_key(raw)

    def odd_tag(self, raw: str) -> None:
        """Takes a tag in the call that is one too many, or whose partner is missing."""
        self.raw.append(raw)
        self._flaw = "malformed_call"

    def end_without_value(self, raw: str) -> State:
        """Takes `</tool_call>` behind a key that has no value."""
        self.odd_tag(raw)
        return self.end_by_tags(State.CONTENT)

    # The value

    def open_value(self, raw: str) -> State:
        """Takes `<arg_value>`."""
        return self.begin_value("".join(self._key_pieces).strip(), raw)

    def bare_value(self, raw: str) -> State | None:
        """Takes text where `<arg_value>` is missing."""
        text = self.keep_space(raw)
        if not text:
            return None
        tag, place = self._key_end
        if text[0] == "<":  # a misspelt tag
            self._flaw = "malformed_call"
        else:
            self.report("drifted_marker", place, tag)
        self.begin_value_behind("".join(self._key_pieces).strip(), tag, place, self.position + len(raw) - len(text))
        self.value(text)
        return State.VALUE

    def tag_or_flaw(self, raw: str) -> None:
        """Takes a tag of a pair in a value: letters of it, unless token ids show it to be real."""
        if self.real:
            self.odd_tag(raw)
        else:
            self.tag_in_value(raw)

    def close_value(self) -> State:
        if self._candidate in self.implied:
            self._lacks_end()
        return super().close_value()

    def _lacks_end(self) -> None:
        """Reports a value without `</arg_value>`, which ends at the tag held back.

        It may not be whole if it is empty, has opened a tag, or ends in a blank, which may be the template's: GLM 4.5
        writes one behind each tag. A text of lines ends in a newline of its own.
        """
        text = "".join(self.raw[self._value_at :])
        compact = not any(piece[-1:].isspace() for piece in self.raw[self._value_at - 2 : self._value_at])
        ends_line = compact and text.endswith("\n") and "\n" in text.strip()
        if not text or (text[-1].isspace() and not ends_line) or self.has_opened():
            self._flaw = "malformed_call"
        else:
            self.report("drifted_marker", self._held_at, self._held[0])

    def key_in_value(self, raw: str) -> State | None:
        """Takes `<arg_key>` in a value: the next pair, if its predecessor's closing tag is missing, or letters."""
        self._held, self._held_at = [raw], self.position
        if self.real:
            self.end_unclosed_value()
            return self.open_key(raw)
        if self.has_opened("block"):
            self.keep(raw)
            return None
        self._key_pieces = []
        return State.NEXT_KEY

    def read_next_key(self, raw: str) -> State | None:
        if self.lexicon.kind(raw):
            return self.no_next_key(raw)
        self._held.append(raw)
        self._key_pieces.append(raw)
        return None if _SPACED_NAME.fullmatch("".join(self._key_pieces)) else self.no_next_key("")

    def end_next_key(self, raw: str) -> State:
        if not self.may_follow("".join(self._key_pieces).strip()):
            return self.no_next_key(raw)
        self._held.append(raw)
        return State.NEXT_KEY_ENDED

    def behind_next_key(self, raw: str) -> State | None:
        if not raw.isspace():
            return self.no_next_key(raw)
        self._held.append(raw)
        return None

    def open_next_value(self, raw: str) -> State:
        """Takes `<arg_value>` behind a key in a value, which shows both to be real."""
        self.end_unclosed_value()
        self.raw += self._held
        return self.open_value(raw)

    def no_next_key(self, raw: str) -> State:
        """Takes what was held back as text of the value, and hands the token on that showed it to be that."""
        self.keep("".join(self._held))
        return self.dispatch(raw, State.VALUE) if raw else State.VALUE

    def end_unclosed_value(self) -> None:
        self._lacks_end()
        super().end_unclosed_value()

    def next_in_value(self, raw: str) -> State | None:
        """Takes `<tool_call>` or `</tool_calls>` in a value: letters of it, unless token ids show that it is cut."""
        if self.real:
            return self.dispatch(raw, self.cut_value(raw))
        if self.lexicon.kind(raw) == "block":
            self.tag_in_value(raw)
        else:
            self.keep(raw)
        return None

    # The end of a call

    def between(self, raw: str) -> None:
        """Takes what stands between pairs: space, or what belongs to none."""
        self.raw.append(raw)
        if not raw.isspace():
            self._flaw = "malformed_call"

    def end_call(self, raw: str) -> State:
        self.raw.append(raw)
        return self.end_by_tags(State.CONTENT)

    def end_at_next(self, raw: str) -> State:
        """Takes the next call, or the end of all, where `</tool_call>` is missing."""
        self._flaw = "unfinished_call"
        return self.dispatch(raw, self.end_by_tags(State.CONTENT))

    def cut_at_next(self, raw: str) -> State:
        """Takes the next call, or the end of all, in the middle of a pair."""
        return self.dispatch(raw, self.cut_call(raw))

    def cut_object_at_next(self, raw: str) -> State:
        self.cut_by_next(raw)
        return self._begin_name()

    _tags: ClassVar = ("key", "end_key", "parameter", "end_parameter", "separator", "end_block")
    _open: ClassVar = {"block": open_block, "wrapper": open_wrapper}
    table: ClassVar[Mapping[State, Row]] = {
        State.REASONING: reasoning_row(_open),
        State.CONTENT: content_row(
            {**_open, **dict.fromkeys(_tags, Block.stray_tag), "end_wrapper": close_wrapper}
        ),
        State.WRAPPER: Row(
            text=Block.not_a_call,
            on={"block": open_first_block, "wrapper": Block.reopen_block, "end_wrapper": Block.empty_block},
            end=Block.cut_block,
        ),
        State.OPENED: Row(
            text=read_name,
            on={
                "separator": name_ends,
                "key": first_key,
                "end_key": end_bare_key,
                "parameter": Block.malformed,
                "end_parameter": value_end_behind_name,
                "end_block": no_arguments,
                "block": open_again,
            },
            end=Block.cut_block,
        ),
        State.FUNCTION: Row(
            text=XmlParameters.object_or_prose,
            on={
                "key": first_key,
                **dict.fromkeys(("end_key", "parameter", "end_parameter", "separator"), Block.malformed),
                "end_block": no_arguments,
                "block": open_again,
            },
            end=XmlParameters.cut_function,
        ),
        State.ARGUMENTS: Row(
            text=XmlParameters.read_object,
            on={
                "end_block": XmlParameters.end_object,
                **dict.fromkeys(("block", "end_wrapper"), XmlParameters.end_object_at_next),
            },
            end=XmlParameters.cut_arguments,
            json=True,
        ),
        State.KEY: Row(
            text=read_key,
            on={
                "end_key": end_key,
                "parameter": value_in_key,
                "key": odd_tag,
                "end_parameter": value_end_in_key,
                "end_block": end_without_value,
                **dict.fromkeys(("block", "end_wrapper"), cut_at_next),
            },
            end=XmlParameters.cut_call,
        ),
        State.KEY_ENDED: Row(
            text=bare_value,
            on={
                "parameter": open_value,
                "key": next_key_without_value,
                "end_key": end_key_again,
                "end_parameter": odd_tag,
                "end_block": end_without_value,
                **dict.fromkeys(("block", "end_wrapper"), cut_at_next),
            },
            end=XmlParameters.cut_call,
        ),
        **value_rows(
            {
                **dict.fromkeys(("end_parameter", "end_block"), XmlValue.maybe_close),
                "key": key_in_value,
                **dict.fromkeys(("parameter", "end_key", "separator", "wrapper"), tag_or_flaw),
                **dict.fromkeys(("block", "end_wrapper"), next_in_value),
            },
            exact=True,
        ),
        State.NEXT_KEY: Row(text=read_next_key, on={"end_key": end_next_key}, end=no_next_key),
        State.NEXT_KEY_ENDED: Row(text=behind_next_key, on={"parameter": open_next_value}, end=no_next_key),
        State.PARAMETERS: Row(
            text=between,
            on={
                "key": open_key,
                **dict.fromkeys(("end_key", "parameter", "end_parameter"), odd_tag),
                "end_block": end_call,
                **dict.fromkeys(("block", "end_wrapper"), end_at_next),
            },
            end=XmlParameters.cut_call,
        ),
        State.ENVELOPE: Row(
            text=Hermes.read,
            on={"end_block": Hermes.cut_object, "block": cut_object_at_next},
            end=Hermes.cut_object,
            json=True,
        ),
        State.AFTER: Row(
            text=Hermes.next_object,
            on={
                "block": open_block,
                "end_block": Block.close_block,
                "end_wrapper": close_wrapper,
                "end_think": Prose.late_stop,
            },
        ),
    }  # fmt: skip
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("block", "wrapper")


class Ling3(Glm):
    """Ling 3's calls, which are GLM's; the ids of its tokens are not known here."""

    token_ids: ClassVar[Mapping[int, str]] = {}


class Laguna(Ling3):
    """Laguna's calls, which are GLM's: of 4.5 with blanks between the tags, or of 4.7 without."""

    structural_tag: ClassVar[str | None] = None


class LongCat(Ling3):
    """LongCat's calls, which are GLM 4.5's with a prefix in each tag; its first models write JSON in the outer one."""

    thinking_tags: ClassVar[tuple[str, str]] = ("<longcat_think>", "</longcat_think>")
    call_openers: ClassVar[tuple[str, ...]] = ("<longcat_tool_call>",)
    structural_tag: ClassVar[str | None] = None
    newlines_behind_reasoning: ClassVar[int] = 1
    lexicon: ClassVar[Lexicon] = Lexicon(
        {re.sub("^</?", r"\g<0>longcat_", marker): kind for marker, kind in {**THINK, **_PAIRS}.items()}
    )


def _with_suffix(markers: Mapping[str, str]) -> dict[str, str]:
    """Returns markers plain, with the suffix that Hy3 was published with, and with that of any other checkpoint."""
    stems = {spelling[:-1]: kind for spelling, kind in markers.items()}
    return {f"{stem}{end}": kind for end in (">", ":opensource>", ":…") for stem, kind in stems.items()}


class HyV3(Glm):
    """`<tool_calls:opensource>` around calls whose names end in `<tool_sep:opensource>`, all tags with a suffix."""

    thinking_tags: ClassVar[tuple[str, str]] = ("<think:opensource>", "</think:opensource>")
    call_openers: ClassVar[tuple[str, ...]] = (
        "<tool_calls:opensource>",
        "<tool_call:opensource>",
        "<tool_calls>",
        "<tool_call>",
    )
    structural_tag: ClassVar[str | None] = None
    lexicon: ClassVar[Lexicon] = Lexicon(
        _with_suffix(
            {
                **THINK,
                **_PAIRS,
                "<tool_calls>": "wrapper",
                "</tool_calls>": "end_wrapper",
                "<tool_sep>": "separator",
                "<end_of_tool_call>": "end_block",
            }
        )
    )
    token_ids: ClassVar[Mapping[int, str]] = {
        120030: "</think:opensource>",
        120033: "<tool_call:opensource>",
        120034: "</tool_call:opensource>",
        120035: "<tool_calls:opensource>",
        120036: "</tool_calls:opensource>",
        120043: "<tool_sep:opensource>",
        120066: "<arg_key:opensource>",
        120067: "</arg_key:opensource>",
        120068: "<arg_value:opensource>",
        120069: "</arg_value:opensource>",
    }


class HyV4(HyV3):
    """Hy4's calls: Hy3's, without the tag behind the name; the suffix is another one for each checkpoint."""

    structural_tag: ClassVar[str | None] = "hy_v4"
    token_ids: ClassVar[Mapping[int, str]] = {}
