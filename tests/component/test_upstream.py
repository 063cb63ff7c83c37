"""HTTP to engines over real sockets: every way in which an answer can come, be cut, break off or fail to come."""

import asyncio
import itertools
import os
import resource
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import LoopClock

from serve.config.gateway import LimitsConfig
from serve.discovery.asking import LATE, ask_metrics
from serve.errors import DeadlineError, EngineError, PoolUnavailableError, TooManyConnectionsError
from serve.http1.client import ClientConnection
from serve.http1.server import READ_AHEAD_BYTES
from serve.proxy.upstream import Upstream, UpstreamResponse
from serve.routing.pool import Endpoint

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx: 1\r\nX: 2\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nt: 1\r\n\r\n"
)
EARLY = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + WHOLE
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Engine:
    """A server whose every connection is played by hand; counts them and the requests on them."""

    def __init__(self, *answers: bytes, talk: Talk | None = None) -> None:
        self.connections = self.requests = 0
        self._answers, self._talk = answers, talk
        self.asked, self.left = asyncio.Event(), asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                self.requests += 1
                self.asked.set()
                if self._talk is not None:
                    await self._talk(reader, writer)
                else:
                    writer.write(self._answers[min(self.requests, len(self._answers)) - 1])
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()

    def send_now(self, data: bytes) -> int:
        """Sends on every connection at once, past the event loop; returns how many there are."""
        for writer in self._writers:
            os.write(writer.get_extra_info("socket").fileno(), data)
        return len(self._writers)

    def hang_up(self) -> None:
        """Close every connection, as an engine does with idle ones."""
        for writer in self._writers:
            writer.close()


async def whole(answer: UpstreamResponse, pumped: bool) -> bytes:
    """The body, by either way of reading it."""
    if not pumped:
        return await answer.body()
    parts = [answer.first]
    await answer.pump(parts.append)
    return b"".join(parts)


@asynccontextmanager
async def running(
    engine: Engine, pumped: bool = False, **limits: float
) -> AsyncIterator[Callable[[], "asyncio.Future[tuple[int, bytes]]"]]:
    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    upstream = Upstream(LimitsConfig(**limits))
    endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)

    def ask() -> "asyncio.Future[tuple[int, bytes]]":
        async def asked() -> tuple[int, bytes]:
            async with await upstream.post(endpoint, "/v1/x", (b"{}",), {"a": "b"}) as answer:
                return answer.status, await whole(answer, pumped)

        return asyncio.ensure_future(asked())

    try:
        yield ask
    finally:
        await upstream.close()
        engine.hang_up()
        server.close()


both_ways = pytest.mark.parametrize("pumped", [False, True], ids=["read", "pumped"])


@both_ways
@pytest.mark.parametrize("answer", [WHOLE, CHUNKED, EARLY])
async def test_a_connection_serves_one_request_after_another(answer: bytes, pumped: bool) -> None:
    engine = Engine(answer)
    async with running(engine, pumped) as ask:
        assert [await ask() for _ in range(3)] == [(200, b"hello")] * 3
    assert (engine.connections, engine.requests) == (1, 3)


async def test_an_idle_connection_that_the_engine_closed_costs_nobody_a_request() -> None:
    engine = Engine(WHOLE)
    async with running(engine) as ask:
        await ask()
        engine.hang_up()
        for _ in range(20):  # turns of the one event loop that both ends share
            await asyncio.sleep(0.01)
        assert await ask() == (200, b"hello")
    assert engine.connections == 2


@pytest.mark.asyncio(loop_scope="function")
async def test_a_connection_that_nobody_uses_for_a_minute_is_closed(clock: LoopClock) -> None:
    engine = Engine(WHOLE)
    async with running(engine) as ask:
        for _ in range(3):
            await ask()
            await clock.advance(40)
        assert (engine.connections, engine.requests) == (1, 3)
        await clock.advance(61)
        await asyncio.wait_for(engine.left.wait(), 10)
        assert await ask() == (200, b"hello")
    assert engine.connections == 2


async def test_after_a_kept_connection_dies_under_a_request_the_next_attempt_gets_a_fresh_one() -> None:
    async def dies_when_kept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if engine.requests == 3:
            writer.transport.abort()
        else:
            writer.write(WHOLE)

    engine = Engine(talk=dies_when_kept)
    async with running(engine) as ask:
        await asyncio.gather(ask(), ask())
        with pytest.raises(PoolUnavailableError):
            await ask()
        assert await ask() == (200, b"hello")
    assert (engine.connections, engine.requests) == (3, 4)


