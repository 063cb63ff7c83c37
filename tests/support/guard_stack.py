"""A gateway in front of a simulated speculative pool with faults and a standard one without, and what a client has."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from lab.sim import SimSettings, build_sim_app
from serve.guard.attempt_result import AttemptResult
from serve.routing.pool import Pool
from support.stack import Stack, running

NO_ADVISORIES = str(Path(__file__).parent / "advisories")
CHECKED_ADVISORIES = str(Path(__file__).parent / "checked_advisories")  # as few, but somebody went through them
KNOWN = {"engine": "vllm", "engine_version": "0.32.0", "method": "none"}
SPECULATES = {**KNOWN, "method": "draft_model", "settings": {"rejection_sample_method": "standard"}}


def config(grammar: str = "qwen3_coder", guard: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """One model whose speculative pool is allowed for everything, so that the guard alone stands before its faults."""
    pools = {
        "speculative": {"kind": "sim", "facts": SPECULATES},
        "standard": {"kind": "sim", "facts": KNOWN},
    }
    model = {"family": "sim", "grammar": grammar, "pools": pools, "guard": dict(guard or {})}
    return {"models": {"m": model}, "policy": {"advisories": NO_ADVISORIES}, **more}


@asynccontextmanager
async def healing(
    faulty: SimSettings,
    *,
    guard: Mapping[str, Any] | None = None,
    standard: Any = None,
    routes: Mapping[tuple[str, str], Pool] | None = None,
    **more: Any,
) -> AsyncIterator[tuple[Stack, list[AttemptResult]]]:
    """A stack and the attempt results that it reports.

    Args:
        faulty: The speculative pool.
        guard: The guard's configuration.
        standard: Settings or an app of the standard pool; the same engine without its faults if not given.
        routes: In place of some pools.
        more: Further configuration.
    """
    judged: list[AttemptResult] = []
    sound = SimSettings(model=faulty.model, grammar=faulty.grammar, parser=faulty.parser, seed=faulty.seed)
    other = sound if standard is None else standard
    apps = {
        ("m", "speculative"): build_sim_app(faulty),
        ("m", "standard"): build_sim_app(other) if isinstance(other, SimSettings) else other,
    }
    async with running(config(faulty.grammar, guard, **more), apps, routes, sink=judged.append) as stack:
        yield stack, judged


async def post(
    url: str, body: Mapping[str, Any], path: str = "/v1/chat/completions"
) -> tuple[int, dict[str, str], bytes]:
    async with aiohttp.ClientSession() as session, session.post(f"{url}{path}", json=body) as response:
        return response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read()


def chunks_in(body: bytes) -> list[Any]:
    """The objects of an SSE stream; `[DONE]` as it is."""
    frames = [frame.removeprefix(b"data: ") for frame in body.split(b"\n\n") if frame]
    return ["[DONE]" if frame == b"[DONE]" else json.loads(frame) for frame in frames]
