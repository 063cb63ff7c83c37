"""The Messages and Responses APIs in front of a faulty pool: how every request ends, and what an agent would run."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import aiohttp

from bench.guard.correctness import CONCURRENCY, OFF
from bench.guard.rig import engine, engines, gateway, gateway_config
from bench.guard.traffic import NAMES, PARAMETERS, Call, is_broken

Event = Mapping[str, Any]


@dataclass(frozen=True)
class Dialect:
    """One API as the client of this benchmark speaks it.

    Attributes:
        path: Of its requests.
        question: The member of a request with the conversation.
        body: The other members of a request that must be answered with calls.
        end: The type of the event that ends a complete answer.
        calls: Returns the calls that a whole answer or an event says are done.
    """

    path: str
    question: str
    body: Mapping[str, Any]
    end: str
    calls: Callable[["Reader", Event], Iterator[Call]]


class Reader:
    """The calls and the end of one answer, read from a stream or from a whole body.

    Attributes:
        calls: What an agent would run.
        complete: True if the answer ended as the API says that complete ones do.
        rerun: True if the gateway says that an attempt before was broken.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.calls: list[Call] = []
        self.complete = self.rerun = False
        self.open: list[str] = []  # of a Messages stream: the name of the open call and the pieces of its input
        self._dialect = dialect

    def event(self, event: Event) -> None:
        """Takes one event of a stream."""
        self.calls += self._dialect.calls(self, event)
        self.complete |= event["type"] == self._dialect.end
        self.rerun |= "specgate" in event or "specgate" in event.get("response", ())

    def whole(self, answer: Event) -> None:
        """Takes a whole answer: its items or blocks are those of the events at the end of a call."""
        for item in answer.get("output", ()):
            self.event({"type": "response.output_item.done", "item": item})
        for block in answer.get("content", ()):
            if block["type"] == "tool_use":
                self.calls.append((block["name"], json.dumps(block["input"])))
        self.complete = answer.get("status", "completed") == "completed"


def _items(_: Reader, event: Event) -> Iterator[Call]:
    if event["type"] == "response.output_item.done" and event["item"]["type"] == "function_call":
        yield event["item"]["name"], event["item"]["arguments"]


def _blocks(reader: Reader, event: Event) -> Iterator[Call]:
    kind = event["type"]
    if kind == "content_block_start" and event["content_block"]["type"] == "tool_use":
        reader.open = [event["content_block"]["name"]]
    elif kind == "content_block_delta" and reader.open:
        reader.open.append(event["delta"]["partial_json"])
    elif kind == "content_block_stop" and reader.open:
        name, *pieces = reader.open
        reader.open = []
        yield name, "".join(pieces) or "{}"


DIALECTS = {
    "messages": Dialect(
        "/v1/messages",
        "messages",
        {
            "max_tokens": 4000,
            "tools": [{"name": name, "input_schema": PARAMETERS} for name in NAMES],
            "tool_choice": {"type": "any"},
        },
        "message_stop",
        _blocks,
    ),
    "responses": Dialect(
        "/v1/responses",
        "input",
        {
            "tools": [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES],
            "tool_choice": "required",
        },
        "response.completed",
        _items,
    ),
}


@dataclass(frozen=True)
class DialectEnds:
    """How the requests of one API ended; a row for streams and one for whole answers.

    Attributes:
        valid: Requests that ended in calls which all satisfy their schema.
        reruns: Requests of which the faulty pool's answer was not used, whatever their end.
        errors: Requests that ended in an explicit error.
        broken: Requests in which a call was done that its schema refuses. None may.
        silent: Requests that ended as complete without a call. None may.
        cut: Streams without an end of any kind. None may.
    """

    api: str
    stream: bool
    fault_rate: float
    requests: int
    valid: int
    reruns: int
    errors: int
    broken: int
    silent: int
    cut: int


async def measure(rate: float, requests: int) -> list[DialectEnds]:
    """The same requests in both APIs, streamed and whole, all of them to a pool of which `rate` is faulty."""
    rows = []
    with (
        engines({"clean": engine(speculative=False), "faulty": engine(rate)}) as urls,
        gateway(gateway_config(urls["faulty"], urls["clean"], "heal", OFF)) as (url, _),
    ):
        for api, stream in product(DIALECTS, (True, False)):
            ends = await _ends(url, DIALECTS[api], stream, requests)
            named = {name: ends[name] for name in ("valid", "reruns", "errors", "broken", "silent", "cut")}
            rows.append(DialectEnds(api, stream, rate, requests, **named))
    return rows


async def _ends(url: str, dialect: Dialect, stream: bool, requests: int) -> Counter[str]:
    ends: Counter[str] = Counter()
    seeds = iter(range(requests))

    async def worker(session: aiohttp.ClientSession) -> None:
        for seed in seeds:
            # The simulated engine answers each text in another way.
            asked = [{"role": "user", "content": f"检查依赖 {seed}"}]
            body = {"model": "m", **dialect.body, dialect.question: asked, "stream": stream}
            reader = Reader(dialect)
            ends[await _end(session, url + dialect.path, body, reader)] += 1
            ends["reruns"] += reader.rerun

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker(session))
    return ends


async def _end(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], reader: Reader) -> str:
    """Returns the name of the end of one request."""
    failed = False
    async with session.post(url, json=body) as response:
        reader.rerun = "x-specgate-rerun" in response.headers
        if response.status != 200:
            failed = True
        elif body["stream"]:
            async for line in response.content:
                if line.startswith(b"data: "):
                    event = json.loads(line.removeprefix(b"data: "))
                    failed |= event["type"] in ("error", "response.failed", "response.incomplete")
                    reader.event(event)
        else:
            reader.whole(await response.json())
    if any(map(is_broken, reader.calls)):
        return "broken"
    if failed:
        return "errors"
    if not reader.complete:
        return "cut"
    return "valid" if reader.calls else "silent"
