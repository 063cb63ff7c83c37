"""Usage over several attempts: what the engines reported, added up, because all of it was computed."""

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
        """Whether the present attempt's engine has reported."""
        return self._present is not None

    def see(self, chunk: Mapping[str, Any]) -> None:
        """Note the usage of a chunk; later reports of one attempt replace earlier ones."""
        usage = chunk.get("usage")
        if usage and isinstance(usage, Mapping):
            self._present = usage
            self.extras = {"metrics": chunk["metrics"]} if "metrics" in chunk else {}

    def restart(self) -> None:
        """The present attempt is over and another begins."""
        self._sum = self.total()
        self.unreported += self._present is None
        self._present = None

    def total(self) -> dict[str, Any] | None:
        """All that was reported; None if nothing was."""
        if self._present is None:
            return self._sum
        return dict(self._present) if self._sum is None else added(self._sum, self._present)


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two usage objects added field by field, nested ones too; what is no number is taken from the second."""
    made = dict(one)
    for key, value in other.items():
        before = made.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            made[key] = added(before, value)
        elif isinstance(value, int | float) and isinstance(before, int | float):
            made[key] = before + value
        elif value is not None or key not in made:
            made[key] = value
    return made
