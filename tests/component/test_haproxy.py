"""HAProxy with the flags that we give it through Ray: a server that dies costs its open streams alone.

The directives are those of Ray Serve's template that matter here; the servers are simulated engines in gateways' place.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import openai
import psutil
import pytest
from support.load import End, LoadResult, ask

from serve.launch.haproxy import write_launcher
from serve.launch.local import node_environment
from serve.launch.ports import free_port, is_taken
from serve.launch.stand_in import standing_in

CONFIG = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout http-keep-alive 5s
    option abortonclose
    option splice-request
    option splice-response
    option redispatch 1
    retry-on {RAY_SERVE_HAPROXY_RETRY_ON}
    errorfile 502 {plain}
    errorfile 503 {plain}
    balance leastconn
global
    tune.bufsize {RAY_SERVE_HAPROXY_TUNE_BUFSIZE}
    close-spread-time 5s
frontend clients
    bind 127.0.0.1:{front}
    default_backend gateways
backend gateways
    http-reuse always
    # Servers in this backend
    server a 127.0.0.1:{a}
    server b 127.0.0.1:{b}
"""
SERVER = """
import sys, uvicorn
from lab.sim import SimSettings, build_sim_app
settings = {"model": "m", "grammar": "hermes", "content_tokens": [25, 25]}
settings["step_ms"], settings["prefill_ms"] = int(sys.argv[2]), int(sys.argv[3])
uvicorn.run(build_sim_app(SimSettings.from_mapping(settings)), port=int(sys.argv[1]), log_level="error")
"""


@contextmanager
def running(*command: str | Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except urllib.error.HTTPError:
            return  # HAProxy's own: its servers are another matter
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert time.monotonic() < deadline, f"nothing answers on port {port}"
            time.sleep(0.1)


@contextmanager
def haproxy_before(
    tmp_path: Path, ports: dict[str, int], template: str = CONFIG
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """HAProxy as our wrapper starts it before two ports; its URL and process."""
    config = tmp_path / "haproxy.cfg"
    plain = tmp_path / "500.http"  # what Ray's template gives for all of HAProxy's own errors
    plain.write_text("HTTP/1.1 500 Internal Server Error\r\n\r\nInternal Server Error")
    config.write_text(template.format(**ports, plain=plain, **node_environment(str(tmp_path))))
    with running(write_launcher(tmp_path), "-db", "-f", config) as process:
        wait_for(ports["front"])
        yield f"http://127.0.0.1:{ports['front']}", process


@contextmanager
def haproxy(
    tmp_path: Path, step_ms: int, prefill_ms: int = 300
) -> Iterator[tuple[str, tuple[str, str], "subprocess.Popen[bytes]"]]:
    """HAProxy before two servers; its URL, theirs, and the process of the first."""
    ports = {name: free_port() for name in ("front", "a", "b")}
    times = str(step_ms), str(prefill_ms)
    with (
        running(sys.executable, "-c", SERVER, str(ports["a"]), *times) as victim,
        running(sys.executable, "-c", SERVER, str(ports["b"]), *times),
        haproxy_before(tmp_path, ports) as (front, _),
    ):
        for server in ("a", "b"):
            wait_for(ports[server])
        yield front, (f"http://127.0.0.1:{ports['a']}", f"http://127.0.0.1:{ports['b']}"), victim


async def test_what_a_dead_server_had_not_answered_is_sent_to_another(tmp_path: Path) -> None:
    """All bodies have arrived by then: of one that is on its way at that moment HAProxy does not hold all."""
    begun, waiting = LoadResult(), LoadResult()
    said = "x" * 40_000
    with haproxy(tmp_path, step_ms=200, prefill_ms=2000) as (url, servers, victim):
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:

            def send(result: LoadResult) -> None:
                for number in range(8):
                    body = {"model": "m", "messages": [{"role": "user", "content": f"{number} {said}"}]}
                    group.create_task(ask(session, url, body, result))

            send(begun)
            await until(lambda: begun.engines.total() == 8)
            send(waiting)
            await until(lambda: count(servers, "running") == 16)
            victim.kill()
    assert begun.ends.total() == waiting.ends.total() == 8
    assert set(begun.ends) == {End.COMPLETE, End.CUT}, begun
    assert set(waiting.ends) == {End.COMPLETE}, waiting


async def test_a_client_whose_gateways_are_all_gone_gets_openais_error_and_may_retry(tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("front", "a", "b")}
    with haproxy_before(tmp_path, ports) as (url, _):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            with pytest.raises(openai.InternalServerError) as raised:
                await client.models.list()
    assert (raised.value.status_code, raised.value.code) == (503, "gateway_unavailable")
    assert raised.value.response.headers["retry-after"] == "1"


class Leaving:
    """A gateway that answers until it is told to leave: it reads one request more, and is gone without an answer."""

    def __init__(self) -> None:
        self.leaves = False
        self.requests = 0

    async def __aenter__(self) -> "Leaving":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**17)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0] or 0))
                self.requests += 1
                if self.leaves:
                    self._server.close()
                    return
                await asyncio.sleep(0.1)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize("size", [2, 40_000])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "fresh"])
