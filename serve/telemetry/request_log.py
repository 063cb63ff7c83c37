"""The log of requests: a line for some of them, or warnings of their engines' faults, and our own faults.

Never a word of theirs, which an exception's text may quote: what serves requests logs exceptions by `log_fault` or
`log_error` alone.
"""

import asyncio
import logging
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from serve.config.gateway import TelemetryConfig

log = logging.getLogger("ray.serve.specgate.requests")

_MINUTE_S = 60.0
_WRITTEN_EVERY_S = 1.0
_SERVER_ERROR = 500
# What ends a request from outside. Everything else is a fault, and that is any BaseException: a panic in an extension
# written in Rust is no Exception.
_CONTROL = (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
Later = Callable[[float, Callable[[], None]], object]
Place = tuple[str, str]  # model and pool: every model has a pool that is called `standard`


def _later(delay_s: float, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(delay_s, call)


class RequestLog:
    """Writes for each request one line at most, and warnings at a limited rate where requests have no lines.

    Ids and names are fields of the records too: Ray Serve's `logging_config` writes them as JSON.
    """

    def __init__(
        self, config: TelemetryConfig, draw: Callable[[], float] = random.random, later: Later = _later
    ) -> None:
        self.on = config.log_requests is not None
        self._share = config.log_requests or 0.0
        self._most_warnings = config.warnings_per_minute
        self._draw = draw
        self._later = later
        self._warned: Counter[tuple[Place, str]] = Counter()

    def add_fault(self, faults: list[str], request_id: str, where: Place, kind: str, detail: str) -> None:
        """Notes what an engine did wrong, which gives the request a line, or a warning if requests have no lines. The
        kind is one word of few, the detail the same for people, without a word of request or answer.
        """
        faults.append(f"{where[1]}: {kind}")
        self.warn(request_id, where, kind, detail)

    def warn(self, request_id: str, where: Place, kind: str, detail: str) -> None:
        """Warns of what went wrong for a request, at a limited rate; does nothing if requests have lines."""
        if self.on:
            return
        key = where, kind
        if not self._warned[key]:
            self._later(_MINUTE_S, lambda: self._minute_over(key))
        self._warned[key] += 1
        if self._warned[key] <= self._most_warnings:
            model, pool = where
            fields = {"request_id": request_id, "model": model, "pool": pool, "kind": kind}
            log.warning("%s/%s: %s", model, pool, detail, extra=fields)

    def wants(self, status: int, faults: list[str]) -> bool:
        """Returns True if a request that has ended gets a line, where requests have lines."""
        return bool(faults) or status >= _SERVER_ERROR or self._draw() < self._share

    def ended(self, fields: Mapping[str, Any]) -> None:
        """Writes the line of a request, given its fields (`Ended.log_fields` in `serve/proxy/journal.py`). Of these,
        `path`, `status`, `duration_ms`, `model`, `pool` and `faults` are in its message too.
        """
        level = logging.WARNING if fields["faults"] or fields["status"] >= _SERVER_ERROR else logging.INFO
        reply = "".join(f", {fault}" for fault in fields["faults"])
        served = f"{fields['model']}/{fields['pool']}" if fields["pool"] else fields["model"] or "no model"
        log.log(
            level,
            "POST %s %d in %d ms, %s%s", fields["path"], fields["status"], fields["duration_ms"], served, reply,
            extra=fields,
        )  # fmt: skip

    def close(self) -> None:
        """Tells of the warnings that were left out so far."""
        for key in list(self._warned):
            self._minute_over(key)

    def _minute_over(self, key: tuple[Place, str]) -> None:
        unsaid = self._warned.pop(key, 0) - self._most_warnings
        if unsaid > 0:
            (model, pool), kind = key
            fields = {"model": model, "pool": pool, "kind": kind, "suppressed": unsaid}
            log.warning("%s/%s: %s: %d more warnings within a minute", model, pool, kind, unsaid, extra=fields)


def log_fault(logger: logging.Logger, message: str, request_id: str = "") -> None:
    """Logs that specgate itself failed; called first of all where any BaseException is handled.

    What ends a request from outside is no fault: it is raised again.
    """
    error = sys.exception()
    if isinstance(error, _CONTROL):
        raise error
    log_error(logger, message, error, request_id)


def log_error(logger: logging.Logger, message: str, error: BaseException | None, request_id: str = "") -> None:
    """Logs an exception that nobody handles any more, such as one that has ended a task.

    The line says where and what kind of exception it was, but not its text, which may quote a request.
    """
    place = "".join(traceback.format_tb(error.__traceback__)) if error is not None else ""
    fields = {"request_id": request_id} if request_id else {}
    logger.error("%s: %s\n%s", message, type(error).__name__, place, extra=fields)


def write_now() -> None:
    """Writes what has been logged; a Ray Serve set to high throughput keeps 1,000 lines back until one is an error."""
    for handler in logging.getLogger("ray.serve").handlers:
        handler.flush()


async def keep_writing() -> None:
    """Writes what is logged within a second, for as long as it runs."""
    while True:
        write_now()
        await asyncio.sleep(_WRITTEN_EVERY_S)
