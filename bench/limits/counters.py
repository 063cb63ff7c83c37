"""Usage as the gateway books it beside what the engines themselves have counted; over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import cycle, islice
from typing import Any

import aiohttp

from bench.guard.rig import Gateway, Urls, engine, engines, gateway, gateway_config

_STEP_MS = 10.0
_CLIENTS = 8
_LEAVES_EVERY = 10
_SEEN_BYTES = 1500  # the most of each of two reads, after which a client leaves in the middle of its stream
_STILL_S = 2.5  # without change, after which everything has been reported
_LOOK = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["place"],
    "additionalProperties": False,
}
_FUNCTION = {"name": "look", "description": "Looks something up.", "parameters": _LOOK}


def _requests() -> list[tuple[str, dict[str, Any]]]:
    """One request of each kind: plain and guarded, in each API."""
    asked = [{"role": "user", "content": "What will the weather be like in Lisbon? " * 8}]
    tools = [{"type": "function", "function": _FUNCTION}]
    claude = {"name": "look", "description": "Looks something up.", "input_schema": _LOOK}
    return [
        ("/v1/chat/completions", {"messages": asked}),
        ("/v1/chat/completions", {"messages": asked, "tools": tools, "tool_choice": "required"}),
        ("/v1/completions", {"prompt": asked[0]["content"]}),
        ("/v1/messages", {"messages": asked, "max_tokens": 400}),
        ("/v1/messages", {"messages": asked, "max_tokens": 400, "tools": [claude], "tool_choice": {"type": "any"}}),
        ("/v1/responses", {"input": asked[0]["content"]}),
        ("/v1/responses", {"input": "Look.", "tools": [{"type": "function", **_FUNCTION}], "tool_choice": "required"}),
    ]


async def counted(requests: int, *, faulty: float = 0.0, leaving: bool = False) -> dict[str, float]:
    """Returns what both sides have counted after some requests, and how far the gateway is off.

    Args:
        requests: Streamed and whole ones in turn.
        faulty: Share of answers of the first pool that are broken, which the gateway runs again.
        leaving: One client in ten leaves in the middle of its answer.
    """
    fast, safe = engine(faulty, step_ms=_STEP_MS), engine(speculative=False, step_ms=_STEP_MS)
    with engines({"speculative": fast, "standard": safe}) as urls:
        config = gateway_config(urls["speculative"], urls["standard"], "heal", {"enabled": False})
        with gateway({**config, "rate_limits": {"enabled": True}}) as served:
            await _play(served.data, requests, leaving=leaving)
            ours, theirs = await _settled(served, urls)
    return {
        "engines": theirs,
        "gateway": ours["input"] + ours["output"] + ours["rerun"],
        "off": round((ours["input"] + ours["output"] + ours["rerun"]) / theirs - 1, 5),
        "rerun": ours["rerun"],
        "unsettled": ours["unsettled"],
        "requests": ours["requests"],
    }


async def _play(url: str, requests: int, *, leaving: bool) -> None:
    kinds = islice(cycle(_requests()), requests)
    waiting = iter(list(enumerate(kinds)))

    async def client(session: aiohttp.ClientSession) -> None:
        for number, (path, body) in waiting:
            # In the turn of every kind, so that each is streamed and left as often as any other.
            turn = number // len(_requests())
            leaves = leaving and number % _LEAVES_EVERY == 0
            # No two are alike: a simulated engine gives the same answer to the same request.
            whole = {**body, "model": "m", "stream": leaves or turn % 2 == 0, "seed": number}
            async with session.post(url + path, json=whole) as response:
                if leaves:
                    await response.content.read(_SEEN_BYTES)  # what has arrived, up to so many
                    await response.content.read(_SEEN_BYTES)
                    response.close()
                else:
                    await response.read()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(client(session) for _ in range(_CLIENTS)))


async def _settled(served: Gateway, urls: Urls) -> tuple[Mapping[str, int], int]:
    """Returns both sides' sums once they no longer change."""
    async with aiohttp.ClientSession() as session:
        before: tuple[Mapping[str, int], int] | None = None
        while True:
            stats = [await _json(session, f"{url}/sim/stats") for url in urls.values()]
            rows = (await _json(session, f"{served.operators}/admin/v1/usage?by=model"))["data"]
            now = rows[0], sum(each["prompt_tokens"] + each["generation_tokens"] for each in stats)
            if now == before and not any(each["running"] for each in stats):
                return now
            before = now
            await asyncio.sleep(_STILL_S)


async def _json(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as response:
        response.raise_for_status()
        return await response.json()
