"""Sends copies of requests to candidate pools, judges what comes, and keeps the pairs. Nobody waits for it."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from random import random
from typing import Any, NamedTuple

from msgspec import structs

from policies import Candidate, Decision
from serve.config.gateway import GatewayConfig
from serve.config.pool import ModelConfig, ShadowConfig
from serve.errors import DeadlineError, EngineError, GatewayError, OverloadedError
from serve.guard.attempt_result import AttemptResult
from serve.guard.core import Outcome, Verdict
from serve.guard.core.expectation import LazyRequest
from serve.guard.response import ObservedResponse
from serve.http1.turns import beside, turn
from serve.limits.charge import NULL_CHARGE
from serve.proxy.attempts import Attempt, Attempts, Held
from serve.proxy.relay import PIECE_BYTES
from serve.proxy.routed_request import Attribution, RoutedRequest
from serve.shadow.pairs import PairCounts
from serve.stream.line import Line
from serve.telemetry.metrics import Metrics
from serve.telemetry.request_log import log_fault

log = logging.getLogger("ray.serve.specgate.shadow")

_FAILED, _REFUSED, _BY_LENGTH = "failed", "refused", "length"
_TIMEOUT_S = 600.0
Key = tuple[str, str, str]  # model, candidate pool, request class
Learned = Mapping[tuple[str, str], Mapping[str, Any]]  # facts that engines told, by model and pool


class _Shadow(NamedTuple):
    """A model's candidate.

    Attributes:
        model: As its answers are judged: like those that are served, but nothing is healed.
    """

    terms: ShadowConfig
    candidate: Candidate
    model: ModelConfig


class _Drawn(NamedTuple):
    """A request that chance drew, while its own answer is made."""

    request: RoutedRequest
    began_s: float


class PairTally:
    """The pairs of one candidate and class.

    Attributes:
        outcomes: Of the candidate's answers; `failed` if there was none, `refused` if it took the request for a wrong
            one, `length` if it did not come to an end.
        skipped: Copies that were not sent, since too many were under way.
        busy: Copies for which the candidate was too busy.
        faults: Comparisons that failed for a fault of this code: they say nothing of the candidate.
        served_s, candidate_s: Seconds that the answers took, in total.
    """

    def __init__(self) -> None:
        self.counts = PairCounts()
        self.outcomes: Counter[str] = Counter()
        self.skipped = self.busy = self.faults = 0
        self.served_s = 0.0
        self.candidate_s = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.counts._asdict(),
            "outcomes": dict(self.outcomes),
            **{"skipped": self.skipped, "busy": self.busy, "faults": self.faults},
            "served_s": self.served_s,
            "candidate_s": self.candidate_s,
        }


class NullShadows:
    """Copies nothing; see `Shadows`."""

    def begins(self, request: RoutedRequest) -> None:
        """Does nothing."""

    def ends(self, request: RoutedRequest) -> None:
        """Does nothing."""

    def __call__(self, result: AttemptResult) -> None:
        """Does nothing."""

    def adopt(self, learned: Learned) -> None:
        """Does nothing."""

    def view(self) -> list[dict[str, Any]]:
        """Returns nothing."""
        return []


NULL_SHADOWS = NullShadows()


class Shadows:
    """Candidates of all models that have one. Its attempts are apart from those of clients, so that no load or limit
    counts them.
    """

    def __init__(self, config: GatewayConfig, attempts: Attempts) -> None:
        self._config = config
        self._attempts = attempts
        self._shadows = dict(_shadows(config))
        self._drawn: dict[str, _Drawn] = {}
        self._copies: set[asyncio.Task[None]] = set()
        self._tallies: defaultdict[Key, PairTally] = defaultdict(PairTally)
        self.adopt({})

    def adopt(self, learned: Learned) -> None:
        """Takes what the candidates' engines have told of themselves, by which a copy has the salt of its tenant."""
        keys = [(model, shadow.candidate.pool) for model, shadow in self._shadows.items()]
        self._attempts.adopt(self._config.facts_now(self._config.facts_of(*key), learned.get(key, {})) for key in keys)

    def begins(self, request: RoutedRequest) -> None:
        """Draws whether a guarded request that begins is to be copied."""
        shadow = self._shadows.get(request.decision.model)
        if shadow is None or request.request_id in self._drawn or random() >= shadow.terms.share:
            return
        self._drawn[request.request_id] = _Drawn(request, time.monotonic())

    def ends(self, request: RoutedRequest) -> None:
        """Forgets a request that has ended, if its answer was never judged."""
        drawn = self._drawn.get(request.request_id)
        if drawn is not None and drawn.request is request:
            del self._drawn[request.request_id]

    def __call__(self, result: AttemptResult) -> None:
        """Copies a request whose first answer has been judged, if it was drawn."""
        drawn = self._drawn.get(result.request_id) if result.attempt == 0 else None
        if drawn is None or drawn.request.decision.model != result.model:
            return
        del self._drawn[result.request_id]
        shadow = self._shadows[result.model]
        if _is_good(result.verdict) is None:
            return
        if len(self._copies) >= shadow.terms.max_ongoing:
            self._tally(shadow, drawn.request).skipped += 1
            return
        seconds = time.monotonic() - drawn.began_s
        task = asyncio.create_task(self._compare(shadow, drawn.request, result.verdict, seconds))
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    def view(self) -> list[dict[str, Any]]:
        """Returns the pairs by candidate and class, and by what terms they are judged; of no class where none came."""
        none = {(model, shadow.candidate.pool, ""): PairTally() for model, shadow in self._shadows.items()}
        for model, pool, _ in self._tallies:
            none.pop((model, pool, ""), None)
        return [
            {
                **{"model": model, "pool": pool, "request_class": request_class},
                **{"alpha": self._shadows[model].terms.alpha, "tolerance": self._shadows[model].terms.tolerance},
                **tally.as_dict(),
            }
            for (model, pool, request_class), tally in sorted({**none, **self._tallies}.items())
        ]

    def skipped(self) -> Iterator[tuple[tuple[str, str], int]]:
        """Yields (model, pool) and the number of copies skipped because of the load, ours or the candidate's."""
        yield from self._sums(lambda tally: tally.skipped + tally.busy)

    def faults(self) -> Iterator[tuple[tuple[str, str], int]]:
        """Yields (model, pool) and the number of comparisons that failed for a fault of this code."""
        yield from self._sums(lambda tally: tally.faults)

    def _sums(self, number: Callable[[PairTally], int]) -> Iterator[tuple[tuple[str, str], int]]:
        sums: Counter[tuple[str, str]] = Counter()
        for (model, pool, _), tally in self._tallies.items():
            sums[model, pool] += number(tally)
        yield from sums.items()

    def totals(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        """Yields (model, pool, outcome) and the number of such answers."""
        totals: Counter[tuple[str, str, str]] = Counter()
        for (model, pool, _), tally in self._tallies.items():
            totals.update({(model, pool, outcome): number for outcome, number in tally.outcomes.items()})
        yield from totals.items()

    async def close(self) -> None:
        """Gives up the copies that are under way."""
        for task in self._copies:
            task.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)

    async def _compare(self, shadow: _Shadow, request: RoutedRequest, served: Verdict, served_s: float) -> None:
        began_s = time.monotonic()
        tally = self._tally(shadow, request)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                verdict = await self._verdict(shadow, request)
        except OverloadedError:  # says nothing of its answers
            tally.busy += 1
            return
        except (GatewayError, TimeoutError) as error:
            why = error.code if isinstance(error, GatewayError) else DeadlineError.default_code
            log.info("%s: the candidate %s has no answer: %s", request.request_id, shadow.candidate.pool, why)
            outcome, good = _FAILED, False
        except BaseException:  # noqa: BLE001 - logged and counted, and no pair
            log_fault(log, "a comparison failed", request.request_id)
            tally.faults += 1
            return
        else:
            if verdict is None:  # the request is fine: it was answered
                outcome, good = _REFUSED, False
            elif verdict.outcome is Outcome.GUARD_ERROR:
                tally.faults += 1
                return
            elif (judged := _is_good(verdict)) is None:
                return
            else:
                outcome, good = _BY_LENGTH if verdict.by_length else str(verdict.outcome), judged
        pair = PairCounts.of(served_good=bool(_is_good(served)), candidate_good=good)
        tally.counts = PairCounts.total((tally.counts, pair))
        tally.outcomes[outcome] += 1
        tally.served_s += served_s
        tally.candidate_s += time.monotonic() - began_s

    def _tally(self, shadow: _Shadow, request: RoutedRequest) -> PairTally:
        return self._tallies[request.decision.model, shadow.candidate.pool, request.features.request_class]

    async def _verdict(self, shadow: _Shadow, request: RoutedRequest) -> Verdict | None:
        """Returns the verdict on the candidate's answer; None if it refused the request, as an engine may.

        Raises:
            GatewayError: There is no answer.
        """
        copy = _copy_of(request, shadow.candidate)
        async with Held() as held:
            attempt = await self._attempts.first_response(copy, (shadow.candidate,), held)
            status = attempt.response.status
            if status == 429:
                raise OverloadedError("the candidate is busy")
            if status >= 500:
                raise EngineError(f"the engine answered {status}")
            if status != 200:
                return None
            observed = ObservedResponse(shadow.model, LazyRequest(request.parsed), streamed=attempt.response.is_stream)
            try:
                await _read(attempt, observed)
            except EngineError as error:
                await observed.finish_response(error)
            else:
                await observed.finish_response()
            return observed.guard.verdicts[0]


