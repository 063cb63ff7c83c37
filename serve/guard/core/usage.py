"""Token usage over several attempts, added up, because the engines computed all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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
