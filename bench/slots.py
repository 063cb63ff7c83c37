"""Cost of reserving a slot per request, compared with slots that outlast requests: `python -m bench.slots`.

Runs one `specgate serve` with two pools of the same simulated engines. In the balanced pool a request takes over the
slot of an earlier one; in the sticky pool each request reserves its own. Both get the same load in turn.
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
_BALANCED = "balanced"
_STICKY = "sticky"
_POOLS = (_BALANCED, _STICKY)
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
    """One run of load on one pool. CPU is per answer, of the gateway replica and of the pool's engines."""

    pool: str
    concurrency: int
    answers: int
    per_s: float
    first_byte_p50_ms: float
    gateway_cpu_ms: float
    engine_cpu_ms: float


async def streams(url: str, pool: str, concurrency: int, seconds: float) -> list[float]:
    """Stream answers for a while and return the milliseconds to the first byte of each.

    Args:
        url: The gateway's base URL.
        pool: Which of `_POOLS` to use.
        concurrency: Streams at a time.
        seconds: Length of the run.

    Raises:
        ValueError: A stream did not end with `[DONE]`.
    """
    first_byte_ms: list[float] = []
    until = time.perf_counter() + seconds
    body = {"model": pool, "messages": [{"role": "user", "content": "hello"}], "stream": True}

    async def client(session: aiohttp.ClientSession) -> None:
        while (began := time.perf_counter()) < until:
            async with session.post(f"{url}/v1/chat/completions", json=body, raise_for_status=True) as response:
                first = await response.content.readany()
                first_byte_ms.append((time.perf_counter() - began) * 1000)
                if not (first + await response.content.read()).endswith(b"data: [DONE]\n\n"):
                    raise ValueError("a stream ended without [DONE]")

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(concurrency)))
    return first_byte_ms


def cpu_s(deployment: str) -> float:
    """Returns the CPU seconds that a deployment's replicas have used so far."""
    title = f"ServeReplica:specgate:{deployment}"
    replicas = [
        process for process in psutil.process_iter(["cmdline"]) if title in " ".join(process.info["cmdline"] or [])
    ]
    return sum(sum(replica.cpu_times()[:2]) for replica in replicas)


def measure(url: str, pool: str, concurrency: int, seconds: float) -> Load:
    """Measure one run of load; arguments as for `streams`."""
    names = ("Gateway", f"{pool}--standard")
    before = [cpu_s(name) for name in names]
    first_byte_ms = asyncio.run(streams(url, pool, concurrency, seconds))
    answers = len(first_byte_ms)
    gateway, engine = ((cpu_s(name) - was) * 1000 / answers for name, was in zip(names, before, strict=True))
    return Load(pool, concurrency, answers, answers / seconds, median(first_byte_ms), gateway, engine)


def table(loads: Sequence[Load]) -> str:
    """Returns the medians of the rounds, and their ratio, as a Markdown table."""
    lines = [
        "| concurrency | figure | slot per request | slot outlasts requests | ratio |", "|---|---|---|---|---|"
    ]  # fmt: skip
    for concurrency in _CONCURRENCY:
        for name in ("per_s", "first_byte_p50_ms", "gateway_cpu_ms", "engine_cpu_ms"):
            sticky, balanced = (
                median(getattr(load, name) for load in loads if (load.pool, load.concurrency) == (pool, concurrency))
                for pool in (_STICKY, _BALANCED)
            )
            lines.append(f"| {concurrency} | {name} | {sticky:.2f} | {balanced:.2f} | {balanced / sticky:.2f} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=4, help="turns per pool and concurrency")
    options.add_argument("--seconds", type=float, default=3.0, help="length of one turn")
    given = options.parse_args()
    loads = []
    with peers.launched(SERVED, "", _BALANCED) as running:
        for pool in _POOLS:
            asyncio.run(streams(running.url, pool, 16, 2.0))  # warm up engines and connections
        for number in range(given.rounds):
            for concurrency in _CONCURRENCY:
                for pool in _POOLS[:: 1 if number % 2 else -1]:
                    loads.append(measure(running.url, pool, concurrency, given.seconds))
    RESULTS.write_text(json.dumps([dataclasses.asdict(load) for load in loads], indent=1) + "\n")
    print(table(loads))


if __name__ == "__main__":
    main()
