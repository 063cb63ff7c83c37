"""The guarded half of the request path: an answer that is judged, and run again elsewhere when it is broken."""

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack

from policies import Candidate, Decision
from serve.errors import EngineError, GatewayError
from serve.guard.answer import Flow, Watched, flow_of
from serve.guard.core import Guard, GuardSettings, GuardState
from serve.guard.judgement import Judgement, VerdictSink, request_class
from serve.guard.request import Expected
from serve.proxy.attempts import Attempts
from serve.proxy.exchange import Exchange
from serve.proxy.relay import relay
from serve.proxy.upstream import Answer
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
        self._attempts, self._telemetry, self._sink = attempts, telemetry, sink

    async def answer(self, exchange: Exchange, decision: Decision, settings: GuardSettings) -> None:
        """Send the answer, of one attempt or several.

        Args:
            exchange: A chat request whose decision is made.
            decision: Its decision.
            settings: How the guard behaves for this model.

        Raises:
            IntegrityError: No attempt was right.
            GatewayError: As of `Attempts.answer` and `relay`.
        """
        async with self._attempts.answer(exchange, decision.candidates) as answer:
            if answer.status != 200:  # nothing to judge: a client's fault, or the last of several failures
                await relay(exchange, answer, self._telemetry)
                return
            assert exchange.candidate is not None
            tried = [exchange.candidate]
            if settings.mode == "observe":
                await self._observe(exchange, decision, settings, answer)
                return
            flow = flow_of(exchange, settings, _expected(exchange), streamed=answer.is_stream)
            if flow.streamed:
                self._telemetry.first_token(exchange.arrived, tried[0].pool)
            await flow.attempt(answer)
        settled = False
        try:
            while flow.guard.state is GuardState.RERUN and await self._rerun(exchange, decision, flow, tried):
                pass
            settled = True
            await flow.settle()
        finally:
            self._report(exchange, decision, flow.guard, tried, settled)

    async def _rerun(self, exchange: Exchange, decision: Decision, flow: Flow, tried: list[Candidate]) -> bool:
        """Run the request again; False if nobody has an answer."""
        log.warning(
            "request %s: pool %s: %s",
            exchange.request_id, tried[-1].pool, "; ".join(each.detail for each in flow.guard.verdicts[-1].defects),
        )  # fmt: skip
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
            if answer.status != 200 or answer.is_stream != flow.streamed or again is None:
                log.warning("request %s: no rerun: the engine answered %d", exchange.request_id, answer.status)
                return False
            tried.append(again)
            exchange.rerun = again.pool
            exchange.span.set_attribute("specgate.rerun", again.pool)
            flow.guard.restart(again.pool)
            await flow.attempt(answer)
        return True

    async def _observe(self, exchange: Exchange, decision: Decision, settings: GuardSettings, answer: Answer) -> None:
        watched = Watched(settings, _expected(exchange), streamed=answer.is_stream)
        assert exchange.candidate is not None
        try:
            await relay(exchange, answer, self._telemetry, watched.see)
        except EngineError as error:
            watched.guard.broke(error.message)
            raise
        else:
            watched.end()
        finally:
            self._report(exchange, decision, watched.guard, [exchange.candidate], settled=True)

    def _report(
        self, exchange: Exchange, decision: Decision, guard: Guard, tried: Sequence[Candidate], settled: bool
    ) -> None:
        """Tell of every attempt that was judged; not of one that a client's leaving has cut short."""
        final = guard.outcome if settled and guard.verdicts else None
        if final is not None:
            exchange.span.set_attribute("specgate.guard.outcome", str(final))
        for attempt, (verdict, candidate) in enumerate(zip(guard.verdicts, tried, strict=False)):
            self._sink(
                Judgement(
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


def _expected(exchange: Exchange) -> Expected:
    assert exchange.asked is not None
    return Expected(exchange.asked, exchange.body)


def rerun_order(candidates: Sequence[Candidate], tried: Sequence[Candidate]) -> list[Candidate]:
    """Where a broken answer runs again: what was tried least; without speculation; on another pool; as decided."""
    pools = {candidate.pool for candidate in tried}
    return sorted(candidates, key=lambda each: (tried.count(each), each.speculative, each.pool in pools))
