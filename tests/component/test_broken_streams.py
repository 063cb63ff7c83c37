"""Whatever an engine sends in place of the end of an answer, no API's client takes the answer for complete."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from support.engines import Engine, answering, chunk, frame, start, streaming
from support.guard_stack import config, post
from support.stack import Stack, listening, running

from serve.routing.remote_pool import RemotePool

HELLO: Any = [{"role": "user", "content": "hello"}]
SAID = frame(chunk({"role": "assistant", "content": "So"})) + frame(chunk({"content": " it"}))
STOP = frame(chunk({}, "stop"))
DONE = frame("[DONE]")
WORDS = "out of memory"
QUOTED = (WORDS, "insufficient_system_resource", "Bad Gateway")
OPEN = chunk({"content": " was"})


def beside(**members: Any) -> bytes:
    return frame({**OPEN, **members})


def in_choice(**members: Any) -> bytes:
    return frame({**OPEN, "choices": [{**OPEN["choices"][0], **members}]})


# What comes where the answer should go on; the engine then ends as if nothing had happened.
ERRORS: dict[str, bytes] = {
    "vLLM": frame({"error": {"message": WORDS, "type": "InternalServerError", "param": None, "code": 500}}),
    "an error of words alone": frame({"error": WORDS}),
    "an empty error": frame({"error": {}}),
    "a true error": frame({"error": True}),
    "a number": frame({"error": 500}),
    "a list of errors": frame({"error": [{"message": WORDS}]}),
    "errors": frame({"errors": [WORDS]}),
    "in capitals": frame({"ERROR": WORDS}),
    "old vLLM": frame({"object": "error", "message": WORDS, "type": "BadRequestError", "param": None, "code": 40303}),
    "Anthropic": frame({"type": "error", "error": {"type": "overloaded_error", "message": WORDS}}),
    "the type alone": frame({"type": "error", "id": "x"}),
    "a failed status": frame({"status": "failed", "id": "x"}),
    "behind an id": frame({"id": "x", "error": {"message": WORDS}}),
    "behind the model": frame({"id": "x", "object": "chat.completion.chunk", "model": "m", "error": WORDS}),
    "before choices": frame({"error": {"message": WORDS}, "choices": []}),
    "behind no choices": frame({"choices": [], "error": {"message": WORDS}}),
    "behind null choices": frame({"choices": None, "error": {"message": WORDS}}),
    "beside a choice": beside(error={"message": WORDS}),
    "words beside a choice": beside(error=WORDS),
    "a type beside a choice": beside(type="error"),
    "an object beside a choice": beside(object="error"),
    "within a choice": in_choice(error={"message": WORDS, "code": 502}),
    "words within a choice": in_choice(error=WORDS),
    "TGI": frame({"error_type": "generation", "error": WORDS}),
    "TGI's type alone": frame({"error_type": "overloaded"}),
    "a message of errors": frame({"error_message": WORDS}),
    "a code of errors": frame({"error_code": 336100, "error_msg": WORDS}),
    "code and message": frame({"code": 500, "message": WORDS}),
    "a code in words": frame({"code": "InternalError", "message": WORDS}),
    "a code as text": frame({"code": "503"}),
    "a message alone": frame({"message": WORDS}),
    "FastAPI": frame({"detail": WORDS}),
    "FastAPI's list": frame({"detail": [{"loc": ["body"], "msg": WORDS}]}),
    "Spring": frame({"timestamp": 1, "status": 500, "error": "Internal Server Error", "path": "/"}),
    "RFC 9457": frame({"type": "about:blank", "title": WORDS, "status": 503}),
    "a traceback": frame({"traceback": "Traceback (most recent call last)"}),
    "an exception": frame({"exception": WORDS}),
    "an event": b"event: error\n" + frame({"message": WORDS}),
    "an event with an error": b"event: error\n" + frame({"error": {"message": WORDS}}),
    "an event around a chunk": b"event: error\n" + frame(OPEN),
    "an event behind a chunk": frame(OPEN)[:-1] + b"event: error\n\n",
    "an event in capitals": b"event: ERROR\n" + frame({}),
    "an event without data": b"event: error\n\n",
    "an event of words": b"event: error\ndata: out of memory\n\n",
    "blanks in the brace": b'data: { "error": {"message": "out of memory"} }\n\n',
    "blanks before the brace": b'data:   {"error": {"message": "out of memory"}}\n\n',
    "blanks behind the colon": b'data: {"error":   {"message": "out of memory"}}\n\n',
    "a tab": b'data: {\t"error":\t{"message": "out of memory"}}\n\n',
    "no blank": b'data:{"error":{"message":"out of memory"}}\n\n',
    "over lines": b'data: {"error":\ndata: {"message": "out of memory"}}\n\n',
    "CR LF": b'data: {"error": "out of memory"}\r\n\r\n',
    "escaped": b'data: {"\\u0065rror": {"message": "out of memory"}}\n\n',
    "llama.cpp": b'error: {"code": 500, "message": "out of memory"}\n\n',
    "bare JSON": b'{"error": {"message": "out of memory"}}\n\n',
    "bare words": b"Internal Server Error\n\n",
    "words as data": b"data: Internal Server Error\n\n",
    "HTML": b"<html><body>502 Bad Gateway</body></html>\n\n",
    "HTML as data": b"data: <html><body>502 Bad Gateway</body></html>\n\n",
    "a byte order mark": b'\xef\xbb\xbfdata: {"error": {"message": "out of memory"}}\n\n',
    "a byte order mark in the data": b'data: \xef\xbb\xbf{"error": "out of memory"}\n\n',
    "a list": b'data: [{"error": "out of memory"}]\n\n',
    "a list of a chunk": frame([OPEN]),
    "a string": b'data: "out of memory"\n\n',
    "null": b"data: null\n\n",
    "half a chunk": frame(OPEN)[:40] + b"\n\n",
    "two chunks in one": frame(OPEN)[:-2] + frame(OPEN)[5:],
    "not UTF-8": b'data: {"id": "\xff\xfe", "error": "out of memory"}\n\n',
    "choices that are none": frame({"choices": "out of memory"}),
    "a choice that is none": frame({"choices": ["out of memory"]}),
    "given up": frame(chunk({}, "abort")),
    "an error as finish reason": frame(chunk({}, "error")),
    "an unknown finish reason": frame(chunk({}, "insufficient_system_resource")),
    "a finish reason that is no text": in_choice(finish_reason=7),
}
# What an engine sends behind the last piece of text, all of it: no error, and still no end.
ENDS: dict[str, bytes] = {
    "nothing": b"",
    "the end without a finish reason": DONE,
    "an empty finish reason": frame(chunk({}, "")) + DONE,
    "usage without a finish reason": frame({"choices": [], "usage": {"completion_tokens": 1}}) + DONE,
    "half of the last chunk": STOP[:-20],
    "another choice's finish reason": frame({"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}) + DONE,
    "the end before the finish reason": DONE + STOP,
}
USAGE = frame({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
# What comes where `[DONE]` should, after a finish reason.
NO_DONE: dict[str, bytes] = {
    "nothing": b"",
    "usage": USAGE,
    "half of the usage": USAGE[:-20],
    "usage without a blank line": USAGE.rstrip(),
    "usage in lines of CR": USAGE.replace(b"\n", b"\r"),
    "half of the end": b"data: [DON",
    "the end without a line": DONE.rstrip(),
    "an error": ERRORS["vLLM"],
    "words": ERRORS["bare words"],
}


class Shaped:
    """An engine that sends the bytes of the moment, in one write or in many."""

    def __init__(self) -> None:
        self.stream = b""
        self.cut = False
        self.size = 1 << 20
        self.app = Engine(self._answer)

    async def _answer(self, _: Engine, send: Any, __: bytes) -> None:
        await start(send, kind="text/event-stream", **({"content_length": "1000000"} if self.cut else {}))
        for at in range(0, len(self.stream), self.size):
            part = self.stream[at : at + self.size]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if self.cut:
            raise ConnectionResetError
        await send({"type": "http.response.body", "body": b"", "more_body": False})


Rig = tuple[Stack, Shaped, aiohttp.ClientSession]


@pytest.fixture(scope="module")
async def rig() -> AsyncIterator[Rig]:
    shaped = Shaped()
    apps = {("m", pool): shaped.app for pool in ("speculative", "standard")}
    async with running(config(), apps) as stack, aiohttp.ClientSession() as session:
        yield stack, shaped, session


TOOL: dict[str, Any] = {"name": "f", "description": "", "parameters": {"type": "object"}}
TOOLS: dict[str, Any] = {
    "chat": {"tools": [{"type": "function", "function": TOOL}]},
    "messages": {"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
    "responses": {"tools": [{"type": "function", **TOOL}]},
}


async def answers(rig: Rig, *, guarded: bool = False) -> dict[str, str]:
    """The streams that clients of each API get.

    Args:
        guarded: They ask with a tool, so that the guard judges the answers.
    """
    stack, _, session = rig
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"messages": HELLO}),
        "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 99}),
        "responses": ("/v1/responses", {"input": "hello"}),
    }
    if guarded:
        requests = {api: (path, {**body, **TOOLS[api]}) for api, (path, body) in requests.items()}
    found = {}
    for api, (path, body) in requests.items():
        async with session.post(stack.url + path, json={"model": "m", "stream": True, **body}) as response:
            found[api] = (await response.read()).decode(errors="replace")
    return found


ADDRESSES = ("0x7a95e299e750", "10.0.3.4", "172.18.0.9", "127.0.0.1", "192.168.1.7", ":8000")
TALKATIVE = (
    "object <X at 0x7a95e299e750>; cannot connect to host 10.0.3.4:8000 [('172.18.0.9', 80)], "
    "http://127.0.0.1:8000/v1, 192.168.1.7, of 7"
)


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("error", [{"error": {"message": TALKATIVE}}, {"error": TALKATIVE}, {"detail": TALKATIVE}])
async def test_an_engines_error_tells_no_address_of_the_cluster(
    rig: Rig, error: dict[str, Any], *, guarded: bool
) -> None:
    rig[1].stream = frame(OPEN) + frame(error)
    for stream in (await answers(rig, guarded=guarded)).values():
        assert not [address for address in ADDRESSES if address in stream]
        assert "of 7" in stream or guarded


def ended_badly(api: str, stream: str) -> bool:
    """Whether a client of an API takes the stream for broken, and gets its last frame in that API's own shape."""
    *_, last_frame = (each for each in stream.replace("\r\n", "\n").split("\n\n") if each)
    last = json.loads("".join(line[5:] for line in last_frame.splitlines() if line.startswith("data:")))
    if api == "chat":
        return "[DONE]" not in stream and isinstance(last["error"]["message"], str)
    if api == "messages":
        return "message_stop" not in stream and last["type"] == "error" and bool(last["error"]["message"])
    return "response.completed" not in stream and last["type"] in ("response.failed", "error")


