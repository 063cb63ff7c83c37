"""Leases for requests that wait, gathered: one call to the ledger at a time, for all that have come meanwhile."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from serve.errors import SharedStateError
from serve.limits.holdings import Holdings
from serve.limits.messages import Ask, LedgerClient, Meter
from serve.limits.reservation import Line, amount_of

PATIENCE_S = 0.02  # of silence, after which the ledger is taken for gone


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
        self._asking: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[None]] = set()

    async def ask(self, short: Sequence[Line], cost: float) -> None:
        """Asks for what is missing; returns when the ledger has answered, or is not going to.

        Args:
            short: The limits whose slices are too small.
            cost: Weighted tokens that the request needs.
        """
        for held, _ in short:
            self._waiting.setdefault(held.meter, []).append(held.ask(amount_of(held, cost)))
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        answered = self._next
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_in_rounds())
        await asyncio.wait({answered})  # which is everybody's, so that no request that is cancelled may take it along

    async def _ask_in_rounds(self) -> None:
        while self._next is not None:
            asks = {meter: Ask.of_all(each) for meter, each in self._waiting.items()}
            self._waiting = {}
            answered, self._next = self._next, None
            try:
                if not self._holdings.alone:
                    await self._ask(asks)
            finally:
                answered.set_result(None)

    async def _ask(self, asks: Mapping[Meter, Ask]) -> None:
        """Asks once. Nobody waits any longer for a ledger that is silent; what it says later counts all the same."""
        call = asyncio.create_task(self._call(asks))
        for _ in range(2):  # in two parts: where the event loop was held all the time, the answer may be there by now
            await asyncio.wait({call}, timeout=PATIENCE_S / 2)
        if not call.done():
            self._late.add(call)
            call.add_done_callback(self._late.discard)
            self._lost(SharedStateError("The ledger of limits does not answer."))

    async def _call(self, asks: Mapping[Meter, Ask]) -> None:
        try:
            reply = await self._ledger.lease(self._holdings.replica, asks)
        except SharedStateError as error:
            self._lost(error)
        else:
            self._holdings.leased(reply, asks, self._clock())
