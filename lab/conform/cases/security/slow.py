"""Clients that begin requests and do not end them."""

import json

from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab
from lab.conform.raw import connect, head


async def _beside(lab: Lab, beginning: bytes) -> CaseResult:
    """Opens connections that send the same beginning, then asks as another client."""
    writers = []
    try:
        for _ in range(lab.pace.held):
            _, writer = await connect(lab.url)
            writer.write(beginning)
            writers.append(writer)
        reply, _ = await lab.ask()
    finally:
        for writer in writers:
            writer.close()
    good = reply.status == 200 and reply.seconds < lab.pace.others_s
    return passed_if(good, f"beside {len(writers)} of them: {reply.summary()} in {reply.seconds:.2f} s")


async def heads(lab: Lab) -> CaseResult:
    return await _beside(lab, head(lab.url, lab.headers(), "x-odd: y")[:-4])


async def bodies(lab: Lab) -> CaseResult:
    body = json.dumps(lab.body(lab.trial())).encode()
    return await _beside(lab, head(lab.url, lab.headers(), f"content-length: {len(body)}") + body[:10])


_SOURCE = "Slowloris, CWE-400"

CASES = (
    Case("slow-heads", "Clients that never end their heads hinder nobody.", _SOURCE, heads),
    Case("slow-bodies", "Nor do clients that never end their bodies.", _SOURCE, bodies),
)
