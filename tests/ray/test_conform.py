"""The cases of `specgate conform` against what users run: `specgate serve`, with Ray Serve and HAProxy in front."""

import asyncio
from pathlib import Path

import pytest
from support.conformance import MODEL, QUICK, model_at
from support.local import local_gateway

from lab.conform import API_CASES, SECURITY_CASES, CaseStatus, run
from lab.conform.lab import laboratory
from serve.launch import ports

pytestmark = pytest.mark.ray


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's, towards the engine
async def test_the_whole_gateway_behind_haproxy_passes_every_case(tmp_path: Path) -> None:
    async with laboratory("", None, MODEL, pace=QUICK) as lab:
        settings = model_at(lab.engine.url)
        with local_gateway(tmp_path, MODEL, ports.free_port(), settings=settings) as gateway:
            lab.url = gateway.url
            await asyncio.to_thread(gateway.until_ready)
            report = await run(lab, [case for cases in API_CASES.values() for case in cases] + [*SECURITY_CASES])
            gateway.process.terminate()
            await asyncio.to_thread(gateway.until_gone)
    assert {row.case.name: row.result.seen for row in report.rows if row.result.status is not CaseStatus.PASS} == {}