async def test_a_request_is_sent_once() -> None:
    async def dies(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    engine = Engine(talk=dies)
    async with running(engine) as ask:
        with pytest.raises(PoolUnavailableError):
            await ask()
    assert engine.requests == 1


@both_ways
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense",
    ],
)
async def test_an_answer_that_breaks_off_is_an_error_and_not_an_end(answer: bytes, pumped: bool) -> None:
    async def halves(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.write_eof()

    async with running(Engine(talk=halves), pumped) as ask:
        with pytest.raises(EngineError, match="broke in the middle"):
            await ask()


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
        b"",
    ],
)
async def test_what_is_no_answer_counts_as_none(answer: bytes) -> None:
    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.write_eof()

    async with running(Engine(talk=says)) as ask:
        with pytest.raises(PoolUnavailableError):
            await ask()


@pytest.mark.parametrize(
    "status",
    ["201 Created", "204 No Content", "206 Partial", "302 Found", "304 Not Modified", "600 Odd", "999 Odd"],
)
async def test_a_redirect_an_empty_success_or_an_unknown_status_is_an_error_and_not_an_answer(status: str) -> None:
    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n".encode())
        await writer.drain()

    async with running(Engine(talk=says)) as ask:
        with pytest.raises(EngineError, match=status[:3]):
            await ask()


@pytest.mark.parametrize("status", ["000", "099", "104", "150", "199"])
async def test_a_status_that_http_does_not_have_is_not_waited_behind_for_an_answer(status: str) -> None:
    async def says(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} Odd\r\ncontent-length: 0\r\n\r\n".encode())

    async with running(Engine(talk=says)) as ask:
        with pytest.raises(PoolUnavailableError):
            await ask()


@both_ways
async def test_an_answer_without_a_length_ends_with_its_connection(pumped: bool) -> None:
    async def until_closed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await writer.drain()
        writer.close()

    engine = Engine(talk=until_closed)
    async with running(engine, pumped) as ask:
        assert [await ask(), await ask()] == [(200, b"hello")] * 2
    assert engine.connections == 2


@pytest.mark.parametrize("extra", [WHOLE, b"HTTP/1.1 500 Oh\r\n\r\n", b"x"])
async def test_a_second_answer_to_one_request_is_never_taken_for_the_next_ones(extra: bytes) -> None:
    engine = Engine(WHOLE + extra, WHOLE)
    async with running(engine) as ask:
        assert [await ask(), await ask()] == [(200, b"hello")] * 2
    assert engine.connections == 2


async def test_a_second_answer_that_nobody_has_read_yet_is_not_taken_for_the_next_ones_either() -> None:
    """The bytes wait in the socket's buffer: the event loop has had no turn to read them."""

    async def answers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(WHOLE)

    engine = Engine(talk=answers)
    async with running(engine) as ask:
        await ask()
        sent = engine.send_now(WHOLE.replace(b"hello", b"never"))
        assert await ask() == (200, b"hello")
    assert (sent, engine.connections) == (1, 2)


