"""The grammar of Gemma 4: arguments in a notation of their own, which becomes JSON while it arrives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from serve.parsing.lexer import Lexicon
from serve.parsing.machine import LONGEST_NAME, Row, State
from serve.parsing.prose import Prose, content_row, reasoning_row, reasoning_table
from serve.parsing.tool_call_block import Block

# What is held back while it may be a name; bounded, so that prose behind a marker is not.
_NAME = re.compile(r"\s{0,64}(?:call:(?P<name>[^\s<>{}\[\]\"'`,:]{0,256})|call|cal|ca|c)?")
_PARTS = re.compile(r"[{}\[\],:]|[^{}\[\],:]+")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9]\d{0,4000})(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[^\W\d][\w.\-]*")
_CLOSING = {"{": "}", "[": "]"}


class Arguments:
    """An object as Gemma 4 writes it: keys without quotes, strings between quotes that are a token.

    Attributes:
        ended: True once its last bracket has come.
        endless: True once a key, or a value without quotes, is too long for one.
        sound: False once something stood where it does not belong.
        drifted: True once a word that can only be a string had no quotes, or a string no opening one.
    """

    def __init__(self) -> None:
        self.ended = False
        self.endless = False
        self.sound = True
        self.drifted = False
        self._open: list[str] = []
        self._due = "value"  # or a key, a colon, a comma
        self._last = ""  # the last sign
        self._bare: list[str] = []  # a key or a value without quotes
        self._room = LONGEST_NAME  # for more of it

    def feed(self, text: str) -> Iterator[tuple[int, str]]:
        """Yields the place behind each part of a text outside of strings, with its JSON, up to the last bracket, or to
        where it has become endless.
        """
        for match in _PARTS.finditer(text):
            part = match.group()
            if len(part) == 1 and part in "{}[],:":
                yield match.end(), self.settle() + self._sign(part)
            elif len(part) <= self._room:
                self._room -= len(part)
                self._bare.append(part)
                yield match.end(), ""
            else:
                self.endless = True
                yield match.start() + self._room, ""
            if self.ended or self.endless:
                return

    @property
    def takes_string(self) -> bool:
        """True where a string can begin."""
        return bool(self._open) and self._due in ("key", "value") and not "".join(self._bare).strip()

    def end_string(self) -> None:
        self._last = '"'
        self._due = "colon" if self._due == "key" else "comma"

    def end_bare_string(self) -> str:
        """Returns the JSON of a text that lacks its opening quote; any other quote is one too many, and so is one that
        may end a text with a comma, of which a word has been read already.
        """
        text = "".join(self._bare)
        if self._due != "value" or not text.strip() or self.drifted:
            self.sound = False
            return self.settle()
        self._bare = []
        self._room = LONGEST_NAME
        self.drifted = True
        self.end_string()
        return json.dumps(text, ensure_ascii=False)

    def settle(self) -> str:
        """Returns the JSON of a key or a value without quotes, now that it has ended."""
        text = "".join(self._bare).strip()
        self._bare = []
        self._room = LONGEST_NAME
        if not text:
            return ""
        if self._due == "key":
            self._due = "colon"
            return json.dumps(text, ensure_ascii=False)
        if self._due != "value":
            self.sound = False
            return ""
        self._due = "comma"
        if (literal := self.literal(text)) is not None:
            return literal
        if _WORD.fullmatch(text):
            self.drifted = True
        else:
            self.sound = False
        return json.dumps(text, ensure_ascii=False)

    def literal(self, text: str) -> str | None:
        """Returns the JSON of a value without quotes; None if it is none."""
        return text if _SCALAR.fullmatch(text) else None

    def _sign(self, sign: str) -> str:
        last, self._last = self._last, sign
        if sign in _CLOSING and self._due == "value":
            self._open.append(sign)
            self._due = "key" if sign == "{" else "value"
            return sign
        if sign in "}]" and self._open and _CLOSING[self._open[-1]] == sign and self._due != "colon":
            self.sound = self.sound and (self._due == "comma" or last in _CLOSING)
            self._open.pop()
            self._due = "comma"
            self.ended = not self._open
            return sign
        if sign == ":" and self._due == "colon":
            self._due = "value"
            return ": "
        if sign == "," and self._due == "comma":
            self._due = "key" if self._open[-1] == "{" else "value"
            return ", "
        self.sound = False
        return ""


class Gemma4(Block):
    """`<|tool_call>call:name{key:<|"|>text<|"|>,other:7}<tool_call|>`; thoughts stand in a channel of their own."""

    thinking_tags: ClassVar[tuple[str, str]] = ("<|channel>thought\n", "<channel|>")
    call_openers: ClassVar[tuple[str, ...]] = ("<|tool_call>",)
    structural_tag: ClassVar[str | None] = None
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            **dict.fromkeys(("<|channel>thought\n", "<|channel>thought"), "think"),
            "<channel|>": "end_think",
            "<|tool_call>": "block",
            "<tool_call|>": "end_block",
            '<|"|>': "quote",
        }
    )
    token_ids: ClassVar[Mapping[int, str]] = {48: "<|tool_call>", 49: "<tool_call|>", 52: '<|"|>'}

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._arguments = Arguments()

    def think(self, raw: str) -> State | None:
        """Takes the beginning of thoughts, which may come again in an answer, and be empty."""
        if not raw.endswith("\n"):
            return super().think(raw)
        self.out.boundary()
        if self.out.wrote_reasoning:
            self.out.reasoning("\n")  # parts these from those in front
        self.open_thought = self.thought = True
        return State.REASONING

    def read_name(self, raw: str) -> State | None:
        """Takes text behind `<|tool_call>`: the name of a tool and the bracket of its arguments, or prose."""
        return self.go_on(self._read_name(raw), self.position + len(raw))

    def _read_name(self, raw: str) -> State | None:
        held = "".join(self.raw[1:])
        text = held + raw
        match = _NAME.match(text)
        assert match is not None  # the pattern matches the empty text
        self.raw.append(text[len(held) : match.end()])
        rest = text[match.end() :]
        if match["name"] and rest.startswith("{"):
            self.enter_call()
            self.spoiled = False
            self.out.by_tags = False
            self.out.start_call(f"call_{self.out.calls}", match["name"])
            self._arguments = Arguments()
            return self._read(rest)
        return self.back_to_prose(rest, self.fault() if match["name"] else None) if rest else None

    def read(self, raw: str) -> State | None:
        """Reads on in the arguments, outside of strings."""
        return self.go_on(self._read(raw), self.position + len(raw))

    def _read(self, raw: str) -> State:
        parts = list(self._arguments.feed(raw))
        if text := "".join(part for _, part in parts):
            self.out.arguments(text)
        end = parts[-1][0]
        self.raw.append(raw[:end])
        if self._arguments.endless:
            self.finish_call("unfinished_call")
            self.out.content(raw[end:])
            return State.CONTENT
        if not self._arguments.ended:
            return State.ARGUMENTS
        if self._arguments.drifted:
            self.report("drifted_marker", self.begin, "".join(self.raw))
        self.finish_call(None if self._arguments.sound else "malformed_call")
        self.rest = raw[end:]
        return State.AFTER

    def next_call(self, raw: str) -> State | None:
        """Takes text behind a call: another one in the same block, as smaller models write them, or prose."""
        return self.go_on(self.follow(raw, self.position), self.position + len(raw))

    def follow(self, raw: str, begin: int) -> State:
        if raw.isspace():
            self.out.content(raw)
            return State.AFTER
        self.begin_call(State.CONTENT, begin, "")
        return self._read_name(raw) or State.OPENED

    def open_string(self, raw: str) -> State | None:
        if not self._arguments.takes_string:
            self.out.arguments(self._arguments.end_bare_string())
            self.raw.append(raw)
            return None
        self.raw.append(raw)
        self.out.arguments('"')
        return State.VALUE

    def read_string(self, raw: str) -> None:
        self.raw.append(raw)
        self.out.arguments(json.dumps(raw, ensure_ascii=False)[1:-1])

    def close_string(self, raw: str) -> State:
        self.raw.append(raw)
        self.out.arguments('"')
        self._arguments.end_string()
        return State.ARGUMENTS

    def cut(self, raw: str) -> State:
        """Ends a call where a marker, or the end of the output, comes inside its arguments."""
        self.out.arguments(self._arguments.settle())
        return self.leave_call(raw)

    table: ClassVar[Mapping[State, Row]] = {
        State.REASONING: reasoning_row({"block": Block.open_block}),
        State.CONTENT: content_row(
            {"block": Block.open_block, **dict.fromkeys(("end_block", "quote"), Block.stray_tag), "think": think}
        ),
        State.OPENED: Row(
            text=read_name, on={"end_block": Block.empty_block, "block": Block.reopen_block}, end=Block.cut_block
        ),
        State.ARGUMENTS: Row(
            text=read, on={"quote": open_string, **dict.fromkeys(("block", "end_block"), cut)}, end=cut
        ),
        State.VALUE: Row(
            text=read_string,
            on={"quote": close_string, **dict.fromkeys(("block", "end_block"), cut)},
            end=cut,
            exact=True,
        ),
        State.AFTER: Row(
            text=next_call,
            on={
                "block": Block.open_block,
                "end_block": Block.close_block,
                "think": think,
                "end_think": Prose.late_stop,
            },
        ),
    }
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("block")
