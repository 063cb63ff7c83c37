"""A gateway replica, its client and its engine in one process, which hand each other what they send.

`bench.gateway.in_process` runs this file for each checkout that it compares, with that checkout on the path.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvloop
import yaml

from bench.gateway import sides, traffic, upstream
from serve.config.gateway import GatewayConfig
from serve.gateway import ingress
from serve.http1.server import protocol_factory

_ANSWERS = 100  # of a turn
_WARM_UP = 300
_FIRST_WARM_UP = 2500  # fills what a replica keeps of its last requests, which takes new memory until then
_URL = "http://127.0.0.1:1"
_KEY_ID = "benchBENCH"
_ONE = {"tokens_per_minute": 10**11}
_TWO = {"requests_per_minute": 10**9, **_ONE}
# What a gateway does beside its work: the terms of the one tenant, the limits of its key, and whether usage is counted.
ARRANGEMENTS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "access": ({}, {}, False),
    "usage": ({}, {}, True),
    "one-limit": ({"limits": _ONE}, {}, True),
    "limits": ({"limits": _TWO, "model_limits": {traffic.MODEL: _TWO}}, _TWO, True),
}
# What its clients ask for beside their answers.
HEADERS = {"live": "x-specgate-arguments: live\r\n"}
_USAGE = {"prompt_tokens": 5, "completion_tokens": traffic.CHUNKS, "total_tokens": traffic.CHUNKS + 5}
_REPORT_S = 1.0
_USAGE_FRAME = upstream.chunked(
    b"data: "
    + json.dumps({"id": "chatcmpl-bench", "choices": [], "usage": _USAGE}, separators=(",", ":")).encode()
    + b"\n\n"
)


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
    parts = upstream.TOOL if b'"search"' in body else upstream.TEXT
    return [*parts[:-1], _USAGE_FRAME, parts[-1]] if b'"include_usage":true' in body else parts


class Client:
    """Sends the same request again and again over one connection."""

    def __init__(self, shape: traffic.Shape, connect: Callable[[], Any], key: str = "none", asks: str = "") -> None:
        path = getattr(shape, "path", "/v1/chat/completions")  # an earlier checkout knows no other
        head = (
            f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\naccept: */*\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: {len(shape.body)}\r\n{asks}\r\n"
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


class Side:
    """A gateway replica and its clients.

    Args:
        arrangement: Of `ARRANGEMENTS` or `HEADERS`; empty for a gateway without access control, which counts nothing.
        folder: For files of keys.
        telemetry: The `telemetry` section of the configuration.
    """

    def __init__(self, arrangement: str, folder: Path, telemetry: dict[str, Any]) -> None:
        document = yaml.safe_load(sides.REPLICA.config.format(upstream=_URL))
        config = GatewayConfig.model_validate({**document, **({"telemetry": telemetry} if telemetry else {})})
        settings = config.model_dump(mode="json")
        self._key = "none"
        self._counts = False
        self._asks = HEADERS.get(arrangement, "")
        if arrangement in ARRANGEMENTS:
            path = folder / f"{arrangement}.yaml"
            terms, limits, self._counts = ARRANGEMENTS[arrangement]
            self._key, settings["access"] = _write_key(path, terms, limits), {"mode": "required", "file": str(path)}
            settings["rate_limits"]["enabled"] = self._counts
        self._replica = ingress.GatewayReplica(settings, [])
        self._create = protocol_factory(self._replica.hot)
        self._state = SimpleNamespace(connections=set(), tasks=set())
        self._clients: dict[str, Client] = {}
        self._reported_s = float("-inf")

    async def client(self, shape: traffic.Shape) -> Client:
        """Returns the client of a shape; what it asks for is warm."""
        found = self._clients.get(shape.name)
        if found is None:
            connect = lambda: self._create(SimpleNamespace(loaded_app=None), self._state, {})  # noqa: E731
            found = self._clients[shape.name] = Client(shape, connect, self._key, self._asks)
            await found.ask(_WARM_UP if len(self._clients) > 1 else _FIRST_WARM_UP)
            _spare_the_collector()  # as a replica does when it has started
        return found

    async def report(self) -> None:
        """Does what a replica does once a second beside its requests, if it is time."""
        if self._counts and time.monotonic() - self._reported_s > _REPORT_S:
            accounts: Any = getattr(self._replica, "accounts", None) or getattr(self._replica, "_accounts")  # noqa: B009 - an earlier checkout
            await accounts.sync()
            self._reported_s = time.monotonic()


def _spare_the_collector() -> None:
    gc.collect()
    gc.freeze()
    for name in ("settle_memory", "spare_the_collector"):  # the second is an earlier checkout's, and before it is none
        if (own := getattr(ingress, name, None)) is not None:
            own()


def _write_key(path: Path, terms: dict[str, Any], limits: dict[str, Any]) -> str:
    """Writes a file of keys; returns the key of its one tenant.

    Args:
        path: The file.
        terms: Of the tenant.
        limits: Of its key.
    """
    from serve.access.key_text import digest, new_token

    key = new_token(_KEY_ID)
    row = {"id": _KEY_ID, "tenant": "t", "hash": f"sha256:{digest(key).hex()}", "limits": limits}
    path.write_text(yaml.safe_dump({"tenants": {"t": terms}, "keys": [row]}))
    return key


async def measure(cells: Iterable[str], telemetry: dict[str, Any], *, profile: bool = False) -> None:
    """Prints for each cell what an answer costs in microseconds of CPU; with `profile`, where the time goes as well."""
    made: dict[str, Side] = {}
    with tempfile.TemporaryDirectory() as folder:
        for line in cells:
            shape, _, arrangement = line.strip().partition("+")
            ours = made[arrangement] = made.get(arrangement) or Side(arrangement, Path(folder), telemetry)
            await ours.report()
            client = await ours.client(traffic.shapes()[shape])
            if profile:
                with cProfile.Profile() as profiler:
                    await client.ask(1000)
                pstats.Stats(profiler).sort_stats("tottime").print_stats(40)
            began_s = time.process_time()  # of all threads: what one does is no cheaper for it
            await client.ask(_ANSWERS)
            print((time.process_time() - began_s) / _ANSWERS * 1e6, flush=True)


def run(cells: Iterable[str], frames: int, telemetry: str, *, profile: bool = False) -> None:
    """Runs `measure` on an event loop whose connections lead to the fake engine.

    Args:
        cells: Names, which may arrive one by one.
        frames: Of a stream, that arrive in one read.
        telemetry: That section of the configuration, as JSON.
        profile: As of `measure`.
    """
    with asyncio.Runner(loop_factory=lambda: Loop(frames)) as runner:
        runner.run(measure(cells, json.loads(telemetry), profile=profile))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--frames", type=int, required=True)
    options.add_argument("--telemetry", required=True)
    given = options.parse_args()
    run(sys.stdin, given.frames, given.telemetry)


if __name__ == "__main__":
    main()
