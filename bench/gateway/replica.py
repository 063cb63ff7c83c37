"""One gateway replica as a process of its own, with `remote` pools and without Ray around it."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn
import uvloop

from serve.config.gateway import GatewayConfig
from serve.gateway.ingress import GatewayReplica
from serve.http1.asgi import Receive, Scope, Send
from serve.http1.server import protocol_factory

STATE = "/bench/state"  # by POST, as the paths that are served before the app are


async def answer_json(send: Send, document: object) -> None:
    """Answers a request of the benchmark's own with JSON."""
    body = json.dumps(document).encode()
    length = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": body})


async def state(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the event loop's tasks and the objects that the garbage collector knows, once it has collected."""
    gc.collect()
    await answer_json(send, {"tasks": len(asyncio.all_tasks()), "objects": len(gc.get_objects())})


async def serve(config: GatewayConfig, port: int) -> None:
    """Answer on 127.0.0.1 until the process is told to end."""
    replica = GatewayReplica(config.model_dump(mode="json"), [])
    http: Any = protocol_factory({**replica.hot, STATE: state})
    settings = uvicorn.Config(replica.app(), host="127.0.0.1", port=port, http=http, log_level="warning")
    await uvicorn.Server(settings).serve()


def main(
    serve: Callable[[GatewayConfig, int], Coroutine[Any, Any, None]] = serve, description: str | None = __doc__
) -> None:
    """Runs a replica as the command line says.

    Args:
        serve: Runs it, with a configuration and a port.
        description: Of the program.
    """
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--config", required=True)
    options.add_argument("--port", type=int, required=True)
    given = options.parse_args()
    uvloop.run(serve(GatewayConfig.load(given.config), given.port))


if __name__ == "__main__":
    main()
