"""Which replicas of a pool are avoided, because they did not answer lately, and for how long."""

import math
import time
from collections.abc import Callable

from msgspec import Struct

from serve.routing.pool import NOWHERE

_FIRST_S = 2.0
_LONGEST_S = 60.0


class _Outage(Struct, frozen=True):
    until_s: float
    length_s: float


class Outages:
    """The replicas of one pool that others are preferred to, by URL.

    One that did not answer is out for two seconds, and twice as long each time it fails again within a minute after it
    was back. Nothing asks whether it has recovered: the next request to it finds out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, _Outage] = {}  # of each replica, until it is too long ago to count
        self._out = NOWHERE
        self._next_end_s = math.inf

    def add(self, url: str) -> None:
        """Notes that a replica did not answer; what it failed to answer while it was out changes nothing."""
        now_s = self._clock()
        last = self._last.get(url)
        if last is not None and now_s < last.until_s:
            return
        again = last is not None and now_s - last.until_s < _LONGEST_S
        length_s = min(2 * last.length_s, _LONGEST_S) if last is not None and again else _FIRST_S
        self._last[url] = _Outage(now_s + length_s, length_s)
        self._look(now_s)

    def now(self) -> frozenset[str]:
        """Returns the URLs of the replicas that are out."""
        if self._out and (now_s := self._clock()) >= self._next_end_s:
            self._look(now_s)
        return self._out

    def _look(self, now_s: float) -> None:
        self._last = {url: last for url, last in self._last.items() if now_s - last.until_s < _LONGEST_S}
        ends = {url: last.until_s for url, last in self._last.items() if last.until_s > now_s}
        self._out = frozenset(ends)
        self._next_end_s = min(ends.values(), default=math.inf)
