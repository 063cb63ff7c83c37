"""The grammar of Mistral's models since 2025: a name and one JSON object behind a token, several of them in a row.

The list of objects that their older tokenizers write is read as in `hermes.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.hermes import Hermes
from serve.parsing.json_scanner import JsonScanner
from serve.parsing.lexer import Lexicon
from serve.parsing.machine import LONGEST_NAME, Row, State
from serve.parsing.prose import THINK, Prose, content_row, reasoning_row, reasoning_table
from serve.parsing.tool_call_block import Block

# What is held back while it may be a name; bounded, so that prose behind a marker is not.
_NAME = re.compile(r"\s{0,64}(?P<name>[^\s<>{}\[\]\"'`]{0,256})\s{0,64}")


class Mistral(Hermes):
    """`[TOOL_CALLS]name[ARGS]{…}`, with `[CALL_ID]id` behind the name in some versions; a call ends with its object."""

    thinking_tags: ClassVar[tuple[str, str]] = ("[THINK]", "[/THINK]")
    call_openers: ClassVar[tuple[str, ...]] = ("[TOOL_CALLS]",)
    structural_tag: ClassVar[str | None] = None
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            **THINK,  # Magistral of June 2025
            "[THINK]": "think",
            "[/THINK]": "end_think",
            "[TOOL_CALLS]": "block",
            "[CALL_ID]": "id",
            "[ARGS]": "arguments",
        }
    )
    members: ClassVar = Hermes.members | {"id"}
    token_ids: ClassVar[Mapping[int, str]] = {
        9: "[TOOL_CALLS]",
        32: "[ARGS]",
        33: "[CALL_ID]",
        34: "[THINK]",
        35: "[/THINK]",
    }

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._name = ""
        self._id: list[str] = []
        self._scanner = JsonScanner()

    # The header

    def open_block(self, raw: str) -> State:
        self._begin_name()
        return super().open_block(raw)

    def open_again(self, raw: str) -> State:
        """Takes `[TOOL_CALLS]` where another one has opened a call that did not come."""
        self._begin_name()
        self.reopen_block(raw)
        return State.OPENED

    def _begin_name(self) -> None:
        self._name = ""
        self._id = []

    def read_name(self, raw: str) -> State | None:
        """Takes text behind `[TOOL_CALLS]`: the name of a tool, a list of objects, or prose."""
        held = "".join(self.raw[1:])
        if held.strip() == "[" or (not held.strip() and raw.lstrip()[:1] in ("[", "{")):
            return self.begin_object(raw)
        text = held + raw
        match = _NAME.match(text)
        assert match is not None  # the pattern matches the empty text
        self._name = match["name"]
        self.raw.append(text[len(held) : match.end()])
        rest = text[match.end() :]
        if self._name and rest.startswith("{"):
            return self.begin_arguments(rest)
        return self._no_name(rest) if rest else None

    def _no_name(self, rest: str) -> State:
        """Takes what cannot follow the name: prose, unless it looks like a call."""
        meant = rest[0] in "{[" or "\n" in "".join(self.raw) or self._name in self.tools
        return self.back_to_prose(rest, self.fault() if meant else None)

    def name_ends(self, raw: str) -> State:
        """Takes `[CALL_ID]` or `[ARGS]` behind the name."""
        if not self._name:
            return self.malformed(raw)
        self.raw.append(raw)
        return State.HEADER if self.lexicon.kind(raw) == "id" else State.FUNCTION

    def read_id(self, raw: str) -> State | None:
        end = max(0, self.begin + LONGEST_NAME - self.position)
        self.raw.append(raw[:end])
        self._id.append(raw[:end])
        if len(raw) <= end:
            return None
        state = self.release("malformed_call")
        self._write(raw[end:])
        return state

    def id_ends(self, raw: str) -> State:
        self.raw.append(raw)
        return State.FUNCTION

    # The arguments

    def arguments_or_prose(self, raw: str) -> State | None:
        """Takes text where the arguments are due."""
        raw = self.keep_space(raw)
        if raw.startswith("{"):
            return self.begin_arguments(raw)
        return self.back_to_prose(raw, self.fault()) if raw else None

    def begin_arguments(self, raw: str) -> State:
        self.enter_call()
        self.spoiled = False
        self.out.by_tags = False
        self.out.start_call("".join(self._id).strip() or f"call_{self.out.calls}", self._name)
        self._scanner = JsonScanner()
        return self.read_arguments(raw)

    def read_arguments(self, raw: str) -> State:
        """Reads on in the arguments; what stands behind their last bracket is content."""
        end = self._scanner.feed_value(raw)
        self.in_string = self._scanner.in_string
        inside = raw if end < 0 else raw[:end]
        self.raw.append(inside)
        self.out.arguments(inside)
        if end < 0:
            return State.ARGUMENTS
        self.finish_call()
        if raw[end:]:
            self.out.content(raw[end:])
        return State.CONTENT

    def cut_arguments(self, raw: str) -> State:
        """Ends the output, or begins the next call, inside the arguments."""
        self.in_string = False
        self.finish_call("unfinished_call")
        return self.dispatch(raw, State.CONTENT) if raw else State.CONTENT

    def headless_arguments(self, raw: str) -> None:
        """Takes `[ARGS]` in content: a word, as in the usage of a command, or behind a tool's name a lost call's."""
        tail = "".join(self.out.tail)[-256:]
        if any(map(tail.endswith, self.tools)):
            self.out.violation("malformed_call", self.position, raw)
        self.out.content(raw)

    table: ClassVar[Mapping[State, Row]] = {
        State.REASONING: reasoning_row({"block": open_block}),
        State.CONTENT: content_row({"block": open_block, "arguments": headless_arguments}),
        State.OPENED: Row(
            text=read_name,
            on={**dict.fromkeys(("id", "arguments"), name_ends), "block": open_again},
            end=Block.cut_block,
        ),
        State.HEADER: Row(
            text=read_id, on={"arguments": id_ends, "block": open_again}, end=Block.cut_block
        ),
        State.FUNCTION: Row(
            text=arguments_or_prose,
            on={**dict.fromkeys(("id", "arguments"), Block.malformed), "block": open_again},
            end=Block.cut_block,
        ),
        State.ARGUMENTS: Row(text=read_arguments, on={"block": cut_arguments}, end=cut_arguments, json=True),
        State.ENVELOPE: Hermes.table[State.ENVELOPE],
        State.AFTER: Row(
            text=Hermes.next_object, on={"block": open_block, "end_think": Prose.late_stop}, end=Hermes.cut_list
        ),
    }  # fmt: skip
    reasoning_only: ClassVar[Mapping[State, Row]] = reasoning_table("block")
