"""Engines that fail before or during the answer: the client must learn about it."""

import asyncio
import json
import time

from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.client import Reply
from lab.conform.lab import Lab
from lab.scripted.arrival import Arrival, Script
from lab.scripted.scripts import (
    TOOLS,
    answering,
    call_completion,
    call_frames,
    crash,
    dying,
    error,
    streaming,
    text_frames,
    whole,
)
from serve.http1.sse import DONE, encode_frame

_TRIES = 3
_BUDGET = "Site Reliability Engineering (Google), chapter 21: at most three attempts a request"
_CUT = '{"city": "Köl'


async def _tries(lab: Lab, script: Script, statuses: range | tuple[int, ...]) -> CaseResult:
    reply, trial = await lab.ask(script)
    tries = len(trial.arrivals)
    good = reply.status in statuses and tries <= _TRIES
    return passed_if(good, f"{reply.summary()} after {tries} tries, {reply.seconds:.1f} s")


async def engine_500(lab: Lab) -> CaseResult:
    return await _tries(lab, answering(error("CUDA error", 500), 500), range(500, 600))


async def engine_503(lab: Lab) -> CaseResult:
    return await _tries(lab, answering(error("loading", 503), 503), (429, *range(500, 600)))


async def engine_429(lab: Lab) -> CaseResult:
    return await _tries(lab, answering(error("busy", 429), 429), (429, 503))


async def engine_reset(lab: Lab) -> CaseResult:
    return await _tries(lab, crash, (500, 502, 503, 504))


async def engine_garbage(lab: Lab) -> CaseResult:
    async def script(arrival: Arrival) -> None:
        await arrival.raw(b"\x15\x03\x01 this is no HTTP\r\n\r\n")
        await asyncio.sleep(0.2)
        await arrival.crash()

    return await _tries(lab, script, (500, 502, 503, 504))


async def engine_400(lab: Lab) -> CaseResult:
    said = {"error": {"message": "max_tokens is too large", "type": "BadRequestError", "param": None, "code": 400}}
    reply, trial = await lab.ask(answering(said, 400))
    tries = len(trial.arrivals)
    answered = isinstance(reply.error, dict) and "max_tokens is too large" in str(reply.error.get("message"))
    return passed_if(reply.status == 400 and answered and tries == 1, f"{reply.summary()} after {tries} tries")


async def _retry_after(lab: Lab, status: int) -> CaseResult:
    reply, _ = await lab.ask(answering(error("busy", status), status, {"retry-after": "7"}))
    got = reply.header("retry-after")
    return passed_if(got == "7", f"HTTP {reply.status}, retry-after {got}")


async def retry_after_429(lab: Lab) -> CaseResult:
    return await _retry_after(lab, 429)


async def retry_after_503(lab: Lab) -> CaseResult:
    return await _retry_after(lab, 503)


async def one_failure(lab: Lab) -> CaseResult:
    """The engine fails once, then works."""
    failed: list[Arrival] = []

    async def script(arrival: Arrival) -> None:
        if not failed:
            failed.append(arrival)
            await arrival.crash()
        await arrival.json(whole({"content": "hello"}))

    reply, trial = await lab.ask(script)
    return passed_if(reply.text == "hello", f"{reply.summary()} after {len(trial.arrivals)} tries")


def _told_as_failed(reply: Reply) -> CaseResult:
    end = f", {'with' if reply.done else 'no'} [DONE]" if reply.status == 200 else ""
    return passed_if(reply.failed, f"{reply.summary()}{end}" if reply.failed else f"a clean end of HTTP 200{end}")


async def whole_cut(lab: Lab) -> CaseResult:
    async def script(arrival: Arrival) -> None:
        body = json.dumps(whole({"content": "hello"})).encode()
        await arrival.begin({"content-type": "application/json", "content-length": str(len(body))})
        await arrival.write(body[:60])
        await asyncio.sleep(0.1)
        await arrival.crash()

    return _told_as_failed((await lab.ask(script))[0])


_broken_stream = dying(text_frames(["half "], finish=None))


async def stream_dies(lab: Lab) -> CaseResult:
    return _told_as_failed((await lab.ask(_broken_stream, stream=True))[0])


async def stream_error_frame(lab: Lab) -> CaseResult:
    reply, _ = await lab.ask(_broken_stream, stream=True)
    return passed_if(reply.status == 200 and reply.complete and reply.error is not None, reply.summary())


