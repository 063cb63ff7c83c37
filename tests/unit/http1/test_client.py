"""Connections to hosts of several addresses."""

import asyncio

import pytest

from serve.http1 import client
from serve.http1.client import ConnectionPool, Origin
from serve.http1.resolver import Addresses

NOBODY = "127.0.0.1"  # at port 1
UNREACHABLE = "fe80::1"  # an address of a link, without saying of which: not even a connection is tried


@pytest.mark.parametrize("first", [UNREACHABLE, "127.0.0.2"])
async def test_an_address_that_cannot_be_reached_does_not_keep_from_the_others(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ADDRESSES", Addresses(lambda _: (first, "127.0.0.1")))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with server:
        connection = await ConnectionPool(5.0, 5.0).connect(Origin.of(f"http://engine.example:{port}"))
        connection.close()


async def test_if_none_can_be_reached_the_last_one_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ADDRESSES", Addresses(lambda _: (UNREACHABLE, NOBODY)))
    with pytest.raises(ConnectionRefusedError):
        await ConnectionPool(5.0, 5.0).connect(Origin.of("http://engine.example:1"))
