"""The guard: judges answers, holds broken ones back, merges reruns, keeps clean-rates. Pure: no I/O, no clock."""

from serve.integrity.guard import Guard, State
from serve.integrity.history import Repair, repair_history
from serve.integrity.outcome import Outcome, Severity, Verdict, Violation
from serve.integrity.quarantine import Change, Key, Quarantine, QuarantineSettings
from serve.integrity.settings import GuardSettings
from serve.integrity.whole import WholeGuard, check_answer

__all__ = [
    "Change",
    "Guard",
    "GuardSettings",
    "Key",
    "Outcome",
    "Quarantine",
    "QuarantineSettings",
    "Repair",
    "Severity",
    "State",
    "Verdict",
    "Violation",
    "WholeGuard",
    "check_answer",
    "repair_history",
]
