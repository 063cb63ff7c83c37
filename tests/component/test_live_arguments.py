"""Arguments that go out while they grow, through a whole gateway and in every API."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from support.engines import Engine, chunk, end, frame, start
from support.guard_stack import config
from support.stack import Stack, running

from policies import Cell, Policy
from serve.config.guard import GuardConfig
from serve.config.quarantine import QuarantineConfig
from serve.guard.attempt_result import AttemptResult
from serve.guard.core import Outcome, Verdict
from serve.quarantine.live_policy import LivePolicy, QuarantinedPolicy
from serve.quarantine.shared_detector import QuarantineActor
from serve.shared.link import LocalLink

DONE = b"data: [DONE]\n\n"
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
    "additionalProperties": False,
}
ARGUMENTS = json.dumps({"path": "a.py", "content": "if a < b:\n    print('\"é\"')\n" * 600}, ensure_ascii=False)
SIZE = 20  # characters of a token; 875 tokens are 17,500 characters
SECOND = 50  # tokens at a slow engine's pace
HELLO = [{"role": "user", "content": "hello"}]
FUNCTION = {"name": "write", "parameters": SCHEMA}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9999, "tools": [{"name": "write", "input_schema": SCHEMA}]},
    "/v1/responses": {"input": "hello", "tools": [{"type": "function", **FUNCTION}]},
}
ENDS = {
    "/v1/chat/completions": "[DONE]",
    "/v1/messages": "message_stop",
    "/v1/responses": "response.completed",
}


def call_frames(arguments: str) -> list[bytes]:
    opening = {"index": 0, "id": "c1", "type": "function", "function": {"name": "write", "arguments": ""}}
    pieces = [arguments[at : at + SIZE] for at in range(0, len(arguments), SIZE)]
    deltas = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    return [frame(chunk({"tool_calls": [each]})) for each in (opening, *deltas)]


class Client:
    """Reads one stream, and lets the engine go on only while it is not silent for too long.

    Attributes:
        arguments: All that has come of them.
        events: Everything that has come, parsed.
        engine: Sends another token for each that it is allowed.
    """

    def __init__(self, frames: list[bytes], behind: int) -> None:
        self.arguments = ""
        self.events: list[Any] = []
        self._frames = frames
        self._behind = behind
        self._heard = asyncio.Event()
        self.engine = Engine(self._stream)

    async def _stream(self, engine: Engine, send: Any, _: bytes) -> None:
        await start(send, kind="text/event-stream; charset=utf-8")
        for sent, each in enumerate(self._frames):
            while sent * SIZE > len(self.arguments) + self._behind * SIZE:
                self._heard.clear()
                await self._heard.wait()
            await send({"type": "http.response.body", "body": each, "more_body": True})
        await end(send)

    async def ask(self, stack: Stack, path: str, **headers: str) -> int:
        body = {"model": "m", "stream": True, **BODIES[path]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(stack.url + path, json=body, headers=headers) as got,
        ):
            async for line in got.content:
                if line.startswith(b"data: "):
                    self._take(line[6:].strip())
            return got.status

    def _take(self, data: bytes) -> None:
        event = "[DONE]" if data == b"[DONE]" else json.loads(data)
        self.events.append(event)
        if event == "[DONE]":
            return
        match event.get("type"):
            case "content_block_delta":
                self.arguments += event["delta"].get("partial_json", "")
            case "response.function_call_arguments.delta":
                self.arguments += event["delta"]
        for choice in event.get("choices", ()):
            for each in choice["delta"].get("tool_calls") or ():
                self.arguments += each["function"]["arguments"]
        self._heard.set()

    @property
    def last(self) -> Any:
        return self.events[-1] if isinstance(self.events[-1], str) else self.events[-1].get("type")


class Trusting(LivePolicy):
    """A policy that has seen nothing but clean answers of one pool."""

    def trusts(self, cell: Cell) -> bool:
        return cell.pool == "speculative"


@asynccontextmanager
async def stack_of(client: Client, other: Client | None = None, **guard: Any) -> AsyncIterator[Stack]:
    pools = {("m", "speculative"): client.engine, ("m", "standard"): (other or client).engine}
    quiet = {"quarantine": {"reference_share": 0}}
    async with running(config("hermes", guard, **quiet), pools, live=Trusting) as stack:
        yield stack


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("asked", ["live", "auto"])
async def test_a_slow_engines_client_never_waits_for_a_second_and_gets_the_same_as_held(path: str, asked: str) -> None:
    frames = [*call_frames(ARGUMENTS), frame(chunk({}, "tool_calls")), DONE]
    client, patient = Client(frames, behind=SECOND), Client(frames, behind=len(frames))
    async with stack_of(client, arguments=asked) as stack, asyncio.timeout(60):
        assert await client.ask(stack, path) == 200
    async with stack_of(patient) as stack:
        assert await patient.ask(stack, path) == 200
    assert client.arguments == patient.arguments == ARGUMENTS
    assert client.last == patient.last == ENDS[path]


@pytest.mark.parametrize("path", BODIES)
async def test_auto_holds_what_comes_from_a_pool_that_nobody_trusts(path: str) -> None:
    frames = [*call_frames(ARGUMENTS), frame(chunk({}, "tool_calls")), DONE]
    client = Client(frames, behind=len(frames))
    untrusted = {("m", "standard"): client.engine, ("m", "speculative"): client.engine}
    async with running(config("hermes", {"arguments": "auto"}), untrusted) as stack:
        assert await client.ask(stack, path) == 200
    assert client.arguments == ARGUMENTS
    assert not any(isinstance(event, dict) and event.get("specgate") for event in client.events)


async def test_auto_is_live_for_the_class_that_a_pool_has_been_measured_to_answer_well_and_while_it_does() -> None:
    frames = [*call_frames(ARGUMENTS[:4000]), frame(chunk({}, "tool_calls")), DONE]
    client = Client(frames, behind=len(frames))
    made: list[QuarantinedPolicy] = []
    judged: list[AttemptResult] = []

    def measured(policy: Policy) -> QuarantinedPolicy:
        terms = QuarantineConfig(reference_share=0)
        made.append(QuarantinedPolicy(terms, {"m": GuardConfig()}, policy, LocalLink(QuarantineActor())))
        return made[0]

    async def is_live() -> bool:
        client.events.clear()
        await client.ask(stack, "/v1/chat/completions")
        await made[0].sync()
        return any(event.get("specgate") == {"arguments": "live"} for event in client.events if event != "[DONE]")

    async def saw(outcome: Outcome, times: int, request_class: str) -> None:
        for _ in range(times):
            verdict = Verdict(outcome, (), counts=True)
            seen = judged[0].model, judged[0].pool, request_class, judged[0].speculative
            made[0](AttemptResult(*seen, verdict, 0, outcome, "r", ""))
        await made[0].sync()

    quiet = {"quarantine": {"reference_share": 0}}
    pools = {("m", "speculative"): client.engine, ("m", "standard"): client.engine}
    settings = config("hermes", {"arguments": "auto"}, **quiet)
    async with running(settings, pools, sink=judged.append, live=measured) as stack:
        assert not await is_live(), "nobody knows the pool"
        own = judged[0].request_class
        await saw(Outcome.CLEAN, 300, f"{own}+thinking")
        assert not await is_live(), "what is known is of another class"
        await saw(Outcome.CLEAN, 300, own)
        assert await is_live()
        await saw(Outcome.TRUNCATED, 20, own)
        assert not await is_live(), "it got worse"


@pytest.mark.parametrize("path", BODIES)
async def test_a_call_that_breaks_ends_in_an_error_and_is_never_said_to_be_done(path: str) -> None:
    broken = [*call_frames(ARGUMENTS[:4000] + '"nonsense'), frame(chunk({}, "tool_calls")), DONE]
    client = Client(broken, behind=len(broken))
    async with stack_of(client, arguments="live") as stack:
        await client.ask(stack, path)
    assert ARGUMENTS.startswith(client.arguments)
    assert client.arguments
    kinds = [event.get("type") for event in client.events if isinstance(event, dict)]
    assert not {"content_block_stop", "response.function_call_arguments.done", "message_stop"} & set(kinds)
    assert "response.output_item.done" not in kinds
    assert "[DONE]" not in client.events
    assert client.last in (None, "error", "response.failed")


@pytest.mark.parametrize("path", BODIES)
async def test_another_pool_that_says_the_same_goes_on_where_the_first_broke_off(path: str) -> None:
    sound = [*call_frames(ARGUMENTS), frame(chunk({}, "tool_calls")), DONE]
    client = Client(sound[:300], behind=len(sound))
    other = Client(sound, behind=len(sound))
    async with stack_of(client, other, arguments="live") as stack:
        await client.ask(stack, path)
    assert client.arguments == ARGUMENTS
    assert client.last == ENDS[path]


async def test_a_request_may_ask_for_held_arguments_where_they_are_live() -> None:
    sound = [*call_frames(ARGUMENTS), frame(chunk({}, "tool_calls")), DONE]
    client = Client(sound, behind=len(sound))
    async with stack_of(client, arguments="live") as stack:
        await client.ask(stack, "/v1/chat/completions", **{"x-specgate-arguments": "held"})
    assert client.arguments == ARGUMENTS
    assert not any(isinstance(event, dict) and event.get("specgate") for event in client.events)


@pytest.mark.parametrize("path", BODIES)
async def test_a_header_that_asks_for_what_there_is_not_is_refused_and_says_what_there_is(path: str) -> None:
    client = Client([DONE], behind=1)
    async with stack_of(client) as stack, aiohttp.ClientSession() as session:
        body, headers = {"model": "m", **BODIES[path]}, {"x-specgate-arguments": "soon"}
        async with session.post(stack.url + path, json=body, headers=headers) as got:
            said = await got.text()
    assert got.status == 400
    assert "`held`, `live` or `auto`" in said
    assert not client.engine.requests
