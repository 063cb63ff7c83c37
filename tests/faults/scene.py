"""What faults befall: `specgate serve` of remote pools in a process of its own, scripted engines, and clients."""

import asyncio
import io
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from support.engines import Engine, chunk, end, frame, start, whole
from support.stack import listening

from serve.launch.ports import free_port

ROOT = Path(__file__).parents[2]
LONGEST_S = 30.0  # no request may take longer, whatever happens
_START_S = 120.0
_CLIENTS = 4
_PAUSE_S = 0.02
_FACTS = {"engine": "vllm", "engine_version": "0.32.0", "method": "none"}
COMPLETE, CUT, NOTHING, HANGS = "complete", "cut", "no answer", "hangs"


class Scripted:
    """An engine that a fault may change.

    Attributes:
        pace_s: Between two frames.
        instead: May answer in the place of the engine that is well, and returns whether it did.
        headers: Further ones of its answers.
    """

    def __init__(self) -> None:
        self.pace_s = 0.01
        self.instead: Callable[[Any, bytes], Awaitable[bool]] | None = None
        self.headers: dict[str, str] = {}
        self.app = Engine(self._answer)

    async def _answer(self, _: Engine, send: Any, body: bytes) -> None:
        if not body:  # the gateway asks what runs here
            await start(send, 404)
            await end(send)
        elif self.instead is not None and await self.instead(send, body):
            return
        elif json.loads(body).get("stream"):
            await start(send, kind="text/event-stream", **self.headers)
            for word in ("one", " two", " three"):
                await send({"type": "http.response.body", "body": frame(chunk({"content": word})), "more_body": True})
                await asyncio.sleep(self.pace_s)
            await end(send, frame(chunk({}, "stop")) + frame("[DONE]"))
        else:
            await asyncio.sleep(self.pace_s)
            await start(send, **self.headers)
            await end(send, json.dumps(whole("one two three")).encode())


@dataclass(frozen=True)
class Seen:
    """What a client saw of one request."""

    began_s: float
    ended_s: float
    end: str


@dataclass
class Clients:
    """Ask a gateway steadily, every other time for a stream.

    Attributes:
        tls: Says whom they trust.
        seen: Of all requests that have ended.
    """

    url: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    seen: list[Seen] = field(default_factory=list)

    async def ask(self, number: int, session: aiohttp.ClientSession, **more: Any) -> str:
        """Asks once; returns how that ended."""
        body = {"model": "m", "messages": [{"role": "user", "content": f"hello {number}"}], **more}
        began_s = time.monotonic()
        ended = await outcome(session, self.url, {**body, "stream": bool(number % 2)}, self.headers)
        self.seen.append(Seen(began_s, time.monotonic(), ended))
        return ended

    async def run(self) -> None:
        """Asks until it is cancelled."""
        async with session(self.tls) as one, asyncio.TaskGroup() as group:
            for number in range(_CLIENTS):
                group.create_task(self._go_on(number, one))

    async def _go_on(self, number: int, one: aiohttp.ClientSession) -> None:
        while True:
            await self.ask(number, one)
            await asyncio.sleep(_PAUSE_S)

    async def until_well(self, since_s: float, within_s: float = LONGEST_S * 2) -> float:
        """Waits until requests of both kinds that began after a time are complete; returns the seconds since then."""
        while sum(each.began_s >= since_s and each.end == COMPLETE for each in self.seen) < _CLIENTS:
            assert time.monotonic() < since_s + within_s, f"it never becomes well: {self.seen[-5:]}"
            await asyncio.sleep(_PAUSE_S)
        return min(each.ended_s for each in self.seen if each.began_s >= since_s and each.end == COMPLETE) - since_s


def session(tls: ssl.SSLContext | bool = True) -> aiohttp.ClientSession:
    """A client without connections of before, so that each request finds the gateway as it is."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True, ssl=tls)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=LONGEST_S))


async def outcome(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> str:
    """Asks once; returns how that ended: complete, a status with its code, an error frame, cut, nothing, or never."""
    received, begun = b"", False
    try:
        data, kind = io.BytesIO(json.dumps(body).encode()), {"content-type": "application/json"}
        async with session.post(f"{url}/v1/chat/completions", data=data, headers={**headers, **kind}) as answer:
            begun = True
            async for part in answer.content.iter_any():
                received += part
    except TimeoutError:
        return HANGS
    except (aiohttp.ClientError, ConnectionError):
        return CUT if begun else NOTHING
    if answer.status != 200:
        return f"{answer.status} {code_in(received)}"
    if not body.get("stream"):
        return COMPLETE if is_completion(received) else f"200 {received[:20]!r}"
    return COMPLETE if received.endswith(b"data: [DONE]\n\n") else f"error frame {code_in(last_data(received))}"


def is_completion(body: bytes) -> bool:
    """Returns whether clients can read a whole answer."""
    try:
        return bool(json.loads(body)["choices"])
    except (ValueError, TypeError, KeyError):
        return False


def last_data(stream: bytes) -> bytes:
    """Returns the data of a stream's last frame."""
    return stream.rstrip().rpartition(b"\n\n")[2].removeprefix(b"data: ")


