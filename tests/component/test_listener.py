"""Clients that hold on to what they take, over raw sockets: heads without bodies, slow bodies, trailers, pipelines."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.clock import LoopClock, until
from support.engines import streaming
from support.guard_stack import config, post
from support.stack import listening, running

from serve.http1.allowance import Allowance

HEAD = b"POST /hot HTTP/1.1\r\nhost: a\r\n"
HELLO = HEAD + b"content-length: 5\r\n\r\nhello"
CHAT_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
PART = b"x" * 100_000
CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
pytestmark = pytest.mark.timeout(120)
own_loop = pytest.mark.asyncio(loop_scope="function")


async def echo(_: Any, receive: Any, send: Any) -> None:
    """Responds with the body, or with the error for which it was given up."""
    body, more = b"", True
    while more:
        message = await receive()
        if error := message.get("error"):
            head = {"type": "http.response.start", "status": error.status, "headers": []}
            await send(head)
            await send({"type": "http.response.body", "body": error.to_json()})
            return
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def leaving(_: Any, receive: Any, __: Any) -> None:
    """Ends without a response when the client leaves, as web frameworks do."""
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def connecting(
    hot: Any = echo, fallback: Any = echo, allowance: Allowance | None = None
) -> AsyncIterator[Callable[[], Any]]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for phase in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{phase}.complete"})
        else:
            await fallback(scope, receive, send)

    async with listening(app, {"/hot": hot}, allowance) as endpoint:
        writers: list[asyncio.StreamWriter] = []

        async def connect(*sent: bytes) -> Client:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(endpoint.url).port)
            writers.append(writer)
            for data in sent:
                writer.write(data)
            return reader, writer

        try:
            yield connect
        finally:
            for writer in writers:
                writer.close()


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    if length:
        return status, await reader.readexactly(int(length))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return status, body


async def ended(reader: asyncio.StreamReader) -> bool:
    """True if the listener closes the connection without another word."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_heads_without_bodies_take_no_capacity_from_anybody() -> None:
    engine = streaming([b"data: [DONE]\n\n"])
    async with running(
        config(max_ongoing_requests=2), {("m", "speculative"): engine, ("m", "standard"): engine}
    ) as stack:
        address = urlsplit(stack.url)
        clients = [await asyncio.open_connection(address.hostname, address.port) for _ in range(20)]
        for _, writer in clients:
            writer.write(CHAT_HEAD + b"content-length: 50\r\n\r\n{")
        await until(lambda: stack.allowance.held_bytes == len(clients))
        assert (await post(stack.url, CHAT))[0] == 200
        for _, writer in clients:
            writer.close()