@pytest.mark.parametrize("shape", ERRORS)
async def test_an_error_of_any_shape_is_one_for_every_client(rig: Rig, shape: str) -> None:
    _, engine, _ = rig
    engine.cut, engine.size = False, 1 << 20
    engine.stream = SAID + ERRORS[shape] + frame(chunk({"content": "."})) + STOP + DONE
    for api, stream in (await answers(rig)).items():
        assert ended_badly(api, stream), (api, stream)
        assert "So" in stream


def going_on() -> dict[str, Any]:
    """A configuration of pools whose streams go on elsewhere, and of a log that tells every fault of theirs."""
    settings = config(telemetry={"warnings_per_minute": 1000})
    for pool in settings["models"]["m"]["pools"].values():
        pool |= {"kind": "remote", "url": "http://192.0.2.1"}
    return settings


@pytest.mark.parametrize("said", [b"", SAID])
async def test_the_log_has_none_of_the_words_that_an_engine_ends_a_stream_with(
    said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Shaped()
    apps = {("m", pool): engine.app for pool in ("speculative", "standard")}
    worded = {shape: sent for shape, sent in ERRORS.items() if any(words in sent.decode("latin-1") for words in QUOTED)}
    async with running(going_on(), apps) as stack, aiohttp.ClientSession() as session:
        for shape, sent in worded.items():
            engine.stream = said + sent + STOP + DONE
            caplog.clear()
            await answers((stack, engine, session))
            logged = caplog.text + repr([vars(record) for record in caplog.records])
            assert [words for words in QUOTED if words in logged] == [], shape
            assert re.search("m/speculative: http.*: the engine's answer broke: engine_error", caplog.text), shape


async def test_the_log_has_none_of_the_words_that_an_engine_sends_in_place_of_a_whole_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    apps = {("m", pool): answering({"error": {"message": WORDS}}) for pool in ("speculative", "standard")}
    async with running(going_on(), apps) as stack:
        status, _, _ = await post(stack.url, {"model": "m", "messages": HELLO})
    assert status == 502
    assert WORDS not in caplog.text
    assert re.search("m/speculative: http.*: the engine's answer broke: engine_error", caplog.text)


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("settings", [config(), going_on()])
async def test_the_log_names_the_engine_whose_stream_broke(
    settings: dict[str, Any], guarded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Shaped(), Shaped()
    broken.stream, sound.stream = SAID, SAID + STOP + DONE
    async with listening(broken.app) as one, listening(sound.app) as other, aiohttp.ClientSession() as session:
        pools = {("m", pool): RemotePool(at, {}) for pool, at in (("speculative", one), ("standard", other))}
        async with running(settings, {}, pools) as stack:
            await answers((stack, broken, session), guarded=guarded)
    told = [record.getMessage() for record in caplog.records if "m/speculative: " in record.getMessage()]
    assert len(told) >= 3
    assert [text for text in told if f"m/speculative: {one.url}: " not in text] == []


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("size", [7, 1 << 20])
async def test_half_an_answer_is_one_for_every_client(rig: Rig, end: str, cut: bool, size: int) -> None:
    _, engine, _ = rig
    engine.stream, engine.cut, engine.size = SAID + ENDS[end], cut, size
    for api, stream in (await answers(rig)).items():
        assert ended_badly(api, stream), (api, stream)


@pytest.mark.parametrize("after", NO_DONE)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("size", [7, 1 << 20])
@pytest.mark.parametrize("guarded", [False, True])
async def test_an_answer_is_complete_with_its_finish_reason(
    rig: Rig, after: str, cut: bool, size: int, guarded: bool
) -> None:
    _, engine, _ = rig
    engine.stream, engine.cut, engine.size = SAID + STOP + NO_DONE[after], cut, size
    found = await answers(rig, guarded=guarded)
    assert found["chat"].endswith(DONE.decode())
    assert found["chat"].count("[DONE]") == 1
    assert "message_stop" in found["messages"]
    assert "response.completed" in found["responses"]
    assert not any("error" in stream.replace('"error":null', "") for stream in found.values())


@pytest.mark.parametrize("end", ENDS)
async def test_half_an_answer_is_none_under_the_guard_either(rig: Rig, end: str) -> None:
    _, engine, _ = rig
    engine.stream, engine.cut, engine.size = SAID + ENDS[end], False, 1 << 20
    for api, stream in (await answers(rig, guarded=True)).items():
        assert ended_badly(api, stream), (api, stream)


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "eos_token", "STOP"])
@pytest.mark.parametrize("odd", [b"", b": ping\n\n", b"event: message\n", b"id: 7\n", b"retry: 10\n\n", b"data:\n\n"])
async def test_a_complete_answer_stays_one(rig: Rig, reason: str, odd: bytes) -> None:
    _, engine, _ = rig
    engine.cut, engine.size = False, 1 << 20
    engine.stream = SAID + odd + frame(chunk({"content": '"error": "'})) + frame(chunk({}, reason)) + DONE
    found = await answers(rig)
    assert found["chat"] == engine.stream.decode()
    assert "message_stop" in found["messages"]
    assert "response.completed" in found["responses"] or "response.incomplete" in found["responses"]