def code_in(body: bytes) -> str:
    """Returns the code of an error as our API writes it."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, TypeError, KeyError):
        return "without a code"


@dataclass(kw_only=True)
class Setting:
    """How the gateway of a fault is made.

    Attributes:
        config: Of the gateway, over the usual one.
        urls: Of the model's pools, in the scripted engine's place.
        before: Words before the command that starts it, such as `unshare -m`.
        environment: Further variables.
        keyed: Clients need a key, and usage is counted.
        pool: Further settings of the pools.
        more: What the fault itself needs.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    keyed: bool = False
    pool: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


class Scene:
    """A gateway, its engine and its clients.

    Attributes:
        setting: What it was made of.
        engine: The scripted one.
        clients: Who ask meanwhile.
        process: Of the gateway.
    """

    def __init__(self, folder: Path, setting: Setting, engine: Scripted, engine_url: str) -> None:
        self.folder, self.engine = folder, engine
        self.port, self._admin_port = free_port(), free_port()
        self.url, self.admin = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._admin_port}"
        self.setting = setting
        self.config = folder / "gateway.yaml"
        urls = dict(setting.urls) or {"standard": engine_url}
        pools = {name: {"kind": "remote", "url": url, "facts": _FACTS, **setting.pool} for name, url in urls.items()}
        model = {"family": "qwen3", "grammar": "hermes", "pools": pools}
        access = {"access": {"mode": "required", "state_dir": str(folder / "state")}} if setting.keyed else {}
        document = {"models": {"m": model}, "quarantine": {"reference_share": 0}, **access, **setting.config}
        self.config.write_text(yaml.safe_dump(document))
        self.headers = self._key(document) if setting.keyed else {}
        self.clients = Clients(self.url, self.headers)
        self.process: asyncio.subprocess.Process

    @staticmethod
    def _key(document: Mapping[str, Any]) -> dict[str, str]:
        from serve.cli.keys import first_key
        from serve.config.gateway import GatewayConfig

        return {"authorization": f"Bearer {first_key(GatewayConfig.parse(document).access)}"}

    @property
    def log(self) -> str:
        """What the gateway has printed."""
        return (self.folder / "gateway.log").read_text(errors="replace")

    async def begin(self) -> None:
        """Starts the gateway, and returns when it answers."""
        command = [sys.executable, "-m", "serve.cli", "serve", "--config", str(self.config)]
        command += ["--port", str(self.port), "--admin-port", str(self._admin_port)]
        environment = {**os.environ, **self.setting.environment}
        with (self.folder / "gateway.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.setting.before, *command, cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        async with asyncio.timeout(_START_S), aiohttp.ClientSession() as one:
            while True:
                assert self.process.returncode is None, self.log
                try:
                    async with one.get(f"{self.url}/v1/models", headers=self.headers) as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(_PAUSE_S)

    async def end(self) -> None:
        """Ends the gateway, however it is."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def operator(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Asks the admin API; returns status and answer."""
        async with session() as one, one.request(method, f"{self.admin}{path}", headers=self.headers, **more) as answer:
            return answer.status, await answer.json(content_type=None)

    async def usage(self) -> int:
        """Requests that are booked."""
        _, found = await self.operator("GET", "/admin/v1/usage")
        return sum(row["requests"] for row in found["data"])


@asynccontextmanager
async def scene(folder: Path, setting: Setting) -> AsyncIterator[Scene]:
    """Yields a gateway that answers its clients."""
    async with AsyncExitStack() as held:
        engine = Scripted()
        behind = await held.enter_async_context(listening(engine.app))
        made = Scene(folder, setting, engine, behind.url)
        held.push_async_callback(made.end)
        await made.begin()
        asking = asyncio.create_task(made.clients.run())
        held.callback(asking.cancel)
        await made.clients.until_well(time.monotonic())
        yield made