async def test_the_gateway_says_why_it_gave_up_a_body() -> None:
    engine = streaming([b"data: [DONE]\n\n"])
    limits = {"max_buffered_bytes": 1000}
    async with running(config(limits=limits), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        status, headers, body = await post(stack.url, {**CHAT, "user": "a" * 2000})
        assert (status, json.loads(body)["error"]["code"], headers["retry-after"]) == (429, "overloaded", "2")
        address = urlsplit(stack.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(CHAT_HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense")
        status, body = await response(reader)
        assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_request")
        assert await ended(reader)
        assert (await post(stack.url, CHAT))[0] == 200
        writer.close()


@own_loop
@pytest.mark.parametrize("slow", [b"POST /hot HT", HEAD, HEAD + b"content-length: 9\r\n\r\nhello", CHUNKED + b"1\r\n"])
async def test_half_a_request_is_408_when_its_time_is_over(slow: bytes, clock: LoopClock) -> None:
    async with connecting() as connect:
        reader, _ = await connect(slow)
        async with clock.hurrying(5):
            status, body = await response(reader)
        assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
        assert await ended(reader)


@own_loop
async def test_a_connection_on_which_nothing_was_sent_is_closed_without_a_word(clock: LoopClock) -> None:
    async with connecting() as connect:
        reader, _ = await connect()
        async with clock.hurrying(5):
            assert await ended(reader)


@own_loop
async def test_a_body_that_keeps_to_the_rate_has_its_time(clock: LoopClock) -> None:
    allowance = Allowance()
    async with connecting(allowance=allowance) as connect:
        reader, writer = await connect(HEAD + b"content-length: 80000\r\n\r\n")
        for received in range(8000, 80_000, 8000):
            writer.write(b"a" * 8000)
            await until(lambda received=received: allowance.held_bytes == received)  # type: ignore[misc]
            await clock.advance(6)  # 1,333 bytes a second
        writer.write(b"a" * 8000)
        assert await response(reader) == (200, b"a" * 80_000)


@own_loop
async def test_half_a_request_behind_another_one_does_not_cut_its_stream(clock: LoopClock) -> None:
    async def streams(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(15):
            await send({"type": "http.response.body", "body": b"token ", "more_body": True})
            await clock.advance(30)
        await send({"type": "http.response.body"})

    async with connecting(streams) as connect:
        for half in (HEAD, CHUNKED + b"1\r\n"):
            reader, _ = await connect(HELLO + half)
            assert await response(reader) == (200, b"token " * 15)


@own_loop
@pytest.mark.parametrize("unread", [b"", HELLO * 3])
@pytest.mark.parametrize("leave", [asyncio.StreamWriter.close, lambda writer: writer.transport.abort()])
async def test_a_client_that_leaves_behind_pipelined_requests_is_noticed_during_the_first(
    leave: Callable[[asyncio.StreamWriter], None], unread: bytes, clock: LoopClock
) -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def waits(_: Any, __: Any, ___: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()

    async with connecting(waits) as connect:
        _, writer = await connect(HELLO * 2)
        await begun.wait()
        writer.write(unread)
        await writer.drain()
        await clock.advance(10)
        assert not over.is_set(), "a client that only waits stays"
        leave(writer)
        async with asyncio.timeout(60), clock.hurrying(1):
            await over.wait()


def endless(over: asyncio.Event, full: asyncio.Event) -> Any:
    """Streams until the client is gone."""

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not over.is_set():
                writing = asyncio.ensure_future(send({"type": "http.response.body", "body": PART, "more_body": True}))
                await asyncio.sleep(0)
                if not writing.done():
                    full.set()
                    gone = asyncio.ensure_future(receive())
                    await asyncio.wait([writing, gone], return_when=asyncio.FIRST_COMPLETED)
                    if gone.done():
                        return
                    gone.cancel()
        finally:
            over.set()

    return app


@own_loop
@pytest.mark.parametrize("path", [b"/hot", b"/cold"])
@pytest.mark.parametrize("pipelined", [0, 2])
async def test_a_client_that_closes_its_half_while_output_waits_for_it_is_gone_at_once(
    path: bytes, pipelined: int, clock: LoopClock
) -> None:
    over, full = asyncio.Event(), asyncio.Event()
    app = endless(over, full)
    async with connecting(app, app) as connect:
        _, writer = await connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(HELLO.replace(b"/hot", path) * (1 + pipelined))
        await full.wait()
        assert not over.is_set()
        writer.write_eof()
        async with asyncio.timeout(60):
            if pipelined:  # their end stands behind what is not read
                await clock.advance(10)
            await over.wait()


@pytest.mark.parametrize("path", [b"/hot", b"/cold"])
async def test_a_client_that_closes_its_half_gets_the_response_that_is_whole(path: bytes) -> None:
    sending = asyncio.Event()

    async def whole(_: Any, receive: Any, send: Any) -> None:
        await receive()
        headers = [(b"content-length", b"%d" % (100 * len(PART)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        asyncio.get_running_loop().call_soon(sending.set)
        await send({"type": "http.response.body", "body": 100 * PART})

    async with connecting(whole, whole) as connect:
        reader, writer = await connect()
        writer.transport.pause_reading()
        writer.write(HELLO.replace(b"/hot", path))
        await sending.wait()
        writer.write_eof()
        await asyncio.sleep(0)
        writer.transport.resume_reading()
        assert await response(reader) == (200, 100 * PART)


@own_loop
async def test_a_client_that_closes_its_half_before_the_response_leaves_once_and_gets_those_before_it() -> None:
    begun, cancels, cleaned = asyncio.Event(), 0, asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal cancels
        if scope["query_string"]:
            await echo(scope, receive, send)
            return
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancels += 1
            await asyncio.sleep(0.01)  # what a second cancel would break off
            cleaned.set()

    async with connecting(app) as connect:
        reader, writer = await connect(HELLO.replace(b"/hot", b"/hot?quick") + HELLO)
        await begun.wait()
        writer.write_eof()
        assert await response(reader) == (200, b"hello")
        assert await ended(reader)
        async with asyncio.timeout(60):
            await cleaned.wait()
    assert cancels == 1


async def test_one_connection_more_than_allowed_is_503_and_closed() -> None:
    async with connecting(allowance=Allowance(max_connections=2)) as connect:
        clients = [await connect(HELLO) for _ in range(2)]
        assert [await response(reader) for reader, _ in clients] == [(200, b"hello")] * 2
        reader, _ = await connect()
        status, body = await response(reader)
        assert (status, json.loads(body)["error"]["code"]) == (503, "too_many_connections")
        assert await ended(reader)
        clients[0][1].close()

        async def served() -> bool:
            reader, _ = await connect(HELLO)
            return (await response(reader))[0] == 200

        async with asyncio.timeout(60):
            while not await served():  # until the listener has noticed that one has left
                pass


@pytest.mark.parametrize("path", [b"/hot", b"/cold"])
async def test_bodies_beyond_what_all_may_hold_together_are_429_until_others_have_ended(path: bytes) -> None:
    long = HEAD.replace(b"/hot", path) + b"content-length: 3000\r\n\r\n"
    allowance = Allowance(max_buffered_bytes=5000)
    async with connecting(fallback=leaving, allowance=allowance) as connect:
        first, first_writer = await connect(HEAD + b"content-length: 3000\r\n\r\n" + b"a" * 2999)
        await until(lambda: allowance.held_bytes == 2999)
        second, _ = await connect(long + b"b" * 2500)
        status, body = await response(second)
        assert (status, json.loads(body)["error"]["code"]) == (429, "overloaded")
        assert await ended(second)
        first_writer.write(b"a")
        assert await response(first) == (200, b"a" * 3000)
        await until(lambda: allowance.held_bytes == 0)
        _, leaver = await connect(HEAD + b"content-length: 3000\r\n\r\n" + b"a" * 2999)
        await until(lambda: allowance.held_bytes == 2999)
        leaver.close()
        await until(lambda: allowance.held_bytes == 0)


@pytest.mark.parametrize("path", [b"/hot", b"/cold"])
@pytest.mark.parametrize(
    "body",
    [b"x\r\n", b"5\r\nhello5\r\n", b"5\r\nhello\r\n-1\r\n", b"5\r\nhello\r\n0\r\nbad trailer\r\n\r\n",
     b"5\r\nhello\r\n0\r\ncontent-length: 5\r\n\r\n", b"fffffffffffffffff\r\n"],
)  # fmt: skip
async def test_a_malformed_chunk_or_trailer_is_400_at_once(path: bytes, body: bytes) -> None:
    async with connecting(fallback=leaving) as connect:
        for pieces in ([body], [body[:3], body[3:]]):
            reader, writer = await connect(CHUNKED.replace(b"/hot", path))
            for piece in pieces:
                await asyncio.sleep(0.02)
                writer.write(piece)
            status, answer = await response(reader)
            assert (status, json.loads(answer)["error"]["code"]) == (400, "invalid_request")
            assert await ended(reader)


@pytest.mark.parametrize("endless", [b"a" * 1000, b"a:b\r\n" * 200, b"5;x"], ids=["one", "many", "extension"])
async def test_a_trailer_or_chunk_extension_that_does_not_end_is_431(endless: bytes) -> None:
    async with connecting() as connect:
        start = CHUNKED if endless == b"5;x" else CHUNKED + b"5\r\nhello\r\n0\r\na: b\r\n"
        reader, writer = await connect(start, endless)
        endless = b"x" * 1000 if endless == b"5;x" else endless
        for _ in range(400):
            writer.write(endless)
            await asyncio.sleep(0)
        status, body = await response(reader)
        assert (status, json.loads(body)["error"]["code"]) == (431, "head_too_large")


async def test_empty_lines_without_end_are_431() -> None:
    async with connecting() as connect:
        reader, writer = await connect()
        for _ in range(400):
            writer.write(b"\r\n" * 500)
            await asyncio.sleep(0)
        assert (await response(reader))[0] == 431


async def test_small_requests_of_which_every_read_cuts_one_are_no_long_head() -> None:
    async with connecting() as connect:
        reader, writer = await connect()
        size = 10 * len(HELLO) + 7
        requests = HELLO * 3000
        answered = 0
        for end in range(size, len(requests), size):
            writer.write(requests[end - size : end])
            while answered < end // len(HELLO):
                assert await response(reader) == (200, b"hello")
                answered += 1


async def test_too_many_requests_in_one_read_are_429_after_those_that_may_wait() -> None:
    async with connecting() as connect:
        reader, _ = await connect(HELLO * 3000)
        statuses = [(await response(reader))[0] for _ in range(66)]
        assert statuses == [200] * 65 + [429]


@pytest.mark.parametrize("coding", [b"xchunked", b"chunked, chunked", b"gzip"])
async def test_an_offer_of_http_2_with_a_body_that_nobody_can_frame_is_400(coding: bytes) -> None:
    async with connecting() as connect:
        offer = HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: %b\r\n\r\n" % coding
        reader, _ = await connect(offer + b"5\r\nhello\r\n0\r\n\r\n")
        assert (await response(reader))[0] == 400
