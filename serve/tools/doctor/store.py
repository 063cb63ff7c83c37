"""Checks that the store that clusters share can be used from here."""

import asyncio
from typing import TYPE_CHECKING

from serve.config.gateway import GatewayConfig
from serve.errors import SharedStateError

if TYPE_CHECKING:
    from serve.limits.store import RedisStore


def try_store(config: GatewayConfig) -> tuple[str, str] | None:
    """Returns (level, what was found); None if no store is configured.

    It is never an error: where `doctor` runs need not be where the ledger does, and a cluster serves without its store.
    """
    store = config.rate_limits.store
    if store is None:
        return None
    if not config.counts_usage:
        return "warning", "rate_limits.store has no effect: limits are off, see rate_limits.enabled"
    from serve.limits.store import RedisStore  # only here: nobody else waits for a client of Redis

    return asyncio.run(_described(RedisStore(store)))


async def _described(store: "RedisStore") -> tuple[str, str]:
    try:
        name, forgets = await store.describe()
    except SharedStateError as error:
        return "warning", f"{error} Each cluster spends its last share of each limit until it does."
    finally:
        await store.close()
    if forgets:
        return "warning", f"{name} forgets limits when its memory is full: set its maxmemory-policy to noeviction"
    return "info", f"the store of limits answers from here: {name}"
