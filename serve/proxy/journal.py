"""The last requests of one gateway replica: for whoever has an id, and to see what failed."""

import time
from collections import OrderedDict, deque
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from serve.proxy.exchange import Exchange

_REQUESTS = 2000
_FAILURES = 100
_MODELS = 50
_FAILED = 400
CLIENT_LEFT = 499  # nginx's number for it


class Ended(Struct, frozen=True, gc=False):
    """A request that is over: ids, names and figures, and nothing that a client or a model wrote.

    Attributes:
        at_s: Its end in Unix time.
        request_id: Its `x-request-id`.
        engine_id: Under which engines got it, with the attempt's number.
        tenant: Whose it was.
        path: That the client asked for.
        status: The response's; 499 if the client left.
        error: Code of our error; `engine` if an engine refused; empty if the request succeeded.
        model: The model's own name; what was asked for if there is none.
        request_class: Its class; empty if it was not decided.
        pool: The pool that served it.
        speculative: `on` or `off`.
        rerun: The pool that ran it again.
        reasons: Of its decision.
        faults: What went wrong on the way, an attempt each.
        stream: It was streamed.
        waited_s: For slots.
        first_token_s: Until the stream began.
        duration_s: Of all of it.
    """

    at_s: float
    request_id: str
    engine_id: str
    tenant: str
    path: str
    status: int
    error: str
    model: str
    request_class: str
    pool: str
    speculative: str
    rerun: str
    reasons: str
    faults: tuple[str, ...]
    stream: bool
    waited_s: float
    first_token_s: float | None
    duration_s: float

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return {**asdict(self), "faults": list(self.faults)}


class Journal:
    """The last requests, the last failures, and the names that no model has."""

    def __init__(self) -> None:
        self._last: deque[Ended] = deque(maxlen=_REQUESTS)
        self._failures: deque[Ended] = deque(maxlen=_FAILURES)
        self._unknown: OrderedDict[str, int] = OrderedDict()

    def add(self, exchange: Exchange, path: str) -> str:
        """Keeps a request that has ended; returns why it failed, or an empty text.

        Args:
            exchange: The request's.
            path: That the client asked for.
        """
        status, asked, served = exchange.status, exchange.asked, exchange.attribution
        failed = status >= _FAILED and status != CLIENT_LEFT
        error = exchange.error or ("engine" if failed else "")
        # All of a request that lives on: what it was made of is free again while the processor still has it at hand.
        kept = Ended(
            time.time(), exchange.request_id, served.engine_id, exchange.principal.tenant.name, path, status, error,
            served.model or asked, served.request_class, served.pool, served.speculative,
            served.reran, ",".join(served.reasons), tuple(served.faults), exchange.streaming, served.waited_s,
            served.first_token_s, time.monotonic() - exchange.arrived_s,
        )  # fmt: skip
        self._last.append(kept)
        if not failed:
            return ""
        self._failures.append(kept)
        if asked:
            self._unknown[asked] = self._unknown.pop(asked, 0) + 1
            if len(self._unknown) > _MODELS:
                self._unknown.popitem(last=False)
        return error

    def find(self, request_id: str) -> Ended | None:
        """Returns the newest request with an id, ours or the one that engines got; None if it is not kept any more."""
        same = (kept for kept in reversed(self._last) if request_id in (kept.request_id, kept.engine_id))
        return next(same, None)

    def failures(self, most: int) -> list[Ended]:
        """Returns the last requests that failed, newest first."""
        return [*islice(reversed(self._failures), most)]

    def unknown_models(self) -> dict[str, int]:
        """Returns how often each of the last names was asked for that no model has."""
        return dict(self._unknown)
