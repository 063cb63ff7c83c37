"""Refused calls in the audit log: one line each, until somebody makes so many that only their number is written."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from serve.admin.audit import AuditEntry, AuditLog
from serve.errors import StorageError
from serve.limits.bucket import Bucket
from serve.limits.messages import LimitTerms

_OF_ONE = LimitTerms(0.2, 20.0)  # lines a second, and at once
_OF_ALL = LimitTerms(2.0, 200.0)
_MOST_CALLERS = 1024
_PERIOD_S = 10.0


class Refusals:
    """Writes refused calls down.

    A call without a key costs its caller nothing, and a line costs a sync of the disk and its space for ever.
    """

    def __init__(self, log: AuditLog, clock: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._clock = clock
        self._all = Bucket(_OF_ALL, clock())
        self._callers: dict[tuple[str, str], Bucket] = {}
        self._more: Counter[tuple[str, str, str]] = Counter()

    def write(self, entry: AuditEntry) -> None:
        """Writes a refused call, or counts it. A line that can't be written changes nothing: the call is refused."""
        now_s = self._clock()
        caller = (entry.key, "" if entry.key else entry.source)
        lines = self._callers.pop(caller, None) or Bucket(_OF_ONE, now_s)
        self._callers[caller] = lines  # at the end: who has been silent for the longest is the first
        if len(self._callers) > _MOST_CALLERS:
            del self._callers[next(iter(self._callers))]
        if lines.refill(now_s) >= 1 and self._all.refill(now_s) >= 1:
            lines.level -= 1
            self._all.level -= 1
            with suppress(StorageError):
                self._log.write(entry)
                return
        self._more[entry.key, entry.tenant, entry.source if len(self._more) < _MOST_CALLERS else ""] += 1

    def tell(self) -> None:
        """Writes how many calls have no line of their own."""
        if not self._more:
            return
        (key, tenant, source), most = self._more.most_common(1)[0]
        total, callers = self._more.total(), len(self._more)
        what = f"{total} more calls of {callers} callers, {most} of them of this one"
        with suppress(StorageError):
            self._log.write(AuditEntry(key, tenant, source, "refused", what, reason="too_many_to_list"))
            self._more.clear()

    async def run(self) -> None:
        """Calls `tell` every few seconds, forever."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            self.tell()
