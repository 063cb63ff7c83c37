"""Ray Serve as in its guide, with default options: an ingress deployment and an engine behind a streaming handle."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import ray
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from ray import serve as ray_serve
from ray.serve.config import HTTPOptions

_KINDS = {True: "text/event-stream", False: "application/json"}
app = FastAPI()


@ray_serve.deployment(max_ongoing_requests=1000)
class Engine:
    """Stands for the engine: hands on what the upstream says."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._session: aiohttp.ClientSession | None = None

    async def answer(self, path: str, body: bytes) -> AsyncIterator[bytes]:
        self._session = self._session or aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        headers = {"content-type": "application/json"}
        async with self._session.post(self._upstream + path, data=body, headers=headers) as response:
            async for part in response.content.iter_any():
                yield part


@ray_serve.deployment(max_ongoing_requests=1000)
@ray_serve.ingress(app)
class Ingress:
    """Stands for the gateway."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine.options(stream=True)

    @app.post("/v1/chat/completions")
    async def chat(self, request: Request) -> StreamingResponse:
        body = await request.body()
        streamed = b'"stream":true' in body
        answer = self._engine.answer.remote("/v1/chat/completions", body)
        return StreamingResponse(answer, media_type=_KINDS[streamed])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--upstream", required=True)
    options.add_argument("--port", type=int, required=True)
    given = options.parse_args()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ray.init(num_cpus=4, include_dashboard=False, logging_level="warning", _node_ip_address="127.0.0.1",
             object_store_memory=256 * 2**20)  # fmt: skip
    ray_serve.start(http_options=HTTPOptions(host="127.0.0.1", port=given.port))
    engine: Any = Engine
    ingress: Any = Ingress
    ray_serve.run(ingress.bind(engine.bind(given.upstream)))
    ended.wait()
    ray_serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
