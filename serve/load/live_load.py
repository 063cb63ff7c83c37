"""The load of all pools as one gateway replica sees it: requests under way, and what is learned when each is over.

It only says in which order candidates are worth most now; `policies.decide` puts them into it.
"""

import json
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from policies import Candidate, Decision, LoadOrder, Policy, Reason, RequestFeatures
from policies.acceptance import Acceptance, AnswerLength
from policies.classes import class_of_names
from policies.ranking import PoolLoad, Prompt, RankedOption, price_of_time, ranked, value
from policies.step_times import PUBLISHED, StepModel, step_times
from serve.config.gateway import GatewayConfig, LoadMode
from serve.errors import ConfigError
from serve.load.exploration import Exploration, Hope
from serve.load.learned import Learned, LoadReport, PoolKey
from serve.stream.frame import Frame
from serve.stream.line import PASS, Stage
from serve.telemetry.metrics import Metrics, Reading

_CONVERSATIONS = 8192
_RANKINGS = 1024
_BYTES_PER_TOKEN = 4
_NOWHERE = ("", 0)

# vLLM (`per-request-spec-decode-metrics`) and our simulated engine report on their drafts in the last chunk of a stream
# that carries usage, and in every whole response. The report is found there without decoding the rest: within a JSON
# string the quotes would be escaped, so that no text of a model can imitate the member.
_MEMBER = b'"speculative_decoding":'
_TOKENS = re.compile(rb'"completion_tokens":\s*(\d{1,9})\b')
_DECODER = json.JSONDecoder()
_LONGEST = 4096
_FRAMES = 4  # enough for a stream's last chunk and its end
_END_BYTES = 256 * 1024
_MOST = 10**9  # no answer has as many tokens
_Count = Annotated[int, msgspec.Meta(ge=0, lt=_MOST)]
# Shorter answers are mostly prefill and waiting; their step times would be too long.
_LEARNED_STEPS = 50

Move = tuple[str, str, str]  # model, from, to


class _Told(msgspec.Struct):
    num_spec_steps: Annotated[int, msgspec.Meta(gt=0, lt=_MOST)]
    num_accepted_draft_tokens: _Count
    num_draft_tokens: _Count


class LastFrames(Stage):
    """Keeps the end of a response, in which an engine reports.

    Attributes:
        last: The last frames, or the end of a whole answer.
    """

    def __init__(self) -> None:
        self.last: deque[bytes] = deque(maxlen=_FRAMES)

    def skim(self, data: bytes, frames: int) -> None:
        self.last.append(data)

    def feed(self, frame: Frame) -> Sequence[Frame]:
        self.last.append(frame.raw)
        return (frame,)

    def whole(self, body: bytes) -> bytes:
        """Keeps the end of a whole answer."""
        self.last.append(body[-_END_BYTES:])
        return body


class SpecReport(NamedTuple):
    """The drafts of one request."""

    steps: int
    accepted: int


def completion_tokens(parts: Iterable[bytes]) -> int | None:
    """Returns the length of the answer as the usage in the last parts of a response states it; None without usage."""
    found = _TOKENS.findall(b"".join(parts))
    return int(found[-1]) if found else None


def spec_report(parts: Iterable[bytes]) -> SpecReport | None:
    """Returns the report in the last parts of a response; None if there is none, or no draft was made."""
    data = b"".join(parts)
    start = data.rfind(_MEMBER)
    if start < 0:
        return None
    start += len(_MEMBER)
    text = data[start : start + _LONGEST].lstrip().decode("utf-8", "replace")
    try:
        found, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):  # cut off, or not the engine's
        return None
    try:
        reply = msgspec.convert(found, _Told)
    except msgspec.ValidationError:
        return None
    accepted = reply.num_accepted_draft_tokens
    return SpecReport(reply.num_spec_steps, accepted) if accepted <= reply.num_draft_tokens else None


class Table(NamedTuple):
    """Step times by batch as they were assumed before anything was learned, at a draft length."""

    step_s: Sequence[float]
    drafts: int


class LoadFigures(NamedTuple):
    """The figures of a candidate: the load of its pool, drafts and answers of such requests, and its step times."""

    load: PoolLoad
    drafts: Acceptance
    answers: AnswerLength
    steps: StepModel
    table: Table


