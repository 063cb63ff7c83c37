"""What a gateway replica that ends tells the ledger, which other replicas and reports of usage rely on."""

from pathlib import Path

import aiohttp
from support.engines import answering
from support.stack import listening

from serve.gateway.ingress import GatewayReplica
from serve.limits.book import read
from serve.limits.messages import Meter

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def test_the_usage_since_its_last_report_is_booked_and_what_is_not_spent_given_back(tmp_path: Path) -> None:
    """Reports go out once a second: each rolling update lost what had been used since."""
    limits = {"concurrency": 4, "tokens_per_minute": 60_000}
    async with listening(answering()) as engine:
        pool = {"kind": "remote", "url": engine.url}
        config = {
            "models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}},
            "access": {"state_dir": str(tmp_path)},
            "rate_limits": {"enabled": True, "default": limits},
        }
        replica = GatewayReplica(config, [])
        accounts = replica._accounts
        assert accounts is not None
        async with listening(replica.app(), replica.hot) as front, aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.post(f"{front.url}/v1/chat/completions", json=CHAT) as answer:
                    assert answer.status == 200
                    await answer.read()
    [row] = read(str(tmp_path), ["tenant"], None, None)
    assert row["requests"] == 3
    slices = accounts._holdings._slices
    assert slices[Meter("tenant:default", "concurrency")].held == 0
    assert slices[Meter("tenant:default", "tokens")].held == 0
