"""Two `specgate serve` on one machine: under load, while one of them starts and stops, each answers its own clients."""

import asyncio
import ipaddress
import json
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.local import TIMEOUT_S, LocalGateway, local_gateway

from serve.launch import ports

pytestmark = pytest.mark.ray
CLIENTS = 6


class Flood:
    """Clients that ask one gateway for its model, over and over.

    Attributes:
        answers: How many of each kind: a model's name, an error's code with its status, or an exception's name.
    """

    def __init__(self, port: int, model: str) -> None:
        self.answers: Counter[str] = Counter()
        self._url, self._stopped = f"http://127.0.0.1:{port}/v1/chat/completions", asyncio.Event()
        self._answered = asyncio.Condition()
        self._body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        self._clients = [asyncio.create_task(self._ask()) for _ in range(CLIENTS)]

    async def _ask(self) -> None:
        # A connection a request: each is accepted by whoever has the port then.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
            while not self._stopped.is_set():
                try:
                    async with session.post(self._url, json=self._body) as response:
                        self.answers[reply(response.status, await response.text())] += 1
                except (aiohttp.ClientError, TimeoutError) as error:
                    self.answers[type(error).__name__] += 1
                    await asyncio.sleep(0.05)
                async with self._answered:
                    self._answered.notify_all()

    async def until_answered(self, kind: str, more: int = 20) -> None:
        """Waits for so many more answers of a kind."""
        enough = self.answers[kind] + more
        async with asyncio.timeout(TIMEOUT_S), self._answered:
            await self._answered.wait_for(lambda: self.answers[kind] >= enough)

    async def end(self) -> None:
        self._stopped.set()
        await asyncio.gather(*self._clients)


def reply(status: int, body: str) -> str:
    """Returns the model of an answer, or its status and text."""
    if status != 200:
        return f"{status} {body[:200]}"
    return str(json.loads(body)["model"])


def from_another(answers: Counter[str], own: str) -> list[str]:
    """Answers that only a gateway with other models gives; one that starts or stops has errors of its own."""
    return [kind for kind in answers if kind in {"alpha", "beta"} - {own} or "does not exist" in kind]


@pytest.mark.timeout(1800)  # a minute and a half on two idle cores, five under load
async def test_each_answers_its_own_clients_while_the_other_starts_and_stops(tmp_path: Path) -> None:
    first_port, second_port = ports.free_port(), ports.free_port()
    with local_gateway(tmp_path, "alpha", first_port) as first:
        await asyncio.to_thread(first.until_ready)
        alpha, beta = Flood(first_port, "alpha"), Flood(second_port, "beta")
        await alpha.until_answered("alpha")
        for _ in range(2):
            with local_gateway(tmp_path, "beta", second_port) as second:
                await asyncio.to_thread(second.until_ready)
                await asyncio.gather(alpha.until_answered("alpha"), beta.until_answered("beta"))
                assert_nothing_shared(first, second)
                second.process.terminate()
                await asyncio.to_thread(second.until_gone)
            await alpha.until_answered("alpha")
        await asyncio.gather(alpha.end(), beta.end())
        assert set(alpha.answers) == {"alpha"}, "the first one was disturbed"
        assert from_another(beta.answers, "beta") == []
        first.process.terminate()
        await asyncio.to_thread(first.until_gone)


def assert_nothing_shared(first: LocalGateway, second: LocalGateway) -> None:
    """Neither ports nor tokens; and nobody outside this machine can reach anything of them."""
    assert not first.listeners() & second.listeners()
    tokens = [Path(each.environment()["RAY_AUTH_TOKEN_PATH"]) for each in (first, second)]
    assert tokens[0].read_text() != tokens[1].read_text()
    assert {stat.S_IMODE(token.stat().st_mode) for token in tokens} == {0o600}
    assert open_to_others(first) == open_to_others(second) == []


def open_to_others(gateway: LocalGateway) -> list[Any]:
    return [each for each in gateway.listeners() if not is_loopback(each[0])]


def is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