class Sent:
    """A request under way. One with several answers does not count for what is learned: its tokens and steps say
    nothing.
    """

    __slots__ = ("_batch", "_candidate", "_clock", "_counts", "_length", "_place", "_posted_s", "_there", "response")

    def __init__(
        self,
        place: Callable[[Candidate], LoadFigures],
        candidate: Candidate,
        clock: Callable[[], float] = time.monotonic,
        counts: bool = True,
    ) -> None:
        self.response: LastFrames | None = None
        self._place = place
        self._clock = clock
        self._counts = counts
        self._posted_s = clock()
        self._begin(candidate)

    def last_frames(self) -> LastFrames:
        """Returns a stage that keeps what can be learned from the response that has begun."""
        self.response = kept = LastFrames()
        return kept

    def posted(self, candidate: Candidate) -> None:
        """Tells that the request has a slot and goes out, maybe to another candidate than the first."""
        if candidate is not self._candidate:
            self._there.load.end(self._length)
            self._begin(candidate)
        self._posted_s = self._clock()
        self._batch = self._there.load.per_engine

    def end(self) -> None:
        """Counts the end of the request, and learns from its response."""
        load = self._there.load
        batch = max(1.0, (self._batch + load.per_engine) / 2)
        load.end(self._length)
        if self.response is None or not self._counts:
            return
        last = list(self.response.last)
        report, tokens = spec_report(last), completion_tokens(last)
        if report is not None:
            self._there.drafts.learn(report.steps, report.accepted)
            tokens = report.steps + report.accepted if tokens is None else tokens
        if tokens:
            self._there.answers.learn(tokens)
        table = self._there.table
        # Without drafts a token is a step; an engine that drafts says how many steps it took.
        steps = report.steps if report is not None else None if table.drafts else tokens
        if steps is not None and steps >= _LEARNED_STEPS:
            observed_s = (self._clock() - self._posted_s) / steps
            self._there.steps.learn(batch, observed_s / table.step_s[min(round(batch), len(table.step_s) - 1)])

    def _begin(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self._there = self._place(candidate)
        self._length = self._there.drafts.length
        self._there.load.begin(self._length)
        self._batch = self._there.load.per_engine


class NullSent:
    """A request that is not counted; see `Sent`."""

    __slots__ = ()

    def posted(self, candidate: Candidate) -> None:
        """Does nothing."""

    def end(self) -> None:
        """Does nothing."""

    def last_frames(self) -> Stage:
        """Returns a stage that keeps nothing."""
        return PASS


NULL_SENT = NullSent()
AnySent = NullSent | Sent


class LiveLoad:
    """The load of all pools, and the order of candidates by it. Each gateway replica has about its share of all
    requests, unless the others tell.

    Attributes:
        routes: True if candidates are put into another order, not only counted.
        learns: Engines are to report on their drafts.
        moves: Requests that got another first candidate, by (model, from, to); in mode `observe`, would have got it.
    """

    learns = True

    def __init__(
        self, config: GatewayConfig, policy: Policy, gateways: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self.loads: dict[PoolKey, PoolLoad] = {}
        self.moves: dict[Move, int] = {}
        self.routes = config.policy.load == "route"
        self._share = 1.0 / gateways
        self._seats: dict[PoolKey, int] = {}
        self._engines: dict[PoolKey, int] = {}
        self._tables: dict[PoolKey, Table] = {}
        for name, model, pool, settings in config.each_pool():
            self._seats[name, pool] = model.engine_seats(pool) or settings.max_ongoing_requests
            self._engines[name, pool] = settings.replicas
        self._learned = Learned()
        self._exploration = Exploration()
        self._homes: OrderedDict[tuple[str, str], tuple[str, int]] = OrderedDict()
        self._alone = True  # nothing is known of other gateway replicas
        self._checked_s = clock()
        self._rankings: dict[Decision, _Ranking] = {}  # of decisions that came before
        self.adopt(policy)

    def adopt(self, policy: Policy) -> None:
        """Takes the draft lengths of another policy; what is counted and learned stays."""
        self._learned.adopt(policy)
        for facts in policy.facts:
            self._size((facts.model, facts.pool))
        self._rankings.clear()

    def switch(self, mode: LoadMode) -> None:
        """Puts candidates into another order from now on, or only counts: as `observe` does, and `off`."""
        self.routes = mode == "route"

    def set_engines(self, key: PoolKey, engines: int) -> None:
        """Says how many engines of a pool are running; 0 if unknown."""
        if engines and engines != self._engines[key]:
            self._engines[key] = engines
            self._size(key)

    def order(
        self, decision: Decision, features: RequestFeatures, size_bytes: int, *, count: bool = True
    ) -> LoadOrder | None:
        """Returns the order in which the candidates are worth most now; None if the first one stays first.

        In mode `observe` it is always None, and the difference is only counted. A request that is not going to be sent
        does not count.
        """
        if not decision.tiers:
            return None
        ranking = self._rankings.get(decision) or self._ranking(decision)
        prompt = self._prompt(decision.model, features.conversation_key, size_bytes)
        if ranking.hopes and count:
            for hope in ranking.hopes:
                if hope.is_best(decision.tiers, prompt):
                    return self._explore(decision, ranking, hope)
        places = ranked(ranking.options, decision.tiers, prompt)
        if places is None:
            return None
        found = ranking.orders.get(places)
        if found is None:
            found = ranking.orders[places] = _load_order(ranking.options, places), _move(decision, places)
        order, move = found
        if count:
            self.moves[move] = self.moves.get(move, 0) + 1
        return order if self.routes else None

    def figures(self, decision: Decision, features: RequestFeatures, size_bytes: int) -> list[dict[str, Any]]:
        """Returns what each candidate of a decision is worth for the request now, for people."""
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
        """Counts a request on its way to a candidate."""
        answers = self._learned.answers(decision.model, class_of_names(decision.classes)[0])

        def place(candidate: Candidate) -> LoadFigures:
            key = (decision.model, candidate.pool)
            if features.conversation_key:
                self._remember((decision.model, features.conversation_key), candidate.pool, size_bytes)
            drafts, steps = self._acceptance(decision, candidate), self._learned.steps[key]
            return LoadFigures(self.loads[key], drafts, answers, steps, self._tables[key])

        return Sent(place, candidate, self._clock, counts="many" not in decision.classes)

    def learned(self) -> Iterator[tuple[str, str, str, Acceptance]]:
        """Yields (model, pool, request class, what is known of its drafts)."""
        return self._learned.each()

    def view(self) -> list[dict[str, Any]]:
        """Returns what answers showed of each pool's drafts, by class: what advice on drafters is made of."""
        return [
            {
                "model": model,
                "pool": pool,
                "request_class": request_class,
                "answers": known.answers,
                "idle_s": None if known.idle_s is None else round(known.idle_s),
                "length": known.length,
                "measured": known.measured,
                "shown": known.shown,
                "weight": round(known.weight, 1),
                "drafts": self._learned.drafts[model, pool],
                "per_engine": self.loads[model, pool].per_engine,
                "factor": self._learned.steps[model, pool].factor(self.loads[model, pool].per_engine),
            }
            for model, pool, request_class, known in self.learned()
            if known.answers
        ]

    def report(self) -> LoadReport:
        """Returns what this gateway replica knows, for the others."""
        running = {key: (load.requests, load.lengths) for key, load in self.loads.items()}
        return LoadReport(running) + self._learned.report()

    def merge(self, others: LoadReport | None) -> None:
        """Takes the figures of all other gateway replicas; None if they are unknown, so that shares are assumed."""
        self._alone = others is None
        found = others or LoadReport()
        for key, load in self.loads.items():
            load.merge(*found.running.get(key, (0.0, 0.0)))
        self._learned.merge(found)

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
        times = model.scaled(table)
        load = self.loads.setdefault(key, PoolLoad(times))
        load.change(times, self._engines[key] * (self._share if self._alone else 1.0))

    def _ranking(self, decision: Decision) -> "_Ranking":
        options = self._options(decision)
        request_class, _ = class_of_names(decision.classes)
        keys = [(decision.model, each.pool, request_class) for each in options]
        steps = [self._learned.steps[model, pool] for model, pool, _ in keys]
        hopes = self._exploration.hopes(keys, options, steps, self._clock()) if self.routes else []
        found = _Ranking(options, hopes)
        if len(self._rankings) < _RANKINGS:
            self._rankings[decision] = found
        return found

    def _options(self, decision: Decision) -> tuple[RankedOption, ...]:
        model = decision.model
        answers = self._learned.answers(model, class_of_names(decision.classes)[0])
        return tuple(
            RankedOption(each.pool, self.loads[model, each.pool], self._acceptance(decision, each), answers)
            for each in decision.candidates
        )

    def _explore(self, decision: Decision, ranking: "_Ranking", hope: Hope) -> LoadOrder | None:
        """Returns the order with a pool first that may have recovered; None if it is first already."""
        ranking.hopes = []  # one at a time
        option = ranking.options[hope.number]
        self._exploration.begun(hope.key, option.answers.answers, self._clock())
        if not hope.number:
            return None
        places = (hope.number, *[place for place in range(len(ranking.options)) if place != hope.number])
        move = _move(decision, places)
        self.moves[move] = self.moves.get(move, 0) + 1
        summary = f"{option.pool} is explored: nothing was heard of it for a while, and it may have recovered"
        return LoadOrder(places, Reason("load", "inform", summary, "operator"))

    def _prompt(self, model: str, conversation: str, size_bytes: int) -> Prompt:
        home, cached = self._homes.get((model, conversation), _NOWHERE) if conversation else _NOWHERE
        return size_bytes // _BYTES_PER_TOKEN, home, cached

    def _acceptance(self, decision: Decision, candidate: Candidate) -> Acceptance:
        pool = (decision.model, candidate.pool)
        return self._learned.acceptance(pool, *class_of_names(decision.classes), candidate.speculative)


class _Ranking:
    """The worth of one decision's candidates, whoever asks; rebuilt once a second, at the next request. Its `hopes` are
    those of its options that are due to be explored.

    Attributes:
        orders: By the candidates' places: the order, with the figures with which it came up first, and the move that
            it is.
    """

    __slots__ = ("hopes", "options", "orders")

    def __init__(self, options: tuple[RankedOption, ...], hopes: list[Hope]) -> None:
        self.options = options
        self.hopes = hopes
        self.orders: dict[tuple[int, ...], tuple[LoadOrder, Move]] = {}


def _load_order(options: Sequence[RankedOption], places: tuple[int, ...]) -> LoadOrder:
    here, there = options[0], options[places[0]]
    summary = (
        f"{there.pool} before {here.pool}: {there.own:.0f} tokens/s instead of {here.own:.0f} for this request, "
        f"{there.added:+.0f} instead of {here.added:+.0f} for all"
    )
    return LoadOrder(places, Reason("load", "inform", summary, "operator"))


def _move(decision: Decision, places: Sequence[int]) -> Move:
    candidates = decision.candidates
    return decision.model, candidates[0].pool, candidates[places[0]].pool


class NullLoad:
    """The load where nobody counts it: decisions stay as they are, and nothing is learned. See `LiveLoad`."""

    learns = False

    def adopt(self, policy: Policy) -> None:
        """Does nothing."""

    def switch(self, mode: LoadMode) -> None:
        """Stays off.

        Raises:
            ConfigError: It is to do anything else.
        """
        if mode != "off":
            raise ConfigError("policy.load can be switched on only at the start; `observe` changes no decision")

    def order(self, decision: Decision, features: RequestFeatures, size_bytes: int, *, count: bool = True) -> None:
        """Returns None: the order stays that of the policy."""

    def figures(self, decision: Decision, features: RequestFeatures, size_bytes: int) -> Sequence[dict[str, Any]]:
        """Returns nothing: no candidate is worth more than another."""
        return ()

    def begin(self, decision: Decision, features: RequestFeatures, candidate: Candidate, size_bytes: int) -> NullSent:
        """Returns a request that is not counted."""
        return NULL_SENT

    def view(self) -> list[dict[str, Any]]:
        """Returns nothing."""
        return []

    def set_engines(self, key: PoolKey, engines: int) -> None:
        """Does nothing."""

    def report(self) -> LoadReport:
        """Returns nothing for the other replicas."""
        return LoadReport()

    def merge(self, others: LoadReport | None) -> None:
        """Does nothing."""

    def check(self) -> None:
        """Does nothing."""


NULL_LOAD = NullLoad()
AnyLoad = NullLoad | LiveLoad


def show_load(metrics: Metrics, load: LiveLoad) -> None:
    """Shows the load as one gateway replica sees it."""

    def learned(value: Callable[[Acceptance], float]) -> Reading:
        def read() -> Iterator[tuple[tuple[str, str, str], float]]:
            for model, pool, request_class, known in load.learned():
                if known.answers:
                    yield (model, pool, request_class), value(known)

        return read

    cell = ("model", "pool", "request_class")
    metrics.read(
        "gauge",
        "specgate_load_requests",
        "Requests of this gateway replica in a pool, waiting included",
        ["model", "pool"],
        lambda: ((key, each.requests) for key, each in load.loads.items()),
    )
    metrics.read(
        "gauge",
        "specgate_acceptance_length",
        "Tokens per step that a pool reaches, learned from answers",
        cell,
        learned(lambda known: known.length),
    )
    metrics.read(
        "gauge",
        "specgate_acceptance_collapsed",
        "1 if drafts are accepted less than half as often as expected",
        cell,
        learned(lambda known: float(known.collapsed)),
    )
    metrics.read(
        "counter", "specgate_load_moves_total", "Requests that load moved to another pool, or would have (`observe`)",
        ["model", "from", "to"], load.moves.items,
    )  # fmt: skip
