"""The time that a request's schemas may take, and the errors that end it."""

from __future__ import annotations

from contextvars import ContextVar
from time import perf_counter, thread_time

_BUDGET_S = 0.015


class UnjudgedError(Exception):
    """A schema could not be applied: it is not valid, or it takes more time than a request may."""


class TooMuchWorkError(UnjudgedError):
    """It takes more time than a request may."""


class Budget:
    """The time that all of one request's schemas may take together.

    Where there are several, none takes more than half of what is left, so that one tool's schema cannot leave all the
    others unjudged.

    Every step asks the clock, which is cheap; only a step that comes late asks how much of that time was really ours,
    because a busy machine is not the schema's fault.

    Args:
        limit_s: Of CPU time.

    Attributes:
        schemas: Number of schemas that share it.
    """

    def __init__(self, limit_s: float = _BUDGET_S) -> None:
        self.schemas = 0
        self._left_s = limit_s
        self._share_s = limit_s
        self._began_s = 0.0
        self._deadline_s = 0.0

    def begin(self) -> None:
        """Starts a check."""
        self._began_s = thread_time()
        self._share_s = self._left_s / 2 if self.schemas > 1 else self._left_s
        self._deadline_s = perf_counter() + self._share_s

    def end(self) -> None:
        """Ends a check; what is left is for the next."""
        self._left_s -= thread_time() - self._began_s

    def step(self) -> None:
        """Counts a step of bounded work.

        Raises:
            TooMuchWorkError: The check's share is spent.
        """
        if perf_counter() > self._deadline_s:
            left_s = self._share_s - (thread_time() - self._began_s)
            if left_s <= 0:
                raise TooMuchWorkError("too much work")
            self._deadline_s = perf_counter() + left_s


current: ContextVar[Budget] = ContextVar("budget")
