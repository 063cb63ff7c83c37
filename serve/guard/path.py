"""The guarded half of the request path: an answer that is judged, and run again elsewhere when it is broken."""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

from opentelemetry.trace import Span

from policies import Candidate
from serve.errors import EngineError, GatewayError
from serve.guard.answer import Flow, Watched, flow_of
from serve.guard.core import Guard, GuardSettings, State
from serve.guard.judgement import Judgement, VerdictSink, request_class
from serve.guard.request import Expected
from serve.proxy.attempts import Attempt, Attempts, RoutedRequest
from serve.proxy.exchange import Exchange
from serve.proxy.relay import relay
from serve.telemetry.instruments import Telemetry

log = logging.getLogger("ray.serve.specgate.guard")


class GuardedPath:
    """Answers requests under the guard.

    Args:
        attempts: Finds answers.
        telemetry: Spans and metrics.
        sink: Gets a judgement of every attempt.
    """

    def __init__(self, attempts: Attempts, telemetry: Telemetry, sink: VerdictSink) -> None:
        self._attempts = attempts
        self._telemetry = telemetry
        self._sink = sink

    async def respond(self, exchange: Exchange, request: RoutedRequest, settings: GuardSettings) -> None:
        """Sends the response, made of one attempt or several.

        Args:
            exchange: The client's side.
            request: A chat request.
            settings: How the guard behaves for this model.

        Raises:
            IntegrityError: No attempt was right.
            GatewayError: As raised by `Attempts.first_response` and `relay`.
        """
        candidates = request.decision.candidates
        async with self._attempts.first_response(request, candidates, exchange.attribution.tried) as attempt:
            response = attempt.response
            if response.status != 200:  # nothing to check: the client's fault, or the last of several failures
                await relay(exchange, attempt, self._telemetry)
                return
            if settings.mode == "observe":
                await self._observe(exchange, request, settings, attempt)
                return
            flow = flow_of(exchange, settings, _expected(request), streamed=response.is_stream)
            if flow.streamed:
                self._telemetry.first_token(exchange.arrived_s, attempt.candidate.pool)
            await flow.attempt(response)
        tried = [attempt.candidate]
        settled = False
        try:
            while flow.guard.state is State.RERUN and await self._rerun(exchange, request, flow, tried):
                pass
            settled = True
            await flow.settle()
        finally:
            self._report(request, exchange.span, flow.guard, tried, settled)

    async def _rerun(self, exchange: Exchange, request: RoutedRequest, flow: Flow, tried: list[Candidate]) -> bool:
        """Runs the request again; returns False if no candidate has a response."""
        faults = "; ".join(violation.detail for violation in flow.guard.verdicts[-1].violations)
        log.warning("request %s: pool %s: %s", request.request_id, tried[-1].pool, faults)
        async with AsyncExitStack() as resources:
            try:
                candidate, response = await resources.enter_async_context(
                    self._attempts.first_response(request, rerun_order(request.decision.candidates, tried))
                )
            except GatewayError as error:
                log.warning("request %s: no rerun: %s", request.request_id, error)
                return False
            if response.status != 200 or response.is_stream != flow.streamed:
                log.warning("request %s: no rerun: the engine answered %d", request.request_id, response.status)
                return False
            tried.append(candidate)
            exchange.attribution.rerun(candidate)
            exchange.span.set_attribute("specgate.rerun", candidate.pool)
            flow.guard.restart(candidate.pool)
            await flow.attempt(response)
        return True

    async def _observe(
        self, exchange: Exchange, request: RoutedRequest, settings: GuardSettings, attempt: Attempt
    ) -> None:
        watched = Watched(settings, _expected(request), streamed=attempt.response.is_stream)
        try:
            await relay(exchange, attempt, self._telemetry, watched.see)
        except EngineError as error:
            watched.guard.broke(error.message)
            raise
        else:
            watched.end()
        finally:
            self._report(request, exchange.span, watched.guard, [attempt.candidate], settled=True)

    def _report(
        self, request: RoutedRequest, span: Span, guard: Guard, tried: Sequence[Candidate], settled: bool
    ) -> None:
        """Reports every attempt that has a verdict; none that a leaving client has cut short."""
        final = guard.outcome if settled and guard.verdicts else None
        if final is not None:
            span.set_attribute("specgate.guard.outcome", str(final))
        for number, (verdict, candidate) in enumerate(zip(guard.verdicts, tried, strict=False)):
            self._sink(
                Judgement(
                    model=request.decision.model,
                    pool=candidate.pool,
                    request_class=request_class(request.decision.classes),
                    speculative=candidate.speculative,
                    verdict=verdict,
                    attempt=number,
                    final=final if number == len(guard.verdicts) - 1 else None,
                    request_id=request.request_id,
                    response_id=guard.response_id,
                )
            )


def _expected(request: RoutedRequest) -> Expected:
    return Expected(request.parsed, request.body)


def rerun_order(candidates: Sequence[Candidate], tried: Sequence[Candidate]) -> list[Candidate]:
    """Orders the candidates of a rerun: least tried first, then without speculation, then on another pool."""
    pools = {candidate.pool for candidate in tried}
    return sorted(
        candidates,
        key=lambda candidate: (tried.count(candidate), candidate.speculative, candidate.pool in pools),
    )
