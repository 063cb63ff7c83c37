"""Four engines behind one pool die, hang, break off and come back different; no client notices."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from support.engines import RunningEngine, chunk, frame, live, start, whole

from serve.config.gateway import GatewayConfig
from serve.gateway.ingress import GatewayReplica
from serve.http1.listener import Listener
from serve.http1.server import protocol_factory

FACTS = {"engine": "vllm", "engine_version": "0.32.0", "method": "none"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
ARGUMENTS = '{"a": "b", "c": [1, 2, 3]}'
LATE_ROUNDS = 3  # whatever was on its way when the first round began has arrived
CLIENTS = 6


class Machine(RunningEngine):
    """An engine on a port of its own, which it keeps.

    Attributes:
        mood: `well`, `dying` (errors), `hanging` (no answer), `cutting` (each answer ends in its middle) or `away`
            (nobody listens).
        rounds: How often its metrics were asked for since its mood changed.
        wronged: Tool requests that it got although it drafts, after the first round in which it could be seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mood, self.rounds, self.wronged = "well", 0, 0
        self._listener = Listener("127.0.0.1")
        self.url = self._listener.url

    async def open(self) -> None:
        if self.mood == "away":
            self._listener = Listener("127.0.0.1", port=self._listener.port)
        await self._listener.start(self)

    async def close(self) -> None:
        await self._listener.stop()

    async def become(self, mood: str) -> None:
        """Changes; whoever waits for `seen` knows that the gateway has looked since."""
        if mood == "away":
            await self.close()
        elif self.mood == "away":
            await self.open()
        self.mood, self.rounds = mood, 0

    def restart(self, drafts: bool) -> None:
        self.started, self.drafts, self.rounds, self.mood = self.started + 1, drafts, 0, "well"

    @property
    def seen(self) -> bool:
        return self.rounds >= LATE_ROUNDS

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        if scope["path"] == "/metrics":
            self.rounds += 1
        if self.mood == "hanging":
            await asyncio.Event().wait()
        if self.mood == "dying":
            await start(send, 500)
            await send({"type": "http.response.body", "body": b"{}"})
        elif scope["path"] == "/v1/chat/completions":
            await self._chat(receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _chat(self, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        request = json.loads(body + message.get("body", b""))
        self.wronged += self.drafts and self.seen and "tools" in request
        parts = _answer(request, sound=not self.drafts)
        await start(send, kind="text/event-stream" if request.get("stream") else "application/json")
        for part in parts[: len(parts) // 2] if self.mood == "cutting" else parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if self.mood == "cutting":
            raise ConnectionError("it breaks off")
        await send({"type": "http.response.body", "body": b""})


def _answer(request: dict[str, Any], sound: bool) -> list[bytes]:
    """An answer in parts; one that is not sound has an argument too few to be JSON."""
    arguments = ARGUMENTS if sound else ARGUMENTS[:-4]
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    if not request.get("stream"):
        document = whole("hi")
        if "tools" in request:
            document["choices"][0] |= {
                "message": {"role": "assistant", "tool_calls": [call]},
                "finish_reason": "tool_calls",
            }
        text = json.dumps(document).encode()
        return [text[:40], text[40:]]
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    if "tools" in request:
        deltas += [{"tool_calls": [{"index": 0, **call}]}]
        end = chunk({}, "tool_calls")
    else:
        deltas += [{"content": "hi"}]
        end = chunk({}, "stop")
    return [frame(each) for each in (*map(chunk, deltas), end, "[DONE]")]


@asynccontextmanager
async def gateway(urls: list[str]) -> AsyncIterator[str]:
    config = {
        "models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": {
            "standard": {"kind": "remote", "urls": urls, "facts": FACTS},
        }}},
        "limits": {"stream_idle_timeout_s": 2, "request_timeout_s": 60},
        "quarantine": {"reference_share": 0},
    }  # fmt: skip
    replica = GatewayReplica(GatewayConfig.parse(config).model_dump(mode="json"), [])
    listener = Listener("127.0.0.1")
    await listener.start(replica.app(), protocol_factory(replica.hot, replica.allowance))
    try:
        yield listener.url
    finally:
        await listener.stop()


async def _ask(session: aiohttp.ClientSession, url: str, number: int) -> str:
    """Returns what is wrong with an answer; empty if nothing is."""
    request: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": f"hello {number}"}]}
    request |= {"stream": True} if number % 2 else {}
    request |= {"tools": TOOLS} if number % 3 else {}
    async with session.post(f"{url}/v1/chat/completions", json=request) as response:
        text = await response.text()
        if response.status != 200:
            return f"{response.status} {text}"
    if not number % 3:
        return "" if "hi" in text else text
    calls = json.loads(text)["choices"][0]["message"]["tool_calls"] if "stream" not in request else _streamed(text)
    arguments = "".join(each["function"].get("arguments") or "" for each in calls)
    return "" if json.loads(arguments) == json.loads(ARGUMENTS) else text


def _streamed(text: str) -> list[dict[str, Any]]:
    frames = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return [call for each in frames for choice in each["choices"] for call in choice["delta"].get("tool_calls") or ()]


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("seed", [1])
async def test_no_request_fails_that_another_address_could_serve(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PERIOD_S", "AGAIN_S", "ASK_PERIOD_S"):
        monkeypatch.setattr(f"serve.discovery.identity.{name}", 0.02)
    monkeypatch.setattr("serve.discovery.asking._PASSIVE_TIMEOUT_S", 1.0)
    chance = random.Random(seed)
    machines = [Machine() for _ in range(4)]
    wrong: list[str] = []
    answered = 0
    over = False

    async def client(session: aiohttp.ClientSession, url: str, number: int) -> None:
        nonlocal answered
        while not over:
            if problem := await _ask(session, url, number):
                wrong.append(problem)
            answered += 1
            number += CLIENTS

    async with AsyncExitStack() as running:
        for machine in machines:
            await machine.open()
            running.push_async_callback(machine.become, "away")
        url = await running.enter_async_context(gateway([machine.url for machine in machines]))
        session = await running.enter_async_context(aiohttp.ClientSession())
        async with asyncio.TaskGroup() as clients:
            for number in range(CLIENTS):
                clients.create_task(client(session, url, number))
            for _ in range(8):
                machine = chance.choice(machines)
                if [each for each in machines if each is not machine and each.mood == "well" and not each.drafts]:
                    await _trouble(machine, chance.choice(["dying", "hanging", "cutting", "away", "drafting", "well"]))
                before = answered
                await _until(lambda before=before: answered >= before + 3 * CLIENTS)
            over = True
        assert wrong == []
        assert sum(machine.wronged for machine in machines) == 0
        assert answered > 100


async def _trouble(machine: Machine, mood: str) -> None:
    """Puts a machine into a mood. One that was restarted was away for a while, as loading takes minutes."""
    if mood not in ("well", "drafting"):
        await machine.become(mood)
        return
    await machine.become("dying")
    await _until(lambda: machine.seen)
    machine.restart(drafts=mood == "drafting")
    await _until(lambda: machine.seen)
