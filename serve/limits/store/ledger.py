"""The ledger of a cluster that shares its limits with others: the same one, with a store behind it."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import uuid4

from serve.config.rate_limits import StoreConfig
from serve.limits.book import UsageBook
from serve.limits.ledger import SETTLE_S, Ledger
from serve.limits.messages import Ask, Meter, Reply, Report
from serve.limits.store.advances import Advances
from serve.limits.store.client import RedisStore
from serve.limits.store.link import Link
from serve.limits.store.messages import Store
from serve.limits.store.spending import SharedSpending
from serve.limits.store.supply import prepaid_account

_SILENT_S = 30.0

log = logging.getLogger("ray.serve.specgate.limits")


class SharedLedger:
    """The state. Runs as a Ray actor; without Ray, it is its own client.

    Args:
        state_dir: Folder of the usage, which is this cluster's own; None keeps it in memory.
        config: Where the store is.
        settle_s: As of `Ledger`.
        store: Replaces the one that the configuration names.
    """

    def __init__(
        self, state_dir: str | None, config: StoreConfig, settle_s: float = SETTLE_S, store: Store | None = None
    ) -> None:
        self._book = UsageBook(state_dir)
        spending = SharedSpending(self._book)
        advances = Advances(uuid4().hex, config.clusters)
        self._ledger = Ledger(spending, settle_s, opened=partial(prepaid_account, advances))
        self._store = store or RedisStore(config)
        self._link = Link(self._store, advances, spending)
        self._conversation: asyncio.Task[None] | None = None
        self._heard_s = 0.0

    async def sync(self, report: Report) -> Reply:
        """Takes a replica's report."""
        self._heard_s = time.monotonic()
        if self._conversation is None or self._conversation.done():
            self._conversation = asyncio.create_task(self._link.run(self._needed))
            self._conversation.add_done_callback(_log_failure)
        return replace(self._ledger.sync(report), store_age_s=self._link.age_s)

    async def lease(self, replica: str, asks: Mapping[Meter, Ask]) -> Reply:
        """Gives a replica what it needs at once; waits for the store for 10 ms at most."""
        await self._link.fetch(asks)
        return self._ledger.lease(replica, asks)

    async def usage(
        self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Returns sums of this cluster's usage; see `UsageBook.usage`."""
        return self._book.usage(by, since, until)

    async def close(self) -> None:
        """Ends the conversation with the store."""
        if self._conversation is not None:
            self._conversation.cancel()
            await asyncio.gather(self._conversation, return_exceptions=True)
        await self._store.close()

    def _needed(self) -> bool:
        """True while replicas report; a ledger that they have left, because the store is another one, falls silent."""
        return time.monotonic() - self._heard_s < _SILENT_S


def _log_failure(conversation: asyncio.Task[None]) -> None:
    """Logs why a conversation ended; the next report begins another one, with what was not answered."""
    if not conversation.cancelled() and (error := conversation.exception()) is not None:
        log.error("the conversation with the store of limits ended: %r", error, exc_info=error)
