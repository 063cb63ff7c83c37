"""Answers under guard: attempts one after the other until one is sound, and where each of them runs.

A broken answer is resumed elsewhere, if it can be (`resume.py`). Otherwise its request runs again: with strict tools
first, if the model has `guard.escalate: strict` (`escalated`), then as it was, in the order of `rerun_order`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from policies import Candidate, Cell, Policy, Trial, decide, is_suspected
from serve.config.guard import Arguments
from serve.config.pool import ModelConfig
from serve.errors import EngineError, GatewayError, InvalidRequestError
from serve.guard.attempt_result import Found, Reports, ResultSink
from serve.guard.core import Guard, GuardState, Outcome, WholeGuard
from serve.guard.core.expectation import LazyRequest
from serve.guard.response import (
    GuardedResponse,
    ObservedResponse,
    StreamedResponse,
    WholeResponse,
    guard_fault,
    unjudged_error,
)
from serve.guard.resume import Resumes, Written
from serve.guard.transcript import AnyTranscript, AnyTranscripts
from serve.http1.turns import LONG_BODY_BYTES, beside
from serve.proxy.attempts import Attempt, Attempts, Held
from serve.proxy.exchange import Exchange
from serve.proxy.outgoing import usage_for
from serve.proxy.relay import relay
from serve.proxy.routed_request import RoutedRequest
from serve.proxy.stalls import Stalls
from serve.request.completion import MALFORMED
from serve.telemetry.instruments import Telemetry

ARGUMENTS_HEADER = "x-specgate-arguments"
_ARGUMENTS: dict[str, Arguments] = {name: name for name in get_args(Arguments)}
# Damage that a grammar makes impossible: the model or its parser was at a loss for the form, not for words.
_STRUCTURAL = frozenset({Outcome.INVALID_JSON, Outcome.SCHEMA_MISMATCH, Outcome.UNKNOWN_TOOL, Outcome.MARKER_LEAK})
_CALLABLE = frozenset({"auto", "required", "named"})


@dataclass
class _Answer:
    """An answer of which attempts are made.

    Attributes:
        tried: Where its attempts ran.
        written: The tokens of the last of them.
    """

    exchange: Exchange
    request: RoutedRequest
    guarded: GuardedResponse
    tried: list[Candidate]
    written: Written


class GuardedPath:
    """Serves requests under the guard. `sink` gets the result of every attempt, and `found` what came of every trial;
    `trusts` returns whether a pool's answers of a class have been so clean that calls may go out while they grow.

    Attributes:
        stalls: Gives streams up whose engine has stalled.
    """

    def __init__(
        self,
        attempts: Attempts,
        telemetry: Telemetry,
        sink: ResultSink,
        models: Mapping[str, ModelConfig],
        transcripts: AnyTranscripts,
        policy: Callable[[], Policy],
        found: Found = lambda *_: None,
        trusts: Callable[[Cell], bool] = lambda _: False,
    ) -> None:
        self._transcripts = transcripts
        self._trusts = trusts
        self._policy = policy
        self._attempts = attempts
        self._telemetry = telemetry
        self._reports = Reports(telemetry, sink, found)
        self._models = models
        self.resumes = Resumes(attempts, models, telemetry.metrics)
        self.stalls = Stalls(models, attempts.has_other, telemetry.metrics)

    async def respond(self, exchange: Exchange, request: RoutedRequest) -> None:
        """Sends the response, made of one attempt or several.

        Raises:
            IntegrityError: Every attempt was broken.
            InvalidRequestError: The request's schemas can't be read, or its header asks for what there is not.
            GatewayError: As raised by `Attempts.first_response` and `relay`.
        """
        model = self._models[request.decision.model]
        arguments = arguments_of(exchange.headers, model.guard.arguments)
        candidates = request.decision.candidates
        async with Held() as held:
            on_try = exchange.attribution.tried
            try:
                attempt = await self._attempts.first_response(request, candidates, held, on_try)
            except BaseException as error:
                self._reports.conclude(request, () if isinstance(error, GatewayError) else candidates[:1])
                raise
            status = attempt.response.status
            if status != 200:  # nothing to check: the client's fault, or the last of several failures
                self._reports.unchecked(request, attempt.candidate, status)
                await relay(exchange, attempt, self._telemetry)
                return
            if model.guard.mode == "observe":
                await self._observe(exchange, request, model, attempt)
                return
            transcript = self._transcripts.begin(request.request_id, request.attribution.engine_id)
            live = arguments == "live" or (arguments == "auto" and self._trusts(_cell(request, attempt.candidate)))
            guarded = self._guarded(exchange, request, model, attempt, transcript, live=live)
            if guarded is None:
                await relay(exchange, attempt, self._telemetry, usage_for(request.wants_usage))
                return
            if guarded.streamed:
                self.stalls.watch(request, attempt)
                model_name, pool = request.decision.model, attempt.candidate.pool
                exchange.attribution.first_token_s = self._telemetry.first_token(exchange.arrived_s, model_name, pool)
            try:
                await guarded.attempt(attempt)
            except BaseException:
                self._reports.conclude(request, [attempt.candidate])
                raise
            self._reports.evaluate(request, guarded.guard, attempt.candidate, 0)
        await self._complete(exchange, request, guarded, attempt, transcript)

    def _guarded(
        self,
        exchange: Exchange,
        request: RoutedRequest,
        model: ModelConfig,
        attempt: Attempt,
        transcript: AnyTranscript,
        *,
        live: bool,
    ) -> GuardedResponse | None:
        """Puts a response under guard; if that fails, it can't be judged: None if it is to pass nevertheless."""
        try:
            if not attempt.response.is_stream:
                whole = WholeGuard(model.guard, _lazy(request), grammar=model.grammar)
                return WholeResponse(exchange, whole, transcript)
            hasty = len(request.decision.candidates) > 1
            guard = Guard(model.guard, _lazy(request), grammar=model.grammar, live=live, hasty=hasty)
            return StreamedResponse(exchange, guard, transcript)
        except InvalidRequestError:
            raise
        except BaseException as error:
            self._reports.unguarded(request, exchange.span, attempt.candidate)
            if model.guard.unjudged == "pass":
                return None
            raise unjudged_error() from error

    async def _complete(
        self,
        exchange: Exchange,
        request: RoutedRequest,
        guarded: GuardedResponse,
        first: Attempt,
        transcript: AnyTranscript,
    ) -> None:
        """Repairs a response for as long as it has to, and ends it; its results are reported however that goes."""
        tried = [first.candidate]
        answer = _Answer(exchange, request, guarded, tried, Written(first.candidate.pool, (), (), first.ids))
        settled = False
        try:
            ran = True
            while ran and guarded.guard.state is GuardState.RERUN:
                with self._telemetry.step("rerun"):
                    ran = await self._next_attempt(answer)
            settled = True
            await guarded.finish()
        except GatewayError:
            raise
        except BaseException as error:
            failure = guard_fault(guarded.guard, len(tried) - 1)
            settled = True
            raise failure from error
        finally:
            self._reports.report(request, exchange.span, guarded.guard, tried, settled=settled)
            transcript.end(tried, guarded.guard)

    async def _next_attempt(self, answer: _Answer) -> bool:
        """Goes on with a broken answer, or runs its request again; returns False if no candidate has a response."""
        request, guarded, tried = answer.request, answer.guarded, answer.tried
        broken = guarded.guard.verdicts[-1]
        detail = f"{request.attribution.engine}: {broken.shape}"
        self._add_fault(request, tried[-1], str(broken.outcome), detail)
        candidates = rerun_order(request.decision.candidates, tried, request.decision.trial)
        resumption = await self.resumes.resumption(request, guarded.guard, answer.written, candidates)
        if resumption is not None:
            ran = await self._make_attempt(answer, resumption.request, resumption.candidates, resumption.written)
            good = ran and guarded.guard.verdicts[-1].good
            self.resumes.ended(request.decision.model, resumption, "sound" if good else "broken" if ran else "refused")
            if ran:
                return True
        from_start = Written("", (), (), None)
        if self._models[request.decision.model].guard.escalate == "strict":
            is_long = len(request.body) > LONG_BODY_BYTES
            stricter = await beside(is_long, escalated, request, broken.outcome, candidates, self._policy())
            if stricter is not None and await self._make_attempt(answer, *stricter, from_start):
                return True
        return await self._make_attempt(answer, request, candidates, from_start)

    async def _make_attempt(
        self, answer: _Answer, request: RoutedRequest, candidates: Sequence[Candidate], written: Written
    ) -> bool:
        """Sends a request as one more attempt, that goes on behind `written`; returns False if there is no response."""
        exchange, guarded, tried = answer.exchange, answer.guarded, answer.tried
        async with Held() as held:
            try:
                attempt = await self._attempts.first_response(request, candidates, held)
            except GatewayError as error:
                self._add_fault(request, tried[-1], "no_rerun", f"no rerun: {error.code}")
                return False
            candidate, response = attempt.candidate, attempt.response
            if response.status != 200 or response.is_stream != guarded.streamed:
                self._add_fault(request, candidate, "no_rerun", f"no rerun: the engine answered {response.status}")
                return False
            self.stalls.watch(request, attempt)
            tried.append(candidate)
            answer.written = written._replace(pool=written.pool or candidate.pool, ids=attempt.ids)
            kept = len(written.kept)
            exchange.attribution.rerun(candidate, tried[-2], kept)
            exchange.span.set_attribute("specgate.rerun", candidate.pool)
            if kept:
                exchange.span.set_attribute("specgate.resumed", kept)
            guarded.guard.restart(candidate.pool, kept, tried[-2].pool)
            await guarded.attempt(attempt)
            self._reports.evaluate(request, guarded.guard, candidate, len(tried) - 1)
        return True

    def _add_fault(self, request: RoutedRequest, candidate: Candidate, kind: str, detail: str) -> None:
        where = request.decision.model, candidate.pool
        self._telemetry.log.add_fault(request.attribution.faults, request.request_id, where, kind, detail)

    async def _observe(self, exchange: Exchange, request: RoutedRequest, model: ModelConfig, attempt: Attempt) -> None:
        try:
            observed = ObservedResponse(model, _lazy(request), streamed=attempt.response.is_stream)
        except BaseException:  # noqa: BLE001 - logged and reported; the answer passes
            self._reports.unguarded(request, exchange.span, attempt.candidate)
            await relay(exchange, attempt, self._telemetry)
            return
        try:
            await relay(exchange, attempt, self._telemetry, observed)
        except EngineError as error:
            await observed.finish_response(error)
            raise
        else:
            await observed.finish_response()
        finally:
            self._reports.evaluate(request, observed.guard, attempt.candidate, 0)
            self._reports.report(request, exchange.span, observed.guard, [attempt.candidate], settled=True)