@both_ways
@pytest.mark.parametrize(
    "endless", [b"a" * 1000, b"a: b\r\n" * 200, b"0;" + b"a" * 1000], ids=["one-trailer", "many-trailers", "extension"]
)
async def test_an_answer_whose_trailer_does_not_end_is_given_up(endless: bytes, pumped: bool) -> None:
    async def trails(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        writer.write(b"" if endless.startswith(b"0;") else b"0\r\n")
        if endless.startswith(b"aa"):
            writer.write(b"a: ")
        while not writer.is_closing():
            writer.write(endless.removeprefix(b"0;") if engine.left.is_set() else endless)
            engine.left.set()
            await writer.drain()
            await asyncio.sleep(0)

    engine = Engine(talk=trails)
    async with running(engine, pumped) as ask:
        with pytest.raises(EngineError, match="broke in the middle"):
            await asyncio.wait_for(ask(), 20)


async def test_many_small_chunks_whose_sizes_come_alone_are_no_trailer() -> None:
    connection, _ = flowing()
    got: list[bytes] = []
    pumping = asyncio.ensure_future(connection.pump(got.append))
    await asyncio.sleep(0)
    for _ in range(30_000):
        connection.data_received(b"1\r\n")
        connection.data_received(b"a\r\n")
    connection.data_received(b"0\r\n\r\n")
    await pumping
    assert len(b"".join(got)) == 30_000
    connection.close()


@both_ways
@pytest.mark.parametrize("begun", [False, True])
async def test_leaving_before_the_end_closes_the_connection_at_once(begun: bool, pumped: bool) -> None:
    async def never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if begun:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n")
        await reader.readexactly(1)

    engine = Engine(talk=never_ends)
    async with running(engine, pumped) as ask:
        asked = ask()
        await asyncio.wait_for(engine.asked.wait(), 10)
        asked.cancel()
        await asyncio.wait_for(engine.left.wait(), 10)


@both_ways
async def test_silence_before_the_answer_and_in_it_have_their_own_errors(pumped: bool) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if engine.requests == 2:
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n")
        await reader.readexactly(1)

    engine = Engine(talk=silent)
    async with running(engine, pumped, stream_idle_timeout_s=0.2) as ask:
        with pytest.raises(DeadlineError):
            await ask()
        with pytest.raises(EngineError, match="stopped sending"):
            await ask()


@both_ways
async def test_silence_is_noticed_on_a_connection_that_has_served_and_idled(pumped: bool) -> None:
    async def silent_from_the_second_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if engine.requests == 2:
            await reader.readexactly(1)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhe")

    for idle_s in (0.0, 0.5):  # the timer of the request before is still set, or has found nobody waiting
        engine = Engine(talk=silent_from_the_second_on)
        async with running(engine, pumped, stream_idle_timeout_s=0.2) as ask:
            await ask()
            await asyncio.sleep(idle_s)
            with pytest.raises(DeadlineError):
                await ask()
        assert engine.connections == 1


@both_ways
async def test_an_engine_that_outruns_its_reader_is_made_to_wait(pumped: bool) -> None:
    written, size = 0, 64 * 1024

    async def floods(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (600 * size))
        for _ in range(600):
            writer.write(b"a" * size)
            written += size
            await writer.drain()

    server = await asyncio.start_server(engine := Engine(talk=floods), "127.0.0.1", 0)
    upstream = Upstream(LimitsConfig())
    endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
    room = asyncio.get_running_loop().create_future()
    got = 0

    def take(part: bytes) -> "asyncio.Future[None] | None":
        nonlocal got
        assert len(part) < 4 * READ_AHEAD_BYTES
        got += len(part)
        return None if room.done() else room

    async with await upstream.post(endpoint, "/", (b"",), {}) as answer:
        take(answer.first)
        pumping = asyncio.ensure_future(answer.pump(take)) if pumped else None
        stalled = -1
        while stalled != written:  # until what the sockets and we hold is full
            stalled = written
            await asyncio.sleep(0.2)
        assert written < 400 * size
        room.set_result(None)
        if pumping is not None:
            await pumping
        else:
            async for part in answer.rest():
                take(part)
    assert got == 600 * size
    engine.hang_up()
    server.close()
    await upstream.close()


async def test_nobody_there_is_unavailable() -> None:
    upstream = Upstream(LimitsConfig())
    for url in ("http://127.0.0.1:1", "http://no-such-host.invalid"):
        with pytest.raises(PoolUnavailableError):
            await upstream.post(Endpoint(url, None), "/", (b"",), {})


async def test_a_process_without_files_says_so_of_itself_and_nothing_of_the_engine() -> None:
    engine = Engine(WHOLE)
    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    upstream = Upstream(LimitsConfig())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, before[1]))
        with pytest.raises(TooManyConnectionsError):
            await upstream.post(Endpoint(url, None), "/", (b"",), {})
        assert (await ask_metrics(url, None)).error == LATE
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    async with await upstream.post(Endpoint(url, None), "/", (b"",), {}) as answer:
        assert answer.status == 200
    await upstream.close()
    server.close()


