"""Findings of a check."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "todo", "warning"]


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """One thing to fix.

    Attributes:
        level: `error` (it can't work), `todo` (a placeholder to replace), `warning` (it may not work).
    """

    level: Level
    about: str
    message: str