def arguments_of(headers: Mapping[str, str], configured: Arguments) -> Arguments:
    """Returns when the arguments of calls are to go out; as configured for requests that do not say.

    Raises:
        InvalidRequestError: The header has another value than those there are.
    """
    asked = headers.get(ARGUMENTS_HEADER)
    if asked is None:
        return configured
    found = _ARGUMENTS.get(asked.strip().lower())
    if found is None:
        raise InvalidRequestError(
            f"The header {ARGUMENTS_HEADER} must be `held`, `live` or `auto`, not {asked!r}.", param=ARGUMENTS_HEADER
        )
    return found


def _cell(request: RoutedRequest, candidate: Candidate) -> Cell:
    return Cell(request.decision.model, candidate.pool, candidate.speculative, request.features.request_class)


def _lazy(request: RoutedRequest) -> LazyRequest:
    return LazyRequest(request.parsed, request.body)


def rerun_order(
    candidates: Sequence[Candidate], tried: Sequence[Candidate], trial: Trial | None = None
) -> list[Candidate]:
    """Orders the candidates of a rerun: least tried first, then without speculation, then on another pool.

    Where two candidates are compared, each is the other's first rerun, or the comparison would favour one of them.
    """
    pools = {candidate.pool for candidate in tried}
    other = trial.other if trial is not None and trial.paired and tried[-1] == trial.first else None
    return sorted(candidates, key=lambda each: (tried.count(each), each != other, each.speculative, each.pool in pools))


