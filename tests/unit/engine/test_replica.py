"""A replica around an engine that stands still, or has died."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.clock import settle, until

from serve.engine import vllm
from serve.engine.replica import VllmReplica

CONFIG = {"family": "qwen3", "grammar": "hermes", "pools": {"p": {"kind": "vllm"}}}


class Engine:
    """Takes the place of vLLM's `AsyncLLM`: its core answers while `steps` is set."""

    def __init__(self) -> None:
        self.errored = False
        self.steps = asyncio.Event()
        self.steps.set()

    def get_tokenizer(self) -> None:
        """Returns none: nobody looks for markers here."""

    async def check_health(self) -> None:
        """Says of a core that stands still what vLLM says: nothing."""

    async def is_sleeping(self) -> bool:
        await self.steps.wait()
        return False


async def answering(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def hosting(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[VllmReplica]:
    """Runs a replica, and lets its engine die at the end."""
    exits: list[int] = []

    async def start_engine(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(client=engine, app=answering, facts={}, kept_tokens=None, shutdown=lambda: None)

    host = SimpleNamespace(start_engine=start_engine, parse_args=lambda *_: None)
    monkeypatch.setattr(vllm, "host", host, raising=False)
    monkeypatch.setattr("serve.engine.vllm.markers.check_markers", lambda *_: None)
    monkeypatch.setattr(os, "_exit", exits.append)
    monkeypatch.setenv("SPECGATE_ENGINE_HOST", "127.0.0.1")
    replica = VllmReplica.__new__(VllmReplica)
    await replica.__init__("m", "p", CONFIG)  # type: ignore[misc]  # as Ray Serve does
    try:
        yield replica
    finally:
        engine.errored = True
        await until(lambda: exits)
        assert exits == [1]


async def test_a_replica_whose_engine_stands_still_does_not_say_that_it_is_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine()
    async with hosting(engine, monkeypatch) as replica:
        await replica.check_health()
        engine.steps.clear()
        asked = asyncio.create_task(replica.check_health())
        await settle()
        assert not asked.done()
        engine.steps.set()
        await asked
