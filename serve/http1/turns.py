"""Work in pieces, of which the event loop does a few in each of its turns, however many streams have one to do."""

import asyncio
from collections import deque
from time import monotonic
from weakref import WeakKeyDictionary

_TURN_S = 0.008
_FIRST_PIECES = 16
_MOST_PIECES = 64  # of which one may take longer than those before


class LoopTurns:
    """Lets those go on that wait for their next piece of work, in the order in which they came.

    `asyncio.sleep(0)` lets all of them go on at once: 250 streams with a piece each hold everybody else up for 50 ms.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._pieces = _FIRST_PIECES  # for one turn of the loop
        self._began_s = 0.0

    async def next(self) -> None:
        """Returns when it is one's turn, after whatever else the loop has to do now."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            self._began_s = 0.0
            loop.call_soon(self._let_go)
        await mine

    def _let_go(self) -> None:
        now_s = monotonic()
        if self._began_s:  # the last turn had all it was given to do
            fitting = self._pieces * _TURN_S / max(now_s - self._began_s, 1e-6)
            self._pieces = max(1, min(_MOST_PIECES, 2 * self._pieces, int(fitting)))
        self._began_s = now_s
        for _ in range(min(self._pieces, len(self._waiting))):
            mine = self._waiting.popleft()
            if not mine.done():  # else who waited was cancelled
                mine.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._let_go)


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTurns] = WeakKeyDictionary()


async def turn() -> None:
    """Waits for the next turn of the running loop."""
    loop = asyncio.get_running_loop()
    turns = _TURNS.get(loop)
    if turns is None:
        turns = _TURNS[loop] = LoopTurns()
    await turns.next()
