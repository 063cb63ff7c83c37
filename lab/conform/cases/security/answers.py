"""Answers of an engine that is broken, or not ours: without end, or of another shape."""

import asyncio
from typing import Any

from aiohttp import web

from lab.conform.arrival import Arrival
from lab.conform.bystander import slowest_meanwhile
from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab
from lab.conform.scripts import TOOLS, answering, begin, text_frames, whole
from serve.http1.sse import DONE

_LINE_PIECES = 50  # of a megabyte
_TRAILER_LINES = 200  # of 64 kB
_HELLO = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}]}'
_CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}


def _odd(message: Any) -> dict[str, Any]:
    return {**whole({}), "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


_ODD: dict[str, Any] = {
    "no index": {**whole({}), "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]},
    "content in parts": _odd({"role": "assistant", "content": [{"type": "text", "text": "hello"}]}),
    "a message that is text": _odd("hello"),
    "a message that is null": _odd(None),
    "calls that are text": _odd({"role": "assistant", "tool_calls": "look_up"}),
    "a call that is text": _odd({"role": "assistant", "tool_calls": ["look_up"]}),
    "calls that are an object": _odd({"role": "assistant", "tool_calls": _CALL}),
    "a call without a function": _odd({"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function"}]}),
    "choices that are an object": {**whole({}), "choices": {"0": {}}},
    "choices that hold text": {**whole({}), "choices": ["hello"]},
    "null": None,
    "a list": [whole({"content": "hello"})],
    "a number": 7,
}


async def line(lab: Lab) -> CaseResult:
    async def script(request: web.Request, _: Arrival) -> web.StreamResponse:
        response = await begin(request)
        await response.write(text_frames([], finish=None)[0])
        await response.write(b'data: {"choices":[{"index":0,"delta":{"content":"')
        for _piece in range(_LINE_PIECES):
            await response.write(b"x" * 2**20)
            await asyncio.sleep(0)
        await response.write(b'"}}]}\n\n' + text_frames([])[-1] + DONE)
        return response

    (reply, _), slowest = await slowest_meanwhile(lab, lab.ask(script, stream=True, tools=TOOLS))
    whole_line = len(reply.body) >= _LINE_PIECES * 2**20
    good = slowest < lab.pace.others_s and (reply.failed or whole_line)
    return passed_if(good, f"{reply.summary()}; {'' if whole_line else 'not '}whole; others waited {slowest:.2f} s")


async def trailer(lab: Lab) -> CaseResult:
    """A trailer that ends only because the case must."""

    async def script(request: web.Request, arrival: Arrival) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        start = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntrailer: x-odd\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        transport.write(start + b"%x\r\n%b\r\n0\r\n" % (len(_HELLO), _HELLO))
        for number in range(_TRAILER_LINES):
            if transport.is_closing():
                break
            transport.write(b"x-odd-%d: " % number + b"y" * 2**16 + b"\r\n")
            arrival.sent += 2**16
            await asyncio.sleep(0.002)
        transport.abort()
        await asyncio.Event().wait()  # until cancelled: the response has been written already
        raise AssertionError

    (reply, trial), slowest = await slowest_meanwhile(lab, lab.ask(script, tools=TOOLS))
    sent = trial.arrivals[0].sent if trial.arrivals else 0
    good = slowest < lab.pace.others_s and (reply.failed or reply.text == "hello")
    return passed_if(good, f"{reply.summary()} after {sent / 2**20:.1f} MB; others waited {slowest:.2f} s")


async def odd(lab: Lab) -> CaseResult:
    wrong = []
    for name, body in _ODD.items():
        reply, _ = await lab.ask(answering(body), tools=TOOLS)
        same = reply.status == 200 and reply.json() == body
        explained = reply.status >= 502 and isinstance(reply.error, dict)
        mended = reply.status == 200 and isinstance(reply.json(), dict) and not reply.failed and bool(reply.choices())
        if not (same or explained or mended):
            wrong.append(f"{name}: {reply.summary()}")
    return passed_if(not wrong, "; ".join(wrong) if wrong else f"{len(_ODD)} shapes are passed on or explained")


CASES = (
    Case("answer-line", "A line of 50 MB in a stream holds nobody else up; it arrives whole or is an error.",
         "CWE-770", line),
    Case("answer-trailer", "Nor does a trailer of the engine that does not end.", "CWE-770", trailer),
    Case("answer-shapes", "Whole answers of odd shapes are passed on or are 502 or more with an error; never a 500.",
         "OpenAI API; engines change", odd),
)  # fmt: skip
