"""A gateway on the bench: a client before it, a scripted engine behind it."""

import asyncio
import io
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from serve.errors import ConfigError
from serve.tools.conform.arrival import Arrival, Script
from serve.tools.conform.client import Reply, send
from serve.tools.conform.engine import ScriptedEngine


@dataclass(frozen=True)
class Pace:
    """How long cases wait, in seconds, and how often they repeat.

    Attributes:
        prefill_s: Silence of an engine that works on a long prompt.
        cancel_s: Longest time from a client's leaving to the engine's being free.
        settle_s: Longest wait for a gateway that refuses everybody after a case before.
        timeout_s: Longest wait for any answer.
        poison: Bad requests of one client in a row.
        streams: Streams at once.
    """

    prefill_s: float = 6.0
    cancel_s: float = 5.0
    settle_s: float = 90.0
    timeout_s: float = 45.0
    poison: int = 20
    streams: int = 32


@dataclass
class Trial:
    """One request of a case.

    Attributes:
        mark: Tells the engine which script is meant.
        engine: Where it arrives.
    """

    mark: str
    engine: ScriptedEngine

    @property
    def arrivals(self) -> list[Arrival]:
        """The tries that reached the engine."""
        return self.engine.of(self.mark)

    async def arrival(self, timeout_s: float = 10.0) -> Arrival | None:
        """The first of them, as soon as it is there."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.engine.arrived[self.mark].wait(), timeout_s)
        return next(iter(self.arrivals), None)


@dataclass
class Lab:
    """What a case works with.

    Attributes:
        url: The gateway, without `/v1`.
        key: The bearer token that it wants, or None.
        model: The model's name.
        engine: The engine behind the gateway.
        session: HTTP client.
        pace: How patient to be.
    """

    url: str
    key: str | None
    model: str
    engine: ScriptedEngine
    session: aiohttp.ClientSession
    pace: Pace = field(default_factory=Pace)

    def headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """A client's headers."""
        own = {"content-type": "application/json", "accept-encoding": "identity"}
        return own | ({"authorization": f"Bearer {self.key}"} if self.key else {}) | dict(more or {})

    def trial(self, script: Script | None = None) -> Trial:
        """Prepare the engine for one request; its mark belongs into the first message."""
        mark = f"conform-{secrets.token_hex(6)}"
        if script is not None:
            self.engine.scripts[mark] = script
        return Trial(mark, self.engine)

    def body(self, trial: Trial, **fields: Any) -> dict[str, Any]:
        """A chat request of the trial."""
        return {"model": self.model, "messages": [{"role": "user", "content": f"{trial.mark} hello"}], **fields}

    async def send(
        self, body: Any, headers: Mapping[str, str] | None = None, method: str = "POST",
        path: str = "/v1/chat/completions",
    ) -> Reply:  # fmt: skip
        """Send a body: a mapping as JSON, anything else as it is (pieces of an iterator go in chunks)."""
        raw = json.dumps(body, ensure_ascii=False).encode() if isinstance(body, dict) else body
        data = io.BytesIO(raw) if isinstance(raw, bytes) else raw  # aiohttp warns of large bytes
        return await send(self.session, method, self.url + path, data, self.headers(headers), self.pace.timeout_s)

    async def ask(self, script: Script | None = None, **fields: Any) -> tuple[Reply, Trial]:
        """Send one chat request that the engine answers by `script`."""
        trial = self.trial(script)
        return await self.send(self.body(trial, **fields)), trial

    def open(self, body: dict[str, Any]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send a chat request and hand over the answer as it comes; leaving the context is leaving the gateway."""
        timeout = aiohttp.ClientTimeout(total=self.pace.timeout_s)
        return self.session.post(f"{self.url}/v1/chat/completions", json=body, headers=self.headers(), timeout=timeout)

    async def settle(self) -> str | None:
        """Wait until a clean request is answered again; None, or the last refusal when patience is over."""
        deadline = time.monotonic() + self.pace.settle_s
        while True:
            reply, _ = await self.ask()
            if reply.status == 200 and not reply.failed:
                return None
            if time.monotonic() > deadline:
                return reply.summary()
            await asyncio.sleep(0.25)


@asynccontextmanager
async def laboratory(
    url: str, key: str | None, model: str, host: str = "127.0.0.1", port: int = 0, pace: Pace | None = None
) -> AsyncIterator[Lab]:
    """Start the engine on `host:port`; the gateway at `url` has, or gets, that for its one engine."""
    engine = ScriptedEngine(model, host, port)
    try:
        await engine.start()
    except OSError as error:
        raise ConfigError(f"the engine can't listen on {host}:{port}: {error.strerror}; choose another port") from error
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    try:
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            yield Lab(url, key, model, engine, session, pace or Pace())
    finally:
        await engine.stop()
