"""A pool that is a URL: nobody hands out slots there, so the gateway counts its own requests."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from serve.routing.class_queue import ANONYMOUS, Asker, Turn
from serve.routing.endpoint import Endpoint
from serve.routing.fair_queue import QueueReport
from serve.routing.hold import Hold
from serve.routing.pool import HEAD_START_S, Occupancy
from serve.routing.session_affinity import NO_AFFINITY, Affinity
from serve.routing.waiting_room import WaitingRoom, WaitingTerms


class RemotePool:
    """A pool that is a URL; whoever runs it balances its load.

    Args:
        endpoint: Its address.
        facts: What the configuration says about it; nothing else is known.
        slots: Requests that all gateway replicas together may have there at the same time.
        terms: How further ones wait.
        label: `model/pool`, for messages.
        gateways: Gateway replicas, each of which has an equal share of the slots.
        key: Returns the key that it wants now; None if that of `endpoint` never changes.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        facts: Mapping[str, Any],
        slots: int = 256,
        terms: WaitingTerms | None = None,
        label: str = "the pool",
        gateways: int = 1,
        key: Callable[[], str] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._key = key
        self._facts = facts
        self._slots = slots
        self._share = max(1, slots // gateways)
        self._room = WaitingRoom[None](
            terms or WaitingTerms(512), label, lambda _: self.give_back(), lambda: self._share
        )
        self._held = 0

    @property
    def endpoint(self) -> Endpoint:
        """Its address, with the key of this moment."""
        if self._key is not None and (key := self._key()) != self._endpoint.key:
            self._endpoint = replace(self._endpoint, key=key)
        return self._endpoint

    @property
    def ready(self) -> bool:
        return not self.full

    @property
    def full(self) -> bool:
        return self._held >= self._share

    @property
    def head_start_s(self) -> float:
        return HEAD_START_S

    @property
    def replicas(self) -> int:
        return 0

    def report(self) -> QueueReport:
        return QueueReport(self._room.queue.report().given)  # its slots are its own

    def merge(self, others: QueueReport) -> None:
        self._room.queue.merge(others)
        self._hand_out()

    def reserve(self, affinity: Affinity = NO_AFFINITY, asker: Asker = ANONYMOUS) -> Hold:
        return _Hold(self, asker)

    async def take(self, asker: Asker) -> Turn:
        """Takes a slot, to be given back.

        Args:
            asker: On whose behalf.

        Raises:
            GatewayError: The wait for it was refused or in vain.
        """
        if self.full or not self._room.queue.may_have(asker):
            place = self._room.enter(asker)
            self._hand_out()
            return (await self._room.wait(place))[1]
        self._held += 1
        return self._room.charge(asker)

    def give_back(self) -> None:
        """Frees a slot, or leaves it to a request that waits."""
        self._held -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while len(self._room) and not self.full and self._room.hand_out(None):
            self._held += 1

    def forget(self, endpoint: Endpoint) -> None:
        """Does nothing: there is no other replica to choose."""

    def occupancy(self) -> Occupancy:
        return Occupancy(self._slots, self._held, self._room.queue.counts(), (self.endpoint,))

    async def facts(self) -> Mapping[str, Any]:
        return self._facts

    async def close(self) -> None:
        """Does nothing: no slot is held."""


class _Hold(Hold):
    def __init__(self, pool: RemotePool, asker: Asker) -> None:
        self._pool = pool
        self._asker = asker

    async def __aenter__(self) -> Endpoint:
        self.turn = await self._pool.take(self._asker)
        return self._pool.endpoint

    async def __aexit__(self, *_: object) -> None:
        self.turn.end()
        self._pool.give_back()