async def stream_dies_in_head(lab: Lab) -> CaseResult:
    """The head of a stream, then nothing: no word has reached the client, so a proper status still can."""
    return _told_as_failed((await lab.ask(dying([]), stream=True))[0])


async def stream_stops(lab: Lab) -> CaseResult:
    return _told_as_failed((await lab.ask(streaming(text_frames(["half "], finish=None)), stream=True))[0])


async def engine_error_frame(lab: Lab) -> CaseResult:
    pieces = [*text_frames(["half "], finish=None), encode_frame(error("EngineCore died", 500)), DONE]
    reply, _ = await lab.ask(streaming(pieces), stream=True)
    return passed_if(reply.error is not None, reply.summary() if reply.error else "the error frame is lost")


def _not_taken_for_good(reply: Reply) -> CaseResult:
    if reply.failed:
        return passed_if(True, reply.summary())
    finishes = ", ".join(str(each["finish_reason"]) for each in reply.choices() if each.get("finish_reason"))
    return passed_if(False, f"HTTP 200, finish_reason {finishes}, arguments {reply.call[1]!r}, no sign of an error")


async def cut_call_whole(lab: Lab) -> CaseResult:
    return _not_taken_for_good((await lab.ask(answering(call_completion(_CUT)), tools=TOOLS))[0])


async def cut_call_stream(lab: Lab) -> CaseResult:
    script = streaming([*call_frames(_CUT), DONE])
    return _not_taken_for_good((await lab.ask(script, stream=True, tools=TOOLS))[0])


async def restart(lab: Lab) -> CaseResult:
    """The engine's process dies and comes back on its port."""
    await lab.engine.hang_up()
    down, _ = await lab.ask()
    await asyncio.sleep(1)
    await lab.engine.listen()
    back = time.monotonic()
    refusal = await lab.settle()
    waited = time.monotonic() - back
    good = down.status in (500, 502, 503, 504) and refusal is None and waited <= 30
    seen = f"down: {down.summary()}; " + (
        f"still refuses: {refusal}" if refusal else f"served {waited:.1f} s after its return"
    )
    return passed_if(good, seen)


CASES = (
    Case("engine-500", "An engine's 500 is an error for the client after at most 3 tries.", _BUDGET, engine_500),
    Case("engine-503", "So is its 503.", _BUDGET, engine_503),
    Case("engine-429", "Its 429 reaches the client as 429 (or 503) after at most 3 tries.", _BUDGET, engine_429),
    Case(
        "engine-reset",
        "A connection that breaks before the answer is a 5xx after at most 3 tries.",
        _BUDGET,
        engine_reset,
    ),
    Case("engine-garbage", "So is an answer that is no HTTP.", _BUDGET, engine_garbage),
    Case(
        "engine-400", "An engine's 400 reaches the client with its message and is not tried again.", _BUDGET, engine_400
    ),
    Case(
        "retry-after-429",
        "The `Retry-After` of a 429 reaches the client.",
        "RFC 6585 section 4; SDKs wait by it",
        retry_after_429,
    ),
    Case(
        "retry-after-503", "The `Retry-After` of a 503 reaches the client.", "RFC 9110 section 10.2.3", retry_after_503
    ),
    Case(
        "one-failure",
        "A failure before the first byte that does not repeat is hidden from the client.",
        _BUDGET,
        one_failure,
    ),
    Case("whole-cut", "A whole answer that breaks off is no clean 200.", "RFC 9112 section 8", whole_cut),
    Case(
        "stream-dies",
        "A stream whose engine dies has no clean end.",
        "Silent truncation: an agent acts on half an answer",
        stream_dies,
    ),
    Case(
        "stream-error",
        "It ends with an error frame that SDKs raise.",
        "OpenAI's SDKs raise on `error` in a chunk",
        stream_error_frame,
    ),
    Case("stream-head", "A stream that dies before its first frame has no clean end.", "As above", stream_dies_in_head),
    Case("stream-stops", "A stream that just stops, without a finish, has no clean end.", "As above", stream_stops),
    Case(
        "engine-error-frame",
        "An error frame of the engine reaches the client.",
        "vLLM sends one when its engine dies",
        engine_error_frame,
    ),
    Case(
        "cut-call",
        "A tool call with cut-off arguments is not passed on as a good one.",
        "vLLM issues 40875, 41739",
        cut_call_whole,
    ),
    Case("cut-call-stream", "The same in a stream.", "vLLM issues 40875, 56077", cut_call_stream),
    Case("restart", "An engine that was away is a 5xx; back, it is used within 30 s.", "Rolling updates", restart),
)
