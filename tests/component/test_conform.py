"""The cases of `specgate conform`: our own gateway passes all of them, and each of them can be failed."""

import asyncio
import re

import aiohttp
import pytest
from support.conformance import MODEL, QUICK, model_at
from support.misbehaving_gateway import misbehaving_gateway
from support.stack import listening
from support.tampering import TAMPERINGS, TamperedLab

from lab.conform import API_CASES, CASES, SECURITY_CASES, Case, CaseStatus, ConformanceReport, Pace, run, select
from lab.conform.apis import APIS
from lab.conform.apis.api import Api
from lab.conform.lab import laboratory
from serve.gateway.ingress import GatewayReplica

IMPATIENT = Pace(
    prefill_s=1.0, cancel_s=0.2, settle_s=20.0, timeout_s=60.0, poison=10, streams=4, others_s=0.3, held=150
)
TABLES = {**API_CASES, "security": SECURITY_CASES}
FRAMING = ("framing-lengths", "framing-codings", "framing-lines", "framing-chunks", "trailers", "pipelined")


def rows(report: ConformanceReport, *verdicts: CaseStatus) -> dict[str, str]:
    return {row.case.name: row.result.seen for row in report.rows if row.result.status in verdicts}


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's, towards the engine
@pytest.mark.parametrize("cases", TABLES.values(), ids=TABLES)
async def test_our_gateway_passes_every_case(cases: tuple[Case, ...]) -> None:
    async with laboratory("", None, MODEL, pace=QUICK) as lab:
        replica = GatewayReplica({"models": {MODEL: model_at(lab.engine.url)}}, [])
        async with listening(replica.app(), replica.hot) as front:
            lab.url = front.url
            report = await run(lab, cases)
    assert rows(report, CaseStatus.FAIL, CaseStatus.NOT_APPLICABLE) == {}


@pytest.mark.parametrize("table", [CASES, SECURITY_CASES], ids=["wire", "security"])
async def test_every_case_can_be_failed(table: tuple[Case, ...]) -> None:
    cases = [case for case in table if case.name not in ("smuggling", *FRAMING)]  # they take a wrong parser: below
    async with laboratory("", None, MODEL, pace=IMPATIENT) as lab, misbehaving_gateway(lab.engine.url) as lab.url:
        report = await run(lab, cases)
    assert rows(report, CaseStatus.PASS, CaseStatus.NOT_APPLICABLE) == {}


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
async def test_every_case_of_an_api_is_failed_by_a_gateway_that_is_wrong_in_one_place(api: Api) -> None:
    cases = {case.name.removeprefix(f"{api.name}-"): case for case in API_CASES[api.name]}
    assert cases.keys() == TAMPERINGS[api.name].keys()
    passed = {}
    async with laboratory("", None, MODEL, pace=QUICK) as sound:
        replica = GatewayReplica({"models": {MODEL: model_at(sound.engine.url)}}, [])
        async with listening(replica.app(), replica.hot) as front:
            for name, wrong in TAMPERINGS[api.name].items():
                lab = TamperedLab(front.url, None, MODEL, sound.engine, sound.session, QUICK, api.path, wrong)
                passed |= rows(await run(lab, [cases[name]]), CaseStatus.PASS, CaseStatus.NOT_APPLICABLE)
    assert passed == {}


async def test_a_gateway_that_reads_on_behind_a_body_fails_for_smuggling() -> None:
    """Whatever looks like a body is a request to it, the last one first, and twice."""
    async with laboratory("", None, MODEL) as lab, aiohttp.ClientSession() as session:

        async def read_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            bodies = re.findall(rb'\{"model".*?\]\}', await reader.read(2**16))
            for body in [*reversed(bodies), *bodies[:-1]]:
                async with session.post(f"{lab.engine.url}/v1/chat/completions", data=body) as response:
                    answer = await response.read()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer))
            writer.close()

        async with await asyncio.start_server(read_on, "127.0.0.1", 0) as server:
            lab.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            report = await run(lab, [*select(CASES, ["smuggling"]), *select(SECURITY_CASES, FRAMING)])
    assert rows(report, CaseStatus.PASS, CaseStatus.NOT_APPLICABLE) == {}
