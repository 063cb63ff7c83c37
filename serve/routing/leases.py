"""Slots on replicas, reused from request to request: reserving one costs two calls to the replica (ADR 0021)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from serve.routing.endpoint import Endpoint
from serve.routing.fair_queue import ANONYMOUS, Asker
from serve.routing.waiting_room import WaitingRoom, WaitingTerms

log = logging.getLogger("ray.serve.specgate.routing")

IDLE_TIMEOUT_S = 0.5  # another gateway may be waiting for this slot
MAX_AGE_S = 5.0  # only a new reservation shows that a replica is draining, or has fewer slots


@dataclass(eq=False, slots=True)
class Lease:
    """A reserved slot.

    Attributes:
        endpoint: The replica's address, with the slot.
        resources: Releases the slot when closed.
        expired: True if no further request may use the slot.
        idle_timer: Releases the slot unless a request takes it first; None if it has never been idle.
    """

    endpoint: Endpoint
    resources: AsyncExitStack
    expired: bool = False
    idle_timer: asyncio.TimerHandle | None = None
    _reserved_s: float = field(init=False, default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def usable_s(self) -> float:
        """Seconds for which the slot may still be kept; 0 or less if it must be released."""
        if self.expired:
            return 0.0
        return self._reserved_s + MAX_AGE_S - asyncio.get_running_loop().time()

    def stop_idle_timer(self) -> None:
        """Marks the slot as not idle any more."""
        if self.idle_timer is not None:
            self.idle_timer.cancel()


Reserve = Callable[[], Coroutine[Any, Any, Lease]]


class Leases:
    """The slots that one gateway replica holds in one pool.

    A request takes over an idle slot. If there is none, it waits for a new reservation or the slot of a request that
    ends; both go to whoever is next in the queue (docs/adr/0053).

    Args:
        terms: How requests wait.
        label: `model/pool`, for messages.
        idle_timeout_s: How long an idle slot is kept; with 0, slots are never reused.
        interchangeable: Reservations name no replica, so that any request may have what another one reserved.

    Attributes:
        requests: Requests that hold a slot or wait for one.
    """

    def __init__(
        self,
        terms: WaitingTerms | None = None,
        label: str = "the pool",
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        interchangeable: bool = True,
    ) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._interchangeable = interchangeable
        self._all: set[Lease] = set()
        self._idle: list[Lease] = []
        self._room = WaitingRoom[Lease](terms or WaitingTerms(), label, self._pass_on)
        self._reservations: dict[asyncio.Task[Lease], None] = {}  # interchangeable ones, under way, oldest first
        self._releases: set[asyncio.Task[None]] = set()
        self.requests = 0

    @property
    def has_idle(self) -> bool:
        """True if a request would get a slot at once."""
        return bool(self._idle)

    @property
    def held(self) -> int:
        """Slots that are held, idle ones included."""
        return len(self._all)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return max(0, self.requests - (len(self._all) - len(self._idle)))

    @asynccontextmanager
    async def hold(self, reserve: Reserve, url: str = "", asker: Asker = ANONYMOUS) -> AsyncIterator[Endpoint]:
        """Holds a slot for as long as the context lasts.

        Args:
            reserve: Makes a new reservation.
            url: The replica that is wanted; an idle slot of another one is not taken. Empty: any.
            asker: On whose behalf.

        Raises:
            GatewayError: As raised by `reserve`, or the wait was refused or in vain.
        """
        self.requests += 1
        try:
            lease = self._take_idle(url)
            if lease is None:
                lease = await self._wait_for_slot(reserve, asker)
            else:
                self._room.charge(asker)
            try:
                yield lease.endpoint
            except BaseException:
                self._release(lease)  # the replica may still be working on the abandoned request
                raise
            self._pass_on(lease)
        finally:
            self.requests -= 1

    def forget(self, endpoint: Endpoint) -> None:
        """Expires all slots of a replica that did not answer, so that the next requests choose a replica again."""
        for lease in self._all:
            if lease.endpoint.url == endpoint.url:
                lease.expired = True
        for lease in [lease for lease in self._idle if lease.expired]:
            self._release_idle(lease)

    async def close(self) -> None:
        """Releases all idle slots."""
        for lease in list(self._idle):
            self._release_idle(lease)
        await asyncio.gather(*self._releases, return_exceptions=True)  # `_on_released` logs the errors

    def _take_idle(self, url: str) -> Lease | None:
        for place in range(len(self._idle) - 1, -1, -1):
            if not url or self._idle[place].endpoint.url == url:
                lease = self._idle.pop(place)
                lease.stop_idle_timer()
                return lease
        return None

    async def _wait_for_slot(self, reserve: Reserve, asker: Asker) -> Lease:
        place = self._room.enter(asker)
        reserving = asyncio.create_task(reserve())
        if self._interchangeable:
            self._reservations[reserving] = None
            reserving.add_done_callback(self._on_any_reserved)
        else:
            reserving.add_done_callback(partial(self._on_reserved, place))
        try:
            return await self._room.wait(place)
        finally:
            if not self._interchangeable:
                reserving.cancel()
            while len(self._reservations) > len(self._room):
                self._reservations.popitem()[0].cancel()  # the newest has waited least for a slot

    def _on_any_reserved(self, reserving: asyncio.Task[Lease]) -> None:
        """Gives a slot to whoever is next."""
        self._reservations.pop(reserving, None)
        if reserving.cancelled():
            return
        if (error := reserving.exception()) is not None:
            self._room.refuse_one(error)
            return
        lease = reserving.result()
        self._all.add(lease)
        if not self._room.hand_out(lease):
            self._pass_on(lease)

    def _on_reserved(self, place: asyncio.Future[Lease], reserving: asyncio.Task[Lease]) -> None:
        """Gives a slot to who asked for its replica."""
        if reserving.cancelled():
            return
        if (error := reserving.exception()) is not None:
            self._room.refuse(place, error)
            return
        lease = reserving.result()
        self._all.add(lease)
        if not self._room.give(place, lease):
            self._pass_on(lease)

    def _pass_on(self, lease: Lease) -> None:
        """Hands a slot to the request that is next, or keeps it for one that comes."""
        keep_s = min(self._idle_timeout_s, lease.usable_s)
        if keep_s <= 0:
            self._release(lease)
        elif not self._room.hand_out(lease):
            lease.idle_timer = asyncio.get_running_loop().call_later(keep_s, self._release_idle, lease)
            self._idle.append(lease)

    def _release_idle(self, lease: Lease) -> None:
        lease.stop_idle_timer()
        self._idle.remove(lease)
        self._release(lease)

    def _release(self, lease: Lease) -> None:
        """Releases a slot in the background."""
        self._all.discard(lease)
        task = asyncio.ensure_future(lease.resources.aclose())
        self._releases.add(task)
        task.add_done_callback(self._on_released)

    def _on_released(self, task: asyncio.Task[None]) -> None:
        self._releases.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("could not release a slot", exc_info=error)
