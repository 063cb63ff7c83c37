"""The listener's protocol without sockets: however packets are cut, requests and responses are the same."""

import asyncio
import errno
import itertools
import json
from types import SimpleNamespace
from typing import Any

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import LoopClock

from serve.http1.allowance import Allowance
from serve.http1.asgi import DIRECT
from serve.http1.message import MAX_HEAD_BYTES
from serve.http1.request_parser import RequestParser
from serve.http1.server import READ_AHEAD_BYTES, Apps, ServerProtocol, protocol_factory

HOST = b"host: gateway\r\n"
HELLO = b"POST /hot HTTP/1.1\r\n" + HOST + b"content-length: 5\r\n\r\nhello"
CHUNKED = (
    b"POST /hot HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nx: 1\r\n\r\n"
)
H2C = b"POST /hot HTTP/1.1\r\n" + HOST + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 5\r\n\r\nhello"


class Socket:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.sent = b""
        self.last = b""
        self.closed = False
        self.reading = True

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self, "peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 80)}.get(name)

    def setsockopt(self, *_: int) -> None: ...

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.sent += data
        self.last = data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class PanicError(BaseException):
    """Like pyo3's PanicException, which is no Exception."""


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the path and the body, in chunks."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    assert DIRECT in scope["extensions"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode() + b" ", "more_body": True})
    await send({"type": "http.response.body", "body": body})


def responses_in(sent: bytes) -> list[tuple[int, bytes]]:
    """(status, body) of every response in what was sent; fails on anything else."""
    responses: list[tuple[int, bytes]] = []
    body = b""

    class Reader:
        def on_body(self, data: bytes) -> None:
            nonlocal body
            body += data

        def on_message_complete(self) -> None:
            nonlocal body
            if (status := parser.get_status_code()) >= 200:
                responses.append((status, body))
            body = b""

    parser = httptools.HttpResponseParser(Reader())
    parser.feed_data(sent)
    assert not body, "an incomplete response"
    return responses


async def converse(pieces: list[bytes], app: Any = echo) -> Socket:
    """The transport of a client that sent these pieces, with a turn of the event loop after each."""
    socket, tasks = Socket(), set[asyncio.Task[None]]()
    protocol = ServerProtocol(Apps({"/hot": app}, app), set(), tasks, Allowance())
    protocol.connection_made(socket)  # type: ignore[arg-type]
    waiting = list(pieces)
    while waiting and not socket.closed:
        if socket.reading:
            protocol.data_received(waiting.pop(0))
        await asyncio.sleep(0)
    for _ in range(50):
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    await asyncio.gather(*tasks, return_exceptions=True)
    return socket


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % len(data) for place in places} - {0}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.sampled_from([HELLO, CHUNKED, H2C]), min_size=1, max_size=4), st.lists(st.integers(0, 4000)))
def test_requests_are_the_same_however_they_are_cut(requests: list[bytes], places: list[int]) -> None:
    socket = asyncio.run(converse(cut(b"".join(requests), places)))
    assert responses_in(socket.sent) == [(200, b"/hot hello")] * len(requests)