async def test_no_request_is_lost_by_a_gateway_that_leaves_before_haproxy_hears_of_it(
    tmp_path: Path, kept: bool, size: int
) -> None:
    """Of another gateway HAProxy knows only Ray's own proxy, to which it turns when it takes the gateway for dead."""
    found = "server b 127.0.0.1:{b}\n"
    last_resort = CONFIG.replace("{a}\n", "{a} check observe layer4 error-limit 3 on-error mark-down\n")
    last_resort = last_resort.replace(found, f"{found[:-1]} backup\n")
    async with Leaving() as gateway, Leaving() as proxy:
        ports = {"front": free_port(), "a": gateway.port, "b": proxy.port}
        with ExitStack() as held:
            await asyncio.to_thread(held.enter_context, haproxy_before(tmp_path, ports, last_resort))
            clients = [await asyncio.open_connection("127.0.0.1", ports["front"]) for _ in range(9)]
            for _, writer in clients:
                held.enter_context(closing(writer))
            fresh = clients.pop()
            assert set(await asyncio.gather(*(status_in_two_pieces(*each, size) for each in clients))) == {200}
            answered, gateway.leaves = gateway.requests, True
            assert await status_in_two_pieces(*(clients[0] if kept else fresh), size) == 200
            assert gateway.requests > answered, "it was asked, and left without an answer"


async def status_in_two_pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> int:
    """Sends head and body apart, as clients do, and returns the status; 0 if the connection is closed instead."""
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n" % size)
    await asyncio.sleep(0.05)
    writer.write(b"x" * size)
    return int((await reader.read(2**16))[9:12] or 0)


async def test_a_client_that_does_not_finish_its_request_is_told_so(tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("front", "a", "b")}
    hasty = CONFIG.replace("global\n", "    timeout http-request 1s\nglobal\n")
    with haproxy_before(tmp_path, ports, hasty):
        reader, writer = await asyncio.open_connection("127.0.0.1", ports["front"])
        with closing(writer):
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\n{")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_timeout")


@contextmanager
def rays_haproxy(folder: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """HAProxy without a route, with its files where Ray puts them."""
    home = folder / "node"
    home.mkdir(exist_ok=True)
    plain = home / "500.http"
    plain.write_text("HTTP/1.1 500 Internal Server Error\r\n\r\nInternal Server Error")
    config = CONFIG.format(front=port, a=1, b=1, plain=plain, **node_environment(str(folder)))
    config = config.replace(
        "global\n", f"global\n    stats socket {home}/admin.sock mode 666 level admin expose-fd listeners\n"
    )
    no_route = '    http-request return status 404 content-type text/plain lf-string "no route"\n'
    (home / "haproxy.cfg").write_text(config.replace("backend gateways\n", f"backend gateways\n{no_route}"))
    with running(write_launcher(folder), "-db", "-f", home / "haproxy.cfg") as process:
        wait_for(port)
        yield process


def answer(port: int) -> tuple[int, dict[str, str]]:
    with closing(HTTPConnection("127.0.0.1", port, timeout=10)) as client:
        client.request("POST", "/v1/chat/completions", "{}")
        response = client.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}


