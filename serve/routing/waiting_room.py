"""The waiting room of a pool, for requests without a slot: a fair queue, a limit, and an end to the wait."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from serve.config.access import ReservedClass
from serve.errors import OverloadedError, PoolUnavailableError
from serve.routing.fair_queue import Asker, FairQueue, ReservedSlots, Turn

T = TypeVar("T")
Place = asyncio.Future[tuple[T, Turn]]  # where one request waits for a slot


@dataclass(frozen=True, slots=True)
class WaitingTerms:
    """The terms on which requests wait at one gateway replica.

    Attributes:
        queued: The most that wait for one pool; None if somebody else counts them.
        starve_s: See `FairQueue`.
        reserved: See `ReservedSlots`.
    """

    queued: int | None = None
    queue_timeout_s: float = 15.0
    starve_s: float = 5.0
    retry_after_s: float = 2.0
    reserved: Mapping[ReservedClass, float] = field(default_factory=dict)


class WaitingRoom(Generic[T]):
    """Requests that wait for one pool. `give_back` takes a slot that was handed out to a request whose client has left;
    `slots` are those that may be reserved, None where slots are not for every request.
    """

    def __init__(
        self,
        terms: WaitingTerms,
        label: str,
        give_back: Callable[[T], None],
        slots: Callable[[], int | None] | None = None,
    ) -> None:
        self._terms = terms
        self._label = label
        self._give_back = give_back
        reserved = ReservedSlots(terms.reserved, slots) if terms.reserved and slots is not None else None
        self.queue = FairQueue[Place[T]](terms.starve_s, reserved)

    @property
    def eligible(self) -> int:
        """Requests that may have a slot now; the others wait for what is reserved for higher classes."""
        return self.queue.eligible(asyncio.get_running_loop().time())

    def enter(self, asker: Asker) -> Place[T]:
        """Returns a place in the room, for `wait`.

        Raises:
            OverloadedError: As many requests of the tenant wait as may.
        """
        if asker.queued is not None and self.queue.waiting(asker.tenant) >= asker.queued:
            message = f"{asker.queued} requests of tenant {asker.tenant!r} wait for {self._label}; try again shortly."
            raise OverloadedError(message, retry_after_s=self._terms.retry_after_s)
        loop = asyncio.get_running_loop()
        place: Place[T] = loop.create_future()
        self.queue.add(place, asker, loop.time())
        if self._terms.queued is not None and len(self.queue) > self._terms.queued:
            self.refuse_one(queue_full(self._label, self._terms.retry_after_s))
        return place

    async def wait(self, place: Place[T]) -> tuple[T, Turn]:
        """Returns the slot that a request is given, and what its tenant is charged.

        Raises:
            GatewayError: It was refused, or no slot came free in time.
        """
        timer = asyncio.get_running_loop().call_later(self._terms.queue_timeout_s, self._time_out, place)
        try:
            return await place
        except asyncio.CancelledError:
            if not place.cancelled() and place.exception() is None:
                slot, turn = place.result()  # it arrived just as the client left
                turn.undo()
                turn.end()
                self._give_back(slot)
            raise
        finally:
            timer.cancel()
            if place in self.queue:
                self.queue.remove(place)

    async def wait_alone(self, reserving: Awaitable[T], asker: Asker) -> tuple[T, Turn]:
        """Returns the slot that is reserved for one request alone, and what its tenant is charged; nobody is served
        before others by this, since its turn had come before.

        Raises:
            GatewayError: As of the reservation, or it took too long.
        """
        try:
            async with asyncio.timeout(self._terms.queue_timeout_s):
                slot = await reserving
        except TimeoutError as error:
            raise self._none_free() from error
        return slot, self.queue.charge(asker)

    def hand_out(self, slot: T) -> bool:
        """Gives a slot to the request that is next; returns False if none waits that may have it."""
        if not len(self.queue):
            return False
        now_s = asyncio.get_running_loop().time()
        while (place := self.queue.first(now_s)) is not None:
            if self.give(place, slot):
                return True
            self.queue.remove(place)
        return False

    def give(self, place: Place[T], slot: T) -> bool:
        """Gives a slot to one request, whose turn it need not be; returns False if it does not wait any more."""
        if place.done():  # the queue learns of a client that left when its task runs
            return False
        place.set_result((slot, self.queue.take(place)))
        return True

    def refuse(self, place: Place[T], error: BaseException) -> None:
        """Ends one request's wait with an error."""
        if not place.done():
            self.queue.remove(place)
            place.set_exception(error)

    def refuse_one(self, error: BaseException) -> None:
        """Ends a request's wait with an error: that of the tenant with the most waiting for its weight."""
        while (place := self.queue.last()) is not None:
            if not place.done():
                self.refuse(place, error)
                return
            self.queue.remove(place)

    def _time_out(self, place: Place[T]) -> None:
        self.refuse(place, self._none_free())

    def _none_free(self) -> PoolUnavailableError:
        message = f"No slot of {self._label} came free in time; try again shortly."
        return PoolUnavailableError(message, retry_after_s=self._terms.retry_after_s)


def queue_full(label: str, retry_after_s: float) -> OverloadedError:
    """Returns the error of a request for which a pool's queue has no room."""
    return OverloadedError(f"The queue of {label} is full; try again shortly.", retry_after_s=retry_after_s)
