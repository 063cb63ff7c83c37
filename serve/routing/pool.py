"""A pool as the gateway sees it, whoever runs its replicas."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from serve.config.access import RequestPriority
from serve.routing.endpoint import Endpoint
from serve.routing.fair_queue import ANONYMOUS, Asker, QueueReport
from serve.routing.hold import Hold
from serve.routing.session_affinity import NO_AFFINITY, Affinity

# How long a pool may take to offer a slot before the next one is asked as well. A busy machine takes this long for a
# reservation even if slots are free; a pool that was slower a moment ago gets less time.
HEAD_START_S = 0.5


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The occupancy of a pool, as one gateway replica knows it.

    Attributes:
        slots: Requests that the pool takes at the same time, from all gateway replicas; None if that is unknown.
        held: Slots that this gateway replica holds.
        queue: Its requests that wait for one, by tenant and priority.
        engines: Addresses and keys of the running replicas; of a remote pool, its URL.
    """

    slots: int | None
    held: int
    queue: Counter[tuple[str, RequestPriority]]
    engines: tuple[Endpoint, ...]

    @property
    def waiting(self) -> int:
        """All that wait."""
        return self.queue.total()


class Pool(Protocol):
    """A pool as the gateway sees it."""

    @property
    def ready(self) -> bool:
        """True if `reserve` returns without waiting."""
        ...

    @property
    def full(self) -> bool:
        """True if this gateway replica alone has as many requests there as the pool takes; False if that is unknown."""
        ...

    @property
    def head_start_s(self) -> float:
        """Seconds to wait for this pool before the next one is asked as well."""
        ...

    @property
    def replicas(self) -> int:
        """Running replicas; 0 if unknown."""
        ...

    def report(self) -> QueueReport:
        """Returns what other gateway replicas should know of this one's queue for the pool."""
        ...

    def merge(self, others: QueueReport) -> None:
        """Takes what other gateway replicas say of theirs."""
        ...

    def reserve(self, affinity: Affinity = NO_AFFINITY, asker: Asker = ANONYMOUS) -> Hold:
        """Returns a hold on a slot of one replica.

        Args:
            affinity: What ties the request to a replica, which balanced pools don't ask, and which ones it avoids.
            asker: On whose behalf, which decides who is next where requests wait.

        Raises:
            OverloadedError: On entering the hold: too many requests are waiting already.
            PoolUnavailableError: On entering the hold: no slot came free in time.
        """
        ...

    def forget(self, endpoint: Endpoint) -> None:
        """Avoids a replica that did not answer, for a while (`serve.routing.outages`) and unless there is no other."""
        ...

    async def facts(self) -> Mapping[str, Any]:
        """Returns what all running replicas have reported about themselves; what only some say is not known.

        It takes no slot and no place in a queue, so a full pool answers like any other.

        Raises:
            GatewayError: No replica is up.
        """
        ...

    def occupancy(self) -> Occupancy:
        """Returns how full it is, without asking anyone."""
        ...

    async def close(self) -> None:
        """Releases everything that is held without a request."""
        ...
