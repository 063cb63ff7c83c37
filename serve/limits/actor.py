"""The ledger that all gateway replicas share, as a small Ray actor on the head node, and the clients that reach it.

The actor is detached, so it outlives the gateway's replicas and redeployments. If it dies, Ray restarts it. Limits it
learns from the replicas' reports; usage and the spending of months are in its file.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

from serve.config.rate_limits import StoreConfig
from serve.limits.book import UsageBook
from serve.limits.ledger import SETTLE_S, Ledger
from serve.limits.messages import Ask, LedgerClient, Meter, Reply, Report
from serve.shared_actor import SharedActor

VERSION = 2  # of the messages


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
        store: As of `connect`.
    """

    def __init__(self, application: str, state_dir: str | None, store: StoreConfig | None = None) -> None:
        name = f"{application}-ledger-v{VERSION}"
        # The file is on the head node, whose death is the cluster's anyway.
        if store is None:
            self._actor = SharedActor(name, LedgerActor, state_dir, noun="ledger", on_head=True)
        else:
            from serve.limits.store.ledger import SharedLedger  # only here, as everybody else needs no client of Redis

            # Another store, another actor; the old one falls silent when its last replica has gone.
            name = f"{name}-{sha256(repr(store).encode()).hexdigest()[:8]}"
            self._actor = SharedActor(name, SharedLedger, state_dir, store, noun="ledger", on_head=True)

    async def sync(self, report: Report) -> Reply:
        return await self._actor.call("sync", report)  # type: ignore[no-any-return]

    async def lease(self, replica: str, asks: Mapping[Meter, Ask]) -> Reply:
        return await self._actor.call("lease", replica, asks)  # type: ignore[no-any-return]

    async def usage(
        self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        return await self._actor.call("usage", by, since, until)  # type: ignore[no-any-return]


def connect(application: str | None, state_dir: str | None, store: StoreConfig | None = None) -> LedgerClient:
    """Returns a client of the ledger to report to.

    Args:
        application: Name of the Serve application; None outside Ray, where this replica has a ledger of its own.
        state_dir: Folder of the usage; None keeps it in memory.
        store: Shares the limits among clusters; None: they are this cluster's own.
    """
    if application:
        return RayLedger(application, state_dir, store)
    if store is not None:
        from serve.limits.store.ledger import SharedLedger

        return SharedLedger(state_dir, store, 0.0)
    return LocalLedger(LedgerActor(state_dir, 0.0))
