"""CPU of the gateway's own Python for an answer, without sockets: `python -m bench.gateway.in_process --before DIR`.

One process holds a gateway replica, its client and its engine; each is handed what the other sends, as an event loop
would. Two checkouts take turns of some milliseconds, and each turn is compared with its neighbour. So a difference of
one per cent shows on a machine on which `bench.gateway`, which measures whole processes, differs by ten.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import os
import pstats
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import IO, Any

import uvloop
import yaml

from bench.gateway import sides, traffic, upstream
from serve.config.gateway import GatewayConfig
from serve.gateway.ingress import GatewayReplica
from serve.http1.server import protocol_factory

_ANSWERS = 100  # of a turn
_WARM_UP = 300
_URL = "http://127.0.0.1:1"
_CELLS = "short,stream,tools-text,tools"
_HERE = Path(__file__).resolve()


class Socket:
    """What the gateway asks of a socket."""

    def __init__(self) -> None:
        self._pair = socket.socketpair()  # so that there is something to poll; it stays silent

    def setsockopt(self, *_: int) -> None:
        """Does nothing: a pair knows no TCP."""

    def fileno(self) -> int:
        return self._pair[0].fileno()


class Link(asyncio.Transport):
    """A transport that hands over what is written to it."""

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        super().__init__({"socket": Socket(), "peername": ("127.0.0.1", 2), "sockname": ("127.0.0.1", 1)})
        self._deliver = deliver

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._deliver(bytes(data))

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Does nothing: here nobody is slower than anybody else."""

    resume_reading = close = abort = pause_reading


class Loop(uvloop.Loop):  # type: ignore[misc]
    """An event loop whose connections lead to a fake engine.

    Args:
        frames: Of a stream, that arrive in one read.
    """

    def __init__(self, frames: int) -> None:
        super().__init__()
        self._frames = frames

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:
        protocol = factory()
        request = b""

        def deliver(data: bytes) -> None:
            nonlocal request
            request += data
            head, _, body = request.partition(b"\r\n\r\n")
            if len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
                request = b""
                parts = _answer(head, body)
                reads = range(0, len(parts), self._frames)
                send([b"".join(parts[start : start + self._frames]) for start in reads], 0)

        def send(parts: list[bytes], place: int) -> None:
            self.call_soon(protocol.data_received, parts[place])
            if place + 1 < len(parts):
                self.call_soon(send, parts, place + 1)

        link = Link(deliver)
        protocol.connection_made(link)
        return link, protocol


def _answer(head: bytes, body: bytes) -> list[bytes]:
    if b'"stream":true' not in body:
        return [upstream.WHOLE]
    if b"broken" in head.partition(b"\r\n")[0]:
        return upstream.BROKEN
    return upstream.TOOL if b'"search"' in body else upstream.TEXT


class Client:
    """Sends the same request again and again over one connection."""

    def __init__(self, shape: traffic.Shape, connect: Callable[[], Any]) -> None:
        path = getattr(shape, "path", "/v1/chat/completions")  # an earlier checkout knows no other
        head = (
            f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\naccept: */*\r\n"
            f"authorization: Bearer sk-bench\r\ncontent-length: {len(shape.body)}\r\n\r\n"
        )
        self._request = head.encode() + shape.body
        self._end = b"0\r\n\r\n" if shape.streamed else shape.exact[-16:]
        self._protocol = connect()
        self._protocol.connection_made(Link(self._take))
        self._done: asyncio.Future[None]

    def _take(self, data: bytes) -> None:
        if data.endswith(self._end):
            self._done.set_result(None)

    async def ask(self, times: int) -> None:
        for _ in range(times):
            self._done = asyncio.get_running_loop().create_future()
            self._protocol.data_received(self._request)
            await self._done
            await asyncio.sleep(0)  # the gateway's task ends


async def work(say: Callable[[str], None], orders: IO[str], profile: bool) -> None:
    """Obeys orders, the name of a cell each, and says what an answer cost in microseconds of CPU."""
    config = GatewayConfig.model_validate(yaml.safe_load(sides.REPLICA.config.format(upstream=_URL)))
    replica = GatewayReplica(config.model_dump(mode="json"), [])
    create = protocol_factory(replica.hot)
    state = SimpleNamespace(connections=set(), tasks=set())
    clients: dict[str, Client] = {}
    for order in orders:
        shape = traffic.shapes()[order.strip()]
        if shape.name not in clients:
            clients[shape.name] = Client(shape, lambda: create(SimpleNamespace(loaded_app=None), state, {}))
            await clients[shape.name].ask(_WARM_UP)
        if profile:
            with cProfile.Profile() as profiler:
                await clients[shape.name].ask(1000)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
        began = time.thread_time()
        await clients[shape.name].ask(_ANSWERS)
        say(str((time.thread_time() - began) / _ANSWERS * 1e6))


@contextlib.contextmanager
def side(checkout: Path, frames: int) -> Iterator[Callable[[str], float]]:
    """Runs the gateway of a checkout; yields what measures one turn of a cell in it, in microseconds an answer."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-P", str(_HERE), "--work", "--frames", str(frames)]
    with subprocess.Popen(
        command, cwd=checkout, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def turn(cell: str) -> float:
            print(cell, file=orders, flush=True)
            return float(answers.readline())

        yield turn
        orders.close()


def compare(before: Path, cells: list[str], turns: int, frames: int) -> None:
    """Prints a line a cell: microseconds an answer, now and before, and their ratio.

    Args:
        before: The other checkout.
        cells: Names of shapes of requests.
        turns: Of each checkout in each cell.
        frames: Of a stream, that arrive in one read.
    """
    with side(_HERE.parents[2], frames) as now, side(before.resolve(), frames) as then:
        for cell in cells:
            for warm_up in (now, then):
                warm_up(cell)
            pairs = [(now(cell), then(cell)) for _ in range(turns)]
            ratio = median(one / other for one, other in pairs)
            ours, theirs = (min(column) for column in zip(*pairs, strict=True))
            print(f"{cell}: now {ours:.0f} us, before {theirs:.0f} us, ratio {ratio:.3f}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--before", type=Path, metavar="DIR", help="the other checkout")
    options.add_argument("--cells", default=_CELLS, help=f"comma-separated, of: {','.join(traffic.shapes())}")
    options.add_argument("--turns", type=int, default=60, help="of each checkout in each cell")
    options.add_argument("--frames", type=int, default=1, help="of a stream, that arrive in one read")
    options.add_argument("--profile", action="store_true", help="print where the cells' time goes instead")
    options.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    cells = given.cells.split(",")
    if given.before:
        compare(given.before, cells, given.turns, given.frames)
        return
    orders = sys.stdin if given.work else iter(cells)
    with asyncio.Runner(loop_factory=lambda: Loop(given.frames)) as runner:
        runner.run(work(lambda line: print(line, flush=True), orders, given.profile))


if __name__ == "__main__":
    main()
