"""Ray Serve's request routers, with reservations that survive the client who caused them.

Ray cancels a reservation when its caller is cancelled, and releases the slot at once. A replica runs its calls in no
fixed order: a release that overtakes its reservation finds nothing to release, and the slot reserved afterwards is lost
until the replica restarts. Clients that left a few milliseconds after their request took every slot of a replica this
way (`python -m bench.gateway.leavers`). Here the reservation always completes first; then the slot is released.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.handle import ReplicaSelection
from ray.serve.request_router import RunningReplica

from serve.routing import running_replicas

log = logging.getLogger("ray.serve.specgate.routing")

_PowerOfTwoChoices: Any = RequestRouterConfig().get_request_router_class()  # Ray's default


class PoolSize(NamedTuple):
    """The size of a pool.

    Attributes:
        replicas: Running replicas; 0 if unknown.
        slots: Requests that they take at the same time.
    """

    replicas: int
    slots: int


class ReservedReplica(RunningReplica):  # type: ignore[misc]  # Ray has no types
    """A replica as a router sees it.

    Args:
        replica_info: Ray's.
        pool_size: Returns the size of its pool.
    """

    def __init__(self, replica_info: Any, pool_size: Callable[[], PoolSize]) -> None:
        super().__init__(replica_info)
        self.pool_size = pool_size
        self._releases: set[asyncio.Task[None]] = set()

    async def reserve_slot(self, request_metadata: Any) -> tuple[str, Any]:
        """Reserves a slot; returns the token that releases it, and how busy the replica is."""
        reserving = asyncio.ensure_future(super().reserve_slot(request_metadata))
        try:
            return await asyncio.shield(reserving)
        except asyncio.CancelledError:
            task = asyncio.create_task(self._release_when_reserved(reserving))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)
            raise

    async def _release_when_reserved(self, reserving: "asyncio.Future[tuple[str, Any]]") -> None:
        """Releases the slot of a reservation that nobody is waiting for any more."""
        try:
            token, queue = await reserving
            if queue.accepted:
                await self.release_slot(token)
        except RayError as error:  # the replica is gone, and its slots with it
            log.debug("could not release a slot: %s", error)


class _ReservingRouter:
    """Makes one of Ray's routers use `ReservedReplica`, and lets the rest of the process see its replicas."""

    _deployment_id: Any  # Ray's own
    curr_replicas: Any  # Ray's own

    def initialize_state(self, **kwargs: Any) -> None:
        """Ray's hook, called once before any replica is known."""
        super().initialize_state(**kwargs)  # type: ignore[misc]
        running_replicas.register(self._deployment_id.app_name, self._deployment_id.name, self)

    def create_replica_wrapper(self, replica_info: Any) -> ReservedReplica:
        """Ray's hook."""
        return ReservedReplica(replica_info, self._pool_size)

    def _pool_size(self) -> PoolSize:
        replicas = self.curr_replicas.values()
        return PoolSize(len(replicas), sum(replica.max_ongoing_requests for replica in replicas))


class BalancedRouter(_ReservingRouter, _PowerOfTwoChoices):  # type: ignore[misc]
    """Picks the less loaded of two replicas."""


class StickyRouter(_ReservingRouter, ConsistentHashRouter):  # type: ignore[misc]
    """Picks the replica at the session's place on the hash ring."""


def unknown_size() -> PoolSize:
    """Returns more slots than a pool has: what is not known to be full is asked."""
    return PoolSize(0, sys.maxsize)


def size_seen_by(selection: ReplicaSelection) -> Callable[[], PoolSize]:
    """Returns a function that returns the size of a pool, now and later.

    Args:
        selection: A replica that one of the routers here has chosen.
    """
    # Like the slot's token, the replica is not public API of Ray Serve.
    size: Callable[[], PoolSize] = selection._replica.pool_size
    return size
