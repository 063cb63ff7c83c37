"""Clients that make mistakes or attack: they get clear errors, and their requests reach no engine."""

import json
from urllib.parse import urlsplit

from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.client import Reply
from lab.conform.lab import Lab
from lab.conform.raw import exchange


def _unasked(lab: Lab, before: int) -> bool:
    return len(lab.engine.arrivals) == before


async def _refused(lab: Lab, body: object, statuses: tuple[int, ...]) -> tuple[Reply, bool]:
    before = len(lab.engine.arrivals)
    reply = await lab.send(body)
    return reply, reply.status in statuses and _unasked(lab, before)


async def malformed(lab: Lab) -> CaseResult:
    reply, good = await _refused(lab, b'{"model": "x", "messages": [', (400, 422))
    return passed_if(good, reply.summary())


async def empty(lab: Lab) -> CaseResult:
    reply, good = await _refused(lab, b"", (400, 422))
    return passed_if(good, reply.summary())


async def not_an_object(lab: Lab) -> CaseResult:
    reply, good = await _refused(lab, b'["model"]', (400, 422))
    return passed_if(good, reply.summary())


async def deep(lab: Lab) -> CaseResult:
    body = json.dumps(lab.body(lab.trial()))[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    reply = await lab.send(body.encode())
    refusal = await lab.settle() if reply.status == 0 else None
    good = reply.status == 200 or 400 <= reply.status < 500
    return passed_if(good and refusal is None, reply.summary())


async def error_shape(lab: Lab) -> CaseResult:
    reply = await lab.send(b"{")
    error = reply.error
    good = isinstance(error, dict) and isinstance(error.get("message"), str) and "type" in error
    kind = (reply.header("content-type") or "no content-type").split(";")[0]
    return passed_if(good and kind == "application/json", f"{kind}: {reply.body[:100].decode('utf-8', 'replace')}")


async def unknown_model(lab: Lab) -> CaseResult:
    trial = lab.trial()
    reply, good = await _refused(lab, {**lab.body(trial), "model": "conform-no-such-model"}, (404, 400))
    passed = "passed on to the engine; " if trial.arrivals else ""
    return passed_if(good, f"{passed}{reply.summary()}")


async def wrong_method(lab: Lab) -> CaseResult:
    reply = await lab.send(None, method="GET")
    return passed_if(reply.status in (404, 405), reply.summary())


async def unknown_path(lab: Lab) -> CaseResult:
    before = len(lab.engine.arrivals)
    reply = await lab.send(lab.body(lab.trial()), path="/v1/chat/no-such-thing")
    return passed_if(reply.status in (404, 405) and _unasked(lab, before), reply.summary())


async def headers_12k(lab: Lab) -> CaseResult:
    trial = lab.trial()
    reply = await lab.send(lab.body(trial), {f"x-baggage-{number}": "b" * 1000 for number in range(12)})
    return passed_if(reply.status == 200 and len(trial.arrivals) == 1, reply.summary())


async def headers_1m(lab: Lab) -> CaseResult:
    reply = await lab.send(lab.body(lab.trial()), {"x-baggage": "b" * 2**20})
    refusal = await lab.settle()
    broken = reply.status == 0 and "Timeout" not in reply.detail  # refused while the client still writes
    good = 400 <= reply.status < 500 or broken
    return passed_if(good and refusal is None, reply.summary())


async def smuggled(lab: Lab) -> CaseResult:
    """A second request behind the last chunk, and within Content-Length: RFC 9112 has the connection closed there."""
    outer, inner = lab.trial(), lab.trial()
    hidden = json.dumps(lab.body(inner)).encode()
    key = f"authorization: Bearer {lab.key}\r\n" if lab.key else ""
    host = urlsplit(lab.url)
    inside = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{key}content-type: application/json\r\n"
        f"content-length: {len(hidden)}\r\n\r\n"
    ).encode() + hidden
    first = json.dumps(lab.body(outer)).encode()
    chunks = f"{len(first):x}\r\n".encode() + first + b"\r\n0\r\n\r\n"
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host.netloc}\r\n{key}content-type: application/json\r\n"
        f"content-length: {len(chunks) + len(inside)}\r\ntransfer-encoding: chunked\r\n\r\n"
    ).encode()
    answer = await exchange(lab.url, head + chunks + inside)
    status = answer.split(b"\r\n", 1)[0].decode("latin-1") or "closed without an answer"
    reached = "reached" if inner.arrivals else "did not reach"
    return passed_if(not inner.arrivals, f"{status}; the hidden request {reached} the engine")


async def expect(lab: Lab) -> CaseResult:
    trial = lab.trial()
    reply = await lab.send(lab.body(trial), {"expect": "100-continue"})
    return passed_if(reply.status == 200 and len(trial.arrivals) == 1, f"{reply.summary()} after {reply.seconds:.2f} s")


CASES = (
    Case(
        "malformed-body",
        "A body that is no JSON is 400 or 422; no engine is asked.",
        "RFC 9110 section 15.5.1",
        malformed,
    ),
    Case("empty-body", "So is an empty body.", "RFC 9110 section 15.5.1", empty),
    Case("array-body", "So is a body that is JSON but no object.", "RFC 9110 section 15.5.1", not_an_object),
    Case(
        "deep-body",
        "100,000 nested arrays neither break the gateway nor make it answer 5xx.",
        "RFC 8259 section 9",
        deep,
    ),
    Case("error-shape", "Errors have OpenAI's JSON shape.", "OpenAI API; SDKs show `error.message`", error_shape),
    Case("unknown-model", "An unknown model is 404 (or 400); no engine is asked.", "OpenAI API", unknown_model),
    Case("wrong-method", "GET on the completion route is 405 (or 404).", "RFC 9110 section 15.5.6", wrong_method),
    Case("unknown-path", "An unknown path is 404; no engine is asked.", "RFC 9110 section 15.5.5", unknown_path),
    Case("headers-12kb", "12 kB of headers are served.", "Tracing baggage, long tokens", headers_12k),
    Case("headers-1mb", "A header of 1 MB is refused, and others are served on.", "RFC 6585 section 5", headers_1m),
    Case(
        "smuggling",
        "With Content-Length and Transfer-Encoding together, nothing hidden behind the body reaches an engine.",
        "RFC 9112 section 6.1",
        smuggled,
    ),
    Case(
        "expect",
        "`Expect: 100-continue` is answered, not ignored for seconds.",
        "RFC 9110 section 10.1.1; curl",
        expect,
    ),
)
