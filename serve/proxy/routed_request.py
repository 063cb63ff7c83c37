"""A request whose decision is made."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from policies import Decision, RequestFeatures
from serve.limits.charge import NULL_CHARGE, AnyCharge
from serve.proxy.attribution import Attribution
from serve.request.completion import CompletionRequest
from serve.request.patch import BodyPatch
from serve.routing.fair_queue import ANONYMOUS, Asker
from serve.stream.splice import ChatSplice, TextSplice


class RoutedRequest(Struct, frozen=True):
    """A request whose decision is made.

    Attributes:
        path: The HTTP path.
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
