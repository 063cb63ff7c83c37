"""The load of all pools as one gateway replica sees it: requests in flight, and what drafters accept."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from policies import Candidate, Decision, Policy, Reason, RequestFeatures, in_order
from policies.acceptance import NOTHING, Acceptance
from policies.classes import BIT, class_of
from policies.load_model import PREFILL_TOKENS_PER_S, PUBLISHED, prior_length
from policies.ranking import MARGIN, WEIGHT, PoolLoad, Worth, may_rank, price_of_time, reordered, step_times, worth
from policies.step_model import StepModel
from serve.config.gateway import GatewayConfig
from serve.config.seats import engine_seats
from serve.load.report import LoadReport, PoolKey
from serve.load.sent import Place, Sent, Table

log = logging.getLogger("ray.serve.specgate.load")

_CONVERSATIONS = 8192
_LEARNED = 1024  # pools x classes: callers choose the classes
_BYTES_PER_TOKEN = 4


class LiveLoad:
    """The load of all pools, and candidates ordered by it.

    Args:
        config: Models, pools and `policy.load`.
        policy: Says how many tokens each pool drafts.
        gateways: Gateway replicas; each has about its share of all requests, unless the others tell.
        clock: Returns seconds.

    Attributes:
        loads: By model and pool.
        routes: True if candidates are put into another order, not only counted.
        moves: Requests that got another first candidate, by (model, from, to); in mode `observe`, would have got it.
    """

    def __init__(
        self, config: GatewayConfig, policy: Policy, gateways: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.loads: dict[PoolKey, PoolLoad] = {}
        self.moves: dict[tuple[str, str, str], int] = {}
        self.routes = config.policy.load == "route"
        self._share = 1.0 / gateways
        self._seats: dict[PoolKey, int] = {}
        self._engines: dict[PoolKey, int] = {}
        self._tables: dict[PoolKey, Table] = {}
        for name, model, pool, settings in config.each_pool():
            self._seats[name, pool] = engine_seats(model, pool) or settings.max_ongoing_requests
            self._engines[name, pool] = settings.replicas
        self._drafts: dict[PoolKey, int] = {}
        self._canaries: dict[str, frozenset[str]] = {}
        self._learned: OrderedDict[tuple[str, str, str], Acceptance] = OrderedDict()
        self._homes: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()
        self._steps: dict[PoolKey, StepModel] = {}
        self._heard: LoadReport | None = None
        self._collapsed: set[tuple[str, str, str]] = set()
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Takes the draft lengths and canaries of another policy; what is counted and learned stays."""
        for facts in policy.facts:
            key = (facts.model, facts.pool)
            self._drafts[key] = (facts.num_speculative_tokens or 0) if facts.speculative else 0
            self._size(key)
        self._canaries = {name: frozenset(model.canaries) for name, model in policy.models.items()}

    def set_engines(self, key: PoolKey, engines: int) -> None:
        """Says how many engines of a pool are running; 0 if unknown."""
        if engines and engines != self._engines[key]:
            self._engines[key] = engines
            self._size(key)

    def ordered(
        self, decision: Decision, features: RequestFeatures, size_bytes: int, *, count: bool = True
    ) -> Decision:
        """Returns the decision with its candidates in the order of what they are worth now.

        In mode `observe` the decision stays as it is, and the difference is only counted.

        Args:
            decision: From `decide`.
            features: Of the request.
            size_bytes: Of its body.
            count: False if the request is not going to be sent.
        """
        if features.preference or not may_rank(decision):
            return decision
        worths = self._worths(decision, features.conversation_key, size_bytes)
        order = reordered(decision.candidates, worths, MARGIN, self._canaries[decision.model])
        if order is None:
            return decision
        first, best = decision.candidates[0], order[0]
        move = (decision.model, first.pool, best.pool)
        if count:
            self.moves[move] = self.moves.get(move, 0) + 1
        if not self.routes:
            return decision
        here, there = worths[0], worths[decision.candidates.index(best)]
        summary = (
            f"{best.pool} before {first.pool}: {there.own:.0f} tokens/s instead of {here.own:.0f} for this request, "
            f"{there.added:+.0f} instead of {here.added:+.0f} for all"
        )
        return in_order(decision, order, Reason("load", "inform", summary, "operator"))

    def figures(self, decision: Decision, features: RequestFeatures, size_bytes: int) -> list[dict[str, Any]]:
        """Returns what each candidate of a decision is worth for the request now, for people.

        Args:
            decision: From `decide`.
            features: Of the request.
            size_bytes: Of its body.
        """
        rows = []
        for candidate, found in zip(
            decision.candidates, self._worths(decision, features.conversation_key, size_bytes), strict=True
        ):
            load = self.loads[decision.model, candidate.pool]
            learned = self._acceptance(decision, candidate)
            rows.append(
                {
                    "pool": candidate.pool,
                    "speculative": candidate.speculative,
                    "requests_per_engine": round(load.per_engine, 2),
                    "tokens_per_step": round(learned.length, 3),
                    "answers": learned.answers,
                    "full": found.own == 0.0,
                    "own_tokens_per_s": round(found.own, 1),
                    "added_tokens_per_s": round(found.added, 1),
                    "value": None if found.own == 0.0 else round(found.value, 3),
                }
            )
        return rows

    def begin(self, decision: Decision, features: RequestFeatures, candidate: Candidate, size_bytes: int) -> Sent:
        """Counts a request on its way to a candidate.

        Args:
            decision: On the request.
            features: Of the request.
            candidate: Where it goes.
            size_bytes: Of its body.
        """

        def place(candidate: Candidate) -> Place:
            key = (decision.model, candidate.pool)
            if features.conversation_key:
                self._remember((decision.model, features.conversation_key), candidate.pool, size_bytes)
            return Place(self.loads[key], self._acceptance(decision, candidate), self._steps[key], self._tables[key])

        return Sent(place, candidate, self._clock)

    def learned(self) -> Iterator[tuple[str, str, str, Acceptance]]:
        """Yields (model, pool, request class, what is known of it)."""
        for (model, pool, request_class), learned in list(self._learned.items()):
            yield model, pool, request_class, learned

    def report(self) -> LoadReport:
        """Returns what this gateway replica knows, for the others."""
        return LoadReport(
            {key: (load.requests, load.lengths) for key, load in self.loads.items()},
            {key: model.totals for key, model in self._steps.items() if model.answers},
            {key: learned.totals for key, learned in self._learned.items() if learned.answers},
        )

    def hear(self, others: LoadReport | None) -> None:
        """Takes the figures of all other gateway replicas; None if they are unknown, so that shares are assumed."""
        self._heard = others
        found = others or LoadReport()
        for key, load in self.loads.items():
            load.hear(*found.running.get(key, (0.0, 0.0)))
            self._steps[key].hear(found.steps.get(key, ()))
        for class_key, learned in self._learned.items():
            learned.hear(found.acceptance.get(class_key, NOTHING))

    def check(self) -> None:
        """Applies what was learned since the last call, and logs every drafter whose acceptance has collapsed."""
        for key in self.loads:
            self._size(key)
        collapsed = {key for key, learned in self._learned.items() if learned.collapsed}
        for model, pool, request_class in sorted(collapsed - self._collapsed):
            learned = self._learned[model, pool, request_class]
            log.warning(
                "%s/%s: drafts for %s are accepted less than half as often as expected: %.2f tokens per step, not %.2f",
                model, pool, request_class, learned.length, learned.prior,
            )  # fmt: skip
        self._collapsed = collapsed

    def _remember(self, conversation: tuple[str, str], pool: str, size_bytes: int) -> None:
        self._homes[conversation] = (pool, size_bytes // _BYTES_PER_TOKEN)
        self._homes.move_to_end(conversation)
        if len(self._homes) > _CONVERSATIONS:
            self._homes.popitem(last=False)

    def _size(self, key: PoolKey) -> None:
        """Brings one pool's load up to date: its engines, and its step times as they are known now."""
        table = step_times(PUBLISHED, self._drafts[key], self._seats[key])
        model = self._steps.setdefault(key, StepModel())
        self._tables[key] = Table(table, self._drafts[key])
        times = tuple(step_s * model.factor(batch) for batch, step_s in enumerate(table))
        load = self.loads.setdefault(key, PoolLoad(times))
        load.change(times, self._engines[key] * (self._share if self._heard is None else 1.0))

    def _worths(self, decision: Decision, conversation: str, size_bytes: int) -> list[Worth]:
        model = decision.model
        home, known = self._homes.get((model, conversation), ("", 0))
        prompt = size_bytes // _BYTES_PER_TOKEN
        loads = [self.loads[model, candidate.pool] for candidate in decision.candidates]
        price = price_of_time(loads, WEIGHT)
        worths = []
        for candidate, load in zip(decision.candidates, loads, strict=True):
            learned = self._acceptance(decision, candidate)
            missing = max(0, prompt - known) if candidate.pool == home else prompt
            worths.append(worth(load, learned.length, price, missing / PREFILL_TOKENS_PER_S, learned.tokens))
        return worths

    def _acceptance(self, decision: Decision, candidate: Candidate) -> Acceptance:
        request_class, mask = _class_of(decision.classes)
        key = (decision.model, candidate.pool, request_class if candidate.speculative else "")
        learned = self._learned.get(key)
        if learned is None:
            drafts = self._drafts[key[:2]] if candidate.speculative else 0
            learned = self._learned[key] = Acceptance(prior_length(mask, drafts))
            if self._heard is not None and key in self._heard.acceptance:
                learned.hear(self._heard.acceptance[key])
            if len(self._learned) > _LEARNED:
                self._learned.popitem(last=False)
        return learned


_CLASSES: dict[tuple[str, ...], tuple[str, int]] = {}


def _class_of(classes: tuple[str, ...]) -> tuple[str, int]:
    """Returns the class under which answers are counted, and the mask, by a decision's class names."""
    found = _CLASSES.get(classes)
    if found is None:
        mask = sum(BIT[name] for name in classes)
        if len(_CLASSES) >= _CONVERSATIONS:
            _CLASSES.clear()
        found = _CLASSES[classes] = (class_of(mask), mask)
    return found
