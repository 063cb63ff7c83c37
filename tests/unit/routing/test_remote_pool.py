"""A remote pool takes as many requests as it may; the others wait, a bounded number for a bounded time. Of several
addresses the idlest is next, sessions stay, and one that does not answer is left out.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
from support.clock import ManualClock

from serve.config.gateway import GatewayConfig
from serve.errors import OverloadedError, PoolUnavailableError
from serve.gateway.pools import build_pools
from serve.routing.pool import Affinity, Endpoint
from serve.routing.remote_pool import RemotePool
from serve.routing.waiting_room import WaitingTerms

HERE = Endpoint("http://here", None)
URLS = ["http://a", "http://b", "http://c"]


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


def several(slots: int = 100, routing: str = "balanced", clock: ManualClock | None = None) -> RemotePool:
    endpoints = [Endpoint(url, None) for url in URLS]
    return RemotePool(endpoints, {}, slots, routing=routing, clock=clock or ManualClock())


async def urls_of(pool: RemotePool, number: int, affinity: Affinity | None = None) -> Counter[str]:
    """Returns the addresses of requests that run at the same time."""
    async with AsyncExitStack() as held:
        holds = [pool.reserve(affinity) if affinity else pool.reserve() for _ in range(number)]
        return Counter([(await held.enter_async_context(hold)).url for hold in holds])


async def test_requests_are_spread_evenly() -> None:
    assert await urls_of(several(), 6) == dict.fromkeys(URLS, 2)


async def test_each_address_has_slots_of_its_own() -> None:
    pool = several(slots=2)
    assert pool.occupancy().slots == 6
    async with AsyncExitStack() as held:
        for _ in range(6):
            assert not pool.full
            await held.enter_async_context(pool.reserve())
        assert pool.full
    assert pool.occupancy().held == 0


async def test_an_address_that_did_not_answer_is_left_out_for_a_while_and_longer_the_next_time() -> None:
    clock = ManualClock()
    pool = several(clock=clock)
    pool.forget(Endpoint("http://a", None))
    assert "http://a" not in await urls_of(pool, 6)
    clock.now_s = 2.0
    assert "http://a" in await urls_of(pool, 6)
    pool.forget(Endpoint("http://a", None))
    clock.now_s = 5.0
    assert "http://a" not in await urls_of(pool, 6)


@pytest.mark.parametrize("routing", ["balanced", "sticky", "prefix"])
async def test_a_request_that_an_address_has_failed_goes_to_another(routing: str) -> None:
    pool = several(routing=routing)
    for session in map(str, range(10)):
        affinity = Affinity(partial(str, session), lambda: (1, 2, 3))
        async with pool.reserve(affinity) as first:
            pass
        async with pool.reserve(Affinity(affinity.session, affinity.blocks, frozenset({first.url}))) as second:
            assert second.url != first.url


async def test_when_none_answers_all_are_tried() -> None:
    pool = several()
    for url in URLS:
        pool.forget(Endpoint(url, None))
    assert await urls_of(pool, 3) == dict.fromkeys(URLS, 1)


async def test_no_request_goes_where_none_may_go() -> None:
    pool = several()
    pool.use([], {})
    with pytest.raises(PoolUnavailableError, match="can be used now"):
        await urls_of(pool, 1)
    pool.use(["http://b"], {"method": "none"})
    assert await urls_of(pool, 2) == {"http://b": 2}
    assert await pool.facts() == {"method": "none"}


@pytest.mark.parametrize("session", ["x", "y", "z"])
async def test_a_session_moves_only_if_its_address_goes(session: str) -> None:
    pool = several(routing="sticky")
    affinity = Affinity(lambda: session, tuple)
    ((home, _),) = (await urls_of(pool, 5, affinity)).items()
    other = next(url for url in URLS if url != home)
    pool.use([url for url in URLS if url != other], {})
    assert await urls_of(pool, 5, affinity) == {home: 5}
    pool.use([url for url in URLS if url != home], {})
    assert home not in await urls_of(pool, 5, affinity)


async def test_a_prompt_goes_where_its_beginning_is() -> None:
    pool = several(routing="prefix")
    long = tuple(range(50))
    first = await urls_of(pool, 1, Affinity(str, lambda: long))
    await urls_of(pool, 2, Affinity(str, lambda: (99,)))
    assert await urls_of(pool, 1, Affinity(str, lambda: (*long, 50))) == first


async def test_a_conversation_goes_back_to_an_address_that_was_away_unless_its_engine_was_restarted() -> None:
    clock = ManualClock()
    pool = several(routing="prefix", clock=clock)
    affinity = Affinity(str, lambda: tuple(range(50)))
    ((home, _),) = (await urls_of(pool, 1, affinity)).items()
    others = [url for url in URLS if url != home]
    pool.use(others[:1], {})
    ((second, _),) = (await urls_of(pool, 1, Affinity(str, lambda: (*range(40), 99)))).items()
    pool.use(URLS, {})
    assert second != home
    assert set(await urls_of(pool, 1, affinity)) == {home}
    pool.restarted(home)
    assert set(await urls_of(pool, 1, affinity)) == {second}


async def test_an_address_that_another_engine_gets_after_it_was_taken_away_counts_as_empty() -> None:
    pool = several(routing="prefix")
    affinity = Affinity(str, lambda: tuple(range(50)))
    ((home, _),) = (await urls_of(pool, 1, affinity)).items()
    other = next(url for url in URLS if url != home)
    pool.keep([other])
    assert await urls_of(pool, 1, affinity) == {other: 1}
    pool.keep(URLS)
    pool.use(URLS, {})
    assert await urls_of(pool, 1, affinity) == {other: 1}


async def test_a_full_home_leaves_its_session_to_others() -> None:
    pool = several(slots=1, routing="sticky")
    assert await urls_of(pool, 3, Affinity(lambda: "x", tuple)) == dict.fromkeys(URLS, 1)


async def test_an_address_that_failed_a_request_does_not_get_it_again_while_there_is_another() -> None:
    pool = several()
    failed, *others = URLS
    assert set(await urls_of(pool, 4, Affinity(str, tuple, frozenset({failed})))) == set(others)
    assert set(await urls_of(pool, 3, Affinity(str, tuple, frozenset(URLS)))) == set(URLS), "all have failed it"
