"""Long work that holds nobody up: in pieces, of which the event loop does a few in each of its turns, however many have
one to do, or in a thread; and what is long.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from time import monotonic
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

LONG_BYTES = 64 * 1024  # of a whole answer, of which a single step can take more than some milliseconds
LONG_HELD_BYTES = 128 * 1024  # of a stream, waiting for a check; each read of more is a trip to a thread
LONG_BODY_BYTES = 256 * 1024  # of a request: to read it may take longer than others should wait
LONG_RAW_BYTES = 512 * 1024  # of requests and streams, in which little is what has to be looked at closely
PIECE_BYTES = 1024 * 1024  # copied at once: a thread would cost more
_SLICE_S = 0.004
_TURN_S = 0.005
_FEW, _FIRST_PIECES = 4, 16
_MOST_PIECES = 64  # of which one may take longer than those before

T = TypeVar("T")
P = ParamSpec("P")


class LoopTurns:
    """Lets those go on that wait for their next piece of work, in the order in which they came.

    `asyncio.sleep(0)` lets all of them go on at once: 250 streams with a piece each hold everybody else up for 50 ms.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._pieces = _FIRST_PIECES  # for one turn of the loop
        self._began_s = 0.0

    def call(self, begin: Callable[[], object]) -> None:
        """Calls what begins a piece of work when it is its turn, after whatever else the loop has to do now."""
        self._waiting.append(begin)
        if len(self._waiting) == 1:
            self._began_s = 0.0
            asyncio.get_running_loop().call_soon(self._let_go)

    async def next(self) -> None:
        """Returns when it is one's turn."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call(lambda: None if mine.done() else mine.set_result(None))  # done if who waited was cancelled
        await mine

    def _let_go(self) -> None:
        now_s = monotonic()
        if self._began_s:  # the last turn had all it was given to do
            fitting = self._pieces * _TURN_S / max(now_s - self._began_s, 1e-6)
            self._pieces = max(1, min(_MOST_PIECES, 2 * self._pieces, int(fitting)))
        self._began_s = now_s
        for _ in range(min(self._pieces, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._let_go)


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTurns] = WeakKeyDictionary()


def turns() -> LoopTurns:
    """Returns the turns of the running loop."""
    loop = asyncio.get_running_loop()
    found = _TURNS.get(loop)
    if found is None:
        found = _TURNS[loop] = LoopTurns()
    return found


async def turn() -> None:
    """Waits for the next turn of the running loop."""
    await turns().next()


async def in_slices(steps: Generator[None, None, T], *, aside: bool = False) -> T:
    """Runs a generator, which yields wherever it may pause, and returns its result; other tasks run after every few
    milliseconds. It runs aside, in a thread, if a step itself may be long.
    """
    if aside:
        return await asyncio.to_thread(at_once, steps)
    results: list[T] = []
    until = monotonic() + _SLICE_S
    for _ in _into(results, steps):
        if monotonic() > until:
            await turn()
            until = monotonic() + _SLICE_S
    return results[0]


def at_once(steps: Generator[None, None, T]) -> T:
    """Runs work that could pause to its end, and returns its result."""
    results: list[T] = []
    for _ in _into(results, steps):
        pass
    return results[0]


def _into(results: list[T], steps: Generator[None, None, T]) -> Iterator[None]:
    """Yields with the work, and adds its result at the end."""
    results.append((yield from steps))


class Burst:
    """Tells the first few who come at the same moment, and may begin at once, from a crowd that begins in turns.

    A moment is a turn of the loop: those who come one after the other are no crowd, however fast they are served.
    """

    def __init__(self) -> None:
        self._begun = 0

    def is_crowd(self) -> bool:
        """Counts one who begins; returns whether they should wait for their `turn` first."""
        self._begun += 1
        if self._begun == _FEW:  # before that, to ask the loop for its next turn would cost each of them more
            asyncio.get_running_loop().call_soon(self._end)
        return self._begun > _FIRST_PIECES

    def _end(self) -> None:
        self._begun = 0


async def beside(is_long: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Returns what a function returns; in a thread if it takes long."""
    return await asyncio.to_thread(work, *args, **kwargs) if is_long else work(*args, **kwargs)


def joined(parts: Iterable[bytes | memoryview]) -> bytes:
    """Returns parts as one, as `bytes.join` does.

    That lets other threads run while it copies a long result, but only if all parts are `bytes` themselves. So views of
    many bytes are copied in pieces first.
    """
    pieces: list[bytes] = []
    for part in parts:
        if type(part) is bytes:
            pieces.append(part)
        else:
            view = memoryview(part)
            pieces += [bytes(view[start : start + PIECE_BYTES]) for start in range(0, len(view), PIECE_BYTES)]
    return b"".join(pieces)
