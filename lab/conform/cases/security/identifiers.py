"""Request ids that carry more than an id: into the engine's log, or into the head of the answer."""

import asyncio
import json

from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab
from lab.conform.raw import exchange, head

_MARK = "conform-odd"
_LONGEST = 256
# The mark stands behind what is odd: an id that is cut before it does no harm.
_ODD = {
    "a line end": f"id\nset-cookie: id={_MARK}",
    "a carriage return": f"id\rset-cookie: id={_MARK}",
    "an encoded line end": f"id%0d%0aset-cookie: id={_MARK}",
    "a fold": f"id\r\n set-cookie: id={_MARK}",
    "a NUL": f"id\0{_MARK}",
    "spaces": f"id level=error msg={_MARK}",
    "quotes and braces": f'id"}}{{"level":"{_MARK}"',
    "Latin-1": f"id\xe9\x85{_MARK}",
    "an escape sequence": f"id\x1b[2J{_MARK}",
}


async def _seen(lab: Lab, value: str) -> str:
    """Returns who got an id as it was sent, or the empty text."""
    trial = lab.trial()
    body = json.dumps(lab.body(trial)).encode()
    lines = f"content-length: {len(body)}\r\nx-request-id: {value}"
    answer = await exchange(lab.url, head(lab.url, lab.headers(), lines) + body)
    # RFC 9112 section 2.2 lets a reader end lines at a bare LF: what follows is then a header of the client's own.
    reached = any(
        _MARK in header and name != "set-cookie" for arrival in trial.arrivals for name, header in arrival.headers
    )
    start = answer.partition(b"\r\n\r\n")[0].decode("latin-1")
    return " and ".join([*(["the engine"] if reached else []), *(["the client"] if _MARK in start else [])])


async def odd(lab: Lab) -> CaseResult:
    seen = await asyncio.gather(*(_seen(lab, value) for value in _ODD.values()))
    wrong = [f"{name} ({who})" for name, who in zip(_ODD, seen, strict=True) if who]
    return passed_if(not wrong, f"passed on: {', '.join(wrong)}" if wrong else f"none of {len(_ODD)} passed on")


async def long(lab: Lab) -> CaseResult:
    trial = lab.trial()
    reply = await lab.send(lab.body(trial), {"x-request-id": "7" * 4_000})
    longest = max(
        (len(value) for headers in (reply.headers, *(arrival.headers for arrival in trial.arrivals))
         for name, value in headers if name == "x-request-id"), default=0,
    )  # fmt: skip
    return passed_if(longest <= _LONGEST, f"the longest id passed on has {longest} characters")


async def reuse(lab: Lab) -> CaseResult:
    trials = [lab.trial(), lab.trial()]
    sent = {"x-request-id": "conform-id"}
    replies = await asyncio.gather(*(lab.send(lab.body(trial), sent) for trial in trials))
    ids = [arrival.header("x-request-id") for trial in trials for arrival in trial.arrivals]
    if len(ids) < len(trials):
        return passed_if(False, f"nothing reached the engine; {replies[0].summary()}")
    named = [each for each in ids if each is not None]  # an engine names by itself what comes without an id
    return passed_if(len(set(named)) == len(named), f"the engine got {ids}")


_SOURCE = "Log injection, CWE-117, and response splitting, CWE-113"

CASES = (
    Case("id-injection", "An `x-request-id` of odd characters is replaced or refused.", _SOURCE, odd),
    Case("id-length", f"So is one of more than {_LONGEST} characters.", _SOURCE, long),
    Case(
        "id-reuse",
        "Two requests of one `x-request-id` do not reach the engine under one id.",
        "CVE-2026-105755: vLLM before 0.30 mixes up requests that share an id",
        reuse,
    ),
)
