"""The ledger as a small Ray actor on the head node, and the link to it.

Limits it learns from the replicas' reports; usage and the spending of months are in its file.
"""

from hashlib import sha256

from serve.config.rate_limits import StoreConfig
from serve.limits.book import UsageBook
from serve.limits.ledger import Ledger
from serve.shared.link import Link, link_to
from serve.shared.report import SETTLE_S

VERSION = 6  # of the messages and of where their classes stand: an older actor can't read them


class LedgerActor(Ledger):
    """The ledger of a cluster. Runs as a Ray actor; without Ray, a plain object does as well. Without a folder, usage
    is kept in memory; without a store, limits are this cluster's own.
    """

    def __init__(self, state_dir: str | None = None, settle_s: float = 0.0, store: StoreConfig | None = None) -> None:
        self._file = UsageBook(state_dir)
        self._store = None
        if store is not None:
            from serve.limits.store import RedisStore  # only here, as everybody else needs no client of Redis

            self._store = RedisStore(store, self._file.identity)
        super().__init__(self._file, settle_s, store=self._store)

    async def close(self) -> None:
        """Lets go of the file and the store."""
        self._file.close()
        if self._store is not None:
            await self._store.close()


def connect(application: str | None, state_dir: str | None, store: StoreConfig | None = None) -> Link:
    """Returns a link to the ledger of a Serve application; see `link_to` and `LedgerActor`."""
    name = f"ledger-v{VERSION}"
    if store is not None:  # another store, another actor; nobody asks the old one once its last replica has gone
        name = f"{name}-{sha256(repr(store).encode()).hexdigest()[:8]}"
    settle_s = 0.0 if application is None else SETTLE_S
    # The file is on the head node, whose death is the cluster's anyway.
    return link_to(application, name, LedgerActor, state_dir, settle_s, store, noun="ledger", on_head=True)
