"""What an engine has in its prefix cache of one tenant's prompts serves no other, and its own as before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.guard_harness import tools_request
from support.guard_stack import NO_ADVISORIES
from support.stack import listening

from lab.sim import SimSettings, build_sim_app
from serve.access.key_file import KeyTerms
from serve.access.key_store import KeyStore
from serve.gateway.ingress import GatewayReplica

ENGINE = {"model": "m", "grammar": "qwen3_coder", "economics": {}}
SYSTEM = {"role": "system", "content": "You are told everything about the plans of our company. " * 200}
MESSAGES = [SYSTEM, {"role": "user", "content": "hello"}]


async def hits(engine: str) -> float:
    """Returns the tokens that the engine has found in its cache so far."""
    return await counted(engine, "prefix_cache_hits")


async def counted(engine: str, name: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{engine}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name.endswith(f"{name}_total"))


async def ask(url: str, token: str, body: dict[str, Any]) -> None:
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session,
        session.post(f"{url}/v1/chat/completions", json={**body, "messages": MESSAGES}) as response,
    ):
        assert response.status == 200, await response.text()


async def cached(engine: str, url: str, token: str, salt: str | None = None) -> float:
    before = await hits(engine)
    await ask(url, token, {"model": "m", "cache_salt": salt})
    return await hits(engine) - before


@asynccontextmanager
async def gateway(folder: Path, config: dict[str, Any]) -> AsyncIterator[tuple[str, list[str]]]:
    """Yields the URL of a gateway, and the tokens of three keys: two of the tenant `red`, and one of `blue`."""
    store = KeyStore(folder)
    tokens = [store.create(KeyTerms(tenant=tenant)).token for tenant in ("red", "red", "blue")]
    store.close()
    replica = GatewayReplica(config, [])
    async with listening(replica.app(), replica.hot) as data:
        await replica.access.refresh()
        yield data.url, tokens


@pytest.mark.parametrize(("setting", "shared"), [("tenant", False), ("off", True)])
async def test_a_tenants_prompts_are_in_its_own_cache_alone(tmp_path: Path, setting: str, shared: bool) -> None:
    async with listening(build_sim_app(SimSettings.from_mapping(ENGINE))) as engine:
        pool = {"kind": "remote", "url": engine.url, "facts": {"engine": "sim", "method": "none"}}
        config: dict[str, Any] = {
            "models": {"m": {"family": "sim", "grammar": "qwen3_coder", "pools": {"p": pool}}},
            "policy": {"advisories": NO_ADVISORIES},
            "quarantine": {"reference_share": 0},
            "access": {"mode": "required", "state_dir": str(tmp_path), "cache_salt": setting},
        }
        async with gateway(tmp_path, config) as (url, (red, other, blue)):
            assert await cached(engine.url, url, red) == 0
            assert await cached(engine.url, url, other) > 1000, "a tenant's keys share its cache"
            assert (await cached(engine.url, url, blue) > 1000) is shared
            assert (await cached(engine.url, url, blue, "red's") > 1000) is shared
            assert await cached(engine.url, url, blue, "red's") > 1000, "its own salt is its own cache"


async def test_a_copy_for_a_candidate_is_in_its_tenants_own_cache_as_well(tmp_path: Path) -> None:
    async with (
        listening(build_sim_app(SimSettings.from_mapping(ENGINE))) as served,
        listening(build_sim_app(SimSettings.from_mapping(ENGINE))) as candidate,
    ):
        facts = {"engine": "sim", "method": "none"}
        pools = {
            name: {"kind": "remote", "url": each.url, "facts": facts}
            for name, each in {"served": served, "candidate": candidate}.items()
        }
        shadow = {"pool": "candidate", "share": 1.0}
        config: dict[str, Any] = {
            "models": {"m": {"family": "sim", "grammar": "qwen3_coder", "pools": pools, "shadow": shadow}},
            "policy": {"advisories": NO_ADVISORIES},
            "access": {"mode": "required", "state_dir": str(tmp_path)},
        }
        async with gateway(tmp_path, config) as (url, (red, other, blue)):
            found = []
            for token in (red, other, blue):
                before = await counted(candidate.url, "prefix_cache_queries"), await hits(candidate.url)
                await ask(url, token, tools_request(model="m"))
                async with asyncio.timeout(20):
                    while True:
                        if await counted(candidate.url, "prefix_cache_queries") > before[0]:
                            break
                        await asyncio.sleep(0.02)
                found.append(await hits(candidate.url) - before[1])
    assert found[0] == found[2] == 0
    assert found[1] > 1000
