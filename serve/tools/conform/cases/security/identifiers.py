"""Request ids that carry more than an id: into the engine's log, or into the head of the answer."""

import asyncio
import json

from serve.tools.conform.case import Case, CaseResult, passed_if
from serve.tools.conform.lab import Lab
from serve.tools.conform.raw import exchange, head

_MARK = "conform-odd"
_LONGEST = 256
_ODD = {
    "a line end": f"{_MARK}\nset-cookie: {_MARK}=1",
    "a carriage return": f"{_MARK}\rset-cookie: {_MARK}=1",
    "an encoded line end": f"{_MARK}%0d%0aset-cookie: {_MARK}=1",
    "a fold": f"{_MARK}\r\n set-cookie: {_MARK}=1",
    "a NUL": f"{_MARK}\0",
    "spaces": f"{_MARK} level=error msg=forged",
    "quotes and braces": f'{_MARK}"}}{{"level":"error"',
    "Latin-1": f"{_MARK}\xe9\x85",
    "an escape sequence": f"{_MARK}\x1b[2J",
}


async def _seen(lab: Lab, value: str) -> str:
    """Returns who got an id as it was sent, or the empty text."""
    trial = lab.trial()
    body = json.dumps(lab.body(trial)).encode()
    lines = f"content-length: {len(body)}\r\nx-request-id: {value}"
    answer = await exchange(lab.url, head(lab.url, lab.headers(), lines) + body)
    reached = [header for arrival in trial.arrivals for _, header in arrival.headers if _MARK in header]
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


_SOURCE = "Log injection, CWE-117, and response splitting, CWE-113"

CASES = (
    Case("id-injection", "An `x-request-id` of odd characters is replaced or refused.", _SOURCE, odd),
    Case("id-length", f"So is one of more than {_LONGEST} characters.", _SOURCE, long),
)
