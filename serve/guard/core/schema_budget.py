"""The time that a request's schemas may take, and the errors that end it."""

from __future__ import annotations

from time import thread_time

_BUDGET_S = 0.015


class UnjudgedError(Exception):
    """A schema could not be applied: it is not valid, or it might take more time than a request may."""


class TooMuchWorkError(UnjudgedError):
    """It might take more time than a request may."""


class Budget:
    """The time that all of one request's schemas may take together.

    The validator is native code that nothing can interrupt and that keeps the interpreter's lock. So work is admitted
    by a bound of what it may take, before it begins; what it really took is subtracted afterwards.

    Where there are several schemas, none takes more than half of what is left, so that one tool's schema cannot leave
    all the others unjudged.

    Args:
        limit_s: Of CPU time.

    Attributes:
        schemas: Number of schemas that share it.
    """

    def __init__(self, limit_s: float = _BUDGET_S) -> None:
        self.schemas = 0
        self._left_s = limit_s
        self._began_s = 0.0

    @property
    def share_s(self) -> float:
        """The most that the next piece of work may take."""
        return self._left_s / 2 if self.schemas > 1 else self._left_s

    def admit(self, bound_s: float) -> None:
        """Lets work begin.

        Args:
            bound_s: It takes no longer.

        Raises:
            TooMuchWorkError: That is more than there is.
        """
        if bound_s > self.share_s:
            raise TooMuchWorkError("too much work")

    def __enter__(self) -> None:
        """Begins a block whose time is subtracted."""
        self._began_s = thread_time()

    def __exit__(self, *_: object) -> None:
        self._left_s -= thread_time() - self._began_s
