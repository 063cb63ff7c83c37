"""`routing: prefix` on Ray: prompts with one beginning share a replica, others go elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.load import End, LoadResult, ask
from support.local import local_gateway

from serve.launch import ports

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
async def test_prompts_with_one_beginning_share_a_replica(tmp_path: Path) -> None:
    port = ports.free_port()
    with local_gateway(tmp_path, "alpha", port, settings=MODEL, policy={"load": "route"}) as gateway:
        await asyncio.to_thread(gateway.until_ready)
        result = LoadResult()
        async with aiohttp.ClientSession() as http:
            homes: dict[str, set[int]] = {"one": set(), "two": set()}
            for number in range(10):
                for agent, found in homes.items():
                    found.add(await ask(http, gateway.url, body(agent, number), result))
        assert result.ends == {End.COMPLETE: 20}
        assert [len(found) for found in homes.values()] == [1, 1]
        assert homes["one"] != homes["two"]
        assert "load is unknown" not in (tmp_path / "alpha.log").read_text(errors="replace")
        gateway.process.terminate()
        await asyncio.to_thread(gateway.until_gone)
