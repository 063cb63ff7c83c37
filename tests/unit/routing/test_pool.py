"""The wait for a replica of a pool."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.exceptions import DeploymentUnavailableError

from serve.errors import PoolUnavailableError
from serve.routing.pool import RayPool

FOR_EVER_S = 1e6


class Handle:
    """A pool as Ray Serve's handle shows it: `capacity` is what `choose_replica` waits for."""

    def __init__(self) -> None:
        self.capacity = asyncio.Event()
        self.error: Exception | None = None

    @asynccontextmanager
    async def choose_replica(self) -> AsyncIterator[Any]:
        if self.error is not None:
            raise self.error
        await self.capacity.wait()
        metadata = {"http_host": "127.0.0.1", "http_port": 1, "http_key": "k"}
        yield SimpleNamespace(replica_metadata=metadata, _slot_token="token")


def pool_of(handle: Any, queue_timeout_s: float = FOR_EVER_S) -> RayPool:
    return RayPool("m/p", handle, queue_timeout_s, 2.0)


async def without_capacity() -> tuple[Handle, RayPool]:
    """A pool of which Ray Serve has just said that it has no replica, and has none to give."""
    handle = Handle()
    handle.error = DeploymentUnavailableError("id")
    pool = pool_of(handle)
    with pytest.raises(PoolUnavailableError):
        async with pool.reserve():
            pass
    handle.error = None
    return handle, pool


async def test_nobody_waits_for_a_full_pool_while_another_pool_may_answer() -> None:
    _, pool = await without_capacity()
    with pytest.raises(PoolUnavailableError):  # at once, not for ever
        async with pool.reserve(elsewhere=True):
            pass


async def test_who_can_go_nowhere_else_waits_for_capacity() -> None:
    handle, pool = await without_capacity()
    asyncio.get_running_loop().call_later(0.3, handle.capacity.set)
    async with pool.reserve() as endpoint:
        assert endpoint.url == "http://127.0.0.1:1"


async def test_a_pool_that_has_capacity_again_is_waited_for_as_before() -> None:
    handle, pool = await without_capacity()
    handle.capacity.set()
    async with pool.reserve(elsewhere=True):
        handle.capacity.clear()
        asyncio.get_running_loop().call_later(0.3, handle.capacity.set)
        async with pool.reserve(elsewhere=True) as endpoint:
            assert endpoint.slot == "token"


async def test_a_wait_in_vain_ends_with_an_error_that_says_when_to_come_back() -> None:
    with pytest.raises(PoolUnavailableError, match="m/p") as raised:
        async with pool_of(Handle(), queue_timeout_s=0.01).reserve():
            pass
    assert raised.value.retry_after_s == 2.0
