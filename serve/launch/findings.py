"""What a check found."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "todo", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend.

    Attributes:
        level: `error` (it can't work), `todo` (a placeholder that only you can fill), `warning` (it may not work).
        about: The key, node or pool it is about.
        message: What is wrong and what to do.
    """

    level: Level
    about: str
    message: str
