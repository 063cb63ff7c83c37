"""Engines that fail: the client must learn it in the words of its API."""

from lab.conform.apis.api import Api
from lab.conform.apis.turn import End
from lab.conform.case import CaseResult
from lab.conform.cases.apis.asking import BOTH, ApiCase, all_of, ask, send, sound
from lab.conform.lab import Lab
from lab.scripted.scripts import answering, call_frames, crash, dying, error, streaming, text_frames, whole
from serve.http1.sse import DONE, encode_frame

_OVERFLOW = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains 9000 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
)


async def dies(api: Api, lab: Lab) -> CaseResult:
    """Once a part of the answer has reached the client, the end of the stream is all that can tell it."""
    half = text_frames(["half ", "an "], finish=None)
    call = call_frames('{"city": "Köln"}')[:4]
    failure = encode_frame(error("EngineCore died", 500))
    scripts = {
        "in a text": dying(half),
        "in a call": dying([*half, *call]),
        "before the first word": dying([]),
        "without a finish": streaming(half),
        "without a finish, but [DONE]": streaming([*half, DONE]),
        "with an error in the stream": streaming([*half, failure, DONE]),
        "at once": crash,
        "in place of a stream": answering({}),
    }
    seen = {}
    for name, script in scripts.items():
        for way, tools in (("with tools", {"tools": api.tools}), ("without", {})):
            turn, _ = await ask(api, lab, script, stream=True, **tools)
            seen[f"{name}, {way}"] = (sound(turn, End.ERROR) and not turn.calls, turn.summary())
    return all_of(seen)


async def fails(api: Api, lab: Lab) -> CaseResult:
    """The engine's 500, a whole answer that holds none, and a reset."""
    scripts = {
        "HTTP 500": answering(error("CUDA error", 500), 500),
        "an empty object": answering({}),
        "no message": answering(whole({}) | {"choices": []}),
        "a reset": crash,
    }
    seen = {}
    for name, script in scripts.items():
        trial = lab.trial(script)
        reply = await send(api, lab, api.first(lab.model, f"{trial.mark} hello"))
        turn = api.read(reply)
        good = 500 <= reply.status < 600 and sound(turn, End.ERROR)
        seen[name] = (good, f"HTTP {reply.status}, {turn.summary()}")
    return all_of(seen)


async def refuses(api: Api, lab: Lab) -> CaseResult:
    words = "temperature must not be 3"
    said = {"error": {"message": words, "type": "BadRequestError", "param": None, "code": 400}}
    seen = {}
    for way, stream in BOTH.items():
        trial = lab.trial(answering(said, 400))
        reply = await send(api, lab, {**api.first(lab.model, f"{trial.mark} hello"), "stream": stream})
        turn = api.read(reply)
        good = reply.status == 400 and words in turn.message and not turn.faults and len(trial.arrivals) == 1
        seen[way] = (good, f"HTTP {reply.status} after {len(trial.arrivals)} tries, {turn.summary()}")
    return all_of(seen)


async def busy(api: Api, lab: Lab) -> CaseResult:
    seen = {}
    for way, stream in BOTH.items():
        trial = lab.trial(answering(error("busy", 429), 429, {"retry-after": "7"}))
        reply = await send(api, lab, {**api.first(lab.model, f"{trial.mark} hello"), "stream": stream})
        turn = api.read(reply)
        after = reply.header("retry-after")
        good = reply.status in (429, 503, 529) and after == "7" and sound(turn, End.ERROR)
        seen[way] = (good, f"HTTP {reply.status}, retry-after {after}, {turn.summary()}")
    return all_of(seen)


async def overflow(api: Api, lab: Lab) -> CaseResult:
    said = {"error": {"message": _OVERFLOW, "type": "BadRequestError", "param": "input_tokens", "code": 400}}
    seen = {}
    for way, stream in BOTH.items():
        turn, _ = await ask(api, lab, answering(said, 400), stream=stream)
        answered = f"{turn.code}: {turn.summary()}"
        seen[way] = (sound(turn, End.ERROR) and api.overflow(turn), answered)
    return all_of(seen)


CASES = (
    ApiCase("engine-dies", "A stream whose engine dies ends in the API's error and in nothing else.",
            "vLLM 40418; openai/codex 41340, 27677", dies),
    ApiCase("engine-fails", "An engine that fails before is 5xx in the API's shape.", "The API's reference", fails),
    ApiCase("engine-400", "An engine's 400 is one, with its message, and is not tried again.",
            "Agents show it and give up", refuses),
    ApiCase("engine-429", "Its 429 is 429, 503 or 529 in the API's shape, with `Retry-After`.",
            "RFC 6585 section 4; SDKs wait by it", busy),
    ApiCase("overflow", "A prompt that is too long is told in the words on which agents shorten it.",
            "Measured with coding agents", overflow),
)  # fmt: skip
