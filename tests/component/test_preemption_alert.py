"""The alert on preemptions fires while answers outgrow an engine's memory, and stops after."""

import asyncio
from pathlib import Path

import aiohttp
from support.monitored import LABELS_OF_ENGINE
from support.prometheus import Prometheus, needs_prometheus, prometheus, until, until_fired
from support.stack import listening

from lab.sim import SimSettings, build_sim_app

MINUTE_S = 2.0  # of the rules
# Room for two whole answers and a half, promised to four at a time.
CROWDED = {
    "model": "m", "grammar": "hermes", "content_tokens": [300, 300], "economics": {"kv_tokens": 800, "overcommit": 4.0}
}  # fmt: skip


async def talk(session: aiohttp.ClientSession, url: str) -> None:
    """Sends the next request whenever the last one is answered."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    while True:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            await response.read()


@needs_prometheus
async def test_preemptions_fire_while_answers_outgrow_the_memory_and_stop_after(tmp_path: Path) -> None:
    async with listening(build_sim_app(SimSettings.from_mapping(CROWDED))) as engine:
        targets = [{"targets": [engine.url.partition("://")[2]], "labels": LABELS_OF_ENGINE}]
        async with prometheus(tmp_path, targets, MINUTE_S) as asked, aiohttp.ClientSession() as session:
            alone, *others = [asyncio.create_task(talk(session, engine.url)) for _ in range(6)]
            await until_fired(asked, [("SpecgatePreemptions", {"model": "m", "pool": "fast"})])

            for user in others:
                user.cancel()
            await until(lambda: has_stopped(asked), lambda: "it still fires", 60)
            assert await asked.values("rate(vllm:generation_tokens_total[10s]) > 0")  # somebody still talks
            alone.cancel()


async def has_stopped(asked: Prometheus) -> bool:
    return "SpecgatePreemptions" not in [alert["alertname"] for alert in await asked.firing()]