async def test_apps_get_the_names_of_headers_in_lower_case() -> None:
    """As ASGI has it: nobody behind the listener asks for a header in any other case."""
    got: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.extend(scope["headers"])
        await echo(scope, receive, send)

    head = b"POST /hot HTTP/1.1\r\nHost: gateway\r\nX-Enable-Speculative: True\r\nCONTENT-LENGTH: 5\r\n\r\n"
    await converse([head + b"hello"], app)
    assert got == [(b"host", b"gateway"), (b"x-enable-speculative", b"True"), (b"content-length", b"5")]


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: +5\r\n",
        b"content-length: 5\r\n folded: yes\r\n",
        b"content-length : 5\r\n",
        b"transfer-encoding: gzip, chunked\r\n",
        b"transfer-encoding: chunked, identity\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"host: another\r\ncontent-length: 5\r\n",
        b"authorization: Bearer a\r\nAuthorization: Bearer b\r\ncontent-length: 5\r\n",
        b"x-api-key: a\r\ncontent-length: 5\r\nX-Api-Key: b\r\n",
        b"content-type: application/json\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n",
        b"x: a\0b\r\ncontent-length: 5\r\n",
    ],
)
@settings(max_examples=15)
@given(places=st.lists(st.integers(0, 400), max_size=5))
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read(
    framing: bytes, places: list[int]
) -> None:
    smuggled = b"POST /hot HTTP/1.1\r\n" + HOST + framing + b"\r\nhelloPOST /smuggled HTTP/1.1\r\nhost: a\r\n\r\n"
    socket = asyncio.run(converse(cut(smuggled, places)))
    ((status, body),) = responses_in(socket.sent)
    assert status == 400
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "request_line",
    [
        b"POST /hot HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"\x16\x03\x01\x02\x00",
        b"GET /\r\n\r\n",
        b"GET /\xc2\x9b31m HTTP/1.1\r\n" + HOST + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /hot HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_a_request_that_is_not_for_us_gets_an_error(request_line: bytes) -> None:
    socket = asyncio.run(converse([request_line]))
    assert [status for status, _ in responses_in(socket.sent)] == [400]
    assert b"connection: close" in socket.sent


@pytest.mark.parametrize("piece", [100, 40_000, 10**6])
def test_a_head_that_does_not_end_is_refused(piece: int) -> None:
    head = b"POST /hot HTTP/1.1\r\n" + HOST + b"x: " + b"a" * (2 * MAX_HEAD_BYTES) + b"\r\n\r\n"
    socket = asyncio.run(converse([head[at : at + piece] for at in range(0, len(head), piece)]))
    assert [status for status, _ in responses_in(socket.sent)] == [431]


@pytest.mark.parametrize("piece", [100, 10**6])
@pytest.mark.parametrize("end", [b"\r\n", b""])
def test_a_head_of_countless_headers_is_refused_before_its_end(piece: int, end: bytes) -> None:
    """Two bytes and a line end take a hundred bytes of memory, on each of thousands of connections."""
    head = b"POST /hot HTTP/1.1\r\n" + HOST + b"a:\r\n" * 300 + end
    socket = asyncio.run(converse([head[at : at + piece] for at in range(0, len(head), piece)]))
    assert [status for status, _ in responses_in(socket.sent)] == [431]
    head = b"POST /hot HTTP/1.1\r\n" + HOST + b"a:\r\n" * 250 + b"content-length: 2\r\n\r\nhi"
    socket = asyncio.run(converse([head[at : at + piece] for at in range(0, len(head), piece)]))
    assert responses_in(socket.sent) == [(200, b"/hot hi")]


def test_a_body_longer_than_a_head_may_be_is_no_head() -> None:
    long = b"POST /hot HTTP/1.1\r\n" + HOST + b"content-length: 600000\r\n\r\n" + b"a" * 600_000
    socket = asyncio.run(converse([(long * 2)[at : at + 70_000] for at in range(0, 2 * len(long), 70_000)]))
    assert responses_in(socket.sent) == [(200, b"/hot " + b"a" * 600_000)] * 2


def test_a_body_of_thousands_of_tiny_chunks_in_one_read_is_taken_as_one() -> None:
    chunked = b"POST /hot HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 40_000
    begun = Begun()
    RequestParser(begun).feed(chunked + b"0\r\n\r\n" + HELLO)
    assert [cycle.parts for cycle in begun.cycles] == [[b"a" * 40_000], [b"hello"]]


class Begun:
    """Takes the place of a connection: keeps what every request's body came in."""

    def __init__(self) -> None:
        self.cycles: list[Any] = []

    def __call__(self, *_: Any) -> Any:
        cycle = SimpleNamespace(parts=[], finish=lambda: None)
        cycle.feed = cycle.parts.append
        self.cycles.append(cycle)
        return cycle


def test_the_head_of_a_later_request_does_not_count_the_body_before_it() -> None:
    long = b"POST /hot HTTP/1.1\r\n" + HOST + b"content-length: 70000\r\n\r\n" + b"a" * 70_000
    pieces = [long[:30], long[30:] + HELLO[:20], HELLO[20:]]
    assert [status for status, _ in responses_in(asyncio.run(converse(pieces)).sent)] == [200, 200]


def test_a_request_before_a_broken_one_gets_its_response() -> None:
    socket = asyncio.run(converse([HELLO + b"nonsense\r\n\r\n"]))
    assert [status for status, _ in responses_in(socket.sent)] == [200, 400]


def test_a_client_that_expects_100_continue_gets_it_only_if_the_body_is_wanted() -> None:
    head = b"POST /hot HTTP/1.1\r\n" + HOST + b"expect: 100-continue\r\ncontent-length: 5\r\n\r\n"
    wanted = asyncio.run(converse([head, b"hello"]))
    assert wanted.sent.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")

    async def refusing(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    unwanted = asyncio.run(converse([head], refusing))
    assert unwanted.sent.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in unwanted.sent


@pytest.mark.parametrize("others", [b"expect: other\r\n", b"Expect: 100-CONTINUE\r\n"])
def test_a_100_continue_is_expected_wherever_a_header_says_so(others: bytes) -> None:
    for lines in (b"expect: 100-continue\r\n" + others, others + b"expect: 100-continue\r\n"):
        head = b"POST /hot HTTP/1.1\r\n" + HOST + lines + b"content-length: 5\r\n\r\n"
        assert asyncio.run(converse([head, b"hello"])).sent.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")


def test_http_1_0_and_connection_close_end_the_connection() -> None:
    old = asyncio.run(converse([b"POST /hot HTTP/1.0\r\ncontent-length: 5\r\n\r\nhello"]))
    assert old.sent.endswith(b"\r\n\r\n/hot hello")
    assert old.closed
    last = asyncio.run(converse([HELLO.replace(HOST, HOST + b"connection: close\r\n")]))
    assert (responses_in(last.sent), last.closed) == ([(200, b"/hot hello")], True)


def test_a_header_that_says_the_same_twice_is_no_contradiction() -> None:
    twice = b"content-type: application/json\r\nauthorization: Bearer a\r\n" * 2
    socket = asyncio.run(converse([b"POST /hot HTTP/1.1\r\n" + HOST + twice + b"content-length: 5\r\n\r\nhello"]))
    assert responses_in(socket.sent) == [(200, b"/hot hello")]


def test_a_head_request_gets_no_body() -> None:
    socket = asyncio.run(converse([b"HEAD /x HTTP/1.1\r\n" + HOST + b"\r\n" + HELLO]))
    assert socket.sent.count(b"/x ") == 0
    assert socket.sent.endswith(b"hello\r\n0\r\n\r\n")


def test_a_whole_url_as_target_is_its_path() -> None:
    target = b"http://gateway/hot?x=1"
    assert b"/hot " in asyncio.run(converse([HELLO.replace(b"/hot", target)])).sent


async def test_a_direct_call_is_cancelled_when_its_client_leaves_and_another_gets_a_message() -> None:
    seen: list[str] = []

    async def waiting(_: Any, receive: Any, __: Any) -> None:
        try:
            await receive()
            seen.append((await receive())["type"])
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    await converse([HELLO], waiting)
    await converse([HELLO.replace(b"/hot", b"/cold")], waiting)
    assert seen == ["cancelled", "http.disconnect"]


async def test_a_client_that_breaks_off_within_a_body_that_is_refused_is_no_fault_of_ours() -> None:
    class Reset(Socket):
        def can_write_eof(self) -> bool:
            return True

        def write_eof(self) -> None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    faults: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    protocol = ServerProtocol(Apps({"/hot": echo}, echo), set(), set(), Allowance())
    protocol.connection_made(Reset())  # type: ignore[arg-type]
    protocol.data_received(CHUNKED.replace(b"3;", b"what;"))
    for _ in range(50):
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    assert not faults


async def test_a_response_that_breaks_off_never_looks_whole() -> None:
    async def broken(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("as a test")

    socket = await converse([HELLO], broken)
    assert socket.closed
    assert b"0\r\n\r\n" not in socket.sent


@pytest.mark.parametrize("kind", [RuntimeError, PanicError])
async def test_an_app_that_fails_before_its_response_is_a_500_and_the_log_quotes_nothing(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(_: Any, receive: Any, __: Any) -> None:
        raise kind((await receive())["body"].decode())

    assert responses_in((await converse([HELLO], failing)).sent)[0][0] == 500
    assert f"POST /hot failed: {kind.__name__}\n" in caplog.text
    assert "hello" not in caplog.text


async def test_headers_may_be_lists_as_ray_serves_health_checks_have_them() -> None:
    async def healthy(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [[b"x-kept", b"1"]]})
        await send({"type": "http.response.body", "body": b"ok"})

    sent = (await converse([HELLO], healthy)).sent
    assert responses_in(sent) == [(200, b"ok")]
    assert b"x-kept: 1" in sent


async def test_a_header_with_a_line_break_is_never_sent() -> None:
    async def forging(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"1\r\nset-cookie: a=b")]})
        await send({"type": "http.response.body"})

    assert b"set-cookie" not in (await converse([HELLO], forging)).sent


