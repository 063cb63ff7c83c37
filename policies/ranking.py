"""Orders the allowed candidates by what the request gains there and what it costs the others. Never adds one; pure."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from policies.acceptance import Acceptance, AnswerLength
from policies.step_times import PREFILL_TOKENS_PER_S

# What a full pool is worth.
FULL = float("-inf")
# Share of the mean speed that a request's own time is worth, and how much better another pool must be to take the first
# one's place. Neither is tuned: any weight from 0.3 to 1 reached 0.959 of the oracle or more.
WEIGHT = 0.7
MARGIN = 0.05
# Where fewer than this share of all seats are taken, users are fewer than the engines could serve, and throughput is
# made by how fast each of them is: a request's own time is worth more, `ALONE` times the mean speed where nobody is.
# With 0.06 and more, latency at low load is that of a fixed order; with 0.08, a pool that recovers is found late.
EMPTY = 0.06
ALONE = 10.0


class PoolLoad:
    """The load of one pool, as far as this gateway replica knows it. Its step times are from `step_times`; `share` is
    this gateway replica's of all requests.

    Attributes:
        lengths: Sum of their tokens per step.
        per_engine: Requests on one engine.
        rate: Tokens per second of one engine.
        full: True if an engine has no seat for one more.
        next_step_s: Seconds of a step with one more request.
        slowed: Tokens per second that one more request costs the others on its engine.
        few: Requests up to which there are few: `EMPTY` of the seats.
        missing: Requests that there may be more until there are `few`; below zero beyond that.
    """

    __slots__ = ("_engines", "_others", "_others_lengths", "_seats", "_step_s", "few", "full", "lengths", "missing",
                 "next_step_s", "per_engine", "rate", "requests", "slowed")  # fmt: skip

    def __init__(self, step_s: Sequence[float], replicas: int = 1, share: float = 1.0) -> None:
        self.requests = 0
        self.lengths = 0.0
        self._others = self._others_lengths = 0.0
        self.change(step_s, replicas * share)

    def change(self, step_s: Sequence[float], engines: float) -> None:
        """Takes other step times, or another number of engines times this replica's share; the requests stay."""
        self._step_s = step_s
        self._seats = len(step_s) - 1
        self._engines = engines  # as many as the requests known here would fill
        self.few = EMPTY * self._seats * engines
        self._update()

    def faster(self, share: float) -> "PoolLoad":
        """Returns the same load on engines whose steps take this share of the time."""
        found = copy(self)
        found.change([share * step_s for step_s in self._step_s], self._engines)
        return found

    def merge(self, requests: float, lengths: float) -> None:
        """Takes the requests of other gateway replicas and the sum of their tokens per step."""
        self._others = requests
        self._others_lengths = lengths
        self._update()

    def begin(self, length: float) -> None:
        """Counts a request with so many tokens per step."""
        self.requests += 1
        self.lengths += length
        self._update()

    def end(self, length: float) -> None:
        """Counts the end of a request that was begun with the same length."""
        self.requests -= 1
        self.lengths = self.lengths - length if self.requests else 0.0
        self._update()

    def _update(self) -> None:
        # Once for each request that begins or ends: candidates are compared more often than that.
        taken = self.requests + self._others
        self.missing = self.few - taken
        self.per_engine = taken / self._engines
        batch = int(self.per_engine)
        self.full = batch >= self._seats
        step_s = self._step_s[self._seats if self.full else batch]
        self.next_step_s = step_s if self.full else self._step_s[batch + 1]
        self.rate = (self.lengths + self._others_lengths) / self._engines / step_s
        self.slowed = self.rate * (1.0 - step_s / self.next_step_s)


@dataclass(frozen=True, slots=True)
class RankedOption:
    """A candidate as it is compared with the others.

    Attributes:
        known: Tokens per step that such a request gets there.
    """

    pool: str
    load: PoolLoad
    known: Acceptance
    answers: AnswerLength

    @property
    def own(self) -> float:
        """Tokens per second that one more request gets; 0 if there is no seat."""
        return 0.0 if self.load.full else self.known.length / self.load.next_step_s

    @property
    def added(self) -> float:
        """Tokens per second that the engine gains by it, the slower steps of all others counted."""
        return 0.0 if self.load.full else self.own - self.load.slowed


# A prompt's tokens, the pool that knows its beginning, and the tokens of that beginning.
Prompt = tuple[int, str, int]


def price_of_time(options: Sequence[RankedOption]) -> float:
    """Returns the price of a request's own time in tokens per second, from the mean speed of all requests now."""
    requests = rate = missing = few = 0.0
    for each in options:
        load = each.load
        requests += load.per_engine
        rate += load.rate
        missing += load.missing
        few += load.few
    weight = WEIGHT
    if missing > 0.0:
        weight += (ALONE - WEIGHT) * missing / few
    return weight * rate / requests if requests else weight / options[0].load.next_step_s


def value(option: RankedOption, prompt: Prompt, price: float) -> float:
    """Returns what an option is worth for one more request; `FULL` if there is no seat.

    That is the share of its tokens that the request adds, the tokens that it costs others and the price of its own time
    subtracted. While the part of its prompt that is not cached is computed, all others stand still. The price is from
    `price_of_time`.
    """
    load = option.load
    if load.full:
        return FULL
    tokens, home, cached = prompt
    if option.pool == home:
        tokens = tokens - cached if tokens > cached else 0
    prefill_s = tokens / PREFILL_TOKENS_PER_S
    alone = 1.0 - (load.slowed + price) * load.next_step_s / option.known.length
    return alone - prefill_s * (load.rate + price) / option.answers.tokens


def ranked(options: Sequence[RankedOption], tiers: Sequence[int], prompt: Prompt) -> tuple[int, ...] | None:
    """Returns the options' numbers, best first; None if the first one stays first. Another option must be worth more
    than the first by a margin to take its place, and each stays behind all of a smaller tier.
    """
    price = price_of_time(options)
    places = []
    advantage = MARGIN
    for number, each in enumerate(options):
        places.append((tiers[number], -value(each, prompt, price) - advantage, number))
        advantage = 0.0
    places.sort()
    return tuple([place[2] for place in places]) if places[0][2] else None
