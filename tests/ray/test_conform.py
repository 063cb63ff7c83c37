"""The cases of `specgate conform` against what users run: `specgate serve`, with Ray Serve and HAProxy in front."""

import asyncio
from pathlib import Path

import pytest
from support.local import local_gateway

from serve.launch import ports
from serve.tools.conform import API_CASES, SECURITY_CASES, CaseStatus, Pace, run
from serve.tools.conform.lab import laboratory

pytestmark = pytest.mark.ray
QUICK = Pace(prefill_s=1.0, cancel_s=10.0, settle_s=20.0, timeout_s=60.0, poison=20, streams=16, others_s=10.0)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's, towards the engine
async def test_the_whole_gateway_behind_haproxy_passes_every_case(tmp_path: Path) -> None:
    async with laboratory("", None, "conform", pace=QUICK) as lab:
        pool = {"kind": "remote", "url": lab.engine.url, "facts": {"engine": "vllm", "engine_version": "0.32.0"}}
        model = {"family": "qwen3", "grammar": "hermes", "pools": {"standard": pool}}
        with local_gateway(tmp_path, "conform", ports.free_port(), settings=model) as gateway:
            lab.url = gateway.url
            await asyncio.to_thread(gateway.until_ready)
            report = await run(lab, [case for cases in API_CASES.values() for case in cases] + [*SECURITY_CASES])
            gateway.process.terminate()
            await asyncio.to_thread(gateway.until_gone)
    assert {row.case.name: row.result.seen for row in report.rows if row.result.status is not CaseStatus.PASS} == {}
