"""`GET /ready`: which pools are up, told without asking them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
from support.stack import listening

from serve.gateway.ingress import GatewayReplica
from serve.routing import ray_pool


class Router:
    """Ray's router of a pool, as far as it knows the pool's replicas."""

    def __init__(self, *names: str) -> None:
        self.curr_replicas = {name: SimpleNamespace(replica_metadata={"facts": {"engine": "sim"}}) for name in names}


class FullPool:
    """The handle of a pool that has neither a slot nor a place in its queue."""

    app_name = "ready-test"

    def __init__(self, name: str) -> None:
        self.deployment_name = name
        self.is_initialized = False

    def options(self) -> "FullPool":
        self.is_initialized = True
        return self

    def choose_replica(self) -> Any:
        raise AssertionError("it took a place in the queue")


@asynccontextmanager
async def gateway(*handles: FullPool, user_config: dict[str, Any] | None = None, **pool: Any) -> AsyncIterator[str]:
    pools = {handle.deployment_name: {"kind": "sim", **pool} for handle in handles}
    config = {"models": {"m": {"family": "sim", "grammar": "hermes", "pools": pools}}}
    replica = GatewayReplica(config, [("m", handle.deployment_name, handle) for handle in handles])  # type: ignore[misc]
    if user_config is not None:
        replica.reconfigure(user_config)
    async with listening(replica.app(), replica.hot) as front:
        yield front.url


async def ready(url: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/ready") as response:
        return response.status, await response.json()


async def test_a_full_pool_is_up_and_is_not_asked_for_a_place_however_many_want_to_know() -> None:
    handle, router = FullPool("full"), Router("replica")
    ray_pool.register_router(handle.app_name, "full", router)
    async with gateway(handle) as url:
        reply = await asyncio.gather(*(ready(url) for _ in range(60)))
    assert reply == [(200, {"ready": True, "pools": {"m/full": "up"}})] * 60


async def test_a_pool_is_down_until_its_first_replica_runs_and_when_the_last_has_died() -> None:
    handle, router = FullPool("late"), Router()
    async with gateway(handle) as url:
        down = (503, {"ready": False, "pools": {"m/late": "starting or down"}})
        assert await ready(url) == down
        assert handle.is_initialized, "Ray learns of the replicas only after that"
        ray_pool.register_router(handle.app_name, "late", router)
        assert await ready(url) == down
        router.curr_replicas = Router("replica").curr_replicas
        assert (await ready(url))[0] == 200
        router.curr_replicas = {}
        assert await ready(url) == down


async def test_one_pool_that_is_down_is_enough() -> None:
    router = Router("replica")
    ray_pool.register_router(FullPool.app_name, "one", router)
    async with gateway(FullPool("one"), FullPool("other")) as url:
        status, reply = await ready(url)
    assert (status, reply["pools"]) == (503, {"m/one": "up", "m/other": "starting or down"})


async def test_a_pool_that_may_scale_to_zero_is_not_woken_to_be_ready() -> None:
    async with gateway(FullPool("idle"), autoscaling={"min_replicas": 0}) as url:
        assert await ready(url) == (200, {"ready": True, "pools": {"m/idle": "scaled to zero"}})


async def test_a_gateway_that_was_deployed_is_told_which_pools_may_sleep() -> None:
    """`specgate deploy` leaves the scaling of pools out of the gateway's own configuration."""
    async with gateway(FullPool("idle"), user_config={"least_replicas": {"m": {"idle": 0}}}) as url:
        assert await ready(url) == (200, {"ready": True, "pools": {"m/idle": "scaled to zero"}})