async def make_certificate(folder: Path) -> ssl.SSLContext:
    """Makes a certificate for localhost, and returns what a server does with it."""
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-addext", "subjectAltName=DNS:localhost", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    process = await asyncio.create_subprocess_exec(*made, *files, stderr=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_renewed_certificates_of_engines_and_of_who_signs_them_are_taken_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    monkeypatch.setattr("serve.http1.client.TLS_KEPT_S", 0.0)
    upstream = Upstream(LimitsConfig())

    async def ask(context: ssl.SSLContext) -> int:
        server = await asyncio.start_server(Engine(WHOLE), "127.0.0.1", 0, ssl=context)
        try:
            endpoint = Endpoint(f"https://localhost:{server.sockets[0].getsockname()[1]}", None)
            async with await upstream.post(endpoint, "/", (b"",), {}) as answer:
                return answer.status
        finally:
            server.close()

    old = await make_certificate(tmp_path)
    assert await ask(old) == 200
    new = await make_certificate(tmp_path)
    with pytest.raises(PoolUnavailableError):
        await ask(new)
    assert await ask(new) == 200
    with pytest.raises(PoolUnavailableError):
        await ask(old)
    await upstream.close()


async def test_an_engine_that_refuses_the_gateways_key_is_unavailable() -> None:
    refusal = b'HTTP/1.1 401 Unauthorized\r\ncontent-length: 24\r\n\r\n{"error":"Unauthorized"}'
    async with running(Engine(refusal, WHOLE)) as ask:
        with pytest.raises(PoolUnavailableError, match="refused the gateway's own key"):
            await ask()
        assert await ask() == (200, b"hello"), "it may have been told the new key first"


async def test_a_header_with_a_line_break_is_never_sent() -> None:
    with pytest.raises(ValueError, match="line break"):
        async with await Upstream(LimitsConfig()).post(
            Endpoint("http://127.0.0.1:1", None), "/", (b"",), {"a": "b\r\nc: d"}
        ):
            pass


class Socket:
    """A transport that goes nowhere."""

    def get_extra_info(self, _: str) -> "Socket":
        return self

    def setsockopt(self, *_: int) -> None: ...

    def fileno(self) -> int:
        return 0

    def writelines(self, _: object) -> None: ...

    def is_closing(self) -> bool:
        return False

    def resume_reading(self) -> None: ...

    def abort(self) -> None: ...


@given(st.sampled_from([WHOLE, CHUNKED, EARLY]), st.lists(st.integers(1, 150), max_size=12), st.booleans())
def test_an_answer_is_the_same_however_it_is_cut(answer: bytes, places: list[int], pumped: bool) -> None:
    async def read() -> tuple[int, bytes, bool]:
        connection = ClientConnection(60, lambda _: None)
        connection.connection_made(Socket())  # type: ignore[arg-type]
        connection.send(b"", b"")
        edges = [0, *sorted({place for place in places if place < len(answer)}), len(answer)]
        for start, end in itertools.pairwise(edges):
            asyncio.get_running_loop().call_soon(connection.data_received, answer[start:end])
        await connection.receive_head()
        first = await connection.read()
        body = await whole(UpstreamResponse(connection, first), pumped)
        seen = connection.status, body, connection.reusable
        connection.finish()
        return seen

    assert asyncio.run(read()) == (200, b"hello", True)


class Flow(Socket):
    """A transport that knows whether it is read."""

    def __init__(self) -> None:
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def flowing() -> tuple[ClientConnection, Flow]:
    """A connection in the middle of a response, and its transport."""
    connection = ClientConnection(60, lambda _: None)
    connection.connection_made(flow := Flow())  # type: ignore[arg-type]
    connection.send(b"", b"")
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    return connection, flow


async def test_a_pump_that_begins_late_reads_on_at_once_if_its_sink_can_take_more() -> None:
    connection, flow = flowing()
    size = READ_AHEAD_BYTES + 1
    connection.data_received(b"%x\r\n%b\r\n" % (size, b"a" * size))
    assert not flow.reading
    got: list[bytes] = []
    pumping = asyncio.ensure_future(connection.pump(got.append))
    await asyncio.sleep(0)
    assert flow.reading
    connection.data_received(b"0\r\n\r\n")
    await pumping
    assert len(b"".join(got)) == size
    connection.close()


async def test_a_connection_whose_last_bytes_wait_for_the_client_is_not_reused() -> None:
    connection, _ = flowing()
    drain = asyncio.get_running_loop().create_future()
    pumping = asyncio.ensure_future(connection.pump(lambda _: drain))
    await asyncio.sleep(0)
    connection.data_received(b"5\r\nhello\r\n0\r\n\r\n")
    await pumping
    assert not connection.reusable
    drain.set_result(None)
    await asyncio.sleep(0)
    assert connection.reusable
    connection.close()
