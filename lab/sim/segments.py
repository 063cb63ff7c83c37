"""Renders an answer as the segments of text that a model writes, in its own tool-call format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lab.sim.formats import FORMATS, ToolCallFormat

Part = Literal[
    "think_begin", "reasoning", "think_end", "content", "json", "section_begin", "call_begin", "name", "arg_begin",
    "args", "call_end", "between", "section_end",
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


def segments_of(answer: PlannedAnswer, grammar: str, *, first_call: int) -> list[Segment]:
    """Returns the answer in a model's own format.

    Args:
        answer: The answer to render.
        grammar: A key of `FORMATS`.
        first_call: Number of earlier calls in the conversation, from which Kimi numbers on.
    """
    form = FORMATS[grammar]
    segments: list[Segment] = []
    if answer.reasoning:
        segments += [
            Segment("think_begin", form.think_begin),
            Segment("reasoning", answer.reasoning),
            Segment("think_end", form.think_end),
        ]
    text = [Segment("content", answer.content)] if answer.content else []
    if answer.json_text:
        text.append(Segment("json", answer.json_text))
    if not answer.calls:
        return [*segments, Segment("between", form.final_begin), *text, Segment("between", form.final_end)]
    if text or form.always_content:
        segments += [Segment("between", form.content_begin), *text, Segment("between", form.content_end)]
    if text:
        segments.append(Segment("between", form.before_calls))
    return segments + _calls(answer.calls, form, first_call)


def _calls(calls: Sequence[PlannedCall], form: ToolCallFormat, first_call: int) -> list[Segment]:
    segments = [Segment("section_begin", form.section_begin)]
    for index, call in enumerate(calls):
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        segments += [
            Segment("between", form.between if index else ""),
            Segment("call_begin", form.call_begin, index),
            Segment("name", form.named(call.name, first_call + index), index, call.name),
            Segment("arg_begin", form.arg_begin.replace("I", str(index + 1)), index),
            Segment("args", form.arguments(call.arguments), index, arguments),
            Segment("call_end", form.call_end, index),
        ]
    return [*segments, Segment("section_end", form.section_end)]
