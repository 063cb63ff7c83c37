"""A pool that is a URL: nobody hands out slots there, so the gateway counts its own requests."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from serve.errors import OverloadedError, PoolUnavailableError
from serve.routing.endpoint import Endpoint
from serve.routing.pool import HEAD_START_S, Occupancy
from serve.routing.session_affinity import NO_AFFINITY, Affinity


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """Limits of what one gateway replica sends to a URL.

    Attributes:
        ongoing: Requests at the same time.
        queued: Requests that wait for one of those to end.
        queue_timeout_s: Longest wait.
        retry_after_s: How long refused clients should wait.
    """

    ongoing: int = 256
    queued: int = 512
    queue_timeout_s: float = 15.0
    retry_after_s: float = 2.0


class RemotePool:
    """A pool that is a URL; whoever runs it balances its load.

    Args:
        endpoint: Its address.
        facts: What the configuration says about it; nothing else is known.
        limits: How many requests go there.
        label: `model/pool`, for messages.
    """

    def __init__(
        self, endpoint: Endpoint, facts: Mapping[str, Any], limits: RemoteLimits | None = None, label: str = "the pool"
    ) -> None:
        self._endpoint = endpoint
        self._facts = facts
        self._limits = limits or RemoteLimits()
        self._label = label
        self._places = asyncio.Semaphore(self._limits.ongoing)
        self._held = 0
        self._waiting = 0

    @property
    def ready(self) -> bool:
        return not self.full

    @property
    def full(self) -> bool:
        return self._held + self._waiting >= self._limits.ongoing

    @property
    def head_start_s(self) -> float:
        return HEAD_START_S

    @property
    def replicas(self) -> int:
        return 0

    def reserve(self, affinity: Affinity = NO_AFFINITY) -> AbstractAsyncContextManager[Endpoint]:
        return _Place(self)

    async def take(self) -> Endpoint:
        """Takes a place, to be given back."""
        if self.full:
            await self._wait()
        else:
            await self._places.acquire()
        self._held += 1
        return self._endpoint

    def give_back(self) -> None:
        """Frees a place."""
        self._held -= 1
        self._places.release()

    def forget(self, endpoint: Endpoint) -> None:
        """Does nothing: there is no other replica to choose."""

    def occupancy(self) -> Occupancy:
        return Occupancy(self._limits.ongoing, self._held, self._waiting, (self._endpoint,))

    async def facts(self) -> Mapping[str, Any]:
        return self._facts

    async def close(self) -> None:
        """Does nothing: no slot is held."""

    async def _wait(self) -> None:
        """Waits for a place."""
        limits = self._limits
        if self._waiting >= limits.queued:
            raise OverloadedError(
                f"The queue of {self._label} is full; try again shortly.", None, None, limits.retry_after_s
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(limits.queue_timeout_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise PoolUnavailableError(
                f"{self._label} is busy; try again shortly.", None, None, limits.retry_after_s
            ) from error
        finally:
            self._waiting -= 1


class _Place(AbstractAsyncContextManager[Endpoint]):
    """One place at a pool; a generator in its stead would cost every request some microseconds."""

    def __init__(self, pool: RemotePool) -> None:
        self._pool = pool

    async def __aenter__(self) -> Endpoint:
        return await self._pool.take()

    async def __aexit__(self, *_: object) -> None:
        self._pool.give_back()
