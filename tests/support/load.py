"""Puts a gateway under a load of streams and counts how they end."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp

DONE = b"data: [DONE]\n\n"


class End(StrEnum):
    """How one request ended, as its client saw it."""

    COMPLETE = "complete"
    ERROR_FRAME = "begun, then an error frame"
    CUT = "begun, then the connection broke"
    FALSE = "begun, then an end that is neither [DONE] nor an error"
    REFUSED = "an error status"
    LOST = "no answer at all"


@dataclass
class LoadResult:
    """The outcome of a load.

    Attributes:
        ends: Number of requests by how they ended.
        engines: Number of requests by the engine process that answered.
        notes: Some of the errors, for diagnosis.
    """

    ends: Counter[End] = field(default_factory=Counter)
    engines: Counter[int] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, end: End, note: str = "") -> None:
        self.ends[end] += 1
        if note and len(self.notes) < 20:
            self.notes.append(f"{end}: {note}")

    def __str__(self) -> str:
        return f"{dict(self.ends)}; {self.notes}"


async def ask(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any], result: LoadResult, **headers: str
) -> int:
    """Send one streamed request; returns the id of the process that answered, 0 if none did."""
    received = b""
    engine = 0
    try:
        async with session.post(f"{url}/v1/chat/completions", json={**body, "stream": True}, headers=headers) as answer:
            if answer.status != 200:
                result.add(End.REFUSED, f"{answer.status} {(await answer.read())[:300]!r}")
                return 0
            engine = int(answer.headers["x-sim-engine"])
            result.engines[engine] += 1
            async for part in answer.content.iter_any():
                received += part
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        result.add(End.CUT if received else End.LOST, repr(error))
        return engine
    result.add(*_end_of(received))
    return engine


def _end_of(stream: bytes) -> tuple[End, str]:
    if stream.endswith(DONE):
        return End.COMPLETE, ""
    last = stream.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: ")
    try:
        is_error = "error" in json.loads(last)
    except ValueError:
        is_error = False
    return (End.ERROR_FRAME if is_error else End.FALSE), repr(last[-300:])


async def under_load(
    url: str,
    bodies: Callable[[int], dict[str, Any]],
    meanwhile: Callable[[], Awaitable[None]],
    at_least: int,
    concurrency: int = 16,
) -> LoadResult:
    """Keep `concurrency` streams running until `meanwhile` has finished and `at_least` requests have been sent.

    The result is also printed; pytest shows it with -rP.

    Args:
        url: The gateway's base URL.
        bodies: Returns the request of a number.
        meanwhile: What happens to the gateway under load; starts after the first answer.
        at_least: Minimum number of requests.
        concurrency: Streams at a time.
    """
    result = LoadResult()
    numbers = itertools.count()
    running = asyncio.Event()
    over = asyncio.Event()
    began = time.monotonic()

    async def client(session: aiohttp.ClientSession) -> None:
        while not over.is_set() or result.ends.total() < at_least:
            await ask(session, url, bodies(next(numbers)), result)
            running.set()

    async def happen() -> None:
        await running.wait()
        await meanwhile()
        over.set()

    # A new connection per request, as many clients do; it is also the harder case for a proxy.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(happen())
        for _ in range(concurrency):
            group.create_task(client(session))
    print(f"{result.ends.total()} requests in {time.monotonic() - began:.0f} s, {concurrency} at a time: {result}")
    return result
