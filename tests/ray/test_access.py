"""Keys and limits of a gateway that was started as a user starts it, asked by the real OpenAI client."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import httpx
import openai
import psutil
import pytest
from openai.types.chat import ChatCompletion
from support.local import SIMULATED, LocalGateway, local_gateway

from serve.access.key_file import KeyTerms, TenantRow
from serve.access.key_text import is_token
from serve.cli.keys import AdminKeys
from serve.config.rate_limits import Limits
from serve.launch.ports import free_port

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
HELLO: Any = [{"role": "user", "content": "hello"}]
PATIENCE_S = 30.0  # a change is there within two seconds; how long it takes a busy test machine decides nothing
LONG = 6000  # tokens of a stream that is still under way when a test is over with it: three minutes


class Served(NamedTuple):
    """A gateway with two replicas, its admin API, and its first key."""

    gateway: LocalGateway
    admin_api: str
    first: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, admin_api = tmp_path_factory.mktemp("access"), free_port()
    pool = {**SIMULATED["pools"]["standard"], "sim": {"step_ms": 30, "content_tokens": [LONG, LONG]}}
    settings = {**SIMULATED, "pools": {"standard": {**pool, "graceful_shutdown_timeout_s": 1}}}
    further = {"replicas": 2, "ray_actor_options": {"num_cpus": 0.1}, "graceful_shutdown_timeout_s": 1}
    options = ["--access", "required", "--state-dir", str(folder / "state")]
    environment = {"SPECGATE_ADMIN_PORT": str(admin_api)}
    with local_gateway(
        folder, "sim", free_port(), settings=settings, further=further, options=options, environment=environment
    ) as gateway:
        gateway.until_ready()
        (first,) = [line.strip() for line in gateway.printed().splitlines() if is_token(line.strip())]
        yield Served(gateway, f"http://127.0.0.1:{admin_api}", first)


@pytest.fixture
def keys(served: Served, monkeypatch: pytest.MonkeyPatch) -> AdminKeys:
    """Keys as the command line reaches them, with the first one."""
    monkeypatch.setenv("SPECGATE_KEY", served.first)
    return AdminKeys(served.admin_api)


async def key_of(served: Served, keys: AdminKeys, tenant: str, **limits: int) -> dict[str, Any]:
    """Returns a new key of a tenant with some limits, once every replica knows it."""
    keys.set_tenant(tenant, TenantRow(limits=Limits(**limits)))
    key = keys.create(KeyTerms(tenant=tenant))
    await until_known(served, key["token"])
    return key


def client(served: Served, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{served.gateway.url}/v1", api_key=key, max_retries=0, timeout=60)


async def hello(asker: openai.AsyncOpenAI) -> ChatCompletion:
    return await asker.chat.completions.create(model="sim", messages=HELLO, max_tokens=2)


async def until(happens: Callable[[], Awaitable[bool]]) -> float:
    """Returns after how many seconds something has happened."""
    begun_s = time.monotonic()
    while not await happens():
        assert time.monotonic() - begun_s < PATIENCE_S, "it never happens"
        await asyncio.sleep(0.05)
    return time.monotonic() - begun_s


async def until_known(served: Served, key: str) -> None:
    """Waits until all replicas know a key: each asks for news once a second, at a time of its own.

    Listing models is no request that a limit counts.
    """
    accepted = 0
    begun_s = time.monotonic()
    while accepted < 16:  # connections of their own, so that both replicas have accepted it
        async with client(served, key) as asker:
            try:
                await asker.models.list()
                accepted += 1
            except openai.AuthenticationError:
                accepted = 0
                assert time.monotonic() - begun_s < PATIENCE_S, "a key is never known"
                await asyncio.sleep(0.05)


async def works(served: Served, key: str) -> bool:
    """Asks over a connection of its own, so that either replica may answer."""
    async with client(served, key) as asker:
        try:
            await hello(asker)
        except openai.AuthenticationError:
            return False
        return True


async def test_the_first_key_is_printed_once_and_opens_the_gateway(served: Served) -> None:
    assert served.gateway.printed().count(served.first) == 1
    async with client(served, served.first) as asker:
        assert (await hello(asker)).choices[0].message.content


@pytest.mark.parametrize("key", ["none", "sgk_0123456789_" + "x" * 43 + "_000000"])
async def test_without_a_key_of_the_gateway_nobody_is_served(served: Served, key: str) -> None:
    async with client(served, key) as asker:
        with pytest.raises(openai.AuthenticationError) as refused:
            await hello(asker)
        assert refused.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError):
            await asker.models.list()


async def test_a_limit_holds_over_both_replicas_and_says_when_to_come_back(served: Served, keys: AdminKeys) -> None:
    token = (await key_of(served, keys, "slow", requests_per_minute=2))["token"]
    refusals = []
    for _ in range(6):
        async with client(served, token) as asker:
            try:
                await hello(asker)
            except openai.RateLimitError as error:
                refusals.append(error)
    assert len(refusals) >= 4, "a minute has two"
    for refused in refusals:
        assert refused.code == "rate_limit_exceeded"
        assert int(refused.response.headers["retry-after"]) >= 1  # more than a minute while the ledger is slow
        assert refused.response.headers["x-ratelimit-limit-requests"] == "2"
        assert refused.response.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.response.headers["x-ratelimit-reset-requests"].endswith("s")


async def test_a_spent_quota_is_told_from_a_limit(served: Served, keys: AdminKeys) -> None:
    token = (await key_of(served, keys, "spent", tokens_per_month=1))["token"]

    refused: list[openai.RateLimitError] = []

    async def is_refused() -> bool:
        async with client(served, token) as asker:
            try:
                await hello(asker)
            except openai.RateLimitError as error:
                refused.append(error)
            return bool(refused)

    await until(is_refused)
    assert refused[0].code == "insufficient_quota"
    assert refused[0].response.headers["x-should-retry"] == "false"


async def test_revoked_keys_end_on_both_replicas(
    served: Served, keys: AdminKeys, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [await key_of(served, keys, "leaver") for _ in range(8)]

    async def revoke(key: dict[str, Any]) -> float:
        revoked_s = last_s = time.monotonic()
        keys.revoke(key["id"])
        refused = 0
        while refused < 8:  # connections of their own, so that both replicas have refused it
            if await works(served, key["token"]):
                last_s, refused = time.monotonic(), 0
                assert last_s - revoked_s < PATIENCE_S
            else:
                refused += 1
        return last_s - revoked_s

    took_s = sorted([await revoke(key) for key in made])
    with capsys.disabled():
        print(f"\nrevoked keys were last accepted after {', '.join(f'{each:.2f}' for each in took_s)} s")


async def test_the_old_secret_of_a_rotated_key_is_valid_for_its_grace(served: Served, keys: AdminKeys) -> None:
    made = await key_of(served, keys, "turner")
    second = keys.rotate(made["id"], grace_s=3600)["token"]
    await until_known(served, second)
    assert await works(served, made["token"])
    third = keys.rotate(made["id"], grace_s=0)["token"]
    await until(lambda: works(served, third))

    async def ended() -> bool:
        return not await works(served, second)

    await until(ended)


async def test_the_seats_of_a_killed_gateway_replica_are_free_again(
    served: Served, keys: AdminKeys, capsys: pytest.CaptureFixture[str]
) -> None:
    seats = 6
    token = (await key_of(served, keys, "crowd", concurrency=seats))["token"]
    async with client(served, token) as asker, asyncio.TaskGroup() as readers:
        streams: list[asyncio.Task[None]] = []

        async def takes_a_seat() -> bool:
            try:
                stream = await asker.chat.completions.create(model="sim", messages=HELLO, stream=True)
            except (openai.RateLimitError, openai.APIConnectionError, openai.InternalServerError):
                return False
            await anext(aiter(stream))
            streams.append(readers.create_task(read(stream)))
            return True

        async def some_have_ended() -> bool:
            return any(stream.done() for stream in streams)

        for _ in range(seats):
            await until(takes_a_seat)
        assert not await takes_a_seat()
        gateways = replicas(served)
        assert len(gateways) == 2
        gateways[0].kill()
        killed_s = time.monotonic()
        await until(some_have_ended)
        await asyncio.sleep(1)  # its connections end together
        lost = sum(stream.done() for stream in streams)
        assert lost < seats, "all streams were at one of two replicas"
        for _ in range(lost):
            await until(takes_a_seat)
        with capsys.disabled():
            print(f"\n{lost} seats were free {time.monotonic() - killed_s:.1f} s after their replica was killed")
        assert not await takes_a_seat(), "the others' seats are still taken"
        for task in streams:
            task.cancel()


async def read(stream: openai.AsyncStream[Any]) -> None:
    """Reads a stream until it ends, or breaks with its replica."""
    with contextlib.suppress(openai.APIError, httpx.HTTPError):
        async for _ in stream:
            pass


def replicas(served: Served) -> list[psutil.Process]:
    """The processes of this test's own gateway replicas."""
    title = "ServeReplica:specgate:Gateway"
    return [each for each in served.gateway.processes() if title in " ".join(each.cmdline())]
