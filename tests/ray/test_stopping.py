"""However `specgate serve` is stopped: streams under way finish, nothing stays behind, the port is free again."""

import asyncio
import os
import pty
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from support.local import LocalGateway, local_gateway

from serve.launch import ports

pytestmark = pytest.mark.ray
HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def port() -> int:
    """The same for all tests of this module: each start also shows that the last stop freed it."""
    return ports.free_port()


@pytest.fixture(autouse=True)
def hangups_are_heard() -> Iterator[None]:
    """Under `nohup` they are ignored, by all that is started here too; that is right, and not what is tested."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def to_specgate(number: signal.Signals) -> Callable[[LocalGateway], None]:
    return lambda gateway: gateway.process.send_signal(number)


def to_the_group(number: signal.Signals) -> Callable[[LocalGateway], None]:
    return lambda gateway: os.killpg(gateway.process.pid, number)


async def stops_in_order(gateway: LocalGateway, port: int, stop: Callable[[], None]) -> None:
    """Stops a gateway in the middle of a stream; all of the stream must arrive, and nothing be left."""
    await asyncio.to_thread(gateway.until_ready)
    folder = Path(gateway.environment()["RAY_AUTH_TOKEN_PATH"]).parent
    assert folder.is_dir()
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        stream = await client.chat.completions.create(model="sim", messages=HELLO, max_tokens=100, stream=True)
        reasons = []
        async for number, chunk in aenumerate(stream):
            if number == 3:
                stop()
            reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
    assert reasons, "the stream was cut"
    await asyncio.to_thread(gateway.until_gone)
    assert not folder.exists()
    ports.require_free(port)


async def aenumerate(stream: Any) -> Any:
    number = 0
    async for each in stream:
        yield number, each
        number += 1


@pytest.mark.parametrize(
    ("stop", "code"),
    [
        pytest.param(to_specgate(signal.SIGTERM), 0, id="SIGTERM to specgate alone"),
        pytest.param(to_the_group(signal.SIGTERM), 0, id="SIGTERM to its group"),
        pytest.param(to_the_group(signal.SIGINT), 0, id="SIGINT to its group"),
        pytest.param(to_specgate(signal.SIGHUP), 0, id="SIGHUP to specgate alone"),
        pytest.param(to_specgate(signal.SIGKILL), -signal.SIGKILL, id="SIGKILL to specgate alone"),
    ],
)
async def test_a_signal_stops_it_in_order_also_where_its_folder_has_blanks(
    tmp_path: Path, port: int, stop: Callable[[LocalGateway], None], code: int
) -> None:
    clone = tmp_path / "a b"
    clone.mkdir()
    (clone / ".venv").symlink_to(sys.prefix)
    with local_gateway(tmp_path, "sim", port, python=str(clone / ".venv" / "bin" / "python")) as gateway:
        await stops_in_order(gateway, port, lambda: stop(gateway))
        assert gateway.process.wait() == code


async def test_the_death_of_its_parent_stops_it_in_order(tmp_path: Path, port: int) -> None:
    with local_gateway(tmp_path, "sim", port, shell=True) as gateway:
        await stops_in_order(gateway, port, gateway.process.kill)


async def test_a_closed_terminal_stops_it_in_order(tmp_path: Path, port: int) -> None:
    ours, terminal = pty.openpty()
    with local_gateway(tmp_path, "sim", port, terminal=terminal) as gateway:
        os.close(terminal)
        await stops_in_order(gateway, port, lambda: os.close(ours))
        assert gateway.process.wait() == 0


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
async def test_the_death_of_ray_ends_it_with_an_error(tmp_path: Path, port: int, name: str) -> None:
    with local_gateway(tmp_path, "sim", port) as gateway:
        await asyncio.to_thread(gateway.until_ready)
        for process in gateway.processes():
            if process.name() == name:
                process.kill()
        assert await asyncio.to_thread(gateway.process.wait, 60) == 2
        await asyncio.to_thread(gateway.until_gone)


async def test_requests_are_answered_without_haproxy_and_none_gets_a_404_while_it_stops(
    tmp_path: Path, port: int
) -> None:
    with local_gateway(tmp_path, "sim", port) as gateway:
        await asyncio.to_thread(gateway.until_ready)
        for process in gateway.processes():
            if process.name() == "haproxy":
                process.kill()
        await asyncio.to_thread(gateway.until_ready)  # by the stand-in; the actor that manages HAProxy takes longer
        seen: list[int] = []
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            gateway.process.send_signal(signal.SIGTERM)
            while gateway.process.poll() is None:
                seen.append(await status_of(session, gateway.url))
        await asyncio.to_thread(gateway.until_gone)
    assert {200, 503} <= set(seen) <= {200, 503, BROKEN}, Counter(seen)
    answered = max(number for number, status in enumerate(seen) if status != BROKEN)
    assert BROKEN not in seen[:answered], Counter(seen)  # once nobody listens any more, nobody ever does


BROKEN = 0


async def status_of(session: aiohttp.ClientSession, url: str) -> int:
    """The status of an answer; BROKEN where the connection breaks or is refused."""
    try:
        async with session.get(f"{url}/v1/models") as response:
            if response.status == 503:
                assert {"retry-after", "connection"} <= {name.lower() for name in response.headers}
            return response.status
    except aiohttp.ClientError:
        await asyncio.sleep(0.01)
        return BROKEN
