"""The guard: checks answers, holds broken ones back and merges reruns. Pure: no I/O, no clock."""

from serve.guard.core.chunk import TextDelta, TextPlace, lone_delta, stop_of
from serve.guard.core.client_view import LIVE_NOTE, LiveCall
from serve.guard.core.guard import Guard
from serve.guard.core.history import HistoryRepair
from serve.guard.core.severity import Severity
from serve.guard.core.state import GuardState
from serve.guard.core.verdict import GUARD_ERROR, Defect, Outcome, Verdict
from serve.guard.core.whole import WholeGuard, at_once, check_answer

__all__ = [
    "GUARD_ERROR",
    "LIVE_NOTE",
    "Defect",
    "Guard",
    "GuardState",
    "HistoryRepair",
    "LiveCall",
    "Outcome",
    "Severity",
    "TextDelta",
    "TextPlace",
    "Verdict",
    "WholeGuard",
    "at_once",
    "check_answer",
    "lone_delta",
    "stop_of",
]
