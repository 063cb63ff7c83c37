"""A pool as the gateway sees it, whoever runs its replicas: addresses, slots, and what ties a request to a replica."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from policies import RequestFeatures
from serve.config.access import RequestPriority
from serve.http1 import listener
from serve.routing.fair_queue import ANONYMOUS, Asker, QueueReport, Turn

# How long a pool may take to offer a slot before the next one is asked as well. A busy machine takes this long for a
# reservation even if slots are free; a pool that was slower a moment ago gets less time.
HEAD_START_S = 0.5
# Tells an engine which slot a request occupies; see `serve.engine.replica.Slots`.
SLOT_HEADER = "x-specgate-slot"
NOWHERE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one replica. Never shown to a client.

    Attributes:
        url: Base URL, without `/v1`.
        key: Bearer token, or None.
        slot: Ray Serve's token of the slot that is reserved there; empty where there are no slots.
    """

    url: str
    key: str | None
    slot: str = ""


def url_of(metadata: Mapping[str, Any]) -> str:
    """Returns the base URL of a replica, from what it said about itself when it became ready."""
    return listener.url_of(metadata["http_host"], metadata["http_port"])


class Affinity(Struct, frozen=True):
    """A request's ties to a replica, computed only if its pool asks, and where it is not to go again.

    Attributes:
        session: Returns the key of its session. Requests with one key go to one replica of a sticky pool.
        blocks: Returns the blocks of its prompt (`serve.routing.prefix_placement`), for a pool that routes by prefix.
        avoid: URLs of replicas that have failed it; used only where there is no other.
    """

    session: Callable[[], str]
    blocks: Callable[[], tuple[int, ...]]
    avoid: frozenset[str] = NOWHERE


NO_AFFINITY = Affinity(str, tuple)


def session_key(features: RequestFeatures) -> str:
    """Returns a conversation's place on a sticky pool's hash ring: 16 hexadecimal digits, whatever the client sends."""
    return blake2b(features.conversation_key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Hold(AbstractAsyncContextManager[Endpoint]):
    """Holds a slot for as long as the context lasts; entering it waits for one.

    No generator, which would cost every request some microseconds.

    Attributes:
        turn: What the request's tenant is charged for the slot; there is none before there is a slot.
    """

    turn: Turn

    def begun(self) -> None:
        """Tells that the answer has begun, so that the replica has computed the prompt."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The occupancy of a pool, as one gateway replica knows it.

    Attributes:
        slots: Requests that the pool takes at the same time, from all gateway replicas; None if that is unknown.
        queue: Its requests that wait for one, by tenant and priority.
        engines: Addresses and keys of the running replicas; of a remote pool, its URL.
    """

    slots: int | None
    held: int
    queue: Counter[tuple[str, RequestPriority]]
    engines: tuple[Endpoint, ...]

    @property
    def waiting(self) -> int:
        return self.queue.total()


class PoolReport(NamedTuple):
    """A gateway replica's message on a pool to the others, or that of all others together.

    Attributes:
        sent: Prompts that replicas were sent since the last report, oldest first: URL, and blocks of 4 bytes each.
        doing: What replicas have to do for those who report, in blocks of a prompt, by URL.
    """

    queue: QueueReport = QueueReport()
    sent: tuple[tuple[str, bytes], ...] = ()
    doing: Mapping[str, float] = {}


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

    def report(self) -> PoolReport:
        """Returns what other gateway replicas should know of this one's part in the pool."""
        ...

    def merge(self, others: PoolReport) -> None:
        """Takes what other gateway replicas say of theirs."""
        ...

    def reserve(self, affinity: Affinity = NO_AFFINITY, asker: Asker = ANONYMOUS) -> Hold:
        """Returns a hold on a slot of one replica. Balanced pools ask no affinity but for the replicas to avoid.

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
