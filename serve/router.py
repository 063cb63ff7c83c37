"""From a pool to one of its replicas: Ray Serve's own request router picks it and reserves a slot there."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle, ReplicaSelection

from serve.errors import OverloadedError, PoolUnavailableError

log = logging.getLogger("ray.serve.specgate.router")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one replica answers. Never shown to a client.

    Attributes:
        url: Base URL, without `/v1`.
        key: Bearer token, or None.
    """

    url: str
    key: str | None


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

    async def facts(self) -> Mapping[str, Any]:
        """What a running replica says of itself; raises a `GatewayError` while none is up."""
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
        self._has_room = True

    @asynccontextmanager
    async def reserve(self, session: str = "", elsewhere: bool = False) -> AsyncIterator[Endpoint]:
        handle = self._handle.options(session_id=session) if self._sticky else self._handle
        wait_s = self._queue_timeout_s if self._has_room or not elsewhere else _GLANCE_S
        async with self._select(handle, wait_s) as selection:
            metadata = selection.replica_metadata
            host = metadata["http_host"]
            yield Endpoint(
                f"http://{f'[{host}]' if ':' in host else host}:{metadata['http_port']}", metadata["http_key"]
            )

    @asynccontextmanager
    async def _select(self, handle: DeploymentHandle, wait_s: float) -> AsyncIterator[ReplicaSelection]:
        selecting = handle.choose_replica()
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
        try:
            yield selection
        finally:
            # Shielded: a client that leaves cancels us here, and the slot must go back all the same.
            await asyncio.shield(selecting.__aexit__(None, None, None))

    async def facts(self) -> Mapping[str, Any]:
        async with self._select(self._handle, self._queue_timeout_s) as selection:
            return dict(selection.replica_metadata["facts"])


class RemoteRoute:
    """A pool that is a URL; whoever runs it balances its load.

    Args:
        endpoint: Where it answers.
        facts: What the configuration says of it; nothing else is known.
    """

    def __init__(self, endpoint: Endpoint, facts: Mapping[str, Any]) -> None:
        self._endpoint, self._facts = endpoint, facts

    @asynccontextmanager
    async def reserve(self, session: str = "", elsewhere: bool = False) -> AsyncIterator[Endpoint]:
        yield self._endpoint

    async def facts(self) -> Mapping[str, Any]:
        return self._facts
