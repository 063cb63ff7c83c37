"""Whatever fails inside the guard: the answer passes or is an explicit error, as configured, and is never `clean`."""

import asyncio
import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import FrameType, FunctionType
from typing import Any

import pytest
from support.engines import Engine, answering, chunk, frame, streaming
from support.guard_harness import TOOLS
from support.guard_stack import chunks_in, config, post
from support.stack import Stack, running

from serve.guard.core import Outcome, schema

DONE = b"data: [DONE]\n\n"
HELLO = [{"role": "user", "content": "hello"}]
WITH_TOOLS = {"model": "m", "messages": HELLO, "tools": TOOLS, "tool_choice": "required"}
WITH_DOCUMENT = {"model": "m", "messages": HELLO, "response_format": {"type": "json_object"}}
ARGUMENTS = '{"city": "Oslo", "days": 2}'
LEAK = f'<tool_call>{{"name": "get_weather", "arguments": {ARGUMENTS}}}</tool_call>'
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def entry(arguments: str = ARGUMENTS, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}, **more}


def stream_of(*deltas: dict[str, Any], reason: str) -> list[bytes]:
    last = {**chunk({}, reason), "usage": USAGE}
    return [*(frame(chunk(delta)) for delta in deltas), frame(last), DONE]


def whole_of(message: dict[str, Any], reason: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}


CALL_DELTAS = [
    {"tool_calls": [entry("", index=0)]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ARGUMENTS}}]},
]
PROSE = [{"role": "assistant", "content": ""}, {"content": "It "}, {"content": "is <b>"}, {"content": " sunny"}]
KINDS: dict[str, tuple[dict[str, Any], Any]] = {
    "streamed call": (WITH_TOOLS, stream_of(*CALL_DELTAS, reason="tool_calls")),
    "streamed live call": (
        WITH_TOOLS,
        stream_of(
            {"tool_calls": [entry("", index=0)]},
            *({"tool_calls": [{"index": 0, "function": {"arguments": each}}]} for each in ARGUMENTS),
            reason="tool_calls",
        ),
    ),
    "streamed leak": (WITH_TOOLS, stream_of({"content": LEAK}, reason="stop")),
    "streamed prose": (WITH_TOOLS | {"tool_choice": "auto"}, stream_of(*PROSE, reason="stop")),
    "streamed document": (WITH_DOCUMENT, stream_of({"content": '{"a"'}, {"content": ": 1}"}, reason="stop")),
    "whole call": (WITH_TOOLS, whole_of({"content": None, "tool_calls": [entry()]}, "tool_calls")),
    "whole document": (WITH_DOCUMENT, whole_of({"content": '{"a": 1}'}, "stop")),
}


def core_functions() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(owner, name, function) of all that the guard's core defines, methods and properties too."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("serve.guard.core."):
            continue
        for key, value in vars(module).items():
            if isinstance(value, FunctionType) and value.__module__ == name:
                yield module, key, value
            elif inspect.isclass(value) and value.__module__ == name:
                for attribute, member in vars(value).items():
                    function = getattr(member, "fget", None) or getattr(member, "func", None)
                    function = function or getattr(member, "__func__", member)
                    if isinstance(function, FunctionType) and function.__module__ == name and not function.__closure__:
                        yield value, attribute, function


class PanicError(BaseException):
    """Like pyo3's PanicException, which is no Exception."""


def raising(*_: Any, **__: Any) -> Any:
    RAISED.append(True)
    raise PanicError("injected")


RAISED: list[bool] = []


def inject(patched: pytest.MonkeyPatch, function: Any) -> list[bool]:
    """Lets a function raise; returns what notes each time. There may be none: what is read at once does not go live."""
    RAISED.clear()
    patched.setattr(function, "__code__", raising.__code__)
    patched.setitem(function.__globals__, "PanicError", PanicError)
    patched.setitem(function.__globals__, "RAISED", RAISED)
    return RAISED


