"""The grammar of gpt-oss (harmony): messages with a header that names a channel and, for a call, a recipient."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from serve.parsing.events import ViolationKind
from serve.parsing.json_call import JsonCall
from serve.parsing.lexer import Lexicon, PatternWatch
from serve.parsing.machine import LONGEST_NAME, Row, State

# What stands in front of `<|message|>`, each run of blanks as one, so that no number of them is tried in many ways. The
# recipient comes before the channel or behind it, and the format of the message with its marker or without.
_HEADER = re.compile(
    r"(?:assistant)?"
    r"(?: ?\bto=(?P<before>[^ <]++))?"
    r"(?: ?<\|channel\|> ?(?P<channel>analysis|commentary|final))?"
    r"(?: to=(?P<behind>[^ <]++))?"
    r" ?(?P<format>(?:<\|constrain\|> ?|(?<= ))(?i:json|code|text)\b)?"
)
_CHANNEL = re.compile(r"analysis|commentary|final")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_ROLE = re.compile(r"\s*([^\s<]+)")
_WORD = re.compile(r"[\w.\-]+")
# What text outside any message may be: the beginning of a header whose `<|start|>` is in the prompt, or was lost.
_MAYBE_HEADER = re.compile(
    r"\s*(?:[a-z]{0,24}|(?:[a-z]{0,24}\s+)?to=[^\s<{]{0,256}(?:\s+[A-Za-z]{0,4})?\s*|[a-z]{0,24}\s+(?:to?)?)"
)
_LONGEST_MAYBE = 512
# A header that ran into the text of its message, because `<|message|>` was lost.
_RUN_ON = re.compile(
    r"(?:assistant)?\s*<\|channel\|>\s*(?P<channel>analysis|commentary|final)(?!\s*(?:to=|<\||json))(?P<text>.*\S.*)",
    re.DOTALL,
)
# Headers whose markers were skipped when the output was decoded.
_SKIPPED = re.compile(
    r"assistant(?:analysis|commentary|final)|(?<!`)(?<!`commentary )(?<!`analysis )(?<!`assistant )to=functions\."
)
_LONGEST_SKIPPED = 32
# Tools of the format's own; a request may also declare functions of these names.
_BUILTIN = frozenset({"python", "browser", "container", "code_interpreter", "web_search_preview"})


class Harmony(JsonCall):
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>`, after `<|start|>assistant`.

    Reasoning is what the channel `analysis` says, content what `final` says, and `commentary` to nobody.
    """

    thinking_tags: ClassVar[tuple[str, str]] = ("<|channel|>analysis<|message|>", "<|end|>")
    call_openers: ClassVar = ()
    structural_tag: ClassVar = "harmony"
    lexicon: ClassVar[Lexicon] = Lexicon(
        {
            "<|start|>": "start",
            "<|channel|>": "channel",
            "<|constrain|>": "constrain",
            "<|message|>": "message",
            "<|end|>": "end",
            "<|return|>": "return",
            "<|call|>": "call",
        }
    )
    token_ids: ClassVar[Mapping[int, str]] = {
        200002: "<|return|>",
        200003: "<|constrain|>",
        200005: "<|channel|>",
        200006: "<|start|>",
        200007: "<|end|>",
        200008: "<|message|>",
        200012: "<|call|>",
    }

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._bare: list[str] = []  # text outside any message
        self._bare_at = 0
        self._first = True  # nothing but such text has come
        self._fault = False  # the header of the call at hand is damaged
        self._kept: list[str] = []  # a message for nobody that we serve
        self._to_nobody = False
        self._skipped = PatternWatch(_SKIPPED, _LONGEST_SKIPPED)
        if not self.thinking:
            self._go(State.BETWEEN)

    # Outside messages

    def outside(self, raw: str) -> State | None:
        """Takes text outside any message: the beginning of a header, or text that belongs to none."""
        if not self._header:
            self._begin = self.position
        self._header.append(raw)
        text = "".join(self._header)
        if len(text) <= _LONGEST_MAYBE and _MAYBE_HEADER.fullmatch(text):
            return None
        return self._release()

    def _release(self) -> State:
        """Shows what was held back as content: it is no header."""
        text = "".join(self._header)
        self._header = []
        self._bare = []
        self._bare_at = self._begin
        if not self._first:
            self._open_content()
        self.reasoning_ends(self._begin)
        self._skipped.clear()
        self._write_bare(text, self._begin)
        return State.BARE

    def write_bare(self, raw: str) -> None:
        self._write_bare(raw, self.position)

    def _write_bare(self, text: str, position: int) -> None:
        self._bare.append(text)
        if (found := self._skipped.feed(text, position)) is not None:
            self.out.violation("malformed_call", *found)
        self.out.content(text)

    def stray_in_bare(self, raw: str) -> None:
        """Takes `<|constrain|>` in bare text, which is reported with it."""
        self._bare.append(raw)
        self._skipped.clear()
        self._first = False

    def end_outside(self, raw: str) -> State | None:
        """Ends the output outside any message."""
        return self._release() if self._holds_text() or (self._first and self._header) else None

    def end_bare(self, raw: str) -> State:
        """Ends the output in bare text, which is an answer if there is nothing else."""
        self._leave_bare(said_all=self._first)
        return State.BETWEEN

    def _holds_text(self) -> bool:
        """Returns whether text outside messages was held back that is not just the role of a header."""
        return "".join(self._header).strip() not in ("", "assistant")

    def _leave_bare(self, said_all: bool = False) -> None:
        if not said_all:
            self.out.violation("stray_text", self._bare_at, "".join(self._bare))
        self._bare = []

    def stray_end(self, raw: str) -> State:
        """Takes the end of a message that did not begin."""
        self._leave()
        self.stray(raw)
        return State.BETWEEN

    # The header

    def start_message(self, raw: str) -> State:
        """Takes `<|start|>`, which also ends the message in front if nothing else did."""
        self._leave()
        self._header = [raw]
        self._begin = self.position
        return State.HEADER

    def start_header(self, raw: str) -> State:
        """Takes a marker of a header outside any message: `<|start|>assistant` is in the prompt, or was lost."""
        if self.state is State.BETWEEN and self._header:
            self._header.append(raw)
            self._first = False
        else:
            self._leave()
            self._header = [raw]
            self._begin = self.position
        return State.HEADER

    def start_without_header(self, raw: str) -> State:
        return self.dispatch(raw, self.start_header(""))

    def channel_in_message(self, raw: str) -> State:
        """Takes `<|channel|>` in a message whose end was lost, or where reasoning has not really begun."""
        if self.state is not State.REASONING or self.out.wrote_reasoning:
            self.stray(raw)
        return self.start_header(raw)

    def _leave(self) -> None:
        """Ends what stood in front of a header."""
        if self.state is State.BARE:
            self._leave_bare()
        elif self.state is State.BETWEEN and self._holds_text():
            self._release()
            self._leave_bare()
        elif self.state is State.ARGUMENTS:
            self._finish_call(cut=True)
        elif self.state is State.FOREIGN:
            self._end_foreign()
        elif self.state is State.REASONING:
            self.out.end_reasoning(keep_space=True)
        self._header = []
        self._first = False
        self.out.boundary()

    def read_header(self, raw: str) -> State | None:
        self._header.append(raw)
        return self._header_runs_on() if self.is_endless(self._begin, raw) else None

    def _header_runs_on(self) -> State:
        """Shows a header that goes on without end as the text of its channel, or as content."""
        text = "".join(self._header)
        self._header = []
        head = text[:LONGEST_NAME]
        self.out.violation("malformed_call", self._begin, head)
        run_on = _run_on(head)
        state = self._open_prose(run_on["channel"] if run_on else "final")
        self._rows[state].text(self, run_on["text"] + text[len(head) :] if run_on else text)
        return state

    def restart_header(self, raw: str) -> State:
        self._fail_header()
        return self.start_message(raw)

    def drop_header(self, raw: str) -> State:
        """Ends a message that has no text, or whose `<|message|>` was lost."""
        self._fail_header(raw)
        return State.BETWEEN

    def cut_header(self, raw: str) -> State:
        if "".join(self._header).replace("<|start|>", "").strip() not in ("", "assistant"):
            self._fail_header(cut=True)
        self._header = []
        return State.BETWEEN

    def _fail_header(self, raw: str = "", *, cut: bool = False) -> None:
        """Reports a header that no message follows. What looks like the text of its message is shown."""
        text = "".join(self._header)
        self._header = []
        run_on = _run_on(text)
        if run_on is None:
            self.out.violation("unfinished_call" if cut else "malformed_call", self._begin, text + raw, hidden=True)
            self.reasoning_ends(self._begin)
        elif self._open_prose(run_on["channel"]) is State.REASONING:
            self.out.violation("malformed_call", self._begin, text + raw)
            self.out.reasoning(run_on["text"])
            self.out.end_reasoning(keep_space=True)
        else:
            self.out.violation("malformed_call", self._begin, text + raw)
            self.out.content(run_on["text"])
        self.out.boundary()

    def end_header(self, raw: str) -> State:
        """Takes `<|message|>`."""
        head = "".join(self._header)
        self._header = []
        self._raw = [head, raw]
        header = _HEADER.fullmatch(" ".join(head.removeprefix("<|start|>").split()))
        recipient = header and (header["behind"] or header["before"])
        if header is None or not (recipient or header["channel"]):
            return self._damaged(head)
        self._fault = bool(header["before"] and header["behind"]) and header["before"] != header["behind"]
        if recipient:
            return self._open_call(recipient, has_channel=header["channel"] is not None)
        if header["channel"] == "commentary" and (header["format"] or "").lower().endswith("json"):
            return self._open_unnamed()
        return self._open_prose(header["channel"])

    def _damaged(self, head: str) -> State:
        """Reads what can be read of a header that is none."""
        self._fault = True
        role = _ROLE.match(head.removeprefix("<|start|>")) if head.startswith("<|start|>") else None
        known = role is None or _is_ours(role[1])
        recipients = [each for each in _RECIPIENT.findall(head) if each != "assistant"]
        if known and recipients:
            return self._open_call(recipients[-1])
        if not known:
            return self._open_foreign()
        rest = head.replace("<|start|>", " ").replace("<|channel|>", " ").replace("<|constrain|>", " ")
        named = next((word for word in _WORD.findall(rest) if word in self.tools), None)
        if named is not None:
            return self._open_call(named)
        self.out.violation("stray_text", self._begin, "".join(self._raw), hidden=True)
        channels = _CHANNEL.findall(head)
        return self._open_prose(channels[-1] if channels else "final")

    # Messages

    def _open_prose(self, channel: str) -> State:
        if channel == "analysis":
            self.out.boundary()
            if self.out.wrote_reasoning:
                self.out.reasoning("\n")  # parts it from the message in front
            return State.REASONING
        self.reasoning_ends(self._begin)
        self._open_content()
        return State.CONTENT

    def _open_content(self) -> None:
        self.out.boundary()
        if self.out.wrote_content:
            self.out.content("\n")

    def end_message(self, raw: str) -> State:
        if self.state is State.REASONING:
            self.out.end_reasoning(keep_space=True)
        self.out.boundary()
        return State.BETWEEN

    def end_as_call(self, raw: str) -> State:
        """Takes `<|call|>` after reasoning or content: the header of a call was lost."""
        self.out.violation("malformed_call", self.position, raw, hidden=True)
        return self.end_message(raw)

    # Calls

    def _open_call(self, recipient: str, *, has_channel: bool = True) -> State:
        name, spelt = self._function(recipient)
        if name is None:
            return self._open_foreign(to_nobody=recipient != "assistant")
        self.reasoning_ends(self._begin)
        self._fault = self._fault or not spelt
        self._meant = []
        self._begin_arguments(name)
        if self._fault:
            self.out.violation("stray_text", self._begin, "".join(self._raw), self.out.calls - 1, hidden=True)
        elif not has_channel:  # which changes nothing: a message to a function is a call in any
            self.out.violation("drifted_marker", self._begin, "".join(self._raw), self.out.calls - 1)
        return State.ARGUMENTS

    def _open_unnamed(self) -> State:
        self.reasoning_ends(self._begin)
        self.out.boundary()
        self._meant = []
        self._begin_arguments("")
        self.out.violation("stray_text", self._begin, "".join(self._raw), hidden=True)
        return State.ARGUMENTS

    def _function(self, recipient: str) -> tuple[str | None, bool]:
        """Returns the function that a recipient names, if it is one, and whether it is spelt as it should be."""
        name = recipient.removeprefix("functions.")
        if name in self.tools or recipient in self.tools:
            return (name if name in self.tools else recipient), True
        if recipient == "assistant" or (name == recipient and recipient.partition(".")[0] in _BUILTIN):
            return None, True
        bare = recipient
        while bare.startswith("functions"):
            bare = bare.removeprefix("functions").lstrip(".:")
            if bare in self.tools:
                return bare, False
        meant = self.tools.names.meant_by(recipient)
        return (meant[0] if len(meant) == 1 else name or recipient), True

    # Messages for others

    def _open_foreign(self, *, to_nobody: bool = False) -> State:
        self.reasoning_ends(self._begin)
        self.out.boundary()
        self._kept = self._raw
        self._raw = []
        self._to_nobody = to_nobody
        return State.FOREIGN

    def keep(self, raw: str) -> None:
        self._kept.append(raw)

    def end_foreign(self, raw: str) -> State:
        self._kept.append(raw)
        self._end_foreign()
        return State.BETWEEN

    def _end_foreign(self) -> None:
        """Reports a call of a tool that the model only imagines, or what it makes others say."""
        if not self._kept:
            return
        kind: ViolationKind = "unresolved_call" if self._to_nobody else "stray_text"
        self.out.violation(kind, self._begin, "".join(self._kept), hidden=True)
        self._kept = []
        self.out.boundary()

    # Calls that stay in the content

    def end_header_only(self, raw: str) -> State:
        """Takes `<|message|>` where calls are not parsed: all of a call is content."""
        head = "".join(self._header)
        if not _RECIPIENT.search(head):
            return self.end_header(raw)
        self._header = []
        self.reasoning_ends(self._begin)
        self._open_content()
        self.out.content(head + raw)
        return State.FOREIGN

    def write_end(self, raw: str) -> State:
        self.out.content(raw)
        return State.BETWEEN

    _headers: ClassVar = {"start": start_message, "channel": channel_in_message}
    _strays: ClassVar = {"message": JsonCall.stray, "constrain": JsonCall.stray}
    _ends: ClassVar = {"end": end_message, "return": end_message, "call": end_as_call}
    table: ClassVar[Mapping[State, Row]] = {
        State.BETWEEN: Row(
            text=outside,
            on={
                "start": start_message,
                "channel": start_header,
                "constrain": start_header,
                "message": start_without_header,
                **dict.fromkeys(("end", "return", "call"), stray_end),
            },
            end=end_outside,
        ),
        State.BARE: Row(
            text=write_bare,
            on={
                "start": start_message,
                "channel": start_header,
                "constrain": stray_in_bare,
                "message": start_without_header,
                **dict.fromkeys(("end", "return", "call"), stray_end),
            },
            end=end_bare,
            prose=True,
            exact=True,
        ),
        State.HEADER: Row(
            text=read_header,
            on={
                "message": end_header,
                "start": restart_header,
                **dict.fromkeys(("end", "return", "call"), drop_header),
            },
            end=cut_header,
        ),
        State.REASONING: Row(text=JsonCall.reason, on={**_headers, **_strays, **_ends}, prose=True, exact=True),
        State.CONTENT: Row(text=JsonCall.write, on={**_headers, **_strays, **_ends}, prose=True, exact=True),
        State.ARGUMENTS: Row(
            text=JsonCall.read_arguments,
            on={
                "start": start_message,
                "channel": start_header,
                **dict.fromkeys(("end", "return", "call"), JsonCall.end_call),
            },
            end=JsonCall.end_output,
            json=True,
            exact=True,
        ),
        State.FOREIGN: Row(
            text=keep,
            on={"start": start_message, **dict.fromkeys(("end", "return", "call"), end_foreign)},
            end=end_foreign,
            exact=True,
        ),
    }
    reasoning_only: ClassVar[Mapping[State, Row]] = {
        **table,
        State.HEADER: Row(
            text=read_header, on={**table[State.HEADER].on, "message": end_header_only}, end=table[State.HEADER].end
        ),
        State.FOREIGN: Row(
            text=JsonCall.write,
            on={"start": start_message, **dict.fromkeys(("end", "return", "call"), write_end)},
            exact=True,
        ),
    }


def _run_on(head: str) -> re.Match[str] | None:
    """Returns the channel and the text of a header that ran into its message; None if it did not."""
    match = _RUN_ON.fullmatch(head.removeprefix("<|start|>").lstrip())
    return None if match is None or "<|" in match["text"] else match


def _is_ours(role: str) -> bool:
    """Returns whether the first word of a header is the assistant's, or none."""
    return role.startswith(("assistant", "to=")) or _CHANNEL.match(role) is not None
