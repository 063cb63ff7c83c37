"""A request whose decision is made, and who serves it, as the headers, the metrics, the spans and the log name that."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from policies import Candidate, Decision, RequestFeatures
from serve.http1.message import RawHeaders
from serve.limits.answer_meter import AnyMeter
from serve.limits.charge import NULL_CHARGE, AnyCharge
from serve.request.completion import CompletionRequest
from serve.request.patch import BodyPatch
from serve.routing.fair_queue import ANONYMOUS, Asker
from serve.stream.splice import ChatSplice, TextSplice


class Answering(Struct, frozen=True):
    """The attempt whose answer goes to the client."""

    candidate: Candidate
    meter: AnyMeter
    sent_s: float


class Attribution(Struct):
    """Names the model and the pool that serve a request, for the response's headers, the metrics and the log.

    Attributes:
        engine_id: Under which engines get the request, with the attempt's number; empty until it is decided.
        model: Empty until the request is decided.
        pool: Empty until a pool is tried; after a rerun still the first pool that responded.
        speculative: `on` or `off`.
        reasons: Of the decision, and what came up after it.
        reran: Where it was run again or goes on, as a header says it; empty if it was not.
        rate_headers: The response's headers on rates and quotas.
        faults: What went wrong on the way to the response, in words of few.
        waited_s: For slots, of all attempts.
        first_token_s: From the request to the first bytes of a stream; None without one.
        near_copies: Calls of all attempts that name what is nearly in the prompt.
        engine: The address of the last engine that has answered, with an error too.
        answering: The last attempt that an engine has answered.
    """

    engine_id: str = ""
    model: str = ""
    pool: str = ""
    speculative: str = "off"
    reasons: tuple[str, ...] = ()
    reran: str = ""
    headers: dict[bytes, bytes] = {}
    rate_headers: RawHeaders = []
    faults: list[str] = []
    waited_s: float = 0.0
    first_token_s: float | None = None
    request_class: str = ""
    near_copies: int = 0
    engine: str = ""
    answering: Answering | None = None

    def decided(self, decision: Decision) -> None:
        """Names the model and the reasons of the decision."""
        self.model = decision.model
        self._give(decision.advisories)

    def add_reason(self, reason: str) -> None:
        """Adds a reason that came up after the decision."""
        if reason not in self.reasons:
            self._give((*self.reasons, reason))

    def _give(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        self.headers[b"x-specgate-reasons"] = ",".join(reasons).encode("latin-1", "replace")

    def tried(self, candidate: Candidate) -> None:
        """Names the candidate to which the request goes now."""
        self.pool = candidate.pool
        self.speculative = "on" if candidate.speculative else "off"
        self.headers[b"x-specgate-pool"] = self.pool.encode()
        self.headers[b"x-specgate-speculative"] = self.speculative.encode()

    def rerun(self, candidate: Candidate, broken: Candidate, kept_tokens: int = 0) -> None:
        """Names the candidate that runs the request again, or goes on with the tokens of the broken answer before."""
        resumed = f"; resumed={kept_tokens}; from={broken.pool}" if kept_tokens else ""
        self.reran = candidate.pool + resumed
        self.headers[b"x-specgate-rerun"] = self.reran.encode()


class RoutedRequest(Struct, frozen=True):
    """A request whose decision is made.

    Attributes:
        headers: The client's, by lower-case name.
        body: JSON, as the client sent it.
        patch: What must change in the body before an engine gets it, whichever it is.
        parsed: The body as the client sent it, parsed.
        guarded: True if the guard checks the response, so that our parsers must report what they can't read.
        attempt_numbers: Numbers of the attempts to come, reruns included.
        attribution: The exchange's. Has the request's id at engines, and notes their faults and what else the log says.
        charge: Has a meter for each attempt.
        asker: On whose behalf slots are asked for.
        continued: Makes the answer the whole one, if the request goes on with one that was cut.
        wants_usage: The answer is to tell its usage; a stream's client gets it only if it has asked, whoever else has.
        sees_drafts: The caller asks what the engine reports of its drafts, and may see it.
    """

    path: str
    headers: Mapping[str, str]
    request_id: str
    body: bytes
    patch: BodyPatch
    parsed: CompletionRequest
    features: RequestFeatures
    decision: Decision
    guarded: bool
    attempt_numbers: Iterator[int]
    attribution: Attribution
    charge: AnyCharge = NULL_CHARGE
    asker: Asker = ANONYMOUS
    continued: ChatSplice | TextSplice | None = None
    wants_usage: bool = True
    sees_drafts: bool = False
