"""Resumes: an answer that broke goes on elsewhere, behind the last tokens that are sound.

Which guarded answers do, how often, and with what request: where they are cut is decided in `cut.py`. Plain streams
decide that in `plain.py`; here they are counted, and engines asked.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeVar

from msgspec.structs import replace

from policies import Candidate
from serve.config.pool import ModelConfig
from serve.errors import GatewayError
from serve.guard.core import Guard, Outcome
from serve.guard.cut import Broken, Cutter, cuts_of
from serve.proxy.attempts import Ask, Attempts
from serve.proxy.routed_request import RoutedRequest
from serve.request.completion import TEXT_PATH, parse
from serve.request.continuation import CannotResumeError, continuation, obstacle
from serve.request.patch import BodyPatch
from serve.stream.splice import ChatSplice
from serve.stream.stages import TokenIds
from serve.telemetry.metrics import Metrics
from serve.telemetry.request_log import log_fault

log = logging.getLogger("ray.serve.specgate.guard")

T = TypeVar("T")
ResumeEnd = Literal["sound", "broken", "refused"]
MOST_RESUMES = 2
MOST_LOSSES = 8  # of engines of one answer, as long as each has added to it


def may_resume(outcome: Outcome, resumed: int, *, grew: bool) -> bool:
    """Returns whether a broken answer may go on elsewhere once more.

    An answer that takes every engine with it at the same place must not be given to all of them: how often it was
    resumed counts, and whether it grew by the last engine.
    """
    return resumed < (MOST_LOSSES if outcome is Outcome.FAILED and grew else MOST_RESUMES)


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


class Resumption(NamedTuple):
    """A request that goes on with an answer.

    Attributes:
        request: As it is sent.
        candidates: Where, best first.
        written: The part of the answer that it goes on with.
        cause: What was wrong with the answer.
        word: The end of what the client has, if that is to be written again.
    """

    request: RoutedRequest
    candidates: Sequence[Candidate]
    written: Written
    cause: Outcome
    word: str = ""


class Resumes:
    """Makes resumptions."""

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
        self, request: RoutedRequest, guard: Guard, written: Written, candidates: Sequence[Candidate]
    ) -> Resumption | None:
        """Returns how an answer goes on that a guard has found broken; None if its request is to run again."""
        model = self._models[request.decision.model]
        if model.guard.resume == "off":
            return None
        return await self.made(request, self._resumption(request, model, guard, written, candidates), "rerun")

    async def made(
        self, request: RoutedRequest, making: Awaitable[Resumption], otherwise: Literal["rerun", "error"]
    ) -> Resumption | None:
        """Returns a resumption; None if there can be none. Then it is counted by what happens otherwise."""
        try:
            return await making
        except CannotResumeError as error:
            reason = str(error)
        except BaseException:  # noqa: BLE001 - whatever is wrong with the resume, the request can run again
            log_fault(log, "a resume failed", request.request_id)
            reason = "fault"
        self._count(request.decision.model, otherwise, reason).inc()
        return None

    def ended(self, model: str, resumption: Resumption, outcome: ResumeEnd) -> None:
        """Counts what came of a resumption of a model's answer; `refused` if no engine took it."""
        self._count(model, outcome, str(resumption.cause)).inc()

    async def _resumption(
        self,
        request: RoutedRequest,
        model: ModelConfig,
        guard: Guard,
        written: Written,
        candidates: Sequence[Candidate],
    ) -> Resumption:
        """Does what `resumption` does.

        Raises:
            CannotResumeError: The request is to run again from the start.
        """
        broken = Broken.under(guard)
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
        cut = Cutter(model, request, broken, written.pool, ids)
        kept, text = await self.first(request, able, partial(cut.cut, cuts=cuts, begun=len(written.kept)))
        prefix = cut.prefix(kept, text, len(prompt))
        body = continuation(request.patch.apply(request.body), prompt, kept, text)
        resumed = replace(
            request, path=TEXT_PATH, body=body, patch=BodyPatch(), parsed=parse(body), continued=ChatSplice(prefix)
        )
        return Resumption(resumed, able, Written(written.pool, prompt, tuple(kept), None), broken.outcome)

    async def first(
        self, request: RoutedRequest, candidates: Sequence[Candidate], work: Callable[[Ask, Candidate], Awaitable[T]]
    ) -> T:
        """Returns what `work` does with the first candidate whose engine is there.

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
