"""Answers of an engine that is broken, or not ours: without end, or of another shape."""

import asyncio

from lab.attacks.shapes import SHAPES
from lab.conform.bystander import slowest_meanwhile
from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab
from lab.scripted.arrival import STREAM_HEADERS, Arrival, chunked
from lab.scripted.scripts import TOOLS, answering, chunk, streaming, text_frames, whole
from serve.http1.sse import DONE, encode_frame

OBEYED = (
    ("clear-site-data", '"*"'), ("refresh", "0;url=http://192.0.2.1/"), ("location", "http://192.0.2.1/"),
    ("access-control-allow-origin", "*"), ("strict-transport-security", "max-age=31536000"), ("alt-svc", 'h2=":1"'),
    ("x-accel-redirect", "/etc/passwd"), ("x-sendfile", "/etc/passwd"), ("content-security-policy", "default-src *"),
    ("link", "<http://192.0.2.1/>; rel=preload"), ("report-to", "{}"), ("www-authenticate", "Basic"),
    ("x-middleware-rewrite", "http://192.0.2.1/"), ("x-http-method-override", "DELETE"), ("openai-organization", "org"),
)  # fmt: skip
_LINE_PIECES = 50  # of a megabyte
_TRAILER_LINES = 200  # of 64 kB
_HELLO = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}'


async def line(lab: Lab) -> CaseResult:
    async def script(arrival: Arrival) -> None:
        await arrival.begin()
        await arrival.write(text_frames([], finish=None)[0])
        await arrival.write(b'data: {"choices":[{"index":0,"delta":{"content":"')
        for _piece in range(_LINE_PIECES):
            await arrival.write(b"x" * 2**20)
            await asyncio.sleep(0)
        await arrival.write(b'"}}]}\n\n' + text_frames([])[-1] + DONE)

    (reply, _), slowest = await slowest_meanwhile(lab, lab.ask(script, stream=True, tools=TOOLS))
    whole_line = len(reply.body) >= _LINE_PIECES * 2**20
    good = slowest < lab.pace.others_s and (reply.failed or whole_line)
    return passed_if(good, f"{reply.summary()}; {'' if whole_line else 'not '}whole; others waited {slowest:.2f} s")


async def trailer(lab: Lab) -> CaseResult:
    """A trailer that ends only because the case must."""

    async def script(arrival: Arrival) -> None:
        start = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntrailer: x-odd\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        await arrival.raw(start + chunked(_HELLO) + b"0\r\n")
        for number in range(_TRAILER_LINES):
            await arrival.raw(b"x-odd-%d: " % number + b"y" * 2**16 + b"\r\n")
            await asyncio.sleep(0.002)
        await arrival.crash()

    (reply, trial), slowest = await slowest_meanwhile(lab, lab.ask(script, tools=TOOLS))
    sent = trial.arrivals[0].sent if trial.arrivals else 0
    good = slowest < lab.pace.others_s and (reply.failed or reply.text == "hello")
    return passed_if(good, f"{reply.summary()} after {sent / 2**20:.1f} MB; others waited {slowest:.2f} s")


async def odd(lab: Lab) -> CaseResult:
    wrong = []
    for name, shape in SHAPES.items():
        body = {**shape, "model": lab.model} if isinstance(shape, dict) else shape
        reply, _ = await lab.ask(answering(body), tools=TOOLS)
        same = reply.status == 200 and reply.json() == body
        explained = reply.status >= 502 and isinstance(reply.error, dict)
        mended = reply.status == 200 and isinstance(reply.json(), dict) and not reply.failed and bool(reply.choices())
        if not (same or explained or mended):
            wrong.append(f"{name}: {reply.summary()}")
    return passed_if(not wrong, "; ".join(wrong) if wrong else f"{len(SHAPES)} shapes are passed on or explained")


async def headers(lab: Lab) -> CaseResult:
    passed = []
    for stream in (False, True):

        async def script(arrival: Arrival, stream: bool = stream) -> None:
            if not stream:
                await arrival.json(whole({"content": "hello"}), 200, dict(OBEYED))
                return
            await arrival.begin({**STREAM_HEADERS, **dict(OBEYED)})
            for frame in [*text_frames(["hello"]), DONE]:
                await arrival.write(frame)

        reply, _ = await lab.ask(script, **({"stream": True} if stream else {}))
        passed += [name for name, _ in OBEYED if reply.header(name) is not None]
    told = f"passed on: {', '.join(sorted(set(passed)))}" if passed else f"none of {len(OBEYED)} passed on"
    return passed_if(not passed, told)


async def status(lab: Lab) -> CaseResult:
    wrong = []
    for code in (99, 600, 799, 999):
        reply, _ = await lab.ask(answering(whole({"content": "hello"}), code))
        if not (500 <= reply.status <= 599 and isinstance(reply.error, dict)):
            wrong.append(f"{code}: {reply.summary()}")
    return passed_if(not wrong, "; ".join(wrong) if wrong else "all are errors of the gateway")


_LATE = [chunk({"content": "late"}), {**chunk({}), "choices": [{"index": 0, "message": {"content": "late"}}]}]
_LATE_CALL = chunk({"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "look_up", "arguments": "{}"}}]})


async def late(lab: Lab) -> CaseResult:
    """Late text behind the finish reason and behind `[DONE]`; then a late call, to a client with tools."""
    answer, wrong = text_frames(["hello"]), []
    texts = list(map(encode_frame, _LATE))
    for where, frames in {"finish reason": [*answer, *texts, DONE], "[DONE]": [*answer, DONE, *texts]}.items():
        reply, _ = await lab.ask(streaming(frames), stream=True)
        if "late" in reply.body.decode(errors="replace"):
            wrong.append(f"text behind the {where} reaches the client")
        elif not reply.done and reply.error is None:
            wrong.append(f"a stream with text behind the {where} ends with neither [DONE] nor an error")
    reply, _ = await lab.ask(streaming([*answer, encode_frame(_LATE_CALL), DONE]), stream=True, tools=TOOLS)
    if not reply.failed and not reply.call[0]:
        wrong.append("a late call is lost, and the stream ends as complete")
    return passed_if(not wrong, "; ".join(wrong) if wrong else "clients that stop there and those that read on agree")


CASES = (
    Case("answer-line", "A line of 50 MB in a stream holds nobody else up; it arrives whole or is an error.",
         "CWE-770", line),
    Case("answer-trailer", "Nor does a trailer of the engine that does not end.", "CWE-770", trailer),
    Case("answer-shapes", "Whole answers of odd shapes are passed on or are 502 or more with an error; never a 500.",
         "OpenAI API; engines change", odd),
    Case("answer-headers", "Headers of an engine that browsers and proxies obey do not reach the client.",
         "They would clear a site's data, lead elsewhere, or read a proxy's files", headers),
    Case("answer-status", "An engine's status that HTTP does not know is an error of the gateway.",
         "RFC 9110 section 15", status),
    Case("answer-late", "What an engine says after the finish reason or `[DONE]` is nobody's; a call is not lost so.",
         "OpenAI API; engines run past the end", late),
)  # fmt: skip
