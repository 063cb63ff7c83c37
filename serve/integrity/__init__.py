"""The guard: judges answers, holds broken ones back, merges reruns, keeps clean-rates. Pure: no I/O, no clock."""

from serve.integrity.glance import Piece, lone_piece
from serve.integrity.guard import Guard, State
from serve.integrity.history import Repair, repair_history
from serve.integrity.outcome import Outcome, Severity, Verdict, Violation
from serve.integrity.quarantine import Action, Quarantine, QuarantineSettings, Tally, Terms
from serve.integrity.record import Change
from serve.integrity.settings import GuardSettings
from serve.integrity.whole import WholeGuard, check_answer

__all__ = [
    "Action",
    "Change",
    "Guard",
    "GuardSettings",
    "Outcome",
    "Piece",
    "Quarantine",
    "QuarantineSettings",
    "Repair",
    "Severity",
    "State",
    "Tally",
    "Terms",
    "Verdict",
    "Violation",
    "WholeGuard",
    "check_answer",
    "lone_piece",
    "repair_history",
]