def test_while_there_is_no_route_a_request_may_be_tried_again(tmp_path: Path) -> None:
    port = free_port()
    with rays_haproxy(tmp_path, port):
        status, headers = answer(port)
    assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")


def test_a_stand_in_answers_while_haproxy_is_away_and_not_any_longer(tmp_path: Path) -> None:
    port = free_port()
    with standing_in(tmp_path, write_launcher(tmp_path)):
        with rays_haproxy(tmp_path, port) as process:
            process.kill()
            process.wait()
            wait_for(port)  # whoever answers now is the stand-in
            assert answer(port)[0] == 503
        with rays_haproxy(tmp_path, port) as process:
            stand_in = tmp_path / "node" / "stand-in.sock"
            while is_listening(stand_in):
                time.sleep(0.05)
            assert answer(port)[0] == 503
            process.terminate()
    assert not is_taken(port)


def stand_ins(folder: Path) -> list[psutil.Process]:
    """Processes that a stand-in's configuration runs."""
    config = str(folder / "node" / "stand-in.cfg")
    return [each for each in psutil.Process().children() if config in each.cmdline()]


BACK_S = 2.0


def test_however_often_haproxy_and_its_stand_ins_are_killed_somebody_listens_soon(tmp_path: Path) -> None:
    port = free_port()
    with standing_in(tmp_path, write_launcher(tmp_path)), rays_haproxy(tmp_path, port) as process:
        victim: psutil.Process = psutil.Process(process.pid)
        for _ in range(5):
            victim.kill()
            psutil.wait_procs([victim], timeout=5)
            killed_s = time.monotonic()
            wait_for(port)
            assert time.monotonic() - killed_s < BACK_S
            [victim] = stand_ins(tmp_path)
    assert not is_taken(port)


def test_a_haproxy_that_is_stopped_goes_on(tmp_path: Path) -> None:
    """It keeps its port and whoever asks there waits, so that a stand-in would get only every other client."""
    port = free_port()
    with standing_in(tmp_path, write_launcher(tmp_path)):
        with rays_haproxy(tmp_path, port) as process:
            process.kill()
            process.wait()
            wait_for(port)
            [stand_in] = stand_ins(tmp_path)
            assert_answers_although_stopped(port, stand_in.pid)
        with rays_haproxy(tmp_path, port) as process:
            while is_listening(tmp_path / "node" / "stand-in.sock"):
                time.sleep(0.05)
            for _ in range(3):
                assert_answers_although_stopped(port, process.pid)


