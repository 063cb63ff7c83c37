"""Streams by the hundred, and how each of them ended."""

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
class Tally:
    """What a load came to.

    Attributes:
        ends: How many requests ended how.
        engines: How many requests each engine process answered.
        notes: A few of the errors, to find out why.
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


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any], tally: Tally, **headers: str) -> int:
    """One streamed request; returns the process that answered, 0 if none did."""
    begun, engine = b"", 0
    try:
        async with session.post(f"{url}/v1/chat/completions", json={**body, "stream": True}, headers=headers) as answer:
            if answer.status != 200:
                tally.add(End.REFUSED, f"{answer.status} {(await answer.read())[:300]!r}")
                return 0
            engine = int(answer.headers["x-sim-engine"])
            tally.engines[engine] += 1
            async for part in answer.content.iter_any():
                begun += part
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        tally.add(End.CUT if begun else End.LOST, repr(error))
        return engine
    tally.add(*_end_of(begun))
    return engine


def _end_of(stream: bytes) -> tuple[End, str]:
    if stream.endswith(DONE):
        return End.COMPLETE, ""
    last = stream.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: ")
    try:
        told = "error" in json.loads(last)
    except ValueError:
        told = False
    return (End.ERROR_FRAME if told else End.FALSE), repr(last[-300:])


async def under_load(
    url: str,
    bodies: Callable[[int], dict[str, Any]],
    meanwhile: Callable[[], Awaitable[None]],
    at_least: int,
    concurrency: int = 16,
) -> Tally:
    """Keep `concurrency` streams going until `meanwhile` has happened and `at_least` requests have been sent.

    What it came to is printed, too: pytest shows it with -rP.

    Args:
        url: The gateway's base URL.
        bodies: The request of that number.
        meanwhile: What happens to the gateway under the load; begins once the load runs.
        at_least: Requests to send.
        concurrency: Streams at a time.
    """
    tally, numbers, runs, over = Tally(), itertools.count(), asyncio.Event(), asyncio.Event()
    began = time.monotonic()

    async def client(session: aiohttp.ClientSession) -> None:
        while not over.is_set() or tally.ends.total() < at_least:
            await ask(session, url, bodies(next(numbers)), tally)
            runs.set()

    async def happen() -> None:
        await runs.wait()
        await meanwhile()
        over.set()

    # Each request on a connection of its own, as many clients have it; that is also the harder case for a proxy.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(happen())
        for _ in range(concurrency):
            group.create_task(client(session))
    print(f"{tally.ends.total()} requests in {time.monotonic() - began:.0f} s, {concurrency} at a time: {tally}")
    return tally
