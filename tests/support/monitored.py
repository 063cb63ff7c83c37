"""A gateway, its admin API and simulated engines, and traffic in which everything happens that is counted."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from lab.sim import SimSettings, build_sim_app
from support.admin_api import serving
from support.guard_harness import tools_request
from support.guard_stack import CHECKED_ADVISORIES, KNOWN, SPECULATES
from support.stack import listening

NOWHERE = "http://127.0.0.1:9"
ENGINE: dict[str, Any] = {"model": "m", "grammar": "qwen3_coder", "economics": {}, "content_tokens": (3, 5)}
PROSE: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LIMITS = {"concurrency": 4, "requests_per_minute": 100_000, "tokens_per_minute": 10**9, "tokens_per_month": 10**12}
LABELS_OF_ENGINE = {"replica": "engine", "model": "m", "pool": "fast"}  # as the admin API adds them to an engine's own


@dataclass
class Monitored:
    """What runs.

    Attributes:
        data: Base URL of the data port.
        admin_api: Base URL of the admin API.
        engine: Base URL of the engine behind the pool `fast`.
    """

    data: str
    admin_api: str
    engine: str
    _session: aiohttp.ClientSession

    async def round(self) -> None:
        """Broken calls that are rerun, streams that wait, a pool that is gone, an unknown model, and a limit."""
        bodies = [
            tools_request(model="m"), *[{**PROSE, "stream": True}] * 4, PROSE, {**PROSE, "model": "n"},
            {**PROSE, "model": "unknown"},
        ]  # fmt: skip
        for _ in range(2):
            await asyncio.gather(*map(self._ask, bodies))
        for body in bodies:
            await self._ask(body)

    async def metrics(self, url: str) -> str:
        """Returns what is exposed at a base URL."""
        async with self._session.get(f"{url}/metrics") as response:
            return await response.text()

    async def _ask(self, body: Mapping[str, Any]) -> None:
        async with self._session.post(f"{self.data}/v1/chat/completions", json=body) as response:
            await response.read()


@asynccontextmanager
async def monitored() -> AsyncIterator[Monitored]:
    """Runs them."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        fast = await stack.enter_async_context(_engine(num_speculative_tokens=3, faults={"truncated_string": 1.0}))
        standard = await stack.enter_async_context(_engine())
        ports = await stack.enter_async_context(serving(_config(fast, standard)))
        yield Monitored(ports.data, ports.admin_api, fast, session)


def _config(fast: str, standard: str) -> dict[str, Any]:
    def pool(url: str, facts: dict[str, Any]) -> dict[str, Any]:
        return {"kind": "remote", "url": url, "facts": facts, "max_ongoing_requests": 1}

    model = {"family": "sim", "grammar": "qwen3_coder"}
    return {
        "models": {
            "m": {**model, "pools": {"fast": pool(fast, SPECULATES), "standard": pool(standard, KNOWN)}},
            "n": {**model, "pools": {"gone": pool(NOWHERE, SPECULATES), "standard": pool(standard, KNOWN)}},
        },
        "policy": {"advisories": CHECKED_ADVISORIES, "load": "observe"},
        "rate_limits": {"enabled": True, "default": LIMITS},
    }


@asynccontextmanager
async def _engine(**settings: Any) -> AsyncIterator[str]:
    async with listening(build_sim_app(SimSettings.from_mapping({**ENGINE, **settings}))) as endpoint:
        yield endpoint.url