def _is_good(verdict: Verdict) -> bool | None:
    """Returns whether an answer is good; None if that says nothing of its pool.

    One that `length` cut is not, whoever gave it: that the request was too long for both shows in the other answer, and
    drafts that never end a call show in nothing else.
    """
    return verdict.good and not verdict.by_length if verdict.counts or verdict.by_length else None


def _shadows(config: GatewayConfig) -> Iterator[tuple[str, _Shadow]]:
    for name, model in config.models.items():
        if model.shadow is not None:
            speculative = config.facts_of(name, model.shadow.pool).speculative
            candidate = Candidate(model.shadow.pool, opt_out=False, speculative=speculative)
            observed = model.model_copy(update={"guard": replace(model.guard, mode="observe")})
            yield name, _Shadow(model.shadow, candidate, observed)


def _copy_of(request: RoutedRequest, candidate: Candidate) -> RoutedRequest:
    """Returns a request as a candidate gets it: nobody is charged, and it is known by an id of its own."""
    decision = request.decision
    return structs.replace(
        request,
        decision=Decision(decision.model, decision.classes, candidates=(candidate,)),
        attempt_numbers=count(1),
        attribution=Attribution(engine_id=f"{request.attribution.engine_id}-shadow"),
        charge=NULL_CHARGE,
    )


