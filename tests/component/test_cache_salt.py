"""What an engine has in its prefix cache of one tenant's prompts serves no other, and its own as before."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.guard_stack import NO_ADVISORIES
from support.stack import listening

from lab.sim import SimSettings, build_sim_app
from serve.access.key_file import KeyTerms
from serve.access.key_store import KeyStore
from serve.gateway.ingress import GatewayReplica

ENGINE = {"model": "m", "grammar": "qwen3_coder", "economics": {}}
SYSTEM = {"role": "system", "content": "You are told everything about the plans of our company. " * 200}


async def hits(engine: str) -> float:
    """Returns the tokens that the engine has found in its cache so far."""
    async with aiohttp.ClientSession() as session, session.get(f"{engine}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name.endswith("prefix_cache_hits_total"))


async def cached(engine: str, url: str, token: str, salt: str | None = None) -> float:
    before = await hits(engine)
    body = {"model": "m", "messages": [SYSTEM, {"role": "user", "content": "hello"}], "cache_salt": salt}
    async with (
        aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session,
        session.post(f"{url}/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200, await response.text()
    return await hits(engine) - before


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
        store = KeyStore(tmp_path)
        red, other, blue = (store.create(KeyTerms(tenant=tenant)).token for tenant in ("red", "red", "blue"))
        store.close()
        replica = GatewayReplica(config, [])
        async with listening(replica.app(), replica.hot) as data:
            await replica.access.refresh()
            assert await cached(engine.url, data.url, red) == 0
            assert await cached(engine.url, data.url, other) > 1000, "a tenant's keys share its cache"
            assert (await cached(engine.url, data.url, blue) > 1000) is shared
            assert (await cached(engine.url, data.url, blue, "red's") > 1000) is shared
            assert await cached(engine.url, data.url, blue, "red's") > 1000, "its own salt is its own cache"