TOO_LONG = "This model's maximum context length is 4096 tokens. However, your prompt contains 5000 input tokens."
REFUSAL = {"message": TOO_LONG, "type": "BadRequestError", "param": None, "code": 400}


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refusal_within_an_answer_is_one_by_its_status(streamed: bool, guarded: bool) -> None:
    engine, judged = streaming([frame({"error": REFUSAL}), DONE]) if streamed else answering({"error": REFUSAL}), []
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"model": "m", "messages": HELLO, "stream": streamed, **({"tools": [tool]} if guarded else {})}
    apps = {("m", pool): engine for pool in ("speculative", "standard")}
    async with running(config(), apps, sink=judged.append) as stack:
        status, headers, answer = await post(stack.url, body)
        assert (status, headers["content-type"]) == (400, "application/json")
        assert json.loads(answer) == {"error": REFUSAL}
        assert len(engine.requests) == 1  # no other pool would take it
        status, _, answer = await post(
            stack.url, {"model": "m", "max_tokens": 9, "messages": HELLO, "stream": streamed}, "/v1/messages"
        )
    assert status == 400
    assert json.loads(answer)["error"] == {
        "type": "invalid_request_error",
        "message": "prompt is too long: 5000 tokens > 4096 maximum",
    }
    assert judged == []  # it is nobody's fault


