"""One attempt at an answer: the guards of its choices, and the defects of the engine's stream itself."""

from __future__ import annotations

from serve.guard.core.choice import ChoiceGuard
from serve.guard.core.verdict import Defect, Outcome, Severity, Verdict, gravest


class Attempt:
    """One engine's stream.

    Attributes:
        choices: The guards, by index of the choice.
        failed: True if the stream itself is broken.
    """

    def __init__(self) -> None:
        self.choices: dict[int, ChoiceGuard] = {}
        self._stream_defects: list[Defect] = []

    @property
    def failed(self) -> bool:
        return bool(self._stream_defects)

    @property
    def hopeless(self) -> bool:
        """True if nothing can save this attempt."""
        return self.failed or any(choice.broken for choice in self.choices.values())

    @property
    def blocked(self) -> bool:
        """True if this attempt must not send anything more."""
        return self.hopeless or any(choice.blocked for choice in self.choices.values())

    @property
    def contradicts(self) -> bool:
        """True if a document of this attempt cannot continue the one that the client has begun to receive."""
        return any(choice.contradicts for choice in self.choices.values())

    def fail(self, outcome: Outcome, detail: str) -> None:
        """Adds a defect of the stream itself."""
        self._stream_defects.append(Defect(outcome, Severity.HARD, detail))

    def defects(self) -> tuple[Defect, ...]:
        """Returns all that was found so far."""
        return (*self._stream_defects, *(defect for choice in self.choices.values() for defect in choice.defects))

    def verdict(self) -> Verdict:
        """Returns the verdict of what has arrived."""
        defects = self.defects()
        worst = gravest(defects)
        # Neither a cut by length nor a rerun that only differs from what went out is a fault of the pool.
        blameless = self.contradicts or any(choice.cut for choice in self.choices.values())
        return Verdict(worst.outcome if worst else Outcome.CLEAN, defects, counts=not blameless)
