"""The guarded half of the request path: responses are checked, and broken ones run again elsewhere."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from policies import Candidate, Decision
from serve.config.guard import GuardConfig
from serve.errors import EngineError, GatewayError
from serve.guard.attempt_result import AttemptResult, ResultSink, request_class
from serve.guard.core import Guard, GuardState
from serve.guard.request import LazyRequest
from serve.guard.response import GuardedResponse, ObservedResponse, guarded_response
from serve.proxy.attempts import Attempts
from serve.proxy.exchange import Exchange
from serve.proxy.relay import relay
from serve.proxy.upstream import Answer
from serve.telemetry.instruments import Telemetry

log = logging.getLogger("ray.serve.specgate.guard")


class GuardedPath:
    """Serves requests under the guard.

    Args:
        attempts: Sends requests to engines.
        telemetry: Spans and metrics.
        sink: Gets the result of every attempt.
        grammars: Format of the model's calls, by model.
    """

    def __init__(self, attempts: Attempts, telemetry: Telemetry, sink: ResultSink, grammars: Mapping[str, str]) -> None:
        self._attempts = attempts
        self._telemetry = telemetry
        self._sink = sink
        self._grammars = grammars

    async def answer(self, exchange: Exchange, decision: Decision, settings: GuardConfig) -> None:
        """Sends the response, made of one attempt or several.

        Args:
            exchange: A chat request whose decision is made.
            decision: Its decision.
            settings: The guard's settings for the model; its mode is not `off`.

        Raises:
            IntegrityError: Every attempt was broken.
            GatewayError: As `Attempts.answer` and `relay` raise it.
        """
        async with self._attempts.answer(exchange, decision.candidates) as answer:
            if answer.status != 200:  # nothing to check: the client's fault, or the last of several failures
                await relay(exchange, answer, self._telemetry)
                return
            assert exchange.candidate is not None
            tried = [exchange.candidate]
            if settings.mode == "observe":
                await self._observe(exchange, decision, settings, answer)
                return
            grammar = self._grammars[decision.model]
            guarded = guarded_response(exchange, settings, _request(exchange), grammar, streamed=answer.is_stream)
            if guarded.streamed:
                self._telemetry.first_token(exchange.arrived, tried[0].pool)
            await guarded.attempt(answer)
        settled = False
        try:
            while guarded.guard.state is GuardState.RERUN and await self._rerun(exchange, decision, guarded, tried):
                pass
            settled = True
            await guarded.finish()
        finally:
            self._report(exchange, decision, guarded.guard, tried, settled)

    async def _rerun(
        self, exchange: Exchange, decision: Decision, guarded: GuardedResponse, tried: list[Candidate]
    ) -> bool:
        """Runs the request again; returns False if no other response is to be had."""
        details = "; ".join(defect.detail for defect in guarded.guard.verdicts[-1].defects)
        log.warning("request %s: pool %s: %s", exchange.request_id, tried[-1].pool, details)
        first = exchange.candidate
        async with AsyncExitStack() as held:
            try:
                answer = await held.enter_async_context(
                    self._attempts.answer(exchange, rerun_order(decision.candidates, tried))
                )
            except GatewayError as error:
                log.warning("request %s: no rerun: %s", exchange.request_id, error)
                return False
            finally:
                again, exchange.candidate = exchange.candidate, first
            if answer.status != 200 or answer.is_stream != guarded.streamed or again is None:
                log.warning("request %s: no rerun: the engine answered %d", exchange.request_id, answer.status)
                return False
            tried.append(again)
            exchange.rerun = again.pool
            exchange.span.set_attribute("specgate.rerun", again.pool)
            guarded.guard.restart(again.pool)
            await guarded.attempt(answer)
        return True

    async def _observe(self, exchange: Exchange, decision: Decision, settings: GuardConfig, answer: Answer) -> None:
        grammar = self._grammars[decision.model]
        observed = ObservedResponse(settings, _request(exchange), grammar, streamed=answer.is_stream)
        assert exchange.candidate is not None
        try:
            await relay(exchange, answer, self._telemetry, observed.feed)
        except EngineError as error:
            observed.finish(error)
            raise
        else:
            observed.finish()
        finally:
            self._report(exchange, decision, observed.guard, [exchange.candidate], settled=True)

    def _report(
        self, exchange: Exchange, decision: Decision, guard: Guard, tried: Sequence[Candidate], settled: bool
    ) -> None:
        """Reports every attempt that has a verdict; one that was cut short because the client left has none."""
        final = guard.outcome if settled and guard.verdicts else None
        if final is not None:
            exchange.span.set_attribute("specgate.guard.outcome", str(final))
        for attempt, (verdict, candidate) in enumerate(zip(guard.verdicts, tried, strict=False)):
            self._sink(
                AttemptResult(
                    model=decision.model,
                    pool=candidate.pool,
                    request_class=request_class(decision.classes),
                    speculative=candidate.speculative,
                    verdict=verdict,
                    attempt=attempt,
                    final=final if attempt == len(guard.verdicts) - 1 else None,
                    request_id=exchange.request_id,
                    response_id=guard.response_id,
                )
            )


def _request(exchange: Exchange) -> LazyRequest:
    assert exchange.asked is not None
    return LazyRequest(exchange.asked, exchange.body)


def rerun_order(candidates: Sequence[Candidate], tried: Sequence[Candidate]) -> list[Candidate]:
    """Returns the candidates for a rerun, best first.

    Those tried least come first, then those without speculation, then other pools, then the order of the decision.

    Args:
        candidates: As decided.
        tried: The candidate of every attempt so far.
    """
    pools = {candidate.pool for candidate in tried}
    return sorted(
        candidates, key=lambda candidate: (tried.count(candidate), candidate.speculative, candidate.pool in pools)
    )
