"""What an attack is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.attacks.answers import HELLO
from bench.attacks.lab import Gateway
from lab.scripted.arrival import Script

Run = Callable[[Gateway], Awaitable[str]]


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        name: Short; begins with its row of the report if it has one.
        run: Returns what was wrong with what the attacker got; empty if nothing was.
        script: Of the engine.
    """

    name: str
    run: Run
    script: Script = HELLO
