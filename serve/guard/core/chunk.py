"""Parts of a chunk: a delta that holds nothing but text, the choices, and the usage, added up over attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

TEXTS = ("content", "reasoning", "reasoning_content")
ARGUMENTS = "tool_calls"
MAX_CHOICES = 128  # OpenAI's limit on `n`
STOPS = ("stop_reason", "matched_stop")  # where vLLM and SGLang say at which text or token of the request they stopped
UNSAID: Any = object()
# vLLM's finish reasons of a request that its engine gave up, as it does with all of them when it is told to stop.
ABORTED = frozenset({"abort", "error"})
_EMPTY: tuple[Any, ...] = (None, "", [])


class Place(NamedTuple):
    """One text of an answer.

    Attributes:
        choice: Index of the choice.
        field: One of `TEXTS`, or `ARGUMENTS`.
        call: Index of the call whose arguments it is; -1 for a text.
    """

    choice: int
    field: str
    call: int


class TextDelta(NamedTuple):
    """The whole content of a chunk that adds to one text.

    Attributes:
        place: The text.
        text: What is added; not empty.
    """

    place: Place
    text: str


def lone_delta(chunk: Mapping[str, Any]) -> TextDelta | None:
    """Returns the one delta of a text or of a call's arguments that a chunk holds; None if it holds anything else.

    Args:
        chunk: Of any shape: a foreign engine may send anything.
    """
    choices = chunk.get("choices")
    if type(choices) is not list or len(choices) != 1 or chunk.get("usage") or chunk.get("error"):
        return None
    choice = choices[0]
    if type(choice) is not dict or choice.get("finish_reason") is not None:
        return None
    if choice.get("logprobs") or choice.get("token_ids"):
        return None
    index = choice.get("index", 0)
    delta = choice.get("delta")
    members = [item for item in delta.items() if item[1] not in _EMPTY] if type(delta) is dict else []
    if len(members) != 1 or type(index) is not int:
        return None
    name, value = members[0]
    if name == ARGUMENTS:
        return _more_arguments(index, value[0]) if type(value) is list and len(value) == 1 else None
    return TextDelta(Place(index, name, -1), value) if name in TEXTS and type(value) is str else None


def _more_arguments(choice: int, entry: Any) -> TextDelta | None:
    """Returns the delta of a call's entry that only continues its arguments."""
    if type(entry) is not dict or entry.get("id"):
        return None
    index = entry.get("index")
    function = entry.get("function")
    if type(index) is not int or type(function) is not dict or function.get("name"):
        return None
    text = function.get("arguments")
    return TextDelta(Place(choice, ARGUMENTS, index), text) if type(text) is str and text else None


def choices_of(chunk: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Returns the choices of a chunk; None if they do not have OpenAI's shape: a foreign engine may send anything."""
    choices = chunk.get("choices") or ()
    return list(choices) if isinstance(choices, list | tuple) and all(map(_is_choice, choices)) else None


def stop_of(choice: Mapping[str, Any]) -> Any:
    """Returns the text or token at which an engine stopped, None for neither, `UNSAID` if it does not tell."""
    return next((choice[name] for name in STOPS if name in choice), UNSAID)


def is_index(value: Any) -> bool:
    """Returns whether a value can be the index of a choice."""
    return type(value) is int and 0 <= value < MAX_CHOICES


def _is_choice(choice: Any) -> bool:
    if not isinstance(choice, dict) or not is_index(choice.get("index", 0)):
        return False
    delta = choice.get("delta")
    reason = choice.get("finish_reason")
    calls = delta.get("tool_calls") if isinstance(delta, dict) else None
    return isinstance(delta, dict | None) and isinstance(reason, str | None) and isinstance(calls, list | None)


class Usage:
    """Adds up usage.

    Attributes:
        unreported: Attempts that ended before their engine reported.
        extras: Other fields of the last chunk that carried usage, such as vLLM's `metrics`.
    """

    def __init__(self) -> None:
        self.unreported = 0
        self.extras: dict[str, Any] = {}
        self._sum: dict[str, Any] | None = None
        self._present: Mapping[str, Any] | None = None

    @property
    def reported(self) -> bool:
        """True if the present attempt's engine has reported."""
        return self._present is not None

    def feed(self, chunk: Mapping[str, Any]) -> None:
        """Notes the usage of a chunk; later reports of one attempt replace earlier ones."""
        usage = chunk.get("usage")
        if usage and isinstance(usage, Mapping):
            self._present = usage
            self.extras = {"metrics": chunk["metrics"]} if "metrics" in chunk else {}

    def restart(self) -> None:
        """Ends the present attempt and begins another."""
        self._sum = self.total()
        self.unreported += self._present is None
        self._present = None

    def total(self) -> dict[str, Any] | None:
        """Returns the sum of all reports; None if there is none."""
        if self._present is None:
            return self._sum
        return dict(self._present) if self._sum is None else added(self._sum, self._present)


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Adds two usage objects field by field, nested ones too; a value that is no number is taken from the second."""
    total = dict(one)
    for key, value in other.items():
        before = total.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            total[key] = added(before, value)
        elif isinstance(value, int | float) and isinstance(before, int | float):
            total[key] = before + value
        elif value is not None or key not in total:
            total[key] = value
    return total
