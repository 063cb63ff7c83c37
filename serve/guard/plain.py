"""Plain streams that go on elsewhere when their engine is lost: nobody judges them, and nothing is held or asked for.

The bytes that went out are kept, and read only if something has to follow them (docs/adr/0116).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from policies import Candidate
from serve.config.pool import AUTO, NO_GRAMMAR, ModelConfig
from serve.errors import EngineError, GatewayError
from serve.guard.core import Outcome
from serve.guard.cut import may_resume
from serve.guard.plain_answer import PlainAnswer, ResumedStream, Retold, prefix_of, raw_of, retold
from serve.guard.rerun import rerun_order
from serve.guard.resume import ResumeEnd, Resumes, Resumption, Written
from serve.http1.sse import DONE
from serve.parsing import StreamParser
from serve.proxy.attempts import Ask, Attempt, Attempts
from serve.proxy.exchange import Exchange
from serve.proxy.held import Held
from serve.proxy.outgoing import goes_on
from serve.proxy.raw_text import raw_text
from serve.proxy.relay import line_of, relay, send_stream
from serve.proxy.routed_request import RoutedRequest
from serve.proxy.stalls import Stalls
from serve.request.beside import beside
from serve.request.completion import CHAT_PATH, TEXT_PATH, parse
from serve.request.patch import BodyPatch
from serve.request.resuming import CannotResumeError, continuation, obstacle, tokenizing
from serve.stream.continuation import Continuation, MoreText
from serve.stream.ending import INCOMPLETE
from serve.stream.frame import Frame
from serve.stream.line import Kept
from serve.telemetry.instruments import Telemetry

_MANY_PARTS = 64


class PlainPath:
    """Serves the plain requests of models with `resume: all`.

    Args:
        attempts: Sends requests to engines.
        telemetry: Spans and metrics.
        resumes: Makes resumptions.
        models: The configured models, by name.
        stalls: Give streams up whose engine has stalled.

    Attributes:
        models: Names of those whose plain requests it serves: some engine of theirs can go on with an answer.
    """

    def __init__(
        self,
        attempts: Attempts,
        telemetry: Telemetry,
        resumes: Resumes,
        models: Mapping[str, ModelConfig],
        stalls: Stalls,
    ) -> None:
        self._stalls = stalls
        self._attempts = attempts
        self._telemetry = telemetry
        self._resumes = resumes
        self._models = models
        self.models = frozenset(
            name for name, model in models.items() if any(goes_on(model, pool) for pool in model.pools.values())
        )

    async def respond(self, exchange: Exchange, request: RoutedRequest) -> None:
        """Sends the response, made of one attempt or several.

        Args:
            exchange: The client's side.
            request: A chat or text completion whose answer nobody checks.

        Raises:
            GatewayError: As raised by `Attempts.first_response` and `relay`.
        """
        broken = await self._attempt(exchange, request, request.decision.candidates)
        if broken is not None:  # nothing of it is out
            tried, failure = broken
            self._add_fault(request, tried, failure)
            again = rerun_order(request.decision.candidates, [tried], request.decision.trial)
            if await self._attempt(exchange, request, again) is not None:
                raise failure

    async def _attempt(
        self, exchange: Exchange, request: RoutedRequest, candidates: Sequence[Candidate]
    ) -> tuple[Candidate, EngineError] | None:
        """Sends a response; returns whose it was and why it broke if nothing of it is out.

        Args:
            exchange: The client's side.
            request: Of the client.
            candidates: Where it may go, best first.

        Raises:
            GatewayError: As of `respond`.
        """
        async with Held() as held:
            attempt = await self._attempts.first_response(request, candidates, held, exchange.attribution.tried)
            kept = go_on = None
            if attempt.response.is_stream:
                self._stalls.watch(request, attempt)
                kept = Kept()
                go_on = partial(self._go_on, exchange, request, attempt, kept, held)
            try:
                await relay(exchange, attempt, self._telemetry, kept=kept, go_on=go_on)
            except EngineError as error:
                if exchange.status:
                    raise
                return attempt.candidate, error
        return None

    async def _go_on(
        self,
        exchange: Exchange,
        request: RoutedRequest,
        attempt: Attempt,
        kept: Kept,
        held: Held,
        failure: EngineError,
    ) -> bool:
        """Goes on with a stream until it is complete; returns False if the client must get an error.

        Args:
            exchange: The client's side.
            request: Of the client.
            attempt: Whose engine is lost.
            kept: What it has sent.
            held: Of the attempt.
            failure: Why it is lost.
        """
        await held.release()  # nobody waits for the slot of an engine that is lost
        answer = PlainAnswer(chat=request.path == CHAT_PATH)
        await beside(len(kept.parts) > _MANY_PARTS, answer.read, kept.parts)
        reads, model = attempt.candidate.pool, self._models[request.decision.model]
        if answer.chat and model.pools[reads].parse == "gateway":
            answer.parse(raw_text(model, reads).opener(request.parsed)())
        tried = [attempt.candidate]
        broken: EngineError | None = failure
        length, before = answer.length, 0
        while broken is not None and not answer.finished:
            self._add_fault(request, tried[-1], broken)
            resumption = await self._resumption(request, answer, tried, lost=kept.lost, grew=length > before)
            if resumption is None:
                return False
            before = length
            try:
                broken = await self._send(exchange, request, answer, tried, resumption)
            except GatewayError:
                self._count(request, resumption, "refused")
                return False
            length = answer.length
        await exchange.end_stream([Frame(DONE)])
        return True

    async def _resumption(
        self, request: RoutedRequest, answer: PlainAnswer, tried: list[Candidate], *, lost: bool, grew: bool
    ) -> Resumption | None:
        """Returns how a stream goes on, from the start as long as nothing of it is out; None if it can't.

        Args:
            request: Of the client.
            answer: What the client has.
            tried: Whose engines were lost.
            lost: Nobody knows what the client has.
            grew: The last engine has added to the answer.
        """
        candidates = rerun_order(request.decision.candidates, tried, request.decision.trial)
        may = may_resume(Outcome.FAILED, len(tried) - 1, grew=grew)
        if not answer.begun and not lost and may:
            return Resumption(request, candidates, Written(candidates[0].pool, (), (), None), Outcome.FAILED)

        async def make() -> Resumption:
            if lost:
                raise CannotResumeError("long")
            if not may:
                raise CannotResumeError("resumed")
            return await self._retold(request, answer, candidates)

        return await self._resumes.made(request, make, "error")

    async def _retold(self, request: RoutedRequest, answer: PlainAnswer, candidates: Sequence[Candidate]) -> Resumption:
        """Returns how a stream goes on of which something is out.

        Args:
            request: Of the client.
            answer: What the client has.
            candidates: Where it may go on, best first.

        Raises:
            CannotResumeError: It can't.
        """
        asked = bytes(request.parsed.return_token_ids) == b"true"  # those that a text is made of may be others
        if reason := obstacle(request.features, exact=False) or ("fields" if asked else None):
            raise CannotResumeError(reason)
        able = [candidate for candidate in candidates if self._attempts.resumes(request, candidate)]
        if not able:
            raise CannotResumeError("engine")
        had, pool = answer.had, able[0].pool
        open_ = self._opener(request, pool) if answer.chat else None
        text = had.content if open_ is None else raw_of(had, open_(), splits=self._splits(request, pool))

        async def ids(ask: Ask, candidate: Candidate) -> Retold:
            return await retold(ask, tokenizing(self._attempts.prompt_of(request, candidate)), text)

        before, kept = tokens = await self._resumes.first(request, able, ids)
        sent = request.patch.apply(request.body)
        body = continuation(sent, before, kept, text, exact=False, raw=open_ is not None)
        prefix = prefix_of(open_ and open_(), had, text, tokens)
        more = Continuation(prefix) if answer.chat else MoreText(prefix)
        resumed = replace(request, path=TEXT_PATH, body=body, patch=BodyPatch(), parsed=parse(body), continued=more)
        return Resumption(resumed, able, Written(pool, tuple(before), tuple(kept), None), Outcome.FAILED)

    def _opener(self, request: RoutedRequest, pool: str) -> Callable[[], StreamParser] | None:
        """Returns what makes a parser of an answer to a chat request; None if nobody knows how its model writes.

        Raises:
            CannotResumeError: All that it writes is in channels, and nothing says in which one a text was.
        """
        model = self._models[request.decision.model]
        if model.grammar in (AUTO, NO_GRAMMAR):
            return None
        reader = raw_text(model, pool)
        if reader.thinking.start == "channel":
            raise CannotResumeError("reasoning")
        return reader.opener(request.parsed)

    def _splits(self, request: RoutedRequest, pool: str) -> bool:
        """Returns whether a pool's answers are known to tell reasoning and text apart."""
        settings = self._models[request.decision.model].pools[pool]
        return settings.kind == "vllm" or settings.parse == "gateway"

    async def _send(
        self,
        exchange: Exchange,
        request: RoutedRequest,
        answer: PlainAnswer,
        tried: list[Candidate],
        resumption: Resumption,
    ) -> EngineError | None:
        """Sends what another engine goes on with; returns why that broke, if it did.

        Raises:
            GatewayError: No engine goes on.
        """
        kept = len(resumption.written.kept)
        broken: EngineError | None = None
        async with Held() as held:
            attempt = await self._attempts.first_response(resumption.request, resumption.candidates, held)
            if not attempt.response.is_stream:
                raise EngineError(f"The engine answered with status {attempt.response.status}.")
            self._stalls.watch(request, attempt)
            tried.append(attempt.candidate)
            exchange.attribution.rerun(attempt.candidate, tried[-2], kept)
            exchange.span.set_attribute("specgate.resumed", kept)
            resumed = ResumedStream(answer)
            try:
                await send_stream(exchange, attempt.response, line_of(attempt, exchange, resumed))
            except EngineError as error:
                broken = error
        self._count(request, resumption, "sound" if answer.finished else "broken")
        return None if answer.finished else resumed.failure or broken or EngineError(INCOMPLETE)

    def _count(self, request: RoutedRequest, resumption: Resumption, outcome: ResumeEnd) -> None:
        if resumption.written.kept:  # else it was a rerun
            self._resumes.ended(request.decision.model, resumption, outcome)

    def _add_fault(self, request: RoutedRequest, candidate: Candidate, failure: EngineError) -> None:
        faults, where = request.attribution.faults, (request.decision.model, candidate.pool)
        detail = f"the engine's answer broke: {failure.code}"  # its words may quote the request
        self._telemetry.log.add_fault(faults, request.request_id, where, failure.code, detail)
