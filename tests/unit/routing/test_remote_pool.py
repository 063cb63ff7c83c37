"""A remote pool takes as many requests as it is allowed; the others wait, a bounded number for a bounded time."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from serve.config.gateway import GatewayConfig
from serve.errors import OverloadedError, PoolUnavailableError
from serve.gateway.pools import build_pools
from serve.routing.endpoint import Endpoint
from serve.routing.remote_pool import RemotePool
from serve.routing.waiting_room import WaitingTerms

HERE = Endpoint("http://here", None)


def pool_of(slots: int, **terms: Any) -> RemotePool:
    return RemotePool(HERE, {}, slots, WaitingTerms(**terms), "m/p")


async def test_the_next_request_waits_for_one_to_end() -> None:
    pool = pool_of(slots=1)
    resources = AsyncExitStack()
    assert await resources.enter_async_context(pool.reserve()) == HERE
    assert pool.full
    assert not pool.ready
    waiting = asyncio.create_task(pool.reserve().__aenter__())
    await asyncio.sleep(0)
    assert not waiting.done()
    await resources.aclose()
    assert await waiting == HERE


async def test_each_request_has_the_key_of_its_moment() -> None:
    keys = iter(["first", "first", "second"])
    pool = RemotePool(HERE, {}, key=lambda: next(keys))
    seen = []
    for _ in range(3):
        async with pool.reserve() as endpoint:
            seen.append((endpoint.url, endpoint.key))
    assert seen == [("http://here", key) for key in ("first", "first", "second")]


async def test_a_client_that_leaves_the_queue_takes_no_place() -> None:
    pool = pool_of(slots=1)
    async with pool.reserve():
        waiting = asyncio.create_task(pool.reserve().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with pool.reserve() as endpoint:
        assert endpoint == HERE


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    pool = pool_of(slots=1, queued=0, retry_after_s=7.0)
    async with pool.reserve():
        with pytest.raises(OverloadedError, match="m/p") as raised:
            await pool.reserve().__aenter__()
    assert raised.value.retry_after_s == 7.0


async def test_a_wait_in_vain_ends() -> None:
    pool = pool_of(slots=1, queue_timeout_s=0.01)
    async with pool.reserve():
        with pytest.raises(PoolUnavailableError, match="m/p"):
            await pool.reserve().__aenter__()


@pytest.mark.parametrize(("gateways", "each"), [(1, 5), (2, 2), (9, 1)])
async def test_gateway_replicas_share_what_the_pool_takes(gateways: int, each: int) -> None:
    remote = {"kind": "remote", "url": "http://here", "max_ongoing_requests": 5}
    model = {"family": "qwen3", "grammar": "hermes", "pools": {"p": remote}}
    pool = build_pools(GatewayConfig.parse({"models": {"m": model}}), {}, gateways)["m", "p"]
    assert pool.occupancy().slots == 5, "the pool's, whoever is asked"
    async with AsyncExitStack() as resources:
        for _ in range(each):
            assert not pool.full
            await resources.enter_async_context(pool.reserve())
        assert pool.full
