"""What came of a run, for people and for programs."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from serve.tools.conform.case import Case, Result, Verdict


@dataclass(frozen=True, slots=True)
class Row:
    """One case and what came of it after `seconds`."""

    case: Case
    result: Result
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "case": self.case.name,
            "verdict": str(self.result.verdict),
            "seen": self.result.seen,
            "rule": self.case.rule,
            "source": self.case.source,
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run."""

    url: str
    model: str
    rows: tuple[Row, ...]

    @property
    def green(self) -> bool:
        """No case failed."""
        return all(row.result.verdict is not Verdict.FAIL for row in self.rows)

    def counts(self) -> dict[str, int]:
        """How often each verdict fell."""
        fallen = Counter(row.result.verdict for row in self.rows)
        return {str(verdict): fallen[verdict] for verdict in Verdict}

    def to_dict(self) -> dict[str, Any]:
        return {
            "gateway": self.url,
            "model": self.model,
            "green": self.green,
            "counts": self.counts(),
            "cases": [row.to_dict() for row in self.rows],
        }

    def to_markdown(self) -> str:
        """A table, one line a case."""
        lines = ["| case | rule | verdict | seen |", "|---|---|---|---|"]
        for row in self.rows:
            cells = (row.case.name, row.case.rule, str(row.result.verdict), row.result.seen)
            lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
        told = ", ".join(f"{count} {verdict}" for verdict, count in self.counts().items())
        return "\n".join([*lines, "", f"{len(self.rows)} cases: {told}.", ""])
