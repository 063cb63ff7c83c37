"""`python -m bench.slots`: what it costs to reserve a slot for each request, beside slots that outlast requests.

One `specgate serve` with two pools of the same simulated engines: in the balanced one a request takes over the slot of
another, in the sticky one each request reserves its own. The same load on both in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import aiohttp
import psutil

from bench import peers

RESULTS = Path(__file__).parent / "results" / "slots.json"
_CONCURRENCY = (1, 16)
_BALANCED, _STICKY = _POOLS = ("balanced", "sticky")
_POOL = """
  {routing}:
    family: sim
    grammar: hermes
    pools:
      standard:
        kind: sim
        replicas: 2
        routing: {routing}
        sim: {{{{ step_ms: 1, prefill_ms: 1, content_tokens: [8, 8] }}}}
        ray_actor_options: {{{{ num_cpus: 0.1 }}}}
"""
SERVED = dataclasses.replace(
    peers.SPECGATE, name="slots", config="models:" + "".join(_POOL.format(routing=pool) for pool in _POOLS)
)


@dataclasses.dataclass(frozen=True)
class Load:
    """One run of load on one pool. CPU is for each answer, of the gateway replica and of the pool's engines."""

    pool: str
    concurrency: int
    answers: int
    per_s: float
    first_byte_p50_ms: float
    gateway_cpu_ms: float
    engine_cpu_ms: float


async def streams(url: str, pool: str, concurrency: int, seconds: float) -> list[float]:
    """Stream answers for some seconds; the milliseconds to the first byte of each."""
    waited: list[float] = []
    until = time.perf_counter() + seconds
    body = {"model": pool, "messages": [{"role": "user", "content": "hello"}], "stream": True}

    async def client(session: aiohttp.ClientSession) -> None:
        while (began := time.perf_counter()) < until:
            async with session.post(f"{url}/v1/chat/completions", json=body, raise_for_status=True) as response:
                first = await response.content.readany()
                waited.append((time.perf_counter() - began) * 1000)
                if not (first + await response.content.read()).endswith(b"data: [DONE]\n\n"):
                    raise ValueError("an answer that is not whole")

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(concurrency)))
    return waited


def cpu_s(deployment: str) -> float:
    """CPU seconds of a deployment's replicas so far."""
    title = f"ServeReplica:specgate:{deployment}"
    found = [each for each in psutil.process_iter(["cmdline"]) if title in " ".join(each.info["cmdline"] or [])]
    return sum(sum(each.cpu_times()[:2]) for each in found)


def measure(url: str, pool: str, concurrency: int, seconds: float) -> Load:
    """One run of load."""
    names = ("Gateway", f"{pool}--standard")
    before = [cpu_s(name) for name in names]
    waited = asyncio.run(streams(url, pool, concurrency, seconds))
    gateway, engine = ((cpu_s(name) - was) * 1000 / len(waited) for name, was in zip(names, before, strict=True))
    return Load(pool, concurrency, len(waited), len(waited) / seconds, median(waited), gateway, engine)


def table(loads: Sequence[Load]) -> str:
    """Medians of the rounds, and the ratio."""
    lines = [
        "| at a time | figure | reserved for each request | outlasting requests | ratio |", "|---|---|---|---|---|"
    ]  # fmt: skip
    for concurrency in _CONCURRENCY:
        for name in ("per_s", "first_byte_p50_ms", "gateway_cpu_ms", "engine_cpu_ms"):
            each, kept = (
                median(getattr(load, name) for load in loads if (load.pool, load.concurrency) == (pool, concurrency))
                for pool in (_STICKY, _BALANCED)
            )
            lines.append(f"| {concurrency} | {name} | {each:.2f} | {kept:.2f} | {kept / each:.2f} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=4, help="turns of each pool at each concurrency")
    options.add_argument("--seconds", type=float, default=3.0, help="length of one turn")
    given = options.parse_args()
    loads = []
    with peers.launched(SERVED, "", _BALANCED) as running:
        for pool in _POOLS:
            asyncio.run(streams(running.url, pool, 16, 2.0))  # engines and connections warm up
        for number in range(given.rounds):
            for concurrency in _CONCURRENCY:
                for pool in _POOLS[:: 1 if number % 2 else -1]:
                    loads.append(measure(running.url, pool, concurrency, given.seconds))
    RESULTS.write_text(json.dumps([dataclasses.asdict(load) for load in loads], indent=1) + "\n")
    print(table(loads))


if __name__ == "__main__":
    main()
