"""Renders an answer as the segments of text that a model writes, in its own tool-call format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Part = Literal[
    "reasoning", "think_end", "content", "json", "section_begin", "call_begin", "name", "arg_begin", "args", "call_end",
    "between", "section_end",
]  # fmt: skip


@dataclass(frozen=True)
class PlannedCall:
    """A call that the model intends to make."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class PlannedAnswer:
    """The answer that the model intends to give, before any format or fault."""

    reasoning: str = ""
    content: str = ""
    json_text: str = ""
    calls: tuple[PlannedCall, ...] = ()

    @property
    def kind(self) -> Literal["calls", "json", "prose"]:
        return "calls" if self.calls else "json" if self.json_text else "prose"


@dataclass(frozen=True)
class Segment:
    """A part of the model's text.

    Attributes:
        part: Its role.
        text: The text itself.
        call: Index of the call it belongs to; -1 if none.
        passed: What an engine's parser passes on instead of `text`, if that differs: XML arguments become JSON.
    """

    part: Part
    text: str
    call: int = -1
    passed: str | None = None

    @property
    def handed_on(self) -> str:
        return self.text if self.passed is None else self.passed

    def edited(self, text: str) -> Segment:
        """Returns the segment with a new text, which is also what is passed on."""
        return replace(self, text=text, passed=None)


@dataclass(frozen=True)
class ToolCallFormat:
    """A tool-call format: the markup around a call's name and arguments."""

    section_begin: str
    call_begin: str
    arg_begin: str
    call_end: str
    between: str
    section_end: str
    closing: str
    special: tuple[str, ...]


FORMATS = {
    "kimi_k2": ToolCallFormat(
        "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "",
        "<|tool_calls_section_end|>", "<|tool_call_end|>",
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
         "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"),
    ),
    "qwen3_coder": ToolCallFormat(
        "", "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "\n", "", "</tool_call>",
        ("<tool_call>", "</tool_call>", "<think>", "</think>"),
    ),
    "hermes": ToolCallFormat(
        "", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n", "", "</tool_call>",
        ("<tool_call>", "</tool_call>", "<think>", "</think>"),
    ),
}  # fmt: skip
"""Markup per grammar; `closing` ends a call; `special` markers are one token each."""


def segments_of(answer: PlannedAnswer, grammar: str, *, first_call: int) -> list[Segment]:
    """Returns the answer in a model's own format.

    Args:
        answer: The answer to render.
        grammar: A key of `FORMATS`.
        first_call: Number of earlier calls in the conversation, from which Kimi numbers on.
    """
    segments: list[Segment] = []
    if answer.reasoning:
        segments += [Segment("reasoning", answer.reasoning), Segment("think_end", "</think>")]
    if answer.content:
        segments.append(Segment("content", answer.content))
    if answer.json_text:
        segments.append(Segment("json", answer.json_text))
    return segments + _calls(answer.calls, grammar, first_call)


def _calls(calls: Sequence[PlannedCall], grammar: str, first_call: int) -> list[Segment]:
    if not calls:
        return []
    form = FORMATS[grammar]
    segments = [Segment("section_begin", form.section_begin)]
    for index, call in enumerate(calls):
        name = f"functions.{call.name}:{first_call + index}" if grammar == "kimi_k2" else call.name
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        written = _xml(call.arguments) if grammar == "qwen3_coder" else arguments
        segments += [
            Segment("between", form.between if index else ""),
            Segment("call_begin", form.call_begin, index),
            Segment("name", name, index, call.name),
            Segment("arg_begin", form.arg_begin, index),
            Segment("args", written, index, arguments),
            Segment("call_end", form.call_end, index),
        ]
    return [*segments, Segment("section_end", form.section_end)]


def _xml(arguments: dict[str, Any]) -> str:
    """Returns arguments as Qwen's template writes them: strings raw, containers as JSON, other scalars by `str`."""
    written = []
    for key, value in arguments.items():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        written.append(f"<parameter={key}>\n{text}\n</parameter>\n")
    return "".join(written)