async def crossing(
    url: str, body: Mapping[str, Any]
) -> tuple[tuple[int, dict[str, str], bytes], list[tuple[Any, str, Callable[..., Any]]]]:
    """Returns the answer to a request, and those of the core's functions that were called for it."""
    codes: set[Any] = set()

    def profile(caller: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(caller.f_code)

    sys.setprofile(profile)
    try:
        answer = await post(url, body)
    finally:
        sys.setprofile(None)
    crossed = [place for place in core_functions() if place[2].__code__ in codes]
    assert len(crossed) > 20
    return answer, crossed


def exchange(kinds: Mapping[str, tuple[dict[str, Any], Any]], kind: str) -> tuple[dict[str, Any], Engine]:
    """Returns a request, and the engine that answers it."""
    body, response = kinds[kind]
    streamed = kind.startswith("streamed")
    return {**body, "stream": streamed}, streaming(response) if streamed else answering(response)


async def faults(
    stack: Stack, body: Mapping[str, Any], crossed: list[Any], results: list[Any], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[str, Callable[..., Any], int, bytes]]:
    """Asks once for each function, which raises then; yields its place, itself, and the answer, where it was called."""
    for owner, name, function in crossed:
        results.clear()
        with monkeypatch.context() as patched:
            raised = inject(patched, function)
            status, _, answer = await asyncio.wait_for(post(stack.url, body), 10)
        if raised:
            yield f"{owner.__name__}.{name}", function, status, answer


# A fault while a schema is applied leaves it unjudged, which is refused here; a leaked call is not rescued then.
SCHEMA_UNREAD = {Outcome.UNJUDGED, Outcome.MARKER_LEAK}


@pytest.mark.parametrize("mode", ["heal", "observe"])
@pytest.mark.parametrize("kind", KINDS)
async def test_whichever_function_of_the_guard_raises_nobody_calls_the_answer_clean(
    kind: str, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body, engine = exchange(KINDS, kind)
    results: list[Any] = []
    monkeypatch.setattr(schema, "_CACHE_BYTES", 0)  # every request compiles its schemas
    pools = {("m", "speculative"): engine, ("m", "standard"): engine}
    refusing = {"mode": mode, "unjudged": "refuse", "arguments": "live" if "live" in kind else "held"}
    async with running(config("hermes", refusing), pools, sink=results.append) as stack:
        sound, crossed = await crossing(stack.url, body)
        assert results[-1].final in (Outcome.CLEAN, Outcome.RESCUED, Outcome.MARKER_LEAK)
        async for place, function, status, answer in faults(stack, body, crossed, results, monkeypatch):
            told = sum("failed: PanicError" in record.message for record in caplog.records)
            caplog.clear()
            if "core.schema" in function.__module__ and outcomes_of(results) & SCHEMA_UNREAD:
                assert results[-1].final in (Outcome.UNJUDGED, Outcome.MARKER_LEAK, Outcome.FAILED), place
                continue
            if mode == "observe":
                assert (status, answer) == (sound[0], sound[2]), place
            else:
                assert_explicit_error(body["stream"], status, answer, place, sound[2])
            assert [each.final for each in results] == [Outcome.GUARD_ERROR], place
            assert not results[0].verdict.counts, place
            assert told == 1, place


@pytest.mark.parametrize("kind", KINDS)
async def test_where_unjudged_answers_pass_a_fault_of_the_guard_costs_no_answer_and_no_rerun(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, engine = exchange(KINDS, kind)
    results: list[Any] = []
    monkeypatch.setattr(schema, "_CACHE_BYTES", 0)  # every request compiles its schemas
    pools = {("m", "speculative"): engine, ("m", "standard"): engine}
    passing = {"unjudged": "pass", "arguments": "live" if "live" in kind else "held"}
    async with running(config("hermes", passing), pools, sink=results.append) as stack:
        sound, crossed = await crossing(stack.url, body)
        response = KINDS[kind][1]
        raw = b"".join(response) if body["stream"] else None
        passed = 0
        async for place, function, status, answer in faults(stack, body, crossed, results, monkeypatch):
            if "core.schema" in function.__module__ and Outcome.UNJUDGED in outcomes_of(results):
                continue
            assert [each.final for each in results] == [Outcome.GUARD_ERROR], place
            assert not results[0].verdict.counts, place
            whole = (chunks_in(answer) == chunks_in(raw)) if raw else json.loads(answer) == response
            if whole or answer == sound[2]:
                passed += 1
            else:
                assert_explicit_error(body["stream"], status, answer, place, sound[2])
        assert passed > len(crossed) / 2, (passed, len(crossed))


def outcomes_of(results: list[Any]) -> set[Outcome]:
    return {defect.outcome for each in results for defect in each.verdict.defects}


def assert_explicit_error(streamed: bool, status: int, answer: bytes, place: str, sound: bytes) -> None:
    if streamed and status == 200 and answer == sound:
        return  # only the report failed: all was judged, and had gone out
    if streamed and status == 200:
        assert b"[DONE]" not in answer, place
        last = json.loads(answer.removesuffix(b"\n\n").rpartition(b"data: ")[2])
    else:
        assert answer == sound or status == 502, place
        last = json.loads(answer)
    assert answer == sound or last["error"]["code"] == "integrity_violation", place


HALF = ARGUMENTS[:12]
LOST: dict[str, tuple[dict[str, Any], Any]] = {
    "streamed, a broken call": (WITH_TOOLS, stream_of({"tool_calls": [entry(HALF, index=0)]}, reason="tool_calls")),
    "streamed, an error": (WITH_TOOLS, [frame(chunk(PROSE[1])), frame({"error": {"message": "died"}})]),
    "streamed, no end": (WITH_DOCUMENT, [frame(chunk({"content": "{"}))]),
    "streamed, no JSON": (WITH_TOOLS, [frame("{")]),
    "whole, a broken call": (WITH_TOOLS, whole_of({"content": None, "tool_calls": [entry(HALF)]}, "tool_calls")),
    "whole, no answer": (WITH_TOOLS, 7),
    "whole, another shape": (WITH_DOCUMENT, {"choices": "x"}),
}


@pytest.mark.parametrize("kind", LOST)
async def test_whichever_function_of_the_guard_raises_over_a_lost_answer_the_client_has_an_explicit_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, engine = exchange(LOST, kind)
    pools = {("m", "speculative"): engine, ("m", "standard"): engine}
    results: list[Any] = []
    async with running(config("hermes", {"unjudged": "refuse"}), pools, sink=results.append) as stack:
        lost, crossed = await crossing(stack.url, body)
        async for place, _, status, answer in faults(stack, body, crossed, results, monkeypatch):
            if (status, answer) != (lost[0], lost[2]):
                assert b"[DONE]" not in answer, place
                assert status == 502 or (body["stream"] and status == 200), place
                data = answer.removesuffix(b"\n\n").rpartition(b"data: ")[2]
                assert json.loads(data)["error"]["message"], place
            assert results, place
            assert Outcome.CLEAN not in {each.final for each in results}, place