async def test_a_head_that_cannot_be_sent_may_be_followed_by_another_one() -> None:
    async def repentant(_: Any, __: Any, send: Any) -> None:
        with pytest.raises(ValueError, match="line break"):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"x", b"1\r\n")]})
        with pytest.raises(ValueError, match="without a head"):
            await send({"type": "http.response.body", "body": b"x"})
        await send({"type": "http.response.start", "status": 502, "headers": []})
        await send({"type": "http.response.body", "body": b"sorry"})

    assert responses_in((await converse([HELLO], repentant)).sent) == [(502, b"sorry")]


async def test_a_client_that_does_not_read_stops_the_app_and_one_that_sends_too_much_is_made_to_wait() -> None:
    sent = 0

    async def flood(_: Any, __: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            sent += 1

    socket, tasks = Socket(), set[asyncio.Task[None]]()
    protocol = ServerProtocol(Apps({"/hot": flood}, flood), set(), tasks, Allowance())
    protocol.connection_made(socket)  # type: ignore[arg-type]
    protocol.pause_writing()
    protocol.data_received(b"POST /hot HTTP/1.1\r\n" + HOST + b"content-length: 900000\r\n\r\n")
    for _ in range(5):
        await asyncio.sleep(0)
    assert sent == 0
    protocol.data_received(b"a" * READ_AHEAD_BYTES)
    assert not socket.reading
    protocol.resume_writing()
    for _ in range(5):
        await asyncio.sleep(0)
    assert sent == 100
    protocol.connection_lost(None)


async def test_a_long_answer_is_written_as_it_is_and_not_a_second_time_behind_its_head() -> None:
    body = b"x" * (READ_AHEAD_BYTES + 1)

    async def whole(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    socket = await converse([HELLO], whole)
    assert socket.last is body
    assert responses_in(socket.sent) == [(200, body)]


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.parametrize(("takes", "seconds", "closed"), [(False, 11, True), (True, 11, False), (False, 9, False)])
async def test_where_clients_leave_much_unread_whoever_takes_nothing_of_a_long_answer_loses_it_soon(
    clock: LoopClock, takes: bool, seconds: float, closed: bool
) -> None:
    allowance, sockets = Allowance(max_buffered_bytes=READ_AHEAD_BYTES), (Socket(), Socket(), Socket())
    protocols = [ServerProtocol(Apps({}, echo), set(), set(), allowance) for _ in sockets]
    for socket, protocol, size in zip(sockets, protocols, (READ_AHEAD_BYTES, READ_AHEAD_BYTES + 1, 9), strict=True):
        protocol.connection_made(socket)  # type: ignore[arg-type]
        protocol.write(b"x" * size)
        protocol.pause_writing()
    if takes:
        protocols[1].resume_writing()
    await clock.advance(seconds)
    assert [socket.closed for socket in sockets] == [False, closed, False]
    for protocol in protocols:
        protocol.connection_lost(None)
    assert allowance.unsent_bytes == 0


async def test_while_requests_wait_on_a_connection_no_more_are_read() -> None:
    turn = asyncio.Semaphore(0)

    async def one_at_a_time(scope: Any, receive: Any, send: Any) -> None:
        await turn.acquire()
        await echo(scope, receive, send)

    socket, tasks = Socket(), set[asyncio.Task[None]]()
    protocol = ServerProtocol(Apps({"/hot": one_at_a_time}, echo), set(), tasks, Allowance())
    protocol.connection_made(socket)  # type: ignore[arg-type]
    protocol.data_received(HELLO * 3)
    readings = [socket.reading]
    for _ in range(3):
        turn.release()
        for _ in range(10):
            await asyncio.sleep(0)
        readings.append(socket.reading)
    assert readings == [False, False, True, True]
    assert len(responses_in(socket.sent)) == 3
    protocol.connection_lost(None)


async def test_a_listener_that_shuts_down_ends_the_connection_after_the_response() -> None:
    socket, connections, tasks = Socket(), set[Any](), set[asyncio.Task[None]]()
    protocol = ServerProtocol(Apps({"/hot": echo}, echo), connections, tasks, Allowance())
    protocol.connection_made(socket)  # type: ignore[arg-type]
    protocol.data_received(HELLO[:-2])
    await asyncio.sleep(0)
    protocol.shutdown()
    assert not socket.closed
    protocol.data_received(HELLO[-2:])
    await asyncio.gather(*tasks)
    await asyncio.sleep(0)
    assert (responses_in(socket.sent), socket.closed, connections) == ([(200, b"/hot hello")], True, {protocol})
    protocol.connection_lost(None)
    assert not connections


async def test_uvicorn_in_another_loop_keeps_the_direct_paths_to_its_own_app() -> None:
    class Config:
        loaded_app = staticmethod(echo)

    class State:
        connections, tasks = set[Any](), set[Any]()

    create = protocol_factory({"/hot": echo})

    async def elsewhere() -> ServerProtocol:
        return create(Config, State, {})

    assert create(Config, State, {})._apps.direct
    assert not (await asyncio.to_thread(asyncio.run, elsewhere()))._apps.direct
