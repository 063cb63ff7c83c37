"""Slots on replicas, reused from request to request: reserving one costs two calls to the replica (ADR 0021)."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from serve.routing.fair_queue import ANONYMOUS, Asker, QueueReport, Turn
from serve.routing.pool import NOWHERE, Endpoint, Hold
from serve.routing.waiting_room import Place, WaitingRoom, WaitingTerms
from serve.telemetry.request_log import log_error

log = logging.getLogger("ray.serve.specgate.routing")

IDLE_TIMEOUT_S = 0.5  # another gateway may be waiting for this slot
MAX_AGE_S = 5.0  # only a new reservation shows that a replica is draining, or has fewer slots


@dataclass(eq=False, slots=True)
class Lease:
    """A reserved slot.

    Attributes:
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
    ends; both go to whoever is next in the queue (docs/adr/0053). Reservations that are not interchangeable serve the
    requests that made them, and only slots that are handed on go by the queue: without an idle timeout, and behind
    requests longer than `MAX_AGE_S`, the order is that in which the replicas answer. With an idle timeout of 0, slots
    are never reused.

    Attributes:
        requests: Requests that hold a slot or wait for one.
    """

    def __init__(
        self,
        terms: WaitingTerms | None = None,
        label: str = "the pool",
        *,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        interchangeable: bool = True,
        slots: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._idle_timeout_s = idle_timeout_s
        self._interchangeable = interchangeable
        self._all: set[Lease] = set()
        self._idle: list[Lease] = []
        reservable = slots if interchangeable else None
        self._room = WaitingRoom[Lease](terms or WaitingTerms(), label, self._pass_on, reservable)
        self.queue = self._room.queue
        self._reserve: Reserve | None = None  # how the last request would have reserved
        self._reservations: dict[asyncio.Task[Lease], None] = {}  # interchangeable ones, under way, oldest first
        self._releases: set[asyncio.Task[None]] = set()
        self.requests = 0

    @property
    def has_idle(self) -> bool:
        """True if a request would get a slot at once."""
        return bool(self._idle)

    def merge(self, others: QueueReport) -> None:
        """Takes what other gateway replicas say of theirs."""
        self.queue.merge(others)
        self._seek()

    @property
    def held(self) -> int:
        """Slots that are held, idle ones included."""
        return len(self._all)

    def hold(self, reserve: Reserve, url: str = "", asker: Asker = ANONYMOUS, avoid: frozenset[str] = NOWHERE) -> Hold:
        """Returns a hold on a slot: an idle one of the replica that is wanted, or of any without a URL, but of none to
        avoid; or else one that `reserve` makes a reservation for.

        Raises:
            GatewayError: On entering the hold: as raised by `reserve`, or the wait was refused or timed out.
        """
        return _Hold(self, reserve, url, asker, avoid)

    async def take(self, reserve: Reserve, url: str, asker: Asker, avoid: frozenset[str]) -> tuple[Lease, Turn]:
        """Takes a slot, to be given back; arguments and errors as of `hold`."""
        self.requests += 1
        try:
            lease = self._take_idle(url, avoid) if self.queue.may_have(asker) else None
            if lease is not None:
                return lease, self.queue.charge(asker)
            if avoid:  # what others give back or reserve may be where it has failed
                lease, turn = await self._room.wait_alone(reserve(), asker)
                self._all.add(lease)
                return lease, turn
            return await self._wait_for_slot(reserve, asker)
        except BaseException:
            self.requests -= 1
            raise

    def give_back(self, lease: Lease, *, broken: bool) -> None:
        """Hands a slot on. `broken`: the replica may still be working on a request that was abandoned."""
        self.requests -= 1
        if broken:
            self._release(lease)
        else:
            self._pass_on(lease)

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

    def _take_idle(self, url: str, avoid: frozenset[str]) -> Lease | None:
        for place in range(len(self._idle) - 1, -1, -1):
            found = self._idle[place].endpoint.url
            if found not in avoid and url in ("", found):
                lease = self._idle.pop(place)
                lease.stop_idle_timer()
                return lease
        return None

    async def _wait_for_slot(self, reserve: Reserve, asker: Asker) -> tuple[Lease, Turn]:
        place = self._room.enter(asker)
        if self._interchangeable:
            self._reserve = reserve
            self._seek()
            try:
                return await self._room.wait(place)
            finally:
                while len(self._reservations) > self._room.eligible:
                    self._reservations.popitem()[0].cancel()  # the newest has waited least for a slot
        reserving = asyncio.create_task(reserve())
        reserving.add_done_callback(partial(self._on_reserved, place))
        try:
            return await self._room.wait(place)
        finally:
            reserving.cancel()

    def _seek(self) -> None:
        """Looks for slots for all that wait and may have one: idle ones that were reserved before, then new ones."""
        if not self._interchangeable or self._reserve is None:
            return
        while self._idle and self._room.hand_out(self._idle[-1]):
            self._idle.pop().stop_idle_timer()
        while len(self._reservations) < self._room.eligible:
            reserving = asyncio.create_task(self._reserve())
            self._reservations[reserving] = None
            reserving.add_done_callback(partial(self._on_reserved, None))

    def _on_reserved(self, place: Place[Lease] | None, reserving: asyncio.Task[Lease]) -> None:
        """Gives a slot to who asked for its replica or, without a place, to whoever is next."""
        self._reservations.pop(reserving, None)
        if reserving.cancelled():
            return
        if (error := reserving.exception()) is None:
            lease = reserving.result()
            self._all.add(lease)
            if not (self._room.hand_out(lease) if place is None else self._room.give(place, lease)):
                self._pass_on(lease)
        elif place is None:
            self._room.refuse_one(error)
        else:
            self._room.refuse(place, error)

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
            log_error(log, "could not release a slot", error)


class _Hold(Hold):
    def __init__(self, leases: Leases, reserve: Reserve, url: str, asker: Asker, avoid: frozenset[str]) -> None:
        self._leases = leases
        self._reserve = reserve
        self._url = url
        self._asker = asker
        self._avoid = avoid

    async def __aenter__(self) -> Endpoint:
        self._lease, self.turn = await self._leases.take(self._reserve, self._url, self._asker, self._avoid)
        return self._lease.endpoint

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.turn.end()
        self._leases.give_back(self._lease, broken=kind is not None)
