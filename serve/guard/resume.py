"""Resumes: an answer that broke goes on elsewhere, behind the last tokens that are sound."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from policies import Candidate
from serve.config.pool import ModelConfig
from serve.errors import GatewayError
from serve.guard.core import Guard, Outcome, Severity
from serve.guard.cut import Boundaries, Cut, Had, SoundPart, boundaries, cuts_of, joined, may_resume
from serve.proxy.attempts import Ask, Attempts
from serve.proxy.raw_text import raw_text
from serve.proxy.routed_request import RoutedRequest
from serve.request.beside import beside
from serve.request.completion import TEXT_PATH, parse
from serve.request.patch import BodyPatch
from serve.request.resuming import CannotResumeError, continuation, obstacle
from serve.stream.continuation import Continuation, KeptPrefix, without_turn_end
from serve.stream.parsed import MODELS_OWN_IDS, RawChoice
from serve.stream.token_ids import TokenIds
from serve.telemetry.metrics import Metrics
from serve.telemetry.request_log import log_fault

log = logging.getLogger("ray.serve.specgate.guard")

T = TypeVar("T")
ResumeEnd = Literal["sound", "broken", "refused"]
_DETOKENIZE = "/detokenize"
_INCOMPLETE = "\ufffd"  # what a tokenizer makes of the first bytes of a character
_MOST_BYTES = 3  # of a character that is not complete
_LONG_CHARS = 4096
_MOST_CHARS = 256 * 1024  # of an answer that is read again, character by character


class Written(NamedTuple):
    """The tokens of an answer so far.

    Attributes:
        pool: That made the prompt.
        prompt: Its ids; empty if they are to come with the answer's own.
        kept: Ids of the answer that the present attempt goes on with.
        ids: Of what the present attempt adds; None if nobody asked for them.
    """

    pool: str
    prompt: tuple[int, ...]
    kept: tuple[int, ...]
    ids: TokenIds | None


class Broken(NamedTuple):
    """A broken answer.

    Attributes:
        outcome: What is wrong with it.
        had: What its client has of it.
        call: The first that is damaged; None if nothing is wrong with any.
        resumed: How often it has gone on elsewhere already.
        sound: Judges arguments.
    """

    outcome: Outcome
    had: Had
    call: int | None = None
    resumed: int = 0
    sound: SoundPart = lambda *_: 0

    @classmethod
    def under(cls, guard: Guard) -> Broken:
        """Returns the answer that a guard has found broken.

        Raises:
            CannotResumeError: Its reasoning has another name than we would go on with.
        """
        view, verdict = guard.sent(), guard.verdicts[-1]
        if view.text_sent("reasoning_content"):
            raise CannotResumeError("engine")
        arguments = None if view.live is None else view.live.sent
        had = Had(view.text_sent("reasoning"), view.text_sent("content"), tuple(view.names_sent), arguments)
        calls = [
            defect.call
            for defect in verdict.defects
            if defect.call is not None and defect.severity is not Severity.NOTE
        ]
        return cls(verdict.outcome, had, min(calls, default=None), guard.resumed, guard.sound_part)


class Resumption(NamedTuple):
    """A request that goes on with an answer.

    Attributes:
        request: As it is sent.
        candidates: Where, best first.
        written: The part of the answer that it goes on with.
        cause: What was wrong with the answer.
    """

    request: RoutedRequest
    candidates: Sequence[Candidate]
    written: Written
    cause: Outcome


class Resumes:
    """Makes resumptions.

    Args:
        attempts: Ask engines.
        models: The configured models, by name.
        metrics: Get the number of resumes, and of reruns in their place.
    """

    def __init__(self, attempts: Attempts, models: Mapping[str, ModelConfig], metrics: Metrics) -> None:
        self._attempts = attempts
        self._models = models
        self._count = metrics.counter(
            "specgate_resumes_total",
            "Broken answers that were to continue elsewhere, by how that ended and what was wrong",
            "model",
            "outcome",
            "reason",
        )

    async def resumption(
        self, request: RoutedRequest, broken: Callable[[], Broken], written: Written, candidates: Sequence[Candidate]
    ) -> Resumption | None:
        """Returns how a broken answer goes on; None if its request is to run again from the start.

        Args:
            request: Of the client.
            broken: Returns the answer.
            written: Its tokens.
            candidates: Where it may go on, best first.
        """
        model = self._models[request.decision.model]
        if model.guard.resume == "off":
            return None

        async def make() -> Resumption:
            return await self._resumption(request, model, broken(), written, candidates)

        return await self.made(request, make, "rerun")

    async def made(
        self, request: RoutedRequest, make: Callable[[], Awaitable[Resumption]], otherwise: Literal["rerun", "error"]
    ) -> Resumption | None:
        """Returns a resumption; None if there can be none.

        Args:
            request: Of the client.
            make: Returns it, or raises why there is none.
            otherwise: What happens in its place, by which it is counted.
        """
        try:
            return await make()
        except CannotResumeError as error:
            reason = str(error)
        except Exception:  # noqa: BLE001 - whatever is wrong with the resume, the request can run again
            log_fault(log, "a resume failed", request.request_id)
            reason = "fault"
        self._count(request.decision.model, otherwise, reason).inc()
        return None

    def ended(self, model: str, resumption: Resumption, outcome: ResumeEnd) -> None:
        """Counts what came of a resumption.

        Args:
            model: The model's own name.
            resumption: That was tried.
            outcome: `refused` if no engine took it.
        """
        self._count(model, outcome, str(resumption.cause)).inc()

    async def _resumption(
        self,
        request: RoutedRequest,
        model: ModelConfig,
        broken: Broken,
        written: Written,
        candidates: Sequence[Candidate],
    ) -> Resumption:
        """Does what `resumption` does.

        Raises:
            CannotResumeError: The request is to run again from the start.
        """
        if written.ids is None:
            raise CannotResumeError(obstacle(request.features) or "engine")
        if request.decision.trial is not None and request.decision.trial.paired:
            raise CannotResumeError("trial")  # which compares whole answers
        if not may_resume(broken.outcome, broken.resumed, grew=bool(written.ids.written)):
            raise CannotResumeError("resumed")
        cuts = cuts_of(broken.outcome, broken.resumed, in_call=broken.call is not None)
        if not cuts:
            raise CannotResumeError("damage")
        prompt, ids = written.prompt or tuple(written.ids.prompt), [*written.kept, *written.ids.written]
        if not prompt or not ids:
            raise CannotResumeError("no_ids")
        able = [candidate for candidate in candidates if self._attempts.resumes(request, candidate)]
        cut = _Cutter(model, request, broken, written.pool, ids)
        kept, text = await self.first(request, able, partial(cut.cut, cuts=cuts, begun=len(written.kept)))
        prefix = cut.prefix(kept, text, len(prompt))
        body = continuation(request.patch.apply(request.body), prompt, kept, text)
        resumed = replace(
            request, path=TEXT_PATH, body=body, patch=BodyPatch(), parsed=parse(body), continued=Continuation(prefix)
        )
        return Resumption(resumed, able, Written(written.pool, prompt, tuple(kept), None), broken.outcome)

    async def first(
        self, request: RoutedRequest, candidates: Sequence[Candidate], work: Callable[[Ask, Candidate], Awaitable[T]]
    ) -> T:
        """Returns what the first candidate answers whose engine is there.

        Args:
            request: On whose behalf.
            candidates: Whom to ask, best first.
            work: Asks.

        Raises:
            CannotResumeError: No engine answers, or as raised by `work`.
        """
        for candidate in candidates:
            try:
                async with self._attempts.asking(request, candidate) as ask:
                    return await work(ask, candidate)
            except GatewayError:
                continue
        raise CannotResumeError("unreachable" if candidates else "engine")


class _Cutter:
    """Cuts one answer.

    Args:
        model: That wrote it.
        request: That it answers.
        broken: The answer.
        pool: That made its prompt.
        ids: Its tokens.
    """

    def __init__(self, model: ModelConfig, request: RoutedRequest, broken: Broken, pool: str, ids: list[int]) -> None:
        reader = raw_text(model, pool)
        self._grammar = reader.grammar
        self._open = reader.opener(request.parsed)
        self._ids = ids
        self._had, self._sound = broken.had, broken.sound
        self._call = len(broken.had.calls) if broken.call is None else broken.call

    async def cut(self, ask: Ask, candidate: Candidate, cuts: Sequence[Cut], begun: int) -> tuple[list[int], str]:
        """Returns the ids that are kept, and their text.

        Args:
            ask: Asks an engine, which knows what ids spell.
            candidate: Whose engine it is.
            cuts: Where, best first.
            begun: Number of tokens with which the broken attempt began: there it is not cut again.

        Raises:
            CannotResumeError: There is no such place.
            GatewayError: The engine does not answer.
        """
        kept, text = await self._end(ask)
        if cuts[0] is not Cut.END:
            if len(text) > _MOST_CHARS:
                raise CannotResumeError("long")
            found, places = await beside(len(text) > _LONG_CHARS, self._places, text, cuts)
            if not places:
                raise CannotResumeError("passed")
            kept, text = await self._before_any(ask, kept, text, found, places, begun)
        if not kept:
            raise CannotResumeError("start")
        return kept, text

    def _places(self, text: str, cuts: Sequence[Cut]) -> tuple[Boundaries, list[int]]:
        """Returns where a text can be cut, and the places of the cuts that there are."""
        found = boundaries(self._open(), text, self._had)
        places = (found.place(cut, self._call, self._sound) for cut in cuts)
        return found, [place for place in places if place is not None]

    async def _end(self, ask: Ask) -> tuple[list[int], str]:
        """Returns the tokens of whole characters, without the one that ended the turn."""
        kept = self._ids
        text = await _text_of(ask, kept)
        for _ in range(_MOST_BYTES):
            if text.endswith(_INCOMPLETE) and kept:
                kept = kept[:-1]
                text = await _text_of(ask, kept)
        turn = without_turn_end(text)
        return (kept, text) if turn == text else (kept[:-1], turn)

    async def _before_any(
        self, ask: Ask, ids: list[int], text: str, found: Boundaries, places: Sequence[int], begun: int
    ) -> tuple[list[int], str]:
        """Returns the tokens before the first of some places at which the attempt has not begun, and their text."""
        for place in places:
            kept, before = await self._before(ask, ids, text, place)
            if len(kept) != begun or place == places[-1]:
                break
        if found.client is None or len(before) < found.client or not text.startswith(before):
            raise CannotResumeError("token")  # one that holds both what is sound and what is not
        return kept, before

    async def _before(self, ask: Ask, ids: list[int], text: str, place: int) -> tuple[list[int], str]:
        """Returns the tokens before a place of the text, and their text."""
        low, high, before = 0, len(ids), ""
        while low < high:
            middle = (low + high + 1) // 2
            said = await _text_of(ask, ids[:middle])
            if len(said.rstrip(_INCOMPLETE)) <= place:
                low, before = middle, said
            else:
                high = middle - 1
        for _ in range(_MOST_BYTES):
            if low and not text.startswith(before):  # it ends inside a character
                low -= 1
                before = await _text_of(ask, ids[:low])
        return ids[:low], before

    def prefix(self, kept: list[int], text: str, prompt_tokens: int) -> KeptPrefix:
        """Returns what is kept of the answer, as the client is to have it.

        Raises:
            CannotResumeError: The client has something else.
        """
        parser = self._open()
        reader = RawChoice(parser, own_ids=self._grammar in MODELS_OWN_IDS, reports=True)
        delta, _ = reader.feed(text)
        names = [entry["function"]["name"] for entry in delta.get("tool_calls", ())]
        if tuple(names[: len(self._had.calls)]) != self._had.calls:
            raise CannotResumeError("passed")
        for name, had in (("reasoning", self._had.reasoning), ("content", self._had.content)):
            both = joined(had, delta.get(name, ""), parser.machine.held)
            if both is None:
                raise CannotResumeError("passed")
            if both:
                delta[name] = both
        return KeptPrefix(reader, delta, len(kept), prompt_tokens)


async def _text_of(ask: Ask, ids: Sequence[int]) -> str:
    """Returns what ids spell.

    Raises:
        GatewayError: The engine does not answer.
        CannotResumeError: It does not know.
    """
    try:
        text = msgspec.json.decode(await ask(_DETOKENIZE, msgspec.json.encode({"tokens": ids})))["prompt"]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CannotResumeError("engine") from error
    if not isinstance(text, str):
        raise CannotResumeError("engine")
    return text
