"""From a pool to one of its replicas: Ray Serve's own request router picks one and reserves a slot there."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import Any, Protocol

from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle, ReplicaSelection

from serve.errors import OverloadedError, PoolUnavailableError
from serve.routing.endpoint import Endpoint
from serve.routing.leases import Lease, Leases
from serve.routing.running_replicas import metadata_of_running

# A pool that had no capacity a moment ago gets just enough time to show that it has some again.
_NO_CAPACITY_TIMEOUT_S = 0.1


def no_session() -> str:
    """The session of requests that belong to none."""
    return ""


class Pool(Protocol):
    """A pool as the gateway sees it."""

    def reserve(
        self, session: Callable[[], str] = no_session, elsewhere: bool = False
    ) -> AbstractAsyncContextManager[Endpoint]:
        """Holds a slot on one replica for as long as the context lasts.

        Args:
            session: Returns the key of the request's session; only sticky pools ask for it. Requests with one key go
                to one replica. See `serve.routing.session_affinity`.
            elsewhere: True if another pool can serve the request, so that waiting for a full one is not worth while.

        Raises:
            OverloadedError: Too many requests are waiting already.
            PoolUnavailableError: No slot came free in time.
        """
        ...

    def forget(self, endpoint: Endpoint) -> None:
        """Avoids a replica that did not answer."""
        ...

    async def facts(self) -> Mapping[str, Any]:
        """Returns what a running replica has reported about itself.

        It takes no slot and no place in a queue, so a full pool answers like any other.

        Raises:
            GatewayError: No replica is up.
        """
        ...

    async def close(self) -> None:
        """Releases everything that is held without a request."""
        ...


class RayPool:
    """A pool of replicas in this Ray cluster.

    Args:
        label: `model/pool`, for messages.
        handle: The pool's deployment.
        queue_timeout_s: Longest wait for a slot.
        retry_after_s: How long refused clients should wait.
        sticky: The replicas are on a hash ring, on which every session has its place (docs/adr/0019).
    """

    def __init__(
        self, label: str, handle: DeploymentHandle, queue_timeout_s: float, retry_after_s: float, sticky: bool = False
    ) -> None:
        self._label = label
        self._handle = handle
        self._queue_timeout_s = queue_timeout_s
        self._retry_after_s = retry_after_s
        self._sticky = sticky
        self._leases = Leases(0) if sticky else Leases()
        self._has_capacity = True

    def reserve(
        self, session: Callable[[], str] = no_session, elsewhere: bool = False
    ) -> AbstractAsyncContextManager[Endpoint]:
        handle = self._handle.options(session_id=session()) if self._sticky else self._handle
        timeout_s = _NO_CAPACITY_TIMEOUT_S if elsewhere and not self._has_capacity else self._queue_timeout_s
        return self._leases.hold(partial(self._lease, handle, timeout_s))

    def forget(self, endpoint: Endpoint) -> None:
        self._leases.forget(endpoint)

    async def facts(self) -> Mapping[str, Any]:
        if not self._handle.is_initialized:
            self._handle.options()  # Ray learns of a pool's replicas from the first use of its handle on
        running = metadata_of_running(self._handle.app_name, self._handle.deployment_name)
        if not running:
            raise PoolUnavailableError(f"No replica of {self._label} is running.", None, None, self._retry_after_s)
        return dict(running[0]["facts"])

    async def close(self) -> None:
        await self._leases.close()

    async def _lease(self, handle: DeploymentHandle, timeout_s: float) -> Lease:
        resources = AsyncExitStack()
        selection = await self._acquire(resources, handle, timeout_s)
        return Lease(_endpoint(selection), resources)

    async def _acquire(self, resources: AsyncExitStack, handle: DeploymentHandle, timeout_s: float) -> ReplicaSelection:
        """Reserves a slot, to be released by `resources`."""
        try:
            async with asyncio.timeout(timeout_s):
                selection = await resources.enter_async_context(handle.choose_replica())
        except BackPressureError as error:
            raise OverloadedError(
                f"The queue of {self._label} is full; try again shortly.", None, None, self._retry_after_s
            ) from error
        except (TimeoutError, DeploymentUnavailableError) as error:
            self._has_capacity = False
            raise PoolUnavailableError(
                f"No replica of {self._label} is free or running; try again shortly.", None, None, self._retry_after_s
            ) from error
        self._has_capacity = True
        return selection


def _endpoint(selection: ReplicaSelection) -> Endpoint:
    metadata = selection.replica_metadata
    host = metadata["http_host"]
    url = f"http://{f'[{host}]' if ':' in host else host}:{metadata['http_port']}"
    return Endpoint(url, metadata["http_key"], selection._slot_token or "")


class RemotePool:
    """A pool that is a URL; whoever runs it balances its load.

    Args:
        endpoint: Its address.
        facts: What the configuration says about it; nothing else is known.
    """

    def __init__(self, endpoint: Endpoint, facts: Mapping[str, Any]) -> None:
        self._endpoint = endpoint
        self._facts = facts

    def reserve(
        self, session: Callable[[], str] = no_session, elsewhere: bool = False
    ) -> AbstractAsyncContextManager[Endpoint]:
        return nullcontext(self._endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        """Does nothing: there is no other replica to choose."""

    async def facts(self) -> Mapping[str, Any]:
        return self._facts

    async def close(self) -> None:
        """Does nothing: no slot is held."""
