"""The ledger that all gateway replicas share, as a small Ray actor on the head node, and the clients that reach it.

The actor is detached, so it outlives the gateway's replicas and redeployments. If it dies, Ray restarts it. Limits it
learns from the replicas' reports; usage and the spending of months are in its file.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import ray
from ray.exceptions import RayError

from serve.errors import SharedStateError
from serve.limits.book import UsageBook
from serve.limits.ledger import SETTLE_S, Ledger
from serve.limits.messages import Ask, LedgerClient, Meter, Reply, Report

VERSION = 1
_NAMESPACE = "specgate"
_CALL_TIMEOUT_S = 5.0
_HEAD = "node:__internal_head__"
_HEAD_SHARE = 0.001


class LedgerActor:
    """The shared state. Runs as a Ray actor; without Ray, a plain object does as well.

    Args:
        state_dir: Folder of the usage; None keeps it in memory.
        settle_s: As of `Ledger`.
    """

    def __init__(self, state_dir: str | None = None, settle_s: float = SETTLE_S) -> None:
        self._book = UsageBook(state_dir)
        self._ledger = Ledger(self._book, settle_s)

    def sync(self, report: Report) -> Reply:
        """Takes a replica's report."""
        return self._ledger.sync(report)

    def lease(self, replica: str, asks: Mapping[Meter, Ask]) -> Reply:
        """Gives a replica what it needs at once."""
        return self._ledger.lease(replica, asks)

    def usage(
        self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Returns sums of usage; see `UsageBook.usage`."""
        return self._book.usage(by, since, until)


class LocalLedger:
    """The ledger within this process, for a gateway without Ray that has one replica only.

    Args:
        actor: The state.
    """

    def __init__(self, actor: LedgerActor) -> None:
        self._actor = actor

    async def sync(self, report: Report) -> Reply:
        return self._actor.sync(report)

    async def lease(self, replica: str, asks: Mapping[Meter, Ask]) -> Reply:
        return self._actor.lease(replica, asks)

    async def usage(
        self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        return self._actor.usage(by, since, until)


class RayLedger:
    """The ledger in the Ray cluster, started by the first replica that needs it.

    Args:
        application: Name of the Serve application: each has its own ledger.
        state_dir: As of `LedgerActor`.
    """

    def __init__(self, application: str, state_dir: str | None) -> None:
        # The version is in the name: a detached actor runs the code that it was started with.
        self._name = f"{application}-ledger-v{VERSION}"
        self._state_dir = state_dir
        self._actor: Any = None

    async def sync(self, report: Report) -> Reply:
        return await self._call("sync", report)  # type: ignore[no-any-return]

    async def lease(self, replica: str, asks: Mapping[Meter, Ask]) -> Reply:
        return await self._call("lease", replica, asks)  # type: ignore[no-any-return]

    async def usage(
        self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        return await self._call("usage", by, since, until)  # type: ignore[no-any-return]

    async def _call(self, method: str, *args: Any) -> Any:
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                if self._actor is None:
                    self._actor = await asyncio.to_thread(self._find_or_start)
                return await getattr(self._actor, method).remote(*args)
        except (RayError, TimeoutError) as error:
            self._actor = None
            raise SharedStateError(
                "The ledger that the gateway's replicas share can't be reached; try again shortly.", None, None, 1.0
            ) from error

    def _find_or_start(self) -> Any:
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "lifetime": "detached", "get_if_exists": True}
        if _HEAD in ray.cluster_resources():  # the file is there, and the head's death is the cluster's anyway
            options["resources"] = {_HEAD: _HEAD_SHARE}
        named = ray.remote(LedgerActor).options(name=self._name, namespace=_NAMESPACE, **options)
        return named.remote(self._state_dir)


def connect(application: str | None, state_dir: str | None) -> LedgerClient:
    """Returns a client of the ledger to report to.

    Args:
        application: Name of the Serve application; None outside Ray, where this replica has a ledger of its own.
        state_dir: Folder of the usage; None keeps it in memory.
    """
    return RayLedger(application, state_dir) if application else LocalLedger(LedgerActor(state_dir, 0.0))
