"""A simulated engine in virtual time: seats, a queue, prefill with a prefix cache, and steps as long as their batch.

All running requests share the same steps, so that a request ends a fixed number of steps after it began. The engine
counts steps and jumps from one end to the next, however long that takes: an hour of traffic costs no more than its
requests.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from policies.load_model import PREFILL_TOKENS_PER_S, StepTimes

CACHED_TOKENS = 400_000  # of prefixes that one replica keeps


@dataclass(slots=True)
class Request:
    """One request.

    Attributes:
        kind: Its class.
        tokens: Of the answer.
        prompt: Tokens of the prompt.
        session: Its conversation; each turn repeats the prompt of the last one.
        arrived_s: When it arrived.
        first_s: When its first token was there.
        pool: Where it went.
        length: Tokens that it gets a step there.
    """

    kind: str
    tokens: int
    prompt: int
    session: int
    arrived_s: float
    first_s: float = 0.0
    pool: str = ""
    length: float = 1.0


class Engine:
    """One replica.

    Args:
        times: Step times.
        drafts: Draft length; 0 without speculation.
        seats: Sequences that run at the same time.
        prefixes: False if it keeps no prefixes.

    Attributes:
        running: Requests in the batch.
        waiting: Requests that wait for a seat.
        hits: Tokens of prompts that were cached, and all of them.
    """

    def __init__(self, times: StepTimes, drafts: int, seats: int, *, prefixes: bool = True) -> None:
        self.drafts = drafts
        self.seats = seats
        self.step_s: Sequence[float] = [times.at(batch, drafts) for batch in range(seats + 1)]
        self.running = 0
        self.waiting: deque[tuple[Request, float]] = deque()
        self.hits = [0, 0]
        self._prefixes: OrderedDict[int, int] = OrderedDict()
        self._cached = 0
        self._keeps = prefixes
        self._ends: list[tuple[float, int, Request]] = []
        self._steps = 0.0
        self._at_s = 0.0
        self._busy_until_s = 0.0
        self._number = 0

    def submit(self, request: Request, now_s: float, length: float) -> None:
        """Takes a request.

        Args:
            request: The request.
            now_s: The time.
            length: Tokens that it gets a step.
        """
        self._advance(now_s)
        if self.running < self.seats:
            self._start(request, length)
        else:
            self.waiting.append((request, length))

    def next_end_s(self) -> float:
        """Returns when the next request ends if none comes before; infinity if none runs."""
        if not self._ends:
            return float("inf")
        start_s = max(self._at_s, self._busy_until_s)
        return start_s + max(self._ends[0][0] - self._steps, 0.0) * self.step_s[self.running]

    def finish(self, now_s: float) -> Request:
        """Ends the request that is due now and returns it; the next one that waits takes its seat."""
        self._advance(now_s)
        steps, _, request = heapq.heappop(self._ends)
        self._steps = max(self._steps, steps)
        self.running -= 1
        if self.waiting:
            self._start(*self.waiting.popleft())
        return request

    def _advance(self, now_s: float) -> None:
        if self.running:
            self._steps += max(0.0, now_s - max(self._at_s, self._busy_until_s)) / self.step_s[self.running]
        self._at_s = now_s

    def _start(self, request: Request, length: float) -> None:
        missing = request.prompt - self._cached_part(request)
        begins_s = max(self._at_s, self._busy_until_s)
        self._busy_until_s = begins_s + missing / PREFILL_TOKENS_PER_S
        self.running += 1
        request.first_s = self._busy_until_s + self.step_s[self.running]
        self._number += 1
        steps = max(1.0, request.tokens / length)
        heapq.heappush(self._ends, (self._steps + steps, self._number, request))

    def _cached_part(self, request: Request) -> int:
        """Returns how many tokens of the prompt are cached, and caches all of it."""
        known = self._prefixes.pop(request.session, 0) if self._keeps else 0
        self.hits[0] += min(known, request.prompt)
        self.hits[1] += request.prompt
        if self._keeps:
            whole = request.prompt + request.tokens
            self._prefixes[request.session] = whole
            self._cached += whole - known
            while self._cached > CACHED_TOKENS:
                self._cached -= self._prefixes.popitem(last=False)[1]
        return min(known, request.prompt)
