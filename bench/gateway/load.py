"""The load generator: a closed loop of raw connections that checks every answer. Runs as its own process."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import time
from dataclasses import asdict, dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools
import uvloop

from bench.gateway.traffic import Shape, said_in, shapes


@dataclass
class Sample:
    """The measurements of one run of load.

    Attributes:
        latency_ms: From sending a request to its last byte, one for each answer.
        first_byte_ms: To the first byte of the body.
        exact: Answers that were the upstream's bytes.
        wrong: Answers that were neither these bytes nor the same text.
        elapsed_s: Length of the run.
        cpu_s: CPU of the generator itself.
    """

    latency_ms: list[float] = field(default_factory=list)
    first_byte_ms: list[float] = field(default_factory=list)
    exact: int = 0
    wrong: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    seen: str = ""


class Client(asyncio.Protocol):
    """One connection that sends the next request when the answer to the last is complete."""

    def __init__(self, request: bytes, shape: Shape, sample: Sample, until: float) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._request, self._shape, self._sample, self._until = request, shape, sample, until
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but ancestry
        self._send()

    def _send(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._first = 0.0
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        if not self._body:
            self._first = time.perf_counter()
        self._body.append(body)

    def on_message_complete(self) -> None:
        now, sample = time.perf_counter(), self._sample
        body = b"".join(self._body)
        if body == self._shape.exact and self._parser.get_status_code() == 200:
            sample.exact += 1
        elif not (self._parser.get_status_code() == 200 and self.right(body)):
            sample.wrong += 1
            sample.seen = sample.seen or f"{self._parser.get_status_code()}: {body[:300]!r}"
        sample.latency_ms.append((now - self._sent) * 1000)
        sample.first_byte_ms.append((self._first - self._sent) * 1000)
        if now >= self._until or sample.wrong > 50:
            self._transport.close()
        elif self._parser.should_keep_alive():
            asyncio.get_running_loop().call_soon(self._send)  # the parser is still inside this message
        else:
            self.done.set_exception(ConnectionError("the gateway closes connections between requests"))
            self._transport.close()

    def right(self, body: bytes) -> bool:
        """Returns True if an answer that is not byte for byte the upstream's says the same."""
        try:
            return said_in(body, self._shape.streamed) == self._shape.text
        except (ValueError, KeyError, TypeError):
            return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        if time.perf_counter() < self._until and self._sample.wrong <= 50:
            self.done.set_exception(exc or ConnectionError("the gateway closed the connection"))
        else:
            self.done.set_result(None)


async def run(url: str, shape: Shape, concurrency: int, seconds: float, kind: type[Client] = Client) -> Sample:
    """Send one kind of request over `concurrency` connections for `seconds`; answers under way then still count."""
    where = urlsplit(url)
    head = (
        f"POST {where.path}{shape.path} HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer sk-bench\r\naccept: */*\r\ncontent-length: {len(shape.body)}\r\n\r\n"
    )
    sample, began, cpu = Sample(), time.perf_counter(), time.process_time()
    loop = asyncio.get_running_loop()

    def client() -> Client:
        return kind(head.encode() + shape.body, shape, sample, began + seconds)

    made = [await loop.create_connection(client, where.hostname or "", where.port or 80) for _ in range(concurrency)]
    await asyncio.gather(*(each.done for _, each in made))
    sample.elapsed_s, sample.cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return sample


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("url")
    options.add_argument("--shape", required=True, choices=shapes())
    options.add_argument("--concurrency", type=int, required=True)
    options.add_argument("--seconds", type=float, required=True)
    given = options.parse_args()
    measured = uvloop.run(run(given.url, shapes()[given.shape], given.concurrency, given.seconds))
    print(json.dumps(asdict(measured)))