def assert_answers_although_stopped(port: int, pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    assert answer(port)[0] == 503
    assert time.monotonic() - stopped_s < BACK_S


def test_none_is_refused_while_a_stand_in_takes_over_from_haproxy_which_is_killed_then(tmp_path: Path) -> None:
    port, over, statuses = free_port(), threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            statuses.append(answer(port)[0])  # a connection that breaks raises

    with ThreadPoolExecutor() as clients, standing_in(tmp_path, write_launcher(tmp_path)) as take_over:
        with rays_haproxy(tmp_path, port) as process:
            asking = [clients.submit(ask) for _ in range(4)]
            take_over()
            process.wait(timeout=60)  # it has been told to finish
        many = len(statuses) + 100
        while len(statuses) < many:
            time.sleep(0.01)
        over.set()
        for each in asking:
            each.result()
    assert set(statuses) == {503}
    assert not is_taken(port)


def is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


async def test_a_head_of_many_lines_passes(tmp_path: Path) -> None:
    with haproxy(tmp_path, step_ms=1) as (url, _, _):
        many = {f"x-line-{number}": "y" for number in range(300)}
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            assert [model.id async for model in client.models.list(extra_headers=many)] == ["m"]


class Ready(BaseHTTPRequestHandler):
    """Answers 200 and keeps the connection."""

    protocol_version = "HTTP/1.1"
    status = 200
    kind = "text/plain"

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("content-type", self.kind)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class NoRoute(Ready):
    """Ray's own proxy, which knows no route."""

    status = 404
    kind = "text/plain; charset=utf-8"


class NotFound(NoRoute):
    """A gateway that has no such thing."""

    kind = "application/json"


@contextmanager
def ready_on(port: int, handler: type[Ready] = Ready) -> Iterator[None]:
    """A server of few words."""
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize(("handler", "status"), [(NoRoute, 503), (NotFound, 404)])
def test_where_rays_proxy_knows_no_route_a_request_may_be_tried_again(
    tmp_path: Path, handler: type[Ready], status: int
) -> None:
    ports = {name: free_port() for name in ("front", "a", "b")}
    with ExitStack() as resources:
        for port in (ports["a"], ports["b"]):
            resources.enter_context(ready_on(port, handler))
        resources.enter_context(haproxy_before(tmp_path, ports))
        client = resources.enter_context(closing(HTTPConnection("127.0.0.1", ports["front"], timeout=10)))
        assert status_of(client) == status


def test_requests_on_kept_connections_are_answered_although_haproxy_is_being_replaced(tmp_path: Path) -> None:
    """Ray replaces HAProxy at every change of replicas; a client cannot know that its connection is about to close, and
    the replicas that were there when it connected may be gone.
    """
    ports = {name: free_port() for name in ("front", "a", "b")}
    after = {**ports, "a": free_port(), "b": free_port()}
    folders = [tmp_path / "before", tmp_path / "after"]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as held:
        gone = held.enter_context(ExitStack())
        gone.enter_context(ready_on(ports["a"]))
        _, process = held.enter_context(haproxy_before(folders[0], ports))
        new = [held.enter_context(socket.create_connection(("127.0.0.1", ports["front"]))) for _ in range(20)]
        clients = [held.enter_context(closing(HTTPConnection("127.0.0.1", ports["front"], timeout=10))) for _ in new]
        assert {status_of(client) for client in clients} == {200}
        process.send_signal(signal.SIGUSR1)  # as its successor does
        while is_taken(ports["front"]):
            pass
        gone.close()
        held.enter_context(ready_on(after["a"]))
        held.enter_context(haproxy_before(folders[1], after))
        time.sleep(1)  # while which HAProxy's own way would have closed a fifth of them
        for client in clients:
            assert status_of(client) == 200
        for connection in new:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        process.wait(timeout=30)  # each knew by its answer that it had to close


def status_of(client: HTTPConnection) -> int:
    client.request("GET", "/health")
    with client.getresponse() as response:
        response.read()
        return response.status


async def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s, "it never happens"
        await asyncio.sleep(0.02)


def count(servers: tuple[str, str], state: str) -> int:
    """Returns how many requests of both servers are or were in a state."""
    found = 0
    for server in servers:
        with urllib.request.urlopen(f"{server}/sim/stats", timeout=5) as response:
            found += json.load(response)[state]
    return found


async def test_a_client_that_gives_up_an_unstreamed_request_frees_the_engine(tmp_path: Path) -> None:
    """OpenAI's client sends head and body apart, where splicing would hide from HAProxy that the client has left."""
    with haproxy(tmp_path, step_ms=1000) as (url, servers, _):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=2) as client:
            ask: Any = {"model": "m", "messages": [{"role": "user", "content": "x" * 2000}]}
            answers = await asyncio.gather(
                *(client.chat.completions.create(**ask) for _ in range(8)), return_exceptions=True
            )
        assert all(isinstance(answer, openai.APITimeoutError) for answer in answers), answers
        while count(servers, "cancelled") < len(answers):
            assert not count(servers, "finished"), "an engine wrote an answer that nobody waits for"
            await asyncio.sleep(0.1)
