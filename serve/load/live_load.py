"""The load of all pools as one gateway replica sees it: requests in flight, and what drafters accept."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from policies import Candidate, Decision, Policy, Reason, RequestFeatures, in_order
from policies.acceptance import Acceptance
from policies.classes import class_of_names
from policies.load_model import PUBLISHED
from policies.ranking import Option, PoolLoad, Prompt, may_rank, option, price_of_time, ranked, step_times, value
from serve.config.gateway import GatewayConfig
from serve.config.seats import engine_seats
from serve.load.learned import Learned
from serve.load.report import LoadReport, PoolKey
from serve.load.sent import Place, Sent, Table
from serve.load.trials import Hope, Trials

_CONVERSATIONS = 8192
_RANKINGS = 1024
_BYTES_PER_TOKEN = 4
_NOWHERE = ("", 0)


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
        self._canaries: dict[str, frozenset[str]] = {}
        self._learned = Learned()
        self._trials = Trials()
        self._homes: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()
        self._alone = True  # nothing is known of other gateway replicas
        self._checked_s = clock()
        self._rankings: dict[int, _Ranking] = {}  # of decisions that came before, by identity
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Takes the draft lengths and canaries of another policy; what is counted and learned stays."""
        self._learned.adopt(policy)
        for facts in policy.facts:
            self._size((facts.model, facts.pool))
        self._canaries = {name: frozenset(model.canaries) for name, model in policy.models.items()}
        self._rankings.clear()

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
        if features.preference:
            return decision
        ranking = self._rankings.get(id(decision)) or self._ranking(decision)
        if not ranking.options:
            return decision
        prompt = self._prompt(decision.model, features.conversation_key, size_bytes)
        if ranking.hopes and count and (tried := self._tried(ranking, prompt)) is not None:
            return tried
        order = ranked(ranking.options, prompt)
        if order is None:
            return decision
        if not count:
            return _moved(decision, ranking.options, order) if self.routes else decision
        found = ranking.moved.get(order)
        if found is None:
            move = (decision.model, decision.candidates[0].pool, decision.candidates[order[0]].pool)
            found = ranking.moved[order] = (_moved(decision, ranking.options, order) if self.routes else decision, move)
        self.moves[found[1]] = self.moves.get(found[1], 0) + 1
        return found[0]

    def figures(self, decision: Decision, features: RequestFeatures, size_bytes: int) -> list[dict[str, Any]]:
        """Returns what each candidate of a decision is worth for the request now, for people.

        Args:
            decision: From `decide`.
            features: Of the request.
            size_bytes: Of its body.
        """
        options = self._options(decision)
        prompt = self._prompt(decision.model, features.conversation_key, size_bytes)
        price = price_of_time(options)
        return [
            {
                "pool": each.pool,
                "speculative": candidate.speculative,
                "requests_per_engine": round(each.load.per_engine, 2),
                "tokens_per_step": round(each.known.length, 3),
                "answers": each.known.answers,
                "full": each.load.full,
                "own_tokens_per_s": round(each.own, 1),
                "added_tokens_per_s": round(each.added, 1),
                "value": None if each.load.full else round(value(each, prompt, price), 3),
            }
            for candidate, each in zip(decision.candidates, options, strict=True)
        ]

    def begin(self, decision: Decision, features: RequestFeatures, candidate: Candidate, size_bytes: int) -> Sent:
        """Counts a request on its way to a candidate.

        Args:
            decision: On the request.
            features: Of the request.
            candidate: Where it goes.
            size_bytes: Of its body.
        """
        answers = self._learned.answers(decision.model, class_of_names(decision.classes)[0])

        def place(candidate: Candidate) -> Place:
            key = (decision.model, candidate.pool)
            if features.conversation_key:
                self._remember((decision.model, features.conversation_key), candidate.pool, size_bytes)
            drafts, steps = self._acceptance(decision, candidate), self._learned.steps[key]
            return Place(self.loads[key], drafts, answers, steps, self._tables[key])

        return Sent(place, candidate, self._clock, counts="many" not in decision.classes)

    def learned(self) -> Iterator[tuple[str, str, str, Acceptance]]:
        """Yields (model, pool, request class, what is known of its drafts)."""
        return self._learned.each()

    def report(self) -> LoadReport:
        """Returns what this gateway replica knows, for the others."""
        running = {key: (load.requests, load.lengths) for key, load in self.loads.items()}
        return LoadReport(running) + self._learned.report()

    def hear(self, others: LoadReport | None) -> None:
        """Takes the figures of all other gateway replicas; None if they are unknown, so that shares are assumed."""
        self._alone = others is None
        found = others or LoadReport()
        for key, load in self.loads.items():
            load.hear(*found.running.get(key, (0.0, 0.0)))
        self._learned.hear(found)

    def check(self) -> None:
        """Applies what was learned since the last call, lets it fade, and logs what has collapsed."""
        now_s = self._clock()
        self._learned.fade(now_s - self._checked_s)
        self._checked_s = now_s
        self._rankings.clear()  # the figures in their reasons are at most as old as the last call
        for key in self.loads:
            self._size(key)
        self._learned.warn()

    def _remember(self, conversation: tuple[str, str], pool: str, size_bytes: int) -> None:
        self._homes[conversation] = (pool, size_bytes // _BYTES_PER_TOKEN)
        self._homes.move_to_end(conversation)
        if len(self._homes) > _CONVERSATIONS:
            self._homes.popitem(last=False)

    def _size(self, key: PoolKey) -> None:
        """Brings one pool's load up to date: its engines, and its step times as they are known now."""
        drafts, model = self._learned.drafts[key], self._learned.steps[key]
        table = step_times(PUBLISHED, drafts, self._seats[key])
        self._tables[key] = Table(table, drafts)
        times = tuple(step_s * model.factor(batch) for batch, step_s in enumerate(table))
        load = self.loads.setdefault(key, PoolLoad(times))
        load.change(times, self._engines[key] * (self._share if self._alone else 1.0))

    def _ranking(self, decision: Decision) -> "_Ranking":
        options = self._options(decision) if may_rank(decision) else ()
        keys = [(decision.model, each.pool, class_of_names(decision.classes)[0]) for each in options]
        steps = [self._learned.steps[model, pool] for model, pool, _ in keys]
        hopes = self._trials.hopes(keys, options, steps, self._clock()) if self.routes else []
        found = _Ranking(decision, options, hopes)
        if len(self._rankings) < _RANKINGS:
            self._rankings[id(decision)] = found
        return found

    def _options(self, decision: Decision) -> tuple[Option, ...]:
        model = decision.model
        first, last = decision.candidates[0], self._canaries[model]
        answers = self._learned.answers(model, class_of_names(decision.classes)[0])
        return tuple(
            option(each, first, self.loads[model, each.pool], self._acceptance(decision, each), answers, last)
            for each in decision.candidates
        )

    def _tried(self, ranking: "_Ranking", prompt: Prompt) -> Decision | None:
        """Returns the decision with a pool first that may have recovered; None if there is none for such a prompt."""
        hope = next((each for each in ranking.hopes if each.is_best(prompt)), None)
        if hope is None:
            return None
        ranking.hopes = []  # one at a time
        decision, option = ranking.decision, ranking.options[hope.number]
        self._trials.begun(hope.key, option.answers.answers, self._clock())
        if not hope.number:
            return decision
        move = (decision.model, decision.candidates[0].pool, option.pool)
        self.moves[move] = self.moves.get(move, 0) + 1
        candidates = [decision.candidates[hope.number], *decision.candidates]
        del candidates[hope.number + 1]
        summary = f"a trial of {option.pool}: nothing was heard of it for a while, and it may have recovered"
        return in_order(decision, candidates, Reason("load", "inform", summary, "operator"))

    def _prompt(self, model: str, conversation: str, size_bytes: int) -> Prompt:
        home, cached = self._homes.get((model, conversation), _NOWHERE)
        return size_bytes // _BYTES_PER_TOKEN, home, cached

    def _acceptance(self, decision: Decision, candidate: Candidate) -> Acceptance:
        pool = (decision.model, candidate.pool)
        return self._learned.acceptance(pool, *class_of_names(decision.classes), candidate.speculative)


class _Ranking:
    """The ranking of one decision, whoever asks: built once, since decisions are cached.

    Args:
        decision: Held here, so that its identity stays its own.
        options: Its candidates; none if their order is not to be touched.
        hopes: Those of them that are due for a trial.

    Attributes:
        moved: By order: the decision in it, and the move that it is.
    """

    __slots__ = ("decision", "hopes", "moved", "options")

    def __init__(self, decision: Decision, options: tuple[Option, ...], hopes: list[Hope]) -> None:
        self.decision = decision
        self.options = options
        self.hopes = hopes
        self.moved: dict[tuple[int, ...], tuple[Decision, tuple[str, str, str]]] = {}


def _moved(decision: Decision, options: Sequence[Option], order: Sequence[int]) -> Decision:
    """Returns the decision with its candidates in another order, and the reason."""
    here, there = options[0], options[order[0]]
    summary = (
        f"{there.pool} before {here.pool}: {there.own:.0f} tokens/s instead of {here.own:.0f} for this request, "
        f"{there.added:+.0f} instead of {here.added:+.0f} for all"
    )
    candidates = [decision.candidates[number] for number in order]
    return in_order(decision, candidates, Reason("load", "inform", summary, "operator"))
