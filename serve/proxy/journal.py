"""What is known of a request that has ended, for its line in the log and for the dashboard; and the last ones of a
gateway replica, for whoever has an id, and to see what failed.
"""

import time
from collections import OrderedDict, deque
from itertools import islice
from sys import intern
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict
from opentelemetry.trace import INVALID_SPAN, Span

from serve.proxy.exchange import Exchange

_REQUESTS = 2000
_FAILURES = 100
_MODELS = 50
_FAILED = 400
CLIENT_LEFT = 499  # nginx's number for it
# What a line in the log does without: its own time, what a client wrote, and what metrics tell.
_UNLOGGED = ("at_s", "asked", "request_class", "first_token_s")


class Ended(Struct, frozen=True, gc=False):
    """A request that is over: ids, names and figures, and of what a client or a model wrote only `asked`.

    Attributes:
        at_s: Its end in Unix time.
        engine_id: Under which engines got it, with the attempt's number.
        key: Id of the caller's key, as usage and the audit log have it. Of a refused request, only if the key was valid
            here once.
        tenant: Whose it was; empty if it was refused and its key is not known.
        path: That the client asked for.
        status: The response's; 499 if the client left.
        error: Code of our error; empty if the gateway sent none.
        model: The model's own name; empty if there is none.
        asked: What was asked for, if no model has that name.
        engine: The address of the last engine that has answered.
        speculative: `on` or `off`.
        rerun: The pool that ran it again.
        reasons: Of its decision.
        faults: What went wrong on the way, an attempt each.
        near_copies: Calls of all attempts that name what is nearly in the prompt.
        waited_s: For slots.
        first_token_s: Until the stream began.
        duration_s: Of all of it.
        trace_id: In hexadecimal digits; empty without a trace.
    """

    at_s: float
    request_id: str
    engine_id: str
    key: str
    tenant: str
    path: str
    status: int
    error: str
    model: str
    asked: str
    request_class: str
    pool: str
    engine: str
    speculative: str
    rerun: str
    reasons: str
    faults: tuple[str, ...]
    near_copies: int
    stream: bool
    waited_s: float
    first_token_s: float | None
    duration_s: float
    trace_id: str

    @property
    def cause(self) -> str:
        """Why the request failed: the code of our error, or `engine` if an engine refused; empty if it did not."""
        return (self.error or "engine") if self.status >= _FAILED and self.status != CLIENT_LEFT else ""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for the dashboard."""
        shown = {"error": self.error or self.cause, "model": self.model or self.asked, "faults": list(self.faults)}
        return asdict(self) | shown

    def log_fields(self) -> dict[str, Any]:
        """Returns the fields of the request's line in the log: nothing that a client or a model wrote."""
        fields = {name: value for name, value in asdict(self).items() if name not in _UNLOGGED}
        if not self.trace_id:
            del fields["trace_id"]
        fields["waited_ms"] = round(fields.pop("waited_s") * 1000)
        fields["duration_ms"] = round(fields.pop("duration_s") * 1000)
        return fields | {"faults": list(self.faults)}


class Journal:
    """The last requests, the last failures, and the names that no model has."""

    def __init__(self) -> None:
        self._last: deque[Ended] = deque(maxlen=_REQUESTS)
        self._failures: deque[Ended] = deque(maxlen=_FAILURES)
        self._unknown: OrderedDict[str, int] = OrderedDict()

    def add(self, exchange: Exchange, path: str) -> Ended:
        """Keeps a request that has ended, and returns what is kept of it.

        `path` is the one that the client asked for.
        """
        served, principal = exchange.attribution, exchange.principal
        # All of a request that lives on: what it was made of is free again while the processor still has it at hand. Of
        # paths and lists of reasons there are few.
        kept = Ended(
            time.time(), exchange.request_id, served.engine_id, principal.key_id, principal.tenant.name, intern(path),
            exchange.status, exchange.error, served.model, exchange.asked, served.request_class, served.pool,
            served.engine, served.speculative, served.reran, intern(",".join(served.reasons)), tuple(served.faults),
            served.near_copies, exchange.streaming, served.waited_s, served.first_token_s,
            time.monotonic() - exchange.arrived_s, "" if exchange.span is INVALID_SPAN else _trace_id(exchange.span),
        )  # fmt: skip
        self._last.append(kept)
        if not kept.cause:
            return kept
        self._failures.append(kept)
        if asked := kept.asked:
            self._unknown[asked] = self._unknown.pop(asked, 0) + 1
            if len(self._unknown) > _MODELS:
                self._unknown.popitem(last=False)
        return kept

    def find(self, request_id: str) -> Ended | None:
        """Returns the request with an id of our making, or else the newest with one that its client chose, who may have
        taken another's; None if it is not kept any more.
        """
        same = [kept for kept in reversed(self._last) if request_id in (kept.request_id, kept.engine_id)]
        return next((kept for kept in same if kept.engine_id == request_id), same[0] if same else None)

    def failures(self, most: int) -> list[Ended]:
        """Returns the last requests that failed, newest first."""
        return [*islice(reversed(self._failures), most)]

    def unknown_models(self) -> dict[str, int]:
        """Returns how often each of the last names was asked for that no model has."""
        return dict(self._unknown)


def _trace_id(span: Span) -> str:
    traced = span.get_span_context()
    return f"{traced.trace_id:032x}" if traced.is_valid else ""
