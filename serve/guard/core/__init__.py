"""The guard: judges answers, holds broken ones back, merges reruns, keeps clean-rates. Pure: no I/O, no clock."""

from serve.guard.core.chunk import Piece, lone_piece
from serve.guard.core.guard import Guard, State
from serve.guard.core.history import Repair, repair_history
from serve.guard.core.verdict import Outcome, Severity, Verdict, Violation
from serve.guard.core.whole import WholeGuard, check_answer

__all__ = [
    "Guard",
    "Outcome",
    "Piece",
    "Repair",
    "Severity",
    "State",
    "Verdict",
    "Violation",
    "WholeGuard",
    "check_answer",
    "lone_piece",
    "repair_history",
]
