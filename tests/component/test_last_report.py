"""What a gateway replica that ends tells the ledger, which other replicas and reports of usage rely on."""

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.engines import answering
from support.limits import LedgerLink
from support.stack import listening

from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.errors import RateLimitError
from serve.gateway import parts
from serve.gateway.ingress import GatewayReplica
from serve.limits.accounts import Accounts
from serve.limits.book import UsageBook, read
from serve.limits.estimate import RequestSize
from serve.limits.ledger import Ledger

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def test_the_usage_since_its_last_report_is_booked_and_what_is_not_spent_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports go out once a second: each rolling update lost what had been used since."""
    limits: dict[str, Any] = {"concurrency": 4, "tokens_per_minute": 60_000}
    async with listening(answering()) as engine:
        pool = {"kind": "remote", "url": engine.url, "facts": {"method": "none"}}
        config = {
            "models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}},
            "access": {"state_dir": str(tmp_path)},
            "rate_limits": {"enabled": True, "default": limits},
        }
        ledger = LedgerLink(Ledger(UsageBook(str(tmp_path)), 0.0))
        monkeypatch.setattr(parts, "connect_ledger", lambda *_: ledger)
        replica = GatewayReplica(config, [])
        async with listening(replica.app(), replica.hot) as front, aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.post(f"{front.url}/v1/chat/completions", json=CHAT) as answer:
                    assert answer.status == 200
                    await answer.read()
    [row] = read(str(tmp_path), ["tenant"], None, None)
    assert row["requests"] == 3
    other = Accounts(RateLimitsConfig(), ledger, replicas=2)
    principal = Principal("k", Tenant("default", limits=Limits(**limits)), frozenset({"infer"}))
    async with AsyncExitStack() as running:
        for _ in range(4):
            await running.enter_async_context(other.passing(principal, "m", []))
        with pytest.raises(RateLimitError):
            await running.enter_async_context(other.passing(principal, "m", []))
    headers: list[tuple[bytes, bytes]] = []
    await other.reserve(principal, "m", "plain", RequestSize(4, max_output=1), headers)
    assert int(dict(headers)[b"x-ratelimit-remaining-tokens"]) > 29_900
