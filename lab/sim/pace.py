"""The pace of a simulated engine's tokens: constant, or as fast as the batch that a request shares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from lab.sim.batch import Batch, SimSequence
from lab.sim.kv_cache import KvCache, Part
from lab.sim.response import SimResponse
from lab.sim.settings import SimSettings

_LAG_S = 0.1  # how late steps may be before lost time is given up; below that, they catch up


class Seat(Protocol):
    """A request's seat in the engine. Waiting in it ends with `ClientGoneError` if the client leaves.

    Attributes:
        cached: Tokens of the prompt that were cached.
    """

    cached: int

    async def prefill(self) -> None:
        """Waits until the prompt is computed."""
        ...

    async def steps(self, count: int) -> None:
        """Waits for so many steps."""
        ...


class Pace(Protocol):
    """Gives requests their seats.

    Attributes:
        kv: The KV memory; None if it is not simulated.
    """

    kv: KvCache | None

    def seat(
        self, response: SimResponse, prompt: Sequence[Part], answer: Part, steps: int
    ) -> AbstractAsyncContextManager[Seat]:
        """Waits for a seat, and holds it as long as the context lasts.

        Args:
            response: Tells whether the client is still there.
            prompt: The parts of the prompt.
            answer: The answer as a part of the conversation's next prompt.
            steps: Steps that the answer takes.
        """
        ...


def pace_of(settings: SimSettings) -> Pace:
    """Returns the pace of an engine."""
    return ConstantPace(settings) if settings.economics is None else BatchPace(settings)


class ConstantPace:
    """Every step takes the same time, whatever else runs."""

    def __init__(self, settings: SimSettings) -> None:
        self.kv: KvCache | None = None
        self._prefill_s = settings.prefill_ms / 1e3
        self._step_s = settings.step_ms / 1e3
        self._seats = asyncio.Semaphore(settings.max_num_seqs)

    @asynccontextmanager
    async def seat(
        self, response: SimResponse, prompt: Sequence[Part], answer: Part, steps: int
    ) -> AsyncIterator[Seat]:
        async with self._seats:
            yield _ConstantSeat(response, self._prefill_s, self._step_s)


class _ConstantSeat:
    def __init__(self, response: SimResponse, prefill_s: float, step_s: float) -> None:
        self.cached = 0
        self._response = response
        self._prefill_s = prefill_s
        self._step_s = step_s

    async def prefill(self) -> None:
        await self._response.pause(self._prefill_s)

    async def steps(self, count: int) -> None:
        await self._response.pause(count * self._step_s)


class BatchPace:
    """All sequences share the same steps, whose time depends on their number; prompts are computed between steps."""

    def __init__(self, settings: SimSettings) -> None:
        economics = settings.economics
        assert economics is not None
        self._batch = Batch(economics, settings.num_speculative_tokens, settings.max_num_seqs, economics.overcommit)
        self._overcommits = economics.overcommit > 1.0
        self.kv: KvCache | None = self._batch.kv
        self._seats: dict[SimSequence, _BatchSeat] = {}
        self._stepping: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def seat(
        self, response: SimResponse, prompt: Sequence[Part], answer: Part, steps: int
    ) -> AsyncIterator[Seat]:
        sequence = SimSequence(prompt, answer)
        seat = self._seats[sequence] = _BatchSeat(response, steps)
        self._batch.add(sequence)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step())
        try:
            await seat.admitted()
            seat.cached = sequence.cached
            yield seat
        finally:
            self._seats.pop(sequence, None)
            self._batch.remove(sequence)

    async def _step(self) -> None:
        """Runs the batch until it is empty, each step begun when the last one should have ended."""
        clock = asyncio.get_running_loop().time
        at = clock()
        while True:
            for sequence, prefill_s in self._batch.admitted():
                self._seats[sequence].begin()
                at += prefill_s
            if not self._batch.running:
                return
            at = max(at + self._batch.step_s, clock() - _LAG_S)
            await asyncio.sleep(max(0.0, at - clock()))
            for sequence, seat in list(self._seats.items()):
                if seat.step():
                    self._batch.remove(sequence)
            if self._overcommits:
                self._make_room()

    def _make_room(self) -> None:
        """Preempts the newest sequences until what all others have grown to fits into the memory."""
        running = [(sequence, seat) for sequence, seat in self._seats.items() if seat.runs]
        used = [seat.grown(sequence) for sequence, seat in running]
        while len(running) > 1 and sum(used) > self._batch.kv.tokens:
            used.pop()
            sequence, seat = running.pop()
            seat.pause()
            self._batch.preempt(sequence)


class _BatchSeat:
    """Counts the steps that were taken, and wakes the request at the one that it waits for.

    Attributes:
        runs: False in the queue.
    """

    def __init__(self, response: SimResponse, steps: int) -> None:
        self.cached = 0
        self.runs = False
        self._response = response
        self._left = steps
        self._taken = -1  # has not begun
        self._awaited = 0
        self._waiter: asyncio.Future[None] | None = None

    async def admitted(self) -> None:
        """Waits for the seat."""
        await self._until(0)

    async def prefill(self) -> None:
        """Does nothing: the first step comes after it."""

    async def steps(self, count: int) -> None:
        await self._until(self._awaited + count)

    def step(self) -> bool:
        """Counts a step, if the sequence runs; returns True if it was the last one."""
        if not self.runs:
            return False
        self._left -= 1
        self._reach(self._taken + 1)
        self.runs = self._left > 0
        return not self.runs

    def begin(self) -> None:
        """Runs the sequence: from its first step, or from where it was preempted."""
        self.runs = True
        self._reach(max(self._taken, 0))

    def pause(self) -> None:
        """Stops it until it begins again."""
        self.runs = False

    def grown(self, sequence: SimSequence) -> float:
        """Returns the tokens that it has in memory now."""
        answer = sum(part.tokens for part in sequence.parts) - sequence.prompt_tokens
        return sequence.prompt_tokens + answer * self._taken / (self._taken + self._left)

    def _reach(self, taken: int) -> None:
        self._taken = taken
        if self._waiter is not None and taken >= self._awaited and not self._waiter.done():
            self._waiter.set_result(None)

    async def _until(self, step: int) -> None:
        self._awaited = step
        self._waiter = asyncio.get_running_loop().create_future()
        self._reach(self._taken)
        await self._response.until(self._waiter)
