"""Plain chat streams that go on elsewhere when their engine is lost: nobody judges them, and nothing is held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from policies import Candidate
from serve.errors import EngineError, GatewayError
from serve.guard.core import Outcome
from serve.guard.cut import MOST_RESUMES, Had
from serve.guard.path import rerun_order
from serve.guard.resume import Broken, ResumeEnd, Resumes, Resumption, Written
from serve.http1.sse import DONE, is_done
from serve.proxy.attempts import Attempt, Attempts
from serve.proxy.exchange import Exchange
from serve.proxy.headers import response_headers
from serve.proxy.relay import line_of, relay, send_stream
from serve.proxy.routed_request import RoutedRequest
from serve.request.engine_options import leaves_usage_out
from serve.request.resuming import CannotResumeError
from serve.stream.ending import INCOMPLETE, error_around, error_in, is_finish
from serve.stream.frame import TEXTS, Frame
from serve.stream.line import Check
from serve.telemetry.instruments import Telemetry

_REASONING, _CONTENT = "reasoning", "content"
_ENVELOPE = ("id", "created", "model", "system_fingerprint")


class PlainAnswer:
    """What the client has of a plain stream.

    Attributes:
        envelope: Of its chunks.
        finished: Its finish reason is out.
        readable: All that passed could be read.
        begun: Something of the answer itself is out.
    """

    def __init__(self) -> None:
        self.readable = True
        self.envelope: dict[str, Any] = {}
        self.finished = False
        self._texts: dict[str, list[str]] = {}

    @property
    def begun(self) -> bool:
        return bool(self._texts) or not self.readable

    @property
    def had(self) -> Had:
        """What went out.

        Raises:
            CannotResumeError: It is not known, or not what we would go on with.
        """
        if not self.readable or self.text("reasoning_content"):
            raise CannotResumeError("engine")
        return Had(self.text(_REASONING), self.text(_CONTENT))

    def text(self, name: str) -> str:
        """Returns what went out of a text."""
        return "".join(self._texts.get(name, ()))

    def add(self, name: str, text: str) -> None:
        """Notes what goes out of a text."""
        if text:
            self._texts.setdefault(name, []).append(text)


class PlainStream(Check):
    """Lets an attempt's stream pass, but for its end: nothing that would end an answer which is to go on.

    Args:
        answer: Notes what passes.

    Attributes:
        failure: The engine's, where it gave the answer up.
    """

    def __init__(self, answer: PlainAnswer) -> None:
        self.over = False
        self.failure: EngineError | None = None
        self._answer = answer

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame, unless it ends the stream."""
        if (template := frame.template) is not None:
            self._answer.add(template.place.field, frame.text)
            return (frame,)
        data = frame.data()
        if (failure := error_around(frame.raw)) is not None:
            self.failure, self.over = failure, True
            return ()
        if data is None:
            self._answer.readable = self._answer.readable and frame.whole
            return (frame,)
        if self.over or is_done(data):
            return ()
        try:
            chunk = frame.parsed(data)
        except EngineError:
            self._answer.readable = False
            return (frame,)
        choice = _first(chunk)
        if self._gives_up(chunk, choice):
            return ()
        self._answer.envelope = self._answer.envelope or {name: chunk[name] for name in _ENVELOPE if name in chunk}
        self._note(choice)
        return (frame,)

    def _gives_up(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> bool:
        """Returns whether the engine gives the answer up."""
        reason = choice.get("finish_reason")
        self.failure = error_in(chunk)
        if self.failure is None and reason and not is_finish(reason):
            self.failure = EngineError(f"The engine gave the answer up ({reason}).")
        self.over = self.failure is not None
        return self.over

    def _note(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {}
        if delta.get("tool_calls"):  # for which nobody has asked
            self._answer.readable = False
        for name in TEXTS:
            if isinstance(text := delta.get(name), str):
                self._answer.add(name, text)
        self._answer.finished = self._answer.finished or bool(choice.get("finish_reason"))


class ResumedStream(PlainStream):
    """Makes what another engine goes on with the rest of the stream that the client has.

    Args:
        answer: What the client has, to which the stream adds.
        usage: The client wants to be told of its usage.
    """

    exact = False

    def __init__(self, answer: PlainAnswer, *, usage: bool) -> None:
        super().__init__(answer)
        self._usage = usage
        # What is kept comes again first: so many characters of each text are the client's already.
        self._ahead = {name: len(answer.text(name)) for name in (_REASONING, _CONTENT)}

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame with what is new in it."""
        data = frame.data() if frame.chunk is None else b""
        if data is None or is_done(data):
            return ()
        chunk = {**frame.parsed(data), **self._answer.envelope}
        choice = _first(chunk)
        if self._gives_up(chunk, choice):
            return ()
        if not choice:
            return (Frame.of(chunk),) if self._usage and chunk.get("usage") else ()
        delta = {name: new for name, text in (choice.get("delta") or {}).items() if (new := self._new(name, text))}
        if not delta and choice.get("finish_reason") is None:
            return ()
        return super().feed(Frame.of({**chunk, "choices": [{**choice, "delta": delta}]}))

    def _new(self, name: str, text: Any) -> Any:
        """Returns what the client does not have of a member of a delta."""
        if name not in self._ahead or not isinstance(text, str):
            return None
        had = min(self._ahead[name], len(text))
        self._ahead[name] -= had
        return text[had:]


class PlainPath:
    """Serves plain chat streams of models with `resume: all`.

    Args:
        attempts: Sends requests to engines.
        telemetry: Spans and metrics.
        resumes: Makes resumptions.
    """

    def __init__(self, attempts: Attempts, telemetry: Telemetry, resumes: Resumes) -> None:
        self._attempts = attempts
        self._telemetry = telemetry
        self._resumes = resumes

    async def respond(self, exchange: Exchange, request: RoutedRequest) -> None:
        """Sends the response, made of one attempt or several.

        Args:
            exchange: The client's side.
            request: Nobody checks its answer.

        Raises:
            GatewayError: As raised by `Attempts.first_response` and `relay`.
        """
        answer = PlainAnswer()
        async with AsyncExitStack() as resources:
            candidates = request.decision.candidates
            attempt = await self._attempts.first_response(request, candidates, resources, exchange.attribution.tried)
            if attempt.ids is None or not attempt.response.is_stream:
                await relay(exchange, attempt, self._telemetry)
                return
            self._telemetry.first_token(exchange.arrived_s, request.decision.model, attempt.candidate.pool)
            await exchange.start_stream(attempt.response.status, response_headers(attempt.response.headers))
            failure = await self._send(exchange, attempt, PlainStream(answer))
        tried = [attempt.candidate]
        written = Written(attempt.candidate.pool, (), (), attempt.ids)
        while not answer.finished:
            self._add_fault(request, tried[-1], failure)
            resumption = await self._resumption(request, answer, tried, written)
            if resumption is None:
                raise failure
            try:
                failure, written = await self._go_on(exchange, request, answer, tried, resumption)
            except GatewayError as error:
                self._count(request, resumption, "refused")
                raise failure from error
        await exchange.end_stream([Frame(DONE)])

    async def _resumption(
        self, request: RoutedRequest, answer: PlainAnswer, tried: list[Candidate], written: Written
    ) -> Resumption | None:
        """Returns how a stream goes on, from the start as long as nothing of it is out; None if it can't."""

        def broken() -> Broken:
            return Broken(Outcome.FAILED, answer.had, resumed=len(tried) - 1)

        candidates = rerun_order(request.decision.candidates, tried, request.decision.trial)
        resumption = await self._resumes.resumption(request, broken, written, candidates)
        if resumption is None and not answer.begun and len(tried) <= MOST_RESUMES:
            return Resumption(request, candidates, Written(candidates[0].pool, (), (), None), Outcome.FAILED)
        return resumption

    async def _go_on(
        self,
        exchange: Exchange,
        request: RoutedRequest,
        answer: PlainAnswer,
        tried: list[Candidate],
        resumption: Resumption,
    ) -> tuple[EngineError, Written]:
        """Sends what another engine goes on with; returns how that broke, if it did, and the tokens so far.

        Raises:
            GatewayError: No engine goes on.
        """
        written = resumption.written
        async with AsyncExitStack() as resources:
            attempt = await self._attempts.first_response(resumption.request, resumption.candidates, resources)
            if not attempt.response.is_stream:
                raise EngineError(f"The engine answered with status {attempt.response.status}.")
            tried.append(attempt.candidate)
            exchange.attribution.rerun(attempt.candidate, tried[-2], len(written.kept))
            exchange.span.set_attribute("specgate.resumed", len(written.kept))
            resumed = ResumedStream(answer, usage=not leaves_usage_out(request.parsed))
            failure = await self._send(exchange, attempt, resumed)
        self._count(request, resumption, "sound" if answer.finished else "broken")
        pool = written.pool if written.kept else attempt.candidate.pool
        return failure, written._replace(pool=pool, ids=attempt.ids)

    async def _send(self, exchange: Exchange, attempt: Attempt, stream: PlainStream) -> EngineError:
        """Sends an attempt's stream; returns why it broke, if it did."""
        try:
            await send_stream(exchange, attempt.response, line_of(attempt, exchange, stream))
        except EngineError as error:
            return error
        return stream.failure or EngineError(INCOMPLETE)

    def _count(self, request: RoutedRequest, resumption: Resumption, outcome: ResumeEnd) -> None:
        if resumption.written.kept:  # else it was a rerun, which is counted with its reason
            self._resumes.ended(request.decision.model, resumption, outcome)

    def _add_fault(self, request: RoutedRequest, candidate: Candidate, failure: EngineError) -> None:
        faults = request.attribution.faults
        self._telemetry.log.add_fault(faults, request.request_id, candidate.pool, failure.code, failure.message)


def _first(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the first choice of a chunk; an empty one if there is none: a foreign engine may send anything."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("delta"), dict | None):
        return {}
    return choice if isinstance(choice.get("finish_reason"), str | None) else {}
