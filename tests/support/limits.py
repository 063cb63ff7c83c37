"""Ways to a ledger of limits that a test can cut, slow down or lose answers on."""

from collections.abc import Awaitable, Callable
from typing import Any

from serve.errors import SharedStateError
from serve.limits.book import UsageBook
from serve.limits.ledger import Ledger
from serve.shared.link import LocalLink


class LedgerLink:
    """A ledger in another process.

    Args:
        ledger: The ledger; None while it is dead.
        on_the_way: What happens before an answer is there.

    Attributes:
        calls: So far.
    """

    def __init__(self, ledger: Ledger | None = None, on_the_way: Callable[[], Awaitable[object]] | None = None) -> None:
        self.ledger = ledger or Ledger(UsageBook(), 0.0)
        self.is_dead = False
        self.on_the_way = on_the_way
        self.calls = 0

    async def call(self, method: str, *arguments: Any) -> Any:
        self.calls += 1
        if self.is_dead:
            raise SharedStateError("The ledger is away.")
        result = await LocalLink(self.ledger).call(method, *arguments)
        if self.on_the_way is not None:
            await self.on_the_way()
        return result
