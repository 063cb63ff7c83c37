"""What `doctor` says of the store that clusters share."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.limits_store import StoreServer, needs_server

from serve.config.gateway import GatewayConfig
from serve.tools.doctor.store import try_store


def config(url: str | None, enabled: bool = True) -> GatewayConfig:
    limits: dict[str, Any] = {"enabled": enabled, **({"store": {"url": url}} if url else {})}
    model = {"family": "qwen3", "grammar": "hermes", "pools": {"p": {"kind": "sim"}}}
    return GatewayConfig.parse({"models": {"m": model}, "rate_limits": limits})


def test_nothing_is_said_where_no_store_is_configured() -> None:
    assert try_store(config(None)) is None


def test_a_store_without_limits_has_no_effect() -> None:
    assert try_store(config("redis://127.0.0.1:1", enabled=False)) == (
        "warning", "rate_limits.store has no effect: limits are off, see rate_limits.enabled"
    )  # fmt: skip


def test_a_store_that_is_not_there_is_a_warning_with_its_address() -> None:
    found = try_store(config("redis://127.0.0.1:1"))
    assert found is not None
    assert found[0] == "warning"
    assert "127.0.0.1:1 can't be used" in found[1]


@needs_server
@pytest.mark.parametrize(
    ("options", "level", "said"),
    [
        ((), "info", "answers from here"),
        (("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "warning", "noeviction"),
    ],
)
async def test_a_store_that_answers_is_named(tmp_path: Path, options: tuple[str, ...], level: str, said: str) -> None:
    server = StoreServer(tmp_path, *options)
    await server.start()
    try:
        found = await asyncio.to_thread(try_store, config(server.config.url))
    finally:
        server.stop()
    assert found is not None
    assert found[0] == level
    assert said in found[1]
