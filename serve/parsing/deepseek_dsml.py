"""The grammar of DeepSeek V3.2, V4 and V4.1 (DSML): XML calls whose tags carry a token, and typed values.

A call ends the turn: text behind one is reported as `stray_text` and is no content. Where a value ends is decided in
`xml_call.py`, which JSON type it gets in `values.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from serve.parsing.arguments import audit, plain_text, read_object
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import Row, State
from serve.parsing.prose import END_OF_TURN, THINK, Turns, content_row, reasoning_row, reasoning_table, with_turns
from serve.parsing.values import DsmlValue
from serve.parsing.xml_call import END, TaggedArguments, XmlValue, value_rows

_TOKEN = "｜DSML｜"
# What models, proxies and copies make of the token. V4.1 writes a blank behind it, V3.2 and V4 do not.
_BARS = (_TOKEN, _TOKEN + " ", _TOKEN + "r:", "|DSML|", "|DSML| ", " | DSML | ", "||DSML||", "｜｜DSML｜｜", "‖DSML‖")
_WRAPPERS = ("function_calls", "tool_calls", "calls")  # of V3.2, V4 and V4.1
_BARE_WRAPPERS = (*_WRAPPERS, "function_call")  # without the token, where they may be words of XML


def _spellings() -> Iterator[tuple[str, str]]:
    for bars in (*_BARS, ""):
        for name in _WRAPPERS if bars else _BARE_WRAPPERS:
            yield f"<{bars}{name}>", "block" if bars else "bare_block"
            yield f"</{bars}{name}>", "end_block"
        yield f"<{bars}invoke name=…", "function"
        yield f"</{bars}invoke>", "end_function"
        yield f"<{bars}parameter name=…", "parameter"
        yield f"</{bars}parameter>", "end_parameter"
    for bars in _BARS[:2]:
        yield f"</{bars}parameter…", "drifted"
        yield f"</{bars}parameter\n", "drifted"
        yield f"{bars}invoke name=…", "function"
        yield f"{bars}parameter name=…", "parameter"
        for name in _WRAPPERS:
            yield f"<{bars}{name}\n", "block"
            yield f"{bars}{name}>", "block"
    for bars in _BARS:  # whatever else has the token where a wrapper is due: `toolcalls`, `tool`, `tool_use`
        yield f"<{bars.rstrip()}…", "block"
        yield f"</{bars.rstrip()}…", "end_block"


_SOUND = frozenset(f"<{bars}{name}>" for bars in _BARS[:2] for name in _WRAPPERS)
_TAG = re.compile(
    r"""(?P<quote>["']?)(?P<name>[^"'<>]*?)(?P=quote)"""
    r"""(?:\s+string=\s*["']?(?P<string>[^"'<>]*?)["']?)?\s*(?P<closed>/?)>""",
    re.IGNORECASE,
)
_BOOLEANS = {"true": True, "false": False}
_OWN = re.compile(rf"</?{_TOKEN}(?!r:)")
_OPENINGS = ("block", "bare_block")
_ENDS = ("end_parameter", "drifted", "end_function", "end_block")
_WHOLE = ("arguments", "input")  # parameters that models make up to hold all arguments
_GAP = "\n\n"  # that the template writes in front of a wrapper


class Tag:
    """The attributes of a call's or a parameter's tag.

    Attributes:
        name: Of the tool, or of the parameter.
        is_string: What the attribute `string` says; None if there is none.
        is_odd: True if it says something else.
    """

    def __init__(self, raw: str) -> None:
        attributes = raw[raw.index("name=") + len("name=") :].lstrip()
        match = _TAG.fullmatch(attributes)
        self.sound = match is not None
        self.name = match["name"].strip() if match else attributes[:-1]
        string = match["string"] if match else None
        self.is_string = None if string is None else _BOOLEANS.get(string.lower())
        self.is_odd = string is not None and self.is_string is None
        self.closed = bool(match and match["closed"])


class Dsml(TaggedArguments, Turns):
    """`<｜DSML｜tool_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="k" string="true">v</｜DSML｜parameter>…`.

    The three models write the same with other names for the wrapper.
    """

    call_openers: ClassVar = tuple(f"<{bars}{name}>" for bars in _BARS[:2] for name in _WRAPPERS)
    lexicon: ClassVar[Lexicon] = Lexicon({**THINK, **dict(_spellings()), END_OF_TURN: "stop"})

    openings: ClassVar = {**XmlValue.openings, "drifted": "parameter"}

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._lines: list[str] = []  # at the end of content: they may stand in front of a wrapper
        self._behind: list[str] = []  # text behind the calls
        self._behind_at = 0
        self._drafted: tuple[int, str] | None = None  # a call in reasoning, without a wrapper
        self._wrapper: tuple[int, str] | None = None  # the one that is open
        self._pending: tuple[int, str] | None = None  # the one that may be
        self._misspelt = False
        self._mended = False  # a closing tag is missing
        self._bare = False  # the call's tags lack the token
        self._whole: list[str] | None = None  # arguments so far, which may be those of one parameter that holds all
        self._noise: list[str] = []  # text between parameters
        self._noise_at = 0

    def token_of(self, raw: str) -> str:
        return _TOKEN if _TOKEN in raw else raw

    # Prose

    def write(self, raw: str) -> None:
        """Writes content, and holds the line breaks at its end back. Text behind a call is reported."""
        self._write_at(raw, self.position)

    def _write(self, text: str) -> None:
        if self._origin is State.REASONING:
            self.out.reasoning(text)
        else:
            self._write_at(text, self.begin)

    def _write_at(self, text: str, position: int) -> None:
        if self.out.calls:
            rest = text if self._behind else text.lstrip()
            if not self._behind:
                self._behind_at = position + len(text) - len(rest)
            if rest:
                self._behind.append(rest)
            return
        body = text.rstrip("\n")
        if body:
            self._write_lines()
            self.out.content(body)
        if len(body) < len(text):
            self._lines.append(text[len(body) :])
            self.out.quoting = False

    def _write_lines(self) -> None:
        if self._lines:
            self.out.content("".join(self._lines))
            self._lines = []

    def _leave_prose(self) -> None:
        """Ends the prose in front of a call, without the gap that the template writes there."""
        lines = "".join(self._lines).removesuffix(_GAP)
        self._lines = [lines] if lines else []
        self._write_lines()
        self._report_behind()

    def _report_behind(self) -> None:
        if self._behind:
            self.out.violation("stray_text", self._behind_at, "".join(self._behind))
            self._behind = []

    def leave_content(self) -> None:
        self._write_lines()
        self._report_behind()

    def late_stop(self, raw: str) -> None:
        if self.thought and not self._behind:
            super().late_stop(raw)
        else:
            self.write(raw)

    def end_content(self, raw: str) -> None:
        self.leave_content()
        self.end_draft(raw)

    def draft(self, raw: str) -> None:
        """Takes a call in reasoning, outside a wrapper: a word of the model, unless the output goes no further."""
        self._drafted = self._drafted or (self.position, raw)
        self.reason(raw)

    def end_draft(self, raw: str) -> None:
        if self._drafted and not self.out.calls and not self.out.wrote_content:
            self.out.violation("malformed_call", *self._drafted)
        self._drafted = None

    # Up to the first parameter

    def open_block(self, raw: str) -> State:
        self._pending = (self.position, raw)
        return super().open_block(raw)

    def not_a_call(self, raw: str) -> State | None:
        """Takes what cannot follow a wrapper's opening tag. A tag that lacks the token may well be a word."""
        if "DSML" in self.raw[0]:
            return super().not_a_call(raw)
        raw = self.keep_space(raw)
        return self.back_to_prose(raw, None) if raw else None

    def reopen_block(self, raw: str) -> State | None:
        """Takes a second opening tag right behind the first: one too many, or both are none."""
        if raw != self.raw[0]:
            return self.back_to_prose(raw, "malformed_call" if "DSML" in self.raw[0] else None)
        self._report_behind()
        return super().reopen_block(raw)

    def empty_block(self, raw: str) -> State:
        if "DSML" not in self.raw[0]:
            return self.dispatch(raw, self.release())
        self._report_behind()
        return super().empty_block(raw)

    def cut_block(self, raw: str) -> State:
        return super().cut_block(raw) if "DSML" in self.raw[0] else self.release()

    def malformed(self, raw: str) -> State:
        """Releases a call whose tag is damaged, and the tag with it."""
        self.raw.append(raw)
        self.enter_call()
        return self.release("malformed_call")

    def bare_function(self, raw: str) -> State | None:
        """Takes a call without a wrapper."""
        tag = Tag(raw)
        if _TOKEN not in raw and tag.name not in self.tools:
            self.write(raw)
            return None
        self._pending = None
        self.begin_call(State.CONTENT, self.position)
        return self.function(raw)

    def function(self, raw: str) -> State:
        tag = Tag(raw)
        if not tag.sound or tag.is_odd or not self.tools.may_be(tag.name):
            return self.malformed(raw)
        self._misspelt = any(map(self._is_misspelt, (*self.raw, raw)))
        self._bare = "DSML" not in raw
        self._mended = False
        self.raw.append(raw)
        self._name = tag.name
        return self.no_arguments("") if tag.closed else State.FUNCTION

    def _is_misspelt(self, raw: str) -> bool:
        kind = self.lexicon.kind(raw)
        return bool(kind) and (raw not in _SOUND if kind in _OPENINGS else _OWN.match(raw) is None)

    def next_function(self, raw: str) -> State:
        """Takes another call in the same wrapper."""
        self._report_behind()
        self.begin_call(State.CONTENT, self.position)
        return self.function(raw)

    def no_parameter(self, raw: str) -> State | None:
        return self.back_to_prose(raw, None if self._bare else self.fault()) if raw else None

    def first_parameter(self, raw: str) -> State:
        self.start_by_tags()
        return self.parameter(raw)

    def no_arguments(self, raw: str) -> State:
        """Takes the end of a call behind its name."""
        self.start_by_tags()
        return self._end(raw)

    def no_arguments_at_next(self, raw: str) -> State:
        self.start_by_tags()
        self._mended = True
        return self.dispatch(raw, self._end(""))

    def enter_call(self) -> None:
        if self._origin is State.REASONING:
            self.out.end_reasoning(keep_space=False)
            self.reasoning_ends(self.begin)
            self._origin = State.CONTENT

    def start_by_tags(self) -> None:
        self.enter_call()
        self._leave_prose()
        self._wrapper = self._pending or self._wrapper
        self._pending = None
        self.spoiled = False
        super().start_by_tags()

    # Arguments as an object

    def end_object(self, raw: str) -> State:
        self.in_string = False
        return self._finish(raw)

    def end_object_at_next(self, raw: str) -> State:
        self.in_string = False
        self._mended = True
        return self.dispatch(raw, self._finish(""))

    # Parameters

    def parameter(self, raw: str) -> State:
        self._report_noise()
        tag = Tag(raw)
        key = tag.name
        if key in self._given:
            self.report("duplicate_argument", self.position, raw)
        if not tag.sound or (self.tools.properties(self._name) is None and not self.tools.may_have(self._name, key)):
            self.report("unknown_argument", self.position, raw)
        opening = ", " if self._given else "{"
        self.in_string = False
        if not self._given and key in _WHOLE and self._name in self.tools and not self.tools.parameter(self._name, key):
            self._whole = []
            self.emit = self._whole.append
        else:
            self._pass_on()
        self._given.add(key)
        self._misspelt = self._misspelt or tag.is_odd or self._is_misspelt(raw)
        self.raw.append(raw)
        self._value = DsmlValue(self.tools.parameter(self._name, key), self.tools.schema(self._name), tag.is_string)
        self._wrapped = self._wrapper is not None
        self.begin_text(self._value, self.position + len(raw))
        self.emit(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        if tag.closed:
            self.emit(self._value.finish())
            return State.PARAMETERS
        return State.VALUE

    def parameter_in_value(self, raw: str) -> State | None:
        """Takes the next parameter, if its predecessor's closing tag is missing, or letters of the value."""
        key = Tag(raw).name
        properties = self.tools.properties(self._name)
        known = self.tools.may_have(self._name, key) if properties is None else key in properties
        if self._is_foreign(raw) or not (self.real or (known and key not in self._given)):
            self.tag_in_value(raw)
            return None
        self._mended = True
        self._end_value()
        return self.parameter(raw)

    def tag_in_value(self, raw: str) -> State | None:
        if not self._is_foreign(raw):
            return super().tag_in_value(raw)
        self.keep(raw)
        return None

    def maybe_close(self, raw: str) -> State | None:
        kind = self.lexicon.kind(raw)
        if self._is_foreign(raw):
            if kind != "end_parameter":
                self.keep(raw)
                return None
            kind = "drifted"
        return self.hold(kind, raw)

    def _is_foreign(self, raw: str) -> bool:
        """Returns whether a tag in a value lacks the token that the call's own tags have."""
        return not self._bare and "DSML" not in raw

    def follower(self, kind: str, raw: str) -> str:
        behind_parameter = self._candidate == "end_parameter"
        if kind == "stop":
            return END
        if not (kind == "end_function" and behind_parameter) and self._is_foreign(raw):
            return "text"
        if kind == "function" and behind_parameter:
            return "end_function"  # whose tag is missing
        return super().follower(kind, raw)

    def close_value(self) -> State:
        """Takes the tag held back as real."""
        tag, *space = self._held
        implied = self._candidate in ("end_function", "end_block")
        self._misspelt = self._misspelt or self._candidate == "drifted" or self._is_misspelt(tag)
        self._end_value()
        if not implied:
            self.raw += [tag, *space]
            return State.PARAMETERS
        self._mended = True
        state = self._end(tag if self._candidate == "end_function" else "")
        return self._close_wrapper(tag, self._held_at) if self._candidate == "end_block" else state

    def _end_value(self) -> None:
        self.emit(self._value.finish())
        self._odd |= self.has_opened()
        self.report_doubt()

    def between(self, raw: str) -> None:
        """Takes text between parameters, where only blanks belong."""
        self.raw.append(raw)
        rest = raw if self._noise else raw.lstrip()
        if not self._noise:
            self._noise_at = self.position + len(raw) - len(rest)
        if rest:
            self._noise.append(rest)

    def _report_noise(self) -> None:
        if self._noise:
            self.report("stray_text", self._noise_at, "".join(self._noise))
            self._noise = []

    # The end of a call

    def end_function(self, raw: str) -> State:
        return self._end(raw)

    def end_at_next(self, raw: str) -> State:
        """Takes what follows a call whose closing tag is missing."""
        self._mended = True
        return self.dispatch(raw, self._end(""))

    def cut_call(self, raw: str) -> State:
        self.in_string = False
        self._report_noise()
        self._pass_on()
        self.finish_call("unfinished_call")
        self._wrapper = None
        return State.CONTENT

    def _end(self, tag: str) -> State:
        self.emit("}" if self._given else "{}")
        return self._finish(tag)

    def _finish(self, tag: str) -> State:
        self._report_noise()
        if tag:
            self.raw.append(tag)
            self._misspelt = self._misspelt or self._is_misspelt(tag)
        self._unwrap()
        raw = "".join(self.raw)
        if self._misspelt:
            self.report("drifted_marker", self.begin, raw)
        self.finish_call("malformed_call" if self._mended else None)
        return State.AFTER

    def _pass_on(self) -> None:
        """Lets arguments go that were held back because one parameter might hold all."""
        if self._whole is not None:
            self.out.arguments("".join(self._whole))
            self._whole = None
            self.emit = self.out.arguments

    def _unwrap(self) -> None:
        """Takes the value of a parameter that the tool does not have for all arguments, if they suit the tool."""
        if self._whole is None:
            return
        value = next(iter((read_object("".join(self._whole)) or {}).values()), None)
        inner = read_object(value) if isinstance(value, str) else value
        text = plain_text(inner) if isinstance(inner, dict) else ""
        if text and not audit(text, self._name, self.tools):
            self._whole = [text]
        self._pass_on()

    # Behind calls

    def close_wrapper(self, raw: str) -> State:
        self._report_behind()
        return self._close_wrapper(raw, self.position)

    def _close_wrapper(self, raw: str, position: int) -> State:
        if self._wrapper is None:
            self.out.violation("stray_marker", position, raw)
        self._wrapper = None
        return State.CONTENT

    def end_wrapper(self, raw: str) -> State:
        """Ends the output with a wrapper open, so that further calls may be missing."""
        if self._wrapper:
            self.out.violation("unfinished_call", *self._wrapper, hidden=True)
            self._wrapper = None
        return State.CONTENT

    def stray_tag(self, raw: str) -> None:
        """Takes a tag that belongs to no call: markup behind one, or else a word."""
        if self._behind or "DSML" not in raw:
            self.write(raw)
        elif self.out.calls:
            self.out.violation("stray_marker", self.position, raw, hidden=self.lexicon.kind(raw) == "parameter")
        else:
            if not self.spoiled:
                self.out.violation("stray_marker", self.position, raw)
            self.write(raw)
            if self.lexicon.kind(raw) == "end_block":
                self.spoiled = False

    _strays: ClassVar = dict.fromkeys(("parameter", *_ENDS), stray_tag)
    _openings: ClassVar = dict.fromkeys(_OPENINGS, open_block)
    _prose: ClassVar = {**_openings, "end_think": late_stop, "function": bare_function}
    _content: ClassVar = replace(content_row({**_strays, **_prose}), text=write)
    _next: ClassVar = ("end_block", "function", "block")
    table: ClassVar[Mapping[State, Row]] = with_turns(
        {
            State.REASONING: replace(reasoning_row({**_openings, "function": draft}), end=end_draft),
            State.CONTENT: replace(_content, end=end_content),
            State.OPENED: Row(
                text=not_a_call,
                on={"function": function, "end_block": empty_block, **dict.fromkeys(_OPENINGS, reopen_block)},
                end=cut_block,
            ),
            State.FUNCTION: Row(
                text=TaggedArguments.object_or_prose,
                on={
                    "parameter": first_parameter,
                    "end_function": no_arguments,
                    **dict.fromkeys(_next, no_arguments_at_next),
                },
                end=TaggedArguments.cut_function,
            ),
            State.ARGUMENTS: Row(
                text=TaggedArguments.read_object,
                on={"end_function": end_object, **dict.fromkeys(_next, end_object_at_next)},
                end=cut_call,
                json=True,
            ),
            **value_rows(
                {
                    "parameter": parameter_in_value,
                    **dict.fromkeys(("function", "block"), tag_in_value),
                    **dict.fromkeys(_ENDS, maybe_close),
                },
                exact=True,
            ),
            State.PARAMETERS: Row(
                text=between,
                on={"parameter": parameter, "end_function": end_function, **dict.fromkeys(_next, end_at_next)},
                end=cut_call,
            ),
            State.AFTER: replace(
                _content, on={**_content.on, "function": next_function, "end_block": close_wrapper}, end=end_wrapper
            ),
        }
    )
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("block")


class DeepSeekV32(Dsml):
    """DSML whose tags are ordinary tokens, so that ids show none of them."""

    structural_tag: ClassVar = "deepseek_v3_2"
    token_ids: ClassVar[Mapping[int, str]] = {128798: "<think>", 128799: "</think>"}


class DeepSeekV4(Dsml):
    """DSML with a token of its own in each tag."""

    structural_tag: ClassVar = "deepseek_v4"
    token_ids: ClassVar[Mapping[int, str]] = {128821: "<think>", 128822: "</think>", 128825: _TOKEN}


class DeepSeekV41(DeepSeekV4):
    """DSML with a blank behind the token."""

    structural_tag: ClassVar = "deepseek_v4_1"
