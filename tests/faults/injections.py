"""What faults do: each context is one."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from support.engines import chunk, end, frame, start

from serve.launch.haproxy import harden
from serve.launch.ports import free_port, is_taken
from tests.faults.needs import haproxy, memory_cgroups
from tests.faults.scene import COMPLETE, LONGEST_S, NOTHING, ROOT, Scene, outcome, session
from tests.faults.settings import run

Notes = list[str]
Injection = Callable[[Scene, Notes], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def nonsense(scene: Scene, _: Notes) -> AsyncIterator[None]:
    """Another page, no HTTP, half of a JSON, a stream of bytes: one after the other."""
    pages = (
        (200, "text/html", b"<html>welcome</html>"),
        (200, "application/json", b'{"choices": [{"mess'),
        (200, "application/json", b'{"hello": "world"}'),
        (200, "text/event-stream", b"data: {\xff\xfe\n\n"),
        (200, "text/event-stream", frame("[DONE]")),
        (200, "application/octet-stream", bytes(range(256)) * 64),
        (302, "text/plain", b""),
    )
    count = 0

    async def instead(send: Any, _: bytes) -> bool:
        nonlocal count
        status, kind, body = pages[count % len(pages)]
        count += 1
        await start(send, status, kind)
        await end(send, body)
        return True

    scene.engine.instead = instead
    yield
    scene.engine.instead = None


@asynccontextmanager
async def slower_and_slower(scene: Scene, _: Notes) -> AsyncIterator[None]:
    async def slow_down() -> None:
        while True:
            await asyncio.sleep(0.1)
            scene.engine.pace_s *= 1.3

    slowing = asyncio.create_task(slow_down())
    yield
    slowing.cancel()
    scene.engine.pace_s = 0.01


def jump(offset: str) -> Injection:
    """Sets the gateway's clock, for good: it does not come back by itself."""

    @asynccontextmanager
    async def jumped(scene: Scene, notes: Notes) -> AsyncIterator[None]:
        before = await scene.usage()
        (scene.folder / "offset").write_text(offset)
        yield
        async with asyncio.timeout(30):
            while await scene.usage() <= before:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        notes.append("usage goes on")

    return jumped


@asynccontextmanager
async def full(scene: Scene, notes: Notes) -> AsyncIterator[None]:
    filler = scene.folder / "disk" / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    status, answer = 200, None
    for number in range(100):  # until the last block of the log is full
        status, answer = await scene.operator("POST", "/admin/v1/keys", json={"tenant": f"t{number}"})
        if status >= 400:
            break
    notes.append(f"changes: {status} {answer['error']['code']}")
    yield
    filler.unlink()
    status, _ = await scene.operator("POST", "/admin/v1/keys", json={"tenant": "later"})
    audit = [sys.executable, "-m", "serve.cli", "audit", "verify", str(scene.folder / "disk")]
    verified = await asyncio.create_subprocess_exec(*audit, cwd=ROOT, stdout=-1, stderr=-2)
    said, _ = await verified.communicate()
    assert verified.returncode == 0, said.decode()
    notes.append(f"afterwards {status}, and the log is whole")


@asynccontextmanager
async def taken_port(scene: Scene, notes: Notes) -> AsyncIterator[None]:
    command = [sys.executable, "-m", "serve.cli", "serve", "--config", str(scene.config), "--port", str(scene.port)]
    second = await asyncio.create_subprocess_exec(
        *command, "--admin-port", str(free_port()), cwd=ROOT, stdout=-1, stderr=-2
    )
    said, _ = await second.communicate()
    assert second.returncode == 2, said.decode()
    assert str(scene.port) in said.decode(), said.decode()
    notes.append("the second one ends with 2 and names the port")
    yield


