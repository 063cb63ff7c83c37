"""Hosts whose name server hangs: nobody waits long who has been there before, and nobody else waits at all."""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence

import pytest

from serve.http1.resolver import Addresses


class Resolver:
    """A name server.

    Attributes:
        asked: Hosts, in order.
        goes_on: It hangs while this is not set.
        error: What it answers in place of an address.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.error: OSError | None = None

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        self.goes_on.wait(60)
        if self.error is not None:
            raise self.error
        return (f"10.0.0.{len(self.asked)}",)


async def test_an_address_is_its_own() -> None:
    resolver = Resolver()
    addresses = Addresses(resolver)
    assert [await addresses.of(each) for each in ("10.1.2.3", "::1", "fe80::1%eth0")] == [
        ("10.1.2.3",),
        ("::1",),
        ("fe80::1%eth0",),
    ]
    assert not resolver.asked


async def test_a_host_is_looked_up_each_time_but_once_at_a_time() -> None:
    resolver = Resolver()
    addresses = Addresses(resolver)
    assert await addresses.of("a") == ("10.0.0.1",)
    resolver.goes_on.clear()
    many = [asyncio.create_task(addresses.of("b")) for _ in range(20)]
    await asyncio.sleep(0)
    many[0].cancel()  # the others still get theirs
    resolver.goes_on.set()
    assert set(await asyncio.gather(*many[1:])) == {("10.0.0.2",)}
    assert resolver.asked == ["a", "b"]
    assert await addresses.of("a") == ("10.0.0.3",)


async def test_while_a_name_server_hangs_the_addresses_of_before_are_good_and_other_hosts_are_found() -> None:
    resolver = Resolver()
    addresses = Addresses(resolver, patience_s=0.01)
    assert await addresses.of("known") == ("10.0.0.1",)
    resolver.goes_on.clear()
    assert [await addresses.of("known") for _ in range(3)] == [("10.0.0.1",)] * 3
    unknown = [asyncio.create_task(addresses.of(f"host-{number}")) for number in range(100)]
    await until(lambda: len(resolver.asked) == 102)  # nobody waits for a thread that another one has
    assert not any(each.done() for each in unknown)
    resolver.goes_on.set()
    assert all(await asyncio.gather(*unknown))


async def test_only_a_failure_that_passes_leaves_the_addresses_of_before() -> None:
    resolver = Resolver()
    addresses = Addresses(resolver)
    await addresses.of("a")
    resolver.error = socket.gaierror(socket.EAI_AGAIN, "try again")
    assert await addresses.of("a") == ("10.0.0.1",)
    resolver.error = socket.gaierror(socket.EAI_NONAME, "unknown")
    with pytest.raises(socket.gaierror):
        await addresses.of("a")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
