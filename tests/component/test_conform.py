"""The cases of `specgate conform` against our own gateway, over real HTTP and without Ray."""

from typing import Any

import pytest
from support.stack import listening

from serve.conform import CASES, Pace, Verdict, run
from serve.conform.lab import laboratory
from serve.ingress import GatewayReplica

QUICK = Pace(prefill_s=1.0, cancel_s=10.0, settle_s=20.0, timeout_s=60.0, poison=20, streams=16)
# Done by what stands before a replica in Ray Serve; `make bench-conform` measures it with that.
BY_THE_FRONT = {"request-id-out", "headers-1mb"}


def config(url: str) -> dict[str, Any]:
    """One model whose one pool is the scripted engine."""
    pool = {"kind": "remote", "url": url, "facts": {"engine": "vllm", "engine_version": "0.32.0"}}
    return {"models": {"conform": {"family": "qwen3", "grammar": "hermes", "pools": {"standard": pool}}}}


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's, towards the engine
async def test_our_gateway_passes_every_case() -> None:
    async with laboratory("", None, "conform", pace=QUICK) as lab:
        replica = GatewayReplica(config(lab.engine.url), [])
        async with listening(replica.__serve_build_asgi_app__()) as front:
            lab.url = front.url
            report = await run(lab, CASES)
    failed = {row.case.name: row.result.seen for row in report.rows if row.result.verdict is Verdict.FAIL}
    assert {name: seen for name, seen in failed.items() if name not in BY_THE_FRONT} == {}
