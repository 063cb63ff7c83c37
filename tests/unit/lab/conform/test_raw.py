"""Requests that no HTTP client would write, and what comes back."""

import asyncio

from lab.conform.raw import exchange, head, statuses


def test_a_head_ends_with_an_empty_line_with_or_without_further_lines() -> None:
    assert head("http://h:1", {"a": "b"}) == b"POST /v1/chat/completions HTTP/1.1\r\nhost: h:1\r\na: b\r\n\r\n"
    assert head("http://h:1", {}, "x: y\nz", "/p") == b"POST /p HTTP/1.1\r\nhost: h:1\r\nx: y\nz\r\n\r\n"


def test_the_statuses_of_all_responses_are_found() -> None:
    assert statuses(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.0 431\r\n\r\nHTTP/2 500 x") == [200, 431]
    assert statuses(b"") == []


async def test_an_exchange_ends_with_the_connection_or_with_silence() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (sent := await reader.read(100)) == b"speak":
            writer.write(b"spoken")
        await (asyncio.sleep(5) if sent == b"be silent" else asyncio.sleep(0))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await exchange(url, b"speak") == b"spoken"
        assert await exchange(url, b"leave") == b""
        assert await exchange(url, b"be silent", first_s=0.05) == b""