async def _read(attempt: Attempt, observed: ObservedResponse) -> None:
    """Shows an answer to the guard, in pieces so short that other requests have their turn."""
    response = attempt.response
    if not response.is_stream:
        observed.whole(await attempt.body(observed.guard.settings.max_held_bytes))
        return
    line = Line((*attempt.stages, observed))
    await _feed(line, response.first)
    async for part in response.rest():
        await _feed(line, part)


async def _feed(line: Line, part: bytes) -> None:
    for start in range(0, len(part), PIECE_BYTES):
        await beside(line.slow, line.feed, part[start : start + PIECE_BYTES])
        await turn()


def show_shadows(metrics: Metrics, shadows: Shadows) -> None:
    """Shows the answers of candidates as one gateway replica has judged them."""
    metrics.read(
        "counter", "specgate_shadow_answers_total", "Answers of candidate pools to copies of requests, by outcome",
        ["model", "pool", "outcome"],
        shadows.totals,
    )  # fmt: skip
    metrics.read(
        "counter", "specgate_shadow_skipped_total", "Copies skipped because of the load",
        ["model", "pool"], shadows.skipped,
    )  # fmt: skip
    metrics.read(
        "counter", "specgate_shadow_faults_total", "Comparisons with a candidate that failed in the gateway's own code",
        ["model", "pool"], shadows.faults,
    )  # fmt: skip
