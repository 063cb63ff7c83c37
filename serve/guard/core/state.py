"""The states of an answer under guard."""

from __future__ import annotations

from enum import StrEnum


class GuardState(StrEnum):
    """Progress of an answer.

    `OPEN`: feed it. `RERUN`: this attempt is lost; `restart`, or `give_up` if there is no other pool. `FAILED`: so was
    the last; `give_up`. `DONE`: all has gone out.
    """

    OPEN = "open"
    RERUN = "rerun"
    FAILED = "failed"
    DONE = "done"
