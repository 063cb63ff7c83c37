"""The guard: checks answers, holds broken ones back and merges reruns. Pure: no I/O, no clock."""

from serve.guard.core.chunk import stop_of
from serve.guard.core.client_view import LIVE_NOTE
from serve.guard.core.guard import Guard, GuardState
from serve.guard.core.history import HistoryRepair
from serve.guard.core.verdict import GUARD_ERROR, Defect, Outcome, Severity, Verdict
from serve.guard.core.whole import WholeGuard, check_answer

__all__ = [
    "GUARD_ERROR",
    "LIVE_NOTE",
    "Defect",
    "Guard",
    "GuardState",
    "HistoryRepair",
    "Outcome",
    "Severity",
    "Verdict",
    "WholeGuard",
    "check_answer",
    "stop_of",
]