def texts(*choices: tuple[int, str, str | None]) -> bytes:
    """A chunk of a text completion, with choices of (index, text, finish reason)."""
    members = [{"index": index, "text": text, "logprobs": None, "finish_reason": why} for index, text, why in choices]
    return frame({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": members})


def deltas(*choices: tuple[int, str, str | None]) -> bytes:
    """A chunk of chat with the same."""
    members = [{"index": index, "delta": {"content": text}, "finish_reason": why} for index, text, why in choices]
    return frame({**OPEN, "choices": members})


SEVERAL: dict[str, tuple[str, dict[str, Any], Any]] = {
    "of a text": ("/v1/completions", {"prompt": "p", "n": 2}, texts),
    "of a chat": ("/v1/chat/completions", {"messages": HELLO, "n": 2}, deltas),
    "of two prompts": ("/v1/completions", {"prompt": ["p", "q"]}, texts),
    "of two prompts of ids": ("/v1/completions", {"prompt": [[1], [2]]}, texts),
    "unasked": ("/v1/completions", {"prompt": "p"}, texts),
}
STEPS: Any = [(0, "A", None), (1, "B", None), (0, "a", "stop"), (1, "b", "stop")]
LOST: dict[str, bytes | None] = {"the connection": None, "an error": ERRORS["vLLM"], "an early end": DONE}


class Scripted:
    """Engines of two pools behind a gateway whose streams go on elsewhere."""

    def __init__(self) -> None:
        self.engines = [Shaped(), Shaped()]
        self.url = ""

    async def ask(self, session: aiohttp.ClientSession, kind: str, *streams: tuple[list[Any], bytes | None]) -> str:
        """The stream that a client gets.

        Args:
            session: Of the client.
            kind: Of request, in `SEVERAL`.
            streams: Of each engine, what its choices say and how it ends; None for a lost connection.
        """
        path, body, chunk_of = SEVERAL[kind]
        for engine, (steps, end) in zip(self.engines, streams, strict=True):
            engine.stream = b"".join(chunk_of(*(step if isinstance(step, list) else [step])) for step in steps)
            engine.stream += end or b""
            engine.cut = end is None
        async with session.post(self.url + path, json={"model": "m", "stream": True, **body}) as response:
            return (await response.read()).decode()


@pytest.fixture(scope="module")
async def scripted() -> AsyncIterator[Scripted]:
    made = Scripted()
    apps = {("m", pool): each.app for pool, each in zip(("speculative", "standard"), made.engines, strict=True)}
    async with running(going_on(), apps) as stack:
        made.url = stack.url
        yield made


def said_of(stream: str) -> dict[int, str]:
    """What each choice of a stream says."""
    said: dict[int, str] = {}
    for line in stream.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
                said[choice["index"]] = said.get(choice["index"], "") + text
    return said


@pytest.mark.parametrize("kind", SEVERAL)
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("out", [1, 2, 3])
async def test_several_choices_of_which_some_are_incomplete_end_in_an_error(
    scripted: Scripted, kind: str, lost: str, out: int
) -> None:
    steps = STEPS[:3] if kind == "unasked" else [STEPS[0], STEPS[2], STEPS[1]][:out]
    if out == 2 and lost == "an early end":
        steps = STEPS[:2]  # or else the engine says that there is no other choice
    async with aiohttp.ClientSession() as session:
        stream = await scripted.ask(session, kind, (steps, LOST[lost]), (STEPS, DONE))
    assert ended_badly("chat", stream), stream
    assert said_of(stream) == {
        index: "".join(text for at, text, _ in steps if at == index) for index in {at for at, _, _ in steps}
    }


@pytest.mark.parametrize("kind", [kind for kind in SEVERAL if kind != "unasked"])
@pytest.mark.parametrize("steps", [STEPS, [STEPS[:2], STEPS[2:]]], ids=["one a chunk", "both in a chunk"])
async def test_several_choices_of_which_none_has_begun_come_from_another_engine_all_of_them(
    scripted: Scripted, kind: str, steps: Any
) -> None:
    async with aiohttp.ClientSession() as session:
        whole = await scripted.ask(session, kind, ([], None), (steps, DONE))
        broken = await scripted.ask(session, kind, ([], None), (steps[:-1], None))
    assert said_of(whole) == {0: "Aa", 1: "Bb"}
    assert whole.endswith(DONE.decode())
    assert whole.count("[DONE]") == 1
    assert ended_badly("chat", broken), broken


ROLE = frame(chunk({"role": "assistant", "content": ""}))


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("begun", [b"", ROLE], ids=["nothing", "role"])
async def test_a_stream_that_begins_again_has_its_role_once(scripted: Scripted, lost: str, begun: bytes) -> None:
    first, second = scripted.engines
    first.stream, first.cut = b": ping\n\n" + begun + (LOST[lost] or b""), LOST[lost] is None
    second.stream, second.cut = ROLE + frame(OPEN) + STOP + DONE, False
    body = {"model": "m", "messages": HELLO, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(scripted.url + "/v1/chat/completions", json=body) as response,
    ):
        stream = (await response.read()).decode()
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in stream.splitlines() if line.startswith("data: {")]
    assert ["role" in delta for delta in deltas] == [True] + [False] * (len(deltas) - 1)
    assert stream.endswith(DONE.decode())
