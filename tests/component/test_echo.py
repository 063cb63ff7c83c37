"""The echo canary in a whole gateway: a pool that changes identifiers is found by requests of the platform's own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import aiohttp
import pytest
from pydantic import TypeAdapter, ValidationError
from support.admin_api import Ports, serving
from support.guard_harness import tools_request
from support.guard_stack import KNOWN, NO_ADVISORIES
from support.stack import listening

from lab.sim import SimSettings, build_sim_app
from serve.config.access import TenantName
from serve.config.gateway import GatewayConfig
from serve.echo.canary import EchoCanary
from serve.errors import ConfigError
from serve.load.live_load import NULL_LOAD
from serve.proxy.attempts import Attempts
from serve.proxy.upstream import Upstream
from serve.routing.fair_queue import ANONYMOUS, Asker
from serve.routing.pool import NO_AFFINITY, Affinity, Endpoint, Hold
from serve.routing.remote_pool import RemotePool
from serve.telemetry.instruments import Telemetry


@asynccontextmanager
async def engine(**settings: Any) -> AsyncIterator[str]:
    async with listening(build_sim_app(SimSettings(model="m", grammar="qwen3_coder", **settings))) as endpoint:
        yield endpoint.url


def config_of(fast: str, slow: str, **echo: Any) -> dict[str, Any]:
    pools = {
        "fast": {"kind": "remote", "url": fast, "facts": {**KNOWN, "method": "ngram"}},
        "slow": {"kind": "remote", "url": slow, "facts": KNOWN},
    }
    return {
        "models": {"m": {"family": "sim", "grammar": "qwen3_coder", "pools": pools}},
        "policy": {"advisories": NO_ADVISORIES},
        "quarantine": {"reference_share": 0},
        "echo_canary": echo,
    }


async def is_out(ports: Ports) -> None:
    """Waits until what the fast pool copied has put it into quarantine."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        while True:
            async with session.get(f"{ports.admin_api}/admin/v1/quarantine") as response:
                rows = (await response.json())["data"]
            if any(row["status"] == "quarantined" for row in rows if row["request_class"] == "echo"):
                return
            await asyncio.sleep(0.05)


async def test_a_pool_that_changes_identifiers_is_out_and_no_client_was_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.echo.canary._SETTLED_S", 0.0)
    monkeypatch.setattr("serve.echo.canary.LOOK_S", 0.01)
    async with (
        engine(num_speculative_tokens=3, slips=0.2) as fast,
        engine() as slow,
        serving(config_of(fast, slow)) as ports,
        aiohttp.ClientSession() as session,
    ):
        await is_out(ports)
        async with session.post(f"{ports.data}/v1/chat/completions", json=tools_request(model="m")) as response:
            assert response.headers["x-specgate-pool"] == "slow"
            assert response.headers["x-specgate-reasons"] == "quarantine"
        async with session.get(f"{ports.admin_api}/metrics") as response:
            metrics = await response.text()
        assert 'specgate_echo_tokens_total{replica="replica-1",model="m",pool="fast"}' in metrics
        # Nobody's: it counts for no client, and no tenant.
        assert 'specgate_requests_total{replica="replica-1",model="m",pool="fast"' not in metrics


class Heard(RemotePool):
    """A pool that keeps on whose behalf its slots are asked for."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, {})
        self.tenants: set[str] = set()

    def reserve(self, affinity: Affinity = NO_AFFINITY, asker: Asker = ANONYMOUS) -> Hold:
        self.tenants.add(asker.tenant)
        return super().reserve(affinity, asker)


class Canary:
    """A canary over simulated engines, whose clock is put forward by hand."""

    def __init__(self, config: GatewayConfig, pools: Any, upstream: Upstream, **more: Any) -> None:
        self.now_s = 0.0
        self.counts: list[tuple[str, int, int]] = []
        self.pools = pools
        self.judged = False
        attempts = Attempts(config, pools, upstream, Telemetry({}, config=config.telemetry), NULL_LOAD)
        assert config.echo_canary is not None
        self.facts = list(config.pool_facts())
        self.canary = EchoCanary(
            config.echo_canary, config, lambda: self.facts, pools, attempts,
            lambda facts, _, identifiers, corrupted: self.counts.append((facts.pool, identifiers, corrupted)),
            lambda facts, build: self.judged, lambda: {}, chance=Random(3), clock=lambda: self.now_s, **more,
        )  # fmt: skip

    async def look(self, now_s: float) -> int:
        """Returns how many prompts were copied at that time."""
        self.now_s, before = now_s, len(self.counts)
        await self.canary.look()
        return len(self.counts) - before


@asynccontextmanager
async def canary(fast: str, slow: str, **more: Any) -> AsyncIterator[Canary]:
    config = GatewayConfig.parse(config_of(fast, slow, **more))
    upstream = Upstream(config.limits)
    pools = {("m", name): Heard(Endpoint(url, None)) for name, url in {"fast": fast, "slow": slow}.items()}
    try:
        yield Canary(config, pools, upstream)
    finally:
        await upstream.close()
        for pool in pools.values():
            await pool.close()


async def test_a_new_build_is_asked_at_once_and_later_ones_each_round() -> None:
    async with engine(num_speculative_tokens=3) as fast, engine() as slow, canary(fast, slow) as running:
        assert await running.look(59.0) == 0  # its engines have not told what they are
        assert await running.look(61.0) == 16
        assert await running.look(62.0) == 16
        running.judged = True
        assert await running.look(63.0) == 0
        assert all(counts[1:] == (8, 0) for counts in running.counts)
        for now_s in count(3600.0, 3600.0):  # what was taken at once is paid back first
            if asked := await running.look(now_s):
                break
        assert 0 < asked <= 16
        assert now_s >= 2 * 3600
        running.judged = False
        running.facts[0] = replace(running.facts[0], engine_version="9.9")
        assert await running.look(now_s + 1) > 0


async def test_a_model_that_makes_no_call_is_not_asked_for_ever() -> None:
    async with engine(parser="leaking") as fast, engine(parser="leaking") as slow, canary(fast, slow) as running:
        for second in range(61, 70):
            assert await running.look(float(second)) == 0
        assert running.canary.identifiers["m", "fast", "lost"] == 24 * 8


async def test_it_waits_in_the_place_of_no_tenant_whatever_tenants_are_called() -> None:
    async with engine() as fast, engine() as slow, canary(fast, slow) as running:
        assert await running.look(61.0) == 16
        (name,) = running.pools["m", "fast"].tenants
    with pytest.raises(ValidationError):
        TypeAdapter(TenantName).validate_python(name)


async def test_a_pool_that_is_down_is_left_alone() -> None:
    async with engine() as slow, canary("http://127.0.0.1:9", slow) as running:
        await running.look(61.0)
        assert {pool for pool, *_ in running.counts} == {"slow"}


def test_without_quarantine_there_is_no_canary() -> None:
    with pytest.raises(ConfigError, match="which is not enabled"):
        GatewayConfig.parse({**config_of("http://127.0.0.1:1", "http://127.0.0.1:2"), "quarantine": {"enabled": False}})
