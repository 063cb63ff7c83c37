"""Parts of a chunk: the choices, and the usage, added up over attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve.stream.frame import ARGUMENTS, TEXTS, TextDelta, TextPlace, lone_delta

__all__ = [
    "ARGUMENTS",
    "MAX_CHOICES",
    "TEXTS",
    "UNSAID",
    "TextDelta",
    "TextPlace",
    "UsageSum",
    "added",
    "choices_of",
    "is_index",
    "lone_delta",
    "stop_of",
]

MAX_CHOICES = 128  # OpenAI's limit on `n`
STOPS = ("stop_reason", "matched_stop")  # where vLLM and SGLang say at which text or token of the request they stopped
UNSAID: Any = object()


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


class UsageSum:
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

    def resume(self) -> None:
        """Ends the present attempt and begins one that reports for both."""
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
