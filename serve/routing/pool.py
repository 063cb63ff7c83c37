"""From a pool to one of its replicas: Ray Serve's own request router picks it and reserves a slot there."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol

from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle, ReplicaSelection

from serve.errors import OverloadedError, PoolUnavailableError
from serve.routing.endpoint import Endpoint
from serve.routing.leases import Lease, Leases

log = logging.getLogger("ray.serve.specgate.router")


class Route(Protocol):
    """A pool as the gateway sees it."""

    def reserve(self, session: str = "", elsewhere: bool = False) -> AbstractAsyncContextManager[Endpoint]:
        """Hold a slot on one replica for as long as the context lasts.

        Args:
            session: Requests with the same one go to the same replica where the pool is sticky; from `serve.affinity`.
            elsewhere: Another pool may answer: no use to wait for one that had no room a moment ago.

        Raises:
            OverloadedError: Too many wait already.
            PoolUnavailableError: No slot came free in time.
        """
        ...

    def forget(self, endpoint: Endpoint) -> None:
        """A replica did not answer."""
        ...

    async def facts(self) -> Mapping[str, Any]:
        """What a running replica says of itself; raises a `GatewayError` while none is up."""
        ...

    async def close(self) -> None:
        """Give back all that is held without a request."""
        ...


_GLANCE_S = 0.1  # for a pool without room: as long as it takes to learn that it has some again


class ReplicaRoute:
    """A pool of replicas in this Ray cluster.

    Args:
        label: `model/pool`, for messages.
        handle: The pool's deployment.
        queue_timeout_s: Longest wait for a slot.
        retry_after_s: What a refused client is told to wait.
        sticky: The pool's replicas are on a hash ring, and a session has its place there (docs/adr/0019).
    """

    def __init__(
        self, label: str, handle: DeploymentHandle, queue_timeout_s: float, retry_after_s: float, sticky: bool = False
    ) -> None:
        self._label, self._handle, self._sticky = label, handle, sticky
        self._queue_timeout_s, self._retry_after_s = queue_timeout_s, retry_after_s
        self._leases = Leases(0) if sticky else Leases()
        self._has_room = True

    def reserve(self, session: str = "", elsewhere: bool = False) -> AbstractAsyncContextManager[Endpoint]:
        handle = self._handle.options(session_id=session) if self._sticky else self._handle
        wait_s = self._queue_timeout_s if self._has_room or not elsewhere else _GLANCE_S

        async def reserve() -> Lease:
            selecting = handle.choose_replica()
            selection = await self._selection(selecting, wait_s)
            return Lease(_endpoint(selection), lambda: selecting.__aexit__(None, None, None))

        return self._leases.hold(reserve)

    async def _selection(
        self, selecting: AbstractAsyncContextManager[ReplicaSelection], wait_s: float
    ) -> ReplicaSelection:
        try:
            async with asyncio.timeout(wait_s):
                selection = await selecting.__aenter__()
        except BackPressureError as error:
            raise OverloadedError(
                f"The queue of {self._label} is full; try again shortly.", None, None, self._retry_after_s
            ) from error
        except (TimeoutError, DeploymentUnavailableError) as error:
            self._has_room = False
            raise PoolUnavailableError(
                f"No replica of {self._label} is free or running; try again shortly.", None, None, self._retry_after_s
            ) from error
        self._has_room = True
        return selection

    def forget(self, endpoint: Endpoint) -> None:
        self._leases.forget(endpoint)

    async def facts(self) -> Mapping[str, Any]:
        selecting = self._handle.choose_replica()
        selection = await self._selection(selecting, self._queue_timeout_s)
        try:
            return dict(selection.replica_metadata["facts"])
        finally:
            await asyncio.shield(selecting.__aexit__(None, None, None))

    async def close(self) -> None:
        await self._leases.close()


def _endpoint(selection: ReplicaSelection) -> Endpoint:
    metadata = selection.replica_metadata
    host = metadata["http_host"]
    url = f"http://{f'[{host}]' if ':' in host else host}:{metadata['http_port']}"
    return Endpoint(url, metadata["http_key"], selection._slot_token or "")


class RemoteRoute:
    """A pool that is a URL; whoever runs it balances its load.

    Args:
        endpoint: Where it answers.
        facts: What the configuration says of it; nothing else is known.
    """

    def __init__(self, endpoint: Endpoint, facts: Mapping[str, Any]) -> None:
        self._endpoint, self._facts = endpoint, facts

    def reserve(self, session: str = "", elsewhere: bool = False) -> AbstractAsyncContextManager[Endpoint]:
        return nullcontext(self._endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        """There is no other to ask."""

    async def close(self) -> None:
        """Nothing is held."""

    async def facts(self) -> Mapping[str, Any]:
        return self._facts
