"""A gateway replica in a process of its own, the engine behind it, and raw bytes from clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import yaml

from bench.attacks.replica import VITALS
from lab.scripted.arrival import Script
from lab.scripted.engine import ScriptedEngine
from serve.launch.ports import free_port

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
_ENGINE_PATHS = (CHAT, TEXT, "/tokenize")
PATIENCE_S = 20.0  # after which an answer that does not come is a hang
_MB = 2**20
_WINDOW = 2**16
_BYSTANDER_PAUSE_S = 0.005


@dataclass
class Reply:
    """What came back on a connection.

    Attributes:
        raw: All bytes.
        ended: How it ended: `complete`, `closed` or `hang`.
    """

    raw: bytes
    ended: str
    seconds: float = 0.0

    @property
    def status(self) -> int:
        """HTTP status; 0 if none came."""
        return int(self.raw[9:12]) if self.raw[:5] == b"HTTP/" else 0

    @property
    def head(self) -> bytes:
        return self.raw.partition(b"\r\n\r\n")[0]

    @property
    def body(self) -> bytes:
        """The body, without the marks of its chunks."""
        body = self.raw.partition(b"\r\n\r\n")[2]
        if b"transfer-encoding: chunked" not in self.head.lower():
            return body
        parts = []
        while body:
            size, _, rest = body.partition(b"\r\n")
            count = int(size or b"0", 16)
            parts.append(rest[:count])
            body = rest[count + 2 :]
        return b"".join(parts)

    @property
    def is_error(self) -> bool:
        end = self.body[-20_000:]
        return re.search(rb'"error" ?: ?[{"]|event: error|"type": ?"error"', end) is not None


@dataclass
class Gateway:
    """The replica under attack."""

    port: int
    pid: int
    engine: ScriptedEngine
    log: Path
    bystander: Connection = field(repr=False)

    def rss_mb(self) -> float:
        """Its memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / _MB

    async def send(self, raw: bytes, *, patience_s: float = PATIENCE_S, quiet_s: float | None = None) -> Reply:
        """Sends bytes over a connection of their own; returns what comes back.

        Args:
            raw: One request, or what looks like it.
            patience_s: Longest silence.
            quiet_s: Silence that ends the reply once it has begun; else only its own end does.
        """
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=_MB)
        answer = bytearray()
        ended = "closed"
        try:
            pump = asyncio.create_task(_pump(writer, raw))
            while part := await asyncio.wait_for(reader.read(_MB), (quiet_s if answer else None) or patience_s):
                answer += part
                if _is_complete(answer):
                    ended = "complete"
                    break
            pump.cancel()
        except TimeoutError:
            ended = "quiet" if answer and quiet_s else "hang"
        except OSError:
            ended = "reset"
        finally:
            writer.transport.abort()
        return Reply(bytes(answer), ended, time.monotonic() - began)

    async def post(self, body: bytes | Mapping[str, Any], path: str = CHAT, head: str = "", **how: Any) -> Reply:
        """Sends one JSON body.

        Args:
            body: As bytes, or a mapping to encode.
            path: Of the route.
            head: Further lines.
            **how: As `send`.
        """
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.send(request(raw, path, head), **how)

    async def vitals(self) -> dict[str, float]:
        """Returns the longest hold of its loop since the last call, and its tasks."""
        reply = await self.send(request(b"", VITALS))
        found: dict[str, float] = json.loads(reply.body)
        return found

    def worst_health_s(self) -> float:
        """Returns the bystander's worst wait since the last call."""
        self.bystander.send(None)
        worst: float = self.bystander.recv()
        return worst


def request(body: bytes, path: str = CHAT, head: str = "") -> bytes:
    """Returns a POST with a body of JSON."""
    lines = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{lines}{head}\r\n".encode("latin-1") + body


async def _pump(writer: asyncio.StreamWriter, raw: bytes) -> None:
    with contextlib.suppress(OSError):
        for start in range(0, len(raw), _WINDOW):
            writer.write(raw[start : start + _WINDOW])
            await writer.drain()


def _is_complete(answer: bytearray) -> bool:
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(answer[:end]).lower()
    if b"transfer-encoding: chunked" in head:
        return answer.endswith(b"0\r\n\r\n")
    _, found, rest = head.partition(b"content-length: ")
    return bool(found) and len(answer) - end - 4 >= int(rest.partition(b"\r\n")[0])


def _bystand(port: int, orders: Connection) -> None:
    """Asks for `/health` all the time, over one connection; tells the worst wait when asked."""
    import socket

    worst = 0.0
    with socket.create_connection(("127.0.0.1", port)) as line:
        while True:
            began = time.perf_counter()
            line.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = b""
            while b"\r\n\r\n" not in answer:
                part = line.recv(65536)
                if not part:
                    raise ConnectionError("the bystander was thrown out")
                answer += part
            worst = max(worst, time.perf_counter() - began)
            if orders.poll(_BYSTANDER_PAUSE_S):
                if orders.recv() is StopIteration:
                    return
                orders.send(worst)
                worst = 0.0


def _config(engine: int) -> dict[str, Any]:
    """Two pools behind one model; no advisory covers what they say of themselves."""
    pools = {
        "speculative": {"kind": "remote", "url": f"http://127.0.0.1:{engine}/spec",
                        "facts": {"engine": "sim", "method": "sim"}},
        "standard": {"kind": "remote", "url": f"http://127.0.0.1:{engine}/std",
                     "facts": {"engine": "sim", "method": "none"}},
    }  # fmt: skip
    model = {"family": "sim", "grammar": "qwen3_coder", "pools": pools}
    return {"models": {"m": model}}


@contextlib.asynccontextmanager
async def gateway(script: Script) -> AsyncIterator[Gateway]:
    """Runs a replica, its engine and a bystander.

    Args:
        script: Of the engine, where an attack has none of its own.
    """
    engine = ScriptedEngine("m", paths=_ENGINE_PATHS)
    engine.script = script
    await engine.listen()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "log"
        config.write_text(yaml.safe_dump(_config(engine.port)))
        command = [sys.executable, "-m", "bench.attacks.replica", "--config", str(config), "--port", str(port)]
        with log.open("wb") as to, subprocess.Popen(command, stdout=to, stderr=to) as process:  # noqa: ASYNC220 - it lives as long as the block
            ours, theirs = multiprocessing.get_context("spawn").Pipe()
            try:
                await _listening(port, process)
                bystander = multiprocessing.get_context("spawn").Process(
                    target=_bystand, args=(port, theirs), daemon=True
                )
                bystander.start()
                yield Gateway(port, process.pid, engine, log, ours)
                bystander.kill()
            finally:
                process.terminate()
                await engine.hang_up()


async def _listening(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.1)
    raise RuntimeError("the replica does not listen")
