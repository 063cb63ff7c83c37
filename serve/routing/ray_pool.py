"""A pool of replicas in this Ray cluster: Ray Serve's own request router picks one and reserves a slot there.

What it knows of the replicas it reads from that router, where there is one in this process: nobody is asked, no slot is
taken.
"""

import asyncio
import sys
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from policies.facts import common
from serve.errors import PoolUnavailableError
from serve.routing.fair_queue import ANONYMOUS, Asker
from serve.routing.leases import IDLE_TIMEOUT_S, Lease, Leases, Reserve
from serve.routing.outages import Outages
from serve.routing.pool import HEAD_START_S, NO_AFFINITY, Affinity, Endpoint, Hold, Occupancy, PoolReport, url_of
from serve.routing.prefix_placement import PlacedHold, PrefixPlacement
from serve.routing.waiting_room import WaitingTerms, queue_full

_SHORT_HEAD_START_S = 0.1  # for a pool that was slow a moment ago
# Of this process. Not in the routers' own module, which Ray copies into every process that uses one.
_routers: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()


class RayPool:
    """A pool of replicas in this Ray cluster, whose Ray Serve counts how many requests wait. With `sticky` routing, the
    replicas are on a hash ring, on which every session has its place (docs/adr/0019); with `prefix`, each prompt goes
    where its beginning is (docs/adr/0045).
    """

    def __init__(self, label: str, handle: DeploymentHandle, terms: WaitingTerms, routing: str = "balanced") -> None:
        self._label = label
        self._handle = handle
        self._deployment = (handle.app_name, handle.deployment_name)
        self._retry_after_s = terms.retry_after_s
        self._sticky = routing == "sticky"
        self._placement = (
            PrefixPlacement(lambda: slots_by_url(*self._deployment), self._kept_tokens) if routing == "prefix" else None
        )
        self._leases = Leases(
            terms,
            label,
            idle_timeout_s=0 if self._sticky else IDLE_TIMEOUT_S,
            interchangeable=routing == "balanced",
            slots=self._slots,
        )
        self._outages = Outages()
        self._has_served = False
        self._is_slow = False

    @property
    def ready(self) -> bool:
        return self._leases.has_idle

    @property
    def full(self) -> bool:
        # A pool that never had a slot is asked: it may have scaled to zero, and only a request wakes it.
        return self._has_served and self._leases.requests >= slots_of_running(*self._deployment)

    @property
    def head_start_s(self) -> float:
        return _SHORT_HEAD_START_S if self._is_slow else HEAD_START_S

    @property
    def replicas(self) -> int:
        return len(metadata_of_running(*self._deployment))

    def report(self) -> PoolReport:
        queue, placement = self._leases.queue.report(), self._placement
        return PoolReport(queue, placement.report(), placement.doing()) if placement else PoolReport(queue)

    def merge(self, others: PoolReport) -> None:
        self._leases.merge(others.queue)
        if self._placement is not None:
            self._placement.merge(others.sent, others.doing)

    def reserve(self, affinity: Affinity = NO_AFFINITY, asker: Asker = ANONYMOUS) -> Hold:
        avoid = affinity.avoid | self._outages.now()
        if self._placement is not None:
            blocks = affinity.blocks()
            url = self._placement.choose(blocks, avoid)
            hold = self._leases.hold(self._reserving(url, avoid), url, asker, affinity.avoid)
            return PlacedHold(hold, self._placement, blocks)
        reserving = self._reserving(affinity.session() if self._sticky else "", avoid)
        return self._leases.hold(reserving, asker=asker, avoid=affinity.avoid)

    def _reserving(self, wanted: str, avoid: frozenset[str]) -> Reserve:
        """Returns what reserves a slot where the hint in the handle's session id leads our request router."""
        handle = self._handle.options(session_id=hint(wanted, avoid)) if wanted or avoid else self._handle
        return partial(self._lease, handle)

    def forget(self, endpoint: Endpoint) -> None:
        self._outages.add(endpoint.url)
        self._leases.forget(endpoint)

    def occupancy(self) -> Occupancy:
        engines = tuple(_endpoint(metadata) for metadata in metadata_of_running(*self._deployment))
        leases = self._leases
        return Occupancy(self._slots(), leases.held, leases.queue.counts(), engines)

    async def facts(self) -> Mapping[str, Any]:
        if not self._handle.is_initialized:
            self._handle.options()  # Ray learns of a pool's replicas from the first use of its handle on
        running = metadata_of_running(*self._deployment)
        if not running:
            raise PoolUnavailableError(f"No replica of {self._label} is running.", retry_after_s=self._retry_after_s)
        told = [each["facts"] for each in running]  # in a rollout they differ
        lengths = [each["max_model_len"] for each in told if "max_model_len" in each]
        return common(told) | ({"max_model_len": min(lengths)} if lengths else {})  # what each of them takes

    async def close(self) -> None:
        await self._leases.close()

    def _slots(self) -> int | None:
        slots = slots_of_running(*self._deployment)
        return None if slots == sys.maxsize else slots

    def _kept_tokens(self, url: str) -> int | None:
        running = metadata_of_running(*self._deployment)
        return next((each.get("kept_tokens") for each in running if url_of(each) == url), None)

    async def _lease(self, handle: DeploymentHandle) -> Lease:
        """Reserves a slot."""
        resources = AsyncExitStack()
        overdue = asyncio.get_running_loop().call_later(HEAD_START_S, self._set_slow)
        try:
            selection = await resources.enter_async_context(handle.choose_replica())
        except BackPressureError as error:
            raise queue_full(self._label, self._retry_after_s) from error
        except DeploymentUnavailableError as error:
            self._set_slow()
            raise PoolUnavailableError(
                f"No replica of {self._label} is running; try again shortly.", retry_after_s=self._retry_after_s
            ) from error
        finally:
            overdue.cancel()
        self._is_slow = False
        self._has_served = True
        return Lease(_endpoint(selection.replica_metadata, selection._slot_token or ""), resources)

    def _set_slow(self) -> None:
        self._is_slow = True


