"""Ray Serve's request routers, with reservations that outlive the client for whom they were made.

Ray cancels a reservation whose caller is cancelled and at once sends the release of its slot. A replica runs the calls
that it gets in no order: a release that comes before its reservation finds nothing, and the slot that is reserved after
it is lost until the replica restarts. Clients that leave a few milliseconds behind their request took all slots of a
replica in this way (`python -m bench.gateway.leavers`). Here the reservation comes to its end first, then the slot goes
back.
"""

import asyncio
import logging
from typing import Any

from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.request_router import RunningReplica

log = logging.getLogger("ray.serve.specgate.reservations")

_PowerOfTwoChoices: Any = RequestRouterConfig().get_request_router_class()  # Ray's default


class ReservedReplica(RunningReplica):  # type: ignore[misc]  # Ray has no types
    """A replica as a router sees it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._giving_back: set[asyncio.Task[None]] = set()

    async def reserve_slot(self, request_metadata: Any) -> tuple[str, Any]:
        """Hold a slot; the token that releases it, and how busy the replica is."""
        reserving = asyncio.ensure_future(super().reserve_slot(request_metadata))
        try:
            return await asyncio.shield(reserving)
        except asyncio.CancelledError:
            task = asyncio.create_task(self._give_back(reserving))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)
            raise

    async def _give_back(self, reserving: "asyncio.Future[tuple[str, Any]]") -> None:
        """Return the slot of a reservation for which nobody waits any more."""
        try:
            token, queue = await reserving
            if queue.accepted:
                await self.release_slot(token)
        except RayError as error:  # its slots have gone with the replica
            log.debug("a slot could not be given back: %s", error)


class _Reserving:
    """What makes a router of Ray's use `ReservedReplica`."""

    def create_replica_wrapper(self, replica_info: Any) -> ReservedReplica:
        """Ray's hook."""
        return ReservedReplica(replica_info)


class BalancedRouter(_Reserving, _PowerOfTwoChoices):  # type: ignore[misc]
    """The less loaded of two replicas."""


class StickyRouter(_Reserving, ConsistentHashRouter):  # type: ignore[misc]
    """The replica where a session has its place on the ring."""
