"""Events that a parser emits while it streams, and the message that they fold into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

ViolationKind = Literal[
    "stray_marker",  # markup where none belongs; removed, unless it is a tag that prose may well quote
    "stray_text",  # text in markup that belongs to no call: before the first of a section, beside name and arguments
    "malformed_call",  # markup that opened a call and went no further; it yields no call
    "unresolved_call",  # a call whose name is neither given nor can be inferred; it yields no call
    "unfinished_call",  # the output ended, or the next call began, in the middle of this one
    "malformed_arguments",  # the arguments are not a JSON object
    "ambiguous_value",  # the value holds a tag of the format, or ends in one: quoted, or a mistake (`xml_call.py`)
    "drifted_marker",  # a tag is misspelt, missing or doubled, and the others leave no doubt about what was meant
    "mistyped_value",  # a value is not of the type that its tag states
    "unknown_tool",  # the name was not declared
    "unknown_argument",  # the tool's schema does not know this argument, or no schema could
    "duplicate_argument",
    "missing_argument",  # the schema requires an argument that is not there
]


@dataclass(frozen=True, slots=True)
class Violation:
    """A fault of the output.

    Attributes:
        position: Where the fault begins, in characters from the start of the output.
        raw: The text at fault, as the model wrote it.
        index: The call it belongs to, if there is one.
        hidden: True if the rest of the message does not show it: a call was meant, and its text yielded none, or one
            that looks complete.
    """

    kind: ViolationKind
    position: int
    raw: str
    index: int | None = None
    hidden: bool = False


class Reasoning(NamedTuple):
    text: str


class Content(NamedTuple):
    text: str


class CallStart(NamedTuple):
    call: int
    id: str
    name: str


class CallArguments(NamedTuple):
    call: int
    text: str


class CallEnd(NamedTuple):
    """The end of a call; `good` if it was complete and its arguments are a JSON object."""

    call: int
    good: bool


class Fault(NamedTuple):
    violation: Violation


Event = Reasoning | Content | CallStart | CallArguments | CallEnd | Fault


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # JSON text; unfinished where a violation says so


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    reasoning: str | None
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    violations: tuple[Violation, ...]


def fold(events: Iterable[Event]) -> ParsedMessage:
    """Returns the message that a stream of events adds up to."""
    reasoning: list[str] = []
    content: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    violations: list[Violation] = []
    for event in events:
        match event:
            case Reasoning(text):
                reasoning.append(text)
            case Content(text):
                content.append(text)
            case CallStart():
                starts.append(event)
                arguments.append([])
            case CallArguments(call, text):
                arguments[call].append(text)
            case Fault(violation):
                violations.append(violation)
            case CallEnd():
                pass
    calls = tuple(
        ToolCall(start.id, start.name, "".join(parts)) for start, parts in zip(starts, arguments, strict=True)
    )
    return ParsedMessage("".join(reasoning) or None, "".join(content) or None, calls, tuple(violations))
