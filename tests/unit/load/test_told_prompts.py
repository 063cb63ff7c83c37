"""Gateways without Ray tell each other over the limits' store which prompts engines were sent, and have to compute."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.limits_store import StoreServer, needs_server

from serve.limits.store import RedisStore
from serve.load.live_load import NULL_LOAD
from serve.load.shared_load import SharedLoad, connect
from serve.routing.pool import Affinity, Endpoint
from serve.routing.remote_pool import RemotePool

pytestmark = needs_server
FIRST, SECOND = "http://first", "http://second"
PROMPT = tuple(range(50))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[StoreServer]:
    server = StoreServer(tmp_path, persistent=False)
    await server.start()
    yield server
    server.stop()


class Gateway:
    def __init__(self, store: RedisStore) -> None:
        self._pool = RemotePool([Endpoint(FIRST, None), Endpoint(SECOND, None)], {}, routing="prefix")
        self.sync = SharedLoad(NULL_LOAD, {("m", "p"): self._pool}, connect(None, store.tell)).sync

    async def sends(self, prompt: tuple[int, ...], avoid: str = "") -> str:
        """Sends a prompt; returns where."""
        async with self.holds(prompt, avoid) as url:
            return url

    @asynccontextmanager
    async def holds(self, prompt: tuple[int, ...], avoid: str = "") -> AsyncIterator[str]:
        """Sends a prompt that is not computed meanwhile; yields where."""
        async with self._pool.reserve(Affinity(str, lambda: prompt, frozenset({avoid} - {""}))) as endpoint:
            yield endpoint.url


@asynccontextmanager
async def gateway(server: StoreServer) -> AsyncIterator[Gateway]:
    store = RedisStore(server.config)
    try:
        yield Gateway(store)
    finally:
        await store.close()


async def test_a_conversation_is_found_again_by_whichever_gateway_it_comes_to(server: StoreServer) -> None:
    async with gateway(server) as one, gateway(server) as other:
        assert await one.sends(PROMPT, avoid=FIRST) == SECOND
        for each in (one, other):
            await each.sync()
        assert await other.sends((*PROMPT, 51)) == SECOND
        assert await other.sends(tuple(range(100, 150))) == FIRST  # which has no prompt yet


async def test_a_prompt_does_not_wait_for_what_another_gateway_has_just_sent(server: StoreServer) -> None:
    async with gateway(server) as one, gateway(server) as other:
        async with one.holds(PROMPT) as busy:
            for each in (one, other):
                await each.sync()
            assert await other.sends(tuple(range(100, 110))) != busy
        for each in (one, other):
            await each.sync()
        assert await other.sends((*PROMPT, 51)) == busy, "nothing is computed there any more"


async def test_a_gateway_that_begins_hears_what_was_sent_just_before(server: StoreServer) -> None:
    async with gateway(server) as one, gateway(server) as late:
        assert await one.sends(PROMPT, avoid=FIRST) == SECOND
        await one.sync()
        await late.sync()
        assert await late.sends(PROMPT) == SECOND


async def test_what_was_sent_while_the_store_was_away_is_told_when_it_is_back(server: StoreServer) -> None:
    async with gateway(server) as one, gateway(server) as other:
        await one.sync()
        server.stop()
        assert await one.sends(PROMPT, avoid=FIRST) == SECOND
        await one.sync()
        await server.start()
        for each in (one, other):
            await each.sync()
        assert await other.sends(PROMPT) == SECOND


async def test_the_store_keeps_no_more_than_the_last_seconds(server: StoreServer) -> None:
    store, other = RedisStore(server.config), RedisStore(server.config)
    for number in range(100):
        await store.tell("one", b"%d" % number)
    assert await other.tell("other", b"") == [b"%d" % number for number in range(36, 100)]
    assert await store.tell("one", b"") == []
    assert 0 < await server.command("TTL", "{specgate}:told:prompts-v2") <= 60
    await store.close()
    await other.close()
