"""Faults of the guard itself: an answer that it fails to judge passes or is an error, as `unjudged` says."""

import logging

from serve.errors import IntegrityError
from serve.guard.core import GUARD_ERROR, Guard, GuardState
from serve.telemetry.request_log import log_fault

log = logging.getLogger("ray.serve.specgate.guard")


def guard_fault(guard: Guard, attempt: int) -> IntegrityError:
    """Ends an answer that the guard failed to judge; returns the client's error. Called as `log_fault` is.

    It calls nothing of the guard: whatever failed once may fail again.

    Args:
        guard: That failed.
        attempt: Number of the present attempt, 0 for the first.
    """
    log_fault(log, "the guard failed")
    guard.verdicts[attempt:] = [GUARD_ERROR]
    guard.state = GuardState.FAILED
    return unjudged_error()


def unjudged_error() -> IntegrityError:
    """Returns the client's error for an answer that the guard failed to judge."""
    return IntegrityError("The gateway itself failed to check the model's answer, which may well be right.")
