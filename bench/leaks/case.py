"""One case: a request, an engine's answer to it, and what the client must have in the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lab.sim.segments import PlannedAnswer, PlannedCall, segments_of

GRAMMARS = ("kimi_k2", "qwen3_coder", "hermes")


class Text(NamedTuple):
    """A piece of an answer's text."""

    field: str
    text: str


class Call(NamedTuple):
    """A call as an engine's parser passes it on; its arguments are JSON text, which may be broken."""

    name: str
    arguments: str


Part = Text | Call


def content(text: str) -> Text:
    return Text("content", text)


def reasoning(text: str) -> Text:
    return Text("reasoning", text)


def call(planned: PlannedCall) -> Call:
    return Call(planned.name, json.dumps(planned.arguments, ensure_ascii=False))


def written(grammar: str, *calls: PlannedCall, first: int = 0) -> str:
    """Returns calls as the model writes them."""
    return "".join(segment.text for segment in segments_of(PlannedAnswer(calls=calls), grammar, first_call=first))


@dataclass(frozen=True)
class Answer:
    """One engine's answer.

    Attributes:
        parts: In the order of the stream.
        finish: Its finish reason; by default the one that fits.
    """

    parts: tuple[Part, ...]
    finish: str = ""

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")

    def text(self, field: str) -> str:
        """Returns all of one text."""
        return "".join(part.text for part in self.parts if isinstance(part, Text) and part.field == field)


def answer(*parts: Part, finish: str = "") -> Answer:
    return Answer(parts, finish)


@dataclass(frozen=True)
class Case:
    """An answer to judge.

    Attributes:
        kind: What is special about the answer.
        grammar: The model's format.
        prompt: What is special about the request.
        request: Its body.
        first: The answer of the first pool.
        second: The answer of the standard pool, if the guard asks for it. Of a leak the clean answer, and what the
            client must have; of a sound answer the same again.
        sound: Whether the first answer is sound.
        decidable: Whether structure alone tells a leak from data.
        front: Prose before a leak, which may mention markup itself.
    """

    kind: str
    grammar: str
    prompt: str
    request: Mapping[str, Any]
    first: Answer
    second: Answer
    sound: bool
    decidable: bool = True
    front: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind} | {self.grammar} | {self.prompt}"


def tool(name: str, required: Sequence[str], optional: Sequence[str] = (), note: str = "") -> dict[str, Any]:
    """Returns a tool whose arguments are texts."""
    properties = {each: {"type": "string"} for each in (*required, *optional)}
    parameters = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": note or name, "parameters": parameters}}


# As a coding agent declares them: several take the same arguments, so that a call is known by its name alone.
TOOLS = (
    tool("read_file", ["path"]),
    tool("list_files", ["path"]),
    tool("write_file", ["path", "content"]),
    tool("edit_file", ["path", "old_string", "new_string"]),
    tool("bash", ["command"], ["description"]),
    tool("run_in_terminal", ["command"]),
    tool("list_todos", []),
)
