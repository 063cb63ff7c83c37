"""Reserves a slot in the best pool that has one, without waiting for a full pool beside an idle one."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from policies.decide import slot_order
from serve.errors import GatewayError
from serve.routing.fair_queue import Asker
from serve.routing.pool import Affinity, Endpoint, Hold, Pool


class Slot(NamedTuple):
    """A reserved slot.

    Attributes:
        number: Place of its pool among those that were asked.
        refused: Places of the pools that failed to reserve one, such as for a full queue.
    """

    number: int
    endpoint: Endpoint
    hold: Hold
    refused: frozenset[int] = frozenset()


async def first_free(pools: Sequence[Pool], affinity: Affinity, asker: Asker, keep: Callable[[Hold], object]) -> Slot:
    """Reserves a slot in the first pool that offers one.

    Pools are asked in `slot_order`, the next one when the last has had its head start. A pool that was asked is asked
    on: whichever is first serves the request. `pools` are best first, none twice, at least two. `keep` gets the hold on
    the slot as soon as there is one, to end it.

    Raises:
        GatewayError: No pool has a slot; the error of the last one.
    """
    race = _Race(pools, affinity, asker)
    try:
        number, endpoint, hold = await race.run()
        keep(hold)
    finally:
        await asyncio.shield(race.withdraw())
    return Slot(number, endpoint, hold, frozenset(race.errors))


class _Race:
    """Reservations in several pools, of which the first one counts."""

    def __init__(self, pools: Sequence[Pool], affinity: Affinity, asker: Asker) -> None:
        self._pools = pools
        self._affinity = affinity
        self._asker = asker
        self._tasks: dict[asyncio.Task[Endpoint], tuple[int, Hold]] = {}
        self.errors: dict[int, GatewayError] = {}

    async def run(self) -> tuple[int, Endpoint, Hold]:
        """Returns the winner's number, its endpoint, and the hold on its slot."""
        order = slot_order([pool.full for pool in self._pools])
        for number in order[:-1]:
            self._ask(number)
            pool = self._pools[number]
            winner = await self._winner(0.0 if pool.full else pool.head_start_s, number)
            if winner is not None:
                return winner
        self._ask(order[-1])
        winner = await self._winner(None)
        if winner is None:
            raise self.errors[max(self.errors)]
        return winner

    def _ask(self, number: int) -> None:
        hold = self._pools[number].reserve(self._affinity, self._asker)
        self._tasks[asyncio.ensure_future(hold.__aenter__())] = (number, hold)

    async def _winner(self, timeout_s: float | None, newest: int | None = None) -> tuple[int, Endpoint, Hold] | None:
        """Returns the first pool that has a slot; None after a while, or if all failed, or the newest one did."""
        while self._tasks and newest not in self.errors:
            done, _ = await asyncio.wait(self._tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return None
            for task in sorted(done, key=lambda task: self._tasks[task][0]):
                number, hold = self._tasks.pop(task)
                try:
                    return number, task.result(), hold
                except GatewayError as error:
                    self.errors[number] = error
        return None

    async def withdraw(self) -> None:
        """Withdraws the reservations that are not needed, and gives back those that succeeded all the same."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task, (_, hold) in self._tasks.items():
            if not task.cancelled() and task.exception() is None:
                hold.turn.undo()
                await hold.__aexit__(None, None, None)
