"""Relays an engine's response to the client: as it arrives, frame by frame, or whole."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from policies import Candidate
from serve.errors import EngineError, InvalidRequestError, encode_json
from serve.http1.asgi import Drain, Sink
from serve.http1.message import RawHeaders
from serve.http1.sse import DONE
from serve.http1.turns import LONG_BODY_BYTES, beside, turn
from serve.proxy.attempts import Attempt
from serve.proxy.exchange import Exchange
from serve.proxy.headers import response_headers
from serve.proxy.upstream import UpstreamResponse
from serve.request.completion import COMPLETION_PATHS
from serve.stream.ending import INCOMPLETE, End, whole_failure, without_addresses
from serve.stream.frame import Frame
from serve.stream.line import PASS, Kept, Line, Stage
from serve.telemetry.instruments import Telemetry
from serve.telemetry.spans import fail

GoOn = Callable[[EngineError], Awaitable[bool]]
PIECE_BYTES = 8 * 1024  # worked off at once: a read can hold 20,000 tiny frames, 100 ms of work for the guard
_MAX_ERROR_BYTES = 1024 * 1024  # of the body of an error
_LOWEST_SERVER_ERROR = 500
_MAX_SAID = 1000  # characters of a page in HTML, for example


def line_of(attempt: Attempt, exchange: Exchange, *checks: Stage, kept: Kept | None = None) -> Line:
    """Returns the line that a stream passes on its way to the client: all stages, in their order.

    `checks` watch the stream: the guard, or how a plain stream ends.
    """
    return Line(
        (
            *attempt.stages,  # whose order `Attempts` gives
            *checks,
            *exchange.api.last,  # translates, if the client speaks another API
        ),
        kept,
    )


async def relay(
    exchange: Exchange,
    attempt: Attempt,
    telemetry: Telemetry,
    observer: Stage = PASS,
    kept: Kept | None = None,
    go_on: GoOn | None = None,
) -> None:
    """Sends an engine's response to the client, streamed as it arrives or whole.

    `go_on` goes on with a stream that broke, given why: then nobody else tells the client of it, unless it returns
    False.

    Raises:
        EngineError: The engine sent no answer, or broke off; of a stream, part is already sent.
    """
    response = attempt.response
    if not response.is_stream:
        try:
            await _relay_whole(exchange, attempt, observer)
        except EngineError as error:
            note_break(exchange, attempt.candidate, error, telemetry)
            raise
        return
    served = exchange.attribution
    served.first_token_s = telemetry.first_token(exchange.arrived_s, served.model, attempt.candidate.pool)
    await exchange.start_stream(response.status, response_headers(response.headers))
    end = End(several=attempt.several, waits=go_on is not None)
    line = line_of(attempt, exchange, observer, end, kept=kept)
    broke: EngineError | None = None
    try:
        await send_stream(exchange, response, line)
    except EngineError as error:
        broke = error
    if end.complete:
        await exchange.end_stream(() if end.done else (Frame(DONE),))
        return
    failure = broke or end.failure or EngineError(INCOMPLETE)
    note_break(exchange, attempt.candidate, failure, telemetry)
    if go_on is not None and await go_on(failure):
        return
    last = () if end.withheld is None else (end.withheld,)
    if not (end.told or last):
        raise failure
    fail(exchange.span, EngineError.default_code)
    await exchange.end_stream(last)


def note_break(exchange: Exchange, candidate: Candidate, failure: EngineError, telemetry: Telemetry) -> None:
    """Notes that an engine has sent no answer, or half of one; not in its own words, which may quote the request."""
    served = exchange.attribution
    detail = f"{served.engine}: the engine's answer broke: {failure.code}"
    telemetry.log.add_fault(served.faults, exchange.request_id, (served.model, candidate.pool), failure.code, detail)


async def _relay_whole(exchange: Exchange, attempt: Attempt, observer: Stage) -> None:
    response = attempt.response
    headers = response_headers(response.headers)
    if response.status == 200:
        body = await attempt.body()
        if exchange.path in COMPLETION_PATHS:  # and not where tokens are counted
            long = len(body) > LONG_BODY_BYTES
            failure = await beside(True, whole_failure, body) if long else whole_failure(body)
            if failure is not None:
                raise failure
    else:
        headers, body = readable_refusal(response.status, headers, await attempt.body(_MAX_ERROR_BYTES))
    await exchange.api.whole(exchange, response.status, headers, body)
    observer.whole(body)


async def send_stream(exchange: Exchange, response: UpstreamResponse, line: Line) -> None:
    """Sends what comes through a line as it arrives, and what is left at the end; returns when either is over.

    Raises:
        EngineError: The engine broke off.
    """
    broke: EngineError | None = None
    try:
        await _send_as_it_arrives(exchange, response, line)
    except EngineError as error:
        broke = error
    if rest := await beside(line.slow, line.finish):
        await exchange.part(rest)
    if broke is not None:
        raise broke


async def _send_as_it_arrives(exchange: Exchange, response: UpstreamResponse, line: Line) -> None:
    if not await _send_in_pieces(exchange, response.first, line):
        return
    if exchange.write is None:
        async for part in response.rest():
            if not await _send_in_pieces(exchange, part, line):
                return
    else:
        await _pump(exchange, exchange.write, response, line)


async def _pump(exchange: Exchange, write: Sink, response: UpstreamResponse, line: Line) -> None:
    """Sends what comes through without waking a task, except for what is long or slow."""
    long, alive = b"", exchange.keep_alive
    send = write if alive is None else alive.noting(write)

    def sink(part: bytes) -> Drain:
        nonlocal long
        if len(part) > PIECE_BYTES or line.slow:
            long = part
            response.stop()
            return None
        data = line.feed(part)
        drain = send(data) if data else None
        if line.over:
            response.stop()
        return drain

    take = line.sink(send, sink)
    while True:
        await response.pump(take)
        part, long = long, b""
        if not part or not await _send_in_pieces(exchange, part, line):
            return


async def _send_in_pieces(exchange: Exchange, part: bytes, line: Line) -> bool:
    """Sends what comes through of a part, in pieces so short that other requests have their turn.

    Returns:
        False if the line is over.
    """
    long, alive = len(part) > PIECE_BYTES, exchange.keep_alive
    for start in range(0, len(part), PIECE_BYTES):
        if long:
            await turn()
        piece = part[start : start + PIECE_BYTES]
        if alive is not None:
            alive.within = True
        data = await asyncio.to_thread(line.feed, piece) if line.slow else line.feed(piece)
        for sent in range(0, len(data), PIECE_BYTES):
            if sent:
                await turn()
            await exchange.part(data[sent : sent + PIECE_BYTES])
        if alive is not None:
            alive.within = False
        if line.over:
            return False
    return True


def readable_refusal(status: int, headers: RawHeaders, body: bytes) -> tuple[RawHeaders, bytes]:
    """Returns headers and body of an engine's error: as they are if there is an `error` in it, else in OpenAI's shape.
    Addresses are left out.

    vLLM and SGLang say what is wrong in OpenAI's shape. FastAPI below them (`{"detail": ...}`), older releases
    (`{"message": ...}`) and proxies before an engine (HTML, or nothing) do not, and clients show none of theirs.
    """
    body = without_addresses(body.decode("latin-1")).encode("latin-1")
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = body.decode(errors="replace")
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict | str):
        return headers, body
    kind = EngineError.type if status >= _LOWEST_SERVER_ERROR else InvalidRequestError.type
    said = _said(answer)
    message = f"The engine answered with status {status}{': ' if said else '.'}{said}"
    error = {"message": message, "type": kind, "param": None, "code": EngineError.default_code}
    kept = [(name, value) for name, value in headers if name != b"content-type"]
    return [*kept, (b"content-type", b"application/json")], encode_json({"error": error})


def _said(answer: Any) -> str:
    """Returns an engine's words."""
    if isinstance(answer, dict):
        answer = answer.get("message") or answer.get("detail") or answer
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode() if answer is not None else ""
    return text.strip()[:_MAX_SAID]
