"""Leases for requests that wait, gathered: one call to the ledger at a time, for all that have come meanwhile."""

import asyncio
from collections.abc import Callable, Sequence

from serve.errors import SharedStateError
from serve.limits.holdings import Holdings
from serve.limits.messages import Ask, LedgerClient, Meter
from serve.limits.reservation import Line, amount_of

PATIENCE_S = 0.02  # the longest that a request waits for the ledger, and after which that is taken for gone


class LeaseRounds:
    """Asks the ledger for what slices lack, in rounds.

    Args:
        ledger: Is asked.
        holdings: Get what it gives.
        clock: Monotonic seconds.
        lost: Is told when the ledger does not answer.
    """

    def __init__(
        self,
        ledger: LedgerClient,
        holdings: Holdings,
        clock: Callable[[], float],
        lost: Callable[[SharedStateError], None],
    ) -> None:
        self._ledger = ledger
        self._holdings = holdings
        self._clock = clock
        self._lost = lost
        self._waiting: dict[Meter, list[Ask]] = {}
        self._next: asyncio.Future[None] | None = None
        self._called_s = 0.0  # when the ledger was asked last
        self._asking: asyncio.Task[None] | None = None

    async def ask(self, short: Sequence[Line], cost: float, timeout_s: float) -> None:
        """Asks for what is missing; returns when the ledger has answered, or is not going to.

        Args:
            short: The limits whose slices are too small.
            cost: Weighted tokens that the request needs.
            timeout_s: The longest to wait.
        """
        for held, _ in short:
            self._waiting.setdefault(held.meter, []).append(held.ask(amount_of(held, cost)))
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        answered = self._next
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_in_rounds())
        done, _ = await asyncio.wait({answered}, timeout=timeout_s)
        if not done and self._clock() - self._called_s >= PATIENCE_S:  # else the ledger was asked only a moment ago
            self._lost(SharedStateError("The ledger of limits does not answer."))

    async def _ask_in_rounds(self) -> None:
        while self._next is not None:
            waiting, self._waiting = self._waiting, {}
            answered, self._next = self._next, None
            asks = {meter: Ask.of_all(each) for meter, each in waiting.items()}
            self._called_s = self._clock()
            try:
                reply = await self._ledger.lease(self._holdings.replica, asks)
            except SharedStateError as error:
                self._lost(error)
            else:
                self._holdings.leased(reply, asks, self._clock())
            finally:
                answered.set_result(None)