class _ToolsOnly(Struct):
    tools: list[dict[str, Raw]]


_tools = msgspec.json.Decoder(_ToolsOnly).decode
_function = msgspec.json.Decoder(dict[str, Raw]).decode


def escalated(
    request: RoutedRequest, broken: Outcome, candidates: Sequence[Candidate], policy: Policy
) -> tuple[RoutedRequest, list[Candidate]] | None:
    """Returns a request again with strict tools, and where of its candidates it may run so.

    None if that is of no use, given how its answer was `broken`, or not allowed by the policy.
    """
    features, trial = request.features, request.decision.trial
    loose = features.tools and features.tool_choice in _CALLABLE and not features.strict_tools
    if broken not in _STRUCTURAL or not loose or (trial is not None and trial.paired):
        return None
    stricter = features._replace(strict_tools=True)
    allowed = decide(policy, stricter, stricter.preference).candidates
    model, request_class = request.decision.model, stricter.request_class
    sound = [
        each
        for each in candidates
        if not each.speculative
        and each in allowed
        and not is_suspected(policy, Cell(model, each.pool, each.speculative, request_class))
    ]
    if not sound:
        return None
    patch = request.patch.copy()
    try:
        patch.set("tools", _strict(request.patch.apply(request.body)))
    except MALFORMED:  # an engine may have taken what we do not
        return None
    return replace(request, patch=patch, features=stricter), sound


def _strict(body: bytes) -> bytes:
    """Returns the tools of a chat request, each of them strict."""
    tools = _tools(body).tools
    for tool in tools:
        if "function" in tool:
            tool["function"] = Raw(msgspec.json.encode({**_function(tool["function"]), "strict": True}))
    return msgspec.json.encode(tools)
