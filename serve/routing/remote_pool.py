"""A pool that is a URL: nobody hands out slots there, so the gateway counts its own requests."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from serve.routing.endpoint import Endpoint
from serve.routing.fair_queue import ANONYMOUS, Asker
from serve.routing.pool import HEAD_START_S, Occupancy
from serve.routing.session_affinity import NO_AFFINITY, Affinity
from serve.routing.waiting_room import WaitingRoom, WaitingTerms


class RemotePool:
    """A pool that is a URL; whoever runs it balances its load.

    Args:
        endpoint: Its address.
        facts: What the configuration says about it; nothing else is known.
        ongoing: Requests that one gateway replica has there at the same time.
        terms: How further ones wait.
        label: `model/pool`, for messages.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        facts: Mapping[str, Any],
        ongoing: int = 256,
        terms: WaitingTerms | None = None,
        label: str = "the pool",
    ) -> None:
        self._endpoint = endpoint
        self._facts = facts
        self._ongoing = ongoing
        self._room = WaitingRoom[None](terms or WaitingTerms(512), label, lambda _: self.give_back())
        self._held = 0

    @property
    def ready(self) -> bool:
        return not self.full

    @property
    def full(self) -> bool:
        return self._held >= self._ongoing

    @property
    def head_start_s(self) -> float:
        return HEAD_START_S

    @property
    def replicas(self) -> int:
        return 0

    def reserve(
        self, affinity: Affinity = NO_AFFINITY, asker: Asker = ANONYMOUS
    ) -> AbstractAsyncContextManager[Endpoint]:
        return _Place(self, asker)

    async def take(self, asker: Asker) -> Endpoint:
        """Takes a place, to be given back.

        Args:
            asker: On whose behalf.

        Raises:
            GatewayError: The wait for it was refused or in vain.
        """
        if self.full:
            await self._room.wait(self._room.enter(asker))
        else:
            self._room.charge(asker)
            self._held += 1
        return self._endpoint

    def give_back(self) -> None:
        """Frees a place, or leaves it to a request that waits."""
        if not self._room.hand_out(None):
            self._held -= 1

    def forget(self, endpoint: Endpoint) -> None:
        """Does nothing: there is no other replica to choose."""

    def occupancy(self) -> Occupancy:
        return Occupancy(self._ongoing, self._held, len(self._room), (self._endpoint,))

    async def facts(self) -> Mapping[str, Any]:
        return self._facts

    async def close(self) -> None:
        """Does nothing: no slot is held."""


class _Place(AbstractAsyncContextManager[Endpoint]):
    """One place at a pool; a generator in its stead would cost every request some microseconds."""

    def __init__(self, pool: RemotePool, asker: Asker) -> None:
        self._pool = pool
        self._asker = asker

    async def __aenter__(self) -> Endpoint:
        return await self._pool.take(self._asker)

    async def __aexit__(self, *_: object) -> None:
        self._pool.give_back()
