"""When the engines behind a remote pool are looked at again, and which of their addresses are used."""

import asyncio
import socket
import time

import pytest
from support.clock import settle

from serve.discovery.asking import LATE
from serve.discovery.reading import EngineAnswer
from serve.errors import PoolUnavailableError
from serve.gateway import engine_watch
from serve.gateway.engine_watch import PoolWatch
from serve.gateway.pools import reported_facts
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


NO_ADDRESS = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
NOBODY_KNOWS = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
UNKNOWN = EngineAnswer(404)
REFUSED = EngineAnswer(0, error="Connect call failed")
TOO_LATE = EngineAnswer(0, error=LATE)


@pytest.mark.parametrize(
    ("error", "answer", "used"),
    [
        (NO_ADDRESS, TOO_LATE, False),
        (socket.gaierror(socket.EAI_NODATA, "No address associated with hostname"), TOO_LATE, False),
        (NO_ADDRESS, REFUSED, False),
        (NO_ADDRESS, UNKNOWN, True),
        (NOBODY_KNOWS, TOO_LATE, True),
        (OSError("the API server answers HTTP 503"), TOO_LATE, True),
    ],
)
async def test_the_last_address_of_a_name_is_used_until_the_name_has_none_and_it_does_not_answer(
    error: OSError, answer: EngineAnswer, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: object) -> EngineAnswer:
        return answer

    async def look_up() -> list[str]:
        if fails:
            raise error
        return [URL]

    monkeypatch.setattr(engine_watch, "ask_metrics", ask)
    monkeypatch.setattr(engine_watch, "ask_passively", lambda *_: no_answers())
    pool, fails = RemotePool(Endpoint(URL, None), FACTS), True
    watch = PoolWatch("m/p", pool, FACTS, lambda _: None, lambda: None, look_up)
    for _ in range(2):
        await watch.look()
    if used:
        async with pool.reserve() as endpoint:
            assert endpoint.url == URL
        return
    with pytest.raises(PoolUnavailableError):
        await pool.reserve().__aenter__()
    fails = False
    await watch.look()
    async with pool.reserve() as endpoint:
        assert endpoint.url == URL, "the name has it again"


async def test_an_engine_that_tells_megabytes_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = EngineAnswer(200, b"process_start_time_seconds 1\n" * 140_000)

    async def ask(*_: object) -> EngineAnswer:
        return answer

    async def ask_all(*_: object) -> dict[str, EngineAnswer]:
        return dict.fromkeys(("metrics", "models", "version", "server_info"), answer)

    monkeypatch.setattr(engine_watch, "ask_metrics", ask)
    monkeypatch.setattr(engine_watch, "ask_passively", ask_all)
    watch = PoolWatch("m/p", RemotePool(Endpoint(URL, None), FACTS), FACTS, lambda _: None, lambda: None)
    began_s = time.thread_time()
    await watch.look()
    assert time.thread_time() - began_s < 0.1


@pytest.mark.parametrize(("answer", "is_up"), [(REFUSED, False), (EngineAnswer(503), False), (UNKNOWN, True)])
async def test_a_pool_at_whose_addresses_nobody_listens_is_down_and_is_asked_all_the_same(
    answer: EngineAnswer, is_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: object) -> EngineAnswer:
        return answer

    monkeypatch.setattr(engine_watch, "ask_metrics", ask)
    monkeypatch.setattr(engine_watch, "ask_passively", lambda *_: no_answers())
    pool = RemotePool(Endpoint(URL, None), FACTS)
    assert await reported_facts(pool) == FACTS, "nobody has looked yet"
    await PoolWatch("m/p", pool, FACTS, lambda _: None, lambda: None).look()
    assert (await reported_facts(pool) is not None) is is_up
    async with pool.reserve() as endpoint:
        assert endpoint.url == URL, "the next request finds out first"


async def no_answers() -> dict[str, EngineAnswer]:
    return {"metrics": UNKNOWN}
