"""One ledger's conversation with the store, in the background: one message at a time, sent until it is answered."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from serve.errors import SharedStateError
from serve.limits.messages import Ask, Meter
from serve.limits.store.advances import Advances
from serve.limits.store.messages import Message, Store
from serve.limits.store.spending import SharedSpending

log = logging.getLogger("ray.serve.specgate.limits")

PERIOD_S = 1.0
PATIENCE_S = 0.01  # for what a request needs at once: half of what its replica waits for the ledger


class Link:
    """Reports to the store every second, and asks at once for what has run out.

    Args:
        store: Reaches it.
        advances: What the cluster holds of it.
        spending: What months have cost, here and elsewhere.
        clock: Monotonic seconds.
    """

    def __init__(
        self, store: Store, advances: Advances, spending: SharedSpending, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._advances = advances
        self._spending = spending
        self._clock = clock
        self._answered_s = clock()
        self._asks: dict[Meter, list[Ask]] = {}
        self._round: asyncio.Future[None] | None = None
        self._wanted = asyncio.Event()
        self._away = False

    @property
    def age_s(self) -> float:
        """Seconds since the store's last answer; since the start if there was none."""
        return self._clock() - self._answered_s

    async def run(self, needed: Callable[[], bool]) -> None:
        """Reports every second, and asks in between, for as long as somebody needs it."""
        while needed():
            await self.report()
            next_s = self._clock() + PERIOD_S
            while (left_s := next_s - self._clock()) > 0:
                try:
                    async with asyncio.timeout(left_s):
                        await self._wanted.wait()
                except TimeoutError:
                    break
                await self._ask()

    async def report(self) -> None:
        """Tells the store how things stand, after what it has not answered yet."""
        if await self._settled():
            await self._exchange(self._advances.report(self._spending.own(), self._clock()))

    async def fetch(self, asks: Mapping[Meter, Ask]) -> None:
        """Gets what is needed at once, as far as it is there; does not wait for a store that is slow or away."""
        missing = self._advances.short(asks, self._clock())
        if not missing or self._away:
            return
        for meter, ask in missing.items():
            self._asks.setdefault(meter, []).append(ask)
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
        self._wanted.set()
        done, _ = await asyncio.wait({self._round}, timeout=PATIENCE_S)
        if not done:
            self._advances.improvise(missing, self._clock())

    async def _ask(self) -> None:
        """Asks for what requests are waiting for, all that have come since the last answer at once."""
        asks, self._asks = self._asks, {}
        answered, self._round = self._round, None
        self._wanted.clear()
        try:
            if await self._settled():
                together = {meter: Ask.of_all(each) for meter, each in asks.items()}
                await self._exchange(self._advances.ask(together, self._clock()))
        finally:
            if answered is not None:
                answered.set_result(None)

    async def _settled(self) -> bool:
        """Returns True once everything that was sent is answered."""
        return self._advances.pending is None or await self._exchange(self._advances.pending)

    async def _exchange(self, message: Message) -> bool:
        """Sends a message; returns True if it was answered."""
        try:
            answer = await self._store.exchange(message)
        except SharedStateError as error:
            if not self._away:
                log.warning("%s Until it does, this cluster spends its last share of each limit.", error)
            self._away = True
            self._advances.lost(self._clock())
            return False
        self._advances.answered(answer, self._clock())
        self._spending.learn(answer.spent)
        self._answered_s = self._clock()
        if self._away:
            log.warning("the store of limits is back")
        self._away = False
        return True
