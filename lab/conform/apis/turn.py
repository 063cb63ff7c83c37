"""One answer as a client has it, whatever its API; and the rules that it breaks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class End(StrEnum):
    """The end of an answer."""

    COMPLETE = "complete"
    CUT = "cut by length"
    FILTERED = "filtered"
    ERROR = "an error"
    NONE = "no end"


class ToolCall(NamedTuple):
    """One call; `arguments` is JSON as text, or the free text that a tool takes."""

    id: str
    name: str
    arguments: str


@dataclass
class Turn:
    """An answer.

    Attributes:
        id: Of the answer.
        reasoning: All of it, joined.
        text: All of it, joined.
        calls: The calls that a client acts on.
        end: How it ended.
        tokens: Of prompt and answer; None if no usage was told.
        message: The words of an error.
        code: The error's code or type.
        echo: What the client sends back of it in its next request.
        faults: The rules of the API that it breaks.
    """

    id: str = ""
    reasoning: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    end: End = End.NONE
    tokens: tuple[int, int] | None = None
    message: str = ""
    code: str = ""
    echo: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def fault_unless(self, good: bool, fault: str) -> None:
        """Note a broken rule, once."""
        if not good and fault not in self.faults:
            self.faults.append(fault)

    def fail(self, error: Any, code: str) -> None:
        """Take an error object as the end.

        Args:
            error: As it came.
            code: The member that names the kind of error.
        """
        self.end = End.ERROR
        fields = error if isinstance(error, dict) else {}
        message, kind = fields.get("message"), fields.get(code)
        self.message, self.code = str(message or ""), str(kind or "")
        self.fault_unless(isinstance(message, str) and bool(message), "an error without a message")
        self.fault_unless(isinstance(kind, str) and bool(kind), f"an error without a {code}")

    @property
    def content(self) -> tuple[str, str, tuple[tuple[str, str, Any], ...], End]:
        """The parts that a whole and a streamed answer have in common."""
        return self.reasoning, self.text, readable(self.calls), self.end

    def summary(self) -> str:
        """Returns the answer in a few words."""
        said = f" {self.message[:80]!r}" if self.message else ""
        calls = f", {len(self.calls)} calls" if self.calls else ""
        return "; ".join([f"{self.end}{said}{calls}", *self.faults[:3]])


def readable(calls: Sequence[ToolCall]) -> tuple[tuple[str, str, Any], ...]:
    """Returns calls with their arguments decoded; as text where they are no JSON."""
    return tuple((call.id, call.name, _decoded(call.arguments)) for call in calls)


def is_object(text: Any) -> bool:
    """Returns True for the text of a JSON object."""
    return isinstance(text, str) and isinstance(_decoded(text), dict)


def counted(*values: Any) -> bool:
    """Returns True if all values are numbers of tokens."""
    return all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values)


def mapping(value: Any) -> dict[str, Any]:
    """Returns an object, or an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[dict[str, Any]]:
    """Returns the objects of a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
