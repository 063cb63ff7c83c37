"""The gateway replica under attack, which measures how long its event loop stands still."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import uvicorn

from bench.gateway.replica import answer_json, main
from serve.config.gateway import GatewayConfig
from serve.gateway.ingress import GatewayReplica
from serve.http1.allowance import Allowance
from serve.http1.asgi import Receive, Scope, Send
from serve.http1.server import protocol_factory

VITALS = "/bench/vitals"
_TICK_S = 0.001


class Clock:
    """Measures holds of the event loop: CPU time that this process spends between two turns of a task.

    CPU time, because a busy machine is nobody's fault. It counts what other threads do too: they hold the loop up only
    as long as they keep the interpreter's lock, but one that keeps it is as bad as work in the loop.

    Attributes:
        longest_s: Since it was last asked for.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        """Measures for ever."""
        while True:
            began = time.process_time()
            await asyncio.sleep(_TICK_S)
            self.longest_s = max(self.longest_s, time.process_time() - began)

    async def vitals(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers with the longest hold since the last call, and the number of tasks."""
        longest_s, self.longest_s = self.longest_s, 0.0
        await answer_json(send, {"hold_s": longest_s, "tasks": len(asyncio.all_tasks())})


async def serve(config: GatewayConfig, port: int) -> None:
    """Answer on 127.0.0.1 until the process is told to end."""
    replica = GatewayReplica(config.model_dump(mode="json"), [])
    limits = config.limits
    allowance = Allowance(limits.max_connections, limits.max_buffered_bytes, limits.retry_after_s)
    clock = Clock()
    http: Any = protocol_factory({**replica.hot, VITALS: clock.vitals}, allowance)
    settings = uvicorn.Config(replica.app(), host="127.0.0.1", port=port, http=http, log_level="warning")
    measuring = asyncio.create_task(clock.run())
    await uvicorn.Server(settings).serve()
    measuring.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await measuring


if __name__ == "__main__":
    main(serve, __doc__)
