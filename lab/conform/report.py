"""The report of a run, for people and for programs."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from lab.conform.case import Case, CaseResult, CaseStatus


@dataclass(frozen=True, slots=True)
class CaseRun:
    """A case with its result, and the seconds it took."""

    case: Case
    result: CaseResult
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "verdict": str(self.result.status),
            "seen": self.result.seen,
            "rule": self.case.rule,
            "source": self.case.source,
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results of a whole run."""

    url: str
    model: str
    rows: tuple[CaseRun, ...]

    @property
    def green(self) -> bool:
        """True if no case failed."""
        return all(row.result.status is not CaseStatus.FAIL for row in self.rows)

    def counts(self) -> dict[str, int]:
        """Returns the number of cases by status."""
        counter = Counter(row.result.status for row in self.rows)
        return {str(status): counter[status] for status in CaseStatus}

    def to_dict(self) -> dict[str, Any]:
        return {
            "gateway": self.url,
            "model": self.model,
            "green": self.green,
            "counts": self.counts(),
            "cases": [row.to_dict() for row in self.rows],
        }

    def to_markdown(self) -> str:
        """Returns a table with one line per case."""
        lines = ["| case | rule | verdict | seen |", "|---|---|---|---|"]
        for row in self.rows:
            cells = (row.case.name, row.case.rule, str(row.result.status), row.result.seen)
            lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
        counts = ", ".join(f"{count} {status}" for status, count in self.counts().items())
        return "\n".join([*lines, "", f"{len(self.rows)} cases: {counts}.", ""])
