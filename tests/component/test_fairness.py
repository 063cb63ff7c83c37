"""Tenants share a full pool by their weights, over real HTTP, whoever asks for more."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from support.engines import Engine, chunk, end, frame, start, whole
from support.stack import listening, running

from lab.sim import SimSettings, build_sim_app
from serve.access.key_file import KeyTerms
from serve.access.key_store import KeyStore
from serve.access.principal import Principal, Tenant
from serve.config.access import RIGHTS
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.gateway.ingress import GatewayReplica
from serve.limits.accounts import NULL_ACCOUNTS, Accounts, AnyAccounts
from serve.limits.actor import LedgerActor
from serve.routing.remote_pool import RemotePool
from serve.routing.waiting_room import WaitingTerms
from serve.shared.link import LocalLink

CONFIG: dict[str, Any] = {
    "models": {
        "m": {
            "family": "qwen",
            "version": "3",
            "grammar": "hermes",
            "pools": {"p": {"kind": "remote", "url": "http://127.0.0.1:1", "facts": {"method": "none"}}},
        }
    }
}
PATIENT_S = 600.0


class FullEngine:
    """An engine without an answer until its gate opens.

    Attributes:
        served: Bytes of the requests that it was given, by tenant.
        order: The tenants, in the order in which it was given their requests.
        gate: Set to let answers come.
    """

    def __init__(self, **output: int) -> None:
        """Takes the tokens of an answer, by tenant; one if it is not named."""
        self._output = output
        self.served = Counter[str]()
        self.order: list[str] = []
        self.gate = asyncio.Event()
        self.app = Engine(self._answer)

    async def _answer(self, engine: Engine, send: Any, body: bytes) -> None:
        request = json.loads(body)
        tenant = request["user"]
        self.served[tenant] += len(body)
        self.order.append(tenant)
        await self.gate.wait()
        usage = {"prompt_tokens": 10, "completion_tokens": self._output.get(tenant, 1)}
        if request["stream"]:
            await start(send, kind="text/event-stream")
            last = frame({**chunk({}), "choices": [], "usage": usage})
            await end(send, frame(chunk({"content": "hi"}, "stop")) + last + b"data: [DONE]\n\n")
        else:
            await start(send)
            await end(send, json.dumps({**whole("hi"), "usage": usage}).encode())


class Rig(NamedTuple):
    """A gateway with one pool of a few slots, and a client of it."""

    client: httpx.AsyncClient
    pool: RemotePool

    async def ask(self, tenant: str, words: int = 1, class_: str = "standard", stream: bool = False) -> int:
        """Sends one request; returns its status."""
        messages = [{"role": "user", "content": "word " * words}]
        body = {"model": "m", "user": tenant, "stream": stream, "messages": messages}
        headers = {"x-tenant": tenant, "x-specgate-class": class_}
        return (await self.client.post("/v1/chat/completions", json=body, headers=headers)).status_code

    async def fill(self) -> list[asyncio.Task[int]]:
        """Lets requests of a tenant called `first` take every slot."""
        slots = self.pool.occupancy().slots
        tasks = [asyncio.create_task(self.ask("first")) for _ in range(slots or 0)]
        await until(lambda: self.pool.occupancy().held == slots)
        return tasks

    async def wait(
        self, tenant: str, words: int = 1, class_: str = "standard", stream: bool = False
    ) -> asyncio.Task[int]:
        """Lets a request wait for a slot; returns when it does."""
        before = self.pool.occupancy().waiting
        task = asyncio.create_task(self.ask(tenant, words, class_, stream))
        await until(lambda: self.pool.occupancy().waiting > before)
        return task


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came true")


@asynccontextmanager
async def sharing(
    engine: FullEngine, *tenants: Tenant, slots: int, queued: int = 512, accounts: AnyAccounts = NULL_ACCOUNTS
) -> AsyncIterator[Rig]:
    """Runs a gateway that believes every client the tenant it names."""
    names = {tenant.name: tenant for tenant in (Tenant("first"), *tenants)}

    def authenticate(headers: Mapping[str, str]) -> Principal:
        tenant = names[headers["x-tenant"]]
        return Principal(f"key of {tenant.name}", tenant, RIGHTS, priority_ceiling=tenant.priority_ceiling)

    async with AsyncExitStack() as resources:
        endpoint = await resources.enter_async_context(listening(engine.app))
        pool = RemotePool(endpoint, {}, slots, WaitingTerms(queued, PATIENT_S, PATIENT_S), "m/p")
        gateway = running(CONFIG, {}, {("m", "p"): pool}, accounts=accounts, authenticate=authenticate)
        stack = await resources.enter_async_context(gateway)
        limits = httpx.Limits(max_connections=None)
        client = httpx.AsyncClient(base_url=stack.url, limits=limits, timeout=PATIENT_S)
        yield Rig(await resources.enter_async_context(client), pool)


@pytest.mark.parametrize("weight", [1.0, 3.0])
async def test_ten_times_the_load_brings_no_more_than_the_weight(weight: float) -> None:
    engine = FullEngine()
    async with sharing(engine, Tenant("heavy"), Tenant("light", weight), slots=4) as rig:
        first = await rig.fill()
        # All of the heavy tenant's requests come first.
        tasks = [asyncio.create_task(rig.ask("heavy", 50 + number % 50)) for number in range(300)]
        await until(lambda: rig.pool.occupancy().waiting == 300)
        tasks += [asyncio.create_task(rig.ask("light", words)) for words in range(200, 230)]
        await until(lambda: rig.pool.occupancy().waiting == 330)
        engine.gate.set()
        await until(lambda: engine.order.count("light") == 30)
        served = dict(engine.served)
        assert set(await asyncio.gather(*first, *tasks)) == {200}
    assert served["light"] / weight == pytest.approx(served["heavy"], rel=0.15)


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_count_by_what_they_used_and_not_by_what_was_expected(stream: bool) -> None:
    engine = FullEngine(long=2000)
    accounts = Accounts(RateLimitsConfig(), LocalLink(LedgerActor(None, 0.0)))
    async with sharing(engine, Tenant("long"), Tenant("short"), slots=1, accounts=accounts) as rig:
        tasks = await rig.fill()
        tasks += [await rig.wait(tenant, stream=stream) for tenant in ["long", "short"] * 4]
        engine.gate.set()
        assert set(await asyncio.gather(*tasks)) == {200}
    assert engine.order[-3:] == ["long"] * 3, "its first answer was worth all four of the other tenant's"


async def test_classes_are_served_in_order_and_no_higher_than_a_key_may() -> None:
    engine = FullEngine()
    low = Tenant("low", priority_ceiling="batch")
    async with sharing(engine, Tenant("red"), Tenant("blue"), low, slots=1) as rig:
        tasks = await rig.fill()
        tasks.append(await rig.wait("low", class_="interactive"))
        tasks.append(await rig.wait("red", class_="standard"))
        tasks.append(await rig.wait("blue", class_="interactive"))
        engine.gate.set()
        assert set(await asyncio.gather(*tasks)) == {200}
        assert engine.order == ["first", "blue", "red", "low"]


async def test_a_class_that_there_is_not_is_refused() -> None:
    engine = FullEngine()
    async with sharing(engine, Tenant("red"), slots=1) as rig:
        assert await rig.ask("red", class_="first") == 400
    assert not engine.order


async def test_a_class_that_there_is_not_costs_nothing_of_a_limit() -> None:
    engine = FullEngine()
    engine.gate.set()
    accounts = Accounts(RateLimitsConfig(), LocalLink(LedgerActor(None, 0.0)))
    once = Tenant("once", limits=Limits(requests_per_minute=1))
    async with sharing(engine, once, slots=1, accounts=accounts) as rig:
        assert [await rig.ask("once", class_=each) for each in ("first", "batch", "batch")] == [400, 200, 429]


async def test_a_full_queue_is_the_trouble_of_the_tenant_that_filled_it() -> None:
    engine = FullEngine()
    async with sharing(engine, Tenant("heavy"), Tenant("light"), slots=1, queued=3) as rig:
        first = await rig.fill()
        heavy = [await rig.wait("heavy") for _ in range(3)]
        assert await rig.ask("heavy") == 429
        light = asyncio.create_task(rig.ask("light"))
        assert await heavy.pop() == 429
        engine.gate.set()
        assert await asyncio.gather(*first, *heavy, light) == [200] * 4


async def test_a_tenant_has_no_more_requests_waiting_than_its_limit() -> None:
    engine = FullEngine()
    accounts = Accounts(RateLimitsConfig(), LocalLink(LedgerActor(None, 0.0)))
    red = Tenant("red", limits=Limits(queued=1))
    async with sharing(engine, red, Tenant("blue"), slots=1, accounts=accounts) as rig:
        tasks = await rig.fill()
        tasks.append(await rig.wait("red"))
        assert await rig.ask("red") == 429
        tasks += [await rig.wait("blue"), await rig.wait("blue")]
        engine.gate.set()
        assert await asyncio.gather(*tasks) == [200] * 4


async def test_a_flood_of_one_key_does_not_starve_another_on_a_whole_gateway(tmp_path: Path) -> None:
    """In the order of arrival, each request of the light tenant would wait for all that the heavy one has waiting."""
    engine = build_sim_app(SimSettings(model="m", step_ms=2.0, content_tokens=(10, 20)))
    slots, flood, asked = 4, 40, 12
    answers = Counter[str]()
    async with AsyncExitStack() as resources:
        behind = await resources.enter_async_context(listening(engine))
        pool = {"kind": "remote", "url": behind.url, "max_ongoing_requests": slots, "facts": {"method": "none"}}
        model = {"family": "sim", "grammar": "kimi_k2", "pools": {"p": pool}}
        replica = GatewayReplica(
            {"models": {"m": model}, "access": {"mode": "required", "state_dir": str(tmp_path)}}, []
        )
        store = KeyStore(tmp_path)
        resources.callback(store.close)
        tokens = {name: store.create(KeyTerms(tenant=name)).token for name in ("heavy", "light")}
        front = await resources.enter_async_context(listening(replica.app(), replica.hot))
        limits = httpx.Limits(max_connections=None)
        client = httpx.AsyncClient(base_url=front.url, limits=limits, timeout=PATIENT_S)
        await resources.enter_async_context(client)

        async def ask(tenant: str) -> int:
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
            headers = {"authorization": f"Bearer {tokens[tenant]}"}
            response = await client.post("/v1/chat/completions", json=body, headers=headers)
            answers[tenant] += 1
            return response.status_code

        async def keep_asking() -> None:
            while True:
                assert await ask("heavy") == 200

        await replica.access.refresh()
        clients = [asyncio.create_task(keep_asking()) for _ in range(flood)]
        await until(lambda: replica.pools["m", "p"].occupancy().waiting >= flood - slots)
        before = answers["heavy"]
        assert [await ask("light") for _ in range(asked)] == [200] * asked
        heavy = answers["heavy"] - before
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    assert not any(task.done() and not task.cancelled() for task in clients)
    assert heavy < asked * (flood - slots) / 2
