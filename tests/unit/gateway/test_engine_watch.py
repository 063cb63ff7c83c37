"""When the engines behind a remote pool are looked at again."""

import asyncio

from support.clock import settle

from serve.gateway.engine_watch import PoolWatch
from serve.routing.pool import Endpoint
from serve.routing.remote_pool import RemotePool

FACTS = {"engine": "vllm", "method": "none"}
URL = "http://10.0.0.1:8000"


class LookUps:
    """What tells a pool's addresses, of which there are none.

    Attributes:
        count: How often it was asked.
        may_end: It hangs while this is not set.
    """

    def __init__(self) -> None:
        self.count = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> list[str]:
        self.count += 1
        await self.may_end.wait()
        return []


async def test_a_silence_during_a_look_is_looked_into_at_once_and_once() -> None:
    pool, look_up = RemotePool((), FACTS), LookUps()
    watch = asyncio.create_task(PoolWatch("m/p", pool, FACTS, lambda _: None, lambda: None, look_up).run())
    await settle()
    pool.forget(Endpoint(URL, None))
    look_up.may_end.set()
    await settle()
    assert look_up.count == 2
    pool.forget(Endpoint(URL, None))
    await settle()
    assert look_up.count == 3
    watch.cancel()