def _endpoint(metadata: Mapping[str, Any], slot: str = "") -> Endpoint:
    return Endpoint(url_of(metadata), metadata["http_key"], slot)


def register_router(app: str, deployment: str, router: Any) -> None:
    """Remembers the request router of a deployment for as long as it is in use."""
    _routers[app, deployment] = router


def metadata_of_running(app: str, deployment: str) -> list[Mapping[str, Any]]:
    """Returns what each running replica of a deployment said about itself when it became ready.

    The list is empty as well if the deployment has no request router in this process.
    """
    return [replica.replica_metadata for replica in _running(app, deployment) or ()]


def slots_of_running(app: str, deployment: str) -> int:
    """Returns the requests that the running replicas of a deployment take at the same time.

    Without a request router in this process the number is unknown, and more than any deployment has.
    """
    running = _running(app, deployment)
    return sys.maxsize if running is None else sum(replica.max_ongoing_requests for replica in running)


def slots_by_url(app: str, deployment: str) -> dict[str, int]:
    """Returns the requests that each running replica of a deployment takes at the same time, by its URL."""
    running = _running(app, deployment) or ()
    return {url_of(replica.replica_metadata): replica.max_ongoing_requests for replica in running}


def _running(app: str, deployment: str) -> list[Any] | None:
    router = _routers.get((app, deployment))
    return None if router is None else list(router.curr_replicas.values())


def hint(wanted: str, avoid: Collection[str]) -> str:
    """Returns the session id by which our request routers learn where to go.

    `wanted` is the key of a session or the URL of a replica, or empty for any; `avoid` are URLs.
    """
    return " ".join((wanted, *avoid))


def read_hint(session_id: str) -> tuple[str, frozenset[str]]:
    """Returns what `hint` got; of a session id that names nothing, an empty text and no URLs."""
    wanted, *avoid = session_id.split(" ")
    return wanted, frozenset(avoid)
