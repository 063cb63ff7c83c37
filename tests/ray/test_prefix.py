"""`routing: prefix` on Ray: prompts with one beginning share a replica, others go elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.load import End, LoadResult, ask
from support.local import local_gateway

from serve.launch import ports
from serve.load.shared_load import PERIOD_S
from serve.shared.report import SETTLE_S

pytestmark = pytest.mark.ray
POOL = {
    "kind": "sim", "routing": "prefix", "replicas": 2, "max_ongoing_requests": 8,
    "sim": {"economics": {}, "max_num_seqs": 8, "content_tokens": [20, 20]},
    "ray_actor_options": {"num_cpus": 0.1},
}  # fmt: skip
MODEL = {"family": "sim", "grammar": "hermes", "pools": {"p": POOL}}


def body(agent: str, number: int) -> dict[str, Any]:
    system = {"role": "system", "content": f"You are {agent}. " * 1000}
    return {"model": "alpha", "messages": [system, {"role": "user", "content": f"task {number}"}]}


@pytest.mark.timeout(900)
async def test_prompts_with_one_beginning_share_a_replica_whichever_gateway_they_come_to(tmp_path: Path) -> None:
    port = ports.free_port()
    how = {"settings": MODEL, "policy": {"load": "route"}, "further": {"replicas": 2}}
    with local_gateway(tmp_path, "alpha", port, **how) as gateway:
        await asyncio.to_thread(gateway.until_ready)
        result = LoadResult()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
            homes = {
                agent: {await ask(http, gateway.url, body(agent, 0), result)}
                for agent in ("one", "two", "three", "four", "five")  # an odd number: the balancer alternates
            }
            assert len(set().union(*homes.values())) == 2
            await asyncio.sleep(SETTLE_S + 2 * PERIOD_S)  # until each gateway has been told
            for number in range(1, 6):
                for agent, found in homes.items():
                    found.add(await ask(http, gateway.url, body(agent, number), result))
        assert result.ends == {End.COMPLETE: 30}
        assert [len(found) for found in homes.values()] == [1] * 5
        assert "load is unknown" not in (tmp_path / "alpha.log").read_text(errors="replace")
        gateway.process.terminate()
        await asyncio.to_thread(gateway.until_gone)
