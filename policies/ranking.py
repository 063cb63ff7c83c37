"""Orders the allowed candidates by what the request gains there and what it costs the others. Never adds one; pure."""

from collections.abc import Sequence
from typing import NamedTuple

from policies.decision import Candidate, Decision
from policies.load_model import StepTimes

# Decisions whose first candidate was chosen for a reason that load must not undo.
_KEPT = frozenset({"canary", "quarantine-probe", "reference-sample"})
# What a full pool is worth.
FULL = float("-inf")
# Share of the mean speed that a request's own time is worth (`price_of_time`), and how much better another pool must be
# to take the first one's place. Neither is tuned: any weight from 0.3 to 1 does about as well in bench.goodput.
WEIGHT = 0.7
MARGIN = 0.05


class PoolLoad:
    """The load of one pool, as far as this gateway replica knows it.

    Args:
        step_s: From `step_times`.
        replicas: Engines in the pool.
        share: This gateway replica's share of all requests.

    Attributes:
        requests: Requests of this gateway replica in the pool.
        lengths: Sum of their tokens per step.
        per_engine: Requests on one engine.
        rate: Tokens per second of one engine.
        step_s: Seconds of a step by batch.
    """

    __slots__ = ("_engines", "_others", "_others_lengths", "lengths", "per_engine", "rate", "requests", "seats",
                 "step_s")  # fmt: skip

    def __init__(self, step_s: Sequence[float], replicas: int = 1, share: float = 1.0) -> None:
        self.requests = 0
        self.lengths = 0.0
        self._others = self._others_lengths = 0.0
        self.change(step_s, replicas * share)

    def change(self, step_s: Sequence[float], engines: float) -> None:
        """Takes other step times, or another number of engines times this replica's share; the requests stay."""
        self.step_s = step_s
        self.seats = len(step_s) - 1
        self._engines = engines  # as many as the requests known here would fill
        self._update()

    def hear(self, requests: float, lengths: float) -> None:
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
        self.per_engine = (self.requests + self._others) / self._engines
        self.rate = (
            (self.lengths + self._others_lengths) / self._engines / self.step_s[min(int(self.per_engine), self.seats)]
        )


def step_times(times: StepTimes, drafts: int, seats: int) -> tuple[float, ...]:
    """Returns the seconds of one step of one replica, by the number of sequences in the batch, from 0 to its seats.

    Args:
        times: The engine's step times.
        drafts: Draft length; 0 without speculation.
        seats: Sequences that one replica runs at most.
    """
    return tuple(times.at(batch, drafts) for batch in range(seats + 1))


class Worth(NamedTuple):
    """What a pool is worth for one more request.

    Attributes:
        value: What pools are ordered by: the share of its tokens that the request adds, the tokens that it costs others
            and the price of its own time subtracted. `FULL` if the pool is full.
        own: Tokens per second that the request gets.
        added: Tokens per second that its engine gains, the slower steps of all others counted.
    """

    value: float
    own: float
    added: float


_NONE = Worth(FULL, 0.0, 0.0)


def price_of_time(loads: Sequence[PoolLoad], weight: float) -> float:
    """Returns the price of a request's own time in tokens per second: a share of the mean speed of all requests now.

    Args:
        loads: Of the pools that may serve the request.
        weight: That share. With 0, only the throughput of all counts.
    """
    requests = rate = 0.0
    for load in loads:
        requests += load.per_engine
        rate += load.rate
    return weight * rate / requests if requests else weight / loads[0].step_s[0]


def worth(load: PoolLoad, length: float, price: float, prefill_s: float = 0.0, answer_tokens: float = 300.0) -> Worth:
    """Returns what a pool is worth for one more request.

    Args:
        load: The pool's load.
        length: Tokens per step of the request there.
        price: From `price_of_time`.
        prefill_s: Time that the pool needs for the part of the prompt that it has not cached; all others stand still.
        answer_tokens: Expected tokens of the answer.
    """
    batch = int(load.per_engine)
    if batch >= load.seats:
        return _NONE
    step_s = load.step_s[batch + 1]
    own = length / step_s
    added = load.rate * (load.step_s[batch] / step_s - 1.0) + own
    return Worth((added - price) / own - prefill_s * (load.rate + price) / answer_tokens, own, added)


def may_rank(decision: Decision) -> bool:
    """Returns False if there is nothing to order, or the first candidate has its place for a reason of its own."""
    if len(decision.candidates) < 2:
        return False
    for reason in decision.reasons:  # noqa: SIM110 - half the time of all() with a generator
        if reason.advisory in _KEPT:
            return False
    return True


def reordered(
    candidates: Sequence[Candidate], worths: Sequence[Worth], margin: float, last: frozenset[str] = frozenset()
) -> list[Candidate] | None:
    """Returns the very same candidates in another order; None if the first one stays first.

    A candidate under suspicion never gets before one that is not.

    Args:
        candidates: As `decide` ordered them.
        worths: Of each candidate.
        margin: By how much another one must be worth more than the first to take its place.
        last: Pools that stay behind all others, such as canaries.
    """
    first = candidates[0]
    threshold = worths[0].value + margin
    better = False
    for worth in worths:
        if worth.value > threshold:
            better = True
    if not better:
        return None

    def place(number: int) -> tuple[bool, bool, float]:
        candidate = candidates[number]
        suspected = candidate.optimistic and not first.optimistic
        return suspected, candidate.pool in last, -(worths[number].value if number else threshold)

    order = sorted(range(len(candidates)), key=place)
    return [candidates[number] for number in order] if order[0] else None
