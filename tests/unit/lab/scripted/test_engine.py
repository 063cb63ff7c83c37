"""The scripted engine, over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from lab.scripted.arrival import Arrival, Script
from lab.scripted.engine import ScriptedEngine
from lab.scripted.scripts import answering, crash, dying, silent, streaming

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(script: Script | None = None) -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine("m")
    if script is not None:
        engine.script = script
    await engine.listen()
    try:
        yield engine
    finally:
        await engine.hang_up()


def request(body: bytes = b"{}", path: str = "/v1/chat/completions", lines: str = "", version: str = "1.1") -> bytes:
    return f"POST {path} HTTP/{version}\r\nhost: x\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


async def connect(engine: ScriptedEngine) -> Line:
    return await asyncio.open_connection("127.0.0.1", engine.port)


async def asked(engine: ScriptedEngine, sent: bytes, until: bytes | None = None) -> bytes:
    """Returns what comes back until a text is there, or until the connection ends."""
    reader, writer = await connect(engine)
    try:
        writer.write(sent)
        return await (reader.read() if until is None else reader.readuntil(until))
    finally:
        writer.close()


async def test_a_request_without_a_mark_is_answered_by_the_script_for_all_and_one_with_a_mark_by_its_own() -> None:
    mark = "conform-0123456789ab"
    async with listening(answering({"for": "all"})) as engine:
        engine.scripts[mark] = answering({"for": "one"})
        assert b'"all"' in await asked(engine, request(), b"}")
        assert b'"one"' in await asked(engine, request(json.dumps({"x": mark}).encode()), b"}")
        assert [each for each, _ in engine.arrivals] == ["", mark]
        assert engine.arrived[mark].is_set()
        assert [arrival.body for arrival in engine.of(mark)] == [json.dumps({"x": mark}).encode()]


async def test_a_stream_is_a_chunk_for_each_write_and_ends_with_the_script() -> None:
    async with listening(streaming([b"data: a\n\n", b"", b"data: b\n\n"])) as engine:
        answer = await asked(engine, request(), b"0\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b"9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n"


async def test_raw_bytes_go_out_as_they_are() -> None:
    async def script(arrival: Arrival) -> None:
        await arrival.raw(b"no HTTP ")
        await arrival.raw(b"at all")
        arrival.transport.close()

    async with listening(script) as engine:
        assert await asked(engine, request()) == b"no HTTP at all"
        assert engine.arrivals[0][1].sent == len(b"no HTTP at all")


async def test_http_1_0_has_no_chunks_but_the_end_of_the_connection() -> None:
    async with listening(streaming([b"a", b"b"])) as engine:
        answer = await asked(engine, request(version="1.0"))
    assert answer.endswith(b"\r\n\r\nab")
    assert b"chunked" not in answer


async def test_requests_in_one_packet_are_answered_in_their_order() -> None:
    async def echo(arrival: Arrival) -> None:
        await asyncio.sleep(0.01 if b"1" in arrival.body else 0)
        await arrival.json(json.loads(arrival.body))

    async with listening(echo) as engine:
        answer = await asked(engine, request(b"[1]") + request(b"[2]") + request(b"[3]"), b"[3]")
    assert answer.index(b"[1]") < answer.index(b"[2]") < answer.index(b"[3]")


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async with listening() as engine:
        reader, writer = await connect(engine)
        head, _, body = request(lines="expect: 100-continue\r\n").rpartition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_an_offer_to_upgrade_is_passed_over_and_can_be_seen() -> None:
    async with listening() as engine:
        answer = await asked(engine, request(lines="connection: upgrade\r\nupgrade: h2c\r\n") + request(), b"hello")
        arrival = engine.arrivals[0][1]
    assert answer.startswith(b"HTTP/1.1 200")
    assert (arrival.body, arrival.header("upgrade")) == (b"{}", "h2c")


async def test_a_client_that_leaves_cancels_the_script_and_is_seen_to_be_gone() -> None:
    async with listening(silent) as engine:
        _, writer = await connect(engine)
        writer.write(request())
        await engine.arrived[""].wait()
        arrival = engine.arrivals[0][1]
        assert not arrival.gone.is_set()
        writer.close()
        await asyncio.wait_for(arrival.gone.wait(), 10)


@pytest.mark.parametrize(("script", "before"), [(crash, b""), (dying([b"half"], 0.05), b"half")])
async def test_a_crash_resets_the_connection_after_what_was_sent(script: Script, before: bytes) -> None:
    async with listening(script) as engine:
        reader, writer = await connect(engine)
        writer.write(request())
        got = bytearray()
        with pytest.raises(ConnectionResetError):
            await _read_all(reader, got)
        writer.close()
    assert before in got


async def _read_all(reader: asyncio.StreamReader, got: bytearray) -> None:
    while part := await reader.read(2**16):
        got += part


async def test_a_script_that_breaks_is_an_engine_that_does() -> None:
    async def script(arrival: Arrival) -> None:
        await arrival.begin()
        raise RuntimeError("the case is wrong")

    async with listening(script) as engine:
        reader, writer = await connect(engine)
        writer.write(request())
        got = await reader.read()
        writer.close()
    assert not got.endswith(b"0\r\n\r\n")


async def test_a_client_that_does_not_read_slows_the_script() -> None:
    async def flood(arrival: Arrival) -> None:
        await arrival.begin()
        for _ in range(64):
            await arrival.write(b"x" * 2**20)

    async with listening(flood) as engine:
        _, writer = await connect(engine)
        writer.write(request())
        await engine.arrived[""].wait()
        arrival = engine.arrivals[0][1]
        sent = -1
        while sent != arrival.sent:
            sent = arrival.sent
            await asyncio.sleep(0.1)
        assert sent < 32 * 2**20
        writer.close()


async def test_an_engine_that_hung_up_listens_again_on_its_port() -> None:
    async with listening() as engine:
        port = engine.port
        reader, writer = await connect(engine)
        await engine.hang_up()
        assert await _refused(lambda: connect(engine))
        assert await _ended(reader)
        writer.close()
        await engine.listen()
        assert engine.port == port
        assert b"hello" in await asked(engine, request(), b"hello")


async def _refused(connecting: Callable[[], Awaitable[Line]]) -> bool:
    try:
        await connecting()
    except ConnectionRefusedError:
        return True
    return False


async def _ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_a_path_that_is_none_of_a_clients_is_a_stray_and_any_get_is_healthy() -> None:
    async with listening() as engine:
        assert (await asked(engine, request(path="/sleep"), b"\r\n")).startswith(b"HTTP/1.1 404")
        assert b'"id": "m"' in await asked(engine, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", b"]}")
        assert b'"ok"' in await asked(engine, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n", b"}")
        assert ([arrival.path for arrival in engine.strays], engine.arrivals) == (["/sleep"], [])