@asynccontextmanager
async def no_memory(scene: Scene, notes: Notes) -> AsyncIterator[None]:
    """As little as is left beside what the process has, while large requests come."""
    process = psutil.Process(scene.process.pid)
    room = process.memory_info().vms + 24 * 2**20
    resource.prlimit(process.pid, resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
    large = {"model": "m", "messages": [{"role": "user", "content": "x" * 20_000_000}]}
    async with session() as one:
        ends = await asyncio.gather(*(outcome(one, scene.url, large, scene.headers) for _ in range(4)))
    notes.append(f"requests of 20 MB: {', '.join(sorted(set(ends)))}")
    yield
    resource.prlimit(process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@asynccontextmanager
async def killed_for_memory(scene: Scene, notes: Notes) -> AsyncIterator[None]:
    """The kernel ends the gateway as it does where a container's limit is reached; somebody starts it again."""
    with cgroup("specgate-faults", scene.process.pid) as limit:
        async with asyncio.timeout(60), session() as one:
            limit(4 * 2**20)  # of what it takes from now on
            while scene.process.returncode is None:
                with suppress(aiohttp.ClientError):
                    await outcome(one, scene.url, {"model": "m", "pad": "x" * 10_000_000}, {})
                await asyncio.sleep(0.05)
    assert scene.process.returncode == -signal.SIGKILL
    yield
    began_s = time.monotonic()
    await scene.begin()
    notes.append(f"a new one answers {time.monotonic() - began_s:.1f} s after its start")


@asynccontextmanager
async def ended(scene: Scene, _: Notes) -> AsyncIterator[None]:
    authority = scene.setting.more["authority"]
    authority.sign(authority.context, timedelta(seconds=-1))
    yield
    authority.sign(authority.context, timedelta(days=1))


@asynccontextmanager
async def edge_ended(scene: Scene, notes: Notes) -> AsyncIterator[None]:
    """Clients come through our sample of a TLS edge, whose certificate ends; then it gets another and is reloaded."""
    authority, clients, direct = scene.setting.more["authority"], scene.clients, scene.clients.url
    clients.tls.load_verify_locations(authority.file)
    over = asyncio.Event()

    async def long(send: Any, body: bytes) -> bool:
        if b"all along" not in body:
            return False
        await start(send, kind="text/event-stream")
        while not over.is_set():
            await send({"type": "http.response.body", "body": frame(chunk({"content": "x"})), "more_body": True})
            await asyncio.sleep(0.1)
        await end(send, frame(chunk({}, "stop")) + frame("[DONE]"))
        return True

    scene.engine.instead = long
    async with (
        edge_before(scene.port, authority.issue(timedelta(days=1))) as (port, reload),
        session(clients.tls) as one,
    ):
        clients.url = f"https://localhost:{port}"
        await clients.until_well(time.monotonic())
        ask = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "all along"}]}
        open_stream = asyncio.create_task(outcome(one, clients.url, ask, scene.headers))
        await asyncio.sleep(0.3)
        authority.issue(timedelta(seconds=-1))
        reload()
        async with asyncio.timeout(LONGEST_S):
            while clients.seen[-1].end != NOTHING:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield
        authority.issue(timedelta(days=1))
        reload()
        await clients.until_well(time.monotonic())
        over.set()
        assert (ended := await open_stream) == COMPLETE, ended
        notes.append("a stream that was open goes on through both reloads")
        clients.url, scene.engine.instead = direct, None


@asynccontextmanager
async def edge_before(port: int, certificate: Path) -> AsyncIterator[tuple[int, Callable[[], None]]]:
    """Starts `deploy/edge/haproxy.cfg` before a gateway; yields its port, and what has it read its files again."""
    program, front = haproxy(), free_port()
    assert program is not None
    settings = {
        "SPECGATE_EDGE_BIND": f"127.0.0.1:{front}",
        "SPECGATE_EDGE_CERTIFICATE": str(certificate),
        "SPECGATE_EDGE_GATEWAY": f"127.0.0.1:{port}",
    }
    command = (program, "-W", "-f", str(ROOT / "deploy" / "edge" / "haproxy.cfg"))
    edge = await asyncio.create_subprocess_exec(*command, env=os.environ | settings, stdout=-3, stderr=-3)
    try:
        async with asyncio.timeout(LONGEST_S):
            while not is_taken(front):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield front, lambda: edge.send_signal(signal.SIGUSR2)
    finally:
        edge.terminate()
        await edge.wait()


