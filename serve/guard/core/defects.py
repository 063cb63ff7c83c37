"""The defects of one choice in one attempt, and whether the attempt survives them."""

from __future__ import annotations

from serve.guard.core.verdict import Defect, Outcome, Severity


class DefectLog:
    """Collects defects.

    Args:
        choice: Index of the choice.
        tolerates: Severities that hold nothing back, because no later attempt could do better.

    Attributes:
        defects: All that were reported, oldest first.
        contradicts: True if this attempt's document cannot continue the one that the client has begun to receive.
    """

    def __init__(self, choice: int, tolerates: frozenset[Severity]) -> None:
        self.defects: list[Defect] = []
        self.contradicts = False
        self._choice = choice
        self._tolerates = tolerates

    @property
    def blocked(self) -> bool:
        """True if this attempt must not send anything more."""
        return self.contradicts or any(self._stops(defect.severity) for defect in self.defects)

    @property
    def broken(self) -> bool:
        """True if nothing can save this attempt."""
        hard = any(defect.severity is Severity.HARD for defect in self.defects)
        return self.contradicts or (hard and self._stops(Severity.HARD))

    def report(
        self,
        outcome: Outcome,
        detail: str,
        severity: Severity = Severity.HARD,
        *,
        call: int | None = None,
        once: bool = False,
    ) -> None:
        """Adds a defect.

        Args:
            outcome: Its kind.
            detail: One sentence for logs.
            severity: What it demands.
            call: Index of the call that it is in.
            once: Skip it if the very same defect is there already.
        """
        defect = Defect(outcome, severity, detail, self._choice, call)
        if not once or defect not in self.defects:
            self.defects.append(defect)

    def report_call(self, defect: Defect) -> None:
        """Adds a defect of a call, unless that call has a hard one already."""
        if not any(other.call == defect.call and other.severity is Severity.HARD for other in self.defects):
            self.defects.append(defect)

    def _stops(self, severity: Severity) -> bool:
        return severity is not Severity.NOTE and severity not in self._tolerates
