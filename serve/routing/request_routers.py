"""Ray Serve's request routers, with reservations that survive the client who caused them.

Ray cancels a reservation when its caller is cancelled, and releases the slot at once. A replica runs its calls in no
fixed order: a release that overtakes its reservation finds nothing to release, and the slot reserved afterwards is lost
until the replica restarts. Clients that left a few milliseconds after their request took every slot of a replica this
way (`python -m bench.gateway.leavers`). Here the reservation always completes first; then the slot is released.
"""

import asyncio
import logging
from typing import Any

from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from ray.serve.request_router import RunningReplica

from serve.routing import ray_pool
from serve.routing.pool import url_of
from serve.routing.ray_pool import read_hint

log = logging.getLogger("ray.serve.specgate.routing")

_PowerOfTwoChoices: Any = RequestRouterConfig().get_request_router_class()  # Ray's default


class ReservedReplica(RunningReplica):  # type: ignore[misc]  # Ray has no types
    """A replica as a router sees it."""

    def __init__(self, replica_info: Any) -> None:
        super().__init__(replica_info)
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
    """Makes one of Ray's routers use `ReservedReplica`, keeps requests away from the replicas that they should avoid
    (`ray_pool.hint`), and lets the rest of the process see its replicas.
    """

    _deployment_id: Any  # Ray's own

    def initialize_state(self, **kwargs: Any) -> None:
        """Ray's hook, called once before any replica is known."""
        super().initialize_state(**kwargs)  # type: ignore[misc]
        ray_pool.register_router(self._deployment_id.app_name, self._deployment_id.name, self)

    def create_replica_wrapper(self, replica_info: Any) -> ReservedReplica:
        """Ray's hook."""
        return ReservedReplica(replica_info)

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """Ray's hook: replicas in ranks, the next rank if the one before has no room.

        Those to avoid are in none as long as there are others, even if these have no room: one that fails its requests
        at once has always the most of it.
        """
        ranks: list[list[Any]] = await super().choose_replicas(candidate_replicas, pending_request)  # type: ignore[misc]
        wanted, avoid = _hint_of(pending_request)
        if wanted:
            ranks = [[replica for replica in candidate_replicas if url_of(replica.replica_metadata) == wanted], *ranks]
        if avoid:
            ranks = [*(_without(rank, avoid) for rank in ranks), _without(candidate_replicas, avoid)]
        return [rank for rank in ranks if rank] or [candidate_replicas]


class BalancedRouter(_ReservingRouter, _PowerOfTwoChoices):  # type: ignore[misc]
    """Picks the replica that the gateway has named, by its URL, while it has room; otherwise the less loaded of two."""

    def _get_pending_request_matching_metadata(self, request_metadata: Any = None) -> Any:
        """Ray's hook: who gets a replica. Ray would give one to whoever has waited longest, whomever it suits."""
        if request_metadata is not None and request_metadata.session_id:
            return self._get_pending_request_matching_internal_request_id(request_metadata)
        return super()._get_pending_request_matching_metadata(request_metadata)


class StickyRouter(_ReservingRouter, ConsistentHashRouter):  # type: ignore[misc]
    """Picks the replica at the session's place on the hash ring."""

    def _routing_key(self, pending_request: Any) -> str | None:
        """Ray's hook: what decides the place."""
        session, _ = _hint_of(pending_request)
        if session or pending_request is None:
            return session or None
        return str(pending_request.metadata.internal_request_id)  # anywhere, whatever is to be avoided


def _without(replicas: list[Any], avoid: frozenset[str]) -> list[Any]:
    return [replica for replica in replicas if url_of(replica.replica_metadata) not in avoid]


def _hint_of(pending_request: Any) -> tuple[str, frozenset[str]]:
    return read_hint((pending_request.metadata.session_id if pending_request is not None else "") or "")