@asynccontextmanager
async def no_names(scene: Scene, _: Notes) -> AsyncIterator[None]:
    names = scene.setting.more["names"]
    names.silent = True
    yield
    names.silent = False


@asynccontextmanager
async def partition(scene: Scene, notes: Notes) -> AsyncIterator[None]:
    link = scene.setting.more["link"]
    await run("ip", *link, "down")
    yield
    await run("ip", *link, "up")
    done = sum(each.end == COMPLETE for each in scene.clients.seen)
    async with asyncio.timeout(60):
        while (booked := await scene.usage()) < done:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    notes.append(f"all {done} answers are in the usage, {booked} with those since")


READERS, READER_BYTES = 500, 64_000


@asynccontextmanager
async def slow_readers(scene: Scene, notes: Notes) -> AsyncIterator[None]:
    """Clients that hardly read, through Ray's HAProxy with our settings; others ask through it as well."""
    process = psutil.Process(scene.process.pid)
    quick, before = scene.clients.url, process.memory_info().rss

    async def long(send: Any, body: bytes) -> bool:
        if b"slow" not in body:
            return False
        await start(send, kind="text/event-stream")
        for number in range(READER_BYTES // 200):
            part = frame(chunk({"content": f"{number}".ljust(40)}))
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await end(send, frame(chunk({}, "stop")) + frame("[DONE]"))
        return True

    with haproxy_before(scene.folder, scene.port) as port:
        scene.engine.instead = long
        scene.clients.url = f"http://127.0.0.1:{port}"
        readers = await asyncio.gather(*(slow_reader(port) for _ in range(READERS)))
        yield
        grown = (process.memory_info().rss - before) / READERS / 1024
        ends = await asyncio.gather(*(rest_of(reader) for reader in readers))
        scene.engine.instead = None
        scene.clients.url = quick
        await asyncio.sleep(0.2)
    assert all(ends), f"{ends.count(False)} of the slow ones did not get all"
    notes.append(f"{READERS} slow readers get all of theirs, {max(0, grown):.0f} kB each meanwhile")


async def slow_reader(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Asks for a long stream and reads its beginning."""
    ours = socket.socket()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ours.setblocking(False)
    await asyncio.get_running_loop().sock_connect(ours, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=ours, limit=1024)
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "slow"}]})
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    async with asyncio.timeout(LONGEST_S):
        assert await reader.read(100)
    return reader, writer


async def rest_of(one: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    """Reads a stream to its end; returns whether it was complete."""
    reader, writer = one
    last = b""
    async with asyncio.timeout(LONGEST_S):
        while data := await reader.read(65536):
            last = (last + data)[-40:]
    writer.close()
    return b"[DONE]" in last


@contextmanager
def cgroup(name: str, pid: int) -> Iterator[Callable[[int], None]]:
    """Puts a process into a group of its own; yields what limits its memory."""
    root = memory_cgroups()
    assert root is not None
    group = root / f"{name}-{pid}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(pid))
    second = (group / "memory.max").exists()
    swap = group / ("memory.swap.max" if second else "memory.swappiness")

    def limit(size_bytes: int) -> None:
        if swap.exists():
            swap.write_text("0")
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(size_bytes))

    try:
        yield limit
    finally:
        until_s = time.monotonic() + 5
        while group.exists() and time.monotonic() < until_s:
            with suppress(OSError):
                group.rmdir()
            time.sleep(0.05)


_HAPROXY = """
global
    tune.bufsize 65536
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option abortonclose
    option splice-response
frontend clients
    bind 127.0.0.1:{front}
    default_backend gateways
backend gateways
    http-reuse always
    server a 127.0.0.1:{port}
"""


@contextmanager
def haproxy_before(folder: Path, port: int) -> Iterator[int]:
    program = haproxy()
    assert program is not None
    front, config = free_port(), folder / "haproxy.cfg"
    config.write_text(harden(_HAPROXY.format(front=front, port=port), folder))
    process = subprocess.Popen([program, "-db", "-f", config], stderr=subprocess.DEVNULL)
    try:
        while not is_taken(front):
            time.sleep(0.05)
        yield front
    finally:
        process.kill()
        process.wait()
