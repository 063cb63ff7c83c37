"""The test bench for a gateway: a client in front of it and a scripted engine behind it."""

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

from lab.conform.client import Reply, send
from lab.scripted.arrival import Arrival, Script
from lab.scripted.engine import ScriptedEngine
from serve.errors import ConfigError


@dataclass(frozen=True)
class Pace:
    """Waiting times of cases, in seconds, and numbers of repetitions.

    Attributes:
        prefill_s: Silence of an engine that processes a long prompt.
        cancel_s: Longest time from a client's disconnect until the engine is free.
        settle_s: Longest wait for a gateway that refuses requests after an earlier case.
        timeout_s: Longest wait for any response.
        poison: Consecutive bad requests of one client.
        streams: Concurrent streams.
        others_s: Longest wait of another client while one attacks.
        held: Connections whose request does not end.
    """

    prefill_s: float = 6.0
    cancel_s: float = 5.0
    settle_s: float = 90.0
    timeout_s: float = 45.0
    poison: int = 20
    streams: int = 32
    others_s: float = 2.0
    held: int = 200


@dataclass
class Trial:
    """One request of a case.

    Attributes:
        mark: Tells the engine which script to run.
        engine: The engine behind the gateway.
    """

    mark: str
    engine: ScriptedEngine

    @property
    def arrivals(self) -> list[Arrival]:
        """The attempts that reached the engine."""
        return self.engine.of(self.mark)

    async def arrival(self, timeout_s: float = 10.0) -> Arrival | None:
        """Returns the first attempt as soon as it arrives, or None after the timeout."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.engine.arrived[self.mark].wait(), timeout_s)
        return next(iter(self.arrivals), None)


@dataclass
class Lab:
    """The environment of a case.

    Attributes:
        url: The gateway, without `/v1`.
        key: The bearer token that the gateway expects, or None.
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
        """Returns a client's headers."""
        own = {"content-type": "application/json", "accept-encoding": "identity"}
        return own | ({"authorization": f"Bearer {self.key}"} if self.key else {}) | dict(more or {})

    def trial(self, script: Script | None = None) -> Trial:
        """Prepare the engine for one request, whose first message must contain the mark."""
        mark = f"conform-{secrets.token_hex(6)}"
        if script is not None:
            self.engine.scripts[mark] = script
        return Trial(mark, self.engine)

    def body(self, trial: Trial, **fields: Any) -> dict[str, Any]:
        """Returns a chat request of the trial."""
        return {"model": self.model, "messages": [{"role": "user", "content": f"{trial.mark} hello"}], **fields}

    async def send(
        self, body: Any, headers: Mapping[str, str] | None = None, method: str = "POST",
        path: str = "/v1/chat/completions",
    ) -> Reply:  # fmt: skip
        """Send a request.

        Args:
            body: A mapping is sent as JSON, anything else unchanged; parts of an iterator are sent as chunks.
            headers: Headers besides the usual ones.
            method: HTTP method.
            path: Path at the gateway.
        """
        raw = json.dumps(body, ensure_ascii=False).encode() if isinstance(body, dict) else body
        data = io.BytesIO(raw) if isinstance(raw, bytes) else raw  # aiohttp warns about large bytes
        return await send(self.session, method, self.url + path, data, self.headers(headers), self.pace.timeout_s)

    async def ask(self, script: Script | None = None, **fields: Any) -> tuple[Reply, Trial]:
        """Send one chat request, which the engine answers by `script`."""
        trial = self.trial(script)
        return await self.send(self.body(trial, **fields)), trial

    def open(self, body: dict[str, Any]) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send a chat request and return the response for reading; leaving the context disconnects the client."""
        timeout = aiohttp.ClientTimeout(total=self.pace.timeout_s)
        return self.session.post(f"{self.url}/v1/chat/completions", json=body, headers=self.headers(), timeout=timeout)

    async def settle(self) -> str | None:
        """Wait until a clean request is answered; returns None, or the last refusal after `Pace.settle_s`."""
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
    """Start a scripted engine for the gateway at `url`, which must have it as its only engine.

    Args:
        url: The gateway's base URL, without `/v1`; may be set later.
        key: Bearer token that the gateway expects, or None.
        model: The model's name.
        host: Address of the engine.
        port: Port of the engine; 0 for a free one.
        pace: Timing of the cases.

    Raises:
        ConfigError: The engine cannot listen on `host:port`.
    """
    engine = ScriptedEngine(model, host, port)
    try:
        await engine.listen()
    except OSError as error:
        raise ConfigError(f"the engine can't listen on {host}:{port}: {error.strerror}; choose another port") from error
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    try:
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            yield Lab(url, key, model, engine, session, pace or Pace())
    finally:
        await engine.hang_up()
