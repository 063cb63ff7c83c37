"""One client's failures or abuse must not affect other clients."""

import asyncio
import json
import socket
import time
from urllib.parse import urlsplit

from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab
from lab.scripted.arrival import Arrival, Script
from lab.scripted.scripts import answering, chunk, crash, dying, error, silent, text_frames
from serve.http1.sse import encode_frame

_CLEAN = 5
_PIECE = 256 * 1024
_PIECES = 512  # 128 MB
_HELD = 32 * 2**20  # more than the buffers of the sockets in between can hold


async def _poison(lab: Lab, script: Script, *, stream: bool = False) -> CaseResult:
    """Bad requests of one client in a row, then at once good ones of others."""
    for _ in range(lab.pace.poison):
        await lab.ask(script, stream=stream)
    replies = [(await lab.ask())[0] for _ in range(_CLEAN)]
    served = sum(reply.status == 200 for reply in replies)
    first = next((f"; {reply.summary()}" for reply in replies if reply.status != 200), "")
    return passed_if(served == _CLEAN, f"{served} of {_CLEAN} clean requests served after {lab.pace.poison}{first}")


async def poison_400(lab: Lab) -> CaseResult:
    return await _poison(lab, answering(error("bad request", 400), 400))


async def poison_500(lab: Lab) -> CaseResult:
    return await _poison(lab, answering(error("unlucky prompt", 500), 500))


async def poison_reset(lab: Lab) -> CaseResult:
    return await _poison(lab, crash)


async def poison_stream(lab: Lab) -> CaseResult:
    return await _poison(lab, dying(text_frames(["half "], finish=None), 0.01), stream=True)


async def leavers(lab: Lab) -> CaseResult:
    """Clients that give up are no engine failures."""
    for _ in range(lab.pace.poison):
        trial = lab.trial(silent)
        asking = asyncio.create_task(lab.send(lab.body(trial)))
        await trial.arrival()
        asking.cancel()
        await asyncio.wait({asking})
    replies = [(await lab.ask())[0] for _ in range(_CLEAN)]
    served = sum(reply.status == 200 for reply in replies)
    return passed_if(served == _CLEAN, f"{served} of {_CLEAN} clean requests served after {lab.pace.poison}")


async def slow_client(lab: Lab) -> CaseResult:
    """A client that asks for a long stream and reads nothing: the engine must be slowed, and nobody else."""

    async def script(arrival: Arrival) -> None:
        await arrival.begin()
        piece = encode_frame(chunk({"content": "x" * _PIECE}))
        for _ in range(_PIECES):
            await arrival.write(piece)

    trial = lab.trial(script)
    connection = _asked_and_unread(lab, json.dumps(lab.body(trial, stream=True)).encode())
    try:
        arrival = await trial.arrival()
        if arrival is None:
            return passed_if(False, "nothing reached the engine")
        sent = await _stalled(arrival)
        started = time.monotonic()
        reply, _ = await lab.ask()
        others = time.monotonic() - started
    finally:
        connection.close()
    good = sent < _HELD and reply.status == 200 and others < 5
    taken = f"{sent / 2**20:.0f} of {_PIECES * _PIECE // 2**20} MB taken"
    return passed_if(good, f"{taken}; another request: {reply.summary()} in {others:.2f} s")


async def _stalled(arrival: Arrival) -> int:
    """Returns how much the engine could send until nothing moved for a second, or all of it."""
    sent, quiet = -1, 0
    while quiet < 5 and arrival.sent < _PIECES * _PIECE:
        quiet = quiet + 1 if arrival.sent == sent else 0
        sent = arrival.sent
        await asyncio.sleep(0.2)
    return arrival.sent


def _asked_and_unread(lab: Lab, body: bytes) -> socket.socket:
    host = urlsplit(lab.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host.hostname, host.port or 80))
    headers = {**lab.headers(), "host": host.netloc, "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode() + body)
    return connection


_SOURCE = "SGLang issue 25811: one client's bad requests took every worker out for everybody"

CASES = (
    Case(
        "slow-client",
        "A client that does not read slows its engine, fills no memory and hinders nobody.",
        "Back-pressure",
        slow_client,
    ),
    Case("leavers", "Clients that give up do not make the gateway refuse others.", _SOURCE, leavers),
    Case(
        "poison-400",
        "Requests that the engine refuses with 400 do not make the gateway refuse others.",
        _SOURCE,
        poison_400,
    ),
    Case("poison-stream", "Nor do requests whose streams die.", _SOURCE, poison_stream),
    Case("poison-500", "Nor do requests that the engine answers 500.", _SOURCE, poison_500),
    Case("poison-reset", "Nor do requests at which the connection to the engine breaks.", _SOURCE, poison_reset),
)
